//! Volumes: attachments, snapshots and restores.
//!
//! Data only. Next: `super::node`.

use fluffy_base::Timestamp;
use fluffy_base::id::{
    AppId, AttachmentId, EnvId, InstanceId, NodeId, OrgId, RestoreId, VolumeId, VolumeSnapshotId,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::Meta;

/// A disk that outlives instances; it is on one node and nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Volume {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<VolumeId>,
    /// Whose.
    pub org_id: OrgId,
    /// Its name.
    pub name: String,
    /// Where it stands.
    #[schemars(extend("enum" = [
        "creating", "available", "attaching", "in_use", "detaching", "unavailable", "error",
        "deleting", "deleted"
    ]))]
    pub status: String,
    /// Why, as a stable word.
    pub reason: Option<String>,
    /// How large it is.
    pub size_bytes: u64,
    /// `ext4`.
    pub filesystem: String,
    /// Whether it is backed up by itself.
    pub backup_enabled: bool,
    /// The node that has the data.
    pub home_node_id: NodeId,
    /// The instance that has it now.
    pub instance_id: Option<InstanceId>,
    /// The snapshot that it was made from.
    pub snapshot_id: Option<VolumeSnapshotId>,
    /// The last good backup.
    pub last_backup_at: Option<Timestamp>,
}

/// Asks for a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name, for good.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{0,97}$"))]
    pub name: String,
    /// How large, in bytes: 1 GiB to 2 TiB.
    #[schemars(range(min = 1073741824u64, max = 2199023255552u64))]
    pub size_bytes: u64,
    /// `ext4`.
    #[serde(default)]
    #[schemars(extend("enum" = ["ext4", null]))]
    pub filesystem: Option<String>,
    /// Whether it is backed up by itself; yes if absent.
    #[serde(default)]
    pub backup_enabled: Option<bool>,
    /// The node it shall be on.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// A volume whose node it shall be on, by id or name.
    #[serde(default)]
    #[schemars(length(min = 1, max = 98))]
    pub near: Option<String>,
}

/// Changes a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateVolume {
    /// Whether it is backed up by itself.
    pub backup_enabled: bool,
    /// The version that the change is meant for.
    #[serde(default)]
    pub expected_version: Option<u64>,
}

/// A volume mounted by a process type of an env.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attachment {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<AttachmentId>,
    /// Whose.
    pub org_id: OrgId,
    /// Of which app.
    pub app_id: AppId,
    /// Where.
    pub env_id: EnvId,
    /// Which volume.
    pub volume_id: VolumeId,
    /// The process type.
    pub process: String,
    /// Where in the guest.
    pub mount_path: String,
    /// Whether it cannot be written.
    pub read_only: bool,
}

/// Asks for an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateAttachment {
    /// Which volume.
    pub volume_id: VolumeId,
    /// The process type.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{0,31}$"))]
    pub process: String,
    /// Where in the guest.
    #[schemars(length(min = 2, max = 256))]
    pub mount_path: String,
    /// Whether it cannot be written.
    #[serde(default)]
    pub read_only: bool,
}

/// Puts another volume in the place of the one that is attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceAttachment {
    /// The volume that takes its place.
    pub volume_id: VolumeId,
    /// The version that the change is meant for.
    #[serde(default)]
    pub expected_version: Option<u64>,
}

/// A backup of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<VolumeSnapshotId>,
    /// Whose.
    pub org_id: OrgId,
    /// Of which volume.
    pub volume_id: VolumeId,
    /// The node that makes it.
    pub source_node_id: NodeId,
    /// Where it stands; succeeded means that the backup is durable elsewhere.
    #[schemars(extend("enum" = ["queued", "running", "succeeded", "failed"]))]
    pub status: String,
    /// How consistent it is: `crash` or `filesystem`.
    pub consistency: Option<String>,
    /// How large it is.
    pub size_bytes: Option<u64>,
    /// Why it failed.
    pub failed_reason: Option<String>,
    /// What its maker noted.
    pub note: Option<String>,
}

/// Asks for a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// What to remember about it.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub note: Option<String>,
}

/// The making of a volume from a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Restore {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<RestoreId>,
    /// Whose.
    pub org_id: OrgId,
    /// From which snapshot.
    pub snapshot_id: VolumeSnapshotId,
    /// The volume that the snapshot is of.
    pub source_volume_id: VolumeId,
    /// The volume that is made.
    pub new_volume_id: VolumeId,
    /// The node that it is made on.
    pub target_node_id: NodeId,
    /// Where it stands.
    #[schemars(extend("enum" = ["queued", "running", "succeeded", "failed"]))]
    pub status: String,
    /// Why it failed.
    pub failed_reason: Option<String>,
}

/// Asks for a volume made from a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreSnapshot {
    /// The name of the new volume.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{0,97}$"))]
    pub name: String,
    /// The node that it is made on; the best one if absent.
    #[serde(default)]
    pub target_node: Option<NodeId>,
}
