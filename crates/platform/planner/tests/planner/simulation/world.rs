//! A cluster in virtual time: machines, a server, edges, people and trouble.
//!
//! Every second people give orders, machines go on, reports arrive late, twice
//! and in the wrong order, and one or more planners make passes; some of them
//! are slow and act on what was, some die in the middle.

use std::collections::BTreeMap;

use fluffy_base::id::{InstanceId, NodeId, ReleaseId};
use fluffy_base::{Digest, Timestamp};
use fluffy_planner::action::{Action, Step};
use fluffy_planner::lifecycle::{Cause, InstanceStatus, NodeState, VolumeState};
use fluffy_planner::model::{Driver, DriverLimits, EnvIsolation, SecretUse, State};
use fluffy_planner::plan;
use fluffy_planner::reason::FailureReason;
use fluffy_test_kit::Random;

use super::fault::Fault;
use super::invariants::{Invariant, Moment, Pass};
use super::machine::{Fate, Link, Machine, Report};
use crate::ground::{
    GIB, add_env, add_group, add_stateful, at, cluster, env_id, group_id, hash, node_id, org_id,
};
use crate::server::{Refused, Server};

/// How long people and faults make trouble.
const TROUBLE: i64 = 500;
/// How long everything has to come to rest after that.
const REST: i64 = 1300;

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) machines: BTreeMap<NodeId, Machine>,
    pub(crate) random: Random,
    pub(crate) second: i64,
    pub(crate) fault: Fault,
    pub(crate) fates: BTreeMap<ReleaseId, Fate>,
    pub(crate) next_release: u128,
    pub(crate) counts: Counts,
    hashes: BTreeMap<Digest, ReleaseId>,
    former: BTreeMap<NodeId, NodeState>,
    heard: BTreeMap<InstanceId, u64>,
    early: BTreeMap<(InstanceId, u64), Report>,
    slow: Vec<(i64, Vec<Step>)>,
}

/// What happened, so that a world in which nothing happens is noticed.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    events: BTreeMap<&'static str, u64>,
}

impl Counts {
    pub(crate) fn add(&mut self, what: &'static str) {
        *self.events.entry(what).or_default() += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (what, count) in &other.events {
            *self.events.entry(what).or_default() += count;
        }
    }

    pub(crate) fn of(&self, what: &str) -> u64 {
        self.events.get(what).copied().unwrap_or_default()
    }
}

