//! What a deploy must have before anything happens: release, secrets, routes,
//! volumes, quota.
//!
//! Also chooses where declared volumes go: all of one process type on one node
//! that has room for it too. Volumes are made and attached, never removed.

use std::collections::BTreeMap;

use fluffy_api::types::DeployOptions;
use fluffy_base::id::{AttachmentId, EnvId, NodeId, OrgId, ReleaseId, VolumeId};
use fluffy_manifest::model::Process;
use fluffy_planner::lifecycle::{NodeState, ReleaseState, RouteState, VolumeState};
use fluffy_planner::model::{Driver, EnvIsolation};

use super::Desk;
use super::deploys::current_secrets;
use crate::call::Fact;
use crate::event::{VolumeAttachmentCreated, VolumeAttachmentDeleted, VolumeCreated};
use crate::refusal::Refusal;
use crate::runtime::quota::{Dimension, within};
use crate::runtime::{Runtime, record, spec};

/// Everything that a deploy is checked with.
pub(super) struct Preflight<'a> {
    pub(super) desk: &'a Desk<'a>,
    pub(super) env: (EnvId, &'a record::Env),
    pub(super) app: &'a record::App,
    pub(super) release: (ReleaseId, &'a record::Release),
    pub(super) processes: &'a [String],
    pub(super) cleared: &'a [String],
    pub(super) options: &'a DeployOptions,
}

/// Checks a deploy, and says what volumes it makes and attaches.
pub(super) fn check(it: &Preflight<'_>) -> Result<Vec<Fact>, Refusal> {
    let (_, release) = it.release;
    if release.state != ReleaseState::Available {
        let reason = release.blocked.as_deref().unwrap_or("it is retired");
        let why = format!("the release is {}: {reason}", release.state);
        let fix = "deploy another release, or unblock this one";
        return Err(Refusal::new("release_blocked", why, fix));
    }
    let runtime = it.desk.runtime();
    let (env_id, env) = it.env;
    let specs = release.manifest.processes_in(&env.name);
    let processes: Vec<(&str, &Process)> = it
        .processes
        .iter()
        .filter_map(|name| Some((name.as_str(), specs.get(name)?)))
        .collect();
    let secrets = current_secrets(runtime, env);
    for (name, process) in &processes {
        let count = runtime.count(env_id, name, process);
        // The bounds of one that only got a volume by hand are still the
        // manifest's own; scaling looks at its volumes too.
        let mounts = !process.mounts.is_empty();
        let many = count > 1 || process.replicas > 1 || (mounts && process.scaling.max > 1);
        if many && (mounts || has_own_attachments(it, name)) {
            return Err(replica_limit(name));
        }
        // Bounds are the new release's; who scaled by hand is told, not overruled.
        let bounds = process.scaling;
        if env.scales.contains_key(*name) && !(bounds.min..=bounds.max).contains(&count) {
            return Err(out_of_bounds(name, (bounds.min, bounds.max), count).with("process", *name));
        }
        if process.secrets_required && secrets.is_none() {
            let why = format!("process type `{name}` requires secrets, and the env has none");
            return Err(Refusal::new(
                "secrets_missing",
                why,
                "set the env's secrets first",
            ));
        }
    }
    routes(it, &processes)?;
    let facts = Volumes::default().plan(it, &processes)?;
    let surge = it.options.max_surge;
    let growth = processes.iter().map(|(name, process)| {
        let count = runtime.count(env_id, name, process);
        let stateless = process.mounts.is_empty() && count > 0;
        // Never more new ones than there should be in the end.
        let more = if stateless { surge.min(count) } else { 0 };
        (*name, *process, count.saturating_add(more))
    });
    quota(runtime, env.org, env_id, growth).map_err(|refusal| Refusal {
        fix: "deploy with `max_surge` 0 and `max_unavailable` 1, or ask for a higher quota"
            .to_owned(),
        ..refusal
    })?;
    Ok(facts)
}

/// The refusal of a number that a manifest does not allow.
pub(super) fn out_of_bounds(name: &str, (min, max): (u32, u32), count: u32) -> Refusal {
    let why = format!("`{name}` has from {min} to {max} instances, not {count}");
    let fix =
        format!("fluffy scale {name}=N with a number from {min} to {max}, or change the manifest");
    Refusal::new("scale_out_of_bounds", why, fix)
        .with("min", min)
        .with("max", max)
}

/// The refusal of a second instance with volumes, in its published words.
pub(super) fn replica_limit(name: &str) -> Refusal {
    let why = format!("process type '{name}' has volume mounts and cannot have replicas > 1");
    let fix =
        format!("fluffy scale {name}=1, or remove [[processes.{name}.mounts]] from fluffy.toml");
    Refusal::new("E_VOLUME_REPLICA_LIMIT", why, fix).with("process", name)
}

/// Whether somebody attached a volume that no manifest declared.
fn has_own_attachments(it: &Preflight<'_>, process: &str) -> bool {
    let (env, _) = it.env;
    let runtime = it.desk.runtime();
    let mut own = runtime.attachments.values();
    own.any(|at| at.env == env && at.process == process && !is_declared(it, at.volume))
}

fn is_declared(it: &Preflight<'_>, volume: VolumeId) -> bool {
    let prefix = format!("{}-{}-", it.app.name, it.env.1.name);
    let volume = it.desk.runtime().volumes.get(&volume);
    volume.is_some_and(|volume| volume.name.starts_with(&prefix))
}

/// Whether a process type may mount a volume that is there already. Its name
/// does not say whose it is: `a/b-c` and `a-b/c` call theirs the same. So it
/// mounts it now, or whoever deploys may give it away.
fn may_mount(it: &Preflight<'_>, process: &str, volume: VolumeId) -> bool {
    let (env, _) = it.env;
    let mut own = it.desk.runtime().attachments.values();
    let mounts = own.any(|at| at.volume == volume && at.env == env && at.process == process);
    let id = volume.to_string();
    mounts || it.desk.reaches("volume.write", ("volume", &id))
}

fn unusable(name: &str, volume: &record::Volume) -> Refusal {
    let why = format!("`{}` cannot be used by `{name}`", volume.name);
    let fix = "look at the volume's state and attachments, or let somebody deploy it who may \
               write volumes of the whole organisation";
    Refusal::new("volume_constraints_invalid", why, fix)
}

fn routes(it: &Preflight<'_>, processes: &[(&str, &Process)]) -> Result<(), Refusal> {
    let (env, _) = it.env;
    let routes = it.desk.runtime().routes.iter();
    let routes =
        routes.filter(|(_, route)| route.env == env && route.state != RouteState::Deleting);
    // The platform's own follow what is deployed.
    let routes = routes.filter(|(_, route)| !route.loopback);
    for (id, route) in routes {
        let gone = it.cleared.contains(&route.backend_process);
        let process = processes
            .iter()
            .find(|(name, _)| *name == route.backend_process);
        let declared = process.is_none_or(|(_, process)| {
            let mut ports = process.ports.iter();
            ports.any(|port| port.internal == route.backend_port)
        });
        if gone || !declared {
            let (name, port) = (&route.backend_process, route.backend_port);
            let why = format!(
                "route {id} leads to `{name}` port {port}, which the release does not declare"
            );
            let fix = "declare the port, or change or delete the route first";
            return Err(
                Refusal::new("route_target_missing", why, fix).with("route_id", id.to_string())
            );
        }
    }
    Ok(())
}

/// Checks that an org may have as many instances as groups will want.
pub(super) fn quota<'a>(
    runtime: &Runtime,
    org: OrgId,
    env: EnvId,
    wanted: impl Iterator<Item = (&'a str, &'a Process, u32)>,
) -> Result<(), Refusal> {
    let (mut instances, mut memory, mut cpu) = (0_u64, 0_u64, 0_u64);
    for (name, process, count) in wanted {
        let group = spec::group_id(env, name);
        let live = runtime.plan.instances.values();
        let live = live.filter(|it| it.group == group && runtime.plan.counts(it));
        let live = u64::try_from(live.count()).unwrap_or(u64::MAX);
        let more = u64::from(count).saturating_sub(live);
        let resources = spec::resources(process);
        // Which driver will run it is not known; the smallest overhead counts.
        let each = resources
            .memory
            .saturating_add(Driver::Container.overhead());
        instances = instances.saturating_add(more);
        memory = memory.saturating_add(each.saturating_mul(more));
        cpu = cpu.saturating_add(resources.cpu_millis.saturating_mul(more));
    }
    runtime.within(org, Dimension::Instances, instances)?;
    runtime.within(org, Dimension::Memory, memory)?;
    runtime.within(org, Dimension::Cpu, cpu)
}

