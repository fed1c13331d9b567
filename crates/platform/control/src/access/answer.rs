//! What is shown of access: objects, lists, and whoever asks themselves.
//!
//! Everything comes from the state; an address or a secret is not in it.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::types::{self, List};
use fluffy_base::Timestamp;
use fluffy_base::id::{ApprovalId, GrantId, MemberId, OrgId, PrincipalId, TokenId};
use serde::Serialize;
use serde_json::Value;

use super::authorize::{self, Authorized, Who};
use super::place::Place;
use super::{Desk, pattern, policy};
use crate::call::{Call, CallerKind, Request, Subject};
use crate::operations::not_found;
use crate::refusal::Refusal;
use crate::state::{Owner, State};

/// How much of logs is shown at once.
const LOG_WINDOW: Duration = Duration::from_secs(3600);

/// The object that a change of this part was about; none for another part's.
pub(crate) fn answer(state: &State, subject: &Subject) -> Option<Value> {
    let id = subject.id.as_str();
    let shown = match subject.kind.as_str() {
        "org" => id.parse().ok().and_then(|id| org(state, id)),
        "org_member" => id.parse().ok().and_then(|id| member(state, id)),
        "service_principal" => id.parse().ok().and_then(|id| principal(state, id)),
        // What was issued is good at that moment.
        "token" => id.parse().ok().and_then(|id| token(state, None, id)),
        "grant" => id.parse().ok().and_then(|id| grant(state, id)),
        "policy" => id.parse().ok().and_then(|id| rules(state, id)),
        "approval" => id.parse().ok().and_then(|id| approval(state, id)),
        "token_pair" | "gone" | "" => None,
        _ => return None,
    };
    Some(shown.unwrap_or_default())
}

/// What an operation of this part shows; none for another part's.
pub(crate) fn read(
    state: &State,
    call: &Call<'_>,
    request: &Request,
    authorized: &Authorized,
) -> Option<Result<Value, Refusal>> {
    let desk = &Desk {
        state,
        call,
        request,
        authorized,
    };
    let now = Some(call.now);
    let access = &state.access;
    Some(match request.operation {
        Operation::GetOrg => desk.org().and_then(|id| found(org(state, id))),
        Operation::ListMembers => {
            if request.query.contains_key("env") && !request.query.contains_key("app") {
                return Some(Err(super::invalid("app", "an env is named with its app")));
            }
            let inside = |owner: &Owner| authorize::contains(&authorized.place.owner, owner);
            let own = access.members.iter();
            let own = own.filter(|(_, one)| inside(&one.owner)).map(|(id, _)| *id);
            list(desk, "org_member", own, |id| member(state, id))
        }
        Operation::ListPrincipals => {
            let own = access.services.iter();
            let own = own.filter(|(_, one)| Some(one.org) == authorized.place.owner.org);
            let own = own.map(|(id, _)| *id);
            list(desk, "service_principal", own, |id| principal(state, id))
        }
        Operation::GetPrincipal => {
            super::principals::find(desk).and_then(|(id, _)| found(principal(state, id)))
        }
        Operation::ListTokens => {
            let of = request.query.get("principal");
            let own = access.tokens.iter();
            let own = own.filter(|(_, one)| {
                one.org.is_some()
                    && one.org == authorized.place.owner.org
                    && of.is_none_or(|of| one.principal == *of)
            });
            let own = own.map(|(id, _)| *id);
            list(desk, "token", own, |id| token(state, now, id))
        }
        Operation::GetToken => desk.leaf().and_then(|id| found(token(state, now, id))),
        Operation::ListGrants => {
            let of = request.query.get("principal");
            let own = access.grants.iter();
            let own = own.filter(|(_, one)| {
                Some(one.org) == authorized.place.owner.org
                    && of.is_none_or(|of| one.principal == *of)
            });
            let own = own.map(|(id, _)| *id);
            list(desk, "grant", own, |id| grant(state, id))
        }
        Operation::GetGrant => desk.leaf().and_then(|id| found(grant(state, id))),
        Operation::GetPolicy => desk.org().and_then(|id| found(rules(state, id))),
        Operation::TestPolicy => policy::test(desk),
        Operation::ListApprovals => {
            let own = access.approvals.iter();
            let own = own.filter(|(_, one)| Some(one.org) == authorized.place.owner.org);
            let own = own.map(|(id, _)| *id);
            list(desk, "approval", own, |id| approval(state, id))
        }
        // What is not in the state, and is only authorized here.
        Operation::ListEvents
        | Operation::ListAudit
        | Operation::ListPlatformEvents
        | Operation::ExportOrg
        | Operation::GetProjections => Ok(Value::Null),
        Operation::GetLogs => log_window(desk).map(|()| Value::Null),
        _ => return None,
    })
}

