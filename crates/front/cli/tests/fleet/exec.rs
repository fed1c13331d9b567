//! Commands in instances, asked of a server that the node is not connected to:
//! who may, who may not, and what is left of it (E13).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, ChangeKind};
use fluffy_base::{Clock as _, SystemClock, Timestamp};
use fluffy_ledger::Event;
use fluffy_node_sim::{Behaviour, Command as Order};
use fluffy_test_kit::{Acceptance, Limit};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::kit::{ENV, Fleet, events, eventually};

/// The server that the node is connected to, and the one that is asked.
const HOLDER: usize = 0;
const ASKED: usize = 1;

/// How a token is shown.
#[derive(Debug, Clone, Copy)]
enum Shown {
    Header,
    Subprotocol,
}

/// What came of opening a session.
enum Opened {
    In(Box<WebSocketStream<TlsStream<TcpStream>>>),
    Refused(u16, Value),
}

/// A session that was granted.
#[derive(Debug, Clone)]
struct Session {
    id: String,
    token: String,
}

/// Opens the WebSocket of a session, as any client does, each from an address
/// of its own: so nobody pays for what others tried.
async fn connect(fleet: &Fleet, session: &str, token: Option<&str>, shown: Shown) -> Opened {
    static CLIENTS: AtomicU8 = AtomicU8::new(2);
    let client = CLIENTS.fetch_add(1, Ordering::Relaxed);
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, client], 0).into()).unwrap();
    let server = fleet.servers[ASKED].api.parse().unwrap();
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(fleet.ca.as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = socket.connect(server).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let tls = TlsConnector::from(Arc::new(config));
    let mut stream = tls.connect(name, stream).await.unwrap();
    let path = Operation::ConnectExec
        .path_with(&["acme", session])
        .unwrap();
    let key = STANDARD.encode([7; 16]);
    let (protocol, header) = match (token, shown) {
        (None, _) => (String::new(), String::new()),
        (Some(token), Shown::Subprotocol) => (format!(", bearer.{token}"), String::new()),
        (Some(token), Shown::Header) => {
            (String::new(), format!("authorization: Bearer {token}\r\n"))
        }
    };
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\
         sec-websocket-protocol: fluffy.exec.v1{protocol}\r\n{header}\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
    if status == 101 {
        let socket = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
        return Opened::In(Box::new(socket));
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().unwrap())
    });
    let mut body = vec![0; length.unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    Opened::Refused(status, serde_json::from_slice(&body).unwrap())
}

