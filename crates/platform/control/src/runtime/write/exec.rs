//! Exec sessions: who may run what where, for how long.

mod redact;

use std::time::Duration;

use fluffy_api::types::{CreateExec, SIGNALS, SignalInstance};
use fluffy_base::id::{EnvId, ExecSessionId, InstanceId};
use fluffy_planner::lifecycle::{Cause, ExecState, InstanceStatus};
use fluffy_planner::model::Instance;

use self::redact::redact;
use super::{Decided, Desk, invalid, missing, transition};
use crate::access::place::Place;
use crate::call::{Call, CallerKind, Fact, Material, Request, Subject};
use crate::event::{
    ExecSessionDenied, ExecSessionEnded, ExecSessionGranted, ExecSessionRequested,
    InstanceSignalRequested,
};
use crate::refusal::Refusal;
use crate::runtime::quota::Dimension;

/// How many sessions an env, an instance, and an org in an hour may have.
const PER_ENV: usize = 10;
const PER_INSTANCE: usize = 2;
const PER_HOUR: usize = 100;
const HOUR: Duration = Duration::from_secs(3600);
/// When it is worth asking again where a session has to end first.
const SOON: Duration = Duration::from_secs(30);

pub(super) fn create(desk: &Desk<'_>) -> Decided {
    let (env_id, env) = desk.env()?;
    let body: CreateExec = desk.body()?;
    check(&body)?;
    let range = |field, value: Option<u32>, default, bounds: std::ops::RangeInclusive<u32>| {
        let value = value.unwrap_or(default);
        let why = format!("it is from {} to {}", bounds.start(), bounds.end());
        let fits = bounds.contains(&value);
        fits.then(|| u64::from(value))
            .ok_or_else(|| invalid(field, &why))
    };
    let max_seconds = range("max_seconds", body.max_seconds, 3600, 60..=86_400)?;
    let token_seconds = range("token_seconds", body.token_seconds, 60, 30..=300)?;
    let (id, _) = running(desk, env_id)?;
    let runtime = desk.runtime();
    runtime.within(env.org, Dimension::ExecSessions, 1)?;
    let live = || runtime.execs.values().filter(|it| !it.state.is_final());
    let of_env = live().filter(|it| it.env == env_id).count();
    let of_instance = live().filter(|it| it.instance == id).count();
    let made = runtime.orgs.get(&env.org).map(|org| org.execs.iter());
    let ages = made.into_iter().flatten().map(|at| desk.now().since(*at));
    let recent: Vec<Duration> = ages.filter(|age| *age < HOUR).collect();
    // The next one is free when the oldest is an hour old.
    let oldest = recent.iter().max().copied().unwrap_or_default();
    let hourly = HOUR.saturating_sub(oldest);
    for (what, many, most, after) in [
        ("the env has", of_env, PER_ENV, SOON),
        ("the instance has", of_instance, PER_INSTANCE, SOON),
        (
            "in the last hour there were",
            recent.len(),
            PER_HOUR,
            hourly,
        ),
    ] {
        if many >= most {
            let why = format!("{what} {many} sessions of at most {most}");
            let fix = "end one, or try again later";
            let refusal = Refusal::new("exec_limit", why, fix);
            return Err(refusal.with("retry_after", after.as_secs().max(1)));
        }
    }
    let prepared = match &desk.request.material {
        Material::Credential(credential) => credential.issued.first(),
        _ => None,
    };
    let prepared = prepared.and_then(|id| id.parse().ok());
    let session = prepared.unwrap_or_else(|| ExecSessionId::from_bits(desk.bits()));
    let requested = requested(desk.call, id, body);
    let granted = ExecSessionGranted {
        expires_at: desk.now().after(Duration::from_secs(token_seconds)),
        max_seconds,
    };
    let facts = vec![
        Fact::new(session, requested.into()),
        Fact::new(session, granted.into()),
    ];
    Ok((facts, Subject::of("exec_granted", session)))
}

