//! A proxy, its servers, its names, its records, and a client of raw bytes.
//!
//! Servers keep everything they hear, which is what attacks are judged by.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_contract::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::guard::{Guard, Guards};
use crate::proxy::{Listener, Shared, start};
use crate::record::{Exchange, Record, RecordError};
use crate::{AllowList, Decide, Limits, Network, ProxyHandle, Reason, Settings};

/// Far beyond what anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Where `allowed.test` is, as far as the proxy knows.
pub(crate) const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 215, 14));
/// Where `evil.test` is.
pub(crate) const EVIL: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 215, 15));
pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A proxy to be started.
pub(crate) struct Stage {
    pub(crate) decide: Arc<dyn Decide>,
    pub(crate) names: Arc<Names>,
    pub(crate) kept: Arc<Kept>,
    pub(crate) limits: Limits,
    pub(crate) without: Option<Guard>,
    pub(crate) routes: Vec<(IpAddr, SocketAddr)>,
}

impl Stage {
    /// A proxy that allows these entries.
    pub(crate) fn allowing(entries: &[&str]) -> Self {
        Self::deciding(AllowList::parse(entries).unwrap())
    }

    /// A proxy with any sort of decisions.
    pub(crate) fn deciding(decide: impl Decide + 'static) -> Self {
        let names = Names::default();
        names.answer("allowed.test", &[PUBLIC]);
        names.answer("evil.test", &[EVIL]);
        Self {
            decide: Arc::new(decide),
            names: Arc::new(names),
            kept: Arc::default(),
            limits: Limits::default(),
            without: None,
            routes: Vec::new(),
        }
    }

    /// The same with this guard missing, if one is named.
    pub(crate) fn maybe_without(mut self, guard: Option<Guard>) -> Self {
        self.without = guard;
        self
    }

    /// The same with a server at this address.
    pub(crate) fn with_server(mut self, address: IpAddr, server: &Server) -> Self {
        self.routes.push((address, server.address));
        self
    }

    pub(crate) fn with_limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.limits);
        self
    }

    pub(crate) fn start(self) -> Running {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let kept = Arc::clone(&self.kept);
        let names = Arc::clone(&self.names);
        Running {
            proxy: self.start_on(listener.into()),
            address,
            kept,
            names,
        }
    }

    pub(crate) fn start_on(self, listener: Listener) -> ProxyHandle {
        start(listener, self.shared()).unwrap()
    }

    /// What its connections will share.
    pub(crate) fn shared(self) -> Shared {
        let guards = Guards {
            without: self.without,
        };
        *self.names.routes.lock().unwrap() = self.routes;
        let settings = Settings {
            sandbox: SandboxId::from_bits(7),
            template: "integration-test".to_owned(),
            decide: self.decide,
            record: self.kept,
            network: self.names,
            limits: self.limits,
        };
        Shared::new(settings, guards)
    }
}

/// A proxy that runs.
pub(crate) struct Running {
    pub(crate) proxy: ProxyHandle,
    pub(crate) address: SocketAddr,
    pub(crate) kept: Arc<Kept>,
    pub(crate) names: Arc<Names>,
}

impl Running {
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Everything that comes back for these bytes.
    pub(crate) async fn talk(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        read_all(&mut stream).await
    }

    /// A tunnel to this target that stands.
    pub(crate) async fn tunnel(&self, target: &str) -> TcpStream {
        let mut stream = self.connect().await;
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = read_until(&mut stream, b"\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        stream
    }

    /// The only record, once there is one.
    pub(crate) async fn record(&self) -> Exchange {
        let records = self.kept.wait_for(1).await;
        assert_eq!(records.len(), 1, "{records:?}");
        records.into_iter().next().unwrap()
    }

    /// The reason in the only record.
    pub(crate) async fn reason(&self) -> &'static str {
        let record = self.record().await;
        record.reason.as_ref().map_or("none", Reason::code)
    }
}

/// What is left to read, up to the end.
pub(crate) async fn read_all(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset after the answer is an end too.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes))
        .await
        .unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What comes up to and with this mark.
