//! What a caller wants to append: drafts, and batches of them.
//!
//! A draft has no `seq`, version or hash; those are given under the writer's
//! lock in `chain`. Everything is checked here, once, so that nothing invalid
//! or oversized reaches an engine.

use fluffy_base::canonical::{self, CanonicalError};
use fluffy_base::id::{LedgerId, RequestId};
use fluffy_base::{Digest, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::class::{Durability, durability_of};
use crate::event::{Actor, Aggregate, Domain, Event, Payload, Scope};
use crate::ticket::Ticket;

/// The largest payload, as canonical text.
pub const MAX_PAYLOAD: usize = 256 * 1024;
/// The longest text in an envelope field.
pub const MAX_TEXT: usize = 256;
/// The most events in one batch.
pub const MAX_BATCH: usize = 10_000;

/// One fact that is to become an event.
#[derive(Debug, Clone)]
pub struct Draft {
    domain: Domain,
    aggregate: Aggregate,
    event_type: String,
    event_version: u32,
    occurred_at: Option<Timestamp>,
    actor: Actor,
    scope: Scope,
    request_id: Option<String>,
    idempotency_key: Option<String>,
    correlation_id: Option<String>,
    causation: Option<SeqRef>,
    decision: Option<SeqRef>,
    payload: Value,
}

/// The position of another event, known or still to come.
#[derive(Debug, Clone)]
pub enum SeqRef {
    /// An event that has its position.
    Known(u64),
    /// An event recorded earlier by this process, still in the buffer.
    Pending(Ticket),
}

impl From<u64> for SeqRef {
    fn from(seq: u64) -> Self {
        Self::Known(seq)
    }
}

impl From<Ticket> for SeqRef {
    fn from(ticket: Ticket) -> Self {
        Self::Pending(ticket)
    }
}

/// The event of another ledger that a fact rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Which ledger.
    pub ledger_id: LedgerId,
    /// The position there.
    pub seq: u64,
    /// The hash there.
    pub hash: Digest,
    /// A signed checkpoint that covers it.
    pub checkpoint: String,
}

/// Why a draft can't become an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// A field is empty, too long, or has characters it must not have.
    #[error("field `{field}` must be 1 to {MAX_TEXT} bytes of {allowed}")]
    Text {
        /// The envelope field.
        field: &'static str,
        /// What it may hold.
        allowed: &'static str,
    },
    /// A number starts at one and is a safe JSON integer.
    #[error("field `{field}` must be between 1 and 2^53 − 1")]
    Number {
        /// The envelope field.
        field: &'static str,
    },
    /// The payload is JSON, but not an object.
    #[error("the payload of `{event_type}` is not a JSON object")]
    NotAnObject {
        /// The event's type.
        event_type: String,
    },
    /// The payload has no canonical form.
    #[error("the payload of `{event_type}` has no canonical form")]
    Canonical {
        /// The event's type.
        event_type: String,
        /// Why not.
        #[source]
        source: CanonicalError,
    },
    /// The payload is too large.
    #[error("the payload of `{event_type}` has {bytes} bytes, more than {MAX_PAYLOAD}")]
    TooLarge {
        /// The event's type.
        event_type: String,
        /// Its size.
        bytes: usize,
    },
    /// Too many drafts in one batch, or none.
    #[error("a batch holds {drafts} drafts; it must hold 1 to {MAX_BATCH}")]
    BatchSize {
        /// How many.
        drafts: usize,
    },
}

impl Draft {
    /// A draft with an empty payload, schema version 1, and no references.
    #[must_use]
    pub fn new(
        domain: Domain,
        aggregate: Aggregate,
        event_type: impl Into<String>,
        actor: Actor,
    ) -> Self {
        Self {
            domain,
            aggregate,
            event_type: event_type.into(),
            event_version: 1,
            occurred_at: None,
            actor,
            scope: Scope::default(),
            request_id: None,
            idempotency_key: None,
            correlation_id: None,
            causation: None,
            decision: None,
            payload: Value::Object(Map::new()),
        }
    }

    /// Sets the payload: a JSON object with whole numbers only.
    #[must_use]
    pub fn payload(mut self, payload: Value) -> Self {
        self.payload = payload;
        self
    }

    /// Sets the schema version of the payload.
    #[must_use]
    pub fn event_version(mut self, version: u32) -> Self {
        self.event_version = version;
        self
    }

    /// Names the call from outside; without it a fresh id is made.
    #[must_use]
    pub fn request(mut self, request_id: impl Into<String>) -> Self {
        self.request_id = Some(request_id.into());
        self
    }

    /// Names the undertaking this is part of.
    #[must_use]
    pub fn correlation(mut self, correlation_id: impl Into<String>) -> Self {
        self.correlation_id = Some(correlation_id.into());
        self
    }

