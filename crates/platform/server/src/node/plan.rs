//! What nodes and edges are told, made from the state: plans, jobs, routes.
//!
//! Pure: equal states give equal plans. A plan's position is not part of what
//! it says; it is given when the plan is another than the last. Next:
//! `proto/fluffy/node/v1/plan.proto` for what the fields mean.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::Arc;

use fluffy_api::node::v1;
use fluffy_api::types::IMAGE_LIMITS;
use fluffy_base::id::{EnvId, InstanceId, NodeId};
use fluffy_control::State;
use fluffy_control::runtime::{record, spec};
use fluffy_manifest::model::{Health, Probe, Process, RestartPolicy, Signal};
use fluffy_planner::lifecycle::{JobState, VolumeState};
use fluffy_planner::model::{Arch, Desired, Instance};

use super::desk::Orders;

/// The version of plans and specs.
const VERSION: &str = "v1";

/// Where the router of every instance is.
const GATEWAY: &str = "fe80::1";

/// The largest packet of the overlay.
pub(super) const MTU: u32 = 1420;

/// Where secrets are put, and how they can be read.
const SECRETS: (&str, u32) = ("/run/secrets/platform.env", 0o400);

/// What all plans look at, read from the state once.
pub(super) struct Index<'a> {
    state: &'a State,
    by_node: BTreeMap<NodeId, Vec<(InstanceId, &'a Instance)>>,
    addresses: BTreeMap<EnvId, Vec<Ipv6Addr>>,
    /// Of images, if an operator set one.
    limits: Option<v1::ImageLimits>,
}

impl<'a> Index<'a> {
    /// Of this state.
    pub(super) fn of(state: &'a State) -> Self {
        let mut index = Self {
            state,
            by_node: BTreeMap::new(),
            addresses: BTreeMap::new(),
            limits: image_limits(state),
        };
        for (id, instance) in &state.runtime.plan.instances {
            let own = index.by_node.entry(instance.node).or_default();
            own.push((*id, instance));
            if let Some(record) = state.runtime.instances.get(id) {
                let members = index.addresses.entry(instance.group.env).or_default();
                members.push(record.address);
            }
        }
        index
    }

    /// Replaces what a node was told, if it should be told something else.
    pub(super) fn update(&self, told: &mut Arc<Orders>, node: NodeId, at: v1::Position) -> bool {
        let mut orders = self.orders(node);
        if let (Some(new), Some(old)) = (&mut orders.plan, &told.plan) {
            set_position(new, old.position());
        }
        if orders == **told {
            return false;
        }
        let same = orders.plan == told.plan;
        if let Some(plan) = orders.plan.as_mut().filter(|_| !same) {
            set_position(plan, at);
        }
        *told = Arc::new(orders);
        true
    }

    fn orders(&self, node: NodeId) -> Orders {
        let runtime = &self.state.runtime;
        let Some(known) = runtime.plan.nodes.get(&node) else {
            return Orders::default();
        };
        let own = self.by_node.get(&node).map_or(&[][..], Vec::as_slice);
        let instances = own.iter();
        let instances = instances.filter_map(|(id, it)| self.assignment(*id, it, known.arch));
        let mut envs: Vec<EnvId> = own.iter().map(|(_, it)| it.group.env).collect();
        envs.sort();
        envs.dedup();
        let members = envs.into_iter().map(|env| v1::EnvMembers {
            env_id: env.to_string(),
            addresses: self.members(env),
        });
        let held = runtime.nodes.get(&node).and_then(|it| it.held.as_ref());
        let confirmed = held.is_some_and(|(_, confirmed)| *confirmed);
        let plan = v1::NodePlan {
            spec_version: VERSION.to_owned(),
            node_id: node.to_string(),
            instances: instances.collect(),
            volumes: self.volumes(node),
            env_members: members.collect(),
            confirm_shrink: confirmed,
            ..Default::default()
        };
        Orders {
            plan: Some(plan),
            jobs: self.jobs(node),
        }
    }

    fn members(&self, env: EnvId) -> Vec<String> {
        let addresses = self.addresses.get(&env).map_or(&[][..], Vec::as_slice);
        addresses.iter().map(Ipv6Addr::to_string).collect()
    }

    fn assignment(&self, id: InstanceId, it: &Instance, arch: Arch) -> Option<v1::Assignment> {
        let record = self.state.runtime.instances.get(&id)?;
        let (desired, grace, stop_allowed) = match it.desired {
            Desired::Running => (v1::DesiredState::Running, None, false),
            Desired::Draining {
                grace,
                stop_allowed,
                ..
            } => (
                v1::DesiredState::Draining,
                Some(grace),
                stop_allowed.is_some(),
            ),
            Desired::Stopped { .. } => (v1::DesiredState::Stopped, None, true),
        };
        let grace = grace.map_or(30, |grace| grace.as_secs());
        let volumes = it.volumes.iter();
        Some(v1::Assignment {
            assignment_id: record.assignment.to_string(),
            instance_id: id.to_string(),
            generation: record.generation,
            desired_state: desired.into(),
            drain_grace_seconds: u32::try_from(grace).unwrap_or(u32::MAX),
            stop_allowed,
            // Grows with each instance that gets the volume.
            volume_epochs: volumes
                .map(|volume| (volume.to_string(), record.allocated_seq))
                .collect(),
            workload: self.workload(id, it, record, arch),
        })
    }

