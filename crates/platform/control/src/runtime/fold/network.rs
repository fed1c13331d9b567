//! Routes and exec sessions.

use std::time::Duration;

use fluffy_base::id::ExecSessionId;
use fluffy_planner::lifecycle::{ExecState, RouteState};

use super::{At, keep};
use crate::event::{Body, RouteCreated, RouteUpdated};
use crate::runtime::Runtime;
use crate::runtime::record::{ExecEnd, ExecSession, Route};

/// For how long the making of exec sessions is counted.
const EXEC_WINDOW: Duration = Duration::from_secs(3600);

pub(super) fn apply(runtime: &mut Runtime, at: &At<'_>, body: &Body) {
    let _ = route(runtime, at, body);
    let _ = exec(runtime, at, body);
}

fn route(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    match body {
        Body::RouteCreated(it) => {
            let route = created(at, it)?;
            runtime.routes.insert(at.id()?, route);
        }
        Body::RouteUpdated(it) => {
            let route = runtime.routes.get_mut(&at.id()?)?;
            updated(route, it);
            route.changed_seq = at.seq();
        }
        Body::RouteVerified(_) => runtime.routes.get_mut(&at.id()?)?.verified = true,
        Body::RouteStatusChanged(it) => {
            let route = runtime.routes.get_mut(&at.id()?)?;
            route.state = RouteState::parse(&it.state)?;
            route.reason.clone_from(&it.reason);
            if route.state == RouteState::Deleting {
                route.deleting_since = Some(at.now());
                route.changed_seq = at.seq();
            }
        }
        Body::RouteDeleted(_) => {
            runtime.routes.remove(&at.id()?)?;
            at.forget("route", &at.event.aggregate.id);
        }
        _ => return None,
    }
    runtime.routing_seq = at.seq();
    Some(())
}

fn created(at: &At<'_>, it: &RouteCreated) -> Option<Route> {
    Some(Route {
        org: at.org()?,
        app: at.app()?,
        env: at.env()?,
        state: RouteState::Pending,
        reason: None,
        hostname: it.hostname.clone(),
        verified: it.hostname.is_none(),
        listen_port: u16::try_from(it.listen_port).ok()?,
        protocol_hint: it.protocol_hint.clone(),
        backend_process: it.backend_process.clone(),
        backend_port: u16::try_from(it.backend_port).ok()?,
        proxy_protocol: it.proxy_protocol.clone(),
        backend_expects_proxy_protocol: it.backend_expects_proxy_protocol.unwrap_or(false),
        ipv4_required: it.ipv4_required,
        loopback: it.loopback.unwrap_or(false),
        deleting_since: None,
        changed_seq: at.seq(),
    })
}

fn updated(route: &mut Route, it: &RouteUpdated) {
    let port = |port: Option<u64>| port.and_then(|port| u16::try_from(port).ok());
    if let Some(hostname) = &it.hostname {
        route.hostname = Some(hostname.clone());
    }
    route.listen_port = port(it.listen_port).unwrap_or(route.listen_port);
    route.backend_port = port(it.backend_port).unwrap_or(route.backend_port);
    let texts = [
        (&it.protocol_hint, &mut route.protocol_hint),
        (&it.backend_process, &mut route.backend_process),
        (&it.proxy_protocol, &mut route.proxy_protocol),
    ];
    for (new, old) in texts {
        if let Some(new) = new {
            old.clone_from(new);
        }
    }
    let expects = it.backend_expects_proxy_protocol;
    route.backend_expects_proxy_protocol = expects.unwrap_or(route.backend_expects_proxy_protocol);
    route.ipv4_required = it.ipv4_required.unwrap_or(route.ipv4_required);
}

fn exec(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    let id: ExecSessionId = at.id()?;
    match body {
        Body::ExecSessionRequested(it) => {
            let session = ExecSession {
                org: at.org()?,
                app: at.app()?,
                env: at.env()?,
                instance: it.instance_id,
                principal: at.actor(),
                token: it.token_id,
                state: ExecState::Requested,
                command: it.command.clone(),
                tty: it.tty,
                as_root: it.as_root.unwrap_or(false),
                resume: it.resume.unwrap_or(false),
                reason: it.reason.clone(),
                expires_at: None,
                max_seconds: 0,
                connected_at: None,
                ended: None,
            };
            runtime.execs.insert(id, session);
        }
        Body::ExecSessionDenied(it) => {
            let session = runtime.execs.get_mut(&id)?;
            session.state = ExecState::Denied;
            session.reason = Some(it.reason.clone());
            if let Some(oldest) = keep(&mut runtime.execs, &mut runtime.finished.execs, id) {
                at.forget("exec_session", oldest);
            }
        }
        Body::ExecSessionGranted(it) => {
            let session = runtime.execs.get_mut(&id)?;
            session.state = ExecState::Granted;
            session.expires_at = Some(it.expires_at);
            session.max_seconds = it.max_seconds;
            // What was refused uses nothing up.
            let (org, now) = (session.org, at.now());
            let made = &mut runtime.orgs.get_mut(&org)?.execs;
            made.push_back(now);
            made.retain(|then| now.since(*then) < EXEC_WINDOW);
        }
        Body::ExecSessionConnected(_) => {
            let session = runtime.execs.get_mut(&id)?;
            session.state = ExecState::Connected;
            session.connected_at = Some(at.now());
        }
        Body::ExecSessionEnded(it) => {
            let session = runtime.execs.get_mut(&id)?;
            let is_new = !session.state.is_final();
            session.state = ExecState::Ended;
            session.ended = Some(ExecEnd {
                reason: it.end_reason.clone(),
                exit_code: it.exit_code,
                bytes_in: it.bytes_in,
                bytes_out: it.bytes_out,
            });
            if !is_new {
                return Some(());
            }
            if let Some(oldest) = keep(&mut runtime.execs, &mut runtime.finished.execs, id) {
                at.forget("exec_session", oldest);
            }
        }
        _ => {}
    }
    Some(())
}
