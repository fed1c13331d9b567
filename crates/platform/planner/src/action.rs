//! What a pass wants done: steps, each one append that happens whole or not.
//!
//! Inert values; whoever carries them out checks each step with `guard` in the
//! transaction that appends it, and mints the ids. Next: `plan`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_base::id::{DeployId, EnvId, InstanceId, NodeId, ReleaseId};

use crate::lifecycle::{DeployState, NodeState, SecretBundleState};
use crate::model::{DeployKind, Driver, GroupId, Resources};
use crate::reason::{Condition, DeployFailure, DrainReason, StopReason};

/// One append: all of its actions, or none.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The aggregates that it was planned on, each as it was then.
    pub expects: Vec<Expected>,
    /// What is to be done, in this order.
    pub actions: Vec<Action>,
}

/// An aggregate and the version that a step was planned on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// An env.
    Env(EnvId, u64),
    /// A group.
    Group(GroupId, u64),
    /// A deploy.
    Deploy(DeployId, u64),
    /// A node.
    Node(NodeId, u64),
}

/// One thing that is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make a new instance of a group's current spec.
    Allocate(Allocation),
    /// Take an instance out of service in good order.
    Drain {
        /// Which.
        instance: InstanceId,
        /// How long it has to end.
        grace: Duration,
        /// Why.
        reason: DrainReason,
        /// The deploy that wants it, if it is one.
        deploy: Option<DeployId>,
    },
    /// Let a draining instance end: no edge sends it anything any more.
    AllowStop {
        /// Which.
        instance: InstanceId,
    },
    /// Count an instance as stopped.
    Stop {
        /// Which.
        instance: InstanceId,
        /// Why.
        reason: StopReason,
    },
    /// Show or hide a condition of a group.
    SetCondition {
        /// Which group.
        group: GroupId,
        /// What.
        condition: Condition,
        /// Whether it holds now.
        active: bool,
        /// The group's deploy, if one goes on.
        deploy: Option<DeployId>,
    },
    /// Record that instances could not be placed.
    RecordFailure {
        /// Which group.
        group: GroupId,
        /// How many.
        wanted: u32,
        /// Why not.
        reason: Condition,
        /// How many nodes each filter refused.
        rejected: Rejections,
        /// The group's deploy, if one goes on.
        deploy: Option<DeployId>,
    },
    /// Move a deploy on.
    ChangeDeploy {
        /// Which.
        deploy: DeployId,
        /// Where to.
        to: DeployState,
        /// Why, if it does not go well.
        why: Option<DeployFailure>,
    },
    /// Begin a deploy of the platform's own.
    OpenDeploy(OpenDeploy),
    /// Move a node on.
    ChangeNode {
        /// Which.
        node: NodeId,
        /// Where to.
        to: NodeState,
    },
    /// Name the instances that keep a node from being drained.
    SetBlockers {
        /// Which node.
        node: NodeId,
        /// Those with volumes on it.
        blockers: BTreeSet<InstanceId>,
    },
    /// Move an env's secrets on.
    ChangeSecrets {
        /// Whose.
        env: EnvId,
        /// Where to.
        to: SecretBundleState,
    },
}

/// A new instance, but for its id and its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Of which group.
    pub group: GroupId,
    /// On which node.
    pub node: NodeId,
    /// What runs it.
    pub driver: Driver,
    /// The spec that it is made by.
    pub spec: Digest,
    /// What is booked for it, overhead included.
    pub booking: Resources,
    /// The deploy that wants it, if it is one.
    pub deploy: Option<DeployId>,
}

/// A deploy of the platform's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenDeploy {
    /// Where.
    pub env: EnvId,
    /// What for: a rollback, or a restart with new secrets.
    pub kind: DeployKind,
    /// Each group with the release that it gets; none keeps the one it has.
    pub groups: BTreeMap<GroupId, Option<ReleaseId>>,
    /// Groups that nobody wants any more: what failed had added them.
    pub cleared: BTreeSet<GroupId>,
    /// The deploy whose failure made it, if one did.
    pub because: Option<DeployId>,
}

/// How many nodes each filter refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rejections(pub BTreeMap<Condition, u32>);

impl Rejections {
    /// The reason of the node that came furthest: what is missing last.
    ///
    /// Conditions are ordered as the filters are.
    #[must_use]
    pub fn reason(&self) -> Condition {
        let last = self.0.last_key_value();
        last.map_or(Condition::NoNodesActive, |(condition, _)| *condition)
    }
}
