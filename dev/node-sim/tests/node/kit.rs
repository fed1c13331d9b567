//! A cluster for tests: a server on this machine, members, simulated nodes.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::dial::{Channel, DialError, Identity, Trust, dial};
use fluffy_api::node::{PROTOCOL, v1};
use fluffy_base::id::{BootId, LedgerId, NodeId};
use fluffy_base::{Clock as _, Digest, SystemClock, Timestamp};
use fluffy_node_sim::{Behaviour, Command as Control, control, signing_request};
use fluffy_server::node::{Authority, NodeServer, Role, SigningRequest};
use futures_util::stream::unfold;
use rcgen::KeyPair;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tonic::{Status, Streaming};
use v1::node_message::Message as Said;
use v1::nodes_client::NodesClient;
use v1::server_message::Message as Told;

use crate::desk::TestDesk;

/// How long anything may take on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A server for nodes, with a desk that tests look into.
pub(crate) struct Cluster {
    pub(crate) desk: Arc<TestDesk>,
    pub(crate) server: NodeServer,
    pub(crate) authority: Authority,
    pub(crate) port: u16,
    pub(crate) folder: TempDir,
    serving: JoinHandle<()>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let names = ["localhost".to_owned()];
        Self::start_as(|desk, authority| {
            NodeServer::new(desk, Arc::new(SystemClock), authority, &names).unwrap()
        })
        .await
    }

    /// The same, of a server that is made so.
    pub(crate) async fn start_as(
        make: impl FnOnce(Arc<TestDesk>, Authority) -> NodeServer,
    ) -> Self {
        let desk = Arc::new(TestDesk::default());
        // Old enough for certificates that have ended.
        let founded = before(DAY * 200);
        let authority = Authority::found(LedgerId::from_bits(7), founded).unwrap();
        let copy = Authority::from_bytes(&authority.to_bytes()).unwrap();
        let server = make(Arc::clone(&desk), copy);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(serve(server.clone(), listener));
        Self {
            desk,
            server,
            authority,
            port,
            folder: tempfile::tempdir().unwrap(),
            serving,
        }
    }

    /// The server stops; its port stays known.
    pub(crate) async fn stop(&mut self) {
        self.serving.abort();
        let _ = (&mut self.serving).await;
    }

    pub(crate) async fn serve_again(&mut self) {
        let address = ("127.0.0.1", self.port);
        let listener = eventually("the port is free", || TcpListener::bind(address)).await;
        self.serving = tokio::spawn(serve(self.server.clone(), listener));
    }

    /// A member whose certificate was issued at some time.
    pub(crate) fn member_since(&self, role: Role, since: Timestamp) -> Member {
        let node = NodeId::generate();
        let (identity, fingerprint) = certificate(&self.authority, (node, role), since);
        self.desk.add(node, fingerprint);
        Member { node, identity }
    }

    pub(crate) fn member(&self) -> Member {
        self.member_since(Role::Worker, SystemClock.now())
    }

    pub(crate) async fn dial(&self, identity: Option<&Identity>) -> Result<Channel, DialError> {
        let trust = Trust::Root(self.authority.root().clone());
        dial(("localhost", self.port), &trust, identity).await
    }

    /// A client of a member.
    pub(crate) async fn client(&self, member: &Member) -> NodesClient<Channel> {
        nodes(self.dial(Some(&member.identity)).await.unwrap())
    }

    /// An open session of a member.
    pub(crate) async fn session(&self, member: &Member) -> Session {
        let client = self.client(member).await;
        Session::open(client, hello(member)).await.unwrap()
    }
}

async fn serve(server: NodeServer, listener: TcpListener) {
    server.serve(listener).await;
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

pub(crate) fn nodes(channel: Channel) -> NodesClient<Channel> {
    NodesClient::with_origin(channel, Channel::origin()).max_decoding_message_size(64 << 20)
}

pub(crate) fn before(duration: Duration) -> Timestamp {
    let micros = i64::try_from(duration.as_micros()).unwrap();
    Timestamp::from_micros(SystemClock.now().as_micros() - micros)
}

/// A certificate with its key, made without asking anybody.
pub(crate) fn certificate(
    authority: &Authority,
    member: (NodeId, Role),
    since: Timestamp,
) -> (Identity, Digest) {
    let key = KeyPair::generate().unwrap();
    let request = SigningRequest::parse(&signing_request(&key).unwrap()).unwrap();
    let made = authority.certify(&request, member, since).unwrap();
    let identity = Identity {
        chain: made.chain,
        key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
    };
    (identity, made.fingerprint)
}

/// A node made by hand.
pub(crate) struct Member {
    pub(crate) node: NodeId,
    pub(crate) identity: Identity,
}

pub(crate) fn hello(member: &Member) -> v1::Hello {
    v1::Hello {
        node_id: member.node.to_string(),
        protocol: PROTOCOL,
        boot_id: BootId::generate().to_string(),
        ..Default::default()
    }
}

/// A session whose node does only what the test says.
pub(crate) struct Session {
    pub(crate) said: mpsc::Sender<v1::NodeMessage>,
    pub(crate) told: Streaming<v1::ServerMessage>,
    pub(crate) boot: String,
}

impl Session {
    /// Says hello and waits for the welcome.
    pub(crate) async fn open(
        mut client: NodesClient<Channel>,
        hello: v1::Hello,
    ) -> Result<Self, Status> {
        let (said, messages) = mpsc::channel(64);
        let boot = hello.boot_id.clone();
        said.send(message(Said::Hello(hello))).await.unwrap();
        let told = client.session(streaming(messages)).await?.into_inner();
        let mut session = Self { said, told, boot };
        match session.next().await? {
            Told::Welcome(_) => Ok(session),
            other => panic!("a welcome comes first, not {other:?}"),
        }
    }

    pub(crate) async fn say(&self, said: Said) {
        self.said.send(message(said)).await.unwrap();
    }

    /// What the server says next.
    pub(crate) async fn next(&mut self) -> Result<Told, Status> {
        let next = tokio::time::timeout(LONG, self.told.message());
        match next.await.expect("the server says something") {
            Ok(Some(told)) => Ok(told.message.unwrap()),
            Ok(None) => Err(Status::cancelled("ended")),
            Err(status) => Err(status),
        }
    }

    /// How the session ends, whatever is said before.
    pub(crate) async fn end(&mut self) -> Status {
        loop {
            if let Err(status) = self.next().await {
                return status;
            }
        }
    }

    pub(crate) async fn report(&self, numbers: &[u64]) {
        let batch = v1::StatusBatch {
            boot_id: self.boot.clone(),
            reports: numbers.iter().map(|number| report(*number)).collect(),
        };
        self.say(Said::Status(batch)).await;
    }

    /// The next acknowledgement.
    pub(crate) async fn acknowledged(&mut self) -> u64 {
        loop {
            if let Told::StatusAck(ack) = self.next().await.unwrap() {
                return ack.through;
            }
        }
    }
}

pub(crate) fn report(number: u64) -> v1::Report {
    v1::Report {
        number,
        at_ms: 0,
        of: Some(v1::report::Of::Instance(v1::InstanceReport::default())),
    }
}

pub(crate) fn message(said: Said) -> v1::NodeMessage {
    v1::NodeMessage {
        message: Some(said),
    }
}

pub(crate) fn streaming<T: Send + 'static>(
    messages: mpsc::Receiver<T>,
) -> impl futures_util::Stream<Item = T> + Send + 'static {
    unfold(messages, async |mut messages| {
        messages.recv().await.map(|message| (message, messages))
    })
}

