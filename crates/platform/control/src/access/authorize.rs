//! The one gate: who asks, what they hold, and what the rules say of it.
//!
//! In this order: the credential must be good; the path is resolved; the
//! capability must be inside what the principal holds and inside the ceiling
//! of the credential, which nothing can widen; the org's rules may then deny
//! or ask for a person. Every decision is a fact. Whoever has nothing in an
//! org hears the same whatever is there, so that existence does not leak.

use std::collections::BTreeSet;
use std::sync::Arc;

use fluffy_base::Timestamp;
use fluffy_base::id::{EnvId, OrgId, TokenId};
use fluffy_ledger::ActorKind;
use fluffy_policy::action::{self, ResourceKind};
use fluffy_policy::capability::Pattern;
use fluffy_policy::decision::Layer;
use fluffy_policy::extension::NoExtensions;
use fluffy_policy::grant::{Grant as Ceiling, GrantLists};
use fluffy_policy::role::{self, Role};
use fluffy_policy::rule::Effect;
use fluffy_policy::{Context, Decision, Engine, Principal, PrincipalKind, Request, Verdict};

use super::names::Names;
use super::place::Place;
use super::{LOCAL, pattern};
use crate::call::{Call, Caller, CallerKind, Fact};
use crate::event::AuthzDecided;
use crate::refusal::Refusal;
use crate::state::{Owner, State};

/// Somebody whose credential is good.
#[derive(Debug, Clone)]
pub struct Who {
    /// The principal.
    pub principal: String,
    /// What kind it is.
    pub kind: ActorKind,
    /// For whom it acts.
    pub on_behalf_of: Option<String>,
    /// The token that it showed.
    pub token: Option<TokenId>,
    /// Nothing outside of this org, for a credential that was issued there.
    only: Option<OrgId>,
    /// Above which nothing is allowed, as kept patterns.
    ceiling: Option<Vec<String>>,
    /// Whether it came by the local socket.
    local: bool,
}

impl Who {
    /// A principal without a credential, to see what it holds.
    pub(crate) fn principal(principal: &str, kind: ActorKind) -> Self {
        Self {
            principal: principal.to_owned(),
            kind,
            on_behalf_of: None,
            token: None,
            only: None,
            ceiling: None,
            local: principal == LOCAL,
        }
    }

    /// Whether it can act in an org at all: machines and loops never do.
    pub(crate) const fn is_tenant(&self) -> bool {
        matches!(
            self.kind,
            ActorKind::User | ActorKind::ServicePrincipal | ActorKind::Agent
        )
    }
}

/// That the caller may do what was asked, where it was asked.
#[derive(Debug)]
pub struct Authorized {
    /// Who.
    pub(crate) who: Who,
    /// Where.
    pub(crate) place: Place,
}

/// What came of asking.
#[derive(Debug)]
pub(crate) struct Decided {
    /// The record of it.
    pub(crate) fact: Fact,
    pub(crate) answer: Answer,
}

/// The three answers.
#[derive(Debug)]
pub(crate) enum Answer {
    Allow,
    /// A person must say so first.
    Review,
    Deny(Refusal),
}

impl Authorized {
    pub(crate) const fn new(who: Who, place: Place) -> Self {
        Self { who, place }
    }
}

/// Whether the credential of a caller is good at this moment.
///
/// # Errors
/// It is not, and why.
pub fn check_credential(state: &State, caller: &Caller, now: Timestamp) -> Result<(), Refusal> {
    who_is(state, caller, now).map(drop)
}

/// Who the caller is, if the credential is good at this moment.
///
/// # Errors
/// It showed none, or one that is not good.
pub(crate) fn authenticate(state: &State, call: &Call<'_>) -> Result<Who, Refusal> {
    who_is(state, call.caller, call.now)
}