/// Volumes that a deploy makes and attaches.
#[derive(Default)]
struct Volumes {
    facts: Vec<Fact>,
    made: u64,
    bytes: u64,
    attached: u64,
    /// What this deploy has put on nodes already.
    placed: BTreeMap<NodeId, u64>,
}

impl Volumes {
    fn plan(
        mut self,
        it: &Preflight<'_>,
        processes: &[(&str, &Process)],
    ) -> Result<Vec<Fact>, Refusal> {
        for (name, process) in processes {
            self.process(it, name, process)?;
        }
        let (runtime, org) = (it.desk.runtime(), it.env.1.org);
        runtime.within(org, Dimension::Volumes, self.made)?;
        runtime.within(org, Dimension::VolumeBytes, self.bytes)?;
        let (limit, used) = (
            runtime.limit(org, Dimension::Attachments),
            runtime.used(org, Dimension::Attachments),
        );
        within(limit, used, Dimension::Attachments, self.attached)?;
        Ok(self.facts)
    }

    fn process(
        &mut self,
        it: &Preflight<'_>,
        name: &str,
        process: &Process,
    ) -> Result<(), Refusal> {
        let (env_id, env) = it.env;
        let (runtime, manifest) = (it.desk.runtime(), &it.release.1.manifest);
        let mut home = None;
        let (mut there, mut wanted) = (Vec::new(), Vec::new());
        for mount in &process.mounts {
            let Some(declared) = manifest.volumes.get(&mount.volume) else {
                continue;
            };
            let full = format!("{}-{}-{}", it.app.name, env.name, mount.volume);
            let mut volumes = runtime.volumes.iter();
            match volumes.find(|(_, volume)| volume.org == env.org && volume.name == full) {
                Some((id, volume)) => {
                    let at = self.reuse(it, name, (*id, volume), declared.size)?;
                    if home.is_some_and(|home| home != at) {
                        let why = format!("the volumes of `{name}` are on different nodes");
                        let fix = "restore one of them from a snapshot onto the other's node";
                        return Err(Refusal::new("volume_constraints_invalid", why, fix));
                    }
                    home = Some(at);
                    there.push((*id, mount));
                }
                None => wanted.push((full, declared, mount)),
            }
        }
        let bytes = wanted.iter().map(|(_, declared, _)| declared.size);
        let bytes = bytes.fold(0, u64::saturating_add);
        let mut attach: Vec<_> = there;
        if !wanted.is_empty() {
            let isolation = runtime.plan.envs.get(&env_id).map(|env| env.isolation);
            let need = Need {
                bytes,
                process: Some((process, it.release.1)),
                isolation: isolation.unwrap_or(EnvIsolation::Protected),
            };
            let home = choose(runtime, &self.placed, &need, home)?;
            *self.placed.entry(home).or_default() += bytes;
            for (full, declared, mount) in wanted {
                let id = VolumeId::from_bits(it.desk.bits());
                let created = VolumeCreated {
                    name: full,
                    size_bytes: declared.size,
                    filesystem: "ext4".to_owned(),
                    backup_enabled: declared.backup_enabled,
                    home_node_id: home,
                    snapshot_id: None,
                };
                let fact = Fact::new(id, created.into()).of(&it.desk.org_scope());
                self.facts.push(fact);
                self.made += 1;
                attach.push((id, mount));
            }
            self.bytes = self.bytes.saturating_add(bytes);
        }
        self.attach(it, name, &attach);
        Ok(())
    }

