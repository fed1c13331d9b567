//! Whose volume it is: deploys that mount, drop and move, and the way back.

use fluffy_api::Operation;
use fluffy_base::id::{NodeId, VolumeId};
use fluffy_control::runtime::Notice;
use fluffy_control::runtime::notice::VolumeReport;
use fluffy_control::{Body, Outcome};
use fluffy_planner::lifecycle::{DeployState, VolumeState};
use serde_json::json;

use crate::rollouts::{crash, state_of};
use crate::world::{DATA, DEV, World, next, report};

const GIB: u64 = 1 << 30;
const MOUNTS: &str = "mounts = [{ volume = \"data\", path = \"/data\" }]\n";
const VOLUMES: &str = "[[volumes]]\nname = \"data\"\nsize = \"2GiB\"\n";

/// The same without its volume.
fn dropped() -> String {
    DATA.replace(MOUNTS, "").replace(VOLUMES, "")
}

fn moved() -> String {
    DATA.replace("\"/data\"", "\"/srv\"")
}

fn backs_out(manifest: &str) -> String {
    manifest.replace("[deploy]\n", "[deploy]\non_failure = \"rollback\"\n")
}

/// What `db` is to mount, by name and path.
fn mounted(world: &World) -> Vec<(String, String)> {
    let runtime = &world.state.runtime;
    let env = *runtime.envs.keys().next().unwrap();
    let mounts = runtime.mounts(env, "db");
    let named = |id: VolumeId| runtime.volumes[&id].name.clone();
    let mut wanted: Vec<_> = mounts
        .iter()
        .map(|it| (named(it.volume_id), it.mount_path.clone()))
        .collect();
    wanted.sort();
    wanted
}

/// Lets everything come about; every instance of `db` has its mounts then.
fn settle(world: &mut World) {
    world.settle();
    let runtime = &world.state.runtime;
    let env = *runtime.envs.keys().next().unwrap();
    let wanted = runtime.mounts(env, "db");
    for (id, it) in &runtime.plan.instances {
        if it.is_wanted() && it.group.process.as_ref() == "db" {
            assert_eq!(runtime.instances[id].mounts, wanted, "{id} has others");
        }
    }
}

fn at(name: &str, path: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), path.to_owned())]
}

fn running(manifest: &str, seed: u8) -> (World, NodeId) {
    let mut world = World::new("fd00::/48", seed);
    let node = world.node(1, 16 * GIB);
    let release = world.release(manifest);
    world.deploy(&release);
    settle(&mut world);
    assert_eq!(mounted(&world), at("shop-dev-data", "/data"));
    (world, node)
}

fn scale(world: &mut World, count: Option<u32>) {
    let body = json!({"processes": {"db": count}});
    world.done(Operation::SetScale, &DEV, body);
    settle(world);
}

fn volume(world: &mut World, name: &str, bytes: u64) -> String {
    let body = json!({"name": name, "size_bytes": bytes});
    let made = world.done(Operation::CreateVolume, &["local"], body);
    made["id"].as_str().unwrap().to_owned()
}

/// Another volume in the place of the declared one, as after a restore.
fn replaced(world: &mut World, name: &str) {
    scale(world, Some(0));
    let id = volume(world, name, 2 * GIB);
    let attachments = world.get(Operation::ListAttachments, &DEV);
    let attachment = attachments["items"][0]["id"].as_str().unwrap().to_owned();
    let path = [DEV[0], DEV[1], DEV[2], attachment.as_str()];
    let body = json!({ "volume_id": id });
    world.done(Operation::ReplaceAttachment, &path, body);
    scale(world, None);
    assert_eq!(mounted(world), at(name, "/data"));
}

fn cancel(world: &mut World, deploy: &str) {
    let path = [DEV[0], DEV[1], DEV[2], deploy];
    world.done(Operation::CancelDeploy, &path, json!({}));
}

#[test]
fn a_canceled_deploy_gives_back_the_volumes_that_it_took_or_moved() {
    for (seed, next) in [(90, dropped()), (91, moved())] {
        // At once, in the middle, and when the old instance is gone already.
        for passes in [0, 3, 12] {
            let (mut world, _) = running(DATA, seed);
            let release = world.release(&next);
            let deploy = world.deploy(&release);
            assert_ne!(mounted(&world), at("shop-dev-data", "/data"));
            for _ in 0..passes {
                world.plan();
                world.work();
            }
            if state_of(&world, &deploy).is_final() {
                continue;
            }
            let before = world.events.len();
            cancel(&mut world, &deploy);
            let appended = world.events.len() - before;
            let release = world.get(Operation::GetEnv, &DEV);
            let release = release["desired_releases"]["db"].to_string();
            assert!(appended >= 3, "{passes}: {release}");
            assert_eq!(mounted(&world), at("shop-dev-data", "/data"), "{passes}");
            settle(&mut world);
            assert_eq!(mounted(&world), at("shop-dev-data", "/data"), "{passes}");
            let volumes = world.get(Operation::ListVolumes, &["local"]);
            assert_eq!(volumes["items"][0]["status"], "in_use", "{passes}");
            world.check_fold();
        }
    }
}

