//! How machines become nodes, and what they say they have.

use fluffy_base::id::{EnrollmentTokenId, NodeId};
use fluffy_planner::lifecycle::{Cause, NodeState};

use super::reports::counts;
use super::{Enrolment, Notice, Noticed, PENDING, Said};
use crate::call::{Call, Fact, Subject};
use crate::event::{
    EnrollmentTokenConsumed, EnrollmentTokenRequested, NodeCapacityUpdated, NodeCertRotated,
    NodeDriver, NodeEnrolled, NodePlanHeld, NodeRevoked, NodeStateChanged,
};
use crate::refusal::Refusal;
use crate::runtime::write::{missing, transition};
use crate::runtime::{record, spec};
use crate::state::State;

/// A token that can still be used.
fn usable(state: &State, token: EnrollmentTokenId) -> Result<(), Refusal> {
    let token = state.runtime.enrollment_tokens.get(&token);
    let token = token.ok_or_else(|| missing("enrolment token"))?;
    match &token.ended {
        None => Ok(()),
        Some(ended) => {
            let why = format!("the token is {ended}");
            Err(Refusal::new("forbidden", why, "ask for a new token"))
        }
    }
}

/// What keeps a machine from joining now; nothing if it may. Malformed facts
/// and expiry spend nothing; a key or id that was here before spends the token,
/// and that is recorded.
fn kept_out(state: &State, call: &Call<'_>, it: &Enrolment) -> Result<Option<Said>, Refusal> {
    usable(state, it.token)?;
    let runtime = &state.runtime;
    let token = runtime.enrollment_tokens.get(&it.token);
    if token.is_some_and(|token| token.expires_at <= call.now) {
        let why = "the token has expired";
        return Err(Refusal::new("forbidden", why, "ask for a new token"));
    }
    let known = |text: &str| spec::driver(text).is_some();
    if spec::arch(&it.arch).is_none() || !it.drivers.iter().any(|it| known(&it.driver)) {
        let why = "the machine has no processor or driver that is known";
        return Err(Refusal::new(
            "invalid_argument",
            why,
            "run `fluffy node doctor` on the machine",
        ));
    }
    // Whoever was here before comes back only by a token that says so.
    let replaces = token.and_then(|token| token.replaces);
    let was = |id: &NodeId, node: &record::Node| {
        let machine = it.machine.is_some() && node.machine == it.machine;
        (machine || it.former == Some(*id)) && replaces != Some(*id)
    };
    let twice = runtime.nodes.contains_key(&it.node)
        || runtime.nodes.iter().any(|(id, node)| {
            node.wireguard_public_key == it.wireguard_public_key || was(id, node)
        });
    if twice {
        let mut said = consumed(it.token, "duplicate", None);
        said.subject = Subject::of("refused", "duplicate");
        return Ok(Some(said));
    }
    match token.filter(|token| token.require_approval) {
        Some(token) => approval(token, it),
        None => Ok(None),
    }
}

/// Whether a machine may join, which needs nothing that it would join with: a
/// server without its master keys can say it, too.
pub(super) fn asked(state: &State, call: &Call<'_>, it: &Enrolment) -> Noticed {
    Ok(kept_out(state, call, it)?.unwrap_or_default())
}

pub(super) fn enroll(state: &State, call: &Call<'_>, it: &Enrolment) -> Noticed {
    if let Some(said) = kept_out(state, call, it)? {
        return Ok(said);
    }
    let runtime = &state.runtime;
    let token = runtime.enrollment_tokens.get(&it.token);
    let replaces = token.and_then(|token| token.replaces);
    let Some(address) = runtime.ipam.node(call.now) else {
        let why = "no range of addresses is left for a node";
        return Err(Refusal::new(
            "ipam_unavailable",
            why,
            "remove nodes, or wait",
        ));
    };
    // The operator's word counts, whatever the machine calls itself.
    let mut labels = it.labels.clone();
    labels.extend(token.iter().flat_map(|token| token.labels.clone()));
    let enrolled = NodeEnrolled {
        wireguard_public_key: it.wireguard_public_key.clone(),
        endpoint: it.endpoint.clone(),
        cert_fingerprint: it.cert_fingerprint.clone(),
        overlay_ipv6: address.to_string(),
        arch: it.arch.clone(),
        drivers: it.drivers.clone(),
        labels,
        agent_version: it.agent_version.clone(),
        token_id: it.token,
        machine_fingerprint: it.machine.clone(),
    };
    let mut said = consumed(it.token, "enrolled", Some(it.node));
    said.facts.push(Fact::new(it.node, enrolled.into()));
    said.facts.extend(replaced(state, replaces));
    said.subject = Subject::of("node", it.node);
    Ok(said)
}

