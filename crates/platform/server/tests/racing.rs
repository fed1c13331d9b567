//! Racing requests: what there is one of goes to one, whoever is asked.
//!
//! Two replicas over one database, each with its own HTTP interface, and
//! clients that ask both at the same time. Nothing is doubled but images and
//! the machines of nodes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod crew;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, Client, Target};
use fluffy_base::Digest;
use fluffy_control::Outcome;
use fluffy_control::call::ResolvedImage;
use fluffy_control::event::ResolvedDigest;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::runtime::notice::PENDING;
use fluffy_ledger::LedgerOptions;
use fluffy_server::backend::Control;
use fluffy_server::exec::Execs;
use fluffy_server::hashes::Hashes;
use fluffy_server::hostnames::Hostnames;
use fluffy_server::http::{self, HttpService, Listener, RateLimits};
use fluffy_server::loops::lease::Timing;
use fluffy_server::material::{FindImage, Workshop};
use fluffy_server::node::NodeDoor;
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::safe::Safe;
use fluffy_server::server::{Options, Server};
use fluffy_test_kit::FreshDatabase;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::Barrier;
use tokio::time::{Instant, sleep};

use crew::{Crew, enrolment};

/// How many ask at once; half of them each replica.
const RACERS: usize = 12;

/// Two replicas over one database, and a folder with their sockets.
struct Pair {
    servers: Vec<Server>,
    folder: TempDir,
    /// Kept until the end: it takes the database along.
    _database: FreshDatabase,
}

impl Pair {
    async fn start() -> Self {
        let database = FreshDatabase::create().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut servers = Vec::new();
        for number in 0..2 {
            servers.push(replica(database.url(), folder.path(), number).await);
        }
        Self {
            servers,
            folder,
            _database: database,
        }
    }

    /// The owner, at one of the replicas.
    async fn client(&self, number: usize) -> Client {
        let socket = self.folder.path().join(format!("{}.sock", number % 2));
        Client::connect(Target::Socket(socket)).await.unwrap()
    }

    fn crew(&self) -> Crew {
        Crew {
            platform: self.servers[0].platform().clone(),
        }
    }

    async fn send(&self, operation: Operation, path: &[&str], body: Value) -> Value {
        let client = self.client(0).await;
        let ask = Ask::new(operation, path).body(&body);
        let answer = client.call(ask).await;
        answer
            .unwrap_or_else(|error| panic!("{operation:?}: {error}"))
            .value
    }

    /// Everybody asks at the same moment; how each ended, by id or code.
    async fn race(&self, asks: Vec<Racer>) -> Vec<Result<String, String>> {
        let line = Arc::new(Barrier::new(asks.len()));
        let mut racing = Vec::new();
        for (number, racer) in asks.into_iter().enumerate() {
            // Connected before the start, so that the race is about the write.
            let client = self.client(number).await;
            let line = Arc::clone(&line);
            racing.push(tokio::spawn(async move {
                line.wait().await;
                let path: Vec<&str> = racer.path.iter().map(String::as_str).collect();
                let mut ask = Ask::new(racer.operation, &path);
                if !racer.body.is_null() {
                    ask = ask.body(&racer.body);
                }
                if let Some(key) = racer.key {
                    ask = ask.key(key);
                }
                match client.call(ask).await {
                    Ok(answer) => Ok(answer.value["id"].as_str().unwrap_or_default().to_owned()),
                    Err(CallError::Refused(problem)) => Err(problem.code.clone()),
                    Err(error) => panic!("{error}"),
                }
            }));
        }
        let mut ends = Vec::new();
        for each in racing {
            ends.push(each.await.unwrap());
        }
        ends
    }

    async fn stop(self) {
        for server in self.servers {
            server.stop().await;
        }
    }
}

/// One who asks.
struct Racer {
    operation: Operation,
    path: Vec<String>,
    body: Value,
    key: Option<String>,
}

impl Racer {
    fn new(operation: Operation, path: &[&str], body: Value) -> Self {
        Self {
            operation,
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            body,
            key: None,
        }
    }

    fn with_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }
}

