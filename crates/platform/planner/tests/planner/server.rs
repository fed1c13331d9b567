//! The control plane in small: checks a step as the append would, and applies
//! it; carries out commands, and hears reports.
//!
//! Its checks are its own and know nothing of how the planner counts.

use std::collections::BTreeMap;

use fluffy_base::Timestamp;
use fluffy_base::id::{DeployId, InstanceId, NodeId, OrgId, ReleaseId};
use fluffy_planner::action::{Action, Allocation, Expected, OpenDeploy, Step};
use fluffy_planner::lifecycle::{
    Cause, DeployState, DesiredState, InstanceStatus, NodeState, SecretBundleState, VolumeState,
};
use fluffy_planner::model::{
    Deploy, DeployKind, Desired, EnvIsolation, EnvLife, GroupId, Instance, Observed, Replaced,
    Resources, RolloutOptions, SecretUse, Secrets, Spec, State,
};
use fluffy_planner::reason::{DrainReason, FailureClass, FailureReason};

use crate::ground::{hash, options};

pub(crate) struct Server {
    pub(crate) state: State,
    /// Every spec that a release ever had in a group.
    specs: BTreeMap<(GroupId, ReleaseId), Spec>,
    next_instance: u128,
    next_deploy: u128,
}

/// Why an append is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Somebody else was faster.
    Stale,
    /// It would break a rule.
    Rule(String),
}

fn rule<T>(text: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::Rule(text.into()))
}

impl Server {
    pub(crate) fn new(state: State) -> Self {
        let specs = state.groups.iter().map(|(id, group)| {
            let key = (id.clone(), group.spec.release);
            (key, group.spec.clone())
        });
        Self {
            specs: specs.collect(),
            state,
            next_instance: 1,
            next_deploy: 1000,
        }
    }

    /// Another server that knows the same.
    pub(crate) fn with_specs_of(other: &Self) -> Self {
        Self {
            state: other.state.clone(),
            specs: other.specs.clone(),
            next_instance: other.next_instance,
            next_deploy: other.next_deploy,
        }
    }

    /// Appends a step if what is believed allows it.
    pub(crate) fn append(
        &mut self,
        believed: &State,
        step: &Step,
        now: Timestamp,
    ) -> Result<(), Refused> {
        self.check(believed, step)?;
        for action in &step.actions {
            self.apply(action, now);
        }
        for expected in &step.expects {
            match expected {
                Expected::Env(id, _) => self.state.envs.get_mut(id).unwrap().version += 1,
                Expected::Group(id, _) => self.state.groups.get_mut(id).unwrap().version += 1,
                Expected::Deploy(id, _) => self.state.deploys.get_mut(id).unwrap().version += 1,
                Expected::Node(id, _) => self.state.nodes.get_mut(id).unwrap().version += 1,
            }
        }
        Ok(())
    }

    fn check(&self, believed: &State, step: &Step) -> Result<(), Refused> {
        for expected in &step.expects {
            let state = &self.state;
            let (now, then) = match expected {
                Expected::Env(id, then) => (state.envs.get(id).map(|it| it.version), then),
                Expected::Group(id, then) => (state.groups.get(id).map(|it| it.version), then),
                Expected::Deploy(id, then) => (state.deploys.get(id).map(|it| it.version), then),
                Expected::Node(id, then) => (state.nodes.get(id).map(|it| it.version), then),
            };
            if now != Some(*then) {
                return Err(Refused::Stale);
            }
        }
        let mut booked: Vec<(NodeId, OrgId, Resources)> = Vec::new();
        for action in &step.actions {
            match action {
                Action::Allocate(allocation) => {
                    check_allocation(believed, allocation, &booked)?;
                    let org = believed.envs[&allocation.group.env].org;
                    booked.push((allocation.node, org, allocation.booking));
                }
                Action::Drain { instance, .. } => {
                    self.check_desired(*instance, DesiredState::Draining)?;
                }
                Action::Stop { instance, .. } => {
                    self.check_desired(*instance, DesiredState::Stopped)?;
                }
                Action::ChangeDeploy { deploy, to, .. } => {
                    let from = self.state.deploys[deploy].state;
                    DeployState::can(Some(from), *to, Cause::DeployController)
                        .or_else(|error| rule(error.to_string()))?;
                }
                Action::ChangeNode { node, to } => {
                    let from = self.state.nodes[node].state;
                    NodeState::can(Some(from), *to, Cause::Scheduler)
                        .or_else(|error| rule(error.to_string()))?;
                }
                Action::ChangeSecrets { env, to } => {
                    let from = self.state.envs[env].secrets.map(|secrets| secrets.state);
                    SecretBundleState::can(from, *to, Cause::DeployController)
                        .or_else(|error| rule(error.to_string()))?;
                }
                Action::AllowStop { .. }
                | Action::SetCondition { .. }
                | Action::RecordFailure { .. }
                | Action::OpenDeploy(_)
                | Action::SetBlockers { .. } => {}
            }
        }
        Ok(())
    }

