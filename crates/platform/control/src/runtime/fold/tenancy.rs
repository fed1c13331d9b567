//! Orgs, projects, apps, envs, and the cluster as a whole.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fluffy_base::id::EnvId;
use fluffy_planner::model::{self as planner, EnvIsolation, EnvLife};

use super::{At, retain};
use crate::event::{Body, EnvCreated};
use crate::runtime::ipam::{Prefix, REST, ipv4_range};
use crate::runtime::quota::Dimension;
use crate::runtime::record::{App, Env, LogQuota, MasterKey, Org, Project};
use crate::runtime::{Runtime, spec};

/// How long the name of something that is gone is kept.
const RESERVED: Duration = Duration::from_secs(30 * 24 * 3600);

pub(super) fn apply(runtime: &mut Runtime, at: &At<'_>, body: &Body) {
    cluster(runtime, at, body);
    org(runtime, at, body);
    app(runtime, at, body);
    let _ = env(runtime, at, body);
}

fn cluster(runtime: &mut Runtime, at: &At<'_>, body: &Body) {
    let cluster = &mut runtime.cluster;
    match body {
        Body::ClusterInitialized(it) => {
            cluster.ledger = Some(it.ledger_id);
            runtime.ipam.prefix = Prefix::parse(&it.ipv6_prefix);
        }
        Body::ClusterReaderVersionSet(it) => cluster.reader_version = it.min_version,
        Body::ClusterIpv4PoolSet(it) => {
            let ranges = it.ranges.iter();
            runtime.ipam.public = ranges.filter_map(|range| ipv4_range(range)).collect();
        }
        Body::ClusterImageLimitSet(it) => {
            cluster.image_limits.insert(it.name.clone(), it.limit);
        }
        Body::LedgerSegmentSealed(it) => cluster.sealed_to = it.last_seq,
        Body::LedgerSegmentPruned(it) => cluster.pruned_to = it.last_seq,
        Body::ProjectionRebuilt(it) => {
            cluster.rebuilt.insert(it.name.clone(), it.to_seq);
        }
        Body::MasterKeyIntroduced(it) => {
            let key = MasterKey {
                introduced_at: at.now(),
                retired_at: None,
                asked: None,
            };
            cluster.keys.insert(it.master_key_id, key);
        }
        Body::MasterKeyRetireAsked(it) => {
            if let Some(key) = cluster.keys.get_mut(&it.master_key_id) {
                key.asked = Some((it.by.clone(), at.now()));
            }
        }
        Body::MasterKeyRetired(it) => {
            if let Some(key) = cluster.keys.get_mut(&it.master_key_id) {
                key.retired_at = Some(at.now());
                key.asked = None;
            }
        }
        Body::MasterKeyRewrapped(it) => {
            for bundle in runtime.bundles.values_mut() {
                let versions = bundle.versions.iter_mut();
                for version in versions.filter(|version| version.master_key == it.from) {
                    version.master_key = it.to;
                }
            }
        }
        _ => {}
    }
}

fn org(runtime: &mut Runtime, at: &At<'_>, body: &Body) {
    match body {
        Body::OrgCreated(it) => {
            let Some(id) = at.id() else { return };
            let org = Org {
                slug: it.slug.clone(),
                display_name: it.display_name.clone(),
                limits: BTreeMap::new(),
                legal_hold: None,
                execs: VecDeque::new(),
                log_quota: None,
            };
            runtime.orgs.insert(id, org);
            limits(runtime, at);
        }
        Body::OrgUpdated(it) => {
            if let Some(org) = at.id().and_then(|id| runtime.orgs.get_mut(&id))
                && let Some(name) = &it.display_name
            {
                org.display_name.clone_from(name);
            }
        }
        Body::OrgQuotaSet(it) => {
            if let Some(org) = at.id().and_then(|id| runtime.orgs.get_mut(&id))
                && let Some(dimension) = Dimension::parse(&it.dimension)
            {
                org.limits.insert(dimension, it.limit);
            }
            limits(runtime, at);
        }
        Body::OrgLogQuotaReached(it) => {
            if let Some(org) = at.id().and_then(|id| runtime.orgs.get_mut(&id)) {
                org.log_quota = Some(LogQuota {
                    day: it.day.clone(),
                    percent: it.percent,
                    limit: it.limit,
                    since: at.now(),
                });
            }
        }
        Body::OrgLegalHoldSet(it) => {
            if let Some(org) = at.id().and_then(|id| runtime.orgs.get_mut(&id)) {
                org.legal_hold = it.until;
            }
        }
        _ => {}
    }
}

