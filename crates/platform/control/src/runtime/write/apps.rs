//! Projects, apps and envs.

use fluffy_api::Operation;
use fluffy_api::types::{CreateApp, CreateEnv, CreateProject, UpdateApp, UpdateEnv, UpdateProject};
use fluffy_base::id::{AppId, EnvId, ProjectId};
use fluffy_planner::lifecycle::{Cause, DeployState, RouteState};

use super::{Decided, Desk, at_most, gone, invalid, missing, name, transition};
use crate::call::{CallerKind, Fact, Subject};
use crate::event::{
    AppCreated, AppDeleted, AppUpdated, DeployStatusChanged, EnvCreated, EnvDeleted,
    EnvIpv4AddonDisabled, EnvUpdated, ProjectCreated, ProjectDeleted, ProjectUpdated,
    RouteStatusChanged, SecretBundleDeleted, VolumeAttachmentDeleted,
};
use crate::refusal::Refusal;
use crate::runtime::quota::Dimension;
use crate::state::Owner;

pub(super) fn project(desk: &Desk<'_>) -> Decided {
    let org = desk.org()?;
    let projects = &desk.runtime().projects;
    if desk.request.operation == Operation::CreateProject {
        let body: CreateProject = desk.body()?;
        name("name", &body.name, 32)?;
        let mut all = projects.values();
        let taken = all.any(|it| it.org == org && it.slug == body.name);
        desk.name_is_free(&format!("{org}/project"), &body.name, taken)?;
        let display_name = body.display_name.unwrap_or_else(|| body.name.clone());
        at_most("display_name", &display_name, 64)?;
        let id = ProjectId::from_bits(desk.bits());
        let created = ProjectCreated {
            slug: body.name,
            display_name,
        };
        return Ok((
            vec![Fact::new(id, created.into())],
            Subject::of("project", id),
        ));
    }
    let id = named_project(desk, desk.place.leaf.as_deref().unwrap_or_default())?;
    if desk.request.operation == Operation::UpdateProject {
        let body: UpdateProject = desk.body()?;
        at_most("display_name", &body.display_name, 64)?;
        let updated = ProjectUpdated {
            display_name: body.display_name,
        };
        return Ok((
            vec![Fact::new(id, updated.into())],
            Subject::of("project", id),
        ));
    }
    if desk
        .runtime()
        .apps
        .values()
        .any(|it| it.project == Some(id))
    {
        let why = "the project still groups apps";
        return Err(Refusal::new(
            "not_empty",
            why,
            "take its apps out of it first",
        ));
    }
    Ok((vec![Fact::new(id, ProjectDeleted {}.into())], gone(id)))
}

fn named_project(desk: &Desk<'_>, text: &str) -> Result<ProjectId, Refusal> {
    let org = desk.org()?;
    let named: Option<ProjectId> = text.parse().ok();
    let mut projects = desk.runtime().projects.iter();
    let found = projects.find(|(id, it)| it.org == org && (it.slug == text || Some(**id) == named));
    found.map(|(id, _)| *id).ok_or_else(|| missing("project"))
}

pub(super) fn create_app(desk: &Desk<'_>) -> Decided {
    let org = desk.org()?;
    let body: CreateApp = desk.body()?;
    name("name", &body.name, 32)?;
    let mut all = desk.runtime().apps.values();
    let taken = all.any(|it| it.org == org && it.name == body.name);
    desk.name_is_free(&format!("{org}/app"), &body.name, taken)?;
    if let Some(name) = &body.display_name {
        at_most("display_name", name, 64)?;
    }
    if let Some(description) = &body.description {
        at_most("description", description, 256)?;
    }
    let project = body.project.as_deref();
    let project_id = project.map(|text| named_project(desk, text)).transpose()?;
    desk.runtime().within(org, Dimension::Apps, 1)?;
    let id = AppId::from_bits(desk.bits());
    let created = AppCreated {
        name: body.name,
        project_id,
        description: body.description,
        display_name: body.display_name,
    };
    let fact = Fact::new(id, created.into()).of(&desk.org_scope());
    Ok((vec![fact], Subject::of("app", id)))
}

pub(super) fn update_app(desk: &Desk<'_>) -> Decided {
    let (id, _) = desk.app()?;
    let body: UpdateApp = desk.body()?;
    if let Some(name) = &body.display_name {
        at_most("display_name", name, 64)?;
    }
    if let Some(Some(description)) = &body.description
        && description.chars().count() > 256
    {
        return Err(invalid("description", "it has more than 256 characters"));
    }
    let project = body.project.as_ref();
    let project_id = project.and_then(Option::as_deref);
    let project_id = project_id
        .map(|text| named_project(desk, text))
        .transpose()?;
    let updated = AppUpdated {
        display_name: body.display_name,
        description: body.description.map(Option::unwrap_or_default),
        project_id,
        project_removed: project.filter(|project| project.is_none()).map(|_| true),
    };
    Ok((vec![Fact::new(id, updated.into())], Subject::of("app", id)))
}

