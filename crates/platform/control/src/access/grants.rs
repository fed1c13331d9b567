//! Grants: single capabilities given to principals of an org, and taken.
//!
//! Nobody gives what they do not hold. One thing no role holds: running
//! commands in instances. Owners may give that to others, and to themselves
//! only for an emergency, with a reason and for four hours at most.

use std::time::Duration;

use fluffy_api::types::CreateGrant;
use fluffy_base::id::{GrantId, OrgId};

use super::authorize::{covers, holds};
use super::{Desk, pattern};
use crate::call::{Change, Fact, Subject};
use crate::event::{GrantAdded, GrantRemoved};
use crate::operations::not_found;
use crate::refusal::Refusal;

/// How long a grant for an emergency is good, at most.
const EMERGENCY: u32 = 4 * 3600;

const MOST: u32 = 365 * 24 * 3600;

pub(super) fn create(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: CreateGrant = desk.body()?;
    let org = desk.org()?;
    let names = &desk.state.access.names;
    check_principal(desk, org, &body.principal_id)?;
    super::check_length("pattern", &body.pattern, 3..=256)?;
    let meant = pattern::resolve(names, org, &body.pattern)
        .map_err(|why| super::invalid("pattern", why))?;
    check_may_give(desk, org, &body, &meant.spelled(names))?;
    let ttl = lifetime(&body)?;
    let id = GrantId::from_bits(desk.mint());
    let added = GrantAdded {
        principal_id: body.principal_id,
        pattern: body.pattern,
        resolved_ids: meant.objects,
        expires_at: ttl.map(|ttl| desk.call.now.after(Duration::from_secs(ttl.into()))),
        reason: body.reason,
    };
    Ok(Change {
        facts: vec![Fact::new(id, added.into())],
        subject: Subject::of("grant", id),
        status: 201,
    })
}

pub(super) fn remove(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let id: GrantId = desk.leaf()?;
    if !desk.state.access.grants.contains_key(&id) {
        return Err(not_found());
    }
    let facts = vec![Fact::new(id, GrantRemoved {}.into())];
    Ok(super::gone(facts, id))
}

fn check_may_give(
    desk: &Desk<'_>,
    org: OrgId,
    body: &CreateGrant,
    wanted: &[String],
) -> Result<(), Refusal> {
    let who = &desk.authorized.who;
    let (state, now) = (desk.state, desk.call.now);
    let missing: Vec<&String> = wanted
        .iter()
        .filter(|one| !covers(state, now, who, org, &[(*one).clone()]))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let exec = ["instance.exec.", "instance.exec_root."];
    let is_exec = |one: &&String| exec.iter().any(|action| one.starts_with(action));
    let exec_only = missing.iter().all(is_exec);
    let owns = holds(state, now, who, "org.admin", &desk.authorized.place);
    if !exec_only || !owns {
        return Err(super::exceeds(&format!("`{}`", body.pattern)));
    }
    if body.principal_id == who.principal && !body.break_glass {
        return Err(Refusal::new(
            "grant_exceeds_own",
            "owners give themselves the right to run commands for an emergency only",
            "set `break_glass` and a `reason`",
        ));
    }
    Ok(())
}

/// How many seconds the grant is good.
fn lifetime(body: &CreateGrant) -> Result<Option<u32>, Refusal> {
    let most = if body.break_glass { EMERGENCY } else { MOST };
    if let Some(reason) = &body.reason {
        super::check_length("reason", reason, 1..=256)?;
    } else if body.break_glass {
        return Err(super::invalid("reason", "an emergency has a reason"));
    }
    match body.ttl_seconds {
        Some(ttl) if !(60..=most).contains(&ttl) => Err(super::invalid(
            "ttl_seconds",
            format!("such a grant is good for 60 to {most} seconds"),
        )),
        None if body.break_glass => Ok(Some(EMERGENCY)),
        ttl => Ok(ttl),
    }
}

/// Grants are for those who are in the org.
fn check_principal(desk: &Desk<'_>, org: OrgId, principal: &str) -> Result<(), Refusal> {
    let access = &desk.state.access;
    let member = access
        .members_of(principal)
        .any(|(_, member)| member.owner.org == Some(org));
    let service = principal.parse().ok();
    let service = service
        .and_then(|id| access.services.get(&id))
        .is_some_and(|service| service.org == org);
    match member || service {
        true => Ok(()),
        false => Err(super::invalid(
            "principal_id",
            "this is no member and no service principal of the organisation",
        )),
    }
}
