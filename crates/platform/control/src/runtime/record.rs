//! What is remembered of each resource, beside what the planner sees.
//!
//! Plain data, written by `fold` alone. What the planner needs is in its own
//! model and not here a second time. Nothing here is a secret.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use fluffy_api::types::ImageLimitKind;
use fluffy_base::id::{
    AppId, AssignmentId, AttachmentId, BootId, DeployId, DrainId, EnrollmentTokenId, EnvId,
    InstanceId, Ipv4Id, LedgerId, MasterKeyId, NodeId, OrgId, ProjectId, ReleaseId, RestoreId,
    SecretBundleId, SecretVersionId, TokenId, VolumeId, VolumeSnapshotId,
};
use fluffy_base::{Digest, Timestamp};
use fluffy_manifest::Manifest;
use fluffy_planner::lifecycle::{
    DeployState, ExecState, JobState, NodeState, ReleaseState, RouteState, SecretBundleState,
};
use fluffy_planner::model::{DeployKind, GroupId, RolloutOptions};
use serde::{Deserialize, Serialize};

use super::quota::Dimension;
use crate::event::{AllocatedMount, NodeDriver, ResolvedDigest};

/// What is known of the cluster as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// The ledger that it began with.
    pub ledger: Option<LedgerId>,
    /// What every reader understands at least.
    pub reader_version: u64,
    /// The keys that secrets are sealed with.
    pub keys: BTreeMap<MasterKeyId, MasterKey>,
    /// The last event in a sealed segment.
    pub sealed_to: u64,
    /// The last event that is in archives alone.
    pub pruned_to: u64,
    /// The newest rebuild of each view.
    pub rebuilt: BTreeMap<String, u64>,
    /// Limits of images that an operator set.
    pub image_limits: BTreeMap<String, u64>,
}

impl Cluster {
    /// How much an image may be or take in this respect.
    #[must_use]
    pub fn image_limit(&self, kind: &ImageLimitKind) -> u64 {
        let set = self.image_limits.get(kind.name).copied();
        // An event of a version with higher ceilings is no way past this one's.
        set.unwrap_or(kind.usual).clamp(1, kind.ceiling)
    }
}

/// A key that data keys are sealed with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterKey {
    /// Since when it is there.
    pub introduced_at: Timestamp,
    /// Since when it is used no more.
    pub retired_at: Option<Timestamp>,
    /// Who asked to retire it, and when, while a second one has to agree.
    pub asked: Option<(String, Timestamp)>,
}

impl Cluster {
    /// When another key took the place of this one.
    #[must_use]
    pub fn replaced_at(&self, id: MasterKeyId) -> Option<Timestamp> {
        let since = self.keys.get(&id)?.introduced_at;
        let later = self.keys.values().map(|key| key.introduced_at);
        later.filter(|introduced| *introduced > since).min()
    }
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Org {
    /// Its name in paths.
    pub slug: String,
    /// Its name for people.
    pub display_name: String,
    /// Limits that differ from the defaults.
    pub limits: BTreeMap<Dimension, u64>,
    /// Until when nothing of its history may go.
    pub legal_hold: Option<Timestamp>,
    /// When exec sessions were made, of the last hour.
    pub execs: VecDeque<Timestamp>,
    /// What it was told last of its log bytes.
    pub log_quota: Option<LogQuota>,
}

/// What an org was told of its log bytes of a day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogQuota {
    /// Which day, as a date.
    pub day: String,
    /// How much of its share it had printed, in hundredths.
    pub percent: u64,
    /// Its share.
    pub limit: u64,
    /// Since when.
    pub since: Timestamp,
}

/// A label that groups apps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// Whose.
    pub org: OrgId,
    /// Its name in paths.
    pub slug: String,
    /// Its name for people.
    pub display_name: String,
}

/// An app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct App {
    /// Whose.
    pub org: OrgId,
    /// Its name in paths.
    pub name: String,
    /// Its name for people.
    pub display_name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// The project that groups it.
    pub project: Option<ProjectId>,
}

/// One place where an app runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Env {
    /// Whose.
    pub org: OrgId,
    /// Of which app.
    pub app: AppId,
    /// Its name in paths.
    pub name: String,
    /// Its name for people.
    pub display_name: Option<String>,
    /// Whether only operators may change it.
    pub protected: bool,
    /// Whether instances may share a kernel with others.
    pub allow_shared_kernel: bool,
    /// What each process type should run.
    pub desired: BTreeMap<String, Wanted>,
    /// How many somebody asked for.
    pub scales: BTreeMap<String, u32>,
    /// Its public address.
    pub ipv4: Option<(Ipv4Id, Ipv4Addr)>,
    /// Its secrets.
    pub bundle: Option<SecretBundleId>,
    /// Its deploys, oldest first; as many as are kept.
    pub deploys: VecDeque<DeployId>,
    /// When somebody said that it shall go.
    pub deleted_at: Option<Timestamp>,
    /// What last went wrong.
    pub last_error: Option<LastError>,
}

