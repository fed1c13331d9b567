//! The policy of an org, and commands that wait for a person.
//!
//! Data only. Next: `super::access`.

use fluffy_base::id::{ApprovalId, OrgId};
use fluffy_base::{Digest, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::Meta;

/// The rules of an org.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Policy {
    /// Whose.
    pub org_id: OrgId,
    /// Which version of them; 0 before any were set.
    pub version: u64,
    /// The hash of the rules.
    pub policy_hash: Option<Digest>,
    /// The rules as they were written.
    pub rules: String,
    /// When they were set.
    pub updated_at: Option<Timestamp>,
}

/// Sets the rules of an org.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPolicy {
    /// The rules, as YAML.
    #[schemars(length(max = 262144))]
    pub rules: String,
    /// The version that the change is meant for.
    #[serde(default)]
    pub expected_version: Option<u64>,
}

/// Tries rules on the last decisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestPolicy {
    /// The rules, as YAML.
    #[schemars(length(max = 262144))]
    pub rules: String,
}

/// What other rules would have decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyTrial {
    /// How many decisions were tried again.
    pub tried: u32,
    /// Those that would have come out otherwise.
    pub changed: Vec<ChangedDecision>,
}

/// A decision that would come out otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedDecision {
    /// Its event.
    pub seq: u64,
    /// Who asked.
    pub principal_id: String,
    /// For what.
    pub capability: String,
    /// On what.
    pub resource_id: String,
    /// What came out then.
    pub was: String,
    /// What would come out.
    pub would_be: String,
    /// The rule that would decide.
    pub rule_id: Option<String>,
}

/// A command that waits for a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Approval {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<ApprovalId>,
    /// Whose.
    pub org_id: OrgId,
    /// Where it stands.
    #[schemars(extend("enum" = ["pending", "approved", "denied", "expired"]))]
    pub status: String,
    /// Who asked.
    pub requested_by: String,
    /// For whom they acted.
    #[serde(default)]
    pub on_behalf_of: Option<String>,
    /// The operation that waits.
    pub operation: String,
    /// What it acts on.
    pub path: String,
    /// The command, without what is secret.
    pub command: serde_json::Value,
    /// The hash of the whole command.
    pub command_hash: Digest,
    /// What it needs.
    pub capability: String,
    /// When it stops waiting.
    pub expires_at: Timestamp,
    /// Who decided.
    pub decided_by: Option<String>,
    /// What they said.
    pub note: Option<String>,
    /// What the command answered, after it was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
}

/// Decides what waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideApproval {
    /// What.
    pub outcome: ApprovalOutcome,
    /// Why.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub note: Option<String>,
}

/// What a person decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalOutcome {
    /// It may happen.
    Approved,
    /// It may not.
    Denied,
}
