//! What principals ask for: each operation on exact state.
//!
//! Whether the caller may was decided before. Here is whether it can be: names,
//! quotas, claims, lifecycles and everything else that a request must respect.
//! Says what to append and appends nothing. One file per resource.

mod apps;
mod deploys;
mod exec;
mod keys;
mod mounts;
mod nodes;
mod platform;
mod preflight;
mod releases;
mod routes;
mod secrets;
mod tokens;
mod volumes;

use fluffy_api::Operation;
use fluffy_base::Timestamp;
use fluffy_base::id::{AppId, EnvId, OrgId};
use fluffy_ledger::Scope;
use fluffy_planner::lifecycle::InvalidTransition;
use serde::de::DeserializeOwned;

pub(crate) use deploys::{NewDeploy, current_secrets, new_deploy, plain_options};
pub(crate) use exec::denied as exec_denied;
pub(crate) use keys::{retires_from, still_asked};
pub(crate) use mounts::given_back;
use tokens::Verdict;

use super::Runtime;
use super::record::{App, Env};
use crate::access::authorize::{self, Authorized, Who};
use crate::access::place::Place;
use crate::call::{Call, Change, Fact, Request, Subject};
use crate::refusal::Refusal;
use crate::state::{Owner, State};

/// Decides an operation on what runs; the caller may do it.
///
/// # Errors
/// It cannot be, and why.
pub fn write(
    state: &State,
    call: &Call<'_>,
    request: &Request,
    authorized: &Authorized,
) -> Result<Change, Refusal> {
    let desk = Desk {
        state,
        call,
        request,
        who: &authorized.who,
        place: &authorized.place,
    };
    let (facts, subject) = decide(&desk)?;
    Ok(Change {
        facts,
        subject,
        status: request.operation.spec().success,
    })
}

/// What a command wants appended, and what it answers with.
type Decided = Result<(Vec<Fact>, Subject), Refusal>;

fn decide(desk: &Desk<'_>) -> Decided {
    use Operation as O;
    match desk.request.operation {
        O::CreateProject | O::UpdateProject | O::DeleteProject => apps::project(desk),
        O::CreateApp => apps::create_app(desk),
        O::UpdateApp => apps::update_app(desk),
        O::DeleteApp => apps::delete_app(desk),
        O::CreateEnv => apps::create_env(desk),
        O::UpdateEnv => apps::update_env(desk),
        O::DeleteEnv => apps::delete_env(desk),
        O::CreateRelease => releases::create(desk),
        O::BlockRelease | O::UnblockRelease => releases::block(desk),
        O::CreateDeploy => deploys::create(desk),
        O::CreateRollback => deploys::rollback(desk),
        O::CancelDeploy => deploys::cancel(desk),
        O::PauseDeploy | O::ResumeDeploy => deploys::hold(desk),
        O::SetScale => deploys::scale(desk),
        O::RestartInstance => deploys::restart(desk),
        O::SignalInstance => exec::signal(desk),
        O::CreateExec => exec::create(desk),
        O::RevokeExec => exec::revoke(desk),
        O::CreateRoute => routes::create(desk),
        O::UpdateRoute => routes::update(desk),
        O::DeleteRoute => routes::delete(desk),
        O::VerifyRoute => routes::verify(desk),
        O::EnableIpv4 => routes::enable_ipv4(desk),
        O::DisableIpv4 => routes::disable_ipv4(desk),
        O::ReplaceSecrets | O::UpdateSecrets => secrets::set(desk),
        O::DeleteSecrets => secrets::delete(desk),
        O::CreateVolume => volumes::create(desk),
        O::UpdateVolume => volumes::update(desk),
        O::DeleteVolume => volumes::delete(desk),
        O::CreateAttachment => volumes::attach(desk),
        O::ReplaceAttachment => volumes::replace(desk),
        O::DeleteAttachment => volumes::detach(desk),
        O::CreateSnapshot => volumes::snapshot(desk),
        O::RestoreSnapshot => volumes::restore(desk),
        O::DeleteSnapshot => volumes::delete_snapshot(desk),
        O::DrainNode => nodes::drain(desk),
        O::UncordonNode | O::DisableNode => nodes::change(desk),
        O::ConfirmNodePlan => nodes::confirm_plan(desk),
        O::RevokeNode => nodes::revoke(desk),
        O::RemoveNode => nodes::remove(desk),
        O::ApproveEnrollment => tokens::decide(desk, Verdict::Approved),
        O::RefuseEnrollment => tokens::decide(desk, Verdict::Refused),
        O::CreateEnrollmentToken => tokens::create(desk),
        O::RevokeEnrollmentToken => tokens::revoke(desk),
        O::SetImageLimits => platform::set_image_limits(desk),
        O::RotateKeys => keys::rotate(desk),
        O::RehomeVolume => platform::rehome(desk),
        O::RetireKey => keys::retire(desk),
        O::RebuildViews | O::ArchiveLedger | O::VerifyLedger | O::RewrapKeys | O::VerifyKeys => {
            Ok(platform::operation(desk))
        }
        _ => Err(missing("operation")),
    }
}

