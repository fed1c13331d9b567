//! A control plane, an agent and its guests in one process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::node::join::{EnrolError, Enrolling, enrol};
use fluffy_api::node::{EnrolmentToken, v1};
use fluffy_base::Digest;
use fluffy_base::id::RequestId;
use fluffy_contract::BoxFuture;
use fluffy_control::call::{ResolvedImage, Subject};
use fluffy_control::event::ResolvedDigest;
use fluffy_control::{Caller, CallerKind, Outcome, State};
use fluffy_ledger::{Actor, ActorKind, LedgerOptions};
use fluffy_node::driver::InstanceDriver;
use fluffy_node::home::Credentials;
use fluffy_node::images::{ImageConfig, Images, Stock};
use fluffy_node::{Agent, Handle, RunError, Running, Settings, Status};
use fluffy_planner::lifecycle::{DeployState, InstanceStatus};
use fluffy_server::backend::Control;
use fluffy_server::exec::Execs;
use fluffy_server::hashes::Hashes;
use fluffy_server::http::{Asked, Backend as _};
use fluffy_server::loops::lease::Timing;
use fluffy_server::material::Workshop;
use fluffy_server::node::NodeDoor;
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::safe::Safe;
use fluffy_server::server::{Options, Server};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use crate::double::Double;

/// How long anything may take on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

pub(crate) const ENV: [&str; 3] = ["local", "shop", "dev"];

/// What an agent is made of.
type Parts = (Settings, Credentials, Vec<Arc<dyn InstanceDriver>>, Images);

/// A server.
struct Replica {
    server: Server,
    control: Control,
    door: NodeDoor,
}

/// A server, an agent, guests.
pub(crate) struct Cluster {
    pub(crate) double: Double,
    replica: Option<Replica>,
    agent: Option<(Handle, JoinHandle<()>)>,
    port: u16,
    releases: u32,
    /// Whether the image store fails when an instance is found again.
    pub(crate) pins_fail: Arc<AtomicBool>,
    /// Whether images come; whoever waits for one listens.
    pub(crate) images_come: watch::Sender<bool>,
    folder: TempDir,
    run: TempDir,
}

impl Cluster {
    /// A platform with an app and an env, and no node yet.
    pub(crate) async fn start() -> Self {
        let mut cluster = Self {
            double: Double::default(),
            replica: None,
            agent: None,
            port: 0,
            releases: 0,
            pins_fail: Arc::default(),
            images_come: watch::Sender::new(true),
            folder: tempfile::tempdir().unwrap(),
            run: tempfile::Builder::new()
                .prefix("fw")
                .tempdir_in("/tmp")
                .unwrap(),
        };
        cluster.start_server().await;
        let app = json!({"name": "shop"});
        cluster.write(Operation::CreateApp, &ENV[..1], app).await;
        let env = json!({"name": "dev"});
        cluster.write(Operation::CreateEnv, &ENV[..2], env).await;
        cluster
    }

    pub(crate) async fn start_server(&mut self) {
        let options = Options {
            storage: Storage::Directory(self.folder.path().join("data")),
            ledger: LedgerOptions::default(),
            founder: Founder::Local,
            timing: Timing::default(),
        };
        let mut server = Server::start(options).await.unwrap();
        let platform = server.platform().clone();
        let keys = self.folder.path().join("keys");
        let (safe, error) = Safe::open(platform.aside().clone(), &keys);
        assert!(error.is_none(), "{error:?}");
        let names = ["localhost".to_owned()];
        let door = NodeDoor::open(&platform, &safe, &names).await.unwrap();
        let listener = eventually("the port is free", async || {
            TcpListener::bind(("127.0.0.1", self.port)).await.ok()
        });
        let listener = listener.await;
        self.port = listener.local_addr().unwrap().port();
        server.open_door(door.clone().run(listener, server.stopping()));
        let hashes = Hashes::new(platform.aside().clone());
        let find: fluffy_server::material::FindImage =
            Arc::new(|wanted| Box::pin(async move { Ok(image(&wanted.name)) }));
        let nodes = door.server();
        let execs = Execs::new(platform.clone(), safe.clone(), nodes.clone());
        let workshop = Workshop::new(hashes, safe, find);
        let control = Control::new(platform, workshop, (execs, nodes.logs()), None);
        self.replica = Some(Replica {
            server,
            control,
            door,
        });
    }

    pub(crate) async fn stop_server(&mut self) {
        self.replica.take().unwrap().server.stop().await;
    }

    fn replica(&self) -> &Replica {
        self.replica.as_ref().unwrap()
    }

