//! Clients whose connection breaks, and who come back or do not.

use super::super::rejoin::HELD;
use super::*;

/// A session whose client may come back, and its first connection.
struct Lasting {
    joined: Joined,
    pass: Arc<Pass>,
    clients: mpsc::Sender<DuplexStream>,
}

async fn lasting() -> Lasting {
    let (ours, theirs) = tokio::io::duplex(1024);
    let (to_node, at_node) = mpsc::channel(4);
    let (from_node, receiver) = mpsc::channel(4);
    let (revoke, revoked) = watch::channel(false);
    let link = ExecLink {
        to_node,
        from_node: receiver,
        tells_started: true,
    };
    let terms = Terms {
        session: "exec_1".to_owned(),
        longest: HOUR,
        tty: true,
    };
    let (clients, came) = mpsc::channel(1);
    let pass = Arc::new(Pass::default());
    let rejoin = Rejoin {
        pass: Arc::clone(&pass),
        clients: came,
    };
    let gateway = tokio::spawn(carry(ours, link, terms, revoked, Some(rejoin)));
    from_node
        .send(Frame::Started(v1::ExecStarted { pid: 42 }))
        .await
        .unwrap();
    Lasting {
        joined: Joined {
            client: WebSocketStream::from_raw_socket(theirs, Role::Client, None).await,
            at_node,
            from_node,
            revoke,
            gateway,
        },
        pass,
        clients,
    }
}

impl Lasting {
    /// The token that `ready` brings.
    async fn token(&mut self) -> String {
        let Word::Ready {
            pid, resume_token, ..
        } = self.joined.word().await
        else {
            panic!("it is not ready");
        };
        assert_eq!(pid, Some(42));
        resume_token.unwrap()
    }

    /// Breaks the connection, as a network does.
    async fn breaks(&mut self) {
        let (_, nowhere) = tokio::io::duplex(1);
        self.joined.client = WebSocketStream::from_raw_socket(nowhere, Role::Client, None).await;
    }

    /// Comes back with a token, and says how far the output came.
    async fn comes_back(&mut self, token: &str, place: u64) {
        // Time only goes on when all that was said has been taken.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let (kind, hash) = crate::credential::recognise(token).unwrap();
        assert_eq!(kind, crate::credential::CredentialKind::Resume);
        assert!(self.pass.redeem(hash), "the token is not good");
        let (ours, theirs) = tokio::io::duplex(1024);
        self.clients.send(ours).await.unwrap();
        self.joined.client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        self.had(place).await;
    }

