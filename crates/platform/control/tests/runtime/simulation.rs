//! Whatever happens, what must never happen does not: checked after each step.
//!
//! `invariants` says what must always hold; `fault` makes a mistake for each
//! of them, and a test proves that it is found, by that one alone.

mod fault;
mod invariants;

use std::collections::BTreeSet;

use fluffy_test_kit::campaign;

use crate::history::History;
use fault::Fault;
use invariants::INVARIANTS;

fn simulate(seed: u64, prefix: &str, steps: u64) -> History {
    let mut history = History::new(seed, prefix);
    go_on(&mut history, steps, History::step);
    history
}

/// Lets so much more happen, and looks after each step whether all holds.
fn go_on(history: &mut History, steps: u64, happen: fn(&mut History)) {
    let mut before = history.world.state.clone();
    for step in 0..steps {
        happen(history);
        let after = &history.world.state;
        for (name, holds) in INVARIANTS {
            let Err(trouble) = holds(&before, after) else {
                continue;
            };
            let last = history.world.events.iter().rev().take(12);
            let last: Vec<String> = last
                .map(|event| {
                    format!(
                        "{} {} {:?}",
                        event.event_type, event.aggregate.id, event.payload
                    )
                })
                .collect();
            let seed = history.seed;
            panic!(
                "seed {seed}, step {step}: {name}: {trouble}\n{}",
                last.join("\n")
            );
        }
        before.clone_from(after);
        if step % 200 == 199 {
            history.world.check_fold();
        }
    }
}

#[test]
fn whatever_happens_nothing_is_given_twice() {
    for seed in 0..campaign(4, 40) {
        simulate(seed, "fd00::/48", 600);
    }
}

#[test]
fn nor_where_addresses_are_few() {
    for seed in 100..100 + campaign(2, 20) {
        simulate(seed, "fd00::/110", 400);
    }
}

#[test]
fn nor_where_all_want_the_same_names_ports_and_public_addresses() {
    let mut done: BTreeSet<(&str, String)> = BTreeSet::new();
    for seed in 200..200 + campaign(4, 60) {
        let mut history = History::new(seed, "fd00::/48");
        go_on(&mut history, 500, History::step_outside);
        done.extend(history.outcomes.into_keys());
    }
    let done = |operation, code: &str| done.contains(&(operation, code.to_owned()));
    for (operation, codes) in [
        (
            "createRoute",
            &["done", "hostname_taken", "ipv4_required", "port_taken"][..],
        ),
        ("updateRoute", &["done", "ipv4_required", "port_taken"]),
        ("verifyRoute", &["done", "hostname_taken"]),
        ("enableIpv4", &["done"]),
        ("disableIpv4", &["done", "ipv4_in_use"]),
    ] {
        for code in codes {
            assert!(done(operation, code), "{operation} was never {code}");
        }
    }
}

#[test]
fn a_long_history_has_almost_everything_in_it() {
    let history = simulate(7777, "fd00::/48", 3000);
    history.world.check_fold();
    let seen: BTreeSet<&str> = history
        .world
        .events
        .iter()
        .map(|event| event.event_type.as_str())
        .collect();
    for wanted in [
        "deploy.status_changed",
        "env.desired_release_set",
        "group.condition_changed",
        "instance.allocated",
        "instance.collected",
        "instance.status_changed",
        "node.revoked",
        "node.state_changed",
        "release.blocked",
        "route.created",
        "route.updated",
        "route.verified",
        "secret_bundle.version_set",
        "volume.state_changed",
        "volume_attachment.created",
    ] {
        assert!(seen.contains(wanted), "{wanted} never happened");
    }
    let done = history
        .outcomes
        .iter()
        .filter(|((_, code), _)| code == "done");
    let done: BTreeSet<&str> = done.map(|((id, _), _)| *id).collect();
    for wanted in [
        "createDeploy",
        "createRollback",
        "setScale",
        "restartInstance",
        "drainNode",
    ] {
        assert!(
            done.contains(wanted),
            "{wanted} never worked: {:?}",
            history.outcomes
        );
    }
}

