//! Where instances go, and what an env has to say of where they are.

use fluffy_api::Operation;
use fluffy_base::id::{EnrollmentTokenId, NodeId};
use fluffy_control::Outcome;
use fluffy_control::runtime::Notice;
use fluffy_planner::lifecycle::InstanceStatus;
use serde_json::{Value, json};

use crate::world::{DEV, WEB, World, enrolment};

const GIB: u64 = 1 << 30;

/// A node that runs instances with a driver alone.
fn node_with(world: &mut World, number: u128, driver: &str) {
    let made = world.done(Operation::CreateEnrollmentToken, &[], json!({}));
    let token: EnrollmentTokenId = made["id"].as_str().unwrap().parse().unwrap();
    let node = NodeId::from_bits(number);
    let mut enrolment = enrolment(node, token);
    driver.clone_into(&mut enrolment.drivers[0].driver);
    let done = world.say(Notice::Enroll(Box::new(enrolment)));
    assert!(matches!(done, Outcome::Done { .. }), "{done:?}");
    world.say(Notice::Confirm { node });
    world.say(Notice::Capacity {
        node,
        cpu_cores: 8,
        memory_bytes: 4 * GIB,
        disk_bytes: 100 << 30,
    });
}

fn conditions(shown: &Value) -> Vec<&str> {
    let all = shown["conditions"].as_array().unwrap().iter();
    all.map(|it| it["condition"].as_str().unwrap()).collect()
}

/// The nodes of what runs.
fn nodes(world: &World) -> Vec<u128> {
    let instances = world.state.runtime.plan.instances.values();
    let ready = instances
        .filter(|it| it.is_wanted() && it.observed.status == InstanceStatus::Ready)
        .map(|it| it.node.to_bits());
    let mut nodes: Vec<u128> = ready.collect();
    nodes.sort_unstable();
    nodes
}

#[test]
fn an_env_that_accepts_less_says_what_still_runs_and_replaces_it() {
    let mut world = World::new("fd00::/48", 21);
    world.done(
        Operation::UpdateEnv,
        &DEV,
        json!({"allow_shared_kernel": true}),
    );
    node_with(&mut world, 1, "container-rootfs");
    let release = world.release(&WEB.replace("[processes.web]", "[processes.web]\nreplicas = 2"));
    world.deploy(&release);
    world.settle();
    let env = world.get(Operation::GetEnv, &DEV);
    assert_eq!(conditions(&env), ["shared_kernel"], "the control");
    let tighter = json!({"protected": true, "allow_shared_kernel": false});
    let env = world.done(Operation::UpdateEnv, &DEV, tighter);
    assert_eq!(conditions(&env), ["shared_kernel", "isolation_weaker"]);
    let told = &env["conditions"][1];
    assert_eq!(
        (&told["process"], &told["reason"]),
        (&json!("web"), &json!("shared-kernel"))
    );
    assert!(
        told["detail"]
            .as_str()
            .unwrap()
            .starts_with("2 of its instances"),
        "{told}"
    );
    // Nothing could take their place: they serve, and the env says why.
    world.settle();
    assert_eq!(nodes(&world), [1, 1]);
    let status = world.get(Operation::GetStatus, &DEV);
    assert_eq!(status["status"], "degraded");
    assert_eq!(
        conditions(&status),
        ["isolation_unavailable", "shared_kernel", "isolation_weaker"]
    );
    node_with(&mut world, 2, "microvm-firecracker");
    world.settle();
    assert_eq!(nodes(&world), [2, 2]);
    let status = world.get(Operation::GetStatus, &DEV);
    assert_eq!(
        (&status["status"], &status["isolation"]["level"]),
        (&json!("healthy"), &json!("microvm"))
    );
    assert!(conditions(&status).is_empty(), "{status}");
    world.check_fold();
}

#[test]
fn who_gets_no_address_goes_to_the_next_best_node() {
    let mut world = World::new("fd00::/110", 22);
    // The roomiest node is alone, until its three addresses rest.
    world.node(3, 16 * GIB);
    let release = world.release(&WEB.replace("[processes.web]", "[processes.web]\nreplicas = 3"));
    world.deploy(&release);
    world.settle();
    assert_eq!(nodes(&world), [3, 3, 3]);
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 0}}));
    world.settle();
    assert!(world.state.runtime.plan.instances.is_empty());
    world.node(1, 2 * GIB);
    world.node(2, 12 * GIB);
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 1}}));
    let input = world.state.runtime.planner_input(None);
    let steps = fluffy_planner::plan(&input, world.now);
    assert!(
        format!("{steps:?}").contains(&NodeId::from_bits(3).to_string()),
        "the planner knows nothing of addresses: {steps:?}"
    );
    world.settle();
    assert_eq!(nodes(&world), [2], "and not the first that fits");
    // The next one is kept apart from it, as by the planner's own rules.
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 2}}));
    world.settle();
    assert_eq!(nodes(&world), [1, 2]);
    world.check_fold();
}
