//! Requests: resolved, authorized, checked, done; in this order for all.
//!
//! What an operation does is in `access` and `runtime`; here is what all have
//! in common, so that no operation can forget it. Nothing is appended here:
//! whoever drives this appends the facts on condition that the ledger still
//! ends where the state does.

use fluffy_api::operation::{Auth, Method, Need, Precondition};
use fluffy_api::{Operation, Spec};
use fluffy_base::Digest;
use fluffy_base::id::OrgId;
use serde_json::{Map, Value};

use crate::access::authorize::{self, Answer, Authorized, Decided, Who};
use crate::access::place::{self, Place};
use crate::access::{self, Parked};
use crate::call::{Call, CallerKind, Change, Fact, Outcome, Request, Subject, Written};
use crate::event::{AuthzDecided, Body, LogsAccessed};
use crate::refusal::Refusal;
use crate::runtime;
use crate::state::State;

/// What came of a read.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    /// What must be appended before the answer goes out; empty for an ordinary
    /// read that was allowed.
    pub facts: Vec<Fact>,
    /// An ordinary read that was allowed, to be summed up by [`access::Reads`].
    pub noted: Option<Noted>,
    /// The answer. Null where the answer is not in the state: events, logs and
    /// what the server knows of itself.
    pub result: Result<Value, Refusal>,
}

/// An ordinary read that was allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// Who read.
    pub principal: String,
    /// By which action.
    pub capability: String,
    /// What.
    pub resource: String,
    /// Of which org, app and env.
    pub owner: crate::state::Owner,
}

/// What happens without a request from outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// About who there is.
    Access(access::Notice),
    /// About what runs.
    Runtime(runtime::Notice),
}

/// Decides a request that changes something.
#[must_use]
pub fn write(state: &State, call: &Call<'_>, request: &Request) -> Written {
    let spec = request.operation.spec();
    if spec.auth == Auth::None {
        return access::exchange(state, call, request);
    }
    let who = match authorize::authenticate(state, call) {
        Ok(who) => who,
        Err(refusal) => return Written::refused(refusal),
    };
    if spec.capability.is_none() {
        let own = access::write_own(state, request, &who);
        return own.map_or_else(Written::refused, Written::from);
    }
    let place = place::resolve(state, request);
    let (capability, more) = required(request, spec);
    Command {
        state,
        call,
        request,
        capability,
        who,
        place,
    }
    .decide(&more)
}

/// Decides a request that changes nothing, and answers it.
#[must_use]
pub fn read(state: &State, call: &Call<'_>, request: &Request) -> Read {
    let spec = request.operation.spec();
    let plain = |result| Read {
        facts: Vec::new(),
        noted: None,
        result,
    };
    match spec.auth {
        Auth::None => return plain(Ok(Value::Null)),
        Auth::ExecToken => return plain(Err(exec_token_invalid())),
        Auth::Caller => {}
    }
    let who = match authorize::authenticate(state, call) {
        Ok(who) => who,
        Err(refusal) => return plain(Err(refusal)),
    };
    let Some(capability) = spec.capability else {
        return plain(access::read_own(state, call, request, &who));
    };
    let place = place::resolve(state, request);
    // Who sets limits has to see them.
    let capability = match request.operation {
        Operation::GetQuotas if authorize::holds(state, call.now, &who, "quota.set", &place) => {
            "quota.set"
        }
        _ => capability,
    };
    let Decided { mut fact, answer } = authorize::decide(state, call, &who, capability, &place);
    match answer {
        Answer::Allow => {}
        Answer::Review => {
            return Read {
                facts: vec![fact],
                noted: None,
                result: Err(unreviewable()),
            };
        }
        Answer::Deny(refusal) => {
            return Read {
                facts: vec![fact],
                noted: None,
                result: Err(refusal),
            };
        }
    }
    let authorized = Authorized::new(who, place);
    let result = match authorized.place.found {
        true => access::read(state, call, request, &authorized)
            .unwrap_or_else(|| runtime::read(state, call, request, &authorized.place)),
        false => Err(not_found()),
    };
    let result = result.map_err(|refusal| {
        let Authorized { who, place } = &authorized;
        hide(state, call, (who, place), capability, refusal, &mut fact)
    });
    let Authorized { who, place } = authorized;
    let sensitive = is_sensitive(capability) || request.operation == Operation::ListPlatformEvents;
    if sensitive || matches!(&result, Err(refusal) if refusal.code == "forbidden") {
        let mut facts = vec![fact];
        facts.extend(result.is_ok().then(|| accessed(request, &place)).flatten());
        return Read {
            facts,
            noted: None,
            result,
        };
    }
    let noted = Noted {
        principal: who.principal,
        capability: capability.to_owned(),
        resource: place.resource_id(),
        owner: place.owner,
    };
    Read {
        facts: Vec::new(),
        noted: Some(noted),
        result,
    }
}

