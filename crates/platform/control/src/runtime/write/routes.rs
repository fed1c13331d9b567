//! Routes and public addresses: who answers to which name and port.
//!
//! A hostname belongs to the one env of the whole platform that has proven it;
//! asking for it keeps nobody from it. A port of an address, where connections
//! are not told apart by names, belongs to one route.

use fluffy_api::types::{Challenge, CreateRoute, ProtocolHint, ProxyProtocol, UpdateRoute};
use fluffy_base::id::{EnvId, Ipv4Id, RouteId};
use fluffy_planner::lifecycle::{Cause, RouteState};

use super::{Decided, Desk, gone, invalid, missing, transition};
use crate::call::{Fact, Material, Subject};
use crate::event::{
    Body, EnvIpv4AddonDisabled, EnvIpv4AddonEnabled, RouteCreated, RouteStatusChanged,
    RouteUpdated, RouteVerified,
};
use crate::refusal::Refusal;
use crate::runtime::quota::{Dimension, within};
use crate::runtime::read::challenge_of;
use crate::runtime::routing::{Claim, DENIED, SHARED};
use crate::runtime::{Runtime, record};

/// How many ports beside 80 and 443 one public address has.
const EXTRA_PORTS: u64 = 5;

pub(super) fn create(desk: &Desk<'_>) -> Decided {
    let (env_id, env) = desk.env()?;
    let body: CreateRoute = desk.body()?;
    let runtime = desk.runtime();
    let hostname = body.hostname.map(|name| name.to_ascii_lowercase());
    if let Some(hostname) = &hostname {
        check_hostname(hostname)?;
    }
    let tls = body.protocol_hint == ProtocolHint::TlsPassthrough;
    if tls && hostname.is_none() {
        let why = "connections are told apart by it, so it is needed";
        return Err(invalid("hostname", why));
    }
    if DENIED.contains(&body.listen_port) || body.listen_port == 0 {
        let why = format!("port {} is never opened", body.listen_port);
        return Err(Refusal::new("port_denied", why, "choose another port"));
    }
    if let Some(hostname) = &hostname {
        name(runtime, env_id, hostname)?;
    }
    let claim = Claim {
        env: env_id,
        port: body.listen_port,
        name: hostname.as_deref().filter(|_| tls),
        ipv4_required: body.ipv4_required,
        loopback: false,
    };
    claims(runtime, None, &claim)?;
    backend(runtime, env_id, &body.backend_process, body.backend_port)?;
    proxy(body.proxy_protocol, body.backend_expects_proxy_protocol)?;
    ipv4(env, body.ipv4_required)?;
    runtime.within(env.org, Dimension::Routes, 1)?;
    if !SHARED.contains(&body.listen_port) {
        let mut own = runtime.routes.values();
        if !own.any(|it| it.env == env_id && it.listen_port == body.listen_port) {
            runtime.within(env.org, Dimension::PublicPorts, 1)?;
        }
    }
    if body.ipv4_required {
        extra_ports(runtime, env_id, body.listen_port)?;
    }
    let id = RouteId::from_bits(desk.bits());
    let created = RouteCreated {
        hostname,
        listen_port: u64::from(body.listen_port),
        protocol_hint: if tls { "tls_passthrough" } else { "tcp_raw" }.to_owned(),
        backend_process: body.backend_process,
        backend_port: u64::from(body.backend_port),
        proxy_protocol: proxy_text(body.proxy_protocol).to_owned(),
        backend_expects_proxy_protocol: Some(body.backend_expects_proxy_protocol),
        ipv4_required: body.ipv4_required,
        loopback: None,
    };
    let mut facts = vec![Fact::new(id, created.into())];
    // A name below the installation's own suffix needs no other proof.
    if let Material::Proof(method) = &desk.request.material {
        let method = method.clone();
        facts.push(Fact::new(id, RouteVerified { method }.into()));
    }
    Ok((facts, Subject::of("route", id)))
}

fn check_hostname(hostname: &str) -> Result<(), Refusal> {
    let label = |label: &str| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        (1..=63).contains(&label.len())
            && label.chars().all(fits)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let labels: Vec<&str> = hostname.split('.').collect();
    let numeric = labels
        .last()
        .is_some_and(|last| last.chars().all(|c| c.is_ascii_digit()));
    if hostname.len() <= 253 && labels.len() >= 2 && !numeric && labels.into_iter().all(label) {
        return Ok(());
    }
    Err(invalid(
        "hostname",
        "it is not a full name such as `shop.example.com`",
    ))
}

/// Refuses a name that another env has proven.
fn name(runtime: &Runtime, env: EnvId, hostname: &str) -> Result<(), Refusal> {
    if runtime.is_held_elsewhere(hostname, env) {
        let why = "the hostname belongs to another env";
        let fix = "choose another name, or delete the other route first";
        return Err(Refusal::new("hostname_taken", why, fix));
    }
    Ok(())
}