/// Waits until a try succeeds.
pub(crate) async fn eventually<T, E, F>(what: &str, mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
{
    let deadline = tokio::time::Instant::now() + LONG;
    loop {
        if let Ok(value) = attempt().await {
            return value;
        }
        let in_time = tokio::time::Instant::now() < deadline;
        assert!(in_time, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until something is true.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    eventually(what, || {
        let met = condition();
        async move { if met { Ok(()) } else { Err(()) } }
    })
    .await;
}

/// A process with simulated nodes.
pub(crate) struct Sim {
    child: Child,
    socket: PathBuf,
    pub(crate) nodes: Vec<NodeId>,
}

/// Where simulated nodes belong.
pub(crate) struct Home<'a> {
    pub(crate) port: u16,
    pub(crate) pin: Digest,
    pub(crate) folder: &'a Path,
    /// The images that they need not fetch.
    pub(crate) cached: Vec<String>,
}

impl Sim {
    /// Starts nodes that have credentials or get them with new tokens.
    pub(crate) fn start(cluster: &Cluster, nodes: usize, behaviour: &Behaviour) -> Self {
        let folder = cluster.folder.path().join("sim");
        let token = |place: usize| {
            let seed = 100 + u8::try_from(place).unwrap();
            let desk = &cluster.desk;
            desk.new_token(seed, Role::Worker, fluffy_server::node::Place::Reachable)
        };
        let tokens = match folder.exists() {
            true => Vec::new(),
            false => (0..nodes)
                .map(|place| token(place).reveal().to_owned())
                .collect(),
        };
        let home = Home {
            port: cluster.port,
            pin: cluster.authority.pin(),
            folder: &folder,
            cached: Vec::new(),
        };
        Self::join(&home, &tokens, nodes, behaviour)
    }

    /// Starts nodes in a folder; those without credentials use these tokens.
    pub(crate) fn join(
        home: &Home<'_>,
        new: &[String],
        nodes: usize,
        behaviour: &Behaviour,
    ) -> Self {
        let folder = home.folder;
        let (tokens, socket) = (
            folder.with_extension("tokens"),
            folder.with_extension("socket"),
        );
        std::fs::write(&tokens, new.join("\n")).unwrap();
        let _ = std::fs::remove_file(&socket);
        let mut child = Command::new(env!("CARGO_BIN_EXE_fluffy-node-sim"))
            .args(["--port", &home.port.to_string()])
            .args(["--ca-pin", &home.pin.to_string()])
            .args(["--nodes", &nodes.to_string()])
            .args(["--underlay", "127.0.0.1", "--heartbeat-ms", "100"])
            .args(["--behaviour", &serde_json::to_string(behaviour).unwrap()])
            .args(home.cached.iter().flat_map(|it| ["--cached-image", it]))
            .arg("--token-file")
            .arg(&tokens)
            .arg("--home")
            .arg(folder)
            .arg("--control")
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let nodes: Vec<NodeId> = lines
            .take(nodes)
            .map(|line| line.unwrap().parse().unwrap())
            .collect();
        Self {
            child,
            socket,
            nodes,
        }
    }

    pub(crate) async fn order(&self, command: Control) -> Vec<Value> {
        let answer = eventually("the control socket answers", || {
            control(&self.socket, &command)
        });
        let answer = answer.await;
        answer["nodes"].as_array().unwrap().clone()
    }

    pub(crate) async fn behave(&self, behaviour: Behaviour) {
        let node = None;
        self.order(Control::Behave { behaviour, node }).await;
    }

    /// Waits until the first node is as it should be.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Value) -> bool) {
        eventually(what, || async {
            let nodes = self.order(Control::Status {}).await;
            if condition(&nodes[0]) {
                Ok(())
            } else {
                Err(())
            }
        })
        .await;
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
