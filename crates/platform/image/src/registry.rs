//! A client of registries: finds documents and streams blobs, reading only.
//!
//! Speaks the distribution protocol over HTTPS, or in the clear to registries
//! that the operator listed and to this machine. Sends a credential to the
//! registry it is for and nowhere else, and follows few redirects, without
//! it. Next: `way` for where it may connect, `session` for one exchange.

mod challenge;
mod origin;
mod session;
mod way;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::{Digest, Hasher};
use fluffy_egress::Network;
use fluffy_egress::address::Reserved;
use fluffy_manifest::{ImageReference, ImageVersion};
use fluffy_secret::SecretString;
use hyper::body::Bytes;
use tokio::time::timeout;
use tokio_rustls::rustls::RootCertStore;

use crate::document::{ACCEPTED, LARGEST_CONFIG, LARGEST_DOCUMENT};
use crate::error::{FetchError, ResolveError};
use crate::survey::{Limits, Resolved, Survey, Wanted};

use session::{Answer, Session};
use way::Way;

/// Says whether a host may be connected to at an address, or why not.
///
/// The host is written with its port unless that is 443, such as `ghcr.io`.
pub type Judge = Arc<dyn Fn(&str, IpAddr) -> Result<(), String> + Send + Sync>;

/// How registries are reached.
#[derive(Clone)]
pub struct Options {
    /// Names and connections.
    pub network: Arc<dyn Network>,
    /// Where connections may go.
    pub judge: Judge,
    /// Whom to trust.
    pub roots: RootCertStore,
    /// Registries that are spoken to in the clear, as references name them.
    pub insecure: BTreeSet<String>,
    /// Registries that are spoken to with TLS wherever they are.
    pub internal: BTreeSet<String>,
    /// How much an image may be.
    pub limits: Limits,
    /// How long finding an image, or the beginning of a blob, may take.
    pub deadline: Duration,
    /// How long a blob may pause.
    pub idle: Duration,
}

/// Who we are to one registry.
#[derive(Debug)]
pub struct Credential {
    /// What we show.
    pub proof: Proof,
    /// The host that gives out the registry's tokens, if it is another one.
    pub realm: Option<String>,
}

/// What proves who we are.
#[derive(Debug)]
pub enum Proof {
    /// For the registry, or for who gives out its tokens.
    Password {
        /// The name.
        user: String,
        /// The password, or what stands for it.
        password: SecretString,
    },
    /// A token that is good for others, for who gives them out.
    Identity(SecretString),
}

/// A client of registries.
pub struct Registry {
    way: Way,
    insecure: BTreeSet<String>,
    internal: BTreeSet<String>,
    limits: Limits,
    deadline: Duration,
    idle: Duration,
}

/// The content of a blob as it comes. Dropping it ends the connection.
#[derive(Debug)]
pub struct Blob {
    part: Part,
    digest: Digest,
    left: u64,
    hasher: Option<Hasher>,
}

/// What comes of a blob or document, unchecked: whoever takes it hashes it.
#[derive(Debug)]
pub(crate) struct Part {
    answer: Answer,
    /// Which byte of the whole comes first.
    pub(crate) begins: u64,
    idle: Duration,
}

impl Part {
    /// The next piece; nothing at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        match timeout(self.idle, self.answer.next()).await {
            Ok(piece) => piece,
            Err(_) => Err(FetchError::Deadline {
                host: self.answer.host(),
                after: self.idle,
            }),
        }
    }
}

impl Options {
    /// The public internet and nothing else, with the platform's limits.
    #[must_use]
    pub fn public(network: Arc<dyn Network>, roots: RootCertStore) -> Self {
        Self {
            network,
            judge: public_or_listed(BTreeSet::new()),
            roots,
            insecure: BTreeSet::new(),
            internal: BTreeSet::new(),
            limits: Limits::default(),
            deadline: Duration::from_secs(15),
            idle: Duration::from_secs(30),
        }
    }
}

/// Lets connections go to public addresses, and anywhere for listed hosts.
#[must_use]
pub fn public_or_listed(listed: BTreeSet<String>) -> Judge {
    Arc::new(move |host, address| match Reserved::of(address) {
        Some(kind) if !listed.contains(host) => Err(format!("it is {kind}")),
        Some(_) | None => Ok(()),
    })
}

/// The machine's own root certificates; damaged ones are left out.
#[must_use]
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