    fn check_desired(&self, id: InstanceId, to: DesiredState) -> Result<(), Refused> {
        let Some(instance) = self.state.instances.get(&id) else {
            return rule(format!("there is no {id}"));
        };
        let from = match instance.desired {
            Desired::Running => DesiredState::Running,
            Desired::Draining { .. } => DesiredState::Draining,
            Desired::Stopped { .. } => DesiredState::Stopped,
        };
        DesiredState::can(Some(from), to, Cause::Scheduler).or_else(|error| rule(error.to_string()))
    }

    fn apply(&mut self, action: &Action, now: Timestamp) {
        let state = &mut self.state;
        match action {
            Action::Allocate(allocation) => self.allocate(allocation, now),
            Action::Drain {
                instance,
                grace,
                reason,
                ..
            } => {
                let drained = state.instances.get_mut(instance).unwrap();
                drained.desired = Desired::Draining {
                    since: now,
                    grace: *grace,
                    reason: *reason,
                    stop_allowed: None,
                };
                if matches!(reason, DrainReason::StartFailed | DrainReason::HostFailed) {
                    let group = state.groups.get_mut(&drained.group).unwrap();
                    group.replaced.push(Replaced {
                        at: now,
                        reason: *reason,
                        node: drained.node,
                    });
                }
            }
            Action::AllowStop { instance } => {
                let instance = state.instances.get_mut(instance).unwrap();
                if let Desired::Draining { stop_allowed, .. } = &mut instance.desired {
                    *stop_allowed = Some(now);
                }
            }
            Action::Stop { instance, reason } => {
                let instance = state.instances.get_mut(instance).unwrap();
                instance.desired = Desired::Stopped { reason: *reason };
            }
            Action::SetCondition {
                group,
                condition,
                active,
                ..
            } => {
                let conditions = &mut state.groups.get_mut(group).unwrap().conditions;
                if *active {
                    conditions.insert(*condition);
                } else {
                    conditions.remove(condition);
                }
            }
            Action::RecordFailure { group, .. } => {
                state.groups.get_mut(group).unwrap().allocation_failed_at = Some(now);
            }
            Action::ChangeDeploy { deploy, to, .. } => {
                let deploy = state.deploys.get_mut(deploy).unwrap();
                (deploy.state, deploy.since) = (*to, now);
                if *to == DeployState::Failed {
                    for group in deploy.groups.keys() {
                        state.groups.get_mut(group).unwrap().held = true;
                    }
                }
            }
            Action::OpenDeploy(open) => self.open(open, now),
            Action::ChangeNode { node, to } => state.nodes.get_mut(node).unwrap().state = *to,
            Action::SetBlockers { node, blockers } => {
                let drain = state.nodes.get_mut(node).unwrap().drain.as_mut().unwrap();
                drain.blockers = blockers.clone();
            }
            Action::ChangeSecrets { env, to } => {
                let env = state.envs.get_mut(env).unwrap();
                env.secrets.as_mut().unwrap().state = *to;
            }
        }
    }

    fn allocate(&mut self, allocation: &Allocation, now: Timestamp) {
        let group = self.state.groups.get_mut(&allocation.group).unwrap();
        group.allocation_failed_at = None;
        let id = InstanceId::from_bits(self.next_instance);
        self.next_instance += 1;
        self.state.instances.insert(
            id,
            Instance {
                group: allocation.group.clone(),
                node: allocation.node,
                spec: allocation.spec,
                booking: allocation.booking,
                driver: allocation.driver,
                volumes: group.spec.volumes.clone(),
                allocated_at: now,
                desired: Desired::Running,
                observed: Observed {
                    status: InstanceStatus::Allocated,
                    since: now,
                    reason: None,
                    failures: 0,
                    was_ready: false,
                },
                routed: false,
                restart: false,
            },
        );
    }