#[test]
fn a_deploy_that_fails_goes_back_to_its_release_with_its_volumes() {
    for (seed, next) in [(92, dropped()), (93, moved())] {
        let (mut world, node) = running(DATA, seed);
        let bad = world.release(&backs_out(&next));
        let deploy = world.deploy(&bad);
        crash(&mut world, node, &bad, &deploy);
        assert_eq!(state_of(&world, &deploy), DeployState::Failed);
        // In the same append: nothing ever wants the old release without them.
        assert_eq!(mounted(&world), at("shop-dev-data", "/data"));
        settle(&mut world);
        let shown = world.get(Operation::GetStatus, &DEV);
        assert_eq!(shown["last_deploy"]["kind"], "rollback");
        assert_eq!(shown["last_deploy"]["status"], "succeeded");
        assert_eq!(mounted(&world), at("shop-dev-data", "/data"));
        world.check_fold();
    }
}

/// A release that begins without its data is worse than one that stays down.
#[test]
fn there_is_no_way_back_to_a_release_whose_volume_is_anothers_since() {
    let (mut world, node) = running(DATA, 94);
    let bad = world.release(&backs_out(&dropped()));
    let deploy = world.deploy(&bad);
    // The old instance has gone, and somebody else takes its volume.
    let held = |world: &World| {
        let mut instances = world.state.runtime.plan.instances.iter();
        let held = instances.find(|(_, it)| !it.volumes.is_empty() && !it.has_ended());
        held.map(|(id, it)| (*id, next(it)))
    };
    for _ in 0..20 {
        world.plan();
        if let Some((id, Some(status))) = held(&world) {
            let reports = vec![report(id, status, world.now)];
            world.say(Notice::Reports { node, reports });
        }
    }
    assert_eq!(held(&world), None);
    assert_eq!(state_of(&world, &deploy), DeployState::Rolling);
    let taken = world
        .state
        .runtime
        .volumes
        .keys()
        .next()
        .unwrap()
        .to_string();
    let body = json!({"volume_id": taken, "process": "job", "mount_path": "/data"});
    world.done(Operation::CreateAttachment, &DEV, body);
    let path = [DEV[0], DEV[1], DEV[2], deploy.as_str()];
    let refused = world.refused(Operation::CancelDeploy, &path, json!({}));
    assert_eq!(refused.code, "volume_constraints_invalid");
    assert!(refused.why.contains("shop-dev-data"), "{}", refused.why);
    crash(&mut world, node, &bad, &deploy);
    assert_eq!(state_of(&world, &deploy), DeployState::Failed);
    let shown = world.get(Operation::GetDeploy, &path);
    let message = shown["message"].as_str().unwrap();
    assert!(message.contains("no way back"), "{message}");
    let deploys = world.get(Operation::ListDeploys, &DEV);
    let kinds = deploys["items"].as_array().unwrap().iter();
    let kinds: Vec<_> = kinds.map(|it| it["kind"].clone()).collect();
    assert_eq!(kinds, ["deploy", "deploy"], "nothing went back");
    world.check_fold();
}

#[test]
fn what_somebody_attached_or_replaced_outlives_deploys() {
    let (mut world, node) = running(DATA, 95);
    replaced(&mut world, "restored");
    // Its name says nothing about who attached it.
    let extra = volume(&mut world, "shop-dev-extra", GIB);
    let body = json!({"volume_id": extra, "process": "db", "mount_path": "/extra"});
    world.done(Operation::CreateAttachment, &DEV, body);
    let both = [at("restored", "/data"), at("shop-dev-extra", "/extra")].concat();
    let next = world.release(&DATA.replace("256MiB", "512MiB"));
    world.deploy(&next);
    assert_eq!(mounted(&world), both);
    settle(&mut world);
    // It goes along where the manifest moves its mount,
    let elsewhere = world.release(&moved());
    let deploy = world.deploy(&elsewhere);
    let there = [at("restored", "/srv"), at("shop-dev-extra", "/extra")].concat();
    assert_eq!(mounted(&world), there);
    cancel(&mut world, &deploy);
    assert_eq!(mounted(&world), both);
    settle(&mut world);
    // goes with a mount that the manifest drops, and comes back with it.
    let without = world.release(&backs_out(&dropped()));
    let deploy = world.deploy(&without);
    assert_eq!(mounted(&world), at("shop-dev-extra", "/extra"));
    crash(&mut world, node, &without, &deploy);
    assert_eq!(mounted(&world), both);
    settle(&mut world);
    assert_eq!(mounted(&world), both);
    world.check_fold();
}

