//! What each event changes in who there is and what they may do.
//!
//! Depends on the event alone. Decides nothing: whether something may happen
//! was decided before it became an event.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_ledger::Event;

use super::compiled::Compiled;
use super::{Access, Approval, Grant, Member, Org, Policy, Recent, Service, Token};
use crate::event::{AuthzDecided, Body};
use crate::state::Owner;

/// How long a token is remembered after its end: longer than an approval that
/// was asked for with it can wait.
const REMEMBERED: Duration = Duration::from_secs(25 * 3600);

/// How long a decided approval is shown.
const SHOWN: Duration = Duration::from_secs(30 * 24 * 3600);

/// How many decisions of an org new rules are tried on.
const RECENT: usize = 100;

impl Access {
    /// Folds one event in; those that do not concern it change nothing.
    ///
    /// Gives back the aggregates that it forgets, which get no event any more.
    pub(crate) fn apply(&mut self, event: &Event, body: &Body) -> Vec<(&'static str, String)> {
        self.names.apply(event, body);
        match event.aggregate.kind.as_str() {
            "org" | "policy" | "principal" => self.fold_orgs(event, body),
            "org_member" => return self.fold_members(event, body),
            "service_principal" => return self.fold_services(event, body),
            "token" => return self.fold_tokens(event, body),
            "grant" => return self.fold_grants(event, body),
            "approval" => return self.fold_approvals(event, body),
            _ => {}
        }
        Vec::new()
    }

    fn fold_orgs(&mut self, event: &Event, body: &Body) {
        let id = &event.aggregate.id;
        if let Body::OrgCreated(created) = body {
            if let Ok(id) = id.parse() {
                let org = Org {
                    slug: created.slug.clone(),
                    display_name: created.display_name.clone(),
                    legal_hold: None,
                    policy: None,
                    recent: VecDeque::new(),
                };
                self.orgs.insert(id, org);
            }
            return;
        }
        let owner = Owner::of(&event.scope).org;
        let own = id.parse().ok().or(owner);
        let Some(org) = own.and_then(|id| self.orgs.get_mut(&id)) else {
            return;
        };
        match body {
            Body::OrgUpdated(change) => {
                if let Some(name) = &change.display_name {
                    org.display_name.clone_from(name);
                }
            }
            Body::OrgLegalHoldSet(hold) => org.legal_hold = hold.until,
            Body::PolicyVersionSet(set) => {
                org.policy = Some(Policy {
                    version: event.aggregate_version,
                    hash: set.policy_hash,
                    rules: set.rules.clone(),
                    compiled: Compiled::default(),
                });
            }
            Body::AuthzDecided(decided) => remember(org, event.seq, decided),
            _ => {}
        }
    }

