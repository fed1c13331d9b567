//! A certificate for this machine, made anew by every server that wants one.
//!
//! Nobody trusts it unless told to. Never used outside tests.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Accepts TLS, and the certificate to trust for it, as PEM.
pub(crate) fn acceptor() -> Result<(TlsAcceptor, String)> {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).context("cannot make a certificate")?;
    let pem = made.cert.pem();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("no protocol versions")?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .context("the certificate does not fit its key")?;
    Ok((TlsAcceptor::from(Arc::new(config)), pem))
}