/// The instance that a path names, if it runs.
fn running<'a>(desk: &Desk<'a>, env: EnvId) -> Result<(InstanceId, &'a Instance), Refusal> {
    let id: InstanceId = desk.leaf("instance")?;
    let instance = desk.runtime().plan.instances.get(&id);
    let instance = instance.filter(|instance| instance.group.env == env);
    let instance = instance.ok_or_else(|| missing("instance"))?;
    let status = instance.observed.status;
    if !instance.is_wanted() || !matches!(status, InstanceStatus::Ready | InstanceStatus::Unhealthy)
    {
        let why = format!("the instance is {status}");
        let fix = "choose an instance that is ready";
        return Err(Refusal::new("instance_not_running", why, fix));
    }
    Ok((id, instance))
}

/// A signal for a workload; its node is told once this is on record.
pub(super) fn signal(desk: &Desk<'_>) -> Decided {
    let (env_id, _) = desk.env()?;
    let SignalInstance { signal } = desk.body()?;
    if !SIGNALS.contains(&signal.as_str()) {
        let why = format!("it is one of {}", SIGNALS.join(", "));
        return Err(invalid("signal", &why));
    }
    let (id, instance) = running(desk, env_id)?;
    let record = desk.runtime().instances.get(&id);
    let asked = InstanceSignalRequested {
        signal,
        node_id: instance.node,
        boot_id: record.and_then(|record| record.boot),
    };
    Ok((
        vec![Fact::new(id, asked.into())],
        Subject::of("instance", id),
    ))
}

fn requested(call: &Call<'_>, id: InstanceId, body: CreateExec) -> ExecSessionRequested {
    ExecSessionRequested {
        instance_id: id,
        command: redact(&body.command),
        tty: body.tty,
        as_root: body.as_root.then_some(true),
        resume: body.resume.then_some(true),
        reason: body.reason,
        token_id: match call.caller.kind {
            CallerKind::Token(id) => Some(id),
            _ => None,
        },
    }
}

/// The record of a command that was not let in; none if it is no command, or
/// of no instance.
pub(crate) fn denied(
    call: &Call<'_>,
    request: &Request,
    place: &Place,
    refusal: &Refusal,
) -> Vec<Fact> {
    let instance = place.leaf.as_deref().and_then(|leaf| leaf.parse().ok());
    let body = request.read_body::<CreateExec>().ok();
    let (Some(instance), Some(body)) = (instance, body.filter(|it| check(it).is_ok())) else {
        return Vec::new();
    };
    let session = ExecSessionId::from_bits(call.mint.bits(call.now));
    let denied = ExecSessionDenied {
        reason: refusal.code.to_owned(),
    };
    let bodies = [requested(call, instance, body).into(), denied.into()];
    let facts = bodies.map(|body| Fact {
        decided_by: Some(0),
        ..Fact::new(session, body).of(&place.scope())
    });
    facts.into()
}

/// Whether what is asked for can be run at all.
fn check(body: &CreateExec) -> Result<(), Refusal> {
    let bytes: usize = body.command.iter().map(String::len).sum();
    if body.command.is_empty() || body.command.len() > 64 || bytes > 32 * 1024 {
        let why = "it has from 1 to 64 parts and at most 32 KiB";
        return Err(invalid("command", why));
    }
    let bytes: usize = body.env.iter().map(|(key, it)| key.len() + it.len()).sum();
    if body.env.len() > 64 || bytes > 16 * 1024 {
        let why = "it has at most 64 variables and 16 KiB";
        return Err(invalid("env", why));
    }
    if body.resume && !body.tty {
        return Err(invalid("resume", "only a session with a terminal waits"));
    }
    Ok(())
}

pub(super) fn revoke(desk: &Desk<'_>) -> Decided {
    let id: ExecSessionId = desk.leaf("exec session")?;
    let session = desk.runtime().execs.get(&id);
    let session = session.ok_or_else(|| missing("exec session"))?;
    ExecState::can(Some(session.state), ExecState::Ended, Cause::InstanceExec)
        .map_err(transition)?;
    let ended = ExecSessionEnded {
        exit_code: None,
        end_reason: "operator_revoked".to_owned(),
        bytes_in: 0,
        bytes_out: 0,
    };
    Ok((
        vec![Fact::new(id, ended.into())],
        Subject::of("exec_session", id),
    ))
}
