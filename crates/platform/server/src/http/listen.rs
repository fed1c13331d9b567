//! Listeners: TLS for everybody, a socket for this machine, one for operators.
//!
//! Bounds connections, also those of one source, handshakes and idle time, and
//! ends in good order. What a connection may ask depends on the door that it
//! came in by. Next: `service`.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use super::backend::Backend;
use super::body::AnswerBody;
use super::running::{Running, idle};
use super::service::{HttpService, Peer};
use crate::seats::{Free, Seats};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long connections have to end.
const FAREWELL: Duration = Duration::from_secs(10);

/// What hyper reads of a head; above what this layer allows, so that a refusal
/// has the form of all others.
const HEAD: usize = 80 << 10;

/// The most calls of one connection at once.
const STREAMS: u32 = 128;

/// By which door a connection came in, which says what it may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Operations, for everybody.
    Public,
    /// Health and figures, for operators; nothing else.
    Operators,
    /// Both, on this machine.
    Local,
}

impl Door {
    pub(super) const fn has_operations(self) -> bool {
        !matches!(self, Self::Operators)
    }

    pub(super) const fn is_operated(self) -> bool {
        !matches!(self, Self::Public)
    }
}

/// Where connections come from.
pub enum Listener {
    /// TLS, for everybody.
    Public(TcpListener, Tls),
    /// In the clear, for operators.
    Operators(TcpListener),
    /// The socket of this machine.
    Local(UnixListener),
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Public(..) => "Public",
            Self::Operators(_) => "Operators",
            Self::Local(_) => "Local",
        })
    }
}

/// TLS with a certificate that can be replaced while connections are taken;
/// to be cloned freely.
#[derive(Debug, Clone)]
pub struct Tls(Arc<ArcSwap<ServerConfig>>);

impl Tls {
    /// With this certificate.
    ///
    /// # Errors
    /// The certificate and the key do not fit.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(config(chain, key)?))))
    }

    /// Shows another certificate from the next connection on.
    ///
    /// # Errors
    /// The certificate and the key do not fit; the one of before stays.
    pub fn replace(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), rustls::Error> {
        self.0.store(Arc::new(config(chain, key)?));
        Ok(())
    }

    fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.load_full())
    }
}

/// Versions 1.2 and 1.3, HTTP/2 and HTTP/1.1.
fn config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth();
    let mut config = config.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// A stream that was accepted.
enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Public(listener, _) | Self::Operators(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream, address))
            }
            Self::Local(listener) => Ok(Accepted::Unix(listener.accept().await?.0)),
        }
    }
}

impl Accepted {
    /// The address that it came from, if it has one.
    fn source(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(_, address) => Some(address.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl<B: Backend> HttpService<B> {
    /// Serves a listener until `stop` says so or its sender is gone, then lets
    /// what runs come to its end.
    pub async fn serve(self, listener: Listener, mut stop: watch::Receiver<bool>) {
        let seats = Seats::new(self.options().connections);
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                accepted = next(&listener, &seats) => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let (stream, free) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // Whose source has its share is closed, and hears why of nobody:
            // it would take a handshake to say it.
            let Some(seat) = seats.give(free, stream.source()) else {
                continue;
            };
            let (service, stop) = (self.clone(), stop.clone());
            match (&listener, stream) {
                (Listener::Public(_, tls), Accepted::Tcp(stream, address)) => {
                    let acceptor = tls.acceptor();
                    connections.spawn(async move {
                        let _seat = seat;
                        service
                            .encrypted(acceptor, stream, address.ip(), stop)
                            .await;
                    });
                }
                (_, Accepted::Tcp(stream, address)) => {
                    connections.spawn(async move {
                        let _seat = seat;
                        let peer = Peer::Address(address.ip().to_canonical());
                        service.http1(stream, Door::Operators, peer, stop).await;
                    });
                }
                (_, Accepted::Unix(stream)) => {
                    connections.spawn(async move {
                        let _seat = seat;
                        // Who has no name is nobody's owner.
                        let peer = match stream.peer_cred() {
                            Ok(user) => Peer::Socket(user.uid()),
                            Err(_) => Peer::Address(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
                        };
                        service.http1(stream, Door::Local, peer, stop).await;
                    });
                }
            }
        }
        drop(listener);
        let _ = timeout(FAREWELL, async {
            while connections.join_next().await.is_some() {}
        })
        .await;
    }

    async fn encrypted(
        self,
        acceptor: TlsAcceptor,
        stream: TcpStream,
        address: IpAddr,
        stop: watch::Receiver<bool>,
    ) {
        let Ok(Ok(stream)) = timeout(HANDSHAKE, acceptor.accept(stream)).await else {
            return;
        };
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let peer = Peer::Address(address.to_canonical());
        match is_http2 {
            true => self.http2(stream, peer, stop).await,
            false => self.http1(stream, Door::Public, peer, stop).await,
        }
    }

    async fn http1<S>(self, stream: S, door: Door, peer: Peer, stop: watch::Receiver<bool>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let idle_limit = self.options().idle;
        let service = service_fn(move |request| {
            let service = self.clone();
            async move { Ok::<_, Infallible>(service.respond(door, peer, request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(idle_limit)
            .max_buf_size(HEAD)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut connection = std::pin::pin!(connection);
        // What breaks a connection is nobody's fault here.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = stopped(stop) => connection.as_mut().graceful_shutdown(),
        }
        let _ = timeout(FAREWELL, connection).await;
    }

    async fn http2<S>(self, stream: S, peer: Peer, stop: watch::Receiver<bool>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let limit = self.options().idle;
        let running = Running::default();
        let idle = idle(running.watch(), limit);
        let service = service_fn(move |request| {
            let (service, turn) = (self.clone(), running.begin());
            async move {
                let response = service.respond(Door::Public, peer, request).await;
                Ok::<_, Infallible>(response.map(|body: AnswerBody| turn.until_sent(body)))
            }
        });
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(HANDSHAKE * 2)
            .keep_alive_timeout(HANDSHAKE)
            .max_header_list_size(80 << 10)
            .max_concurrent_streams(STREAMS)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        // Pings tell that somebody is there, and not that they want anything.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = idle => connection.as_mut().graceful_shutdown(),
            () = stopped(stop) => connection.as_mut().graceful_shutdown(),
        }
        let _ = timeout(FAREWELL, connection).await;
    }
}

/// The next connection, once there is a seat for one.
async fn next(listener: &Listener, seats: &Seats) -> io::Result<(Accepted, Free)> {
    let free = seats.free().await?;
    Ok((listener.accept().await?, free))
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
