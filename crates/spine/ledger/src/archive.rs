//! Archive segments: parts of the chain as compressed exports.
//!
//! A segment is written beside its final name, read back and checked event by
//! event before it gets that name. Nothing here removes a hot row: that is
//! `retention`, and only after [`Segment::check`].

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use fluffy_base::{Digest, Timestamp};
use sha2::{Digest as _, Sha256};

use crate::chain::Head;
use crate::checkpoint::{Checkpoint, SignedCheckpoint, origin};
use crate::engine::{Anchor, Engine};
use crate::error::StoreError;
use crate::export::{ExportError, ExportReader, ExportWriter, ReadExportError, ZSTD_LEVEL};
use crate::key::SigningKeyFile;
use crate::row::RowRef;
use crate::sqlite;

/// Where a SQLite ledger's archive is, inside its directory.
pub const ARCHIVE: &str = "archive";

/// How the names of segments end.
const ENDING: &str = ".jsonl.zst";

/// One file of archived events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The file: an export that `verify` takes as an archive.
    pub path: PathBuf,
    /// Its first event.
    pub first_seq: u64,
    /// Its last event.
    pub last_seq: u64,
    /// When its events were written, as a day such as `2026-11-15`.
    pub day: String,
    /// Its size on disk.
    pub bytes: u64,
}

/// What reading a segment back gave.
#[derive(Debug)]
pub(crate) struct CheckedSegment {
    /// The chain's end before its first event.
    pub(crate) start: Head,
    /// The chain's end after its last one, and the checkpoint of that.
    pub(crate) end: Anchor,
    /// The hash of its first event.
    pub(crate) first_hash: Digest,
    /// The SHA-256 of the file.
    pub(crate) sha256: Digest,
}

/// Why a segment could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The ledger can't be read.
    #[error("the ledger can't be read")]
    Store(#[from] StoreError),
    /// The file can't be written.
    #[error("the segment `{}` can't be written", path.display())]
    Export {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: ExportError,
    },
    /// The directory or the file can't be used.
    #[error("`{}` can't be read or written", path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file can't be read back.
    #[error("the segment `{}` can't be read back", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: ReadExportError,
    },
    /// What was read back does not continue the chain.
    #[error("the segment `{}` breaks the chain at event {seq}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The first event that does not fit.
        seq: u64,
    },
}

/// What a segment is to hold.
#[derive(Debug)]
pub(crate) struct Plan<'p> {
    /// The chain's end before its first event.
    pub(crate) start: &'p Head,
    /// Its last event.
    pub(crate) last_seq: u64,
    /// The day its name bears.
    pub(crate) day: String,
    /// Who signs its checkpoint, if anyone.
    pub(crate) key: Option<&'p SigningKeyFile>,
}

/// The day of a moment, in UTC.
pub(crate) fn day(moment: Timestamp) -> String {
    moment.to_string().chars().take(10).collect()
}

/// The segments in a directory, in the order of the chain; none if it does
/// not exist. Other files are left alone.
///
/// # Errors
/// The directory can't be read.
pub fn segments(directory: &Path) -> Result<Vec<Segment>, SegmentError> {
    let failed = |source| io_error(directory, source);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        found.extend(Segment::of(&path).map_err(failed)?);
    }
    found.sort_unstable_by_key(|segment| segment.first_seq);
    Ok(found)
}

