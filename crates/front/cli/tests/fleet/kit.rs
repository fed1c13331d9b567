//! Servers, nodes and a database of a test's own, each in its own process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, Client, Target};
use fluffy_ledger::{Event, Ledger, LedgerOptions};
use fluffy_node_sim::{Behaviour, Command as Order, control};
use fluffy_test_kit::{FreshDatabase, PrivatePostgres, Seed, TestContext};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::registry;

/// How long anything may take on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// The words of simulated nodes that this program shall be instead of a test.
const NODES: &str = "FLUFFY_FLEET_NODES";

pub(crate) const ENV: [&str; 3] = ["acme", "shop", "dev"];

/// Some servers of one database, and who uses them.
pub(crate) struct Fleet {
    // Ended in this order: who depends on others first.
    pub(crate) nodes: Vec<Nodes>,
    pub(crate) servers: Vec<Server>,
    pub(crate) database: FreshDatabase,
    pub(crate) postgres: PrivatePostgres,
    pub(crate) context: TestContext,
    pub(crate) registry: String,
    pub(crate) token: String,
    refresh: String,
    pin: String,
    pub(crate) ca: String,
}

/// One server as an operator starts it.
pub(crate) struct Server {
    child: Child,
    pub(crate) api: String,
    pub(crate) nodes: String,
    pub(crate) log: PathBuf,
}

/// A process with simulated nodes.
pub(crate) struct Nodes {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(fleet: &Start<'_>, name: &str, listen: (&str, &str), more: &[&str]) -> (Self, Value) {
        let log = fleet.context.home().join(format!("{name}.log"));
        let stderr = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let mut command = fleet.context.command();
        command
            .args(["server", "--json", "--listen", listen.0])
            .args(["--listen-nodes", listen.1])
            .args(["--insecure-registry", fleet.registry])
            .args(more)
            .arg("--keys")
            .arg(fleet.context.home().join("keys"))
            .env("FLUFFY_DATABASE", fleet.database)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let read = lines.read_line(&mut line).unwrap();
        assert!(read > 0, "{}", std::fs::read_to_string(&log).unwrap());
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let started: Value = serde_json::from_str(&line).unwrap();
        let place = |number: usize, scheme: &str| {
            let text = started["listening"][number].as_str().unwrap();
            text.strip_prefix(scheme).unwrap().to_owned()
        };
        let server = Self {
            child,
            api: place(0, "https://"),
            nodes: place(1, "grpc://"),
            log,
        };
        (server, started)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it like a power cut.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it as systemd does.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        self.child.wait().unwrap();
    }

    fn port(&self) -> String {
        self.nodes.rsplit_once(':').unwrap().1.to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a server needs to start.
struct Start<'a> {
    context: &'a TestContext,
    registry: &'a str,
    database: &'a str,
}

impl Fleet {
    /// Starts servers over an empty database; its owner is logged in, and there
    /// is an app with an env.
    pub(crate) async fn start(servers: usize) -> Self {
        let context = TestContext::new(env!("CARGO_BIN_EXE_fluffy")).unwrap();
        let postgres = PrivatePostgres::start().unwrap();
        let database = FreshDatabase::create_in(&postgres).unwrap();
        let registry = registry::start();
        let start = Start {
            context: &context,
            registry: &registry,
            database: database.url(),
        };
        let begin = |number: usize| {
            let (name, api, nodes) = (format!("server-{number}"), free(), free());
            Server::start(&start, &name, (&api, &nodes), &[])
        };
        let (first, started) = begin(0);
        let mut all = vec![first];
        all.extend((1..servers).map(|number| begin(number).0));
        let text = |name: &str| started[name].as_str().unwrap().to_owned();
        let ca = std::fs::read_to_string(text("ca")).unwrap();
        let mut fleet = Self {
            nodes: Vec::new(),
            servers: all,
            database,
            postgres,
            registry,
            token: String::new(),
            refresh: String::new(),
            pin: text("pin"),
            ca,
            context,
        };
        let login = json!({"grant_type": "invite", "code": text("invite")});
        fleet.log_in(login).await;
        fleet
            .send(0, Operation::CreateOrg, &[], json!({"slug": "acme"}))
            .await;
        let app = json!({"name": "shop"});
        fleet.send(0, Operation::CreateApp, &["acme"], app).await;
        let env = json!({"name": "dev"});
        fleet.send(0, Operation::CreateEnv, &ENV[..2], env).await;
        fleet
    }