fn who_is(state: &State, caller: &Caller, now: Timestamp) -> Result<Who, Refusal> {
    let actor = &caller.actor;
    let who = |principal: &str| Who {
        on_behalf_of: actor.on_behalf_of.clone(),
        local: false,
        ..Who::principal(principal, actor.kind)
    };
    match &caller.kind {
        CallerKind::Anonymous => Err(unauthenticated()),
        CallerKind::Local => Ok(Who {
            local: true,
            ..who(LOCAL)
        }),
        // Machines and loops of the platform hold nothing of a tenant's.
        CallerKind::Node(node) => Ok(who(&node.to_string())),
        CallerKind::System(_) => Ok(who(&actor.id)),
        CallerKind::Token(id) => {
            let token = state.access.tokens.get(id).ok_or_else(unauthenticated)?;
            if token.principal != actor.id || !["access", "api"].contains(&token.kind.as_str()) {
                return Err(unauthenticated());
            }
            if token.revoked.is_some() {
                let why = "the token was revoked";
                return Err(Refusal::new("token_revoked", why, "log in again"));
            }
            if token.expires_at <= now {
                let why = "the token's time is over";
                return Err(Refusal::new("token_expired", why, "log in again"));
            }
            Ok(Who {
                token: Some(*id),
                only: token.org,
                ceiling: token.ceiling.clone(),
                on_behalf_of: token.on_behalf_of.clone(),
                ..who(&token.principal)
            })
        }
    }
}

/// The one who asked for an approval, when it is decided: a revoked token no
/// longer counts, an expired one does.
pub(crate) fn requester(
    state: &State,
    principal: &str,
    kind: ActorKind,
    token: Option<TokenId>,
) -> Result<Who, Refusal> {
    let gone = || {
        let why = "the credential that asked is no longer good";
        Refusal::new("forbidden", why, "let it be asked for again")
    };
    let shown = match token {
        None => None,
        Some(id) => Some(state.access.tokens.get(&id).ok_or_else(gone)?),
    };
    if shown.is_some_and(|token| token.revoked.is_some() || token.principal != principal) {
        return Err(gone());
    }
    Ok(Who {
        on_behalf_of: shown.and_then(|token| token.on_behalf_of.clone()),
        token,
        only: shown.and_then(|token| token.org),
        ceiling: shown.and_then(|token| token.ceiling.clone()),
        local: principal == LOCAL && token.is_none(),
        ..Who::principal(principal, kind)
    })
}

/// Decides whether somebody may do an action at a place, and records it.
pub(crate) fn decide(
    state: &State,
    call: &Call<'_>,
    who: &Who,
    action: &str,
    place: &Place,
) -> Decided {
    let (engine, version) = engine_for(state, action, place);
    let request = request_of(state, call.now, who, action, place);
    let decision = engine.evaluate(&request, call.now, &NoExtensions);
    let answer = match decision.verdict() {
        Verdict::Allow => Answer::Allow,
        Verdict::RequireReview => Answer::Review,
        Verdict::Deny => Answer::Deny(denial(state, call.now, who, action, place, &decision)),
    };
    let (rule, reason) = because(&decision);
    let object = place.object.as_deref();
    let record = AuthzDecided {
        principal_id: who.principal.clone(),
        capability: object.map_or_else(|| action.to_owned(), |path| format!("{action}.{path}")),
        resource_id: place.resource_id(),
        outcome: match &answer {
            Answer::Allow => "allow",
            Answer::Review => "review",
            Answer::Deny(_) => "deny",
        }
        .to_owned(),
        rule_id: rule,
        policy_version: version,
        reason,
        operation: None,
        body_hash: None,
        refused: None,
    };
    let mut fact = Fact::new(&who.principal, record.into());
    // A path that names nothing of an org is not of that org.
    fact.scope = place.scope();
    Decided { fact, answer }
}