    fn workload(
        &self,
        id: InstanceId,
        it: &Instance,
        record: &record::Instance,
        arch: Arch,
    ) -> Option<v1::WorkloadSpec> {
        let runtime = &self.state.runtime;
        let release = runtime.releases.get(&record.release)?;
        let process = runtime.process(it.group.env, record.release, &it.group.process)?;
        let fits = |image: &&fluffy_control::event::ResolvedDigest| {
            image.os == "linux" && spec::arch(&image.arch) == Some(arch)
        };
        let image = release.images.iter().find(fits)?;
        Some(v1::WorkloadSpec {
            spec_version: VERSION.to_owned(),
            identity: Some(v1::Identity {
                org_id: record.org.to_string(),
                app_id: record.app.to_string(),
                env_id: it.group.env.to_string(),
                process: it.group.process.to_string(),
                instance_id: id.to_string(),
                generation: record.generation,
                release_id: record.release.to_string(),
                spec_hash: it.spec.to_string(),
            }),
            image: Some(v1::Image {
                r#ref: release.image_ref.clone(),
                index_digest: release.image_digest.clone(),
                resolved_digest: image.digest.clone(),
                os: image.os.clone(),
                arch: image.arch.clone(),
                manifest_hash: release.manifest_hash.to_string(),
                limits: self.limits,
            }),
            run: Some(run(&process)),
            resources: Some(resources(&process, record.overhead)),
            network: Some(network(&process, record.address)),
            health: process.health.as_ref().map(health),
            secrets: Some(secrets(&process, record)),
            mounts: self.mounts(record),
            allowed_drivers: vec![spec::driver_text(it.driver).to_owned()],
            requires: Vec::new(),
        })
    }