    /// The node's own folder.
    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().join("node")
    }

    /// Starts the agent; it enrols the first time.
    pub(crate) async fn node(&mut self) {
        let (settings, credentials, drivers, images) = self.parts().await;
        let opened = Agent::open(settings, credentials, drivers, images).await;
        let (agent, handle) = opened.unwrap();
        self.agent = Some((handle, tokio::spawn(agent.run())));
    }

    /// Starts an agent that is kept running, and fails whenever that is said.
    pub(crate) async fn kept(
        &mut self,
        fail: Arc<Notify>,
    ) -> (oneshot::Sender<()>, JoinHandle<()>) {
        let (settings, credentials, drivers, images) = self.parts().await;
        let open = move || -> BoxFuture<'static, Result<Running, RunError>> {
            let (settings, credentials) = (settings.clone(), credentials.clone());
            let opened = Agent::open(settings, credentials, drivers.clone(), images.clone());
            let fail = Arc::clone(&fail);
            Box::pin(async move {
                let (agent, handle) = opened.await?;
                let running: BoxFuture<'static, ()> = Box::pin(async move {
                    tokio::select! {
                        () = agent.run() => {}
                        () = fail.notified() => panic!("as was asked for"),
                    }
                });
                Ok((running, handle))
            })
        };
        let first = open().await.unwrap();
        let (halt, halted) = oneshot::channel();
        let kept = fluffy_node::keep_running(first, open, halted);
        (halt, tokio::spawn(kept))
    }

    async fn parts(&mut self) -> Parts {
        let folder = self.folder();
        let drivers: Vec<Arc<dyn InstanceDriver>> = vec![Arc::new(self.double.clone())];
        let credentials = match Credentials::read(&folder).unwrap() {
            Some(known) => known,
            None => {
                let (_, once) = self
                    .write(Operation::CreateEnrollmentToken, &[], json!({}))
                    .await;
                let enrolling = Enrolling {
                    server: ("localhost".to_owned(), self.port),
                    pin: self.replica().door.server().pin(),
                    token: EnrolmentToken::parse(once["secret"].as_str().unwrap()).unwrap(),
                    role: v1::Role::Worker,
                    underlay: Some("127.0.0.1".parse().unwrap()),
                    facts: fluffy_node::facts(&drivers).await,
                    former_node_id: String::new(),
                    fingerprint: Vec::new(),
                };
                let servers = vec![format!("localhost:{}", self.port)];
                let made = Credentials::new(&enrol(&enrolling).await.unwrap(), servers);
                made.keep(&folder).unwrap();
                made
            }
        };
        let settings = Settings {
            folder,
            run: self.run.path().to_owned(),
            region: "here".to_owned(),
            metrics: None,
            other_figures: None,
            collector: None,
        };
        let fails = Arc::clone(&self.pins_fail);
        let come = self.images_come.clone();
        let images = Images {
            ensure: Arc::new(move |_, _, _| {
                let mut come = come.subscribe();
                Box::pin(async move {
                    let _ = come.wait_for(|come| *come).await;
                    Ok((PathBuf::from("/root.erofs"), ImageConfig::default()))
                })
            }),
            pin: Arc::new(move |_, _| assert!(!fails.load(Ordering::SeqCst), "as was asked for")),
            release: Arc::new(|_, _| {}),
            tidy: Arc::new(|_| Ok(Stock::default())),
        };
        (settings, credentials, drivers, images)
    }

    /// How the agent is.
    pub(crate) async fn status(&self) -> Status {
        self.agent.as_ref().unwrap().0.status().await.unwrap()
    }

    /// Does something to the agent's memory behind its back.
    pub(crate) fn sql(&self, sql: &str) {
        let database = rusqlite::Connection::open(self.folder().join("state.db")).unwrap();
        database.execute_batch(sql).unwrap();
    }

    /// Alters every sealed secret, or puts back what was there before.
    pub(crate) async fn alter_secrets(
        &self,
        before: Option<Vec<(String, Vec<u8>)>>,
    ) -> Vec<(String, Vec<u8>)> {
        let aside = self.replica().server.platform().aside().clone();
        let secrets = fluffy_server::aside::Kind::new("secret");
        let now = aside.list(secrets, "", 100).await.unwrap();
        let now: Vec<(String, Vec<u8>)> = now.into_iter().map(|it| (it.key, it.value)).collect();
        let wanted = before.unwrap_or_else(|| {
            let broken = |(key, mut value): (String, Vec<u8>)| {
                // Not the name of its key, which is at an end.
                let middle = value.len() / 2;
                value[middle] ^= 1;
                (key, value)
            };
            now.iter().cloned().map(broken).collect()
        });
        for (key, value) in wanted {
            aside.put(secrets, &key, value, None).await.unwrap();
        }
        now
    }

    /// Tries to enrol a machine that says that it was this node; the code of
    /// the refusal, and the token.
    pub(crate) async fn enrol_as(&self, former: &str) -> (String, String) {
        let token = self
            .write(Operation::CreateEnrollmentToken, &[], json!({}))
            .await;
        let drivers: Vec<Arc<dyn InstanceDriver>> = vec![Arc::new(self.double.clone())];
        let enrolling = Enrolling {
            server: ("localhost".to_owned(), self.port),
            pin: self.replica().door.server().pin(),
            token: EnrolmentToken::parse(token.1["secret"].as_str().unwrap()).unwrap(),
            role: v1::Role::Worker,
            underlay: Some("127.0.0.1".parse().unwrap()),
            facts: fluffy_node::facts(&drivers).await,
            former_node_id: former.to_owned(),
            fingerprint: Vec::new(),
        };
        match enrol(&enrolling).await.unwrap_err() {
            EnrolError::Refused(status) => {
                let code = fluffy_api::node::code_of(&status).unwrap();
                (code.to_owned(), token.0.id)
            }
            other => panic!("{other:?}"),
        }
    }

    /// What events of a type say.
    pub(crate) fn payloads(&self, kind: &str) -> Vec<Value> {
        let platform = self.replica().server.platform();
        let events = platform.ledger().read(1, 100_000).unwrap();
        let of = events.iter().filter(|it| it.event_type.as_str() == kind);
        of.map(|it| it.payload.value().unwrap().clone()).collect()
    }

    /// How many events of a type there are.
    pub(crate) fn events(&self, kind: &str) -> usize {
        let platform = self.replica().server.platform();
        let events = platform.ledger().read(1, 100_000).unwrap();
        events
            .iter()
            .filter(|it| it.event_type.as_str() == kind)
            .count()
    }

    /// When an instance's reports with an exit code say that it was.
    pub(crate) fn exit_times(&self, instance: &str) -> Vec<String> {
        let of = self.changes().into_iter().filter(|(id, _)| id == instance);
        let of = of.filter(|(_, it)| it["exit_code"].is_i64());
        of.map(|(_, it)| it["reported_at"].to_string()).collect()
    }

    /// Ends the agent in the middle of whatever it does.
    pub(crate) async fn kill_agent(&mut self) {
        // Without its handle it would end by itself, in good order.
        let (_handle, task) = self.agent.take().unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }

    /// Ends the agent and what it runs.
    pub(crate) async fn halt_agent(&mut self) {
        let (handle, task) = self.agent.take().unwrap();
        handle.halt().await;
        task.await.unwrap();
    }

    /// Ends everything in good order.
    pub(crate) async fn end(mut self) {
        if let Some((handle, task)) = self.agent.take() {
            handle.leave().await;
            task.await.unwrap();
        }
        self.stop_server().await;
    }

    /// Does something as the owner.
    pub(crate) async fn write(
        &self,
        operation: Operation,
        path: &[&str],
        body: Value,
    ) -> (Subject, Map<String, Value>) {
        let key = RequestId::generate().to_string();
        let asked = Asked {
            caller: owner(),
            request_id: RequestId::generate().to_string(),
            source: "test".to_owned(),
            operation,
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            query: BTreeMap::new(),
            idempotency: Some((key, Digest::of(body.to_string().as_bytes()))),
            body: Some(body),
            if_match: None,
        };
        let wrote = self.replica().control.write(asked).await;
        let wrote = wrote.unwrap_or_else(|error| panic!("{operation:?}: {error:?}"));
        match wrote.outcome {
            Outcome::Done { subject, .. } => (subject, wrote.once),
            other => panic!("{operation:?}: {other:?}"),
        }
    }

    /// Makes a release of these processes and begins to deploy it.
    pub(crate) async fn deploy(&mut self, processes: &str) -> String {
        self.releases += 1;
        let manifest = format!(
            "schema_version = \"v1\"\n[deploy]\nmin_ready_seconds = 0\n{processes}\
             [processes.web.resources]\nmemory = \"64MiB\"\n"
        );
        let image = format!("registry.example/shop:{}", self.releases);
        let body = json!({"image": image, "manifest": manifest});
        let made = self.write(Operation::CreateRelease, &ENV[..2], body).await;
        let body = json!({"release_id": made.0.id});
        self.write(Operation::CreateDeploy, &ENV, body).await.0.id
    }

    fn state<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        let platform = self.replica().server.platform();
        platform.sequencer().read(look)
    }

    fn deploy_state(&self, deploy: &str) -> Option<DeployState> {
        let id = deploy.parse().unwrap();
        self.state(|state| state.runtime.deploys.get(&id).map(|it| it.state))
    }

    pub(crate) async fn reaches(&self, deploy: &str, wanted: DeployState) {
        until(&format!("the deploy is {wanted}"), || {
            let now = self.deploy_state(deploy);
            assert!(now == Some(wanted) || now != Some(DeployState::Failed));
            now == Some(wanted)
        })
        .await;
    }

    pub(crate) fn never(&self, deploy: &str, unwanted: DeployState) {
        assert_ne!(self.deploy_state(deploy), Some(unwanted));
    }

    /// The instances that the server says have a status.
    pub(crate) fn with(&self, status: InstanceStatus) -> Vec<String> {
        self.state(|state| {
            let all = state.runtime.plan.instances.iter();
            let with = all.filter(|(_, it)| it.observed.status == status);
            with.map(|(id, _)| id.to_string()).collect()
        })
    }

    /// Every instance that the agent knows of.
    pub(crate) fn known(&self) -> Vec<String> {
        let path = self.folder().join("state.db");
        let store = fluffy_node::store::Store::open(&path).unwrap();
        let all = store.instances().unwrap();
        all.into_iter().map(|(id, _)| id).collect()
    }

    /// The last boot of each instance, as the server knows it.
    pub(crate) fn boots(&self) -> BTreeMap<String, String> {
        self.state(|state| {
            let all = state.runtime.instances.iter();
            let boot = |(id, it): (
                &fluffy_base::id::InstanceId,
                &fluffy_control::runtime::record::Instance,
            )| { Some((id.to_string(), it.boot?.to_string())) };
            all.filter_map(boot).collect()
        })
    }

    fn changes(&self) -> Vec<(String, Value)> {
        let platform = self.replica().server.platform();
        let events = platform.ledger().read(1, 100_000).unwrap();
        let events = events.into_iter();
        let changed = events.filter(|it| it.event_type.as_str() == "instance.status_changed");
        changed
            .map(|it| (it.aggregate.id.clone(), it.payload.value().unwrap().clone()))
            .collect()
    }

    /// The reasons that instances ever had.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let reason = |(_, it): (String, Value)| Some(it["reason_code"].as_str()?.to_owned());
        self.changes().into_iter().filter_map(reason).collect()
    }

    /// The codes that an instance ever ended with.
    pub(crate) fn exit_codes(&self, instance: &str) -> Vec<i64> {
        let of = self.changes().into_iter().filter(|(id, _)| id == instance);
        of.filter_map(|(_, it)| it["exit_code"].as_i64()).collect()
    }

    /// Waits until the server has a line of an instance.
    pub(crate) async fn printed(&self, instance: &str, line: &str) {
        until(&format!("{instance} printed {line}"), || {
            let lines = self.replica().door.server().logs().of(instance);
            lines.iter().any(|it| it.text.as_ref() == line)
        })
        .await;
    }

    /// Runs a command as a gateway does; what it printed and its exit code.
    pub(crate) async fn exec(&self, instance: &str, command: &[&str]) -> (String, Option<i32>) {
        let node = self.state(|state| {
            let id = instance.parse().unwrap();
            state.runtime.plan.instances.get(&id).unwrap().node
        });
        let open = v1::ExecOpen {
            session_id: "exec_1".to_owned(),
            instance_id: instance.to_owned(),
            command: command.iter().map(|it| (*it).to_owned()).collect(),
            max_seconds: 60,
            ..Default::default()
        };
        let server = self.replica().door.server();
        let mut link = server.exec(node, open).await.unwrap();
        let mut text = Vec::new();
        while let Some(frame) = link.from_node.recv().await {
            match frame {
                v1::exec_from_node::Frame::Stdout(bytes) => text.extend(bytes),
                v1::exec_from_node::Frame::Exit(exit) => {
                    let code = match exit.of {
                        Some(v1::exec_exit::Of::ExitCode(code)) => Some(code),
                        _ => None,
                    };
                    return (String::from_utf8(text).unwrap(), code);
                }
                _ => {}
            }
        }
        panic!("it never ended");
    }
}

fn owner() -> Caller {
    Caller {
        kind: CallerKind::Local,
        actor: Actor::new(ActorKind::User, "local"),
    }
}

fn image(name: &str) -> ResolvedImage {
    let digest = format!("sha256:{}", Digest::of(name.as_bytes()));
    ResolvedImage {
        image_ref: name.to_owned(),
        index_or_manifest_digest: digest.clone(),
        resolved_digests: vec![ResolvedDigest {
            os: "linux".to_owned(),
            arch: "amd64".to_owned(),
            digest,
        }],
        compressed_bytes: 1 << 20,
    }
}

/// The files below a folder that have these bytes in them.
pub(crate) fn search(folder: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(search(&path, bytes));
        } else if let Ok(content) = std::fs::read(&path)
            && content.windows(bytes.len()).any(|part| part == bytes)
        {
            found.push(path);
        }
    }
    found
}

pub(crate) async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + LONG;
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        let in_time = tokio::time::Instant::now() < deadline;
        assert!(in_time, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until something is true.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    eventually(what, async || condition().then_some(())).await;
}
