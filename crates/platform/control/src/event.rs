//! The catalogue of events: every type, its payload, and whose it is.
//!
//! Names and versions are never used again for something else. A new optional
//! field keeps the version; anything else makes a new one, with an upcaster.
//! No payload may hold a secret, a token or a key.

#![allow(
    missing_docs,
    reason = "the names are those of the specification's catalogue"
)]

use std::collections::BTreeMap;

use fluffy_base::id::{
    AssignmentId, BootId, DeployId, DrainId, EnrollmentTokenId, InstanceId, Ipv4Id, LedgerId,
    MasterKeyId, NodeId, ProjectId, ReleaseId, SecretVersionId, TokenId, VolumeId,
    VolumeSnapshotId,
};
use fluffy_base::{Digest, Timestamp};
use fluffy_ledger::{Event, Source};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::runtime::spec;

/// The version of readers who know every event before versions were counted.
pub const FIRST_READERS: u64 = 1;

/// The version of the readers of this build: they know the whole catalogue.
pub const READER_VERSION: u64 = 2;

/// Each type and version that readers of the first version do not know, and
/// since which version they do. What is new comes here with the next version,
/// and is appended once every replica has it.
const LATER: &[(&str, u32, u64)] = &[
    ("master_key.unsealed", 1, 2),
    ("master_key.unseal_failed", 1, 2),
    ("enrollment_token.decided", 1, 2),
    ("enrollment_token.requested", 1, 2),
    ("enrollment_token.terms_set", 1, 2),
];

/// Since which version readers know events of a type and version.
#[must_use]
pub fn readable_since(event_type: &str, version: u32) -> u64 {
    let mut later = LATER.iter();
    let found = later.find(|(name, of, _)| *name == event_type && *of == version);
    found.map_or(FIRST_READERS, |(_, _, since)| *since)
}

/// Why an event can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadEventError {
    /// The type, or this version of it, is not in the catalogue.
    #[error("unknown event `{event_type}` version {version}")]
    Unknown {
        /// The event's type.
        event_type: String,
        /// Its schema version.
        version: u32,
    },
    /// The payload is not what this type and version has.
    #[error("the payload of `{event_type}` does not fit its schema")]
    Payload {
        /// The event's type.
        event_type: String,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
    /// The payload has a word that a later version brought.
    #[error("`{event_type}` has a {what} that is not known")]
    Word {
        /// The event's type.
        event_type: String,
        /// What it is.
        what: &'static str,
    },
}

macro_rules! payload {
    (@fields $name:ident [$($done:tt)*]) => {
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        pub struct $name { $($done)* }
    };
    (@fields $name:ident [$($done:tt)*] ? $field:ident : $type:ty, $($rest:tt)*) => {
        payload! { @fields $name [
            $($done)*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $field: Option<$type>,
        ] $($rest)* }
    };
    (@fields $name:ident [$($done:tt)*] $field:ident : $type:ty, $($rest:tt)*) => {
        payload! { @fields $name [ $($done)* pub $field: $type, ] $($rest)* }
    };
}

macro_rules! catalogue {
    ($($name:ident = $text:literal of $kind:literal { $($fields:tt)* })*) => {
        $(payload! { @fields $name [] $($fields)* })*

        /// What happened: the payload of one event, by its type.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Body { $($name($name),)* }

        $(impl From<$name> for Body {
            fn from(payload: $name) -> Self {
                Self::$name(payload)
            }
        })*

        impl Body {
            /// Every type in the catalogue with its current version.
            pub const TYPES: &'static [(&'static str, u32)] = &[$(($text, 1),)*];

            /// The dotted name.
            #[must_use]
            pub const fn event_type(&self) -> &'static str {
                match self { $(Self::$name(_) => $text,)* }
            }

            /// What kind of aggregate it belongs to.
            #[must_use]
            pub const fn aggregate_kind(&self) -> &'static str {
                match self { $(Self::$name(_) => $kind,)* }
            }

            /// What kind of aggregate events of a type belong to.
            #[must_use]
            pub fn kind_of(event_type: &str) -> Option<&'static str> {
                match event_type {
                    $($text => Some($kind),)*
                    _ => None,
                }
            }

            /// The payload as JSON.
            #[must_use]
            pub fn payload(&self) -> Value {
                let written = match self { $(Self::$name(payload) => serde_json::to_value(payload),)* };
                // Structs of texts, numbers and maps with text keys always are JSON.
                written.unwrap_or_default()
            }

            /// Reads a payload of this type and version.
            fn of_type(event_type: &str, version: u32, text: &str) -> Option<Result<Self, serde_json::Error>> {
                match (event_type, version) {
                    $(($text, 1) => Some(serde_json::from_str(text).map(Self::$name)),)*
                    _ => None,
                }
            }
        }
    };
}

