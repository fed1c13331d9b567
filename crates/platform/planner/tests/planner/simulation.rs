//! Thousands of random worlds in virtual time, with every kind of trouble.
//!
//! `world` plays machines, server and edges, `commands` the people, and
//! `invariants` says what must always hold; `fault` plants a mistake for each
//! of them, and a test proves that it is found. A failure prints the seed that
//! replays it.

mod commands;
mod fault;
mod invariants;
mod machine;
mod world;

use std::collections::BTreeMap;

use fluffy_planner::action::Action;
use fluffy_planner::{TURN, plan};
use fluffy_test_kit::{Random, Seed, campaign};

use crate::ground::{GIB, add_env, add_group, at, cluster, group_id, org_id};
use fault::Fault;
use invariants::INVARIANTS;
use world::{Counts, World};

/// What must have happened in a campaign for it to prove anything.
const EVENTS: &[&str] = &[
    "a cancellation",
    "a cut link",
    "a deploy",
    "a disabled node",
    "a drain",
    "a guarded step",
    "a hang",
    "a new quota",
    "a node offline",
    "a pause",
    "a planner that died",
    "a power cut",
    "a report too early",
    "a report twice",
    "a restart",
    "a rollback",
    "a scaling",
    "a stale step",
    "a step",
    "an uncordoned node",
    "another isolation",
    "new secrets",
    "secrets that did not arrive",
];

#[test]
fn every_invariant_holds_in_every_world() {
    let seed = Seed::from_environment();
    let mut counts = Counts::default();
    for run in 0..campaign(200, 2000) {
        let mut world = World::new(seed.choice(run), Fault::None);
        if let Err(violation) = world.run(INVARIANTS) {
            panic!("run {run} ({}): {violation}", seed.choice(run));
        }
        counts.merge(&world.counts);
    }
    println!("seed {seed}: {counts:?}");
    for what in EVENTS {
        assert!(counts.of(what) > 0, "{what} never happened");
    }
}

/// Several orgs want more than there is; says who got more than a turn more.
///
/// An invariant like the others, but the worlds above are too small for turns.
fn invariant_orgs_take_turns(seed: u64, fault: Fault) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut state = cluster(&vec![64; 2 + random.below(6) as usize]);
    for node in state.nodes.values_mut() {
        node.capacity.disk = (5 + random.below(40)) * GIB;
    }
    let mut wanted = BTreeMap::new();
    for org in 1..=2 + u128::from(random.below(3)) {
        add_env(&mut state, org, org);
        let quota = &mut state.orgs.get_mut(&org_id(org)).unwrap().quota;
        (quota.instances, quota.cpu_millis, quota.memory) = (1000, 1_000_000, 1 << 50);
        for group in 0..1 + random.below(3) {
            let count = random.below(100) as u32;
            add_group(&mut state, &group_id(org, &format!("g{group}")), count);
            *wanted.entry(org).or_insert(0) += count as usize;
        }
    }
    let mut placed: BTreeMap<u128, usize> = wanted.keys().map(|org| (*org, 0)).collect();
    for step in plan(&fault.show(&state), at(0)) {
        let new = step.actions.iter().filter_map(|action| match action {
            Action::Allocate(allocation) => Some(allocation.group.env.to_bits()),
            _ => None,
        });
        new.for_each(|org| *placed.get_mut(&org).unwrap() += 1);
    }
    // Who got all it wanted may have less; all others are within a turn.
    let most = placed.values().max().unwrap();
    match placed
        .iter()
        .find(|(org, got)| **got < wanted[org] && *got + TURN < *most)
    {
        Some((org, got)) => Err(format!("org {org} got {got} while another got {most}")),
        None => Ok(()),
    }
}

