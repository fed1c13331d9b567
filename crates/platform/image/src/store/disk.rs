//! The folders of a store: what is in them, who needs it, and what may go.
//!
//! Files get their final names by a rename, when they are whole and on the
//! disk; what has another name is work that nobody finished. Space is promised
//! before it is used. Blocks while it reads folders: not for async code.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fluffy_base::Digest;

/// Above this share of the quota, in thousandths, unneeded files go, until
/// there are no more than the second.
const HIGH: u64 = 850;
const LOW: u64 = 700;

/// How much of a file is written to the disk at once while it grows, and how
/// often that is looked at.
const FLUSH: u64 = 32 << 20;
const LOOK: Duration = Duration::from_millis(50);

/// What is in the folder of an unfolded root: its files, and beside them a
/// number, so that nobody has to count them.
pub(crate) const TREE: &str = "tree";
const TAKES: &str = "bytes";

/// There is no room.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{needed} bytes are needed for it, and {free} can be had: the store may hold {quota}")]
pub(crate) struct NoRoom {
    pub(crate) needed: u64,
    pub(crate) free: u64,
    pub(crate) quota: u64,
}

/// The folders.
#[derive(Debug)]
pub(crate) struct Disk {
    blobs: PathBuf,
    roots: PathBuf,
    tmp: PathBuf,
    quota: u64,
    works: AtomicU64,
    evicted: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that were promised and are not in their final place yet.
    promised: u64,
    /// Which root each owner needs.
    pins: HashMap<String, Digest>,
    /// Blobs that are being worked on, and by how many.
    used: HashMap<Digest, usize>,
}

/// How full a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of blobs and roots.
    pub bytes: u64,
    /// Bytes that are promised to builds.
    pub promised: u64,
    /// Bytes that there may be.
    pub quota: u64,
    /// Files and folders that went for others since it was opened.
    pub evicted: u64,
}

/// A promise of space; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Promise {
    disk: Arc<Disk>,
    bytes: u64,
}

/// A blob that must stay; until it is dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    disk: Arc<Disk>,
    digest: Digest,
}

/// A file that is being written; removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) file: File,
    path: Option<PathBuf>,
}

