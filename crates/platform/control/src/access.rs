//! Who there is and what they may do: principals, roles, tokens, grants, policy.
//!
//! Folded from events like everything else, so a revoked token, a removed
//! member and a new rule hold from the very event on. Holds no secret: what a
//! credential is made of is kept outside, here is only whether it is good.
//! Start with [`authorize`], then `operations`.

mod answer;
mod approvals;
pub mod authorize;
mod compiled;
mod fold;
mod grants;
mod login;
mod members;
pub mod names;
mod notice;
mod orgs;
mod pattern;
pub mod place;
mod policy;
mod principals;
mod tokens;
mod visible;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::str::FromStr;

use fluffy_api::Operation;
use fluffy_base::id::{ApprovalId, GrantId, MemberId, OrgId, PrincipalId, TokenId};
use fluffy_base::{Digest, Timestamp};
use fluffy_policy::role::Role;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::call::{Call, Change, Fact, Request, Subject};
use crate::operations::not_found;
use crate::refusal::{FieldProblem, Refusal};
use crate::state::{Owner, State, digest};

pub(crate) use answer::{answer, json, page, read, read_own};
pub(crate) use approvals::{Parked, park};
pub use authorize::check_credential;
pub(crate) use login::exchange;
pub(crate) use notice::notice;
pub use notice::{Bootstrap, Notice, Reads, Summary};
pub use orgs::UNLIMITED;
pub use tokens::caller_of_token;
pub(crate) use tokens::kind_of;
pub use visible::{Audit, is_of_platform, may_see};

use authorize::{Authorized, Who};
use compiled::Compiled;
use names::Names;

/// The principal of the local socket.
pub const LOCAL: &str = "local";

/// Who there is and what they may do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Access {
    /// Names and ids.
    pub names: Names,
    /// Every org.
    pub orgs: BTreeMap<OrgId, Org>,
    /// Everybody with a role.
    pub members: BTreeMap<MemberId, Member>,
    /// Every service principal.
    pub services: BTreeMap<PrincipalId, Service>,
    /// Credentials, until a day after they end.
    pub tokens: BTreeMap<TokenId, Token>,
    /// Everything that was given beside roles.
    pub grants: BTreeMap<GrantId, Grant>,
    /// Commands that wait, or waited in the last 30 days.
    pub approvals: BTreeMap<ApprovalId, Approval>,
    /// Which members a principal is.
    members_of: BTreeMap<String, BTreeSet<MemberId>>,
    /// Which grants a principal has.
    grants_of: BTreeMap<String, BTreeSet<GrantId>>,
    /// When which token can be forgotten.
    fading: BTreeSet<(Timestamp, TokenId)>,
    /// The rules where an org has none of its own.
    #[serde(skip)]
    shipped: Compiled,
}

/// An org, as far as access goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Org {
    /// Its name in paths.
    pub slug: String,
    /// Its name for people.
    pub display_name: String,
    /// Until when nothing of its history may go.
    pub legal_hold: Option<Timestamp>,
    /// Its rules.
    pub policy: Option<Policy>,
    /// The last decisions in it, for trying rules.
    recent: VecDeque<Recent>,
}

/// The rules of an org.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// How many there were before, and this.
    pub version: u64,
    /// The hash of the text.
    pub hash: Digest,
    /// The text.
    pub rules: String,
    #[serde(skip)]
    compiled: Compiled,
}

/// A decision, as far as it can be made again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Recent {
    seq: u64,
    principal: String,
    capability: String,
    resource: String,
    outcome: String,
}

/// Somebody with a role.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Who.
    pub principal: String,
    /// Where the role is bound: an org, or an app or env of it; nowhere for
    /// those who run the platform.
    pub owner: Owner,
    /// The name of the role.
    pub role: String,
    /// A keyed hash of their address; empty if there is none.
    pub email_hash: String,
    /// Whether they have ever logged in.
    pub active: bool,
}

impl Member {
    /// The role, if it is one that this program knows.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == self.role)
    }

    /// Whether it is somebody who runs the platform itself.
    pub(crate) fn runs_the_platform(&self) -> bool {
        self.owner == Owner::default() && self.role == Role::PlatformOperator.name()
    }

    /// Whether they can do anything by now: they used their invite, or they
    /// own the machine, and are in from the beginning.
    pub(crate) fn has_come_in(&self) -> bool {
        self.active || self.principal == LOCAL
    }
}

/// A program with a credential of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// In which org.
    pub org: OrgId,
    /// Its name there.
    pub name: String,
    /// What it may do, as patterns with ids.
    pub grants: Vec<String>,
    /// The rotation that made its secret; none for the first.
    pub rotation: Option<String>,
    /// The rotation before, and until when its secret is good.
    pub old: Option<(Option<String>, Timestamp)>,
    /// Whoever was ever shown a secret or a token of it, and could act as it.
    pub known_to: BTreeSet<String>,
}