    /// A volume that is there already: where it is, if it can be used.
    fn reuse(
        &self,
        it: &Preflight<'_>,
        name: &str,
        (id, volume): (VolumeId, &record::Volume),
        size: u64,
    ) -> Result<NodeId, Refusal> {
        let runtime = it.desk.runtime();
        if !may_mount(it, name, id) {
            return Err(unusable(name, volume));
        }
        if volume.size != size {
            let why = format!("`{}` has {} bytes and keeps them", volume.name, volume.size);
            let fix = "declare the size that it has";
            return Err(Refusal::new("volume_size_change_unsupported", why, fix));
        }
        let plan = runtime.plan.volumes.get(&id);
        let usable = plan.filter(|plan| {
            let gone = [
                VolumeState::Error,
                VolumeState::Deleting,
                VolumeState::Deleted,
            ];
            !gone.contains(&plan.state)
        });
        let mut others = runtime.attachments.values();
        let taken = others.any(|at| at.volume == id && (at.env != it.env.0 || at.process != name));
        let plan = usable.filter(|_| !taken);
        plan.map(|plan| plan.home)
            .ok_or_else(|| unusable(name, volume))
    }

    /// Attaches what the manifest mounts, and detaches what it dropped.
    fn attach(
        &mut self,
        it: &Preflight<'_>,
        name: &str,
        mounts: &[(VolumeId, &fluffy_manifest::model::Mount)],
    ) {
        let (env, _) = it.env;
        let runtime = it.desk.runtime();
        let mut missing: Vec<_> = mounts.to_vec();
        for (id, at) in &runtime.attachments {
            if at.env != env || at.process != name {
                continue;
            }
            let same = missing.iter().position(|(volume, mount)| {
                *volume == at.volume
                    && mount.path == at.mount_path
                    && mount.read_only == at.read_only
            });
            match same {
                Some(place) => {
                    missing.remove(place);
                }
                None if is_declared(it, at.volume) => {
                    let deleted = VolumeAttachmentDeleted {
                        volume_id: at.volume,
                        process: name.to_owned(),
                    };
                    self.facts.push(Fact::new(id, deleted.into()));
                }
                None => {}
            }
        }
        for (volume_id, mount) in missing {
            let created = VolumeAttachmentCreated {
                volume_id,
                process: name.to_owned(),
                mount_path: mount.path.clone(),
                read_only: mount.read_only,
            };
            let id = AttachmentId::from_bits(it.desk.bits());
            self.facts.push(Fact::new(id, created.into()));
            self.attached += 1;
        }
    }
}

