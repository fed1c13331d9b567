//! Connections to one server: a unix socket or TLS, HTTP/1.1 on top.
//!
//! Keeps a few idle connections. One that turns out to be dead before anything
//! was sent is replaced in silence; what breaks later is the caller's to judge.
//! Never trusts a certificate that it was not told to. Next: `super`.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{CallError, Target};

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most idle connections that are kept.
const IDLE: usize = 8;

type Sender = SendRequest<Full<Bytes>>;

pub(super) struct Transport {
    way: Way,
    /// The server as people read it.
    server: String,
    host: HeaderValue,
    idle: Mutex<Vec<Sender>>,
}

enum Way {
    Socket(std::path::PathBuf),
    Tls {
        address: (String, u16),
        name: ServerName<'static>,
        connector: TlsConnector,
    },
}

impl Transport {
    pub(super) fn new(target: Target) -> Result<Self, CallError> {
        match target {
            Target::Socket(path) => Ok(Self {
                server: path.display().to_string(),
                host: HeaderValue::from_static("localhost"),
                way: Way::Socket(path),
                idle: Mutex::default(),
            }),
            Target::Https { url, ca } => Self::tls(url, ca.as_deref()),
        }
    }

    fn tls(url: String, ca: Option<&str>) -> Result<Self, CallError> {
        let unusable = |why| CallError::Target {
            target: url.clone(),
            why,
        };
        let uri: Uri = url.parse().map_err(|_| unusable("it is no address"))?;
        if uri.scheme_str() != Some("https") {
            return Err(unusable("it must start with https://"));
        }
        let authority = uri.authority().ok_or_else(|| unusable("it has no host"))?;
        if uri.path() != "/" || uri.query().is_some() || authority.as_str().contains('@') {
            return Err(unusable("it must be https://HOST[:PORT] and nothing more"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let name =
            ServerName::try_from(host.clone()).map_err(|_| unusable("its host is no name"))?;
        let host_value = HeaderValue::try_from(authority.as_str());
        Ok(Self {
            way: Way::Tls {
                address: (host, authority.port_u16().unwrap_or(7443)),
                name,
                connector: connector(ca).map_err(unusable)?,
            },
            host: host_value.map_err(|_| unusable("its host is no name"))?,
            idle: Mutex::default(),
            server: url,
        })
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Opens a connection and keeps it for the first call.
    pub(super) async fn warm(&self) -> Result<(), CallError> {
        let sender = self.open().await?;
        self.keep(sender);
        Ok(())
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, CallError> {
        request.headers_mut().insert(HOST, self.host.clone());
        loop {
            let (mut sender, is_fresh) = match self.take() {
                Some(sender) => (sender, false),
                None => (self.open().await?, true),
            };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    self.keep(sender);
                    return Ok(response);
                }
                Err(mut refused) => match refused.take_message() {
                    // It was closed while it lay idle; nothing was sent.
                    Some(unsent) if !is_fresh => request = unsent,
                    _ => {
                        return Err(CallError::Broken {
                            server: self.server.clone(),
                            source: refused.into_error().into(),
                        });
                    }
                },
            }
        }
    }

    /// Sends a request on a connection of its own, which may then become
    /// something other than HTTP.
    pub(super) async fn send_alone(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, CallError> {
        request.headers_mut().insert(HOST, self.host.clone());
        let mut sender = self.open().await?;
        sender
            .send_request(request)
            .await
            .map_err(|error| CallError::Broken {
                server: self.server.clone(),
                source: error.into(),
            })
    }

    fn take(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|sender| !sender.is_closed());
        let ready = idle.iter().position(Sender::is_ready)?;
        Some(idle.swap_remove(ready))
    }

    /// A connection that is still busy with an answer is ready again once that
    /// is read; it is looked at when it is taken.
    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE && !sender.is_closed() {
            idle.push(sender);
        }
    }

    async fn open(&self) -> Result<Sender, CallError> {
        let opened = timeout(PATIENCE, async {
            match &self.way {
                Way::Socket(path) => speak(UnixStream::connect(path).await?).await,
                Way::Tls {
                    address: (host, port),
                    name,
                    connector,
                } => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await?;
                    stream.set_nodelay(true)?;
                    speak(connector.connect(name.clone(), stream).await?).await
                }
            }
        });
        let opened = opened.await.unwrap_or_else(|_| {
            let why = "it did not answer in time";
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        });
        opened.map_err(|source| CallError::Unreachable {
            server: self.server.clone(),
            source,
        })
    }
}

async fn speak<S>(stream: S) -> io::Result<Sender>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    // Ends with the last sender, or when the other side closes.
    tokio::spawn(async move {
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

fn connector(ca: Option<&str>) -> Result<TlsConnector, &'static str> {
    let certificates: Vec<CertificateDer<'static>> = match ca {
        Some(pem) => CertificateDer::pem_slice_iter(pem.as_bytes())
            .filter_map(Result::ok)
            .collect(),
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    if roots.add_parsable_certificates(certificates).0 == 0 {
        return Err("there is no certificate to trust");
    }
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| "TLS cannot be set up")?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