/// A credential's standing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Token {
    /// `access`, `refresh`, `api` or `invite`.
    pub kind: String,
    /// Who it is for.
    pub principal: String,
    /// In which org it was issued.
    pub org: Option<OrgId>,
    /// For whom its bearer acts.
    pub on_behalf_of: Option<String>,
    /// Until when it is good.
    pub expires_at: Timestamp,
    /// Above which nothing is allowed, as patterns with ids.
    pub ceiling: Option<Vec<String>>,
    /// All that came from one login.
    pub family: Option<String>,
    /// How many reads its bearer has in a minute, if fewer than the org.
    pub reads: Option<u64>,
    /// How many writes.
    pub writes: Option<u64>,
    /// Why it is no longer good.
    pub revoked: Option<String>,
}

/// Something given to a principal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// Who has it.
    pub principal: String,
    /// In which org.
    pub org: OrgId,
    /// As it was written.
    pub pattern: String,
    /// The objects, with ids.
    pub resolved: Vec<String>,
    /// Until when.
    pub expires_at: Option<Timestamp>,
    /// Why.
    pub reason: Option<String>,
}

/// A command that waits, or waited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// In which org.
    pub org: OrgId,
    /// The object it acts on.
    pub owner: Owner,
    /// Who asked.
    pub requester: String,
    /// For whom they acted.
    pub on_behalf_of: Option<String>,
    /// Everybody whose wish it may be: see [`Access::hands`].
    pub asked_by: BTreeSet<String>,
    /// The event that says so.
    pub seq: u64,
    /// The command as JSON, without what is secret.
    pub command: String,
    /// The hash of the command.
    pub command_hash: Digest,
    /// What it needs.
    pub capability: String,
    /// Until when it waits.
    pub expires_at: Timestamp,
    /// `pending`, `approved`, `denied` or `expired`.
    pub status: String,
    /// Who decided.
    pub by: Option<String>,
    /// What they said.
    pub note: Option<String>,
}

impl Access {
    /// Everything that gives this principal something in an org.
    pub(crate) fn members_of(&self, principal: &str) -> impl Iterator<Item = (MemberId, &Member)> {
        let ids = self.members_of.get(principal).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.members.get(id)?)))
    }

    /// Whoever runs the platform itself. Who was asked to and never came is
    /// not one that anybody could wait for.
    pub(crate) fn operators(&self) -> impl Iterator<Item = &str> {
        let members = self.members.values();
        let operators = members.filter(|one| one.runs_the_platform() && one.has_come_in());
        operators.map(|member| member.principal.as_str())
    }

    /// Whoever is to run the platform, while nobody has come in to do so.
    #[must_use]
    pub fn awaited(&self) -> Option<&str> {
        let operators = || self.members.values().filter(|one| one.runs_the_platform());
        match operators().any(Member::has_come_in) {
            true => None,
            false => operators().next().map(|one| one.principal.as_str()),
        }
    }

    /// Everybody who may be behind what a principal does: itself, for whom it
    /// acts, and who could act as it because they know its secret.
    pub(crate) fn hands(&self, principal: &str, acts_for: Option<&str>) -> BTreeSet<String> {
        let mut hands = BTreeSet::new();
        for one in std::iter::once(principal).chain(acts_for) {
            hands.insert(one.to_owned());
            let service = one.parse().ok();
            let service = service.and_then(|id: PrincipalId| self.services.get(&id));
            hands.extend(service.into_iter().flat_map(|it| it.known_to.clone()));
        }
        hands
    }

    /// Everything given to a principal beside roles.
    pub(crate) fn grants_of(&self, principal: &str) -> impl Iterator<Item = (GrantId, &Grant)> {
        let ids = self.grants_of.get(principal).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.grants.get(id)?)))
    }

    /// The owners of the whole of an org, also those who have not come in.
    pub(crate) fn owners(&self, org: OrgId) -> impl Iterator<Item = (MemberId, &Member)> {
        let whole = Owner {
            org: Some(org),
            ..Owner::default()
        };
        self.members
            .iter()
            .filter(move |(_, member)| member.owner == whole && member.role == Role::Owner.name())
            .map(|(id, member)| (*id, member))
    }

    /// The digests of what is shown of this part, by the name of the view.
    pub(crate) fn digests(&self) -> Vec<(&'static str, Digest)> {
        vec![
            ("orgs", digest(&(&self.names, &self.orgs))),
            ("members", digest(&(&self.members, &self.members_of))),
            (
                "principals",
                digest(&(&self.services, &self.tokens, &self.grants, &self.grants_of)),
            ),
            ("approvals", digest(&self.approvals)),
        ]
    }
}

