//! What must always hold, whatever happens. Each looks at the truth, and
//! counts in its own way.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::Timestamp;
use fluffy_base::id::{InstanceId, NodeId, OrgId};
use fluffy_planner::action::{Action, Allocation, Step};
use fluffy_planner::lifecycle::{DeployState, InstanceStatus, NodeState, SecretBundleState};
use fluffy_planner::model::{Deploy, Desired, GroupId, Instance, Resources, State};
use fluffy_planner::reason::{Condition, Dimension, DrainReason, FailureReason};
use fluffy_planner::{CRASH_PAUSE, EDGE_PATIENCE, RETRIES, plan};

use super::machine::Fate;
use super::world::World;
use crate::ground::MIB;
use crate::server::{Refused, Server};

/// What an invariant looks at.
pub(crate) struct Moment<'a> {
    pub(crate) world: &'a World,
    /// The passes of this second.
    pub(crate) passes: &'a [Pass],
    /// Whether everything has had its time to come to rest.
    pub(crate) at_rest: bool,
}

/// One pass and what became of its steps.
pub(crate) struct Pass {
    pub(crate) before: State,
    pub(crate) after: State,
    pub(crate) now: Timestamp,
    /// Whether it was carried out as soon as it was planned.
    pub(crate) fresh: bool,
    pub(crate) accepted: Vec<Step>,
    pub(crate) refused: Vec<(Step, Refused)>,
}

type Holds = fn(&Moment<'_>) -> Result<(), String>;
pub(crate) type Invariant = (&'static str, Holds);

macro_rules! invariants {
    ($($name:ident,)*) => {
        pub(crate) const INVARIANTS: &[Invariant] = &[$((stringify!($name), $name)),*];
    };
}

invariants! {
    invariant_no_node_gives_more_than_it_has,
    invariant_no_org_grows_above_its_quota,
    invariant_a_volume_has_one_writer,
    invariant_data_stays_at_home,
    invariant_data_is_never_moved,
    invariant_data_is_not_stopped_for_what_could_not_start,
    invariant_nobody_goes_first_for_what_could_not_start,
    invariant_enough_stay_available,
    invariant_surge_is_bounded,
    invariant_nothing_is_placed_on_a_closed_node,
    invariant_isolation_is_kept,
    invariant_weaker_walls_give_way,
    invariant_a_fresh_step_is_accepted,
    invariant_a_pass_on_what_it_left_finds_nothing,
    invariant_quota_and_capacity_are_told_apart,
    invariant_edges_come_before_a_stop,
    invariant_a_paused_deploy_replaces_nothing,
    invariant_a_deploy_has_three_tries,
    invariant_crash_loops_are_slowed,
    invariant_every_deploy_ends,
    invariant_everything_comes_to_rest,
}

impl Pass {
    fn actions(&self) -> impl Iterator<Item = &Action> {
        self.accepted.iter().flat_map(|step| &step.actions)
    }

    fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        self.actions().filter_map(|action| match action {
            Action::Allocate(allocation) => Some(allocation),
            _ => None,
        })
    }

    fn drains(&self) -> impl Iterator<Item = (InstanceId, &Instance, DrainReason)> {
        self.actions().filter_map(|action| match action {
            Action::Drain {
                instance, reason, ..
            } => Some((*instance, &self.before.instances[instance], *reason)),
            _ => None,
        })
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn members<'a>(state: &'a State, group: &GroupId) -> impl Iterator<Item = &'a Instance> {
    state
        .instances
        .values()
        .filter(move |it| it.group == *group)
}

fn is_available(state: &State, instance: &Instance, now: Timestamp) -> bool {
    let min_ready = state.groups[&instance.group].spec.min_ready;
    let observed = &instance.observed;
    instance.desired == Desired::Running
        && observed.status == InstanceStatus::Ready
        && observed.since.after(min_ready) <= now
        && !state.is_lost(instance.node)
}

fn usage(state: &State, org: OrgId, field: fn(&Resources) -> u64) -> u64 {
    let own = state
        .instances
        .values()
        .filter(|it| state.envs[&it.group.env].org == org);
    own.filter(|it| state.counts(it))
        .map(|it| field(&it.booking))
        .sum()
}

fn open_deploy<'a>(state: &'a State, group: &GroupId) -> Option<&'a Deploy> {
    let mut deploys = state.deploys.values();
    deploys.find(|it| !it.state.is_final() && it.groups.contains_key(group))
}

