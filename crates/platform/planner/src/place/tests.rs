//! Filters by their reasons, formulas by hand, and the fast way against the
//! plain one.

use std::collections::BTreeSet;

use fluffy_base::Digest;
use fluffy_base::id::{EnvId, InstanceId, ReleaseId};
use fluffy_test_kit::{Seed, campaign};

use super::*;
use crate::lifecycle::InstanceStatus;
use crate::model::{Capacity, Desired, DriverLimits, GroupId, Observed, SecretUse};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const NOW: i64 = 1_000_000_000_000;

fn now() -> Timestamp {
    Timestamp::from_micros(NOW)
}

fn image() -> Digest {
    Digest([1; 32])
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
            cores: 8,
            memory,
            disk: 100 * GIB,
        },
        images: BTreeSet::new(),
        host_failures: Vec::new(),
        drain: None,
    }
}

fn spec(memory: u64) -> Spec {
    Spec {
        hash: Digest([7; 32]),
        release: ReleaseId::from_bits(1),
        images: BTreeMap::from([(Arch::Amd64, image())]),
        resources: Resources {
            cpu_millis: 1000,
            memory,
            disk: GIB,
        },
        volumes: BTreeSet::new(),
        secrets: SecretUse::Unused,
        start_timeout: Duration::from_secs(120),
        min_ready: Duration::from_secs(10),
        grace: Duration::from_secs(10),
    }
}

fn cluster(nodes: impl IntoIterator<Item = Node>) -> State {
    let numbered = (1..).map(NodeId::from_bits).zip(nodes);
    State {
        nodes: numbered.collect(),
        ..State::default()
    }
}

fn instance(node: u128, status: InstanceStatus) -> Instance {
    Instance {
        group: GroupId {
            env: EnvId::from_bits(1),
            process: "web".into(),
        },
        node: NodeId::from_bits(node),
        spec: Digest([7; 32]),
        booking: booking(&spec(GIB).resources, Driver::Firecracker),
        driver: Driver::Firecracker,
        volumes: BTreeSet::new(),
        allocated_at: now(),
        desired: Desired::Running,
        observed: Observed {
            status,
            since: now(),
            reason: None,
            failures: 0,
            was_ready: false,
        },
        routed: false,
        restart: false,
    }
}

/// Why each of these nodes is refused.
fn refusals(nodes: Vec<Node>, spec: &Spec, isolation: EnvIsolation) -> Vec<(Condition, u32)> {
    let state = cluster(nodes);
    let mut board = Board::new(&state, now());
    let class = board.class(spec, isolation);
    let rejected = board.place(class, &Neighbours::default()).unwrap_err();
    rejected.0.into_iter().collect()
}

#[test]
fn memory_for_instances_is_what_the_host_leaves() {
    let memory = |memory| {
        Capacity {
            cores: 1,
            memory,
            disk: 0,
        }
        .allocatable_memory()
    };
    assert_eq!(memory(4 * GIB), 4 * GIB - 512 * MIB - 4 * GIB / 50);
    assert_eq!(memory(100 * GIB), 100 * GIB - 5 * GIB - 2 * GIB);
    assert_eq!(memory(256 * MIB), 0);
}

#[test]
fn each_filter_leaves_its_reason_and_its_count() {
    let with = |change: fn(&mut Node)| {
        let mut node = node(16 * GIB);
        change(&mut node);
        node
    };
    for state in NodeState::ALL
        .iter()
        .filter(|state| **state != NodeState::Active)
    {
        let mut closed = node(16 * GIB);
        closed.state = *state;
        let refused = refusals(vec![closed], &spec(GIB), EnvIsolation::Virtual);
        assert_eq!(refused, [(Condition::NoNodesActive, 1)], "{state}");
    }
    let all = vec![
        with(|node| node.state = NodeState::Degraded),
        with(|node| node.state = NodeState::Draining),
        with(|node| node.drivers.clear()),
        with(|node| node.arch = Arch::Arm64),
        with(|node| node.capacity.memory = GIB),
        with(|node| node.capacity.disk = GIB - 1),
    ];
    let refused = refusals(all, &spec(GIB), EnvIsolation::Virtual);
    assert_eq!(
        refused,
        [
            (Condition::NoNodesActive, 2),
            (Condition::IsolationUnavailable, 1),
            (Condition::ArchUnavailable, 1),
            (Condition::NoCapacityMemory, 1),
            (Condition::NoCapacityDisk, 1),
        ]
    );
    let rejected = Rejections(refused.into_iter().collect());
    assert_eq!(rejected.reason(), Condition::NoCapacityDisk);
    assert_eq!(Rejections::default().reason(), Condition::NoNodesActive);
}