/// A whole replica, which answers at a socket.
async fn replica(url: &str, folder: &Path, number: usize) -> Server {
    let options = Options {
        storage: Storage::database(url.parse().unwrap()),
        ledger: LedgerOptions::default(),
        founder: Founder::Local,
        timing: Timing::default(),
    };
    let mut server = Server::start(options).await.unwrap();
    let platform = server.platform().clone();
    let (safe, error) = Safe::open(platform.aside().clone(), &folder.join("keys"));
    assert!(error.is_none(), "{error:?}");
    let localhost = ["localhost".to_owned()];
    let door = NodeDoor::open(&platform, &safe, &localhost).await.unwrap();
    let execs = Execs::new(platform.clone(), safe.clone(), door.server().clone());
    let hashes = Hashes::new(platform.aside().clone());
    let hostnames = Hostnames {
        suffix: Some("apps.example.com".to_owned()),
        ..Hostnames::default()
    };
    let workshop = Workshop::new(hashes, safe, images()).with_hostnames(hostnames);
    let behind = (execs, door.server().logs());
    let owner = Some(rustix::process::geteuid().as_raw());
    let control = Control::new(platform, workshop, behind, owner);
    let options = http::Options {
        rates: RateLimits {
            reads: 1_000_000,
            writes: 1_000_000,
            ..RateLimits::default()
        },
        ..http::Options::default()
    };
    let service = HttpService::new(control, options);
    let socket = UnixListener::bind(folder.join(format!("{number}.sock"))).unwrap();
    let stop = server.stopping();
    server.open_door(service.serve(Listener::Local(socket), stop));
    server
}

/// Every reference stands for an image of that name.
fn images() -> FindImage {
    Arc::new(|wanted| {
        let image = wanted.name;
        let digest = format!("sha256:{}", Digest::of(image.as_bytes()));
        Box::pin(std::future::ready(Ok(ResolvedImage {
            image_ref: image,
            index_or_manifest_digest: digest.clone(),
            resolved_digests: vec![ResolvedDigest {
                os: "linux".to_owned(),
                arch: "amd64".to_owned(),
                digest,
            }],
            compressed_bytes: 1 << 20,
        })))
    })
}

