//! Deploys, rollbacks, restarts and scale.

use std::collections::BTreeMap;

use fluffy_api::Operation;
use fluffy_api::types::{
    CreateDeploy, CreateRollback, DeployOptions, DeploySource, OnFailure, RequestedDeployOptions,
    SetScale,
};
use fluffy_base::id::{DeployId, EnvId, InstanceId, ReleaseId, SecretVersionId};
use fluffy_ledger::checkpoint::origin;
use fluffy_ledger::{SignedCheckpoint, Source};
use fluffy_manifest::Manifest;
use fluffy_manifest::model::OnFailure as ManifestOnFailure;
use fluffy_planner::lifecycle::{Cause, DeployState, SecretBundleState};
use fluffy_planner::model::{DeployKind, Desired};

use super::mounts::given_back;
use super::preflight::{self, Preflight};
use super::{Decided, Desk, invalid, missing, transition};
use crate::call::{Fact, Subject};
use crate::event::{
    DeployCreated, DeployStatusChanged, EnvDesiredReleaseCleared, EnvDesiredReleaseSet,
    EnvScaleSet, ScaleSet, SecretBundleRotationChanged,
};
use crate::refusal::Refusal;
use crate::runtime::{Runtime, record, spec};

pub(super) fn create(desk: &Desk<'_>) -> Decided {
    let body: CreateDeploy = desk.body()?;
    let manifest = preflight::deployable(release(desk, body.release_id)?)?;
    let processes = match body.process_types {
        Some(named) if named.is_empty() => {
            return Err(invalid("process_types", "it names no process type"));
        }
        Some(named) => {
            let unknown = named
                .iter()
                .find(|name| !manifest.processes.contains_key(*name));
            if let Some(unknown) = unknown {
                let why = format!("the release has no process type `{unknown}`");
                return Err(invalid("process_types", &why));
            }
            Some(named)
        }
        None => None,
    };
    let wanted = Requested {
        kind: DeployKind::Deploy,
        cause: Cause::EnvDeploy,
        release: body.release_id,
        processes,
        options: body.options,
        source: body.source.map(source).transpose()?,
    };
    roll_out(desk, wanted)
}

/// What a deploy rests on. Whether it is so is seen where that ledger is; here
/// it only has to be something that can be looked for there.
fn source(named: DeploySource) -> Result<Source, Refusal> {
    let checkpoint = SignedCheckpoint::parse(&named.checkpoint);
    let checkpoint =
        checkpoint.map_err(|error| invalid("source.checkpoint", &error.to_string()))?;
    let covered = checkpoint.checkpoint;
    if covered.origin != origin(named.ledger_id) {
        return Err(invalid("source.checkpoint", "it is of another ledger"));
    }
    if named.seq == 0 || named.seq > covered.size {
        return Err(invalid("source.seq", "the checkpoint does not cover it"));
    }
    Ok(Source {
        ledger_id: named.ledger_id,
        seq: named.seq,
        hash: named.hash,
        checkpoint: named.checkpoint,
    })
}

pub(super) fn rollback(desk: &Desk<'_>) -> Decided {
    let body: CreateRollback = desk.body()?;
    let (_, env) = desk.env()?;
    let release = match body.to_release {
        Some(release) => release,
        None => before(desk.runtime(), env).ok_or_else(|| {
            let why = "no other release has succeeded here";
            let fix = "name a release with `to_release`";
            Refusal::new("no_rollback_target", why, fix)
        })?,
    };
    let wanted = Requested {
        kind: DeployKind::Rollback,
        cause: Cause::EnvRollback,
        release,
        processes: None,
        options: body.options,
        source: None,
    };
    roll_out(desk, wanted)
}

/// The last release that succeeded in an env and is not what it should run.
fn before(runtime: &Runtime, env: &record::Env) -> Option<ReleaseId> {
    let deploys = env.deploys.iter().rev();
    let mut succeeded = deploys
        .filter_map(|id| runtime.deploys.get(id))
        .filter(|deploy| deploy.state == DeployState::Succeeded)
        .filter_map(|deploy| deploy.release);
    succeeded.find(|release| {
        let deployable = runtime
            .releases
            .get(release)
            .is_some_and(|it| it.state == fluffy_planner::lifecycle::ReleaseState::Available);
        deployable
            && !env
                .desired
                .values()
                .any(|wanted| wanted.release == *release)
    })
}

fn release<'a>(desk: &Desk<'a>, id: ReleaseId) -> Result<&'a record::Release, Refusal> {
    let (app, _) = desk.app()?;
    let release = desk.runtime().releases.get(&id);
    release
        .filter(|release| release.app == app)
        .ok_or_else(|| missing("release"))
}

