//! What the planner sees: nodes, orgs, envs, groups, instances and the rest.
//!
//! Plain facts, filled in by whoever folds events; maps are ordered, so that
//! equal states give equal plans. Nothing here changes itself or reads a
//! clock. Next: `action` for what comes out, `plan` for the way there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::id::{
    DeployId, EnvId, InstanceId, NodeId, OrgId, ReleaseId, SecretVersionId, VolumeId,
};
use fluffy_base::{Digest, Timestamp};
use serde::{Deserialize, Serialize};

use crate::lifecycle::{DeployState, InstanceStatus, NodeState, SecretBundleState, VolumeState};
use crate::reason::{Condition, DrainReason, FailureReason, StopReason};

/// Everything that a pass looks at.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The tenants.
    pub orgs: BTreeMap<OrgId, Org>,
    /// The environments of all apps.
    pub envs: BTreeMap<EnvId, Env>,
    /// The process types of all envs.
    pub groups: BTreeMap<GroupId, Group>,
    /// The instances that are not collected yet.
    pub instances: BTreeMap<InstanceId, Instance>,
    /// The deploys that are not final; older ones may be left out.
    pub deploys: BTreeMap<DeployId, Deploy>,
    /// The machines.
    pub nodes: BTreeMap<NodeId, Node>,
    /// The volumes.
    pub volumes: BTreeMap<VolumeId, Volume>,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Org {
    /// What all its instances together may take.
    pub quota: Quota,
}

/// What instances of an org may take together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// How many instances.
    pub instances: u64,
    /// Bytes of memory, overhead included.
    pub memory: u64,
    /// Thousandths of a processor.
    pub cpu_millis: u64,
}

/// An environment of an app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Env {
    /// The version of the aggregate.
    pub version: u64,
    /// Whose it is.
    pub org: OrgId,
    /// What its instances may share with others.
    pub isolation: EnvIsolation,
    /// Its secrets, if it has any.
    pub secrets: Option<Secrets>,
    /// Whether it is there or being cleared away.
    pub life: EnvLife,
}

/// Which levels of isolation an env accepts.
///
/// `protected` and `allow_shared_kernel` cannot be combined, so they are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EnvIsolation {
    /// Real virtual machines only.
    Protected,
    /// Virtual machines, emulated ones too.
    Virtual,
    /// Also a kernel that is shared with others.
    SharedKernelAllowed,
}

impl EnvIsolation {
    /// Whether instances of the env may run at this level.
    #[must_use]
    pub fn accepts(self, level: IsolationLevel) -> bool {
        match level {
            IsolationLevel::Microvm => true,
            IsolationLevel::MicrovmEmulated => self != Self::Protected,
            IsolationLevel::SharedKernel => self == Self::SharedKernelAllowed,
        }
    }
}

/// Whether an env is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnvLife {
    /// It is.
    Live,
    /// It is being cleared away.
    Deleted,
}

/// The secrets of an env.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secrets {
    /// The version that everything should run with.
    pub version: SecretVersionId,
    /// Whether everything does.
    pub state: SecretBundleState,
}

/// The name of a group: its env and its process type.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId {
    /// The env.
    pub env: EnvId,
    /// The name of the process type in the manifest.
    pub process: Arc<str>,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.env, self.process)
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// All instances of one process type in one env: what is wanted of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The version of the aggregate; a pass on an older one is refused.
    pub version: u64,
    /// How each instance should be.
    pub spec: Spec,
    /// How many there should be.
    pub count: u32,
    /// Whether its last deploy failed, so that the mix stays as it is.
    pub held: bool,
    /// The conditions that are shown now.
    pub conditions: BTreeSet<Condition>,
    /// When a failed allocation was last recorded, since the last good one.
    pub allocation_failed_at: Option<Timestamp>,
    /// Instances that were replaced because they failed, of the last minutes.
    pub replaced: Vec<Replaced>,
}

/// An instance that was replaced because it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// When.
    pub at: Timestamp,
    /// Whether it or its node was the reason.
    pub reason: DrainReason,
    /// The node that it was on.
    pub node: NodeId,
}

/// How an instance should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The hash of all runtime inputs; another hash is another instance.
    pub hash: Digest,
    /// The release it comes from.
    pub release: ReleaseId,
    /// The image for each kind of processor.
    pub images: BTreeMap<Arch, Digest>,
    /// What it takes.
    pub resources: Resources,
    /// The volumes it mounts.
    pub volumes: BTreeSet<VolumeId>,
    /// Whether it needs secrets, and which version it gets.
    pub secrets: SecretUse,
    /// How long it has to become ready.
    pub start_timeout: Duration,
    /// How long it must have been ready to count.
    pub min_ready: Duration,
    /// How long it has to end.
    pub grace: Duration,
}