/// Does what an operation of this part asks for; none for another part's.
pub(crate) fn write(
    state: &State,
    call: &Call<'_>,
    request: &Request,
    authorized: &Authorized,
) -> Option<Result<Change, Refusal>> {
    let desk = &Desk {
        state,
        call,
        request,
        authorized,
    };
    Some(match request.operation {
        Operation::CreateOrg => orgs::create(desk),
        Operation::UpdateOrg => orgs::update(desk),
        Operation::SetQuotas => orgs::set_quotas(desk),
        Operation::AddMember => members::add(desk),
        Operation::UpdateMember => members::update(desk),
        Operation::RemoveMember => members::remove(desk),
        Operation::CreatePrincipal => principals::create(desk),
        Operation::UpdatePrincipal => principals::update(desk),
        Operation::RotatePrincipal => principals::rotate(desk),
        Operation::DeletePrincipal => principals::delete(desk),
        Operation::CreateToken => tokens::create(desk),
        Operation::RevokeToken => tokens::revoke(desk),
        Operation::CreateGrant => grants::create(desk),
        Operation::RemoveGrant => grants::remove(desk),
        Operation::SetPolicy => policy::set(desk),
        Operation::DecideApproval => approvals::decide(desk),
        _ => return None,
    })
}

/// Does what anybody may do with what is their own.
pub(crate) fn write_own(state: &State, request: &Request, who: &Who) -> Result<Change, Refusal> {
    match request.operation {
        Operation::RevokeOwnToken if who.is_tenant() => tokens::revoke_own(state, request, who),
        _ => Err(authorize::forbidden(request.operation.spec().id)),
    }
}

/// What a command of this part works on.
struct Desk<'a> {
    state: &'a State,
    call: &'a Call<'a>,
    request: &'a Request,
    authorized: &'a Authorized,
}

impl Desk<'_> {
    fn body<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        self.request.read_body()
    }

    fn org(&self) -> Result<OrgId, Refusal> {
        self.authorized.place.owner.org.ok_or_else(not_found)
    }

    /// The org as an owner.
    fn owner(&self) -> Result<Owner, Refusal> {
        Ok(Owner {
            org: Some(self.org()?),
            ..Owner::default()
        })
    }

    /// What the path names below the org.
    fn leaf<Id: FromStr>(&self) -> Result<Id, Refusal> {
        let leaf = self.authorized.place.leaf.as_deref();
        leaf.and_then(|leaf| leaf.parse().ok())
            .ok_or_else(not_found)
    }

    fn mint(&self) -> u128 {
        self.call.mint.bits(self.call.now)
    }
}

/// The change that leaves nothing to show.
fn gone(facts: Vec<Fact>, id: impl ToString) -> Change {
    let id = id.to_string();
    Change {
        facts,
        subject: Subject::of("gone", &id)
            .with("id", id.as_str())
            .with("deleted", true),
        status: 200,
    }
}

fn exceeds(what: &str) -> Refusal {
    Refusal::new(
        "grant_exceeds_own",
        format!("{what} has more than this credential holds"),
        "let somebody do it who holds all of it",
    )
}

fn name_taken(name: &str) -> Refusal {
    let why = format!("`{name}` is taken");
    Refusal::new("name_taken", why, "choose another name")
}

fn invalid(field: &str, why: impl Into<String>) -> Refusal {
    let why = why.into();
    let mut refusal = Refusal::new("invalid_argument", why.clone(), format!("change `{field}`"));
    refusal.fields.push(FieldProblem {
        code: "invalid_argument".to_owned(),
        field: field.to_owned(),
        message: why,
        place: None,
    });
    refusal
}

fn check_length(field: &str, text: &str, length: RangeInclusive<usize>) -> Result<(), Refusal> {
    let count = text.chars().count();
    if length.contains(&count) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let (least, most) = (length.start(), length.end());
    let why =
        format!("`{field}` has {count} characters, or unprintable ones; {least} to {most} fit");
    Err(invalid(field, why))
}

fn check_slug(field: &str, text: &str, length: RangeInclusive<usize>) -> Result<(), Refusal> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let starts = text.starts_with(|c: char| c.is_ascii_lowercase());
    if starts && length.contains(&text.len()) && text.chars().all(fits) {
        return Ok(());
    }
    let (least, most) = (length.start(), length.end());
    let why =
        format!("`{field}` takes {least} to {most} of a-z, 0-9 and `-`, and starts with a letter");
    Err(invalid(field, why))
}
