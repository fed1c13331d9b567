//! From a release to instances, and back: deploys, rollbacks, scale, secrets.

use fluffy_api::Operation;
use fluffy_base::id::{DeployId, InstanceId, LedgerId, NodeId, RouteId};
use fluffy_control::runtime::Notice;
use fluffy_control::runtime::notice::NO_ADDRESS;
use fluffy_control::{Body, Outcome};
use fluffy_planner::lifecycle::{DeployState, InstanceStatus, SecretBundleState};
use serde_json::json;

use crate::world::{DATA, DEV, WEB, World, report, routed};

const GIB: u64 = 1 << 30;

fn ready(world: &World) -> usize {
    let instances = world.state.runtime.plan.instances.values();
    instances
        .filter(|it| it.observed.status == InstanceStatus::Ready && it.is_wanted())
        .count()
}

pub(crate) fn state_of(world: &World, deploy: &str) -> DeployState {
    let id: DeployId = deploy.parse().unwrap();
    world.state.runtime.deploys[&id].state
}

#[test]
fn a_release_is_deployed_scaled_replaced_and_rolled_back() {
    let mut world = World::new("fd00::/48", 1);
    world.node(1, 16 * GIB);
    let first = world.release(WEB);
    let deploy = world.deploy(&first);
    world.settle();
    assert_eq!(state_of(&world, &deploy), DeployState::Succeeded);
    assert_eq!(ready(&world), 1);
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 3}}));
    world.settle();
    assert_eq!(ready(&world), 3);
    let second = world.release(&WEB.replace("serve", "serve2"));
    let next = world.deploy(&second);
    world.settle();
    assert_eq!(state_of(&world, &next), DeployState::Succeeded);
    let back = world.done(Operation::CreateRollback, &DEV, json!({}));
    assert_eq!(back["release_id"], first.as_str());
    world.settle();
    let shown = world.get(Operation::GetStatus, &DEV);
    assert_eq!(shown["status"], "healthy", "{shown}");
    assert_eq!(shown["groups"][0]["ready"], 3);
    assert_eq!(shown["groups"][0]["release_id"], first.as_str());
    let deploys = world.get(Operation::ListDeploys, &DEV);
    assert_eq!(deploys["items"].as_array().unwrap().len(), 3);
    world.check_fold();
}

/// Lets every instance of a release crash until its deploy has failed.
pub(crate) fn crash(world: &mut World, node: NodeId, bad: &str, deploy: &str) {
    for _ in 0..200 {
        world.plan();
        world.pass(2);
        let moves: Vec<(InstanceId, InstanceStatus)> = world
            .state
            .runtime
            .plan
            .instances
            .iter()
            .filter_map(|(id, it)| {
                let record = &world.state.runtime.instances[id];
                let next = crate::world::next(it)?;
                let crashes = record.release.to_string() == bad && next == InstanceStatus::Ready;
                Some((
                    *id,
                    if crashes {
                        InstanceStatus::Failed
                    } else {
                        next
                    },
                ))
            })
            .collect();
        for (instance, status) in moves {
            let mut said = report(instance, status, world.now);
            if status == InstanceStatus::Failed {
                said.reason_code = Some("crash_loop_backoff".to_owned());
            }
            let reports = vec![said];
            world.say(Notice::Reports { node, reports });
        }
        if state_of(world, deploy) == DeployState::Failed {
            break;
        }
    }
}

