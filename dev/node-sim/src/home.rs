//! What a simulated node keeps on its disk: credentials, plan, instances.
//!
//! Written whole or not at all, so that a process killed in between finds what
//! was there before.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_api::node::dial::{Identity, Trust};
use fluffy_api::node::join::{self, EnrolError, Enrolling};
use fluffy_api::node::v1;
use prost::Message as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::machine::Kept;

/// The folder of one node.
#[derive(Debug, Clone)]
pub struct Home(PathBuf);

/// What enrolment gave; bytes as base64.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Credentials {
    /// The node's id.
    pub node_id: String,
    chain: Vec<String>,
    root: String,
    key: String,
}

impl Credentials {
    /// Of what a server issued, and the key that it was for.
    #[must_use]
    pub fn new(issued: &v1::Credentials, key: &[u8]) -> Self {
        Self {
            node_id: issued.node_id.clone(),
            chain: encode(&issued.certificate_chain),
            root: STANDARD.encode(&issued.root_certificate),
            key: STANDARD.encode(key),
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

    /// Whom the node believes.
    ///
    /// # Errors
    /// It was not kept whole.
    pub fn trust(&self) -> Result<Trust> {
        Ok(Trust::Root(STANDARD.decode(&self.root)?.into()))
    }

    /// What the node shows of itself.
    ///
    /// # Errors
    /// It was not kept whole.
    pub fn identity(&self) -> Result<Identity> {
        let chain = self
            .chain
            .iter()
            .map(|der| Ok(STANDARD.decode(der)?.into()));
        let key = PrivatePkcs8KeyDer::from(STANDARD.decode(&self.key)?);
        Ok(Identity {
            chain: chain.collect::<Result<_>>()?,
            key: PrivateKeyDer::Pkcs8(key),
        })
    }
}

/// Enrols, and says what was given.
///
/// # Errors
/// The server says no; its status is among the causes.
pub async fn enrol(enrolling: &Enrolling) -> Result<Credentials> {
    let enrolled = join::enrol(enrolling).await.map_err(|error| match error {
        EnrolError::Refused(status) => anyhow::Error::from(status),
        EnrolError::Dial(error) => error.into(),
        error => error.into(),
    })?;
    Ok(Credentials::new(&enrolled.issued, &enrolled.key))
}

fn encode(parts: &[Vec<u8>]) -> Vec<String> {
    parts.iter().map(|part| STANDARD.encode(part)).collect()
}

impl Home {
    /// The folder, made if it is not there.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder.to_owned()))
    }

    /// The credentials, if the node has any.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn credentials(&self) -> Result<Option<Credentials>> {
        self.read_json("credentials.json")
    }

    /// Keeps credentials.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn keep_credentials(&self, credentials: &Credentials) -> Result<()> {
        self.write("credentials.json", &serde_json::to_vec(credentials)?)
    }

    /// The last plan, if there was one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn plan(&self) -> Result<Option<v1::NodePlan>> {
        let bytes = self.read("plan.pb")?;
        bytes
            .map(|bytes| Ok(v1::NodePlan::decode(bytes.as_slice())?))
            .transpose()
    }

    /// Keeps a plan.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep_plan(&self, plan: &v1::NodePlan) -> Result<()> {
        self.write("plan.pb", &plan.encode_to_vec())
    }

    /// Where the instances stood.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn instances(&self) -> Result<BTreeMap<String, Kept>> {
        Ok(self.read_json("instances.json")?.unwrap_or_default())
    }

    /// Keeps where the instances stand.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep_instances(&self, instances: &BTreeMap<String, Kept>) -> Result<()> {
        self.write("instances.json", &serde_json::to_vec(instances)?)
    }

    fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let bytes = self.read(name)?;
        bytes
            .map(|bytes| Ok(serde_json::from_slice(&bytes)?))
            .transpose()
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match fs::read(self.0.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {name}")),
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let new = self.0.join(format!("{name}.new"));
        fs::write(&new, bytes).with_context(|| format!("cannot write {name}"))?;
        fs::rename(new, self.0.join(name)).with_context(|| format!("cannot keep {name}"))
    }
}
