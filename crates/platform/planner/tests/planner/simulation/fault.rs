//! A planner that believes something false: one mistake for each invariant.
//!
//! The planner itself is always the real one; a fault changes what it, and the
//! check that its steps go through, are shown. Invariants look at the truth.

use std::borrow::Cow;

use fluffy_planner::lifecycle::{DeployState, InstanceStatus, NodeState, VolumeState};
use fluffy_planner::model::{Desired, Driver, EnvIsolation, State};
use fluffy_planner::reason::{Condition, FailureReason};

use crate::ground::{node_id, org_id};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None: the planner sees what is.
    None,
    /// Nodes seem to have four times their memory.
    MoreMemory,
    /// What shall be stopped seems to be gone.
    StoppedIsGone,
    /// Quotas seem to be twice as large.
    MoreQuota,
    /// Quotas seem to be used up.
    NoQuota,
    /// Whoever is drained seems to have given its volumes back.
    ClaimsForgotten,
    /// Volumes seem to be at home on the first node.
    HomesMixedUp,
    /// Nothing seems to have a volume.
    DataUnseen,
    /// Deploys seem to allow two fewer.
    MoreUnavailable,
    /// Deploys seem to allow two more.
    MoreSurge,
    /// Every node seems to be active.
    NodesAllActive,
    /// No env seems to be protected.
    NothingProtected,
    /// Everything seems to run with the strongest driver.
    DriversUnseen,
    /// There seems to be one group less.
    GroupUnseen,
    /// There seem to be no deploys.
    DeploysUnseen,
    /// Paused deploys seem to go on.
    PausesUnseen,
    /// No condition seems to be shown.
    ConditionsForgotten,
    /// Groups seem to be a version younger.
    VersionsAhead,
    /// Draining instances seem to run.
    DrainsForgotten,
    /// No edge seems to send anything anywhere.
    EdgesForgotten,
    /// No instance seems to have been replaced.
    ReplacementsForgotten,
    /// No group seems to crash.
    CrashesUnseen,
    /// All envs seem to be of one org.
    OneOrg,
}

impl Fault {
    /// The state as the planner is shown it.
    pub(crate) fn show<'a>(self, truth: &'a State) -> Cow<'a, State> {
        if self == Self::None {
            return Cow::Borrowed(truth);
        }
        let mut state = truth.clone();
        self.distort(&mut state);
        Cow::Owned(state)
    }

    fn distort(self, state: &mut State) {
        match self {
            Self::None => {}
            Self::MoreMemory => {
                for node in state.nodes.values_mut() {
                    node.capacity.memory *= 4;
                }
            }
            Self::StoppedIsGone => {
                for instance in state.instances.values_mut() {
                    if matches!(instance.desired, Desired::Stopped { .. }) {
                        instance.observed.status = InstanceStatus::Stopped;
                    }
                }
            }
            Self::MoreQuota | Self::NoQuota => {
                let factor = u64::from(self == Self::MoreQuota) * 2;
                for org in state.orgs.values_mut() {
                    org.quota.instances *= factor;
                    org.quota.memory *= factor;
                    org.quota.cpu_millis *= factor;
                }
            }
            Self::ClaimsForgotten => {
                for instance in state.instances.values_mut() {
                    if !instance.is_wanted() {
                        instance.volumes.clear();
                    }
                }
                for volume in state.volumes.values_mut() {
                    volume.state = VolumeState::Available;
                }
            }
            Self::HomesMixedUp => {
                for volume in state.volumes.values_mut() {
                    volume.home = node_id(1);
                }
            }
            Self::DataUnseen => {
                for instance in state.instances.values_mut() {
                    instance.volumes.clear();
                }
            }
            Self::MoreUnavailable | Self::MoreSurge => {
                for deploy in state.deploys.values_mut() {
                    if self == Self::MoreSurge {
                        deploy.options.max_surge += 2;
                    } else {
                        deploy.options.max_unavailable += 2;
                    }
                }
            }
            Self::NodesAllActive => {
                for node in state.nodes.values_mut() {
                    node.state = NodeState::Active;
                }
            }
            Self::NothingProtected => {
                for env in state.envs.values_mut() {
                    env.isolation = EnvIsolation::SharedKernelAllowed;
                }
            }
            Self::DriversUnseen => {
                for instance in state.instances.values_mut() {
                    instance.driver = Driver::Firecracker;
                }
            }
            Self::GroupUnseen => {
                state.groups.pop_last();
            }
            Self::DeploysUnseen => state.deploys.clear(),
            Self::PausesUnseen => {
                for deploy in state.deploys.values_mut() {
                    if deploy.state == DeployState::Paused {
                        deploy.state = DeployState::Rolling;
                    }
                }
            }
            Self::ConditionsForgotten => {
                for group in state.groups.values_mut() {
                    group.conditions.clear();
                }
            }
            Self::VersionsAhead => {
                for group in state.groups.values_mut() {
                    group.version -= 1;
                }
            }
            Self::DrainsForgotten => {
                for instance in state.instances.values_mut() {
                    if matches!(instance.desired, Desired::Draining { .. }) {
                        instance.desired = Desired::Running;
                    }
                }
            }
            Self::EdgesForgotten => {
                for instance in state.instances.values_mut() {
                    instance.routed = false;
                }
            }
            Self::ReplacementsForgotten => {
                for group in state.groups.values_mut() {
                    group.replaced.clear();
                }
            }
            Self::CrashesUnseen => {
                for instance in state.instances.values_mut() {
                    let reason = &mut instance.observed.reason;
                    if *reason == Some(FailureReason::CrashLoopBackoff) {
                        *reason = Some(FailureReason::WorkloadExited);
                    }
                }
                for group in state.groups.values_mut() {
                    group.conditions.remove(&Condition::CrashLooping);
                }
            }
            Self::OneOrg => {
                for env in state.envs.values_mut() {
                    env.org = org_id(1);
                }
            }
        }
    }
}