/// What somebody wants rolled out.
struct Requested {
    kind: DeployKind,
    cause: Cause,
    release: ReleaseId,
    processes: Option<Vec<String>>,
    options: RequestedDeployOptions,
    source: Option<Source>,
}

fn roll_out(desk: &Desk<'_>, wanted: Requested) -> Decided {
    let (env_id, env) = desk.env()?;
    let (_, app) = desk.app()?;
    let release = release(desk, wanted.release)?;
    let manifest = preflight::deployable(release)?;
    let options = options(manifest, &wanted.options)?;
    let cleared: Vec<String> = match wanted.processes {
        Some(_) => Vec::new(),
        None => {
            let gone = env.desired.keys();
            gone.filter(|name| !manifest.processes.contains_key(*name))
                .cloned()
                .collect()
        }
    };
    let processes = wanted.processes.unwrap_or_else(|| {
        let all = manifest.processes.keys();
        all.cloned().collect()
    });
    let mut checked = preflight::check(&Preflight {
        desk,
        env: (env_id, env),
        app,
        release: (wanted.release, release),
        manifest,
        processes: &processes,
        cleared: &cleared,
        options: &options,
    })?;
    let secrets = current_secrets(desk.runtime(), env);
    let mut to = BTreeMap::new();
    for process in processes {
        let requires = manifest.processes.get(&process);
        let requires = requires.is_some_and(|it| it.secrets_required);
        to.insert(
            process,
            Some((wanted.release, secrets.filter(|_| requires))),
        );
    }
    to.extend(cleared.into_iter().map(|process| (process, None)));
    let id = DeployId::from_bits(desk.bits());
    let deploy = NewDeploy {
        id,
        env: env_id,
        kind: wanted.kind,
        cause: wanted.cause,
        release: Some(wanted.release),
        instance: None,
        options,
        to,
        ended: None,
        source: wanted.source,
    };
    let (mut facts, rest) = new_deploy(desk.runtime(), deploy)?;
    facts.append(&mut checked);
    facts.extend(rest);
    for fact in &mut facts {
        fact.correlation = Some(id.to_string());
    }
    Ok((facts, Subject::of("deploy", id)))
}

pub(crate) fn current_secrets(runtime: &Runtime, env: &record::Env) -> Option<SecretVersionId> {
    runtime.bundles.get(&env.bundle?)?.current
}

/// How a deploy goes: as the manifest says, but for what was asked for.
fn options(manifest: &Manifest, asked: &RequestedDeployOptions) -> Result<DeployOptions, Refusal> {
    let plain = plain_options(manifest);
    let options = DeployOptions {
        max_surge: asked.max_surge.unwrap_or(plain.max_surge),
        max_unavailable: asked.max_unavailable.unwrap_or(plain.max_unavailable),
        timeout_seconds: asked.timeout_seconds.unwrap_or(plain.timeout_seconds),
        on_failure: asked.on_failure.unwrap_or(plain.on_failure),
        allow_downtime: asked.allow_downtime,
    };
    let range = |field: &str, value: u32, from: u32, to: u32| match (from..=to).contains(&value) {
        true => Ok(()),
        false => Err(invalid(field, &format!("it is from {from} to {to}"))),
    };
    range("options.max_surge", options.max_surge, 0, 10)?;
    range("options.max_unavailable", options.max_unavailable, 0, 10)?;
    range("options.timeout_seconds", options.timeout_seconds, 60, 3600)?;
    if options.max_surge == 0 && options.max_unavailable == 0 {
        let why = "one of max_surge and max_unavailable must be above 0";
        return Err(invalid("options.max_surge", why));
    }
    Ok(options)
}

/// How a deploy goes that nobody asked for: as the manifest says.
pub(crate) fn plain_options(manifest: &Manifest) -> DeployOptions {
    let deploy = &manifest.deploy;
    DeployOptions {
        max_surge: deploy.max_surge,
        max_unavailable: deploy.max_unavailable,
        timeout_seconds: deploy.timeout_seconds,
        on_failure: match deploy.on_failure {
            ManifestOnFailure::Rollback => OnFailure::Rollback,
            ManifestOnFailure::Pause => OnFailure::Pause,
        },
        allow_downtime: false,
    }
}

/// A deploy that is to be opened.
pub(crate) struct NewDeploy {
    pub(crate) id: DeployId,
    pub(crate) env: EnvId,
    pub(crate) kind: DeployKind,
    pub(crate) cause: Cause,
    pub(crate) release: Option<ReleaseId>,
    /// The only instance that is replaced; then nothing else changes.
    pub(crate) instance: Option<InstanceId>,
    pub(crate) options: DeployOptions,
    /// What each process type gets; none takes it away.
    pub(crate) to: BTreeMap<String, Option<(ReleaseId, Option<SecretVersionId>)>>,
    /// A deploy that ends in the same append and is not superseded.
    pub(crate) ended: Option<DeployId>,
    /// The event of another ledger that it rests on.
    pub(crate) source: Option<Source>,
}