/// Whether a process type uses the env's secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecretUse {
    /// It does not.
    Unused,
    /// It does, in this version; none if there was none yet.
    Required(Option<SecretVersionId>),
}

/// What one instance asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Resources {
    /// Thousandths of a processor.
    pub cpu_millis: u64,
    /// Bytes of memory for the guest.
    pub memory: u64,
    /// Bytes of scratch disk.
    pub disk: u64,
}

impl Resources {
    /// The number of virtual processors: whole ones, and at least one.
    #[must_use]
    pub fn vcpus(&self) -> u64 {
        self.cpu_millis.div_ceil(1000).max(1)
    }
}

/// A kind of processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Arch {
    /// x86-64.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

/// What runs an instance, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Driver {
    /// Firecracker on KVM.
    Firecracker,
    /// QEMU on KVM.
    Qemu,
    /// QEMU without KVM.
    QemuEmulated,
    /// Namespaces with the image as their root.
    Container,
}

/// What an instance shares with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum IsolationLevel {
    /// Nothing but the hardware.
    Microvm,
    /// Nothing but an emulator's correctness.
    MicrovmEmulated,
    /// The kernel.
    SharedKernel,
}

impl Driver {
    /// The level that is shown wherever the instance is.
    #[must_use]
    pub const fn level(self) -> IsolationLevel {
        match self {
            Self::Firecracker | Self::Qemu => IsolationLevel::Microvm,
            Self::QemuEmulated => IsolationLevel::MicrovmEmulated,
            Self::Container => IsolationLevel::SharedKernel,
        }
    }

    /// The bytes that it needs beside the guest's memory.
    #[must_use]
    pub const fn overhead(self) -> u64 {
        match self {
            Self::Firecracker => 64 << 20,
            Self::Qemu | Self::QemuEmulated => 128 << 20,
            Self::Container => 16 << 20,
        }
    }
}

/// The largest instance that a driver runs on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverLimits {
    /// Virtual processors.
    pub vcpus: u64,
    /// Bytes of memory for the guest.
    pub memory: u64,
}

/// A machine that runs instances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The version of the aggregate.
    pub version: u64,
    /// Where it stands.
    pub state: NodeState,
    /// Its processors.
    pub arch: Arch,
    /// What it can run instances with.
    pub drivers: BTreeMap<Driver, DriverLimits>,
    /// What it has.
    pub capacity: Capacity,
    /// The images that it need not pull.
    pub images: BTreeSet<Digest>,
    /// When instances failed for its reasons, of the last minutes.
    pub host_failures: Vec<Timestamp>,
    /// How it is to be emptied, once somebody said so.
    pub drain: Option<Drain>,
}

/// What a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Processor cores.
    pub cores: u64,
    /// Bytes of physical memory.
    pub memory: u64,
    /// Bytes for scratch disks.
    pub disk: u64,
}

impl Capacity {
    /// The memory that instances may have: less what the host itself needs.
    #[must_use]
    pub fn allocatable_memory(&self) -> u64 {
        let host = (self.memory / 20).max(512 << 20);
        self.memory
            .saturating_sub(host)
            .saturating_sub(self.memory / 50)
    }

    /// The processor time that scores are made with: four times what is there.
    #[must_use]
    pub const fn allocatable_cpu_millis(&self) -> u64 {
        self.cores.saturating_mul(4000)
    }
}

/// How a node is emptied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// When instances go although there is no room for others.
    pub deadline: Timestamp,
    /// What becomes of instances with volumes.
    pub stateful: Stateful,
    /// The instances that were named as blockers.
    pub blockers: BTreeSet<InstanceId>,
}

/// What a drain does about instances with volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stateful {
    /// They block it.
    Blocks,
    /// They stay, and the node counts as drained.
    Stays,
}

/// A disk that outlives instances; it is on one node and nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The node that has the data.
    pub home: NodeId,
    /// Where it stands.
    pub state: VolumeState,
}

/// One copy of a process type; it always has a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// What it is a copy of.
    pub group: GroupId,
    /// The node that it was given to.
    pub node: NodeId,
    /// The spec that it was made by.
    pub spec: Digest,
    /// What is booked for it, overhead included.
    pub booking: Resources,
    /// What runs it.
    pub driver: Driver,
    /// The volumes that it mounts.
    pub volumes: BTreeSet<VolumeId>,
    /// When it was allocated.
    pub allocated_at: Timestamp,
    /// What is wanted of it.
    pub desired: Desired,
    /// What is known of it.
    pub observed: Observed,
    /// Whether some live edge still sends it connections.
    pub routed: bool,
    /// Whether somebody asked for a new one in its place.
    pub restart: bool,
}

