//! What runs, where, and what is wanted: orgs, apps, envs, releases, instances, nodes.
//!
//! [`Runtime`] is folded from events by `fold` and nothing else; the planner's
//! own model is a part of it and kept in step. `write` decides what principals
//! ask for, `steps` what the planner wants, `notice` what nodes and loops say;
//! `read` shows it. Start with `record` for what there is.

pub(crate) mod fold;
pub mod ipam;
pub mod notice;
pub mod quota;
mod read;
pub mod record;
pub mod routing;
pub mod spec;
pub mod steps;
pub mod write;

use std::collections::BTreeMap;

use fluffy_api::types::Challenge;
use fluffy_base::id::{
    AppId, AttachmentId, DeployId, DrainId, EnrollmentTokenId, EnvId, ExecSessionId, InstanceId,
    NodeId, OrgId, ProjectId, ReleaseId, RestoreId, RouteId, SecretBundleId, VolumeId,
    VolumeSnapshotId,
};
use fluffy_base::{Digest, Timestamp};
use fluffy_ledger::Event;
use fluffy_planner::lifecycle::RouteState;
use fluffy_planner::model::{self as planner, GroupId};
use serde::{Deserialize, Serialize};

use crate::event::Body;
use crate::state::{State, digest};

pub use notice::Notice;
pub(crate) use notice::notice;
pub(crate) use read::{answer, read};
pub(crate) use write::{exec_denied, retires_from, still_asked, write};

/// What runs, where, and what is wanted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Runtime {
    /// What the planner sees; everything in it is nowhere else.
    pub plan: planner::State,
    /// The cluster as a whole.
    pub cluster: record::Cluster,
    /// Addresses.
    pub ipam: ipam::Ipam,
    /// The tenants.
    pub orgs: BTreeMap<OrgId, record::Org>,
    /// Labels that group apps.
    pub projects: BTreeMap<ProjectId, record::Project>,
    /// The apps.
    pub apps: BTreeMap<AppId, record::App>,
    /// The envs, also while they are being cleared away.
    pub envs: BTreeMap<EnvId, record::Env>,
    /// The releases.
    pub releases: BTreeMap<ReleaseId, record::Release>,
    /// The deploys, final ones as long as they are kept.
    pub deploys: BTreeMap<DeployId, record::Deploy>,
    /// What is shown of groups.
    pub groups: BTreeMap<GroupId, record::GroupNotes>,
    /// The instances that are not collected.
    pub instances: BTreeMap<InstanceId, record::Instance>,
    /// The nodes, those included that are out for good.
    pub nodes: BTreeMap<NodeId, record::Node>,
    /// Emptyings of nodes.
    pub drains: BTreeMap<DrainId, record::DrainRecord>,
    /// Permissions to join.
    pub enrollment_tokens: BTreeMap<EnrollmentTokenId, record::EnrollmentToken>,
    /// The routes.
    pub routes: BTreeMap<RouteId, record::Route>,
    /// The secrets of envs.
    pub bundles: BTreeMap<SecretBundleId, record::SecretBundle>,
    /// The volumes.
    pub volumes: BTreeMap<VolumeId, record::Volume>,
    /// The volumes of process types.
    pub attachments: BTreeMap<AttachmentId, record::Attachment>,
    /// Backups.
    pub snapshots: BTreeMap<VolumeSnapshotId, record::Snapshot>,
    /// Volumes made from backups.
    pub restores: BTreeMap<RestoreId, record::Restore>,
    /// Commands run in instances.
    pub execs: BTreeMap<ExecSessionId, record::ExecSession>,
    /// Names of what is gone, each until it can be taken again.
    pub reserved: BTreeMap<String, Timestamp>,
    /// What is over and kept for a while.
    pub finished: record::Finished,
    /// The last event that changed what edges do.
    pub routing_seq: u64,
    /// When the last event happened.
    pub heard_at: Option<Timestamp>,
}

impl Runtime {
    /// Folds one event in; those that do not concern it change nothing.
    ///
    /// Gives back the aggregates that it forgets, which get no event any more.
    pub(crate) fn apply(&mut self, event: &Event, body: &Body) -> Vec<(&'static str, String)> {
        fold::apply(self, event, body)
    }

