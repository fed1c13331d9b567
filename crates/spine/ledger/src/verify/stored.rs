//! Verifying what an engine stores: events, head, tree and versions.
//!
//! The ledger may grow meanwhile. The head is therefore read before and after
//! the pass, and must fit both times.

use std::collections::BTreeSet;

use super::exported::walk_archives;
use super::finding::{Finding, FindingKind};
use super::source::Wanted;
use super::walk::{Before, Walk};
use super::witness::Witness;
use super::{Extent, Start, Verification, VerifyError, VerifyOptions, damage, sum_up};
use crate::chain::{Genesis, Head};
use crate::checkpoint::{self, SignedCheckpoint};
use crate::engine::{Anchor, Engine};
use crate::error::StoreError;
use crate::tree::{self, Frontier, Node, Subtrees};

/// How many stored nodes are compared at a time.
const NODES: usize = 1_024;

/// Verifies the ledger behind an engine.
pub(super) fn verify_engine(
    engine: &Engine,
    options: &VerifyOptions,
    wanted: &[Wanted],
) -> Result<Verification, VerifyError> {
    let genesis = engine.genesis();
    let origin = checkpoint::origin(genesis.ledger_id);
    let witness = Witness::new(&options.against, &origin, options.key.as_ref())?;
    let stored = readable(engine.head())?;
    let (mut walk, start) = begin(engine, &genesis, witness, options, stored.as_ref().ok())?;
    walk.expect_sources(wanted, genesis.ledger_id);
    if let Ok(stored) = &stored {
        walk.expect_head(stored.clone());
    }
    if walk.finding.is_none() {
        let from = first_row(&walk);
        match readable(engine.scan(from, &mut |row| walk.row(row)))? {
            Ok(()) => walk.end(),
            Err(detail) => {
                let seq = walk.head.seq + 1;
                walk.report(Finding::new(seq, FindingKind::Unreadable, detail));
            }
        }
    }
    if walk.finding.is_none() {
        check_bookkeeping(engine, &mut walk, options.extent)?;
    }
    Ok(sum_up(walk, genesis.ledger_id, start, options))
}

/// A result whose damage is a finding.
fn readable<T>(result: Result<T, StoreError>) -> Result<Result<T, String>, VerifyError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) => damage(error).map(Err),
    }
}

/// Where the scan starts: rows that came back after they were archived away
/// would be read by others, so all are looked at.
fn first_row(walk: &Walk) -> u64 {
    match walk.before {
        Before::Genesis | Before::Anchor => 0,
        _ => walk.head.seq + 1,
    }
}

/// Where the walk starts, and what has to be checked before it can.
fn begin(
    engine: &Engine,
    genesis: &Genesis,
    witness: Witness,
    options: &VerifyOptions,
    stored: Option<&Head>,
) -> Result<(Walk, Start), VerifyError> {
    let anchor = match readable(engine.anchor())? {
        Ok(anchor) => anchor,
        Err(detail) => {
            let mut walk = Walk::from_genesis(genesis, witness);
            walk.report(Finding::new(1, FindingKind::HeadMismatch, detail));
            return Ok((walk, Start::Genesis));
        }
    };
    let pruned = anchor.as_ref().map_or(0, |anchor| anchor.head.seq);
    let newest = match options.extent {
        Extent::Full | Extent::Newest { .. } => 0,
        Extent::SinceCheckpoint => u64::MAX,
        Extent::SinceVerified { seq } => seq,
    };
    if let (Some(stored), Extent::Newest { events }) = (stored, options.extent)
        && stored.seq.saturating_sub(events) > pruned
        && let Some(head) = stored_end(engine, stored, stored.seq - events)
    {
        let start = Start::Checkpoint { size: head.seq };
        return Ok((Walk::new(head, Before::Unseen, witness), start));
    }
    if let Some(stored) = stored
        && let Some(head) = resume(engine, &witness, stored, (pruned, newest))
    {
        let start = Start::Checkpoint { size: head.seq };
        return Ok((Walk::new(head, Before::Unseen, witness), start));
    }
    match anchor {
        None => Ok((Walk::from_genesis(genesis, witness), Start::Genesis)),
        Some(anchor) if options.archives.is_empty() => {
            Ok(begin_at_anchor(anchor, genesis, witness, options))
        }
        Some(Anchor { head, .. }) => walk_archives(genesis, witness, options, &head),
    }
}

