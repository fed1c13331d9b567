//! Opens the one connection of a node to its server: TLS 1.3, then HTTP/2.
//!
//! Believes a root or, before there is one, a pin; never the machine's own
//! list of authorities. No pool and no second try: whoever dials decides when
//! to dial again.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fluffy_base::Digest;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, PeerIncompatible, RootCertStore,
    SignatureScheme,
};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};

/// How long TCP and TLS may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often an idle connection is tried, and how long an answer may take.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));

/// What one stream may send ahead, and all together: one that nobody reads
/// must not hold up the others.
const WINDOWS: (u32, u32) = (256 << 10, 64 << 20);

/// Which server is believed.
#[derive(Debug, Clone)]
pub enum Trust {
    /// One whose chain contains a root with this key: SHA-256 of the key as
    /// certificates carry it. For enrolment, when nothing else is known.
    Pin(Digest),
    /// One with a chain to this root.
    Root(CertificateDer<'static>),
}

/// What a node shows of itself.
pub struct Identity {
    /// Its certificate and the one that signed it.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(…)")
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The certificates or the key cannot be used.
    #[error("the certificates for `{host}` cannot be used")]
    Credentials {
        /// Where it was to go.
        host: String,
        /// What is wrong with them.
        #[source]
        source: rustls::Error,
    },
    /// The name is no name of a server.
    #[error("`{host}` is no name of a server")]
    Name {
        /// What was given.
        host: String,
    },
    /// Nothing answers there, or it is not believed, or it does not believe us.
    #[error("no connection with `{host}`")]
    Connect {
        /// Where it was to go.
        host: String,
        /// What happened.
        #[source]
        source: std::io::Error,
    },
    /// What answers speaks something else.
    #[error("`{host}` does not speak HTTP/2")]
    Protocol {
        /// Where it was to go.
        host: String,
        /// What happened.
        #[source]
        source: hyper::Error,
    },
}

/// Connects to a server by TCP.
///
/// # Errors
/// Nothing answers, or it is not the one that is believed.
pub async fn dial(
    address: (&str, u16),
    trust: &Trust,
    identity: Option<&Identity>,
) -> Result<Channel, DialError> {
    let host = address.0;
    let connect = tokio::time::timeout(PATIENCE, TcpStream::connect(address));
    let stream = connect.await.unwrap_or_else(|_| Err(too_late()));
    let stream = stream.map_err(|source| failed(host, source))?;
    let _ = stream.set_nodelay(true);
    over(stream, host, trust, identity).await
}

/// Connects to a server over a stream that is there.
///
/// # Errors
/// The other side is not the one that is believed.
pub async fn over<S>(
    stream: S,
    host: &str,
    trust: &Trust,
    identity: Option<&Identity>,
) -> Result<Channel, DialError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let named = || host.to_owned();
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| DialError::Name { host: named() })?;
    let config = config(trust, identity).map_err(|source| DialError::Credentials {
        host: named(),
        source,
    })?;
    let connector = TlsConnector::from(Arc::new(config));
    let greeting = tokio::time::timeout(PATIENCE, connector.connect(name, stream));
    let stream = greeting.await.unwrap_or_else(|_| Err(too_late()));
    let stream = stream.map_err(|source| failed(host, source))?;
    let spoken = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(16 << 10)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await;
    let (requests, connection) = spoken.map_err(|source| DialError::Protocol {
        host: named(),
        source,
    })?;
    let task = tokio::spawn(async move {
        // Whoever waits for an answer hears of the end.
        let _ = connection.await;
    });
    Ok(Channel {
        requests,
        _task: Arc::new(Task(task.abort_handle())),
    })
}

fn failed(host: &str, source: std::io::Error) -> DialError {
    DialError::Connect {
        host: host.to_owned(),
        source,
    }
}

fn too_late() -> std::io::Error {
    std::io::ErrorKind::TimedOut.into()
}

fn config(trust: &Trust, identity: Option<&Identity>) -> Result<ClientConfig, rustls::Error> {
    let builder =
        ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let builder = match trust {
        Trust::Root(root) => builder.with_root_certificates(only(root)?),
        Trust::Pin(pin) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned(*pin))),
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { chain, key }) => {
            builder.with_client_auth_cert(chain.clone(), key.clone_key())?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn only(root: &CertificateDer<'static>) -> Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone())?;
    Ok(roots)
}

/// The pin of a certificate: SHA-256 of its key as certificates carry it.
#[must_use]
pub fn pin(certificate: &CertificateDer<'_>) -> Option<Digest> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(Digest::of(&parsed.subject_public_key_info()))
}

/// Believes chains to a root with one key.
#[derive(Debug)]
struct Pinned(Digest);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let root = chain.iter().find(|given| pin(given) == Some(self.0));
        let root = root.ok_or(CertificateError::UnknownIssuer)?;
        let roots = Arc::new(only(&root.clone().into_owned())?);
        let strict = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        let strict = strict.map_err(|error| rustls::Error::General(error.to_string()))?;
        strict.verify_server_cert(certificate, chain, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::Tls12NotOfferedOrEnabled.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// A connection to a server; clones share it, and the last one closes it.
#[derive(Debug, Clone)]
pub struct Channel {
    requests: http2::SendRequest<Body>,
    _task: Arc<Task>,
}

#[derive(Debug)]
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Channel {
    /// What requests on it are addressed to.
    #[must_use]
    pub fn origin() -> http::Uri {
        http::Uri::from_static("https://fluffy")
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.requests.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.requests.send_request(request))
    }
}