/// Writes a segment, reads it back, and only then gives it its name.
pub(crate) fn seal(
    engine: &Engine,
    directory: &Path,
    plan: &Plan<'_>,
) -> Result<(Segment, CheckedSegment), SegmentError> {
    sqlite::private_directory(directory).map_err(|source| io_error(directory, source))?;
    let name = format!(
        "{:020}-{:020}-{}{ENDING}",
        plan.start.seq + 1,
        plan.last_seq,
        plan.day
    );
    let path = directory.join(name);
    let part = path.with_extension("part");
    remove_if_there(&part).map_err(|source| io_error(&part, source))?;
    write(engine, &part, plan).map_err(|source| SegmentError::Export {
        path: path.clone(),
        source,
    })?;
    let checked = check(&part)?;
    if checked.start != *plan.start || checked.end.head.seq != plan.last_seq {
        let seq = plan.start.seq + 1;
        return Err(SegmentError::Broken { path, seq });
    }
    let put_in_place = || {
        fs::rename(&part, &path)?;
        sqlite::sync_directory(directory)?;
        Segment::of(&path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    };
    let segment = put_in_place().map_err(|source| io_error(&path, source))?;
    Ok((segment, checked))
}

impl Segment {
    /// The segment behind a path; none if its name is not that of one.
    fn of(path: &Path) -> io::Result<Option<Self>> {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let parts = name
            .strip_suffix(ENDING)
            .map(|name| name.splitn(3, '-').collect::<Vec<_>>());
        let Some([first, last, day]) = parts.as_deref() else {
            return Ok(None);
        };
        let (Ok(first_seq), Ok(last_seq)) = (first.parse(), last.parse()) else {
            return Ok(None);
        };
        Ok(Some(Self {
            first_seq,
            last_seq,
            day: (*day).to_owned(),
            bytes: fs::metadata(path)?.len(),
            path: path.to_owned(),
        }))
    }

    /// Reads it back: every hash, every number, the checkpoint's root.
    pub(crate) fn check(&self) -> Result<CheckedSegment, SegmentError> {
        check(&self.path)
    }

    pub(crate) fn remove(&self) -> Result<(), SegmentError> {
        remove_if_there(&self.path).map_err(|source| io_error(&self.path, source))
    }
}

fn write(engine: &Engine, path: &Path, plan: &Plan<'_>) -> Result<(), ExportError> {
    let genesis = engine.genesis();
    let mut encoder = zstd::Encoder::new(sqlite::private_file(path)?, ZSTD_LEVEL)?;
    encoder.include_checksum(true)?;
    let mut head = plan.start.clone();
    let mut writer = ExportWriter::start(&mut encoder, &genesis, plan.start)?;
    let mut failed = None;
    engine.scan(plan.start.seq + 1, &mut |row| {
        if head.seq == plan.last_seq {
            return ControlFlow::Break(());
        }
        let written = row.map_err(ExportError::from).and_then(|row| {
            writer.row(&row)?;
            head.advance(&row, |_| {});
            Ok(())
        });
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let note = plan.key.map(|key| {
        let checkpoint = Checkpoint {
            origin: origin(genesis.ledger_id),
            size: head.seq,
            root: head.frontier.root(),
        };
        SignedCheckpoint::sign(checkpoint, key)
    });
    writer.end(note.as_ref())?;
    encoder.finish()?.sync_all()?;
    Ok(())
}

fn check(path: &Path) -> Result<CheckedSegment, SegmentError> {
    let unreadable = |source| SegmentError::Read {
        path: path.to_owned(),
        source,
    };
    let sha256 = sha256(path).map_err(|source| io_error(path, source))?;
    let mut reader = ExportReader::open(path).map_err(unreadable)?;
    let start = reader.header().start.clone();
    let mut head = start.clone();
    let mut first_hash = None;
    let mut buffer = String::new();
    let broken = |seq| SegmentError::Broken {
        path: path.to_owned(),
        seq,
    };
    while let Some(event) = reader.next_event().map_err(unreadable)? {
        let row = RowRef::of(&event);
        let fits = row.seq == head.seq + 1
            && row.prev_hash == head.hash
            && row.hash == row.expected_hash(&head.hash, &mut buffer);
        if !fits {
            return Err(broken(head.seq + 1));
        }
        first_hash.get_or_insert(row.hash);
        head.advance(&row, |_| {});
    }
    let events = head.seq - start.seq;
    let complete = reader.end() == Some((events, head.seq, head.hash));
    let first_hash = first_hash
        .filter(|_| complete)
        .ok_or_else(|| broken(head.seq + 1))?;
    let note = reader.checkpoint().unwrap_or_default().to_owned();
    if !note.is_empty() && !attests(&note, &head) {
        return Err(broken(head.seq));
    }
    Ok(CheckedSegment {
        start,
        end: Anchor { head, note },
        first_hash,
        sha256,
    })
}

/// Whether a checkpoint is that of exactly this end of the chain.
fn attests(note: &str, head: &Head) -> bool {
    SignedCheckpoint::parse(note).is_ok_and(|note| {
        (note.checkpoint.size, note.checkpoint.root) == (head.seq, head.frontier.root())
    })
}

fn sha256(path: &Path) -> io::Result<Digest> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer)?;
        match buffer.get(..read) {
            Some(bytes) if read > 0 => hasher.update(bytes),
            _ => return Ok(Digest(hasher.finalize().into())),
        }
    }
}

fn io_error(path: &Path, source: io::Error) -> SegmentError {
    SegmentError::Io {
        path: path.to_owned(),
        source,
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