/// What rules that are only tried would decide, and which of them.
pub(crate) fn attempt(
    state: &State,
    now: Timestamp,
    engine: &Engine,
    (who, action, place): (&Who, &str, &Place),
) -> (&'static str, Option<String>) {
    let request = request_of(state, now, who, action, place);
    let decision = engine.evaluate(&request, now, &NoExtensions);
    let outcome = match decision.verdict() {
        Verdict::Allow => "allow",
        Verdict::RequireReview => "review",
        Verdict::Deny => "deny",
    };
    (outcome, because(&decision).0)
}

/// Whether somebody could, without a record: for what they are shown.
pub(crate) fn holds(state: &State, now: Timestamp, who: &Who, action: &str, place: &Place) -> bool {
    let (engine, _) = engine_for(state, action, place);
    let request = request_of(state, now, who, action, place);
    let verdict = engine.evaluate(&request, now, &NoExtensions).verdict();
    verdict == Verdict::Allow
}

/// Whether somebody may still do what they were allowed before, without a
/// record. A rule that wants a person to look does not take it back.
pub(crate) fn stands(
    state: &State,
    now: Timestamp,
    who: &Who,
    action: &str,
    place: &Place,
) -> bool {
    let (engine, _) = engine_for(state, action, place);
    let request = request_of(state, now, who, action, place);
    let verdict = engine.evaluate(&request, now, &NoExtensions).verdict();
    verdict != Verdict::Deny
}

/// Everything that somebody holds in an org, ceiling not applied: patterns of
/// single actions, in names.
pub(crate) fn held(state: &State, now: Timestamp, who: &Who, org: OrgId) -> Vec<String> {
    Holdings {
        state,
        now,
        who,
        org,
    }
    .all()
}

/// Whether somebody holds everything that these patterns (in names) cover,
/// inside their own ceiling.
pub(crate) fn covers(
    state: &State,
    now: Timestamp,
    who: &Who,
    org: OrgId,
    wanted: &[String],
) -> bool {
    let parse = |texts: Vec<String>| -> Vec<Pattern> {
        let patterns = texts.iter().filter_map(|text| Pattern::parse(text).ok());
        patterns.collect()
    };
    let own = parse(held(state, now, who, org));
    let below = who.ceiling.as_ref().map(|kept| {
        let names = &state.access.names;
        let spelled = kept.iter().flat_map(|text| {
            pattern::tenant_actions().filter_map(|name| pattern::gives(names, text, name))
        });
        parse(spelled.collect())
    });
    wanted.iter().all(|one| {
        pattern::covered(&own, one)
            && below
                .as_ref()
                .is_none_or(|list| pattern::covered(list, one))
    })
}

/// What somebody can do in an org at all: held, and inside the ceiling.
pub(crate) fn effective(state: &State, now: Timestamp, who: &Who, org: OrgId) -> Vec<String> {
    let mut patterns = held(state, now, who, org);
    if who.ceiling.is_some() {
        patterns.retain(|one| covers(state, now, who, org, std::slice::from_ref(one)));
    }
    patterns
}

/// Everything that a role has where it is bound, in names.
pub(crate) fn role_patterns(state: &State, role: Role, owner: &Owner) -> Vec<String> {
    let names = &state.access.names;
    let apps = owner.org.into_iter().flat_map(|org| names.apps_of(org));
    let envs = apps.flat_map(|(_, app)| names.envs_of(app));
    let owners = envs.filter_map(|(_, env)| names.owner_of_env(env));
    let inside = owners.filter(|one| contains(owner, one)).collect();
    spell_role(names, role, owner, inside)
}

/// The ceiling of the credential that somebody showed.
pub(crate) const fn ceiling(who: &Who) -> Option<&Vec<String>> {
    who.ceiling.as_ref()
}

/// Whether somebody runs the platform itself.
pub(crate) fn is_platform_operator(state: &State, who: &Who) -> bool {
    let member = state
        .access
        .members_of(&who.principal)
        .any(|(_, one)| one.runs_the_platform());
    who.only.is_none() && who.ceiling.is_none() && (who.local || member)
}

