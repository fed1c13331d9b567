//! What an agent does when its own parts fail: its disk, its memory, its tasks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fluffy_api::Operation;
use fluffy_api::node::v1;
use fluffy_node::store::{Kept, Store, StoreError};
use fluffy_planner::lifecycle::{DeployState, InstanceStatus};
use serde_json::json;
use tokio::sync::Notify;

use crate::kit::{self, Cluster, until};

const ONE: &str = "[processes.web]\ncommand = [\"serve\"]\n";
const TWO: &str = "[processes.web]\ncommand = [\"serve\"]\nreplicas = 2\n";

/// Makes every write to these tables fail, as a full disk does.
fn full(tables: &[&str]) -> String {
    let trigger = |table: &&str| {
        format!(
            "CREATE TRIGGER full_{table} BEFORE INSERT ON {table}
             BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END;"
        )
    };
    tables.iter().map(trigger).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_full_ends_nothing_and_what_waited_is_done_later() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let deploy = cluster.deploy(TWO).await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let ready = cluster.with(InstanceStatus::Ready);
    cluster.sql(&full(&["plan", "instances"]));
    let deploy = cluster.deploy(TWO).await;
    kit::eventually("it is noticed", async || {
        let status = cluster.status().await;
        status.unwritten.contains("disk is full").then_some(())
    })
    .await;
    // One that ends cannot be started again: nobody would know of it.
    cluster.double.crash(&ready[0], None);
    until("it is gone", || cluster.double.running() == 1).await;
    let status = cluster.status().await;
    assert!(status.connected, "its session goes on: {status:?}");
    assert_eq!(cluster.double.starts(&ready[0]), 1);
    assert_eq!(
        cluster.with(InstanceStatus::Ready),
        ready,
        "nothing is said"
    );
    cluster.never(&deploy, DeployState::Succeeded);
    cluster.sql("DROP TRIGGER full_plan; DROP TRIGGER full_instances;");
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    assert_eq!(cluster.status().await.unwritten, "");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_fails_is_opened_again_and_finds_its_instances() {
    let mut cluster = Cluster::start().await;
    let fail = Arc::new(Notify::new());
    let (halt, kept) = cluster.kept(Arc::clone(&fail)).await;
    let deploy = cluster.deploy(TWO).await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let ready = cluster.with(InstanceStatus::Ready);
    fail.notify_one();
    for instance in &ready {
        cluster.printed(instance, "still here").await;
        assert_eq!(cluster.double.starts(instance), 1, "never started again");
    }
    // It does what it did before.
    let deploy = cluster.deploy(ONE).await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    halt.send(()).unwrap();
    kept.await.unwrap();
    assert_eq!(cluster.double.running(), 0, "all ends with it");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_row_is_left_alone_with_what_runs_until_it_is_not_wanted() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let deploy = cluster.deploy(TWO).await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let ready = cluster.with(InstanceStatus::Ready);
    cluster.kill_agent().await;
    let broken = &ready[0];
    cluster.sql(&format!(
        "UPDATE instances SET record = substr(record, 1, 40) WHERE id = '{broken}'"
    ));
    cluster.node().await;
    cluster.printed(&ready[1], "still here").await;
    kit::eventually("it is said", async || {
        let status = cluster.status().await;
        (status.instances[broken] == "degraded").then_some(())
    })
    .await;
    until("the server knows", || {
        cluster.reasons().contains(&"degraded".to_owned())
    })
    .await;
    assert_eq!(cluster.double.running(), 2, "what runs goes on");
    assert_eq!(cluster.double.starts(broken), 1);
    let store = Store::open(&cluster.folder().join("state.db")).unwrap();
    let row = store.instance(broken);
    assert!(
        matches!(row, Err(StoreError::Damaged(_))),
        "nobody wrote over it"
    );
    drop(store);
    let deploy = cluster.deploy(ONE).await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    until("nothing is left of it", || {
        cluster.double.running() == 1 && !cluster.known().contains(broken)
    })
    .await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_whose_task_keeps_failing_is_said_to_be_degraded() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let deploy = cluster.deploy(ONE).await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let instance = cluster.with(InstanceStatus::Ready).remove(0);
    cluster.kill_agent().await;
    cluster.pins_fail.store(true, Ordering::SeqCst);
    cluster.node().await;
    until("the server knows", || {
        cluster.reasons().contains(&"degraded".to_owned())
    })
    .await;
    assert_eq!(cluster.status().await.instances[&instance], "degraded");
    assert_eq!(cluster.double.running(), 1, "what runs goes on");
    let ready = cluster.with(InstanceStatus::Ready);
    assert_eq!(ready, std::slice::from_ref(&instance));
    // A new word of the plan is a new try.
    cluster.pins_fail.store(false, Ordering::SeqCst);
    let deploy = cluster.deploy(ONE).await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    until("it is gone", || !cluster.known().contains(&instance)).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_nobody_waits_for_any_more_is_not_fetched() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    cluster.images_come.send_replace(false);
    cluster.deploy(ONE).await;
    until("it is fetched", || {
        cluster.images_come.receiver_count() == 1
    })
    .await;
    cluster.halt_agent().await;
    until("nobody fetches it", || {
        cluster.images_come.receiver_count() == 0
    })
    .await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_report_that_was_lost_is_made_again() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let deploy = cluster.deploy(ONE).await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let instance = cluster.with(InstanceStatus::Ready).remove(0);
    cluster.kill_agent().await;
    cluster.stop_server().await;
    // As an agent leaves it that is killed after the row went, and before
    // anybody heard of it.
    cluster.double.crash(&instance, None);
    let store = Store::open(&cluster.folder().join("state.db")).unwrap();
    let mut plan = store.plan().unwrap().unwrap();
    for assignment in &mut plan.instances {
        assignment.set_desired_state(v1::DesiredState::Stopped);
    }
    store.keep_plan(&plan).unwrap();
    store.forget(&instance).unwrap();
    drop(store);
    cluster.node().await;
    kit::eventually("it is said", async || {
        let status = cluster.status().await;
        let gone = status.instances.is_empty() && cluster.known().is_empty();
        (gone && status.unacknowledged == 3).then_some(())
    })
    .await;
    assert_eq!(cluster.double.starts(&instance), 1, "nothing is started");
    cluster.start_server().await;
    until("the server knows", || {
        cluster.events("instance.collected") == 1
    })
    .await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_leaves_out_most_is_held_until_it_is_confirmed() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    // They take their time to end: meanwhile the server, which hears that
    // nothing is held any more, sends a plan that nobody confirmed.
    let deploy = cluster
        .deploy(
            "[processes.web]\ncommand = [\"stubborn\"]\n\
                 [processes.web.stop]\ngrace_seconds = 5\n",
        )
        .await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    cluster.kill_agent().await;
    // As if the server had lost four of five: it plans one, and so tells
    // nobody to drain the others.
    let store = Store::open(&cluster.folder().join("state.db")).unwrap();
    let (_, known) = store.instances().unwrap().remove(0);
    let known = known.unwrap();
    for number in 1..=4 {
        let id = format!("inst_LOST{number}");
        let mut lost = Kept {
            assignment: known.assignment.clone(),
            planned: true,
            slot: number,
            ..Kept::default()
        };
        lost.assignment.instance_id.clone_from(&id);
        store.keep_instance(&id, &lost).unwrap();
    }
    drop(store);
    cluster.node().await;
    until("it is said", || cluster.events("node.plan_held") == 1).await;
    until("they keep running", || cluster.double.running() == 5).await;
    let node = cluster.status().await.node_id;
    cluster
        .write(Operation::ConfirmNodePlan, &[&node], json!({}))
        .await;
    until("it is over", || cluster.events("node.plan_held") == 2).await;
    until("they are gone", || cluster.double.running() == 1).await;
    assert_eq!(cluster.events("node.plan_held"), 2, "and never held again");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_refused_is_on_record_with_its_token_and_key() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let node = cluster.status().await.node_id;
    let (code, token) = cluster.enrol_as(&node).await;
    assert_eq!(code, "enroll_duplicate");
    let spent = cluster.payloads("enrollment_token.consumed");
    assert_eq!(spent.last().unwrap()["outcome"], "duplicate");
    let refused = cluster.payloads("auth.failed").pop().unwrap();
    assert_eq!(refused["reason"], "enroll_duplicate");
    assert_eq!(refused["token_id"], token);
    for field in ["token_created_by", "key_fingerprint", "pii_ref"] {
        assert!(refused[field].is_string(), "{field}: {refused}");
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_that_cannot_be_opened_are_waited_for_and_named() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let secrets = json!({"values": {"PASSWORD": "hunter2-and-more"}});
    cluster
        .write(Operation::ReplaceSecrets, &kit::ENV, secrets)
        .await;
    let before = cluster.alter_secrets(None).await;
    assert!(!before.is_empty());
    let deploy = cluster
        .deploy(&format!("{ONE}[processes.web.secrets]\nrequired = true\n"))
        .await;
    let decided = cluster.events("authz.decided");
    until("it is said why", || {
        cluster
            .reasons()
            .contains(&"secrets_key_unavailable".to_owned())
    })
    .await;
    assert_eq!(cluster.with(InstanceStatus::Preparing).len(), 1);
    assert_eq!(cluster.double.running(), 0);
    cluster.never(&deploy, DeployState::Failed);
    assert!(cluster.events("authz.decided") < decided + 5);
    cluster.alter_secrets(Some(before)).await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    cluster.end().await;
}