impl World {
    pub(crate) fn new(seed: u64, fault: Fault) -> Self {
        let mut random = Random::new(seed);
        let state = landscape(&mut random);
        let machines = state.nodes.keys().map(|id| {
            let slow = if random.one_in(5) { 3 } else { 1 };
            (*id, Machine::new(slow))
        });
        Self {
            machines: machines.collect(),
            server: Server::new(state),
            random,
            second: 0,
            fault,
            fates: BTreeMap::new(),
            next_release: 2,
            counts: Counts::default(),
            hashes: BTreeMap::new(),
            former: BTreeMap::new(),
            heard: BTreeMap::new(),
            early: BTreeMap::new(),
            slow: Vec::new(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        at(self.second)
    }

    /// Trouble, then rest; stops at the first violation.
    pub(crate) fn run(&mut self, invariants: &[Invariant]) -> Result<(), String> {
        while self.second < TROUBLE {
            self.second(true, invariants)?;
        }
        self.heal();
        while self.second < TROUBLE + REST {
            self.second(false, invariants)?;
            if self.second % 16 == 0 && self.is_at_rest() {
                break;
            }
        }
        self.judge(&[], true, invariants)
    }

    fn second(&mut self, trouble: bool, invariants: &[Invariant]) -> Result<(), String> {
        self.second += 1;
        if trouble {
            self.command();
            self.break_links();
        }
        self.remember_specs();
        self.live();
        self.deliver();
        self.watch_heartbeats();
        self.route();
        let passes = self.passes(trouble);
        self.judge(&passes, false, invariants)
    }

    fn judge(
        &self,
        passes: &[Pass],
        at_rest: bool,
        invariants: &[Invariant],
    ) -> Result<(), String> {
        let moment = Moment {
            world: self,
            passes,
            at_rest,
        };
        for (name, holds) in invariants {
            holds(&moment).map_err(|what| format!("{name} at {}: {what}", self.second))?;
        }
        Ok(())
    }

    /// Nothing is on its way: no deploy, no drain, no pass with work.
    fn is_at_rest(&self) -> bool {
        let state = &self.server.state;
        let deploys = state.deploys.values().all(|deploy| deploy.state.is_final());
        let calm = state.instances.values().all(|instance| {
            instance.is_wanted()
                && instance.observed.status == InstanceStatus::Ready
                && self.now().since(instance.observed.since).as_secs() >= 10
        });
        let counted: u32 = state.groups.values().map(|group| group.count).sum();
        let complete = state.instances.len() == counted as usize;
        let shown = self.fault.show(state);
        deploys && calm && complete && plan(&shown, self.now()).is_empty()
    }

    fn remember_specs(&mut self) {
        for group in self.server.state.groups.values() {
            self.hashes.insert(group.spec.hash, group.spec.release);
        }
    }

    pub(crate) fn fate(&self, spec: Digest) -> Fate {
        let release = self.hashes.get(&spec);
        let fate = release.and_then(|release| self.fates.get(release));
        fate.copied().unwrap_or(Fate::Good)
    }

    fn break_links(&mut self) {
        let ids: Vec<NodeId> = self.machines.keys().copied().collect();
        for id in ids {
            let chance = self.random.below(400);
            let length = 5 + self.random.below(120) as i64;
            let machine = self.machines.get_mut(&id).unwrap();
            match machine.link {
                Link::Connected if chance == 0 => {
                    machine.lose_power(self.second);
                    machine.link = Link::Off;
                    self.counts.add("a power cut");
                }
                Link::Connected if chance == 1 => {
                    machine.link = Link::Cut;
                    self.counts.add("a cut link");
                }
                _ if machine.link_until <= self.second => {
                    machine.link = Link::Connected;
                    continue;
                }
                _ => continue,
            }
            machine.link_until = self.second + length;
        }
    }

    /// Trouble ends: machines are back, and what was switched off is on again.
    fn heal(&mut self) {
        for machine in self.machines.values_mut() {
            machine.link = Link::Connected;
        }
        let ids: Vec<NodeId> = self.machines.keys().copied().collect();
        for id in ids {
            let node = self.server.state.nodes.get_mut(&id).unwrap();
            let off = matches!(
                node.state,
                NodeState::Draining | NodeState::Drained | NodeState::Disabled
            );
            if off && self.random.one_in(2) {
                (node.state, node.drain, node.version) =
                    (NodeState::Active, None, node.version + 1);
            }
        }
    }

    /// Machines hear their plan and go on.
    fn live(&mut self) {
        for (id, machine) in &mut self.machines {
            if machine.link == Link::Connected {
                let instances = self.server.state.instances.iter();
                let own = instances.filter(|(_, instance)| instance.node == *id);
                let own: Vec<_> = own
                    .map(|(instance_id, instance)| {
                        let release = self.hashes.get(&instance.spec);
                        let fate = release.and_then(|release| self.fates.get(release));
                        (*instance_id, instance, fate.copied().unwrap_or(Fate::Good))
                    })
                    .collect();
                machine.listen(own.into_iter(), self.second);
            }
            if machine.link != Link::Off {
                let trouble = self.second < TROUBLE;
                machine.tick(self.second, &mut self.random, trouble);
            }
        }
    }

    /// Reports arrive late, twice and in the wrong order.
    fn deliver(&mut self) {
        let mut arrived = Vec::new();
        for (id, machine) in &mut self.machines {
            // A node that counts as offline is heard when it is back.
            let away = self.server.state.nodes[id].state == NodeState::Offline;
            if machine.link != Link::Connected || away {
                continue;
            }
            while !machine.outbox.is_empty() && !self.random.one_in(4) {
                let at = self.random.below(3).min(machine.outbox.len() as u64 - 1);
                let report = machine.outbox[at as usize];
                if self.random.one_in(10) {
                    self.counts.add("a report twice");
                } else {
                    machine.outbox.remove(at as usize);
                }
                arrived.push(report);
            }
        }
        for report in arrived {
            let heard = self
                .heard
                .get(&report.instance)
                .copied()
                .unwrap_or_default();
            if report.number > heard {
                if report.number > heard + 1 {
                    self.counts.add("a report too early");
                }
                self.early.insert((report.instance, report.number), report);
            }
            self.hear(report.instance);
        }
    }

    fn hear(&mut self, id: InstanceId) {
        let now = self.now();
        let heard = self.heard.entry(id).or_default();
        while let Some(report) = self.early.remove(&(id, *heard + 1)) {
            *heard += 1;
            match report.reason {
                Some(FailureReason::HealthcheckFailed) => self.counts.add("a hang"),
                Some(FailureReason::SecretsInjectionFailed) => {
                    self.counts.add("secrets that did not arrive");
                }
                _ => {}
            }
            self.server.report(id, report.status, report.reason, now);
        }
    }

    fn watch_heartbeats(&mut self) {
        let now = self.second;
        for (id, machine) in &mut self.machines {
            if machine.link == Link::Connected {
                machine.heard = now;
            }
            let silent = now - machine.heard;
            let before = self.server.state.nodes[id].state;
            let after = match before {
                NodeState::Active if silent >= 60 => NodeState::Offline,
                NodeState::Degraded | NodeState::Draining if silent >= 60 => NodeState::Offline,
                NodeState::Active if silent >= 20 => NodeState::Degraded,
                NodeState::Degraded if silent < 20 => NodeState::Active,
                NodeState::Offline if silent == 0 => {
                    machine.say_again();
                    self.former[id]
                }
                same => same,
            };
            if after == before {
                continue;
            }
            NodeState::can(Some(before), after, Cause::Liveness).unwrap();
            let node = self.server.state.nodes.get_mut(id).unwrap();
            (node.state, node.version) = (after, node.version + 1);
            if after == NodeState::Offline {
                self.counts.add("a node offline");
                self.former.insert(*id, before);
            }
            reckon(&mut self.server.state, *id, at(now));
        }
    }

    /// Edges learn who serves, and who does no more.
    fn route(&mut self) {
        for instance in self.server.state.instances.values_mut() {
            let serves = instance.is_wanted() && instance.observed.status == InstanceStatus::Ready;
            if instance.routed != serves && self.random.one_in(3) {
                instance.routed = serves;
            }
        }
    }

    fn passes(&mut self, trouble: bool) -> Vec<Pass> {
        let mut passes = Vec::new();
        let due: Vec<Vec<Step>> = {
            let now = self.second;
            let (due, later) = std::mem::take(&mut self.slow)
                .into_iter()
                .partition(|it| it.0 <= now);
            self.slow = later;
            let due: Vec<(i64, Vec<Step>)> = due;
            due.into_iter().map(|(_, steps)| steps).collect()
        };
        for steps in due {
            passes.push(self.append(steps, false));
        }
        if trouble && self.random.one_in(10) {
            return passes;
        }
        let steps = {
            let shown = self.fault.show(&self.server.state);
            plan(&shown, self.now())
        };
        if trouble && self.random.one_in(8) {
            let later = self.second + 1 + self.random.below(4) as i64;
            self.slow.push((later, steps));
            return passes;
        }
        let mut steps = steps;
        if trouble && steps.len() > 1 && self.random.one_in(15) {
            self.counts.add("a planner that died");
            steps.truncate(1);
        }
        let mut actions = steps.iter().flat_map(|step| &step.actions);
        let places = actions.any(|action| matches!(action, Action::Allocate(_)));
        let overtaken = trouble && places && self.random.one_in(40);
        if overtaken {
            // Before it can be carried out there is less room.
            self.drain();
            self.limit();
        }
        passes.push(self.append(steps, !overtaken));
        passes
    }

    fn append(&mut self, steps: Vec<Step>, fresh: bool) -> Pass {
        let before = self.server.state.clone();
        let now = self.now();
        let mut pass = Pass {
            before,
            after: State::default(),
            now,
            fresh,
            accepted: Vec::new(),
            refused: Vec::new(),
        };
        for step in steps {
            let believed = self.fault.show(&self.server.state).into_owned();
            match self.server.append(&believed, &step, now) {
                Ok(()) => pass.accepted.push(step),
                Err(refused) => {
                    let stale = refused == Refused::Stale;
                    self.counts.add(if stale {
                        "a stale step"
                    } else {
                        "a guarded step"
                    });
                    pass.refused.push((step, refused));
                }
            }
        }
        pass.after = self.server.state.clone();
        self.counts
            .events
            .entry("a step")
            .and_modify(|it| *it += 1)
            .or_insert(1);
        pass
    }
}

/// What the loss or the return of a node means for what is on it.
fn reckon(state: &mut State, id: NodeId, now: Timestamp) {
    let offline = state.nodes[&id].state == NodeState::Offline;
    if offline {
        for instance in state.instances.values_mut() {
            if instance.node == id && !instance.has_ended() {
                let observed = &mut instance.observed;
                if observed.status != InstanceStatus::Lost {
                    InstanceStatus::can(
                        Some(observed.status),
                        InstanceStatus::Lost,
                        Cause::Liveness,
                    )
                    .unwrap();
                }
                (observed.status, observed.since) = (InstanceStatus::Lost, now);
            }
        }
    }
    let used: Vec<_> = state
        .instances
        .values()
        .filter(|instance| !instance.has_ended())
        .flat_map(|instance| instance.volumes.iter().copied())
        .collect();
    for (volume_id, volume) in state
        .volumes
        .iter_mut()
        .filter(|(_, volume)| volume.home == id)
    {
        volume.state = match (offline, used.contains(volume_id)) {
            (true, _) => VolumeState::Unavailable,
            (false, true) => VolumeState::InUse,
            (false, false) => VolumeState::Available,
        };
    }
}

/// What an env may accept.
pub(crate) fn any_isolation(random: &mut Random) -> EnvIsolation {
    match random.below(3) {
        0 => EnvIsolation::Protected,
        1 => EnvIsolation::Virtual,
        _ => EnvIsolation::SharedKernelAllowed,
    }
}

/// Some nodes of several kinds, and some orgs with envs and groups.
fn landscape(random: &mut Random) -> State {
    let sizes: Vec<u64> = (0..4 + random.below(5))
        .map(|_| 2 + random.below(5))
        .collect();
    let mut state = cluster(&sizes);
    let limits = DriverLimits {
        vcpus: 32,
        memory: 64 * GIB,
    };
    for node in state.nodes.values_mut() {
        let driver = match random.below(6) {
            0 => Driver::Container,
            1 => Driver::QemuEmulated,
            2 => Driver::Qemu,
            _ => Driver::Firecracker,
        };
        node.drivers = BTreeMap::from([(driver, limits)]);
    }
    for env in 1..=4_u128 {
        add_env(&mut state, 1 + env % 2, env);
        let isolation = any_isolation(random);
        state.envs.get_mut(&env_id(env)).unwrap().isolation = isolation;
        let web = group_id(env, "web");
        add_group(&mut state, &web, 1 + random.below(4) as u32);
        let group = state.groups.get_mut(&web).unwrap();
        if env == 1 {
            group.spec.secrets = SecretUse::Required(None);
            group.spec.hash = hash(&web, &group.spec);
        }
    }
    for env in 1..=2_u128 {
        let home = 1 + u128::from(random.below(sizes.len() as u64));
        state.nodes.get_mut(&node_id(home)).unwrap().drivers =
            BTreeMap::from([(Driver::Firecracker, limits)]);
        add_stateful(&mut state, &group_id(env, "data"), env, home);
    }
    for org in 1..=2 {
        let quota = &mut state.orgs.get_mut(&org_id(org)).unwrap().quota;
        quota.instances = 4 + random.below(12);
    }
    state
}