/// Whether anything at all is held in an org.
pub(crate) fn has_access(state: &State, now: Timestamp, who: &Who, org: OrgId) -> bool {
    let holdings = Holdings {
        state,
        now,
        who,
        org,
    };
    holdings.reaches()
        && (holdings.is_local()
            || holdings.roles().next().is_some()
            || holdings.kept().next().is_some())
}

fn unauthenticated() -> Refusal {
    let why = "no credential that is known came with the request";
    Refusal::new("unauthenticated", why, "log in with `fluffy login`")
}

/// The rules that an action at a place is judged by. What is the platform's to
/// do is none of an org's, whose rules would otherwise keep its operators out.
fn engine_for<'a>(state: &'a State, action: &str, place: &Place) -> (&'a Engine, u64) {
    let of_tenant = pattern::is_tenant_action(action);
    engine_of(state, place.owner.org.filter(|_| of_tenant))
}

pub(super) fn engine_of(state: &State, org: Option<OrgId>) -> (&Engine, u64) {
    let policy = org
        .and_then(|org| state.access.orgs.get(&org))
        .and_then(|org| org.policy.as_ref());
    match policy {
        Some(policy) => (
            policy.compiled.engine(Some(&policy.rules), policy.version),
            policy.version,
        ),
        None => (state.access.shipped.engine(None, 0), 0),
    }
}

fn request_of(state: &State, now: Timestamp, who: &Who, action: &str, place: &Place) -> Request {
    let held = match place.owner.org {
        Some(org) => Holdings {
            state,
            now,
            who,
            org,
        }
        .of_action(action, place.owner.env),
        None => Vec::new(),
    };
    let of_platform = is_platform_operator(state, who).then(|| platform_patterns(action));
    let held: Vec<String> = held
        .into_iter()
        .chain(of_platform.into_iter().flatten())
        .collect();
    let names = &state.access.names;
    let ceiling = match &who.ceiling {
        None => vec!["*".to_owned()],
        Some(kept) => {
            let given = kept
                .iter()
                .filter_map(|one| pattern::gives(names, one, action));
            given.collect()
        }
    };
    let lists = GrantLists {
        capabilities: ceiling,
        deny_capabilities: Vec::new(),
        workspace: vec!["*".to_owned()],
        user: held,
    };
    let tags = tags_of(state, who, &place.owner);
    let object = place.object.as_deref();
    let tenant = object.and_then(|object| object.split('/').next());
    Request {
        principal: Principal {
            kind: principal_kind(who.kind),
            name: who.principal.clone(),
            tags,
            sandbox: None,
            process: None,
            on_behalf_of: who.on_behalf_of.clone(),
            // A list that can't be one grants nothing.
            grant: Ceiling::build(&lists).ok().map(Arc::new),
        },
        action: action.to_owned(),
        resource: resource_of(action, place),
        context: Context {
            tenant: tenant.map(str::to_owned),
            ..Context::default()
        },
    }
}

/// What an action acts on: an object, a machine, or nothing.
fn resource_of(action: &str, place: &Place) -> Option<String> {
    let kind = action::find(action).map(|action| action.resource);
    let leaf = || place.leaf.clone().filter(|leaf| leaf.len() <= 64);
    match kind {
        Some(ResourceKind::None) => None,
        Some(ResourceKind::Object) => place.object.clone().or_else(|| Some("platform".to_owned())),
        _ => leaf().or_else(|| Some("platform".to_owned())),
    }
}

/// The roles somebody has at a place, for rules that look at `caller_tag`. One
/// that is bound elsewhere gets nobody around a rule here.
fn tags_of(state: &State, who: &Who, place: &Owner) -> BTreeSet<String> {
    let members = state.access.members_of(&who.principal);
    let roles = members.filter(|(_, member)| contains(&member.owner, place));
    let mut tags: BTreeSet<String> = roles.map(|(_, member)| member.role.clone()).collect();
    if let Some(token) = who.token.and_then(|id| state.access.tokens.get(&id)) {
        tags.insert(format!("{}_token", token.kind));
    }
    tags
}

