//! Releases, deploys, what process types should run, and secrets.

use std::sync::Arc;

use fluffy_base::id::{DeployId, EnvId, ReleaseId, SecretVersionId};
use fluffy_planner::lifecycle::{DeployState, ReleaseState, SecretBundleState};
use fluffy_planner::model::{self as planner, Secrets};

use super::{At, tenancy};
use crate::event::{Body, DeployCreated, DeployStatusChanged, ReleaseCreated};
use crate::runtime::record::{Deploy, LastError, Release, SecretBundle, SecretVersion, Wanted};
use crate::runtime::{Runtime, spec};

/// How many final deploys of an env are kept.
const DEPLOYS: usize = 100;

pub(super) fn apply(runtime: &mut Runtime, at: &At<'_>, body: &Body) {
    let _ = release(runtime, at, body);
    let _ = deploy(runtime, at, body);
    let _ = secrets(runtime, at, body);
}

fn release(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    match body {
        Body::ReleaseCreated(it) => {
            let id: ReleaseId = at.id()?;
            let release = read(at, it)?;
            runtime.releases.insert(id, release);
        }
        Body::ReleaseBlocked(it) => {
            let release = runtime.releases.get_mut(&at.id()?)?;
            release.state = ReleaseState::Blocked;
            release.blocked = Some(it.reason.clone());
        }
        Body::ReleaseUnblocked(_) => {
            let release = runtime.releases.get_mut(&at.id()?)?;
            release.state = ReleaseState::Available;
            release.blocked = None;
        }
        Body::ReleaseRetired(_) => {
            let release = runtime.releases.get_mut(&at.id()?)?;
            release.state = ReleaseState::Retired;
            release.retired_at = Some(at.now());
            // By far the largest part of it; what it was is in the ledger.
            release.manifest = None;
        }
        _ => {}
    }
    Some(())
}

fn read(at: &At<'_>, it: &ReleaseCreated) -> Option<Release> {
    Some(Release {
        org: at.org()?,
        app: at.app()?,
        state: ReleaseState::Available,
        blocked: None,
        image_ref: it.image_ref.clone(),
        image_digest: it.index_or_manifest_digest.clone(),
        images: it.resolved_digests.clone(),
        compressed_bytes: it.compressed_bytes,
        schema_version: it.manifest_schema_version.clone(),
        manifest_hash: it.manifest_hash,
        manifest: Some(Arc::new(serde_json::from_value(it.manifest.clone()).ok()?)),
        created_by: at.actor(),
        retired_at: None,
    })
}

fn deploy(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    match body {
        Body::DeployCreated(it) => opened(runtime, at, it)?,
        Body::DeployStatusChanged(it) => moved(runtime, at, it)?,
        Body::EnvDesiredReleaseSet(it) => {
            let id: EnvId = at.id()?;
            let wanted = Wanted {
                release: it.release_id,
                secrets: it.secret_version_id,
                deploy: it.deploy_id,
            };
            let env = runtime.envs.get_mut(&id)?;
            env.desired.insert(it.process.clone(), wanted);
            spec::refresh(runtime, id, &it.process, at.seq());
            if let Some(group) = spec::group_mut(runtime, id, &it.process) {
                group.held = false;
            }
            runtime.routing_seq = at.seq();
            tenancy::touch(runtime, at, id);
        }
        Body::EnvDesiredReleaseCleared(it) => {
            let id: EnvId = at.id()?;
            runtime.envs.get_mut(&id)?.desired.remove(&it.process);
            spec::refresh(runtime, id, &it.process, at.seq());
            tenancy::touch(runtime, at, id);
        }
        _ => {}
    }
    Some(())
}

fn opened(runtime: &mut Runtime, at: &At<'_>, it: &DeployCreated) -> Option<()> {
    let (id, env_id): (DeployId, EnvId) = (at.id()?, at.env()?);
    let kind = spec::deploy_kind(&it.kind)?;
    let env = runtime.envs.get_mut(&env_id)?;
    let before = it.process_types.iter();
    let before = before.map(|process| (process.clone(), env.desired.get(process).copied()));
    let deploy = Deploy {
        org: at.org()?,
        app: at.app()?,
        env: env_id,
        kind,
        release: it.release_id,
        instance: it.instance_id,
        before: before.collect(),
        attached: Vec::new(),
        detached: Vec::new(),
        options: spec::options(&it.options),
        state: DeployState::Queued,
        message: None,
        failed_reason: None,
        created_by: at.actor(),
        created_at: at.now(),
        finished_at: None,
    };
    env.deploys.push_back(id);
    let groups = it.from_releases.iter();
    let groups = groups.map(|(process, release)| (spec::group_id(env_id, process), *release));
    let plan = planner::Deploy {
        version: at.seq(),
        env: env_id,
        kind,
        opened: at.now(),
        state: DeployState::Queued,
        since: at.now(),
        groups: groups.collect(),
        options: deploy.options,
    };
    if let Some(instance) = it
        .instance_id
        .and_then(|id| runtime.plan.instances.get_mut(&id))
    {
        instance.restart = true;
    }
    for group in plan.groups.keys() {
        if let Some(group) = runtime.plan.groups.get_mut(group) {
            group.version = at.seq();
        }
    }
    runtime.plan.deploys.insert(id, plan);
    runtime.deploys.insert(id, deploy);
    Some(())
}

