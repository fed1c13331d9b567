//! Quotas, projects, apps, envs, releases, routes and secrets.

use std::collections::BTreeMap;

use fluffy_api::types::{self, Challenge, ProtocolHint, ProxyProtocol};
use fluffy_base::Digest;
use fluffy_base::id::{AppId, EnvId, OrgId, ProjectId, ReleaseId, RouteId, SecretBundleId};
use fluffy_planner::model::Driver;
use serde_json::Value;

use super::{Asked, View, found, isolation};
use crate::operations::not_found;
use crate::refusal::Refusal;
use crate::runtime::notice::log_date;
use crate::runtime::quota::Dimension;

/// Conditions of what an org prints in a day: it is near its share, or over it.
pub(super) const LOGS_NEAR: &str = "logs_near_quota";
pub(super) const LOGS_SAMPLED: &str = "logs_sampled";

impl View<'_> {
    pub(super) fn quotas(&self, id: OrgId) -> Option<types::Quotas> {
        let runtime = self.runtime();
        let quotas = Dimension::ALL.iter().map(|dimension| {
            let limit = runtime.limit(id, *dimension);
            let quota = types::Quota {
                limit: Some(limit).filter(|limit| *limit != u64::MAX),
                used: runtime.used(id, *dimension),
            };
            (dimension.as_str().to_owned(), quota)
        });
        Some(types::Quotas {
            org_id: id,
            version: self.meta("org", id)?.version,
            quotas: quotas.collect(),
        })
    }

    pub(super) fn project(&self, id: ProjectId) -> Option<types::Project> {
        let project = self.runtime().projects.get(&id)?;
        Some(types::Project {
            meta: self.meta("project", id)?,
            org_id: project.org,
            name: project.slug.clone(),
            display_name: project.display_name.clone(),
        })
    }

    pub(super) fn app(&self, id: AppId) -> Option<types::App> {
        let app = self.runtime().apps.get(&id)?;
        Some(types::App {
            meta: self.meta("app", id)?,
            org_id: app.org,
            project_id: app.project,
            name: app.name.clone(),
            display_name: app.display_name.clone().unwrap_or_else(|| app.name.clone()),
            description: app.description.clone(),
        })
    }

    pub(super) fn env(&self, id: EnvId) -> Option<types::Env> {
        let env = self.runtime().envs.get(&id)?;
        let desired = env.desired.iter();
        Some(types::Env {
            meta: self.meta("env", id)?,
            org_id: env.org,
            app_id: env.app,
            name: env.name.clone(),
            display_name: env.display_name.clone().unwrap_or_else(|| env.name.clone()),
            status: match env.deleted_at {
                Some(_) => "deleting",
                None => "active",
            }
            .to_owned(),
            protected: env.protected,
            allow_shared_kernel: env.allow_shared_kernel,
            isolation: self.isolation(id),
            desired_releases: desired
                .map(|(process, wanted)| (process.clone(), wanted.release))
                .collect(),
            ipv4: self.ipv4(id),
            conditions: self.conditions(id),
        })
    }

    pub(super) fn ipv4(&self, id: EnvId) -> Option<types::Ipv4> {
        let (allocation_id, address) = self.runtime().envs.get(&id)?.ipv4?;
        Some(types::Ipv4 {
            allocation_id,
            address: address.to_string(),
        })
    }

    /// What is so in an env for now: of its groups, and of it as a whole.
    pub(super) fn conditions(&self, id: EnvId) -> Vec<types::Condition> {
        let runtime = self.runtime();
        let groups = runtime.plan.groups.keys().filter(|group| group.env == id);
        let mut all: Vec<_> = groups
            .flat_map(|group| self.group_conditions(id, &group.process))
            .collect();
        let shared = self.isolation(id).filter(|it| it.level == "shared-kernel");
        if let Some(isolation) = shared {
            all.push(types::Condition {
                condition: "shared_kernel".to_owned(),
                process: None,
                reason: Some(isolation.driver),
                detail: Some("SHARED KERNEL: instances share the kernel of their node".to_owned()),
                since: None,
            });
        }
        all.extend(self.weaker(id));
        all.extend(self.log_quota(id));
        all
    }

    /// The process types whose instances share more than the env accepts by now.
    fn weaker(&self, id: EnvId) -> Vec<types::Condition> {
        let plan = &self.runtime().plan;
        let Some(env) = plan.envs.get(&id) else {
            return Vec::new();
        };
        let mut weaker: BTreeMap<&str, (usize, Driver)> = BTreeMap::new();
        for instance in plan.instances.values() {
            let (group, driver) = (&instance.group, instance.driver);
            let accepted = env.isolation.accepts(driver.level());
            if group.env == id && !accepted && !instance.has_ended() {
                let (many, weakest) = weaker.entry(&group.process).or_insert((0, driver));
                *many += 1;
                *weakest = driver.max(*weakest);
            }
        }
        let conditions = weaker.into_iter().map(|(process, (many, weakest))| {
            let level = isolation(weakest).level;
            types::Condition {
                condition: "isolation_weaker".to_owned(),
                process: Some(process.to_owned()),
                detail: Some(format!(
                    "{many} of its instances run as {level}, which the env does not accept any \
                     more; each goes once another one can take its place"
                )),
                reason: Some(level),
                since: None,
            }
        });
        conditions.collect()
    }

    /// What the env's org was told today of what it printed.
    fn log_quota(&self, id: EnvId) -> Option<types::Condition> {
        const DAY: i64 = 24 * 3600 * 1_000_000;
        let runtime = self.runtime();
        let told = runtime.orgs.get(&runtime.envs.get(&id)?.org)?;
        let told = told.log_quota.as_ref()?;
        let today = u64::try_from(self.now.as_micros() / DAY).unwrap_or(0);
        let (percent, limit) = (told.percent, told.limit);
        let (condition, then) = match percent {
            100.. => (LOGS_SAMPLED, "; of further lines one of ten is kept"),
            _ => (LOGS_NEAR, ""),
        };
        let is_today = told.day == log_date(today);
        is_today.then(|| types::Condition {
            condition: condition.to_owned(),
            process: None,
            reason: Some("log_bytes_per_day".to_owned()),
            detail: Some(format!(
                "the org has printed {percent} % of the {limit} bytes of today{then}"
            )),
            since: Some(told.since),
        })
    }

    pub(super) fn release(&self, id: ReleaseId) -> Option<types::Release> {
        let release = self.runtime().releases.get(&id)?;
        let manifest = release.manifest.as_deref();
        let manifest = manifest.map(|it| serde_json::from_str(&it.canonical()));
        let images = release.images.iter();
        Some(types::Release {
            meta: self.meta("release", id)?,
            org_id: release.org,
            app_id: release.app,
            status: release.state.to_string(),
            blocked_reason: release.blocked.clone(),
            image_ref: release.image_ref.clone(),
            image_digest: release.image_digest.clone(),
            platforms: images
                .map(|image| types::ImagePlatform {
                    os: image.os.clone(),
                    arch: image.arch.clone(),
                    digest: image.digest.clone(),
                })
                .collect(),
            compressed_bytes: release.compressed_bytes,
            manifest_schema_version: release.schema_version.clone(),
            manifest_hash: release.manifest_hash,
            manifest: manifest.and_then(Result::ok).unwrap_or_default(),
            created_by: release.created_by.clone(),
            retired_at: release.retired_at,
        })
    }

    pub(super) fn route(&self, id: RouteId) -> Option<types::Route> {
        let route = self.runtime().routes.get(&id)?;
        let challenge = route.hostname.as_ref().filter(|_| !route.verified);
        Some(types::Route {
            meta: self.meta("route", id)?,
            org_id: route.org,
            app_id: route.app,
            env_id: route.env,
            status: route.state.to_string(),
            reason: route.reason.clone(),
            hostname: route.hostname.clone(),
            verified: route.verified,
            challenge: challenge.map(|hostname| challenge_of(id, hostname)),
            listen_port: route.listen_port,
            protocol_hint: match route.protocol_hint.as_str() {
                "tcp_raw" => ProtocolHint::TcpRaw,
                _ => ProtocolHint::TlsPassthrough,
            },
            backend_process: route.backend_process.clone(),
            backend_port: route.backend_port,
            proxy_protocol: match route.proxy_protocol.as_str() {
                "v2" => ProxyProtocol::V2,
                _ => ProxyProtocol::Off,
            },
            backend_expects_proxy_protocol: route.backend_expects_proxy_protocol,
            ipv4_required: route.ipv4_required,
            address: route
                .loopback
                .then(|| format!("127.0.0.1:{}", route.listen_port)),
        })
    }

    pub(super) fn secrets(&self, id: SecretBundleId) -> Option<types::SecretBundle> {
        let bundle = self.runtime().bundles.get(&id)?;
        let current = bundle.current?;
        let versions = bundle.versions.iter().rev();
        let keys = bundle.versions.iter().find(|it| it.id == current);
        Some(types::SecretBundle {
            meta: self.meta("secret_bundle", id)?,
            org_id: bundle.org,
            app_id: bundle.app,
            env_id: bundle.env,
            status: bundle.state?.to_string(),
            current_version_id: current,
            keys: keys.map(|it| it.keys.clone()).unwrap_or_default(),
            versions: versions
                .map(|it| types::SecretVersion {
                    id: it.id,
                    status: match it.id == current {
                        true => "current",
                        false => "previous",
                    }
                    .to_owned(),
                    data_hash: it.data_hash.to_string(),
                    key_count: u32::try_from(it.key_count).unwrap_or(u32::MAX),
                    size_bytes: it.size_bytes,
                    master_key_id: it.master_key.to_string(),
                    created_at: it.created_at,
                })
                .collect(),
        })
    }
}