/// What a process type should run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Which release.
    pub release: ReleaseId,
    /// With which secrets.
    pub secrets: Option<SecretVersionId>,
    /// The deploy that said so.
    pub deploy: DeployId,
}

/// What last went wrong in an env.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// When.
    pub at: Timestamp,
    /// A stable word.
    pub reason: String,
    /// More, for people.
    pub detail: Option<String>,
    /// The instance, if it was one.
    pub instance: Option<InstanceId>,
}

/// An immutable pair of image and manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Release {
    /// Whose.
    pub org: OrgId,
    /// Of which app.
    pub app: AppId,
    /// Where it stands.
    pub state: ReleaseState,
    /// Why it is blocked.
    pub blocked: Option<String>,
    /// The image as it was asked for.
    pub image_ref: String,
    /// What the reference pointed at.
    pub image_digest: String,
    /// What is pulled for each platform.
    pub images: Vec<ResolvedDigest>,
    /// How large the image is.
    pub compressed_bytes: u64,
    /// The version of the manifest's schema.
    pub schema_version: String,
    /// The hash of the canonical manifest.
    pub manifest_hash: Digest,
    /// The manifest, until it is retired: nothing reads it afterwards.
    pub manifest: Option<Arc<Manifest>>,
    /// Who made it.
    pub created_by: String,
    /// When it was retired.
    pub retired_at: Option<Timestamp>,
}

/// The way from one spec of some groups to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deploy {
    /// Whose.
    pub org: OrgId,
    /// Of which app.
    pub app: AppId,
    /// Where.
    pub env: EnvId,
    /// What for.
    pub kind: DeployKind,
    /// What is deployed, if it is one release.
    pub release: Option<ReleaseId>,
    /// The instance that is replaced, if it is only one.
    pub instance: Option<InstanceId>,
    /// What each process type should run before it.
    pub before: BTreeMap<String, Option<Wanted>>,
    /// The attachments that it made.
    pub attached: Vec<AttachmentId>,
    /// The attachments that it took away, as they were.
    pub detached: Vec<Attachment>,
    /// How it goes.
    pub options: RolloutOptions,
    /// Where it stands.
    pub state: DeployState,
    /// More about where it stands.
    pub message: Option<String>,
    /// Why it failed.
    pub failed_reason: Option<String>,
    /// Who asked for it.
    pub created_by: String,
    /// When it was opened.
    pub created_at: Timestamp,
    /// When it reached a final state.
    pub finished_at: Option<Timestamp>,
}

/// What is shown of a group beside the planner's view.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupNotes {
    /// Since when each condition holds, and more about it.
    pub conditions: BTreeMap<String, (Timestamp, Option<String>)>,
    /// How often allocation failed since it last succeeded, and why.
    pub allocation: Option<(String, u64)>,
}

/// What is remembered of an instance beside the planner's view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Whose.
    pub org: OrgId,
    /// Of which app.
    pub app: AppId,
    /// What binds it to its node.
    pub assignment: AssignmentId,
    /// How often it was bound.
    pub generation: u64,
    /// The event that allocated it.
    pub allocated_seq: u64,
    /// What it runs.
    pub release: ReleaseId,
    /// With which secrets.
    pub secrets: Option<SecretVersionId>,
    /// The deploy that brought it.
    pub deploy: Option<DeployId>,
    /// The deploy that took it out of service, if one did.
    pub ended_by: Option<DeployId>,
    /// Its address.
    pub address: Ipv6Addr,
    /// Bytes of memory beside the guest's.
    pub overhead: u64,
    /// What it mounts.
    pub mounts: Vec<AllocatedMount>,
    /// Since when it is wanted as it is now.
    pub desired_since: Timestamp,
    /// The event that took it out of service.
    pub left_at: Option<u64>,
    /// Its current start.
    pub boot: Option<BootId>,
    /// How its command last ended.
    pub exit_code: Option<i64>,
    /// More about why it is as it is.
    pub detail: Option<String>,
    /// How long its last start took.
    pub boot_ms: Option<u64>,
    /// When its status changed, of the last minute.
    pub changes: VecDeque<Timestamp>,
}

