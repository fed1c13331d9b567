//! Sealing: a data key for every object, wrapped by a master key.
//!
//! XChaCha20-Poly1305 with random nonces. What an object belongs to is bound
//! in, so that a row moved to another tenant, env or version does not open.
//! Rewrapping changes the wrapping alone; the object's bytes stay.

use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{Key, KeyInit as _, XChaCha20Poly1305, XNonce};
use fluffy_base::id::MasterKeyId;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::key::{Keyring, LoadKeyError, MasterKey};

/// What an object is and belongs to; bound into its seal.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// What it is for, such as `fluffy-secrets-v1`.
    pub purpose: &'a str,
    /// Whose it is, from the outermost in: org, env, bundle, version.
    pub owners: &'a [&'a str],
}

/// A sealed object, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// How it is sealed; 1 is XChaCha20-Poly1305.
    pub cipher: u8,
    /// The object's nonce and its sealed bytes.
    pub object: Vec<u8>,
    /// The nonce of the wrapping and the wrapped data key.
    pub wrapped_key: Vec<u8>,
    /// The master key that wraps it.
    pub master_key_id: MasterKeyId,
}

/// Why something sealed can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The master key is not at hand.
    #[error("the master key is not at hand")]
    Key(#[from] LoadKeyError),
    /// It was altered, or it is not what it is said to be.
    #[error("it was altered, or belongs to something else")]
    Integrity,
    /// The system gave no random bits.
    #[error("the system gives no random bits")]
    Randomness,
}

const CIPHER: u8 = 1;
const NONCE: usize = 24;
const WRAP: &str = "fluffy-wrap-v1";

impl Sealed {
    /// Seals bytes under a fresh data key.
    ///
    /// # Errors
    /// The system gives no random bits.
    pub fn seal(bytes: &[u8], about: &About<'_>, key: &MasterKey) -> Result<Self, OpenError> {
        let mut data_key = Zeroizing::new([0; 32]);
        getrandom::fill(data_key.as_mut_slice()).map_err(|_| OpenError::Randomness)?;
        let object = encrypt(&data_key, bytes, &about.bytes())?;
        Ok(Self {
            cipher: CIPHER,
            object,
            wrapped_key: wrap(&data_key, about, key)?,
            master_key_id: key.id(),
        })
    }

    /// The bytes, if this is what it is said to be.
    ///
    /// # Errors
    /// The master key is missing, or it is something else.
    pub fn open(&self, about: &About<'_>, keys: &Keyring) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let data_key = self.data_key(about, keys)?;
        decrypt(&data_key, &self.object, &about.bytes())
    }

    /// The same object, wrapped by another master key.
    ///
    /// # Errors
    /// As [`Sealed::open`].
    pub fn rewrap(
        &self,
        about: &About<'_>,
        keys: &Keyring,
        to: &MasterKey,
    ) -> Result<Self, OpenError> {
        let data_key = self.data_key(about, keys)?;
        Ok(Self {
            wrapped_key: wrap(&data_key, about, to)?,
            master_key_id: to.id(),
            ..self.clone()
        })
    }

    fn data_key(
        &self,
        about: &About<'_>,
        keys: &Keyring,
    ) -> Result<Zeroizing<[u8; 32]>, OpenError> {
        self.unwrapped(about, keys.get(self.master_key_id)?)
    }

    /// The data key, by a key that wraps it; with any other it is refused.
    pub(crate) fn unwrapped(
        &self,
        about: &About<'_>,
        key: &MasterKey,
    ) -> Result<Zeroizing<[u8; 32]>, OpenError> {
        if self.cipher != CIPHER {
            return Err(OpenError::Integrity);
        }
        let bound = wrap_about(about, key);
        let bits = decrypt(key.bits(), &self.wrapped_key, &bound)?;
        let bits: [u8; 32] = bits
            .as_slice()
            .try_into()
            .map_err(|_| OpenError::Integrity)?;
        Ok(Zeroizing::new(bits))
    }
}

impl About<'_> {
    /// Every part with its length before it, so that no two lists are alike.
    fn bytes(&self) -> Vec<u8> {
        let parts = std::iter::once(&self.purpose).chain(self.owners);
        join(parts.copied())
    }
}

fn join<'a>(parts: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes
}

fn wrap_about(about: &About<'_>, key: &MasterKey) -> Vec<u8> {
    let id = key.id().to_string();
    let parts = [WRAP, &id, about.purpose];
    join(parts.into_iter().chain(about.owners.iter().copied()))
}

fn wrap(data_key: &[u8; 32], about: &About<'_>, key: &MasterKey) -> Result<Vec<u8>, OpenError> {
    encrypt(key.bits(), data_key, &wrap_about(about, key))
}

fn encrypt(key: &[u8; 32], msg: &[u8], aad: &[u8]) -> Result<Vec<u8>, OpenError> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(|_| OpenError::Randomness)?;
    let cipher = XChaCha20Poly1305::new(&Key::from(*key));
    let sealed = cipher.encrypt(&XNonce::from(nonce), Payload { msg, aad });
    // Only a message beyond 256 GiB is refused, and bundles are bounded.
    let sealed = sealed.map_err(|_| OpenError::Integrity)?;
    Ok([nonce.as_slice(), &sealed].concat())
}

