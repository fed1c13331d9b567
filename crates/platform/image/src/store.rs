//! A node's images: fetched by digest, made into root file systems, kept.
//!
//! [`Store::ensure`] gives a root file system or the reason why there is none.
//! Only what its digest proves enters `blobs/`, only what is whole enters
//! `roots/`, and a kill at any point leaves nothing else behind. Pins are in
//! memory: whoever opens a store names the owners it knows of before anything
//! is collected. Next: `fetch`, `build` and `disk`.

mod breaker;
mod build;
pub(crate) mod disk;
mod fetch;
mod source;

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use fluffy_base::{Digest, Hasher};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedMutexGuard, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use tokio::time::timeout;

use crate::document::{Config, Document, ImageConfig, LARGEST_CONFIG, LARGEST_DOCUMENT, Manifest};
use crate::error::FetchError;
use crate::root::{Root, RootLimits, digest_of_folder, unfold};
use crate::survey::Limits;

use breaker::Breaker;
use build::LayerFile;
use disk::{Disk, NoRoom, Promise, TREE, Work};
use fetch::{Origin, Wanted};

pub use build::WorkerCommand;
pub use disk::Usage;
pub use source::{BlobSource, Bring, Opened, Piece, Repository, Waiting};

/// What a root file system is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RootForm {
    /// One file, which the kernel mounts.
    #[default]
    File,
    /// A folder, where the kernel cannot do that. Only root can make one.
    Folder,
}

impl RootForm {
    /// The name of the root file system of an image; the version of what is
    /// made is part of it.
    fn key_of(self, digest: Digest) -> Digest {
        let format = match self {
            Self::File => "erofs-1",
            Self::Folder => "folder-1",
        };
        Digest::of_parts(&[format!("sha256:{digest}").as_bytes(), format.as_bytes()])
    }
}

/// How much a store may do and hold.
#[derive(Debug, Clone, Copy)]
pub struct StoreLimits {
    /// Bytes of blobs and roots together.
    pub quota: u64,
    /// What root file systems are made.
    pub form: RootForm,
    /// How much an image may be, unless who asks for it says otherwise.
    pub pull: PullLimits,
    /// The pauses between attempts at one blob, unless its registry asks for
    /// longer ones.
    pub pauses: [Duration; 3],
}

impl StoreLimits {
    /// The platform's limits, with this quota.
    #[must_use]
    pub fn with_quota(quota: u64) -> Self {
        Self {
            quota,
            form: RootForm::default(),
            pull: PullLimits::default(),
            pauses: [1, 4, 16].map(Duration::from_secs),
        }
    }

    /// The platform's limits, with three tenths of the disk of a folder.
    ///
    /// # Errors
    /// The folder cannot be looked at.
    pub fn of_disk(folder: &Path) -> io::Result<Self> {
        let disk = rustix::fs::statvfs(folder)?;
        let whole = disk.f_blocks.saturating_mul(disk.f_frsize);
        Ok(Self::with_quota(whole / 10 * 3))
    }
}

/// How much one image may be, and how long it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullLimits {
    /// How much it may be.
    pub image: Limits,
    /// How much it may be once it is unpacked.
    pub root: RootLimits,
    /// How long one layer may take, with all attempts.
    pub layer_deadline: Duration,
    /// How long the image may take, with all that is done to it.
    pub image_deadline: Duration,
}

impl Default for PullLimits {
    fn default() -> Self {
        Self {
            image: Limits::default(),
            root: RootLimits::default(),
            layer_deadline: Duration::from_secs(5 * 60),
            image_deadline: Duration::from_secs(30 * 60),
        }
    }
}

/// An image that somebody needs.
#[derive(Debug, Clone)]
pub struct ImageRequest {
    /// The digest of its manifest.
    pub digest: Digest,
    /// Who has it.
    pub source: Arc<dyn BlobSource>,
    /// How much it may be, if not what the store says. Who asks for what
    /// another one of the same repository waits for gets it by the other's.
    pub limits: Option<PullLimits>,
}

/// A root file system that stays until its owner is done with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// The file, or the folder.
    pub root: PathBuf,
    /// How the image says that it runs.
    pub config: ImageConfig,
    /// What is in it.
    pub about: Root,
}

/// How many conversions are remembered for who looks.
const MOST_CONVERSIONS: usize = 1_000;

