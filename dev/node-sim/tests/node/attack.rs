//! What a member or a stranger may try, each beside what is allowed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::{MAX_FROM_NODE, MAX_REPORTS, code_of, v1};
use fluffy_base::SystemClock;
use fluffy_image::Registries;
use fluffy_server::node::NodeServer;
use http_body_util::Full;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Code;
use v1::node_message::Message as Said;

use crate::kit::{Cluster, Member, Session, hello, report, streaming, until};

/// A member that speaks for another one, in every message that names a node.
#[tokio::test]
async fn nobody_speaks_for_another_node() {
    let cluster = Cluster::start().await;
    let (own, other) = (cluster.member(), cluster.member());
    cluster.desk.plan(own.node, (1, 1), &["inst_own"]);
    cluster.desk.plan(other.node, (1, 1), &["inst_other"]);
    cluster
        .desk
        .lock()
        .secrets
        .insert("sv_1".to_owned(), b"KEY=value".to_vec());
    let mut client = cluster.client(&own).await;
    let id = |member: &Member| member.node.to_string();
    let confirm = |node_id| v1::ConfirmRequest { node_id };
    let refused = client.confirm(confirm(id(&other))).await.unwrap_err();
    assert_eq!(code_of(&refused), Some("node_mismatch"));
    client.confirm(confirm(id(&own))).await.unwrap();

    let refused = Session::open(client.clone(), hello(&other)).await;
    assert_eq!(code_of(&refused.err().unwrap()), Some("node_mismatch"));
    assert!(cluster.desk.lock().nodes[&other.node].hellos.is_empty());

    let secret = |node_id, instance: &str| v1::SecretMaterialRequest {
        node_id,
        instance_id: instance.to_owned(),
        generation: 1,
        secret_version_id: "sv_1".to_owned(),
    };
    let refused = client.get_secret_material(secret(id(&other), "inst_other"));
    assert_eq!(code_of(&refused.await.unwrap_err()), Some("node_mismatch"));
    let refused = client.get_secret_material(secret(id(&own), "inst_other"));
    assert_eq!(
        code_of(&refused.await.unwrap_err()),
        Some("secrets_missing")
    );
    let given = client
        .get_secret_material(secret(id(&own), "inst_own"))
        .await;
    assert_eq!(given.unwrap().into_inner().file, b"KEY=value");
    let fetched = cluster.desk.lock().fetched.len();
    assert_eq!(fetched, 2, "each that named the right node is on record");

    let (batches, receiver) = mpsc::channel(4);
    let acks = client.push_logs(streaming(receiver)).await.unwrap();
    let mut acks = acks.into_inner();
    let entry = |instance: &str| v1::LogEntry {
        instance_id: instance.to_owned(),
        seq: 1,
        line: "line".to_owned(),
        ..Default::default()
    };
    let batch = |node_id, number| v1::LogBatch {
        node_id,
        number,
        entries: vec![entry("inst_own"), entry("inst_other")],
    };
    batches.send(batch(id(&own), 1)).await.unwrap();
    assert_eq!(acks.message().await.unwrap().unwrap().through, 1);
    let logs = cluster.server.logs();
    assert_eq!(logs.of("inst_own").len(), 1);
    assert!(logs.of("inst_other").is_empty());
    batches.send(batch(id(&other), 2)).await.unwrap();
    let refused = acks.message().await.unwrap_err();
    assert_eq!(code_of(&refused), Some("node_mismatch"));
}