    async fn log_in(&mut self, login: Value) {
        let pair = self.send(0, Operation::ExchangeToken, &[], login).await;
        let text = |name: &str| pair[name].as_str().unwrap().to_owned();
        (self.token, self.refresh) = (text("access_token"), text("refresh_token"));
    }

    /// Goes on being logged in, in a long run.
    pub(crate) async fn stay(&mut self) {
        let refresh = self.refresh.clone();
        let login = json!({"grant_type": "refresh_token", "refresh_token": refresh});
        self.log_in(login).await;
    }

    /// Starts a server again where it was.
    pub(crate) fn restart(&mut self, server: usize, more: &[&str]) {
        let old = &self.servers[server];
        let (api, nodes) = (old.api.clone(), old.nodes.clone());
        let start = Start {
            context: &self.context,
            registry: &self.registry,
            database: self.database.url(),
        };
        let name = format!("server-{server}");
        let (new, _) = Server::start(&start, &name, (&api, &nodes), more);
        self.servers[server] = new;
    }

    /// A machine that becomes a node; it tries the servers in this order.
    pub(crate) async fn join(&mut self, behaviour: &Behaviour, servers: &[usize]) {
        let made = self.send(0, Operation::CreateEnrollmentToken, &[], json!({}));
        let token = made.await["secret"].as_str().unwrap().to_owned();
        let home = self
            .context
            .home()
            .join(format!("node-{}", self.nodes.len()));
        let ports = servers.iter().map(|server| self.servers[*server].port());
        let nodes = Nodes::start(&home, &token, &self.pin, ports, behaviour);
        self.nodes.push(nodes);
    }

    pub(crate) async fn client(&self, server: usize) -> Result<Client, CallError> {
        self.bearer(server, &self.token).await
    }

    /// Somebody with a token, at a server.
    pub(crate) async fn bearer(&self, server: usize, token: &str) -> Result<Client, CallError> {
        let address = &self.servers[server].api;
        let target = Target::Https {
            url: format!("https://{address}"),
            ca: Some(self.ca.clone()),
        };
        let client = Client::connect(target).await?;
        Ok(match token.is_empty() {
            true => client,
            false => client.with_token(token.to_owned().into()),
        })
    }

    /// Does something as the owner, again while the servers are not well.
    pub(crate) async fn send(
        &self,
        server: usize,
        operation: Operation,
        path: &[&str],
        body: Value,
    ) -> Value {
        let key = fluffy_base::id::RequestId::generate().to_string();
        let is_login = operation == Operation::ExchangeToken;
        eventually(&format!("{operation:?}"), async || {
            let client = self.client(server).await.ok()?;
            let mut ask = Ask::new(operation, path);
            if !body.is_null() {
                ask = ask.body(&body);
            }
            if !is_login {
                ask = ask.key(&key);
            }
            match client.call(ask).await {
                Ok(answer) => Some(answer.value),
                Err(CallError::Refused(problem)) if !matches!(problem.status, 429 | 503) => {
                    panic!("{operation:?}: {problem:?}")
                }
                Err(_) => None,
            }
        })
        .await
    }

    /// Reads something as the owner.
    pub(crate) async fn read(&self, server: usize, operation: Operation, path: &[&str]) -> Value {
        eventually(&format!("{operation:?}"), async || {
            let client = self.client(server).await.ok()?;
            let answer = client.call(Ask::new(operation, path)).await.ok()?;
            Some(answer.value)
        })
        .await
    }

