//! What a deploy must have before anything happens: release, secrets, routes,
//! volumes, quota.
//!
//! Also chooses where declared volumes go: all of one process type on one node
//! that has room for it too. Next: `mounts` for what becomes of volumes.

use std::collections::BTreeMap;

use fluffy_api::types::DeployOptions;
use fluffy_base::id::{EnvId, NodeId, OrgId, ReleaseId};
use fluffy_manifest::Manifest;
use fluffy_manifest::model::Process;
use fluffy_planner::lifecycle::{NodeState, ReleaseState, RouteState};
use fluffy_planner::model::{Driver, EnvIsolation};

use super::Desk;
use super::deploys::current_secrets;
use super::mounts::{Mounted, Volumes};
use crate::call::Fact;
use crate::refusal::Refusal;
use crate::runtime::quota::Dimension;
use crate::runtime::{Runtime, record, spec};

/// Everything that a deploy is checked with.
pub(super) struct Preflight<'a> {
    pub(super) desk: &'a Desk<'a>,
    pub(super) env: (EnvId, &'a record::Env),
    pub(super) app: &'a record::App,
    pub(super) release: (ReleaseId, &'a record::Release),
    pub(super) manifest: &'a Manifest,
    pub(super) processes: &'a [String],
    pub(super) cleared: &'a [String],
    pub(super) options: &'a DeployOptions,
}

/// The manifest of a release that can be deployed.
pub(super) fn deployable(release: &record::Release) -> Result<&Manifest, Refusal> {
    let manifest = release.manifest.as_deref();
    let manifest = manifest.filter(|_| release.state == ReleaseState::Available);
    manifest.ok_or_else(|| {
        let reason = release.blocked.as_deref().unwrap_or("it is retired");
        let why = format!("the release is {}: {reason}", release.state);
        let fix = "deploy another release, or unblock this one";
        Refusal::new("release_blocked", why, fix)
    })
}

/// Checks a deploy, and says what volumes it makes and attaches.
pub(super) fn check(it: &Preflight<'_>) -> Result<Vec<Fact>, Refusal> {
    let runtime = it.desk.runtime();
    let (env_id, env) = it.env;
    let specs = it.manifest.processes_in(&env.name);
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
        if many && (mounts || Mounted::of(it, name).by_hand()) {
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
    let at = (env.org, env_id);
    let count = |name: &str, process| runtime.count(env_id, name, process);
    let counted = processes.iter();
    let mut growth: Vec<Growth<'_>> = counted
        .map(|(name, process)| (*name, *process, count(name, process)))
        .collect();
    end_state(runtime, at, &growth, it.cleared)?;
    for (_, process, count) in &mut growth {
        // Never more new ones than there should be in the end.
        let more = it.options.max_surge.min(*count);
        if process.mounts.is_empty() {
            *count = count.saturating_add(more);
        }
    }
    quota(runtime, at, &growth).map_err(|refusal| Refusal {
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

/// How many instances a group will want, and how each is.
pub(super) type Growth<'a> = (&'a str, &'a Process, u32);

/// What instances take together.
#[derive(Clone, Copy, Default)]
struct Sum {
    instances: u64,
    memory: u64,
    cpu: u64,
}

impl Sum {
    fn add(&mut self, many: u64, memory: u64, cpu: u64) {
        self.instances = self.instances.saturating_add(many);
        self.memory = self.memory.saturating_add(memory.saturating_mul(many));
        self.cpu = self.cpu.saturating_add(cpu.saturating_mul(many));
    }

    /// So many instances of a process type. Which driver will run them is not
    /// known; the smallest overhead counts.
    fn add_new(&mut self, process: &Process, many: u64) {
        let resources = spec::resources(process);
        let overhead = Driver::Container.overhead();
        let memory = resources.memory.saturating_add(overhead);
        self.add(many, memory, resources.cpu_millis);
    }

    /// What is booked for a group now.
    fn of_group(runtime: &Runtime, env: EnvId, process: &str) -> Self {
        let group = spec::group_id(env, process);
        let live = runtime.plan.instances.values();
        let live = live.filter(|it| it.group == group && runtime.plan.counts(it));
        let mut sum = Self::default();
        for it in live {
            sum.add(1, it.booking.memory, it.booking.cpu_millis);
        }
        sum
    }

    fn with(self, other: Self) -> Self {
        Self {
            instances: self.instances.saturating_add(other.instances),
            memory: self.memory.saturating_add(other.memory),
            cpu: self.cpu.saturating_add(other.cpu),
        }
    }

    fn beyond(self, other: Self) -> Self {
        Self {
            instances: self.instances.saturating_sub(other.instances),
            memory: self.memory.saturating_sub(other.memory),
            cpu: self.cpu.saturating_sub(other.cpu),
        }
    }

    /// Refuses it where it is more than an org may have in addition.
    fn check(self, runtime: &Runtime, org: OrgId) -> Result<(), Refusal> {
        runtime.within(org, Dimension::Instances, self.instances)?;
        runtime.within(org, Dimension::Memory, self.memory)?;
        runtime.within(org, Dimension::Cpu, self.cpu)
    }
}

/// Checks that an org may have what groups will be in the end, when nothing of
/// what they were, or of groups that go, is left.
pub(super) fn end_state(
    runtime: &Runtime,
    (org, env): (OrgId, EnvId),
    wanted: &[Growth<'_>],
    cleared: &[String],
) -> Result<(), Refusal> {
    let (mut before, mut after) = (Sum::default(), Sum::default());
    for (name, process, count) in wanted {
        before = before.with(Sum::of_group(runtime, env, name));
        after.add_new(process, u64::from(*count));
    }
    for name in cleared {
        before = before.with(Sum::of_group(runtime, env, name));
    }
    after.beyond(before).check(runtime, org)
}

/// Checks that an org may have as many instances as groups will want at a time.
pub(super) fn quota(
    runtime: &Runtime,
    (org, env): (OrgId, EnvId),
    wanted: &[Growth<'_>],
) -> Result<(), Refusal> {
    let mut more = Sum::default();
    for (name, process, count) in wanted {
        let live = Sum::of_group(runtime, env, name).instances;
        more.add_new(process, u64::from(*count).saturating_sub(live));
    }
    more.check(runtime, org)
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