/// What proves that a hostname is the org's; the same whenever it is asked for.
#[must_use]
pub(crate) fn challenge_of(id: RouteId, hostname: &str) -> Challenge {
    let value = Digest::of_parts(&[b"fluffy-route\0", id.to_string().as_bytes()]);
    Challenge {
        record: format!("_fluffy-challenge.{hostname}"),
        value: value.to_string(),
    }
}

impl Asked<'_> {
    pub(super) fn projects(&self) -> Result<Value, Refusal> {
        let all = self.view.runtime().projects.iter();
        let own = all.filter(|(_, it)| Some(it.org) == self.place.owner.org);
        self.page("project", own.map(|(id, _)| *id), View::project)
    }

    fn project_id(&self, text: &str) -> Option<ProjectId> {
        let named: Option<ProjectId> = text.parse().ok();
        let mut all = self.view.runtime().projects.iter();
        let found = all.find(|(id, it)| {
            Some(it.org) == self.place.owner.org && (it.slug == text || Some(**id) == named)
        });
        found.map(|(id, _)| *id)
    }

    pub(super) fn project(&self) -> Result<Value, Refusal> {
        let id = self.place.leaf.as_deref();
        let id = id.and_then(|text| self.project_id(text));
        found(id.and_then(|id| self.view.project(id)))
    }

    pub(super) fn apps(&self) -> Result<Value, Refusal> {
        let project = match self.given("project") {
            Some(text) => Some(self.project_id(text).ok_or_else(not_found)?),
            None => None,
        };
        let own = self.view.runtime().apps.iter().filter(|(_, it)| {
            Some(it.org) == self.place.owner.org && (project.is_none() || it.project == project)
        });
        self.page("app", own.map(|(id, _)| *id), View::app)
    }

    pub(super) fn envs(&self) -> Result<Value, Refusal> {
        let all = self.view.runtime().envs.iter();
        let own = all.filter(|(_, it)| Some(it.app) == self.place.owner.app);
        self.page("env", own.map(|(id, _)| *id), View::env)
    }

    pub(super) fn releases(&self) -> Result<Value, Refusal> {
        let all = self.view.runtime().releases.iter();
        let own = all.filter(|(_, it)| Some(it.app) == self.place.owner.app);
        self.page("release", own.map(|(id, _)| *id), View::release)
    }

    pub(super) fn routes(&self) -> Result<Value, Refusal> {
        let all = self.view.runtime().routes.iter();
        let own = all.filter(|(_, it)| Some(it.env) == self.place.owner.env);
        self.page("route", own.map(|(id, _)| *id), View::route)
    }

    pub(super) fn secrets(&self) -> Result<Value, Refusal> {
        let env = self.place.owner.env;
        let env = env.and_then(|env| self.view.runtime().envs.get(&env));
        let bundle = env.and_then(|env| env.bundle);
        found(bundle.and_then(|id| self.view.secrets(id)))
    }
}