/// Where a request acts, if it would be allowed now: asked before anything is
/// prepared for it, and decided again with the request itself. Nothing is
/// recorded here; a request that is not allowed goes its way and is refused.
#[must_use]
pub fn would_allow(state: &State, call: &Call<'_>, request: &Request) -> Option<Place> {
    let who = authorize::authenticate(state, call).ok()?;
    let place = place::resolve(state, request);
    let (first, more) = required(request, request.operation.spec());
    let allowed = |capability: &str| {
        let Decided { answer, .. } = authorize::decide(state, call, &who, capability, &place);
        !matches!(answer, Answer::Deny(_))
    };
    let all = allowed(first) && more.into_iter().all(allowed);
    (all && place.found).then_some(place)
}

/// Where a request acts, whether or not it would be allowed.
#[must_use]
pub fn place_of(state: &State, request: &Request) -> Place {
    place::resolve(state, request)
}

/// The org of that name, if the caller has anything in it: whose budget a call
/// is counted by.
#[must_use]
pub fn org_of_caller(state: &State, call: &Call<'_>, org: &str) -> Option<OrgId> {
    let who = authorize::authenticate(state, call).ok()?;
    let org = state.access.names.org(org)?;
    authorize::has_access(state, call.now, &who, org).then_some(org)
}

/// What the answer to a done request shows, from the state after the append.
#[must_use]
pub fn answer(state: &State, subject: &Subject) -> Value {
    let mut value =
        access::answer(state, subject).unwrap_or_else(|| runtime::answer(state, subject));
    let result = subject.result.as_ref().map(|inner| answer(state, inner));
    if !subject.details.is_empty() || result.is_some() {
        if !value.is_object() {
            value = Value::Object(Map::new());
        }
        if let Value::Object(fields) = &mut value {
            fields.extend(subject.details.clone());
            fields.extend(result.map(|result| ("result".to_owned(), result)));
        }
    }
    value
}

/// Decides what happens without a request from outside.
#[must_use]
pub fn notice(state: &State, call: &Call<'_>, notice: &Notice) -> Written {
    if let CallerKind::System(Some(fence)) = &call.caller.kind
        && state.leases.get(&fence.lease).copied().unwrap_or_default() != fence.epoch
    {
        let why = format!("the lease `{}` is held by another", fence.lease);
        return Written::refused(Refusal::new("conflict", why, ""));
    }
    match notice {
        Notice::Access(notice) => access::notice(state, call, notice),
        Notice::Runtime(notice) => runtime::notice(state, call, notice),
    }
}

/// A request that changes something, on its way.
struct Command<'a> {
    state: &'a State,
    call: &'a Call<'a>,
    request: &'a Request,
    /// What it needs above all.
    capability: &'static str,
    who: Who,
    place: Place,
}