/// Types a line and gives all that came back, and how it ended.
async fn talk(opened: Opened, line: &str) -> (String, Value) {
    let Opened::In(mut socket) = opened else {
        panic!("it was not let in");
    };
    let typed = [&[1], line.as_bytes()].concat();
    socket.send(Message::Binary(typed.into())).await.unwrap();
    let close = [&[0x10], br#"{"type":"close"}"#.as_slice()].concat();
    socket.send(Message::Binary(close.into())).await.unwrap();
    let (mut output, mut exit) = (String::new(), Value::Null);
    while let Some(Ok(message)) = socket.next().await {
        let Message::Binary(bytes) = message else {
            continue;
        };
        match bytes.split_first() {
            Some((2 | 3, text)) => output.push_str(&String::from_utf8_lossy(text)),
            Some((_, text)) => exit = serde_json::from_slice(text).unwrap(),
            None => {}
        }
    }
    (output, exit)
}

/// Who tries to run something.
struct People {
    tokens: BTreeMap<&'static str, String>,
    /// Who is denied by policy alone.
    denied: String,
    /// When the grant is over of who has one for a while.
    grant_ends: Timestamp,
}

impl People {
    /// Everybody of the matrix, by what they lack.
    async fn invite(fleet: &Fleet, owner: &str) -> Self {
        let (mut tokens, mut denied) = (BTreeMap::new(), String::new());
        let mut grant_ends = Timestamp::MIN;
        let org = ["acme"];
        let exec = "instance.exec.acme/shop/*";
        // An owner has it in an emergency only, and may then pass it on.
        let own = json!({
            "principal_id": owner, "pattern": exec, "break_glass": true, "reason": "a test",
        });
        fleet.send(ASKED, Operation::CreateGrant, &org, own).await;
        fleet
            .send(ASKED, Operation::CreateOrg, &[], json!({"slug": "other"}))
            .await;
        let robots: [(&str, &str, &[&str]); 5] = [
            ("allowed", "acme", &[exec]),
            ("no grant", "acme", &[]),
            ("other org", "other", &["app.read.other/*"]),
            ("expired grant", "acme", &[]),
            ("policy deny", "acme", &[exec]),
        ];
        for (who, org, grants) in robots {
            let name = who.replace(' ', "-");
            let body = json!({"name": name, "grants": grants});
            let made = fleet
                .send(ASKED, Operation::CreatePrincipal, &[org], body)
                .await;
            if who == "policy deny" {
                made["id"].as_str().unwrap().clone_into(&mut denied);
            }
            if who == "expired grant" {
                let grant = json!({
                    "principal_id": made["id"], "pattern": exec, "ttl_seconds": 60,
                });
                let granted = fleet
                    .send(ASKED, Operation::CreateGrant, &[org], grant)
                    .await;
                let ends = granted["expires_at"].as_str().unwrap();
                grant_ends = ends.parse().unwrap();
            }
            let body = json!({"principal_id": made["id"]});
            let token = fleet
                .send(ASKED, Operation::CreateToken, &[org], body)
                .await;
            tokens.insert(who, token["secret"].as_str().unwrap().to_owned());
        }
        for role in ["viewer", "developer"] {
            let body = json!({"email": format!("{role}@example.org"), "role": role});
            let member = fleet.send(ASKED, Operation::AddMember, &org, body).await;
            let login = json!({"grant_type": "invite", "code": member["invite_code"]});
            let pair = fleet
                .send(ASKED, Operation::ExchangeToken, &[], login)
                .await;
            tokens.insert(role, pair["access_token"].as_str().unwrap().to_owned());
        }
        Self {
            tokens,
            denied,
            grant_ends,
        }
    }

    /// Asks for a session; what it answers, and the id of the call.
    async fn ask(&self, fleet: &Fleet, who: &str, instance: &str, seconds: u32) -> Asked {
        let client = fleet.bearer(ASKED, &self.tokens[who]).await.unwrap();
        let path = [ENV[0], ENV[1], ENV[2], instance];
        let body = json!({"command": ["cat"], "stdin": true, "token_seconds": seconds});
        let ask = Ask::new(Operation::CreateExec, &path).body(&body);
        match client.call(ask).await {
            Ok(answer) => Asked {
                request: answer.request_id,
                outcome: Ok(Session {
                    id: answer.value["id"].as_str().unwrap().to_owned(),
                    token: answer.value["token"].as_str().unwrap().to_owned(),
                }),
            },
            Err(CallError::Refused(problem)) => Asked {
                request: problem.request_id.clone(),
                outcome: Err((problem.status, problem.code.clone())),
            },
            Err(error) => panic!("{error:?}"),
        }
    }
}

struct Asked {
    request: String,
    outcome: Result<Session, (u16, String)>,
}

/// What is in the ledger of one call.
fn of_call<'a>(events: &'a [Event], request: &str, kind: &str) -> Vec<&'a Event> {
    let of_call = events.iter().filter(|it| it.request_id == request);
    of_call.filter(|it| it.event_type == kind).collect()
}

/// What nodes heard of sessions: commands, and bytes for them.
async fn heard(fleet: &Fleet) -> (u64, u64) {
    let mut heard = (0, 0);
    for nodes in &fleet.nodes {
        let status = nodes.status().await;
        let number = |place: usize| status["execs"][place].as_u64().unwrap();
        heard = (heard.0 + number(0), heard.1 + number(1));
    }
    heard
}

async fn behave(fleet: &Fleet, behaviour: Behaviour) {
    behave_at(fleet, 0, behaviour).await;
}

async fn behave_at(fleet: &Fleet, place: usize, behaviour: Behaviour) {
    let node = None;
    fleet.nodes[place]
        .order(Order::Behave { behaviour, node })
        .await;
}

