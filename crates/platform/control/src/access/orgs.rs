//! Orgs: made, changed, and their limits set.
//!
//! Whoever makes an org is its first owner, so that it never has none.

use std::collections::BTreeMap;

use fluffy_api::types::{CreateOrg, QUOTA_DIMENSIONS, SetQuotas, UpdateOrg};
use fluffy_base::id::{MemberId, OrgId};
use fluffy_policy::role::Role;

use super::Desk;
use crate::call::{Change, Fact, Subject};
use crate::event::{OrgCreated, OrgLegalHoldSet, OrgMemberAdded, OrgQuotaSet, OrgUpdated};
use crate::refusal::Refusal;
use crate::state::Owner;

/// What is written where there is no limit: the largest number that JSON
/// readers keep exactly, which nothing ever reaches.
pub const UNLIMITED: u64 = (1 << 53) - 1;

pub(super) fn create(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: CreateOrg = desk.body()?;
    let name = body.display_name.as_deref().unwrap_or(&body.slug);
    super::check_slug("slug", &body.slug, 2..=39)?;
    super::check_length("display_name", name, 1..=64)?;
    if desk.state.access.names.org(&body.slug).is_some() {
        return Err(super::name_taken(&body.slug));
    }
    let org = OrgId::from_bits(desk.mint());
    let member = MemberId::from_bits(desk.mint());
    let facts = founding(
        org,
        member,
        &body.slug,
        name,
        &desk.authorized.who.principal,
    );
    Ok(Change {
        facts,
        subject: Subject::of("org", org),
        status: 201,
    })
}

/// The beginning of an org with its first owner.
pub(super) fn founding(
    org: OrgId,
    member: MemberId,
    slug: &str,
    name: &str,
    principal: &str,
) -> Vec<Fact> {
    let owner = Owner {
        org: Some(org),
        ..Owner::default()
    };
    let created = OrgCreated {
        slug: slug.to_owned(),
        display_name: name.to_owned(),
    };
    let first = OrgMemberAdded {
        principal_id: principal.to_owned(),
        role: Role::Owner.name().to_owned(),
        email_hash: String::new(),
    };
    vec![
        Fact::new(org, created.into()).of(&owner.scope()),
        Fact::new(member, first.into()).of(&owner.scope()),
    ]
}

pub(super) fn update(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: UpdateOrg = desk.body()?;
    let org = desk.org()?;
    let mut facts = Vec::new();
    if let Some(name) = body.display_name {
        super::check_length("display_name", &name, 1..=64)?;
        let update = OrgUpdated {
            display_name: Some(name),
        };
        facts.push(Fact::new(org, update.into()));
    }
    if let Some(until) = body.legal_hold_until {
        facts.push(Fact::new(org, OrgLegalHoldSet { until }.into()));
    }
    Ok(Change {
        facts,
        subject: Subject::of("org", org),
        status: 200,
    })
}

pub(super) fn set_quotas(desk: &Desk<'_>) -> Result<Change, Refusal> {
    let body: SetQuotas = desk.body()?;
    let org = desk.org()?;
    let before: BTreeMap<String, u64> = crate::runtime::limits(desk.state, org);
    let mut facts = Vec::new();
    for (dimension, limit) in body.limits {
        if !QUOTA_DIMENSIONS.contains(&dimension.as_str()) {
            let why = format!("there is no quota `{}`", shorten(&dimension));
            let fix = format!("choose among {}", QUOTA_DIMENSIONS.join(", "));
            return Err(Refusal::new("invalid_argument", why, fix));
        }
        let limit = limit.unwrap_or(UNLIMITED).min(UNLIMITED);
        let previous = before.get(&dimension).copied();
        let set = OrgQuotaSet {
            dimension,
            limit,
            previous,
        };
        facts.push(Fact::new(org, set.into()));
    }
    Ok(Change {
        facts,
        subject: Subject::of("quotas", org),
        status: 200,
    })
}

fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}
