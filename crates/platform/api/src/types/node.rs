//! Nodes, how they join, and addresses.
//!
//! Data only; an enrolment token appears in the answer that makes it and
//! nowhere else. Next: `super::history`.

use std::collections::BTreeMap;
use std::fmt;

use fluffy_base::Timestamp;
use fluffy_base::id::{EnrollmentTokenId, NodeId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{Isolation, LongOperation, Meta};

/// A machine that runs instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<NodeId>,
    /// Where it stands.
    #[schemars(extend("enum" = [
        "enrolled", "active", "degraded", "draining", "drained", "offline", "disabled", "removed",
        "revoked"
    ]))]
    pub status: String,
    /// Why, as a stable word.
    pub reason: Option<String>,
    /// The isolation that it gives at best.
    pub isolation: Option<Isolation>,
    /// Everything that it can run instances with.
    pub drivers: Vec<Isolation>,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// Where other nodes reach it.
    pub endpoint: String,
    /// Its address in the overlay.
    pub overlay_ipv6: String,
    /// What it runs.
    pub agent_version: String,
    /// What its operator calls it.
    pub labels: BTreeMap<String, String>,
    /// What it has.
    pub capacity: Option<NodeCapacity>,
    /// What is taken of it.
    pub used: NodeUse,
    /// When it was last heard.
    pub last_heartbeat_at: Option<Timestamp>,
    /// Its emptying, while it lasts.
    pub drain: Option<LongOperation>,
    /// What of its plan it does not follow until an operator confirms it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_held: Option<String>,
}

/// What a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCapacity {
    /// Processor cores.
    pub cpu_cores: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of memory that instances may have.
    pub allocatable_memory_bytes: u64,
    /// Bytes for scratch disks.
    pub disk_bytes: u64,
}

/// What is taken of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeUse {
    /// Instances that count.
    pub instances: u32,
    /// Thousandths of processors.
    pub cpu_millis: u64,
    /// Bytes of memory, with what drivers need.
    pub memory_bytes: u64,
    /// Bytes of scratch disks.
    pub disk_bytes: u64,
    /// Volumes whose home it is.
    pub volumes: u32,
}

/// Asks to empty a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DrainNode {
    /// Whether instances with volumes stay and the node counts as drained.
    pub leave_stateful: bool,
    /// When instances go although there is no room for others; in seconds from
    /// now, an hour if absent.
    #[schemars(range(min = 60, max = 86400))]
    pub deadline_seconds: Option<u32>,
}

/// Says why a node is shut out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeNode {
    /// Why.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
}

/// A single-use permission to join as a node, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnrollmentToken {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<EnrollmentTokenId>,
    /// Where it stands.
    #[schemars(extend("enum" = [
        "pending", "waiting", "approved", "refused", "consumed", "revoked", "expired"
    ]))]
    pub status: String,
    /// Until when it is good.
    pub expires_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// The node that used it.
    pub node_id: Option<NodeId>,
    /// What its node is called.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Whether an operator has to approve the machine that uses it.
    #[serde(default)]
    pub require_approval: bool,
    /// The machine that asked to be approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<EnrollmentRequest>,
}

/// A machine that asked to join with a token that takes an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnrollmentRequest {
    /// SHA-256 of the machine's key, which it shows as well.
    pub key_fingerprint: String,
    /// Where others reach it; empty behind NAT.
    pub endpoint: String,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// What it runs.
    pub agent_version: String,
    /// Since when it waits.
    pub asked_at: Timestamp,
    /// What was decided: `approved` or `refused`.
    pub outcome: Option<String>,
    /// Who decided.
    pub decided_by: Option<String>,
}

/// Asks for an enrolment token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateEnrollmentToken {
    /// How long it is good, in seconds; an hour if absent.
    #[serde(default)]
    #[schemars(range(min = 300, max = 86400))]
    pub ttl_seconds: Option<u32>,
    /// Whether the machine may be where others do not reach it.
    #[serde(default)]
    pub allow_nat: bool,
    /// The node that the machine was before; it is shut out when the machine
    /// joins.
    #[serde(default)]
    pub replaces: Option<NodeId>,
    /// What its node is called, as names with values.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Whether an operator has to approve the machine before it joins.
    #[serde(default)]
    pub require_approval: bool,
}

/// An enrolment token with its secret, shown once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnrollmentTokenIssued {
    /// The token.
    #[serde(flatten)]
    pub token: EnrollmentToken,
    /// What the node sends; absent in a replayed answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Where this server takes nodes, as host and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The pin of the cluster's root, by which the machine knows the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_pin: Option<String>,
}

impl fmt::Debug for EnrollmentTokenIssued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnrollmentTokenIssued")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// How many addresses are taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ipam {
    /// Each category: `node`, `instance`, `ipv4`.
    pub pools: BTreeMap<String, Pool>,
}

/// How many addresses of one category are taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pool {
    /// Where they come from.
    pub prefixes: Vec<String>,
    /// How many there are.
    pub size: u64,
    /// How many are taken.
    pub used: u64,
    /// How many wait before they are given again.
    pub cooling: u64,
}