/// Sets how many there should be; as the release says, if nothing is said.
async fn scale(fleet: &Fleet, count: Option<u32>) {
    let now = fleet.read(ASKED, Operation::GetScale, &ENV).await;
    let body = json!({"processes": {"web": count}, "expected_version": now["version"]});
    fleet.send(ASKED, Operation::SetScale, &ENV, body).await;
}

/// One more instance, on a node of its own that then goes silent for good.
async fn one_on_a_node_that_goes(fleet: &mut Fleet, before: &[String]) -> String {
    fleet.join(&Behaviour::default(), &[HOLDER]).await;
    eventually("both nodes take instances", async || {
        let shown = fleet.read(ASKED, Operation::ListNodes, &[]).await;
        let nodes = shown["items"].as_array().unwrap();
        let active = nodes.iter().filter(|it| it["status"] == "active");
        (active.count() == 2).then_some(())
    })
    .await;
    scale(fleet, Some(3)).await;
    let more = eventually("there is one more", async || {
        let ready = fleet.ready(ASKED).await;
        ready.into_iter().find(|it| !before.contains(it))
    })
    .await;
    // On the node without others.
    let there = fleet.nodes[1].status().await;
    assert_eq!(there["instances"][&more], "ready", "{there}");
    eventually("what it printed is here, too", async || {
        let shown = fleet.read(ASKED, Operation::GetLogs, &ENV).await;
        let mut lines = shown["items"].as_array().unwrap().iter();
        let printed = lines.any(|it| it["instance_id"] == more.as_str());
        printed.then_some(())
    })
    .await;
    let offline = Behaviour {
        offline: true,
        ..Behaviour::default()
    };
    behave_at(fleet, 1, offline).await;
    more
}

