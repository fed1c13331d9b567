//! Events and the audit.
//!
//! Data only. Next: `super::admin`.

use fluffy_base::{Digest, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An event as the ledger has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventEnvelope {
    /// Its position.
    pub seq: u64,
    /// The hash of the event before.
    pub prev_hash: Digest,
    /// Its hash.
    pub hash: Digest,
    /// When, as the server's clock said.
    pub occurred_at: Timestamp,
    /// `platform`.
    pub domain: String,
    /// What kind of thing it is about.
    pub aggregate_type: String,
    /// Which.
    pub aggregate_id: String,
    /// The version that it made.
    pub aggregate_version: u64,
    /// What happened.
    pub event_type: String,
    /// The version of its payload.
    pub event_version: u32,
    /// Who.
    pub actor: EventActor,
    /// The org.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org_id: Option<String>,
    /// The app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_id: Option<String>,
    /// The env.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_id: Option<String>,
    /// The call that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// What it belongs to, such as a deploy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The event that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation_seq: Option<u64>,
    /// The decision that allowed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision_seq: Option<u64>,
    /// The rest.
    pub payload: serde_json::Value,
}

/// Who caused an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventActor {
    /// `user`, `service_principal`, `agent`, `node` or `system`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Which.
    pub id: String,
    /// For whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
}

/// One line of the audit: an event, its decision, and whether it is proven.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// The event.
    pub event: EventEnvelope,
    /// The decision that allowed or refused it.
    pub decision: Option<AuditDecision>,
    /// Whether a verification has covered it.
    #[schemars(extend("enum" = ["verified", "unverified", "failed"]))]
    pub verification: String,
}

/// A decision, as the audit shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditDecision {
    /// Its event.
    pub seq: u64,
    /// Who asked.
    pub principal_id: String,
    /// For what.
    pub capability: String,
    /// On what.
    pub resource_id: String,
    /// What came out.
    #[schemars(extend("enum" = ["allow", "deny", "review"]))]
    pub outcome: String,
    /// The rule that decided.
    pub rule_id: Option<String>,
    /// Why.
    pub reason: String,
}

/// A page of an org's history, each event with the proof that it is in the
/// ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OrgExport {
    /// The ledger.
    pub ledger_id: String,
    /// The org.
    pub org_id: String,
    /// How many events the tree has that the proofs lead to.
    pub size: u64,
    /// The root of that tree, signed; on the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<SignedRoot>,
    /// The events, oldest first.
    pub items: Vec<ExportedEvent>,
    /// Behind which event the next page begins; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<u64>,
}

/// The signed root of a ledger's tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignedRoot {
    /// The checkpoint as a signed note of the C2SP format.
    pub note: String,
    /// The public key that signed it, as the server says.
    pub key: String,
}

/// An event as it is stored and hashed, with its proof.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExportedEvent {
    /// The event with every field; its canonical form (RFC 8785) is what its
    /// line in an export of the ledger is.
    pub event: serde_json::Value,
    /// The hashes beside the way from the event to the root (RFC 6962).
    pub path: Vec<Digest>,
}