fn is_rolling(deploy: &Deploy) -> bool {
    matches!(deploy.state, DeployState::Queued | DeployState::Rolling)
}

fn invariant_no_node_gives_more_than_it_has(moment: &Moment<'_>) -> Result<(), String> {
    let state = &moment.world.server.state;
    for (id, node) in &state.nodes {
        let on = || {
            state
                .instances
                .values()
                .filter(|it| it.node == *id && !it.has_ended())
        };
        let memory: u64 = on().map(|it| it.booking.memory).sum();
        let disk: u64 = on().map(|it| it.booking.disk).sum();
        let fits = memory <= node.capacity.allocatable_memory() && disk <= node.capacity.disk;
        ensure(fits && on().count() <= 250, || {
            format!("{id} has {memory} and {disk}")
        })?;
    }
    Ok(())
}

fn invariant_no_org_grows_above_its_quota(moment: &Moment<'_>) -> Result<(), String> {
    for pass in moment.passes {
        for allocation in pass.allocations() {
            let org = pass.before.envs[&allocation.group.env].org;
            let quota = pass.before.orgs[&org].quota;
            let fits = usage(&pass.after, org, |_| 1) <= quota.instances
                && usage(&pass.after, org, |it| it.memory) <= quota.memory
                && usage(&pass.after, org, |it| it.cpu_millis) <= quota.cpu_millis;
            ensure(fits, || format!("{org} has more than {quota:?}"))?;
        }
    }
    Ok(())
}

fn invariant_a_volume_has_one_writer(moment: &Moment<'_>) -> Result<(), String> {
    let mut writers = BTreeMap::new();
    for machine in moment.world.machines.values() {
        for (instance, volume) in machine.writers() {
            let other = writers.insert(volume, instance);
            ensure(other.is_none(), || {
                format!("{volume}: {instance} and {other:?}")
            })?;
        }
    }
    Ok(())
}

fn invariant_data_stays_at_home(moment: &Moment<'_>) -> Result<(), String> {
    let state = &moment.world.server.state;
    for (id, instance) in &state.instances {
        for volume in &instance.volumes {
            let home = state.volumes[volume].home;
            ensure(home == instance.node, || {
                format!("{id} is on {}", instance.node)
            })?;
        }
    }
    Ok(())
}

fn invariant_data_is_never_moved(moment: &Moment<'_>) -> Result<(), String> {
    for pass in moment.passes {
        for (id, instance, reason) in pass.drains() {
            let moves = matches!(reason, DrainReason::NodeDraining | DrainReason::HostFailed);
            let moved = moves && !instance.volumes.is_empty();
            ensure(!moved, || format!("{id} was drained for {reason}"))?;
        }
        for action in pass.actions() {
            if let Action::Stop { instance, reason } = action {
                let given_up = *reason == fluffy_planner::reason::StopReason::NodeLost
                    && !pass.before.instances[instance].volumes.is_empty();
                ensure(!given_up, || format!("{instance} was given up"))?;
            }
        }
    }
    Ok(())
}

fn invariant_data_is_not_stopped_for_what_could_not_start(
    moment: &Moment<'_>,
) -> Result<(), String> {
    for pass in moment.passes.iter().filter(|pass| pass.fresh) {
        for (id, instance, reason) in pass.drains() {
            let group = &pass.before.groups[&instance.group];
            let replaced = matches!(
                reason,
                DrainReason::RolloutReplace | DrainReason::OperatorRestart
            );
            if !replaced || group.spec.volumes.is_empty() || group.count == 0 {
                continue;
            }
            let fits = fits_without(&pass.before, &instance.group, instance.node, id);
            ensure(fits, || format!("{id} went for nothing"))?;
        }
    }
    Ok(())
}

