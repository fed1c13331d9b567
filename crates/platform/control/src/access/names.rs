//! Names and ids: which slug means which org, app or env, and back.
//!
//! Holds what is there now. A deleted object has no name here, so that nothing
//! kept under its id can come to mean a later object of the same name.

use std::collections::BTreeMap;

use fluffy_base::id::{AppId, EnvId, OrgId};
use fluffy_ledger::Event;
use serde::{Deserialize, Serialize};

use crate::event::Body;
use crate::state::Owner;

/// Which slug means which org, app or env, and back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Names {
    orgs: BTreeMap<String, OrgId>,
    apps: BTreeMap<(OrgId, String), AppId>,
    envs: BTreeMap<(AppId, String), EnvId>,
    of_org: BTreeMap<OrgId, String>,
    of_app: BTreeMap<AppId, (OrgId, String)>,
    of_env: BTreeMap<EnvId, NamedEnv>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct NamedEnv {
    app: AppId,
    slug: String,
    protected: bool,
}

impl Names {
    /// The org that a slug or an id names.
    #[must_use]
    pub fn org(&self, text: &str) -> Option<OrgId> {
        let by_id = || text.parse().ok().filter(|id| self.of_org.contains_key(id));
        self.orgs.get(text).copied().or_else(by_id)
    }

    /// The app of an org that a slug or an id names.
    #[must_use]
    pub fn app(&self, org: OrgId, text: &str) -> Option<AppId> {
        let own = |id: &AppId| self.of_app.get(id).is_some_and(|(of, _)| *of == org);
        let by_id = || text.parse().ok().filter(own);
        self.apps
            .get(&(org, text.to_owned()))
            .copied()
            .or_else(by_id)
    }

    /// The env of an app that a slug or an id names.
    #[must_use]
    pub fn env(&self, app: AppId, text: &str) -> Option<EnvId> {
        let own = |id: &EnvId| self.of_env.get(id).is_some_and(|env| env.app == app);
        let by_id = || text.parse().ok().filter(own);
        self.envs
            .get(&(app, text.to_owned()))
            .copied()
            .or_else(by_id)
    }

    /// The slug of an org.
    #[must_use]
    pub fn org_slug(&self, org: OrgId) -> Option<&str> {
        self.of_org.get(&org).map(String::as_str)
    }

    /// Whether an env is there and protected.
    #[must_use]
    pub fn is_protected(&self, env: EnvId) -> bool {
        self.of_env.get(&env).is_some_and(|env| env.protected)
    }

    /// `org`, `org/app` or `org/app/env` in slugs, while all of them are there.
    #[must_use]
    pub fn path(&self, owner: &Owner) -> Option<String> {
        let org = owner.org?;
        let mut path = self.org_slug(org)?.to_owned();
        if let Some(app) = owner.app {
            let (of, slug) = self.of_app.get(&app)?;
            path = (*of == org).then(|| format!("{path}/{slug}"))?;
        }
        if let Some(env) = owner.env {
            let named = self.of_env.get(&env)?;
            path = (Some(named.app) == owner.app).then(|| format!("{path}/{}", named.slug))?;
        }
        Some(path)
    }

    /// The app of an env, and the org of that.
    #[must_use]
    pub fn owner_of_env(&self, env: EnvId) -> Option<Owner> {
        let app = self.of_env.get(&env)?.app;
        let (org, _) = self.of_app.get(&app)?;
        Some(Owner {
            org: Some(*org),
            app: Some(app),
            env: Some(env),
        })
    }

    /// The apps of an org, by slug.
    pub fn apps_of(&self, org: OrgId) -> impl Iterator<Item = (&str, AppId)> {
        let from = (org, String::new());
        let own = self
            .apps
            .range(from..)
            .take_while(move |((of, _), _)| *of == org);
        own.map(|((_, slug), id)| (slug.as_str(), *id))
    }

    /// The envs of an app, by slug.
    pub fn envs_of(&self, app: AppId) -> impl Iterator<Item = (&str, EnvId)> {
        let from = (app, String::new());
        let own = self
            .envs
            .range(from..)
            .take_while(move |((of, _), _)| *of == app);
        own.map(|((_, slug), id)| (slug.as_str(), *id))
    }

    /// Every org, by slug.
    pub fn orgs(&self) -> impl Iterator<Item = (&str, OrgId)> {
        self.orgs.iter().map(|(slug, id)| (slug.as_str(), *id))
    }

    /// Folds one event in; those that name nothing change nothing.
    pub(crate) fn apply(&mut self, event: &Event, body: &Body) {
        let owner = Owner::of(&event.scope);
        let id = event.aggregate.id.as_str();
        match body {
            Body::OrgCreated(org) => {
                if let Ok(id) = id.parse() {
                    self.orgs.insert(org.slug.clone(), id);
                    self.of_org.insert(id, org.slug.clone());
                }
            }
            Body::AppCreated(app) => {
                if let (Some(org), Ok(id)) = (owner.org, id.parse()) {
                    self.apps.insert((org, app.name.clone()), id);
                    self.of_app.insert(id, (org, app.name.clone()));
                }
            }
            Body::EnvCreated(env) => {
                if let (Some(app), Ok(id)) = (owner.app, id.parse()) {
                    self.envs.insert((app, env.name.clone()), id);
                    let named = NamedEnv {
                        app,
                        slug: env.name.clone(),
                        protected: env.protected,
                    };
                    self.of_env.insert(id, named);
                }
            }
            Body::EnvUpdated(change) => {
                let env = id.parse().ok().and_then(|id| self.of_env.get_mut(&id));
                if let (Some(env), Some(protected)) = (env, change.protected) {
                    env.protected = protected;
                }
            }
            Body::AppDeleted(_) => {
                let app = id.parse().ok().and_then(|id| self.of_app.remove(&id));
                if let Some(name) = app {
                    self.apps.remove(&name);
                }
            }
            Body::EnvDeleted(_) => {
                let env = id.parse().ok().and_then(|id| self.of_env.remove(&id));
                if let Some(env) = env {
                    self.envs.remove(&(env.app, env.slug));
                }
            }
            _ => {}
        }
    }
}
