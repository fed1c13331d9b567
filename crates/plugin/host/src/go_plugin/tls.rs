//! Automatic mTLS: a fresh certificate per start, and the plugin's own pinned.
//!
//! A plugin's certificate is self-signed, so there is nothing to build a chain
//! from: it is the one that the plugin named in its handshake, byte for byte,
//! or it is refused; who presents it must also prove to have its key.

use std::sync::Arc;

use p521::ecdsa::signature::Verifier as _;
use p521::ecdsa::{DerSignature, VerifyingKey};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, InvalidSignature, PrivateKeyDer, ServerName,
    SignatureVerificationAlgorithm, UnixTime, alg_id,
};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name in every certificate of go-plugin.
pub(super) const NAME: &str = "localhost";

/// The host's certificate and key for one start of a plugin.
pub(super) struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    pem: String,
}

impl Identity {
    /// A new one. It is its own authority, because go-plugin trusts it as one.
    pub(super) fn fresh() -> Result<Self, rcgen::Error> {
        let mut wanted = CertificateParams::new([NAME.to_owned()])?;
        wanted.distinguished_name.push(DnType::CommonName, NAME);
        wanted.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        wanted.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
        ];
        wanted.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let key = KeyPair::generate()?;
        let certificate = wanted.self_signed(&key)?;
        Ok(Self {
            pem: certificate.pem(),
            certificate: certificate.der().clone(),
            key: key.into(),
        })
    }

    /// What the plugin is given, in PEM.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// For connecting to the plugin that has this certificate.
    pub(super) fn connector(&self, plugin: &[u8]) -> Result<TlsConnector, Error> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Pinned::new(plugin))
            .with_client_auth_cert(vec![self.certificate.clone()], self.key.clone_key())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// For serving the plugin that has this certificate, and nobody else.
    pub(super) fn acceptor(&self, plugin: &[u8]) -> Result<TlsAcceptor, Error> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Pinned::new(plugin))
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Believes one certificate.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    others: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn new(certificate: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            certificate: CertificateDer::from(certificate.to_vec()),
            others: ring::default_provider().signature_verification_algorithms,
        })
    }

    fn same(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        match self.certificate == *certificate {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn signed(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = match signature.scheme {
            SignatureScheme::ECDSA_NISTP521_SHA512 => &P521_ALONE,
            _ => &self.others,
        };
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.others.supported_schemes();
        schemes.push(SignatureScheme::ECDSA_NISTP521_SHA512);
        schemes
    }
}

/// Older versions of TLS are not spoken.
fn too_old() -> Error {
    PeerIncompatible::Tls12NotOfferedOrEnabled.into()
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.same(certificate)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.same(certificate)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

/// ECDSA on the curve that go-plugin makes its keys on.
#[derive(Debug)]
struct P521Sha512;

const P521: &[&dyn SignatureVerificationAlgorithm] = &[&P521Sha512];

const P521_ALONE: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: P521,
    mapping: &[(SignatureScheme::ECDSA_NISTP521_SHA512, P521)],
};

impl SignatureVerificationAlgorithm for P521Sha512 {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = DerSignature::try_from(signature).map_err(|_| InvalidSignature)?;
        key.verify(message, &signature)
            .map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_SHA512
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
    use tokio_rustls::rustls::sign::CertifiedKey;

    use super::*;

    /// Whether both sides hear each other.
    async fn meet(server: TlsAcceptor, client: TlsConnector) -> std::io::Result<()> {
        let (ours, theirs) = duplex(64 << 10);
        let answer = async {
            let mut stream = server.accept(theirs).await?;
            stream.write_all(b"x").await?;
            stream.read_u8().await
        };
        let ask = async {
            let name = NAME.try_into().unwrap();
            let mut stream = client.connect(name, ours).await?;
            stream.write_all(b"y").await?;
            stream.read_u8().await
        };
        let (answered, asked) = tokio::join!(answer, ask);
        answered.and(asked).map(drop)
    }

    #[tokio::test]
    async fn each_side_believes_one_certificate_only() {
        let [host, plugin, other] = [(); 3].map(|()| Identity::fresh().unwrap());
        let (ours, theirs) = (&host.certificate, &plugin.certificate);
        let good = || plugin.acceptor(ours).unwrap();
        let met = meet(good(), host.connector(theirs).unwrap()).await;
        met.unwrap();
        let foreign_client = meet(good(), other.connector(theirs).unwrap()).await;
        assert!(foreign_client.is_err());
        let foreign_server = other.acceptor(ours).unwrap();
        let met = meet(foreign_server, host.connector(theirs).unwrap()).await;
        assert!(met.is_err());
    }

    /// A certificate is public; having it proves nothing.
    #[tokio::test]
    async fn a_certificate_without_its_key_is_refused() {
        #[derive(Debug)]
        struct Borrowed(Arc<CertifiedKey>);
        impl ResolvesServerCert for Borrowed {
            fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
                Some(Arc::clone(&self.0))
            }
        }
        let [host, plugin, thief] = [(); 3].map(|()| Identity::fresh().unwrap());
        let serve = |key: &PrivateKeyDer<'static>| {
            let key = provider().key_provider.load_private_key(key.clone_key());
            let both = CertifiedKey::new(vec![plugin.certificate.clone()], key.unwrap());
            let config = ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&TLS13])
                .unwrap()
                .with_no_client_auth()
                .with_cert_resolver(Arc::new(Borrowed(Arc::new(both))));
            TlsAcceptor::from(Arc::new(config))
        };
        let connector = || host.connector(&plugin.certificate).unwrap();
        assert!(meet(serve(&thief.key), connector()).await.is_err());
        meet(serve(&plugin.key), connector()).await.unwrap();
    }

    #[test]
    fn a_signature_on_the_larger_curve_is_checked() {
        use p521::ecdsa::SigningKey;
        use p521::ecdsa::signature::Signer as _;
        let key = SigningKey::from_slice(&[1; 66].map(|byte: u8| byte & 1)).unwrap();
        let public = VerifyingKey::from(&key).to_sec1_point(false);
        let signature: DerSignature = key.sign(b"message");
        let check = |message: &[u8], signature: &[u8]| {
            P521Sha512.verify_signature(public.as_bytes(), message, signature)
        };
        assert!(check(b"message", signature.as_bytes()).is_ok());
        assert!(check(b"massage", signature.as_bytes()).is_err());
        assert!(check(b"message", &signature.as_bytes()[1..]).is_err());
        assert!(
            P521Sha512
                .verify_signature(b"", b"message", signature.as_bytes())
                .is_err()
        );
    }
}
