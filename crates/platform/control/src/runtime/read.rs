//! What is shown of what runs: objects and lists, as the interface has them.
//!
//! Everything comes from the state and a time; nothing is decided. The caller
//! may see it: that was decided before. One file per resource.

mod apps;
mod deploys;
mod instances;
mod nodes;
mod operations;
mod volumes;

use std::fmt::Display;
use std::str::FromStr;

use fluffy_api::Operation;
use fluffy_api::types;
use fluffy_base::Timestamp;
use fluffy_base::id::EnvId;
use fluffy_planner::model::{Driver, IsolationLevel};
use serde::Serialize;
use serde_json::Value;

pub(crate) use apps::challenge_of;

use super::{Runtime, spec};
use crate::access::place::Place;
use crate::access::{json, page};
use crate::call::{Call, Request, Subject};
use crate::operations::not_found;
use crate::refusal::Refusal;
use crate::state::State;

/// The object that a change was about.
pub(crate) fn answer(state: &State, subject: &Subject) -> Value {
    let view = View {
        state,
        now: state.runtime.heard_at.unwrap_or(Timestamp::MIN),
    };
    let id = subject.id.as_str();
    match subject.kind.as_str() {
        "project" => view.one(id, View::project),
        "app" => view.one(id, View::app),
        "env" => view.one(id, View::env),
        "ipv4" => view.one(id, View::ipv4),
        "scale" => view.one(id, View::scale),
        "quotas" => view.one(id, View::quotas),
        "release" => view.one(id, View::release),
        "deploy" => view.one(id, View::deploy),
        "instance" => view.one(id, View::instance),
        "exec_session" => view.one(id, View::exec),
        "exec_granted" => view.one(id, View::exec_granted),
        "route" => view.one(id, View::route),
        "secret_bundle" => view.one(id, View::secrets),
        "volume" => view.one(id, View::volume),
        "volume_attachment" => view.one(id, View::attachment),
        "snapshot" => view.one(id, View::snapshot),
        "restore_job" => view.one(id, View::restore),
        "node" => view.one(id, View::node),
        "enrollment_token" => view.one(id, View::enrollment_token),
        "image_limits" => json(&view.image_limits()),
        "master_keys" => json(&view.keys()),
        "operation" => view.operation(id).map_or(Value::Null, |it| json(&it)),
        _ => Value::Null,
    }
}

/// What an operation shows.
pub(crate) fn read(
    state: &State,
    call: &Call<'_>,
    request: &Request,
    place: &Place,
) -> Result<Value, Refusal> {
    let view = View {
        state,
        now: call.now,
    };
    let asked = Asked {
        view: &view,
        request,
        place,
    };
    use Operation as O;
    match request.operation {
        O::GetQuotas => found(place.owner.org.and_then(|id| view.quotas(id))),
        O::ListProjects => asked.projects(),
        O::GetProject => asked.project(),
        O::ListApps => asked.apps(),
        O::GetApp => found(place.owner.app.and_then(|id| view.app(id))),
        O::ListEnvs => asked.envs(),
        O::GetEnv => found(place.owner.env.and_then(|id| view.env(id))),
        O::ListReleases => asked.releases(),
        O::GetRelease => asked.leaf(View::release),
        O::ListDeploys => asked.deploys(),
        O::GetDeploy => asked.leaf(View::deploy),
        O::GetScale => found(place.owner.env.and_then(|id| view.scale(id))),
        O::GetStatus => found(place.owner.env.and_then(|id| view.status(id))),
        O::ListInstances => asked.instances(),
        O::GetInstance | O::DiagnoseInstance => asked.leaf(View::instance),
        O::GetExec => asked.leaf(View::exec),
        O::ListRoutes => asked.routes(),
        O::GetRoute => asked.leaf(View::route),
        O::GetSecrets => asked.secrets(),
        O::ListVolumes => asked.volumes(),
        O::GetVolume => asked.volume(),
        O::ListAttachments => asked.attachments(),
        O::ListSnapshots => asked.snapshots(),
        O::ListRestores => asked.restores(),
        O::GetOperation => asked.operation(),
        O::GetPlatformOperation => asked.platform_operation(),
        O::ListNodes => asked.nodes(),
        O::GetNode => asked.leaf(View::node),
        O::ListEnrollmentTokens => asked.enrollment_tokens(),
        O::GetIpam => Ok(json(&view.ipam())),
        O::GetImageLimits => Ok(json(&view.image_limits())),
        O::GetKeys => Ok(json(&view.keys())),
        _ => Err(not_found()),
    }
}