    /// Names the key under which the caller may repeat the request.
    #[must_use]
    pub fn idempotency(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Names the event that led to this one.
    #[must_use]
    pub fn caused_by(mut self, event: impl Into<SeqRef>) -> Self {
        self.causation = Some(event.into());
        self
    }

    /// Names the decision that allowed this.
    #[must_use]
    pub fn decided_by(mut self, decision: impl Into<SeqRef>) -> Self {
        self.decision = Some(decision.into());
        self
    }

    /// Sets the tenant.
    #[must_use]
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Sets when it happened; without it the ledger's clock is read.
    #[must_use]
    pub fn occurred_at(mut self, moment: Timestamp) -> Self {
        self.occurred_at = Some(moment);
        self
    }

    /// Names the event of another ledger this rests on, in the payload.
    #[must_use]
    pub fn source(mut self, source: &Source) -> Self {
        if let Value::Object(fields) = &mut self.payload {
            fields.insert("source".to_owned(), json!(source));
        }
        self
    }

    /// The event this becomes at position `seq` as version `version` of its
    /// aggregate, but for the hashes, which only the writer can give.
    ///
    /// What was left open (the time, the request) is settled by this, so that
    /// the event that is appended is the one foreseen.
    ///
    /// # Errors
    /// The draft can't become an event.
    pub fn foresee(&mut self, seq: u64, version: u64, now: Timestamp) -> Result<Event, DraftError> {
        self.occurred_at.get_or_insert(now);
        self.request_id
            .get_or_insert_with(|| RequestId::generate().to_string());
        let mut event = self.clone().prepare(now)?.event;
        let known = |reference: &Option<SeqRef>| match reference {
            Some(SeqRef::Known(seq)) => Some(*seq),
            Some(SeqRef::Pending(ticket)) => ticket.seq(),
            None => None,
        };
        event.seq = seq;
        event.aggregate_version = version;
        event.causation_seq = known(&self.causation);
        event.decision_seq = known(&self.decision);
        Ok(event)
    }

    /// Whose fact it is.
    #[must_use]
    pub fn aggregate(&self) -> (Domain, &Aggregate) {
        (self.domain, &self.aggregate)
    }

    /// The class it has at least; see [`crate::class`].
    #[must_use]
    pub fn durability(&self) -> Durability {
        match &self.payload {
            Value::Object(fields) => durability_of(self.domain, &self.event_type, fields),
            // Refused later on; until then nobody may take it for harmless.
            _ => Durability::Security,
        }
    }

    /// Checks every field and makes the canonical payload.
    pub(crate) fn prepare(self, now: Timestamp) -> Result<Prepared, DraftError> {
        let durability = self.check()?;
        let payload =
            canonical::to_string(&self.payload).map_err(|source| DraftError::Canonical {
                event_type: self.event_type.clone(),
                source,
            })?;
        if payload.len() > MAX_PAYLOAD {
            return Err(DraftError::TooLarge {
                event_type: self.event_type,
                bytes: payload.len(),
            });
        }
        let unset = Digest([0; 32]);
        Ok(Prepared {
            durability,
            causation: self.causation,
            decision: self.decision,
            event: Event {
                seq: 0,
                domain: self.domain,
                aggregate: self.aggregate,
                aggregate_version: 0,
                event_type: self.event_type,
                event_version: self.event_version,
                occurred_at: self.occurred_at.unwrap_or(now),
                actor: self.actor,
                scope: self.scope,
                request_id: self
                    .request_id
                    .unwrap_or_else(|| RequestId::generate().to_string()),
                idempotency_key: self.idempotency_key,
                correlation_id: self.correlation_id,
                causation_seq: None,
                decision_seq: None,
                payload: Payload::from_canonical(payload),
                prev_hash: unset,
                hash: unset,
            },
        })
    }

    fn check(&self) -> Result<Durability, DraftError> {
        name("aggregate_type", &self.aggregate.kind)?;
        name("event_type", &self.event_type)?;
        printable("aggregate_id", Some(&self.aggregate.id))?;
        printable("actor.id", Some(&self.actor.id))?;
        printable("actor.on_behalf_of", self.actor.on_behalf_of.as_deref())?;
        printable("org_id", self.scope.org_id.as_deref())?;
        printable("app_id", self.scope.app_id.as_deref())?;
        printable("env_id", self.scope.env_id.as_deref())?;
        printable("request_id", self.request_id.as_deref())?;
        printable("idempotency_key", self.idempotency_key.as_deref())?;
        printable("correlation_id", self.correlation_id.as_deref())?;
        if self.event_version == 0 {
            return Err(DraftError::Number {
                field: "event_version",
            });
        }
        known("causation_seq", self.causation.as_ref())?;
        known("decision_seq", self.decision.as_ref())?;
        let Value::Object(fields) = &self.payload else {
            return Err(DraftError::NotAnObject {
                event_type: self.event_type.clone(),
            });
        };
        Ok(durability_of(self.domain, &self.event_type, fields))
    }
}

/// A checked draft: an event that lacks only what the writer gives it.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) durability: Durability,
    pub(crate) causation: Option<SeqRef>,
    pub(crate) decision: Option<SeqRef>,
    pub(crate) event: Event,
}

