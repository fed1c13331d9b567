//! One pass over the events, in order, that believes nothing it is told.
//!
//! Every hash is computed again from the columns readers use. No allocation
//! per event, no JSON parser: this loop sets the speed of verification.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;

use fluffy_base::Digest;
use fluffy_base::id::LedgerId;

use super::finding::{Finding, FindingKind};
use super::source::Wanted;
use super::witness::Witness;
use super::{MAX_SOURCES, MetSource};
use crate::chain::{Genesis, Head};
use crate::draft::Source;
use crate::engine::RowFault;
use crate::event::{ActorKind, Domain};
use crate::row::RowRef;
use crate::tree::Node;

/// How canonical JSON starts a reference to another ledger.
const SOURCE: &str = "\"source\":{\"checkpoint\":";

/// The state of the pass: where it is and what it has seen.
#[derive(Debug)]
pub(super) struct Walk {
    /// The chain's end as computed.
    pub(super) head: Head,
    /// What came before the first event to walk.
    pub(super) before: Before,
    /// Version and position of each aggregate's last event.
    pub(super) versions: HashMap<String, (u64, u64)>,
    /// The stored nodes there should be.
    pub(super) nodes: Vec<Node>,
    pub(super) witness: Witness,
    pub(super) sources: Vec<MetSource>,
    /// How many more sources there were than are kept.
    pub(super) sources_left_out: u64,
    pub(super) finding: Option<Finding>,
    /// The head row as it was read before the pass.
    stored: Option<Head>,
    /// The events that another ledger refers to, and that were not met yet.
    wanted: VecDeque<(u64, Digest)>,
    canonical: String,
    key: String,
}

/// What came before the first event of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// Nothing: it starts from the genesis record.
    Genesis,
    /// A part that is not at hand: the epoch is known, versions are not.
    Anchor,
    /// A part that is not looked at: neither is known.
    Unseen,
}

impl Walk {
    /// A pass that goes on from `head`.
    pub(super) fn new(head: Head, before: Before, mut witness: Witness) -> Self {
        witness.start_at(head.seq);
        witness.meet(head.seq, &head.frontier.root());
        Self {
            head,
            before,
            versions: HashMap::new(),
            nodes: Vec::new(),
            witness,
            sources: Vec::new(),
            sources_left_out: 0,
            finding: None,
            stored: None,
            wanted: VecDeque::new(),
            canonical: String::new(),
            key: String::new(),
        }
    }

    /// A pass over everything there ever was.
    pub(super) fn from_genesis(genesis: &Genesis, witness: Witness) -> Self {
        Self::new(Head::empty(genesis), Before::Genesis, witness)
    }

    /// The head row must be met on the way.
    pub(super) fn expect_head(&mut self, stored: Head) {
        self.stored = Some(stored);
        self.meet_head();
    }

    /// The ledger must be the one, and have the events, that another names;
    /// these come in order.
    pub(super) fn expect_sources(&mut self, wanted: &[Wanted], ledger_id: LedgerId) {
        if let Some(wanted) = wanted.iter().find(|wanted| wanted.ledger_id != ledger_id) {
            let detail = format!(
                "another ledger refers to `{}`, this is `{ledger_id}`",
                wanted.ledger_id
            );
            self.report(Finding::new(1, FindingKind::OtherLedger, detail));
        }
        // What is before the first event to walk cannot be looked at.
        let seen = wanted.iter().filter(|wanted| wanted.seq > self.head.seq);
        self.wanted = seen.map(|wanted| (wanted.seq, wanted.hash)).collect();
    }