#[test]
fn a_deploy_that_fails_rolls_back_by_itself_and_says_why() {
    let mut world = World::new("fd00::/48", 2);
    let node = world.node(1, 16 * GIB);
    let good = world.release(WEB);
    world.deploy(&good);
    world.settle();
    let bad = world.release(&WEB.replace("serve", "crash"));
    let deploy = world.deploy(&bad);
    crash(&mut world, node, &bad, &deploy);
    assert_eq!(state_of(&world, &deploy), DeployState::Failed);
    let opened = world
        .events
        .iter()
        .rev()
        .find(|event| event.event_type == "deploy.created");
    let opened = opened.unwrap();
    let cause = opened.causation_seq.unwrap();
    let cause = &world.events[usize::try_from(cause).unwrap() - 1];
    assert_eq!(cause.event_type, "deploy.status_changed");
    assert_eq!(cause.aggregate.id, deploy);
    world.settle();
    let shown = world.get(Operation::GetStatus, &DEV);
    assert_eq!(shown["groups"][0]["release_id"], good.as_str());
    assert_eq!(shown["last_deploy"]["kind"], "rollback");
    assert_eq!(shown["last_deploy"]["status"], "succeeded");
    world.check_fold();
}

#[test]
fn a_process_type_that_a_failed_release_added_goes_again() {
    let mut world = World::new("fd00::/48", 40);
    let node = world.node(1, 16 * GIB);
    let good = world.release(WEB);
    world.deploy(&good);
    world.settle();
    let more = "[processes.job]\nresources = { memory = \"128MiB\", disk = \"1GiB\" }\n";
    let bad = world.release(&format!("{}{more}", WEB.replace("serve", "crash")));
    let deploy = world.deploy(&bad);
    let env = world.state.runtime.envs.values().next().unwrap();
    assert!(env.desired.contains_key("job"), "the control: it is wanted");
    crash(&mut world, node, &bad, &deploy);
    assert_eq!(state_of(&world, &deploy), DeployState::Failed);
    world.settle();
    let shown = world.get(Operation::GetStatus, &DEV);
    assert_eq!(shown["last_deploy"]["kind"], "rollback");
    assert_eq!(shown["last_deploy"]["status"], "succeeded");
    let groups = shown["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 1, "{shown}");
    assert_eq!(groups[0]["process"], "web");
    assert_eq!(groups[0]["release_id"], good.as_str());
    let instances = world.state.runtime.plan.instances.values();
    let left = instances.filter(|it| &*it.group.process == "job" && it.is_wanted());
    assert_eq!(left.count(), 0);
    world.check_fold();
}

#[test]
fn an_env_with_something_wrong_is_degraded_whatever_rolls() {
    let mut world = World::new("fd00::/48", 41);
    let node = world.node(1, 16 * GIB);
    let release = world.release(WEB);
    world.deploy(&release);
    let status = |world: &World| world.get(Operation::GetStatus, &DEV)["status"].clone();
    assert_eq!(status(&world), "progressing");
    world.settle();
    assert_eq!(status(&world), "healthy");
    // One that answered and does not any more, outside of a deploy.
    let instance = *world.state.runtime.plan.instances.keys().next().unwrap();
    let mut said = report(instance, InstanceStatus::Unhealthy, world.now);
    said.reason_code = Some("healthcheck_failed".to_owned());
    let reports = vec![said];
    world.say(Notice::Reports { node, reports });
    assert_eq!(status(&world), "degraded");
    let reports = vec![report(instance, InstanceStatus::Ready, world.now)];
    world.say(Notice::Reports { node, reports });
    assert_eq!(status(&world), "healthy");
    // More is wanted than there is room for, while a deploy rolls.
    let large = WEB.replace("128MiB", "64GiB");
    let large = world.release(&large);
    world.deploy(&large);
    for _ in 0..3 {
        world.plan();
        world.pass(2);
    }
    let shown = world.get(Operation::GetStatus, &DEV);
    assert_eq!(shown["last_deploy"]["status"], "rolling");
    assert_eq!(shown["status"], "degraded", "{shown}");
    assert_eq!(shown["conditions"][0]["condition"], "no_capacity_memory");
}

#[test]
fn a_deploy_says_what_it_takes_down_for_a_while() {
    let mut world = World::new("fd00::/48", 42);
    world.node(1, 16 * GIB);
    let first = world.release(DATA);
    let deploy = world.deploy(&first);
    let path = [DEV[0], DEV[1], DEV[2], deploy.as_str()];
    let shown = world.get(Operation::GetDeploy, &path);
    assert_eq!(shown["message"], json!(null), "nothing runs yet: {shown}");
    world.settle();
    let next = world.release(&DATA.replace("256MiB", "300MiB"));
    let deploy = world.deploy(&next);
    let path = [DEV[0], DEV[1], DEV[2], deploy.as_str()];
    let shown = world.get(Operation::GetDeploy, &path);
    let words = "db: mounts a volume, so it is down while it is replaced";
    assert_eq!(shown["message"], words);
    world.settle();
    let shown = world.get(Operation::GetDeploy, &path);
    assert_eq!(shown["status"], "succeeded");
    assert_eq!(shown["message"], json!(null));
}

#[test]
fn a_canceled_deploy_leaves_what_was_wanted_before() {
    let mut world = World::new("fd00::/48", 3);
    world.node(1, 16 * GIB);
    let first = world.release(WEB);
    world.deploy(&first);
    world.settle();
    let second = world.release(&WEB.replace("serve", "other"));
    let deploy = world.deploy(&second);
    world.plan();
    let path = [DEV[0], DEV[1], DEV[2], deploy.as_str()];
    world.done(Operation::PauseDeploy, &path, json!({}));
    world.done(Operation::ResumeDeploy, &path, json!({}));
    world.done(Operation::CancelDeploy, &path, json!({}));
    let refused = world.refused(Operation::CancelDeploy, &path, json!({}));
    assert_eq!(refused.code, "invalid_transition");
    world.settle();
    let env = world.get(Operation::GetEnv, &DEV);
    assert_eq!(env["desired_releases"]["web"], first.as_str());
    let shown = world.get(Operation::GetStatus, &DEV);
    assert_eq!(shown["groups"][0]["current"], 1);
    world.check_fold();
}

#[test]
fn a_later_deploy_takes_over_and_one_is_left() {
    let mut world = World::new("fd00::/48", 4);
    world.node(1, 16 * GIB);
    let first = world.release(WEB);
    let second = world.release(&WEB.replace("serve", "other"));
    let one = world.deploy(&first);
    let two = world.deploy(&second);
    assert_eq!(state_of(&world, &one), DeployState::Superseded);
    world.settle();
    assert_eq!(state_of(&world, &two), DeployState::Succeeded);
    assert_eq!(world.state.runtime.plan.deploys.len(), 0);
}

#[test]
fn a_deploy_says_what_it_rests_on() {
    let mut world = World::new("fd00::/48", 5);
    world.node(1, 16 * GIB);
    let release = world.release(WEB);
    let ledger = LedgerId::from_bits(7);
    let note = |ledger: LedgerId| {
        let root = "A".repeat(43);
        let signature = "A".repeat(92);
        let origin = fluffy_ledger::checkpoint::origin(ledger);
        format!("{origin}\n20\n{root}=\n\n\u{2014} {origin} {signature}\n")
    };
    let hash = fluffy_base::Digest::of(b"merge");
    let body = |seq: u64, checkpoint: String| {
        let source =
            json!({"ledger_id": ledger, "seq": seq, "hash": hash, "checkpoint": checkpoint});
        json!({"release_id": release, "source": source})
    };
    for (seq, checkpoint) in [
        (0, note(ledger)),
        (21, note(ledger)),
        (5, note(LedgerId::from_bits(8))),
        (5, String::new()),
        (5, "no checkpoint".to_owned()),
    ] {
        let refused = world.refused(Operation::CreateDeploy, &DEV, body(seq, checkpoint));
        assert_eq!(refused.code, "invalid_argument", "{seq}");
    }
    let before = world.events.len();
    world.done(Operation::CreateDeploy, &DEV, body(20, note(ledger)));
    let mut events = world.events[before..].iter();
    let created = events.find(|it| it.event_type == "deploy.created").unwrap();
    let source = fluffy_ledger::Source::in_payload(created.payload.as_str()).unwrap();
    assert_eq!((source.ledger_id, source.seq), (ledger, 20));
    assert_eq!((source.hash, source.checkpoint), (hash, note(ledger)));
}

#[test]
fn new_secrets_reach_every_instance_by_a_restart() {
    let mut world = World::new("fd00::/48", 5);
    world.node(1, 16 * GIB);
    let manifest = format!("{WEB}secrets = {{ required = true }}\n");
    let release = world.release(&manifest);
    let body = json!({"release_id": release});
    let refused = world.refused(Operation::CreateDeploy, &DEV, body);
    assert_eq!(refused.code, "secrets_missing");
    world.secrets(b"one");
    world.deploy(&release);
    world.settle();
    let before = world.events.len();
    world.secrets(b"one");
    assert_eq!(world.plan(), 0, "the same values restart nobody");
    assert!(
        world.events[before..]
            .iter()
            .all(|it| it.event_type == "authz.decided")
    );
    let set = world.secrets(b"two");
    assert_eq!(set["status"], "rotating");
    world.settle();
    let version = set["current_version_id"].as_str().unwrap();
    let instances = world.state.runtime.instances.values();
    let used: Vec<String> = instances
        .map(|it| it.secrets.unwrap().to_string())
        .collect();
    assert_eq!(used, [version]);
    let bundle = world.state.runtime.bundles.values().next().unwrap();
    assert_eq!(bundle.state, Some(SecretBundleState::Active));
    let refused = world.refused(Operation::DeleteSecrets, &DEV, json!({}));
    assert_eq!(refused.code, "secrets_in_use");
    world.check_fold();
}

#[test]
fn one_instance_is_replaced_on_demand() {
    let mut world = World::new("fd00::/48", 6);
    world.node(1, 16 * GIB);
    let release = world.release(WEB);
    world.deploy(&release);
    world.settle();
    let before = *world.state.runtime.plan.instances.keys().next().unwrap();
    let id = before.to_string();
    let path = [DEV[0], DEV[1], DEV[2], id.as_str()];
    world.done(Operation::RestartInstance, &path, json!({}));
    let twice = world.refused(Operation::RestartInstance, &path, json!({}));
    assert_eq!(twice.code, "invalid_transition");
    world.settle();
    assert_eq!(ready(&world), 1);
    assert!(!world.state.runtime.plan.instances.contains_key(&before));
}

#[test]
fn data_stays_on_its_node_and_has_one_writer() {
    let mut world = World::new("fd00::/48", 7);
    world.node(1, 16 * GIB);
    let home = world.node(2, 32 * GIB);
    let release = world.release(DATA);
    world.deploy(&release);
    world.settle();
    let volumes = world.get(Operation::ListVolumes, &["local"]);
    assert_eq!(volumes["items"][0]["name"], "shop-dev-data");
    assert_eq!(volumes["items"][0]["home_node_id"], home.to_string());
    assert_eq!(volumes["items"][0]["status"], "in_use");
    let next = world.release(&DATA.replace("256MiB", "512MiB"));
    world.deploy(&next);
    world.settle();
    let volumes = world.get(Operation::ListVolumes, &["local"]);
    assert_eq!(
        volumes["items"].as_array().unwrap().len(),
        1,
        "it is used again"
    );
    assert_eq!(ready(&world), 1);
    let grown = world.release(&DATA.replace("2GiB", "3GiB"));
    let body = json!({"release_id": grown});
    let refused = world.refused(Operation::CreateDeploy, &DEV, body);
    assert_eq!(refused.code, "volume_size_change_unsupported");
    world.check_fold();
}

#[test]
fn a_step_that_was_planned_before_is_refused_afterwards() {
    let mut world = World::new("fd00::/48", 8);
    world.node(1, 16 * GIB);
    let release = world.release(WEB);
    world.deploy(&release);
    // A leader plans, dies, and its successor plans the same and appends it;
    // then the first one comes back with what it had planned.
    let input = world.state.runtime.planner_input(None);
    let late = fluffy_planner::plan(&input, world.now);
    assert!(!late.is_empty());
    world.plan();
    let instances = world.state.runtime.plan.instances.len();
    for step in late {
        let outcome = world.say(Notice::Step(step));
        let refused = matches!(&outcome, Outcome::Refused(it) if it.code == "conflict");
        assert!(refused, "{outcome:?}");
    }
    assert_eq!(world.state.runtime.plan.instances.len(), instances);
}

#[test]
fn an_env_that_is_deleted_drains_and_leaves_its_name_reserved() {
    let mut world = World::new("fd00::/48", 9);
    world.node(1, 16 * GIB);
    let release = world.release(WEB);
    world.deploy(&release);
    world.settle();
    let operation = world.done(Operation::DeleteEnv, &DEV, json!({}));
    assert_eq!(operation["status"], "running");
    let id = operation["id"].as_str().unwrap().to_owned();
    let refused = world.refused(Operation::DeleteApp, &["local", "shop"], json!({}));
    assert_eq!(refused.code, "not_empty");
    world.settle();
    let shown = world.get(Operation::GetOperation, &["local", &id]);
    assert_eq!(shown["status"], "succeeded");
    assert!(world.state.runtime.plan.instances.is_empty());
    let body = json!({"name": "dev"});
    let refused = world.refused(Operation::CreateEnv, &["local", "shop"], body.clone());
    assert_eq!(refused.code, "name_taken");
    world.pass(31 * 24 * 3600);
    world.done(Operation::CreateEnv, &["local", "shop"], body);
    world.check_fold();
}

/// Whoever counts hears of a step that found no address, and of no other.
#[test]
fn a_step_that_finds_no_address_says_so() {
    for (replicas, is_told) in [(3, false), (4, true)] {
        let mut world = World::new("fd00::/110", 10);
        world.node(1, 16 * GIB);
        let many = format!("[processes.web]\nreplicas = {replicas}");
        let release = world.release(&WEB.replace("[processes.web]", &many));
        world.deploy(&release);
        let mut told = false;
        for _ in 0..2 {
            let input = world.state.runtime.planner_input(None);
            for step in fluffy_planner::plan(&input, world.now) {
                if let Outcome::Done { subject, .. } = world.say(Notice::Step(step)) {
                    told |= subject.kind == NO_ADDRESS;
                }
            }
        }
        assert_eq!(told, is_told, "{replicas} instances");
    }
}

#[test]
fn four_instances_want_an_address_and_there_are_three() {
    let mut world = World::new("fd00::/110", 10);
    let node = world.node(1, 16 * GIB);
    let release = world.release(&WEB.replace("[processes.web]", "[processes.web]\nreplicas = 4"));
    world.deploy(&release);
    world.plan();
    world.plan();
    assert!(
        world.state.runtime.plan.instances.is_empty(),
        "the unit is one"
    );
    assert_eq!(world.state.runtime.ipam.instances.taken(), 0);
    let failed = world
        .events
        .iter()
        .filter(|it| it.event_type == "instance.allocation_failed");
    assert_eq!(failed.count(), 1);
    world.pass(1);
    world.plan();
    let failed = world
        .events
        .iter()
        .filter(|it| it.event_type == "instance.allocation_failed");
    assert_eq!(failed.count(), 1, "it is not said again at once");
    let shown = world.get(Operation::GetStatus, &DEV);
    let conditions = shown["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|it| it["condition"] == "ipam_exhausted"),
        "{shown}"
    );
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 3}}));
    world.settle();
    assert_eq!(ready(&world), 3);
    let ipam = world.get(Operation::GetIpam, &[]);
    assert_eq!(ipam["pools"]["instance"]["used"], 3);
    // One is given back; nobody gets it before it has rested.
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 2}}));
    world.settle();
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 3}}));
    world.plan();
    assert_eq!(world.state.runtime.plan.instances.len(), 2);
    world.pass(25 * 3600);
    world.settle();
    assert_eq!(ready(&world), 3);
    assert!(world.state.runtime.nodes.contains_key(&node));
    world.check_fold();
}

