//! What every resource shares: identity, lists, receipts, long operations.
//!
//! Data only. Next: `super::app` for the simplest resource.

use fluffy_base::Timestamp;
use fluffy_base::id::ApprovalId;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// What every object has: its id, its times and its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Meta<Id> {
    /// Minted by the server, never reused.
    pub id: Id,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// How many times it changed; its ETag is this in quotes.
    pub version: u64,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}List")]
pub struct List<T> {
    /// The objects of this page.
    pub items: Vec<T>,
    /// What to send as `cursor` for the next page; null on the last one.
    pub next_cursor: Option<String>,
}

/// The answer when a write is durable but its view is late. What the write tells
/// once, such as a credential that it makes, is in it too, under the name that
/// it always has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    /// The id of what was written.
    pub id: String,
    /// The last event of the write.
    pub seq: u64,
    /// Where the result can be read.
    pub status_url: String,
}

/// The answer when a person has to allow a write first. A credential that the
/// write makes is in it too, under the name that it always has; it opens
/// nothing before it was allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Parked {
    /// The approval that is waited for.
    pub approval_id: ApprovalId,
    /// When the wait ends.
    pub expires_at: Timestamp,
}

/// Any JSON object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AnyObject(pub serde_json::Map<String, serde_json::Value>);

/// The answer to what leaves nothing to show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gone {
    /// What is gone.
    pub id: String,
    /// That it is.
    pub deleted: bool,
}

/// Something that takes a while; its id is that of the resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LongOperation {
    /// `dep_`, `snap_`, `rst_`, `drn_`, `env_`, … or `req_` for what has no resource.
    pub id: String,
    /// What it does: `deploy`, `rollback`, `restart`, `snapshot`, `restore`,
    /// `drain`, `env_delete`, `rebuild`, `archive`, `verify`, `rewrap`, …
    pub kind: String,
    /// Where it stands.
    #[schemars(extend("enum" = ["queued", "running", "paused", "succeeded", "failed", "canceled"]))]
    pub status: String,
    /// How far it is, if that can be counted.
    pub progress: Option<Progress>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<OperationError>,
    /// What stands in its way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<Blocker>,
    /// What it found or made, once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it last moved.
    pub updated_at: Timestamp,
}

/// How much of a long operation is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// Parts that are done.
    pub done: u64,
    /// Parts in all.
    pub total: u64,
}

/// Why a long operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperationError {
    /// A stable code.
    pub code: String,
    /// What happened.
    pub message: String,
}

/// What a drain waits for and does not touch by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Blocker {
    /// The instance that stays.
    pub instance_id: String,
    /// The volume that keeps it here.
    pub volume_id: Option<String>,
    /// The last good backup of the volume.
    pub last_backup_at: Option<Timestamp>,
    /// Why it blocks.
    pub reason: String,
}

/// What an instance shares with others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Isolation {
    /// What runs it.
    #[schemars(extend("enum" = ["microvm-firecracker", "microvm-qemu", "container-rootfs"]))]
    pub driver: String,
    /// The level that this gives; `shared-kernel` is shown everywhere.
    #[schemars(extend("enum" = ["microvm", "microvm-emulated", "shared-kernel"]))]
    pub level: String,
}

/// Something that is so for now and that somebody may want to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// A stable word such as `no_capacity_memory` or `shared_kernel`.
    pub condition: String,
    /// The process type, if it is about one.
    pub process: Option<String>,
    /// Why, as a stable word.
    pub reason: Option<String>,
    /// More, for people.
    pub detail: Option<String>,
    /// Since when.
    pub since: Option<Timestamp>,
}

/// Reads a field that may be absent, null or a value, and keeps them apart.
pub(crate) fn present<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}
