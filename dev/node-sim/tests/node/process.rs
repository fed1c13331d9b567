//! Simulated nodes in their own process, from enrolment to the end.

use fluffy_api::node::v1;
use fluffy_node_sim::{Behaviour, Command};

use crate::desk::assignment;
use crate::kit::{Cluster, Sim, until};

const WAY: [&str; 3] = ["preparing", "booting", "ready"];

/// Starts the process where it does not hold up the server in this one.
async fn start(cluster: &Cluster, nodes: usize, behaviour: Behaviour) -> Sim {
    tokio::task::block_in_place(|| Sim::start(cluster, nodes, &behaviour))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_enrols_confirms_and_walks_an_instance_there_and_back() {
    let cluster = Cluster::start().await;
    let sim = start(&cluster, 1, Behaviour::default()).await;
    let (desk, node) = (&cluster.desk, sim.nodes[0]);
    until("it is connected", || {
        cluster.server.connected().contains(&node)
    })
    .await;
    assert!(desk.lock().nodes[&node].confirmed >= 1);
    desk.plan(node, (1, 10), &["inst_a"]);
    until("it is ready", || desk.walked(node, "inst_a") == WAY).await;
    until("heartbeats come", || {
        desk.lock().nodes[&node].heartbeats > 2
    })
    .await;
    let position = v1::Position { epoch: 1, seq: 10 };
    assert_eq!(desk.lock().nodes[&node].acks[0].plan, Some(position));
    let mut draining = v1::NodePlan {
        epoch: 1,
        cursor_seq: 11,
        instances: vec![assignment("inst_a")],
        ..Default::default()
    };
    draining.instances[0].desired_state = v1::DesiredState::Draining.into();
    desk.order(node, draining.clone());
    until("it drains", || {
        desk.walked(node, "inst_a").ends_with(&["draining".into()])
    })
    .await;
    draining.cursor_seq = 12;
    draining.instances[0].stop_allowed = true;
    desk.order(node, draining);
    until("it is gone", || {
        desk.walked(node, "inst_a")[3..] == ["draining", "stopped", "collected"]
    })
    .await;
    sim.until("it knows of no instance", |node| {
        node["instances"].as_object().unwrap().is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_and_crashes_arrive_with_their_reasons() {
    let cluster = Cluster::start().await;
    let failing = Behaviour {
        fail: Some("image_pull_failed".to_owned()),
        ..Behaviour::default()
    };
    let sim = start(&cluster, 1, failing).await;
    let (desk, node) = (&cluster.desk, sim.nodes[0]);
    desk.plan(node, (1, 1), &["inst_a"]);
    until("the pull fails", || {
        desk.walked(node, "inst_a")
            .contains(&"failed image_pull_failed".to_owned())
    })
    .await;
    sim.behave(Behaviour::default()).await;
    let ends_ready = || desk.walked(node, "inst_a").ends_with(&["ready".to_owned()]);
    until("it is ready", ends_ready).await;
    let instance = "inst_a".to_owned();
    sim.order(Command::Crash { instance }).await;
    until("it came back", || {
        let way = desk.walked(node, "inst_a");
        way.ends_with(&["failed workload_exited", "booting", "ready"].map(str::to_owned))
    })
    .await;
}

/// Whatever is said twice, late, or in the wrong order: the desk hears every
/// report once and in order, which it asserts itself.
#[tokio::test(flavor = "multi_thread")]
async fn bad_manners_change_nothing_that_is_heard() {
    let cluster = Cluster::start().await;
    let rude = Behaviour {
        twice: true,
        reorder: true,
        ..Behaviour::default()
    };
    let sim = start(&cluster, 1, rude).await;
    let (desk, node) = (&cluster.desk, sim.nodes[0]);
    desk.plan(node, (1, 1), &["inst_a", "inst_b", "inst_c"]);
    sim.until("it is ready there", |node| {
        node["instances"]["inst_c"] == "ready"
    })
    .await;
    sim.order(Command::Drop { node: None }).await;
    let polite = Behaviour {
        twice: true,
        ..Behaviour::default()
    };
    sim.behave(polite).await;
    for instance in ["inst_a", "inst_b", "inst_c"] {
        until("all is heard", || desk.walked(node, instance) == WAY).await;
    }
    assert_eq!(desk.lock().nodes[&node].reports.len(), 9);
}

/// Without the server, and after a crash of its own, a node goes on by its
/// last plan; afterwards it says what became of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_goes_on_without_the_server_and_after_its_own_death() {
    let mut cluster = Cluster::start().await;
    let sim = start(&cluster, 1, Behaviour::default()).await;
    let (desk, node) = (cluster.desk.clone(), sim.nodes[0]);
    desk.plan(node, (1, 10), &["inst_a"]);
    until("it is ready", || desk.walked(node, "inst_a") == WAY).await;
    cluster.stop().await;
    sim.until("the link is down", |node| node["connected"] == false)
        .await;
    sim.order(Command::Crash {
        instance: "inst_a".to_owned(),
    })
    .await;
    sim.until("it restarted it alone", |node| {
        node["instances"]["inst_a"] == "ready"
    })
    .await;
    drop(sim);
    let sim = start(&cluster, 1, Behaviour::default()).await;
    assert_eq!(sim.nodes, [node], "the same node, without another token");
    sim.until("the plan is kept", |node| {
        node["plan"] == serde_json::json!([1, 10]) && node["instances"]["inst_a"] == "ready"
    })
    .await;
    let heard = desk.walked(node, "inst_a").len();
    cluster.serve_again().await;
    until("it reports", || desk.walked(node, "inst_a").len() > heard).await;
    assert_eq!(desk.walked(node, "inst_a").last().unwrap(), "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_set_back_is_brought_up_to_date() {
    let cluster = Cluster::start().await;
    let sim = start(&cluster, 1, Behaviour::default()).await;
    let (desk, node) = (&cluster.desk, sim.nodes[0]);
    desk.plan(node, (1, 1), &["inst_old"]);
    until("it is ready", || desk.walked(node, "inst_old") == WAY).await;
    sim.order(Command::Remember {}).await;
    desk.plan(node, (1, 2), &["inst_new"]);
    until("the new one is ready", || {
        desk.walked(node, "inst_new") == WAY
    })
    .await;
    until("the old one is gone", || {
        desk.walked(node, "inst_old")
            .ends_with(&["collected".to_owned()])
    })
    .await;
    let boot = desk.lock().nodes[&node]
        .hellos
        .last()
        .unwrap()
        .boot_id
        .clone();
    sim.order(Command::Back {}).await;
    until("it runs what it should", || {
        let again = WAY.map(str::to_owned);
        desk.walked(node, "inst_new").get(3..) == Some(&again)
    })
    .await;
    until("the old one goes again", || {
        let way = desk.walked(node, "inst_old");
        way.iter().filter(|status| *status == "collected").count() == 2
    })
    .await;
    let last = desk.lock().nodes[&node]
        .hellos
        .last()
        .unwrap()
        .boot_id
        .clone();
    assert_ne!(last, boot, "it counts anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_live_in_one_process() {
    let cluster = Cluster::start().await;
    let sim = start(&cluster, 12, Behaviour::default()).await;
    let desk = &cluster.desk;
    for node in &sim.nodes {
        desk.plan(*node, (1, 1), &["inst_a"]);
    }
    for node in &sim.nodes {
        until("each walks its own", || desk.walked(*node, "inst_a") == WAY).await;
    }
    assert_eq!(cluster.server.connected().len(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_fetched_for_what_needs_them_and_lines_arrive_once() {
    let cluster = Cluster::start().await;
    let sim = start(&cluster, 1, Behaviour::default()).await;
    let (desk, node) = (&cluster.desk, sim.nodes[0]);
    desk.lock()
        .secrets
        .insert("sv_1".to_owned(), b"KEY=value".to_vec());
    let with = |id: &str, version: &str| {
        let mut assignment = assignment(id);
        assignment.workload.as_mut().unwrap().secrets = Some(v1::Secrets {
            required: true,
            secret_version_id: version.to_owned(),
            ..Default::default()
        });
        assignment
    };
    desk.order(
        node,
        v1::NodePlan {
            epoch: 1,
            cursor_seq: 1,
            instances: vec![with("inst_a", "sv_1"), with("inst_b", "sv_2")],
            ..Default::default()
        },
    );
    until("one has them", || desk.walked(node, "inst_a") == WAY).await;
    until("one has none", || {
        desk.walked(node, "inst_b") == ["preparing", "failed secrets_missing"]
    })
    .await;
    let mut fetched = desk.lock().fetched.clone();
    fetched.sort();
    assert_eq!(fetched, ["sv_1", "sv_2"].map(|id| (node, id.to_owned())));
    for text in ["one", "two"] {
        let (instance, text) = ("inst_a".to_owned(), text.to_owned());
        sim.order(Command::Print { instance, text }).await;
    }
    let logs = cluster.server.logs();
    let texts = || {
        let lines = logs.of("inst_a");
        let texts: Vec<String> = lines.iter().map(|line| line.text.to_string()).collect();
        texts
    };
    until("the lines are here", || texts() == ["ready", "one", "two"]).await;
}