pub(super) fn delete_app(desk: &Desk<'_>) -> Decided {
    let (id, _) = desk.app()?;
    if desk.runtime().envs.values().any(|env| env.app == id) {
        let why = "the app still has envs, or their instances are not gone yet";
        return Err(Refusal::new("not_empty", why, "delete its envs first"));
    }
    Ok((vec![Fact::new(id, AppDeleted {}.into())], gone(id)))
}

pub(super) fn create_env(desk: &Desk<'_>) -> Decided {
    let (app, _) = desk.app()?;
    let org = desk.org()?;
    let body: CreateEnv = desk.body()?;
    name("name", &body.name, 32)?;
    let mut all = desk.runtime().envs.values();
    let taken = all.any(|it| it.app == app && it.name == body.name);
    desk.name_is_free(&format!("{app}/env"), &body.name, taken)?;
    if let Some(name) = &body.display_name {
        at_most("display_name", name, 64)?;
    }
    desk.runtime().within(org, Dimension::Envs, 1)?;
    let local = desk.call.caller.kind == CallerKind::Local && !body.protected;
    let created = EnvCreated {
        name: body.name,
        protected: body.protected,
        allow_shared_kernel: body.allow_shared_kernel.unwrap_or(local),
    };
    isolation(created.protected, created.allow_shared_kernel)?;
    let id = EnvId::from_bits(desk.bits());
    let mut facts = vec![Fact::new(id, created.into())];
    if body.display_name.is_some() {
        let named = EnvUpdated {
            protected: None,
            allow_shared_kernel: None,
            display_name: body.display_name,
        };
        let owner = Owner {
            env: Some(id),
            ..desk.place.owner
        };
        facts.push(Fact::new(id, named.into()).of(&owner.scope()));
    }
    Ok((facts, Subject::of("env", id)))
}

pub(super) fn update_env(desk: &Desk<'_>) -> Decided {
    let (id, env) = desk.env()?;
    let body: UpdateEnv = desk.body()?;
    if let Some(name) = &body.display_name {
        at_most("display_name", name, 64)?;
    }
    isolation(
        body.protected.unwrap_or(env.protected),
        body.allow_shared_kernel.unwrap_or(env.allow_shared_kernel),
    )?;
    let updated = EnvUpdated {
        protected: body.protected,
        allow_shared_kernel: body.allow_shared_kernel,
        display_name: body.display_name,
    };
    Ok((vec![Fact::new(id, updated.into())], Subject::of("env", id)))
}

fn isolation(protected: bool, allow_shared_kernel: bool) -> Result<(), Refusal> {
    if protected && allow_shared_kernel {
        let why = "a protected env never shares a kernel";
        return Err(invalid("allow_shared_kernel", why));
    }
    Ok(())
}

/// Drains the env and takes everything back that it has.
pub(super) fn delete_env(desk: &Desk<'_>) -> Decided {
    let (id, env) = desk.env()?;
    let runtime = desk.runtime();
    let mut facts = Vec::new();
    for (deploy, it) in &runtime.plan.deploys {
        if it.env == id {
            DeployState::can(Some(it.state), DeployState::Superseded, Cause::System)
                .map_err(transition)?;
            let status = DeployStatusChanged {
                status: DeployState::Superseded.to_string(),
                message: Some("the env is deleted".to_owned()),
                failed_reason: None,
                process: None,
            };
            facts.push(Fact::new(deploy, status.into()));
        }
    }
    for (route, it) in &runtime.routes {
        if it.env == id && it.state != RouteState::Deleting {
            let status = RouteStatusChanged {
                state: RouteState::Deleting.to_string(),
                reason: Some("env_deleted".to_owned()),
            };
            facts.push(Fact::new(route, status.into()));
        }
    }
    for (attachment, it) in &runtime.attachments {
        if it.env == id {
            let deleted = VolumeAttachmentDeleted {
                volume_id: it.volume,
                process: it.process.clone(),
            };
            facts.push(Fact::new(attachment, deleted.into()));
        }
    }
    if let Some((allocation_id, address)) = env.ipv4 {
        let disabled = EnvIpv4AddonDisabled {
            allocation_id,
            ipv4_address: address.to_string(),
            forced: false,
        };
        facts.push(Fact::new(id, disabled.into()));
    }
    if let Some(bundle) = env.bundle {
        facts.push(Fact::new(bundle, SecretBundleDeleted {}.into()));
    }
    facts.push(Fact::new(id, EnvDeleted {}.into()));
    let subject = Subject::of("operation", id).with("created_at", desk.now().to_string());
    Ok((facts, subject))
}
