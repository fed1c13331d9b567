//! Simulated nodes and the real control plane: from a token to a roll-out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, ChangeKind, Client, Target, Watch};
use fluffy_api::node::dial::dial;
use fluffy_api::node::{code_of, v1};
use fluffy_base::id::{InstanceId, NodeId, RequestId, SecretVersionId};
use fluffy_base::{Digest, SystemClock};
use fluffy_control::call::{ResolvedImage, Subject};
use fluffy_control::event::ResolvedDigest;
use fluffy_control::{Caller, CallerKind, Outcome, State};
use fluffy_ledger::{Actor, ActorKind, LedgerOptions};
use fluffy_node_sim::{Behaviour, Command};
use fluffy_planner::lifecycle::{DeployState, InstanceStatus, NodeState};
use fluffy_server::backend::Control;
use fluffy_server::exec::Execs;
use fluffy_server::hashes::Hashes;
use fluffy_server::http::{Asked, Backend as _, HttpService, Listener};
use fluffy_server::logs::Keeping;
use fluffy_server::loops::lease::Timing;
use fluffy_server::material::Workshop;
use fluffy_server::node::NodeDoor;
use fluffy_server::platform::{Founder, Platform, Storage};
use fluffy_server::safe::Safe;
use fluffy_server::server::{Options, Server};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};

use crate::kit::{Home, Sim, eventually, nodes, until};

/// A whole replica on files of its own.
pub(crate) struct Replica {
    pub(crate) server: Server,
    pub(crate) control: Control,
    pub(crate) door: NodeDoor,
    pub(crate) port: u16,
}

impl Replica {
    pub(crate) async fn start(folder: &TempDir, port: u16) -> Self {
        let options = Options {
            storage: Storage::Directory(folder.path().join("data")),
            ledger: LedgerOptions::default(),
            founder: Founder::Local,
            timing: Timing::default(),
        };
        let mut server = Server::start(options).await.unwrap();
        let platform = server.platform().clone();
        let (safe, error) = Safe::open(platform.aside().clone(), &folder.path().join("keys"));
        assert!(error.is_none(), "{error:?}");
        let names = ["localhost".to_owned()];
        let door = NodeDoor::open(&platform, &safe, &names).await.unwrap();
        let keeping = Keeping {
            folder: folder.path().join("logs"),
            retention: Duration::from_secs(7 * 24 * 3600),
            most: None,
        };
        let logs = door.server().logs();
        logs.keep_in(keeping, Arc::new(SystemClock)).await.unwrap();
        let listener = eventually("the port is free", || {
            TcpListener::bind(("127.0.0.1", port))
        });
        let listener = listener.await;
        let port = listener.local_addr().unwrap().port();
        server.open_door(door.clone().run(listener, server.stopping()));
        let hashes = Hashes::new(platform.aside().clone());
        let find_image: fluffy_server::material::FindImage =
            Arc::new(|wanted| Box::pin(async move { Ok(image(&wanted.name)) }));
        let nodes = door.server();
        let execs = Execs::new(platform.clone(), safe.clone(), nodes.clone());
        let workshop = Workshop::new(hashes, safe, find_image);
        let control = Control::new(platform, workshop, (execs, nodes.logs()), None);
        Self {
            server,
            control,
            door,
            port,
        }
    }

    fn platform(&self) -> &Platform {
        self.server.platform()
    }

