//! Where blobs come from: registries with their mirrors, or whoever else has
//! them.
//!
//! What comes is believed by nobody: whoever takes it checks its digest.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fluffy_base::Digest;
use fluffy_manifest::ImageReference;
use hyper::body::Bytes;

use crate::access::Access;
use crate::document::ACCEPTED;
use crate::error::FetchError;
use crate::registry::{Credential, Options, Part, Registry};

/// What a function of a trait gives that has to wait.
pub type Waiting<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// A manifest.
    Manifest,
    /// A config or a layer.
    Blob,
}

/// Who has blobs.
pub trait BlobSource: Send + Sync + fmt::Debug {
    /// Its name, by which failures are counted.
    fn name(&self) -> &str;

    /// Where exactly that is: who asks for the same image there shares what
    /// comes of it, and nobody what comes of a stranger's repository.
    fn repository(&self) -> String {
        self.name().to_owned()
    }

    /// Whether it is left alone for a while when it fails again and again. Not
    /// whom the node is connected to anyway: it is back when it is back.
    fn is_left_alone(&self) -> bool {
        true
    }

    /// Opens a blob at a byte, or at its beginning if it cannot do that.
    fn open(
        &self,
        piece: Piece,
        digest: Digest,
        from: u64,
    ) -> Waiting<'_, Result<Opened, FetchError>>;

    /// What came of a blob broke off or is not what its digest says; whether
    /// somebody else is asked the next time, which is so a few times at most.
    fn doubt(&self, _digest: Digest) -> bool {
        false
    }
}

/// A blob that comes.
pub struct Opened {
    /// Which byte comes first.
    pub begins: u64,
    /// The bytes.
    pub bytes: Box<dyn Bring>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

/// Bytes as they come.
pub trait Bring: Send {
    /// The next ones; nothing at the end.
    fn next(&mut self) -> Waiting<'_, Result<Option<Bytes>, FetchError>>;
}

impl Bring for Part {
    fn next(&mut self) -> Waiting<'_, Result<Option<Bytes>, FetchError>> {
        Box::pin(Part::next(self))
    }
}

/// A repository at a registry, and at mirrors that are asked before it.
#[derive(Debug)]
pub struct Repository {
    registry: Arc<Registry>,
    reference: ImageReference,
    mirrors: Vec<(ImageReference, Option<Credential>)>,
    credential: Option<Credential>,
    answers: Mutex<Answers>,
}

/// Which mirrors answered, and which did not do so well.
#[derive(Debug, Default)]
struct Answers {
    /// The mirror that a blob was last opened at.
    last: HashMap<Digest, usize>,
    doubted: BTreeSet<usize>,
}

impl Repository {
    /// The repository of a reference; `mirrors` are hosts that have the same.
    ///
    /// A mirror gets no credential but its own, and whatever it cannot give,
    /// or gives wrong, the registry itself is asked for.
    #[must_use]
    pub fn new(
        registry: Arc<Registry>,
        reference: ImageReference,
        credential: Option<Credential>,
        mirrors: &[String],
    ) -> Self {
        let repository = reference.repository();
        let mirrors = mirrors.iter();
        // What is no host is no mirror.
        let mirrors = mirrors.filter_map(|host| format!("{host}/{repository}").parse().ok());
        Self {
            mirrors: mirrors.map(|mirror| (mirror, None)).collect(),
            registry,
            reference,
            credential,
            answers: Mutex::default(),
        }
    }

    /// The repository of a reference as an operator has it reached.
    #[must_use]
    pub fn reached(access: Access, base: &Options, reference: ImageReference) -> Self {
        let registry = Arc::new(access.client(base));
        let mirrors = access.mirrors.into_iter();
        let mirrors = mirrors.filter_map(|place| {
            let there = place.reference(&reference)?;
            Some((there, place.credential))
        });
        Self {
            mirrors: mirrors.collect(),
            registry,
            reference,
            credential: access.registry.credential,
            answers: Mutex::default(),
        }
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlobSource for Repository {
    fn name(&self) -> &str {
        self.reference.registry()
    }

    fn repository(&self) -> String {
        let reference = &self.reference;
        format!("{}/{}", reference.registry(), reference.repository())
    }

    fn open(
        &self,
        piece: Piece,
        digest: Digest,
        from: u64,
    ) -> Waiting<'_, Result<Opened, FetchError>> {
        let (kind, accept) = match piece {
            Piece::Manifest => ("manifests", ACCEPTED),
            Piece::Blob => ("blobs", "*/*"),
        };
        let path = format!("{kind}/sha256:{digest}");
        Box::pin(async move {
            for (number, (mirror, credential)) in self.mirrors.iter().enumerate() {
                if self.answers().doubted.contains(&number) {
                    continue;
                }
                let (asked, credential) = ((path.as_str(), accept), credential.as_ref());
                let opening = self.registry.open_part(mirror, asked, from, credential);
                if let Ok(part) = opening.await {
                    self.answers().last.insert(digest, number);
                    return Ok(part.into());
                }
            }
            self.answers().last.remove(&digest);
            let credential = self.credential.as_ref();
            let asked = (path.as_str(), accept);
            let opening = self
                .registry
                .open_part(&self.reference, asked, from, credential);
            Ok(opening.await?.into())
        })
    }

    fn doubt(&self, digest: Digest) -> bool {
        let mut answers = self.answers();
        match answers.last.remove(&digest) {
            Some(mirror) => {
                answers.doubted.insert(mirror);
                true
            }
            None => false,
        }
    }
}

impl From<Part> for Opened {
    fn from(part: Part) -> Self {
        Self {
            begins: part.begins,
            bytes: Box::new(part),
        }
    }
}
