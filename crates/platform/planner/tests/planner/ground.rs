//! What tests plan on: small clusters, built piece by piece.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fluffy_base::id::{EnvId, NodeId, OrgId, ReleaseId, SecretVersionId, VolumeId};
use fluffy_base::{Digest, Timestamp};
use fluffy_planner::lifecycle::{NodeState, VolumeState};
use fluffy_planner::model::{
    Arch, Capacity, Downtime, Driver, DriverLimits, Env, EnvIsolation, EnvLife, Group, GroupId,
    Node, OnFailure, Org, Quota, Resources, RolloutOptions, SecretUse, Spec, State, Volume,
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros((1_000_000 + seconds) * 1_000_000)
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn node_id(number: u128) -> NodeId {
    NodeId::from_bits(number)
}

pub(crate) fn org_id(number: u128) -> OrgId {
    OrgId::from_bits(number)
}

pub(crate) fn env_id(number: u128) -> EnvId {
    EnvId::from_bits(number)
}

pub(crate) fn release_id(number: u128) -> ReleaseId {
    ReleaseId::from_bits(number)
}

pub(crate) fn volume_id(number: u128) -> VolumeId {
    VolumeId::from_bits(number)
}

pub(crate) fn secret_id(number: u128) -> SecretVersionId {
    SecretVersionId::from_bits(number)
}

pub(crate) fn group_id(env: u128, process: &str) -> GroupId {
    GroupId {
        env: env_id(env),
        process: process.into(),
    }
}

/// The hash of everything that makes another instance of a spec.
pub(crate) fn hash(group: &GroupId, spec: &Spec) -> Digest {
    let inputs = format!(
        "{group} {} {:?} {:?} {:?}",
        spec.release, spec.secrets, spec.volumes, spec.resources
    );
    Digest::of(inputs.as_bytes())
}

pub(crate) fn spec(group: &GroupId, release: u128) -> Spec {
    let mut spec = Spec {
        hash: Digest([0; 32]),
        release: release_id(release),
        images: BTreeMap::from([(Arch::Amd64, Digest::of(&release.to_le_bytes()))]),
        resources: Resources {
            cpu_millis: 500,
            memory: 512 * MIB,
            disk: GIB,
        },
        volumes: BTreeSet::new(),
        secrets: SecretUse::Unused,
        start_timeout: secs(30),
        min_ready: secs(3),
        grace: secs(5),
    };
    spec.hash = hash(group, &spec);
    spec
}

pub(crate) fn node(gib: u64) -> Node {
    Node {
        version: 1,
        state: NodeState::Active,
        arch: Arch::Amd64,
        drivers: BTreeMap::from([(
            Driver::Firecracker,
            DriverLimits {
                vcpus: 32,
                memory: 256 * GIB,
            },
        )]),
        capacity: Capacity {
            cores: 8,
            memory: gib * GIB,
            disk: 200 * GIB,
        },
        images: BTreeSet::new(),
        host_failures: Vec::new(),
        drain: None,
    }
}

pub(crate) fn options() -> RolloutOptions {
    RolloutOptions {
        max_surge: 1,
        max_unavailable: 0,
        timeout: secs(300),
        on_failure: OnFailure::Rollback,
        downtime: Downtime::Refused,
    }
}

/// Nodes of these sizes, one org with one env.
pub(crate) fn cluster(sizes: &[u64]) -> State {
    let mut state = State::default();
    for (number, gib) in (1..).zip(sizes) {
        state.nodes.insert(node_id(number), node(*gib));
    }
    add_env(&mut state, 1, 1);
    state
}

pub(crate) fn add_env(state: &mut State, org: u128, env: u128) {
    state.orgs.entry(org_id(org)).or_insert(Org {
        quota: Quota {
            instances: 100,
            memory: 128 * GIB,
            cpu_millis: 64_000,
        },
    });
    state.envs.insert(
        env_id(env),
        Env {
            version: 1,
            org: org_id(org),
            isolation: EnvIsolation::Virtual,
            secrets: None,
            life: EnvLife::Live,
        },
    );
}

pub(crate) fn add_group(state: &mut State, id: &GroupId, count: u32) {
    let spec = spec(id, 1);
    state.groups.insert(
        id.clone(),
        Group {
            version: 1,
            spec,
            count,
            held: false,
            conditions: BTreeSet::new(),
            allocation_failed_at: None,
            replaced: Vec::new(),
        },
    );
}

/// A group with one volume that is at home on a node.
pub(crate) fn add_stateful(state: &mut State, id: &GroupId, volume: u128, home: u128) {
    state.volumes.insert(
        volume_id(volume),
        Volume {
            home: node_id(home),
            state: VolumeState::Available,
        },
    );
    add_group(state, id, 1);
    let group = state.groups.get_mut(id).unwrap();
    group.spec.volumes.insert(volume_id(volume));
    group.spec.hash = hash(id, &group.spec);
}