impl Command<'_> {
    /// Decides it; it needs these capabilities as well.
    fn decide(self, more: &[&'static str]) -> Written {
        let spec = self.request.operation.spec();
        let Decided { mut fact, answer } = self.ask(self.capability);
        if let Body::AuthzDecided(record) = &mut fact.body {
            record.operation = Some(spec.id.to_owned());
            record.body_hash = self.call.idempotency.map(|key| key.body_hash);
        }
        let mut facts = vec![fact];
        let mut review = match answer {
            Answer::Deny(refusal) => {
                let gone = self.gone_before();
                return gone.unwrap_or_else(|| self.denied(facts, refusal));
            }
            Answer::Review => true,
            Answer::Allow => false,
        };
        for capability in more {
            let Decided { fact, answer } = self.ask(capability);
            facts.push(fact);
            match answer {
                Answer::Deny(refusal) => return self.denied(facts, refusal),
                Answer::Review => review = true,
                Answer::Allow => {}
            }
        }
        if let Some(outcome) = self.before() {
            return Written {
                facts: Vec::new(),
                outcome,
            };
        }
        let checked = self.check();
        match (checked, review) {
            (Err(refusal), _) => self.refuse(facts, refusal),
            (Ok(()), true) => self.park(facts),
            (Ok(()), false) => self.run(facts),
        }
    }

    fn ask(&self, capability: &str) -> Decided {
        authorize::decide(self.state, self.call, &self.who, capability, &self.place)
    }

    /// What came of it under the same key before.
    fn before(&self) -> Option<Outcome> {
        let (operation, org) = (self.request.operation, self.place.owner.org);
        let replays = &self.state.replays;
        replays.find(self.call, operation, org, &self.who.principal)
    }

    /// The same of a deletion: it took away where it was allowed, and who held
    /// something there alone could never be told of it again. They hear what
    /// they heard then, and nobody else hears anything.
    fn gone_before(&self) -> Option<Written> {
        let deletes = self.request.operation.spec().method == Method::Delete;
        if !deletes || self.place.found {
            return None;
        }
        match self.before()? {
            outcome @ Outcome::Replayed { .. } => Some(Written {
                facts: Vec::new(),
                outcome,
            }),
            _ => None,
        }
    }

    /// What must hold before anything is done or waits to be done.
    fn check(&self) -> Result<(), Refusal> {
        let spec = self.request.operation.spec();
        if spec.idempotency == Need::Required && self.call.idempotency.is_none() {
            return Err(Refusal::new(
                "idempotency_key_required",
                "repeating this call by mistake would do it twice",
                "send an `Idempotency-Key` of 8 to 128 characters",
            ));
        }
        if !self.place.found {
            return Err(not_found());
        }
        check_current(self.state, self.call, self.request, &self.place)
    }

    fn run(self, decisions: Vec<Fact>) -> Written {
        let authorized = Authorized::new(self.who.clone(), self.place.clone());
        match dispatch(self.state, self.call, self.request, &authorized) {
            Ok(change) => finish(decisions, change, &self.place),
            Err(refusal) => self.refuse(decisions, refusal),
        }
    }

    fn park(self, mut facts: Vec<Fact>) -> Written {
        let parked = access::park(self.state, self.call, self.request, &self.who, &self.place);
        match parked {
            Ok(Parked {
                fact,
                approval,
                expires_at,
            }) => {
                let decisive = facts.len().saturating_sub(1);
                facts.push(Fact {
                    decided_by: Some(decisive),
                    ..fact
                });
                Written {
                    facts,
                    outcome: Outcome::Parked {
                        approval,
                        expires_at,
                    },
                }
            }
            Err(refusal) => self.refuse(facts, refusal),
        }
    }

    /// Allowed, but not possible. The decision is recorded where the key is
    /// taken by it, or where every attempt counts.
    fn refuse(self, mut facts: Vec<Fact>, refusal: Refusal) -> Written {
        let (call, capability) = (self.call, self.capability);
        let refusal = match facts.first_mut() {
            Some(fact) => {
                let at = (&self.who, &self.place);
                hide(self.state, call, at, capability, refusal, fact)
            }
            None => refusal,
        };
        let hidden = refusal.code == "forbidden";
        // Whoever repeats it gets the same code, even if the answer is lost.
        if let Some(Body::AuthzDecided(record)) = facts.first_mut().map(|fact| &mut fact.body)
            && !hidden
        {
            record.refused = Some(refusal.code.to_owned());
        }
        let recorded = hidden || call.idempotency.is_some() || is_sensitive(capability);
        // What was prepared too late is prepared and decided again; its key
        // must not be taken by then.
        let again = refusal.details.contains_key("overtaken");
        if !recorded || again {
            facts.clear();
        }
        if !facts.is_empty() {
            facts.extend(self.kept_out(&refusal));
        }
        Written {
            facts,
            outcome: Outcome::Refused(refusal),
        }
    }

    fn denied(&self, facts: Vec<Fact>, refusal: Refusal) -> Written {
        // Earlier decisions allowed nothing by themselves.
        let last = facts.into_iter().next_back();
        let mut facts: Vec<Fact> = last.into_iter().collect();
        facts.extend(self.kept_out(&refusal));
        Written {
            facts,
            outcome: Outcome::Refused(refusal),
        }
    }

    /// The record that somebody wanted to run a command and did not.
    fn kept_out(&self, refusal: &Refusal) -> Vec<Fact> {
        match self.request.operation {
            Operation::CreateExec if self.place.found => {
                runtime::exec_denied(self.call, self.request, &self.place, refusal)
            }
            _ => Vec::new(),
        }
    }
}