/// What was asked of a store and done by it, since somebody last looked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often an image was here already.
    pub hits: u64,
    /// And how often it was not.
    pub misses: u64,
    /// How long each root file system took that was made of its layers, the
    /// first of them if nobody looked for long.
    pub conversions: Vec<Duration>,
}

/// Why there is no root file system.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EnsureError {
    /// Something could not be fetched.
    #[error("`sha256:{digest}` cannot be fetched: {source}")]
    Fetch {
        /// What.
        digest: Digest,
        /// Why not.
        source: Arc<FetchError>,
    },
    /// Its registry failed too often, and is left alone.
    #[error(
        "`sha256:{digest}` is not asked for now: `{registry}` failed again and again, the next \
         attempt is in {} s", retry_in.as_secs()
    )]
    Unavailable {
        /// What.
        digest: Digest,
        /// The registry.
        registry: String,
        /// When it is asked again.
        retry_in: Duration,
    },
    /// It took too long.
    #[error("`sha256:{digest}` took longer than {} s", after.as_secs())]
    Late {
        /// What.
        digest: Digest,
        /// How long it had.
        after: Duration,
    },
    /// Its documents are none of an image.
    #[error("the image `sha256:{digest}` cannot be used: {why}")]
    Invalid {
        /// The document.
        digest: Digest,
        /// What is wrong.
        why: String,
    },
    /// There is too much of it.
    #[error("the image `sha256:{digest}` has {value} {what}; the limit is {limit}")]
    TooLarge {
        /// The image.
        digest: Digest,
        /// How much.
        value: u64,
        /// Of what.
        what: &'static str,
        /// How much is allowed.
        limit: u64,
    },
    /// The worker refused it.
    #[error("the image `sha256:{digest}` is refused: {why}")]
    Refused {
        /// The image.
        digest: Digest,
        /// The reason that an instance shows.
        code: &'static str,
        /// Why.
        why: String,
    },
    /// The worker did not survive it.
    #[error("the worker that unpacked `sha256:{digest}` ended without a result: {how}")]
    Worker {
        /// The image.
        digest: Digest,
        /// How it ended.
        how: String,
    },
    /// There is no room for it.
    #[error("there is no room for the image `sha256:{digest}`: {source}")]
    Room {
        /// The image.
        digest: Digest,
        /// How much is missing.
        source: RoomError,
    },
    /// The store's own files cannot be used.
    #[error("the store of images cannot be used: {0}")]
    Store(Arc<io::Error>),
}

/// How much room is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct RoomError(NoRoom);

impl From<NoRoom> for RoomError {
    fn from(error: NoRoom) -> Self {
        Self(error)
    }
}

impl From<io::Error> for EnsureError {
    fn from(error: io::Error) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl EnsureError {
    /// Whether what came is not what was asked for: somebody else may have it.
    fn is_wrong_content(&self) -> bool {
        match self {
            Self::Fetch { source, .. } => matches!(**source, FetchError::Content { .. }),
            _ => matches!(self, Self::Invalid { .. }),
        }
    }

    fn fetch(digest: Digest, error: FetchError) -> Self {
        let source = Arc::new(error);
        Self::Fetch { digest, source }
    }

    /// The reason that an instance shows.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Fetch { source, .. } => match &**source {
                FetchError::Content { .. } => "image_layer_invalid",
                FetchError::Denied { .. } | FetchError::Realm { .. } => "image_auth_failed",
                error if error.is_transient() => "registry_unavailable",
                _ => "image_pull_failed",
            },
            Self::Unavailable { .. } => "registry_unavailable",
            Self::Late { .. } => "image_pull_timeout",
            Self::Invalid { .. } => "image_invalid",
            Self::TooLarge { .. } => "image_too_large",
            Self::Refused { code, .. } => code,
            Self::Room { .. } => "disk_full",
            Self::Store(error) if error.kind() == io::ErrorKind::StorageFull => "disk_full",
            Self::Worker { .. } | Self::Store(_) => "image_pull_failed",
        }
    }

    /// Whether the same may work later without anybody changing the image.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Fetch { source, .. } => source.is_transient(),
            Self::Unavailable { .. } | Self::Late { .. } | Self::Room { .. } => true,
            Self::Worker { .. } | Self::Store(_) => true,
            Self::Refused { code, .. } => *code == "disk_full",
            Self::Invalid { .. } | Self::TooLarge { .. } => false,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        if let Self::Fetch { source, .. } = self
            && self.code() == "image_auth_failed"
        {
            return source.fix();
        }
        match self.code() {
            "registry_unavailable" => "nothing: it is tried again; check the registry if it stays",
            "image_pull_timeout" => "make the image smaller, or bring the registry nearer",
            "image_too_large" => "make the image smaller, or ask the operator to raise the limit",
            "disk_full" => "free space on the node, or give its store of images a larger quota",
            "image_pull_failed" => "check that the image is still there",
            _ => "build and push the image again with a current version of its builder",
        }
    }
}