/// What a new volume's node must have.
pub(super) struct Need<'a> {
    pub(super) bytes: u64,
    /// The process type that will mount it, if that is known.
    pub(super) process: Option<(&'a Process, &'a record::Release)>,
    pub(super) isolation: EnvIsolation,
}

/// The node for new volumes: the one with the most memory left that fits.
pub(super) fn choose(
    runtime: &Runtime,
    placed: &BTreeMap<NodeId, u64>,
    need: &Need<'_>,
    only: Option<NodeId>,
) -> Result<NodeId, Refusal> {
    let nodes = runtime.plan.nodes.iter();
    let nodes = nodes.filter(|(id, node)| {
        node.state == NodeState::Active && only.is_none_or(|only| only == **id)
    });
    let fitting = nodes.filter_map(|(id, node)| {
        let here = runtime.plan.instances.values();
        let here = here.filter(|it| it.node == *id && !it.has_ended());
        let used = here.fold((0_u64, 0_u64), |(memory, disk), it| {
            let (m, d) = (it.booking.memory, it.booking.disk);
            (memory.saturating_add(m), disk.saturating_add(d))
        });
        let pending = placed.get(id).copied().unwrap_or(0);
        let disk = node.capacity.disk.saturating_sub(used.1);
        let disk = disk.saturating_sub(pending);
        let memory = node.capacity.allocatable_memory().saturating_sub(used.0);
        let (mut bytes, mut asked) = (need.bytes, 0);
        if let Some((process, release)) = need.process {
            let resources = spec::resources(process);
            let driver = node.drivers.iter().find(|(driver, limits)| {
                need.isolation.accepts(driver.level())
                    && resources.vcpus() <= limits.vcpus
                    && resources.memory <= limits.memory
            });
            let (driver, _) = driver?;
            let mut images = release.images.iter();
            images.find(|image| spec::arch(&image.arch) == Some(node.arch))?;
            asked = resources.memory.saturating_add(driver.overhead());
            bytes = bytes.saturating_add(resources.disk);
        }
        (bytes <= disk && asked <= memory).then_some((memory, *id))
    });
    let best = fitting.max_by_key(|(memory, id)| (*memory, std::cmp::Reverse(*id)));
    best.map(|(_, id)| id).ok_or_else(|| {
        let why = format!("no node takes {} more bytes of volumes", need.bytes);
        let fix = "add a node, or make room on one";
        Refusal::new("no_capacity_disk", why, fix)
    })
}
