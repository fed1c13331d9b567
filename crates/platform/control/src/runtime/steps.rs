//! What the planner wants, as facts: every guard checked again on exact state.
//!
//! A step that was planned on an older state is refused whole, so a planner
//! that died, was slow or has a twin does no harm. The address comes last; if
//! there is none, no instance of the step comes about, and that is recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::time::Duration;

use fluffy_base::id::{AssignmentId, DeployId, EnvId, InstanceId, NodeId};
use fluffy_ledger::Scope;
use fluffy_planner::FAILURE_PAUSE;
use fluffy_planner::action::{Action, Allocation, Expected, OpenDeploy, Rejections, Step};
use fluffy_planner::lifecycle::{
    Cause, DeployState, DesiredState, NodeState, SecretBundleState, VolumeState,
};
use fluffy_planner::model::{Deploy, DeployKind, Desired, EnvLife, GroupId, Resources, SecretUse};
use fluffy_planner::place::MOST_INSTANCES;
use fluffy_planner::reason::{Condition, DeployFailure, Dimension, DrainReason};

use super::notice::NO_ADDRESS;
use super::record::LastError;
use super::write::{NewDeploy, current_secrets, missing, new_deploy, plain_options, transition};
use super::{Runtime, spec};
use crate::call::{Call, Fact};
use crate::event::{
    AllocatedResources, DeployStatusChanged, GroupConditionChanged, InstanceAllocated,
    InstanceAllocationFailed, InstanceDesiredStateChanged, NodeDrainBlocked, NodeStateChanged,
    SecretBundleRotationChanged,
};
use crate::refusal::Refusal;
use crate::state::{Owner, State};

/// The facts of a step, if what it was planned on still holds.
///
/// # Errors
/// Somebody else was faster, or a guard forbids it.
pub fn step(state: &State, call: &Call<'_>, step: &Step) -> Result<Vec<Fact>, Refusal> {
    let runtime = &state.runtime;
    for expected in &step.expects {
        let plan = &runtime.plan;
        let (now, then) = match expected {
            Expected::Env(id, then) => (plan.envs.get(id).map(|it| it.version), then),
            Expected::Group(id, then) => (plan.groups.get(id).map(|it| it.version), then),
            Expected::Deploy(id, then) => (plan.deploys.get(id).map(|it| it.version), then),
            Expected::Node(id, then) => (plan.nodes.get(id).map(|it| it.version), then),
        };
        if now != Some(*then) {
            return Err(stale("it was planned on an older state"));
        }
    }
    let mut carried = Carried {
        state,
        call,
        facts: Vec::new(),
        booked: Vec::new(),
        given: Vec::new(),
    };
    match carried.all(&step.actions, Unit::Whole) {
        Err(Stopped::NoAddress(group, wanted)) => {
            let mut rest = Carried {
                facts: Vec::new(),
                booked: Vec::new(),
                given: Vec::new(),
                ..carried
            };
            // Whoever is on the way out goes on; whoever would leave for one
            // that does not come stays.
            rest.all(&step.actions, Unit::WithoutInstances)
                .map_err(Stopped::refusal)?;
            rest.no_address(&group, wanted);
            Ok(rest.facts)
        }
        Err(Stopped::Refused(refusal)) => Err(refusal),
        Ok(()) => Ok(carried.facts),
    }
}

fn stale(why: &str) -> Refusal {
    Refusal::new("conflict", why, "plan again")
}

/// How much of a step is carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Whole,
    WithoutInstances,
}

/// Why a step came to an end.
enum Stopped {
    Refused(Refusal),
    NoAddress(GroupId, u64),
}

impl Stopped {
    fn refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::NoAddress(..) => stale("there is no address"),
        }
    }
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A step on its way to facts.
struct Carried<'a> {
    state: &'a State,
    call: &'a Call<'a>,
    facts: Vec<Fact>,
    /// What the step has booked so far, by node and env.
    booked: Vec<(NodeId, EnvId, Resources)>,
    given: Vec<Ipv6Addr>,
}