/// The credential of a registry goes to a node that has an instance with an
/// image there, each time on record, and to no other.
#[tokio::test]
async fn a_registrys_credential_is_for_who_runs_an_image_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("auth.json");
    // `me:marked-password`
    let text = r#"{"auths": {"registry.test": {"auth": "bWU6bWFya2VkLXBhc3N3b3Jk"}}}"#;
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let cluster = Cluster::start().await;
    cluster.server.reach_registries(Arc::new(Registries {
        internal: ["registry.test".to_owned()].into(),
        credentials: Some(file.clone()),
        ..Registries::default()
    }));
    let (own, other) = (cluster.member(), cluster.member());
    cluster.desk.plan(own.node, (1, 1), &["inst_own"]);
    cluster.desk.plan(other.node, (1, 1), &["inst_other"]);
    let mut client = cluster.client(&own).await;
    let request = |member: &Member, instance: &str| v1::RegistryAccessRequest {
        node_id: member.node.to_string(),
        instance_id: instance.to_owned(),
        generation: 1,
    };
    let recorded = || cluster.desk.lock().fetched.clone();
    let refused = client.get_registry_access(request(&other, "inst_other"));
    assert_eq!(code_of(&refused.await.unwrap_err()), Some("node_mismatch"));
    let refused = client.get_registry_access(request(&own, "inst_other"));
    assert_eq!(code_of(&refused.await.unwrap_err()), Some("forbidden"));
    assert_eq!(recorded(), [(own.node, String::new())]);
    // The control: for its own it has it, and that is on record.
    let given = client.get_registry_access(request(&own, "inst_own")).await;
    let given = given.unwrap().into_inner();
    assert!(
        !format!("{given:?}").contains("marked-password"),
        "{given:?}"
    );
    let place = given.registry.unwrap();
    assert_eq!(place.manner(), v1::RegistryManner::Internal);
    assert_eq!(place.credential.unwrap().password, "marked-password");
    let delivered = (own.node, "registry.test".to_owned());
    assert_eq!(recorded(), [(own.node, String::new()), delivered]);
    // A file that others may read is nobody's.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = client.get_registry_access(request(&own, "inst_own")).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
    // Nor without a certificate, nor after it was taken back.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    cluster.desk.revoke(own.node);
    let refused = client.get_registry_access(request(&own, "inst_own")).await;
    assert!(refused.is_err());
    assert_eq!(recorded().len(), 2);
}

/// Not TLS, not HTTP/2, not a message, too large, out of order.
#[tokio::test]
async fn garbage_costs_its_sender_the_connection_and_nobody_else() {
    let cluster = Cluster::start().await;
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.port))
        .await
        .unwrap();
    stream.write_all(&[0xff; 4096]).await.unwrap();
    let mut rest = Vec::new();
    // An alert and the end, or just the end.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.len() < 64);

    let member = cluster.member();
    let wrong: [Vec<Said>; 6] = [
        vec![Said::Hello(hello(&member))],
        vec![Said::CertificateRequest(v1::CertificateRequest::default())],
        vec![Said::Status(v1::StatusBatch {
            boot_id: "boot_of_another".to_owned(),
            reports: vec![report(1)],
        })],
        vec![Said::Capacity(v1::Capacity {
            cached_images: vec![String::new(); 5000],
            ..Default::default()
        })],
        vec![Said::Capacity(v1::Capacity {
            cached_images: vec!["x".repeat(MAX_FROM_NODE)],
            ..Default::default()
        })],
        vec![Said::ExecRefused(v1::ExecRefused::default()); 100],
    ];
    for (number, messages) in wrong.into_iter().enumerate() {
        let harmless = messages.len() == 100;
        let mut session = cluster.session(&member).await;
        for said in messages {
            session.say(said).await;
        }
        if harmless {
            session.report(&[1]).await;
            assert_eq!(session.acknowledged().await, 1);
        } else {
            let code = session.end().await.code();
            let refused = [
                Code::InvalidArgument,
                Code::OutOfRange,
                Code::ResourceExhausted,
            ];
            assert!(refused.contains(&code), "{number}: {code:?}");
        }
    }
    let many: Vec<u64> = (1..=u64::try_from(MAX_REPORTS).unwrap() + 1).collect();
    let mut session = cluster.session(&member).await;
    session.report(&many).await;
    assert_eq!(session.end().await.code(), Code::InvalidArgument);
    let mut session = cluster.session(&member).await;
    session.report(&many[..MAX_REPORTS]).await;
    assert_eq!(session.acknowledged().await, many[MAX_REPORTS - 1]);
}