    /// Makes a release of so many instances and begins to deploy it.
    pub(crate) async fn deploy(&self, server: usize, version: &str, replicas: u32) -> String {
        let manifest = format!(
            "schema_version = \"v1\"\n\
             [deploy]\nmin_ready_seconds = 0\n\
             [processes.web]\ncommand = [\"serve\", \"{version}\"]\nreplicas = {replicas}\n\
             [processes.web.resources]\nmemory = \"64MiB\"\n"
        );
        let image = format!("{}/shop:{version}", self.registry);
        let body = json!({"image": image, "manifest": manifest});
        let made = self.send(server, Operation::CreateRelease, &ENV[..2], body);
        let body = json!({"release_id": made.await["id"]});
        let deploy = self.send(server, Operation::CreateDeploy, &ENV, body).await;
        deploy["id"].as_str().unwrap().to_owned()
    }

    /// Waits until a deploy is through, as this server sees it.
    pub(crate) async fn succeeds(&self, server: usize, deploy: &str) {
        let path = [ENV[0], ENV[1], ENV[2], deploy];
        eventually(&format!("{deploy} succeeds"), async || {
            let shown = self.read(server, Operation::GetDeploy, &path).await;
            assert_ne!(shown["status"], "failed", "{shown}");
            (shown["status"] == "succeeded").then_some(())
        })
        .await;
    }

    /// Waits until a deploy has begun to replace instances and is not through.
    pub(crate) async fn middle(&self, deploy: &str) {
        let ledger = self.ledger().await;
        let of_deploy = |event: &Event| event.correlation_id.as_deref() == Some(deploy);
        eventually(&format!("{deploy} begins"), async || {
            let events = events(&ledger);
            let allocated = events
                .iter()
                .filter(|event| of_deploy(event) && event.event_type == "instance.allocated");
            (allocated.count() > 0).then_some(())
        })
        .await;
    }