/// Runs a command that was allowed.
pub(crate) fn dispatch(
    state: &State,
    call: &Call<'_>,
    request: &Request,
    authorized: &Authorized,
) -> Result<Change, Refusal> {
    access::write(state, call, request, authorized)
        .unwrap_or_else(|| runtime::write(state, call, request, authorized))
}

/// A change with the decisions before it that allowed it.
pub(crate) fn finish(decisions: Vec<Fact>, change: Change, place: &Place) -> Written {
    let decided = decisions.len().checked_sub(1);
    let mut written = Written::from(change);
    let none = fluffy_ledger::Scope::default();
    for fact in &mut written.facts {
        fact.decided_by = match fact.decided_by {
            Some(place) => Some(place + decisions.len()),
            None => decided,
        };
        if fact.scope == none {
            fact.scope = place.scope();
        }
    }
    written.facts.splice(0..0, decisions);
    written
}

/// The capability that an operation needs, and what it needs besides.
pub(crate) fn required(
    request: &Request,
    spec: &'static Spec,
) -> (&'static str, Vec<&'static str>) {
    let first = spec.capability.unwrap_or_default();
    let field = |name: &str| request.body.as_ref().and_then(|body| body.get(name));
    match request.operation {
        // Whether an env is protected is for administrators.
        Operation::CreateEnv if field("protected") == Some(&Value::Bool(true)) => {
            (first, vec!["env.protect"])
        }
        Operation::UpdateEnv if field("protected").is_some_and(|value| !value.is_null()) => {
            (first, vec!["env.protect"])
        }
        // The root of an instance is not its workload's user.
        Operation::CreateExec if field("as_root") == Some(&Value::Bool(true)) => {
            (first, vec!["instance.exec_root"])
        }
        // What one org has kept is kept of all: there is one ledger.
        Operation::UpdateOrg if field("legal_hold_until").is_some() => {
            let renames = field("display_name").is_some_and(|value| !value.is_null());
            (
                "ledger.admin",
                renames.then_some(first).into_iter().collect(),
            )
        }
        // To take an address that is in use is for those who run the platform.
        Operation::DisableIpv4 if request.query.get("force").is_some_and(|is| is == "true") => {
            ("node.manage", Vec::new())
        }
        _ => (first, Vec::new()),
    }
}

/// Whether a change is meant for what is there now.
pub(crate) fn check_current(
    state: &State,
    call: &Call<'_>,
    request: &Request,
    place: &Place,
) -> Result<(), Refusal> {
    check_precondition(call, request)?;
    match version_of(state, request.operation, place) {
        Some(version) => check_version(call, request, version),
        None => Ok(()),
    }
}

/// Says which version a change must be meant for, if it must.
fn check_precondition(call: &Call<'_>, request: &Request) -> Result<(), Refusal> {
    let required = request.operation.spec().precondition == Precondition::Required;
    if required && call.if_match.is_none() && expected_version(request).is_none() {
        return Err(Refusal::new(
            "precondition_required",
            "another change in between would be lost",
            "send `If-Match` with the ETag, or `expected_version` in the body",
        ));
    }
    Ok(())
}

/// Whether the object has the version that a change is meant for.
pub(crate) fn check_version(
    call: &Call<'_>,
    request: &Request,
    version: u64,
) -> Result<(), Refusal> {
    let stale = |code, wanted: u64| {
        let why = format!("the object has version {version}, and the change is for {wanted}");
        let refusal = Refusal::new(code, why, "read it again and decide anew");
        Err(refusal.with("version", version))
    };
    match (call.if_match, expected_version(request)) {
        (Some(wanted), _) if wanted != version => stale("precondition_failed", wanted),
        (_, Some(wanted)) if wanted != version => stale("version_conflict", wanted),
        _ => Ok(()),
    }
}

fn expected_version(request: &Request) -> Option<u64> {
    request.body.as_ref()?.get("expected_version")?.as_u64()
}