/// Refuses a port that nobody may have alone, or that a route other than
/// `own` has.
fn claims(runtime: &Runtime, own: Option<RouteId>, claim: &Claim<'_>) -> Result<(), Refusal> {
    let port = claim.port;
    if claim.is_greedy() {
        let why = format!("port {port} is shared by all envs, and a raw route takes a whole port");
        let fix = "give the env an address of its own by `fluffy ipv4 enable` and set \
                   `ipv4_required`, or choose another port";
        return Err(Refusal::new("ipv4_required", why, fix));
    }
    let mut others = runtime.routes.iter().filter(|(id, _)| Some(**id) != own);
    if others.any(|(_, other)| other.claim().meets(claim)) {
        let why = format!("port {port} is taken by another route");
        return Err(Refusal::new("port_taken", why, "choose another port"));
    }
    Ok(())
}

fn backend(runtime: &Runtime, env: EnvId, process: &str, port: u16) -> Result<(), Refusal> {
    let wanted = runtime.wanted(env, process);
    let spec = wanted.and_then(|wanted| runtime.process(env, wanted.release, process));
    let declared = spec.is_some_and(|spec| spec.ports.iter().any(|it| it.internal == port));
    if declared {
        return Ok(());
    }
    let why = format!("no release that is deployed here declares port {port} of `{process}`");
    let fix = format!("declare it under [[processes.{process}.ports]] and deploy");
    Err(Refusal::new("backend_port_undeclared", why, fix))
}

fn proxy(protocol: ProxyProtocol, expects: bool) -> Result<(), Refusal> {
    if protocol == ProxyProtocol::V2 && !expects {
        let why = "a process that does not expect the header would read it as data";
        let fix = "set `backend_expects_proxy_protocol` once the process expects it";
        return Err(Refusal::new("proxy_ack_required", why, fix));
    }
    Ok(())
}

const fn proxy_text(protocol: ProxyProtocol) -> &'static str {
    match protocol {
        ProxyProtocol::Off => "off",
        ProxyProtocol::V2 => "v2",
    }
}

fn ipv4(env: &record::Env, required: bool) -> Result<(), Refusal> {
    if required && env.ipv4.is_none() {
        let why = "the env has no public IPv4 address";
        return Err(Refusal::new("ipv4_required", why, "fluffy ipv4 enable"));
    }
    Ok(())
}

/// Refuses a port that is one more than an env's own address has.
fn extra_ports(runtime: &Runtime, env: EnvId, port: u16) -> Result<(), Refusal> {
    let own = runtime.routes.values();
    let own = own.filter(|it| it.env == env && it.ipv4_required);
    let ports: std::collections::BTreeSet<u16> = own
        .map(|it| it.listen_port)
        .filter(|port| !SHARED.contains(port))
        .collect();
    if SHARED.contains(&port) || ports.contains(&port) {
        return Ok(());
    }
    let used = u64::try_from(ports.len()).unwrap_or(u64::MAX);
    within(EXTRA_PORTS, used, Dimension::PublicPorts, 1)
}

fn route<'a>(desk: &Desk<'a>) -> Result<(RouteId, &'a record::Route), Refusal> {
    let (env, _) = desk.env()?;
    let id: RouteId = desk.leaf("route")?;
    let route = desk.runtime().routes.get(&id);
    let route = route.filter(|route| route.env == env);
    Ok((id, route.ok_or_else(|| missing("route"))?))
}

pub(super) fn update(desk: &Desk<'_>) -> Decided {
    let (env_id, env) = desk.env()?;
    let (id, route) = route(desk)?;
    if route.state == RouteState::Deleting {
        let why = "the route is being deleted";
        return Err(Refusal::new("invalid_transition", why, "make a new one"));
    }
    let body: UpdateRoute = desk.body()?;
    let process = body.backend_process.as_deref();
    let process = process.unwrap_or(&route.backend_process);
    let port = body.backend_port.unwrap_or(route.backend_port);
    backend(desk.runtime(), env_id, process, port)?;
    let before = match route.proxy_protocol.as_str() {
        "v2" => ProxyProtocol::V2,
        _ => ProxyProtocol::Off,
    };
    let expects = body.backend_expects_proxy_protocol;
    let expects = expects.unwrap_or(route.backend_expects_proxy_protocol);
    proxy(body.proxy_protocol.unwrap_or(before), expects)?;
    let required = body.ipv4_required.unwrap_or(route.ipv4_required);
    ipv4(env, required)?;
    if required != route.ipv4_required {
        // It moves to other addresses, where its port may be somebody's.
        let claim = Claim {
            ipv4_required: required,
            ..route.claim()
        };
        claims(desk.runtime(), Some(id), &claim)?;
        if required {
            extra_ports(desk.runtime(), env_id, route.listen_port)?;
        }
    }
    let updated = RouteUpdated {
        hostname: None,
        listen_port: None,
        protocol_hint: None,
        backend_process: body.backend_process,
        backend_port: body.backend_port.map(u64::from),
        proxy_protocol: body.proxy_protocol.map(|it| proxy_text(it).to_owned()),
        backend_expects_proxy_protocol: body.backend_expects_proxy_protocol,
        ipv4_required: body.ipv4_required,
    };
    let mut facts = vec![Fact::new(id, updated.into())];
    // What was missing is not needed any more.
    if !required && route.reason.as_deref() == Some(record::IPV4_MISSING) {
        facts.push(Fact::new(id, status(RouteState::Pending, None)));
    }
    Ok((facts, Subject::of("route", id)))
}

