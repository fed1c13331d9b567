//! What a session promises: order, once, newest plan, one per node.

use fluffy_api::node::{code_of, v1};
use fluffy_base::{Clock as _, SystemClock};
use fluffy_server::node::Role;
use tokio::sync::mpsc;
use tonic::Code;
use v1::node_message::Message as Said;
use v1::server_message::Message as Told;

use crate::kit::{Cluster, Session, hello, streaming, until};

/// The desk itself asserts that what it hears is in order and once.
#[tokio::test]
async fn reports_are_taken_once_however_often_they_are_said() {
    let cluster = Cluster::start().await;
    let member = cluster.member();
    let mut session = cluster.session(&member).await;
    let batches: [(&[u64], u64); 7] = [
        (&[1, 2], 2),
        (&[1, 2], 2),
        (&[2, 3], 3),
        (&[5], 3),
        (&[5, 4], 3),
        (&[4, 5, 6], 6),
        (&[], 6),
    ];
    for (numbers, through) in batches {
        session.report(numbers).await;
        assert_eq!(session.acknowledged().await, through, "{numbers:?}");
    }
    assert_eq!(cluster.desk.lock().nodes[&member.node].reports.len(), 6);
    // After a break it is told where it was.
    let again = v1::Hello {
        boot_id: session.boot.clone(),
        ..hello(&member)
    };
    drop(session);
    let mut session = Session::open(cluster.client(&member).await, again)
        .await
        .unwrap();
    session.report(&[6, 7]).await;
    assert_eq!(session.acknowledged().await, 7);
}

#[tokio::test]
async fn what_the_desk_cannot_take_is_not_acknowledged() {
    let cluster = Cluster::start().await;
    let member = cluster.member();
    let mut session = cluster.session(&member).await;
    cluster.desk.lock().unavailable = true;
    session.report(&[1]).await;
    session.say(Said::Heartbeat(v1::Heartbeat::default())).await;
    until("the heartbeat is not behind it", || {
        cluster.desk.lock().nodes[&member.node].heartbeats == 1
    })
    .await;
    assert!(cluster.desk.lock().nodes[&member.node].reports.is_empty());
    cluster.desk.lock().unavailable = false;
    session.report(&[1]).await;
    assert_eq!(session.acknowledged().await, 1);
}

#[tokio::test]
async fn a_plan_never_goes_back() {
    let cluster = Cluster::start().await;
    let member = cluster.member();
    let (desk, node) = (&cluster.desk, member.node);
    let mut session = cluster.session(&member).await;
    let mut heard = Vec::new();
    for (epoch, seq, comes) in [
        (1, 5, true),
        (1, 4, false),
        (1, 5, false),
        (1, 6, true),
        (2, 1, true),
        (1, 9, false),
    ] {
        desk.plan(node, (epoch, seq), &["inst_a"]);
        if comes {
            let Told::Plan(plan) = session.next().await.unwrap() else {
                panic!("a plan was expected");
            };
            heard.push((plan.epoch, plan.cursor_seq));
            assert_eq!(plan.node_id, node.to_string());
        }
        // It was looked at before the next one comes.
        session.report(&[0]).await;
        session.acknowledged().await;
    }
    assert_eq!(heard, [(1, 5), (1, 6), (2, 1)]);
    // Who keeps the newest is not told it again; who lost it is.
    desk.plan(node, (2, 7), &[]);
    session.acknowledged_plan((2, 7)).await;
    let keeps = v1::Hello {
        plan: Some(v1::Position { epoch: 2, seq: 7 }),
        ..hello(&member)
    };
    let mut session = Session::open(cluster.client(&member).await, keeps)
        .await
        .unwrap();
    session.report(&[1]).await;
    let Told::StatusAck(_) = session.next().await.unwrap() else {
        panic!("there is no plan to be told");
    };
    let mut session = cluster.session(&member).await;
    session.acknowledged_plan((2, 7)).await;
}

impl Session {
    async fn acknowledged_plan(&mut self, position: (u64, u64)) {
        match self.next().await.unwrap() {
            Told::Plan(plan) => assert_eq!((plan.epoch, plan.cursor_seq), position),
            other => panic!("a plan, not {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_newer_session_ends_the_older_one() {
    let cluster = Cluster::start().await;
    let member = cluster.member();
    let mut first = cluster.session(&member).await;
    let mut second = cluster.session(&member).await;
    assert_eq!(code_of(&first.end().await), Some("session_replaced"));
    second.report(&[1]).await;
    assert_eq!(second.acknowledged().await, 1);
    let connected = cluster.server.connected();
    assert_eq!(connected.into_iter().collect::<Vec<_>>(), [member.node]);
    drop(second);
    until("nobody is connected", || {
        cluster.server.connected().is_empty()
    })
    .await;
}

#[tokio::test]
async fn versions_that_are_not_spoken_are_refused_by_name() {
    let cluster = Cluster::start().await;
    let member = cluster.member();
    for protocol in [0, 2, u32::MAX] {
        let other = v1::Hello {
            protocol,
            ..hello(&member)
        };
        let refused = Session::open(cluster.client(&member).await, other).await;
        let refused = refused.err().unwrap();
        assert_eq!(code_of(&refused), Some("version_unsupported"));
        assert!(refused.message().contains("speaks 1 to 1"), "{refused}");
    }
    cluster.session(&member).await;
}

#[tokio::test]
async fn an_edge_gets_whole_tables_and_says_which_it_uses() {
    let cluster = Cluster::start().await;
    let edge = cluster.member_since(Role::Edge, SystemClock.now());
    let (said, messages) = mpsc::channel(8);
    let message = |message| v1::EdgeMessage {
        message: Some(message),
    };
    use v1::edge_message::Message as Edge;
    said.send(message(Edge::Hello(hello(&edge)))).await.unwrap();
    let mut client = cluster.client(&edge).await;
    let tables = client.edge_config(streaming(messages)).await.unwrap();
    let mut tables = tables.into_inner();
    let table = |seq| v1::RoutingTable {
        config: Some(v1::Position { epoch: 1, seq }),
        routes: vec![v1::Route::default()],
    };
    let empty = tables.message().await.unwrap().unwrap();
    assert!(empty.routes.is_empty());
    cluster.desk.route(table(3));
    assert_eq!(tables.message().await.unwrap().unwrap(), table(3));
    cluster.desk.route(table(2));
    cluster.desk.route(table(4));
    assert_eq!(tables.message().await.unwrap().unwrap(), table(4));
    let ack = v1::EdgeAck {
        config: Some(v1::Position { epoch: 1, seq: 4 }),
        ..Default::default()
    };
    said.send(message(Edge::Ack(ack.clone()))).await.unwrap();
    until("it is acknowledged", || {
        cluster.desk.lock().edge_acks == [(edge.node, ack.clone())]
    })
    .await;
    // Each role has its own calls.
    let refused = Session::open(client, hello(&edge)).await.err().unwrap();
    assert_eq!(code_of(&refused), Some("wrong_role"));
    let worker = cluster.member();
    let (_said, messages) = mpsc::channel(1);
    let mut client = cluster.client(&worker).await;
    let refused = client.edge_config(streaming(messages)).await.err().unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied);
}
