//! Commands in real instances, by people who do not behave: tokens that are
//! not theirs, a flood of input, output that nobody reads, a line that breaks.

use std::fs;
use std::io::{BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, Client, Target};
use fluffy_test_kit::{campaign, wait_for};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::lived::{LONG, Lived, processes};

const MANIFEST: &str = r#"schema_version = "v1"
[app]
name = "hello"
[image]
ref = "oci:image"
[deploy]
min_ready_seconds = 0
[processes.web]
command = ["/bin/sh", "-c", "trap '' TERM; while true; do sleep 1; done"]
replicas = 5
resources = { memory = "64MiB" }
[processes.web.stop]
grace_seconds = 15
"#;

const ENV: [&str; 3] = ["local", "hello", "dev"];

/// A line to a session that is always listened to, so that a server's question
/// whether anybody is there is answered while the test looks elsewhere.
#[derive(Debug)]
struct Socket {
    said: UnboundedSender<Message>,
    heard: UnboundedReceiver<Message>,
}

impl Socket {
    fn attend(mut line: WebSocketStream<UnixStream>) -> Self {
        let (said, mut to_say) = unbounded_channel();
        let (hearing, heard) = unbounded_channel();
        tokio::spawn(async move {
            loop {
                let goes_on = tokio::select! {
                    heard = line.next() => match heard {
                        Some(Ok(message)) => hearing.send(message).is_ok(),
                        _ => false,
                    },
                    said = to_say.recv() => match said {
                        Some(message) => line.send(message).await.is_ok(),
                        None => false,
                    },
                };
                if !goes_on {
                    break;
                }
            }
        });
        Self { said, heard }
    }
}

/// A session that was granted.
#[derive(Debug, Clone)]
struct Session {
    id: String,
    token: String,
}

/// Somebody who speaks to the platform as any program may.
struct Stranger<'a> {
    lived: &'a Lived,
    runtime: Runtime,
}

impl<'a> Stranger<'a> {
    fn new(lived: &'a Lived) -> Self {
        Self {
            lived,
            runtime: Runtime::new().unwrap(),
        }
    }

    fn client(&self) -> Client {
        let socket = Target::Socket(self.lived.folder().join("api.sock"));
        self.runtime.block_on(Client::connect(socket)).unwrap()
    }