fn status(state: RouteState, reason: Option<&str>) -> Body {
    let changed = RouteStatusChanged {
        state: state.to_string(),
        reason: reason.map(str::to_owned),
    };
    changed.into()
}

/// Edges drop it first; its claims are free when they have.
pub(super) fn delete(desk: &Desk<'_>) -> Decided {
    let (id, route) = route(desk)?;
    RouteState::can(Some(route.state), RouteState::Deleting, Cause::RouteWrite)
        .map_err(transition)?;
    let changed = status(RouteState::Deleting, None);
    Ok((vec![Fact::new(id, changed)], Subject::of("route", id)))
}

/// Takes note of what was found in the DNS.
pub(super) fn verify(desk: &Desk<'_>) -> Decided {
    let (id, route) = route(desk)?;
    let subject = Subject::of("route", id);
    let Some(hostname) = route.hostname.as_ref().filter(|_| !route.verified) else {
        return Ok((Vec::new(), subject));
    };
    if route.state == RouteState::Deleting {
        let why = "the route is being deleted";
        return Err(Refusal::new("invalid_transition", why, "make a new one"));
    }
    name(desk.runtime(), route.env, hostname)?;
    let Material::Proof(method) = &desk.request.material else {
        let Challenge { record, value } = challenge_of(id, hostname);
        let why = format!("there is no TXT record `{record}` with the text `{value}`");
        let fix = "make the record at whoever runs the DNS of the name; it is looked for \
                   again by itself, and by `fluffy routes verify`";
        return Err(Refusal::new("hostname_not_proven", why, fix));
    };
    let method = method.clone();
    let verified = Fact::new(id, RouteVerified { method }.into());
    Ok((vec![verified], subject))
}

pub(super) fn enable_ipv4(desk: &Desk<'_>) -> Decided {
    let (id, env) = desk.env()?;
    let subject = Subject::of("ipv4", id);
    if env.ipv4.is_some() {
        return Ok((Vec::new(), subject));
    }
    let runtime = desk.runtime();
    runtime.within(env.org, Dimension::Ipv4, 1)?;
    let Some(address) = runtime.ipam.public(desk.now()) else {
        let why = "all public addresses are taken or rest before they are given again";
        let fix = "ask an operator for more addresses";
        return Err(Refusal::new("ipv4_pool_exhausted", why, fix));
    };
    let enabled = EnvIpv4AddonEnabled {
        allocation_id: Ipv4Id::from_bits(desk.bits()),
        ipv4_address: address.to_string(),
    };
    let mut facts = vec![Fact::new(id, enabled.into())];
    for (route, it) in &runtime.routes {
        if it.env == id && it.reason.as_deref() == Some(record::IPV4_MISSING) {
            facts.push(Fact::new(route, status(RouteState::Pending, None)));
        }
    }
    Ok((facts, subject))
}

pub(super) fn disable_ipv4(desk: &Desk<'_>) -> Decided {
    let (id, env) = desk.env()?;
    let Some((allocation_id, address)) = env.ipv4 else {
        let why = "the env has no public IPv4 address";
        return Err(Refusal::new(
            "ipv4_required",
            why,
            "there is nothing to take back",
        ));
    };
    let needing = desk
        .runtime()
        .routes
        .iter()
        .filter(|(_, it)| it.env == id && it.ipv4_required && it.state != RouteState::Deleting);
    let needing: Vec<_> = needing.collect();
    let force = desk.is_set("force");
    if !needing.is_empty() && !force {
        let why = format!("{} routes need the address", needing.len());
        return Err(Refusal::new(
            "ipv4_in_use",
            why,
            "change or delete them first",
        ));
    }
    let disabled = EnvIpv4AddonDisabled {
        allocation_id,
        ipv4_address: address.to_string(),
        forced: force,
    };
    let mut facts = vec![Fact::new(id, disabled.into())];
    for (route, it) in needing {
        // Edges try again what only they are in the way of, so one that they
        // could not serve stays blocked for another reason.
        let can = RouteState::can(Some(it.state), RouteState::Blocked, Cause::System);
        if can.is_ok() || it.is_blocked_by_edge() {
            let blocked = status(RouteState::Blocked, Some(record::IPV4_MISSING));
            facts.push(Fact::new(route, blocked));
        }
    }
    Ok((facts, gone(allocation_id)))
}
