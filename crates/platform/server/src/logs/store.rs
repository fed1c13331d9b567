//! What workloads printed, on this server's disk, for days.
//!
//! One journal grows; it is sealed when it is large or old, and sealed segments
//! go when their time is over, when there are too many, or when their env is
//! gone. In memory is what the journal has and a few numbers of each segment.
//! Never acknowledges what is not durable. Next: `segment`.

use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fluffy_base::id::{EnvId, OrgId};
use fluffy_image::StoreLimits;

use super::LogLine;
use super::query::{Found, Query};
use super::segment::{Block, Entry, Header, Journal, Record, Segment, Source, recover, seal};

/// When a journal is sealed: so large, or so old.
const FULL: u64 = 8 << 20;
pub(super) const OLD: Duration = Duration::from_secs(60);

/// The most bytes, if nobody says otherwise.
const MOST: u64 = 16 << 30;

/// Replicas of one machine that may share a folder.
const MOST_SLOTS: u32 = 64;

/// Lines of an env that is gone are gone a day later than they are so old.
const GONE: Duration = Duration::from_secs(6 * DAY);

const DAY: u64 = 24 * 3600;

/// How much is kept of what workloads print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeping {
    /// In which folder; replicas of one machine may share it.
    pub folder: PathBuf,
    /// For how long.
    pub retention: Duration,
    /// How many bytes at most, packed; a tenth of the disk and no more than
    /// 16 GiB if it is not said.
    pub most: Option<u64>,
}

/// The segments of one replica.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    id: String,
    retention: Duration,
    most: u64,
    shelf: Mutex<Shelf>,
    /// Held for as long as somebody may write.
    lock: File,
}

#[derive(Debug, Default)]
struct Shelf {
    sealed: BTreeMap<u64, Sealed>,
    /// What the journal has, which is in no segment.
    open: Vec<Block>,
    last_arrival: u64,
}

/// What is known of a segment without a look into it.
#[derive(Debug, Clone, Copy)]
struct Sealed {
    times: (u64, u64),
    arrivals: (u64, u64),
    sealed_ms: u64,
    size: u64,
    /// When it was looked through for envs that are gone.
    looked_ms: u64,
}

/// What a store knew when it was opened.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) last_arrival: u64,
    /// The newest time of a line.
    pub(super) newest_ms: u64,
    /// The last number of each instance, boot and stream, and when it came.
    pub(super) streams: HashMap<(String, String, String), (u64, u64)>,
    /// Bytes of text of each org in segments of this day.
    pub(super) today: BTreeMap<OrgId, u64>,
}

impl Known {
    fn learn(&mut self, header: &Header, today: u64) {
        for block in &header.blocks {
            self.last_arrival = self.last_arrival.max(block.arrivals.1);
            self.newest_ms = self.newest_ms.max(block.to_ms);
            for (boot, stream, seq) in &block.streams {
                let key = (block.instance.clone(), boot.clone(), stream.clone());
                let last = self.streams.entry(key).or_default();
                *last = (last.0.max(*seq), last.1.max(block.arrivals.1));
            }
            if day(header.sealed_ms) == today {
                *self.today.entry(block.source.org).or_default() += block.bytes;
            }
        }
    }
}

/// The day of a time in milliseconds.
pub(super) const fn day(ms: u64) -> u64 {
    ms / (DAY * 1_000)
}