/// Whether a node would take one more of a group if an instance were gone.
fn fits_without(state: &State, group: &GroupId, node: NodeId, gone: InstanceId) -> bool {
    let (spec, env) = (&state.groups[group].spec, &state.envs[&group.env]);
    let node_id = node;
    let node = &state.nodes[&node];
    let accepted = node.drivers.iter().filter(|(driver, limits)| {
        env.isolation.accepts(driver.level()) && spec.resources.memory <= limits.memory
    });
    let overhead = accepted.map(|(driver, _)| driver.overhead()).min();
    let others = || {
        let here = state.instances.iter().filter(|(id, _)| **id != gone);
        here.filter(|(_, it)| it.node == node_id && !it.has_ended())
    };
    let used = |field: fn(&Resources) -> u64| -> u64 {
        let booked = others().map(|(_, it)| field(&it.booking));
        booked.sum::<u64>() + field(&spec.resources)
    };
    let fits = |overhead: u64| {
        used(|it| it.memory) + overhead <= node.capacity.allocatable_memory()
            && used(|it| it.disk) <= node.capacity.disk
            && others().count() < 250
    };
    node.state == NodeState::Active
        && spec.images.contains_key(&node.arch)
        && overhead.is_some_and(fits)
}

/// Whoever goes before its successor comes, beyond what its deploy allows,
/// makes room by it: on its node, or in a quota that is used up.
fn invariant_nobody_goes_first_for_what_could_not_start(moment: &Moment<'_>) -> Result<(), String> {
    for pass in moment.passes.iter().filter(|pass| pass.fresh) {
        let replaced = |reason| {
            matches!(
                reason,
                DrainReason::RolloutReplace | DrainReason::OperatorRestart
            )
        };
        let drains = || pass.drains().filter(|(_, _, reason)| replaced(*reason));
        let groups: BTreeSet<&GroupId> = drains().map(|(_, it, _)| &it.group).collect();
        for id in groups {
            let (before, group) = (&pass.before, &pass.before.groups[id]);
            let stateful = !group.spec.volumes.is_empty();
            if stateful || members(before, id).any(|it| !it.volumes.is_empty()) {
                continue;
            }
            let wanted = members(&pass.after, id).filter(|it| it.is_wanted()).count();
            let rolling = open_deploy(before, id).filter(|it| is_rolling(it));
            let fewer = rolling.map_or(0, |it| it.options.max_unavailable as usize);
            if wanted >= (group.count as usize).saturating_sub(fewer) {
                continue;
            }
            let org = before.envs[&id.env].org;
            let quota = before.orgs[&org].quota;
            let asked = group.spec.resources;
            let mut gone = drains().filter(|(_, it, _)| it.group == *id);
            let makes_room = gone.any(|(gone, it, _)| {
                let freed = |field: u64| if before.counts(it) { field } else { 0 };
                let left = |field: fn(&Resources) -> u64| {
                    usage(before, org, field) - freed(field(&it.booking)) + field(&asked)
                };
                let allowed = left(|it| it.cpu_millis) <= quota.cpu_millis
                    && left(|it| it.memory) <= quota.memory
                    && usage(before, org, |_| 1) - freed(1) < quota.instances;
                let mut nodes = before.nodes.keys();
                allowed && nodes.any(|node| fits_without(before, id, *node, gone))
            });
            ensure(makes_room, || format!("one of {id} went for nothing"))?;
        }
    }
    Ok(())
}