#[test]
fn every_event_of_a_deploy_carries_its_id() {
    let mut world = World::new("fd00::/48", 11);
    world.node(1, 16 * GIB);
    let release = world.release(WEB);
    let deploy = world.deploy(&release);
    world.settle();
    for event in &world.events {
        let body = Body::read(event).unwrap();
        let about = matches!(
            body,
            Body::DeployCreated(_)
                | Body::DeployStatusChanged(_)
                | Body::EnvDesiredReleaseSet(_)
                | Body::InstanceAllocated(_)
                | Body::InstanceStatusChanged(_)
        );
        if about {
            assert_eq!(
                event.correlation_id.as_deref(),
                Some(deploy.as_str()),
                "{event:?}"
            );
        }
    }
}

#[test]
fn whatever_follows_from_a_deploy_carries_its_id_and_nothing_else_does() {
    let mut world = World::new("fd00::/48", 11);
    // Room for two, so that old ones have to go before new ones come.
    world.node(1, 1000 << 20);
    let two = WEB.replace("[processes.web]", "[processes.web]\nreplicas = 2");
    let release = world.release(&two);
    world.deploy(&release);
    world.settle();
    let next = world.release(&two.replace("serve", "serve2"));
    let begin = world.events.len();
    let deploy = world.deploy(&next);
    world.settle();
    assert_eq!(state_of(&world, &deploy), DeployState::Succeeded);
    let mut seen = std::collections::BTreeSet::new();
    // What allowed it was decided before, and is pointed at by `decision_seq`.
    let events = world.events[begin..].iter();
    for event in events.filter(|it| it.event_type != "authz.decided") {
        seen.insert(event.event_type.as_str());
        let of = event.correlation_id.as_deref();
        assert_eq!(of, Some(deploy.as_str()), "{event:?}");
    }
    let all = [
        "deploy.created",
        "deploy.status_changed",
        "env.desired_release_set",
        "group.condition_changed",
        "instance.allocated",
        "instance.allocation_failed",
        "instance.collected",
        "instance.desired_state_changed",
        "instance.status_changed",
    ];
    assert_eq!(seen, all.into());
    // The control: it is over, and what comes now is of somebody else.
    let end = world.events.len();
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 1}}));
    world.settle();
    let drained = world.events[end..].iter();
    let mut drained = drained.filter(|it| it.event_type == "instance.desired_state_changed");
    assert!(drained.clone().count() >= 2);
    assert!(drained.all(|it| it.correlation_id.is_none()));
    world.check_fold();
}