impl Store {
    /// Opens what is kept, seals what the last process left open, and says what
    /// it knew.
    pub(super) fn open(keeping: &Keeping, now_ms: u64) -> io::Result<(Arc<Self>, Writer, Known)> {
        let (folder, lock) = slot(&keeping.folder)?;
        let id = identity(&folder)?;
        let most = match keeping.most {
            Some(most) => most,
            // Images may take three tenths of a disk.
            None => (StoreLimits::of_disk(&folder)?.quota / 3).min(MOST),
        };
        let mut known = Known::default();
        let mut shelf = Shelf::default();
        let mut journals = BTreeSet::new();
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let number = path
                .file_stem()
                .and_then(|name| name.to_str()?.parse().ok());
            let kind = path.extension().and_then(|kind| kind.to_str());
            match (number, kind) {
                (Some(number), Some("journal")) => drop(journals.insert(number)),
                (Some(number), Some("seg")) => match Segment::open(&path) {
                    Ok(segment) => {
                        known.learn(&segment.header, day(now_ms));
                        let size = fs::metadata(&path)?.len();
                        shelf.sealed.insert(number, sealed(&segment.header, size));
                    }
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        tracing::error!(path = %path.display(), "a segment of logs is broken and goes");
                        fs::remove_file(&path)?;
                    }
                    Err(error) => return Err(error),
                },
                // What a crash left half written.
                (_, Some("new")) => fs::remove_file(&path)?,
                _ => {}
            }
        }
        let last = shelf.sealed.keys().chain(&journals).max();
        let next = last.map_or(1, |last| last + 1);
        for number in journals {
            let journal = folder.join(name(number, "journal"));
            // A crash between sealing and removing leaves both.
            if let btree_map::Entry::Vacant(place) = shelf.sealed.entry(number) {
                let blocks = recover(&journal)?;
                if !blocks.is_empty() {
                    let path = folder.join(name(number, "seg"));
                    let (header, size) = seal(&path, blocks, now_ms)?;
                    known.learn(&header, day(now_ms));
                    place.insert(sealed(&header, size));
                }
            }
            fs::remove_file(&journal)?;
        }
        shelf.last_arrival = known.last_arrival;
        let store = Arc::new(Self {
            folder,
            id,
            retention: keeping.retention,
            most,
            shelf: Mutex::new(shelf),
            lock,
        });
        let writer = Writer {
            store: Arc::clone(&store),
            journal: None,
            next,
        };
        Ok((store, writer, known))
    }

    /// Lets another process write here.
    pub(super) fn release(&self) {
        // Its end does as well.
        let _ = self.lock.unlock();
    }

    /// The name of this store, which no other has.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The lines that are asked for.
    pub(super) fn find(&self, query: &Query) -> io::Result<Found> {
        let mut lines: Vec<LogLine> = Vec::new();
        let (mut segments, last_arrival) = {
            let shelf = self.shelf();
            for block in &shelf.open {
                if query.is_of(&block.source, &block.instance) {
                    let source = Arc::new(block.source.clone());
                    lines.extend(pick(query, &source, &block.instance, &block.lines));
                }
            }
            let segments = shelf.sealed.iter();
            let segments = segments.filter(|(_, it)| query.may_be_in(it.times, it.arrivals));
            let segments: Vec<(u64, Sealed)> = segments.map(|(n, it)| (*n, *it)).collect();
            (segments, shelf.last_arrival)
        };
        query.arrange(&mut segments, |(_, it)| (it.times.1, it.arrivals.0));
        for (number, sealed) in segments {
            if query.has_enough(&mut lines, (sealed.times.1, sealed.arrivals)) {
                continue;
            }
            let path = self.folder.join(name(number, "seg"));
            let mut segment = match Segment::open(&path) {
                // Its time was over just now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let wanted = |entry: &Entry| {
                query.is_of(&entry.source, &entry.instance)
                    && query.may_be_in((entry.from_ms, entry.to_ms), entry.arrivals)
            };
            for (source, instance, found) in segment.lines(wanted)? {
                lines.extend(pick(query, &Arc::new(source), &instance, &found));
            }
        }
        Ok(query.cut(lines, last_arrival))
    }

    /// Removes what is too old, and what is of an env that is gone.
    pub(super) fn tend(&self, now_ms: u64, is_live: impl Fn(EnvId) -> bool) -> io::Result<()> {
        let retention = millis(self.retention);
        let ended: Vec<u64> = {
            let shelf = self.shelf();
            let old = |it: &Sealed| it.sealed_ms.saturating_add(retention) <= now_ms;
            let ended = shelf.sealed.iter().filter(|(_, it)| old(it));
            ended.map(|(number, _)| *number).collect()
        };
        for number in ended {
            self.remove(number)?;
        }
        let due: Vec<u64> = {
            let shelf = self.shelf();
            let due = |it: &Sealed| {
                it.sealed_ms.saturating_add(millis(GONE)) <= now_ms
                    && it.looked_ms.saturating_add(DAY * 1_000) <= now_ms
            };
            let due = shelf.sealed.iter().filter(|(_, it)| due(it));
            due.map(|(number, _)| *number).collect()
        };
        for number in due {
            self.purge(number, now_ms, &is_live)?;
        }
        Ok(())
    }

    /// Writes a segment again without the envs that are gone.
    fn purge(&self, number: u64, now_ms: u64, is_live: impl Fn(EnvId) -> bool) -> io::Result<()> {
        let path = self.folder.join(name(number, "seg"));
        let stays = |entry: &Entry| is_live(entry.source.env);
        let written = Segment::open(&path)?.without(&path, stays)?;
        let empty = (written.as_ref()).is_some_and(|(header, _)| header.blocks.is_empty());
        if empty {
            return self.remove(number);
        }
        if let Some(known) = self.shelf().sealed.get_mut(&number) {
            if let Some((header, size)) = written {
                *known = sealed(&header, size);
            }
            known.looked_ms = now_ms;
        }
        Ok(())
    }

    /// Removes the oldest segments until the rest fits.
    fn make_room(&self) -> io::Result<()> {
        loop {
            let oldest = {
                let shelf = self.shelf();
                let bytes: u64 = shelf.sealed.values().map(|it| it.size).sum();
                let oldest = shelf.sealed.keys().next().copied();
                oldest.filter(|_| bytes > self.most)
            };
            let Some(oldest) = oldest else { return Ok(()) };
            tracing::warn!(
                most = self.most,
                "logs go before their time: too many bytes"
            );
            self.remove(oldest)?;
        }
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        let path = self.folder.join(name(number, "seg"));
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.shelf().sealed.remove(&number);
        Ok(())
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who writes to a store; there is one.
#[derive(Debug)]
pub(super) struct Writer {
    store: Arc<Store>,
    journal: Option<(u64, Journal, Instant)>,
    next: u64,
}

impl Writer {
    /// Keeps lines; they are durable when this returns.
    pub(super) fn append(&mut self, lines: &[LogLine], now_ms: u64) -> io::Result<()> {
        let Some(last) = lines.last() else {
            return Ok(());
        };
        let blocks = blocks(lines);
        if self.journal.is_none() {
            let path = self.store.folder.join(name(self.next, "journal"));
            let journal = Journal::create(&path)?;
            super::segment::sync_folder(&path)?;
            self.journal = Some((self.next, journal, Instant::now()));
            self.next += 1;
        }
        let Some((_, journal, _)) = &mut self.journal else {
            return Ok(());
        };
        journal.append(&blocks)?;
        let is_full = journal.bytes >= FULL;
        {
            let mut shelf = self.store.shelf();
            shelf.open.extend(blocks);
            shelf.last_arrival = shelf.last_arrival.max(last.arrival);
        }
        if is_full || self.is_due() {
            self.seal_or_say(now_ms);
        }
        Ok(())
    }

    /// Whether the journal is old enough to be sealed.
    pub(super) fn is_due(&self) -> bool {
        let journal = self.journal.as_ref();
        journal.is_some_and(|(_, _, since)| since.elapsed() >= OLD)
    }

    /// Seals; what could not be is durable all the same, and tried again.
    pub(super) fn seal_or_say(&mut self, now_ms: u64) {
        if let Err(error) = self.seal(now_ms) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "logs were not packed");
        }
    }

    pub(super) fn seal(&mut self, now_ms: u64) -> io::Result<()> {
        let Some((number, ..)) = self.journal else {
            return Ok(());
        };
        let store = &self.store;
        let blocks = store.shelf().open.clone();
        let path = store.folder.join(name(number, "seg"));
        let (header, size) = seal(&path, blocks, now_ms)?;
        {
            let mut shelf = store.shelf();
            shelf.open = Vec::new();
            shelf.sealed.insert(number, sealed(&header, size));
        }
        self.journal = None;
        fs::remove_file(store.folder.join(name(number, "journal")))?;
        store.make_room()
    }
}

