//! What is kept of every request: who, where to, the verdict, how much.
//!
//! Never a header, a path, a query or a byte of content: those belong to the
//! sandbox and may be secrets. [`ToLedger`] makes an `egress.request` event of
//! it; a request that cannot be recorded stops those after it.

use std::net::IpAddr;
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::SandboxId;
use fluffy_ledger::{Actor, Aggregate, AppendError, Domain, Draft, Ledger, SeqRef};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::decide::Kind;
use crate::reason::Reason;

/// Where requests are recorded.
pub trait Record: Send + Sync {
    /// Keeps one request; must return at once.
    ///
    /// # Errors
    /// It could not be kept; then the proxy lets nothing through.
    fn record(&self, exchange: &Exchange) -> Result<(), RecordError>;
}

/// A request could not be recorded.
#[derive(Debug, thiserror::Error)]
#[error("a request of sandbox `{sandbox}` could not be recorded")]
pub struct RecordError {
    /// Whose.
    pub sandbox: SandboxId,
    /// Why.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// One request and what became of it.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// Which sandbox.
    pub sandbox: SandboxId,
    /// The template it was made from.
    pub template: String,
    /// In which way; none if the request could not be read.
    pub kind: Option<Kind>,
    /// Whom it wanted to reach; none if that is unclear.
    pub host: Option<String>,
    /// At which port.
    pub port: Option<u16>,
    /// Where it was connected to, or the address that was refused.
    pub address: Option<IpAddr>,
    /// Whether bytes of it went to the host.
    pub verdict: Verdict,
    /// Why it was refused or cut short.
    pub reason: Option<Reason>,
    /// What allowed or denied it.
    pub rule: Option<String>,
    /// Where that decision is recorded.
    pub decision: Option<SeqRef>,
    /// Bytes out of the sandbox.
    pub bytes_up: u64,
    /// Bytes into the sandbox.
    pub bytes_down: u64,
    /// When it came.
    pub started: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// How many like it this stands for; more than one only in a flood.
    pub times: u64,
}

/// Whether a request went through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It did.
    Allowed,
    /// Nothing of it reached the host.
    Refused,
}

impl Exchange {
    /// Whom it wanted to reach, as one text.
    pub(crate) fn target(&self) -> Option<String> {
        let (host, port) = self.host.as_ref().zip(self.port)?;
        Some(format!("{host}:{port}"))
    }

    /// The facts as the ledger keeps them.
    #[must_use]
    pub fn payload(&self) -> Value {
        let mut facts = Map::new();
        let took = u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX);
        for (name, value) in [
            ("sandbox", json!(self.sandbox)),
            ("template", json!(self.template)),
            ("kind", json!(self.kind)),
            ("host", json!(self.host)),
            ("port", json!(self.port)),
            ("address", json!(self.address)),
            ("verdict", json!(self.verdict)),
            ("reason", json!(self.reason.as_ref().map(Reason::code))),
            ("rule", json!(self.rule)),
            ("bytes_up", json!(self.bytes_up)),
            ("bytes_down", json!(self.bytes_down)),
            ("took_ms", json!(took)),
            ("times", json!((self.times > 1).then_some(self.times))),
        ] {
            if !value.is_null() {
                facts.insert(name.to_owned(), value);
            }
        }
        Value::Object(facts)
    }
}

/// Records requests as `egress.request` events of the sandbox.
#[derive(Debug, Clone)]
pub struct ToLedger {
    ledger: Ledger,
    domain: Domain,
    actor: Actor,
}

impl ToLedger {
    /// Records in this ledger, as acts of this actor.
    #[must_use]
    pub const fn new(ledger: Ledger, domain: Domain, actor: Actor) -> Self {
        Self {
            ledger,
            domain,
            actor,
        }
    }

    fn append(&self, exchange: &Exchange) -> Result<(), AppendError> {
        let aggregate = Aggregate::new("sandbox", exchange.sandbox.to_string());
        let mut draft = Draft::new(self.domain, aggregate, "egress.request", self.actor.clone())
            .payload(exchange.payload())
            .occurred_at(exchange.started);
        if let Some(decision) = &exchange.decision {
            draft = draft.decided_by(decision.clone());
        }
        self.ledger.record(draft).map(drop)
    }
}

impl Record for ToLedger {
    fn record(&self, exchange: &Exchange) -> Result<(), RecordError> {
        self.append(exchange).map_err(|source| RecordError {
            sandbox: exchange.sandbox,
            source: Box::new(source),
        })
    }
}