/// A file that is not what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// Which.
    pub path: PathBuf,
    /// What is wrong.
    pub what: &'static str,
}

/// A node's images; to be cloned freely.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

/// What is known about a root file system, beside it.
#[derive(Debug, Serialize, Deserialize)]
struct Description {
    version: u32,
    /// The image.
    digest: Digest,
    sha256: Digest,
    about: Root,
    config: ImageConfig,
}

/// What all that is done at once has in common.
#[derive(Debug)]
struct Shared {
    disk: Arc<Disk>,
    limits: StoreLimits,
    worker: WorkerCommand,
    images: Semaphore,
    blobs: Semaphore,
    builds: Semaphore,
    breakers: Mutex<HashMap<String, Breaker>>,
    turns: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
    /// By what is made, and of which repository.
    flights: Mutex<HashMap<(Digest, String), Weak<Flight>>>,
    tally: Mutex<Tally>,
}

/// A build that one or more of the same repository wait for; ends with the
/// last of them.
#[derive(Debug)]
struct Flight {
    outcome: watch::Receiver<Option<Result<Pinned, EnsureError>>>,
    task: AbortHandle,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Store {
    /// Opens the store in a folder, and removes what nobody finished.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn open(folder: &Path, limits: StoreLimits, worker: WorkerCommand) -> io::Result<Self> {
        let shared = Shared {
            disk: Disk::open(folder, limits.quota)?,
            limits,
            worker,
            images: Semaphore::new(3),
            blobs: Semaphore::new(4),
            builds: Semaphore::new(2),
            breakers: Mutex::default(),
            turns: Mutex::default(),
            flights: Mutex::default(),
            tally: Mutex::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Gives the root file system of an image, which then stays until `owner`
    /// is done with it or needs another. Who asks for the same shares the work,
    /// and what comes of it if it is of the same repository.
    ///
    /// # Errors
    /// There is none; the error has the reason that an instance shows.
    pub async fn ensure(&self, request: ImageRequest, owner: &str) -> Result<Pinned, EnsureError> {
        let key = self.shared.limits.form.key_of(request.digest);
        let before = self.shared.disk.is_pinned(owner);
        self.shared.disk.pin(owner, key);
        let ensured = self.ensured(key, request).await;
        if ensured.is_err() {
            match before {
                Some(before) => self.shared.disk.pin(owner, before),
                None => self.shared.disk.unpin(owner),
            }
        }
        ensured
    }

    async fn ensured(&self, key: Digest, request: ImageRequest) -> Result<Pinned, EnsureError> {
        if let Some(pinned) = self.shared.find(key).await? {
            lock(&self.shared.tally).hits += 1;
            return Ok(pinned);
        }
        lock(&self.shared.tally).misses += 1;
        let flight = self.join(key, request);
        let mut outcome = flight.outcome.clone();
        let ended = outcome.wait_for(Option::is_some).await;
        let outcome = ended.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| Err(io::Error::other("the build was given up").into()))
    }

    /// The build of a root file system, begun if there is none.
    fn join(&self, key: Digest, request: ImageRequest) -> Arc<Flight> {
        let of = (key, request.source.repository());
        let mut flights = lock(&self.shared.flights);
        let running = flights.get(&of).and_then(Weak::upgrade);
        // One that ended is not asked again.
        if let Some(flight) = running.filter(|flight| flight.outcome.borrow().is_none()) {
            return flight;
        }
        let (tell, outcome) = watch::channel(None);
        let shared = Arc::clone(&self.shared);
        let task = tokio::spawn(async move {
            let limits = request.limits.unwrap_or(shared.limits.pull);
            let limit = limits.image_deadline;
            let made = timeout(limit, shared.make(key, &request, limits)).await;
            let late = EnsureError::Late {
                digest: request.digest,
                after: limit,
            };
            let _ = tell.send(Some(made.unwrap_or(Err(late))));
        });
        let flight = Arc::new(Flight {
            outcome,
            task: task.abort_handle(),
        });
        flights.retain(|_, flight| flight.strong_count() > 0);
        flights.insert(of, Arc::downgrade(&flight));
        flight
    }

    /// Keeps an image for an owner who has it from an earlier life; whether it
    /// is still there is seen when it is ensured.
    pub fn pin(&self, owner: &str, digest: Digest) {
        self.shared
            .disk
            .pin(owner, self.shared.limits.form.key_of(digest));
    }

    /// An owner is done with its image.
    pub fn release(&self, owner: &str) {
        self.shared.disk.unpin(owner);
    }

    /// The images whose root file systems are here.
    ///
    /// # Errors
    /// The folders cannot be read.
    pub fn cached(&self) -> io::Result<BTreeSet<Digest>> {
        let mut images = BTreeSet::new();
        for key in self.shared.disk.keys()? {
            images.extend(self.shared.describe(key)?.map(|it| it.digest));
        }
        Ok(images)
    }

    /// How full it is.
    ///
    /// # Errors
    /// The folders cannot be read.
    pub fn usage(&self) -> io::Result<Usage> {
        self.shared.disk.usage()
    }

    /// What was asked of it and done since this was asked.
    #[must_use]
    pub fn tally(&self) -> Tally {
        std::mem::take(&mut *lock(&self.shared.tally))
    }

    /// Lets go what nobody needs, if there is too much of it.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn collect(&self) -> io::Result<()> {
        self.shared.disk.collect()
    }