/// The instances of the env, and where each stands.
async fn instances(fleet: &Fleet) -> BTreeMap<String, String> {
    let shown = fleet.read(ASKED, Operation::ListInstances, &ENV).await;
    let items = shown["items"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    items
        .map(|it| (text(&it["id"]), text(&it["observed"]["status"])))
        .collect()
}

/// Waits until an instance is somewhere on its way.
async fn until_one_is(fleet: &Fleet, status: &str) -> String {
    eventually(&format!("an instance is {status}"), async || {
        let all = instances(fleet).await;
        let mut found = all.into_iter().filter(|(_, it)| it == status);
        found.next().map(|(id, _)| id)
    })
    .await
}

/// Whether a text is in a file, or in any below a folder.
fn is_in_files(place: &Path, text: &str) -> bool {
    let mut grep = Command::new("grep");
    let found = grep
        .args(["-rqaF", "-e", text])
        .arg(place)
        .status()
        .unwrap();
    found.success()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_for_who_may_on_any_server_and_leave_a_whole_record() {
    let mut fleet = Fleet::start(2).await;
    fleet.join(&Behaviour::default(), &[HOLDER]).await;
    let first = fleet.deploy(HOLDER, "first", 2).await;
    fleet.succeeds(ASKED, &first).await;
    let ready: Vec<String> = fleet.ready(ASKED).await.into_iter().collect();
    // It is lost while the rest is tried.
    let lost = one_on_a_node_that_goes(&mut fleet, &ready).await;
    let whoami = fleet.read(ASKED, Operation::Whoami, &[]).await;
    let people = People::invite(&fleet, whoami["principal_id"].as_str().unwrap()).await;
    let rules = format!(
        "version: 1\ncapabilities:\n  - name: not-this-one\n    match:\n      \
         action: instance.exec\n      caller: {}\n    do: deny\n    reason: a test\n",
        people.denied
    );
    let policy = fleet.read(ASKED, Operation::GetPolicy, &["acme"]).await;
    let rules = json!({ "rules": rules, "expected_version": policy["version"] });
    fleet
        .send(ASKED, Operation::SetPolicy, &["acme"], rules)
        .await;
    // Who has a grant for a while may, for that while.
    gets_a_session(&fleet, &people, "expired grant", &ready[0]).await;

    // Lines are told by a server that never heard them.
    eventually("what was printed is here", async || {
        let shown = fleet.read(ASKED, Operation::GetLogs, &ENV).await;
        let lines = shown["items"].as_array().unwrap().len();
        (lines == 3).then_some(())
    })
    .await;
    // And to who follows there, while they are printed.
    let client = fleet.client(ASKED).await.unwrap();
    let follow = Ask::new(Operation::GetLogs, &ENV);
    let mut following = client.watch(follow, None).await.unwrap();
    let printed = Order::Print {
        instance: ready[0].clone(),
        text: "told elsewhere".to_owned(),
    };
    fleet.nodes[0].order(printed).await;
    let heard_of = async {
        loop {
            let change = following.next().await.unwrap().unwrap();
            if change.value["line"] == "told elsewhere" {
                return change.kind;
            }
        }
    };
    let kind = tokio::time::timeout(Duration::from_secs(120), heard_of).await;
    assert_eq!(kind.unwrap(), ChangeKind::Upsert);
    drop(following);

    // One expires while the others are tried.
    let late = people.ask(&fleet, "allowed", &ready[1], 30).await;
    let mut tokens: Vec<String> = people.tokens.values().cloned().collect();

    // Who may is let in once, by either way to show the token.
    let mut granted = Vec::new();
    for shown in [Shown::Header, Shown::Subprotocol] {
        let asked = people.ask(&fleet, "allowed", &ready[0], 60).await;
        let session = asked.outcome.unwrap();
        granted.push((asked.request, session.id.clone()));
        let foreign = match &late.outcome {
            Ok(other) => other.clone(),
            Err(error) => panic!("{error:?}"),
        };
        let before = heard(&fleet).await;
        let bad = [
            (session.id.as_str(), None),
            (session.id.as_str(), Some("flf_et_nonsense")),
            (session.id.as_str(), Some(foreign.token.as_str())),
            (foreign.id.as_str(), Some(session.token.as_str())),
        ];
        for (id, token) in bad {
            refuses(&fleet, id, token, shown).await;
        }
        assert_eq!(heard(&fleet).await, before);
        let opened = connect(&fleet, &session.id, Some(&session.token), shown).await;
        let (output, exit) = talk(opened, "a marked line\n").await;
        assert_eq!(output, "a marked line\n");
        assert_eq!(exit["exit_code"], 0, "{exit}");
        assert_eq!(heard(&fleet).await, (before.0 + 1, before.1 + 14));
        // A second time it opens nothing.
        refuses(&fleet, &session.id, Some(&session.token), shown).await;
        assert_eq!(heard(&fleet).await, (before.0 + 1, before.1 + 14));
        tokens.push(session.token);
    }

    let ledger = fleet.ledger().await;
    let all = eventually("every session has ended", async || {
        let all = events(&ledger);
        let ended = |id: &String| {
            let mut of = all.iter().filter(|it| it.aggregate.id == *id);
            of.any(|it| it.event_type == "exec_session.ended")
        };
        granted.iter().all(|(_, id)| ended(id)).then_some(all)
    })
    .await;
    for (request, session) in &granted {
        assert_eq!(of_call(&all, request, "authz.decided").len(), 1);
        let chain: Vec<&str> = all
            .iter()
            .filter(|it| it.aggregate.id == *session)
            .map(|it| it.event_type.as_str())
            .collect();
        let whole = ["requested", "granted", "connected", "ended"];
        assert_eq!(chain, whole.map(|step| format!("exec_session.{step}")));
    }
    // What ends by time has ended when the states are tried.
    eventually("the grant has ended", async || {
        (SystemClock.now() > people.grant_ends).then_some(())
    })
    .await;
    let late = late.outcome.unwrap();
    eventually("the token has ended", async || {
        let path = ["acme", late.id.as_str()];
        let shown = fleet.read(ASKED, Operation::GetExec, &path).await;
        let until: Timestamp = shown["expires_at"].as_str()?.parse().ok()?;
        (SystemClock.now() > until).then_some(())
    })
    .await;
    refuses(&fleet, &late.id, Some(&late.token), Shown::Header).await;
    tokens.push(late.token);

    let mut refused = in_states_that_run(&fleet, &people, &ready[0]).await;
    refused.extend(in_states_that_do_not(&fleet, &people, &lost).await);

    let all = events(&ledger);
    let is_denied = |event: &&Event| event.payload.value().unwrap()["outcome"] == "deny";
    let undecided: Vec<String> = refused
        .iter()
        .filter(|it| {
            let decided = of_call(&all, &it.request, "authz.decided");
            decided.len() != 1 || !decided.iter().all(is_denied)
        })
        .map(|it| format!("{}, {}", it.who, it.status))
        .collect();
    let left = tokens_left(&fleet, &tokens, &granted[0].1);
    let states: BTreeSet<&str> = refused.iter().map(|it| it.status).collect();
    let number = |number: usize| f64::from(u32::try_from(number).unwrap());
    let mut acceptance = Acceptance::of("e13", "exec");
    acceptance
        .figure(
            "attempts refused",
            (number(refused.len()), "attempts"),
            Limit::AtLeast(1.0),
        )
        .figure(
            "in states of an instance",
            (number(states.len()), "states"),
            Limit::AtLeast(number(STATES)),
        )
        .figure(
            "of these without one decision",
            (number(undecided.len()), "attempts"),
            Limit::AtMost(0.0),
        )
        .figure(
            "sessions with a whole chain",
            (number(granted.len()), "sessions"),
            Limit::AtLeast(2.0),
        )
        .figure(
            "tokens in ledger or logs",
            (number(left), "tokens"),
            Limit::AtMost(0.0),
        );
    acceptance.write().unwrap();
    assert!(undecided.is_empty(), "{undecided:?}");
    assert_eq!(left, 0);
    assert_eq!(states.len(), STATES, "{states:?}");
}

/// Every state but `collected`, in which nothing is left of an instance.
const STATES: usize = 9;

/// Who may not, and where; the call by which it was tried.
#[derive(Debug)]
struct Refused {
    who: &'static str,
    status: &'static str,
    request: String,
}

/// Somebody is let in; the session ends before anybody connects.
async fn gets_a_session(fleet: &Fleet, people: &People, who: &str, instance: &str) {
    let session = people.ask(fleet, who, instance, 60).await;
    let session = session.outcome.unwrap();
    let path = ["acme", session.id.as_str()];
    fleet
        .send(ASKED, Operation::RevokeExec, &path, Value::Null)
        .await;
}

/// Where who may gets a session.
async fn in_states_that_run(fleet: &Fleet, people: &People, ready: &str) -> Vec<Refused> {
    let mut refused = all_are_refused(fleet, people, (ready, "ready")).await;
    let unhealthy = Behaviour {
        unhealthy: true,
        ..Behaviour::default()
    };
    behave(fleet, unhealthy).await;
    let instance = until_one_is(fleet, "unhealthy").await;
    refused.extend(all_are_refused(fleet, people, (&instance, "unhealthy")).await);
    gets_a_session(fleet, people, "allowed", &instance).await;
    behave(fleet, Behaviour::default()).await;
    refused
}

/// Where who may hears that it does not run.
async fn in_states_that_do_not(fleet: &Fleet, people: &People, lost: &str) -> Vec<Refused> {
    assert_eq!(until_one_is(fleet, "lost").await, lost);
    let mut refused = nobody_gets_in(fleet, people, (lost, "lost")).await;
    // Nobody takes its place, and all others run.
    scale(fleet, None).await;
    eventually("the others are ready", async || {
        let mut others = instances(fleet).await;
        others.remove(lost);
        let ready = others.values().all(|status| status == "ready");
        (ready && others.len() == 2).then_some(())
    })
    .await;
    let plain = Behaviour::default;
    let states = [
        (
            "allocated",
            Behaviour {
                silent: true,
                ..plain()
            },
        ),
        (
            "preparing",
            Behaviour {
                prepare_ms: 600_000,
                ..plain()
            },
        ),
        (
            "booting",
            Behaviour {
                boot_ms: 600_000,
                ..plain()
            },
        ),
        (
            "failed",
            Behaviour {
                fail: Some("workload_exited".to_owned()),
                restart_ms: 600_000,
                ..plain()
            },
        ),
        (
            "draining",
            Behaviour {
                stop_ms: 600_000,
                ..plain()
            },
        ),
    ];
    for (status, behaviour) in states {
        behave(fleet, behaviour).await;
        let deploy = fleet.deploy(ASKED, status, 2).await;
        let instance = until_one_is(fleet, status).await;
        refused.extend(nobody_gets_in(fleet, people, (&instance, status)).await);
        let path = [ENV[0], ENV[1], ENV[2], deploy.as_str()];
        fleet
            .send(ASKED, Operation::CancelDeploy, &path, Value::Null)
            .await;
        if status == "draining" {
            // It goes on to the last state, and no further.
            let stopping = Behaviour {
                collect_ms: 600_000,
                ..plain()
            };
            behave(fleet, stopping).await;
            continue;
        }
        behave(fleet, plain()).await;
        // On its way out it may pass through the state that is next.
        eventually("the one that is not wanted is gone", async || {
            let all = instances(fleet).await;
            (!all.iter().any(|(id, _)| *id == instance)).then_some(())
        })
        .await;
    }
    let stopped = until_one_is(fleet, "stopped").await;
    refused.extend(nobody_gets_in(fleet, people, (&stopped, "stopped")).await);
    refused
}

/// Who may not is refused, and who may is told that it does not run.
async fn nobody_gets_in(
    fleet: &Fleet,
    people: &People,
    (instance, status): (&str, &'static str),
) -> Vec<Refused> {
    let refused = all_are_refused(fleet, people, (instance, status)).await;
    let before = heard(fleet).await;
    let asked = people.ask(fleet, "allowed", instance, 60).await;
    let (_, code) = asked.outcome.unwrap_err();
    assert_eq!(code, "instance_not_running", "{status}");
    assert_eq!(heard(fleet).await, before);
    refused
}

/// Nobody of these gets in, and nothing of it reaches a node.
async fn all_are_refused(
    fleet: &Fleet,
    people: &People,
    (instance, status): (&str, &'static str),
) -> Vec<Refused> {
    let mut refused = Vec::new();
    let before = heard(fleet).await;
    for who in [
        "no grant",
        "other org",
        "viewer",
        "developer",
        "expired grant",
        "policy deny",
    ] {
        let asked = people.ask(fleet, who, instance, 60).await;
        let (answer, code) = asked.outcome.unwrap_err();
        assert_eq!(answer, 403, "{who}, {status}: {code}");
        refused.push(Refused {
            who,
            status,
            request: asked.request,
        });
    }
    assert_eq!(heard(fleet).await, before);
    refused
}

/// How many tokens are in the files of the database or in what servers said;
/// what is there on purpose is found, so the search works.
fn tokens_left(fleet: &Fleet, tokens: &[String], known: &str) -> usize {
    fleet.database.sql("CHECKPOINT").unwrap();
    let url = fleet.postgres.url();
    let folder = PathBuf::from(url.split_once("host=").unwrap().1);
    assert!(is_in_files(&folder, known));
    assert!(!is_in_files(&folder, "a marked line"), "nor what was typed");
    let is_left = |token: &&String| {
        let mut logs = fleet.servers.iter().map(|server| &server.log);
        is_in_files(&folder, token) || logs.any(|log| is_in_files(log, token))
    };
    tokens.iter().filter(is_left).count()
}

/// A token that opens nothing: 403, and one event of it.
async fn refuses(fleet: &Fleet, session: &str, token: Option<&str>, shown: Shown) {
    let ledger = fleet.ledger().await;
    let count = || {
        let all = events(&ledger);
        let failed = all.into_iter().filter(|it| it.event_type == "auth.failed");
        let failed = failed.filter(|it| {
            let payload = it.payload.value().unwrap();
            payload["reason"] == "exec_token_invalid"
        });
        failed.count()
    };
    let before = count();
    match connect(fleet, session, token, shown).await {
        Opened::In(_) => panic!("{session} was opened"),
        Opened::Refused(status, problem) => {
            assert_eq!(
                (status, &problem["code"]),
                (403, &json!("exec_token_invalid"))
            );
        }
    }
    assert_eq!(count(), before + 1);
}
