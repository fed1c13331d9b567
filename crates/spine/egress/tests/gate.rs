//! The proxy with a real gate and a real ledger: policy decides, both remember.
//!
//! Hosts are on this machine, so each policy has to name their addresses; that
//! a public-looking yes is not enough for them is part of what is shown here.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use fluffy_base::SystemClock;
use fluffy_base::id::SandboxId;
use fluffy_egress::{AllowList, ByGate, Decide, ProxyHandle, Settings, ToLedger, serve};
use fluffy_gate::{Bundle, Gate, PinStore, PolicyPlaces};
use fluffy_ledger::{Actor, ActorKind, Domain, Event, Ledger, LedgerOptions};
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::{Context, Principal, PrincipalKind, ProcessIdentity, Request};
use fluffy_script::WorkerCommand;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A gate and a ledger in a home of their own.
struct Home {
    folder: TempDir,
    ledger: Ledger,
    gate: Arc<Gate>,
}

impl Home {
    fn with_rules(rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&folder.path().join("ledger"), LedgerOptions::default()).unwrap();
        let gate = Gate::open(places(folder.path()), ledger.clone(), Arc::new(SystemClock));
        let gate = Arc::new(gate.unwrap());
        let proposal = gate.propose(Bundle::of_rules(rules), 10).unwrap();
        let request = Request {
            principal: Principal {
                process: Some(ProcessIdentity { pid: 1, started: 1 }),
                ..principal(PrincipalKind::User, "maria")
            },
            action: "policy.update".to_owned(),
            resource: Some("shop".to_owned()),
            context: Context::default(),
        };
        gate.update(&proposal, &request).unwrap();
        Self {
            folder,
            ledger,
            gate,
        }
    }

    fn by_gate(&self) -> ByGate {
        let agent = principal(PrincipalKind::Agent, "agent");
        ByGate::new(Arc::clone(&self.gate), agent, Context::default())
    }

    /// A proxy with these decisions, and where it listens.
    fn serve(&self, decide: impl Decide + 'static) -> (ProxyHandle, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let actor = Actor::new(ActorKind::Agent, "agent");
        let record = ToLedger::new(self.ledger.clone(), Domain::Agent, actor);
        let id = SandboxId::from_bits(7);
        let settings = Settings::new(id, "integration-test", Arc::new(decide), Arc::new(record));
        (serve(listener, settings).unwrap(), address)
    }

    /// Every event of this type, as another process would read it.
    fn events(&self, event_type: &str) -> Vec<Event> {
        self.ledger.flush_blocking().unwrap();
        let path = self.folder.path().join("ledger");
        let ledger = Ledger::open(&path, LedgerOptions::default()).unwrap();
        let wanted = |event: &Event| event.event_type == event_type;
        ledger.last_where(1_000, wanted).unwrap()
    }
}

fn places(home: &Path) -> PolicyPlaces {
    PolicyPlaces {
        organisation: home.join("organisation.yaml"),
        user: home.join("user.yaml"),
        pins: Some(PinStore::of_project(&home.join("pins"), Path::new("/shop"))),
        // No extensions here, so none is ever started.
        worker: WorkerCommand {
            program: "/nonexistent".into(),
            args: Vec::new(),
        },
    }
}

fn principal(kind: PrincipalKind, name: &str) -> Principal {
    let all = || vec!["*".to_owned()];
    let grant = Grant::build(&GrantLists {
        capabilities: all(),
        deny_capabilities: Vec::new(),
        workspace: all(),
        user: all(),
    });
    Principal::new(kind, name, Arc::new(grant.unwrap()))
}

/// A server that greets every request, and its port.
fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream);
        }
    });
    port
}

fn answer(mut stream: TcpStream) {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count > 0) {
        request.extend(byte);
    }
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
}