#[test]
fn the_same_inputs_are_the_same_instance_whatever_the_release() {
    let mut world = World::new("fd00::/48", 12);
    world.node(1, 16 * GIB);
    let release = world.release(DATA);
    world.deploy(&release);
    world.settle();
    let before: Vec<InstanceId> = world.state.runtime.plan.instances.keys().copied().collect();
    let again = world.release(&format!("{DATA}\n[app]\ndescription = \"other words\"\n"));
    let deploy = world.deploy(&again);
    world.settle();
    assert_eq!(state_of(&world, &deploy), DeployState::Succeeded);
    assert!(world.state.runtime.plan.instances.keys().eq(&before));
    // What is overridden in this env is an input, and in another it is none.
    for (env, replaces) in [("live", false), ("dev", true)] {
        let changed = format!("{DATA}\n[overrides.{env}.processes.db]\nvars = {{ A = \"b\" }}\n");
        let release = world.release(&changed);
        world.deploy(&release);
        world.settle();
        let now = world.state.runtime.plan.instances.keys();
        assert_eq!(!now.eq(&before), replaces, "{env}");
    }
}

#[test]
fn edges_are_told_who_is_ready_and_who_is_leaving() {
    let mut world = World::new("fd00::/48", 13);
    world.node(1, 16 * GIB);
    let release = world.release(WEB);
    world.deploy(&release);
    world.settle();
    let route = json!({"listen_port": 9000, "protocol_hint": "tcp_raw",
        "backend_process": "web", "backend_port": 8080});
    world.done(Operation::CreateRoute, &DEV, route);
    let unproven = json!({"hostname": "bank.example.com", "listen_port": 443,
        "protocol_hint": "tls_passthrough", "backend_process": "web", "backend_port": 8080});
    world.done(Operation::CreateRoute, &DEV, unproven);
    let config = world.state.runtime.edge_config();
    assert_eq!(
        config.routes.len(),
        1,
        "whoever claims a name does not get it by that"
    );
    assert_eq!(config.routes[0].backends.len(), 1);
    assert!(!config.routes[0].backends[0].draining);
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 0}}));
    world.plan();
    let next = world.state.runtime.edge_config();
    assert!(next.config_seq > config.config_seq);
    assert!(next.routes[0].backends[0].draining);
    // It may end once every edge knows, and not before.
    let plan = |world: &World, applied| {
        let input = world.state.runtime.planner_input(applied);
        fluffy_planner::plan(&input, world.now)
    };
    assert!(plan(&world, Some(config.config_seq)).is_empty());
    assert_eq!(plan(&world, Some(next.config_seq)).len(), 1);
}