/// Lines by instance, in their order.
fn blocks(lines: &[LogLine]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for line in lines {
        let record = Record {
            arrival: line.arrival,
            boot: line.boot.to_string(),
            stream: line.stream.to_string(),
            seq: line.seq,
            at_ms: line.at_ms,
            text: line.text.to_string(),
            truncated: line.truncated,
            dropped: line.dropped,
        };
        match blocks.last_mut() {
            Some(block) if *block.instance == *line.instance => block.lines.push(record),
            _ => blocks.push(Block {
                source: (*line.source).clone(),
                instance: line.instance.to_string(),
                lines: vec![record],
            }),
        }
    }
    blocks
}

/// The lines of an instance that are wanted.
fn pick(query: &Query, source: &Arc<Source>, instance: &str, lines: &[Record]) -> Vec<LogLine> {
    let instance: Arc<str> = instance.into();
    let wanted = lines
        .iter()
        .filter(|it| query.takes(&it.stream, it.at_ms, it.arrival));
    let as_line = |it: &Record| LogLine {
        source: Arc::clone(source),
        instance: Arc::clone(&instance),
        arrival: it.arrival,
        boot: it.boot.as_str().into(),
        stream: it.stream.as_str().into(),
        seq: it.seq,
        at_ms: it.at_ms,
        text: it.text.as_str().into(),
        truncated: it.truncated,
        dropped: it.dropped,
    };
    wanted.map(as_line).collect()
}

fn sealed(header: &Header, size: u64) -> Sealed {
    Sealed {
        times: header.times(),
        arrivals: header.arrivals(),
        sealed_ms: header.sealed_ms,
        size,
        looked_ms: 0,
    }
}

/// The first folder of a machine's replicas that no other process has.
fn slot(folder: &Path) -> io::Result<(PathBuf, File)> {
    for slot in 0..MOST_SLOTS {
        let folder = folder.join(slot.to_string());
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(folder.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => return Ok((folder, lock)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other("every folder for logs is in use"))
}

/// The name of a store, made once.
fn identity(folder: &Path) -> io::Result<String> {
    let path = folder.join("id");
    match fs::read_to_string(&path) {
        Ok(id) if super::query::is_store_id(&id) => return Ok(id),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let id = super::query::new_store_id()?;
    let aside = folder.join("id.new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&aside)?;
    file.write_all(id.as_bytes())?;
    file.sync_all()?;
    fs::rename(&aside, &path)?;
    super::segment::sync_folder(&path)?;
    Ok(id)
}

fn name(number: u64, kind: &str) -> String {
    format!("{number:020}.{kind}")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