    async fn had(&mut self, place: u64) {
        let ack = format!(r#"{{"type":"ack","out_offset":{place}}}"#);
        self.joined.say(kind::CONTROL, ack.as_bytes()).await;
    }

    async fn says(&mut self, bytes: &[u8]) {
        let frame = Frame::Stdout(bytes.to_vec());
        self.joined.from_node.send(frame).await.unwrap();
    }

    /// What comes again, and where it is in all of the output.
    async fn again(&mut self) -> (u64, Vec<u8>) {
        let (kind, bytes) = self.joined.client_hears().await;
        assert_eq!(kind, kind::REPLAY);
        let (place, bytes) = bytes.split_first_chunk().unwrap();
        (u64::from_be_bytes(*place), bytes.to_vec())
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_hears_exactly_what_was_missed() {
    let mut lasting = lasting().await;
    let token = lasting.token().await;
    lasting.says(b"one two ").await;
    assert_eq!(lasting.joined.client_hears().await.1, b"one two ");
    lasting.breaks().await;
    lasting.says(b"three ").await;
    tokio::time::sleep(WAITS / 2).await;
    lasting.says(b"four ").await;
    assert!(!lasting.joined.gateway.is_finished());
    // Only the first word is known to have come.
    lasting.comes_back(&token, 4).await;
    let next = lasting.token().await;
    assert_ne!(next, token);
    let mut heard = Vec::new();
    while heard.len() < 15 {
        let (place, bytes) = lasting.again().await;
        assert_eq!(place, 4 + heard.len() as u64);
        heard.extend(bytes);
    }
    assert_eq!(heard, b"two three four ");
    // From there on all is as it was, input included.
    lasting.says(b"five").await;
    let live = (kind::STDOUT, b"five".to_vec());
    assert_eq!(lasting.joined.client_hears().await, live);
    lasting.joined.say(kind::STDIN, b"x").await;
    let typed = Some(ToNode::Stdin(b"x".to_vec()));
    assert_eq!(lasting.joined.node_hears().await, typed);
    // As often as it breaks.
    lasting.breaks().await;
    lasting.comes_back(&next, 23).await;
    lasting.token().await;
    lasting.joined.node_exits(3).await;
    assert_eq!(lasting.joined.client_hears().await.0, kind::EXIT);
    lasting.joined.client.close(None).await.unwrap();
    let ended = lasting.joined.gateway.await.unwrap();
    assert_eq!((ended.exit_code, ended.reason), (Some(3), "exited"));
    // Nothing is counted twice.
    assert_eq!((ended.bytes_in, ended.bytes_out), (1, 23));
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_client_stays_away_is_told_after_half_a_minute() {
    let mut lasting = lasting().await;
    let token = lasting.token().await;
    lasting.breaks().await;
    let start = Instant::now();
    let mut heard = Vec::new();
    while let Some(ToNode::Signal(signal)) = lasting.joined.node_hears().await {
        heard.push((signal, start.elapsed().as_secs()));
        let hash = crate::credential::recognise(&token).unwrap().1;
        assert!(!lasting.pass.redeem(hash), "its time is over");
    }
    let signal = |name: &str, at| (name.to_owned(), at);
    assert_eq!(
        heard,
        [signal("HUP", 30), signal("TERM", 35), signal("KILL", 60)]
    );
    let ended = lasting.joined.gateway.await.unwrap();
    assert_eq!(ended.reason, "client_disconnect");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_good_bye_is_not_waited_for() {
    let mut lasting = lasting().await;
    lasting.token().await;
    let start = Instant::now();
    let frame = CloseFrame {
        code: CloseCode::Normal,
        reason: "".into(),
    };
    lasting.joined.client.close(Some(frame)).await.unwrap();
    let hup = Some(ToNode::Signal("HUP".to_owned()));
    assert_eq!(lasting.joined.node_hears().await, hup);
    assert_eq!(start.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_nobody_heard_is_told_to_who_comes_back() {
    let mut lasting = lasting().await;
    let token = lasting.token().await;
    lasting.breaks().await;
    lasting.says(b"last words").await;
    lasting.joined.node_exits(9).await;
    tokio::time::sleep(WAITS / 2).await;
    assert!(!lasting.joined.gateway.is_finished());
    lasting.comes_back(&token, 0).await;
    lasting.token().await;
    assert_eq!(lasting.again().await, (0, b"last words".to_vec()));
    let (last, exit) = lasting.joined.client_hears().await;
    assert_eq!(last, kind::EXIT);
    let exit: Exit = serde_json::from_slice(&exit).unwrap();
    assert_eq!(exit.exit_code, Some(9));
    // Or is recorded when nobody does.
    lasting.breaks().await;
    let ended = lasting.joined.gateway.await.unwrap();
    assert_eq!((ended.exit_code, ended.reason), (Some(9), "exited"));
}

/// What is sent into a network that leads nowhere was not heard, and only
/// silence tells.
#[tokio::test(start_paused = true)]
async fn an_end_that_was_sent_into_silence_is_told_to_who_comes_back() {
    let mut lasting = lasting().await;
    let token = lasting.token().await;
    // The connection is not closed, and nobody reads what goes into it.
    let (_far, nowhere) = tokio::io::duplex(1);
    let nowhere = WebSocketStream::from_raw_socket(nowhere, Role::Client, None).await;
    let silent = std::mem::replace(&mut lasting.joined.client, nowhere);
    lasting.says(b"last words").await;
    lasting.joined.node_exits(9).await;
    // As long as a client takes to see it.
    tokio::time::sleep(SILENCE).await;
    assert!(!lasting.joined.gateway.is_finished());
    lasting.comes_back(&token, 0).await;
    lasting.token().await;
    assert_eq!(lasting.again().await, (0, b"last words".to_vec()));
    let (last, exit) = lasting.joined.client_hears().await;
    assert_eq!(last, kind::EXIT);
    let exit: Exit = serde_json::from_slice(&exit).unwrap();
    assert_eq!(exit.exit_code, Some(9));
    // The control: a good-bye is an answer, and nobody is waited for.
    let start = Instant::now();
    lasting.joined.client.close(None).await.unwrap();
    let ended = lasting.joined.gateway.await.unwrap();
    assert_eq!((ended.exit_code, ended.reason), (Some(9), "exited"));
    assert_eq!(start.elapsed().as_secs(), 0);
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn what_no_longer_fits_is_a_gap_that_is_told() {
    let mut lasting = lasting().await;
    let token = lasting.token().await;
    // A client that never says how far it is, and reads all.
    let piece = vec![b'x'; 64 << 10];
    for _ in 0..20 {
        lasting.says(&piece).await;
        assert_eq!(lasting.joined.client_hears().await.1.len(), piece.len());
    }
    lasting.breaks().await;
    lasting.comes_back(&token, 0).await;
    lasting.token().await;
    let code = "output_gap".to_owned();
    assert_eq!(lasting.joined.word().await, Word::Warning { code });
    let (mut place, total) = (0, 20 * piece.len() as u64);
    while place < total {
        let (at, bytes) = lasting.again().await;
        let expected = if place == 0 {
            total - HELD as u64
        } else {
            place
        };
        assert_eq!(at, expected);
        place = at + bytes.len() as u64;
    }
    assert_eq!(place, total);
    // Where there is no gap, none is told: the control.
    let mut lasting = self::lasting().await;
    let token = lasting.token().await;
    lasting.says(&piece).await;
    lasting.joined.client_hears().await;
    lasting.breaks().await;
    lasting.comes_back(&token, 0).await;
    lasting.token().await;
    assert_eq!(lasting.joined.client_hears_all().await.0, kind::REPLAY);
}

#[tokio::test(start_paused = true)]
async fn a_command_waits_when_nobody_can_hold_more_of_what_it_says() {
    let mut lasting = lasting().await;
    let token = lasting.token().await;
    lasting.breaks().await;
    let piece = Frame::Stdout(vec![b'x'; 64 << 10]);
    let mut said = 0;
    let patience = Duration::from_secs(5);
    while timeout(patience, lasting.joined.from_node.send(piece.clone()))
        .await
        .is_ok()
    {
        said += 64 << 10;
        assert!(said < 2 * HELD, "it must not be kept without bounds");
    }
    assert!(said >= HELD);
    lasting.comes_back(&token, 0).await;
    lasting.token().await;
    let mut heard = 0;
    while heard < said {
        let (kind, bytes) = lasting.joined.client_hears().await;
        heard += match kind {
            kind::REPLAY => bytes.len() - 8,
            _ => bytes.len(),
        };
        lasting.had(heard as u64).await;
    }
    assert_eq!(heard, said, "nothing is lost");
}

/// A command that reads nothing holds up what its client says, also how far
/// it is; that must not hold up the command in turn.
#[tokio::test(start_paused = true)]
async fn input_that_waits_does_not_keep_output_back() {
    let mut lasting = lasting().await;
    lasting.token().await;
    lasting.had(0).await;
    // The node takes four and the gateway holds one.
    for _ in 0..5 {
        lasting.joined.say(kind::STDIN, b"x").await;
    }
    let piece = vec![b'x'; 64 << 10];
    for _ in 0..40 {
        lasting.says(&piece).await;
        assert_eq!(lasting.joined.client_hears().await.1.len(), piece.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_may_come_back_before_its_loss_is_seen() {
    let mut lasting = lasting().await;
    let token = lasting.token().await;
    lasting.says(b"early").await;
    assert_eq!(lasting.joined.client_hears().await.1, b"early");
    // The connection before is not closed: it only leads nowhere.
    let (_far, nowhere) = tokio::io::duplex(1);
    let nowhere = WebSocketStream::from_raw_socket(nowhere, Role::Client, None).await;
    let silent = std::mem::replace(&mut lasting.joined.client, nowhere);
    lasting.comes_back(&token, 5).await;
    lasting.token().await;
    lasting.says(b"late").await;
    assert_eq!(lasting.joined.client_hears().await.1, b"late");
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn who_says_to_have_what_never_was_is_cut_off() {
    let mut lasting = lasting().await;
    lasting.token().await;
    lasting.had(1).await;
    let hup = Some(ToNode::Signal("HUP".to_owned()));
    assert_eq!(lasting.joined.node_hears().await, hup);
}

#[tokio::test(start_paused = true)]
async fn a_session_without_a_client_can_be_revoked() {
    let mut lasting = lasting().await;
    lasting.token().await;
    lasting.breaks().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    lasting.joined.revoke.send(true).unwrap();
    let killed = Some(ToNode::Signal("KILL".to_owned()));
    assert_eq!(lasting.joined.node_hears().await, killed);
    lasting.joined.node_exits(137).await;
    let ended = lasting.joined.gateway.await.unwrap();
    assert_eq!(ended.reason, "operator_revoked");
}