/// Tells the planner what an org may have.
fn limits(runtime: &mut Runtime, at: &At<'_>) {
    let Some(id) = at.id() else { return };
    let quota = planner::Quota {
        instances: runtime.limit(id, Dimension::Instances),
        memory: runtime.limit(id, Dimension::Memory),
        cpu_millis: runtime.limit(id, Dimension::Cpu),
    };
    runtime.plan.orgs.insert(id, planner::Org { quota });
}

fn app(runtime: &mut Runtime, at: &At<'_>, body: &Body) {
    match body {
        Body::ProjectCreated(it) => {
            let (Some(id), Some(org)) = (at.id(), at.org()) else {
                return;
            };
            let project = Project {
                org,
                slug: it.slug.clone(),
                display_name: it.display_name.clone(),
            };
            runtime.projects.insert(id, project);
        }
        Body::ProjectUpdated(it) => {
            if let Some(project) = at.id().and_then(|id| runtime.projects.get_mut(&id)) {
                project.display_name.clone_from(&it.display_name);
            }
        }
        Body::ProjectDeleted(_) => {
            if let Some(project) = at.id().and_then(|id| runtime.projects.remove(&id)) {
                at.forget("project", &at.event.aggregate.id);
                reserve(
                    runtime,
                    at,
                    format!("{}/project/{}", project.org, project.slug),
                );
            }
        }
        Body::AppCreated(it) => {
            let (Some(id), Some(org)) = (at.id(), at.org()) else {
                return;
            };
            let app = App {
                org,
                name: it.name.clone(),
                display_name: it.display_name.clone(),
                description: it.description.clone(),
                project: it.project_id,
            };
            runtime.apps.insert(id, app);
        }
        Body::AppUpdated(it) => {
            if let Some(app) = at.id().and_then(|id| runtime.apps.get_mut(&id)) {
                let or = |new: &Option<String>, old: &mut Option<String>| {
                    if let Some(new) = new {
                        *old = Some(new.clone()).filter(|text| !text.is_empty());
                    }
                };
                or(&it.display_name, &mut app.display_name);
                or(&it.description, &mut app.description);
                app.project = match it.project_removed {
                    Some(true) => None,
                    _ => it.project_id.or(app.project),
                };
            }
        }
        Body::AppDeleted(_) => {
            let Some(id) = at.id() else { return };
            if let Some(app) = runtime.apps.remove(&id) {
                at.forget("app", id);
                retain(at, "release", &mut runtime.releases, |it| it.app != id);
                reserve(runtime, at, format!("{}/app/{}", app.org, app.name));
            }
        }
        // The account itself is the other half's; its name is kept with those
        // of everything else.
        Body::ServicePrincipalDeleted(it) => {
            if let Some((org, name)) = at.org().zip(it.name.as_ref()) {
                reserve(runtime, at, format!("{org}/principal/{name}"));
            }
        }
        _ => {}
    }
}

