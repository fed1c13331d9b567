//! The agent against the real control plane, with guests played by the test.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod double;
mod faults;
mod kit;

use std::time::Duration;

use fluffy_api::Operation;
use fluffy_guest::PROTOCOL;
use fluffy_guest::message::Versions;
use fluffy_node::driver::ExitRecord;
use fluffy_planner::lifecycle::{DeployState, InstanceStatus};
use kit::{Cluster, LONG, until};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_reaches_ready_with_secrets_and_its_lines_arrive() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let secrets = json!({"values": {"PASSWORD": "hunter2-and-more"}});
    cluster
        .write(Operation::ReplaceSecrets, &kit::ENV, secrets)
        .await;
    let deploy = cluster
        .deploy(
            "[processes.web]\ncommand = [\"serve\", \"one\"]\nreplicas = 2\n\
                 [processes.web.secrets]\nrequired = true\n",
        )
        .await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let ready = cluster.with(InstanceStatus::Ready);
    assert_eq!(ready.len(), 2);
    for instance in &ready {
        let secrets = cluster.double.secrets(instance).unwrap();
        assert!(
            String::from_utf8(secrets)
                .unwrap()
                .contains("PASSWORD=hunter2-and-more")
        );
        cluster.printed(instance, "serve one").await;
        assert_eq!(cluster.double.starts(instance), 1);
    }
    // Nothing of a secret is on the disk.
    let found = kit::search(&cluster.folder(), b"hunter2");
    assert_eq!(found, Vec::<std::path::PathBuf>::new());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_killed_finds_its_instances_running() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let deploy = cluster
        .deploy("[processes.web]\ncommand = [\"serve\"]\nreplicas = 3\n")
        .await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let ready = cluster.with(InstanceStatus::Ready);
    let boots = cluster.boots();
    cluster.kill_agent().await;
    assert_eq!(cluster.double.running(), 3, "they outlive it");
    // One ends meanwhile, and its record is found.
    let record = ExitRecord {
        boot_id: boots[&ready[0]].clone(),
        exit_code: Some(4),
        signal: None,
        oom: false,
        at_ms: 1_700_000_000_000,
        failed: None,
        memory_peak_bytes: 0,
    };
    cluster.double.crash(&ready[0], Some(record));
    cluster.node().await;
    for instance in &ready[1..] {
        // The new agent has a link: the guest printed at its question.
        cluster.printed(instance, "still here").await;
        assert_eq!(cluster.double.starts(instance), 1, "never started again");
        assert_eq!(cluster.boots()[instance], boots[instance]);
    }
    until("the third is up again", || {
        cluster.double.starts(&ready[0]) == 2 && cluster.with(InstanceStatus::Ready).len() == 3
    })
    .await;
    let codes = cluster.exit_codes(&ready[0]);
    assert_eq!(codes, [4], "the exit that nobody saw is reported");
    let times = cluster.exit_times(&ready[0]);
    assert!(
        times[0].contains("2023-11-14"),
        "with its own time: {times:?}"
    );
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_the_plan_rules_and_lines_wait() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let deploy = cluster
        .deploy("[processes.web]\ncommand = [\"serve\"]\nreplicas = 2\n")
        .await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let ready = cluster.with(InstanceStatus::Ready);
    cluster.stop_server().await;
    // A crash while nobody can be asked: it starts again as planned.
    cluster.double.crash(&ready[0], None);
    until("it was started again", || {
        cluster.double.starts(&ready[0]) == 2
    })
    .await;
    until("it runs", || cluster.double.running() == 2).await;
    cluster.start_server().await;
    until("the server knows", || {
        let boots = cluster.boots();
        cluster.with(InstanceStatus::Ready).len() == 2 && boots.len() == 2
    })
    .await;
    // What it printed meanwhile arrives.
    cluster.printed(&ready[0], "serve").await;
    assert_eq!(cluster.double.starts(&ready[1]), 1);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_and_a_failed_health_gate_are_named() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    cluster
        .deploy(
            "[processes.web]\ncommand = [\"crash\"]\n\
                 [processes.web.restart]\nbackoff_seconds = 1\n",
        )
        .await;
    until("the loop is named", || {
        cluster
            .reasons()
            .iter()
            .any(|reason| reason == "crash_loop_backoff")
    })
    .await;
    let failed = cluster.with(InstanceStatus::Failed);
    assert!(failed.iter().all(|it| cluster.double.starts(it) <= 5));
    // Nothing listens at the address of a double.
    let deploy = cluster
        .deploy(
            "[processes.web]\ncommand = [\"serve\"]\n\
                 [[processes.web.ports]]\nname = \"http\"\ninternal = 80\n\
                 [processes.web.health]\ntype = \"tcp\"\nport = 80\nstart_timeout_seconds = 10\n",
        )
        .await;
    until("the check is named", || {
        cluster
            .reasons()
            .iter()
            .any(|reason| reason == "healthcheck_failed")
    })
    .await;
    cluster.never(&deploy, DeployState::Succeeded);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_falls_silent_is_killed_and_started_again() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let deploy = cluster
        .deploy("[processes.web]\ncommand = [\"serve\"]\nreplicas = 2\n")
        .await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let ready = cluster.with(InstanceStatus::Ready);
    let boots = cluster.boots();
    cluster.double.hush(&ready[0]);
    until("it is named", || {
        cluster
            .reasons()
            .iter()
            .any(|reason| reason == "guest_unresponsive")
    })
    .await;
    until("it runs again", || {
        let again = cluster.boots()[&ready[0]] != boots[&ready[0]];
        again && cluster.with(InstanceStatus::Ready) == ready
    })
    .await;
    assert_eq!(cluster.double.starts(&ready[0]), 2);
    assert_eq!(cluster.double.running(), 2, "the silent one was ended");
    // The control: one that answers is left alone.
    assert_eq!(cluster.double.starts(&ready[1]), 1);
    assert_eq!(cluster.boots()[&ready[1]], boots[&ready[1]]);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_speaks_another_protocol_is_not_run() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let newer = PROTOCOL.max + 1;
    cluster.double.speak(Versions {
        min: newer,
        max: newer,
    });
    let serve = "[processes.web]\ncommand = [\"serve\"]\n";
    let deploy = cluster.deploy(serve).await;
    cluster.reaches(&deploy, DeployState::Failed).await;
    let reasons = cluster.reasons();
    assert!(
        reasons.iter().any(|it| it == "guest_protocol_mismatch"),
        "{reasons:?}"
    );
    until("nothing runs", || cluster.double.running() == 0).await;
    // The control: one that speaks ours as well is run.
    cluster.double.speak(Versions {
        min: PROTOCOL.max,
        max: newer,
    });
    let deploy = cluster.deploy(serve).await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    assert_eq!(cluster.double.running(), 1);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_wanted_goes_even_if_it_will_not() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let deploy = cluster
        .deploy(
            "[processes.web]\ncommand = [\"stubborn\"]\nreplicas = 2\n\
                 [processes.web.stop]\ngrace_seconds = 1\n",
        )
        .await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let before = cluster.known();
    let deploy = cluster
        .deploy("[processes.web]\ncommand = [\"serve\"]\nreplicas = 2\n")
        .await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    until("the old ones are gone", || {
        cluster.known().len() == 2 && cluster.double.running() == 2
    })
    .await;
    assert!(cluster.known().iter().all(|it| !before.contains(it)));
    let left = std::fs::read_dir(cluster.folder().join("instances")).unwrap();
    assert_eq!(left.count(), 2, "their folders are gone");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_beside_the_workload() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let deploy = cluster
        .deploy("[processes.web]\ncommand = [\"serve\"]\n")
        .await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let instance = cluster.with(InstanceStatus::Ready).remove(0);
    let said = cluster.exec(&instance, &["echo", "here"]).await;
    assert_eq!(said, ("echo here\n".to_owned(), Some(3)));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_halted_starts_everything_again() {
    let mut cluster = Cluster::start().await;
    cluster.node().await;
    let deploy = cluster
        .deploy("[processes.web]\ncommand = [\"serve\"]\nreplicas = 2\n")
        .await;
    cluster.reaches(&deploy, DeployState::Succeeded).await;
    let ready = cluster.with(InstanceStatus::Ready);
    cluster.halt_agent().await;
    assert_eq!(cluster.double.running(), 0);
    cluster.node().await;
    until("all are up again", || {
        cluster.double.running() == 2 && ready.iter().all(|it| cluster.double.starts(it) == 2)
    })
    .await;
    tokio::time::timeout(LONG, async {
        while cluster.with(InstanceStatus::Ready) != ready {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    cluster.end().await;
}
