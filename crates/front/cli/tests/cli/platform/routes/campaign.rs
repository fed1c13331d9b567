//! Under load nobody notices what happens behind a route: no request to an
//! instance that is well fails, whatever is rolled out, scaled, emptied or
//! killed. Each has a control, in which the same counter sees failures.

use std::time::{Duration, Instant};

use fluffy_test_kit::{campaign, wait_for};
use serde_json::Value;

use super::super::instances::{LONG, reach, ready, up};
use super::fleet::Fleet;
use super::load::{self, Load};
use super::{deploy, make_env, manifest, site};
use crate::site::Site;

/// Any port: it is inside an instance, and on this machine another is taken
/// if it is not free.
const PORT: u16 = 8080;

const HEALTH: &str = "health = { type = \"http\", port = 8080, path = \"/PATH\", \
    interval_seconds = 2, timeout_seconds = 1, grace_period_seconds = 0, start_timeout_seconds = 10 }";

/// Another version of the app: the same but for a variable.
fn version(site: &Site, version: u64, page: &str) {
    let health = HEALTH.replace("PATH", page);
    let rest = format!("replicas = 2\n{health}\nvars = {{ VERSION = \"{version}\" }}");
    site.context
        .write("fluffy.toml", &manifest(PORT, &rest))
        .unwrap();
}

/// Waits until the env's last deploy is of this kind and succeeded.
fn went_back(site: &Site) {
    wait_for("the release before to be back", LONG, || {
        let status = site.json(0, &["status"])["data"].clone();
        let last = &status["last_deploy"];
        (last["kind"] == "rollback" && last["status"] == "succeeded").then_some(())
    })
    .unwrap();
}

fn boots(instances: &[Value]) -> Vec<String> {
    let boots = instances
        .iter()
        .map(|it| it["observed"]["boot_id"].to_string());
    let mut boots: Vec<String> = boots.collect();
    boots.sort();
    boots
}

#[test]
fn nobody_notices_rollouts_failed_ones_and_scaling() {
    let site = site(PORT);
    let running = up(&site);
    make_env(&site);
    version(&site, 0, "");
    let address = deploy(&site);
    let (load, began) = (Load::start(&address, 3, 3), Instant::now());
    load.more(50);
    let rollouts = campaign(2, 20);
    for number in 1..=rollouts {
        version(&site, number, "");
        assert_eq!(deploy(&site), address);
    }
    // One whose health check never passes goes back by itself.
    version(&site, rollouts + 1, "missing");
    let failed = site.ends(1, &["deploy"]);
    assert!(failed.stderr.contains("retries_spent"), "{}", failed.stderr);
    let wrong = ": healthcheck_failed: the health check did not pass in time";
    assert!(failed.stderr.contains(wrong), "{}", failed.stderr);
    went_back(&site);
    let many = campaign(6, 20);
    site.succeeds(&["scale", &format!("web={many}")]);
    reach(&site, usize::try_from(many).unwrap());
    load.more(50);
    site.succeeds(&["scale", "web=1"]);
    reach(&site, 1);
    load.more(50);
    let requests = load.stop(began);
    println!("{rollouts} rollouts, one that failed, 1 to {many} to 1: {requests}");
    assert!(requests.failed.is_empty(), "{:#?}", requests.failed);

    // The control: the only instance goes before its successor comes.
    let (load, began) = (Load::start(&address, 3, 3), Instant::now());
    version(&site, rollouts + 2, "");
    site.succeeds(&["deploy", "--max-surge", "0", "--max-unavailable", "1"]);
    let requests = load.stop(began);
    println!("control, without a successor: {requests}");
    assert!(!requests.failed.is_empty());
    running.end();
}

#[test]
fn nobody_notices_an_agent_that_is_killed_replaced_or_drained() {
    let site = site(PORT);
    let mut fleet = Fleet::start(site);
    fleet.join(None);
    fleet.join(None);
    make_env(&fleet.site);
    version(&fleet.site, 0, "");
    let address = deploy(&fleet.site);
    let before = boots(&reach(&fleet.site, 2));
    let (load, began) = (Load::start(&address, 3, 3), Instant::now());
    load.more(50);
    let rounds = campaign(1, 10);
    for round in 0..rounds {
        for number in 0..2 {
            fleet.kill(number);
            load.more(50);
            fleet.restart(number);
            fleet.states("active", 2);
            load.more(20);
            fleet.upgrade(number, u32::try_from(round).unwrap() + 1);
            fleet.states("active", 2);
            load.more(20);
        }
    }
    wait_for("the same instances as before", LONG, || {
        (boots(&ready(&fleet.site)) == before).then_some(())
    })
    .unwrap();
    for number in 0..2 {
        let id = fleet.agents[number].id.clone();
        fleet.site.succeeds(&["nodes", "drain", &id]);
        load.more(20);
        fleet.site.succeeds(&["nodes", "uncordon", &id]);
        fleet.states("active", 2);
    }
    let requests = load.stop(began);
    println!("{rounds} x (kill -9, upgrade) of two agents, two drains: {requests}");
    assert!(requests.failed.is_empty(), "{:#?}", requests.failed);

    // The control: without the edge's process nobody is answered.
    let load = Load::start(&address, 3, 0);
    load.more(10);
    let Fleet { running, .. } = fleet;
    running.kill();
    wait_for("failures to be seen", LONG, || {
        (load.failures() > 0).then_some(())
    })
    .unwrap();
}

#[test]
fn a_deploy_that_crashes_over_and_over_says_so_soon() {
    let site = site(PORT);
    let running = up(&site);
    make_env(&site);
    version(&site, 0, "");
    let address = deploy(&site);
    let crash = manifest(PORT, "replicas = 2").replace(
        "\"/bin/busybox\", \"httpd\"",
        "\"/bin/busybox\", \"nosuchapplet\"",
    );
    site.context.write("fluffy.toml", &crash).unwrap();
    let began = Instant::now();
    let failed = site.ends(1, &["deploy"]);
    let took = began.elapsed();
    println!(
        "a crash loop fails its deploy after {:.0} s",
        took.as_secs_f64()
    );
    assert!(
        failed.stderr.contains("crash_loop_backoff"),
        "{}",
        failed.stderr
    );
    let bar = Duration::from_secs(campaign(u64::MAX, 60));
    assert!(took < bar, "{took:?}");
    // One that crashes is enough: no other was tried after it.
    let events = site.json(0, &["events", "list", "--types", "instance.allocated"]);
    assert_eq!(events["items"].as_array().unwrap().len(), 3, "{events}");
    went_back(&site);
    load::get(&address, load::PAGE).unwrap();
    running.end();
}