/// The version of what an operation changes; none if it names no object.
fn version_of(state: &State, operation: Operation, place: &Place) -> Option<u64> {
    let version = |kind: &str, id: &str| state.meta(kind, id).map(|meta| meta.version);
    if let Some((kind, leaf)) = place.leaf() {
        return version(kind, leaf);
    }
    if place.leaf.is_some() {
        return None;
    }
    let owner = &place.owner;
    match operation {
        Operation::SetPolicy => {
            let org = owner.org?.to_string();
            Some(version("policy", &org).unwrap_or_default())
        }
        Operation::ReplaceSecrets | Operation::UpdateSecrets | Operation::DeleteSecrets => {
            let env = owner.env?;
            let mut bundles = state.runtime.bundles.iter();
            let bundle = bundles.find(|(_, bundle)| bundle.env == env);
            let version = bundle.and_then(|(id, _)| version("secret_bundle", &id.to_string()));
            Some(version.unwrap_or_default())
        }
        _ => match (owner.org, owner.app, owner.env) {
            (_, _, Some(env)) => version("env", &env.to_string()),
            (_, Some(app), None) => version("app", &app.to_string()),
            (Some(org), None, None) => version("org", &org.to_string()),
            (None, None, None) => None,
        },
    }
}

/// Whether each allowed read of it is recorded by itself.
fn is_sensitive(capability: &str) -> bool {
    ["audit.read", "instance.exec", "logs.read"].contains(&capability)
}

/// The record that logs were read.
fn accessed(request: &Request, place: &Place) -> Option<Fact> {
    let env = place.owner.env?;
    let is_diagnosis = request.operation == Operation::DiagnoseInstance;
    if request.operation != Operation::GetLogs && !is_diagnosis {
        return None;
    }
    let given = |name: &str| request.query.get(name);
    let time = |name: &str| given(name).and_then(|text| text.parse().ok());
    let mut selectors: Map<String, Value> = ["process", "instance", "stream", "tail"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), Value::from(given(name)?.clone()))))
        .collect();
    if let Some(leaf) = place.leaf.as_ref().filter(|_| is_diagnosis) {
        selectors.insert("instance".to_owned(), Value::from(leaf.clone()));
    }
    let follows = given("follow").is_some_and(|is| is == "true");
    let mode = match (is_diagnosis, follows, given("cursor")) {
        (true, ..) => "diagnose",
        (false, true, _) => "follow",
        (false, false, Some(_)) => "export",
        (false, false, None) => "query",
    };
    let body = LogsAccessed {
        selectors: Value::Object(selectors),
        since: time("since"),
        until: time("until"),
        mode: mode.to_owned(),
    };
    let fact = Fact::new(env, body.into()).of(&place.scope());
    Some(Fact {
        decided_by: Some(0),
        ..fact
    })
}

/// That something is not there is told only to those who may see it if it
/// were; to others it is the same as not being allowed.
fn hide(
    state: &State,
    call: &Call<'_>,
    (who, place): (&Who, &Place),
    capability: &str,
    refusal: Refusal,
    fact: &mut Fact,
) -> Refusal {
    if refusal.code != "not_found" {
        return refusal;
    }
    let reading = reading(capability);
    if reading == capability || authorize::holds(state, call.now, who, reading, place) {
        return refusal;
    }
    if let Body::AuthzDecided(AuthzDecided {
        outcome, reason, ..
    }) = &mut fact.body
    {
        "deny".clone_into(outcome);
        "nothing there that the principal may see".clone_into(reason);
    }
    authorize::forbidden(capability)
}

/// The action that shows whether what another one acts on is there.
fn reading(capability: &str) -> &str {
    let kind = capability.split('.').next().unwrap_or_default();
    match kind {
        "app" => "app.read",
        "env" => "env.read",
        "instance" => "instance.read",
        "release" => "release.read",
        "route" => "route.read",
        "ipv4" | "logs" => "env.read",
        "secret" => "secret.list",
        "volume" => "volume.read",
        "project" => "project.read",
        "node" => "node.read",
        _ => capability,
    }
}

/// That something is not there.
pub(crate) fn not_found() -> Refusal {
    Refusal::new(
        "not_found",
        "nothing of that name or id is there",
        "look at the list of what is there",
    )
}

fn unreviewable() -> Refusal {
    Refusal::new(
        "policy_denied",
        "a rule of the organisation wants a person to look first, and a read can't wait",
        "ask an administrator of the organisation",
    )
}

fn exec_token_invalid() -> Refusal {
    Refusal::new(
        "exec_token_invalid",
        "the token does not open this session",
        "ask for a new session",
    )
}

/// The hash of a command, by which an approval names it.
pub(crate) fn command_hash(command: &Value) -> Digest {
    let text = fluffy_base::canonical::to_string(command);
    Digest::of(text.unwrap_or_default().as_bytes())
}
