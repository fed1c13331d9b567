//! What may not happen does not: every command on every state of what it is
//! about, through the door that a server uses.
//!
//! Whether a pair is legal is read from the lifecycle's own table, which its
//! tests hold against the specification. An illegal one must be refused by
//! name and leave nothing behind; the control is that each command is done in
//! some state.

use std::time::Duration;

use fluffy_api::Operation;
use fluffy_base::id::{
    AttachmentId, DeployId, EnrollmentTokenId, InstanceId, NodeId, ReleaseId, RouteId, VolumeId,
};
use fluffy_control::{Outcome, Request, State};
use fluffy_planner::lifecycle::{
    AttachmentState, Cause, DeployState, ExecState, InstanceStatus, JobState, NodeState,
    ReleaseState, RouteState, SecretBundleState, VolumeState,
};
use fluffy_planner::model::Desired;
use fluffy_planner::reason::{DrainReason, StopReason};
use serde_json::{Value, json};

use crate::world::{DEV, WEB, World};

const GIB: u64 = 1 << 30;

/// What a pair of command and state should come to.
#[derive(Debug, Clone, Copy)]
enum Should {
    Happen,
    /// Be refused with this code.
    Fail(&'static str),
}

fn legal(allowed: bool) -> Should {
    match allowed {
        true => Should::Happen,
        false => Should::Fail("invalid_transition"),
    }
}

/// Counts what was tried, so that no table is empty by mistake.
#[derive(Debug, Default)]
struct Tally {
    happened: usize,
    refused: usize,
}

/// Asks for something in a state that is forced; the world stays as it was.
fn attempt(
    world: &mut World,
    force: &dyn Fn(&mut State),
    (operation, path, body): (Operation, &[&str], Value),
    should: Should,
    tally: &mut Tally,
) {
    let before = world.state.clone();
    let many = world.events.len();
    force(&mut world.state);
    let forced = world.state.clone();
    let mut request: Request = world.request(operation, path, body);
    if matches!(
        operation,
        Operation::ReplaceSecrets | Operation::UpdateSecrets
    ) {
        request.material = world.sealed(b"other values");
    }
    let outcome = world.ask(&request);
    let id = operation.spec().id;
    match (should, &outcome) {
        (Should::Happen, Outcome::Done { .. }) => tally.happened += 1,
        (Should::Fail(code), Outcome::Refused(refusal)) => {
            assert_eq!(refusal.code, code, "{id}: {refusal:?}");
            assert!(!refusal.why.is_empty(), "{id}");
            // That somebody tried may be noted; nothing else is.
            let mut after = world.state.runtime.clone();
            after.heard_at = forced.runtime.heard_at;
            let known = &forced.runtime.execs;
            (after.execs).retain(|id, it| it.state != ExecState::Denied || known.contains_key(id));
            after.finished.execs = forced.runtime.finished.execs.clone();
            assert!(
                after == forced.runtime,
                "{id} was refused and changed something"
            );
            let listed = operation.spec().errors.contains(&code) || code == "not_found";
            assert!(listed, "{id} does not say that it refuses with {code}");
            tally.refused += 1;
        }
        (should, outcome) => panic!("{id} should {should:?}: {outcome:?}"),
    }
    world.state = before;
    world.events.truncate(many);
}

fn check(tally: &Tally) {
    assert!(tally.happened > 0 && tally.refused > 0, "{tally:?}");
}

/// A platform where something of everything is there.
fn furnished(seed: u8) -> (World, NodeId, ReleaseId, DeployId, InstanceId) {
    let mut world = World::new("fd00::/48", seed);
    let node = world.node(1, 16 * GIB);
    let release = world.release(WEB);
    let deploy = world.deploy(&release);
    world.settle();
    let instance = *world.state.runtime.plan.instances.keys().next().unwrap();
    (
        world,
        node,
        release.parse().unwrap(),
        deploy.parse().unwrap(),
        instance,
    )
}

#[test]
fn releases_are_blocked_and_deployed_only_where_they_can_be() {
    let (mut world, _, release, _, _) = furnished(60);
    let id = release.to_string();
    let path = ["local", "shop", id.as_str()];
    let mut tally = Tally::default();
    for state in ReleaseState::ALL {
        let force = move |all: &mut State| {
            all.runtime.releases.get_mut(&release).unwrap().state = *state;
        };
        for (operation, to) in [
            (Operation::BlockRelease, ReleaseState::Blocked),
            (Operation::UnblockRelease, ReleaseState::Available),
        ] {
            let can = ReleaseState::can(Some(*state), to, Cause::ReleaseBlock).is_ok();
            let body = match operation {
                Operation::BlockRelease => json!({"reason": "broken"}),
                _ => json!({}),
            };
            attempt(
                &mut world,
                &force,
                (operation, &path, body),
                legal(can),
                &mut tally,
            );
        }
        let should = match state {
            ReleaseState::Available => Should::Happen,
            _ => Should::Fail("release_blocked"),
        };
        for (operation, body) in [
            (Operation::CreateDeploy, json!({"release_id": release})),
            (Operation::CreateRollback, json!({"to_release": release})),
        ] {
            attempt(
                &mut world,
                &force,
                (operation, &DEV, body),
                should,
                &mut tally,
            );
        }
    }
    check(&tally);
}

#[test]
fn deploys_are_held_and_called_off_only_while_they_go_on() {
    let (mut world, _, _, _, _) = furnished(61);
    let next = world.release(&WEB.replace("serve", "serve2"));
    let deploy: DeployId = world.deploy(&next).parse().unwrap();
    let id = deploy.to_string();
    let path = [DEV[0], DEV[1], DEV[2], id.as_str()];
    let mut tally = Tally::default();
    for state in DeployState::ALL {
        let force = move |all: &mut State| {
            all.runtime.deploys.get_mut(&deploy).unwrap().state = *state;
            match state.is_final() {
                true => {
                    all.runtime.plan.deploys.remove(&deploy);
                }
                false => all.runtime.plan.deploys.get_mut(&deploy).unwrap().state = *state,
            }
        };
        for (operation, to) in [
            (Operation::PauseDeploy, DeployState::Paused),
            (Operation::ResumeDeploy, DeployState::Rolling),
            (Operation::CancelDeploy, DeployState::Canceled),
        ] {
            let can = DeployState::can(Some(*state), to, Cause::EnvDeploy).is_ok();
            attempt(
                &mut world,
                &force,
                (operation, &path, json!({})),
                legal(can),
                &mut tally,
            );
        }
    }
    check(&tally);
}

#[test]
fn instances_are_restarted_and_entered_only_while_they_run() {
    let (mut world, _, _, _, instance) = furnished(62);
    let id = instance.to_string();
    let path = [DEV[0], DEV[1], DEV[2], id.as_str()];
    let now = world.now;
    let mut tally = Tally::default();
    let wanted = [
        Desired::Running,
        Desired::Draining {
            since: now,
            grace: Duration::from_secs(10),
            reason: DrainReason::ScaleDown,
            stop_allowed: None,
        },
        Desired::Stopped {
            reason: StopReason::GracePassed,
        },
    ];
    for desired in wanted {
        for status in InstanceStatus::ALL {
            let force = move |all: &mut State| {
                let it = all.runtime.plan.instances.get_mut(&instance).unwrap();
                (it.desired, it.observed.status) = (desired, *status);
            };
            let runs = desired == Desired::Running;
            let restart = (Operation::RestartInstance, &path[..], json!({}));
            attempt(&mut world, &force, restart, legal(runs), &mut tally);
            let answers = matches!(status, InstanceStatus::Ready | InstanceStatus::Unhealthy);
            let should = match runs && answers {
                true => Should::Happen,
                false => Should::Fail("instance_not_running"),
            };
            let exec = (
                Operation::CreateExec,
                &path[..],
                json!({"command": ["true"]}),
            );
            attempt(&mut world, &force, exec, should, &mut tally);
            let signal = (
                Operation::SignalInstance,
                &path[..],
                json!({"signal": "TERM"}),
            );
            attempt(&mut world, &force, signal, should, &mut tally);
        }
    }
    check(&tally);
}

#[test]
fn an_exec_session_ends_once() {
    let (mut world, _, _, _, instance) = furnished(63);
    let id = instance.to_string();
    let path = [DEV[0], DEV[1], DEV[2], id.as_str()];
    world.done(Operation::CreateExec, &path, json!({"command": ["true"]}));
    let exec = *world.state.runtime.execs.keys().next().unwrap();
    let id = exec.to_string();
    let path = ["local", id.as_str()];
    let mut tally = Tally::default();
    for state in ExecState::ALL {
        let force = move |all: &mut State| {
            all.runtime.execs.get_mut(&exec).unwrap().state = *state;
        };
        let can = ExecState::can(Some(*state), ExecState::Ended, Cause::InstanceExec).is_ok();
        let revoke = (Operation::RevokeExec, &path[..], json!({}));
        attempt(&mut world, &force, revoke, legal(can), &mut tally);
    }
    check(&tally);
}

#[test]
fn nodes_go_only_where_their_table_leads() {
    let mut world = World::new("fd00::/48", 64);
    let node = world.node(1, 16 * GIB);
    let id = node.to_string();
    let mut tally = Tally::default();
    for state in NodeState::ALL {
        let force = move |all: &mut State| {
            all.runtime.plan.nodes.get_mut(&node).unwrap().state = *state;
        };
        for (operation, to) in [
            (Operation::DrainNode, NodeState::Draining),
            (Operation::UncordonNode, NodeState::Active),
            (Operation::DisableNode, NodeState::Disabled),
            (Operation::RevokeNode, NodeState::Revoked),
            (Operation::RemoveNode, NodeState::Removed),
        ] {
            let can = NodeState::can(Some(*state), to, Cause::NodeManage).is_ok();
            let asked = (operation, &[id.as_str()][..], json!({}));
            attempt(&mut world, &force, asked, legal(can), &mut tally);
        }
    }
    check(&tally);
}

#[test]
fn routes_that_go_are_left_alone() {
    let (mut world, _, _, _, _) = furnished(65);
    let body = json!({
        "hostname": "shop.example.com", "listen_port": 443,
        "protocol_hint": "tls_passthrough", "backend_process": "web", "backend_port": 8080,
    });
    let made = world.done(Operation::CreateRoute, &DEV, body);
    let id = made["id"].as_str().unwrap().to_owned();
    let route: RouteId = id.parse().unwrap();
    let path = [DEV[0], DEV[1], DEV[2], id.as_str()];
    let mut tally = Tally::default();
    for state in RouteState::ALL {
        // One that is deleted is not there any more.
        let gone = *state == RouteState::Deleted;
        let force = move |all: &mut State| match gone {
            true => {
                all.runtime.routes.remove(&route);
            }
            false => all.runtime.routes.get_mut(&route).unwrap().state = *state,
        };
        let can = RouteState::can(Some(*state), RouteState::Deleting, Cause::RouteWrite).is_ok();
        let should = |allowed: bool| match gone {
            true => Should::Fail("not_found"),
            false => legal(allowed),
        };
        let delete = (Operation::DeleteRoute, &path[..], json!({}));
        attempt(&mut world, &force, delete, should(can), &mut tally);
        let update = (
            Operation::UpdateRoute,
            &path[..],
            json!({"backend_port": 8080}),
        );
        attempt(&mut world, &force, update, should(can), &mut tally);
        let unproven = match should(can) {
            Should::Happen => Should::Fail("hostname_not_proven"),
            other => other,
        };
        let verify = (Operation::VerifyRoute, &path[..], json!({}));
        attempt(&mut world, &force, verify, unproven, &mut tally);
    }
    check(&tally);
}

#[test]
fn volumes_are_deleted_kept_and_given_only_where_they_can_be() {
    let (mut world, _, _, _, _) = furnished(66);
    let body = json!({"name": "data", "size_bytes": GIB});
    let made = world.done(Operation::CreateVolume, &["local"], body);
    world.settle();
    let id = made["id"].as_str().unwrap().to_owned();
    let volume: VolumeId = id.parse().unwrap();
    let path = ["local", id.as_str()];
    let mut tally = Tally::default();
    for state in VolumeState::ALL {
        let gone = *state == VolumeState::Deleted;
        let force = move |all: &mut State| match gone {
            true => {
                all.runtime.volumes.remove(&volume);
                all.runtime.plan.volumes.remove(&volume);
            }
            false => all.runtime.plan.volumes.get_mut(&volume).unwrap().state = *state,
        };
        let should = |allowed: bool| match gone {
            true => Should::Fail("not_found"),
            false => legal(allowed),
        };
        let can = VolumeState::can(Some(*state), VolumeState::Deleting, Cause::VolumeDelete);
        let delete = (Operation::DeleteVolume, &path[..], json!({}));
        attempt(&mut world, &force, delete, should(can.is_ok()), &mut tally);
        let keeps = !matches!(state, VolumeState::Deleting);
        let update = (
            Operation::UpdateVolume,
            &path[..],
            json!({"backup_enabled": true}),
        );
        attempt(&mut world, &force, update, should(keeps), &mut tally);
        let whole = matches!(state, VolumeState::Available | VolumeState::InUse);
        let snapshot = (Operation::CreateSnapshot, &path[..], json!({}));
        attempt(&mut world, &force, snapshot, should(whole), &mut tally);
        let usable = !matches!(state, VolumeState::Error | VolumeState::Deleting);
        let body = json!({"volume_id": id, "process": "job", "mount_path": "/data"});
        let attach = (Operation::CreateAttachment, &DEV[..], body);
        attempt(&mut world, &force, attach, should(usable), &mut tally);
    }
    check(&tally);
}

#[test]
fn only_a_snapshot_that_is_whole_is_restored() {
    let (mut world, _, _, _, _) = furnished(67);
    let body = json!({"name": "data", "size_bytes": GIB});
    let made = world.done(Operation::CreateVolume, &["local"], body);
    world.settle();
    let volume = made["id"].as_str().unwrap().to_owned();
    let made = world.done(Operation::CreateSnapshot, &["local", &volume], json!({}));
    let id = made["id"].as_str().unwrap().to_owned();
    let snapshot = *world.state.runtime.snapshots.keys().next().unwrap();
    let path = ["local", id.as_str()];
    let mut tally = Tally::default();
    for state in JobState::ALL {
        let force = move |all: &mut State| {
            all.runtime.snapshots.get_mut(&snapshot).unwrap().state = *state;
        };
        let should = match state {
            JobState::Succeeded => Should::Happen,
            _ => Should::Fail("snapshot_not_ready"),
        };
        let restore = (
            Operation::RestoreSnapshot,
            &path[..],
            json!({"name": "copy"}),
        );
        attempt(&mut world, &force, restore, should, &mut tally);
    }
    check(&tally);
}

#[test]
fn secrets_are_kept_gone_back_to_and_deleted_only_where_there_are_some() {
    let (mut world, _, _, _, _) = furnished(68);
    world.secrets(b"first");
    world.secrets(b"second");
    let (bundle, kept) = world.state.runtime.bundles.iter().next().unwrap();
    let (bundle, env, first) = (*bundle, kept.env, kept.versions[0].id);
    let mut tally = Tally::default();
    for state in SecretBundleState::ALL {
        let gone = *state == SecretBundleState::Deleted;
        let force = move |all: &mut State| {
            let runtime = &mut all.runtime;
            let planned = runtime.plan.envs.get_mut(&env).unwrap();
            if gone {
                runtime.bundles.remove(&bundle);
                runtime.envs.get_mut(&env).unwrap().bundle = None;
                planned.secrets = None;
            } else {
                runtime.bundles.get_mut(&bundle).unwrap().state = Some(*state);
                planned.secrets.as_mut().unwrap().state = *state;
            }
        };
        let should = |allowed: bool| match gone {
            true => Should::Fail("not_found"),
            false => legal(allowed),
        };
        // New values make a bundle where there is none.
        for (operation, body) in [
            (Operation::ReplaceSecrets, json!({"values": {}})),
            (Operation::UpdateSecrets, json!({"set": {"KEY": "value"}})),
        ] {
            attempt(
                &mut world,
                &force,
                (operation, &DEV, body),
                Should::Happen,
                &mut tally,
            );
        }
        let back = (
            Operation::ReplaceSecrets,
            &DEV[..],
            json!({"version_id": first}),
        );
        attempt(&mut world, &force, back, should(true), &mut tally);
        let can =
            SecretBundleState::can(Some(*state), SecretBundleState::Deleted, Cause::SecretWrite);
        let delete = (Operation::DeleteSecrets, &DEV[..], json!({}));
        attempt(&mut world, &force, delete, should(can.is_ok()), &mut tally);
    }
    check(&tally);
}

#[test]
fn a_permission_to_join_is_revoked_once() {
    let mut world = World::new("fd00::/48", 69);
    let made = world.done(Operation::CreateEnrollmentToken, &[], json!({}));
    let id = made["id"].as_str().unwrap().to_owned();
    let token: EnrollmentTokenId = id.parse().unwrap();
    let mut tally = Tally::default();
    for (ended, should) in [
        (None, legal(true)),
        (Some("consumed"), legal(false)),
        (Some("revoked"), legal(false)),
    ] {
        let force = move |all: &mut State| {
            let token = all.runtime.enrollment_tokens.get_mut(&token).unwrap();
            token.ended = ended.map(str::to_owned);
        };
        let revoke = (
            Operation::RevokeEnrollmentToken,
            &[id.as_str()][..],
            json!({}),
        );
        attempt(&mut world, &force, revoke, should, &mut tally);
    }
    check(&tally);
}

#[test]
fn an_attachment_stays_while_an_instance_may_write_to_its_volume() {
    let (mut world, _, _, _, instance) = furnished(70);
    let mut volume = |name: &str| {
        let body = json!({"name": name, "size_bytes": GIB});
        let made = world.done(Operation::CreateVolume, &["local"], body);
        made["id"].as_str().unwrap().to_owned()
    };
    let (first, second) = (volume("data"), volume("other"));
    world.settle();
    let body = json!({"volume_id": first, "process": "job", "mount_path": "/data"});
    let made = world.done(Operation::CreateAttachment, &DEV, body);
    let id = made["id"].as_str().unwrap().to_owned();
    let attachment: AttachmentId = id.parse().unwrap();
    let other: VolumeId = second.parse().unwrap();
    let path = [DEV[0], DEV[1], DEV[2], id.as_str()];
    let delete = || (Operation::DeleteAttachment, &path[..], json!({}));
    let replace = || {
        let body = json!({ "volume_id": second });
        (Operation::ReplaceAttachment, &path[..], body)
    };
    let mut tally = Tally::default();
    for state in AttachmentState::ALL {
        // One that is deleted is not there any more.
        let gone = *state == AttachmentState::Deleted;
        let force = move |all: &mut State| {
            if gone {
                all.runtime.attachments.remove(&attachment);
            }
        };
        let can = AttachmentState::can(Some(*state), AttachmentState::Deleted, Cause::VolumeWrite);
        let should = match gone {
            true => Should::Fail("not_found"),
            false => legal(can.is_ok()),
        };
        attempt(&mut world, &force, delete(), should, &mut tally);
        attempt(&mut world, &force, replace(), should, &mut tally);
    }
    for status in InstanceStatus::ALL {
        let force = move |all: &mut State| {
            let it = all.runtime.plan.instances.get_mut(&instance).unwrap();
            it.group.process = "job".into();
            it.observed.status = *status;
        };
        let should = match status {
            InstanceStatus::Stopped | InstanceStatus::Collected => Should::Happen,
            _ => Should::Fail("volume_in_use"),
        };
        attempt(&mut world, &force, delete(), should, &mut tally);
        attempt(&mut world, &force, replace(), should, &mut tally);
    }
    // And only a volume that is whole comes in its place.
    for state in VolumeState::ALL {
        let gone = *state == VolumeState::Deleted;
        let force = move |all: &mut State| match gone {
            true => {
                all.runtime.volumes.remove(&other);
                all.runtime.plan.volumes.remove(&other);
            }
            false => all.runtime.plan.volumes.get_mut(&other).unwrap().state = *state,
        };
        let should = match state {
            VolumeState::Deleted => Should::Fail("not_found"),
            VolumeState::Error | VolumeState::Deleting => legal(false),
            _ => Should::Happen,
        };
        attempt(&mut world, &force, replace(), should, &mut tally);
    }
    check(&tally);
}
