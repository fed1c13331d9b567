//! The way out: a stream to a provider, however the sandbox lets one through.
//!
//! In the product there is one way, the egress proxy ([`Egress`]); tests go to
//! loopback directly ([`Direct`]). Never resolves a name itself and never goes
//! around the proxy when it refuses.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use fluffy_contract::BoxFuture;
use fluffy_contract::model::{FaultKind, Retry};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Refused, refused};
use crate::address::{BaseUrl, Scheme};

/// The longest answer of a proxy to `CONNECT`.
const MAX_HEAD: usize = 16 << 10;

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A stream of any kind.
pub type Transport = Box<dyn Stream>;

/// Finds a way to a provider.
pub trait Dialer: Send + Sync {
    /// A stream on which the provider, or a proxy for it, listens.
    fn dial<'a>(&'a self, to: &'a BaseUrl) -> BoxFuture<'a, Result<Dialed, DialError>>;
}

/// A stream, and how a request is addressed on it.
pub struct Dialed {
    /// The stream.
    pub transport: Transport,
    /// How the request names its target.
    pub form: Form,
}

/// How a request names its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// By its path: the other end is the provider.
    Origin,
    /// By its whole address: the other end is a proxy.
    Absolute,
}

/// Why there is no way to a provider.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The connection failed.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The proxy refused; asking again does not change its mind.
    #[error("the proxy refused with status {status}: {said}")]
    Refused {
        /// Its status.
        status: u16,
        /// What it said.
        said: String,
    },
    /// What answered is no proxy.
    #[error("what answered is no HTTP proxy")]
    NotAProxy,
    /// Only this machine is reached without a proxy.
    #[error("`{host}` is not this machine, and there is no proxy")]
    NotLoopback {
        /// The host.
        host: String,
    },
}

impl DialError {
    pub(super) fn into_refused(self, to: &BaseUrl) -> Refused {
        let retryable = match &self {
            Self::Connect(_) => Retry::Later,
            // A proxy that is itself in trouble says so with a 5xx.
            Self::Refused { status, .. } if *status >= 500 => Retry::Later,
            Self::Refused { .. } | Self::NotAProxy | Self::NotLoopback { .. } => Retry::Never,
        };
        let reason = match &self {
            Self::Connect(source) => format!("{self}: {source}"),
            _ => self.to_string(),
        };
        refused(
            FaultKind::Network,
            format!("no way to `{}`: {reason}", to.host()),
            retryable,
        )
    }
}

/// Where a proxy listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyAddress {
    /// On the sandbox's own loopback.
    Tcp(SocketAddr),
    /// On a socket in the sandbox's file system.
    Unix(PathBuf),
}

/// Goes out by the egress proxy: a tunnel for TLS, whole addresses without.
#[derive(Debug, Clone)]
pub struct Egress {
    proxy: ProxyAddress,
}

impl Egress {
    /// A way out by this proxy.
    #[must_use]
    pub const fn new(proxy: ProxyAddress) -> Self {
        Self { proxy }
    }

