//! What operators of the platform do: views, the ledger, keys, moved disks.
//!
//! Data only. Next: `crate::operation`.

use fluffy_base::Timestamp;
use fluffy_base::id::NodeId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Asks to build views anew.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rebuild {
    /// The one that is compared; all if absent.
    #[schemars(length(min = 1, max = 64))]
    pub view: Option<String>,
    /// Where the events come from.
    pub from: RebuildFrom,
}

/// Where a rebuild takes events from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RebuildFrom {
    /// From the ledger; what is not in it any more, from the archive.
    #[default]
    Ledger,
    /// From archived segments as far as they go.
    Archive,
}

/// The master keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Keys {
    /// The key that new secrets are sealed with.
    pub current_key_id: Option<String>,
    /// Every key.
    pub keys: Vec<MasterKey>,
}

/// One master key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MasterKey {
    /// Which.
    pub id: String,
    /// Where it stands.
    #[schemars(extend("enum" = ["current", "previous", "retired"]))]
    pub status: String,
    /// Whether this server has it.
    pub available: bool,
    /// Secret versions that are sealed with it.
    pub versions: u64,
    /// Since when it is there.
    pub introduced_at: Timestamp,
    /// From when on it may be retired; absent while it is the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retires_from: Option<Timestamp>,
    /// The operator who asked to retire it, while a second one is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retire_asked_by: Option<String>,
    /// Since when it is used no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired_at: Option<Timestamp>,
}

/// Says that a volume's disk is now in another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RehomeVolume {
    /// The node that has the disk.
    pub node_id: NodeId,
}

/// How far each view is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Projections {
    /// The last event of the ledger.
    pub head_seq: u64,
    /// The epoch of the ledger.
    pub epoch: u64,
    /// Each view.
    pub items: Vec<Projection>,
}

/// How far one view is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Projection {
    /// Which.
    pub name: String,
    /// The last event in it.
    pub applied_seq: u64,
    /// How late it is.
    pub lag_milliseconds: u64,
    /// Its state as a hash.
    pub digest: Option<String>,
}
