//! Members: asked in, given a role or another one, taken out.
//!
//! A member is one role of one person: in the org, or bound to an app or an env
//! of it by id, which the scope of its events says. Who has several is several
//! members with one principal. Nobody gives a role that has more than they
//! hold, and nobody changes somebody who holds more than they. An org keeps at
//! least one owner of all of it who has come in. Every invited person is a
//! principal of their own: an address proves nothing.

use std::time::Duration;

use fluffy_api::types::{AddMember, RoleName, UpdateMember};
use fluffy_base::id::{MemberId, TokenId, UserId};
use fluffy_policy::role::Role;

use super::authorize::{covers, holds, role_patterns};
use super::place::Place;
use super::{Desk, Member, principals, tokens};
use crate::call::{Change, Fact, Subject};
use crate::event::{
    GrantRemoved, OrgMemberAdded, OrgMemberRemoved, OrgMemberRoleUpdated, TokenIssued,
};
use crate::operations::not_found;
use crate::refusal::Refusal;
use crate::state::Owner;

/// How long an invite is good.
pub(super) const INVITE: Duration = Duration::from_secs(24 * 3600);

pub(super) fn add(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: AddMember = desk.body()?;
    if body.env.is_some() && body.app.is_none() {
        return Err(super::invalid("app", "an env is named with its app"));
    }
    let role = role_of(body.role);
    // Where the request was authorized is where the role is bound.
    let owner = desk.authorized.place.owner;
    match (&body.email, &body.principal_id) {
        (Some(email), None) => invite(desk, email, (role, owner)),
        (None, Some(principal)) => add_role(desk, principal, (role, owner)),
        _ => {
            let why = "somebody new has an address, and who is in already is a principal";
            Err(super::invalid("email", why))
        }
    }
}

/// Somebody new.
fn invite(desk: &Desk<'_>, email: &str, (role, owner): (Role, Owner)) -> Result<Change, Refusal> {
    let credential = desk.request.credential()?;
    let invite: TokenId = credential.id(0)?;
    let email_hash = credential.email_hash.clone().unwrap_or_default();
    super::check_length("email", email, 3..=254)?;
    check_covers(desk, role, &owner)?;
    let members = &desk.state.access.members;
    let mut known = members.iter().filter(|(_, one)| {
        one.owner.org == owner.org && one.email_hash == email_hash && !email_hash.is_empty()
    });
    if let Some((_, other)) = known.clone().next() {
        let asked = known
            .find(|(_, one)| one.owner == owner && one.role == role.name() && !one.has_come_in());
        if let Some((id, member)) = asked {
            return invite_again(desk, invite, (*id, member));
        }
        let why = "somebody with this address is in the organisation already";
        let fix = match other.has_come_in() {
            true => "change that member, or name their principal to give them a further role",
            false => "invite them again with the role that they have, or change that member",
        };
        return Err(Refusal::new("conflict", why, fix));
    }
    let member = MemberId::from_bits(desk.mint());
    let principal = UserId::from_bits(desk.mint()).to_string();
    let added = OrgMemberAdded {
        principal_id: principal.clone(),
        role: role.name().to_owned(),
        email_hash,
    };
    let invitation = Fact::new(invite, invitation(&principal, desk).into());
    Ok(Change {
        facts: vec![
            Fact::new(member, added.into()),
            invitation.of(&desk.owner()?.scope()),
        ],
        subject: Subject::of("org_member", member),
        status: 201,
    })
}

/// Another invite of somebody who never came in, in the place of those before.
/// Whoever gets to see it could come in as them, and so must hold all that they
/// do.
fn invite_again(
    desk: &Desk<'_>,
    invite: TokenId,
    (id, member): (MemberId, &Member),
) -> Result<Change, Refusal> {
    principals::check_speaks_for(desk, &member.principal)?;
    let scope = desk.owner()?.scope();
    let issued = Fact::new(invite, invitation(&member.principal, desk).into());
    let mut facts = vec![issued.of(&scope)];
    let before = desk.state.access.tokens.iter().filter(|(_, token)| {
        let of_them = token.kind == "invite" && token.principal == member.principal;
        of_them && token.revoked.is_none()
    });
    facts.extend(
        before.map(|(id, one)| tokens::revoked(*id, "replaced").of(&tokens::scope_of(one))),
    );
    Ok(Change {
        facts,
        subject: Subject::of("org_member", id),
        status: 201,
    })
}

/// A further role of somebody who is in the org. They are named by what only
/// they are: an address that somebody typed proves nothing.
fn add_role(
    desk: &Desk<'_>,
    principal: &str,
    (role, owner): (Role, Owner),
) -> Result<Change, Refusal> {
    check_covers(desk, role, &owner)?;
    let own = desk.state.access.members_of(principal);
    let own: Vec<&Member> = own
        .map(|(_, one)| one)
        .filter(|one| one.owner.org == owner.org)
        .collect();
    let Some(known) = own.first() else {
        let why = "this is no member of the organisation";
        return Err(super::invalid("principal_id", why));
    };
    if own.iter().any(|one| one.owner == owner) {
        let why = "they have a role there already";
        return Err(Refusal::new("conflict", why, "change that member instead"));
    }
    let member = MemberId::from_bits(desk.mint());
    let added = OrgMemberAdded {
        principal_id: principal.to_owned(),
        role: role.name().to_owned(),
        email_hash: known.email_hash.clone(),
    };
    Ok(Change {
        facts: vec![Fact::new(member, added.into())],
        subject: Subject::of("org_member", member),
        status: 201,
    })
}

