//! Service principals: programs that log in with a secret of their own.
//!
//! What one may do is kept with ids, and is never more than whoever gives it
//! holds. A new secret lets the old one be good for a while.

use std::time::Duration;

use fluffy_api::types::{CreatePrincipal, RotatePrincipal, UpdatePrincipal};
use fluffy_base::id::{OrgId, PrincipalId};
use fluffy_ledger::ActorKind;

use super::authorize::{Who, covers};
use super::{Desk, Service, members, pattern, tokens};
use crate::call::{Change, Fact, Subject};
use crate::event::{
    ServicePrincipalCreated, ServicePrincipalDeleted, ServicePrincipalGrantsUpdated,
    ServicePrincipalSecretRotated,
};
use crate::operations::not_found;
use crate::refusal::Refusal;

const MAX_PATTERNS: usize = 64;
const OVERLAP: u32 = 3600;
const MAX_OVERLAP: u32 = 24 * 3600;

pub(super) fn create(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: CreatePrincipal = desk.body()?;
    let org = desk.org()?;
    super::check_slug("name", &body.name, 1..=32)?;
    let mut services = desk.state.access.services.values();
    if services.any(|one| one.org == org && one.name == body.name) {
        return Err(super::name_taken(&body.name));
    }
    let reserved = &desk.state.runtime.reserved;
    let until = reserved.get(&format!("{org}/principal/{}", body.name));
    if let Some(until) = until.filter(|until| **until > desk.call.now) {
        let why = format!("`{}` was deleted and is reserved until {until}", body.name);
        return Err(Refusal::new("name_taken", why, "choose another name"));
    }
    let grants = kept(desk, &body.grants, "grants")?;
    let id: PrincipalId = desk.request.credential()?.id(0)?;
    let created = ServicePrincipalCreated {
        name: body.name,
        grants,
    };
    Ok(Change {
        facts: vec![Fact::new(id, created.into())],
        subject: Subject::of("service_principal", id),
        status: 201,
    })
}

pub(super) fn update(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: UpdatePrincipal = desk.body()?;
    let (id, _) = find(desk)?;
    let grants = kept(desk, &body.grants, "grants")?;
    let change = ServicePrincipalGrantsUpdated { grants };
    Ok(Change {
        facts: vec![Fact::new(id, change.into())],
        subject: Subject::of("service_principal", id),
        status: 200,
    })
}

/// A new secret speaks for all that the principal holds, so whoever gets to
/// see it must hold that too.
pub(super) fn rotate(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: RotatePrincipal = desk.body()?;
    let (id, _) = find(desk)?;
    check_speaks_for(desk, &id.to_string())?;
    let overlap = body.overlap_seconds.unwrap_or(OVERLAP);
    if overlap > MAX_OVERLAP {
        let why = format!("the old secret stays good for {MAX_OVERLAP} seconds at most");
        return Err(super::invalid("overlap_seconds", why));
    }
    let overlap = Duration::from_secs(overlap.into());
    let rotated = ServicePrincipalSecretRotated {
        rotation_id: desk.request.credential()?.id(0)?,
        old_valid_until: desk.call.now.after(overlap),
    };
    Ok(Change {
        facts: vec![Fact::new(id, rotated.into())],
        subject: Subject::of("service_principal", id),
        status: 200,
    })
}

/// With it go its grants and tokens.
pub(super) fn delete(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let (id, service) = find(desk)?;
    let name = Some(service.name.clone());
    let mut facts = vec![Fact::new(id, ServicePrincipalDeleted { name }.into())];
    facts.extend(members::left_behind(desk, &id.to_string())?);
    Ok(super::gone(facts, id))
}

/// Whether the caller holds all that a principal of the org does, a service or
/// a person.
pub(super) fn check_speaks_for(desk: &Desk<'_>, principal: &str) -> Result<(), Refusal> {
    let org = desk.org()?;
    let now = desk.call.now;
    let kind = tokens::kind_of(principal);
    let wanted = super::authorize::held(desk.state, now, &Who::principal(principal, kind), org);
    if covers(desk.state, now, &desk.authorized.who, org, &wanted) {
        return Ok(());
    }
    Err(super::exceeds(match kind {
        ActorKind::ServicePrincipal => "the service principal",
        _ => "this person",
    }))
}

/// Patterns with ids in the place of names, if the caller holds them all.
pub(super) fn kept(
    desk: &Desk<'_>,
    patterns: &[String],
    field: &str,
) -> Result<Vec<String>, Refusal> {
    check_count(patterns, field)?;
    let org: OrgId = desk.org()?;
    let names = &desk.state.access.names;
    let mut kept = Vec::new();
    for text in patterns {
        let meant = pattern::resolve(names, org, text).map_err(|why| super::invalid(field, why))?;
        let wanted = meant.spelled(names);
        let who = &desk.authorized.who;
        if !covers(desk.state, desk.call.now, who, org, &wanted) {
            return Err(super::exceeds(&format!("`{text}`")));
        }
        kept.extend(meant.patterns());
    }
    Ok(kept)
}

/// No more patterns than are kept: leaving some out would say something else.
pub(super) fn check_count(patterns: &[String], field: &str) -> Result<(), Refusal> {
    if patterns.len() <= MAX_PATTERNS {
        return Ok(());
    }
    let why = format!("{} patterns are more than {MAX_PATTERNS}", patterns.len());
    Err(super::invalid(field, why))
}

pub(super) fn find<'a>(desk: &'a Desk<'_>) -> Result<(PrincipalId, &'a Service), Refusal> {
    let id = desk.leaf()?;
    let service = desk.state.access.services.get(&id).ok_or_else(not_found)?;
    Ok((id, service))
}