    fn fold_members(&mut self, event: &Event, body: &Body) -> Vec<(&'static str, String)> {
        let Ok(id) = event.aggregate.id.parse() else {
            return Vec::new();
        };
        match body {
            Body::OrgMemberAdded(added) => {
                // Who has logged in has for a further role, too.
                let principal = &added.principal_id;
                let active = self.members_of(principal).any(|(_, one)| one.active);
                let member = Member {
                    principal: added.principal_id.clone(),
                    owner: Owner::of(&event.scope),
                    role: added.role.clone(),
                    email_hash: added.email_hash.clone(),
                    active,
                };
                let of = self.members_of.entry(added.principal_id.clone());
                of.or_default().insert(id);
                self.members.insert(id, member);
            }
            Body::OrgMemberRoleUpdated(change) => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.role.clone_from(&change.new_role);
                }
            }
            Body::OrgMemberRemoved(_) => {
                if let Some(member) = self.members.remove(&id) {
                    take(&mut self.members_of, &member.principal, &id);
                    return vec![("org_member", id.to_string())];
                }
            }
            _ => {}
        }
        Vec::new()
    }

    fn fold_services(&mut self, event: &Event, body: &Body) -> Vec<(&'static str, String)> {
        let Ok(id) = event.aggregate.id.parse() else {
            return Vec::new();
        };
        let by = self.hands_in(event);
        if let (Body::ServicePrincipalCreated(created), Some(org)) =
            (body, Owner::of(&event.scope).org)
        {
            let service = Service {
                org,
                name: created.name.clone(),
                grants: created.grants.clone(),
                rotation: None,
                old: None,
                known_to: by.clone(),
            };
            self.services.insert(id, service);
        }
        let Some(service) = self.services.get_mut(&id) else {
            return Vec::new();
        };
        match body {
            Body::ServicePrincipalGrantsUpdated(change) => {
                service.grants.clone_from(&change.grants);
            }
            Body::ServicePrincipalSecretRotated(rotated) => {
                let before = service.rotation.replace(rotated.rotation_id.clone());
                service.old = Some((before, rotated.old_valid_until));
                service.known_to.extend(by);
            }
            Body::ServicePrincipalDeleted(_) => {
                self.services.remove(&id);
                return vec![("service_principal", id.to_string())];
            }
            _ => {}
        }
        Vec::new()
    }

    fn fold_tokens(&mut self, event: &Event, body: &Body) -> Vec<(&'static str, String)> {
        let Ok(id) = event.aggregate.id.parse() else {
            return Vec::new();
        };
        match body {
            Body::TokenIssued(issued) => {
                let token = Token {
                    kind: issued.kind.clone(),
                    principal: issued.principal_id.clone(),
                    org: Owner::of(&event.scope).org,
                    on_behalf_of: issued.on_behalf_of.clone(),
                    expires_at: issued.expires_at,
                    ceiling: issued.ceiling.clone(),
                    family: issued.family.clone(),
                    reads: issued.reads_per_minute,
                    writes: issued.writes_per_minute,
                    revoked: None,
                };
                if token.kind == "access" {
                    let ids = self.members_of.get(&token.principal).into_iter().flatten();
                    for id in ids {
                        if let Some(member) = self.members.get_mut(id) {
                            member.active = true;
                        }
                    }
                }
                self.shown_to(&issued.principal_id, event);
                self.fading.insert((issued.expires_at, id));
                self.tokens.insert(id, token);
                return self.forget_tokens(event.occurred_at);
            }
            Body::TokenRevoked(revoked) => {
                if let Some(token) = self.tokens.get_mut(&id) {
                    token.revoked = Some(revoked.reason.clone());
                }
            }
            _ => {}
        }
        Vec::new()
    }

    /// Takes note of who asked for a token of another principal.
    fn shown_to(&mut self, principal: &str, event: &Event) {
        if event.actor.id == principal {
            return;
        }
        let by = self.hands_in(event);
        let service = principal.parse().ok();
        if let Some(service) = service.and_then(|id| self.services.get_mut(&id)) {
            service.known_to.extend(by);
        }
    }

    /// Everybody who may be behind an event.
    fn hands_in(&self, event: &Event) -> BTreeSet<String> {
        let actor = &event.actor;
        self.hands(&actor.id, actor.on_behalf_of.as_deref())
    }

    fn forget_tokens(&mut self, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut forgotten = Vec::new();
        while let Some((end, id)) = self.fading.first().copied() {
            if end.after(REMEMBERED) > now {
                break;
            }
            self.fading.pop_first();
            self.tokens.remove(&id);
            forgotten.push(("token", id.to_string()));
        }
        forgotten
    }

    fn fold_grants(&mut self, event: &Event, body: &Body) -> Vec<(&'static str, String)> {
        let Ok(id) = event.aggregate.id.parse() else {
            return Vec::new();
        };
        match body {
            Body::GrantAdded(added) => {
                let Some(org) = Owner::of(&event.scope).org else {
                    return Vec::new();
                };
                let grant = Grant {
                    principal: added.principal_id.clone(),
                    org,
                    pattern: added.pattern.clone(),
                    resolved: added.resolved_ids.clone(),
                    expires_at: added.expires_at,
                    reason: added.reason.clone(),
                };
                let of = self.grants_of.entry(added.principal_id.clone());
                of.or_default().insert(id);
                self.grants.insert(id, grant);
            }
            Body::GrantRemoved(_) => {
                if let Some(grant) = self.grants.remove(&id) {
                    take(&mut self.grants_of, &grant.principal, &id);
                    return vec![("grant", id.to_string())];
                }
            }
            _ => {}
        }
        Vec::new()
    }

    fn fold_approvals(&mut self, event: &Event, body: &Body) -> Vec<(&'static str, String)> {
        let Ok(id) = event.aggregate.id.parse() else {
            return Vec::new();
        };
        let mut forgotten = Vec::new();
        if let Body::ApprovalRequested(asked) = body {
            let owner = Owner::of(&event.scope);
            let Some(org) = owner.org else {
                return forgotten;
            };
            let now = event.occurred_at;
            self.approvals.retain(|id, approval| {
                let kept = approval.status == "pending" || approval.expires_at.after(SHOWN) > now;
                if !kept {
                    forgotten.push(("approval", id.to_string()));
                }
                kept
            });
            let approval = Approval {
                org,
                owner,
                requester: event.actor.id.clone(),
                on_behalf_of: event.actor.on_behalf_of.clone(),
                asked_by: self.hands_in(event),
                seq: event.seq,
                command: asked.command.to_string(),
                command_hash: asked.command_hash,
                capability: asked.capability.clone(),
                expires_at: asked.expires_at,
                status: "pending".to_owned(),
                by: None,
                note: None,
            };
            self.approvals.insert(id, approval);
        }
        let Some(approval) = self.approvals.get_mut(&id) else {
            return forgotten;
        };
        match body {
            Body::ApprovalDecided(decided) => {
                approval.status.clone_from(&decided.outcome);
                approval.by = Some(decided.by.clone());
                approval.note.clone_from(&decided.note);
            }
            Body::ApprovalExpired(_) => "expired".clone_into(&mut approval.status),
            _ => {}
        }
        forgotten
    }
}

fn remember(org: &mut Org, seq: u64, decided: &AuthzDecided) {
    if org.recent.len() == RECENT {
        org.recent.pop_front();
    }
    org.recent.push_back(Recent {
        seq,
        principal: decided.principal_id.clone(),
        capability: decided.capability.clone(),
        resource: decided.resource_id.clone(),
        outcome: decided.outcome.clone(),
    });
}

fn take<Id: Ord>(index: &mut BTreeMap<String, BTreeSet<Id>>, principal: &str, id: &Id) {
    if let Some(ids) = index.get_mut(principal) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(principal);
        }
    }
}