#[test]
fn a_driver_must_be_strong_and_large_enough() {
    let table = [
        (Driver::Firecracker, [true, true, true]),
        (Driver::Qemu, [true, true, true]),
        (Driver::QemuEmulated, [false, true, true]),
        (Driver::Container, [false, false, true]),
    ];
    let envs = [
        EnvIsolation::Protected,
        EnvIsolation::Virtual,
        EnvIsolation::SharedKernelAllowed,
    ];
    for (driver, accepted) in table {
        for (env, accepted) in envs.into_iter().zip(accepted) {
            let mut only = node(16 * GIB);
            let limits = *only.drivers.values().next().unwrap();
            only.drivers = BTreeMap::from([(driver, limits)]);
            let state = cluster([only]);
            let mut board = Board::new(&state, now());
            let class = board.class(&spec(GIB), env);
            let placed = board.place(class, &Neighbours::default());
            assert_eq!(placed.is_ok(), accepted, "{driver:?} in {env:?}");
            if let Ok(placed) = placed {
                assert_eq!(placed.driver, driver);
                assert_eq!(placed.booking.memory, GIB + driver.overhead());
            }
        }
    }
    // 32 processors are Firecracker's end; QEMU takes over where it is there.
    let mut large = spec(GIB);
    large.resources.cpu_millis = 32_001;
    let refused = refusals(vec![node(16 * GIB)], &large, EnvIsolation::Protected);
    assert_eq!(refused, [(Condition::IsolationUnavailable, 1)]);
    let mut both = node(16 * GIB);
    let limits = DriverLimits {
        vcpus: 64,
        memory: 64 * GIB,
    };
    both.drivers.insert(Driver::Qemu, limits);
    let state = cluster([both]);
    let mut board = Board::new(&state, now());
    let class = board.class(&large, EnvIsolation::Protected);
    let placed = board.place(class, &Neighbours::default()).unwrap();
    assert_eq!(placed.driver, Driver::Qemu);
}

#[test]
fn a_score_is_the_sum_that_is_written_down() {
    let mut used = node(100 * GIB);
    used.images.insert(image());
    used.host_failures = vec![
        Timestamp::from_micros(NOW - 600_000_000),
        Timestamp::from_micros(NOW - 599_999_999),
        now(),
    ];
    let mut state = cluster([used]);
    for (number, status) in [
        InstanceStatus::Ready,
        InstanceStatus::Lost,
        InstanceStatus::Stopped,
    ]
    .into_iter()
    .enumerate()
    {
        let id = InstanceId::from_bits(number as u128);
        state.instances.insert(id, instance(1, status));
    }
    let mut board = Board::new(&state, now());
    let class = board.class(&spec(2 * GIB), EnvIsolation::Protected);
    let mut neighbours = Neighbours::default();
    neighbours.add(NodeId::from_bits(1));
    neighbours.add(NodeId::from_bits(1));
    let rating = board
        .rate(class, NodeId::from_bits(1), &neighbours)
        .unwrap();
    // Two of the three count: one ready, one lost; the stopped one is gone.
    let allocatable = 93 * GIB;
    let free = allocatable - 2 * (GIB + 64 * MIB) - (2 * GIB + 64 * MIB);
    let expected = Parts {
        spread: 333,
        cpu: 1000 - 1000 * 3000 / 32_000,
        memory: 1000 * free / allocatable,
        health: 500,
        image: 1000,
    };
    assert_eq!(rating.parts, expected);
    let sum = 35 * 333 + 25 * 907 + 20 * expected.memory + 15 * 500 + 5 * 1000;
    assert_eq!(rating.score, i64::try_from(sum).unwrap());
}

#[test]
fn ties_go_to_the_smallest_id_and_copies_spread() {
    let state = cluster(vec![node(16 * GIB); 4]);
    let mut board = Board::new(&state, now());
    let class = board.class(&spec(GIB), EnvIsolation::Virtual);
    let mut neighbours = Neighbours::default();
    let nodes: Vec<u128> = (0..8)
        .map(|_| {
            let placed = board.place(class, &neighbours).unwrap();
            neighbours.add(placed.node);
            placed.node.to_bits()
        })
        .collect();
    assert_eq!(nodes, [1, 2, 3, 4, 1, 2, 3, 4]);
}