impl Body {
    /// The version that is written.
    #[must_use]
    pub const fn event_version(&self) -> u32 {
        1
    }

    /// Reads an event of the platform.
    ///
    /// # Errors
    /// Its type or version is not in the catalogue, or the payload does not
    /// fit.
    pub fn read(event: &Event) -> Result<Self, ReadEventError> {
        let event_type = &event.event_type;
        let body = Self::of_type(event_type, event.event_version, event.payload.as_str());
        match body {
            Some(Ok(body)) => match body.unknown_word() {
                None => Ok(body),
                Some(what) => Err(ReadEventError::Word {
                    event_type: event_type.clone(),
                    what,
                }),
            },
            Some(Err(source)) => Err(ReadEventError::Payload {
                event_type: event_type.clone(),
                source,
            }),
            None => Err(ReadEventError::Unknown {
                event_type: event_type.clone(),
                version: event.event_version,
            }),
        }
    }

    /// What it has that would be folded into nothing: a server that goes on
    /// without such an instance or deploy would answer for less than there is.
    fn unknown_word(&self) -> Option<&'static str> {
        match self {
            Self::InstanceAllocated(it) if spec::driver(&it.driver).is_none() => Some("driver"),
            Self::DeployCreated(it) if spec::deploy_kind(&it.kind).is_none() => Some("kind"),
            _ => None,
        }
    }
}

/// One process type and how many instances it shall have; none means as many
/// as the release says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleSet {
    pub process: String,
    pub desired: Option<u32>,
}

/// The image of a release for one kind of machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedDigest {
    pub os: String,
    pub arch: String,
    pub digest: String,
}

/// What an instance was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedResources {
    /// Thousandths of a processor.
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub overhead_bytes: u64,
}

/// A volume that an instance mounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedMount {
    pub volume_id: VolumeId,
    pub mount_path: String,
    pub read_only: bool,
}

/// A driver of a node, and the largest instance that it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDriver {
    pub driver: String,
    pub max_vcpus: u64,
    pub max_memory_bytes: u64,
}