fn invitation(principal: &str, desk: &Desk<'_>) -> TokenIssued {
    TokenIssued {
        kind: "invite".to_owned(),
        principal_id: principal.to_owned(),
        expires_at: desk.call.now.after(INVITE),
        ceiling: None,
        family: None,
        on_behalf_of: None,
        reads_per_minute: None,
        writes_per_minute: None,
    }
}

pub(super) fn update(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: UpdateMember = desk.body()?;
    let (id, member) = find(desk)?;
    let role = role_of(body.role);
    check_covers(desk, role, &member.owner)?;
    check_held(desk, member)?;
    if role != Role::Owner {
        check_not_last(desk, id)?;
    }
    let change = OrgMemberRoleUpdated {
        old_role: member.role.clone(),
        new_role: role.name().to_owned(),
    };
    Ok(Change {
        facts: vec![Fact::new(id, change.into())],
        subject: Subject::of("org_member", id),
        status: 200,
    })
}

/// With the last role of a person go their grants in the org and the tokens
/// issued there.
pub(super) fn remove(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let (id, member) = find(desk)?;
    check_held(desk, member)?;
    check_not_last(desk, id)?;
    let mut facts = vec![Fact::new(id, OrgMemberRemoved {}.into())];
    let access = &desk.state.access;
    let mut own = access.members_of(&member.principal);
    // A role on what is gone gives nothing, and keeps nothing either.
    let stays = own.any(|(other, one)| {
        let in_org = one.owner.org == member.owner.org;
        other != id && in_org && access.names.path(&one.owner).is_some()
    });
    if !stays {
        check_ends_grants(desk, &member.principal)?;
        facts.extend(left_behind(desk, &member.principal)?);
    }
    Ok(super::gone(facts, id))
}

/// Grants were given in the whole org, and whoever looks after a part of it
/// does not end them by the way.
fn check_ends_grants(desk: &Desk<'_>, principal: &str) -> Result<(), Refusal> {
    let org = desk.org()?;
    let (state, who) = (desk.state, &desk.authorized.who);
    let mut grants = state.access.grants_of(principal);
    if !grants.any(|(_, grant)| grant.org == org) {
        return Ok(());
    }
    let whole = Place::of(&state.access.names, desk.owner()?).ok_or_else(not_found)?;
    match holds(state, desk.call.now, who, "member.manage", &whole) {
        true => Ok(()),
        false => Err(super::exceeds("what this person was granted besides")),
    }
}

/// What ends in an org when a principal leaves it.
pub(super) fn left_behind(desk: &Desk<'_>, principal: &str) -> Result<Vec<Fact>, Refusal> {
    let org = desk.org()?;
    let access = &desk.state.access;
    let grants = access.grants_of(principal);
    let grants = grants.filter(|(_, grant)| grant.org == org);
    let mut facts: Vec<Fact> = grants
        .map(|(id, _)| Fact::new(id, GrantRemoved {}.into()))
        .collect();
    let good = access.tokens.iter().filter(|(_, token)| {
        token.principal == principal && token.org == Some(org) && token.revoked.is_none()
    });
    facts.extend(good.map(|(id, _)| tokens::revoked(*id, "principal_removed")));
    Ok(facts)
}

fn find<'a>(desk: &'a Desk<'_>) -> Result<(MemberId, &'a Member), Refusal> {
    let id = desk.leaf()?;
    let member = desk.state.access.members.get(&id).ok_or_else(not_found)?;
    Ok((id, member))
}

/// The caller must hold everything that the role has there.
fn check_covers(desk: &Desk<'_>, role: Role, owner: &Owner) -> Result<(), Refusal> {
    let wanted = role_patterns(desk.state, role, owner);
    let who = &desk.authorized.who;
    match covers(desk.state, desk.call.now, who, desk.org()?, &wanted) {
        true => Ok(()),
        false => Err(super::exceeds(&format!("the role `{role}`"))),
    }
}

/// The caller must hold everything that the member has by role.
fn check_held(desk: &Desk<'_>, member: &Member) -> Result<(), Refusal> {
    match member.role() {
        Some(role) => check_covers(desk, role, &member.owner),
        None => Ok(()),
    }
}

/// Somebody must be left who can run the org: an owner who was asked in and
/// never came is not one.
fn check_not_last(desk: &Desk<'_>, id: MemberId) -> Result<(), Refusal> {
    let owners: Vec<_> = desk.state.access.owners(desk.org()?).collect();
    let Some((_, leaving)) = owners.iter().find(|(one, _)| *one == id) else {
        return Ok(());
    };
    let mut others = owners.iter().filter(|(one, _)| *one != id);
    let is_left = match leaving.has_come_in() {
        true => others.any(|(_, other)| other.has_come_in()),
        false => others.next().is_some(),
    };
    if is_left {
        return Ok(());
    }
    let (why, fix) = match owners.len() {
        1 => (
            "this is the only owner of the organisation",
            "make somebody else an owner first",
        ),
        _ => (
            "no other owner of the organisation has come in yet",
            "wait until another owner has used their invite, or invite them again",
        ),
    };
    Err(Refusal::new("last_owner", why, fix))
}

const fn role_of(name: RoleName) -> Role {
    match name {
        RoleName::Viewer => Role::Viewer,
        RoleName::Developer => Role::Developer,
        RoleName::Operator => Role::Operator,
        RoleName::Admin => Role::Admin,
        RoleName::Owner => Role::Owner,
    }
}