    /// The instances that are ready and wanted.
    pub(crate) async fn ready(&self, server: usize) -> BTreeSet<String> {
        let shown = self.read(server, Operation::ListInstances, &ENV).await;
        let items = shown["items"].as_array().unwrap().clone();
        let ready = items.iter().filter(|it| {
            it["observed"]["status"] == "ready" && it["desired"]["state"] == "running"
        });
        ready
            .map(|it| it["id"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The ledger, as somebody with the database reads it.
    pub(crate) async fn ledger(&self) -> Ledger {
        let url = self.database.url().to_owned();
        eventually("the ledger can be read", async || {
            let address = url.parse().unwrap();
            let open = move || Ledger::open_postgres(&address, LedgerOptions::default());
            tokio::task::spawn_blocking(open).await.unwrap().ok()
        })
        .await
    }

    /// The server that leads a loop, by what is kept beside the ledger.
    pub(crate) async fn leader(&self) -> usize {
        eventually("somebody leads", async || {
            let sql = "SELECT encode(value, 'escape') FROM fluffy_aside.leases \
                       JOIN fluffy_aside.entries ON key = holder AND kind = 'replica' \
                       WHERE name = 'scheduler' AND leases.expires > fluffy_aside.now_ms()";
            let place = self.database.sql(sql).ok()?;
            let servers = self.servers.iter();
            servers
                .map(|it| &it.api)
                .position(|api| place.contains(api))
        })
        .await
    }

    /// The same, if somebody leads; `before` if not.
    pub(crate) async fn leader_beside(&self, before: usize) -> usize {
        let now = tokio::time::timeout(Duration::from_secs(1), self.leader()).await;
        now.unwrap_or(before)
    }

    /// What holds however the servers were treated, once everything is calm.
    pub(crate) async fn check(&self, replicas: usize) {
        let allocated = self.check_ledger(replicas).await;
        for (instance, count) in self.started().await {
            assert_eq!(count, 1, "{instance} was started more than once");
            assert!(allocated.contains_key(&instance), "{instance}");
        }
        self.check_views().await;
    }

    /// By the ledger nothing was done twice; how often each instance was made.
    pub(crate) async fn check_ledger(&self, replicas: usize) -> BTreeMap<String, usize> {
        let ledger = self.ledger().await;
        let mut allocated: BTreeMap<String, usize> = BTreeMap::new();
        let (mut live, mut term) = (BTreeSet::new(), BTreeMap::new());
        let mut succeeded = BTreeSet::new();
        for event in events(&ledger) {
            let id = event.aggregate.id.clone();
            let payload = event.payload.value().unwrap();
            match event.event_type.as_str() {
                "instance.allocated" => {
                    *allocated.entry(id.clone()).or_default() += 1;
                    live.insert(id);
                }
                "instance.status_changed" if payload["status"] == "stopped" => {
                    live.remove(&id);
                }
                "deploy.status_changed" if payload["status"] == "succeeded" => {
                    assert!(succeeded.insert(id), "a deploy succeeds once");
                }
                "leader.acquired" => {
                    let epoch = payload["epoch"].as_u64().unwrap();
                    let before = term.insert(id, epoch).unwrap_or(0);
                    assert_eq!(epoch, before + 1, "terms follow one another");
                }
                _ => {}
            }
            let most = replicas + 1;
            assert!(live.len() <= most, "{} at event {}", live.len(), event.seq);
        }
        assert!(allocated.values().all(|count| *count == 1), "{allocated:?}");
        allocated
    }

    /// Every server's views are what a rebuild gives, and so each other's.
    pub(crate) async fn check_views(&self) {
        for server in 0..self.servers.len() {
            let path = &[];
            let done = self.send(server, Operation::RebuildViews, path, json!({}));
            let done = done.await;
            assert_eq!(done["status"], "succeeded", "{done}");
        }
    }

    /// How often each instance was started, on all nodes together.
    pub(crate) async fn started(&self) -> BTreeMap<String, u64> {
        let mut started: BTreeMap<String, u64> = BTreeMap::new();
        for nodes in &self.nodes {
            let status = nodes.status().await;
            for (instance, count) in status["started"].as_object().unwrap() {
                *started.entry(instance.clone()).or_default() += count.as_u64().unwrap();
            }
        }
        started
    }
}

impl Nodes {
    fn start(
        home: &Path,
        token: &str,
        pin: &str,
        ports: impl Iterator<Item = String>,
        behaviour: &Behaviour,
    ) -> Self {
        let (tokens, socket) = (home.with_extension("token"), home.with_extension("socket"));
        std::fs::write(&tokens, token).unwrap();
        let text = |path: &Path| path.display().to_string();
        let mut words = vec!["fluffy-node-sim".to_owned()];
        words.extend(ports.flat_map(|port| ["--port".to_owned(), port]));
        words.extend(
            [
                ("--ca-pin", pin.to_owned()),
                ("--token-file", text(&tokens)),
                ("--home", text(home)),
                ("--control", text(&socket)),
                ("--underlay", "127.0.0.1".to_owned()),
                ("--heartbeat-ms", "500".to_owned()),
                ("--behaviour", serde_json::to_string(behaviour).unwrap()),
            ]
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value]),
        );
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["nodes_in_a_process_of_their_own", "--exact"])
            .env(NODES, serde_json::to_string(&words).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, socket }
    }

    /// Has the node do something; how it is then.
    pub(crate) async fn order(&self, order: Order) -> Value {
        let answer = eventually("the node answers", async || {
            control(&self.socket, &order).await.ok()
        });
        answer.await["nodes"][0].clone()
    }

    pub(crate) async fn status(&self) -> Value {
        self.order(Order::Status {}).await
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Simulated nodes, if this process is to be some.
pub(crate) fn be_nodes() {
    let Ok(words) = std::env::var(NODES) else {
        return;
    };
    let words: Vec<String> = serde_json::from_str(&words).unwrap();
    let words = words.into_iter().map(Into::into).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(fluffy_node_sim::run(words)).unwrap();
}

/// An address that is free, and stays so for a server that starts again: no
/// connection is given a port below those that the system hands out.
fn free() -> String {
    loop {
        let port = 20_000 + Seed::random().value() % 12_000;
        let address = format!("127.0.0.1:{port}");
        if std::net::TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

/// Everything in a ledger.
pub(crate) fn events(ledger: &Ledger) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    loop {
        let after = all.last().map_or(1, |event| event.seq + 1);
        match ledger.read(after, 1_000) {
            Ok(more) if more.is_empty() => return all,
            Ok(more) => all.extend(more),
            // The database may be away for a moment.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Waits until something is there.
pub(crate) async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        // Not more often: calls are counted.
        sleep(Duration::from_millis(150)).await;
    }
}