#[test]
fn a_node_is_filled_to_the_byte_and_never_beyond() {
    let overhead = Driver::Firecracker.overhead();
    let room = node(16 * GIB).capacity.allocatable_memory();
    let fits = spec(room / 2 - overhead);
    let state = cluster([node(16 * GIB)]);
    let mut board = Board::new(&state, now());
    let class = board.class(&fits, EnvIsolation::Virtual);
    for _ in 0..2 {
        board.place(class, &Neighbours::default()).unwrap();
    }
    let full = board.place(class, &Neighbours::default()).unwrap_err();
    assert_eq!(full.reason(), Condition::NoCapacityMemory);
    let one_more = spec(room / 2 - overhead + 1);
    let mut board = Board::new(&state, now());
    let class = board.class(&one_more, EnvIsolation::Virtual);
    board.place(class, &Neighbours::default()).unwrap();
    assert!(board.place(class, &Neighbours::default()).is_err());
}

#[test]
fn a_node_has_at_most_250_instances() {
    let mut huge = node(2000 * GIB);
    huge.capacity.disk = 2000 * GIB;
    let state = cluster([huge]);
    let mut board = Board::new(&state, now());
    let class = board.class(&spec(GIB), EnvIsolation::Virtual);
    for _ in 0..250 {
        board.place(class, &Neighbours::default()).unwrap();
    }
    let full = board.place(class, &Neighbours::default()).unwrap_err();
    assert_eq!(full.reason(), Condition::NoCapacityInstances);
}

#[test]
fn a_node_that_failed_the_group_is_the_last_choice() {
    let state = cluster([node(64 * GIB), node(4 * GIB)]);
    let mut board = Board::new(&state, now());
    let class = board.class(&spec(GIB), EnvIsolation::Virtual);
    let mut neighbours = Neighbours::default();
    neighbours.avoid(NodeId::from_bits(1));
    let mut nodes = Vec::new();
    while nodes.len() < 4 {
        nodes.push(board.place(class, &neighbours).unwrap().node.to_bits());
    }
    assert_eq!(nodes, [2, 2, 2, 1]);
}

/// The plain way: rate every node, take the best, the smallest id first.
fn plainly(board: &Board<'_>, class: ClassId, neighbours: &Neighbours) -> Option<NodeId> {
    let rated = board.slots.iter().filter_map(|slot| {
        let rating = board.rate(class, slot.id, neighbours).ok()?;
        Some((rating.score, Reverse(slot.id)))
    });
    rated.max().map(|(_, Reverse(node))| node)
}

#[test]
fn the_fast_way_chooses_what_the_plain_way_chooses() {
    let seed = Seed::from_environment();
    let mut refused = 0;
    for run in 0..campaign(40, 400) {
        let mut step = run << 32;
        let mut pick = |many: u64| {
            step += 1;
            seed.choice(step) % many
        };
        let nodes: Vec<Node> = (0..5 + pick(30))
            .map(|_| {
                let mut node = node((2 + pick(30)) * GIB);
                node.capacity.cores = 1 + pick(16);
                node.capacity.disk = pick(60) * GIB;
                node.host_failures = vec![now(); usize::try_from(pick(6)).unwrap()];
                if pick(2) == 0 {
                    node.images.insert(image());
                }
                if pick(10) == 0 {
                    node.state = NodeState::Degraded;
                }
                node
            })
            .collect();
        let state = cluster(nodes);
        let mut board = Board::new(&state, now());
        let mut groups: Vec<(ClassId, Neighbours)> = (0..4)
            .map(|_| {
                let spec = spec((1 + pick(2)) * GIB / 2);
                let mut neighbours = Neighbours::default();
                if pick(3) == 0 {
                    neighbours.avoid(NodeId::from_bits(u128::from(1 + pick(6))));
                }
                (board.class(&spec, EnvIsolation::Virtual), neighbours)
            })
            .collect();
        for _ in 0..200 {
            let (class, neighbours) = &mut groups[usize::try_from(pick(4)).unwrap()];
            let plain = plainly(&board, *class, neighbours);
            let fast = board.place(*class, neighbours);
            assert_eq!(
                fast.as_ref().ok().map(|placed| placed.node),
                plain,
                "run {run}"
            );
            match fast {
                Ok(placed) => neighbours.add(placed.node),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 0, "no cluster was ever full");
}
