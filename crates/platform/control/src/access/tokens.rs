//! Tokens: issued to callers and service principals, and ended.
//!
//! A token never reaches further than what it was asked for with: its ceiling
//! lies inside the ceiling of that one, and it is good in its own org only.

use std::time::Duration;

use fluffy_api::types::{CreateToken, RevokeOwn};
use fluffy_base::id::{PrincipalId, TokenId};
use fluffy_ledger::{Actor, ActorKind};

use super::authorize::{self, Who};
use super::{Desk, Token, principals};
use crate::call::{Caller, CallerKind, Change, Fact, Request, Subject};
use crate::event::{TokenIssued, TokenRevoked};
use crate::operations::not_found;
use crate::refusal::Refusal;
use crate::state::State;

const DAY: u32 = 24 * 3600;

/// The caller that a known token stands for.
#[must_use]
pub fn caller_of_token(state: &State, id: TokenId) -> Option<Caller> {
    let token = state.access.tokens.get(&id)?;
    let kind = match &token.on_behalf_of {
        Some(_) => ActorKind::Agent,
        None => kind_of(&token.principal),
    };
    let mut actor = Actor::new(kind, token.principal.clone());
    actor.on_behalf_of.clone_from(&token.on_behalf_of);
    Some(Caller {
        kind: CallerKind::Token(id),
        actor,
    })
}

/// What kind of principal an id names.
pub(crate) fn kind_of(principal: &str) -> ActorKind {
    match principal.starts_with(PrincipalId::PREFIX) {
        true => ActorKind::ServicePrincipal,
        false => ActorKind::User,
    }
}

pub(super) fn create(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: CreateToken = desk.body()?;
    let id: TokenId = desk.request.credential()?.id(0)?;
    let who = &desk.authorized.who;
    let principal = body.principal_id.unwrap_or_else(|| who.principal.clone());
    if principal != who.principal {
        let service = principal.parse().ok();
        let service = service.and_then(|id: PrincipalId| desk.state.access.services.get(&id));
        if service.is_none_or(|one| Some(one.org) != desk.authorized.place.owner.org) {
            let why = "tokens are for oneself or for a service principal of the organisation";
            return Err(super::invalid("principal_id", why));
        }
        principals::check_speaks_for(desk, &principal)?;
    }
    let acts_for = body.on_behalf_of.filter(|other| *other != principal);
    if acts_for
        .as_ref()
        .is_some_and(|other| *other != who.principal)
    {
        let why = "nobody acts for another than whoever asks for the token";
        return Err(super::invalid("on_behalf_of", why));
    }
    // What acts for somebody can't shake that off.
    let inherited = || {
        who.on_behalf_of
            .clone()
            .filter(|_| principal == who.principal)
    };
    let acts_for = acts_for.or_else(inherited);
    let ttl = body.ttl_seconds.unwrap_or(30 * DAY);
    if !(60..=90 * DAY).contains(&ttl) {
        let why = "a token is good for 60 seconds to 90 days";
        return Err(super::invalid("ttl_seconds", why));
    }
    let ceiling = match body.ceiling {
        Some(patterns) => Some(ceiling_of(desk, &patterns)?),
        None => authorize::ceiling(who).cloned(),
    };
    // Whoever is limited gives no more than they have.
    let own = who.token.and_then(|id| desk.state.access.tokens.get(&id));
    let least = |own: Option<u64>, asked: Option<u32>| {
        let asked = asked.map(u64::from);
        own.into_iter().chain(asked).min()
    };
    let issued = TokenIssued {
        kind: "api".to_owned(),
        principal_id: principal,
        expires_at: desk.call.now.after(Duration::from_secs(ttl.into())),
        ceiling,
        family: None,
        on_behalf_of: acts_for,
        reads_per_minute: least(own.and_then(|it| it.reads), body.reads_per_minute),
        writes_per_minute: least(own.and_then(|it| it.writes), body.writes_per_minute),
    };
    Ok(Change {
        facts: vec![Fact::new(id, issued.into())],
        subject: Subject::of("token", id),
        status: 201,
    })
}

/// A ceiling gives nothing, so it may name more than is held; but never more
/// than the ceiling that it was asked for under.
fn ceiling_of(desk: &Desk<'_>, patterns: &[String]) -> Result<Vec<String>, Refusal> {
    if authorize::ceiling(&desk.authorized.who).is_some() {
        return principals::kept(desk, patterns, "ceiling");
    }
    let org = desk.org()?;
    let names = &desk.state.access.names;
    principals::check_count(patterns, "ceiling")?;
    let mut kept = Vec::new();
    for text in patterns {
        let meant = super::pattern::resolve(names, org, text)
            .map_err(|why| super::invalid("ceiling", why))?;
        kept.extend(meant.patterns());
    }
    Ok(kept)
}

pub(super) fn revoke(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let id: TokenId = desk.leaf()?;
    let token = desk.state.access.tokens.get(&id).ok_or_else(not_found)?;
    let facts = match token.revoked {
        Some(_) => Vec::new(),
        None => vec![revoked(id, "revoked")],
    };
    Ok(super::gone(facts, id))
}

/// Ends a token of one's own, and everything that came from the same login.
pub(super) fn revoke_own(state: &State, request: &Request, who: &Who) -> Result<Change, Refusal> {
    let body: RevokeOwn = request.read_body()?;
    let tokens = &state.access.tokens;
    let own = |id: &TokenId| tokens.get(id).filter(|one| one.principal == who.principal);
    let id = body.token_id.or(who.token).ok_or_else(not_found)?;
    let token = own(&id).ok_or_else(not_found)?;
    let same = |one: &Token| token.family.is_some() && one.family == token.family;
    let ended = tokens
        .iter()
        .filter(|(other, one)| (**other == id || same(one)) && one.revoked.is_none());
    let facts = ended.map(|(id, one)| {
        let fact = revoked(*id, "revoked");
        fact.of(&scope_of(one))
    });
    Ok(Change {
        facts: facts.collect(),
        subject: Subject::of("token", id),
        status: 200,
    })
}

/// The scope of what happens to a token.
pub(super) fn scope_of(token: &Token) -> fluffy_ledger::Scope {
    fluffy_ledger::Scope {
        org_id: token.org.map(|org| org.to_string()),
        ..fluffy_ledger::Scope::default()
    }
}

/// That a token is no longer good.
pub(super) fn revoked(id: TokenId, reason: &str) -> Fact {
    let revoked = TokenRevoked {
        reason: reason.to_owned(),
    };
    Fact::new(id, revoked.into())
}