fn invariant_enough_stay_available(moment: &Moment<'_>) -> Result<(), String> {
    for pass in moment.passes.iter().filter(|pass| pass.fresh) {
        let groups: BTreeSet<&GroupId> = pass.drains().map(|(_, it, _)| &it.group).collect();
        for id in groups {
            let group = &pass.before.groups[id];
            let stateful = !group.spec.volumes.is_empty()
                || members(&pass.before, id).any(|it| !it.volumes.is_empty());
            let forced = pass.drains().any(|(_, it, _)| {
                let drain = &pass.before.nodes[&it.node].drain;
                it.group == *id && drain.as_ref().is_some_and(|it| it.deadline <= pass.now)
            });
            if stateful || forced {
                continue;
            }
            let rolling = open_deploy(&pass.before, id).filter(|it| is_rolling(it));
            let mut fewer = rolling.map_or(0, |it| it.options.max_unavailable as usize);
            if pass.after.groups[id]
                .conditions
                .contains(&Condition::DrainFirst)
            {
                fewer = fewer.max(1);
            }
            let available = |state: &State| {
                members(state, id)
                    .filter(|it| is_available(state, it, pass.now))
                    .count()
            };
            let (before, after) = (available(&pass.before), available(&pass.after));
            let least = (group.count as usize).saturating_sub(fewer).min(before);
            ensure(after >= least, || {
                format!("{id}: {before} became {after}, not {least}")
            })?;
        }
    }
    Ok(())
}

fn invariant_surge_is_bounded(moment: &Moment<'_>) -> Result<(), String> {
    for pass in moment.passes.iter().filter(|pass| pass.fresh) {
        for allocation in pass.allocations() {
            let id = &allocation.group;
            let count = pass.before.groups[id].count as usize;
            // A deploy that ends in this pass bounds nothing any more.
            let deploy = open_deploy(&pass.after, id).filter(|it| is_rolling(it));
            let (have, most) = match deploy {
                Some(deploy) => {
                    let live = members(&pass.after, id).filter(|it| pass.after.counts(it));
                    (live.count(), count + deploy.options.max_surge as usize)
                }
                None => {
                    let wanted = members(&pass.after, id).filter(|it| it.is_wanted());
                    (wanted.count(), count + 1)
                }
            };
            ensure(have <= most, || {
                format!("{id} has {have}, and {most} is the most")
            })?;
        }
    }
    Ok(())
}

fn invariant_nothing_is_placed_on_a_closed_node(moment: &Moment<'_>) -> Result<(), String> {
    for pass in moment.passes {
        for allocation in pass.allocations() {
            let state = pass.before.nodes[&allocation.node].state;
            let open = state == NodeState::Active;
            ensure(open, || format!("{} is {state}", allocation.node))?;
        }
    }
    Ok(())
}

fn invariant_isolation_is_kept(moment: &Moment<'_>) -> Result<(), String> {
    for pass in moment.passes {
        for allocation in pass.allocations() {
            let (group, driver) = (&allocation.group, allocation.driver);
            let isolation = pass.before.envs[&group.env].isolation;
            let kept = isolation.accepts(driver.level());
            ensure(kept, || format!("{group} gets {driver:?} in {isolation:?}"))?;
        }
    }
    Ok(())
}

/// What an env accepts no more is replaced, or its group is told why not.
fn invariant_weaker_walls_give_way(moment: &Moment<'_>) -> Result<(), String> {
    if !moment.at_rest {
        return Ok(());
    }
    let (world, state) = (moment.world, &moment.world.server.state);
    for (id, instance) in &state.instances {
        let group = &state.groups[&instance.group];
        let isolation = state.envs[&instance.group.env].isolation;
        let accepted = isolation.accepts(instance.driver.level());
        let told = !group.conditions.is_empty();
        // What cannot come up takes nobody's place.
        let good = world.fate(group.spec.hash) == Fate::Good;
        let stays = accepted || told || !good || !instance.is_wanted() || instance.has_ended();
        ensure(stays, || {
            format!("{id} runs with {:?} in {isolation:?}", instance.driver)
        })?;
    }
    Ok(())
}