/// Drafts that are appended together or not at all.
#[derive(Debug, Clone)]
pub struct Batch {
    pub(crate) drafts: Vec<Draft>,
    pub(crate) expected: Vec<Expected>,
    pub(crate) after: Option<End>,
    pub(crate) at_least: Durability,
}

/// Where the chain must end for a batch to be appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) seq: u64,
    pub(crate) hash: Digest,
}

/// The version an aggregate must have for a batch to be appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) domain: Domain,
    pub(crate) aggregate: Aggregate,
    pub(crate) version: u64,
}

impl Batch {
    /// A batch without expectations, as durable as its drafts need.
    #[must_use]
    pub fn new(drafts: Vec<Draft>) -> Self {
        Self {
            drafts,
            expected: Vec::new(),
            after: None,
            at_least: Durability::Operational,
        }
    }

    /// Appends only if the aggregate is at this version now; 0 means that it
    /// must not exist yet.
    #[must_use]
    pub fn expecting(mut self, domain: Domain, aggregate: Aggregate, version: u64) -> Self {
        self.expected.push(Expected {
            domain,
            aggregate,
            version,
        });
        self
    }

    /// Appends only right after the event `seq` with this hash, of whatever
    /// epoch; the hash of an empty ledger is that of its genesis record.
    ///
    /// Who knows everything up to there knows exactly what the batch follows.
    #[must_use]
    pub fn expecting_head(mut self, seq: u64, hash: Digest) -> Self {
        self.after = Some(End { seq, hash });
        self
    }

    /// Asks for the security class, whatever the drafts need.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.at_least = Durability::Security;
        self
    }
}

impl From<Draft> for Batch {
    fn from(draft: Draft) -> Self {
        Self::new(vec![draft])
    }
}

fn name(field: &'static str, text: &str) -> Result<(), DraftError> {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-');
    if text.is_empty() || text.len() > MAX_TEXT || !text.bytes().all(allowed) {
        let allowed = "lower-case letters, digits, `_`, `-` and `.`";
        return Err(DraftError::Text { field, allowed });
    }
    Ok(())
}

fn printable(field: &'static str, text: Option<&str>) -> Result<(), DraftError> {
    let Some(text) = text else { return Ok(()) };
    if text.is_empty() || text.len() > MAX_TEXT || text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        let allowed = "text without control characters";
        return Err(DraftError::Text { field, allowed });
    }
    Ok(())
}

fn known(field: &'static str, reference: Option<&SeqRef>) -> Result<(), DraftError> {
    match reference {
        Some(SeqRef::Known(seq)) if *seq == 0 || *seq > canonical::MAX_SAFE_INTEGER => {
            Err(DraftError::Number { field })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> Draft {
        let actor = Actor::system("test");
        Draft::new(
            Domain::Agent,
            Aggregate::new("session", "s1"),
            "tool.execute",
            actor,
        )
    }

    fn refused(draft: Draft) -> String {
        draft
            .prepare(Timestamp::from_micros(0))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_plain_draft_is_prepared_with_a_fresh_request() {
        let prepared = draft().prepare(Timestamp::from_micros(5)).unwrap();
        assert_eq!(prepared.event.occurred_at, Timestamp::from_micros(5));
        assert!(prepared.event.request_id.parse::<RequestId>().is_ok());
        assert_eq!(prepared.event.payload.as_str(), "{}");
    }

    #[test]
    fn what_no_engine_should_see_is_refused_by_field() {
        let long = "x".repeat(MAX_TEXT + 1);
        assert!(refused(draft().request("")).contains("`request_id`"));
        assert!(refused(draft().correlation("a\u{0}b")).contains("`correlation_id`"));
        assert!(refused(draft().idempotency(long)).contains("`idempotency_key`"));
        assert!(refused(draft().event_version(0)).contains("`event_version`"));
        assert!(refused(draft().caused_by(0)).contains("`causation_seq`"));
        assert!(refused(draft().payload(json!([]))).contains("not a JSON object"));
        assert!(refused(draft().payload(json!({"a": 0.5}))).contains("canonical"));
        let huge = json!({"a": "x".repeat(MAX_PAYLOAD)});
        assert!(refused(draft().payload(huge)).contains("more than"));
    }

    #[test]
    fn a_source_travels_in_the_payload() {
        let source = Source {
            ledger_id: LedgerId::from_bits(1),
            seq: 4,
            hash: Digest::of(b""),
            checkpoint: "note".to_owned(),
        };
        let prepared = draft()
            .payload(json!({"b": 1}))
            .source(&source)
            .prepare(Timestamp::from_micros(0))
            .unwrap();
        let value = prepared.event.payload.value().unwrap();
        assert_eq!(value["source"]["seq"], 4);
        assert_eq!(value["b"], 1);
    }
}
