//! The key that signs checkpoints, and the public key that is pinned.
//!
//! The secret lives in a file of mode 0600 outside the ledger's directory and
//! is never printed, logged or put into an error. An OS keyring may follow.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

const HEADER: &str = "fluffy-ledger-key-1 ";

/// The public half of the signing key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

/// Why a text is not a public key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a public key such as `ed25519:` and 44 characters of base 64")]
pub struct ParsePublicKeyError(String);

impl PublicKey {
    /// The 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// The key as other tools for signed notes write it.
    #[must_use]
    pub fn verifier_key(&self, name: &str) -> String {
        let id = self.id(name);
        let body = [&[1u8][..], self.as_bytes()].concat();
        format!(
            "{name}+{:08x}+{}",
            u32::from_be_bytes(id),
            STANDARD.encode(body)
        )
    }

    /// The four bytes that tell keys of one name apart.
    pub(crate) fn id(&self, name: &str) -> [u8; 4] {
        let digest = fluffy_base::Digest::of_parts(&[name.as_bytes(), b"\n\x01", self.as_bytes()]);
        let [a, b, c, d, ..] = digest.0;
        [a, b, c, d]
    }

    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature)
            .is_ok_and(|signature| self.0.verify_strict(message, &signature).is_ok())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ed25519:{}", STANDARD.encode(self.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = ParsePublicKeyError;

    fn from_str(text: &str) -> Result<Self, ParsePublicKeyError> {
        text.strip_prefix("ed25519:")
            .filter(|body| body.len() == 44)
            .and_then(|body| STANDARD.decode(body).ok())
            .and_then(|bytes| VerifyingKey::from_bytes(&bytes.try_into().ok()?).ok())
            .map(Self)
            .ok_or_else(|| ParsePublicKeyError(text.chars().take(80).collect()))
    }
}

/// The signing key, read from its file.
pub struct SigningKeyFile {
    path: PathBuf,
    key: SigningKey,
}

/// Why the signing key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file can't be read or created.
    #[error("the signing key `{}` can't be read or created", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Others than the owner may read it.
    #[error(
        "the signing key `{}` may be read by others (mode {mode:o}); it must be 600",
        path.display()
    )]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It does not hold a key.
    #[error("`{}` does not hold a signing key", path.display())]
    Content {
        /// The file.
        path: PathBuf,
    },
    /// The system gives no randomness.
    #[error("no randomness for the signing key `{}`", path.display())]
    Randomness {
        /// The file.
        path: PathBuf,
    },
}

impl SigningKeyFile {
    /// Reads the key, creating it if there is none.
    ///
    /// # Errors
    /// The file can't be read, is readable by others, or holds no key.
    pub fn open_or_create(path: &Path) -> Result<Self, KeyFileError> {
        match Self::open(path) {
            Err(KeyFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                create(path)?;
                Self::open(path)
            }
            other => other,
        }
    }

    /// Reads the key.
    ///
    /// # Errors
    /// As [`SigningKeyFile::open_or_create`], and also if there is none.
    pub fn open(path: &Path) -> Result<Self, KeyFileError> {
        let failed = |source| KeyFileError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        refuse_if_shared(path, &file.metadata().map_err(failed)?)?;
        let mut text = Zeroizing::new(String::with_capacity(128));
        file.take(128).read_to_string(&mut text).map_err(failed)?;
        let key = parse(&text).ok_or_else(|| KeyFileError::Content {
            path: path.to_owned(),
        })?;
        Ok(Self {
            path: path.to_owned(),
            key,
        })
    }

    /// The public half, to print and pin.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.key.verifying_key())
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.key.sign(message).to_bytes()
    }
}

impl fmt::Debug for SigningKeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKeyFile")
            .field("path", &self.path)
            .field("public_key", &self.public_key())
            .finish()
    }
}

fn parse(text: &str) -> Option<SigningKey> {
    let body = text.strip_prefix(HEADER)?.trim_end();
    let mut seed = Zeroizing::new([0u8; 32]);
    let written = STANDARD.decode_slice(body, seed.as_mut()).ok()?;
    (written == 32).then(|| SigningKey::from_bytes(&seed))
}

#[cfg(unix)]
fn refuse_if_shared(path: &Path, metadata: &fs::Metadata) -> Result<(), KeyFileError> {
    use std::os::unix::fs::PermissionsExt;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = path.to_owned();
        return Err(KeyFileError::Readable { path, mode });
    }
    Ok(())
}

#[cfg(not(unix))]
fn refuse_if_shared(_: &Path, _: &fs::Metadata) -> Result<(), KeyFileError> {
    Ok(())
}

/// Writes a new key beside its place, then links it there: whoever comes
/// second finds the first one's key whole, never half a file.
fn create(path: &Path) -> Result<(), KeyFileError> {
    let failed = |source| KeyFileError::Io {
        path: path.to_owned(),
        source,
    };
    let mut seed = Zeroizing::new([0u8; 32]);
    getrandom::fill(seed.as_mut()).map_err(|_| KeyFileError::Randomness {
        path: path.to_owned(),
    })?;
    if let Some(parent) = path.parent() {
        crate::sqlite::private_directory(parent).map_err(failed)?;
    }
    let text = Zeroizing::new(format!("{HEADER}{}\n", STANDARD.encode(seed.as_ref())));
    let unique = fluffy_base::id::RequestId::generate();
    let temporary = path.with_extension(format!("{unique}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let linked = written.and_then(|()| fs::hard_link(&temporary, path));
    let removed = fs::remove_file(&temporary);
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.and(removed).map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_created_once_and_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys/ledger.key");
        let first = SigningKeyFile::open_or_create(&path).unwrap();
        let second = SigningKeyFile::open_or_create(&path).unwrap();
        assert_eq!(first.public_key(), second.public_key());
        let signature = first.sign(b"message");
        assert!(second.public_key().verifies(b"message", &signature));
        assert!(!second.public_key().verifies(b"massage", &signature));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(!format!("{first:?}").contains(&STANDARD.encode(first.key.to_bytes())));
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.key");
        SigningKeyFile::open_or_create(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = SigningKeyFile::open(&path).unwrap_err();
        assert!(matches!(error, KeyFileError::Readable { mode: 0o640, .. }));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.key");
        SigningKeyFile::open_or_create(&path).unwrap();
        fs::write(&path, "fluffy-ledger-key-1 AAAA\n").unwrap();
        assert!(matches!(
            SigningKeyFile::open(&path),
            Err(KeyFileError::Content { .. })
        ));
        let key = SigningKeyFile::open_or_create(&directory.path().join("b"))
            .unwrap()
            .public_key();
        assert_eq!(key.to_string().parse(), Ok(key));
        for text in ["", "ed25519:", "ed25519:AAAA", "rsa:x"] {
            assert!(text.parse::<PublicKey>().is_err(), "{text}");
        }
    }
}