/// What is remembered of a node beside the planner's view.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Where others reach it.
    pub endpoint: String,
    /// Its key in the overlay.
    pub wireguard_public_key: String,
    /// The certificate that it shows.
    pub cert_fingerprint: String,
    /// The one before, which it may show until that ends.
    pub former_fingerprint: Option<String>,
    /// Its address, which names its range.
    pub address: Ipv6Addr,
    /// What it can run instances with.
    pub drivers: Vec<NodeDriver>,
    /// What its operator calls it.
    pub labels: BTreeMap<String, String>,
    /// What it runs.
    pub agent_version: String,
    /// The disk that it said it has; volumes are taken off for the planner.
    pub disk: u64,
    /// Whether it ever said what it has.
    pub measured: bool,
    /// When it enrolled.
    pub enrolled_at: Timestamp,
    /// Why it is as it is.
    pub reason: Option<String>,
    /// What of its plan it does not follow, and whether an operator said that
    /// it shall.
    pub held: Option<(String, bool)>,
    /// What makes its machine that machine, if it said so.
    pub machine: Option<String>,
    /// Where it stood before it was offline.
    pub former: Option<NodeState>,
    /// Its emptying, while it lasts.
    pub drain: Option<DrainId>,
    /// Failures of its own, of the last minutes: when, and whose instance.
    pub failures: VecDeque<(Timestamp, GroupId)>,
}

/// An emptying of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// Which node.
    pub node: NodeId,
    /// How many instances it found that have to go.
    pub total: u64,
    /// Since when.
    pub started_at: Timestamp,
    /// When it last moved.
    pub updated_at: Timestamp,
    /// How it ended, if it has: `succeeded` or `canceled`.
    pub ended: Option<String>,
}

/// A single-use permission to join as a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollmentToken {
    /// Until when it is good.
    pub expires_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// How it ended: `consumed` or `revoked`.
    pub ended: Option<String>,
    /// The node that used it.
    pub node: Option<NodeId>,
    /// Whether the machine may be behind NAT.
    pub allow_nat: bool,
    /// The node that the machine was before.
    pub replaces: Option<NodeId>,
    /// For whom it was made: whoever that is approves no request of it.
    pub made_for: String,
    /// What its node is called beside what the machine says.
    pub labels: BTreeMap<String, String>,
    /// Whether a person has to look at the machine first.
    pub require_approval: bool,
    /// The machine that asked for it, of which there is one at most.
    pub request: Option<EnrollmentRequest>,
}

/// A machine that waits to be let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollmentRequest {
    /// Of the key that its certificate will be for.
    pub key: String,
    /// Where others reach it; empty behind NAT.
    pub endpoint: String,
    /// Its processors.
    pub arch: String,
    /// What it runs.
    pub agent_version: String,
    /// Since when it waits.
    pub asked_at: Timestamp,
    /// What was decided, `approved` or `refused`, and by whom.
    pub decided: Option<(String, String)>,
}

/// A way from outside to a process type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Whose.
    pub org: OrgId,
    /// Of which app.
    pub app: AppId,
    /// Where.
    pub env: EnvId,
    /// Where it stands.
    pub state: RouteState,
    /// Why.
    pub reason: Option<String>,
    /// The name that it answers to.
    pub hostname: Option<String>,
    /// Whether the name is proven.
    pub verified: bool,
    /// The public port.
    pub listen_port: u16,
    /// How connections are told apart.
    pub protocol_hint: String,
    /// The process type that answers.
    pub backend_process: String,
    /// The port that it answers on.
    pub backend_port: u16,
    /// Whether the client's address is sent ahead.
    pub proxy_protocol: String,
    /// Whether the process said that it expects that.
    pub backend_expects_proxy_protocol: bool,
    /// Whether it must be reachable by IPv4.
    pub ipv4_required: bool,
    /// Whether the platform made it, for this machine only.
    pub loopback: bool,
    /// When its deletion began.
    pub deleting_since: Option<Timestamp>,
    /// The last event that changed what edges do with it.
    pub changed_seq: u64,
}

impl Route {
    /// Whether it is an edge that cannot serve it.
    #[must_use]
    pub fn is_blocked_by_edge(&self) -> bool {
        self.state == RouteState::Blocked && self.reason.as_deref() != Some(IPV4_MISSING)
    }
}

/// Why a route is blocked whose env has no address for it.
pub const IPV4_MISSING: &str = "ipv4_missing";

/// The secrets of an env, without any value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretBundle {
    /// Whose.
    pub org: OrgId,
    /// Of which app.
    pub app: AppId,
    /// Where.
    pub env: EnvId,
    /// How it was written.
    pub format: String,
    /// Where it stands; none before its first version.
    pub state: Option<SecretBundleState>,
    /// The version that everything should run with.
    pub current: Option<SecretVersionId>,
    /// Those that are kept, oldest first.
    pub versions: Vec<SecretVersion>,
}