fn env(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    match body {
        Body::EnvCreated(it) => created(runtime, at, it)?,
        Body::EnvUpdated(it) => {
            let id: EnvId = at.id()?;
            let env = runtime.envs.get_mut(&id)?;
            env.protected = it.protected.unwrap_or(env.protected);
            env.allow_shared_kernel = it.allow_shared_kernel.unwrap_or(env.allow_shared_kernel);
            if let Some(name) = &it.display_name {
                env.display_name = Some(name.clone());
            }
            let isolation = isolation(env.protected, env.allow_shared_kernel);
            runtime.plan.envs.get_mut(&id)?.isolation = isolation;
            touch(runtime, at, id);
        }
        Body::EnvDeleted(_) => {
            let id: EnvId = at.id()?;
            runtime.envs.get_mut(&id)?.deleted_at = Some(at.now());
            runtime.plan.envs.get_mut(&id)?.life = EnvLife::Deleted;
            let groups = runtime.plan.groups.iter_mut();
            for (_, group) in groups.filter(|(group, _)| group.env == id) {
                group.version = at.seq();
            }
            runtime.routing_seq = at.seq();
            let (app, name) = {
                let env = runtime.envs.get(&id)?;
                (env.app, env.name.clone())
            };
            reserve(runtime, at, format!("{app}/env/{name}"));
            touch(runtime, at, id);
            clear(runtime, at, id);
        }
        Body::EnvScaleSet(it) => {
            let id: EnvId = at.id()?;
            let env = runtime.envs.get_mut(&id)?;
            for scale in &it.scales {
                match scale.desired {
                    Some(desired) => env.scales.insert(scale.process.clone(), desired),
                    None => env.scales.remove(&scale.process),
                };
            }
            for scale in &it.scales {
                spec::refresh(runtime, id, &scale.process, at.seq());
            }
            touch(runtime, at, id);
        }
        Body::EnvIpv4AddonEnabled(it) => {
            let address: std::net::Ipv4Addr = it.ipv4_address.parse().ok()?;
            let env = runtime.envs.get_mut(&at.id()?)?;
            env.ipv4 = Some((it.allocation_id, address));
            let address = u128::from(address.to_bits());
            runtime.ipam.ipv4.take(address, at.now());
            runtime.routing_seq = at.seq();
        }
        Body::EnvIpv4AddonDisabled(it) => {
            let address: std::net::Ipv4Addr = it.ipv4_address.parse().ok()?;
            runtime.envs.get_mut(&at.id()?)?.ipv4 = None;
            let address = u128::from(address.to_bits());
            runtime.ipam.ipv4.give_back(address, at.now(), REST);
            runtime.routing_seq = at.seq();
        }
        _ => {}
    }
    Some(())
}

fn created(runtime: &mut Runtime, at: &At<'_>, it: &EnvCreated) -> Option<()> {
    let (id, org) = (at.id()?, at.org()?);
    let env = Env {
        org,
        app: at.app()?,
        name: it.name.clone(),
        display_name: None,
        protected: it.protected,
        allow_shared_kernel: it.allow_shared_kernel,
        desired: BTreeMap::new(),
        scales: BTreeMap::new(),
        ipv4: None,
        bundle: None,
        deploys: VecDeque::new(),
        deleted_at: None,
        last_error: None,
    };
    runtime.envs.insert(id, env);
    let plan = planner::Env {
        version: at.seq(),
        org,
        isolation: isolation(it.protected, it.allow_shared_kernel),
        secrets: None,
        life: EnvLife::Live,
    };
    runtime.plan.envs.insert(id, plan);
    Some(())
}

const fn isolation(protected: bool, allow_shared_kernel: bool) -> EnvIsolation {
    match (protected, allow_shared_kernel) {
        (true, _) => EnvIsolation::Protected,
        (false, true) => EnvIsolation::SharedKernelAllowed,
        (false, false) => EnvIsolation::Virtual,
    }
}

/// Steps that were planned on the env as it was are refused from now on.
pub(super) fn touch(runtime: &mut Runtime, at: &At<'_>, env: EnvId) {
    if let Some(env) = runtime.plan.envs.get_mut(&env) {
        env.version = at.seq();
    }
}

pub(super) fn reserve(runtime: &mut Runtime, at: &At<'_>, name: String) {
    let now = at.now();
    runtime.reserved.retain(|_, until| *until > now);
    runtime.reserved.insert(name, now.after(RESERVED));
}

/// Forgets an env that is to go, once nothing of it is left.
pub(super) fn clear(runtime: &mut Runtime, at: &At<'_>, id: EnvId) {
    let gone = runtime
        .envs
        .get(&id)
        .is_some_and(|env| env.deleted_at.is_some());
    let instances = runtime.plan.instances.values();
    if !gone || instances.map(|it| it.group.env).any(|env| env == id) {
        return;
    }
    runtime.envs.remove(&id);
    runtime.plan.envs.remove(&id);
    runtime.plan.groups.retain(|group, _| group.env != id);
    runtime.plan.deploys.retain(|_, deploy| deploy.env != id);
    runtime.groups.retain(|group, _| group.env != id);
    retain(at, "deploy", &mut runtime.deploys, |it| it.env != id);
    retain(at, "exec_session", &mut runtime.execs, |it| it.env != id);
    retain(at, "secret_bundle", &mut runtime.bundles, |it| it.env != id);
    let attachments = &mut runtime.attachments;
    retain(at, "volume_attachment", attachments, |it| it.env != id);
}