    /// Reads everything, and says what is not what it was. Takes long.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn verify(&self) -> io::Result<Vec<Damaged>> {
        let (disk, mut damaged) = (&self.shared.disk, Vec::new());
        let mut check = |path: PathBuf, expected: Digest| {
            let found = match path.is_dir() {
                true => digest_of_folder(&path.join(TREE))?,
                false => digest_of(&path)?,
            };
            if found != expected {
                let what = "its content has another digest";
                damaged.push(Damaged { path, what });
            }
            io::Result::Ok(())
        };
        for digest in disk.digests()? {
            check(disk.blob(digest), digest)?;
        }
        let mut lost = Vec::new();
        for key in disk.keys()? {
            // All of it is named: a part that stays is of no use.
            let place = self.shared.place(key);
            match self.shared.describe(key)? {
                Some(described) if self.shared.root(key).exists() => {
                    check(place, described.sha256)?;
                }
                Some(_) => lost.push(Damaged {
                    path: match place.exists() {
                        true => place,
                        false => disk.description(key),
                    },
                    what: "its files are gone",
                }),
                None => lost.push(Damaged {
                    path: disk.description(key),
                    what: "it cannot be read",
                }),
            }
        }
        damaged.extend(lost);
        Ok(damaged)
    }
}

impl Shared {
    /// What a root file system is kept in, of whatever form.
    fn place(&self, key: Digest) -> PathBuf {
        let folder = self.disk.folder(key);
        match folder.exists() {
            true => folder,
            false => self.disk.root(key),
        }
    }

    /// Where a root file system is, of whatever form.
    fn root(&self, key: Digest) -> PathBuf {
        let place = self.place(key);
        match place.is_dir() {
            true => place.join(TREE),
            false => place,
        }
    }

    /// What is there already, looked for where that may block.
    async fn find(self: &Arc<Self>, key: Digest) -> Result<Option<Pinned>, EnsureError> {
        let shared = Arc::clone(self);
        let there = spawn_blocking(move || shared.look(key)).await;
        there.map_err(fetch::stopped)?
    }

    /// What is there already. Blocks.
    fn look(&self, key: Digest) -> Result<Option<Pinned>, EnsureError> {
        let path = self.root(key);
        let Some(described) = self.describe(key)? else {
            return Ok(None);
        };
        if !path.exists() {
            return Ok(None);
        }
        Disk::touch(&self.disk.description(key));
        Ok(Some(Pinned {
            root: path,
            config: described.config,
            about: described.about,
        }))
    }