/// The facts that open a deploy, and those that say what is wanted from then
/// on; what belongs between them goes between them.
pub(crate) fn new_deploy(
    runtime: &Runtime,
    new: NewDeploy,
) -> Result<(Vec<Fact>, Vec<Fact>), Refusal> {
    DeployState::can(None, DeployState::Queued, new.cause).map_err(transition)?;
    let mut facts = Vec::new();
    for (id, deploy) in &runtime.plan.deploys {
        let mut groups = deploy.groups.keys();
        let shared = deploy.env == new.env
            && groups.any(|group| new.to.contains_key(group.process.as_ref()));
        if !shared || Some(*id) == new.ended {
            continue;
        }
        DeployState::can(Some(deploy.state), DeployState::Superseded, new.cause)
            .map_err(transition)?;
        let status = DeployStatusChanged {
            status: DeployState::Superseded.to_string(),
            message: Some(format!("{} took over", new.id)),
            failed_reason: None,
            process: None,
        };
        facts.push(Fact::new(id, status.into()));
    }
    let from = new.to.keys().map(|process| {
        let wanted = runtime.wanted(new.env, process);
        (process.clone(), wanted.map(|wanted| wanted.release))
    });
    let created = DeployCreated {
        kind: spec::deploy_kind_text(new.kind).to_owned(),
        release_id: new.release,
        from_releases: from.collect(),
        process_types: new.to.keys().cloned().collect(),
        strategy: "rolling".to_owned(),
        options: serde_json::to_value(&new.options).unwrap_or_default(),
        instance_id: new.instance,
        source: new.source,
    };
    facts.push(Fact::new(new.id, created.into()));
    if new.instance.is_some() {
        return Ok((facts, Vec::new()));
    }
    let rest = new.to.into_iter().map(|(process, to)| {
        let body = match to {
            Some((release_id, secret_version_id)) => EnvDesiredReleaseSet {
                process,
                release_id,
                deploy_id: new.id,
                secret_version_id,
            }
            .into(),
            None => EnvDesiredReleaseCleared {
                process,
                deploy_id: new.id,
            }
            .into(),
        };
        Fact::new(new.env, body)
    });
    Ok((facts, rest.collect()))
}

fn deploy<'a>(desk: &Desk<'a>) -> Result<(DeployId, &'a record::Deploy), Refusal> {
    let (env, _) = desk.env()?;
    let id: DeployId = desk.leaf("deploy")?;
    let deploy = desk.runtime().deploys.get(&id);
    let deploy = deploy.filter(|deploy| deploy.env == env);
    Ok((id, deploy.ok_or_else(|| missing("deploy"))?))
}

/// Calls a deploy off; what was wanted before it is wanted again, with the
/// volumes that it had.
pub(super) fn cancel(desk: &Desk<'_>) -> Decided {
    let (env_id, env) = desk.env()?;
    let (id, deploy) = deploy(desk)?;
    DeployState::can(Some(deploy.state), DeployState::Canceled, Cause::EnvDeploy)
        .map_err(transition)?;
    let status = DeployStatusChanged {
        status: DeployState::Canceled.to_string(),
        message: None,
        failed_reason: None,
        process: None,
    };
    let mut facts = vec![Fact::new(id, status.into())];
    let bundle = env
        .bundle
        .and_then(|bundle| Some((bundle, desk.runtime().bundles.get(&bundle)?)));
    if deploy.instance.is_none() {
        let bits = || desk.bits();
        for (process, before) in &deploy.before {
            facts.extend(given_back(desk.runtime(), deploy, process, bits)?);
            let body = match before {
                Some(wanted) => EnvDesiredReleaseSet {
                    process: process.clone(),
                    release_id: wanted.release,
                    deploy_id: id,
                    secret_version_id: wanted.secrets.filter(|version| {
                        let kept = bundle.iter().flat_map(|(_, it)| &it.versions);
                        kept.into_iter().any(|kept| kept.id == *version)
                    }),
                }
                .into(),
                None => EnvDesiredReleaseCleared {
                    process: process.clone(),
                    deploy_id: id,
                }
                .into(),
            };
            facts.push(Fact::new(env_id, body));
        }
        // Otherwise the planner would give groups the new version once more.
        if let Some((bundle_id, bundle)) = bundle
            && bundle.state == Some(SecretBundleState::Rotating)
            && deploy.kind == DeployKind::Restart
            && let Some(version_id) = bundle.current
        {
            let changed = SecretBundleRotationChanged {
                status: SecretBundleState::RotationFailed.to_string(),
                version_id,
            };
            facts.push(Fact::new(bundle_id, changed.into()));
        }
    }
    for fact in &mut facts {
        fact.correlation = Some(id.to_string());
    }
    Ok((facts, Subject::of("deploy", id)))
}

