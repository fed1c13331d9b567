//! Thousands of random tasks in virtual time, with every kind of trouble.
//!
//! `world` plays driver, sandboxes and users; `invariants` says what must
//! always hold; `fault` plants a mistake for each of them, and a test proves
//! that it is found. A failure prints the seed that replays it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests"
)]

mod fault;
mod invariants;
mod model;
mod world;

use fault::Fault;
use fluffy_test_kit::{Seed, campaign};
use invariants::INVARIANTS;
use world::{Counts, World};

/// Tasks of one run.
const TASKS: u32 = 250;

#[test]
fn every_invariant_holds_over_thousands_of_tasks() {
    let seed = Seed::from_environment();
    let mut counts = Counts::default();
    for run in 0..campaign(20, 200) {
        let mut world = World::new(seed.choice(run), TASKS, Fault::None);
        if let Err(violation) = world.run(INVARIANTS) {
            panic!("run {run}: {violation}");
        }
        counts.add(&world.counts);
    }
    println!("seed {seed}: {counts:?}");
    // A simulation in which nothing happens proves nothing.
    for (what, count) in counts.each() {
        assert!(count > 0, "{what} never happened");
    }
}

/// Whether an invariant, looked at alone, finds a fault in some of the runs.
fn finds(name: &str, fault: Fault) {
    let seed = Seed::from_environment();
    let only: Vec<_> = INVARIANTS
        .iter()
        .filter(|(other, _)| *other == name)
        .copied()
        .collect();
    assert_eq!(only.len(), 1, "there is one invariant `{name}`");
    let found = (0..campaign(60, 60)).any(|run| {
        let mut world = World::new(seed.choice(run), TASKS, fault);
        world.run(&only).is_err()
    });
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
    a_slot_too_many_is_found: invariant_limits_are_never_exceeded finds MoreSlots;
    a_forgotten_dependency_is_found:
        invariant_no_task_runs_before_its_dependencies finds NoDependencies;
    a_reversed_queue_is_found:
        invariant_within_a_level_first_come_is_first_served finds ReversedSubmissions;
    a_wrong_priority_is_found:
        invariant_within_a_level_first_come_is_first_served finds OddOnesDemoted;
    a_lost_task_is_found: invariant_every_task_ends finds LosesInCrash;
    a_hidden_failure_is_found: invariant_a_task_ends_as_its_work_did finds HiddenFailures;
    a_passed_over_paused_task_is_found:
        invariant_a_paused_task_goes_on_before_its_equals_start finds OddOnesDemoted;
    a_task_lost_in_a_crash_is_found: invariant_nothing_is_lost_or_doubled finds LosesInCrash;
    a_task_started_twice_is_found: invariant_nothing_is_lost_or_doubled finds DoubledStarts;
    a_wrong_culprit_is_found: invariant_a_failure_names_its_cause finds WrongCulprit;
    an_uncancelled_dependant_is_found:
        invariant_cancelling_reaches_every_dependant finds NoDependencies;
    a_start_in_full_memory_is_found:
        invariant_nothing_starts_while_the_kernel_is_short_of_memory finds MemoryUntold;
    a_pause_in_full_memory_is_found:
        invariant_full_memory_decides_between_an_end_and_a_pause finds MemoryUntold;
    a_wrong_victim_is_found: invariant_only_a_lower_task_gives_way finds OddOnesDemoted;
    a_disturbed_ending_is_found: invariant_a_task_near_its_end_is_left_alone finds MoreTime;
    a_short_warning_is_found: invariant_a_pause_is_announced_a_second_before finds ShortWarning;
    slow_ageing_is_found: invariant_waiting_lifts_as_written finds SlowAgeing;
    a_slot_that_is_never_given_back_is_found:
        invariant_no_slot_stays_empty_while_a_task_could_use_it finds LostEnds;
    an_idle_slot_is_found:
        invariant_no_slot_stays_empty_while_a_task_could_use_it finds FewerSlots;
    a_missing_wake_is_found: invariant_it_is_woken_in_time_and_never_for_nothing finds NoWake;
    a_lost_event_is_found: invariant_replayed_events_give_the_same_state finds LostEvents;
    an_endless_return_is_found:
        invariant_what_memory_took_comes_back_once finds ForgetsReclaimed;
}