    /// Asks for a session.
    fn ask(&self, instance: &str, script: &str, seconds: u32) -> Result<Session, (u16, String)> {
        let path = [ENV[0], ENV[1], ENV[2], instance];
        let body = json!({
            "command": ["/bin/sh", "-c", script], "stdin": true, "token_seconds": seconds,
        });
        let ask = Ask::new(Operation::CreateExec, &path).body(&body);
        let text = |value: &Value, name: &str| value[name].as_str().unwrap().to_owned();
        match self.runtime.block_on(self.client().call(ask)) {
            Ok(answer) => Ok(Session {
                id: text(&answer.value, "id"),
                token: text(&answer.value, "token"),
            }),
            Err(CallError::Refused(problem)) => Err((problem.status, problem.code.clone())),
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Asks for a session at a terminal whose client may come back, and opens
    /// it; with what lets it in again, and its process.
    fn open_lasting(&self, instance: &str, script: &str) -> (Session, Socket, String, u64) {
        let path = [ENV[0], ENV[1], ENV[2], instance];
        let body = json!({
            "command": ["/bin/sh", "-c", script], "stdin": true, "tty": true, "resume": true,
        });
        let ask = Ask::new(Operation::CreateExec, &path).body(&body);
        let answer = self.runtime.block_on(self.client().call(ask)).unwrap();
        let text = |name: &str| answer.value[name].as_str().unwrap().to_owned();
        let session = Session {
            id: text("id"),
            token: text("token"),
        };
        let mut socket = self.connect(&session.id, &session.token).unwrap();
        let ready = self.word(&mut socket);
        let token = ready["resume_token"].as_str().unwrap().to_owned();
        (session, socket, token, ready["pid"].as_u64().unwrap())
    }

    /// Says how much of the output came.
    fn has(&self, socket: &mut Socket, place: u64) {
        let ack = json!({"type": "ack", "out_offset": place}).to_string();
        let said = [&[0x10], ack.as_bytes()].concat();
        socket.said.send(Message::Binary(said.into())).unwrap();
    }

    /// The next word of the server about the session.
    fn word(&self, socket: &mut Socket) -> Value {
        let listen = async {
            loop {
                match socket.heard.recv().await {
                    Some(Message::Binary(bytes)) if bytes.first() == Some(&0x10) => {
                        return serde_json::from_slice(&bytes[1..]).unwrap();
                    }
                    Some(_) => {}
                    None => panic!("it ended"),
                }
            }
        };
        let listened = async { tokio::time::timeout(LONG, listen).await };
        self.runtime.block_on(listened).unwrap()
    }

    /// Opens the WebSocket of a session; the status of a refusal.
    fn connect(&self, session: &str, token: &str) -> Result<Socket, u16> {
        let socket = self.lived.folder().join("api.sock");
        let path = Operation::ConnectExec
            .path_with(&[ENV[0], session])
            .unwrap();
        let key = STANDARD.encode([7; 16]);
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n\
             upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\
             sec-websocket-protocol: fluffy.exec.v1\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        self.runtime.block_on(async {
            let mut stream = UnixStream::connect(socket).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            match head.split(' ').nth(1).unwrap().parse().unwrap() {
                101 => {
                    let line = WebSocketStream::from_raw_socket(stream, Role::Client, None);
                    Ok(Socket::attend(line.await))
                }
                status => Err(status),
            }
        })
    }

    fn open(&self, instance: &str, script: &str) -> (Session, Socket) {
        let session = self.ask(instance, script, 60).unwrap();
        let socket = self.connect(&session.id, &session.token).unwrap();
        (session, socket)
    }

    /// Reads until this was said.
    fn hears(&self, socket: &mut Socket, wanted: &str) {
        let mut heard = String::new();
        let listen = async {
            while !heard.contains(wanted) {
                match socket.heard.recv().await {
                    Some(Message::Binary(bytes)) if matches!(bytes.first(), Some(2 | 3)) => {
                        heard.push_str(&String::from_utf8_lossy(&bytes[1..]));
                    }
                    // Said again: behind its place in all of the output.
                    Some(Message::Binary(bytes)) if bytes.first() == Some(&0x12) => {
                        heard.push_str(&String::from_utf8_lossy(&bytes[9..]));
                    }
                    // What is about the session, not what it says.
                    Some(Message::Binary(bytes)) if bytes.first() == Some(&0x10) => {}
                    Some(Message::Ping(_) | Message::Pong(_)) => {}
                    other => panic!("{other:?} instead of `{wanted}` after `{heard}`"),
                }
            }
        };
        let listened = async { tokio::time::timeout(LONG, listen).await };
        self.runtime.block_on(listened).unwrap();
    }

    /// Reads to the end; how it ended.
    fn ends(&self, socket: &mut Socket) -> Value {
        let mut exit = Value::Null;
        let listen = async {
            while let Some(message) = socket.heard.recv().await {
                if let Message::Binary(bytes) = message
                    && bytes.first() == Some(&0x11)
                {
                    exit = serde_json::from_slice(&bytes[1..]).unwrap();
                }
            }
        };
        let listened = async { tokio::time::timeout(LONG, listen).await };
        self.runtime.block_on(listened).unwrap();
        exit
    }

    fn types(&self, socket: &mut Socket, line: &str) {
        let typed = [&[1], line.as_bytes()].concat();
        socket.said.send(Message::Binary(typed.into())).unwrap();
    }

    /// What the ledger has of the end of a session, when it has.
    fn ended(&self, session: &Session) -> Value {
        wait_for("the session has ended", LONG, || {
            let line = [
                "events",
                "list",
                "--types",
                "exec_session.ended",
                "--limit",
                "200",
            ];
            let events = self.lived.site.json(0, &line);
            let items = events["items"].as_array().unwrap();
            let of = |event: &&Value| event["aggregate_id"] == session.id.as_str();
            items.iter().find(of).map(|event| event["payload"].clone())
        })
        .unwrap()
    }
}

/// Kibibytes that a process has in memory, at most so far.
fn peak(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

#[test]
fn tokens_and_sessions_of_real_instances_are_bounded() {
    let mut lived = Lived::start(MANIFEST);
    lived.site.succeeds(&["deploy"]);
    let instances = lived.ready(5);
    let stranger = Stranger::new(&lived);
    // Looked at again when its time is over.
    let late = stranger.ask(&instances[0], "true", 30).unwrap();

    let [one, two] = [0, 1].map(|at| stranger.ask(&instances[at], "cat; exit 7", 60).unwrap());
    for (session, token) in [
        (&one.id, two.token.as_str()),
        (&two.id, one.token.as_str()),
        (&one.id, "nonsense"),
    ] {
        assert_eq!(stranger.connect(session, token).unwrap_err(), 403);
    }
    let mut socket = stranger.connect(&one.id, &one.token).unwrap();
    assert_eq!(
        stranger.connect(&one.id, &one.token).unwrap_err(),
        403,
        "while it is in use"
    );
    stranger.types(&mut socket, "here\n");
    stranger.hears(&mut socket, "here\n");
    stranger.types(&mut socket, "");
    assert_eq!(stranger.ends(&mut socket)["exit_code"], 7);
    assert_eq!(
        stranger.connect(&one.id, &one.token).unwrap_err(),
        403,
        "when it is over"
    );
    // Nothing of it was used up by those who were refused.
    let mut socket = stranger.connect(&two.id, &two.token).unwrap();
    stranger.types(&mut socket, "");
    assert_eq!(stranger.ends(&mut socket)["exit_code"], 7);

    // Ten at once, two in each instance; the eleventh waits its turn. Only the
    // one whose token was never shown still counts.
    wait_for("the unused token is over", LONG, || {
        let line = [
            "events",
            "list",
            "--types",
            "exec_session.ended",
            "--limit",
            "200",
        ];
        let events = lived.site.json(0, &line);
        let mut items = events["items"].as_array().unwrap().iter();
        let is_it = |event: &Value| event["aggregate_id"] == late.id.as_str();
        items.any(is_it).then_some(())
    })
    .unwrap();
    assert_eq!(
        stranger.connect(&late.id, &late.token).unwrap_err(),
        403,
        "too late"
    );
    let mut open = Vec::new();
    for instance in instances.iter().chain(&instances) {
        open.push(stranger.open(instance, "echo in; cat; exit 3"));
    }
    let refused = stranger.ask(&instances[0], "true", 60).unwrap_err();
    assert_eq!(refused, (429, "exec_limit".to_owned()));
    for (number, (_, socket)) in open.iter_mut().enumerate() {
        stranger.types(socket, &format!("number {number}\n"));
    }
    for (number, (_, socket)) in open.iter_mut().enumerate() {
        stranger.hears(socket, &format!("number {number}\n"));
        stranger.types(socket, "");
        assert_eq!(stranger.ends(socket)["exit_code"], 3);
    }
    for (session, _) in &open {
        let end = stranger.ended(session);
        assert_eq!(
            (&end["exit_code"], &end["end_reason"]),
            (&json!(3), &json!("exited"))
        );
    }

    // An instance that goes takes no more, and ends what it has.
    let mut held: Vec<_> = instances
        .iter()
        .map(|instance| (instance, stranger.open(instance, "echo in; cat")))
        .collect();
    for (_, (_, socket)) in &mut held {
        stranger.hears(socket, "in\n");
    }
    lived.site.succeeds(&["scale", "web=1"]);
    let draining = wait_for("one goes", LONG, || {
        let all = lived.instances();
        let going = all
            .iter()
            .find(|it| it["observed"]["status"] == "draining")?;
        Some(going["id"].as_str().unwrap().to_owned())
    })
    .unwrap();
    let (status, code) = stranger.ask(&draining, "true", 60).unwrap_err();
    assert_eq!((status, code.as_str()), (409, "instance_not_running"));
    let [left] = lived.ready(1).try_into().unwrap();
    for (instance, (session, socket)) in &mut held {
        if **instance != left {
            let exit = stranger.ends(socket);
            // It was ended with all the rest, or its end was not heard.
            let reasons = [json!("killed"), json!("instance_gone")];
            assert!(reasons.contains(&exit["reason"]), "{exit}");
            let end = stranger.ended(session);
            assert!(reasons.contains(&end["end_reason"]), "{end}");
        }
    }
    let (_, (_, socket)) = held.iter_mut().find(|(it, _)| **it == left).unwrap();
    stranger.types(socket, "");
    assert_eq!(stranger.ends(socket)["exit_code"], 0);
    drop(stranger);
    lived.end();
}

#[test]
fn only_its_own_client_comes_back_to_a_session_and_only_in_time() {
    let manifest = MANIFEST.replace("replicas = 5", "replicas = 1");
    let mut lived = Lived::start(&manifest);
    lived.site.succeeds(&["deploy"]);
    let [instance] = lived.ready(1).try_into().unwrap();
    let stranger = Stranger::new(&lived);
    let failures = || {
        let line = [
            "events",
            "audit",
            "--types",
            "auth.failed",
            "--limit",
            "200",
        ];
        let events = lived.site.json(0, &line);
        events["items"].as_array().unwrap().len()
    };
    let refused = |session: &Session, token: &str| {
        let before = failures();
        assert_eq!(stranger.connect(&session.id, token).unwrap_err(), 403);
        assert_eq!(failures(), before + 1, "one event for each");
    };
    let script = "echo $$; while read line; do echo got $line; done; exit 5";
    let (one, mut socket, first, pid) = stranger.open_lasting(&instance, script);
    stranger.hears(&mut socket, &format!("{pid}\r\n"));
    let (two, other, foreign, _) = stranger.open_lasting(&instance, script);

    // Of another session, of no session, and what let it in at first.
    refused(&one, &foreign);
    refused(&one, &one.token);
    let (head, last) = first.split_at(first.len() - 1);
    refused(
        &one,
        &format!("{head}{}", if last == "A" { "B" } else { "A" }),
    );
    refused(&one, &format!("flf_er_{}", "A".repeat(49)));
    // None of that used the right one up, which is good once.
    drop(socket);
    let mut socket = stranger.connect(&one.id, &first).unwrap();
    let second = stranger.word(&mut socket);
    let second = second["resume_token"].as_str().unwrap().to_owned();
    refused(&one, &first);
    stranger.has(&mut socket, 0);
    stranger.types(&mut socket, "again\n");
    stranger.hears(&mut socket, "got again");
    let line = ["events", "list", "--types", "exec_session.resumed"];
    let resumed = lived.site.json(0, &line);
    assert_eq!(resumed["items"].as_array().unwrap().len(), 1);
    // To who is there already, too: the newer connection is the one.
    let mut newer = stranger.connect(&one.id, &second).unwrap();
    let third = stranger.word(&mut newer);
    let third = third["resume_token"].as_str().unwrap().to_owned();
    stranger.has(&mut newer, 0);
    stranger.types(&mut newer, "\u{4}");
    assert_eq!(stranger.ends(&mut newer)["exit_code"], 5);
    assert_eq!(stranger.ended(&one)["exit_code"], 5);
    refused(&one, &third);

    // Nobody comes back to the other one: it ends as it was said.
    drop(other);
    let before = std::time::Instant::now();
    let end = stranger.ended(&two);
    assert!(before.elapsed().as_secs() >= 29, "it did not wait");
    assert_eq!(end["end_reason"], "client_disconnect", "{end}");
    refused(&two, &foreign);
    drop(stranger);
    lived.end();
}

/// A `fluffy exec` that runs.
fn begin(lived: &Lived, instance: &str, script: &str) -> Child {
    let mut command = lived.site.context.command();
    command.args(["exec", instance, "--", "/bin/sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn floods_and_lost_lines_of_real_instances_hold_nothing_up() {
    let manifest = MANIFEST.replace("replicas = 5", "replicas = 1");
    let mut lived = Lived::start(&manifest);
    lived.site.succeeds(&["deploy"]);
    let [instance] = lived.ready(1).try_into().unwrap();
    let stranger = Stranger::new(&lived);

    // A gigabyte is pasted and read: unchanged, and never held as a whole.
    let megabytes = u32::try_from(campaign(100, 1024)).unwrap();
    let before = peak(lived.pid());
    let mut paste = begin(&lived, &instance, "md5sum; exit 5");
    let mut local = Command::new("md5sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    {
        let (mut there, mut here) = (paste.stdin.take().unwrap(), local.stdin.take().unwrap());
        for number in 0..megabytes {
            let piece: Vec<u8> = (0..1 << 18)
                .flat_map(|at: u32| (at.wrapping_mul(number + 7)).to_le_bytes())
                .collect();
            there.write_all(&piece).unwrap();
            here.write_all(&piece).unwrap();
        }
    }
    let output = paste.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(output.stdout, local.wait_with_output().unwrap().stdout);
    let grown = peak(lived.pid()).saturating_sub(before);
    assert!(grown < 48 << 10, "{grown} KiB for {megabytes} MiB");

    // One that nobody reads stops early, and its end is not held up by it.
    // As no other test has it.
    let sleep = format!("sleep {}", 100_000 + std::process::id());
    let mut paste = begin(&lived, &instance, &format!("echo up; exec {sleep}"));
    let mut said = BufReader::new(paste.stdout.take().unwrap());
    let mut line = [0; 3];
    said.read_exact(&mut line).unwrap();
    let mut stdin = paste.stdin.take().unwrap();
    let typing = std::thread::spawn(move || {
        let piece = vec![b'x'; 1 << 20];
        (0..1024)
            .take_while(|_| stdin.write_all(&piece).is_ok())
            .count()
    });
    let runs = || {
        let words = sleep.replace(' ', "\0");
        let is_it = |process: PathBuf| {
            let line = fs::read(process.join("cmdline")).unwrap_or_default();
            line.starts_with(words.as_bytes())
        };
        processes().into_iter().any(is_it)
    };
    assert!(runs());
    assert_eq!(lived.exec(0, &instance, "echo served"), "served\n");
    paste.kill().unwrap();
    paste.wait().unwrap();
    let taken = typing.join().unwrap();
    assert!(
        taken < 64,
        "{taken} MiB went into a command that reads nothing"
    );
    wait_for("the command without a client ends", LONG, || {
        (!runs()).then_some(())
    })
    .unwrap();

    // Who never reads stops the command, and nobody else.
    let script = "head -c 100000000 /dev/zero; touch /tmp/written; sleep 100000";
    let before = peak(lived.pid());
    let (session, socket) = stranger.open(&instance, script);
    let written = "test -e /tmp/written && echo yes || echo no";
    for _ in 0..5 {
        assert_eq!(lived.exec(0, &instance, written), "no\n");
    }
    let grown = peak(lived.pid()).saturating_sub(before);
    assert!(grown < 48 << 10, "{grown} KiB for what nobody reads");
    drop(socket);
    let end = stranger.ended(&session);
    assert_eq!(end["end_reason"], "client_disconnect", "{end}");
    assert_eq!(lived.exec(0, &instance, written), "no\n");

    // A line that breaks: it hears HUP at once, and its code is kept.
    let script = "trap 'touch /tmp/told; exit 42' HUP; echo up; while true; do sleep 0.1; done";
    let (session, mut socket) = stranger.open(&instance, script);
    stranger.hears(&mut socket, "up\n");
    drop(socket);
    let end = stranger.ended(&session);
    assert_eq!(
        (&end["exit_code"], &end["end_reason"]),
        (&json!(42), &json!("client_disconnect"))
    );
    assert_eq!(lived.exec(0, &instance, "ls /tmp"), "told\n");
    // One that does not listen is told more clearly: TERM after 5 s.
    let script = "trap '' HUP; trap 'exit 43' TERM; echo up; while true; do sleep 0.1; done";
    let (session, mut socket) = stranger.open(&instance, script);
    stranger.hears(&mut socket, "up\n");
    drop(socket);
    assert_eq!(stranger.ended(&session)["exit_code"], 43);
    drop(stranger);
    lived.end();
}
