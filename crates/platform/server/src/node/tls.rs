//! Who is at the other end: certificates of our own cluster, and their state.
//!
//! Nobody needs a certificate to connect, since enrolment comes first; who
//! shows one must be a member, now. There is no resumption: every handshake
//! looks again.

use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::dial::Identity;
use fluffy_api::node::refusal;
use fluffy_base::id::{LedgerId, NodeId};
use fluffy_base::{Digest, Timestamp};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    self, CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use tonic::{Code, Status};

use super::ca::{RENEWAL, Role, member_of};
use super::desk::{Desk, Standing};

/// How long after its end a certificate still gets its successor.
const LATE: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// A member at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) node: NodeId,
    pub(super) role: Role,
    pub(super) fingerprint: Digest,
    not_after: Timestamp,
}

impl Peer {
    /// Checks that a message is about the one who sent it.
    pub(super) fn must_be(&self, node: &str) -> Result<(), Status> {
        match node == self.node.to_string() {
            true => Ok(()),
            false => Err(refusal(
                Code::PermissionDenied,
                "node_mismatch",
                "the message names another node than the certificate",
            )),
        }
    }

    /// The same one with the certificate that it will use next.
    pub(super) fn renewed(self, not_after: Timestamp) -> Self {
        Self { not_after, ..self }
    }

    /// Whether its certificate has ended, so that only renewal is left.
    pub(super) fn is_late(&self, now: Timestamp) -> bool {
        now > self.not_after
    }

    /// Whether its certificate should be replaced.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        now.after(RENEWAL) > self.not_after
    }
}

/// Believes members of one cluster.
pub(super) struct Members {
    cluster: LedgerId,
    strict: Arc<dyn ClientCertVerifier>,
    desk: Arc<dyn Desk>,
}

impl Members {
    /// Those of a cluster, with a chain to its root.
    pub(super) fn new(
        cluster: LedgerId,
        root: &CertificateDer<'static>,
        desk: Arc<dyn Desk>,
    ) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        roots.add(root.clone())?;
        let strict = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let strict = strict
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        Ok(Self {
            cluster,
            strict,
            desk,
        })
    }

    /// The member that a checked certificate names.
    pub(super) fn peer(&self, certificate: &CertificateDer<'_>) -> Option<Peer> {
        let (node, role) = member_of(self.cluster, certificate)?;
        Some(Peer {
            node,
            role,
            fingerprint: Digest::of(certificate),
            not_after: self.end(certificate)?,
        })
    }

    /// When a certificate ends: asked at the end of all time, the check says.
    fn end(&self, certificate: &CertificateDer<'_>) -> Option<Timestamp> {
        let never = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
        match self.strict.verify_client_cert(certificate, &[], never) {
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after, ..
            })) => {
                let seconds = i64::try_from(not_after.as_secs()).ok()?;
                Some(Timestamp::from_micros(seconds.checked_mul(1_000_000)?))
            }
            _ => None,
        }
    }

    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let (node, _) = member_of(self.cluster, certificate)
            .ok_or(CertificateError::ApplicationVerificationFailure)?;
        let checked = match self.strict.verify_client_cert(certificate, chain, now) {
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after, ..
            })) if now.as_secs() - not_after.as_secs() <= LATE.as_secs() => self
                .strict
                .verify_client_cert(certificate, chain, not_after),
            checked => checked,
        }?;
        match self.desk.standing(node, &Digest::of(certificate)) {
            Standing::Member => Ok(checked),
            Standing::Stranger => Err(CertificateError::Revoked.into()),
        }
    }
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Members({})", self.cluster)
    }
}

/// Speaks TLS as the server, with whoever may connect.
pub(super) fn acceptor(members: Arc<Members>, server: Identity) -> Result<TlsAcceptor, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(members)
        .with_single_cert(server.chain, server.key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl ClientCertVerifier for Members {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.strict.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(certificate, chain, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(rustls::PeerIncompatible::Tls12NotOfferedOrEnabled.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.strict
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.strict.supported_verify_schemes()
    }
}