    /// The digests of what is shown of this part, by the name of the view.
    pub(crate) fn digests(&self) -> Vec<(&'static str, Digest)> {
        let desired: Vec<_> = self.envs.values().map(|env| &env.desired).collect();
        let scale: Vec<_> = self.envs.values().map(|env| &env.scales).collect();
        let plan = &self.plan;
        vec![
            ("projects", digest(&(&self.projects, &self.reserved))),
            ("apps", digest(&self.apps)),
            ("envs", digest(&(&self.envs, &plan.envs))),
            ("releases", digest(&self.releases)),
            ("secret_bundles", digest(&(&self.bundles, &self.cluster))),
            ("deploys", digest(&(&self.deploys, &plan.deploys))),
            ("env_desired_releases", digest(&desired)),
            ("env_scale", digest(&scale)),
            ("routes", digest(&(&self.routes, self.routing_seq))),
            ("volumes", digest(&(&self.volumes, &plan.volumes))),
            ("attachments", digest(&self.attachments)),
            ("snapshots", digest(&self.snapshots)),
            ("restores", digest(&self.restores)),
            ("instances", digest(&(&self.instances, &plan.instances))),
            ("groups", digest(&(&self.groups, &plan.groups))),
            ("nodes", digest(&(&self.nodes, &plan.nodes, &self.drains))),
            ("enrollment_tokens", digest(&self.enrollment_tokens)),
            ("ipam", digest(&self.ipam)),
            ("exec_sessions", digest(&(&self.execs, &self.finished))),
            ("org_usage", digest(&(&self.orgs, &plan.orgs))),
        ]
    }

    /// The routes whose hostnames wait to be proven, and are not proven to be
    /// another env's.
    #[must_use]
    pub fn unproven(&self) -> Vec<Unproven> {
        let proven = self.routes.values().filter(|it| it.verified);
        let proven = proven.filter_map(|it| Some((it.hostname.as_deref()?, it.env)));
        let held: BTreeMap<&str, EnvId> = proven.collect();
        let routes = self.routes.iter();
        let waiting = routes.filter(|(_, it)| !it.verified && it.state != RouteState::Deleting);
        let unproven = waiting.filter_map(|(id, it)| {
            let hostname = it.hostname.clone()?;
            if held.get(&*hostname).is_some_and(|holder| *holder != it.env) {
                return None;
            }
            let challenge = read::challenge_of(*id, &hostname);
            Some(Unproven {
                route: *id,
                env: it.env,
                hostname,
                challenge,
            })
        });
        unproven.collect()
    }

    /// How many instances of a node have to go before it is empty, with those
    /// that have volumes or without them.
    pub(crate) fn left_to_move(&self, node: NodeId, stateful: planner::Stateful) -> u64 {
        let here = self.plan.instances.values();
        let here = here.filter(|it| it.node == node && !it.has_ended());
        let all = stateful == planner::Stateful::Blocks;
        let left = here.filter(|it| all || it.volumes.is_empty());
        u64::try_from(left.count()).unwrap_or(u64::MAX)
    }

    /// What the planner sees, where edges have applied the routing up to here.
    ///
    /// None means that there is no edge to wait for.
    #[must_use]
    pub fn planner_input(&self, edges: Option<u64>) -> planner::State {
        let mut plan = self.plan.clone();
        let Some(applied) = edges else {
            return plan;
        };
        for (id, instance) in &mut plan.instances {
            let left = self.instances.get(id).and_then(|it| it.left_at);
            let (env, process) = (instance.group.env, &*instance.group.process);
            let mut routes = self.routes.values();
            instance.routed = left.is_none_or(|left| applied < left)
                && routes.any(|it| it.env == env && it.backend_process == process);
        }
        plan
    }
}

/// A route whose hostname waits to be proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unproven {
    /// Which route.
    pub route: RouteId,
    /// Of which env.
    pub env: EnvId,
    /// The name.
    pub hostname: String,
    /// What would prove it.
    pub challenge: Challenge,
}

/// The limits of an org, by dimension.
pub(crate) fn limits(state: &State, org: OrgId) -> BTreeMap<String, u64> {
    let all = quota::Dimension::ALL.iter();
    let limits = all.map(|dimension| {
        let limit = state.runtime.limit(org, *dimension).min(quota::UNLIMITED);
        (dimension.as_str().to_owned(), limit)
    });
    limits.collect()
}