    fn open(&mut self, open: &OpenDeploy, now: Timestamp) {
        let wanted: Vec<(GroupId, ReleaseId)> = open
            .groups
            .iter()
            .map(|(id, to)| {
                let now = self.state.groups[id].spec.release;
                (id.clone(), to.unwrap_or(now))
            })
            .collect();
        let id = self.begin(open.kind, wanted, options(), now);
        for group in &open.cleared {
            let cleared = self.state.groups.get_mut(group).unwrap();
            (cleared.count, cleared.held) = (0, false);
            cleared.version += 1;
            let before = Some(cleared.spec.release);
            let deploy = self.state.deploys.get_mut(&id).unwrap();
            deploy.groups.insert(group.clone(), before);
        }
    }

    /// Opens a deploy; the groups' specs change in the same append.
    pub(crate) fn begin(
        &mut self,
        kind: DeployKind,
        groups: Vec<(GroupId, ReleaseId)>,
        options: RolloutOptions,
        now: Timestamp,
    ) -> DeployId {
        let id = DeployId::from_bits(self.next_deploy);
        self.next_deploy += 1;
        let env = groups[0].0.env;
        for deploy in self.state.deploys.values_mut() {
            let shared = groups
                .iter()
                .any(|(group, _)| deploy.groups.contains_key(group));
            if shared && !deploy.state.is_final() {
                deploy.state = DeployState::Superseded;
                deploy.version += 1;
            }
        }
        let mut before = BTreeMap::new();
        for (group, release) in groups {
            before.insert(group.clone(), Some(self.state.groups[&group].spec.release));
            self.set_spec(&group, release);
        }
        let deploy = Deploy {
            version: 1,
            env,
            kind,
            opened: now,
            state: DeployState::Queued,
            since: now,
            groups: before,
            options,
        };
        self.state.deploys.insert(id, deploy);
        id
    }

    /// Makes a release known in a group.
    pub(crate) fn release(&mut self, group: &GroupId, spec: Spec) {
        self.specs.insert((group.clone(), spec.release), spec);
    }

    fn set_spec(&mut self, id: &GroupId, release: ReleaseId) {
        let mut spec = self.specs[&(id.clone(), release)].clone();
        if spec.secrets != SecretUse::Unused {
            let secrets = self.state.envs[&id.env].secrets;
            spec.secrets = SecretUse::Required(secrets.map(|secrets| secrets.version));
        }
        spec.hash = hash(id, &spec);
        let group = self.state.groups.get_mut(id).unwrap();
        group.spec = spec;
        group.held = false;
        group.version += 1;
    }

    /// Calls a deploy off; the releases from before come back.
    pub(crate) fn cancel(&mut self, id: DeployId) {
        let deploy = self.state.deploys.get_mut(&id).unwrap();
        if deploy.state.is_final() {
            return;
        }
        (deploy.state, deploy.version) = (DeployState::Canceled, deploy.version + 1);
        let (kind, env, groups) = (deploy.kind, deploy.env, deploy.groups.clone());
        for (group, before) in groups {
            self.set_spec(&group, before.unwrap());
        }
        let env = self.state.envs.get_mut(&env).unwrap();
        if let Some(secrets) = &mut env.secrets
            && kind == DeployKind::Restart
            && secrets.state == SecretBundleState::Rotating
        {
            secrets.state = SecretBundleState::RotationFailed;
            env.version += 1;
        }
    }

    pub(crate) fn set_secrets(&mut self, env: fluffy_base::id::EnvId, version: Secrets) {
        let env = self.state.envs.get_mut(&env).unwrap();
        env.secrets = Some(version);
        env.version += 1;
    }

    /// Changes what an env's instances may share with others.
    pub(crate) fn set_isolation(&mut self, env: fluffy_base::id::EnvId, isolation: EnvIsolation) {
        let env = self.state.envs.get_mut(&env).unwrap();
        (env.isolation, env.version) = (isolation, env.version + 1);
    }

    pub(crate) fn scale(&mut self, id: &GroupId, count: u32) {
        let group = self.state.groups.get_mut(id).unwrap();
        (group.count, group.version) = (count, group.version + 1);
    }

    pub(crate) fn delete_env(&mut self, id: fluffy_base::id::EnvId) {
        let env = self.state.envs.get_mut(&id).unwrap();
        (env.life, env.version) = (EnvLife::Deleted, env.version + 1);
        for (_, group) in self
            .state
            .groups
            .iter_mut()
            .filter(|(group, _)| group.env == id)
        {
            group.version += 1;
        }
    }