/// The edge of this machine goes by the newest routing, but for `problems`.
fn served_here(world: &mut World, problems: &[(RouteId, &str)]) {
    let problems = problems.iter().map(|(id, why)| (*id, (*why).to_owned()));
    world.say(Notice::Routes {
        applied: Some(world.state.seq),
        problems: problems.collect(),
        loopback: true,
    });
}

/// Every route: where it listens, whither it leads, how it is.
fn routes(world: &World) -> Vec<(RouteId, u16, u16, String)> {
    let routes = world.state.runtime.routes.iter();
    let shown = routes.map(|(id, it)| {
        let (listens, leads) = (it.listen_port, it.backend_port);
        (*id, listens, leads, it.state.to_string())
    });
    shown.collect()
}

#[test]
fn every_declared_port_gets_a_way_in_from_this_machine_that_stays() {
    let mut world = World::new("fd00::/48", 15);
    world.node(1, 16 * GIB);
    let first = world.release(WEB);
    world.deploy(&first);
    world.say(routed(Some(world.state.seq)));
    assert!(routes(&world).is_empty(), "only where an edge is here");
    served_here(&mut world, &[]);
    let [(id, 8080, 8080, _)] = routes(&world)[..] else {
        panic!("{:?}", routes(&world));
    };
    // Somebody else's port: another one, once, before anybody has seen it.
    served_here(&mut world, &[(id, "bind_failed")]);
    let moved = routes(&world)[0].1;
    assert!((20_000..30_000).contains(&moved), "{moved}");
    served_here(&mut world, &[(id, "bind_failed")]);
    let port = routes(&world)[0].1;
    assert!((20_000..30_000).contains(&port) && port != moved, "{port}");
    world.settle();
    served_here(&mut world, &[]);
    assert_eq!(routes(&world), [(id, port, 8080, "active".to_owned())]);
    let shown = &world.get(Operation::GetStatus, &DEV)["routes"][0];
    assert_eq!(shown["address"], format!("127.0.0.1:{port}"));
    // Seen once it stays where it is, and is tried again.
    served_here(&mut world, &[(id, "bind_failed")]);
    assert_eq!(routes(&world), [(id, port, 8080, "blocked".to_owned())]);
    assert_eq!(world.state.runtime.edge_config().routes.len(), 1);
    served_here(&mut world, &[]);
    served_here(&mut world, &[]);
    assert_eq!(routes(&world), [(id, port, 8080, "active".to_owned())]);
    // A release with other ports: the old way stays while something serves it,
    // and leads nowhere else.
    let second = world.release(&WEB.replace("8080", "9090"));
    world.deploy(&second);
    world.plan();
    served_here(&mut world, &[]);
    let both = routes(&world);
    assert_eq!((both.len(), both[0].0), (2, id), "{both:?}");
    world.settle();
    let config = world.state.runtime.edge_config();
    let leads: Vec<(u16, usize)> = (config.routes.iter())
        .map(|route| (route.backend_port, route.backends.len()))
        .collect();
    assert_eq!(leads, [(8080, 0), (9090, 1)]);
    served_here(&mut world, &[]);
    served_here(&mut world, &[]);
    let left = routes(&world);
    assert_eq!((left.len(), left[0].2), (1, 9090), "{left:?}");
    world.check_fold();
}