impl<'a> Carried<'a> {
    fn runtime(&self) -> &'a Runtime {
        &self.state.runtime
    }

    fn all(&mut self, actions: &[Action], unit: Unit) -> Result<(), Stopped> {
        let wanted = actions
            .iter()
            .filter(|action| matches!(action, Action::Allocate(_)))
            .count();
        for action in actions {
            if unit == Unit::WithoutInstances && waits(action) {
                continue;
            }
            match action {
                Action::Allocate(allocation) => {
                    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
                    self.allocate(allocation, wanted)?;
                }
                Action::Drain {
                    instance,
                    grace,
                    reason,
                } => self.drain(*instance, *grace, *reason)?,
                Action::AllowStop { instance } => self.allow_stop(*instance)?,
                Action::Stop { instance, reason } => {
                    self.desire(*instance, DesiredState::Stopped, reason.as_str(), None)?;
                }
                Action::SetCondition {
                    group,
                    condition,
                    active,
                } => self.condition(group, *condition, *active),
                Action::RecordFailure {
                    group,
                    wanted,
                    reason,
                    rejected,
                } => {
                    let reason = reason.to_string();
                    let detail = Some(rejections(rejected));
                    self.failed(group, reason, u64::from(*wanted), detail);
                }
                Action::ChangeDeploy { deploy, to, why } => self.deploy(*deploy, *to, *why)?,
                Action::OpenDeploy(open) => self.open(open)?,
                Action::ChangeNode { node, to } => self.node(*node, *to)?,
                Action::SetBlockers { node, blockers } => {
                    let instances = blockers.iter().copied().collect();
                    let blocked = NodeDrainBlocked { instances };
                    self.facts.push(Fact::new(node, blocked.into()));
                }
                Action::ChangeSecrets { env, to } => self.secrets(*env, *to)?,
            }
        }
        Ok(())
    }

    fn scope(&self, env: EnvId) -> Scope {
        scope(self.runtime(), env)
    }

    fn allocate(&mut self, allocation: &Allocation, wanted: u64) -> Result<(), Stopped> {
        let runtime = self.runtime();
        let group_id = &allocation.group;
        let group = runtime.plan.groups.get(group_id);
        let group = group.ok_or_else(|| stale("the group is gone"))?;
        if group.spec.hash != allocation.spec {
            return Err(stale("the spec has changed").into());
        }
        self.quota(allocation)?;
        self.room(allocation, allocation.node)?;
        let Some((node, address)) = self.address(allocation) else {
            return Err(Stopped::NoAddress(group_id.clone(), wanted));
        };
        let overhead = allocation.driver.overhead();
        let process = group_id.process.to_string();
        let allocated = InstanceAllocated {
            node_id: node,
            assignment_id: AssignmentId::from_bits(self.call.mint.bits(self.call.now)),
            generation: 1,
            release_id: group.spec.release,
            secret_version_id: match group.spec.secrets {
                SecretUse::Required(version) => version,
                SecretUse::Unused => None,
            },
            overlay_ipv6: address.to_string(),
            resources: AllocatedResources {
                cpu_millis: allocation.booking.cpu_millis,
                memory_bytes: allocation.booking.memory.saturating_sub(overhead),
                disk_bytes: allocation.booking.disk,
                overhead_bytes: overhead,
            },
            mounts: runtime.mounts(group_id.env, &process),
            driver: spec::driver_text(allocation.driver).to_owned(),
            spec_hash: allocation.spec,
            deploy_id: allocation.deploy,
            process,
        };
        let id = InstanceId::from_bits(self.call.mint.bits(self.call.now));
        let mut fact = Fact::new(id, allocated.into()).of(&self.scope(group_id.env));
        fact.correlation = allocation.deploy.map(|deploy| deploy.to_string());
        self.facts.push(fact);
        self.booked.push((node, group_id.env, allocation.booking));
        self.given.push(address);
        Ok(())
    }

    /// The address is taken from the chosen node, or from any other that fits.
    fn address(&self, allocation: &Allocation) -> Option<(NodeId, Ipv6Addr)> {
        let runtime = self.runtime();
        let of = |node: NodeId| {
            let record = runtime.nodes.get(&node)?;
            let address = runtime
                .ipam
                .instance(record.address, &self.given, self.call.now)?;
            Some((node, address))
        };
        of(allocation.node).or_else(|| {
            let others = runtime.plan.nodes.keys().copied();
            let mut others = others.filter(|node| *node != allocation.node);
            others.find_map(|node| self.room(allocation, node).ok().and_then(|()| of(node)))
        })
    }

    fn quota(&self, allocation: &Allocation) -> Result<(), Refusal> {
        let runtime = self.runtime();
        let env = runtime.plan.envs.get(&allocation.group.env);
        let env = env.filter(|env| env.life == EnvLife::Live);
        let env = env.ok_or_else(|| stale("the env is gone"))?;
        let limits = runtime.plan.orgs.get(&env.org).map(|org| org.quota);
        let limits = limits.ok_or_else(|| stale("the org is gone"))?;
        let booking = &allocation.booking;
        for (dimension, limit, more) in [
            (super::quota::Dimension::Instances, limits.instances, 1),
            (
                super::quota::Dimension::Memory,
                limits.memory,
                booking.memory,
            ),
            (
                super::quota::Dimension::Cpu,
                limits.cpu_millis,
                booking.cpu_millis,
            ),
        ] {
            let own = self.booked.iter().filter(|(_, at, _)| {
                runtime
                    .plan
                    .envs
                    .get(at)
                    .is_some_and(|it| it.org == env.org)
            });
            let own = own.map(|(_, _, it)| match dimension {
                super::quota::Dimension::Memory => it.memory,
                super::quota::Dimension::Cpu => it.cpu_millis,
                _ => 1,
            });
            let used = runtime.used(env.org, dimension).saturating_add(own.sum());
            super::quota::within(limit, used, dimension, more)?;
        }
        Ok(())
    }

    /// Whether a node takes the instance: its state, driver, room and volumes.
    fn room(&self, allocation: &Allocation, id: NodeId) -> Result<(), Refusal> {
        let plan = &self.runtime().plan;
        let refused = |why: &str| Err(stale(why));
        let (Some(node), Some(group), Some(env)) = (
            plan.nodes.get(&id),
            plan.groups.get(&allocation.group),
            plan.envs.get(&allocation.group.env),
        ) else {
            return refused("the node, the group or the env is gone");
        };
        if node.state != NodeState::Active {
            return refused("the node takes no instances");
        }
        let limits = node.drivers.get(&allocation.driver);
        let fits = limits.is_some_and(|limits| {
            let asked = &group.spec.resources;
            asked.vcpus() <= limits.vcpus && asked.memory <= limits.memory
        });
        if !fits || !env.isolation.accepts(allocation.driver.level()) {
            return refused("the node's drivers do not fit");
        }
        if !group.spec.images.contains_key(&node.arch) {
            return refused("the image is for other processors");
        }
        let here = plan.instances.values();
        let here = here.filter(|it| it.node == id && !it.has_ended());
        let new = self.booked.iter().filter(|(node, _, _)| *node == id);
        let booked = here.map(|it| it.booking).chain(new.map(|(_, _, it)| *it));
        let (mut memory, mut disk, mut many) = (0_u64, 0_u64, 0_u32);
        for booking in booked.chain([allocation.booking]) {
            memory = memory.saturating_add(booking.memory);
            disk = disk.saturating_add(booking.disk);
            many = many.saturating_add(1);
        }
        if memory > node.capacity.allocatable_memory() {
            return refused("the node has no memory left");
        }
        if disk > node.capacity.disk || many > MOST_INSTANCES {
            return refused("the node is full");
        }
        for volume in &group.spec.volumes {
            let mut holders = plan.instances.values();
            let held = holders.any(|it| it.volumes.contains(volume) && plan.holds_volumes(it));
            let claimed = !self.booked.is_empty();
            let usable = plan
                .volumes
                .get(volume)
                .is_some_and(|it| it.home == id && it.state == VolumeState::Available);
            if held || claimed || !usable {
                return refused("a volume is elsewhere or in use");
            }
        }
        Ok(())
    }

    /// Records that there was no address, the first time and then now and then.
    fn no_address(&mut self, group: &GroupId, wanted: u64) {
        let plan = self.runtime().plan.groups.get(group);
        let last = plan.and_then(|group| group.allocation_failed_at);
        if last.is_some_and(|at| self.call.now.since(at) < FAILURE_PAUSE) {
            return;
        }
        let detail = Some("every pool that could serve it is used up".to_owned());
        self.failed(group, NO_ADDRESS.to_owned(), wanted, detail);
    }

    fn failed(&mut self, group: &GroupId, reason: String, wanted: u64, detail: Option<String>) {
        let notes = self.runtime().groups.get(group);
        let before = notes.and_then(|notes| notes.allocation.as_ref());
        let failed = InstanceAllocationFailed {
            reason,
            wanted,
            attempts: before.map_or(0, |(_, attempts)| *attempts) + 1,
            detail,
        };
        let fact = Fact::new(group, failed.into()).of(&self.scope(group.env));
        self.facts.push(fact);
    }

    fn desire(
        &mut self,
        id: InstanceId,
        to: DesiredState,
        reason: &str,
        grace: Option<Duration>,
    ) -> Result<(), Refusal> {
        let instance = self.runtime().plan.instances.get(&id);
        let instance = instance.ok_or_else(|| stale("the instance is gone"))?;
        let from = match instance.desired {
            Desired::Running => DesiredState::Running,
            Desired::Draining { .. } => DesiredState::Draining,
            Desired::Stopped { .. } => DesiredState::Stopped,
        };
        DesiredState::can(Some(from), to, Cause::Scheduler).map_err(transition)?;
        let changed = InstanceDesiredStateChanged {
            desired_state: to.to_string(),
            drain_grace_seconds: grace.map(|grace| grace.as_secs()),
            reason: reason.to_owned(),
            stop_allowed: None,
        };
        let scope = self.scope(instance.group.env);
        self.facts.push(Fact::new(id, changed.into()).of(&scope));
        Ok(())
    }

    fn drain(
        &mut self,
        id: InstanceId,
        grace: Duration,
        reason: DrainReason,
    ) -> Result<(), Refusal> {
        self.desire(id, DesiredState::Draining, reason.as_str(), Some(grace))
    }

    fn allow_stop(&mut self, id: InstanceId) -> Result<(), Refusal> {
        let instance = self.runtime().plan.instances.get(&id);
        let instance = instance.ok_or_else(|| stale("the instance is gone"))?;
        let Desired::Draining {
            reason,
            grace,
            stop_allowed: None,
            ..
        } = instance.desired
        else {
            return Err(stale("the instance is not waiting for it"));
        };
        let allowed = InstanceDesiredStateChanged {
            desired_state: DesiredState::Draining.to_string(),
            drain_grace_seconds: Some(grace.as_secs()),
            reason: reason.to_string(),
            stop_allowed: Some(true),
        };
        let scope = self.scope(instance.group.env);
        self.facts.push(Fact::new(id, allowed.into()).of(&scope));
        Ok(())
    }

    fn condition(&mut self, group: &GroupId, condition: Condition, active: bool) {
        let changed = GroupConditionChanged {
            condition: condition.to_string(),
            active,
            reason: condition.to_string(),
            detail: match condition {
                Condition::VolumeHomeNodeOffline if active => self.lost_volumes(group),
                _ => None,
            },
        };
        let fact = Fact::new(group, changed.into()).of(&self.scope(group.env));
        self.facts.push(fact);
    }

    /// Which volumes cannot be reached, and from when their last backup is.
    fn lost_volumes(&self, group: &GroupId) -> Option<String> {
        let runtime = self.runtime();
        let volumes = &runtime.plan.groups.get(group)?.spec.volumes;
        let volumes = volumes.iter().filter_map(|id| {
            let volume = runtime.volumes.get(id)?;
            let backup = volume.last_backup_at.map_or_else(
                || "no backup".to_owned(),
                |at| format!("last good backup {at}"),
            );
            Some(format!("{} ({id}): {backup}", volume.name))
        });
        let volumes: Vec<String> = volumes.collect();
        Some(format!(
            "{}; wait for the node, or restore the backup elsewhere",
            volumes.join(", ")
        ))
    }

    fn deploy(
        &mut self,
        id: DeployId,
        to: DeployState,
        why: Option<DeployFailure>,
    ) -> Result<(), Refusal> {
        let deploy = self.runtime().plan.deploys.get(&id);
        let deploy = deploy.ok_or_else(|| missing("deploy"))?;
        DeployState::can(Some(deploy.state), to, Cause::DeployController).map_err(transition)?;
        let changed = DeployStatusChanged {
            status: to.to_string(),
            message: why.map(|why| self.because(why, deploy)),
            failed_reason: why.map(|why| why.to_string()),
            process: None,
        };
        let mut fact = Fact::new(id, changed.into()).of(&self.scope(deploy.env));
        fact.correlation = Some(id.to_string());
        self.facts.push(fact);
        Ok(())
    }

    /// Why a deploy ends, with what last went wrong in its env.
    fn because(&self, why: DeployFailure, deploy: &Deploy) -> String {
        let error = self.runtime().envs.get(&deploy.env);
        let error = error.and_then(|env| env.last_error.as_ref());
        let error = error.filter(|error| error.at >= deploy.opened);
        let detail = |error: &LastError| match &error.detail {
            Some(detail) => format!("{}: last {}: {detail}", explain(why), error.reason),
            None => format!("{}: last {}", explain(why), error.reason),
        };
        error.map_or_else(|| explain(why).to_owned(), detail)
    }

    /// Opens a deploy of the platform's own, in the append that gave rise to it.
    fn open(&mut self, open: &OpenDeploy) -> Result<(), Refusal> {
        let runtime = self.runtime();
        let env = runtime.envs.get(&open.env);
        let env = env.ok_or_else(|| stale("the env is gone"))?;
        let secrets = current_secrets(runtime, env);
        let mut to = BTreeMap::new();
        for (group, release) in &open.groups {
            let now = runtime.wanted(open.env, &group.process);
            let release = release.or_else(|| now.map(|now| now.release));
            let release = release.ok_or_else(|| stale("nothing is wanted there"))?;
            let process = runtime.process(open.env, release, &group.process);
            let process = process.ok_or_else(|| stale("the release is gone"))?;
            let secrets = secrets.filter(|_| process.secrets_required);
            to.insert(group.process.to_string(), Some((release, secrets)));
        }
        for group in &open.cleared {
            // What is not wanted already needs no fact.
            if runtime.wanted(open.env, &group.process).is_some() {
                to.insert(group.process.to_string(), None);
            }
        }
        let releases: BTreeSet<_> = to.values().flatten().map(|(release, _)| *release).collect();
        let one = releases.first().copied();
        let manifest = one.and_then(|release| runtime.releases.get(&release));
        let manifest = manifest.ok_or_else(|| stale("the release is gone"))?;
        let id = DeployId::from_bits(self.call.mint.bits(self.call.now));
        let new = NewDeploy {
            id,
            env: open.env,
            kind: open.kind,
            cause: Cause::System,
            release: one.filter(|_| releases.len() == 1),
            instance: None,
            options: plain_options(&manifest.manifest),
            to,
            ended: open.because,
            source: None,
        };
        let (mut facts, rest) = new_deploy(runtime, new)?;
        facts.extend(rest);
        let scope = self.scope(open.env);
        let cause = open.because.and_then(|because| self.place_of(because));
        let rollback = open.kind == DeployKind::Rollback;
        for fact in facts {
            let mut fact = fact.of(&scope);
            fact.correlation = Some(id.to_string());
            fact.cause = cause.filter(|_| rollback);
            self.facts.push(fact);
        }
        Ok(())
    }

    /// The seq that an earlier fact of this step about a deploy will have.
    fn place_of(&self, deploy: DeployId) -> Option<u64> {
        let id = deploy.to_string();
        let place = self.facts.iter().position(|fact| fact.aggregate_id == id)?;
        Some(self.state.seq + 1 + u64::try_from(place).ok()?)
    }

    fn node(&mut self, id: NodeId, to: NodeState) -> Result<(), Refusal> {
        let node = self.runtime().plan.nodes.get(&id);
        let node = node.ok_or_else(|| missing("node"))?;
        NodeState::can(Some(node.state), to, Cause::Scheduler).map_err(transition)?;
        let changed = NodeStateChanged {
            state: to.to_string(),
            reason: None,
            leave_stateful: None,
            deadline: None,
            drain_id: None,
        };
        self.facts.push(Fact::new(id, changed.into()));
        Ok(())
    }

    fn secrets(&mut self, id: EnvId, to: SecretBundleState) -> Result<(), Refusal> {
        let runtime = self.runtime();
        let env = runtime.envs.get(&id);
        let bundle = env.and_then(|env| Some((env.bundle?, runtime.bundles.get(&env.bundle?)?)));
        let (bundle_id, bundle) = bundle.ok_or_else(|| missing("secrets"))?;
        SecretBundleState::can(bundle.state, to, Cause::DeployController).map_err(transition)?;
        let version_id = bundle.current.ok_or_else(|| missing("secrets"))?;
        let changed = SecretBundleRotationChanged {
            status: to.to_string(),
            version_id,
        };
        let scope = self.scope(id);
        self.facts
            .push(Fact::new(bundle_id, changed.into()).of(&scope));
        Ok(())
    }
}

