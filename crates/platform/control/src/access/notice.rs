//! What happens to access without a request: the beginning, failed logins,
//! reads in sum, approvals that waited too long.
//!
//! Said by the server itself, which has checked what it says.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_api::types::QUOTA_DIMENSIONS;
use fluffy_base::id::{EnrollmentTokenId, LedgerId, MemberId, OrgId, TokenId, UserId};
use fluffy_base::{Digest, Timestamp};
use fluffy_policy::role::Role;

use super::{LOCAL, approvals, members, orgs};
use crate::call::{Call, Fact, Outcome, Subject, Written};
use crate::event::{
    AuthFailed, AuthzReadsSummarized, ClusterInitialized, OrgMemberAdded, OrgQuotaSet, TokenIssued,
};
use crate::operations::Noted;
use crate::refusal::Refusal;
use crate::state::{Owner, State};

/// What happens to access without a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// The ledger is empty, and the platform begins.
    Bootstrap(Bootstrap),
    /// The platform has begun, nobody has come in yet, and whoever is to gets
    /// another invite, whose hash was put aside.
    InvitedAgain(TokenId),
    /// A credential was not good; several of one source are one.
    AuthFailed {
        /// Why.
        reason: String,
        /// Where the address is kept that it came from.
        pii_ref: Option<String>,
        /// How many.
        count: u64,
        /// The org at whose door it was shown, where that is known.
        org: Option<OrgId>,
    },
    /// A machine did not become a node.
    EnrolmentRefused {
        /// The code that it was told.
        code: String,
        /// Where the address is kept that it came from.
        pii_ref: Option<String>,
        /// The token that it showed, if it is one.
        token: Option<EnrollmentTokenId>,
        /// The key that it named, if it came that far.
        key_fingerprint: Option<String>,
    },
    /// Reads that were allowed, in sum.
    ReadsSummarized(Vec<Summary>),
    /// Approvals whose time may be over.
    ApprovalsExpired,
}

/// How the platform begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Bootstrap {
    /// The ledger that it begins in.
    pub ledger_id: LedgerId,
    /// Where its addresses come from.
    pub ipv6_prefix: String,
    /// The invite of the first who runs it, whose hash was put aside; none if
    /// it belongs to whoever owns the data directory.
    pub invite: Option<TokenId>,
}

/// The allowed reads of one principal by one action, in one window.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    principal: String,
    capability: String,
    owner: Owner,
    window_start: Timestamp,
    count: u64,
    resources: Digest,
}

/// Sums up reads that were allowed, one window at a time.
#[derive(Debug, Default)]
pub struct Reads {
    window: Option<Timestamp>,
    sums: BTreeMap<(String, String, Option<OrgId>), (u64, Digest)>,
}

impl Reads {
    /// How long a window is.
    pub const WINDOW: Duration = Duration::from_secs(60);

    /// The most that is summed up at once; then the window ends early.
    const MOST: usize = 256;

    /// Counts one read; gives back a window that it ends.
    pub fn note(&mut self, now: Timestamp, read: Noted) -> Option<Notice> {
        let ended = match self.window {
            Some(start) if start.after(Self::WINDOW) <= now || self.sums.len() >= Self::MOST => {
                self.end()
            }
            _ => None,
        };
        self.window.get_or_insert(now);
        let key = (read.principal, read.capability, read.owner.org);
        let none = (0, Digest::of(b""));
        let (count, digest) = self.sums.entry(key).or_insert(none);
        *count += 1;
        *digest = Digest::of_parts(&[digest.as_bytes(), read.resource.as_bytes()]);
        ended
    }

    /// Ends the window, if anything was read in it.
    pub fn end(&mut self) -> Option<Notice> {
        let window_start = self.window.take()?;
        let sums = std::mem::take(&mut self.sums);
        let summaries = sums.into_iter().map(
            |((principal, capability, org), (count, resources))| Summary {
                principal,
                capability,
                owner: Owner {
                    org,
                    ..Owner::default()
                },
                window_start,
                count,
                resources,
            },
        );
        Some(Notice::ReadsSummarized(summaries.collect()))
    }
}