/// Bytes that are no message of this protocol, sent by a member.
#[tokio::test]
async fn bytes_that_are_no_message_end_the_call() {
    let cluster = Cluster::start().await;
    let member = cluster.member();
    let channel = cluster.dial(Some(&member.identity)).await.unwrap();
    for bytes in [
        &[0xff; 64][..],
        &[0, 0, 0, 0, 4, 1, 2, 3, 4],
        &[0, 0xff, 0xff, 0xff, 0xff],
    ] {
        use tonic::codegen::{Service as _, http};
        let mut channel = channel.clone();
        let request = http::Request::post("https://fluffy/fluffy.node.v1.Nodes/Session")
            .header("content-type", "application/grpc")
            .body(tonic::body::Body::new(Full::from(bytes.to_vec())))
            .unwrap();
        let answer = channel.call(request).await;
        // Whatever it says, it says it and goes on.
        assert!(answer.is_ok_and(|answer| answer.status().is_success()));
    }
    let client = crate::kit::nodes(channel);
    Session::open(client, hello(&member)).await.unwrap();
}

/// A node that takes no message is let go; others are served meanwhile.
#[tokio::test]
async fn who_does_not_read_is_let_go() {
    let cluster = Cluster::start().await;
    let (slow, quick) = (cluster.member(), cluster.member());
    let mut stuck = cluster.session(&slow).await;
    let mut other = cluster.session(&quick).await;
    for seq in 1..=30 {
        let plan = v1::NodePlan {
            epoch: 1,
            cursor_seq: seq,
            plan_id: "x".repeat(1 << 20),
            ..Default::default()
        };
        cluster.desk.order(slow.node, plan);
        // As fast as the server takes them, and no faster.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    other.report(&[1]).await;
    assert_eq!(other.acknowledged().await, 1);
    until("it is let go", || {
        !cluster.server.connected().contains(&slow.node)
    })
    .await;
    assert!(cluster.server.connected().contains(&quick.node));
    let ended = stuck.end().await;
    assert!(code_of(&ended).is_none_or(|code| code == "slow_reader"));
    cluster.session(&slow).await;
}

/// Connects to a server from another address of this machine.
async fn from(last: u8, cluster: &Cluster) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, last], 0).into()).unwrap();
    let server = ([127, 0, 0, 1], cluster.port).into();
    socket.connect(server).await.unwrap()
}

/// Whoever opens connections and says nothing has a part of them at most; nodes
/// that showed who they are have them all, from whatever address.
#[tokio::test]
async fn strangers_of_one_address_do_not_keep_nodes_out() {
    let names = ["localhost".to_owned()];
    let cluster = Cluster::start_as(|desk, authority| {
        let server = NodeServer::new(desk, Arc::new(SystemClock), authority, &names);
        server.unwrap().with_connections(8)
    })
    .await;
    let member = cluster.member();
    let confirm = v1::ConfirmRequest {
        node_id: member.node.to_string(),
    };
    let mut strangers = Vec::new();
    for _ in 0..6 {
        strangers.push(from(2, &cluster).await);
    }
    for _ in 0..20 {
        // It has its share.
        let mut more = from(2, &cluster).await;
        let read = timeout(Duration::from_secs(5), more.read(&mut [0])).await;
        assert!(matches!(read, Ok(Ok(0) | Err(_))), "{read:?}");
    }
    let mut client = cluster.client(&member).await;
    client.confirm(confirm.clone()).await.unwrap();
    drop(client);
    // The control: two addresses take all there are, and a node waits.
    for _ in 0..2 {
        strangers.push(from(3, &cluster).await);
    }
    let soon = Duration::from_millis(500);
    assert!(timeout(soon, cluster.client(&member)).await.is_err());
    drop(strangers);
    // Many nodes are behind one address.
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = cluster.client(&member).await;
        client.confirm(confirm.clone()).await.unwrap();
        clients.push(client);
    }
}
