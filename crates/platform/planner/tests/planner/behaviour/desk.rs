//! A server whose nodes do what they are told, a second at a time.

use std::collections::BTreeSet;

use fluffy_base::Timestamp;
use fluffy_base::id::{InstanceId, ReleaseId};
use fluffy_planner::action::{Action, Step};
use fluffy_planner::lifecycle::{DeployState, InstanceStatus, NodeState};
use fluffy_planner::model::{DeployKind, Desired, GroupId, Instance, RolloutOptions, State};
use fluffy_planner::plan;
use fluffy_planner::reason::{Condition, FailureReason};

use crate::ground::{at, spec};
use crate::server::Server;

pub(crate) struct Desk {
    pub(crate) server: Server,
    pub(crate) second: i64,
    /// Releases whose instances boot and never become ready.
    pub(crate) never_ready: BTreeSet<ReleaseId>,
    /// The fewest available and the most live members of the group watched.
    pub(crate) watched: Option<(GroupId, usize, usize)>,
}

impl Desk {
    pub(crate) fn new(state: State) -> Self {
        Self {
            server: Server::new(state),
            second: 0,
            never_ready: BTreeSet::new(),
            watched: None,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        at(self.second)
    }

    pub(crate) fn state(&mut self) -> &mut State {
        &mut self.server.state
    }

    /// Passes until there is nothing to do; says what they did.
    ///
    /// What a pass leaves for the next one is bookkeeping: it never comes back
    /// with another instance, unless it has itself opened or ended a deploy.
    pub(crate) fn pass(&mut self) -> Vec<Action> {
        let now = self.now();
        let mut all = Vec::new();
        let mut opened = true;
        for _ in 0..6 {
            let steps = plan(&self.server.state, now);
            assert_eq!(
                steps,
                plan(&self.server.state, now),
                "equal input, equal output"
            );
            let done = self.append(&steps);
            if done.is_empty() {
                return all;
            }
            let instances =
                |action: &Action| matches!(action, Action::Allocate(_) | Action::Drain { .. });
            assert!(
                opened || !done.iter().any(instances),
                "{done:#?}\nafter {all:#?}"
            );
            opened = done.iter().any(|action| match action {
                Action::OpenDeploy(_) => true,
                Action::ChangeDeploy { to, .. } => *to != DeployState::Rolling,
                _ => false,
            });
            all.extend(done);
        }
        panic!("passes find something again and again: {all:#?}");
    }

    fn append(&mut self, steps: &[Step]) -> Vec<Action> {
        let now = self.now();
        for step in steps {
            let believed = self.server.state.clone();
            let appended = self.server.append(&believed, step, now);
            assert_eq!(appended, Ok(()), "{step:#?}");
        }
        steps.iter().flat_map(|step| step.actions.clone()).collect()
    }

    /// Lets seconds go by: a pass, then the nodes, in each.
    pub(crate) fn run(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.pass();
            self.obey();
            self.second += 1;
            if let Some((group, fewest, most)) = self.watched.clone() {
                let available = self.available(&group);
                let live = self.live(&group).len();
                self.watched = Some((group, fewest.min(available), most.max(live)));
            }
        }
    }

    pub(crate) fn watch(&mut self, group: &GroupId) {
        let live = self.live(group).len();
        self.watched = Some((group.clone(), self.available(group), live));
    }

    /// Every reachable node takes one step with each of its instances.
    fn obey(&mut self) {
        let now = self.now();
        let ids: Vec<InstanceId> = self.server.state.instances.keys().copied().collect();
        for id in ids {
            let instance = self.server.state.instances[&id].clone();
            if self.server.state.is_lost(instance.node) {
                continue;
            }
            if let Some(next) = self.next(&instance) {
                self.server.report(id, next, None, now);
            }
            let routed = instance.observed.status == InstanceStatus::Ready && instance.is_wanted();
            if let Some(instance) = self.server.state.instances.get_mut(&id) {
                instance.routed = routed;
            }
        }
    }