/// The steps that place an instance in an env, as a planner would want them now.
fn placing(world: &World, env: &str) -> Vec<fluffy_planner::action::Step> {
    use fluffy_planner::action::Action;
    let envs = &world.state.runtime.envs;
    let (env, _) = envs.iter().find(|(_, it)| it.name == env).unwrap();
    let input = world.state.runtime.planner_input(None);
    let steps = fluffy_planner::plan(&input, world.now).into_iter();
    let here = steps.filter(|step| {
        let mut actions = step.actions.iter();
        actions.any(|it| matches!(it, Action::Allocate(it) if it.group.env == *env))
    });
    here.collect()
}

fn two_wish_for_the_last(limit: impl Fn(&mut World)) -> (World, Outcome) {
    let mut world = World::new("fd00::/48", 14);
    limit(&mut world);
    let release = world.release(WEB);
    let live = ["local", "shop", "live"];
    world.done(Operation::CreateEnv, &live[..2], json!({"name": "live"}));
    let deploy = |world: &mut World, path: &[&str]| {
        let options = json!({"max_surge": 0, "max_unavailable": 1});
        let body = json!({"release_id": release, "options": options});
        world.done(Operation::CreateDeploy, path, body);
    };
    deploy(&mut world, &live);
    let late = placing(&world, "live");
    deploy(&mut world, &DEV);
    for step in placing(&world, "dev") {
        world.say(Notice::Step(step));
    }
    assert_eq!(world.state.runtime.plan.instances.len(), 1);
    let [late] = late.as_slice() else {
        panic!("{late:?}");
    };
    let outcome = world.say(Notice::Step(late.clone()));
    (world, outcome)
}

