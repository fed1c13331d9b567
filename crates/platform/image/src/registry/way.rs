//! The way to a host: its address, judged; a connection; TLS.
//!
//! Every address that a name has is judged before any is connected to, and
//! only those are. The name is looked up once, so that it cannot mean
//! something else afterwards. Never trusts everybody.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fluffy_egress::Network;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::error::FetchError;

use super::Judge;
use super::origin::{Origin, Scheme};

/// The most addresses of a name that are looked at.
const MOST_ADDRESSES: usize = 16;

/// How long one address has before the next is tried.
const PATIENCE: Duration = Duration::from_secs(3);

/// The most bytes of an answer's head.
const LARGEST_HEAD: usize = 64 << 10;

/// The way out.
pub(super) struct Way {
    network: Arc<dyn Network>,
    judge: Judge,
    /// None only if the cryptography that is built in has no TLS.
    tls: Option<TlsConnector>,
}

/// A connection on which requests can be sent; ends when it is dropped.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Way {
    pub(super) fn new(network: Arc<dyn Network>, judge: Judge, roots: RootCertStore) -> Self {
        let provider = Arc::new(ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = config.ok().map(|config| {
            let mut config = config.with_root_certificates(roots).with_no_client_auth();
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            TlsConnector::from(Arc::new(config))
        });
        Self {
            network,
            judge,
            tls,
        }
    }

    pub(super) async fn connect(&self, origin: &Origin) -> Result<Link, FetchError> {
        let addresses = self.addresses(origin).await?;
        let stream = self.dial(origin, &addresses).await?;
        // Requests are whole messages; a failure only costs time.
        let _ = stream.set_nodelay(true);
        match origin.scheme {
            Scheme::Http => link(origin, stream).await,
            Scheme::Https => {
                let secured = async {
                    let name =
                        ServerName::try_from(origin.host.clone()).map_err(io::Error::other)?;
                    let tls = self.tls.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                    tls.connect(name, stream).await
                };
                let secured = secured.await.map_err(|error| unsecured(origin, error))?;
                link(origin, secured).await
            }
        }
    }

    /// The addresses of a host; one that is refused refuses them all, since a
    /// name that means both is how a rebinding begins.
    async fn addresses(&self, origin: &Origin) -> Result<Vec<IpAddr>, FetchError> {
        let host = origin.authority();
        let mut addresses = match origin.host.parse() {
            Ok(literal) => vec![literal],
            Err(_) => match self.network.resolve(&origin.host).await {
                Ok(addresses) => addresses,
                Err(source) => {
                    let source = Some(source);
                    return Err(FetchError::Name { host, source });
                }
            },
        };
        addresses.truncate(MOST_ADDRESSES);
        for &address in &addresses {
            (self.judge)(&host, address).map_err(|why| FetchError::Address {
                host: host.clone(),
                address,
                why,
            })?;
        }
        match addresses.is_empty() {
            true => Err(FetchError::Name { host, source: None }),
            false => Ok(addresses),
        }
    }

    async fn dial(&self, origin: &Origin, addresses: &[IpAddr]) -> Result<TcpStream, FetchError> {
        let mut source = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for &address in addresses {
            let connecting = self.network.connect(SocketAddr::new(address, origin.port));
            match timeout(PATIENCE, connecting).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => source = error,
                Err(_) => source = io::ErrorKind::TimedOut.into(),
            }
        }
        let host = origin.authority();
        Err(FetchError::Connect { host, source })
    }
}

/// Why there is no TLS: what the other side said is not trusted, or the
/// connection broke before it had said enough, which says nothing about it.
fn unsecured(origin: &Origin, source: io::Error) -> FetchError {
    let host = origin.authority();
    match source.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::Other | io::ErrorKind::Unsupported => {
            FetchError::Tls { host, source }
        }
        _ => FetchError::Connect { host, source },
    }
}

async fn link<S>(origin: &Origin, stream: S) -> Result<Link, FetchError>
where
    TokioIo<S>: Read + Write + Send + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(LARGEST_HEAD);
    let linked = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = linked.map_err(|source| FetchError::Http {
        host: origin.authority(),
        source,
    })?;
    let task = tokio::spawn(async move {
        // Whatever is wrong with it is seen by who sends on it as well.
        let _ = connection.await;
    });
    Ok(Link { sender, task })
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}
