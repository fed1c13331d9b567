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
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
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
async fn two_routes_that_want_one_port_hold_up_nobody() {
    let (address, one) = (own_address(), Server::start("one").await);
    let at = |port| SocketAddr::from((address, port));
    let two = Server::start("two").await;
    let edge = Edge::start(options(address)).await;
    let (of_one, of_two) = (|| vec![one.backend(false)], || vec![two.backend(false)]);
    // The younger one comes first, and is the one that is left out.
    let routes = vec![
        route("b", 8080, of_two()),
        route("a", 8080, of_one()),
        route("c", 8081, of_two()),
    ];
    let ack = edge.apply(&table(1, routes)).await;
    assert_eq!((ack.refused.as_str(), ack.config.unwrap().seq), ("", 1));
    let problems = ack.problems.iter();
    let problems: Vec<(&str, &str)> = problems
        .map(|it| (it.route_id.as_str(), it.reason.as_str()))
        .collect();
    assert_eq!(problems, [("b", "bind_failed")]);
    assert_eq!(ask(at(8080), b"x").await.unwrap().1, "one");
    assert_eq!(ask(at(8081), b"x").await.unwrap().1, "two");
    // Once the older one is gone, the port is the other's.
    taken(&edge, &table(2, vec![route("b", 8080, of_two())])).await;
    assert_eq!(ask(at(8080), b"x").await.unwrap().1, "two");
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

#[tokio::test(flavor = "multi_thread")]
async fn where_few_files_may_be_open_there_are_fewer_connections() {
    let (address, one) = (own_address(), Server::start("one").await);
    let at: SocketAddr = (address, 8080).into();
    let before = getrlimit(Resource::Nofile);
    let limit = |current| Rlimit { current, ..before };
    setrlimit(Resource::Nofile, limit(Some(64))).unwrap();
    let edge = Edge::start(options(address)).await;
    // The test itself needs more: both other ends are its own.
    setrlimit(Resource::Nofile, before).unwrap();
    taken(
        &edge,
        &table(1, vec![route("a", 8080, vec![one.backend(false)])]),
    )
    .await;
    let mut held = Vec::new();
    for _ in 0..16 {
        held.push(ask(at, b"x").await.unwrap());
    }
    assert!(ask(at, b"x").await.is_err());
    assert_eq!(edge.figures().await.refused, 1);
    held.pop();
    until("there is room again", async || ask(at, b"x").await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_off_is_cut_off_on_the_other_side_too() {
    let address = own_address();
    let at: SocketAddr = (address, 8080).into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = v1::Backend {
        instance_id: "one".to_owned(),
        address: "127.0.0.1".to_owned(),
        port: listener.local_addr().unwrap().port().into(),
        draining: false,
    };
    let edge = Edge::start(options(address)).await;
    taken(&edge, &table(1, vec![route("a", 8080, vec![backend])])).await;
    // A client, and who answers it; a probe says nothing.
    let pair = async || {
        let mut client = TcpStream::connect(at).await.unwrap();
        client.write_all(b"GET").await.unwrap();
        loop {
            let (mut server, _) = listener.accept().await.unwrap();
            if server.read_exact(&mut [0; 3]).await.is_ok() {
                server.write_all(b"half").await.unwrap();
                client.read_exact(&mut [0; 4]).await.unwrap();
                return (client, server);
            }
        }
    };
    let cut = |stream: TcpStream| set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    let hears = async |mut stream: TcpStream| {
        let read = timeout(LONG, stream.read(&mut [0])).await;
        read.expect("an end").is_ok()
    };
    let (client, server) = pair().await;
    cut(server);
    assert!(!hears(client).await, "an answer that is no whole one");
    let (client, server) = pair().await;
    cut(client);
    assert!(!hears(server).await, "a request that is no whole one");
    // The control: an end is no cut.
    let (client, server) = pair().await;
    drop(server);
    assert!(hears(client).await);
}

/// What a figure says, by its whole name with labels.
fn figure(text: &str, name: &str) -> Option<f64> {
    let mut lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let (_, value) = lines.find(|(found, _)| found.strip_prefix("fluffy_") == Some(name))?;
    Some(value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_does_is_counted_and_no_label_is_without_a_bound() {
    let address = own_address();
    let at: SocketAddr = (address, 8080).into();
    let (one, mut two) = (Server::start("one").await, Server::start("two").await);
    let few = Options {
        most: (100, 100, 2),
        ..options(address)
    };
    let edge = Edge::start(few).await;
    let says = |name: &str| figure(&edge.metrics(), name);
    assert_eq!(says("edge_routes"), Some(0.0));
    let heard = edge.hear();
    assert_eq!(says("edge_config_stale_seconds"), Some(0.0));

    let routes = || {
        vec![
            route("a", 8080, vec![one.backend(false), one.backend(true)]),
            route("b", 8081, vec![]),
        ]
    };
    taken(&edge, &table(7, routes())).await;
    edge.apply(&table(6, routes())).await;
    edge.apply(&table(8, vec![route("", 8080, vec![])])).await;
    assert_eq!(says("edge_config_version"), Some(7.0));
    for (result, count) in [("applied", 1.0), ("old", 1.0), ("refused", 1.0)] {
        let name = format!("edge_config_apply_total{{result=\"{result}\"}}");
        assert_eq!(says(&name), Some(count), "{result}");
    }
    assert_eq!(says("edge_routes"), Some(2.0));
    assert_eq!(says("edge_backends{state=\"up\"}"), Some(1.0));

    // Two that are open, and one too many.
    let (first, _) = ask(at, b"hello").await.unwrap();
    let (second, _) = ask(at, b"hello").await.unwrap();
    assert!(ask(at, b"x").await.is_err());
    let ended = |result: &str| {
        let name = format!("edge_connections_total{{port=\"8080\",result=\"{result}\"}}");
        says(&name).unwrap()
    };
    assert_eq!(says("edge_connections{port=\"8080\"}"), Some(2.0));
    assert_eq!((ended("limited"), ended("closed")), (1.0, 0.0));
    // While they are open their bytes are counted: five each, and a name.
    assert_eq!(says("edge_bytes_total{direction=\"in\"}"), Some(10.0));
    until("what was sent is counted", async || {
        says("edge_bytes_total{direction=\"out\"}") == Some(6.0)
    })
    .await;
    assert_eq!(rest(first).await, b"hello");
    assert_eq!(rest(second).await, b"hello");
    until("both have ended", async || ended("closed") == 2.0).await;
    assert_eq!(says("edge_connections{port=\"8080\"}"), Some(0.0));
    assert_eq!(says("edge_bytes_total{direction=\"out\"}"), Some(16.0));
    assert_eq!(says("edge_upstream_connect_seconds_count"), Some(2.0));

    // Nobody there, and nobody who takes it.
    assert!(ask((address, 8081).into(), b"x").await.is_err());
    until("it is over", async || {
        says("edge_connections_total{port=\"8081\",result=\"unavailable\"}") == Some(1.0)
    })
    .await;
    two.close().await;
    let gone = vec![route("a", 8080, vec![two.backend(false)])];
    taken(&edge, &table(9, gone)).await;
    assert!(ask(at, b"x").await.is_err());
    until("the connection has ended", async || {
        ended("unavailable") == 1.0
    })
    .await;
    let refused = "edge_upstream_failures_total{reason=\"refused\"}";
    assert_eq!(says(refused), Some(1.0));
    until("probes find out", async || {
        says("edge_backends{state=\"out\"}") == Some(1.0)
    })
    .await;
    drop(heard);
    until("it counts how long it is alone", async || {
        says("edge_config_stale_seconds") >= Some(1.0)
    })
    .await;

    // What no table has any more is no word of a label, and no other word is
    // any but these.
    let text = edge.metrics();
    assert!(!text.contains("port=\"8081\""), "{text}");
    let known = [
        ("port", vec!["8080"]),
        (
            "result",
            vec![
                "applied",
                "closed",
                "limited",
                "old",
                "refused",
                "route_gone",
                "unavailable",
            ],
        ),
        ("reason", vec!["other", "refused", "timeout", "unreachable"]),
        ("state", vec!["aside", "draining", "out", "up"]),
        ("direction", vec!["in", "out"]),
        (
            "le",
            vec![
                "+Inf", "0.001", "0.002", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "1", "2",
            ],
        ),
    ];
    let mut labelled = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((_, labels)) = line.split_once('{') else {
            continue;
        };
        for pair in labels.split_once('}').unwrap().0.split(',') {
            let (label, word) = pair.split_once('=').unwrap();
            let (_, words) = known.iter().find(|(name, _)| *name == label).unwrap();
            assert!(words.contains(&word.trim_matches('"')), "{line}");
            labelled += 1;
        }
    }
    assert!(labelled > 20, "{text}");
    // The control: a port that leads somewhere again is one.
    taken(&edge, &table(10, routes())).await;
    assert!(ask((address, 8081).into(), b"x").await.is_err());
    until("it is counted", async || {
        edge.metrics().contains("port=\"8081\"")
    })
    .await;
}