/// Has a file written to the disk while it grows; until it is dropped.
#[derive(Debug)]
pub(crate) struct Flushing(#[expect(dead_code, reason = "its end is the message")] Sender<()>);

/// A folder that is being filled; removed when it is dropped.
#[derive(Debug)]
pub(crate) struct WorkFolder {
    path: Option<PathBuf>,
}

/// A file that could go.
struct Candidate {
    changed: SystemTime,
    bytes: u64,
    paths: Vec<PathBuf>,
}

impl Disk {
    /// Opens the folders, and removes what nobody finished.
    pub(crate) fn open(folder: &Path, quota: u64) -> io::Result<Arc<Self>> {
        let disk = Self {
            blobs: folder.join("blobs"),
            roots: folder.join("roots"),
            tmp: folder.join("tmp"),
            quota,
            works: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            state: Mutex::default(),
        };
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700);
        for folder in [&disk.blobs, &disk.roots, &disk.tmp] {
            private.create(folder)?;
        }
        for entry in fs::read_dir(&disk.tmp)? {
            remove(&entry?.path())?;
        }
        // A root counts with its description, which comes last.
        for entry in fs::read_dir(&disk.roots)? {
            let path = entry?.path();
            let whole = match path.extension().and_then(|it| it.to_str()) {
                Some("erofs" | "folder") => path.with_extension("json").exists(),
                Some("json") => {
                    let mut forms = ["erofs", "folder"].into_iter();
                    forms.any(|form| path.with_extension(form).exists())
                }
                Some(_) | None => false,
            };
            if !whole {
                remove(&path)?;
            }
        }
        Ok(Arc::new(disk))
    }

    pub(crate) fn blob(&self, digest: Digest) -> PathBuf {
        self.blobs.join(digest.to_string())
    }

    pub(crate) fn root(&self, key: Digest) -> PathBuf {
        self.roots.join(format!("{key}.erofs"))
    }

    /// Where a root is that was unfolded: its files, and how much they take.
    pub(crate) fn folder(&self, key: Digest) -> PathBuf {
        self.roots.join(format!("{key}.folder"))
    }

    pub(crate) fn description(&self, key: Digest) -> PathBuf {
        self.roots.join(format!("{key}.json"))
    }

    /// The keys of all roots.
    pub(crate) fn keys(&self) -> io::Result<Vec<Digest>> {
        let mut keys = Vec::new();
        for entry in fs::read_dir(&self.roots)? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "json") {
                let stem = path.file_stem().and_then(|it| it.to_str());
                keys.extend(stem.and_then(|stem| stem.parse::<Digest>().ok()));
            }
        }
        Ok(keys)
    }

    /// The digests of all blobs.
    pub(crate) fn digests(&self) -> io::Result<Vec<Digest>> {
        let mut digests = Vec::new();
        for entry in fs::read_dir(&self.blobs)? {
            let name = entry?.file_name();
            digests.extend(name.to_str().and_then(|name| name.parse::<Digest>().ok()));
        }
        Ok(digests)
    }

    /// Opens a file to be written.
    pub(crate) fn work(&self) -> io::Result<Work> {
        let number = self.works.fetch_add(1, Ordering::Relaxed);
        let path = self.tmp.join(number.to_string());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        Ok(Work {
            file: options.open(&path)?,
            path: Some(path),
        })
    }

    /// Makes a folder to be filled.
    pub(crate) fn work_folder(&self) -> io::Result<WorkFolder> {
        let number = self.works.fetch_add(1, Ordering::Relaxed);
        let path = self.tmp.join(number.to_string());
        DirBuilder::new().mode(0o700).create(&path)?;
        // What it is for.
        DirBuilder::new().mode(0o755).create(path.join(TREE))?;
        Ok(WorkFolder { path: Some(path) })
    }

    /// Keeps a root for an owner, who has one at most.
    pub(crate) fn pin(&self, owner: &str, key: Digest) {
        self.state().pins.insert(owner.to_owned(), key);
    }

    /// Whether an owner keeps a root.
    pub(crate) fn is_pinned(&self, owner: &str) -> Option<Digest> {
        self.state().pins.get(owner).copied()
    }

    pub(crate) fn unpin(&self, owner: &str) {
        self.state().pins.remove(owner);
    }

    /// Keeps a blob while it is worked on.
    pub(crate) fn hold(self: &Arc<Self>, digest: Digest) -> InUse {
        *self.state().used.entry(digest).or_default() += 1;
        InUse {
            disk: Arc::clone(self),
            digest,
        }
    }

    /// Puts a blob in its place if anybody works on it still; the bytes it took.
    pub(crate) fn keep_blob(&self, mut work: Work, digest: Digest) -> io::Result<u64> {
        work.finish()?;
        // Whoever lets go of a blob finds it here, or it never comes.
        let state = self.state();
        match state.used.contains_key(&digest) {
            true => work.place(&self.blob(digest)),
            false => Ok(0),
        }
    }

    /// Lets a blob go unless somebody works on it.
    pub(crate) fn discard(&self, digest: Digest) -> io::Result<()> {
        let state = self.state();
        match state.used.contains_key(&digest) {
            true => Ok(()),
            false => remove(&self.blob(digest)),
        }
    }

    /// Notes that something was needed just now.
    pub(crate) fn touch(path: &Path) {
        // Only the order of going depends on it.
        let file = OpenOptions::new().read(true).open(path);
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
    }

    pub(crate) fn usage(&self) -> io::Result<Usage> {
        let promised = self.state().promised;
        Ok(Usage {
            bytes: size_of(&self.blobs)? + size_of(&self.roots)?,
            promised,
            quota: self.quota,
            evicted: self.evicted.load(Ordering::Relaxed),
        })
    }

    /// Promises space, and lets unneeded files go for it.
    pub(crate) fn promise(self: &Arc<Self>, bytes: u64) -> io::Result<Result<Promise, NoRoom>> {
        let mut state = self.state();
        let made = self.make_room(&state, bytes)?;
        Ok(made.map(|()| {
            state.promised += bytes;
            Promise {
                disk: Arc::clone(self),
                bytes,
            }
        }))
    }

    /// Lets unneeded files go if there are too many, or if the disk is nearly
    /// full, whoever fills it.
    pub(crate) fn collect(&self) -> io::Result<()> {
        let state = self.state();
        let _ = self.make_room(&state, 0)?;
        let disk = rustix::fs::statvfs(&self.tmp)?;
        let blocks = disk.f_blocks.saturating_sub(disk.f_bfree);
        let used = blocks.saturating_mul(disk.f_frsize);
        let whole = used.saturating_add(disk.f_bavail.saturating_mul(disk.f_frsize));
        let share = |permille: u64| whole / 1000 * permille;
        if used > share(HIGH) {
            let excess = used - share(LOW);
            self.let_go(self.candidates(&state, excess)?, excess)?;
        }
        Ok(())
    }

    /// Removes these until so many bytes are gone, if there is so much; says
    /// how many are.
    fn let_go(&self, candidates: Vec<Candidate>, excess: u64) -> io::Result<u64> {
        let mut gone = 0;
        for candidate in candidates {
            if gone >= excess {
                break;
            }
            for path in &candidate.paths {
                remove(path)?;
            }
            self.evicted.fetch_add(1, Ordering::Relaxed);
            gone += candidate.bytes;
        }
        Ok(gone)
    }

    fn make_room(&self, state: &State, bytes: u64) -> io::Result<Result<(), NoRoom>> {
        let used = size_of(&self.blobs)? + size_of(&self.roots)?;
        let wanted = state.promised.saturating_add(bytes);
        let share = |permille: u64| self.quota / 1000 * permille;
        let mut excess = match used.saturating_add(wanted) > share(HIGH) {
            true => used.saturating_add(wanted).saturating_sub(share(LOW)),
            false => 0,
        };
        // What work took already is part of what was promised to it.
        let on_disk = |gone: u64| -> io::Result<u64> {
            let disk = rustix::fs::statvfs(&self.tmp)?;
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            Ok(free + size_of(&self.tmp)? + gone)
        };
        excess = excess.max(wanted.saturating_sub(on_disk(0)?));
        let no_room = |free: u64| NoRoom {
            needed: bytes,
            free: free.saturating_sub(state.promised),
            quota: self.quota,
        };
        let candidates = self.candidates(state, excess)?;
        let all: u64 = candidates.iter().map(|it| it.bytes).sum();
        let most = self.quota.saturating_sub(used.saturating_sub(all));
        let most = most.min(on_disk(all)?);
        // Nothing goes for somebody whom all of it would make no room for.
        if bytes > 0 && wanted > most {
            return Ok(Err(no_room(most)));
        }
        let gone = self.let_go(candidates, excess)?;
        let used = used.saturating_sub(gone);
        let free = self.quota.saturating_sub(used).min(on_disk(0)?);
        match wanted <= free {
            true => Ok(Ok(())),
            false => Ok(Err(no_room(free))),
        }
    }

    /// What nobody needs: roots, those first that were not needed for the
    /// longest time, and then blobs.
    fn candidates(&self, state: &State, excess: u64) -> io::Result<Vec<Candidate>> {
        if excess == 0 {
            return Ok(Vec::new());
        }
        let mut roots = Vec::new();
        for key in self.keys()? {
            if state.pins.values().any(|pinned| *pinned == key) {
                continue;
            }
            // The description goes first: without it there is no root.
            let form = match self.root(key) {
                file if file.exists() => file,
                _ => self.folder(key),
            };
            let paths = vec![self.description(key), form];
            roots.extend(candidate(paths));
        }
        let mut blobs = Vec::new();
        for digest in self.digests()? {
            if !state.used.contains_key(&digest) {
                blobs.extend(candidate(vec![self.blob(digest)]));
            }
        }
        roots.sort_by_key(|it| it.changed);
        blobs.sort_by_key(|it| it.changed);
        roots.extend(blobs);
        Ok(roots)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Promise {
    /// So many bytes are in their final place, and count there.
    pub(crate) fn kept(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.disk.state().promised -= bytes;
    }

    /// It takes so many bytes, more than was thought.
    pub(crate) fn at_least(&mut self, bytes: u64) -> io::Result<Result<(), NoRoom>> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(Ok(()));
        }
        let mut state = self.disk.state();
        let made = self.disk.make_room(&state, more)?;
        if made.is_ok() {
            state.promised += more;
            self.bytes += more;
        }
        Ok(made)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.disk.state().promised -= self.bytes;
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if let Some(count) = state.used.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                state.used.remove(&self.digest);
            }
        }
    }
}