    /// Hears what a node says of an instance.
    pub(crate) fn report(
        &mut self,
        id: InstanceId,
        status: InstanceStatus,
        reason: Option<FailureReason>,
        now: Timestamp,
    ) {
        let Some(instance) = self.state.instances.get_mut(&id) else {
            return;
        };
        let ends = matches!(
            status,
            InstanceStatus::Draining | InstanceStatus::Stopped | InstanceStatus::Collected
        );
        if instance.observed.status == InstanceStatus::Lost && !instance.is_wanted() && !ends {
            return;
        }
        match (instance.observed.status, status) {
            // Said once more.
            (before, after) if before == after => return,
            // It ended while nobody heard it, which is two steps at once.
            (InstanceStatus::Lost, InstanceStatus::Stopped) => {
                self.report(id, InstanceStatus::Draining, None, now);
            }
            (InstanceStatus::Lost, InstanceStatus::Collected) => {
                self.report(id, InstanceStatus::Stopped, None, now);
            }
            _ => {}
        }
        let instance = self.state.instances.get_mut(&id).unwrap();
        InstanceStatus::can(Some(instance.observed.status), status, Cause::Node).unwrap();
        let observed = &mut instance.observed;
        (observed.status, observed.since, observed.reason) = (status, now, reason);
        observed.was_ready |= status == InstanceStatus::Ready;
        match status {
            InstanceStatus::Ready => observed.failures = 0,
            InstanceStatus::Failed => observed.failures += 1,
            _ => {}
        }
        if reason.is_some_and(|reason| reason.class() == FailureClass::Host) {
            let node = self.state.nodes.get_mut(&instance.node).unwrap();
            node.host_failures.push(now);
        }
        let volume_state = match status {
            InstanceStatus::Preparing | InstanceStatus::Booting => Some(VolumeState::InUse),
            InstanceStatus::Stopped => Some(VolumeState::Available),
            _ => None,
        };
        for volume in &instance.volumes {
            let volume = self.state.volumes.get_mut(volume).unwrap();
            if let Some(state) = volume_state {
                volume.state = state;
            }
        }
        if status == InstanceStatus::Collected {
            self.state.instances.remove(&id);
        }
    }
}

fn check_allocation(
    state: &State,
    allocation: &Allocation,
    booked: &[(NodeId, OrgId, Resources)],
) -> Result<(), Refused> {
    let node = &state.nodes[&allocation.node];
    if node.state != NodeState::Active {
        return rule(format!("{} is {}", allocation.node, node.state));
    }
    let env = &state.envs[&allocation.group.env];
    let own = |field: fn(&Resources) -> u64| {
        let there = state.instances.values();
        let there = there.filter(|it| it.node == allocation.node && !it.has_ended());
        let new = booked
            .iter()
            .filter(|(node, _, _)| *node == allocation.node);
        there.map(|it| field(&it.booking)).sum::<u64>()
            + new.map(|(_, _, it)| field(it)).sum::<u64>()
            + field(&allocation.booking)
    };
    if own(|it| it.memory) > node.capacity.allocatable_memory() {
        return rule(format!("{} has no memory left", allocation.node));
    }
    if own(|it| it.disk) > node.capacity.disk {
        return rule(format!("{} has no disk left", allocation.node));
    }
    let used = |field: fn(&Resources) -> u64| {
        let counted = state.instances.values().filter(|it| state.counts(it));
        let counted = counted.filter(|it| state.envs[&it.group.env].org == env.org);
        let new = booked.iter().filter(|(_, org, _)| *org == env.org);
        counted.map(|it| field(&it.booking)).sum::<u64>()
            + new.map(|(_, _, it)| field(it)).sum::<u64>()
            + field(&allocation.booking)
    };
    let quota = state.orgs[&env.org].quota;
    if used(|_| 1) > quota.instances
        || used(|it| it.memory) > quota.memory
        || used(|it| it.cpu_millis) > quota.cpu_millis
    {
        return rule(format!("{} is above its quota", env.org));
    }
    if !env.isolation.accepts(allocation.driver.level()) {
        return rule(format!(
            "{:?} in a {:?} env",
            allocation.driver, env.isolation
        ));
    }
    for volume in &state.groups[&allocation.group].spec.volumes {
        let mut holders = state
            .instances
            .values()
            .filter(|it| it.volumes.contains(volume));
        if holders.any(|it| state.holds_volumes(it)) {
            return rule(format!("{volume} is in use"));
        }
        if state.volumes[volume].home != allocation.node {
            return rule(format!("{volume} is not at home on {}", allocation.node));
        }
    }
    Ok(())
}