fn invariant_a_fresh_step_is_accepted(moment: &Moment<'_>) -> Result<(), String> {
    let fresh = moment.passes.iter().filter(|pass| pass.fresh);
    match fresh.flat_map(|pass| &pass.refused).next() {
        Some((step, refused)) => Err(format!("{refused:?}: {step:?}")),
        None => Ok(()),
    }
}

fn invariant_a_pass_on_what_it_left_finds_nothing(moment: &Moment<'_>) -> Result<(), String> {
    let world = moment.world;
    // Looked at now and then, because it costs some passes more.
    if world.second % 13 != 0 {
        return Ok(());
    }
    let mut scratch = Server::with_specs_of(&world.server);
    let mut last = Vec::new();
    for _ in 0..8 {
        let shown = world.fault.show(&scratch.state).into_owned();
        let steps = plan(&shown, world.now());
        let again = plan(&shown, world.now());
        ensure(steps == again, || "equal input gave two plans".to_owned())?;
        if steps.is_empty() {
            return Ok(());
        }
        for step in &steps {
            // What is refused is another invariant's.
            let _ = scratch.append(&shown, step, world.now());
        }
        last = steps;
    }
    Err(format!("it still finds {last:?}"))
}

fn invariant_quota_and_capacity_are_told_apart(moment: &Moment<'_>) -> Result<(), String> {
    for pass in moment.passes.iter().filter(|pass| pass.fresh) {
        for action in pass.actions() {
            let Action::RecordFailure { group, reason, .. } = action else {
                continue;
            };
            let org = pass.before.envs[&group.env].org;
            let quota = pass.before.orgs[&org].quota;
            let asked = pass.before.groups[group].spec.resources;
            let memory = asked.memory + 128 * MIB;
            // Whoever is given up in this very pass still counted when it began.
            let used = |field: fn(&Resources) -> u64| {
                let new = pass
                    .allocations()
                    .filter(|it| pass.before.envs[&it.group.env].org == org);
                usage(&pass.before, org, field) + new.map(|it| field(&it.booking)).sum::<u64>()
            };
            let full = match reason {
                Condition::OrgQuotaExceeded(Dimension::Instances) => used(|_| 1) >= quota.instances,
                Condition::OrgQuotaExceeded(Dimension::Memory) => {
                    used(|it| it.memory) + memory > quota.memory
                }
                Condition::OrgQuotaExceeded(Dimension::Cpu) => {
                    used(|it| it.cpu_millis) + asked.cpu_millis > quota.cpu_millis
                }
                _ => usage(&pass.before, org, |_| 1) < quota.instances,
            };
            ensure(full, || format!("{group} was told {reason}"))?;
        }
    }
    Ok(())
}

fn invariant_edges_come_before_a_stop(moment: &Moment<'_>) -> Result<(), String> {
    for pass in moment.passes.iter().filter(|pass| pass.fresh) {
        for action in pass.actions() {
            let Action::AllowStop { instance } = action else {
                continue;
            };
            let draining = &pass.before.instances[instance];
            let Desired::Draining { since, .. } = draining.desired else {
                return Err(format!("{instance} does not drain"));
            };
            let allowed = !draining.routed || pass.now.since(since) >= EDGE_PATIENCE;
            ensure(allowed, || format!("{instance} still gets connections"))?;
        }
    }
    Ok(())
}

fn invariant_a_paused_deploy_replaces_nothing(moment: &Moment<'_>) -> Result<(), String> {
    for pass in moment.passes.iter().filter(|pass| pass.fresh) {
        for (id, instance, reason) in pass.drains() {
            let deploy = open_deploy(&pass.before, &instance.group);
            let paused = deploy.is_some_and(|it| it.state == DeployState::Paused);
            let replaced = reason == DrainReason::RolloutReplace && paused;
            ensure(!replaced, || format!("{id} was replaced in a pause"))?;
        }
    }
    Ok(())
}

