//! Verifying an export, and archived parts before a ledger's hot events.
//!
//! The end line carries a checkpoint that may be of fewer events than the
//! export has, so it is fetched first and met on the way.

use std::path::Path;

use super::finding::{Finding, FindingKind};
use super::source::Wanted;
use super::walk::{Before, Walk};
use super::witness::Witness;
use super::{Start, Verification, VerifyError, VerifyOptions, sum_up};
use crate::chain::{Genesis, Head};
use crate::checkpoint::{self, SignedCheckpoint};
use crate::export::{ExportReader, Header, ReadExportError};
use crate::row::RowRef;

/// Verifies the export in a file.
pub(super) fn verify_export(
    path: &Path,
    options: &VerifyOptions,
    wanted: &[Wanted],
) -> Result<Verification, VerifyError> {
    let mut reader = ExportReader::open(path).map_err(|error| match error {
        ReadExportError::Io { path, source } => VerifyError::Io { path, source },
        _ => VerifyError::NotALedger {
            path: path.to_owned(),
        },
    })?;
    let Header { genesis, start } = reader.header().clone();
    let origin = checkpoint::origin(genesis.ledger_id);
    let mut witness = Witness::new(&options.against, &origin, options.key.as_ref())?;
    let unreadable = !add_carried_note(&mut witness, path, &origin, options);
    let (mut walk, start) = begin(&genesis, start, witness, options);
    walk.expect_sources(wanted, genesis.ledger_id);
    read_through(&mut reader, &mut walk, u64::MAX);
    if walk.finding.is_none() {
        check_end(&reader, &mut walk, start);
        walk.end();
    }
    if unreadable {
        let finding = unreadable_note(walk.head.seq + 1, path);
        walk.report(finding);
    }
    Ok(sum_up(walk, genesis.ledger_id, start, options))
}

/// Passes the events of a reader to the walk, as far as position `last`.
pub(super) fn read_through(reader: &mut ExportReader, walk: &mut Walk, last: u64) {
    while walk.head.seq < last {
        match reader.next_event() {
            Ok(Some(event)) => {
                if walk.row(Ok(RowRef::of(&event))).is_break() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                let kind = match error {
                    ReadExportError::Cut { .. } => FindingKind::Unreadable,
                    _ => FindingKind::MalformedLine,
                };
                let seq = walk.head.seq + 1;
                walk.report(Finding::new(seq, kind, error.to_string()));
                return;
            }
        }
    }
}

fn begin(
    genesis: &Genesis,
    start: Head,
    witness: Witness,
    options: &VerifyOptions,
) -> (Walk, Start) {
    if start.seq == 0 {
        let mut walk = Walk::from_genesis(genesis, witness);
        if start != walk.head {
            let detail = "the export does not start from its genesis record";
            walk.report(Finding::new(1, FindingKind::UnknownGenesis, detail));
        }
        return (walk, Start::Genesis);
    }
    let seq = start.seq;
    let walk = Walk::new(start, Before::Anchor, witness);
    // Only a checkpoint of exactly that size vouches for where it starts.
    let signed = options.key.is_some() && walk.witness.checked() > 0;
    (walk, Start::Archived { seq, signed })
}

/// The end line must say what was read.
fn check_end(reader: &ExportReader, walk: &mut Walk, start: Start) {
    let before = match start {
        Start::Archived { seq, .. } => seq,
        Start::Genesis | Start::Checkpoint { .. } => 0,
    };
    let read = (walk.head.seq - before, walk.head.seq, walk.head.hash);
    let next = walk.head.seq + 1;
    let finding = match reader.end() {
        Some(end) if end == read => return,
        None => Finding::new(next, FindingKind::Truncated, "the export has no end line"),
        Some((_, last, _)) if last > walk.head.seq => {
            let detail = format!(
                "the export ends at {}, its end line says {last}",
                walk.head.seq
            );
            Finding::new(next, FindingKind::Truncated, detail)
        }
        Some(_) => {
            let detail = "the end line of the export does not fit its events";
            Finding::new(walk.head.seq.max(1), FindingKind::HeadMismatch, detail)
        }
    };
    walk.report(finding);
}

/// Adds the checkpoint in the end line, found without looking at the events;
/// false if it can't be understood.
fn add_carried_note(
    witness: &mut Witness,
    path: &Path,
    origin: &str,
    options: &VerifyOptions,
) -> bool {
    let carried = ExportReader::open(path).ok();
    let Some(text) = carried.and_then(ExportReader::skip_to_checkpoint) else {
        return true;
    };
    match SignedCheckpoint::parse(&text) {
        Ok(note) => {
            witness.add(note, origin, options.key.as_ref());
            true
        }
        Err(_) => false,
    }
}

fn unreadable_note(seq: u64, path: &Path) -> Finding {
    let path = path.display();
    let detail = format!("the checkpoint in the end line of `{path}` can't be understood");
    Finding::new(seq, FindingKind::MalformedLine, detail)
}

/// Walks the archived parts that are given, from the oldest of them up to
/// where the hot events start.
pub(super) fn walk_archives(
    genesis: &Genesis,
    mut witness: Witness,
    options: &VerifyOptions,
    anchor: &Head,
) -> Result<(Walk, Start), VerifyError> {
    let origin = checkpoint::origin(genesis.ledger_id);
    let mut unreadable = Vec::new();
    for path in &options.archives {
        if !add_carried_note(&mut witness, path, &origin, options) {
            unreadable.push(path);
        }
    }
    let oldest = match options.archives.first() {
        Some(path) => open_archive(path)?.header().start.clone(),
        None => Head::empty(genesis),
    };
    let (mut walk, start) = begin(genesis, oldest, witness, options);
    for path in unreadable {
        let finding = unreadable_note(walk.head.seq + 1, path);
        walk.report(finding);
    }
    for path in &options.archives {
        if walk.head.seq >= anchor.seq || walk.finding.is_some() {
            break;
        }
        let mut reader = open_archive(path)?;
        if reader.header().genesis == *genesis {
            read_through(&mut reader, &mut walk, anchor.seq);
        } else {
            let detail = format!("the archive `{}` is of another ledger", path.display());
            let seq = walk.head.seq + 1;
            walk.report(Finding::new(seq, FindingKind::OtherLedger, detail));
        }
    }
    if walk.finding.is_none() && walk.head.seq < anchor.seq {
        let detail = format!("the archives end before event {}", anchor.seq + 1);
        walk.report(Finding::new(walk.head.seq + 1, FindingKind::Gap, detail));
    } else if walk.finding.is_none() && walk.head != *anchor {
        let detail = "the archived events do not lead to the hot ones";
        walk.report(Finding::new(anchor.seq, FindingKind::HeadMismatch, detail));
    }
    Ok((walk, start))
}

fn open_archive(path: &Path) -> Result<ExportReader, VerifyError> {
    ExportReader::open(path).map_err(|source| VerifyError::Archive {
        path: path.to_owned(),
        source,
    })
}