/// Who does not run the platform looks at an hour of logs at once.
fn log_window(desk: &Desk<'_>) -> Result<(), Refusal> {
    let time = |name: &str| desk.request.query.get(name)?.parse::<Timestamp>().ok();
    let Some(since) = time("since") else {
        return Ok(());
    };
    let until = time("until").unwrap_or(desk.call.now);
    let is_wide = until.since(since) > LOG_WINDOW;
    if is_wide && !authorize::is_platform_operator(desk.state, &desk.authorized.who) {
        let why = "logs are shown for an hour at once";
        let fix = "give `since` and `until` at most an hour apart";
        return Err(Refusal::new("window_too_large", why, fix));
    }
    Ok(())
}

/// What anybody may see of what is their own.
pub(crate) fn read_own(
    state: &State,
    call: &Call<'_>,
    request: &Request,
    who: &Who,
) -> Result<Value, Refusal> {
    if !who.is_tenant() {
        return Err(authorize::forbidden(request.operation.spec().id));
    }
    match request.operation {
        Operation::Whoami => Ok(whoami(state, call, who)),
        Operation::ListOrgs => {
            let all = authorize::is_platform_operator(state, who);
            let seen = state.access.orgs.keys().copied().filter(|id| {
                let owner = Owner {
                    org: Some(*id),
                    ..Owner::default()
                };
                let place = Place::of(&state.access.names, owner);
                let reads = |place| authorize::holds(state, call.now, who, "org.read", place);
                all || place.as_ref().is_some_and(reads)
            });
            page(state, request, "org", seen, |id| org(state, id))
        }
        _ => Err(authorize::forbidden(request.operation.spec().id)),
    }
}

/// A page of a list: sorted by id, filtered, behind `after`, `limit` long.
pub(crate) fn page<Id: Copy + Ord + Display + FromStr>(
    state: &State,
    request: &Request,
    kind: &str,
    ids: impl Iterator<Item = Id>,
    show: impl Fn(Id) -> Option<Value>,
) -> Result<Value, Refusal> {
    let given = |name: &str| request.query.get(name).map(String::as_str);
    let limit = given("limit").and_then(|text| text.parse().ok());
    let limit: usize = limit.unwrap_or(50).clamp(1, 200);
    let after: Option<Id> = match given("after") {
        None => None,
        Some(text) => {
            let invalid = || Refusal::new("cursor_invalid", "the cursor is not of this list", "");
            Some(text.parse().map_err(|_| invalid())?)
        }
    };
    let time = |name: &str| given(name).and_then(|text| text.parse::<Timestamp>().ok());
    let (from, until) = (time("created_after"), time("created_before"));
    let status = given("status");
    let mut items = Vec::new();
    let mut last = None;
    for id in ids.filter(|id| after.is_none_or(|after| *id > after)) {
        let created = state
            .meta(kind, &id.to_string())
            .map(|meta| meta.created_at);
        let in_time = from.is_none_or(|from| created > Some(from))
            && until.is_none_or(|until| created < Some(until));
        let Some(item) = in_time.then(|| show(id)).flatten() else {
            continue;
        };
        let fits = |wanted| item.get("status").and_then(Value::as_str) == Some(wanted);
        if !status.is_none_or(fits) {
            continue;
        }
        if items.len() == limit {
            let next_cursor = last.map(|id: Id| id.to_string());
            return Ok(json(&List { items, next_cursor }));
        }
        items.push(item);
        last = Some(id);
    }
    let next_cursor = None;
    Ok(json(&List { items, next_cursor }))
}

/// A value of ours as JSON.
pub(crate) fn json(value: &impl Serialize) -> Value {
    // Structs of texts, numbers and maps with text keys always are JSON.
    serde_json::to_value(value).unwrap_or_default()
}

fn list<Id: Copy + Ord + Display + FromStr>(
    desk: &Desk<'_>,
    kind: &str,
    ids: impl Iterator<Item = Id>,
    show: impl Fn(Id) -> Option<Value>,
) -> Result<Value, Refusal> {
    page(desk.state, desk.request, kind, ids, show)
}

fn found(value: Option<Value>) -> Result<Value, Refusal> {
    value.ok_or_else(not_found)
}

fn meta<Id: Copy + Display>(state: &State, kind: &str, id: Id) -> Option<types::Meta<Id>> {
    let meta = state.meta(kind, &id.to_string())?;
    Some(types::Meta {
        id,
        created_at: meta.created_at,
        updated_at: meta.updated_at,
        version: meta.version,
    })
}

fn org(state: &State, id: OrgId) -> Option<Value> {
    let one = state.access.orgs.get(&id)?;
    Some(json(&types::Org {
        meta: meta(state, "org", id)?,
        slug: one.slug.clone(),
        display_name: one.display_name.clone(),
        legal_hold_until: one.legal_hold,
    }))
}

fn member(state: &State, id: MemberId) -> Option<Value> {
    let one = state.access.members.get(&id)?;
    let role = serde_json::from_value(Value::from(one.role.as_str())).ok()?;
    Some(json(&types::Member {
        meta: meta(state, "org_member", id)?,
        org_id: one.owner.org?,
        app_id: one.owner.app,
        env_id: one.owner.env,
        path: state.access.names.path(&one.owner),
        principal_id: one.principal.clone(),
        role,
        email: None,
        status: match one.has_come_in() {
            true => "active",
            false => "invited",
        }
        .to_owned(),
    }))
}

