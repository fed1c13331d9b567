//! Patterns that people write, with ids in the place of names, and back.
//!
//! A grant is kept as what it meant when it was given: names become ids, and
//! where a name stands behind a `*` every object of that name is taken one by
//! one. Written back, an id whose object is gone means nothing any more.

use fluffy_base::id::OrgId;
use fluffy_policy::action::{self, ACTIONS, ResourceKind};
use fluffy_policy::capability::Pattern;

use super::names::Names;
use crate::state::Owner;

/// How many objects one pattern may name.
const MAX_OBJECTS: usize = 64;

/// A pattern as it was meant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Meant {
    /// `env.deploy`, `env.*` or `*`.
    pub(crate) action: String,
    /// The objects, with ids: `org_…/app_…/*`.
    pub(crate) objects: Vec<String>,
}

impl Meant {
    /// One pattern for each object.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = String> {
        self.objects
            .iter()
            .map(|object| format!("{}.{object}", self.action))
    }

    /// The patterns of single actions that it stands for, in names.
    pub(crate) fn spelled(&self, names: &Names) -> Vec<String> {
        let actions: Vec<&str> = tenant_actions()
            .filter(|name| action_matches(&self.action, name))
            .collect();
        let objects = self
            .objects
            .iter()
            .filter_map(|object| render(names, object));
        objects
            .flat_map(|object| actions.iter().map(move |name| format!("{name}.{object}")))
            .collect()
    }
}

/// What a pattern means in an org now, or why it means nothing.
pub(crate) fn resolve(names: &Names, org: OrgId, text: &str) -> Result<Meant, String> {
    let shown: String = text.chars().take(128).collect();
    if let Err(error) = Pattern::parse(text) {
        return Err(error.to_string());
    }
    let (action, object) = split(text)
        .ok_or_else(|| format!("`{shown}` names no object, such as `env.deploy.acme/shop/prod`"))?;
    if !tenant_actions().any(|name| action_matches(action, name)) {
        return Err(format!("`{action}` is no action of an organisation"));
    }
    let mut parts = object.split('/');
    if parts.next().and_then(|name| names.org(name)) != Some(org) {
        return Err(format!("`{shown}` is not about this organisation"));
    }
    let parts: Vec<&str> = parts.collect();
    if parts.len() > 2 || parts.iter().any(|part| part.contains('*') && *part != "*") {
        return Err(format!(
            "`{shown}` must be `org`, `org/app` or `org/app/env`, with whole `*` in it"
        ));
    }
    let objects = expand(names, org, &parts);
    match objects.len() {
        0 => Err(format!("`{shown}` names nothing that is there")),
        count if count > MAX_OBJECTS => Err(format!("`{shown}` names {count} objects, too many")),
        _ => Ok(Meant {
            action: action.to_owned(),
            objects,
        }),
    }
}

/// The objects that the parts behind an org name.
fn expand(names: &Names, org: OrgId, parts: &[&str]) -> Vec<String> {
    match parts {
        [] => vec![org.to_string()],
        ["*"] => vec![format!("{org}/*")],
        ["*", "*"] => vec![format!("{org}/*/*")],
        [app] => {
            let app = names.app(org, app);
            app.map(|app| format!("{org}/{app}")).into_iter().collect()
        }
        ["*", env] => names
            .apps_of(org)
            .filter_map(|(_, app)| Some(format!("{org}/{app}/{}", names.env(app, env)?)))
            .collect(),
        [app, "*"] => {
            let app = names.app(org, app);
            app.map(|app| format!("{org}/{app}/*"))
                .into_iter()
                .collect()
        }
        [app, env, ..] => {
            let app = names.app(org, app);
            let env = app.and_then(|app| Some((app, names.env(app, env)?)));
            env.map(|(app, env)| format!("{org}/{app}/{env}"))
                .into_iter()
                .collect()
        }
    }
}

/// An object with ids, in names; none if something in it is gone.
pub(crate) fn render(names: &Names, object: &str) -> Option<String> {
    let mut owner = Owner::default();
    let mut stars = String::new();
    for (at, part) in object.split('/').enumerate() {
        match (part, at) {
            ("*", _) => stars.push_str("/*"),
            (id, 0) => owner.org = Some(id.parse().ok()?),
            (id, 1) => owner.app = Some(id.parse().ok()?),
            (id, 2) => owner.env = Some(id.parse().ok()?),
            _ => return None,
        }
    }
    Some(format!("{}{stars}", names.path(&owner)?))
}

/// A kept pattern, in names; none if something in it is gone.
pub(crate) fn shown(names: &Names, kept: &str) -> Option<String> {
    let (action, object) = split(kept)?;
    Some(format!("{action}.{}", render(names, object)?))
}

/// What a kept pattern gives for one action, in names.
pub(crate) fn gives(names: &Names, kept: &str, wanted: &str) -> Option<String> {
    let (action, object) = split(kept)?;
    let meant = action_matches(action, wanted) && is_tenant_action(wanted);
    let object = meant.then(|| render(names, object)).flatten()?;
    Some(format!("{wanted}.{object}"))
}

/// Whether one of the patterns covers all of another one.
pub(crate) fn covered(by: &[Pattern], wanted: &str) -> bool {
    Pattern::parse(wanted).is_ok_and(|wanted| by.iter().any(|one| one.covers(&wanted)))
}

/// Every action that somebody can be given in an org.
pub(crate) fn tenant_actions() -> impl Iterator<Item = &'static str> {
    let names = ACTIONS.iter().map(|action| action.name);
    names.filter(|name| is_tenant_action(name))
}

/// Whether an action is about an org's own, and not about orgs or models.
pub(crate) fn is_tenant_action(name: &str) -> bool {
    let foreign = ["model.generate", "org.create", "quota.set"];
    action::find(name).is_some_and(|action| action.resource == ResourceKind::Object)
        && !foreign.contains(&name)
}

fn action_matches(pattern: &str, name: &str) -> bool {
    let of_kind = pattern.strip_suffix(".*");
    pattern == "*"
        || pattern == name
        || of_kind.is_some_and(|kind| name.split_once('.').is_some_and(|(of, _)| of == kind))
}

/// Action and object of a pattern.
fn split(text: &str) -> Option<(&str, &str)> {
    let head = text.split('/').next()?;
    let dot = head.rfind('.')?;
    Some((text.get(..dot)?, text.get(dot + 1..)?))
}