    fn mounts(&self, record: &record::Instance) -> Vec<v1::Mount> {
        let volumes = &self.state.runtime.volumes;
        let mount = |mount: &fluffy_control::event::AllocatedMount| v1::Mount {
            volume_id: mount.volume_id.to_string(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only,
            filesystem: volumes
                .get(&mount.volume_id)
                .map_or_else(String::new, |volume| volume.filesystem.clone()),
        };
        record.mounts.iter().map(mount).collect()
    }

    fn volumes(&self, node: NodeId) -> Vec<v1::Volume> {
        let runtime = &self.state.runtime;
        let own = runtime.plan.volumes.iter();
        let own = own.filter(|(_, volume)| volume.home == node);
        let volume = |(id, plan): (_, &fluffy_planner::model::Volume)| {
            let record = runtime.volumes.get(id)?;
            // What comes from a snapshot is the restore's to make.
            if plan.state == VolumeState::Creating && record.snapshot.is_some() {
                return None;
            }
            Some(v1::Volume {
                volume_id: id.to_string(),
                size_bytes: record.size,
                filesystem: record.filesystem.clone(),
                deleted: plan.state == VolumeState::Deleting,
            })
        };
        own.filter_map(volume).collect()
    }

    fn jobs(&self, node: NodeId) -> Vec<v1::Job> {
        use v1::job::Of;
        let runtime = &self.state.runtime;
        let open = |state: JobState| !state.is_final();
        let snapshots = runtime.snapshots.iter();
        let snapshots = snapshots.filter(|(_, it)| it.node == node && open(it.state));
        let snapshots = snapshots.map(|(id, it)| v1::Job {
            job_id: id.to_string(),
            of: Some(Of::Snapshot(v1::SnapshotJob {
                volume_id: it.volume.to_string(),
            })),
        });
        let restores = runtime.restores.iter();
        let restores = restores.filter(|(_, it)| it.node == node && open(it.state));
        let restores = restores.map(|(id, it)| v1::Job {
            job_id: id.to_string(),
            of: Some(Of::Restore(v1::RestoreJob {
                snapshot_id: it.snapshot.to_string(),
                source_volume_id: it.source.to_string(),
                new_volume_id: it.volume.to_string(),
            })),
        });
        snapshots.chain(restores).collect()
    }

    /// Replaces the table that edges were told, if it should be another.
    pub(super) fn update_table(&self, told: &mut Arc<v1::RoutingTable>, at: v1::Position) -> bool {
        let routes: Vec<v1::Route> = self.routes();
        if told.config.is_some() && told.routes == routes {
            return false;
        }
        *told = Arc::new(v1::RoutingTable {
            config: Some(at),
            routes,
        });
        true
    }

    fn routes(&self) -> Vec<v1::Route> {
        let config = self.state.runtime.edge_config();
        let routes = config.routes.into_iter().map(|route| v1::Route {
            route_id: route.id.to_string(),
            env_id: route.env.to_string(),
            hostname: route.hostname.unwrap_or_default(),
            listen_port: route.listen_port.into(),
            protocol_hint: route.protocol_hint,
            proxy_protocol: route.proxy_protocol,
            ipv4_address: route.ipv4.map_or_else(String::new, |ipv4| ipv4.to_string()),
            backends: route
                .backends
                .iter()
                .map(|backend| v1::Backend {
                    instance_id: backend.instance.to_string(),
                    address: backend.address.to_string(),
                    port: route.backend_port.into(),
                    draining: backend.draining,
                })
                .collect(),
        });
        routes.collect()
    }
}

/// The limits of images that an operator set, whatever they are set to; a plan
/// without any is as it was before there were some.
fn image_limits(state: &State) -> Option<v1::ImageLimits> {
    let cluster = &state.runtime.cluster;
    let mut told = v1::ImageLimits::default();
    for kind in IMAGE_LIMITS {
        let limit = cluster.image_limit(kind);
        let place = match kind.name {
            "compressed_bytes" => &mut told.compressed_bytes,
            "unpacked_bytes" => &mut told.unpacked_bytes,
            "layers" => &mut told.layers,
            "entries" => &mut told.entries,
            "expansion" => &mut told.expansion,
            "layer_seconds" => &mut told.layer_seconds,
            "image_seconds" => &mut told.image_seconds,
            _ => continue,
        };
        if limit != kind.usual {
            *place = limit;
        }
    }
    (told != v1::ImageLimits::default()).then_some(told)
}

fn set_position(plan: &mut v1::NodePlan, at: v1::Position) {
    (plan.epoch, plan.cursor_seq) = (at.epoch, at.seq);
    plan.plan_id = format!("{}.{}", at.epoch, at.seq);
}

fn run(process: &Process) -> v1::Run {
    let (policy, max_retries) = match process.restart.policy {
        RestartPolicy::Always => ("always", 0),
        RestartPolicy::OnFailure { max_retries } => ("on-failure", max_retries),
        RestartPolicy::Never => ("never", 0),
    };
    let signal = match process.stop.signal {
        Signal::Term => "TERM",
        Signal::Int => "INT",
        Signal::Quit => "QUIT",
        Signal::Hup => "HUP",
    };
    let prestart = process.prestart.iter().map(|it| v1::Prestart {
        command: it.command.clone(),
        timeout_seconds: it.timeout_seconds,
    });
    v1::Run {
        command: process.command.clone().unwrap_or_default(),
        workdir: process.workdir.clone(),
        user: process.user.clone(),
        env_vars: process.vars.clone(),
        prestart: prestart.collect(),
        stop: Some(v1::Stop {
            signal: signal.to_owned(),
            grace_seconds: process.stop.grace_seconds,
        }),
        restart: Some(v1::Restart {
            policy: policy.to_owned(),
            max_retries,
            backoff_seconds: process.restart.backoff_seconds,
        }),
    }
}

fn resources(process: &Process, overhead_bytes: u64) -> v1::Resources {
    let cpu = process.resources.cpu_millis;
    v1::Resources {
        cpu_millis: cpu.into(),
        vcpu_count: cpu.div_ceil(1000).max(1),
        cpu_weight: ((cpu + 5) / 10).clamp(1, 10_000),
        memory_limit_bytes: process.resources.memory,
        overhead_bytes,
        ephemeral_disk_bytes: process.resources.disk,
    }
}

fn network(process: &Process, address: Ipv6Addr) -> v1::Network {
    let ports = process.ports.iter().map(|port| v1::Port {
        name: port.name.clone(),
        internal: port.internal.into(),
        protocol: "tcp".to_owned(),
    });
    v1::Network {
        overlay_ipv6: address.to_string(),
        gateway_ipv6: GATEWAY.to_owned(),
        mtu: MTU,
        dns: Vec::new(),
        ports: ports.collect(),
    }
}

fn health(health: &Health) -> v1::Health {
    let (kind, path) = match &health.probe {
        Probe::Tcp => ("tcp", ""),
        Probe::Http { path } => ("http", path.as_str()),
    };
    v1::Health {
        r#type: kind.to_owned(),
        port: health.port.into(),
        path: path.to_owned(),
        interval_seconds: health.interval_seconds,
        timeout_seconds: health.timeout_seconds,
        grace_period_seconds: health.grace_period_seconds,
        success_threshold: health.success_threshold,
        failure_threshold: health.failure_threshold,
        start_timeout_seconds: health.start_timeout_seconds,
    }
}

fn secrets(process: &Process, record: &record::Instance) -> v1::Secrets {
    let version = record.secrets.filter(|_| process.secrets_required);
    v1::Secrets {
        required: process.secrets_required,
        secret_version_id: version.map_or_else(String::new, |id| id.to_string()),
        mount_path: SECRETS.0.to_owned(),
        mode: SECRETS.1,
        uid: 0,
        gid: 0,
    }
}