const fn principal_kind(kind: ActorKind) -> PrincipalKind {
    match kind {
        ActorKind::User => PrincipalKind::User,
        ActorKind::ServicePrincipal | ActorKind::System => PrincipalKind::Service,
        ActorKind::Agent => PrincipalKind::Agent,
        ActorKind::Node => PrincipalKind::Node,
    }
}

/// Who decided, and why, in a line.
fn because(decision: &Decision) -> (Option<String>, String) {
    let effect = match decision.verdict() {
        Verdict::Allow => Effect::Allow,
        Verdict::Deny => Effect::Deny,
        Verdict::RequireReview => Effect::RequireReview,
    };
    let decisive = decision.spoke().iter().find(|voice| voice.effect == effect);
    let reasons: Vec<&str> = decision.reasons().collect();
    let reason = match reasons.is_empty() {
        true => "nothing allows it".to_owned(),
        false => reasons.join("; "),
    };
    (
        decisive.map(|voice| voice.label.id()),
        reason.chars().take(512).collect(),
    )
}

/// What somebody is told who may not; never names what is there.
fn denial(
    state: &State,
    now: Timestamp,
    who: &Who,
    action: &str,
    place: &Place,
    decision: &Decision,
) -> Refusal {
    let by_rule = decision
        .spoke()
        .iter()
        .find(|voice| voice.effect == Effect::Deny && voice.layer == Layer::Rules);
    if let Some(rule) = by_rule {
        let why = format!(
            "the rule `{}` of the organisation forbids it",
            rule.label.name
        );
        let fix = match rule.label.reason.as_str() {
            "" => "ask an administrator of the organisation".to_owned(),
            reason => reason.to_owned(),
        };
        return Refusal::new("policy_denied", why, fix);
    }
    let known = place
        .owner
        .org
        .is_some_and(|org| has_access(state, now, who, org));
    if place.object.is_some() && !known && !is_platform_operator(state, who) {
        let why = "this principal has no role and no grant in the organisation";
        return Refusal::new(
            "org_access_denied",
            why,
            "ask one of its administrators for a role or a grant",
        );
    }
    forbidden(action)
}

/// Not allowed by anything held.
pub(crate) fn forbidden(action: &str) -> Refusal {
    let why = format!("`{action}` is not among what this credential may do here");
    let fix = match platform_patterns(action).is_empty() {
        true => format!("ask for a grant of `{action}`, or use another credential"),
        false => "ask an operator of the platform: it can't be granted".to_owned(),
    };
    Refusal::new("forbidden", why, fix)
}

fn platform_patterns(action: &str) -> Vec<String> {
    let nowhere = role::Scope {
        object: String::new(),
        environments: Vec::new(),
    };
    let patterns = Role::PlatformOperator.patterns(&nowhere);
    patterns
        .into_iter()
        .filter(|text| of_action(text, action))
        .collect()
}

fn of_action(text: &str, action: &str) -> bool {
    let rest = text.strip_prefix(action);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// What one principal holds in one org.
#[derive(Clone, Copy)]
struct Holdings<'a> {
    state: &'a State,
    now: Timestamp,
    who: &'a Who,
    org: OrgId,
}

impl<'a> Holdings<'a> {
    /// Everything that concerns one action, with a developer's rights in one
    /// environment only: all others are of no interest then.
    fn of_action(self, action: &str, env: Option<EnvId>) -> Vec<String> {
        if !self.reaches() {
            return Vec::new();
        }
        let names = &self.state.access.names;
        let mut patterns = Vec::new();
        for (role, owner) in self.roles() {
            let envs = env.into_iter().filter_map(|env| names.owner_of_env(env));
            let inside = envs.filter(|one| contains(&owner, one)).collect();
            patterns.extend(spell_role(names, role, &owner, inside));
        }
        if self.is_local() {
            patterns.extend(self.local_patterns());
        }
        patterns.retain(|text| of_action(text, action));
        let kept = self
            .kept()
            .filter_map(|kept| pattern::gives(names, &kept, action));
        patterns.extend(kept);
        patterns
    }