    fn describe(&self, key: Digest) -> io::Result<Option<Description>> {
        match fs::read(self.disk.description(key)) {
            Ok(bytes) => {
                let read: Option<Description> = serde_json::from_slice(&bytes).ok();
                let mut forms = [RootForm::File, RootForm::Folder].into_iter();
                let is_of = |read: &Description| forms.any(|it| it.key_of(read.digest) == key);
                Ok(read.filter(|read| read.version == 1).filter(is_of))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn make(
        self: &Arc<Self>,
        key: Digest,
        request: &ImageRequest,
        limits: PullLimits,
    ) -> Result<Pinned, EnsureError> {
        let slot = self.images.acquire().await;
        let origin = Origin {
            source: Arc::clone(&request.source),
            deadline: limits.layer_deadline,
        };
        let found = self.documents(request.digest, &origin, limits.image);
        let (manifest, config, run) = found.await?;
        let room = estimate(manifest.compressed_bytes(), limits.root);
        let mut promise = self.promise(request.digest, room).await?;
        let held: Vec<_> = manifest
            .layers
            .iter()
            .map(|it| self.disk.hold(it.digest))
            .collect();
        let built = async {
            let kept = self.layers(&origin, &manifest).await?;
            promise.kept(kept);
            // Whoever fetches next does not wait for the conversion.
            drop(slot);
            // Whoever has it from another repository makes the same.
            let turn = self.turn(key).lock_owned().await;
            if let Some(pinned) = self.find(key).await? {
                return Ok(pinned);
            }
            let _slot = self.builds.acquire().await;
            let what = (key, request.digest, limits.root);
            let documents = (&manifest, &config);
            let began = Instant::now();
            let made = self.convert(what, documents, run, promise, turn).await;
            let conversions = &mut lock(&self.tally).conversions;
            if made.is_ok() && conversions.len() < MOST_CONVERSIONS {
                conversions.push(began.elapsed());
            }
            made
        };
        let pinned = built.await;
        drop(held);
        if pinned.as_ref().is_err_and(|error| !error.is_transient()) {
            // Nobody runs it, so nobody needs its layers; or it was the disk's
            // fault, and the next attempt fetches them anew.
            for layer in &manifest.layers {
                let _ = self.disk.discard(layer.digest);
            }
        }
        pinned
    }

    /// Manifest and config, checked against each other and the limits.
    async fn documents(
        &self,
        digest: Digest,
        origin: &Origin,
        limits: Limits,
    ) -> Result<(Manifest, Config, ImageConfig), EnsureError> {
        let invalid = |digest, why: &dyn std::fmt::Display| EnsureError::Invalid {
            digest,
            why: why.to_string(),
        };
        let wanted = (Piece::Manifest, digest);
        let bytes = fetch::document(self, origin, wanted, LARGEST_DOCUMENT).await?;
        let manifest = Document::read_manifest(&bytes).map_err(|error| invalid(digest, &error))?;
        let size = manifest.compressed_bytes();
        if size > limits.compressed_bytes {
            return Err(EnsureError::TooLarge {
                digest,
                value: size,
                what: "bytes",
                limit: limits.compressed_bytes,
            });
        }
        let count = manifest.layers.len();
        if count > limits.layers {
            let why = format!("it has {count} layers; the limit is {}", limits.layers);
            return Err(invalid(digest, &why));
        }
        let of_config = manifest.config.digest;
        if manifest.config.size > LARGEST_CONFIG {
            let size = manifest.config.size;
            let why = format!("its config has {size} bytes; the limit is {LARGEST_CONFIG}");
            return Err(invalid(of_config, &why));
        }
        let wanted = (Piece::Blob, of_config);
        let bytes = fetch::document(self, origin, wanted, manifest.config.size).await?;
        let config = Config::read(&bytes).map_err(|error| invalid(of_config, &error))?;
        let run = ImageConfig::read(&bytes).map_err(|error| invalid(of_config, &error))?;
        if config.diff_ids.len() != count {
            let why = "its config and its manifest have different numbers of layers";
            return Err(invalid(digest, &why));
        }
        Ok((manifest, config, run))
    }

    async fn promise(&self, digest: Digest, bytes: u64) -> Result<Promise, EnsureError> {
        let disk = Arc::clone(&self.disk);
        let promised = spawn_blocking(move || disk.promise(bytes)).await;
        let promised = promised.map_err(fetch::stopped)??;
        promised.map_err(|source| EnsureError::Room {
            digest,
            source: source.into(),
        })
    }

    /// Brings all layers, several at a time; says how much room that took.
    async fn layers(
        self: &Arc<Self>,
        origin: &Origin,
        manifest: &Manifest,
    ) -> Result<u64, EnsureError> {
        let mut fetching = JoinSet::new();
        for layer in &manifest.layers {
            let (shared, origin) = (Arc::clone(self), origin.clone());
            let wanted = Wanted {
                digest: layer.digest,
                size: layer.size,
            };
            fetching.spawn(async move { fetch::blob(&shared, &origin, wanted).await });
        }
        let mut kept = 0;
        // The first that fails ends the others.
        while let Some(fetched) = fetching.join_next().await {
            kept += fetched.map_err(fetch::stopped)??;
        }
        Ok(kept)
    }

    async fn convert(
        self: &Arc<Self>,
        (key, digest, limits): (Digest, Digest, RootLimits),
        (manifest, config): (&Manifest, &Config),
        run: ImageConfig,
        mut promise: Promise,
        turn: OwnedMutexGuard<()>,
    ) -> Result<Pinned, EnsureError> {
        let (result, aside) = (self.disk.work()?, self.disk.work()?);
        let mut layers = Vec::new();
        for (layer, diff_id) in manifest.layers.iter().zip(&config.diff_ids) {
            layers.push(LayerFile {
                file: File::open(self.disk.blob(layer.digest))?,
                compression: layer.compression,
                diff_id: *diff_id,
            });
        }
        let what = (digest, limits);
        let about =
            build::build(&self.worker, what, layers, (&result, &aside), &mut promise).await?;
        drop(aside);
        let shared = Arc::clone(self);
        let kept = spawn_blocking(move || {
            // Also of a build that was given up: nothing stops it here.
            let _turn = turn;
            if result.file.metadata()?.len() != about.size {
                return Err(io::Error::other("the worker miscounted its result"));
            }
            shared.keep((key, digest), result, about, run, promise)
        });
        Ok(kept.await.map_err(fetch::stopped)??)
    }

    /// Puts what was made in its place. Blocks.
    fn keep(
        &self,
        (key, digest): (Digest, Digest),
        result: Work,
        about: Root,
        config: ImageConfig,
        mut promise: Promise,
    ) -> io::Result<Pinned> {
        let (sha256, size) = match self.limits.form {
            RootForm::File => {
                let sha256 = synced_digest(&result.file)?;
                (sha256, result.keep(&self.disk.root(key))?)
            }
            RootForm::Folder => {
                // Both are there for a while.
                let room = promise.at_least(about.size.saturating_mul(2))?;
                room.map_err(|room| io::Error::new(io::ErrorKind::StorageFull, room))?;
                let folder = self.disk.work_folder()?;
                unfold(&result.file, &about, &folder.tree())?;
                drop(result);
                let sha256 = digest_of_folder(&folder.tree())?;
                folder.keep(&self.disk.folder(key), about.size)?;
                (sha256, about.size)
            }
        };
        let described = Description {
            version: 1,
            digest,
            sha256,
            about,
            config,
        };
        let description = self.disk.work()?;
        serde_json::to_writer(&description.file, &described)?;
        description.keep(&self.disk.description(key))?;
        promise.kept(size);
        Ok(Pinned {
            root: self.root(key),
            config: described.config,
            about,
        })
    }

    /// What is known about a registry.
    fn breaker<T>(&self, name: &str, ask: impl FnOnce(&mut Breaker) -> T) -> T {
        ask(lock(&self.breakers).entry(name.to_owned()).or_default())
    }

    /// Whose turn it is to fetch a blob.
    fn turn(&self, digest: Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = lock(&self.turns);
        turns.retain(|_, turn| turn.strong_count() > 0);
        let running = turns.get(&digest).and_then(Weak::upgrade);
        running.unwrap_or_else(|| {
            let turn = Arc::default();
            turns.insert(digest, Arc::downgrade(&turn));
            turn
        })
    }
}

/// What an image will take before it is known.
fn estimate(compressed: u64, limits: RootLimits) -> u64 {
    let unpacked = compressed.saturating_mul(3).min(limits.bytes);
    let both = compressed.saturating_add(unpacked);
    both.saturating_add(both / 10)
}

fn digest_of(path: &Path) -> io::Result<Digest> {
    digest_of_file(&File::open(path)?)
}

/// The same, while the file goes to the disk.
fn synced_digest(file: &File) -> io::Result<Digest> {
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| file.sync_all());
        let digest = digest_of_file(file);
        let synced = syncing.join();
        synced.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        digest
    })
}

/// The digest of a whole file, from its beginning.
fn digest_of_file(mut file: &File) -> io::Result<Digest> {
    io::Seek::rewind(&mut file)?;
    let (mut hasher, mut piece) = (Hasher::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            read => hasher.update(piece.get(..read).unwrap_or_default()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
