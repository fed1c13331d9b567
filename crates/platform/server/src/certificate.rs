//! This server's own certificate in a file, for a start without master keys.
//!
//! Whoever has it can pass for this server until it ends, as with any server's
//! key; it opens nothing that is sealed. Only its owner may read it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use fluffy_api::node::dial::Identity;
use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::{Zeroize as _, Zeroizing};

/// What the file holds, in a form that stays.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    chain: Vec<Vec<u8>>,
    key: Vec<u8>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// Keeps a certificate and its key in the place of one of before.
pub(crate) fn keep(path: &Path, identity: &Identity) -> io::Result<()> {
    let kept = Kept {
        version: 1,
        chain: identity.chain.iter().map(|der| der.to_vec()).collect(),
        key: identity.key.secret_der().to_vec(),
    };
    let bytes = Zeroizing::new(postcard::to_allocvec(&kept).map_err(io::Error::other)?);
    let next = path.with_extension("next");
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new();
    let mut file = file.write(true).create_new(true).mode(0o600).open(&next)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&next, path)
}

/// The certificate and the key that were kept.
pub(crate) fn recall(path: &Path) -> io::Result<Identity> {
    let wrong = |why: &'static str| io::Error::new(io::ErrorKind::InvalidData, why);
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        return Err(wrong("others may read it: it must be for its owner alone"));
    }
    let bytes = Zeroizing::new(fs::read(path)?);
    let kept: Kept = postcard::from_bytes(&bytes).map_err(|_| wrong("it is something else"))?;
    if kept.version != 1 {
        return Err(wrong("it is of a later version"));
    }
    Ok(Identity {
        chain: kept.chain.iter().map(|der| der.clone().into()).collect(),
        key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(kept.key.clone())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_kept_and_is_private_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("certificate");
        assert!(recall(&path).is_err());
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let identity = || Identity {
            chain: vec![made.cert.der().clone()],
            key: PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
        };
        for _ in 0..2 {
            keep(&path, &identity()).unwrap();
        }
        let again = recall(&path).unwrap();
        assert_eq!(again.chain, identity().chain);
        assert_eq!(again.key.secret_der(), identity().key.secret_der());
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        assert!(recall(&path).is_err());
        mode(0o600);
        fs::write(&path, b"nonsense").unwrap();
        assert!(recall(&path).is_err());
    }
}