/// Whether an action makes sense only if new instances come.
fn waits(action: &Action) -> bool {
    match action {
        Action::Allocate(_) => true,
        Action::Drain { reason, .. } => matches!(
            reason,
            DrainReason::RolloutReplace | DrainReason::NodeDraining | DrainReason::OperatorRestart
        ),
        _ => false,
    }
}

/// The scope of what belongs to an env.
pub(crate) fn scope(runtime: &Runtime, env: EnvId) -> Scope {
    let record = runtime.envs.get(&env);
    Owner {
        org: record.map(|it| it.org),
        app: record.map(|it| it.app),
        env: Some(env),
    }
    .scope()
}

const fn explain(why: DeployFailure) -> &'static str {
    match why {
        DeployFailure::Timeout => "it took longer than it may",
        DeployFailure::RetriesSpent => "instances failed, or had to be replaced, too often",
        DeployFailure::Hopeless => "an instance failed in a way that trying again cannot help",
    }
}

fn rejections(rejected: &Rejections) -> String {
    let parts = rejected.0.iter().map(|(condition, nodes)| match condition {
        Condition::OrgQuotaExceeded(dimension) => match dimension {
            Dimension::Instances => "the org's quota of instances is used up".to_owned(),
            Dimension::Memory => "the org's quota of memory is used up".to_owned(),
            Dimension::Cpu => "the org's quota of cpu is used up".to_owned(),
        },
        _ => format!("{condition}: {nodes} nodes"),
    });
    parts.collect::<Vec<_>>().join(", ")
}
