//! Numbering, version checks, sealing and hashing: the same for both engines.
//!
//! Pure: an engine brings the head and the versions it read under its lock,
//! [`seal`] fills in the events, the engine stores them in one transaction.
//! A refused command takes no `seq`.

use std::collections::HashMap;

use fluffy_base::id::LedgerId;
use fluffy_base::{Digest, Timestamp};

use crate::class::Durability;
use crate::draft::{End, Expected, Prepared, SeqRef};
use crate::error::AppendError;
use crate::event::{Aggregate, Domain, Event};
use crate::row::RowRef;
use crate::ticket::Ticket;
use crate::tree::{Frontier, Node};

/// The version of the stored format.
pub const FORMAT: u32 = 1;

/// The record a ledger starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Genesis {
    /// The ledger's id.
    pub ledger_id: LedgerId,
    /// When it was created.
    pub created_at: Timestamp,
}

impl Genesis {
    /// The record as canonical JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        format!(
            "{{\"created_at\":\"{}\",\"format\":{FORMAT},\"ledger_id\":\"{}\"}}",
            self.created_at, self.ledger_id
        )
    }

    /// The `prev_hash` of the first event.
    #[must_use]
    pub fn hash(&self) -> Digest {
        Digest::of(self.to_json().as_bytes())
    }
}

/// The end of the chain, as stored in the head row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) seq: u64,
    pub(crate) hash: Digest,
    /// Counts `ledger.restored` events, from 1.
    pub(crate) epoch: u64,
    pub(crate) frontier: Frontier,
}

impl Head {
    /// The head of an empty ledger.
    pub(crate) fn empty(genesis: &Genesis) -> Self {
        Self {
            seq: 0,
            hash: genesis.hash(),
            epoch: 1,
            frontier: Frontier::default(),
        }
    }

    /// Moves past one event that follows; `done` gets completed subtrees.
    pub(crate) fn advance(&mut self, event: &RowRef<'_>, done: impl FnMut(Node)) {
        self.seq = event.seq;
        self.hash = event.hash;
        if event.event_type == RESTORED {
            self.epoch += 1;
        }
        self.frontier.push(&event.hash, done);
    }
}

/// The event type that opens a new epoch.
pub const RESTORED: &str = "ledger.restored";

/// One batch on its way to the engine, and what became of it.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) prepared: Vec<Prepared>,
    pub(crate) expected: Vec<Expected>,
    /// Where the chain must end before it.
    pub(crate) after: Option<End>,
    pub(crate) durability: Durability,
    /// The ticket to resolve, for a recorded event.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) verdict: Verdict,
}

/// What sealing said about a command.
#[derive(Debug, Default)]
pub(crate) enum Verdict {
    /// Not sealed yet.
    #[default]
    Waiting,
    /// Its events are numbered and hashed.
    Sealed,
    /// It takes no part; nothing of it is stored.
    Refused(AppendError),
}

impl Command {
    /// The sealed events, none if the command was refused.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Event> {
        let stored = matches!(self.verdict, Verdict::Sealed);
        let prepared = if stored {
            self.prepared.as_slice()
        } else {
            &[]
        };
        prepared.iter().map(|prepared| &prepared.event)
    }
}

/// An aggregate with its domain, as one text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct AggregateKey(String);

impl AggregateKey {
    pub(crate) fn new(domain: Domain, aggregate: &Aggregate) -> Self {
        let mut text = String::new();
        write_key(&mut text, domain, aggregate);
        Self(text)
    }

    /// Domain, kind and id.
    pub(crate) fn parts(&self) -> (&str, &str, &str) {
        let mut parts = self.0.splitn(3, '\0');
        let mut next = || parts.next().unwrap_or_default();
        (next(), next(), next())
    }
}

/// No part of a key holds a NUL, which `draft` refuses as a control character.
fn write_key(out: &mut String, domain: Domain, aggregate: &Aggregate) {
    out.clear();
    for part in [domain.as_str(), "\0", &aggregate.kind, "\0", &aggregate.id] {
        out.push_str(part);
    }
}

/// How many aggregates a writer remembers the versions of.
const MAX_REMEMBERED: usize = 50_000;

/// The versions a writer knows, valid while nobody else has appended.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    known: HashMap<String, u64>,
    /// Raised by the commands being sealed.
    touched: Vec<AggregateKey>,
    /// The head after which `known` was right.
    valid_at: Option<(u64, Digest)>,
}

impl Versions {
    /// Forgets everything unless the chain still ends where it did.
    pub(crate) fn start(&mut self, head: &Head) {
        self.touched.clear();
        if self.valid_at != Some((head.seq, head.hash)) || self.known.len() > MAX_REMEMBERED {
            self.known.clear();
        }
        // Until the transaction commits, nothing learnt from it is certain.
        self.valid_at = None;
    }