/// Pauses or resumes.
pub(super) fn hold(desk: &Desk<'_>) -> Decided {
    let (id, deploy) = deploy(desk)?;
    let to = match desk.request.operation {
        Operation::PauseDeploy => DeployState::Paused,
        _ => DeployState::Rolling,
    };
    if deploy.state == DeployState::Queued {
        let why = "the deploy has not begun yet";
        return Err(Refusal::new(
            "invalid_transition",
            why,
            "try again in a moment",
        ));
    }
    DeployState::can(Some(deploy.state), to, Cause::EnvDeploy).map_err(transition)?;
    let status = DeployStatusChanged {
        status: to.to_string(),
        message: None,
        failed_reason: None,
        process: None,
    };
    let mut fact = Fact::new(id, status.into());
    fact.correlation = Some(id.to_string());
    Ok((vec![fact], Subject::of("deploy", id)))
}

/// Replaces one instance by a new one of the same spec.
pub(super) fn restart(desk: &Desk<'_>) -> Decided {
    let (env_id, _) = desk.env()?;
    let id: InstanceId = desk.leaf("instance")?;
    let runtime = desk.runtime();
    let instance = runtime.plan.instances.get(&id);
    let instance = instance.filter(|instance| instance.group.env == env_id);
    let instance = instance.ok_or_else(|| missing("instance"))?;
    let process = instance.group.process.to_string();
    let wanted = runtime.wanted(env_id, &process);
    let (Some(wanted), Desired::Running, false) = (wanted, instance.desired, instance.restart)
    else {
        let why = "the instance is on its way out already";
        return Err(Refusal::new(
            "invalid_transition",
            why,
            "wait for the one that follows",
        ));
    };
    let release = runtime.releases.get(&wanted.release);
    let manifest = release.and_then(|release| release.manifest.as_deref());
    let manifest = manifest.ok_or_else(|| missing("release"))?;
    let deploy = DeployId::from_bits(desk.bits());
    let (mut facts, _) = new_deploy(
        runtime,
        NewDeploy {
            id: deploy,
            env: env_id,
            kind: DeployKind::Restart,
            cause: Cause::InstanceRestart,
            release: Some(wanted.release),
            instance: Some(id),
            options: plain_options(manifest),
            to: BTreeMap::from([(process, Some((wanted.release, wanted.secrets)))]),
            ended: None,
            source: None,
        },
    )?;
    for fact in &mut facts {
        fact.correlation = Some(deploy.to_string());
    }
    Ok((facts, Subject::of("instance", id)))
}

/// Sets how many instances there should be.
pub(super) fn scale(desk: &Desk<'_>) -> Decided {
    let (id, env) = desk.env()?;
    let body: SetScale = desk.body()?;
    if body.processes.is_empty() {
        return Err(invalid("processes", "it names no process type"));
    }
    let runtime = desk.runtime();
    let mut scales = Vec::new();
    let mut counts = Vec::new();
    for (name, desired) in body.processes {
        let wanted = runtime.wanted(id, &name);
        let process = wanted.and_then(|wanted| runtime.process(id, wanted.release, &name));
        let Some(process) = process else {
            let why = format!("no release with the process type `{name}` is deployed here");
            return Err(invalid("processes", &why));
        };
        let count = desired.unwrap_or(process.replicas);
        let mounts = !process.mounts.is_empty() || !runtime.mounts(id, &name).is_empty();
        if mounts && count > 1 {
            return Err(preflight::replica_limit(&name));
        }
        if desired.is_some() {
            let bounds = process.scaling;
            if !(bounds.min..=bounds.max).contains(&count) {
                let bounds = (bounds.min, bounds.max);
                return Err(preflight::out_of_bounds(&name, bounds, count));
            }
        }
        counts.push((name.clone(), process, count));
        scales.push(ScaleSet {
            process: name,
            desired,
        });
    }
    let growth = counts.iter();
    let growth = growth.map(|(name, process, count)| (name.as_str(), process, *count));
    let growth: Vec<_> = growth.collect();
    preflight::end_state(runtime, (env.org, id), &growth, &[])?;
    preflight::quota(runtime, (env.org, id), &growth)?;
    let fact = Fact::new(id, EnvScaleSet { scales }.into());
    Ok((vec![fact], Subject::of("scale", id)))
}