/// A request on the desk: everything that it is decided with.
struct Desk<'a> {
    state: &'a State,
    call: &'a Call<'a>,
    request: &'a Request,
    who: &'a Who,
    place: &'a Place,
}

impl<'a> Desk<'a> {
    fn runtime(&self) -> &'a Runtime {
        &self.state.runtime
    }

    fn now(&self) -> Timestamp {
        self.call.now
    }

    /// The bits of a new id.
    fn bits(&self) -> u128 {
        self.call.mint.bits(self.call.now)
    }

    fn org(&self) -> Result<OrgId, Refusal> {
        self.place.owner.org.ok_or_else(|| missing("org"))
    }

    fn app(&self) -> Result<(AppId, &'a App), Refusal> {
        let id = self.place.owner.app.ok_or_else(|| missing("app"))?;
        let app = self.runtime().apps.get(&id);
        Ok((id, app.ok_or_else(|| missing("app"))?))
    }

    fn env(&self) -> Result<(EnvId, &'a Env), Refusal> {
        let id = self.place.owner.env.ok_or_else(|| missing("env"))?;
        let env = self.runtime().envs.get(&id);
        let env = env.filter(|env| env.deleted_at.is_none());
        Ok((id, env.ok_or_else(|| missing("env"))?))
    }

    /// The scope of what belongs to the org as a whole.
    fn org_scope(&self) -> Scope {
        Owner {
            org: self.place.owner.org,
            ..Owner::default()
        }
        .scope()
    }

    /// What the path names below org, app and env, by id.
    fn leaf<T: std::str::FromStr>(&self, what: &str) -> Result<T, Refusal> {
        let leaf = self.place.leaf.as_deref();
        let id = leaf.and_then(|leaf| leaf.parse().ok());
        id.ok_or_else(|| missing(what))
    }

    fn body<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        self.request.read_body()
    }

    /// Whether the caller may do something to what the body names, which may
    /// belong elsewhere than what the path names.
    fn reaches(&self, action: &str, (kind, id): (&str, &str)) -> bool {
        let (state, names) = (self.state, &self.state.access.names);
        let owner = state.meta(kind, id).map(|meta| meta.owner);
        let place = owner.and_then(|owner| Place::of(names, owner));
        place.is_some_and(|place| authorize::stands(state, self.now(), self.who, action, &place))
    }

    fn is_set(&self, parameter: &str) -> bool {
        let value = self.request.query.get(parameter);
        value.is_some_and(|value| value == "true")
    }

    /// Refuses a name that is not free in its scope.
    fn name_is_free(&self, scope: &str, name: &str, taken: bool) -> Result<(), Refusal> {
        let until = self.runtime().reserved.get(&format!("{scope}/{name}"));
        if taken {
            let why = format!("`{name}` exists already");
            return Err(Refusal::new("name_taken", why, "choose another name"));
        }
        if let Some(until) = until.filter(|until| **until > self.now()) {
            let why = format!("`{name}` was deleted and is reserved until {until}");
            return Err(Refusal::new("name_taken", why, "choose another name"));
        }
        Ok(())
    }
}

/// The answer to what leaves nothing to show.
fn gone(id: impl ToString) -> Subject {
    let id = id.to_string();
    Subject::of("gone", &id)
        .with("id", id)
        .with("deleted", true)
}

/// A refusal because something is not there.
pub(crate) fn missing(what: &str) -> Refusal {
    let why = format!("there is no such {what}");
    Refusal::new("not_found", why, "look at the list for what is there")
}

/// A refusal of a field's value.
pub(crate) fn invalid(field: &str, why: &str) -> Refusal {
    let mut refusal = Refusal::new("invalid_argument", format!("`{field}`: {why}"), "");
    refusal.fields.push(crate::refusal::FieldProblem {
        code: "invalid_argument".to_owned(),
        field: field.to_owned(),
        message: why.to_owned(),
        place: None,
    });
    refusal
}

/// A refusal because a lifecycle does not lead there.
pub(crate) fn transition(error: InvalidTransition) -> Refusal {
    let fix = format!("a {} that is {} stays so", error.resource, error.from);
    Refusal::new("invalid_transition", error.to_string(), fix)
        .with("from", error.from)
        .with("to", error.to)
}

/// Whether a text is a name: lowercase letters, digits and hyphens.
fn is_name(text: &str, longest: usize) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|c| c.is_ascii_lowercase())
        && characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && text.len() <= longest
}

fn name(field: &str, text: &str, longest: usize) -> Result<(), Refusal> {
    if is_name(text, longest) {
        return Ok(());
    }
    let why = format!("a name begins with a letter and has at most {longest} of a-z, 0-9 and -");
    Err(invalid(field, &why))
}

fn at_most(field: &str, text: &str, longest: usize) -> Result<(), Refusal> {
    match text.chars().count() {
        0 => Err(invalid(field, "it is empty")),
        many if many > longest => {
            let why = format!("it has more than {longest} characters");
            Err(invalid(field, &why))
        }
        _ => Ok(()),
    }
}