/// What comes back for a plain request to this host.
async fn get(proxy: SocketAddr, host: &str) -> String {
    let host = host.to_owned();
    let talk = move || {
        let mut stream = TcpStream::connect(proxy).unwrap();
        let request = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    tokio::task::spawn_blocking(talk).await.unwrap()
}

fn facts(event: &Event) -> Value {
    event.payload.value().unwrap()
}

#[tokio::test]
async fn an_address_that_policy_names_is_reached_and_both_are_recorded() {
    let port = server();
    let host = format!("127.0.0.1:{port}");
    let home = Home::with_rules(&format!(
        "version: 1\nnetwork_allow:\n  local: [\"{host}\"]\n"
    ));
    let (proxy, address) = home.serve(home.by_gate());
    assert!(get(address, &host).await.ends_with("hello"));
    let other = format!("127.0.0.2:{port}");
    let refused = get(address, &other).await;
    assert!(
        refused.starts_with("HTTP/1.1 403 not allowed by policy\r\n"),
        "{refused}"
    );
    proxy.stop().await;

    let requests = home.events("egress.request");
    assert_eq!(requests.len(), 2);
    let allowed = facts(&requests[0]);
    let id = SandboxId::from_bits(7).to_string();
    assert_eq!(allowed["sandbox"], json!(id));
    assert_eq!(requests[0].aggregate.id, id);
    assert_eq!(allowed["template"], json!("integration-test"));
    assert_eq!(allowed["host"], json!("127.0.0.1"));
    assert_eq!(allowed["port"], json!(port));
    assert_eq!(allowed["address"], json!("127.0.0.1"));
    assert_eq!(allowed["verdict"], json!("allowed"));
    assert_eq!(allowed["rule"], json!("network_allow.local"));
    assert!(allowed["bytes_up"].as_u64().unwrap() > 0);
    let denied = facts(&requests[1]);
    assert_eq!(denied["verdict"], json!("refused"));
    assert_eq!(denied["reason"], json!("denied"));
    // Each rests on a decision that is recorded too.
    let decisions = home.events("policy.decision");
    for (request, verdict) in requests.iter().zip(["allow", "deny"]) {
        let decision = decisions
            .iter()
            .find(|it| Some(it.seq) == request.decision_seq);
        assert_eq!(facts(decision.unwrap())["decision"], json!(verdict));
    }
}

#[tokio::test]
async fn a_rule_for_all_hosts_names_no_address() {
    let port = server();
    let rules = "version: 1\ncapabilities:\n  - { name: anywhere, match: { action: net.connect }, do: allow }\n";
    let home = Home::with_rules(rules);
    let (proxy, address) = home.serve(home.by_gate());
    let host = format!("127.0.0.1:{port}");
    let refused = get(address, &host).await;
    assert!(
        refused.starts_with("HTTP/1.1 403 addresses are not"),
        "{refused}"
    );
    let refused = get(address, &format!("localhost:{port}")).await;
    assert!(
        refused.starts_with("HTTP/1.1 403 not a public address"),
        "{refused}"
    );
    proxy.stop().await;
    // Control: a person's list that says where `localhost` is, and what the
    // address may be, makes both reachable.
    let entries = [format!("localhost:{port}=127.0.0.1"), host.clone()];
    let list = AllowList::parse(&entries).unwrap();
    let (proxy, address) = home.serve(home.by_gate().beyond(list));
    assert!(get(address, &host).await.ends_with("hello"));
    assert!(
        get(address, &format!("localhost:{port}"))
            .await
            .ends_with("hello")
    );
    proxy.stop().await;
    let requests = home.events("egress.request");
    assert_eq!(facts(&requests[2])["rule"], json!("anywhere"));
    let reasons: Vec<Value> = requests
        .iter()
        .map(|it| facts(it)["reason"].clone())
        .collect();
    assert_eq!(
        reasons,
        [
            json!("address_not_named"),
            json!("reserved_address"),
            json!(null),
            json!(null)
        ]
    );
}

#[tokio::test]
async fn what_goes_beyond_the_ordinary_still_has_to_pass_the_gate() {
    let port = server();
    let home = Home::with_rules("version: 1\nnetwork_allow: {}\n");
    let host = format!("127.0.0.1:{port}");
    let list = AllowList::parse(&[&host]).unwrap();
    let (proxy, address) = home.serve(home.by_gate().beyond(list));
    let refused = get(address, &host).await;
    assert!(
        refused.starts_with("HTTP/1.1 403 not allowed by policy\r\n"),
        "{refused}"
    );
    proxy.stop().await;
}

#[tokio::test]
async fn a_persons_list_never_beats_a_deny() {
    let port = server();
    let host = format!("127.0.0.1:{port}");
    let deny = format!(
        "version: 1\ncapabilities:\n  - {{ name: not-there, reason: Ask maria, match: {{ action: net.connect, host: [\"{host}\"] }}, do: deny }}\n"
    );
    let home = Home::with_rules(&deny);
    let list = AllowList::parse(&[&host]).unwrap();
    let (proxy, address) = home.serve(list.clone().below(Arc::clone(&home.gate)));
    let refused = get(address, &host).await;
    assert!(refused.contains("Ask maria"), "{refused}");
    proxy.stop().await;
    assert_eq!(
        facts(&home.events("egress.request")[0])["rule"],
        json!("not-there")
    );
    // Control: the same list where policy merely does not allow it.
    let home = Home::with_rules("version: 1\nnetwork_allow: {}\n");
    let (proxy, address) = home.serve(list.below(Arc::clone(&home.gate)));
    assert!(get(address, &host).await.ends_with("hello"));
    proxy.stop().await;
    let event = &home.events("egress.request")[0];
    assert_eq!(facts(event)["rule"], json!(format!("allow {host}")));
}

#[tokio::test]
async fn a_host_that_needs_review_is_refused_with_its_reason() {
    let rules = "version: 1\ncapabilities:\n  - { name: look, reason: New host, match: { action: net.connect }, do: require_review }\n";
    let home = Home::with_rules(rules);
    let (proxy, address) = home.serve(home.by_gate());
    let refused = get(address, "example.com").await;
    assert!(
        refused.contains("it needs a person's review; New host"),
        "{refused}"
    );
    proxy.stop().await;
}