impl Work {
    /// Once a file is large, has the disk write it while it grows: whoever
    /// keeps it then waits for its last part only.
    pub(crate) fn flush_ahead(&self, flushing: &mut Option<Flushing>, size: u64) {
        if flushing.is_some() || size < FLUSH {
            return;
        }
        // Opened anew, so that who keeps the file still hears of an error.
        let Some(Ok(file)) = self.path.as_deref().map(File::open) else {
            return;
        };
        let (sender, told) = channel();
        std::thread::spawn(move || {
            let mut flushed = 0;
            while told.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let size = file.metadata().map_or(0, |about| about.len());
                if size >= flushed + FLUSH && file.sync_data().is_ok() {
                    flushed = size;
                }
            }
        });
        *flushing = Some(Flushing(sender));
    }

    /// Puts the file in its place, whole and for ever.
    pub(crate) fn keep(mut self, place: &Path) -> io::Result<u64> {
        self.finish()?;
        self.place(place)
    }

    /// Nothing changes it any more, and a power cut neither.
    fn finish(&mut self) -> io::Result<()> {
        let read_only = fs::Permissions::from_mode(0o400);
        self.file.set_permissions(read_only)?;
        self.file.sync_all()
    }

    fn place(mut self, place: &Path) -> io::Result<u64> {
        if let Some(path) = &self.path {
            fs::rename(path, place)?;
        }
        self.path = None;
        if let Some(folder) = place.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(self.file.metadata()?.blocks() * 512)
    }
}

