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
use fluffy_planner::action::{Action, Allocation, Expected, OpenDeploy, Rejections, Step};
use fluffy_planner::lifecycle::{
    Cause, DeployState, DesiredState, NodeState, SecretBundleState, VolumeState,
};
use fluffy_planner::model::{Deploy, DeployKind, Desired, EnvLife, GroupId, Resources, SecretUse};
use fluffy_planner::place::MOST_INSTANCES;
use fluffy_planner::reason::{Condition, DeployFailure, Dimension, DrainReason, StopReason};
use fluffy_planner::{FAILURE_PAUSE, ranking};

use super::notice::NO_ADDRESS;
use super::record::{self, LastError};
use super::write::{
    NewDeploy, current_secrets, given_back, missing, new_deploy, plain_options, transition,
};
use super::{Runtime, spec};
use crate::call::{Call, Fact};
use crate::event::{
    AllocatedResources, Body, DeployStatusChanged, GroupConditionChanged, InstanceAllocated,
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
        Err(Stopped::NoAddress(missed)) => {
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
            rest.no_address(missed);
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
    NoAddress(NoAddress),
}

/// An instance for which there was no address.
struct NoAddress {
    group: GroupId,
    /// How many the step wanted.
    wanted: u64,
    deploy: Option<DeployId>,
}

/// Why nothing was allocated.
struct Failed {
    reason: String,
    wanted: u64,
    detail: Option<String>,
    deploy: Option<DeployId>,
}

impl Stopped {
    fn refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::NoAddress(_) => stale("there is no address"),
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
                    deploy,
                } => self.drain(*instance, *grace, *reason, *deploy)?,
                Action::AllowStop { instance } => self.allow_stop(*instance)?,
                Action::Stop { instance, reason } => self.stop(*instance, *reason)?,
                Action::SetCondition {
                    group,
                    condition,
                    active,
                    deploy,
                } => self.condition(group, *condition, *active, *deploy),
                Action::RecordFailure {
                    group,
                    wanted,
                    reason,
                    rejected,
                    deploy,
                } => {
                    let failed = Failed {
                        reason: reason.to_string(),
                        wanted: u64::from(*wanted),
                        detail: Some(rejections(rejected)),
                        deploy: *deploy,
                    };
                    self.failed(group, failed);
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
        self.room(allocation)?;
        let Some((allocation, address)) = self.address(allocation) else {
            return Err(Stopped::NoAddress(NoAddress {
                group: group_id.clone(),
                wanted,
                deploy: allocation.deploy,
            }));
        };
        let node = allocation.node;
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
        self.push(id, group_id.env, allocated.into(), allocation.deploy);
        self.booked.push((node, group_id.env, allocation.booking));
        self.given.push(address);
        Ok(())
    }

    /// The address is taken from the chosen node, or from the best of the
    /// others that has one.
    fn address(&self, allocation: &Allocation) -> Option<(Allocation, Ipv6Addr)> {
        let runtime = self.runtime();
        let now = self.call.now;
        let of = |node: NodeId| {
            let record = runtime.nodes.get(&node)?;
            runtime.ipam.instance(record.address, &self.given, now)
        };
        if let Some(address) = of(allocation.node) {
            return Some((allocation.clone(), address));
        }
        let booked = self.booked.iter();
        let booked = booked.map(|(node, _, booking)| (*node, *booking));
        let ranked = ranking(&runtime.plan, &allocation.group, booked, now);
        ranked.into_iter().find_map(|place| {
            let address = of(place.node)?;
            let other = Allocation {
                node: place.node,
                driver: place.driver,
                booking: place.booking,
                ..allocation.clone()
            };
            self.quota(&other).ok()?;
            self.room(&other).ok()?;
            Some((other, address))
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
    fn room(&self, allocation: &Allocation) -> Result<(), Refusal> {
        let plan = &self.runtime().plan;
        let id = allocation.node;
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
    fn no_address(&mut self, missed: NoAddress) {
        let plan = self.runtime().plan.groups.get(&missed.group);
        let last = plan.and_then(|group| group.allocation_failed_at);
        if last.is_some_and(|at| self.call.now.since(at) < FAILURE_PAUSE) {
            return;
        }
        let failed = Failed {
            reason: NO_ADDRESS.to_owned(),
            wanted: missed.wanted,
            detail: Some("every pool that could serve it is used up".to_owned()),
            deploy: missed.deploy,
        };
        self.failed(&missed.group, failed);
    }

    fn failed(&mut self, group: &GroupId, failed: Failed) {
        let notes = self.runtime().groups.get(group);
        let before = notes.and_then(|notes| notes.allocation.as_ref());
        let deploy = failed.deploy;
        let failed = InstanceAllocationFailed {
            reason: failed.reason,
            wanted: failed.wanted,
            attempts: before.map_or(0, |(_, attempts)| *attempts) + 1,
            detail: failed.detail,
        };
        self.push(group, group.env, failed.into(), deploy);
    }

    /// One more fact about what is in an env, by a deploy if one does it.
    fn push(&mut self, about: impl ToString, env: EnvId, body: Body, deploy: Option<DeployId>) {
        let mut fact = Fact::new(about, body).of(&self.scope(env));
        fact.correlation = deploy.map(|deploy| deploy.to_string());
        self.facts.push(fact);
    }

    /// The deploy that took an instance out of service: its end is of it, too.
    fn ended_by(&self, id: InstanceId) -> Option<DeployId> {
        self.runtime().instances.get(&id)?.ended_by
    }

    fn stop(&mut self, id: InstanceId, reason: StopReason) -> Result<(), Refusal> {
        let how = (None, self.ended_by(id));
        self.desire(id, DesiredState::Stopped, reason.as_str(), how)
    }

    fn desire(
        &mut self,
        id: InstanceId,
        to: DesiredState,
        reason: &str,
        (grace, deploy): (Option<Duration>, Option<DeployId>),
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
        self.push(id, instance.group.env, changed.into(), deploy);
        Ok(())
    }

    fn drain(
        &mut self,
        id: InstanceId,
        grace: Duration,
        reason: DrainReason,
        deploy: Option<DeployId>,
    ) -> Result<(), Refusal> {
        let how = (Some(grace), deploy);
        self.desire(id, DesiredState::Draining, reason.as_str(), how)
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
        let deploy = self.ended_by(id);
        self.push(id, instance.group.env, allowed.into(), deploy);
        Ok(())
    }

    fn condition(
        &mut self,
        group: &GroupId,
        condition: Condition,
        active: bool,
        deploy: Option<DeployId>,
    ) {
        let changed = GroupConditionChanged {
            condition: condition.to_string(),
            active,
            reason: condition.to_string(),
            detail: match condition {
                Condition::VolumeHomeNodeOffline if active => self.lost_volumes(group),
                _ => None,
            },
        };
        self.push(group, group.env, changed.into(), deploy);
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
        self.push(id, deploy.env, changed.into(), Some(id));
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
        let failed = open.because.and_then(|id| runtime.deploys.get(&id));
        let (mut to, mut volumes) = (BTreeMap::new(), Vec::new());
        for (group, release) in &open.groups {
            match self.given_back(failed, group) {
                Ok(given) => volumes.extend(given),
                // Without its data the release from before would begin on an
                // empty disk: where that cannot be had, there is no way back.
                Err(refusal) => {
                    self.tell(open.because, &format!("no way back: {}", refusal.why));
                    continue;
                }
            }
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
                volumes.extend(self.given_back(failed, group).unwrap_or_default());
                to.insert(group.process.to_string(), None);
            }
        }
        let releases: BTreeSet<_> = to.values().flatten().map(|(release, _)| *release).collect();
        let Some(one) = releases.first().copied() else {
            return Ok(());
        };
        let release = runtime.releases.get(&one);
        let manifest = release.and_then(|release| release.manifest.as_deref());
        let manifest = manifest.ok_or_else(|| stale("the release is gone"))?;
        let id = DeployId::from_bits(self.call.mint.bits(self.call.now));
        let new = NewDeploy {
            id,
            env: open.env,
            kind: open.kind,
            cause: Cause::System,
            release: Some(one).filter(|_| releases.len() == 1),
            instance: None,
            options: plain_options(manifest),
            to,
            ended: open.because,
            source: None,
        };
        let (mut facts, rest) = new_deploy(runtime, new)?;
        facts.extend(volumes);
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

    /// What undoes what a failed deploy did to the volumes of a group.
    fn given_back(
        &self,
        failed: Option<&record::Deploy>,
        group: &GroupId,
    ) -> Result<Vec<Fact>, Refusal> {
        let bits = || self.call.mint.bits(self.call.now);
        let facts = failed.map(|it| given_back(self.runtime(), it, &group.process, bits));
        facts.transpose().map(Option::unwrap_or_default)
    }

    /// Adds to what an earlier fact of this step says of a deploy.
    fn tell(&mut self, deploy: Option<DeployId>, more: &str) {
        let id = deploy.map(|id| id.to_string()).unwrap_or_default();
        let fact = self.facts.iter_mut().find(|fact| fact.aggregate_id == id);
        if let Some(Body::DeployStatusChanged(changed)) = fact.map(|fact| &mut fact.body) {
            let told = changed.message.take();
            changed.message =
                Some(told.map_or_else(|| more.to_owned(), |told| format!("{told}; {more}")));
        }
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
