//! A small server that answers as it is told, and remembers who asked what.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_contract::BoxFuture;
use fluffy_egress::Network;
use fluffy_image::{Options, public_or_listed};
use rcgen::CertifiedKey;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::sample::{INDEX, Image, MANIFEST};

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    /// By their names in lower case.
    pub(crate) headers: HashMap<String, String>,
    /// What was sent, if anything was.
    pub(crate) body: String,
}

/// What is answered.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Body,
}

/// How a body comes.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// With its length.
    Whole(Vec<u8>),
    /// Announced as this long, whatever comes.
    Announced(u64, Vec<u8>),
    /// In chunks, and then silence.
    Pausing(Vec<u8>),
    /// The same chunk over and over, for 64 MiB.
    Endless(Vec<u8>),
    /// No answer at all.
    Never,
}

impl Reply {
    pub(crate) fn new(status: u16, media_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), media_type.to_owned())],
            body: Body::Whole(body.into()),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn to(location: impl Into<String>) -> Self {
        Self::new(307, "text/plain", "elsewhere").with("location", location)
    }
}

type Handler = dyn Fn(&Asked) -> Reply + Send + Sync;

/// A server on loopback; ends when it is dropped.
pub(crate) struct Site {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    task: JoinHandle<()>,
}

impl Site {
    pub(crate) async fn plain(handler: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(None, Arc::new(handler)).await
    }

    pub(crate) async fn secure(handler: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(Some(KEY.acceptor.clone()), Arc::new(handler)).await
    }

    async fn start(tls: Option<TlsAcceptor>, handler: Arc<Handler>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (log, handler, tls) = (Arc::clone(&log), Arc::clone(&handler), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, &log, &*handler).await,
                        // A client that does not trust us goes away.
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, &log, &*handler).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        });
        Self {
            address,
            asked,
            task,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Its authority under a name.
    pub(crate) fn at(&self, host: &str) -> String {
        format!("{host}:{}", self.port())
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    log: &Mutex<Vec<Asked>>,
    handler: &Handler,
) -> Option<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
            // No letter: somebody tries TLS.
            if head[0] < b'A' {
                return None;
            }
        }
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let path = lines.next()?.split(' ').nth(1)?.to_owned();
        let pairs = lines.filter_map(|line| line.split_once(": "));
        let headers = pairs.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        let headers: HashMap<String, String> = headers.collect();
        let length = headers.get("content-length");
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body).await.ok()?;
        let asked = Asked {
            path,
            headers,
            body: String::from_utf8(body).unwrap(),
        };
        log.lock().unwrap().push(asked.clone());
        let reply = handler(&asked);
        answer(&mut stream, reply).await?;
    }
}

async fn answer(stream: &mut (impl AsyncWrite + Unpin), reply: Reply) -> Option<()> {
    let mut head = format!("HTTP/1.1 {} X\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let length = match &reply.body {
        Body::Whole(body) => Some(body.len() as u64),
        Body::Announced(length, _) => Some(*length),
        Body::Pausing(_) | Body::Endless(_) => None,
        Body::Never => std::future::pending().await,
    };
    head.push_str(&match length {
        Some(length) => format!("content-length: {length}\r\n\r\n"),
        None => "transfer-encoding: chunked\r\n\r\n".to_owned(),
    });
    stream.write_all(head.as_bytes()).await.ok()?;
    match reply.body {
        Body::Whole(body) => stream.write_all(&body).await.ok()?,
        Body::Announced(_, body) => {
            stream.write_all(&body).await.ok()?;
            return None;
        }
        Body::Pausing(body) => {
            chunk(stream, &body).await?;
            stream.flush().await.ok()?;
            std::future::pending().await
        }
        Body::Endless(body) => {
            for _ in 0..(64 << 20) / body.len() {
                chunk(stream, &body).await?;
            }
            chunk(stream, b"").await?;
        }
        Body::Never => {}
    }
    stream.flush().await.ok()
}

async fn chunk(stream: &mut (impl AsyncWrite + Unpin), body: &[u8]) -> Option<()> {
    let head = format!("{:x}\r\n", body.len());
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(body).await.ok()?;
    stream.write_all(b"\r\n").await.ok()
}

/// Serves an image at the repository `app` under the tag `v1`.
pub(crate) fn honest(image: &Image) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    let image = image.clone();
    move |asked| {
        let path = asked.path.strip_prefix("/v2/app/");
        let (kind, what) = path
            .and_then(|path| path.split_once('/'))
            .unwrap_or(("", ""));
        let digest = what
            .strip_prefix("sha256:")
            .and_then(|hex| hex.parse().ok());
        let found = |media_type: &str, body: &[u8]| {
            let digest = format!("sha256:{}", Digest::of(body));
            Reply::new(200, media_type, body).with("docker-content-digest", digest)
        };
        match (kind, digest) {
            ("manifests", None) if what == "v1" => found(INDEX, &image.root),
            ("manifests", Some(digest)) if digest == image.digest() => found(INDEX, &image.root),
            ("manifests", Some(digest)) if image.manifests.contains(&digest) => {
                found(MANIFEST, &image.blobs[&digest])
            }
            ("blobs", Some(digest)) if image.blobs.contains_key(&digest) => {
                found("application/octet-stream", &image.blobs[&digest])
            }
            _ => Reply::new(404, "application/json", r#"{"errors":[]}"#),
        }
    }
}

/// Names for tests: those below `test` are this machine, unless told otherwise.
#[derive(Debug, Default)]
pub(crate) struct Names(pub(crate) HashMap<String, Vec<IpAddr>>);

impl Network for Names {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            match self.0.get(name) {
                Some(addresses) => Ok(addresses.clone()),
                None if name.ends_with(".test") => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
                None => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(async move {
            assert!(address.ip().is_loopback(), "a test left this machine");
            TcpStream::connect(address).await
        })
    }
}

/// As a server would be set up whose operator listed these registries.
pub(crate) fn options(listed: &[String]) -> Options {
    let mut roots = RootCertStore::empty();
    roots.add(KEY.certificate.clone().into()).unwrap();
    let listed: BTreeSet<String> = listed.iter().cloned().collect();
    Options {
        judge: public_or_listed(listed),
        // As long as it needs on a busy machine; tests of it bring their own.
        deadline: Duration::from_secs(120),
        ..Options::public(Arc::new(Names::default()), roots)
    }
}

struct Key {
    certificate: Vec<u8>,
    acceptor: TlsAcceptor,
}

static KEY: LazyLock<Key> = LazyLock::new(|| {
    let names = ["registry.test", "auth.test", "cdn.test", "evil.test"];
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(names.map(str::to_owned)).unwrap();
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key.into())
        .unwrap();
    Key {
        certificate: cert.der().to_vec(),
        acceptor: TlsAcceptor::from(Arc::new(config)),
    }
});
