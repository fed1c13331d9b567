//! A client, a gateway and a node's end, joined in memory.

mod coming_back;

use tokio::io::DuplexStream;
use tokio::task::JoinHandle;

use super::*;

/// The two ends that a gateway joins, and the gateway.
struct Joined {
    client: WebSocketStream<DuplexStream>,
    at_node: mpsc::Receiver<v1::ExecToNode>,
    from_node: mpsc::Sender<Frame>,
    revoke: watch::Sender<bool>,
    gateway: JoinHandle<Ended>,
}

async fn join(longest: Duration) -> Joined {
    join_with(longest, false).await
}

async fn join_with(longest: Duration, tty: bool) -> Joined {
    let (ours, theirs) = tokio::io::duplex(1024);
    let (to_node, at_node) = mpsc::channel(4);
    let (from_node, receiver) = mpsc::channel(4);
    let (revoke, revoked) = watch::channel(false);
    let link = ExecLink {
        to_node,
        from_node: receiver,
        tells_started: false,
    };
    let terms = Terms {
        session: "exec_1".to_owned(),
        longest,
        tty,
    };
    let gateway = tokio::spawn(carry(ours, link, terms, revoked, None));
    Joined {
        client: WebSocketStream::from_raw_socket(theirs, Role::Client, None).await,
        at_node,
        from_node,
        revoke,
        gateway,
    }
}

impl Joined {
    async fn say(&mut self, kind: u8, bytes: &[u8]) {
        let message = [&[kind], bytes].concat();
        self.client
            .send(Message::Binary(message.into()))
            .await
            .unwrap();
    }

    async fn node_hears(&mut self) -> Option<ToNode> {
        let heard = timeout(Duration::from_secs(90), self.at_node.recv()).await;
        heard.unwrap().and_then(|message| message.frame)
    }

    /// What the command says, and its exit.
    async fn client_hears(&mut self) -> (u8, Vec<u8>) {
        loop {
            let (kind, bytes) = self.client_hears_all().await;
            if kind != kind::CONTROL {
                return (kind, bytes);
            }
        }
    }

    /// What the server says beside it.
    async fn word(&mut self) -> Word {
        let (kind, text) = self.client_hears_all().await;
        assert_eq!(kind, kind::CONTROL);
        serde_json::from_slice(&text).unwrap()
    }

