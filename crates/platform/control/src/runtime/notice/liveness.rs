//! Which nodes are there: from heartbeats to states, and what follows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fluffy_base::id::NodeId;
use fluffy_planner::lifecycle::{Cause, InstanceStatus, NodeState, VolumeState};
use fluffy_planner::model::Node;
use fluffy_planner::place::FAILURE_WINDOW;

use super::{MOST, Said, Vital};
use crate::call::{Call, Fact};
use crate::event::{InstanceStatusChanged, NodeRevoked, NodeStateChanged, VolumeStateChanged};
use crate::runtime::steps::scope;
use crate::state::{Owner, State};

/// When silence means something.
const DEGRADED: Duration = Duration::from_secs(20);
const OFFLINE: Duration = Duration::from_secs(60);

/// How long a node has to confirm itself.
const CONFIRM: Duration = Duration::from_secs(600);

/// How full a disk may be, in hundredths.
const FULL: u8 = 90;

/// How far a node's clock may be off: beyond it, certificates and times of
/// logs and ends mean nothing.
const CLOCK: Duration = Duration::from_secs(300);

pub(super) fn watch(state: &State, call: &Call<'_>, vitals: &BTreeMap<NodeId, Vital>) -> Said {
    let mut facts = Vec::new();
    let unavailable = unavailable(state);
    for (id, node) in &state.runtime.plan.nodes {
        // What is said of a node is said whole: nobody looks at it again.
        if facts.len() >= MOST {
            break;
        }
        if node.state == NodeState::Enrolled {
            let record = state.runtime.nodes.get(id);
            let late = record.is_some_and(|it| call.now.since(it.enrolled_at) >= CONFIRM);
            if late {
                let revoked = NodeRevoked {
                    reason: "unconfirmed".to_owned(),
                };
                facts.push(Fact::new(id, revoked.into()));
            }
            continue;
        }
        let Some(vital) = vitals.get(id) else {
            continue;
        };
        let verdict = verdict(state, call, (*id, node), vital);
        let verdict = verdict
            .filter(|(to, _)| NodeState::can(Some(node.state), *to, Cause::Liveness).is_ok());
        let mut now = node.state;
        if let Some((to, reason)) = verdict {
            facts.push(Fact::new(id, changed(to, reason.as_deref()).into()));
            now = to;
        }
        if now == NodeState::Offline && now != node.state {
            lose(state, call, *id, &mut facts);
        }
        // An operator can lead a node out of `offline` too; its volumes are
        // there again when it is heard.
        if is_in_use(now) && is_back(vital) && unavailable.contains(id) {
            regain(state, *id, &mut facts);
        }
    }
    Said::facts(facts)
}

/// Whether a node is heard, and knows what it is to do.
fn is_back(vital: &Vital) -> bool {
    vital.silent < DEGRADED && vital.acknowledged
}

/// Whether a node is one that silence would lead to `offline`.
fn is_in_use(state: NodeState) -> bool {
    NodeState::can(Some(state), NodeState::Offline, Cause::Liveness).is_ok()
}

/// The nodes whose volumes wait for them.
fn unavailable(state: &State) -> BTreeSet<NodeId> {
    let volumes = state.runtime.plan.volumes.values();
    let waiting = volumes.filter(|it| it.state == VolumeState::Unavailable);
    waiting.map(|it| it.home).collect()
}

fn changed(to: NodeState, reason: Option<&str>) -> NodeStateChanged {
    NodeStateChanged {
        state: to.to_string(),
        reason: reason.map(str::to_owned),
        leave_stateful: None,
        deadline: None,
        drain_id: None,
    }
}