fn invariant_a_deploy_has_three_tries(moment: &Moment<'_>) -> Result<(), String> {
    let state = &moment.world.server.state;
    for deploy in state.deploys.values().filter(|it| is_rolling(it)) {
        for group in deploy.groups.keys() {
            let replaced = state.groups[group].replaced.iter();
            let tries = replaced.filter(|it| {
                let recent = moment.world.now().since(it.at).as_secs() < 600;
                it.reason == DrainReason::StartFailed && it.at >= deploy.since && recent
            });
            let tries = tries.count();
            ensure(tries < RETRIES, || format!("{group} has had {tries}"))?;
        }
    }
    Ok(())
}

fn invariant_crash_loops_are_slowed(moment: &Moment<'_>) -> Result<(), String> {
    for pass in moment.passes.iter().filter(|pass| pass.fresh) {
        for allocation in pass.allocations() {
            let id = &allocation.group;
            let looping = |it: &Instance| {
                it.is_wanted()
                    && !pass.before.is_lost(it.node)
                    && it.observed.status == InstanceStatus::Failed
                    && it.observed.reason == Some(FailureReason::CrashLoopBackoff)
            };
            if open_deploy(&pass.before, id).is_some() || !members(&pass.before, id).any(looping) {
                continue;
            }
            let last = members(&pass.before, id).map(|it| it.allocated_at).max();
            let waited = last.is_none_or(|at| pass.now.since(at) >= CRASH_PAUSE);
            let one = pass.allocations().filter(|it| it.group == *id).count() == 1;
            ensure(waited && one, || format!("{id} got another one too soon"))?;
        }
    }
    Ok(())
}

fn invariant_every_deploy_ends(moment: &Moment<'_>) -> Result<(), String> {
    if !moment.at_rest {
        return Ok(());
    }
    let state = &moment.world.server.state;
    for (id, deploy) in &state.deploys {
        ensure(deploy.state.is_final(), || {
            format!("{id} is {}", deploy.state)
        })?;
    }
    for (id, env) in &state.envs {
        // Without a deploy a release that never starts is waited for.
        let groups = || state.groups.iter().filter(|(group, _)| group.env == *id);
        let good = groups().all(|(_, it)| moment.world.fate(it.spec.hash) == Fate::Good);
        let told = groups().any(|(_, it)| !it.conditions.is_empty());
        let rotating = env
            .secrets
            .is_some_and(|it| it.state == SecretBundleState::Rotating);
        ensure(!rotating || !good || told, || {
            format!("{id} is still rotating")
        })?;
    }
    Ok(())
}

fn invariant_everything_comes_to_rest(moment: &Moment<'_>) -> Result<(), String> {
    if !moment.at_rest {
        return Ok(());
    }
    let (world, state) = (moment.world, &moment.world.server.state);
    for (id, group) in &state.groups {
        if group.held || world.fate(group.spec.hash) != Fate::Good {
            continue;
        }
        let available = members(state, id).filter(|it| is_available(state, it, world.now()));
        let current = available.filter(|it| it.spec == group.spec.hash).count();
        // Whoever has less than it wants is told why.
        let told = !group.conditions.is_empty();
        let enough = current == group.count as usize;
        ensure(enough || told, || {
            format!("{id} has {current} of {}", group.count)
        })?;
        let live = members(state, id).filter(|it| !it.has_ended()).count();
        ensure(!enough || told || live == current, || {
            format!("{id} has {live} in all")
        })?;
    }
    for (id, node) in &state.nodes {
        let stateless = state
            .instances
            .values()
            .any(|it| it.node == *id && it.volumes.is_empty() && !it.has_ended());
        let late = node
            .drain
            .as_ref()
            .is_some_and(|it| it.deadline <= world.now());
        let done = node.state != NodeState::Draining || !late || !stateless;
        ensure(done, || format!("{id} was never drained"))?;
    }
    Ok(())
}