#[test]
fn the_last_memory_of_a_node_is_given_once() {
    // 128 MiB and what the driver needs fit once, and not twice.
    let (world, outcome) = two_wish_for_the_last(|world| {
        world.node(1, 900 << 20);
    });
    let refused = matches!(&outcome, Outcome::Refused(it) if it.why.contains("memory"));
    assert!(refused, "{outcome:?}");
    assert_eq!(world.state.runtime.plan.instances.len(), 1);
    let (world, outcome) = two_wish_for_the_last(|world| {
        world.node(1, 2 << 30);
    });
    assert!(
        matches!(outcome, Outcome::Done { .. }),
        "with room it is done"
    );
    assert_eq!(world.state.runtime.plan.instances.len(), 2);
}

#[test]
fn the_last_of_a_quota_is_given_once() {
    // Two requests passed before the limit was lowered; one instance comes.
    let (world, outcome) = two_wish_for_the_last(|world| {
        world.node(1, 2 << 30);
        let org = world.state.runtime.orgs.keys().next().unwrap().to_string();
        let version = world.state.meta("org", &org).unwrap().version;
        let body = json!({"limits": {"instances": 1}, "expected_version": version});
        world.done(Operation::SetQuotas, &["local"], body);
    });
    let refused = matches!(&outcome, Outcome::Refused(it) if it.code == "quota_exceeded");
    assert!(refused, "{outcome:?}");
    assert_eq!(world.state.runtime.plan.instances.len(), 1);
}