    /// Takes the next row; breaks at the first that is wrong.
    pub(super) fn row(&mut self, row: Result<RowRef<'_>, RowFault>) -> ControlFlow<()> {
        if self.finding.is_some() {
            return ControlFlow::Break(());
        }
        let checked = match row {
            Ok(row) => self.check(&row),
            Err(fault) => Err(self.fault(fault)),
        };
        if let Err(finding) = checked {
            self.finding = Some(finding);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// There are no more rows, and all were sound.
    pub(super) fn end(&mut self) {
        if self.finding.is_some() {
            return;
        }
        let last = self.head.seq;
        if let Some(stored) = self.stored.take() {
            let detail = format!(
                "the head row says {} events, but there are {last}",
                stored.seq
            );
            self.finding = Some(Finding::new(last + 1, FindingKind::Truncated, detail));
        }
        if let Some((seq, _)) = self.wanted.front() {
            let detail = format!("another ledger refers to event {seq}, but there are {last}");
            self.report(Finding::new(last + 1, FindingKind::Truncated, detail));
        }
        self.witness.end_at(last);
    }

    /// Keeps the finding if it is the first.
    pub(super) fn report(&mut self, finding: Finding) {
        if self
            .finding
            .as_ref()
            .is_none_or(|first| finding.seq < first.seq)
        {
            self.finding = Some(finding);
        }
    }

    fn check(&mut self, row: &RowRef<'_>) -> Result<(), Finding> {
        let expected = self.head.seq + 1;
        if row.seq != expected {
            return Err(self.out_of_place(row.seq));
        }
        if row.prev_hash != self.head.hash {
            return Err(wrong_predecessor(row, &self.head));
        }
        let hash = row.expected_hash(&self.head.hash, &mut self.canonical);
        if row.hash != hash {
            let detail = "its columns do not give the hash it carries";
            return Err(Finding::new(row.seq, FindingKind::HashMismatch, detail));
        }
        check_names(row)?;
        self.check_version(row)?;
        while let Some((_, hash)) = self.wanted.pop_front_if(|(seq, _)| *seq == row.seq) {
            if hash != row.hash {
                let detail = format!("another ledger refers to it with hash {hash}");
                return Err(Finding::new(row.seq, FindingKind::SourceDiffers, detail));
            }
        }
        if row.payload.contains(SOURCE) {
            self.note_source(row);
        }
        self.advance(row);
        Ok(())
    }

    fn advance(&mut self, row: &RowRef<'_>) {
        let nodes = &mut self.nodes;
        self.head.advance(row, |node| nodes.push(node));
        if self.witness.peek() == Some(self.head.seq) {
            self.witness.meet(self.head.seq, &self.head.frontier.root());
        }
        self.meet_head();
    }

    /// Compares the head row once the walk is where it says it ends.
    fn meet_head(&mut self) {
        let here = self.head.seq;
        let Some(mut stored) = self.stored.take_if(|stored| stored.seq == here) else {
            return;
        };
        if self.before == Before::Unseen {
            stored.epoch = self.head.epoch;
        }
        if stored != self.head {
            let detail = "the head row does not fit the events";
            self.report(Finding::new(here.max(1), FindingKind::HeadMismatch, detail));
        }
    }

    fn check_version(&mut self, row: &RowRef<'_>) -> Result<(), Finding> {
        self.key.clear();
        for part in [row.domain, "\0", row.aggregate_type, "\0", row.aggregate_id] {
            self.key.push_str(part);
        }
        let last = match self.versions.get_mut(&self.key) {
            Some((version, seq)) => {
                let last = *version;
                (*version, *seq) = (row.aggregate_version, row.seq);
                last
            }
            None => {
                let found = (row.aggregate_version, row.seq);
                self.versions.insert(self.key.clone(), found);
                match self.before {
                    Before::Genesis => 0,
                    // Earlier versions were not seen; any start will do.
                    Before::Anchor | Before::Unseen => row.aggregate_version.saturating_sub(1),
                }
            }
        };
        if row.aggregate_version == 0 || last.checked_add(1) != Some(row.aggregate_version) {
            let detail = format!(
                "`{}` `{}` goes from version {last} to {}",
                row.aggregate_type, row.aggregate_id, row.aggregate_version
            );
            return Err(Finding::new(row.seq, FindingKind::VersionGap, detail));
        }
        Ok(())
    }

    fn note_source(&mut self, row: &RowRef<'_>) {
        // The same text may stand deeper in the payload or inside a string.
        let Some(source) = Source::in_payload(row.payload) else {
            return;
        };
        if self.sources.len() < MAX_SOURCES {
            let seq = row.seq;
            self.sources.push(MetSource { seq, source });
        } else {
            self.sources_left_out += 1;
        }
    }

    fn fault(&self, fault: RowFault) -> Finding {
        if fault.seq != self.head.seq + 1 {
            return self.out_of_place(fault.seq);
        }
        let detail = format!("column `{}` holds what no writer stores", fault.column);
        Finding::new(fault.seq, FindingKind::MalformedColumn, detail)
    }

    fn out_of_place(&self, found: u64) -> Finding {
        let expected = self.head.seq + 1;
        if found > expected {
            let detail = format!("it is missing; the next one there is {found}");
            return Finding::new(expected, FindingKind::Gap, detail);
        }
        let detail = format!("it stands where event {expected} should");
        Finding::new(found, FindingKind::Duplicate, detail)
    }
}

fn wrong_predecessor(row: &RowRef<'_>, head: &Head) -> Finding {
    if row.seq == 1 {
        let detail = "it does not follow the ledger's genesis record";
        return Finding::new(1, FindingKind::UnknownGenesis, detail);
    }
    let detail = format!("it does not follow event {}", head.seq);
    Finding::new(row.seq, FindingKind::WrongPrev, detail)
}

/// A name outside the closed lists would hash well and stop every reader.
fn check_names(row: &RowRef<'_>) -> Result<(), Finding> {
    let malformed = |column| {
        let detail = format!("column `{column}` holds what no writer stores");
        Finding::new(row.seq, FindingKind::MalformedColumn, detail)
    };
    row.domain
        .parse::<Domain>()
        .map_err(|_| malformed("domain"))?;
    row.actor_type
        .parse::<ActorKind>()
        .map_err(|_| malformed("actor_type"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use fluffy_base::Timestamp;

    use super::*;
    use crate::event::{Actor, Aggregate, Event, Payload};

    fn genesis() -> Genesis {
        Genesis {
            ledger_id: LedgerId::from_bits(1),
            created_at: Timestamp::from_micros(0),
        }
    }

    /// Takes an event with this version and a right hash, as a forger would.
    fn take(
        walk: &mut Walk,
        version: u64,
        change: impl FnOnce(&mut RowRef<'_>),
    ) -> Option<Finding> {
        let event = Event {
            seq: walk.head.seq + 1,
            domain: Domain::Agent,
            aggregate: Aggregate::new("session", "s1"),
            aggregate_version: version,
            event_type: "tool.execute".to_owned(),
            event_version: 1,
            occurred_at: Timestamp::from_micros(0),
            actor: Actor::system("test"),
            scope: crate::event::Scope::default(),
            request_id: "r".to_owned(),
            idempotency_key: None,
            correlation_id: None,
            causation_seq: None,
            decision_seq: None,
            payload: Payload::from_canonical("{}"),
            prev_hash: walk.head.hash,
            hash: walk.head.hash,
        };
        let mut row = RowRef::of(&event);
        change(&mut row);
        row.hash = row.expected_hash(&walk.head.hash, &mut String::new());
        let flow = walk.row(Ok(row));
        assert_eq!(flow.is_break(), walk.finding.is_some());
        walk.finding.clone()
    }

    fn walk(before: Before) -> Walk {
        Walk::new(Head::empty(&genesis()), before, Witness::default())
    }

    #[test]
    fn versions_follow_each_other_even_in_a_forged_chain() {
        for versions in [&[2][..], &[0], &[1, 1], &[1, 3], &[1, 2, 1]] {
            let mut walk = walk(Before::Genesis);
            let findings: Vec<_> = versions
                .iter()
                .map(|v| take(&mut walk, *v, |_| {}))
                .collect();
            let (last, good) = findings.split_last().unwrap();
            assert!(good.iter().all(Option::is_none), "{versions:?}");
            let finding = last.clone().unwrap();
            assert_eq!(finding.kind, FindingKind::VersionGap, "{versions:?}");
            assert_eq!(finding.seq, versions.len() as u64, "{versions:?}");
        }
        // Where the beginning was not seen, any version may come first.
        let mut walk = walk(Before::Anchor);
        assert_eq!(take(&mut walk, 7, |_| {}), None);
        assert_eq!(take(&mut walk, 8, |_| {}), None);
        assert!(take(&mut walk, u64::MAX, |_| {}).is_some());
    }

    #[test]
    fn names_outside_the_closed_lists_are_found_even_in_a_forged_chain() {
        let kind = |finding: Option<Finding>| finding.map(|finding| finding.kind);
        let bad = take(&mut walk(Before::Genesis), 1, |row| row.domain = "kitchen");
        assert_eq!(kind(bad), Some(FindingKind::MalformedColumn));
        let bad = take(&mut walk(Before::Genesis), 1, |row| {
            row.actor_type = "ghost"
        });
        assert_eq!(kind(bad), Some(FindingKind::MalformedColumn));
        let good = take(&mut walk(Before::Genesis), 1, |row| row.actor_type = "node");
        assert_eq!(kind(good), None);
    }
}