    /// The aggregates whose version the engine must still look up.
    pub(crate) fn missing(&self, commands: &[Command]) -> Vec<AggregateKey> {
        let mut key = String::new();
        let mut missing: HashMap<String, ()> = HashMap::new();
        let mut want = |domain, aggregate: &Aggregate| {
            write_key(&mut key, domain, aggregate);
            if !self.known.contains_key(&key) && !missing.contains_key(&key) {
                missing.insert(key.clone(), ());
            }
        };
        for command in commands {
            for prepared in &command.prepared {
                want(prepared.event.domain, &prepared.event.aggregate);
            }
            for expected in &command.expected {
                want(expected.domain, &expected.aggregate);
            }
        }
        missing.into_keys().map(AggregateKey).collect()
    }

    /// Notes the version of an aggregate as stored; 0 if it has no event.
    pub(crate) fn learn(&mut self, key: AggregateKey, version: u64) {
        self.known.insert(key.0, version);
    }

    /// The aggregates that grew, with their new versions, each once.
    pub(crate) fn changed(&self) -> impl Iterator<Item = (&AggregateKey, u64)> {
        self.touched
            .iter()
            .map(|key| (key, self.known.get(&key.0).copied().unwrap_or_default()))
    }

    /// Keeps what was learnt: the transaction that ended at `head` is stored.
    pub(crate) fn committed(&mut self, head: &Head) {
        self.valid_at = Some((head.seq, head.hash));
    }
}

/// Numbers and hashes the events of every command that may be appended.
///
/// Returns the subtrees completed on the way. `versions` must know every
/// aggregate that [`Versions::missing`] named.
pub(crate) fn seal(
    head: &mut Head,
    versions: &mut Versions,
    commands: &mut [Command],
) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut buffer = String::new();
    let mut key = String::new();
    let mut seen: HashMap<String, ()> = HashMap::new();
    for command in commands {
        if let Some(error) = refusal(command, head, versions) {
            command.verdict = Verdict::Refused(error);
            continue;
        }
        for prepared in &mut command.prepared {
            let event = &mut prepared.event;
            write_key(&mut key, event.domain, &event.aggregate);
            let version = match versions.known.get_mut(&key) {
                Some(version) => {
                    *version += 1;
                    *version
                }
                None => {
                    versions.known.insert(key.clone(), 1);
                    1
                }
            };
            if !seen.contains_key(&key) {
                seen.insert(key.clone(), ());
                versions.touched.push(AggregateKey(key.clone()));
            }
            event.seq = head.seq + 1;
            event.aggregate_version = version;
            event.causation_seq = resolve(prepared.causation.as_ref());
            event.decision_seq = resolve(prepared.decision.as_ref());
            event.prev_hash = head.hash;
            event.hash = RowRef::of(event).expected_hash(&head.hash, &mut buffer);
            head.advance(&RowRef::of(event), |node| nodes.push(node));
        }
        if let (Some(ticket), Some(last)) = (&command.ticket, command.prepared.last()) {
            ticket.seal(last.event.seq);
        }
        command.verdict = Verdict::Sealed;
    }
    nodes
}

/// Why a command takes no part, looked at before anything is numbered.
fn refusal(command: &Command, head: &Head, versions: &Versions) -> Option<AppendError> {
    if let Some(after) = command.after
        && (after.seq, after.hash) != (head.seq, head.hash)
    {
        return Some(AppendError::HeadMoved {
            expected: after.seq,
            current: head.seq,
            epoch: head.epoch,
        });
    }
    let mut key = String::new();
    for expected in &command.expected {
        write_key(&mut key, expected.domain, &expected.aggregate);
        let current = versions.known.get(&key).copied().unwrap_or_default();
        if current != expected.version {
            return Some(AppendError::Conflict {
                aggregate: expected.aggregate.clone(),
                expected: expected.version,
                current,
            });
        }
    }
    let lost =
        |reference: &Option<SeqRef>| reference.is_some() && resolve(reference.as_ref()).is_none();
    command
        .prepared
        .iter()
        .any(|prepared| lost(&prepared.causation) || lost(&prepared.decision))
        .then_some(AppendError::ReferenceLost)
}

fn resolve(reference: Option<&SeqRef>) -> Option<u64> {
    match reference? {
        SeqRef::Known(seq) => Some(*seq),
        SeqRef::Pending(ticket) => ticket.sealed(),
    }
}

#[cfg(test)]
mod tests {
    use fluffy_base::canonical;
    use serde_json::json;
    use tokio::sync::watch;

    use super::*;
    use crate::draft::{Batch, Draft};
    use crate::event::Actor;

    fn genesis() -> Genesis {
        Genesis {
            ledger_id: LedgerId::from_bits(1),
            created_at: Timestamp::from_micros(0),
        }
    }

    fn draft(id: &str) -> Draft {
        Draft::new(
            Domain::Agent,
            Aggregate::new("session", id),
            "tool.execute",
            Actor::system("t"),
        )
    }

    fn command(batch: Batch) -> Command {
        Command {
            prepared: batch
                .drafts
                .into_iter()
                .map(|draft| draft.prepare(Timestamp::from_micros(9)).unwrap())
                .collect(),
            expected: batch.expected,
            after: batch.after,
            durability: Durability::Operational,
            ticket: None,
            verdict: Verdict::Waiting,
        }
    }