/// Its name says which volume it is at first, and not for ever.
#[test]
fn a_mount_that_was_dropped_comes_back_with_the_volume_that_it_had() {
    let (mut world, _) = running(DATA, 99);
    let first = *world.state.runtime.releases.keys().next().unwrap();
    replaced(&mut world, "restored");
    let without = world.release(&dropped());
    // Superseded at once, and by a roll-back when it has long succeeded.
    world.deploy(&without);
    assert_eq!(mounted(&world), []);
    world.deploy(&first.to_string());
    assert_eq!(mounted(&world), at("restored", "/data"));
    settle(&mut world);
    world.deploy(&without);
    settle(&mut world);
    assert_eq!(mounted(&world), []);
    world.done(Operation::CreateRollback, &DEV, json!({}));
    settle(&mut world);
    assert_eq!(mounted(&world), at("restored", "/data"));
    // The control: another volume in that place is another one.
    world.deploy(&without);
    settle(&mut world);
    let other = DATA.replace("\"data\"", "\"other\"");
    let other = world.release(&other);
    world.deploy(&other);
    settle(&mut world);
    assert_eq!(mounted(&world), at("shop-dev-other", "/data"));
    world.check_fold();
}

#[test]
fn a_mount_takes_the_volume_that_somebody_attached_in_its_place() {
    let mut world = World::new("fd00::/48", 96);
    let node = world.node(1, 4 * GIB);
    // There is more room elsewhere, but not for what is already here.
    world.node(2, 64 * GIB);
    let body = json!({"name": "mine", "size_bytes": 2 * GIB, "node": node.to_string()});
    let made = world.done(Operation::CreateVolume, &["local"], body);
    let body = json!({"volume_id": made["id"], "process": "db", "mount_path": "/data"});
    world.done(Operation::CreateAttachment, &DEV, body);
    let more = DATA.replace(
        "path = \"/data\" }]",
        "path = \"/data\" }, { volume = \"more\", path = \"/more\" }]",
    ) + "[[volumes]]\nname = \"more\"\nsize = \"1GiB\"\n";
    let release = world.release(&more);
    world.deploy(&release);
    settle(&mut world);
    let both = [at("mine", "/data"), at("shop-dev-more", "/more")].concat();
    assert_eq!(mounted(&world), both);
    let homes = world.state.runtime.plan.volumes.values();
    let homes: Vec<NodeId> = homes.map(|it| it.home).collect();
    assert_eq!(homes, [node, node]);
    world.check_fold();
}

/// The name of a volume that was deleted means nothing else for a while.
#[test]
fn a_deploy_makes_no_volume_of_a_name_that_rests() {
    let (mut world, node) = running(DATA, 97);
    let first = world
        .state
        .runtime
        .releases
        .keys()
        .next()
        .unwrap()
        .to_string();
    let without = world.release(&dropped());
    world.deploy(&without);
    settle(&mut world);
    let id = *world.state.runtime.volumes.keys().next().unwrap();
    assert_eq!(
        world.state.runtime.plan.volumes[&id].state,
        VolumeState::Available
    );
    world.done(
        Operation::DeleteVolume,
        &["local", "shop-dev-data"],
        json!({}),
    );
    let report = VolumeReport::Removed;
    world.say(Notice::Volume {
        node,
        volume: id,
        report,
    });
    let body = json!({"release_id": first});
    let refused = world.refused(Operation::CreateDeploy, &DEV, body.clone());
    assert_eq!(refused.code, "name_taken");
    // The control: the name comes free.
    world.pass(31 * 24 * 3600);
    world.done(Operation::CreateDeploy, &DEV, body);
    assert_eq!(mounted(&world), at("shop-dev-data", "/data"));
}

/// The facts of an undoing are of one append, or the release from before could
/// start without its data in between.
#[test]
fn the_way_back_and_its_volumes_are_one_append() {
    let (mut world, _) = running(DATA, 98);
    let release = world.release(&moved());
    let deploy = world.deploy(&release);
    let path = [DEV[0], DEV[1], DEV[2], deploy.as_str()];
    let request = world.request(Operation::CancelDeploy, &path, json!({}));
    let written = world.decided(&request);
    assert!(matches!(written.outcome, Outcome::Done { .. }));
    let has = |wanted: fn(&Body) -> bool| written.facts.iter().any(|fact| wanted(&fact.body));
    assert!(has(|body| matches!(body, Body::DeployStatusChanged(_))));
    assert!(has(|body| matches!(body, Body::VolumeAttachmentDeleted(_))));
    assert!(has(|body| matches!(body, Body::VolumeAttachmentCreated(_))));
    assert!(has(|body| matches!(body, Body::EnvDesiredReleaseSet(_))));
}