impl WorkFolder {
    /// Where the files go.
    pub(crate) fn tree(&self) -> PathBuf {
        self.path.as_deref().unwrap_or(Path::new("")).join(TREE)
    }

    /// Puts the folder in its place, whole and for ever.
    pub(crate) fn keep(mut self, place: &Path, bytes: u64) -> io::Result<()> {
        let Some(path) = self.path.take() else {
            return Ok(());
        };
        let kept = fs::write(path.join(TAKES), bytes.to_string())
            .and_then(|()| Ok(rustix::fs::syncfs(File::open(&path)?)?))
            // What is left of one that was lost is in the way.
            .and_then(|()| remove(place))
            .and_then(|()| fs::rename(&path, place));
        if kept.is_err() {
            self.path = Some(path);
        }
        kept?;
        match place.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            // What stays goes at the next start.
            let _ = fs::remove_dir_all(path);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            // What stays goes at the next start.
            let _ = fs::remove_file(path);
        }
    }
}

fn candidate(paths: Vec<PathBuf>) -> Option<Candidate> {
    let mut bytes = 0;
    let mut changed = None;
    for path in &paths {
        let about = fs::metadata(path).ok()?;
        bytes += taken(path, &about);
        changed = changed.or(about.modified().ok());
    }
    Some(Candidate {
        changed: changed?,
        bytes,
        paths,
    })
}

/// The bytes that the files of a folder take.
fn size_of(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(about) => bytes += taken(&entry.path(), &about),
            // It went meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// The bytes that a file takes, or an unfolded root.
fn taken(path: &Path, about: &fs::Metadata) -> u64 {
    let own = about.blocks() * 512;
    match about.is_dir() {
        true => {
            let said = fs::read_to_string(path.join(TAKES)).ok();
            own + said.and_then(|said| said.parse().ok()).unwrap_or(0)
        }
        false => own,
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path).is_ok_and(|about| about.is_dir()) {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}