/// Exactly one won, and everybody else was told why in one of these words.
fn one_winner(what: &str, ends: &[Result<String, String>], codes: &[&str]) {
    let won = ends.iter().filter(|end| end.is_ok()).count();
    assert_eq!(won, 1, "{what}: {ends:?}");
    for end in ends.iter().filter_map(|end| end.as_ref().err()) {
        assert!(codes.contains(&end.as_str()), "{what}: {ends:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_there_is_one_of_goes_to_one() {
    let pair = Pair::start().await;
    pair.crew().join(1).await;
    for app in ["shop", "till"] {
        pair.send(Operation::CreateApp, &["local"], json!({"name": app}))
            .await;
        pair.send(
            Operation::CreateEnv,
            &["local", app],
            json!({"name": "dev"}),
        )
        .await;
        let manifest = "schema_version = \"v1\"\n\
            [processes.web]\nreplicas = 0\nports = [{ internal = 8080 }]\n\
            resources = { memory = \"64MiB\" }\n";
        let body = json!({"image": "registry.example/app:1", "manifest": manifest});
        let release = pair
            .send(Operation::CreateRelease, &["local", app], body)
            .await;
        let body = json!({"release_id": release["id"]});
        pair.send(Operation::CreateDeploy, &["local", app, "dev"], body)
            .await;
    }

    // The last place of a quota.
    let client = pair.client(0).await;
    let quotas = client
        .call(Ask::new(Operation::GetQuotas, &["local"]))
        .await;
    let version = quotas.unwrap().value["version"].as_u64().unwrap();
    let limit = json!({"limits": {"apps": 3}});
    let ask = Ask::new(Operation::SetQuotas, &["local"]).body(&limit);
    client.call(ask.if_match(version)).await.unwrap();
    let asks = (0..RACERS).map(|number| {
        let body = json!({"name": format!("app-{number}")});
        Racer::new(Operation::CreateApp, &["local"], body)
    });
    let ends = pair.race(asks.collect()).await;
    one_winner("the last app", &ends, &["quota_exceeded"]);

    // A hostname that is proven from the start, wanted by two apps.
    let asks = (0..RACERS).map(|number| {
        let app = ["shop", "till"][number / 2 % 2];
        let body = json!({
            "hostname": "one.apps.example.com", "listen_port": 443,
            "protocol_hint": "tls_passthrough", "backend_process": "web", "backend_port": 8080,
        });
        Racer::new(Operation::CreateRoute, &["local", app, "dev"], body)
    });
    let ends = pair.race(asks.collect()).await;
    let won = ends.iter().filter(|end| end.is_ok()).count();
    assert_eq!(won, 1, "a hostname: {ends:?}");
    let lost = ends.iter().filter_map(|end| end.as_ref().err());
    for code in lost {
        assert!(
            ["hostname_taken", "port_taken"].contains(&code.as_str()),
            "{ends:?}"
        );
    }

    // The single writer of a volume.
    let body = json!({"name": "data", "size_bytes": 1_u64 << 30});
    let volume = pair.send(Operation::CreateVolume, &["local"], body).await;
    let id = volume["id"].as_str().unwrap();
    pair.crew().provide(id).await;
    let asks = (0..RACERS).map(|number| {
        let process = format!("job-{number}");
        let body = json!({"volume_id": id, "process": process, "mount_path": "/data"});
        Racer::new(Operation::CreateAttachment, &["local", "shop", "dev"], body)
    });
    let ends = pair.race(asks.collect()).await;
    one_winner("a volume", &ends, &["volume_attached"]);

    // A key: the same request is done once, and everybody gets its answer.
    let asks = (0..RACERS).map(|_| {
        let body = json!({"name": "team"});
        Racer::new(Operation::CreateProject, &["local"], body).with_key("the-same-key-1")
    });
    let ends = pair.race(asks.collect()).await;
    let made: BTreeSet<&String> = ends.iter().filter_map(|end| end.as_ref().ok()).collect();
    assert_eq!(made.len(), 1, "{ends:?}");
    for code in ends.iter().filter_map(|end| end.as_ref().err()) {
        assert_eq!(code, "idempotency_in_progress", "{ends:?}");
    }
    // Other requests with one key: one of them, whoever came first.
    let asks = (0..RACERS).map(|number| {
        let body = json!({"name": format!("team-{number}")});
        Racer::new(Operation::CreateProject, &["local"], body).with_key("the-same-key-2")
    });
    let ends = pair.race(asks.collect()).await;
    // On a busy machine the first may still be at it when others give up asking.
    let told = ["idempotency_key_reuse", "idempotency_in_progress"];
    one_winner("a key", &ends, &told);

    // The control: with a key each, and room for all, everybody wins.
    let asks = (0..RACERS).map(|number| {
        let body = json!({"name": format!("free-{number}")});
        Racer::new(Operation::CreateProject, &["local"], body)
    });
    let ends = pair.race(asks.collect()).await;
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    // Both replicas know the same of it, up to the last write.
    let ask = Ask::new(Operation::CreateProject, &["local"]).body(&json!({"name": "last"}));
    client.call(ask).await.unwrap();
    let last = client.seen().unwrap();
    let mut seen = BTreeSet::new();
    for number in 0..2 {
        let client = pair.client(number).await;
        client.remember(last);
        let ask = Ask::new(Operation::ListProjects, &["local"]).query("limit", "200");
        let all: Vec<Value> = client.list(ask).await.unwrap();
        let names: BTreeSet<String> = all.iter().map(|it| it["name"].to_string()).collect();
        assert_eq!(names.len(), RACERS + 3);
        seen.insert(names);
    }
    assert_eq!(seen.len(), 1);
    pair.stop().await;
}

/// A token that takes an approval, as soon as every replica can read of it.
async fn careful(pair: &Pair) -> String {
    let deadline = Instant::now() + Duration::from_secs(120);
    let body = json!({"require_approval": true});
    loop {
        let ask = Ask::new(Operation::CreateEnrollmentToken, &[]).body(&body);
        match pair.client(0).await.call(ask).await {
            Ok(made) => return made.value["id"].as_str().unwrap().to_owned(),
            Err(CallError::Refused(problem)) if problem.code == "unavailable" => {}
            Err(error) => panic!("{error}"),
        }
        assert!(
            Instant::now() < deadline,
            "replicas agree on what they read"
        );
        sleep(Duration::from_millis(500)).await;
    }
}

/// What a replica says to a machine: what came of it, or the refusal's code.
async fn says(server: &Server, token: &str, number: u128) -> String {
    let crew = Crew {
        platform: server.platform().clone(),
    };
    let asked = RuntimeNotice::Enroll(Box::new(enrolment(number, token)));
    match crew.notice(asked).await {
        Outcome::Done { subject, .. } => subject.kind.to_owned(),
        Outcome::Refused(refusal) => refusal.code.to_owned(),
        other => panic!("{other:?}"),
    }
}

/// A machine asks one replica, operators answer another, and a third word is
/// too late; all of it is on record, so no replica has to be there later.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_machine_that_waits_is_decided_about_once_at_any_replica() {
    let pair = Pair::start().await;
    for (number, may_join) in [(1, true), (2, false)] {
        let token = careful(&pair).await;
        let [one, other] = &pair.servers[..] else {
            panic!("two replicas");
        };
        assert_eq!(says(one, &token, number).await, PENDING);
        assert_eq!(says(other, &token, number).await, PENDING);
        let operation = match may_join {
            true => Operation::ApproveEnrollment,
            false => Operation::RefuseEnrollment,
        };
        let racers = (0..RACERS).map(|_| Racer::new(operation, &[&token], Value::Null));
        let ends = pair.race(racers.collect()).await;
        one_winner("the decision", &ends, &["invalid_transition"]);
        let said = says(other, &token, number).await;
        assert_eq!(said, if may_join { "node" } else { "policy_denied" });
        // What it was let in with is used up, wherever it is shown.
        if may_join {
            assert_eq!(says(one, &token, 9).await, "forbidden");
        }
    }
    let crew = pair.crew();
    assert_eq!(crew.state(|state| state.runtime.nodes.len()), 1);
    pair.stop().await;
}
