//! The lifecycles: every state of every resource, and what may lead where.
//!
//! One table per resource, and `can` to ask it; what is not in a table is
//! refused by name, whoever asks. Holds no state and changes none.
//! Next: `model` for what the planner sees of these resources.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who or what causes a transition: a capability, a report or a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A principal with `approval.decide`, who is not the requester.
    ApprovalDecide,
    /// The loop that lets approvals expire.
    Approvals,
    /// The client of an exec session.
    Client,
    /// The controller of deploys.
    DeployController,
    /// An edge's report.
    Edge,
    /// An enrolment token.
    Enrolment,
    /// A principal with `env.deploy`.
    EnvDeploy,
    /// A principal with `env.rollback`.
    EnvRollback,
    /// A principal with `instance.exec`, and policy.
    InstanceExec,
    /// A principal with `instance.restart`.
    InstanceRestart,
    /// The loop that watches heartbeats.
    Liveness,
    /// A node's report.
    Node,
    /// A principal with `node.manage`.
    NodeManage,
    /// A principal with `release.block`.
    ReleaseBlock,
    /// A principal with `release.create`.
    ReleaseCreate,
    /// The loop that ends what is kept long enough.
    Retention,
    /// A principal with `route.write`.
    RouteWrite,
    /// The scheduler.
    Scheduler,
    /// A principal with `secret.write`.
    SecretWrite,
    /// The control plane by itself.
    System,
    /// A principal with `volume.delete`.
    VolumeDelete,
    /// A principal with `volume.restore`.
    VolumeRestore,
    /// A principal with `volume.write`.
    VolumeWrite,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 23] = [
        Self::ApprovalDecide,
        Self::Approvals,
        Self::Client,
        Self::DeployController,
        Self::Edge,
        Self::Enrolment,
        Self::EnvDeploy,
        Self::EnvRollback,
        Self::InstanceExec,
        Self::InstanceRestart,
        Self::Liveness,
        Self::Node,
        Self::NodeManage,
        Self::ReleaseBlock,
        Self::ReleaseCreate,
        Self::Retention,
        Self::RouteWrite,
        Self::Scheduler,
        Self::SecretWrite,
        Self::System,
        Self::VolumeDelete,
        Self::VolumeRestore,
        Self::VolumeWrite,
    ];

    /// The cause as people read it; a capability as it is written in grants.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ApprovalDecide => "approval.decide",
            Self::Approvals => "approvals",
            Self::Client => "client",
            Self::DeployController => "deploys",
            Self::Edge => "edge",
            Self::Enrolment => "enrolment",
            Self::EnvDeploy => "env.deploy",
            Self::EnvRollback => "env.rollback",
            Self::InstanceExec => "instance.exec",
            Self::InstanceRestart => "instance.restart",
            Self::Liveness => "liveness",
            Self::Node => "node",
            Self::NodeManage => "node.manage",
            Self::ReleaseBlock => "release.block",
            Self::ReleaseCreate => "release.create",
            Self::Retention => "retention",
            Self::RouteWrite => "route.write",
            Self::Scheduler => "scheduler",
            Self::SecretWrite => "secret.write",
            Self::System => "system",
            Self::VolumeDelete => "volume.delete",
            Self::VolumeRestore => "volume.restore",
            Self::VolumeWrite => "volume.write",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A transition that no table lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a {resource} cannot go from {from} to {to} by {cause}")]
pub struct InvalidTransition {
    /// The kind of resource.
    pub resource: &'static str,
    /// Where it is; `new` if it does not exist.
    pub from: &'static str,
    /// Where it should have gone.
    pub to: &'static str,
    /// Who wanted it.
    pub cause: Cause,
}