/// Decides what happens to access without a request.
pub(crate) fn notice(state: &State, call: &Call<'_>, notice: &Notice) -> Written {
    let facts = match notice {
        Notice::Bootstrap(begin) => {
            if state.metas.contains_key("cluster") {
                let why = "the platform has begun already";
                return Written::refused(Refusal::new("conflict", why, ""));
            }
            bootstrap(call, begin)
        }
        Notice::InvitedAgain(invite) => match state.access.awaited() {
            Some(principal) => vec![first_invite(call, *invite, principal)],
            None => {
                let why = "somebody runs the platform already";
                return Written::refused(Refusal::new("conflict", why, ""));
            }
        },
        Notice::AuthFailed {
            reason,
            pii_ref,
            count,
            org,
        } => {
            let failed = AuthFailed {
                reason: reason.chars().take(64).collect(),
                pii_ref: pii_ref.clone(),
                count: Some(*count),
                token_id: None,
                token_created_by: None,
                key_fingerprint: None,
            };
            let owner = Owner {
                org: *org,
                ..Owner::default()
            };
            vec![Fact::new("anonymous", failed.into()).of(&owner.scope())]
        }
        Notice::EnrolmentRefused {
            code,
            pii_ref,
            token,
            key_fingerprint,
        } => {
            let known = token.and_then(|token| state.runtime.enrollment_tokens.get(&token));
            let failed = AuthFailed {
                reason: code.chars().take(64).collect(),
                pii_ref: pii_ref.clone(),
                count: Some(1),
                token_id: *token,
                token_created_by: known.map(|token| token.created_by.clone()),
                key_fingerprint: key_fingerprint.clone(),
            };
            vec![Fact::new("anonymous", failed.into())]
        }
        Notice::ReadsSummarized(summaries) => summaries.iter().map(summarized).collect(),
        Notice::ApprovalsExpired => approvals::expire(state, call.now),
    };
    Written {
        facts,
        outcome: Outcome::Done {
            status: 200,
            subject: Subject::default(),
        },
    }
}

fn summarized(one: &Summary) -> Fact {
    let body = AuthzReadsSummarized {
        principal_id: one.principal.clone(),
        capability: one.capability.clone(),
        window_start: one.window_start,
        count: one.count,
        resources_digest: one.resources,
    };
    Fact::new(&one.principal, body.into()).of(&one.owner.scope())
}

fn bootstrap(call: &Call<'_>, begin: &Bootstrap) -> Vec<Fact> {
    let bits = || call.mint.bits(call.now);
    let initialized = ClusterInitialized {
        ledger_id: begin.ledger_id,
        ipv6_prefix: begin.ipv6_prefix.clone(),
    };
    let mut facts = vec![Fact::new("cluster", initialized.into())];
    let principal = match begin.invite {
        Some(_) => UserId::from_bits(bits()).to_string(),
        None => LOCAL.to_owned(),
    };
    let operator = OrgMemberAdded {
        principal_id: principal.clone(),
        role: Role::PlatformOperator.name().to_owned(),
        email_hash: String::new(),
    };
    facts.push(Fact::new(MemberId::from_bits(bits()), operator.into()));
    match begin.invite {
        Some(invite) => facts.push(first_invite(call, invite, &principal)),
        None => facts.extend(local_org(
            OrgId::from_bits(bits()),
            MemberId::from_bits(bits()),
        )),
    }
    facts
}

/// What lets in whoever is to run the platform.
fn first_invite(call: &Call<'_>, invite: TokenId, principal: &str) -> Fact {
    let issued = TokenIssued {
        kind: "invite".to_owned(),
        principal_id: principal.to_owned(),
        expires_at: call.now.after(members::INVITE),
        ceiling: None,
        family: None,
        on_behalf_of: None,
        reads_per_minute: None,
        writes_per_minute: None,
    };
    Fact::new(invite, issued.into())
}

/// The org of a single machine has no limits but the machine's own.
fn local_org(org: OrgId, member: MemberId) -> Vec<Fact> {
    let mut facts = orgs::founding(org, member, LOCAL, LOCAL, LOCAL);
    let owner = Owner {
        org: Some(org),
        ..Owner::default()
    };
    for dimension in QUOTA_DIMENSIONS {
        let set = OrgQuotaSet {
            dimension: (*dimension).to_owned(),
            limit: orgs::UNLIMITED,
            previous: None,
        };
        facts.push(Fact::new(org, set.into()).of(&owner.scope()));
    }
    facts
}