/// Where a node goes, and why, if anywhere.
fn verdict(
    state: &State,
    call: &Call<'_>,
    (id, node): (NodeId, &Node),
    vital: &Vital,
) -> Option<(NodeState, Option<String>)> {
    let trouble = trouble(state, call, id, vital);
    match node.state {
        NodeState::Active | NodeState::Degraded | NodeState::Draining
            if vital.silent >= OFFLINE =>
        {
            Some((NodeState::Offline, Some("heartbeat_missed".to_owned())))
        }
        NodeState::Active => trouble.map(|why| (NodeState::Degraded, Some(why))),
        NodeState::Degraded if trouble.is_none() => Some((NodeState::Active, None)),
        NodeState::Offline if is_back(vital) => {
            let former = state.runtime.nodes.get(&id)?.former;
            Some((former.unwrap_or(NodeState::Active), None))
        }
        _ => None,
    }
}

/// What keeps a node from taking more.
fn trouble(state: &State, call: &Call<'_>, id: NodeId, vital: &Vital) -> Option<String> {
    let word = |word: &str| Some(word.to_owned());
    if vital.silent >= DEGRADED {
        return word("heartbeat_late");
    }
    if vital.disk_percent >= FULL {
        return word("disk_full");
    }
    if vital.unreachable {
        return word("overlay_loss");
    }
    if vital.clock_off > CLOCK {
        return word("clock_skew");
    }
    if let Some(lacks) = &vital.unfit {
        return Some(format!("doctor_failed: {lacks}"));
    }
    let failures = &state.runtime.nodes.get(&id)?.failures;
    let recent = failures
        .iter()
        .filter(|(then, _)| call.now.since(*then) < FAILURE_WINDOW);
    let groups: BTreeSet<_> = recent.clone().map(|(_, group)| group).collect();
    let many = recent.count() >= 3 && groups.len() >= 2;
    many.then(|| "host_failures".to_owned())
}

/// Nothing is known any more of what is on a node.
fn lose(state: &State, call: &Call<'_>, node: NodeId, facts: &mut Vec<Fact>) {
    let plan = &state.runtime.plan;
    for (id, instance) in plan.instances.iter().filter(|(_, it)| it.node == node) {
        let from = Some(instance.observed.status);
        if InstanceStatus::can(from, InstanceStatus::Lost, Cause::Liveness).is_ok() {
            let lost = InstanceStatusChanged {
                status: InstanceStatus::Lost.to_string(),
                node_id: node,
                boot_id: None,
                exit_code: None,
                reason_code: Some("node_lost".to_owned()),
                reason_detail: None,
                boot_ms: None,
                flap_count: None,
                reported_at: call.now,
            };
            let scope = scope(&state.runtime, instance.group.env);
            facts.push(Fact::new(id, lost.into()).of(&scope));
        }
    }
    volumes(state, node, facts, |from, _| {
        let can = VolumeState::can(Some(from), VolumeState::Unavailable, Cause::Liveness);
        can.ok().map(|()| VolumeState::Unavailable)
    });
}

/// A node is back, and its volumes with it.
fn regain(state: &State, node: NodeId, facts: &mut Vec<Fact>) {
    volumes(state, node, facts, |from, held| {
        let to = match held {
            true => VolumeState::InUse,
            false => VolumeState::Available,
        };
        let can = VolumeState::can(Some(from), to, Cause::Liveness);
        can.ok().map(|()| to)
    });
}

fn volumes(
    state: &State,
    node: NodeId,
    facts: &mut Vec<Fact>,
    to: impl Fn(VolumeState, bool) -> Option<VolumeState>,
) {
    let plan = &state.runtime.plan;
    for (id, volume) in plan.volumes.iter().filter(|(_, it)| it.home == node) {
        let mut holders = plan.instances.values();
        let held = holders.any(|it| it.volumes.contains(id) && !it.has_ended());
        let Some(to) = to(volume.state, held) else {
            continue;
        };
        let changed = VolumeStateChanged {
            state: to.to_string(),
            reason: (to == VolumeState::Unavailable).then(|| "home_node_offline".to_owned()),
            instance_id: None,
        };
        let owner = Owner {
            org: state.runtime.volumes.get(id).map(|volume| volume.org),
            ..Owner::default()
        };
        facts.push(Fact::new(id, changed.into()).of(&owner.scope()));
    }
}
