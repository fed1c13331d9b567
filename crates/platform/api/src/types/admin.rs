//! What operators of the platform do: views, the ledger, keys, moved disks.
//!
//! Data only. Next: `crate::operation`.

use std::collections::BTreeMap;

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

/// A limit of images: its name, what it is unless somebody says otherwise, and
/// what nobody can raise it above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLimitKind {
    /// As it is written.
    pub name: &'static str,
    /// What it is unless somebody says otherwise.
    pub usual: u64,
    /// What it cannot be raised above.
    pub ceiling: u64,
}

/// The limits of images that can be set, by name.
pub const IMAGE_LIMITS: &[ImageLimitKind] = &[
    image_limit("compressed_bytes", 10 << 30, 1 << 40),
    image_limit("entries", 1_000_000, 2_000_000),
    image_limit("expansion", 200, 10_000),
    image_limit("image_seconds", 30 * 60, 24 * 3600),
    image_limit("layer_seconds", 5 * 60, 6 * 3600),
    image_limit("layers", 128, 1_024),
    image_limit("unpacked_bytes", 50 << 30, 1 << 40),
];

/// Their names, as the document lists them.
const IMAGE_LIMIT_NAMES: &[&str] = &[
    "compressed_bytes",
    "entries",
    "expansion",
    "image_seconds",
    "layer_seconds",
    "layers",
    "unpacked_bytes",
];

const fn image_limit(name: &'static str, usual: u64, ceiling: u64) -> ImageLimitKind {
    ImageLimitKind {
        name,
        usual,
        ceiling,
    }
}

/// How much an image may be and take, on servers and on nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageLimits {
    /// Each limit.
    pub limits: BTreeMap<String, ImageLimit>,
}

/// One limit of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageLimit {
    /// What it is: bytes, seconds or a number.
    pub limit: u64,
    /// What it is unless an operator says otherwise.
    pub usual: u64,
    /// What it cannot be raised above.
    pub ceiling: u64,
}

/// Sets limits of images; what is not named stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetImageLimits {
    /// The new value of each, from 1 to its ceiling; null for what it usually
    /// is.
    #[schemars(extend(
        "minProperties" = 1,
        "propertyNames" = { "enum": IMAGE_LIMIT_NAMES }
    ))]
    pub limits: BTreeMap<String, Option<u64>>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_images_are_listed_once_and_bounded() {
        let names: Vec<&str> = IMAGE_LIMITS.iter().map(|it| it.name).collect();
        assert_eq!(names, IMAGE_LIMIT_NAMES);
        for it in IMAGE_LIMITS {
            assert!(it.usual > 0 && it.usual < it.ceiling, "{it:?}");
            // JSON readers keep it exactly.
            assert!(it.ceiling < 1 << 53, "{it:?}");
        }
    }
}
