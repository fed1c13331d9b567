//! Nodes, as operators see them: drain, disable, revoke, remove. Next: `tokens`.

use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::types::{DrainNode, RevokeNode};
use fluffy_base::id::{DrainId, NodeId};
use fluffy_planner::lifecycle::{Cause, NodeState, VolumeState};
use fluffy_planner::model;

use super::{Decided, Desk, gone, invalid, missing, transition};
use crate::call::{Fact, Subject};
use crate::event::{
    NodePlanConfirmed, NodeRemoved, NodeRevoked, NodeStateChanged, VolumeStateChanged,
};
use crate::refusal::Refusal;

fn node<'a>(desk: &Desk<'a>, to: NodeState) -> Result<(NodeId, &'a model::Node), Refusal> {
    let id: NodeId = desk.leaf("node")?;
    let node = desk.runtime().plan.nodes.get(&id);
    let node = node.ok_or_else(|| missing("node"))?;
    NodeState::can(Some(node.state), to, Cause::NodeManage).map_err(transition)?;
    Ok((id, node))
}

fn changed(state: NodeState, reason: &str) -> NodeStateChanged {
    NodeStateChanged {
        state: state.to_string(),
        reason: Some(reason.to_owned()),
        leave_stateful: None,
        deadline: None,
        drain_id: None,
    }
}

pub(super) fn drain(desk: &Desk<'_>) -> Decided {
    let (id, _) = node(desk, NodeState::Draining)?;
    let body: DrainNode = desk.body()?;
    let seconds = body.deadline_seconds.unwrap_or(3600);
    if !(60..=86_400).contains(&seconds) {
        return Err(invalid("deadline_seconds", "it is from 60 to 86400"));
    }
    let drain = DrainId::from_bits(desk.bits());
    let deadline = desk.now().after(Duration::from_secs(u64::from(seconds)));
    let draining = NodeStateChanged {
        leave_stateful: Some(body.leave_stateful),
        deadline: Some(deadline),
        drain_id: Some(drain),
        ..changed(NodeState::Draining, "operator")
    };
    let fact = Fact::new(id, draining.into());
    Ok((vec![fact], Subject::of("operation", drain)))
}

/// Lets a node take instances again, or takes it out of use.
pub(super) fn change(desk: &Desk<'_>) -> Decided {
    let to = match desk.request.operation {
        Operation::UncordonNode => NodeState::Active,
        _ => NodeState::Disabled,
    };
    let (id, _) = node(desk, to)?;
    let fact = Fact::new(id, changed(to, "operator").into());
    Ok((vec![fact], Subject::of("node", id)))
}

/// Lets a node end what its plan leaves out; nothing where it holds nothing
/// back, so that a word too many never releases a later plan.
pub(super) fn confirm_plan(desk: &Desk<'_>) -> Decided {
    let id: NodeId = desk.leaf("node")?;
    let record = desk.runtime().nodes.get(&id);
    let record = record.ok_or_else(|| missing("node"))?;
    let facts = match &record.held {
        Some((held, false)) => {
            let confirmed = NodePlanConfirmed { held: held.clone() };
            vec![Fact::new(id, confirmed.into())]
        }
        Some((_, true)) | None => Vec::new(),
    };
    Ok((facts, Subject::of("node", id)))
}

pub(super) fn revoke(desk: &Desk<'_>) -> Decided {
    let (id, _) = node(desk, NodeState::Revoked)?;
    let body: RevokeNode = desk.body()?;
    let revoked = NodeRevoked {
        reason: body.reason.unwrap_or_else(|| "operator".to_owned()),
    };
    let fact = Fact::new(id, revoked.into());
    Ok((vec![fact], Subject::of("node", id)))
}

pub(super) fn remove(desk: &Desk<'_>) -> Decided {
    let (id, _) = node(desk, NodeState::Removed)?;
    let plan = &desk.runtime().plan;
    let mut here = plan.instances.values();
    if here.any(|it| it.node == id && it.volumes.is_empty() && !it.has_ended()) {
        let why = "instances on the node have not stopped yet";
        return Err(Refusal::new(
            "invalid_transition",
            why,
            "wait until they have",
        ));
    }
    let volumes: Vec<_> = plan
        .volumes
        .iter()
        .filter(|(_, it)| it.home == id)
        .collect();
    if !volumes.is_empty() && !desk.is_set("abandon_volumes") {
        let why = format!("{} volumes are on the node and nowhere else", volumes.len());
        let fix = "restore them elsewhere, or give them up with `abandon_volumes`";
        let ids: Vec<String> = volumes.iter().map(|(id, _)| id.to_string()).collect();
        return Err(Refusal::new("node_has_volumes", why, fix).with("volumes", ids));
    }
    let mut facts = Vec::new();
    for (volume, it) in volumes {
        if VolumeState::can(Some(it.state), VolumeState::Error, Cause::Node).is_ok() {
            let lost = VolumeStateChanged {
                state: VolumeState::Error.to_string(),
                reason: Some("node_removed".to_owned()),
                instance_id: None,
            };
            let owner = desk.runtime().volumes.get(volume).map(|it| it.org);
            let scope = crate::state::Owner {
                org: owner,
                ..crate::state::Owner::default()
            };
            facts.push(Fact::new(volume, lost.into()).of(&scope.scope()));
        }
    }
    facts.push(Fact::new(id, NodeRemoved {}.into()));
    Ok((facts, gone(id)))
}
