//! TLS: rustls with ring, versions 1.2 and 1.3, HTTP/1.1 only.
//!
//! Trusts the machine's own roots, or those it is given. There is no way to
//! trust everybody. Never sees a request.

use std::io;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::dial::Transport;

/// Whom to trust.
#[derive(Debug, Clone)]
pub struct Roots(RootCertStore);

/// Why there is nobody to trust.
#[derive(Debug, thiserror::Error)]
pub enum LoadRootsError {
    /// The machine has no usable certificates.
    #[error("this machine has no root certificates that could be read")]
    None,
    /// The text holds no certificates.
    #[error("the text holds no certificates in PEM form")]
    NotPem,
}

impl Roots {
    /// Nobody: for plain connections on this machine.
    #[must_use]
    pub fn none() -> Self {
        Self(RootCertStore::empty())
    }

    /// The machine's own, `SSL_CERT_FILE` and `SSL_CERT_DIR` included.
    ///
    /// # Errors
    /// There are none.
    pub fn system() -> Result<Self, LoadRootsError> {
        // Single damaged files are common and harm nobody.
        let found = rustls_native_certs::load_native_certs();
        Self::of(found.certs).ok_or(LoadRootsError::None)
    }

    /// The certificates in a text in PEM form.
    ///
    /// # Errors
    /// There are none.
    pub fn from_pem(pem: &str) -> Result<Self, LoadRootsError> {
        let found = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok);
        Self::of(found.collect()).ok_or(LoadRootsError::NotPem)
    }

    fn of(certificates: Vec<CertificateDer<'static>>) -> Option<Self> {
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(certificates);
        (added > 0).then_some(Self(store))
    }
}

/// Makes TLS of streams.
pub(super) struct Connector(Option<TlsConnector>);

impl Connector {
    pub(super) fn new(roots: Roots) -> Self {
        let provider = Arc::new(ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        Self(config.ok().map(|config| {
            let mut config = config.with_root_certificates(roots.0).with_no_client_auth();
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            TlsConnector::from(Arc::new(config))
        }))
    }

    pub(super) async fn connect(&self, host: &str, transport: Transport) -> io::Result<Transport> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connector = self.0.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        Ok(Box::new(connector.connect(name, transport).await?))
    }
}
