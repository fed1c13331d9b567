//! What makes this machine a node of a cluster, on its disk.
//!
//! One file, 0600, written beside and renamed, so that a credential is there
//! whole or not at all, whenever the power goes.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_api::node::dial::{Identity, Trust};
use fluffy_api::node::join::Enrolled;
use fluffy_api::node::v1;
use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

/// The version of the file.
const VERSION: u32 = 1;

/// What enrolment gave; bytes as base64.
#[derive(Clone, Serialize, Deserialize)]
pub struct Credentials {
    version: u32,
    /// The node's id.
    pub node_id: String,
    /// The cluster's id.
    pub cluster_id: String,
    /// Where the cluster's servers are, as `host:port`.
    pub servers: Vec<String>,
    /// The node's address in the overlay, /128.
    pub address: String,
    /// What its instances have addresses from.
    pub instance_prefix: String,
    chain: Vec<String>,
    root: String,
    key: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.node_id)
    }
}

/// Why credentials cannot be kept or used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file cannot be read or written.
    #[error("`{path}` cannot be {what}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Read or written.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is not what was written.
    #[error("`{path}` is damaged")]
    Damaged {
        /// Which file.
        path: PathBuf,
    },
}

impl Credentials {
    /// Of what a server issued.
    #[must_use]
    pub fn new(enrolled: &Enrolled, servers: Vec<String>) -> Self {
        let issued = &enrolled.issued;
        let overlay = issued.overlay.clone().unwrap_or_default();
        Self {
            version: VERSION,
            node_id: issued.node_id.clone(),
            cluster_id: issued.cluster_id.clone(),
            servers,
            address: overlay.address,
            instance_prefix: overlay.instance_prefix,
            chain: encode(&issued.certificate_chain),
            root: STANDARD.encode(&issued.root_certificate),
            key: STANDARD.encode(&enrolled.key),
        }
    }

    /// The same node with a new certificate.
    #[must_use]
    pub fn renewed(&self, certificate: &v1::Certificate, key: &[u8]) -> Self {
        Self {
            chain: encode(&certificate.certificate_chain),
            key: STANDARD.encode(key),
            ..self.clone()
        }
    }

    /// The same node, whose servers are here now.
    #[must_use]
    pub fn at(self, servers: Vec<String>) -> Self {
        Self { servers, ..self }
    }

    /// Those of a folder, if it has any.
    ///
    /// # Errors
    /// They are there and cannot be read.
    pub fn read(folder: &Path) -> Result<Option<Self>, CredentialsError> {
        let path = file(folder);
        let bytes = match fs::read(&path) {
            Ok(bytes) => Zeroizing::new(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                let what = "read";
                return Err(CredentialsError::File { path, what, source });
            }
        };
        let damaged = || CredentialsError::Damaged { path: path.clone() };
        let read: Self = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
        // What cannot be used is better known now than at the first dial.
        if read.version != VERSION || read.identity().is_none() || read.trust().is_none() {
            return Err(damaged());
        }
        Ok(Some(read))
    }

    /// Keeps them in a folder.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn keep(&self, folder: &Path) -> Result<(), CredentialsError> {
        let path = file(folder);
        let keep = || -> io::Result<()> {
            let pki = folder.join("pki");
            private(&pki)?;
            let bytes = Zeroizing::new(serde_json::to_vec(self)?);
            let new = path.with_extension("new");
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&pki)?.sync_all()
        };
        let what = "written";
        let failed = |source| CredentialsError::File {
            path: path.clone(),
            what,
            source,
        };
        keep().map_err(failed)
    }

    /// Whom the node believes.
    pub(crate) fn trust(&self) -> Option<Trust> {
        Some(Trust::Root(STANDARD.decode(&self.root).ok()?.into()))
    }

    /// What the node shows of itself.
    pub(crate) fn identity(&self) -> Option<Identity> {
        let chain = self.chain.iter();
        let chain = chain.map(|der| Some(STANDARD.decode(der).ok()?.into()));
        let key = PrivatePkcs8KeyDer::from(STANDARD.decode(&self.key).ok()?);
        Some(Identity {
            chain: chain.collect::<Option<_>>()?,
            key: PrivateKeyDer::Pkcs8(key),
        })
    }
}

fn encode(parts: &[Vec<u8>]) -> Vec<String> {
    parts.iter().map(|part| STANDARD.encode(part)).collect()
}

fn file(folder: &Path) -> PathBuf {
    folder.join("pki").join("identity.json")
}

/// A folder for this user only, made if it is not there.
pub(crate) fn private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn enrolled() -> Enrolled {
        let key = rcgen::KeyPair::generate().unwrap();
        Enrolled {
            issued: v1::Credentials {
                node_id: "node_1".to_owned(),
                certificate_chain: vec![vec![1, 2, 3]],
                root_certificate: vec![4],
                ..Default::default()
            },
            key: key.serialize_der(),
        }
    }

    #[test]
    fn credentials_are_kept_whole_and_for_the_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Credentials::read(folder.path()).unwrap().is_none());
        let made = Credentials::new(&enrolled(), vec!["localhost:1".to_owned()]);
        made.keep(folder.path()).unwrap();
        let read = Credentials::read(folder.path()).unwrap().unwrap();
        assert_eq!(
            (read.node_id.as_str(), &read.chain),
            ("node_1", &made.chain)
        );
        let mode = fs::metadata(file(folder.path()))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!format!("{read:?}").contains(&read.key));
        // A write that was cut off leaves the old one.
        fs::write(file(folder.path()).with_extension("new"), b"{").unwrap();
        assert!(Credentials::read(folder.path()).unwrap().is_some());
        fs::write(file(folder.path()), b"{").unwrap();
        assert!(Credentials::read(folder.path()).is_err());
    }
}