    #[test]
    fn the_genesis_record_is_canonical() {
        let genesis = genesis();
        let value: serde_json::Value = serde_json::from_str(&genesis.to_json()).unwrap();
        assert_eq!(canonical::to_string(&value).unwrap(), genesis.to_json());
    }

    #[test]
    fn events_are_numbered_and_chained() {
        let mut head = Head::empty(&genesis());
        let mut versions = Versions::default();
        let mut commands = vec![
            command(Batch::new(vec![draft("a"), draft("b"), draft("a")])),
            command(draft("a").into()),
        ];
        versions.start(&head);
        assert_eq!(versions.missing(&commands).len(), 2);
        seal(&mut head, &mut versions, &mut commands);
        let events: Vec<_> = commands.iter().flat_map(Command::events).collect();
        let numbers: Vec<_> = events
            .iter()
            .map(|e| (e.seq, e.aggregate_version))
            .collect();
        assert_eq!(numbers, [(1, 1), (2, 1), (3, 2), (4, 3)]);
        assert_eq!(events[0].prev_hash, genesis().hash());
        assert!(
            events
                .windows(2)
                .all(|pair| pair[0].hash == pair[1].prev_hash)
        );
        assert_eq!(
            (head.seq, head.hash, head.frontier.size()),
            (4, events[3].hash, 4)
        );
        let mut changed: Vec<_> = versions
            .changed()
            .map(|(key, v)| (key.parts().2.to_owned(), v))
            .collect();
        changed.sort();
        assert_eq!(changed, [("a".to_owned(), 3), ("b".to_owned(), 1)]);
    }

    #[test]
    fn a_conflict_names_the_version_and_takes_no_seq() {
        let mut head = Head::empty(&genesis());
        let mut versions = Versions::default();
        versions.start(&head);
        versions.learn(
            AggregateKey::new(Domain::Agent, &Aggregate::new("session", "a")),
            4,
        );
        let expecting = |version| {
            command(Batch::from(draft("a")).expecting(
                Domain::Agent,
                Aggregate::new("session", "a"),
                version,
            ))
        };
        let mut commands = vec![expecting(3), expecting(4), expecting(4)];
        seal(&mut head, &mut versions, &mut commands);
        assert_eq!(head.seq, 1);
        assert!(matches!(
            commands[0].verdict,
            Verdict::Refused(AppendError::Conflict { current: 4, .. })
        ));
        assert!(matches!(commands[1].verdict, Verdict::Sealed));
        assert!(matches!(
            commands[2].verdict,
            Verdict::Refused(AppendError::Conflict { current: 5, .. })
        ));
        assert_eq!(commands[0].events().count(), 0);
    }

    #[test]
    fn a_batch_follows_the_head_it_names_and_no_other() {
        let mut head = Head::empty(&genesis());
        let mut versions = Versions::default();
        versions.start(&head);
        let after = |seq, hash| command(Batch::from(draft("a")).expecting_head(seq, hash));
        let mut commands = vec![
            after(0, Digest([0; 32])),
            after(0, genesis().hash()),
            after(0, genesis().hash()),
        ];
        seal(&mut head, &mut versions, &mut commands);
        let sealed: Vec<bool> = commands
            .iter()
            .map(|command| matches!(command.verdict, Verdict::Sealed))
            .collect();
        assert_eq!(sealed, [false, true, false]);
        assert!(matches!(
            commands[2].verdict,
            Verdict::Refused(AppendError::HeadMoved {
                expected: 0,
                current: 1,
                epoch: 1
            })
        ));
        assert_eq!(head.seq, 1);
    }

    #[test]
    fn a_reference_to_an_earlier_ticket_is_resolved_at_numbering() {
        let (_commits, receiver) = watch::channel(0);
        let ticket = Ticket::new(receiver.clone());
        let mut first = command(draft("a").payload(json!({"n": 1})).into());
        first.ticket = Some(ticket.clone());
        let second = command(draft("a").decided_by(ticket.clone()).into());
        let never = command(draft("a").caused_by(Ticket::new(receiver)).into());
        let mut head = Head::empty(&genesis());
        let mut versions = Versions::default();
        versions.start(&head);
        let mut commands = vec![first, second, never];
        seal(&mut head, &mut versions, &mut commands);
        assert_eq!(commands[1].prepared[0].event.decision_seq, Some(1));
        assert!(matches!(
            commands[2].verdict,
            Verdict::Refused(AppendError::ReferenceLost)
        ));
        assert_eq!(ticket.seq(), None, "not committed yet");
    }

    #[test]
    fn versions_are_forgotten_when_somebody_else_appended() {
        let mut head = Head::empty(&genesis());
        let mut versions = Versions::default();
        versions.start(&head);
        let mut commands = vec![command(draft("a").into())];
        seal(&mut head, &mut versions, &mut commands);
        versions.committed(&head);
        versions.start(&head);
        assert!(versions.missing(&commands).is_empty());
        versions.start(&head);
        assert_eq!(
            versions.missing(&commands).len(),
            1,
            "the transaction before never committed"
        );
    }
}
