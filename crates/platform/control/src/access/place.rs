//! Where a request acts: its path resolved to ids, with ownership checked.
//!
//! Says nothing to the caller: whether they may know that something is not
//! there is decided in [`super::authorize`].

use fluffy_api::Operation;
use fluffy_base::id::{
    ApprovalId, AttachmentId, DeployId, EnrollmentTokenId, ExecSessionId, GrantId, InstanceId,
    MemberId, NodeId, OrgId, PrincipalId, ProjectId, ReleaseId, RestoreId, RouteId, TokenId,
    VolumeId, VolumeSnapshotId,
};
use fluffy_ledger::Scope;

use super::names::Names;
use crate::call::Request;
use crate::state::{Owner, State};

/// Where a request acts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Place {
    /// The org, app and env that the path names, as far as they are there.
    pub owner: Owner,
    /// What the path names below them: an id, or a text that names nothing.
    pub leaf: Option<String>,
    /// `org`, `org/app` or `org/app/env`, in names: what is authorized.
    pub(crate) object: Option<String>,
    /// Whether everything that the path names by id is there, and belongs
    /// where the path says.
    pub(crate) found: bool,
}

impl Place {
    /// The place of an org, app or env that is there.
    pub(crate) fn of(names: &Names, owner: Owner) -> Option<Self> {
        Some(Self {
            owner,
            leaf: None,
            object: Some(names.path(&owner)?),
            found: true,
        })
    }

    /// The scope of events that happen here.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.owner.scope()
    }

    /// What the path names below them, where that is an id, and its kind.
    pub(crate) fn leaf(&self) -> Option<(&'static str, &str)> {
        let leaf = self.leaf.as_deref()?;
        Some((kind_of(leaf)?, leaf))
    }

    /// The most exact id, for the record.
    pub(crate) fn resource_id(&self) -> String {
        let deepest = self.owner.env.map(|id| id.to_string());
        let deepest = deepest.or_else(|| self.owner.app.map(|id| id.to_string()));
        let deepest = deepest.or_else(|| self.owner.org.map(|id| id.to_string()));
        let leaf = self.leaf().map(|(_, leaf)| leaf.to_owned());
        leaf.or(deepest)
            .or_else(|| self.object.clone())
            .unwrap_or_else(|| "platform".to_owned())
    }
}

/// The place that a request's path names.
pub(crate) fn resolve(state: &State, request: &Request) -> Place {
    let names = &state.access.names;
    let mut place = Place {
        found: true,
        ..Place::default()
    };
    let params = request.operation.spec().path_params();
    for (param, text) in params.zip(&request.path) {
        if !["org", "app", "env"].contains(&param) {
            let named = place
                .owner
                .org
                .and_then(|org| named(state, org, param, text));
            place.leaf = Some(named.unwrap_or_else(|| text.clone()));
            continue;
        }
        descend(names, &mut place, param, text);
    }
    for (param, text) in bound_to(request) {
        descend(names, &mut place, param, text);
    }
    if place.found {
        resolve_leaf(state, &mut place);
    }
    place
}

/// Goes one step down, to what has this name or id there.
fn descend(names: &Names, place: &mut Place, param: &str, text: &str) {
    let owner = &mut place.owner;
    let there = match param {
        "org" => {
            owner.org = names.org(text);
            owner.org.is_some()
        }
        "app" => {
            owner.app = owner.org.and_then(|org| names.app(org, text));
            owner.app.is_some()
        }
        _ => {
            owner.env = owner.app.and_then(|app| names.env(app, text));
            owner.env.is_some()
        }
    };
    place.found &= there;
    let named = place.found.then(|| names.path(&place.owner)).flatten();
    place.object = named.or_else(|| match place.object.take() {
        Some(before) => Some(format!("{before}/{}", plain(text))),
        None => Some(plain(text)),
    });
}

/// The app and the env that a role is bound to hang below the org, and who may
/// give it or look at it is decided there, though the path names the org alone.
fn bound_to(request: &Request) -> impl Iterator<Item = (&'static str, &str)> {
    let named = |name: &str| match request.operation {
        Operation::AddMember => request.body.as_ref()?.get(name)?.as_str(),
        Operation::ListMembers => request.query.get(name).map(String::as_str),
        _ => None,
    };
    let app = named("app");
    // An env is one of an app; without one it is refused as a request.
    let env = app.and_then(|_| named("env"));
    let app = app.map(|text| ("app", text));
    app.into_iter().chain(env.map(|text| ("env", text)))
}

/// The id of what has a name below an org.
fn named(state: &State, org: OrgId, param: &str, text: &str) -> Option<String> {
    let runtime = &state.runtime;
    match param {
        "principal" => {
            let mut all = state.access.services.iter();
            let found = all.find(|(_, one)| one.org == org && one.name == text);
            found.map(|(id, _)| id.to_string())
        }
        "project" => {
            let mut all = runtime.projects.iter();
            let found = all.find(|(_, one)| one.org == org && one.slug == text);
            found.map(|(id, _)| id.to_string())
        }
        "volume" => {
            let mut all = runtime.volumes.iter();
            let found = all.find(|(_, one)| one.org == org && one.name == text);
            found.map(|(id, _)| id.to_string())
        }
        _ => None,
    }
}

/// What is named below must belong where the path says. What hangs on an env
/// is authorized there even if the path names the org alone.
fn resolve_leaf(state: &State, place: &mut Place) {
    let Some((kind, leaf)) = place.leaf() else {
        return;
    };
    let Some(meta) = state.meta(kind, leaf) else {
        place.found = false;
        return;
    };
    let (owner, at) = (&meta.owner, &place.owner);
    let inside = owner.org == at.org
        && (at.app.is_none() || owner.app == at.app)
        && (at.env.is_none() || owner.env == at.env);
    // A volume is rehomed by operators, whose paths name no org.
    let of_platform = at.org.is_none();
    place.found = inside || of_platform;
    if inside && let Some(path) = state.access.names.path(owner) {
        place.owner = *owner;
        place.object = Some(path);
    }
}

/// The kind of aggregate that an id names.
fn kind_of(text: &str) -> Option<&'static str> {
    macro_rules! kinds {
        ($($id:ident = $kind:literal,)*) => {
            [$(($id::PREFIX, $kind, text.parse::<$id>().is_ok()),)*]
        };
    }
    let kinds = kinds! {
        ApprovalId = "approval",
        AttachmentId = "volume_attachment",
        DeployId = "deploy",
        EnrollmentTokenId = "enrollment_token",
        ExecSessionId = "exec_session",
        GrantId = "grant",
        InstanceId = "instance",
        MemberId = "org_member",
        NodeId = "node",
        PrincipalId = "service_principal",
        ProjectId = "project",
        ReleaseId = "release",
        RestoreId = "restore_job",
        RouteId = "route",
        TokenId = "token",
        VolumeId = "volume",
        VolumeSnapshotId = "snapshot",
    };
    let (_, kind, _) = kinds.into_iter().find(|(_, _, is)| *is)?;
    Some(kind)
}

/// A part of a path as policy can look at it; nothing that is there is named
/// by anything else.
fn plain(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match text.len() <= 64 && !text.is_empty() && text.chars().all(fits) {
        true => text.to_owned(),
        false => "-".to_owned(),
    }
}