    /// Everything.
    fn all(self) -> Vec<String> {
        if !self.reaches() {
            return Vec::new();
        }
        let names = &self.state.access.names;
        let mut patterns = Vec::new();
        for (role, owner) in self.roles() {
            patterns.extend(role_patterns(self.state, role, &owner));
        }
        if self.is_local() {
            patterns.extend(self.local_patterns());
        }
        for kept in self.kept() {
            let given =
                pattern::tenant_actions().filter_map(|name| pattern::gives(names, &kept, name));
            patterns.extend(given);
        }
        patterns
    }

    /// Whether the credential is good in this org at all, and for a tenant's
    /// things.
    fn reaches(self) -> bool {
        self.who.is_tenant() && self.who.only.is_none_or(|only| only == self.org)
    }

    fn is_local(self) -> bool {
        self.who.local && self.state.access.names.org_slug(self.org) == Some(LOCAL)
    }

    /// Those that are bound to something that is there.
    fn roles(self) -> impl Iterator<Item = (Role, Owner)> + 'a {
        let access = &self.state.access;
        let members = access.members_of(&self.who.principal);
        members
            .filter(move |(_, member)| member.owner.org == Some(self.org))
            .filter(|(_, member)| access.names.path(&member.owner).is_some())
            .filter_map(|(_, member)| Some((member.role()?, member.owner)))
    }

    /// Grants, and what a service principal was made with, as kept patterns.
    fn kept(self) -> impl Iterator<Item = String> + 'a {
        let access = &self.state.access;
        let grants = access
            .grants_of(&self.who.principal)
            .filter(move |(_, one)| {
                one.org == self.org && one.expires_at.is_none_or(|end| end > self.now)
            });
        let grants = grants.flat_map(|(_, one)| {
            let action = one.pattern.as_str();
            let head = action.split('/').next().unwrap_or_default();
            let action = head.rfind('.').and_then(|dot| head.get(..dot));
            let action = action.unwrap_or_default().to_owned();
            one.resolved
                .iter()
                .map(move |object| format!("{action}.{object}"))
        });
        let service = self.who.principal.parse().ok();
        let service = service
            .and_then(|id| access.services.get(&id))
            .filter(move |service| service.org == self.org);
        grants.chain(service.into_iter().flat_map(|one| one.grants.clone()))
    }

    /// Whoever owns the data directory owns its org, and may run commands.
    fn local_patterns(self) -> Vec<String> {
        let owner = Owner {
            org: Some(self.org),
            ..Owner::default()
        };
        let names = &self.state.access.names;
        let mut patterns = spell_role(names, Role::Owner, &owner, Vec::new());
        for action in ["instance.exec", "instance.exec_root"] {
            patterns.push(format!("{action}.{LOCAL}"));
            patterns.push(format!("{action}.{LOCAL}/*"));
        }
        patterns
    }
}

fn spell_role(names: &Names, role: Role, owner: &Owner, envs: Vec<Owner>) -> Vec<String> {
    // A role bound to what is gone gives nothing.
    let Some(object) = names.path(owner) else {
        return Vec::new();
    };
    let environments = envs.into_iter().filter_map(|env| {
        Some(role::Environment {
            object: names.path(&env)?,
            protected: names.is_protected(env.env?),
        })
    });
    role.patterns(&role::Scope {
        object,
        environments: environments.collect(),
    })
}

/// Whether a role that is bound to one thing reaches another.
pub(super) fn contains(bound: &Owner, other: &Owner) -> bool {
    bound.org == other.org
        && (bound.app.is_none() || bound.app == other.app)
        && (bound.env.is_none() || bound.env == other.env)
}