    async fn open(&self) -> io::Result<Transport> {
        match &self.proxy {
            ProxyAddress::Tcp(address) => tcp(*address).await,
            #[cfg(unix)]
            ProxyAddress::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
            #[cfg(not(unix))]
            ProxyAddress::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Dialer for Egress {
    fn dial<'a>(&'a self, to: &'a BaseUrl) -> BoxFuture<'a, Result<Dialed, DialError>> {
        Box::pin(async move {
            let mut transport = self.open().await.map_err(DialError::Connect)?;
            let form = match to.scheme() {
                Scheme::Http => Form::Absolute,
                Scheme::Https => {
                    tunnel(&mut transport, &to.authority()).await?;
                    Form::Origin
                }
            };
            Ok(Dialed { transport, form })
        })
    }
}

/// Goes straight to this machine, and nowhere else.
#[derive(Debug, Clone, Copy, Default)]
pub struct Direct;

impl Dialer for Direct {
    fn dial<'a>(&'a self, to: &'a BaseUrl) -> BoxFuture<'a, Result<Dialed, DialError>> {
        Box::pin(async move {
            if !to.is_loopback() {
                let host = to.host().to_owned();
                return Err(DialError::NotLoopback { host });
            }
            let address = to.host().parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let transport = tcp(SocketAddr::new(address, to.port())).await;
            let transport = transport.map_err(DialError::Connect)?;
            let form = Form::Origin;
            Ok(Dialed { transport, form })
        })
    }
}

impl fmt::Debug for Dialed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialed")
            .field("form", &self.form)
            .finish_non_exhaustive()
    }
}

async fn tcp(address: SocketAddr) -> io::Result<Transport> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

/// Asks a proxy for a tunnel and reads its answer, not a byte more.
async fn tunnel(transport: &mut Transport, authority: &str) -> Result<(), DialError> {
    let ask = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n");
    transport
        .write_all(ask.as_bytes())
        .await
        .map_err(DialError::Connect)?;
    transport.flush().await.map_err(DialError::Connect)?;
    let mut head = Vec::new();
    // One byte at a time: what follows the head belongs to TLS.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD {
            return Err(DialError::NotAProxy);
        }
        let byte = transport.read_u8().await.map_err(DialError::Connect)?;
        head.push(byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut words = head.split_ascii_whitespace();
    let version = words.next().unwrap_or_default();
    let status = words.next().and_then(|word| word.parse::<u16>().ok());
    match status {
        Some(200..300) if version.starts_with("HTTP/1.") => Ok(()),
        Some(status) if version.starts_with("HTTP/1.") => Err(DialError::Refused {
            status,
            said: reason(transport, &head).await,
        }),
        Some(_) | None => Err(DialError::NotAProxy),
    }
}

/// What a proxy gives as its reason: its body, or at least its header.
async fn reason(transport: &mut Transport, head: &str) -> String {
    let mut body = Vec::new();
    let limit = u64::try_from(MAX_HEAD).unwrap_or(u64::MAX);
    let _ = transport.take(limit).read_to_end(&mut body).await;
    let body = String::from_utf8_lossy(&body).trim().to_owned();
    let header = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("proxy-status")
            .then(|| value.trim().to_owned())
    });
    match (body.is_empty(), header) {
        (false, _) => body,
        (true, Some(header)) => header,
        (true, None) => "no reason".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A proxy that reads one head, answers with `answer` and says what it read.
    async fn proxy(answer: &'static str) -> (Egress, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"\r\n\r\n") {
                read.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(read).unwrap()
        });
        (Egress::new(ProxyAddress::Tcp(address)), served)
    }

    #[tokio::test]
    async fn a_tunnel_takes_nothing_of_what_follows() {
        let (egress, served) =
            proxy("HTTP/1.1 200 Connection established\r\nx: y\r\n\r\nTLS").await;
        let url = "https://api.example.com".parse().unwrap();
        let mut dialed = egress.dial(&url).await.unwrap();
        assert_eq!(dialed.form, Form::Origin);
        let mut rest = String::new();
        dialed.transport.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "TLS");
        let asked = served.await.unwrap();
        assert!(
            asked.starts_with("CONNECT api.example.com:443 HTTP/1.1\r\n"),
            "{asked}"
        );
    }

    #[tokio::test]
    async fn a_refusal_is_told_and_not_tried_again() {
        let answer =
            "HTTP/1.1 403 Forbidden\r\nProxy-Status: fluffy; error=denied\r\n\r\nno rule allows it";
        let (egress, _served) = proxy(answer).await;
        let url: BaseUrl = "https://api.example.com".parse().unwrap();
        let error = egress.dial(&url).await.unwrap_err();
        let refused = error.into_refused(&url);
        assert!(
            refused.fault.message.contains("no rule allows it"),
            "{refused:?}"
        );
        assert_eq!(refused.fault.retryable, Retry::Never);
        let (egress, _served) = proxy("SSH-2.0-OpenSSH\r\n\r\n").await;
        assert!(matches!(egress.dial(&url).await, Err(DialError::NotAProxy)));
    }

    #[tokio::test]
    async fn loopback_alone_is_reached_directly() {
        let url = "https://example.com".parse().unwrap();
        assert!(matches!(
            Direct.dial(&url).await,
            Err(DialError::NotLoopback { .. })
        ));
    }
}
