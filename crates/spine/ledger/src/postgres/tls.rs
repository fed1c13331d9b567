//! TLS to PostgreSQL: rustls with ring, by the rules of libpq's `sslmode`.
//!
//! `require` and `prefer` check nobody's name, as libpq has it: they help
//! against who listens, not against who stands in between. Which of them an
//! address means is settled in `address`. Never sees a statement.

use std::error::Error;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use sha2::{Digest as _, Sha256, Sha384, Sha512};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{self, ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

/// What PostgreSQL 17 wants to hear where TLS comes before its own protocol.
const PROTOCOL: &[u8] = b"postgresql";

/// Whose certificate is taken.
#[derive(Debug)]
pub(super) enum Trust {
    /// Anybody's.
    Anyone,
    /// Of whoever a root has signed, whatever its name.
    Signed(RootCertStore),
    /// Of the host that was asked for, signed by a root.
    Named(RootCertStore),
}

/// Why there is nobody to trust.
#[derive(Debug, thiserror::Error)]
pub enum LoadRootsError {
    /// The file can't be read.
    #[error("`{path}`, which `sslrootcert` names, can't be read")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file holds no certificates.
    #[error("`{path}`, which `sslrootcert` names, holds no certificates in PEM form")]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// This machine trusts nobody.
    #[error(
        "this machine has no root certificates that could be read; name a file by `sslrootcert`"
    )]
    None,
    /// TLS itself can't be set up.
    #[error("TLS can't be set up")]
    Tls(#[from] rustls::Error),
}

/// The certificates of a file, or of this machine.
pub(super) fn roots(file: Option<&Path>) -> Result<RootCertStore, LoadRootsError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = file else {
        // Single damaged files are common and harm nobody.
        let found = rustls_native_certs::load_native_certs().certs;
        let (added, _) = roots.add_parsable_certificates(found);
        return (added > 0).then_some(roots).ok_or(LoadRootsError::None);
    };
    let pem = std::fs::read(path).map_err(|source| LoadRootsError::File {
        path: path.to_owned(),
        source,
    })?;
    let found = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
    let (added, _) = roots.add_parsable_certificates(found);
    let path = path.to_owned();
    (added > 0)
        .then_some(roots)
        .ok_or(LoadRootsError::Empty { path })
}

/// Makes TLS of connections.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    pub(super) fn new(trust: Trust) -> Result<Self, rustls::Error> {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let mut config = config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Checks { trust, provider }))
            .with_no_client_auth();
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<Handshake> {
        // Also called where no TLS follows, such as for a Unix socket.
        let name = ServerName::try_from(domain.to_owned()).ok();
        Ok(Handshake(self.0.clone(), name))
    }
}

/// One handshake that is to come.
pub(super) struct Handshake(TlsConnector, Option<ServerName<'static>>);

/// The server's certificate, or how it speaks TLS, is not taken.
#[derive(Debug, thiserror::Error)]
#[error("the server was not taken for the right one")]
pub(super) struct Refused(#[source] io::Error);

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Self::Error>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let Self(connector, name) = self;
            let name = name.ok_or_else(|| Refused(io::ErrorKind::InvalidInput.into()))?;
            match connector.connect(name, socket).await {
                Ok(stream) => Ok(Stream(Box::new(stream))),
                // What rustls refuses; anything else is the way there.
                Err(error) if error.get_ref().is_some_and(|it| it.is::<rustls::Error>()) => {
                    Err(Refused(error).into())
                }
                Err(error) => Err(error.into()),
            }
        })
    }
}

/// Whether a connection failed because one side did not take the other's TLS.
pub(super) fn is_refused(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|source| source.is::<Refused>())
}

/// Looks at the certificate of a server.
#[derive(Debug)]
struct Checks {
    trust: Trust,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Checks {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let (Trust::Signed(roots) | Trust::Named(roots)) = &self.trust else {
            return Ok(ServerCertVerified::assertion());
        };
        let certificate = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        if let Trust::Named(_) = &self.trust {
            verify_server_name(&certificate, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    // That the server has the key of its certificate is always asked for.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// A connection inside TLS.
pub(super) struct Stream(Box<TlsStream<Socket>>);

impl tls::TlsStream for Stream {
    /// Ties the password to this very connection: who relays it gains nothing.
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        match certificate.and_then(|it| end_point(it)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// `tls-server-end-point` of RFC 5929: the certificate's hash, by the function
/// of its signature, and SHA-256 for older ones. None where there is no such
/// function, as with Ed25519.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (whole, _) = element(certificate, SEQUENCE)?;
    let (_, after) = element(whole, SEQUENCE)?;
    let (algorithm, _) = element(after, SEQUENCE)?;
    let (name, _) = element(algorithm, OBJECT)?;
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03];
    let (family, which) = name.split_at_checked(name.len().checked_sub(1)?)?;
    match (family, which) {
        (RSA, [4 | 5 | 11]) | (ECDSA, [2]) => Some(Sha256::digest(certificate).to_vec()),
        (RSA, [12]) | (ECDSA, [3]) => Some(Sha384::digest(certificate).to_vec()),
        (RSA, [13]) | (ECDSA, [4]) => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

const SEQUENCE: u8 = 0x30;
const OBJECT: u8 = 0x06;

/// The content of the first DER element, if it has this tag, and what follows.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        long @ 0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            let length = bytes
                .iter()
                .fold(0, |length, byte| length << 8 | usize::from(*byte));
            (length, rest)
        }
        _ => return None,
    };
    (*found == tag)
        .then(|| rest.split_at_checked(length))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_bound_by_the_function_of_its_signature() {
        for (algorithm, length) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, Some(32)),
            (&rcgen::PKCS_ECDSA_P384_SHA384, Some(48)),
            (&rcgen::PKCS_ED25519, None),
        ] {
            let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
            let params = rcgen::CertificateParams::new(vec!["db".to_owned()]).unwrap();
            let certificate = params.self_signed(&key).unwrap();
            let bound = end_point(certificate.der());
            assert_eq!(bound.map(|hash| hash.len()), length, "{algorithm:?}");
        }
    }

    #[test]
    fn what_is_no_certificate_is_bound_by_nothing() {
        for der in [
            &[][..],
            &[0x30],
            &[0x30, 0x84, 0, 0, 0, 1],
            &[0x30, 0x05, 0x30, 0x01],
            &[0x30, 0x06, 0x30, 0x00, 0x30, 0x02, 0x06, 0x00],
        ] {
            assert_eq!(end_point(der), None, "{der:?}");
        }
    }
}