/// One version of an env's secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretVersion {
    /// Which.
    pub id: SecretVersionId,
    /// A keyed hash of the values.
    pub data_hash: Digest,
    /// How many names it has.
    pub key_count: u64,
    /// The names, where they were said.
    pub keys: Vec<String>,
    /// How large it is.
    pub size_bytes: u64,
    /// The key that its data key is sealed with.
    pub master_key: MasterKeyId,
    /// When it was made.
    pub created_at: Timestamp,
}

/// What is remembered of a volume beside the planner's view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Whose.
    pub org: OrgId,
    /// Its name.
    pub name: String,
    /// How large it is.
    pub size: u64,
    /// What is on it.
    pub filesystem: String,
    /// Whether it is backed up by itself.
    pub backup_enabled: bool,
    /// The snapshot that it was made from.
    pub snapshot: Option<VolumeSnapshotId>,
    /// Why it is as it is.
    pub reason: Option<String>,
    /// The instance that has it.
    pub instance: Option<InstanceId>,
    /// The last good backup.
    pub last_backup_at: Option<Timestamp>,
    /// When its disk was last found in another node.
    pub rehomed_at: Option<Timestamp>,
}

/// A volume of a process type of an env.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Whose.
    pub org: OrgId,
    /// Of which app.
    pub app: AppId,
    /// Where.
    pub env: EnvId,
    /// Which volume.
    pub volume: VolumeId,
    /// The process type.
    pub process: String,
    /// Where in the guest.
    pub mount_path: String,
    /// Whether it cannot be written.
    pub read_only: bool,
}

/// A backup of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Whose.
    pub org: OrgId,
    /// Of which volume.
    pub volume: VolumeId,
    /// How large that is.
    pub volume_size: u64,
    /// The node that makes it.
    pub node: NodeId,
    /// Where it stands.
    pub state: JobState,
    /// How consistent it is.
    pub consistency: Option<String>,
    /// How large it is.
    pub size: Option<u64>,
    /// Why it failed.
    pub failed_reason: Option<String>,
    /// When it was found whole.
    pub succeeded_at: Option<Timestamp>,
    /// What its maker noted.
    pub note: Option<String>,
}

/// The making of a volume from a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    /// Whose.
    pub org: OrgId,
    /// From which snapshot.
    pub snapshot: VolumeSnapshotId,
    /// The volume that the snapshot is of.
    pub source: VolumeId,
    /// The volume that is made.
    pub volume: VolumeId,
    /// The node that makes it.
    pub node: NodeId,
    /// Where it stands.
    pub state: JobState,
    /// Why it failed.
    pub failed_reason: Option<String>,
}

/// A command run in an instance for somebody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSession {
    /// Whose.
    pub org: OrgId,
    /// Of which app.
    pub app: AppId,
    /// Where.
    pub env: EnvId,
    /// In which instance.
    pub instance: InstanceId,
    /// Who asked for it.
    pub principal: String,
    /// With which token.
    pub token: Option<TokenId>,
    /// Where it stands.
    pub state: ExecState,
    /// The command, with what is secret left out.
    pub command: Vec<String>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Whether it runs as the root of its instance.
    pub as_root: bool,
    /// Whether its client may come back to it.
    pub resume: bool,
    /// Why, as its owner said, or why not.
    pub reason: Option<String>,
    /// Until when somebody may connect.
    pub expires_at: Option<Timestamp>,
    /// How long it may last.
    pub max_seconds: u64,
    /// When somebody connected.
    pub connected_at: Option<Timestamp>,
    /// How it ended.
    pub ended: Option<ExecEnd>,
}

/// How an exec session ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    /// By what.
    pub reason: String,
    /// How the command ended.
    pub exit_code: Option<i64>,
    /// Bytes from the client.
    pub bytes_in: u64,
    /// Bytes to the client.
    pub bytes_out: u64,
}

/// Everything of one owner that outlives itself for a while, by name.
pub type Kept<K> = VecDeque<K>;

/// The ids that a fold drops again once they are many; newest last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Exec sessions that ended.
    pub execs: Kept<fluffy_base::id::ExecSessionId>,
    /// Drains that ended.
    pub drains: Kept<DrainId>,
    /// Enrolment tokens that ended.
    pub tokens: Kept<EnrollmentTokenId>,
    /// Restores that ended.
    pub restores: Kept<RestoreId>,
}