catalogue! {
    ClusterInitialized = "cluster.initialized" of "cluster" {
        ledger_id: LedgerId,
        ipv6_prefix: String,
    }
    ClusterReaderVersionSet = "cluster.reader_version_set" of "cluster" {
        min_version: u64,
    }
    ClusterIpv4PoolSet = "cluster.ipv4_pool_set" of "cluster" {
        ranges: Vec<String>,
    }
    ClusterImageLimitSet = "cluster.image_limit_set" of "cluster" {
        name: String,
        limit: u64,
        previous: u64,
    }
    LeaderAcquired = "leader.acquired" of "lease" {
        lease: String,
        epoch: u64,
        replica_id: String,
    }
    LedgerSegmentSealed = "ledger.segment_sealed" of "ledger" {
        first_seq: u64,
        last_seq: u64,
        first_hash: Digest,
        last_hash: Digest,
        sha256: Digest,
        uri: String,
    }
    LedgerSegmentPruned = "ledger.segment_pruned" of "ledger" {
        first_seq: u64,
        last_seq: u64,
    }
    ProjectionRebuilt = "projection.rebuilt" of "projection" {
        name: String,
        to_seq: u64,
        digest: Digest,
    }
    OrgCreated = "org.created" of "org" {
        slug: String,
        display_name: String,
    }
    OrgUpdated = "org.updated" of "org" {
        ? display_name: String,
    }
    OrgQuotaSet = "org.quota_set" of "org" {
        dimension: String,
        limit: u64,
        ? previous: u64,
    }
    OrgLogQuotaReached = "org.log_quota_reached" of "org" {
        percent: u64,
        day: String,
        used: u64,
        limit: u64,
    }
    OrgLegalHoldSet = "org.legal_hold_set" of "org" {
        ? until: Timestamp,
    }
    ProjectCreated = "project.created" of "project" {
        slug: String,
        display_name: String,
    }
    ProjectUpdated = "project.updated" of "project" {
        display_name: String,
    }
    ProjectDeleted = "project.deleted" of "project" {}
    OrgMemberAdded = "org_member.added" of "org_member" {
        principal_id: String,
        role: String,
        email_hash: String,
    }
    OrgMemberRoleUpdated = "org_member.role_updated" of "org_member" {
        old_role: String,
        new_role: String,
    }
    OrgMemberRemoved = "org_member.removed" of "org_member" {}
    ServicePrincipalCreated = "service_principal.created" of "service_principal" {
        name: String,
        grants: Vec<String>,
    }
    ServicePrincipalGrantsUpdated = "service_principal.grants_updated" of "service_principal" {
        grants: Vec<String>,
    }
    ServicePrincipalSecretRotated = "service_principal.secret_rotated" of "service_principal" {
        rotation_id: String,
        old_valid_until: Timestamp,
    }
    ServicePrincipalDeleted = "service_principal.deleted" of "service_principal" {
        ? name: String,
    }
    TokenIssued = "token.issued" of "token" {
        kind: String,
        principal_id: String,
        expires_at: Timestamp,
        ? ceiling: Vec<String>,
        ? family: String,
        ? on_behalf_of: String,
        ? reads_per_minute: u64,
        ? writes_per_minute: u64,
    }
    TokenRevoked = "token.revoked" of "token" {
        reason: String,
    }
    AuthFailed = "auth.failed" of "principal" {
        reason: String,
        ? pii_ref: String,
        ? count: u64,
        ? token_id: EnrollmentTokenId,
        ? token_created_by: String,
        ? key_fingerprint: String,
    }
    GrantAdded = "grant.added" of "grant" {
        principal_id: String,
        pattern: String,
        resolved_ids: Vec<String>,
        ? expires_at: Timestamp,
        ? reason: String,
    }
    GrantRemoved = "grant.removed" of "grant" {}
    PolicyVersionSet = "policy.version_set" of "policy" {
        policy_hash: Digest,
        rules: String,
    }
    AuthzDecided = "authz.decided" of "principal" {
        principal_id: String,
        capability: String,
        resource_id: String,
        outcome: String,
        ? rule_id: String,
        policy_version: u64,
        reason: String,
        ? operation: String,
        ? body_hash: Digest,
        ? refused: String,
    }
    AuthzReadsSummarized = "authz.reads_summarized" of "principal" {
        principal_id: String,
        capability: String,
        window_start: Timestamp,
        count: u64,
        resources_digest: Digest,
    }
    ApprovalRequested = "approval.requested" of "approval" {
        command: Value,
        command_hash: Digest,
        capability: String,
        expires_at: Timestamp,
    }
    ApprovalDecided = "approval.decided" of "approval" {
        outcome: String,
        by: String,
        ? note: String,
    }
    ApprovalExpired = "approval.expired" of "approval" {}
    AppCreated = "app.created" of "app" {
        name: String,
        ? project_id: ProjectId,
        ? description: String,
        ? display_name: String,
    }
    AppUpdated = "app.updated" of "app" {
        ? display_name: String,
        ? description: String,
        ? project_id: ProjectId,
        ? project_removed: bool,
    }
    AppDeleted = "app.deleted" of "app" {}
    EnvCreated = "env.created" of "env" {
        name: String,
        protected: bool,
        allow_shared_kernel: bool,
    }
    EnvUpdated = "env.updated" of "env" {
        ? protected: bool,
        ? allow_shared_kernel: bool,
        ? display_name: String,
    }
    EnvDeleted = "env.deleted" of "env" {}
    EnvDesiredReleaseSet = "env.desired_release_set" of "env" {
        process: String,
        release_id: ReleaseId,
        deploy_id: DeployId,
        ? secret_version_id: SecretVersionId,
    }
    EnvDesiredReleaseCleared = "env.desired_release_cleared" of "env" {
        process: String,
        deploy_id: DeployId,
    }
    EnvScaleSet = "env.scale_set" of "env" {
        scales: Vec<ScaleSet>,
    }
    EnvIpv4AddonEnabled = "env.ipv4_addon_enabled" of "env" {
        allocation_id: Ipv4Id,
        ipv4_address: String,
    }
    EnvIpv4AddonDisabled = "env.ipv4_addon_disabled" of "env" {
        allocation_id: Ipv4Id,
        ipv4_address: String,
        forced: bool,
    }
    ReleaseCreated = "release.created" of "release" {
        image_ref: String,
        index_or_manifest_digest: String,
        resolved_digests: Vec<ResolvedDigest>,
        compressed_bytes: u64,
        manifest_schema_version: String,
        manifest_hash: Digest,
        manifest: Value,
    }
    ReleaseBlocked = "release.blocked" of "release" {
        reason: String,
    }
    ReleaseUnblocked = "release.unblocked" of "release" {}
    ReleaseRetired = "release.retired" of "release" {}
    DeployCreated = "deploy.created" of "deploy" {
        kind: String,
        ? release_id: ReleaseId,
        from_releases: BTreeMap<String, Option<ReleaseId>>,
        process_types: Vec<String>,
        strategy: String,
        options: Value,
        ? instance_id: InstanceId,
        ? source: Source,
    }
    DeployStatusChanged = "deploy.status_changed" of "deploy" {
        status: String,
        ? message: String,
        ? failed_reason: String,
        ? process: String,
    }
    GroupConditionChanged = "group.condition_changed" of "group" {
        condition: String,
        active: bool,
        reason: String,
        ? detail: String,
    }
    InstanceAllocationFailed = "instance.allocation_failed" of "group" {
        reason: String,
        wanted: u64,
        attempts: u64,
        ? detail: String,
    }
    InstanceAllocated = "instance.allocated" of "instance" {
        process: String,
        node_id: NodeId,
        assignment_id: AssignmentId,
        generation: u64,
        release_id: ReleaseId,
        ? secret_version_id: SecretVersionId,
        overlay_ipv6: String,
        resources: AllocatedResources,
        mounts: Vec<AllocatedMount>,
        driver: String,
        spec_hash: Digest,
        ? deploy_id: DeployId,
    }
    InstanceDesiredStateChanged = "instance.desired_state_changed" of "instance" {
        desired_state: String,
        ? drain_grace_seconds: u64,
        reason: String,
        ? stop_allowed: bool,
    }
    InstanceStatusChanged = "instance.status_changed" of "instance" {
        status: String,
        node_id: NodeId,
        ? boot_id: BootId,
        ? exit_code: i64,
        ? reason_code: String,
        ? reason_detail: String,
        ? boot_ms: u64,
        ? flap_count: u64,
        reported_at: Timestamp,
    }
    InstanceSignalRequested = "instance.signal_requested" of "instance" {
        signal: String,
        node_id: NodeId,
        ? boot_id: BootId,
    }
    InstanceCollected = "instance.collected" of "instance" {}
    RouteCreated = "route.created" of "route" {
        ? hostname: String,
        listen_port: u64,
        protocol_hint: String,
        backend_process: String,
        backend_port: u64,
        proxy_protocol: String,
        ? backend_expects_proxy_protocol: bool,
        ipv4_required: bool,
        ? loopback: bool,
    }
    RouteUpdated = "route.updated" of "route" {
        ? hostname: String,
        ? listen_port: u64,
        ? protocol_hint: String,
        ? backend_process: String,
        ? backend_port: u64,
        ? proxy_protocol: String,
        ? backend_expects_proxy_protocol: bool,
        ? ipv4_required: bool,
    }
    RouteVerified = "route.verified" of "route" {
        method: String,
    }
    RouteStatusChanged = "route.status_changed" of "route" {
        state: String,
        ? reason: String,
    }
    RouteDeleted = "route.deleted" of "route" {
        ? hostname: String,
    }
    SecretBundleCreated = "secret_bundle.created" of "secret_bundle" {
        format: String,
    }
    SecretBundleVersionSet = "secret_bundle.version_set" of "secret_bundle" {
        version_id: SecretVersionId,
        data_hash: Digest,
        key_count: u64,
        size_bytes: u64,
        master_key_id: MasterKeyId,
        ? keys: Vec<String>,
    }
    SecretBundleRotationChanged = "secret_bundle.rotation_changed" of "secret_bundle" {
        status: String,
        version_id: SecretVersionId,
    }
    SecretBundleVersionDestroyed = "secret_bundle.version_destroyed" of "secret_bundle" {
        version_id: SecretVersionId,
    }
    SecretBundleDeleted = "secret_bundle.deleted" of "secret_bundle" {}
    MasterKeyIntroduced = "master_key.introduced" of "master_key" {
        master_key_id: MasterKeyId,
        by: String,
    }
    MasterKeyUnsealed = "master_key.unsealed" of "master_key" {
        master_key_id: MasterKeyId,
        set: String,
        shares: Vec<u64>,
        by: Vec<String>,
    }
    MasterKeyUnsealFailed = "master_key.unseal_failed" of "master_key" {
        master_key_id: MasterKeyId,
        set: String,
        shares: Vec<u64>,
        reason: String,
        by: Vec<String>,
    }
    MasterKeyRetireAsked = "master_key.retire_asked" of "master_key" {
        master_key_id: MasterKeyId,
        by: String,
    }
    MasterKeyRetired = "master_key.retired" of "master_key" {
        master_key_id: MasterKeyId,
        by: String,
        ? asked_by: String,
    }
    MasterKeyRewrapped = "master_key.rewrapped" of "master_key" {
        from: MasterKeyId,
        to: MasterKeyId,
        count: u64,
    }
    VolumeCreated = "volume.created" of "volume" {
        name: String,
        size_bytes: u64,
        filesystem: String,
        backup_enabled: bool,
        home_node_id: NodeId,
        ? snapshot_id: VolumeSnapshotId,
    }
    VolumeUpdated = "volume.updated" of "volume" {
        backup_enabled: bool,
    }
    VolumeStateChanged = "volume.state_changed" of "volume" {
        state: String,
        ? reason: String,
        ? instance_id: InstanceId,
    }
    VolumeRehomed = "volume.rehomed" of "volume" {
        old_node_id: NodeId,
        new_node_id: NodeId,
        fsck: String,
    }
    VolumeDeleted = "volume.deleted" of "volume" {}
    VolumeAttachmentCreated = "volume_attachment.created" of "volume_attachment" {
        volume_id: VolumeId,
        process: String,
        mount_path: String,
        read_only: bool,
    }
    VolumeAttachmentDeleted = "volume_attachment.deleted" of "volume_attachment" {
        volume_id: VolumeId,
        process: String,
    }
    SnapshotCreated = "snapshot.created" of "snapshot" {
        volume_id: VolumeId,
        source_node_id: NodeId,
        ? note: String,
    }
    SnapshotStatusChanged = "snapshot.status_changed" of "snapshot" {
        status: String,
        ? consistency: String,
        ? size_bytes: u64,
        ? failed_reason: String,
    }
    SnapshotDeleted = "snapshot.deleted" of "snapshot" {}
    RestoreJobCreated = "restore_job.created" of "restore_job" {
        snapshot_id: VolumeSnapshotId,
        source_volume_id: VolumeId,
        new_volume_id: VolumeId,
        ? target_node_id: NodeId,
    }
    RestoreJobStatusChanged = "restore_job.status_changed" of "restore_job" {
        status: String,
        ? failed_reason: String,
    }
    EnrollmentTokenCreated = "enrollment_token.created" of "enrollment_token" {
        expires_at: Timestamp,
        ? allow_nat: bool,
        ? replaces: NodeId,
    }
    EnrollmentTokenConsumed = "enrollment_token.consumed" of "enrollment_token" {
        outcome: String,
        ? node_id: NodeId,
    }
    EnrollmentTokenRevoked = "enrollment_token.revoked" of "enrollment_token" {}
    EnrollmentTokenTermsSet = "enrollment_token.terms_set" of "enrollment_token" {
        labels: BTreeMap<String, String>,
        require_approval: bool,
    }
    EnrollmentTokenRequested = "enrollment_token.requested" of "enrollment_token" {
        key_fingerprint: String,
        endpoint: String,
        arch: String,
        agent_version: String,
    }
    EnrollmentTokenDecided = "enrollment_token.decided" of "enrollment_token" {
        outcome: String,
        by: String,
        key_fingerprint: String,
    }
    NodeEnrolled = "node.enrolled" of "node" {
        wireguard_public_key: String,
        endpoint: String,
        cert_fingerprint: String,
        overlay_ipv6: String,
        arch: String,
        drivers: Vec<NodeDriver>,
        labels: BTreeMap<String, String>,
        agent_version: String,
        token_id: EnrollmentTokenId,
        ? machine_fingerprint: String,
    }
    NodeStateChanged = "node.state_changed" of "node" {
        state: String,
        ? reason: String,
        ? leave_stateful: bool,
        ? deadline: Timestamp,
        ? drain_id: DrainId,
    }
    NodeDrainBlocked = "node.drain_blocked" of "node" {
        instances: Vec<InstanceId>,
    }
    NodePlanHeld = "node.plan_held" of "node" {
        ? held: String,
    }
    NodePlanConfirmed = "node.plan_confirmed" of "node" {
        held: String,
    }
    NodeCapacityUpdated = "node.capacity_updated" of "node" {
        cpu_cores: u64,
        memory_bytes: u64,
        disk_bytes: u64,
        reserved: Value,
        ? drivers: Vec<NodeDriver>,
        ? agent_version: String,
    }
    NodeCertRotated = "node.cert_rotated" of "node" {
        fingerprint: String,
    }
    NodeOverlayKeyRotated = "node.overlay_key_rotated" of "node" {
        fingerprint: String,
    }
    NodeRevoked = "node.revoked" of "node" {
        reason: String,
    }
    NodeRemoved = "node.removed" of "node" {}
    ExecSessionRequested = "exec_session.requested" of "exec_session" {
        instance_id: InstanceId,
        command: Vec<String>,
        tty: bool,
        ? reason: String,
        ? token_id: TokenId,
        ? as_root: bool,
        ? resume: bool,
    }
    ExecSessionDenied = "exec_session.denied" of "exec_session" {
        reason: String,
    }
    ExecSessionGranted = "exec_session.granted" of "exec_session" {
        expires_at: Timestamp,
        max_seconds: u64,
    }
    ExecSessionConnected = "exec_session.connected" of "exec_session" {
        node_id: NodeId,
        ? pii_ref: String,
    }
    ExecSessionResumed = "exec_session.resumed" of "exec_session" {
        node_id: NodeId,
        ? pii_ref: String,
    }
    ExecSessionEnded = "exec_session.ended" of "exec_session" {
        ? exit_code: i64,
        end_reason: String,
        bytes_in: u64,
        bytes_out: u64,
    }
    LogsAccessed = "logs.accessed" of "env" {
        selectors: Value,
        ? since: Timestamp,
        ? until: Timestamp,
        mode: String,
    }
}
