//! Exec sessions: opened by a client, ended by whatever ends them.

use fluffy_base::Timestamp;
use fluffy_base::id::{ExecSessionId, NodeId};
use fluffy_planner::lifecycle::{Cause, ExecState, InstanceStatus};

use super::{Notice, Noticed, Said};
use crate::access::authorize::{self, forbidden};
use crate::access::place::Place;
use crate::access::{caller_of_token, kind_of};
use crate::call::{Call, Fact, Outcome, Subject, Written};
use crate::event::{ExecSessionConnected, ExecSessionEnded, ExecSessionResumed};
use crate::refusal::Refusal;
use crate::runtime::record::ExecSession;
use crate::runtime::steps::scope;
use crate::runtime::write::{missing, transition};
use crate::state::{Owner, State};

/// Whether who asked for a session may still do what it was granted for: the
/// principal holds it, and its token was not revoked. A token whose time is
/// over is none that was taken away.
#[must_use]
pub fn may_go_on(state: &State, now: Timestamp, id: ExecSessionId) -> bool {
    let Some(session) = state.runtime.execs.get(&id) else {
        return false;
    };
    let owner = Owner {
        org: Some(session.org),
        app: Some(session.app),
        env: Some(session.env),
    };
    let kind = session
        .token
        .and_then(|token| caller_of_token(state, token))
        .map_or_else(|| kind_of(&session.principal), |caller| caller.actor.kind);
    let who = authorize::requester(state, &session.principal, kind, session.token);
    let place = Place::of(&state.access.names, owner);
    let (Ok(who), Some(place)) = (who, place) else {
        return false;
    };
    let root = session.as_root.then_some("instance.exec_root");
    let needed = ["instance.exec"].into_iter().chain(root);
    needed
        .into_iter()
        .all(|action| authorize::stands(state, now, &who, action, &place))
}

/// The client may come in only while the instance runs, its time is not up,
/// and who asked for it may still run something there. The token was shown
/// then, and is good for nothing more, whatever comes of it.
pub(super) fn connected(
    state: &State,
    call: &Call<'_>,
    id: ExecSessionId,
    pii_ref: Option<&str>,
) -> Written {
    let Some(session) = state.runtime.execs.get(&id) else {
        return Written::refused(missing("exec session"));
    };
    let can = ExecState::can(Some(session.state), ExecState::Connected, Cause::Client);
    if let Err(error) = can {
        return Written::refused(transition(error));
    }
    let (fact, outcome) = match admit(state, call, id, session) {
        Ok(node_id) => {
            let connected = ExecSessionConnected {
                node_id,
                pii_ref: pii_ref.map(str::to_owned),
            };
            let done = Outcome::Done {
                status: 200,
                subject: Subject::default(),
            };
            (Fact::new(id, connected.into()), done)
        }
        Err((end_reason, refusal)) => {
            let ended = ExecSessionEnded {
                exit_code: None,
                end_reason: end_reason.to_owned(),
                bytes_in: 0,
                bytes_out: 0,
            };
            (Fact::new(id, ended.into()), Outcome::Refused(refusal))
        }
    };
    let scope = scope(&state.runtime, session.env);
    Written {
        facts: vec![fact.of(&scope)],
        outcome,
    }
}

/// A client may come back only to a session that goes on, and while who asked
/// for it may still run something there. Whether its token is good was looked
/// at by whoever carries the session.
pub(super) fn resumed(
    state: &State,
    call: &Call<'_>,
    id: ExecSessionId,
    pii_ref: Option<&str>,
) -> Written {
    let Some(session) = state.runtime.execs.get(&id) else {
        return Written::refused(missing("exec session"));
    };
    let instance = state.runtime.plan.instances.get(&session.instance);
    let (true, true, Some(instance)) = (
        session.state == ExecState::Connected,
        session.resume,
        instance,
    ) else {
        let why = "the session does not wait for anybody";
        let refusal = Refusal::new("exec_token_invalid", why, "ask for a new session");
        return Written::refused(refusal);
    };
    if !may_go_on(state, call.now, id) {
        return Written::refused(forbidden("instance.exec"));
    }
    let resumed = ExecSessionResumed {
        node_id: instance.node,
        pii_ref: pii_ref.map(str::to_owned),
    };
    let scope = scope(&state.runtime, session.env);
    Written {
        facts: vec![Fact::new(id, resumed.into()).of(&scope)],
        outcome: Outcome::Done {
            status: 200,
            subject: Subject::default(),
        },
    }
}

/// The node of a session whose client may come in, or why it ends.
fn admit(
    state: &State,
    call: &Call<'_>,
    id: ExecSessionId,
    session: &ExecSession,
) -> Result<NodeId, (&'static str, Refusal)> {
    let instance = state.runtime.plan.instances.get(&session.instance);
    let running = instance.filter(|it| {
        let status = it.observed.status;
        it.is_wanted() && matches!(status, InstanceStatus::Ready | InstanceStatus::Unhealthy)
    });
    let Some(instance) = running else {
        let why = "the instance does not run any more";
        let refusal = Refusal::new("instance_not_running", why, "choose another");
        return Err(("instance_gone", refusal));
    };
    if session.expires_at.is_none_or(|until| until <= call.now) {
        let why = "nobody connected in time";
        let refusal = Refusal::new("exec_token_invalid", why, "ask for a new session");
        return Err(("connect_timeout", refusal));
    }
    match may_go_on(state, call.now, id) {
        true => Ok(instance.node),
        false => Err(("operator_revoked", forbidden("instance.exec"))),
    }
}

/// Said twice, it ended once; but what somebody ended from outside is told
/// once more by whoever carried it, who knows what went through.
pub(super) fn ended(state: &State, notice: &Notice) -> Noticed {
    let Notice::ExecEnded {
        session: id,
        end_reason,
        exit_code,
        bytes_in,
        bytes_out,
    } = notice
    else {
        return Ok(Said::default());
    };
    let session = state.runtime.execs.get(id);
    let session = session.ok_or_else(|| missing("exec session"))?;
    let before = session.ended.as_ref();
    let untold = before.filter(|it| {
        it.reason == "operator_revoked" && (it.exit_code, it.bytes_in, it.bytes_out) == (None, 0, 0)
    });
    let tells = exit_code.is_some() || *bytes_in > 0 || *bytes_out > 0;
    if session.state.is_final() && !(untold.is_some() && tells && session.connected_at.is_some()) {
        return Ok(Said::default());
    }
    if !session.state.is_final() {
        ExecState::can(Some(session.state), ExecState::Ended, Cause::System).map_err(transition)?;
    }
    let ended = ExecSessionEnded {
        exit_code: *exit_code,
        end_reason: untold.map_or(end_reason, |it| &it.reason).clone(),
        bytes_in: *bytes_in,
        bytes_out: *bytes_out,
    };
    let scope = scope(&state.runtime, session.env);
    Ok(Said::facts(vec![Fact::new(id, ended.into()).of(&scope)]))
}
