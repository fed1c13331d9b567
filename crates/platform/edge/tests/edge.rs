//! An edge between real sockets: what it carries, to whom, and for how long.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fluffy_api::node::v1;
use fluffy_edge::{Edge, Keep, Options, Prefix};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_secs(60);

/// An address of this machine that no other test uses, so that its ports are
/// free whatever else runs.
fn own_address() -> IpAddr {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let next = NEXT.fetch_add(1, Ordering::Relaxed) % 50;
    // The last part of an address is not nought.
    let more = if low == 0 { 150 } else { 100 };
    let second = more + u8::try_from(next).unwrap();
    Ipv4Addr::new(127, second, high, low.max(1)).into()
}

fn options(address: IpAddr) -> Options {
    let loopback = Prefix {
        address: Ipv4Addr::LOCALHOST.into(),
        length: 8,
    };
    Options {
        listen: vec![address],
        probe: (Duration::from_millis(50), Duration::from_secs(10)),
        grace: Duration::from_millis(200),
        ..Options::loopback(vec![loopback])
    }
}

/// Answers each connection with its name and an echo, until told otherwise.
struct Server {
    name: &'static str,
    address: SocketAddr,
    task: JoinHandle<()>,
    greeted: Arc<AtomicUsize>,
}

impl Server {
    async fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let greeted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&greeted);
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let count = Arc::clone(&count);
                tokio::spawn(async move {
                    // A probe says nothing.
                    let mut asked = Vec::new();
                    let mut piece = [0; 4096];
                    loop {
                        match stream.read(&mut piece).await {
                            Ok(0) | Err(_) => break,
                            Ok(read) => {
                                if asked.is_empty() {
                                    count.fetch_add(1, Ordering::SeqCst);
                                    stream.write_all(name.as_bytes()).await.ok()?;
                                }
                                asked.extend_from_slice(&piece[..read]);
                            }
                        }
                    }
                    // Only after the other side has said everything.
                    stream.write_all(&asked).await.ok()?;
                    stream.shutdown().await.ok()
                });
            }
        });
        Self {
            name,
            address,
            task,
            greeted,
        }
    }

    fn backend(&self, draining: bool) -> v1::Backend {
        v1::Backend {
            instance_id: self.name.to_owned(),
            address: self.address.ip().to_string(),
            port: self.address.port().into(),
            draining,
        }
    }

    fn greeted(&self) -> usize {
        self.greeted.load(Ordering::SeqCst)
    }

    /// Its port is closed from here on; what is open stays.
    async fn close(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn route(id: &str, port: u32, backends: Vec<v1::Backend>) -> v1::Route {
    v1::Route {
        route_id: id.to_owned(),
        env_id: "env_1".to_owned(),
        listen_port: port,
        protocol_hint: "tcp_raw".to_owned(),
        proxy_protocol: "off".to_owned(),
        backends,
        ..Default::default()
    }
}

fn table(seq: u64, routes: Vec<v1::Route>) -> v1::RoutingTable {
    v1::RoutingTable {
        config: Some(v1::Position { epoch: 1, seq }),
        routes,
    }
}

async fn taken(edge: &Edge, table: &v1::RoutingTable) {
    let ack = edge.apply(table).await;
    assert_eq!(ack.refused, "");
    assert_eq!(ack.config, table.config);
    assert!(ack.problems.is_empty(), "{:?}", ack.problems);
}

/// Says something, and hears who answered and what.
async fn ask(at: SocketAddr, text: &[u8]) -> std::io::Result<(TcpStream, String)> {
    let mut stream = TcpStream::connect(at).await?;
    stream.write_all(text).await?;
    let mut name = [0; 3];
    stream.read_exact(&mut name).await?;
    Ok((stream, String::from_utf8(name.to_vec()).unwrap()))
}

/// Ends its own half, and hears the rest.
async fn rest(mut stream: TcpStream) -> Vec<u8> {
    stream.shutdown().await.unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    all
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LONG, waiting).await.is_ok(), "never: {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_pass_both_ways_and_each_half_ends_by_itself() {
    let (address, server) = (own_address(), Server::start("one").await);
    let edge = Edge::start(options(address)).await;
    taken(
        &edge,
        &table(1, vec![route("a", 8080, vec![server.backend(false)])]),
    )
    .await;
    let text: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let (stream, name) = ask((address, 8080).into(), &text).await.unwrap();
    assert_eq!(name, "one");
    // The server answers only because the end of ours reached it.
    assert!(rest(stream).await == text);
    until("nothing is open", async || {
        edge.figures().await.connections == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_drains_gets_nothing_new_and_keeps_what_it_has() {
    let address = own_address();
    let at: SocketAddr = (address, 8080).into();
    let (one, two) = (Server::start("one").await, Server::start("two").await);
    let edge = Edge::start(options(address)).await;
    taken(
        &edge,
        &table(1, vec![route("a", 8080, vec![one.backend(false)])]),
    )
    .await;
    let (old, name) = ask(at, b"old").await.unwrap();
    assert_eq!(name, "one");
    let both = vec![one.backend(true), two.backend(false)];
    taken(&edge, &table(2, vec![route("a", 8080, both)])).await;
    for _ in 0..40 {
        assert_eq!(ask(at, b"x").await.unwrap().1, "two");
    }
    taken(
        &edge,
        &table(3, vec![route("a", 8080, vec![two.backend(false)])]),
    )
    .await;
    assert_eq!((one.greeted(), rest(old).await), (1, b"old".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_dies_costs_nobody_a_connection() {
    let address = own_address();
    let at: SocketAddr = (address, 8080).into();
    let (mut one, two) = (Server::start("one").await, Server::start("two").await);
    let edge = Edge::start(options(address)).await;
    let both = vec![one.backend(false), two.backend(false)];
    taken(&edge, &table(1, vec![route("a", 8080, both)])).await;
    for _ in 0..60 {
        ask(at, b"x").await.unwrap();
    }
    assert!(one.greeted() > 0 && two.greeted() > 0, "both take part");
    one.close().await;
    let before = one.greeted();
    for _ in 0..60 {
        assert_eq!(ask(at, b"x").await.unwrap().1, "two");
    }
    assert_eq!(one.greeted(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_anybody_ready_a_connection_is_reset_at_once() {
    let (address, one) = (own_address(), Server::start("one").await);
    let edge = Edge::start(options(address)).await;
    for (seq, backends) in [(1, vec![]), (2, vec![one.backend(true)])] {
        taken(&edge, &table(seq, vec![route("a", 8080, backends)])).await;
        let asked = timeout(LONG, ask((address, 8080).into(), b"x"))
            .await
            .unwrap();
        assert!(asked.is_err());
    }
    assert_eq!(one.greeted(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_table_is_refused_whole_and_an_old_one_changes_nothing() {
    let address = own_address();
    let at: SocketAddr = (address, 8080).into();
    let (one, two) = (Server::start("one").await, Server::start("two").await);
    let edge = Edge::start(options(address)).await;
    taken(
        &edge,
        &table(5, vec![route("a", 8080, vec![one.backend(false)])]),
    )
    .await;
    let mut outside = two.backend(false);
    outside.address = "8.8.8.8".to_owned();
    let good = route("a", 8080, vec![two.backend(false)]);
    let bad = edge
        .apply(&table(
            6,
            vec![good.clone(), route("b", 8081, vec![outside])],
        ))
        .await;
    assert_eq!(bad.config.unwrap().seq, 6);
    assert!(bad.refused.contains("where none may be"), "{}", bad.refused);
    assert_eq!(ask(at, b"x").await.unwrap().1, "one");
    for old in [5, 4] {
        let ack = edge.apply(&table(old, vec![good.clone()])).await;
        assert_eq!(ack.config.unwrap().seq, 5);
        assert_eq!(ask(at, b"x").await.unwrap().1, "one");
    }
    taken(&edge, &table(7, vec![good])).await;
    assert_eq!(ask(at, b"x").await.unwrap().1, "two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_said_and_the_others_are_served() {
    let (address, one) = (own_address(), Server::start("one").await);
    let _other = TcpListener::bind((address, 8080)).await.unwrap();
    let edge = Edge::start(options(address)).await;
    let backends = || vec![one.backend(false)];
    let both = vec![route("a", 8080, backends()), route("b", 8081, backends())];
    let ack = edge.apply(&table(1, both)).await;
    assert_eq!(ack.refused, "");
    assert_eq!(ack.problems.len(), 1);
    assert_eq!(
        (
            ack.problems[0].route_id.as_str(),
            ack.problems[0].reason.as_str()
        ),
        ("a", "bind_failed")
    );
    assert_eq!(ask((address, 8081).into(), b"x").await.unwrap().1, "one");
    assert_eq!(edge.figures().await.routes, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_route_that_is_gone_have_a_while_and_are_then_reset() {
    let address = own_address();
    let at: SocketAddr = (address, 8080).into();
    let one = Server::start("one").await;
    let edge = Edge::start(options(address)).await;
    let route_a = || route("a", 8080, vec![one.backend(false)]);
    taken(&edge, &table(1, vec![route_a()])).await;
    let (mut old, _) = ask(at, b"old").await.unwrap();
    // A table that still has it changes nothing for it.
    taken(&edge, &table(2, vec![route_a(), route("b", 8081, vec![])])).await;
    taken(&edge, &table(3, vec![])).await;
    assert!(TcpStream::connect(at).await.is_err(), "nobody listens");
    let ended = timeout(LONG, old.read(&mut [0])).await.unwrap();
    assert!(ended.is_err(), "reset, and not ended: {ended:?}");
    // The same port for somebody else is another route.
    taken(&edge, &table(4, vec![route_a()])).await;
    let (mut old, _) = ask(at, b"old").await.unwrap();
    let mut other = route_a();
    other.env_id = "env_2".to_owned();
    taken(&edge, &table(5, vec![other])).await;
    assert!(timeout(LONG, old.read(&mut [0])).await.unwrap().is_err());
    assert_eq!(ask(at, b"x").await.unwrap().1, "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_the_last_good_table_is_served_without_a_server() {
    let (address, one) = (own_address(), Server::start("one").await);
    let folder = tempfile::tempdir().unwrap();
    let keeping = || Options {
        keep: Some(Keep::new(folder.path())),
        ..options(address)
    };
    let edge = Edge::start(keeping()).await;
    assert_eq!(edge.config().await, None);
    taken(
        &edge,
        &table(1, vec![route("a", 8080, vec![one.backend(false)])]),
    )
    .await;
    let refused = edge.apply(&table(2, vec![route("", 8080, vec![])])).await;
    assert!(!refused.refused.is_empty());
    drop(edge);
    let at: SocketAddr = (address, 8080).into();
    until("the old listener is closed", async || {
        TcpStream::connect(at).await.is_err()
    })
    .await;
    let edge = Edge::start(keeping()).await;
    assert_eq!(edge.config().await.unwrap().seq, 1);
    assert_eq!(ask(at, b"x").await.unwrap().1, "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_only_so_many_connections_of_a_client() {
    let (address, one) = (own_address(), Server::start("one").await);
    let at: SocketAddr = (address, 8080).into();
    let few = Options {
        most: (100, 100, 3),
        ..options(address)
    };
    let edge = Edge::start(few).await;
    taken(
        &edge,
        &table(1, vec![route("a", 8080, vec![one.backend(false)])]),
    )
    .await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(ask(at, b"x").await.unwrap());
    }
    assert!(ask(at, b"x").await.is_err());
    assert_eq!(edge.figures().await.refused, 1);
    held.pop();
    until("there is room again", async || ask(at, b"x").await.is_ok()).await;
}