#[test]
fn equal_seeds_give_equal_histories() {
    let hash = |seed| {
        let history = simulate(seed, "fd00::/48", 150);
        history.world.state.digests()
    };
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

/// Whether an invariant, looked at alone, finds a fault in some history.
fn finds(name: &str, fault: Fault) {
    let only: Vec<_> = INVARIANTS
        .iter()
        .filter(|(other, _)| *other == name)
        .collect();
    let [(_, holds)] = only[..] else {
        panic!("there is one invariant `{name}`, and not {}", only.len());
    };
    for seed in 0..20 {
        let mut history = simulate(seed, "fd00::/48", 150);
        go_on(&mut history, 50, History::step_outside);
        let before = history.world.state.clone();
        let mut after = before.clone();
        if fault(&mut after) {
            assert_eq!(holds(&before, &before), Ok(()));
            let found = holds(&before, &after);
            assert!(found.is_err(), "`{name}` did not notice it");
            return;
        }
    }
    panic!("there was never anything to spoil");
}

macro_rules! found {
    ($($test:ident: $invariant:ident finds $fault:ident;)*) => {
        $(#[test]
        fn $test() {
            finds(stringify!($invariant), fault::$fault);
        })*

        /// Every invariant can fail, and a test above proves it.
        #[test]
        fn every_invariant_has_a_fault_that_it_finds() {
            let covered = [$(stringify!($invariant)),*];
            for (name, _) in INVARIANTS {
                assert!(covered.contains(name), "no fault is made for `{name}`");
            }
        }
    };
}

found! {
    an_address_given_twice_is_found:
        invariant_no_address_is_given_twice finds one_address_for_all;
    an_address_that_stays_taken_is_found:
        invariant_no_address_is_given_twice finds an_address_kept;
    an_overbooked_node_is_found:
        invariant_no_node_gives_more_than_it_has finds memory_from_nowhere;
    a_second_writer_is_found: invariant_a_volume_has_one_writer finds a_second_writer;
    data_in_the_wrong_place_is_found: invariant_a_volume_has_one_writer finds data_elsewhere;
    an_app_beyond_the_quota_is_found:
        invariant_no_org_grows_above_its_quota finds an_app_too_many;
    an_instance_beyond_the_quota_is_found:
        invariant_no_org_grows_above_its_quota finds an_instance_too_many;
    a_second_env_of_a_name_is_found:
        invariant_no_name_is_taken_twice finds an_env_of_the_same_name;
    a_second_volume_of_a_name_is_found:
        invariant_no_name_is_taken_twice finds a_volume_of_the_same_name;
    a_hostname_of_two_envs_is_found:
        invariant_a_hostname_is_one_envs finds a_hostname_proven_twice;
    a_port_of_two_routes_is_found: invariant_a_port_is_one_routes finds a_port_taken_twice;
    a_port_taken_from_names_is_found:
        invariant_a_port_is_one_routes finds a_port_taken_from_names;
    a_port_taken_from_all_is_found: invariant_a_port_is_one_routes finds a_port_taken_from_all;
    a_port_of_an_own_address_taken_twice_is_found:
        invariant_a_port_is_one_routes finds an_own_port_taken_twice;
    what_serves_unproven_is_found:
        invariant_what_serves_is_proven finds a_route_of_whoever_asked;
    a_port_told_twice_is_found:
        invariant_edges_can_serve_the_whole_table finds a_port_taken_twice;
    a_port_told_beside_names_is_found:
        invariant_edges_can_serve_the_whole_table finds a_port_taken_from_names;
    a_port_of_an_own_address_told_twice_is_found:
        invariant_edges_can_serve_the_whole_table finds an_own_port_told_twice;
    a_name_told_twice_is_found:
        invariant_edges_can_serve_the_whole_table finds a_name_told_twice;
    an_address_that_is_not_there_is_found:
        invariant_edges_can_serve_the_whole_table finds an_address_lost;
    a_route_that_waits_for_nothing_is_found:
        invariant_what_waits_for_an_address_needs_one finds a_need_that_is_none;
    a_second_deploy_of_a_group_is_found:
        invariant_every_group_has_one_deploy finds a_second_deploy;
    a_deploy_that_stays_is_found:
        invariant_every_group_has_one_deploy finds a_deploy_that_stays;
    a_node_of_one_side_is_found: invariant_both_sides_know_the_same finds a_node_forgotten;
    an_instance_without_a_group_is_found:
        invariant_both_sides_know_the_same finds a_group_forgotten;
}

#[test]
fn ten_thousand_events_fold_to_the_same_views_again() {
    let history = crate::history::history(42, 10_000);
    history.world.check_fold();
    let types: BTreeSet<&str> = history
        .world
        .events
        .iter()
        .map(|event| event.event_type.as_str())
        .collect();
    assert!(types.len() > 55, "{types:?}");
    for wanted in [
        "approval.expired",
        "approval.requested",
        "grant.added",
        "grant.removed",
        "org_member.added",
        "org_member.removed",
        "policy.version_set",
        "project.deleted",
        "service_principal.deleted",
        "service_principal.grants_updated",
        "service_principal.secret_rotated",
        "token.issued",
        "token.revoked",
    ] {
        assert!(types.contains(wanted), "{wanted} never happened");
    }
    // What is gone is not remembered: nothing asks for it any more.
    let (state, metas) = (&history.world.state, &history.world.state.metas);
    let (access, runtime) = (&state.access, &state.runtime);
    for (kind, left) in [
        ("deploy", runtime.deploys.len()),
        ("exec_session", runtime.execs.len()),
        ("grant", access.grants.len()),
        ("instance", runtime.instances.len()),
        ("org_member", access.members.len()),
        ("project", runtime.projects.len()),
        ("release", runtime.releases.len()),
        ("route", runtime.routes.len()),
        ("secret_bundle", runtime.bundles.len()),
        ("service_principal", access.services.len()),
        ("snapshot", runtime.snapshots.len()),
        ("token", access.tokens.len()),
        ("volume", runtime.volumes.len()),
        ("volume_attachment", runtime.attachments.len()),
    ] {
        let remembered = metas.get(kind).map_or(0, |metas| metas.len());
        assert_eq!(remembered, left, "{kind}");
    }
}