/// Defines the states of one resource and its table.
///
/// A row is `to: [from …] by [cause …]`; `new` is where nothing exists yet.
macro_rules! lifecycle {
    (
        $(#[$doc:meta])*
        $name:ident, $resource:literal {
            $($(#[$state_doc:meta])* $state:ident = $text:literal,)*
        }
        $($to:ident: [$($from:ident)*] by [$($cause:ident)*];)*
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$state_doc])* $state,)*
        }

        impl $name {
            /// Every state, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$state),*];

            /// The state as it is written in events.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$state => $text,)*
                }
            }

            /// The state that is written like this.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|state| state.as_str() == text)
            }

            /// Whether nothing leads on from here.
            #[must_use]
            pub fn is_final(self) -> bool {
                let from = Some(self);
                !(false $($(|| lifecycle!(@from from, $from))*)*)
            }

            /// Says whether `cause` may lead from `from` (or from nothing) to `to`.
            ///
            /// # Errors
            /// The table does not list it.
            pub fn can(
                from: Option<Self>,
                to: Self,
                cause: Cause,
            ) -> Result<(), InvalidTransition> {
                let listed = false
                    $(|| (to == Self::$to
                        && (false $(|| lifecycle!(@from from, $from))*)
                        && (false $(|| cause == Cause::$cause)*)))*;
                if listed {
                    return Ok(());
                }
                Err(InvalidTransition {
                    resource: $resource,
                    from: from.map_or("new", Self::as_str),
                    to: to.as_str(),
                    cause,
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
    (@from $given:ident, new) => { $given.is_none() };
    (@from $given:ident, $state:ident) => { $given == Some(Self::$state) };
}

lifecycle! {
    /// Where a release stands; "current" is a relation to an env, no state.
    ReleaseState, "release" {
        /// It can be deployed.
        Available = "available",
        /// It stays where it runs and goes nowhere else.
        Blocked = "blocked",
        /// Only its metadata is left.
        Retired = "retired",
    }
    Available: [new] by [ReleaseCreate];
    Available: [Blocked] by [ReleaseBlock];
    Blocked: [Available] by [ReleaseBlock];
    Retired: [Available Blocked] by [Retention];
}

lifecycle! {
    /// Where a deploy stands; a group has one that is not final, or none.
    DeployState, "deploy" {
        /// Recorded; nothing has happened yet.
        Queued = "queued",
        /// New instances come and old ones go.
        Rolling = "rolling",
        /// The mix stays as it is until somebody goes on or time runs out.
        Paused = "paused",
        /// Every group has its full count on the new spec, and no old one.
        Succeeded = "succeeded",
        /// Its time or its retries ran out.
        Failed = "failed",
        /// Somebody called it off.
        Canceled = "canceled",
        /// A later deploy took over.
        Superseded = "superseded",
    }
    Queued: [new] by [EnvDeploy EnvRollback InstanceRestart System];
    Rolling: [Queued] by [DeployController];
    Succeeded: [Rolling] by [DeployController];
    Paused: [Rolling] by [EnvDeploy DeployController];
    Rolling: [Paused] by [EnvDeploy DeployController];
    Failed: [Rolling Paused] by [DeployController];
    Canceled: [Queued Rolling Paused] by [EnvDeploy];
    Superseded: [Queued Rolling Paused] by [EnvDeploy EnvRollback InstanceRestart System];
}

lifecycle! {
    /// What the scheduler wants of an instance.
    DesiredState, "instance" {
        /// It shall run.
        Running = "running",
        /// It gets no new connections and ends soon.
        Draining = "draining",
        /// It shall be gone.
        Stopped = "stopped",
    }
    Running: [new] by [Scheduler];
    Draining: [Running] by [Scheduler];
    Stopped: [Draining Running] by [Scheduler];
}

lifecycle! {
    /// What is known of an instance.
    InstanceStatus, "instance status" {
        /// It has a node, which has not answered yet.
        Allocated = "allocated",
        /// The node prepares image and disks.
        Preparing = "preparing",
        /// The machine monitor runs, the guest answers soon.
        Booting = "booting",
        /// It passes its health check.
        Ready = "ready",
        /// It was ready and does not pass its health check.
        Unhealthy = "unhealthy",
        /// It ended or did not start, for a reason.
        Failed = "failed",
        /// Nobody knows: its node is offline.
        Lost = "lost",
        /// It was told to end.
        Draining = "draining",
        /// It has ended.
        Stopped = "stopped",
        /// Nothing of it is left on the node.
        Collected = "collected",
    }
    Allocated: [new] by [Scheduler];
    Preparing: [Allocated Lost] by [Node];
    Booting: [Preparing Failed Lost] by [Node];
    Ready: [Booting Unhealthy Lost] by [Node];
    Unhealthy: [Ready Lost] by [Node];
    Failed: [Preparing Booting Ready Unhealthy Lost] by [Node];
    Lost: [Allocated Preparing Booting Ready Unhealthy Failed Draining] by [Liveness];
    Draining: [Allocated Preparing Booting Ready Unhealthy Failed Lost] by [Node];
    Stopped: [Draining] by [Node];
    Collected: [Stopped] by [Node];
}

lifecycle! {
    /// Where a node stands.
    NodeState, "node" {
        /// Its token was good; it has not confirmed yet.
        Enrolled = "enrolled",
        /// It takes instances.
        Active = "active",
        /// It keeps what it has and takes nothing new.
        Degraded = "degraded",
        /// Its instances are being moved away.
        Draining = "draining",
        /// Nothing that could move is left on it.
        Drained = "drained",
        /// It has not been heard of for a minute.
        Offline = "offline",
        /// Switched off by an operator.
        Disabled = "disabled",
        /// Taken out of the platform.
        Removed = "removed",
        /// Its certificate counts no more.
        Revoked = "revoked",
    }
    Enrolled: [new] by [Enrolment];
    Active: [Enrolled] by [Node];
    Degraded: [Active] by [Liveness];
    Active: [Degraded] by [Liveness];
    Offline: [Active Degraded Draining] by [Liveness];
    Active: [Offline] by [Liveness];
    Degraded: [Offline] by [Liveness];
    Draining: [Offline] by [Liveness];
    Draining: [Active Degraded] by [NodeManage];
    Drained: [Draining] by [Scheduler];
    Active: [Draining Drained Disabled] by [NodeManage];
    Disabled: [Enrolled Active Degraded Draining Drained Offline] by [NodeManage];
    Removed: [Drained Disabled] by [NodeManage];
    Revoked: [Enrolled Active Degraded Draining Drained Offline Disabled] by [NodeManage];
    Revoked: [Enrolled] by [Liveness];
}

lifecycle! {
    /// Where a route stands.
    RouteState, "route" {
        /// It has its claims; its hostname or its edges are awaited.
        Pending = "pending",
        /// It serves.
        Active = "active",
        /// It has no ready backend, or one that refuses the PROXY header.
        Degraded = "degraded",
        /// Something that it needs is missing.
        Blocked = "blocked",
        /// Edges are dropping it.
        Deleting = "deleting",
        /// Its claims are free again.
        Deleted = "deleted",
    }
    Pending: [new] by [RouteWrite];
    Active: [Pending] by [Edge];
    Degraded: [Active] by [System];
    Active: [Degraded] by [System];
    Blocked: [Pending Active Degraded] by [System];
    Pending: [Blocked] by [System];
    Deleting: [Pending Active Degraded Blocked] by [RouteWrite];
    Deleted: [Deleting] by [RouteWrite];
}

lifecycle! {
    /// Where a volume stands.
    VolumeState, "volume" {
        /// Its home node makes it.
        Creating = "creating",
        /// It can be attached.
        Available = "available",
        /// It is being handed to its instance.
        Attaching = "attaching",
        /// An instance has it.
        InUse = "in_use",
        /// It is being taken back.
        Detaching = "detaching",
        /// Its home node is offline.
        Unavailable = "unavailable",
        /// It could not be made, or its data is damaged.
        Error = "error",
        /// It is being removed.
        Deleting = "deleting",
        /// It is gone; its backups are not.
        Deleted = "deleted",
    }
    Creating: [new] by [VolumeWrite EnvDeploy];
    Available: [Creating] by [Node];
    Attaching: [Available] by [Node];
    InUse: [Attaching] by [Node];
    Detaching: [InUse] by [Node];
    Available: [Detaching] by [Node];
    Unavailable: [Available InUse] by [Liveness];
    Available: [Unavailable] by [Liveness];
    InUse: [Unavailable] by [Liveness];
    Error: [Creating Available Attaching InUse Detaching Unavailable Deleting] by [Node];
    Deleting: [Available Error] by [VolumeDelete];
    Deleted: [Deleting] by [VolumeDelete];
}

lifecycle! {
    /// Where an attachment stands.
    AttachmentState, "attachment" {
        /// The volume belongs to the group.
        Active = "active",
        /// It does no more.
        Deleted = "deleted",
    }
    Active: [new] by [VolumeWrite EnvDeploy];
    Deleted: [Active] by [VolumeWrite];
}

lifecycle! {
    /// Where a snapshot or a restore stands.
    JobState, "snapshot or restore" {
        /// Its node has not begun.
        Queued = "queued",
        /// Its node is at it.
        Running = "running",
        /// The backup is durable, or the new volume is made.
        Succeeded = "succeeded",
        /// It came to nothing.
        Failed = "failed",
    }
    Queued: [new] by [VolumeWrite VolumeRestore];
    Running: [Queued] by [Node];
    Succeeded: [Running] by [Node];
    Failed: [Running] by [Node];
}

lifecycle! {
    /// Where the secrets of an env stand; without any there is no bundle.
    SecretBundleState, "secret bundle" {
        /// Every group runs with the current version.
        Active = "active",
        /// Groups are getting the current version.
        Rotating = "rotating",
        /// Some group did not get it.
        RotationFailed = "rotation_failed",
        /// It is gone.
        Deleted = "deleted",
    }
    Active: [new] by [SecretWrite];
    Rotating: [Active RotationFailed] by [SecretWrite];
    Active: [Rotating] by [DeployController];
    RotationFailed: [Rotating] by [DeployController];
    Deleted: [Active Rotating RotationFailed] by [SecretWrite];
}

lifecycle! {
    /// Where one version of secrets stands.
    SecretVersionState, "secret version" {
        /// New instances get it.
        Current = "current",
        /// One can go back to it.
        Previous = "previous",
        /// Its ciphertext is gone.
        Destroyed = "destroyed",
    }
    Current: [new Previous] by [SecretWrite];
    Previous: [Current] by [SecretWrite];
    Destroyed: [Previous] by [SecretWrite Retention];
}

lifecycle! {
    /// Where an exec session stands.
    ExecState, "exec session" {
        /// Policy has not answered.
        Requested = "requested",
        /// Policy said no.
        Denied = "denied",
        /// The client may connect.
        Granted = "granted",
        /// The client is connected.
        Connected = "connected",
        /// It is over.
        Ended = "ended",
    }
    Requested: [new] by [InstanceExec];
    Granted: [Requested] by [InstanceExec];
    Denied: [Requested] by [InstanceExec];
    Connected: [Granted] by [Client];
    Ended: [Granted Connected] by [Client InstanceExec Node System];
}

lifecycle! {
    /// Where a command that waits for a person stands.
    ApprovalState, "approval" {
        /// Nobody has answered.
        Pending = "pending",
        /// Somebody said yes.
        Approved = "approved",
        /// Somebody said no.
        Denied = "denied",
        /// Nobody answered in time.
        Expired = "expired",
    }
    Pending: [new] by [System];
    Approved: [Pending] by [ApprovalDecide];
    Denied: [Pending] by [ApprovalDecide];
    Expired: [Pending] by [Approvals];
}

#[cfg(test)]
mod tests;