    fn next(&self, instance: &Instance) -> Option<InstanceStatus> {
        let status = instance.observed.status;
        let ends = match instance.desired {
            Desired::Running => false,
            Desired::Draining { stop_allowed, .. } => stop_allowed.is_some(),
            Desired::Stopped { .. } => true,
        };
        let release = self.server.state.groups[&instance.group].spec.release;
        let stuck = self.never_ready.contains(&release)
            && instance.spec == self.server.state.groups[&instance.group].spec.hash;
        match status {
            InstanceStatus::Stopped => {
                let gone = matches!(instance.desired, Desired::Stopped { .. });
                gone.then_some(InstanceStatus::Collected)
            }
            InstanceStatus::Draining => Some(InstanceStatus::Stopped),
            InstanceStatus::Collected => None,
            _ if ends => Some(InstanceStatus::Draining),
            InstanceStatus::Allocated => Some(InstanceStatus::Preparing),
            InstanceStatus::Preparing => Some(InstanceStatus::Booting),
            InstanceStatus::Booting if !stuck => Some(InstanceStatus::Ready),
            InstanceStatus::Lost => Some(InstanceStatus::Ready),
            InstanceStatus::Booting
            | InstanceStatus::Ready
            | InstanceStatus::Unhealthy
            | InstanceStatus::Failed => None,
        }
    }

    /// Deploys a release that differs in its number alone.
    pub(crate) fn deploy(&mut self, groups: &[&GroupId], release: u128, options: RolloutOptions) {
        let mut wanted = Vec::new();
        for group in groups {
            let old = self.server.state.groups[*group].spec.clone();
            let mut new = spec(group, release);
            (new.resources, new.volumes) = (old.resources, old.volumes);
            new.secrets = old.secrets;
            wanted.push(((*group).clone(), new.release));
            self.server.release(group, new);
        }
        let now = self.now();
        self.server.begin(DeployKind::Deploy, wanted, options, now);
    }

    pub(crate) fn last_deploy(&self) -> (DeployKind, DeployState) {
        let (_, deploy) = self.server.state.deploys.last_key_value().unwrap();
        (deploy.kind, deploy.state)
    }

    pub(crate) fn fail(&mut self, id: InstanceId, reason: FailureReason) {
        let now = self.now();
        self.server
            .report(id, InstanceStatus::Failed, Some(reason), now);
    }

    pub(crate) fn lose(&mut self, node: u128) {
        let id = crate::ground::node_id(node);
        self.state().nodes.get_mut(&id).unwrap().state = NodeState::Offline;
        for instance in self.state().instances.values_mut() {
            if instance.node == id && !instance.has_ended() {
                instance.observed.status = InstanceStatus::Lost;
            }
        }
    }

    pub(crate) fn members(&self, group: &GroupId) -> Vec<(InstanceId, &Instance)> {
        let all = self.server.state.instances.iter();
        let own = all.filter(|(_, instance)| instance.group == *group);
        own.map(|(id, instance)| (*id, instance)).collect()
    }

    pub(crate) fn live(&self, group: &GroupId) -> Vec<(InstanceId, &Instance)> {
        let mut members = self.members(group);
        members.retain(|(_, instance)| self.server.state.counts(instance));
        members
    }

    /// How many have been ready long enough.
    pub(crate) fn available(&self, group: &GroupId) -> usize {
        let min_ready = self.server.state.groups[group].spec.min_ready;
        let members = self.members(group);
        let ready = members.iter().filter(|(_, instance)| {
            instance.is_wanted()
                && instance.observed.status == InstanceStatus::Ready
                && self.now().since(instance.observed.since) >= min_ready
        });
        ready.count()
    }

    pub(crate) fn conditions(&self, group: &GroupId) -> Vec<Condition> {
        let conditions = &self.server.state.groups[group].conditions;
        conditions.iter().copied().collect()
    }

    /// The nodes that live members are on.
    pub(crate) fn nodes(&self, group: &GroupId) -> Vec<u128> {
        let live = self.live(group);
        let mut nodes: Vec<u128> = live.iter().map(|(_, it)| it.node.to_bits()).collect();
        nodes.sort_unstable();
        nodes
    }
}