    /// With which code the server hangs up.
    async fn closed_with(&mut self) -> u16 {
        loop {
            match self.client.next().await.unwrap().unwrap() {
                Message::Close(frame) => return frame.unwrap().code.into(),
                Message::Binary(_) | Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn client_hears_all(&mut self) -> (u8, Vec<u8>) {
        loop {
            match self.client.next().await.unwrap().unwrap() {
                Message::Binary(bytes) => {
                    let (kind, rest) = bytes.split_first().unwrap();
                    return (*kind, rest.to_vec());
                }
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn node_exits(&self, code: i32) {
        let of = Some(v1::exec_exit::Of::ExitCode(code));
        let reason = "exited".to_owned();
        let exit = Frame::Exit(v1::ExecExit { of, reason });
        self.from_node.send(exit).await.unwrap();
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn bytes_go_both_ways_and_the_exit_comes_last() {
    let mut joined = join(HOUR).await;
    joined.say(kind::STDIN, b"hello").await;
    assert_eq!(
        joined.node_hears().await,
        Some(ToNode::Stdin(b"hello".to_vec()))
    );
    joined
        .say(kind::CONTROL, br#"{"type":"resize","cols":80,"rows":24}"#)
        .await;
    let size = v1::Terminal { cols: 80, rows: 24 };
    assert_eq!(joined.node_hears().await, Some(ToNode::Resize(size)));
    joined
        .say(kind::CONTROL, br#"{"type":"signal","signal":"INT"}"#)
        .await;
    assert_eq!(
        joined.node_hears().await,
        Some(ToNode::Signal("INT".to_owned()))
    );
    joined.say(kind::CONTROL, br#"{"type":"close"}"#).await;
    assert!(matches!(
        joined.node_hears().await,
        Some(ToNode::StdinEnd(_))
    ));
    let out = Frame::Stdout(b"out".to_vec());
    let err = Frame::Stderr(b"err".to_vec());
    joined.from_node.send(out).await.unwrap();
    joined.from_node.send(err).await.unwrap();
    joined.node_exits(3).await;
    assert_eq!(joined.client_hears().await, (kind::STDOUT, b"out".to_vec()));
    assert_eq!(joined.client_hears().await, (kind::STDERR, b"err".to_vec()));
    let (last, exit) = joined.client_hears().await;
    assert_eq!(last, kind::EXIT);
    let exit: Exit = serde_json::from_slice(&exit).unwrap();
    assert_eq!((exit.exit_code, exit.reason.as_str()), (Some(3), "exited"));
    // It waits for the client's good-bye: who hangs up first may take back
    // what it said last.
    tokio::task::yield_now().await;
    assert!(!joined.gateway.is_finished());
    joined.client.close(None).await.unwrap();
    let ended = joined.gateway.await.unwrap();
    let expected = Ended {
        exit_code: Some(3),
        reason: "exited",
        bytes_in: 5,
        bytes_out: 6,
    };
    assert_eq!(ended, expected);
}

/// Time is the test's: the waits are minutes for the command, not for us.
#[tokio::test(start_paused = true)]
async fn a_command_whose_client_is_gone_is_told_ever_more_plainly() {
    let mut joined = join(HOUR).await;
    joined.client.close(None).await.unwrap();
    let start = Instant::now();
    let mut heard = Vec::new();
    while let Some(ToNode::Signal(signal)) = joined.node_hears().await {
        heard.push((signal, start.elapsed().as_secs()));
    }
    let signal = |name: &str, at| (name.to_owned(), at);
    assert_eq!(
        heard,
        [signal("HUP", 0), signal("TERM", 5), signal("KILL", 30)]
    );
    let ended = joined.gateway.await.unwrap();
    assert_eq!(ended.reason, "client_disconnect");
}

#[tokio::test(start_paused = true)]
async fn a_command_that_goes_at_the_first_word_is_not_killed() {
    let mut joined = join(HOUR).await;
    joined.client.close(None).await.unwrap();
    assert_eq!(
        joined.node_hears().await,
        Some(ToNode::Signal("HUP".to_owned()))
    );
    joined.node_exits(129).await;
    assert_eq!(joined.node_hears().await, None);
    assert_eq!(joined.gateway.await.unwrap().exit_code, Some(129));
}

/// A client that is cut off says nothing; only silence tells.
#[tokio::test(start_paused = true)]
async fn a_client_that_answers_no_ping_is_gone() {
    let mut joined = join(HOUR).await;
    let start = Instant::now();
    // It is never read from, so it answers nothing.
    assert_eq!(
        joined.node_hears().await,
        Some(ToNode::Signal("HUP".to_owned()))
    );
    assert_eq!(start.elapsed(), SILENCE);
    joined.node_exits(0).await;
    joined.gateway.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_stays_however_silent() {
    let mut joined = join(HOUR).await;
    assert!(matches!(joined.word().await, Word::Ready { .. }));
    let reading = timeout(Duration::from_secs(600), joined.client.next());
    // A ping comes at once and every while; reading answers it.
    let (mut pings, mut reading) = (0, Some(reading.await));
    while let Some(Ok(Some(Ok(Message::Ping(_))))) = reading.take() {
        pings += 1;
        if pings < 30 {
            reading = Some(timeout(Duration::from_secs(600), joined.client.next()).await);
        }
    }
    assert_eq!(pings, 30);
    assert!(!joined.gateway.is_finished());
    joined.node_exits(0).await;
    assert_eq!(joined.client_hears().await.0, kind::EXIT);
}

#[tokio::test(start_paused = true)]
async fn whoever_may_revokes_it_and_time_runs_out() {
    for (reason, longest) in [
        ("operator_revoked", HOUR),
        ("timeout", Duration::from_secs(30)),
    ] {
        let mut joined = join(longest).await;
        if reason == "operator_revoked" {
            joined.revoke.send(true).unwrap();
        }
        assert_eq!(
            joined.node_hears().await,
            Some(ToNode::Signal("KILL".to_owned()))
        );
        joined.node_exits(137).await;
        let (last, exit) = joined.client_hears().await;
        assert_eq!(last, kind::EXIT);
        let exit: Exit = serde_json::from_slice(&exit).unwrap();
        assert_eq!(exit.reason, reason);
        let code = if reason == "timeout" { 4408 } else { 4403 };
        assert_eq!(joined.closed_with().await, code);
        assert_eq!(joined.gateway.await.unwrap().reason, reason);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_lost_is_told_to_the_client() {
    let mut joined = join(HOUR).await;
    joined.from_node = mpsc::channel(1).0;
    let (last, exit) = joined.client_hears().await;
    assert_eq!(last, kind::EXIT);
    let exit: Exit = serde_json::from_slice(&exit).unwrap();
    assert_eq!(exit.reason, "instance_gone");
    assert_eq!(joined.closed_with().await, 4409);
    assert_eq!(joined.gateway.await.unwrap().reason, "instance_gone");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_message_of_ours_ends_it() {
    let oversized = vec![kind::STDIN; MAX_EXEC_FRAME + 2];
    let long = [&[kind::CONTROL], [b' '; MAX_CONTROL + 1].as_slice()].concat();
    for message in [
        Message::Text("hello".into()),
        Message::Binary(Vec::new().into()),
        Message::Binary(vec![0x7f].into()),
        Message::Binary(vec![kind::STDOUT, 1].into()),
        Message::Binary(b"\x10{\"type\":\"fly\"}".to_vec().into()),
        Message::Binary(
            b"\x10{\"type\":\"signal\",\"signal\":\"STOP\"}"
                .to_vec()
                .into(),
        ),
        Message::Binary(
            b"\x10{\"type\":\"resize\",\"cols\":0,\"rows\":9}"
                .to_vec()
                .into(),
        ),
        Message::Binary(
            b"\x10{\"type\":\"resize\",\"cols\":80,\"rows\":1001}"
                .to_vec()
                .into(),
        ),
        Message::Binary(long.into()),
        Message::Binary(oversized.into()),
    ] {
        let mut joined = join(HOUR).await;
        // The gateway may end it while the rest is still on its way.
        let heard = {
            let sending = joined.client.send(message.clone());
            let sent = async { drop(sending.await) };
            tokio::select! {
                heard = joined.at_node.recv() => heard,
                heard = async { sent.await; std::future::pending().await } => heard,
            }
        };
        let hup = Some(ToNode::Signal("HUP".to_owned()));
        assert_eq!(heard.and_then(|heard| heard.frame), hup, "{message:?}");
        joined.node_exits(0).await;
        joined.gateway.await.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_the_command_up_and_no_more() {
    let mut joined = join(HOUR).await;
    let piece = || Frame::Stdout(vec![b'x'; 16 << 10]);
    let mut taken = 0;
    let patience = Duration::from_millis(500);
    while let Ok(sent) = timeout(patience, joined.from_node.send(piece())).await {
        sent.unwrap();
        taken += 1;
        assert!(taken < 100, "it must not be kept for the client");
    }
    // Once it reads, everything comes.
    for _ in 0..taken {
        assert_eq!(joined.client_hears().await.1.len(), 16 << 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_hears_that_it_is_ready_and_when_its_time_is_nearly_over() {
    let mut joined = join(Duration::from_secs(100)).await;
    let start = Instant::now();
    let ready = Word::Ready {
        session_id: "exec_1".to_owned(),
        pid: None,
        resume_token: None,
    };
    assert_eq!(joined.word().await, ready);
    let code = "ends_soon".to_owned();
    assert_eq!(joined.word().await, Word::Warning { code });
    assert_eq!(start.elapsed().as_secs(), 40);
    joined.node_exits(0).await;
    assert_eq!(joined.client_hears().await.0, kind::EXIT);
    assert_eq!(joined.closed_with().await, 1000);
}

#[tokio::test(start_paused = true)]
async fn a_terminal_that_nobody_uses_is_left_and_a_pipe_is_not() {
    for tty in [true, false] {
        let Joined {
            mut client,
            mut at_node,
            from_node,
            revoke: _revoke,
            gateway: _gateway,
        } = join_with(2 * HOUR, tty).await;
        // Somebody is there, and types nothing.
        tokio::spawn(async move { while client.next().await.is_some_and(|it| it.is_ok()) {} });
        let start = Instant::now();
        // Half an hour begins with the last byte.
        tokio::time::sleep(IDLE / 2).await;
        let out = Frame::Stdout(b"out".to_vec());
        from_node.send(out).await.unwrap();
        tokio::select! {
            heard = at_node.recv() => {
                let killed = Some(ToNode::Signal("KILL".to_owned()));
                assert_eq!(heard.unwrap().frame, killed);
                assert!(tty, "a pipe was left");
                assert!(start.elapsed() >= IDLE + IDLE / 2);
            }
            () = tokio::time::sleep(HOUR) => assert!(!tty, "it was never left"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_terminal_is_resized_so_often_and_no_more() {
    let mut joined = join(HOUR).await;
    let start = Instant::now();
    for cols in 1..=70 {
        let size = format!(r#"{{"type":"resize","cols":{cols},"rows":24}}"#);
        joined.say(kind::CONTROL, size.as_bytes()).await;
        let heard = joined.node_hears().await;
        assert_eq!(heard, Some(ToNode::Resize(v1::Terminal { cols, rows: 24 })));
    }
    assert_eq!(start.elapsed().as_secs(), 2, "30 in each second");
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name: hyper::header::HeaderName = name.parse().unwrap();
        headers.append(name, value.parse().unwrap());
    }
    headers
}

const ASKS: [(&str, &str); 5] = [
    ("upgrade", "WebSocket"),
    ("connection", "keep-alive, Upgrade"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    (
        "sec-websocket-protocol",
        "fluffy.exec.v1, bearer.flf_ex_abc",
    ),
];

#[test]
fn a_handshake_is_read_and_answered() {
    let handshake = Handshake::read(&headers(&ASKS)).unwrap();
    assert_eq!(handshake.token.as_deref(), Some("flf_ex_abc"));
    // The example of RFC 6455, section 1.3.
    let accept = &handshake.answer["sec-websocket-accept"];
    assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(handshake.answer["sec-websocket-protocol"], PROTOCOL);
    let mut bearer = ASKS;
    bearer[4] = ("sec-websocket-protocol", "fluffy.exec.v1");
    let mut bearer = headers(&bearer);
    bearer.insert(AUTHORIZATION, HeaderValue::from_static("Bearer flf_ex_xyz"));
    let handshake = Handshake::read(&bearer).unwrap();
    assert_eq!(handshake.token.as_deref(), Some("flf_ex_xyz"));
}

#[test]
fn what_is_no_handshake_is_refused() {
    for missing in 0..ASKS.len() {
        let mut asks = ASKS.to_vec();
        asks.remove(missing);
        assert!(Handshake::read(&headers(&asks)).is_err(), "{missing}");
    }
    for (place, value) in [(2, "8"), (3, "c2hvcnQ="), (4, "chat")] {
        let mut asks = ASKS;
        asks[place].1 = value;
        assert!(Handshake::read(&headers(&asks)).is_err(), "{value}");
    }
}