fn begin_at_anchor(
    anchor: Anchor,
    genesis: &Genesis,
    mut witness: Witness,
    options: &VerifyOptions,
) -> (Walk, Start) {
    let seq = anchor.head.seq;
    let origin = checkpoint::origin(genesis.ledger_id);
    let mut malformed = None;
    match SignedCheckpoint::parse(&anchor.note) {
        _ if anchor.note.is_empty() => {}
        Ok(note) if note.checkpoint.size == seq => {
            witness.add(note, &origin, options.key.as_ref());
        }
        _ => {
            let detail = "the checkpoint of the archived part does not fit it";
            malformed = Some(Finding::new(seq, FindingKind::HeadMismatch, detail));
        }
    }
    let mut walk = Walk::new(anchor.head, Before::Anchor, witness);
    let signed = options.key.is_some() && walk.witness.checked() > 0;
    if let Some(finding) = malformed {
        walk.report(finding);
    }
    (walk, Start::Archived { seq, signed })
}

/// The chain's end at the newest checkpoint of a size in the range (the first
/// excluded), if the stored tree leads to it.
fn resume(
    engine: &Engine,
    witness: &Witness,
    stored: &Head,
    (pruned, newest): (u64, u64),
) -> Option<Head> {
    let fits = |size: u64| size > pruned && size <= stored.seq.min(newest);
    let mut notes = witness.notes().iter().rev();
    let note = &notes.find(|note| fits(note.checkpoint.size))?.checkpoint;
    let mut source = engine;
    let frontier = frontier(&mut source, note.size).ok()?;
    // The node above 256 events does not show the last event's hash, so that
    // has to be proved by itself.
    let path = tree::inclusion(&mut source, note.size - 1, note.size).ok()?;
    let hash = engine.read(note.size, 1).ok()?.first()?.hash;
    let proved = tree::check_inclusion(&hash, note.size - 1, (note.size, note.root), &path);
    (proved && frontier.root() == note.root).then_some(Head {
        seq: note.size,
        hash,
        epoch: stored.epoch,
        frontier,
    })
}

/// The chain's end after the first `size` events, as it is stored.
fn stored_end(engine: &Engine, stored: &Head, size: u64) -> Option<Head> {
    let mut source = engine;
    Some(Head {
        seq: size,
        hash: engine.read(size, 1).ok()?.first()?.hash,
        epoch: stored.epoch,
        frontier: frontier(&mut source, size).ok()?,
    })
}

/// The frontier of the first `size` events, from stored subtrees.
fn frontier<S: Subtrees>(source: &mut S, size: u64) -> Result<Frontier, S::Error> {
    let mut bytes = Vec::new();
    let mut start = 0;
    for level in (0..u64::BITS).rev().filter(|level| size >> level & 1 == 1) {
        let length = 1u64 << level;
        bytes.extend(tree::range_root(source, start, length)?.0);
        start += length;
    }
    Ok(Frontier::from_bytes(size, &bytes).unwrap_or_default())
}

/// What is stored beside the events, for writers and proofs.
fn check_bookkeeping(engine: &Engine, walk: &mut Walk, extent: Extent) -> Result<(), VerifyError> {
    let last = walk.head.seq;
    let now = readable(engine.head())?;
    match &now {
        Ok(head) if head.seq < last => {
            let detail = format!(
                "it stands after the end that the head row states, {}",
                head.seq
            );
            walk.report(Finding::new(
                head.seq + 1,
                FindingKind::HeadMismatch,
                detail,
            ));
        }
        Ok(_) => {}
        Err(detail) => {
            walk.report(Finding::new(
                last.max(1),
                FindingKind::HeadMismatch,
                detail.as_str(),
            ));
        }
    }
    check_nodes(engine, walk)?;
    match extent {
        // All versions there are would be read, however few are needed.
        Extent::Newest { .. } => Ok(()),
        _ => check_versions(engine, walk),
    }
}

/// Every stored node must be the one that the events give.
fn check_nodes(engine: &Engine, walk: &mut Walk) -> Result<(), VerifyError> {
    let mut source = engine;
    let levels: BTreeSet<u8> = walk.nodes.iter().map(|node| node.level).collect();
    let nodes = std::mem::take(&mut walk.nodes);
    for level in levels {
        let same: Vec<Node> = nodes
            .iter()
            .filter(|node| node.level == level)
            .copied()
            .collect();
        for chunk in same.chunks(NODES) {
            let Some(first) = chunk.first() else { continue };
            let found = readable(source.stored(level, first.position, chunk.len() as u64))?;
            let found = found.unwrap_or_default();
            // A node that can't be read is as wrong as one that differs.
            let mut found = found.iter();
            if let Some(bad) = chunk.iter().find(|node| found.next() != Some(&node.hash)) {
                let seq = (bad.position << level) + 1;
                let detail = format!("the stored hash over events {seq} and on is not theirs");
                walk.report(Finding::new(seq, FindingKind::TreeMismatch, detail));
                break;
            }
        }
    }
    Ok(())
}