/// The state as it is shown at a time.
struct View<'a> {
    state: &'a State,
    now: Timestamp,
}

/// A list or an object that somebody asked for.
struct Asked<'a> {
    view: &'a View<'a>,
    request: &'a Request,
    place: &'a Place,
}

impl View<'_> {
    fn runtime(&self) -> &Runtime {
        &self.state.runtime
    }

    fn meta<Id: Copy + Display>(&self, kind: &str, id: Id) -> Option<types::Meta<Id>> {
        let meta = self.state.meta(kind, &id.to_string())?;
        Some(types::Meta {
            id,
            created_at: meta.created_at,
            updated_at: meta.updated_at,
            version: meta.version,
        })
    }

    /// An object by the text of its id; null if it is gone.
    fn one<Id: FromStr, T: Serialize>(
        &self,
        id: &str,
        show: impl Fn(&Self, Id) -> Option<T>,
    ) -> Value {
        let id = id.parse().ok();
        let shown = id.and_then(|id| show(self, id));
        shown.map_or(Value::Null, |shown| json(&shown))
    }

    /// The weakest isolation that an env's instances have.
    fn isolation(&self, env: EnvId) -> Option<types::Isolation> {
        let instances = self.runtime().plan.instances.values();
        let here = instances.filter(|it| it.group.env == env && !it.has_ended());
        let weakest = here.map(|it| it.driver).max_by_key(|driver| driver.level());
        weakest.map(isolation)
    }
}

impl<'a> Asked<'a> {
    /// What the path names by its id.
    fn leaf<Id: FromStr, T: Serialize>(
        &self,
        show: impl Fn(&View<'a>, Id) -> Option<T>,
    ) -> Result<Value, Refusal> {
        let id = self.place.leaf.as_deref();
        let id = id.and_then(|id| id.parse().ok());
        found(id.and_then(|id| show(self.view, id)))
    }

    fn given(&self, name: &str) -> Option<&str> {
        self.request.query.get(name).map(String::as_str)
    }

    fn page<Id: Copy + Ord + Display + FromStr, T: Serialize>(
        &self,
        kind: &str,
        ids: impl Iterator<Item = Id>,
        show: impl Fn(&View<'a>, Id) -> Option<T>,
    ) -> Result<Value, Refusal> {
        page(self.view.state, self.request, kind, ids, |id| {
            show(self.view, id).map(|shown| json(&shown))
        })
    }
}

fn found<T: Serialize>(shown: Option<T>) -> Result<Value, Refusal> {
    shown.map(|shown| json(&shown)).ok_or_else(not_found)
}

/// A driver and its level, as they are shown wherever an instance is.
fn isolation(driver: Driver) -> types::Isolation {
    let name = match driver {
        // Whether it is emulated is the level's to say.
        Driver::QemuEmulated => Driver::Qemu,
        other => other,
    };
    types::Isolation {
        driver: spec::driver_text(name).to_owned(),
        level: match driver.level() {
            IsolationLevel::Microvm => "microvm",
            IsolationLevel::MicrovmEmulated => "microvm-emulated",
            IsolationLevel::SharedKernel => "shared-kernel",
        }
        .to_owned(),
    }
}

fn count(many: usize) -> u32 {
    u32::try_from(many).unwrap_or(u32::MAX)
}