/// What is wanted of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Desired {
    /// It shall run.
    Running,
    /// It shall end in good order.
    Draining {
        /// Since when.
        since: Timestamp,
        /// How long it has to end, once it may.
        grace: Duration,
        /// Why.
        reason: DrainReason,
        /// When it was told that it may end.
        stop_allowed: Option<Timestamp>,
    },
    /// It shall be gone.
    Stopped {
        /// Why.
        reason: StopReason,
    },
}

/// What is known of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Where it stands.
    pub status: InstanceStatus,
    /// Since when.
    pub since: Timestamp,
    /// Why it failed, while it is failed.
    pub reason: Option<FailureReason>,
    /// How many times in a row it failed.
    pub failures: u32,
    /// Whether it has ever been ready.
    pub was_ready: bool,
}

/// The way from one spec of some groups to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deploy {
    /// The version of the aggregate.
    pub version: u64,
    /// Where.
    pub env: EnvId,
    /// What for.
    pub kind: DeployKind,
    /// When it was opened; only instances from then on are its own.
    pub opened: Timestamp,
    /// Where it stands.
    pub state: DeployState,
    /// Since when it stands there.
    pub since: Timestamp,
    /// Its groups, each with the release that it had before.
    pub groups: BTreeMap<GroupId, Option<ReleaseId>>,
    /// How it goes.
    pub options: RolloutOptions,
}

/// What a deploy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeployKind {
    /// A release.
    Deploy,
    /// A release that was there before.
    Rollback,
    /// New instances of what is there.
    Restart,
}

/// How a deploy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutOptions {
    /// How many instances more there may be on the way.
    pub max_surge: u32,
    /// How many available instances fewer there may be on the way.
    pub max_unavailable: u32,
    /// How long it may take.
    pub timeout: Duration,
    /// What happens when it fails.
    pub on_failure: OnFailure,
    /// Whether a single instance may go before its successor is there.
    pub downtime: Downtime,
}

/// What happens when a deploy fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFailure {
    /// The release from before comes back.
    Rollback,
    /// The mix stays, and somebody has to look.
    Pause,
}

/// Whether a deploy may leave a group without an available instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Downtime {
    /// It may not.
    Refused,
    /// It may.
    Allowed,
}

impl RolloutOptions {
    /// How groups follow their spec where no deploy says it: one more, none
    /// fewer.
    pub const CAREFUL: Self = Self {
        max_surge: 1,
        max_unavailable: 0,
        timeout: Duration::MAX,
        on_failure: OnFailure::Pause,
        downtime: Downtime::Refused,
    };
}

impl Instance {
    /// Whether it has ended, as its node says.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(
            self.observed.status,
            InstanceStatus::Stopped | InstanceStatus::Collected
        )
    }

    /// Whether it shall run.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.desired == Desired::Running
    }
}

impl State {
    /// Whether a node is out of reach, so that nothing is known of it.
    #[must_use]
    pub fn is_lost(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_none_or(|node| {
            matches!(
                node.state,
                NodeState::Offline | NodeState::Revoked | NodeState::Removed
            )
        })
    }

    /// Whether a node is shut out for good, so that nothing on it counts.
    #[must_use]
    pub fn is_fenced(&self, node: NodeId) -> bool {
        self.nodes
            .get(&node)
            .is_none_or(|node| matches!(node.state, NodeState::Revoked | NodeState::Removed))
    }

    /// Whether an instance counts against its org's quota.
    ///
    /// It does until its node says that it stopped, or until it was lost and
    /// somebody gave it up.
    #[must_use]
    pub fn counts(&self, instance: &Instance) -> bool {
        let given_up = matches!(instance.desired, Desired::Stopped { .. })
            && (self.is_lost(instance.node) || instance.observed.status == InstanceStatus::Lost);
        !instance.has_ended() && !given_up
    }

    /// Whether an instance may still write to its volumes.
    #[must_use]
    pub fn holds_volumes(&self, instance: &Instance) -> bool {
        !instance.has_ended() && !self.is_fenced(instance.node)
    }
}

/// Who has which volume.
#[derive(Debug, Clone)]
pub struct VolumeClaims<'a> {
    holders: BTreeMap<VolumeId, &'a GroupId>,
}

impl<'a> VolumeClaims<'a> {
    /// The claims of all instances that may still write.
    #[must_use]
    pub fn of(state: &'a State) -> Self {
        let holding = state
            .instances
            .values()
            .filter(|instance| state.holds_volumes(instance));
        let holders = holding.flat_map(|instance| {
            instance
                .volumes
                .iter()
                .map(|volume| (*volume, &instance.group))
        });
        Self {
            holders: holders.collect(),
        }
    }

    /// The group whose instance has a volume.
    #[must_use]
    pub fn holder(&self, volume: VolumeId) -> Option<&'a GroupId> {
        self.holders.get(&volume).copied()
    }
}