/// What a machine is told that somebody has to approve; nothing once somebody
/// has. The first that asks is the one that is looked at: what an operator saw
/// of it, its key, where it is and what it runs, is what comes in, and no other
/// machine with the same token.
fn approval(token: &record::EnrollmentToken, it: &Enrolment) -> Result<Option<Said>, Refusal> {
    let waits = |facts| Said {
        facts,
        subject: Subject::of(PENDING, it.token),
    };
    let shown = EnrollmentTokenRequested {
        key_fingerprint: it.request_key.clone(),
        endpoint: it.endpoint.clone(),
        arch: it.arch.clone(),
        agent_version: it.agent_version.chars().take(64).collect(),
    };
    let Some(request) = &token.request else {
        return Ok(Some(waits(vec![Fact::new(it.token, shown.into())])));
    };
    let is_same = request.key == shown.key_fingerprint
        && request.endpoint == shown.endpoint
        && request.arch == shown.arch
        && request.agent_version == shown.agent_version;
    if !is_same {
        let why = "another machine asked with this token";
        return Err(Refusal::new("forbidden", why, "ask for a new token"));
    }
    match &request.decided {
        None => Ok(Some(waits(Vec::new()))),
        Some((outcome, _)) if outcome == "approved" => Ok(None),
        Some(_) => {
            let why = "an operator refused this machine";
            Err(Refusal::new(
                "policy_denied",
                why,
                "ask whoever runs the platform",
            ))
        }
    }
}

/// What a node that is replaced was is shut out, and its instances move.
fn replaced(state: &State, replaces: Option<NodeId>) -> Option<Fact> {
    let id = replaces?;
    let node = state.runtime.plan.nodes.get(&id)?;
    let can = NodeState::can(Some(node.state), NodeState::Revoked, Cause::NodeManage);
    can.ok()?;
    let revoked = NodeRevoked {
        reason: "replaced".to_owned(),
    };
    Some(Fact::new(id, revoked.into()))
}

fn consumed(token: EnrollmentTokenId, outcome: &str, node_id: Option<NodeId>) -> Said {
    let consumed = EnrollmentTokenConsumed {
        outcome: outcome.to_owned(),
        node_id,
    };
    Said::facts(vec![Fact::new(token, consumed.into())])
}

pub(super) fn spent(state: &State, token: EnrollmentTokenId, outcome: &str) -> Noticed {
    usable(state, token)?;
    Ok(consumed(token, outcome, None))
}

pub(super) fn confirm(state: &State, id: NodeId) -> Noticed {
    let node = state.runtime.plan.nodes.get(&id);
    let node = node.ok_or_else(|| missing("node"))?;
    if node.state == NodeState::Active {
        return Ok(Said::default());
    }
    NodeState::can(Some(node.state), NodeState::Active, Cause::Node).map_err(transition)?;
    let active = NodeStateChanged {
        state: NodeState::Active.to_string(),
        reason: None,
        leave_stateful: None,
        deadline: None,
        drain_id: None,
    };
    Ok(Said::facts(vec![Fact::new(id, active.into())]))
}

pub(super) fn certificate(state: &State, node: NodeId, fingerprint: &str) -> Noticed {
    counts(state, node)?;
    let rotated = NodeCertRotated {
        fingerprint: fingerprint.to_owned(),
    };
    Ok(Said::facts(vec![Fact::new(node, rotated.into())]))
}

/// What a node has, where that changed.
pub(super) fn capacity(state: &State, notice: &Notice) -> Noticed {
    let Notice::Capacity {
        node,
        cpu_cores,
        memory_bytes,
        disk_bytes,
    } = notice
    else {
        return Ok(Said::default());
    };
    counts(state, *node)?;
    let plan = state.runtime.plan.nodes.get(node);
    let record = state.runtime.nodes.get(node);
    let same = plan.zip(record).is_some_and(|(plan, record)| {
        record.measured
            && record.disk == *disk_bytes
            && plan.capacity.cores == *cpu_cores
            && plan.capacity.memory == *memory_bytes
    });
    if same {
        return Ok(Said::default());
    }
    let updated = NodeCapacityUpdated {
        cpu_cores: *cpu_cores,
        memory_bytes: *memory_bytes,
        disk_bytes: *disk_bytes,
        reserved: serde_json::Value::Object(serde_json::Map::new()),
        drivers: None,
        agent_version: None,
    };
    Ok(Said::facts(vec![Fact::new(node, updated.into())]))
}

/// What a node can, where that is another than when it joined.
pub(super) fn facts(
    state: &State,
    id: NodeId,
    drivers: &[NodeDriver],
    agent_version: &str,
) -> Noticed {
    counts(state, id)?;
    let plan = state.runtime.plan.nodes.get(&id);
    let record = state.runtime.nodes.get(&id).filter(|it| it.measured);
    let Some((plan, record)) = plan.zip(record) else {
        return Ok(Said::default());
    };
    if record.drivers == drivers && record.agent_version == agent_version {
        return Ok(Said::default());
    }
    let updated = NodeCapacityUpdated {
        cpu_cores: plan.capacity.cores,
        memory_bytes: plan.capacity.memory,
        disk_bytes: record.disk,
        reserved: serde_json::Value::Object(serde_json::Map::new()),
        drivers: Some(drivers.to_vec()),
        agent_version: Some(agent_version.to_owned()),
    };
    Ok(Said::facts(vec![Fact::new(id, updated.into())]))
}

/// What a node holds back of its plan, where that is new.
pub(super) fn plan_held(state: &State, id: NodeId, held: Option<&str>) -> Noticed {
    counts(state, id)?;
    let record = state.runtime.nodes.get(&id);
    let known = record.and_then(|it| it.held.as_ref());
    if known.map(|(held, _)| held.as_str()) == held {
        return Ok(Said::default());
    }
    let held = NodePlanHeld {
        held: held.map(|held| held.chars().take(256).collect()),
    };
    Ok(Said::facts(vec![Fact::new(id, held.into())]))
}