#[test]
fn orgs_take_turns_whatever_they_want() {
    let seed = Seed::from_environment();
    for run in 0..campaign(200, 2000) {
        if let Err(violation) = invariant_orgs_take_turns(seed.choice(run), Fault::None) {
            panic!("run {run}: {violation}");
        }
    }
    let found =
        (0..100).any(|run| invariant_orgs_take_turns(seed.choice(run), Fault::OneOrg).is_err());
    assert!(found, "orgs that are one are not noticed");
}

/// Whether an invariant, looked at alone, finds a fault in some world.
fn finds(name: &str, fault: Fault) {
    let seed = Seed::from_environment();
    let only: Vec<_> = INVARIANTS
        .iter()
        .filter(|(other, _)| *other == name)
        .copied()
        .collect();
    assert_eq!(only.len(), 1, "there is one invariant `{name}`");
    let found = (0..100).any(|run| World::new(seed.choice(run), fault).run(&only).is_err());
    assert!(found, "`{name}` did not notice {fault:?}");
}

macro_rules! found {
    ($($test:ident: $invariant:ident finds $fault:ident;)*) => {
        $(#[test]
        fn $test() {
            finds(stringify!($invariant), Fault::$fault);
        })*

        /// Every invariant can fail, and a test above proves it.
        #[test]
        fn every_invariant_has_a_fault_that_it_finds() {
            let covered = [$(stringify!($invariant)),*];
            for (name, _) in INVARIANTS {
                assert!(covered.contains(name), "no fault is planted for `{name}`");
            }
        }
    };
}

found! {
    an_overbooked_node_is_found: invariant_no_node_gives_more_than_it_has finds MoreMemory;
    memory_given_away_twice_is_found:
        invariant_no_node_gives_more_than_it_has finds StoppedIsGone;
    an_exceeded_quota_is_found: invariant_no_org_grows_above_its_quota finds MoreQuota;
    a_second_writer_is_found: invariant_a_volume_has_one_writer finds ClaimsForgotten;
    data_in_the_wrong_place_is_found: invariant_data_stays_at_home finds HomesMixedUp;
    moved_data_is_found: invariant_data_is_never_moved finds DataUnseen;
    data_that_is_stopped_for_nothing_is_found:
        invariant_data_is_not_stopped_for_what_could_not_start finds NodesAllActive;
    somebody_who_goes_first_for_nothing_is_found:
        invariant_nobody_goes_first_for_what_could_not_start finds NodesAllActive;
    too_few_available_are_found: invariant_enough_stay_available finds MoreUnavailable;
    too_many_at_once_are_found: invariant_surge_is_bounded finds MoreSurge;
    a_placement_on_a_closed_node_is_found:
        invariant_nothing_is_placed_on_a_closed_node finds NodesAllActive;
    a_shared_kernel_is_found: invariant_isolation_is_kept finds NothingProtected;
    weaker_walls_that_stay_are_found: invariant_weaker_walls_give_way finds DriversUnseen;
    a_step_on_an_old_version_is_found: invariant_a_fresh_step_is_accepted finds VersionsAhead;
    an_illegal_transition_is_found: invariant_a_fresh_step_is_accepted finds DrainsForgotten;
    an_endless_pass_is_found:
        invariant_a_pass_on_what_it_left_finds_nothing finds ConditionsForgotten;
    a_wrong_reason_is_found: invariant_quota_and_capacity_are_told_apart finds NoQuota;
    a_cut_connection_is_found: invariant_edges_come_before_a_stop finds EdgesForgotten;
    a_pause_that_is_none_is_found:
        invariant_a_paused_deploy_replaces_nothing finds PausesUnseen;
    endless_tries_are_found: invariant_a_deploy_has_three_tries finds ReplacementsForgotten;
    a_hasty_crash_loop_is_found: invariant_crash_loops_are_slowed finds CrashesUnseen;
    a_forgotten_deploy_is_found: invariant_every_deploy_ends finds DeploysUnseen;
    a_forgotten_group_is_found: invariant_everything_comes_to_rest finds GroupUnseen;
}