/// Every stored version must be that of the aggregate's last event; if others
/// append meanwhile it may also be ahead.
fn check_versions(engine: &Engine, walk: &mut Walk) -> Result<(), VerifyError> {
    let mut left = std::mem::take(&mut walk.versions);
    let complete = walk.before == Before::Genesis;
    let last = walk.head.seq;
    let (mut wrong, mut ahead): (Option<u64>, Option<u64>) = (None, None);
    let first = |found: &mut Option<u64>, seq: u64| {
        *found = Some(found.map_or(seq, |other| other.min(seq)));
    };
    let read = readable(engine.versions(&mut |key, version| match left.remove(key) {
        Some((seen, _)) if version == Some(seen) => {}
        Some((seen, seq)) if version > Some(seen) => first(&mut ahead, seq),
        Some((_, seq)) => first(&mut wrong, seq),
        None if complete => first(&mut ahead, last.max(1)),
        None => {}
    }))?;
    // An aggregate whose version is not stored would start again at one.
    left.values().for_each(|(_, seq)| first(&mut wrong, *seq));
    // Only if nobody has appended up to now is being ahead wrong as well.
    if readable(engine.head())?.is_ok_and(|head| head.seq == last)
        && let Some(seq) = ahead
    {
        first(&mut wrong, seq);
    }
    match (read, wrong) {
        (Ok(()), None) => {}
        (Ok(()), Some(seq)) => {
            let detail = "the stored version of its aggregate is not that of its last event";
            walk.report(Finding::new(seq, FindingKind::VersionMismatch, detail));
        }
        (Err(detail), _) => {
            walk.report(Finding::new(last.max(1), FindingKind::Unreadable, detail));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::PathBuf;

    use super::*;
    use crate::draft::{Batch, Draft};
    use crate::event::{Actor, Aggregate, Domain};
    use crate::export::ExportWriter;
    use crate::ledger::{Ledger, LedgerOptions};
    use crate::row::RowRef;

    const EVENTS: u64 = 700;
    const PRUNED: u64 = 300;

    /// A ledger whose first events were archived in two parts and pruned.
    struct Archived {
        home: tempfile::TempDir,
        ledger: Ledger,
        parts: Vec<PathBuf>,
    }

    impl Archived {
        fn new(note: &str) -> Self {
            let home = tempfile::tempdir().unwrap();
            let ledger = Ledger::open(&home.path().join("l"), LedgerOptions::default()).unwrap();
            let drafts = (0..EVENTS).map(|number| {
                let aggregate = Aggregate::new("session", format!("s{}", number % 3));
                Draft::new(
                    Domain::Agent,
                    aggregate,
                    "tool.execute",
                    Actor::system("test"),
                )
            });
            ledger
                .append_blocking(Batch::new(drafts.collect()))
                .unwrap();
            let mut archived = Self {
                home,
                ledger,
                parts: Vec::new(),
            };
            let mut head = Head::empty(&archived.ledger.genesis());
            for (name, last) in [("a", 120), ("b", PRUNED)] {
                head = archived.archive(name, head, last);
            }
            let anchor = Anchor {
                head,
                note: note.to_owned(),
            };
            archived.ledger.shared.engine.prune(&anchor).unwrap();
            archived
        }

        fn archive(&mut self, name: &str, mut head: Head, last: u64) -> Head {
            let path = self.home.path().join(name);
            let mut file = File::create(&path).unwrap();
            let mut writer = ExportWriter::start(&mut file, &self.ledger.genesis(), &head).unwrap();
            while head.seq < last {
                let wanted = usize::try_from(last - head.seq).unwrap();
                for event in self.ledger.read(head.seq + 1, wanted).unwrap() {
                    writer.row(&RowRef::of(&event)).unwrap();
                    head.advance(&RowRef::of(&event), |_| {});
                }
            }
            writer.end(None).unwrap();
            self.parts.push(path);
            head
        }

        fn verify(&self, archives: &[PathBuf]) -> Verification {
            let options = VerifyOptions {
                archives: archives.to_vec(),
                ..VerifyOptions::default()
            };
            self.ledger.verify(&options).unwrap()
        }
    }

    #[test]
    fn archive_and_hot_events_are_one_chain() {
        let archived = Archived::new("");
        let hot = archived.verify(&[]);
        assert_eq!(hot.verdict, Ok(()));
        let start = Start::Archived {
            seq: PRUNED,
            signed: false,
        };
        assert_eq!((hot.start, hot.events), (start, EVENTS - PRUNED));
        let all = archived.verify(&archived.parts);
        assert_eq!(all.verdict, Ok(()));
        assert_eq!(
            (all.start, all.events, all.root),
            (Start::Genesis, EVENTS, hot.root)
        );
    }

    #[test]
    fn a_missing_or_wrong_archive_is_named() {
        let archived = Archived::new("");
        let found = |archives: &[PathBuf]| {
            let finding = archived.verify(archives).verdict.unwrap_err();
            (finding.seq, finding.kind)
        };
        let [a, b] = archived.parts.as_slice() else {
            panic!("two parts");
        };
        assert_eq!(found(std::slice::from_ref(a)), (121, FindingKind::Gap));
        // Out of order, the older one stands where the hot events should.
        assert_eq!(found(&[a.clone(), a.clone()]), (1, FindingKind::Duplicate));
        let other = Archived::new("");
        assert_eq!(found(&other.parts), (1, FindingKind::UnknownGenesis));
        let text = std::fs::read_to_string(b)
            .unwrap()
            .replace("\"test\"", "\"best\"");
        std::fs::write(b, text).unwrap();
        assert_eq!(found(&archived.parts), (121, FindingKind::HashMismatch));
    }

    #[test]
    fn without_its_oldest_part_verification_starts_later_and_says_so() {
        let archived = Archived::new("");
        let report = archived.verify(archived.parts.get(1..).unwrap());
        assert_eq!(report.verdict, Ok(()));
        let start = Start::Archived {
            seq: 120,
            signed: false,
        };
        assert_eq!((report.start, report.events), (start, EVENTS - 120));
    }

    #[test]
    fn what_was_archived_is_still_proved() {
        let archived = Archived::new("");
        let trust = archived.home.path().join("trust");
        let signing = crate::checkpoint::Signing::in_directory(&trust);
        let prove = |seq, archives| archived.ledger.prove_with_archives(seq, &signing, archives);
        let key = crate::key::SigningKeyFile::open_or_create(&signing.key).unwrap();
        // Both sides of every border: of the parts, the tree, the hot events.
        for seq in [
            1, 120, 121, 255, 256, 257, 299, 300, 301, 302, 512, 513, EVENTS,
        ] {
            let proof = prove(seq, &archived.parts).unwrap();
            assert_eq!(proof.event.seq, seq);
            assert_eq!(proof.check(&key.public_key()), Ok(()), "{seq}");
        }
        let refused = prove(7, &[]);
        assert!(matches!(
            refused,
            Err(crate::proof::ProveError::Archived { seq: 7 })
        ));
        // Its neighbours in the tree were archived.
        let refused = prove(301, &[]);
        assert!(matches!(
            refused,
            Err(crate::proof::ProveError::Archived { .. })
        ));
        assert!(prove(600, &[]).is_ok());
    }

    #[test]
    fn a_note_that_is_not_of_the_archived_part_is_named() {
        let finding = Archived::new("no note").verify(&[]).verdict.unwrap_err();
        assert_eq!(
            (finding.seq, finding.kind),
            (PRUNED, FindingKind::HeadMismatch)
        );
    }

    #[test]
    fn the_frontier_of_any_size_comes_from_stored_nodes() {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path(), LedgerOptions::default()).unwrap();
        let mut wanted = Frontier::default();
        let draft = || {
            let aggregate = Aggregate::new("session", "s");
            Draft::new(
                Domain::Agent,
                aggregate,
                "tool.execute",
                Actor::system("test"),
            )
        };
        ledger
            .append_blocking(Batch::new((0..600).map(|_| draft()).collect()))
            .unwrap();
        let mut engine = &*ledger.shared.engine;
        for event in ledger.read(1, 600).unwrap() {
            wanted.push(&event.hash, |_| {});
            assert_eq!(frontier(&mut engine, event.seq).unwrap(), wanted);
        }
    }
}