pub(crate) async fn read_until(stream: &mut TcpStream, mark: &[u8]) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(mark) {
        let byte = timeout(PATIENCE, stream.read_u8()).await.unwrap();
        match byte {
            Ok(byte) => bytes.push(byte),
            Err(_) => panic!("ended after {:?}", String::from_utf8_lossy(&bytes)),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Names and what they stand for, and who asked.
#[derive(Debug, Default)]
pub(crate) struct Names {
    answers: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    asked: Mutex<Vec<String>>,
    /// Where connections to an address go instead.
    routes: Mutex<Vec<(IpAddr, SocketAddr)>>,
}

impl Names {
    /// From the next question on, or after the answers that are there.
    pub(crate) fn answer(&self, name: &str, addresses: &[IpAddr]) {
        let mut answers = self.answers.lock().unwrap();
        let answers = answers.entry(name.to_owned()).or_default();
        answers.push(addresses.to_vec());
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn next(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.lock().unwrap().push(name.to_owned());
        // As C libraries and readers of URLs do, which is what tricks rely on.
        if name
            .bytes()
            .all(|byte| b"0123456789abcdefx.".contains(&byte))
        {
            let found = (name, 0).to_socket_addrs()?;
            return Ok(found.map(|found| found.ip()).collect());
        }
        let name = name.rsplit_once('@').map_or(name, |(_, host)| host);
        let name = name.split_once("%00").map_or(name, |(start, _)| start);
        let mut answers = self.answers.lock().unwrap();
        let answers = answers.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        match answers.len() {
            1 => Ok(answers[0].clone()),
            _ => Ok(answers.remove(0)),
        }
    }
}

impl Network for Names {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move { self.next(name) })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        let routes = self.routes.lock().unwrap();
        let instead = routes.iter().find(|(from, _)| *from == address.ip());
        let to = instead.map_or(address, |(_, to)| *to);
        drop(routes);
        Box::pin(TcpStream::connect(to))
    }
}

/// Records, kept in memory.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    records: Mutex<Vec<Exchange>>,
    pub(crate) failing: std::sync::atomic::AtomicBool,
}

impl Kept {
    /// All records, once there are so many.
    pub(crate) async fn wait_for(&self, count: usize) -> Vec<Exchange> {
        self.wait_until(|records| records.len() >= count).await
    }

    /// All records, once there is one about this host.
    pub(crate) async fn wait_for_host(&self, host: &str) -> Vec<Exchange> {
        let about = |record: &Exchange| record.host.as_deref() == Some(host);
        self.wait_until(|records| records.iter().any(about)).await
    }

    async fn wait_until(&self, enough: impl Fn(&[Exchange]) -> bool) -> Vec<Exchange> {
        let waiting = async {
            while !enough(&self.records.lock().unwrap()) {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(PATIENCE, waiting).await.expect("records");
        self.records.lock().unwrap().clone()
    }
}

impl Record for Kept {
    fn record(&self, exchange: &Exchange) -> Result<(), RecordError> {
        if self.failing.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(RecordError {
                sandbox: exchange.sandbox,
                source: "the disk is full".into(),
            });
        }
        self.records.lock().unwrap().push(exchange.clone());
        Ok(())
    }
}

/// A server that keeps what it hears.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Server {
    /// Answers every request it can make out with this, as servers do that
    /// take many requests on a connection.
    pub(crate) async fn http(answer: &'static str) -> Self {
        Self::start("", answer).await
    }

    /// Greets first, then answers each line end with this.
    pub(crate) async fn start(greeting: &'static str, answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let server = Self {
            address,
            heard: Arc::clone(&heard),
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(attend(stream, greeting, answer, Arc::clone(&heard)));
            }
        });
        server
    }

    /// Everything heard so far.
    pub(crate) fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().unwrap()).into_owned()
    }

    /// Waits until this was heard.
    pub(crate) async fn hears(&self, what: &str) {
        let hearing = async {
            while !self.heard().contains(what) {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(PATIENCE, hearing).await.expect(what);
    }
}

async fn attend(
    mut stream: TcpStream,
    greeting: &'static str,
    answer: &'static str,
    heard: Arc<Mutex<Vec<u8>>>,
) {
    let _ = stream.write_all(greeting.as_bytes()).await;
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let part = &buffer[..count];
        heard.lock().unwrap().extend_from_slice(part);
        // Good enough a reader of requests for what is sent here.
        if part.windows(4).any(|four| four == b"\r\n\r\n") {
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    }
}

/// The answer of an ordinary server.
pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