fn principal(state: &State, id: PrincipalId) -> Option<Value> {
    let one = state.access.services.get(&id)?;
    let names = &state.access.names;
    let grants = one
        .grants
        .iter()
        .filter_map(|kept| pattern::shown(names, kept));
    Some(json(&types::Principal {
        meta: meta(state, "service_principal", id)?,
        org_id: one.org,
        name: one.name.clone(),
        grants: grants.collect(),
        old_secret_valid_until: one.old.as_ref().map(|(_, until)| *until),
    }))
}

fn token(state: &State, now: Option<Timestamp>, id: TokenId) -> Option<Value> {
    let one = state.access.tokens.get(&id)?;
    let names = &state.access.names;
    let ceiling = one.ceiling.as_ref().map(|kept| {
        let shown = kept.iter().filter_map(|kept| pattern::shown(names, kept));
        shown.collect()
    });
    let expired = now.is_some_and(|now| one.expires_at <= now);
    let status = match (&one.revoked, expired) {
        (Some(_), _) => "revoked",
        (None, true) => "expired",
        (None, false) => "active",
    };
    let shown = |limit: Option<u64>| limit.map(|it| u32::try_from(it).unwrap_or(u32::MAX));
    Some(json(&types::Token {
        meta: meta(state, "token", id)?,
        org_id: one.org,
        principal_id: one.principal.clone(),
        kind: one.kind.clone(),
        status: status.to_owned(),
        ceiling,
        on_behalf_of: one.on_behalf_of.clone(),
        reads_per_minute: shown(one.reads),
        writes_per_minute: shown(one.writes),
        expires_at: one.expires_at,
    }))
}

fn grant(state: &State, id: GrantId) -> Option<Value> {
    let one = state.access.grants.get(&id)?;
    Some(json(&types::Grant {
        meta: meta(state, "grant", id)?,
        org_id: one.org,
        principal_id: one.principal.clone(),
        pattern: one.pattern.clone(),
        resolved_ids: one.resolved.clone(),
        reason: one.reason.clone(),
        expires_at: one.expires_at,
    }))
}

fn rules(state: &State, id: OrgId) -> Option<Value> {
    let one = state.access.orgs.get(&id)?;
    let policy = one.policy.as_ref();
    let changed = state.meta("policy", &id.to_string());
    Some(json(&types::Policy {
        org_id: id,
        version: policy.map_or(0, |policy| policy.version),
        policy_hash: policy.map(|policy| policy.hash),
        rules: policy
            .map(|policy| policy.rules.clone())
            .unwrap_or_default(),
        updated_at: changed.map(|meta| meta.updated_at),
    }))
}

fn approval(state: &State, id: ApprovalId) -> Option<Value> {
    let one = state.access.approvals.get(&id)?;
    let command: Value = serde_json::from_str(&one.command).unwrap_or_default();
    let operation = command.get("operation").and_then(Value::as_str);
    let path = state.access.names.path(&one.owner);
    Some(json(&types::Approval {
        meta: meta(state, "approval", id)?,
        org_id: one.org,
        status: one.status.clone(),
        requested_by: one.requester.clone(),
        on_behalf_of: one.on_behalf_of.clone(),
        operation: operation.unwrap_or_default().to_owned(),
        path: path.unwrap_or_default(),
        command,
        command_hash: one.command_hash,
        capability: one.capability.clone(),
        expires_at: one.expires_at,
        decided_by: one.by.clone(),
        note: one.note.clone(),
        result: None,
    }))
}

fn whoami(state: &State, call: &Call<'_>, who: &Who) -> Value {
    let access = &state.access;
    let mut orgs = Vec::new();
    let mut patterns = Vec::new();
    for (id, one) in &access.orgs {
        if !authorize::has_access(state, call.now, who, *id) {
            continue;
        }
        let own = access.members_of(&who.principal);
        let own = own.filter(|(_, member)| member.owner.org == Some(*id));
        let roles = own.filter_map(|(_, member)| {
            Some(types::BoundRole {
                role: member.role.clone(),
                path: access.names.path(&member.owner)?,
            })
        });
        let roles: Vec<types::BoundRole> = roles.collect();
        let whole = roles.iter().find(|role| role.path == one.slug);
        orgs.push(types::Membership {
            org_id: *id,
            slug: one.slug.clone(),
            role: whole.map(|role| role.role.clone()),
            roles,
        });
        patterns.extend(authorize::effective(state, call.now, who, *id));
    }
    let token = who.token.and_then(|id| access.tokens.get(&id));
    let credential = match (&call.caller.kind, who.token) {
        (CallerKind::Local, _) => super::LOCAL.to_owned(),
        (_, Some(id)) => id.to_string(),
        _ => String::new(),
    };
    json(&types::Whoami {
        principal_id: who.principal.clone(),
        kind: who.kind.to_string(),
        credential,
        on_behalf_of: who.on_behalf_of.clone(),
        platform_operator: authorize::is_platform_operator(state, who),
        orgs,
        effective_patterns: patterns,
        expires_at: token.map(|token| token.expires_at),
    })
}
