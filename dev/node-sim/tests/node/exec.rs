//! Commands in instances: the bytes of both ends, and who may join them.

use fluffy_api::node::{MAX_EXEC_FRAME, code_of, v1};
use fluffy_base::id::NodeId;
use fluffy_node_sim::Behaviour;
use fluffy_server::node::{ExecError, ExecLink};
use tokio::sync::mpsc;
use v1::exec_exit::Of;
use v1::exec_from_node::Frame;
use v1::exec_to_node::Frame as Input;
use v1::server_message::Message as Told;

use crate::kit::{Cluster, LONG, Member, Sim, streaming, until};

fn open(instance: &str, command: &[&str]) -> v1::ExecOpen {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    v1::ExecOpen {
        session_id: format!("exec_{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        instance_id: instance.to_owned(),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        max_seconds: 60,
        ..Default::default()
    }
}

async fn type_in(link: &ExecLink, frame: Input) {
    let message = v1::ExecToNode { frame: Some(frame) };
    link.to_node.send(message).await.unwrap();
}

/// All output, all errors, and the end.
async fn finish(mut link: ExecLink) -> (Vec<u8>, Vec<u8>, v1::ExecExit) {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    loop {
        let frame = tokio::time::timeout(LONG, link.from_node.recv()).await;
        match frame.unwrap().expect("the exit comes last") {
            Frame::Stdout(bytes) => output.extend(bytes),
            Frame::Stderr(bytes) => errors.extend(bytes),
            Frame::Exit(exit) => return (output, errors, exit),
            Frame::Attach(_) | Frame::Started(_) => panic!("not handed on, and not asked for"),
        }
    }
}

/// A cluster with a node in a process of its own that runs `inst_a`.
async fn running() -> (Cluster, Sim, NodeId) {
    let cluster = Cluster::start().await;
    let quick = Behaviour::default();
    let sim = tokio::task::block_in_place(|| Sim::start(&cluster, 1, &quick));
    let node = sim.nodes[0];
    cluster.desk.plan(node, (1, 1), &["inst_a"]);
    until("it is ready", || {
        cluster
            .desk
            .walked(node, "inst_a")
            .contains(&"ready".to_owned())
    })
    .await;
    (cluster, sim, node)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_end_to_end() {
    let (cluster, _sim, node) = running().await;
    let server = &cluster.server;
    let link = server
        .exec(node, open("inst_a", &["echo", "hello", "there"]))
        .await;
    let (output, errors, exit) = finish(link.unwrap()).await;
    assert_eq!(
        (output.as_slice(), errors.len()),
        (&b"hello there\n"[..], 0)
    );
    assert_eq!(exit.of, Some(Of::ExitCode(0)));

    let link = server
        .exec(node, open("inst_a", &["exit", "3"]))
        .await
        .unwrap();
    assert_eq!(finish(link).await.2.of, Some(Of::ExitCode(3)));

    let link = server
        .exec(node, open("inst_a", &["nonsense"]))
        .await
        .unwrap();
    let (_, errors, exit) = finish(link).await;
    assert_eq!(errors, b"nonsense: no such command\n");
    assert_eq!(exit.of, Some(Of::ExitCode(127)));

    let link = server
        .exec(node, open("inst_a", &["sleep", "3600"]))
        .await
        .unwrap();
    type_in(&link, Input::Signal("TERM".to_owned())).await;
    let (_, _, exit) = finish(link).await;
    assert_eq!(exit.of, Some(Of::Signal("TERM".to_owned())));
    assert_eq!(exit.reason, "killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_and_typed_input_arrive() {
    let (cluster, _sim, node) = running().await;
    let shell = v1::ExecOpen {
        terminal: Some(v1::Terminal { cols: 80, rows: 24 }),
        env: [("KEY".to_owned(), "value".to_owned())].into(),
        stdin: true,
        ..open("inst_a", &["sh"])
    };
    let link = cluster.server.exec(node, shell).await.unwrap();
    type_in(&link, Input::Stdin(b"size\nenv\nfail oh".to_vec())).await;
    type_in(
        &link,
        Input::Resize(v1::Terminal {
            cols: 100,
            rows: 30,
        }),
    )
    .await;
    type_in(&link, Input::Stdin(b" no\nsize\nexit 7\n".to_vec())).await;
    let (output, errors, exit) = finish(link).await;
    let output = String::from_utf8(output).unwrap();
    assert!(
        output.contains("KEY=value") && output.ends_with("100x30\n"),
        "{output}"
    );
    assert_eq!(errors, b"oh no\n");
    assert_eq!(exit.of, Some(Of::ExitCode(7)));
    // Bytes are not touched on their way.
    let link = cluster
        .server
        .exec(node, open("inst_a", &["cat"]))
        .await
        .unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let sender = link.to_node.clone();
    let typed = bytes.clone();
    tokio::spawn(async move {
        for piece in typed.chunks(MAX_EXEC_FRAME) {
            let frame = Some(Input::Stdin(piece.to_vec()));
            sender.send(v1::ExecToNode { frame }).await.unwrap();
        }
        let frame = Some(Input::StdinEnd(v1::StdinEnd {}));
        sender.send(v1::ExecToNode { frame }).await.unwrap();
    });
    assert_eq!(finish(link).await.0, bytes);
}

/// Output that nobody reads waits where it is made, and holds up nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_slows_its_command_down_and_nothing_else() {
    let (cluster, _sim, node) = running().await;
    let size: usize = 64 << 20;
    let flood = open("inst_a", &["flood", &size.to_string()]);
    let stuck = cluster.server.exec(node, flood).await.unwrap();
    let beats = || cluster.desk.lock().nodes[&node].heartbeats;
    let before = beats();
    until("heartbeats go on", || beats() > before + 5).await;
    let link = cluster
        .server
        .exec(node, open("inst_a", &["echo", "hi"]))
        .await;
    assert_eq!(finish(link.unwrap()).await.0, b"hi\n");
    // Nothing was dropped either.
    let (output, _, exit) = finish(stuck).await;
    assert_eq!(output.len(), size);
    assert_eq!(exit.of, Some(Of::ExitCode(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_run_is_said_at_once() {
    let (cluster, sim, node) = running().await;
    let refused = cluster.server.exec(node, open("inst_b", &["echo"])).await;
    let code = "instance_not_running".to_owned();
    assert_eq!(refused.unwrap_err(), ExecError::Refused { node, code });
    let nobody = NodeId::generate();
    let refused = cluster.server.exec(nobody, open("inst_a", &["echo"])).await;
    let gone = ExecError::Disconnected { node: nobody };
    assert_eq!(refused.unwrap_err(), gone);
    drop(sim);
    until("it is gone", || cluster.server.connected().is_empty()).await;
    let refused = cluster.server.exec(node, open("inst_a", &["echo"])).await;
    assert_eq!(refused.unwrap_err(), ExecError::Disconnected { node });
}

/// Attaches to a session as a member.
async fn attach(
    cluster: &Cluster,
    member: &Member,
    session_id: &str,
) -> Result<
    (
        mpsc::Sender<v1::ExecFromNode>,
        tonic::Streaming<v1::ExecToNode>,
    ),
    tonic::Status,
> {
    let (frames, receiver) = mpsc::channel(8);
    let attach = Frame::Attach(v1::ExecAttach {
        node_id: member.node.to_string(),
        session_id: session_id.to_owned(),
    });
    let frame = v1::ExecFromNode {
        frame: Some(attach),
    };
    frames.send(frame).await.unwrap();
    let mut client = cluster.client(member).await;
    let input = client.exec_attach(streaming(receiver)).await?;
    Ok((frames, input.into_inner()))
}

/// A session is the node's that was told of it, and only once.
#[tokio::test(flavor = "multi_thread")]
async fn no_other_node_gets_hold_of_a_session() {
    let cluster = Cluster::start().await;
    let (own, other) = (cluster.member(), cluster.member());
    let mut session = cluster.session(&own).await;
    let opening = open("inst_a", &["cat"]);
    let id = opening.session_id.clone();
    let (server, node) = (cluster.server.clone(), own.node);
    let link = tokio::spawn(async move { server.exec(node, opening).await });
    assert!(matches!(session.next().await.unwrap(), Told::ExecOpen(_)));
    let refused = attach(&cluster, &other, &id).await.unwrap_err();
    assert_eq!(code_of(&refused), Some("not_found"));
    let (frames, mut input) = attach(&cluster, &own, &id).await.unwrap();
    let mut link = link.await.unwrap().unwrap();
    let refused = attach(&cluster, &own, &id).await.unwrap_err();
    assert_eq!(
        code_of(&refused),
        Some("not_found"),
        "it is attached already"
    );
    type_in(&link, Input::Stdin(b"secret".to_vec())).await;
    let typed = input.message().await.unwrap().unwrap().frame;
    assert_eq!(typed, Some(Input::Stdin(b"secret".to_vec())));
    // A piece that is larger than pieces are ends it.
    let frame = Some(Frame::Stdout(vec![0; MAX_EXEC_FRAME + 1]));
    frames.send(v1::ExecFromNode { frame }).await.unwrap();
    assert!(link.from_node.recv().await.is_none());
}

/// The command hears that its reader left, although it says nothing itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_ends_the_stream() {
    let cluster = Cluster::start().await;
    let member = cluster.member();
    let mut session = cluster.session(&member).await;
    let opening = open("inst_a", &["sleep", "3600"]);
    let id = opening.session_id.clone();
    let (server, node) = (cluster.server.clone(), member.node);
    let link = tokio::spawn(async move { server.exec(node, opening).await });
    assert!(matches!(session.next().await.unwrap(), Told::ExecOpen(_)));
    let (_frames, mut input) = attach(&cluster, &member, &id).await.unwrap();
    let link = link.await.unwrap().unwrap();
    drop(link);
    let ended = tokio::time::timeout(LONG, input.message()).await.unwrap();
    assert!(matches!(ended, Ok(None) | Err(_)));
}
