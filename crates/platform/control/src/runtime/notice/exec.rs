//! Exec sessions: opened by a client, ended by whatever ends them.

use fluffy_base::id::ExecSessionId;
use fluffy_planner::lifecycle::{Cause, ExecState, InstanceStatus};

use super::{Notice, Noticed, Said};
use crate::call::{Call, Fact};
use crate::event::{ExecSessionConnected, ExecSessionEnded};
use crate::refusal::Refusal;
use crate::runtime::steps::scope;
use crate::runtime::write::{missing, transition};
use crate::state::State;

/// The client may come in only while the instance runs and its time is not up.
pub(super) fn connected(
    state: &State,
    call: &Call<'_>,
    id: ExecSessionId,
    pii_ref: Option<&str>,
) -> Noticed {
    let session = state.runtime.execs.get(&id);
    let session = session.ok_or_else(|| missing("exec session"))?;
    ExecState::can(Some(session.state), ExecState::Connected, Cause::Client).map_err(transition)?;
    let instance = state.runtime.plan.instances.get(&session.instance);
    let running = instance.filter(|it| {
        let status = it.observed.status;
        it.is_wanted() && matches!(status, InstanceStatus::Ready | InstanceStatus::Unhealthy)
    });
    let Some(instance) = running else {
        let why = "the instance does not run any more";
        return Err(Refusal::new("instance_not_running", why, "choose another"));
    };
    if session.expires_at.is_none_or(|until| until <= call.now) {
        let why = "nobody connected in time";
        return Err(Refusal::new(
            "exec_token_invalid",
            why,
            "ask for a new session",
        ));
    }
    let connected = ExecSessionConnected {
        node_id: instance.node,
        pii_ref: pii_ref.map(str::to_owned),
    };
    let scope = scope(&state.runtime, session.env);
    Ok(Said::facts(vec![
        Fact::new(id, connected.into()).of(&scope),
    ]))
}

/// Said twice, it ended once.
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
    if session.state.is_final() {
        return Ok(Said::default());
    }
    ExecState::can(Some(session.state), ExecState::Ended, Cause::System).map_err(transition)?;
    let ended = ExecSessionEnded {
        exit_code: *exit_code,
        end_reason: end_reason.clone(),
        bytes_in: *bytes_in,
        bytes_out: *bytes_out,
    };
    let scope = scope(&state.runtime, session.env);
    Ok(Said::facts(vec![Fact::new(id, ended.into()).of(&scope)]))
}