impl Registry {
    /// A client.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            way: Way::new(options.network, options.judge, options.roots),
            insecure: options.insecure,
            internal: options.internal,
            limits: options.limits,
            deadline: options.deadline,
            idle: options.idle,
        }
    }

    /// Finds what a reference stands for now, within the deadline.
    ///
    /// # Errors
    /// It cannot be found, or no node could run it.
    pub async fn resolve(
        &self,
        reference: &ImageReference,
        credential: Option<&Credential>,
    ) -> Result<Resolved, ResolveError> {
        let finding = self.find(reference, credential);
        let found = timeout(self.deadline, finding).await;
        found.unwrap_or_else(|_| Err(self.late(reference).into()))
    }

    /// Opens a blob of a repository; its content is checked as it comes.
    ///
    /// # Errors
    /// There is none, or it has another size.
    pub async fn open_blob(
        &self,
        reference: &ImageReference,
        (digest, size): (Digest, u64),
        credential: Option<&Credential>,
    ) -> Result<Blob, FetchError> {
        let path = format!("blobs/sha256:{digest}");
        let opening = self.open_part(reference, (&path, "*/*"), 0, credential);
        let part = opening.await?;
        if part.answer.length().is_some_and(|length| length != size) {
            let what = "size";
            return Err(FetchError::Content { digest, what });
        }
        Ok(Blob {
            part,
            digest,
            left: size,
            hasher: Some(Hasher::new()),
        })
    }

    /// Opens a blob or a document, without its first bytes if that can be.
    pub(crate) async fn open_part(
        &self,
        reference: &ImageReference,
        (path, accept): (&str, &str),
        from: u64,
        credential: Option<&Credential>,
    ) -> Result<Part, FetchError> {
        let opening = async {
            let mut session = Session::new(self, reference, credential);
            session.ask_from(path, accept, from).await
        };
        let opened = timeout(self.deadline, opening).await;
        let answer = opened.unwrap_or_else(|_| Err(self.late(reference)))?;
        Ok(Part {
            begins: answer.begins()?,
            answer,
            idle: self.idle,
        })
    }

    async fn find(
        &self,
        reference: &ImageReference,
        credential: Option<&Credential>,
    ) -> Result<Resolved, ResolveError> {
        let mut session = Session::new(self, reference, credential);
        let version = match reference.version() {
            ImageVersion::Tag(tag) => tag.clone(),
            ImageVersion::Digest(digest) => format!("sha256:{digest}"),
        };
        let answer = session
            .ask(&format!("manifests/{version}"), ACCEPTED)
            .await?;
        let (media_type, announced) = (answer.media_type()?, answer.digest()?);
        let bytes = session.read(answer, LARGEST_DOCUMENT).await?;
        let wanted = match reference.version() {
            ImageVersion::Digest(digest) => Some(*digest),
            ImageVersion::Tag(_) => announced,
        };
        if let Some(digest) = wanted.filter(|digest| *digest != Digest::of(&bytes)) {
            let what = "digest";
            return Err(FetchError::Content { digest, what }.into());
        }
        let mut survey = Survey::begin(&media_type, &bytes, self.limits)?;
        while let Some(wanted) = survey.wanted() {
            let bytes = match wanted {
                Wanted::Document(descriptor) => {
                    let path = format!("manifests/sha256:{}", descriptor.digest);
                    let answer = session.ask(&path, ACCEPTED).await?;
                    answer.is(&descriptor.media_type)?;
                    session
                        .read(answer, descriptor.size.min(LARGEST_DOCUMENT))
                        .await?
                }
                Wanted::Config(descriptor) => {
                    let path = format!("blobs/sha256:{}", descriptor.digest);
                    let answer = session.ask(&path, "*/*").await?;
                    session
                        .read(answer, descriptor.size.min(LARGEST_CONFIG))
                        .await?
                }
            };
            survey.take(&bytes)?;
        }
        Ok(survey.finish()?)
    }

    fn late(&self, reference: &ImageReference) -> FetchError {
        FetchError::Deadline {
            host: reference.registry().to_owned(),
            after: self.deadline,
        }
    }
}

impl Blob {
    /// The next piece; nothing at the end, and only then is all of it right.
    ///
    /// # Errors
    /// The connection broke or paused for too long, or the content is not
    /// that of the blob: whatever came before is then worth nothing.
    pub async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        if self.hasher.is_none() {
            return Ok(None);
        }
        let piece = self.part.next().await?;
        let content = |what| FetchError::Content {
            digest: self.digest,
            what,
        };
        match (piece, &mut self.hasher) {
            (Some(piece), Some(hasher)) => {
                let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
                let left = self.left.checked_sub(length);
                self.left = left.ok_or_else(|| content("size"))?;
                hasher.update(&piece);
                Ok(Some(piece))
            }
            (None, hasher) if self.left == 0 => {
                let digest = hasher.take().map(Hasher::finish);
                match digest == Some(self.digest) {
                    true => Ok(None),
                    false => Err(content("digest")),
                }
            }
            (None, _) | (Some(_), None) => Err(content("size")),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").finish_non_exhaustive()
    }
}
