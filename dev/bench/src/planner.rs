//! The planner: one pass over large clusters.
//!
//! The reference is the plain way to the same placements: every node is rated
//! for every instance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, ensure};
use fluffy_base::id::{EnvId, InstanceId, NodeId, OrgId, ReleaseId};
use fluffy_base::{Digest, Timestamp};
use fluffy_planner::action::Action;
use fluffy_planner::lifecycle::{InstanceStatus, NodeState};
use fluffy_planner::model::{
    Arch, Capacity, Desired, Driver, DriverLimits, Env, EnvIsolation, EnvLife, Group, GroupId,
    Instance, Node, Observed, Org, Quota, Resources, SecretUse, Spec, State,
};
use fluffy_planner::place::{Board, Neighbours};
use fluffy_planner::plan;

use crate::figure::{Bar, Figure, Samples, Show, alternate};

const GIB: u64 = 1 << 30;
const ROUNDS: usize = 5;

/// All figures of the planner.
///
/// # Errors
/// A pass did not place what it should.
pub(crate) fn run() -> Result<Vec<Figure>> {
    let shapes = [
        (
            "10,000 instances of 100 groups on 1,000 nodes",
            1000,
            100,
            100,
        ),
        (
            "10,000 instances of 10,000 groups on 1,000 nodes",
            1000,
            10_000,
            1,
        ),
    ];
    let mut figures = Vec::new();
    for (what, nodes, groups, count) in shapes {
        let state = cluster(nodes, groups, count);
        figures.push(measure(what, &state, 10_000, Bar::Under(1.0))?);
    }
    let mut state = cluster(50, 100, 10);
    settle(&mut state);
    let grown = state.groups.values_mut().take(10);
    grown.for_each(|group| group.count += 10);
    let what = "100 instances on 50 nodes that have 1,000";
    figures.push(measure(what, &state, 100, Bar::Under(0.1))?);
    Ok(figures)
}

fn measure(what: &str, state: &State, wanted: usize, bar: Bar) -> Result<Figure> {
    let placed = placements(state);
    ensure!(placed == wanted, "{placed} of {wanted} were placed");
    ensure!(plainly(state) == wanted, "the plain way places as many");
    let twice = plan(state, now()) == plan(state, now());
    ensure!(twice, "the same input gave another output");
    let ours = || assert_eq!(placements(state), wanted);
    let reference = || assert_eq!(plainly(state), wanted);
    let (ours, reference) = alternate(ROUNDS, 1, ours, reference);
    Ok(Figure {
        what: format!("a pass that places {what}"),
        ours: Samples::new(ours, Show::Time),
        reference: Some((
            "rating every node for each".to_owned(),
            Samples::new(reference, Show::Time),
        )),
        bar,
    })
}

fn placements(state: &State) -> usize {
    let steps = plan(state, now());
    let actions = steps.iter().flat_map(|step| &step.actions);
    actions
        .filter(|action| matches!(action, Action::Allocate(_)))
        .count()
}

/// Rates every node for every missing instance and takes the best.
fn plainly(state: &State) -> usize {
    let mut board = Board::new(state, now());
    let mut have: BTreeMap<&GroupId, Vec<NodeId>> = BTreeMap::new();
    for instance in state.instances.values() {
        have.entry(&instance.group).or_default().push(instance.node);
    }
    let mut placed = 0;
    for (id, group) in &state.groups {
        let class = board.class(&group.spec, EnvIsolation::Virtual);
        let mut neighbours = Neighbours::default();
        let there = have.remove(id).unwrap_or_default();
        let missing = usize::try_from(group.count).map_or(0, |count| count - there.len());
        there.into_iter().for_each(|node| neighbours.add(node));
        for _ in 0..missing {
            let rated = state.nodes.keys().filter_map(|node| {
                let rating = board.rate(class, *node, &neighbours).ok()?;
                Some((rating.score, std::cmp::Reverse(*node)))
            });
            let best = rated.max().map(|(_, best)| best.0);
            if best.is_some_and(|node| board.place_at(class, node).is_ok()) {
                best.into_iter().for_each(|node| neighbours.add(node));
                placed += 1;
            }
        }
    }
    placed
}

fn now() -> Timestamp {
    Timestamp::from_micros(1_000_000_000_000)
}

/// Nodes of two sizes, and groups of one instance size, a hundred to an org.
fn cluster(nodes: u32, groups: u32, count: u32) -> State {
    let mut state = State::default();
    for number in 1..=nodes {
        let memory = if number % 2 == 0 { 64 } else { 128 };
        let id = NodeId::from_bits(number.into());
        state.nodes.insert(id, node(memory * GIB));
    }
    for number in 0..groups {
        let (org, env) = (
            OrgId::from_bits((number / 100).into()),
            EnvId::from_bits(number.into()),
        );
        let quota = Quota {
            instances: u64::MAX,
            memory: u64::MAX,
            cpu_millis: u64::MAX,
        };
        state.orgs.insert(org, Org { quota });
        state.envs.insert(
            env,
            Env {
                version: 1,
                org,
                isolation: EnvIsolation::Virtual,
                secrets: None,
                life: EnvLife::Live,
            },
        );
        let id = GroupId {
            env,
            process: "web".into(),
        };
        state.groups.insert(id, group(number, count));
    }
    state
}

fn group(number: u32, count: u32) -> Group {
    Group {
        version: 1,
        spec: Spec {
            hash: Digest::of(&number.to_le_bytes()),
            release: ReleaseId::from_bits(number.into()),
            // Ten images, so that there are ten kinds of request.
            images: BTreeMap::from([(Arch::Amd64, Digest::of(&(number % 10).to_le_bytes()))]),
            resources: Resources {
                cpu_millis: 500,
                memory: GIB / 2,
                disk: GIB,
            },
            volumes: BTreeSet::new(),
            secrets: SecretUse::Unused,
            start_timeout: Duration::from_secs(120),
            min_ready: Duration::from_secs(10),
            grace: Duration::from_secs(10),
        },
        count,
        held: false,
        conditions: BTreeSet::new(),
        allocation_failed_at: None,
        replaced: Vec::new(),
    }
}

fn node(memory: u64) -> Node {
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
            cores: 32,
            memory,
            disk: 1000 * GIB,
        },
        images: BTreeSet::new(),
        host_failures: Vec::new(),
        drain: None,
    }
}

/// Every instance that a pass wants is there and ready.
fn settle(state: &mut State) {
    let steps = plan(state, now());
    let actions = steps.into_iter().flat_map(|step| step.actions);
    for (number, action) in (1..).zip(actions) {
        let Action::Allocate(allocation) = action else {
            continue;
        };
        let instance = Instance {
            group: allocation.group,
            node: allocation.node,
            spec: allocation.spec,
            booking: allocation.booking,
            driver: allocation.driver,
            volumes: BTreeSet::new(),
            allocated_at: Timestamp::MIN,
            desired: Desired::Running,
            observed: Observed {
                status: InstanceStatus::Ready,
                since: Timestamp::MIN,
                reason: None,
                failures: 0,
                was_ready: true,
            },
            routed: true,
            restart: false,
        };
        let id = InstanceId::from_bits(number);
        state.instances.insert(id, instance);
    }
}
