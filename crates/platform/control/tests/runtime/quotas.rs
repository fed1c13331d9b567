//! What an org has in the end counts, not only what it has on the way there.

use fluffy_api::Operation;
use fluffy_control::runtime::Notice;
use fluffy_planner::lifecycle::DeployState;
use serde_json::json;

use crate::rollouts::state_of;
use crate::world::{DEV, WEB, World};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn limit(world: &mut World, dimension: &str, limit: u64) {
    let org = world.state.runtime.orgs.keys().next().unwrap().to_string();
    let version = world.state.meta("org", &org).unwrap().version;
    let body = json!({"limits": {dimension: limit}, "expected_version": version});
    world.done(Operation::SetQuotas, &["local"], body);
}

fn web(memory: u64) -> String {
    format!("{WEB}replicas = 4\n").replace("128MiB", &format!("{memory}MiB"))
}

fn jobs(memory: u64, replicas: u64) -> String {
    format!(
        "[processes.job]\nresources = {{ memory = \"{memory}MiB\", disk = \"1GiB\" }}\n\
         replicas = {replicas}\n"
    )
}

/// Four of 128 MiB and some others run, each with 64 MiB that its driver takes.
fn running(seed: u8, others: u64) -> World {
    let mut world = World::new("fd00::/48", seed);
    world.node(1, 64 * GIB);
    let release = world.release(&(web(128) + &jobs(128, others)));
    world.deploy(&release);
    world.settle();
    let used = world.get(Operation::GetQuotas, &["local"]);
    assert_eq!(used["quotas"]["memory"]["used"], (4 + others) * 192 * MIB);
    world
}

#[test]
fn a_deploy_whose_end_state_exceeds_the_quota_is_refused() {
    let mut world = running(111, 1);
    limit(&mut world, "memory", 1_400 * MIB);
    // One of the new ones finds room beside all of the old, four do not.
    let large = world.release(&(web(320) + &jobs(128, 1)));
    let body = json!({"release_id": large});
    let refused = world.refused(Operation::CreateDeploy, &DEV, body.clone());
    assert_eq!(refused.code, "quota_exceeded");
    assert_eq!(refused.details["dimension"], "memory");
    assert!(!refused.fix.contains("max_surge"), "{}", refused.fix);
    // It is refused however carefully it goes,
    let careful = json!({"release_id": large,
        "options": {"max_surge": 0, "max_unavailable": 1}});
    let refused = world.refused(Operation::CreateDeploy, &DEV, careful);
    assert_eq!(refused.code, "quota_exceeded");
    // The control: and taken as soon as it fits in the end.
    limit(&mut world, "memory", 1_500 * MIB);
    world.done(Operation::CreateDeploy, &DEV, body);
}

#[test]
fn what_a_deploy_takes_away_makes_room_for_what_it_brings() {
    let mut world = running(112, 2);
    limit(&mut world, "memory", 1_400 * MIB);
    let careful = |release: &str| json!({"release_id": release, "options": {"max_surge": 0, "max_unavailable": 1}});
    // The control: with as many of both there is no room.
    let both = world.release(&(web(256) + &jobs(256, 2)));
    let refused = world.refused(Operation::CreateDeploy, &DEV, careful(&both));
    assert_eq!(refused.code, "quota_exceeded");
    // Without the other process type there is, also for what drivers take.
    let alone = world.release(&web(256));
    let made = world.done(Operation::CreateDeploy, &DEV, careful(&alone));
    world.settle();
    let deploy = made["id"].as_str().unwrap();
    assert_eq!(state_of(&world, deploy), DeployState::Succeeded);
}

#[test]
fn scaling_counts_what_instances_will_be_not_what_they_were() {
    let mut world = running(113, 1);
    let large = world.release(&(web(256) + &jobs(128, 1)));
    world.deploy(&large);
    // Four of 128 MiB run, and eight of 256 MiB are asked for.
    limit(&mut world, "memory", 2_200 * MIB);
    let body = json!({"processes": {"web": 8}});
    let refused = world.refused(Operation::SetScale, &DEV, body.clone());
    assert_eq!(refused.code, "quota_exceeded");
    limit(&mut world, "memory", 3_000 * MIB);
    world.done(Operation::SetScale, &DEV, body);
}

#[test]
fn an_org_has_only_so_many_releases_that_are_not_retired() {
    let mut world = World::new("fd00::/48", 114);
    world.node(1, 16 * GIB);
    limit(&mut world, "releases", 2);
    let used = world.release(WEB);
    world.deploy(&used);
    world.settle();
    let other = WEB.replace("serve", "other");
    let unused = world.release(&other);
    let body = json!({"image": "registry.example.com/shop:1", "manifest": WEB});
    let refused = world.refused(Operation::CreateRelease, &["local", "shop"], body.clone());
    assert_eq!(refused.code, "quota_exceeded");
    assert_eq!(refused.details["dimension"], "releases");
    // What nothing uses retires: it is shown, deployed nowhere, and its
    // manifest is in the history alone.
    world.pass(31 * 24 * 3600);
    world.say(Notice::Upkeep);
    let path = ["local", "shop", unused.as_str()];
    let shown = world.get(Operation::GetRelease, &path);
    assert_eq!(shown["status"], "retired");
    assert_eq!(shown["manifest"], json!(null));
    assert!(shown["manifest_hash"].is_string() && shown["platforms"][0].is_object());
    let deploy = json!({ "release_id": unused });
    let refused = world.refused(Operation::CreateDeploy, &DEV, deploy.clone());
    assert_eq!(refused.code, "release_blocked");
    let back = json!({ "to_release": unused });
    let refused = world.refused(Operation::CreateRollback, &DEV, back);
    assert_eq!(refused.code, "release_blocked");
    // The control: what runs has all of its own, and there is room again.
    let path = ["local", "shop", used.as_str()];
    let shown = world.get(Operation::GetRelease, &path);
    assert!(shown["manifest"]["processes"]["web"].is_object());
    world.release(&other);
    world.settle();
    assert_eq!(world.get(Operation::GetStatus, &DEV)["status"], "healthy");
    world.check_fold();
}