fn moved(runtime: &mut Runtime, at: &At<'_>, it: &DeployStatusChanged) -> Option<()> {
    let id: DeployId = at.id()?;
    let state = DeployState::parse(&it.status)?;
    let deploy = runtime.deploys.get_mut(&id)?;
    deploy.state = state;
    deploy.message.clone_from(&it.message);
    deploy.failed_reason.clone_from(&it.failed_reason);
    let (env_id, instance) = (deploy.env, deploy.instance);
    if !state.is_final() {
        let plan = runtime.plan.deploys.get_mut(&id)?;
        (plan.state, plan.since, plan.version) = (state, at.now(), at.seq());
        return Some(());
    }
    deploy.finished_at = Some(at.now());
    let plan = runtime.plan.deploys.remove(&id)?;
    for group in plan.groups.keys() {
        if let Some(group) = runtime.plan.groups.get_mut(group) {
            // Nothing is wanted otherwise once it succeeded.
            if state != DeployState::Succeeded {
                group.version = at.seq();
            }
            group.held |= state == DeployState::Failed;
        }
    }
    if state == DeployState::Canceled
        && let Some(instance) = instance.and_then(|id| runtime.plan.instances.get_mut(&id))
    {
        instance.restart = false;
    }
    let env = runtime.envs.get_mut(&env_id)?;
    if state == DeployState::Failed {
        env.last_error = Some(LastError {
            at: at.now(),
            reason: it
                .failed_reason
                .clone()
                .unwrap_or_else(|| "failed".to_owned()),
            detail: it.message.clone(),
            instance: None,
        });
    }
    while env.deploys.len() > DEPLOYS {
        let oldest = env.deploys.front().copied()?;
        if runtime.plan.deploys.contains_key(&oldest) {
            break;
        }
        env.deploys.pop_front();
        runtime.deploys.remove(&oldest);
        at.forget("deploy", oldest);
    }
    Some(())
}

fn secrets(runtime: &mut Runtime, at: &At<'_>, body: &Body) -> Option<()> {
    match body {
        Body::SecretBundleCreated(it) => {
            let (id, env) = (at.id()?, at.env()?);
            let bundle = SecretBundle {
                org: at.org()?,
                app: at.app()?,
                env,
                format: it.format.clone(),
                state: None,
                current: None,
                versions: Vec::new(),
            };
            runtime.bundles.insert(id, bundle);
            runtime.envs.get_mut(&env)?.bundle = Some(id);
        }
        Body::SecretBundleVersionSet(it) => {
            let bundle = runtime.bundles.get_mut(&at.id()?)?;
            bundle.current = Some(it.version_id);
            // Going back to a version that is kept makes no second one.
            if !bundle.versions.iter().any(|kept| kept.id == it.version_id) {
                bundle.versions.push(SecretVersion {
                    id: it.version_id,
                    data_hash: it.data_hash,
                    key_count: it.key_count,
                    keys: it.keys.clone().unwrap_or_default(),
                    size_bytes: it.size_bytes,
                    master_key: it.master_key_id,
                    created_at: at.now(),
                });
            }
            let state = match bundle.state {
                None => SecretBundleState::Active,
                Some(_) => SecretBundleState::Rotating,
            };
            stand(runtime, at, state, Some(it.version_id))?;
        }
        Body::SecretBundleRotationChanged(it) => {
            let state = SecretBundleState::parse(&it.status)?;
            stand(runtime, at, state, None)?;
        }
        Body::SecretBundleVersionDestroyed(it) => {
            let bundle = runtime.bundles.get_mut(&at.id()?)?;
            bundle
                .versions
                .retain(|version| version.id != it.version_id);
        }
        Body::SecretBundleDeleted(_) => {
            let bundle = runtime.bundles.remove(&at.id()?)?;
            at.forget("secret_bundle", &at.event.aggregate.id);
            runtime.envs.get_mut(&bundle.env)?.bundle = None;
            runtime.plan.envs.get_mut(&bundle.env)?.secrets = None;
            tenancy::touch(runtime, at, bundle.env);
        }
        _ => {}
    }
    Some(())
}

/// Where the secrets of an env stand, for us and for the planner.
fn stand(
    runtime: &mut Runtime,
    at: &At<'_>,
    state: SecretBundleState,
    version: Option<SecretVersionId>,
) -> Option<()> {
    let bundle = runtime.bundles.get_mut(&at.id()?)?;
    bundle.state = Some(state);
    let version = version.or(bundle.current)?;
    let env = bundle.env;
    runtime.plan.envs.get_mut(&env)?.secrets = Some(Secrets { version, state });
    tenancy::touch(runtime, at, env);
    Some(())
}