    pub(crate) fn state<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        self.platform().sequencer().read(look)
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
            caller: Caller {
                kind: CallerKind::Local,
                actor: Actor::new(ActorKind::User, "local"),
            },
            request_id: RequestId::generate().to_string(),
            source: "test".to_owned(),
            operation,
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            query: BTreeMap::new(),
            idempotency: Some((key, Digest::of(body.to_string().as_bytes()))),
            body: Some(body),
            if_match: None,
        };
        let wrote = self.control.write(asked).await.unwrap();
        match wrote.outcome {
            Outcome::Done { subject, .. } => (subject, wrote.once),
            other => panic!("{operation:?}: {other:?}"),
        }
    }

    pub(crate) async fn token(&self) -> String {
        let (_, once) = self
            .write(Operation::CreateEnrollmentToken, &[], json!({}))
            .await;
        once["secret"].as_str().unwrap().to_owned()
    }

    /// A release of `shop` with this many instances that need secrets.
    pub(crate) async fn release(&self, version: &str, replicas: u32) -> String {
        let manifest = format!(
            "schema_version = \"v1\"\n\
             [deploy]\nmin_ready_seconds = 0\n\
             [processes.web]\ncommand = [\"serve\", \"{version}\"]\nreplicas = {replicas}\n\
             [processes.web.secrets]\nrequired = true\n\
             [processes.web.resources]\nmemory = \"64MiB\"\n"
        );
        let body = json!({"image": format!("registry.example/{version}:1"), "manifest": manifest});
        let made = self.write(Operation::CreateRelease, &["local", "shop"], body);
        made.await.0.id
    }

    /// An app with an env and secrets.
    pub(crate) async fn shop(&self) {
        let app = json!({"name": "shop"});
        self.write(Operation::CreateApp, &["local"], app).await;
        let env = json!({"name": "dev"});
        self.write(Operation::CreateEnv, &["local", "shop"], env)
            .await;
        let secrets = json!({"values": {"PASSWORD": "hunter2"}});
        let path = &["local", "shop", "dev"];
        self.write(Operation::ReplaceSecrets, path, secrets).await;
    }

    pub(crate) async fn deploy(&self, release: &str) -> String {
        let (path, body) = (&["local", "shop", "dev"], json!({"release_id": release}));
        self.write(Operation::CreateDeploy, path, body).await.0.id
    }

    pub(crate) async fn succeeds(&self, deploy: &str) {
        let id = deploy.parse().unwrap();
        until("the deploy succeeded", || {
            let state = self.state(|state| state.runtime.deploys.get(&id).map(|it| it.state));
            assert_ne!(state, Some(DeployState::Failed));
            state == Some(DeployState::Succeeded)
        })
        .await;
    }

    /// The instances that run and are wanted, with their nodes.
    pub(crate) fn ready(&self) -> BTreeMap<InstanceId, NodeId> {
        self.state(|state| {
            let all = state.runtime.plan.instances.iter();
            let ready =
                all.filter(|(_, it)| it.is_wanted() && it.observed.status == InstanceStatus::Ready);
            ready.map(|(id, it)| (*id, it.node)).collect()
        })
    }

    pub(crate) fn home<'a>(&self, folder: &'a PathBuf) -> Home<'a> {
        Home {
            port: self.port,
            pin: self.door.server().pin(),
            folder,
            cached: Vec::new(),
        }
    }

    /// How often something is in the ledger.
    pub(crate) fn count(&self, what: impl Fn(&fluffy_ledger::Event) -> bool) -> usize {
        let ledger = self.platform().ledger();
        let events = ledger.read(1, 100_000).unwrap();
        events.iter().filter(|event| what(event)).count()
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

pub(crate) fn join(home: &Home<'_>, tokens: &[String], nodes: usize) -> Sim {
    let quick = Behaviour::default();
    tokio::task::block_in_place(|| Sim::join(home, tokens, nodes, &quick))
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_join_run_what_is_deployed_and_are_shut_out() {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::start(&folder, 0).await;
    let sims = folder.path().join("sim");
    let tokens = [replica.token().await, replica.token().await];
    let sim = join(&replica.home(&sims), &tokens, 2);
    until("both are active", || {
        replica.state(|state| {
            let nodes = &state.runtime.plan.nodes;
            nodes
                .values()
                .filter(|node| node.state == NodeState::Active)
                .count()
                == 2
        })
    })
    .await;
    replica.shop().await;
    let first = replica.release("one", 3).await;
    replica.succeeds(&replica.deploy(&first).await).await;
    let before = replica.ready();
    assert_eq!(before.len(), 3);
    assert_eq!(
        before
            .values()
            .copied()
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        2
    );
    // Each instance got its secrets by a recorded decision.
    let fetched = |outcome: &'static str| {
        replica.count(|event| {
            let payload: Value = serde_json::from_str(event.payload.as_str()).unwrap();
            payload["capability"] == "secret.material" && payload["outcome"] == outcome
        })
    };
    assert_eq!((fetched("allow"), fetched("deny")), (3, 0));

    secrets_go_to_their_instance_alone(&replica, &sims, &before).await;
    assert_eq!((fetched("allow"), fetched("deny")), (4, 4));

    let second = replica.release("two", 3).await;
    replica.succeeds(&replica.deploy(&second).await).await;
    let after = replica.ready();
    assert_eq!(after.len(), 3);
    assert!(
        after.keys().all(|id| !before.contains_key(id)),
        "all are new"
    );

    // A command in one of them.
    let (instance, node) = after.iter().next().unwrap();
    let open = v1::ExecOpen {
        session_id: "exec_1".to_owned(),
        instance_id: instance.to_string(),
        command: vec!["echo".to_owned(), "hi".to_owned()],
        max_seconds: 60,
        ..Default::default()
    };
    let mut link = replica.door.server().exec(*node, open).await.unwrap();
    let said = link.from_node.recv().await.unwrap();
    assert_eq!(said, v1::exec_from_node::Frame::Stdout(b"hi\n".to_vec()));
    // What it printed is here.
    let lines = replica.door.server().logs().of(&instance.to_string());
    assert_eq!(lines[0].text.as_ref(), "ready");

    // A revoked node is out, and what it had runs elsewhere.
    let (bad, good) = (sim.nodes[0], sim.nodes[1]);
    let path = &[bad.to_string()];
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    replica.write(Operation::RevokeNode, &path, json!({})).await;
    until("it is cut off", || {
        !replica.door.server().connected().contains(&bad)
    })
    .await;
    until("all of it runs on the other", || {
        let ready = replica.ready();
        ready.len() == 3 && ready.values().all(|node| *node == good)
    })
    .await;
    drop(sim);
    replica.server.stop().await;
}

/// The control plane of a replica once more, whose commands end when it has not
/// followed the ledger for so long.
pub(crate) fn control(replica: &Replica, folder: &TempDir, patience: Duration) -> Control {
    let platform = replica.platform().clone();
    let (safe, _) = Safe::open(platform.aside().clone(), &folder.path().join("keys"));
    let nodes = replica.door.server().clone();
    let logs = nodes.logs();
    let execs = Execs::new(platform.clone(), safe.clone(), nodes).with_patience(patience);
    let find_image: fluffy_server::material::FindImage =
        Arc::new(|wanted| Box::pin(async move { Ok(image(&wanted.name)) }));
    let workshop = Workshop::new(Hashes::new(platform.aside().clone()), safe, find_image);
    Control::new(platform, workshop, (execs, logs), None)
}

/// Serves the control plane of a replica on a socket.
pub(crate) async fn serve(replica: &mut Replica, folder: &TempDir) -> PathBuf {
    let control = control(replica, folder, Duration::from_secs(60));
    let service = HttpService::new(control, fluffy_server::http::Options::default());
    let path = folder.path().join("api.sock");
    let listener = Listener::Local(UnixListener::bind(&path).unwrap());
    let stop = replica.server.stopping();
    replica.server.open_door(service.serve(listener, stop));
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_followed_while_they_are_printed_and_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let mut replica = Replica::start(&folder, 0).await;
    let socket = serve(&mut replica, &folder).await;
    let sims = folder.path().join("sim");
    let tokens = [replica.token().await];
    let sim = join(&replica.home(&sims), &tokens, 1);
    replica.shop().await;
    let robot = json!({"name": "robot", "grants": ["logs.read.local/*"]});
    let robot = replica.write(Operation::CreatePrincipal, &["local"], robot);
    let body = json!({"principal_id": robot.await.0.id});
    let (token, once) = replica
        .write(Operation::CreateToken, &["local"], body)
        .await;
    let client = Client::connect(Target::Socket(socket)).await.unwrap();
    let client = client.with_token(once["secret"].as_str().unwrap().to_owned().into());

    let env = ["local", "shop", "dev"];
    let follow = || client.watch(Ask::new(Operation::GetLogs, &env), None);
    let mut early = follow().await.unwrap();
    let next = async |stream: &mut Watch| loop {
        let next = tokio::time::timeout(Duration::from_secs(120), stream.next()).await;
        match next.unwrap().unwrap() {
            Some(change) if change.kind == ChangeKind::Watermark => {}
            other => break other.map(|it| (it.kind, it.value["line"].clone())),
        }
    };
    assert_eq!(
        next(&mut early).await,
        Some((ChangeKind::Synced, Value::Null))
    );
    let first = replica.release("one", 2).await;
    replica.succeeds(&replica.deploy(&first).await).await;
    for _ in 0..2 {
        let printed = Some((ChangeKind::Upsert, json!("ready")));
        assert_eq!(next(&mut early).await, printed);
    }
    // Who comes later begins with what was printed, each line once.
    let mut late = follow().await.unwrap();
    for _ in 0..2 {
        let printed = Some((ChangeKind::Snapshot, json!("ready")));
        assert_eq!(next(&mut late).await, printed);
    }
    assert_eq!(
        next(&mut late).await,
        Some((ChangeKind::Synced, Value::Null))
    );
    let followed = replica.count(|event| {
        event.event_type == "logs.accessed" && event.payload.as_str().contains("\"follow\"")
    });
    assert_eq!(followed, 2);
    // A token follows five at once.
    let mut more = Vec::new();
    for _ in 0..3 {
        more.push(follow().await.unwrap());
    }
    let Err(CallError::Refused(problem)) = follow().await else {
        panic!("a sixth stream");
    };
    assert_eq!(problem.code, "rate_limited");

    let path = ["local", token.id.as_str()];
    replica
        .write(Operation::RevokeToken, &path, json!({}))
        .await;
    let second = replica.release("two", 2).await;
    replica.succeeds(&replica.deploy(&second).await).await;
    assert_eq!(next(&mut early).await, None);
    assert_eq!(next(&mut late).await, None);
    drop((early, late, more, client, sim));
    replica.server.stop().await;
}

/// What somebody reads of an env's logs.
async fn printed(client: &Client, env: &[&str], query: &[(&'static str, &str)]) -> Vec<String> {
    let mut ask = Ask::new(Operation::GetLogs, env);
    for (name, value) in query {
        ask = ask.query(name, (*value).to_owned());
    }
    let answer = client.call(ask).await.unwrap().value;
    let lines = answer["items"].as_array().unwrap().iter();
    lines
        .map(|it| it["line"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_outlast_their_instances_and_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut replica = Replica::start(&folder, 0).await;
    let socket = serve(&mut replica, &folder).await;
    let (sims, port) = (folder.path().join("sim"), replica.port);
    let sim = join(&replica.home(&sims), &[replica.token().await], 1);
    replica.shop().await;
    let other = json!({"name": "prod"});
    let made = replica.write(Operation::CreateEnv, &["local", "shop"], other);
    made.await;
    let robot = json!({"name": "robot", "grants": ["logs.read.local/*"]});
    let robot = replica.write(Operation::CreatePrincipal, &["local"], robot);
    let body = json!({"principal_id": robot.await.0.id});
    let made = replica.write(Operation::CreateToken, &["local"], body);
    let secret = made.await.1["secret"].as_str().unwrap().to_owned();
    let client = async |socket: &Path| {
        let client = Client::connect(Target::Socket(socket.to_owned())).await;
        client.unwrap().with_token(secret.clone().into())
    };
    let here = client(&socket).await;
    let (dev, prod) = (["local", "shop", "dev"], ["local", "shop", "prod"]);

    let first = replica.release("one", 1).await;
    replica.succeeds(&replica.deploy(&first).await).await;
    let (old, _) = replica.ready().pop_first().unwrap();
    let old = old.to_string();
    for text in ["one", "two"] {
        let (instance, text) = (old.clone(), text.to_owned());
        sim.order(Command::Print { instance, text }).await;
    }
    let all = ["ready", "one", "two"];
    let of_old = [("instance", old.as_str())];
    eventually("its lines are here", || async {
        let found = printed(&here, &dev, &of_old).await;
        if found == all { Ok(()) } else { Err(found) }
    })
    .await;

    // Somebody follows, and has had the first two.
    let mut following = here
        .watch(Ask::new(Operation::GetLogs, &dev), None)
        .await
        .unwrap();
    let mut at = String::new();
    for text in ["ready", "one"] {
        let change = following.next().await.unwrap().unwrap();
        assert_eq!(change.value["line"], text);
        at = change.id;
    }
    drop(following);

    // It is replaced, stopped and collected.
    let second = replica.release("two", 1).await;
    replica.succeeds(&replica.deploy(&second).await).await;
    let id: InstanceId = old.parse().unwrap();
    until("it is collected", || {
        replica.state(|state| !state.runtime.plan.instances.contains_key(&id))
    })
    .await;
    assert_eq!(printed(&here, &dev, &of_old).await, all);
    // Nobody reads it by way of another env.
    assert!(printed(&here, &prod, &of_old).await.is_empty());
    let stdout = [of_old[0], ("stream", "stdout")];
    assert_eq!(printed(&here, &dev, &stdout).await, all);
    let stderr = [of_old[0], ("stream", "stderr")];
    assert!(printed(&here, &dev, &stderr).await.is_empty());
    let (new, _) = replica.ready().pop_first().unwrap();
    let of_new = [("instance", new.to_string())];
    let of_new = of_new.each_ref().map(|(name, id)| (*name, id.as_str()));
    eventually("the new one printed", || async {
        let found = printed(&here, &dev, &of_new).await;
        if found == ["ready"] {
            Ok(())
        } else {
            Err(found)
        }
    })
    .await;
    drop(here);
    replica.server.stop().await;
    replica.door.server().logs().close().await;
    drop(replica.door);

    // Another process, in the same folders.
    std::fs::remove_file(&socket).unwrap();
    let mut replica = Replica::start(&folder, port).await;
    let socket = serve(&mut replica, &folder).await;
    let here = client(&socket).await;
    assert_eq!(printed(&here, &dev, &of_old).await, all);
    assert_eq!(printed(&here, &dev, &[]).await.len(), 4);
    until("the node is back", || {
        !replica.door.server().connected().is_empty()
    })
    .await;
    let (instance, text) = (new.to_string(), "after".to_owned());
    sim.order(Command::Print { instance, text }).await;
    // Who followed goes on exactly where they were.
    let ask = Ask::new(Operation::GetLogs, &dev);
    let mut following = here.resume(ask, Some(&at)).await.unwrap();
    let mut heard = Vec::new();
    while heard.len() < 3 {
        let next = tokio::time::timeout(Duration::from_secs(120), following.next());
        let change = next.await.unwrap().unwrap().unwrap();
        heard.extend(change.value["line"].as_str().map(str::to_owned));
    }
    assert_eq!(heard, ["two", "ready", "after"]);
    let nonsense = here.resume(Ask::new(Operation::GetLogs, &dev), Some("7"));
    assert!(nonsense.await.is_err());
    drop((following, here, sim));
    replica.server.stop().await;
}

/// A node that asks for what is another's, for another generation or version.
async fn secrets_go_to_their_instance_alone(
    replica: &Replica,
    sims: &Path,
    ready: &BTreeMap<InstanceId, NodeId>,
) {
    let home = fluffy_node_sim::Home::open(&sims.join("node-0")).unwrap();
    let credentials = home.credentials().unwrap().unwrap();
    let own: NodeId = credentials.node_id.parse().unwrap();
    let (trust, identity) = (
        credentials.trust().unwrap(),
        credentials.identity().unwrap(),
    );
    let channel = dial(("localhost", replica.port), &trust, Some(&identity)).await;
    let mut client = nodes(channel.unwrap());
    let of = |node: NodeId| *ready.iter().find(|(_, at)| **at == node).unwrap().0;
    let other = *ready.values().find(|at| **at != own).unwrap();
    let version = replica.state(|state| state.runtime.instances[&of(own)].secrets.unwrap());
    let right = v1::SecretMaterialRequest {
        node_id: own.to_string(),
        instance_id: of(own).to_string(),
        generation: 1,
        secret_version_id: version.to_string(),
    };
    let wrong = [
        v1::SecretMaterialRequest {
            instance_id: of(other).to_string(),
            ..right.clone()
        },
        v1::SecretMaterialRequest {
            instance_id: InstanceId::from_bits(7).to_string(),
            ..right.clone()
        },
        v1::SecretMaterialRequest {
            generation: 2,
            ..right.clone()
        },
        v1::SecretMaterialRequest {
            secret_version_id: SecretVersionId::from_bits(7).to_string(),
            ..right.clone()
        },
    ];
    for wrong in wrong {
        let refused = client.get_secret_material(wrong).await.unwrap_err();
        assert_eq!(code_of(&refused), Some("secrets_missing"));
    }
    let given = client
        .get_secret_material(right)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(given.file, b"# FLUFFY_SECRETS_V1\nPASSWORD=hunter2\n");

    // How a registry is reached is told for an instance of its own, too.
    let registry = |instance: InstanceId, generation| v1::RegistryAccessRequest {
        node_id: own.to_string(),
        instance_id: instance.to_string(),
        generation,
    };
    let wrong = [
        registry(of(other), 1),
        registry(InstanceId::from_bits(7), 1),
        registry(of(own), 2),
    ];
    for wrong in wrong {
        let refused = client.get_registry_access(wrong).await.unwrap_err();
        assert_eq!(code_of(&refused), Some("forbidden"));
    }
    let told = client.get_registry_access(registry(of(own), 1)).await;
    told.unwrap();
    let denied = replica.count(|event| {
        let payload: Value = serde_json::from_str(event.payload.as_str()).unwrap();
        payload["capability"] == "registry.credential" && payload["outcome"] == "deny"
    });
    assert_eq!(denied, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_stay_through_a_restart_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::start(&folder, 0).await;
    let (sims, port) = (folder.path().join("sim"), replica.port);
    let sim = join(&replica.home(&sims), &[replica.token().await], 1);
    replica.shop().await;
    let first = replica.release("one", 2).await;
    replica.succeeds(&replica.deploy(&first).await).await;
    let (before, pin) = (replica.ready(), replica.door.server().pin());
    let boots = |replica: &Replica| {
        replica.state(|state| {
            let all = state.runtime.instances.values();
            all.map(|it| it.boot).collect::<Vec<_>>()
        })
    };
    let booted = boots(&replica);
    replica.server.stop().await;
    sim.until("the link is down", |node| node["connected"] == false)
        .await;
    sim.until("its instances run on", |node| {
        let all = node["instances"].as_object().unwrap();
        all.len() == 2 && all.values().all(|status| status == "ready")
    })
    .await;
    let replica = Replica::start(&folder, port).await;
    assert_eq!(replica.door.server().pin(), pin, "the same authority");
    until("it is back", || {
        !replica.door.server().connected().is_empty()
    })
    .await;
    assert_eq!(replica.ready(), before);
    assert_eq!(boots(&replica), booted, "nothing was started anew");
    // And goes on being told what to do.
    let second = replica.release("two", 1).await;
    replica.succeeds(&replica.deploy(&second).await).await;
    assert_eq!(replica.ready().len(), 1);
    tokio::time::timeout(Duration::from_secs(60), replica.server.stop())
        .await
        .unwrap();
}

/// Of two nodes that are alike, the one with the image gets the instance,
/// whichever it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_the_image_is_preferred() {
    for has_it in [0, 1] {
        let folder = tempfile::tempdir().unwrap();
        let replica = Replica::start(&folder, 0).await;
        let mut sims = Vec::new();
        for number in 0..2 {
            let place = folder.path().join(format!("sim{number}"));
            let mut home = replica.home(&place);
            if number == has_it {
                let wanted = image("registry.example/one:1");
                home.cached = vec![wanted.index_or_manifest_digest];
            }
            sims.push(join(&home, &[replica.token().await], 1));
        }
        until("both are active", || {
            replica.state(|state| {
                let nodes = state.runtime.plan.nodes.values();
                let active = nodes.filter(|node| node.state == NodeState::Active);
                active.count() == 2
            })
        })
        .await;
        replica.shop().await;
        let release = replica.release("one", 1).await;
        replica.succeeds(&replica.deploy(&release).await).await;
        let on: Vec<NodeId> = replica.ready().into_values().collect();
        assert_eq!(on, [sims[has_it].nodes[0]], "{has_it} has the image");
    }
}