fn decrypt(key: &[u8; 32], bytes: &[u8], aad: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
    let (nonce, msg) = bytes
        .split_first_chunk::<NONCE>()
        .ok_or(OpenError::Integrity)?;
    let cipher = XChaCha20Poly1305::new(&Key::from(*key));
    let opened = cipher.decrypt(&XNonce::from(*nonce), Payload { msg, aad });
    opened.map(Zeroizing::new).map_err(|_| OpenError::Integrity)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: About<'static> = About {
        purpose: "fluffy-secrets-v1",
        owners: &["org_a", "env_a", "sb_a", "sv_1"],
    };

    fn ring() -> (tempfile::TempDir, Keyring) {
        let folder = tempfile::tempdir().unwrap();
        let ring = Keyring::open(folder.path()).unwrap();
        (folder, ring)
    }

    #[test]
    fn what_is_sealed_opens_only_as_what_it_is() {
        let (_folder, ring) = ring();
        let sealed = Sealed::seal(b"hunter2", &ABOUT, ring.active().unwrap()).unwrap();
        assert_eq!(sealed.open(&ABOUT, &ring).unwrap().as_slice(), b"hunter2");
        let others: [About<'_>; 3] = [
            About {
                owners: &["org_b", "env_a", "sb_a", "sv_1"],
                ..ABOUT
            },
            // The same letters, cut elsewhere.
            About {
                owners: &["org_aenv_a", "sb_a", "sv_1"],
                ..ABOUT
            },
            About {
                purpose: "fluffy-ca-v1",
                ..ABOUT
            },
        ];
        for other in others {
            let error = sealed.open(&other, &ring).unwrap_err();
            assert!(matches!(error, OpenError::Integrity), "{other:?}");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (_folder, ring) = ring();
        let sealed = Sealed::seal(b"hunter2", &ABOUT, ring.active().unwrap()).unwrap();
        for place in 0..sealed.object.len() {
            let mut bad = sealed.clone();
            bad.object[place] ^= 1;
            assert!(bad.open(&ABOUT, &ring).is_err(), "object byte {place}");
        }
        for place in 0..sealed.wrapped_key.len() {
            let mut bad = sealed.clone();
            bad.wrapped_key[place] ^= 1;
            assert!(bad.open(&ABOUT, &ring).is_err(), "key byte {place}");
        }
        let stored = serde_json::to_string(&sealed).unwrap();
        assert!(!stored.contains("hunter2"));
    }

    #[test]
    fn rewrapping_leaves_the_object_and_lets_the_old_key_go() {
        let (_folder, mut ring) = ring();
        let old = ring.active().unwrap().id();
        let sealed = Sealed::seal(b"hunter2", &ABOUT, ring.active().unwrap()).unwrap();
        ring.rotate().unwrap();
        let to = ring.active().unwrap();
        let moved = sealed.rewrap(&ABOUT, &ring, to).unwrap();
        assert_eq!(moved.object, sealed.object);
        ring.retire(old).unwrap();
        assert_eq!(moved.open(&ABOUT, &ring).unwrap().as_slice(), b"hunter2");
        // Control: what was not rewrapped is lost with its key.
        let error = sealed.open(&ABOUT, &ring).unwrap_err();
        assert!(matches!(error, OpenError::Key(_)), "{error}");
    }

    /// Test vector A.3.1 of the XChaCha draft (draft-irtf-cfrg-xchacha-03).
    #[test]
    fn the_cipher_is_the_one_of_the_draft() {
        let key: Vec<u8> = (0x80..0xa0).collect();
        let nonce: Vec<u8> = (0x40..0x58).collect();
        let aad = [
            0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7,
        ];
        let text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.";
        let sealed = [
            0xbd, 0x6d, 0x17, 0x9d, 0x3e, 0x83, 0xd4, 0x3b, 0x95, 0x76, 0x57, 0x94, 0x93, 0xc0,
            0xe9, 0x39, 0x57, 0x2a, 0x17, 0x00, 0x25, 0x2b, 0xfa, 0xcc, 0xbe, 0xd2, 0x90, 0x2c,
            0x21, 0x39, 0x6c, 0xbb, 0x73, 0x1c, 0x7f, 0x1b, 0x0b, 0x4a, 0xa6, 0x44, 0x0b, 0xf3,
            0xa8, 0x2f, 0x4e, 0xda, 0x7e, 0x39, 0xae, 0x64, 0xc6, 0x70, 0x8c, 0x54, 0xc2, 0x16,
            0xcb, 0x96, 0xb7, 0x2e, 0x12, 0x13, 0xb4, 0x52, 0x2f, 0x8c, 0x9b, 0xa4, 0x0d, 0xb5,
            0xd9, 0x45, 0xb1, 0x1b, 0x69, 0xb9, 0x82, 0xc1, 0xbb, 0x9e, 0x3f, 0x3f, 0xac, 0x2b,
            0xc3, 0x69, 0x48, 0x8f, 0x76, 0xb2, 0x38, 0x35, 0x65, 0xd3, 0xff, 0xf9, 0x21, 0xf9,
            0x66, 0x4c, 0x97, 0x63, 0x7d, 0xa9, 0x76, 0x88, 0x12, 0xf6, 0x15, 0xc6, 0x8b, 0x13,
            0xb5, 0x2e, 0xc0, 0x87, 0x59, 0x24, 0xc1, 0xc7, 0x98, 0x79, 0x47, 0xde, 0xaf, 0xd8,
            0x78, 0x0a, 0xcf, 0x49,
        ];
        let key: [u8; 32] = key.try_into().unwrap();
        let bytes = [nonce.as_slice(), &sealed].concat();
        assert_eq!(decrypt(&key, &bytes, &aad).unwrap().as_slice(), text);
    }
}
