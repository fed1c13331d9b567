//! The cluster's own authority: a root, the one that issues, and certificates.
//!
//! The root signs only those that issue; they are replaced long before they
//! end. Keys leave this file only in [`Authority::to_bytes`], for the store
//! beside the ledger. A name in a certificate is always ours: from a request
//! comes a key and nothing else. Next: `tls`, which believes them.

use std::time::Duration;
use std::{fmt, mem};

use fluffy_api::node::dial;
use fluffy_base::id::{LedgerId, NodeId};
use fluffy_base::{Digest, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, date_time_ymd,
};
use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::{Zeroize as _, Zeroizing};

use super::csr::SigningRequest;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a root lasts.
const ROOT: Duration = DAY.saturating_mul(3650);

/// How long one that issues lasts, and when the next takes over: what it
/// issued last has ended by then.
const ISSUING: (Duration, Duration) = (DAY.saturating_mul(365), DAY.saturating_mul(240));

/// How long a node's or a server's certificate lasts.
const LEAF: Duration = DAY.saturating_mul(90);

/// How long before its end a certificate is replaced.
pub(super) const RENEWAL: Duration = DAY.saturating_mul(30);

/// Clocks may differ by this much.
const SKEW: Duration = Duration::from_secs(300);

/// What a certificate of a member says that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It runs instances.
    Worker,
    /// It takes connections from outside.
    Edge,
}

impl Role {
    const ALL: [Self; 2] = [Self::Worker, Self::Edge];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "node",
            Self::Edge => "edge",
        }
    }
}

/// Who makes the certificates of one cluster.
pub struct Authority {
    cluster: LedgerId,
    root: Signer,
    issuing: Signer,
}

/// A certificate that may sign others, and its key.
struct Signer {
    name: String,
    certificate: CertificateDer<'static>,
    key: KeyPair,
    since: Timestamp,
}

/// A certificate that was made.
#[derive(Debug, Clone)]
pub struct Certified {
    /// It, and the one that signed it.
    pub chain: Vec<CertificateDer<'static>>,
    /// What it is known by.
    pub fingerprint: Digest,
    /// When it ends.
    pub not_after: Timestamp,
}

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("no certificate for `{name}`")]
pub struct AuthorityError {
    name: String,
    #[source]
    source: rcgen::Error,
}

/// Kept bytes are not those of an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the kept authority cannot be read")]
pub struct ReadAuthorityError;

/// What is kept, in a form that stays.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    cluster: u128,
    signers: [KeptSigner; 2],
}

#[derive(Serialize, Deserialize)]
struct KeptSigner {
    name: String,
    certificate: Vec<u8>,
    key: Vec<u8>,
    since: i64,
}

impl Authority {
    /// Makes the authority of a new cluster.
    ///
    /// # Errors
    /// There is no randomness for its keys.
    pub fn found(cluster: LedgerId, now: Timestamp) -> Result<Self, AuthorityError> {
        let root = Signer::make(format!("fluffy root {cluster}"), None, now)?;
        let issuing = Self::next_issuing(cluster, &root, now)?;
        Ok(Self {
            cluster,
            root,
            issuing,
        })
    }

    /// Replaces the one that issues once it is old enough, and says whether.
    ///
    /// # Errors
    /// There is no randomness for its key.
    pub fn renew(&mut self, now: Timestamp) -> Result<bool, AuthorityError> {
        let due = now.since(self.issuing.since) >= ISSUING.1;
        if due {
            self.issuing = Self::next_issuing(self.cluster, &self.root, now)?;
        }
        Ok(due)
    }

    fn next_issuing(
        cluster: LedgerId,
        root: &Signer,
        now: Timestamp,
    ) -> Result<Signer, AuthorityError> {
        Signer::make(format!("fluffy issuing {cluster} {now}"), Some(root), now)
    }

    /// The authority as it is kept: with its keys, so only ever sealed.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let kept = Kept {
            version: 1,
            cluster: self.cluster.to_bits(),
            signers: [&self.root, &self.issuing].map(|signer| KeptSigner {
                name: signer.name.clone(),
                certificate: signer.certificate.to_vec(),
                key: signer.key.serialize_der(),
                since: signer.since.as_micros(),
            }),
        };
        // Only a map or a sequence of unknown length could fail; there is none.
        Zeroizing::new(postcard::to_allocvec(&kept).unwrap_or_default())
    }

    /// Reads what was kept.
    ///
    /// # Errors
    /// These are other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ReadAuthorityError> {
        let kept: Kept = postcard::from_bytes(bytes).map_err(|_| ReadAuthorityError)?;
        let [root, issuing] = kept.signers;
        if kept.version != 1 {
            return Err(ReadAuthorityError);
        }
        Ok(Self {
            cluster: LedgerId::from_bits(kept.cluster),
            root: root.read()?,
            issuing: issuing.read()?,
        })
    }

    /// The cluster that it is the authority of.
    #[must_use]
    pub fn cluster(&self) -> LedgerId {
        self.cluster
    }

    /// The root that all of the cluster believe.
    #[must_use]
    pub fn root(&self) -> &CertificateDer<'static> {
        &self.root.certificate
    }

    /// What a machine is told of the root before it enrols.
    #[must_use]
    pub fn pin(&self) -> Digest {
        // A certificate of our own making is one that can be read.
        dial::pin(self.root()).unwrap_or_else(|| Digest::of(self.root()))
    }

    /// A server's own certificate for these names and addresses, with its key.
    ///
    /// The root goes along, for those who know no more than a pin.
    ///
    /// # Errors
    /// A name is no name, or there is no randomness for the key.
    pub fn server(
        &self,
        names: &[String],
        now: Timestamp,
    ) -> Result<dial::Identity, AuthorityError> {
        let failed = |source| AuthorityError {
            name: names.join(", "),
            source,
        };
        let mut wanted = CertificateParams::new(names).map_err(failed)?;
        wanted.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().map_err(failed)?;
        let made = self.issue(wanted, &key, now).map_err(failed)?;
        let mut chain = made.chain;
        chain.push(self.root.certificate.clone());
        Ok(dial::Identity {
            chain,
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        })
    }

    /// The certificate of a member for the key of its request.
    ///
    /// # Errors
    /// There is no randomness for its number.
    pub fn certify(
        &self,
        request: &SigningRequest,
        (node, role): (NodeId, Role),
        now: Timestamp,
    ) -> Result<Certified, AuthorityError> {
        let name = member_name(self.cluster, node, role);
        let failed = |source| AuthorityError {
            name: name.clone(),
            source,
        };
        let uri = name.as_str().try_into().map_err(failed)?;
        let mut wanted = CertificateParams::default();
        wanted.subject_alt_names = vec![SanType::URI(uri)];
        wanted.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(wanted, request, now).map_err(failed)
    }

    fn issue(
        &self,
        mut wanted: CertificateParams,
        key: &impl PublicKeyData,
        now: Timestamp,
    ) -> Result<Certified, rcgen::Error> {
        wanted.distinguished_name = DistinguishedName::new();
        wanted.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let not_after = last(&mut wanted, now, LEAF)?;
        let certificate = wanted.signed_by(key, &self.issuing.issuer())?;
        Ok(Certified {
            fingerprint: Digest::of(certificate.der()),
            chain: vec![certificate.der().clone(), self.issuing.certificate.clone()],
            not_after,
        })
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.cluster)
    }
}

impl Signer {
    /// A root, or one that issues for the root that is given.
    fn make(name: String, root: Option<&Self>, now: Timestamp) -> Result<Self, AuthorityError> {
        let failed = |source| AuthorityError {
            name: name.clone(),
            source,
        };
        let key = KeyPair::generate().map_err(failed)?;
        let mut wanted = params(&name);
        let made = match root {
            None => {
                wanted.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
                last(&mut wanted, now, ROOT).and_then(|_| wanted.self_signed(&key))
            }
            Some(root) => {
                wanted.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
                wanted.extended_key_usages = vec![
                    ExtendedKeyUsagePurpose::ClientAuth,
                    ExtendedKeyUsagePurpose::ServerAuth,
                ];
                last(&mut wanted, now, ISSUING.0)
                    .and_then(|_| wanted.signed_by(&key, &root.issuer()))
            }
        };
        Ok(Self {
            certificate: made.map_err(failed)?.der().clone(),
            name,
            key,
            since: now,
        })
    }

    fn issuer(&self) -> Issuer<'static, &KeyPair> {
        Issuer::new(params(&self.name), &self.key)
    }
}

impl Drop for KeptSigner {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl KeptSigner {
    fn read(mut self) -> Result<Signer, ReadAuthorityError> {
        let key = KeyPair::try_from(self.key.as_slice()).map_err(|_| ReadAuthorityError)?;
        Ok(Signer {
            name: mem::take(&mut self.name),
            certificate: mem::take(&mut self.certificate).into(),
            key,
            since: Timestamp::from_micros(self.since),
        })
    }
}

/// What is the same in a signer's certificate and in what it signs.
fn params(name: &str) -> CertificateParams {
    let mut wanted = CertificateParams::default();
    wanted.distinguished_name = DistinguishedName::new();
    wanted.distinguished_name.push(DnType::CommonName, name);
    wanted.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    wanted
}

/// Makes a certificate last, from a little before now; says until when.
fn last(
    wanted: &mut CertificateParams,
    now: Timestamp,
    life: Duration,
) -> Result<Timestamp, rcgen::Error> {
    let mut serial = [0; 16];
    getrandom::fill(&mut serial).map_err(|_| rcgen::Error::RingUnspecified)?;
    wanted.serial_number = Some(SerialNumber::from_slice(&serial));
    wanted.use_authority_key_identifier_extension = true;
    // Whole seconds: a certificate knows no less.
    let second = u64::try_from(now.as_micros().div_euclid(1_000_000)).unwrap_or(0);
    let now = Duration::from_secs(second);
    let epoch = date_time_ymd(1970, 1, 1);
    wanted.not_before = epoch + now.saturating_sub(SKEW);
    wanted.not_after = epoch + now + life;
    let micros = i64::try_from((now + life).as_micros()).unwrap_or(i64::MAX);
    Ok(Timestamp::from_micros(micros))
}

/// The name of a member in its certificate.
fn member_name(cluster: LedgerId, node: NodeId, role: Role) -> String {
    format!("fluffy://{cluster}/{}/{node}", role.as_str())
}

/// Whom a certificate names, if it names exactly one member of this cluster.
///
/// Says nothing about who signed it.
pub(super) fn member_of(
    cluster: LedgerId,
    certificate: &CertificateDer<'_>,
) -> Option<(NodeId, Role)> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut names = parsed.valid_uri_names();
    let (name, None) = (names.next()?, names.next()) else {
        return None;
    };
    let rest = name.strip_prefix(&format!("fluffy://{cluster}/"))?;
    let (role, node) = rest.split_once('/')?;
    let role = Role::ALL.into_iter().find(|known| known.as_str() == role)?;
    Some((node.parse().ok()?, role))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000)
    }

    fn request() -> SigningRequest {
        let mut nameless = CertificateParams::default();
        nameless.distinguished_name = DistinguishedName::new();
        let key = KeyPair::generate().unwrap();
        SigningRequest::parse(nameless.serialize_request(&key).unwrap().der()).unwrap()
    }

    fn cluster() -> LedgerId {
        LedgerId::from_bits(7)
    }

    #[test]
    fn a_certificate_names_its_member_and_the_cluster() {
        let authority = Authority::found(cluster(), now()).unwrap();
        let node = NodeId::from_bits(9);
        for role in Role::ALL {
            let made = authority.certify(&request(), (node, role), now()).unwrap();
            let leaf = &made.chain[0];
            assert_eq!(member_of(cluster(), leaf), Some((node, role)));
            assert_eq!(member_of(LedgerId::from_bits(8), leaf), None);
            assert_eq!(made.fingerprint, Digest::of(leaf));
            assert_eq!(made.not_after, now().after(LEAF));
        }
        let server = authority.server(&["localhost".into()], now()).unwrap();
        assert_eq!(member_of(cluster(), &server.chain[0]), None);
    }

    #[test]
    fn what_is_kept_is_the_same_authority() {
        let first = Authority::found(cluster(), now()).unwrap();
        let again = Authority::from_bytes(&first.to_bytes()).unwrap();
        assert_eq!(again.root(), first.root());
        assert_eq!(again.pin(), first.pin());
        assert_eq!(again.issuing.certificate, first.issuing.certificate);
        assert_eq!(again.to_bytes(), first.to_bytes());
        for wrong in [&[][..], b"other", &first.to_bytes()[1..]] {
            assert!(Authority::from_bytes(wrong).is_err());
        }
    }

    #[test]
    fn the_one_that_issues_is_replaced_before_it_ends() {
        let mut authority = Authority::found(cluster(), now()).unwrap();
        let first = authority.issuing.certificate.clone();
        assert!(!authority.renew(now().after(DAY * 239)).unwrap());
        assert_eq!(authority.issuing.certificate, first);
        assert!(authority.renew(now().after(DAY * 240)).unwrap());
        assert_ne!(authority.issuing.certificate, first);
        assert!(!authority.renew(now().after(DAY * 241)).unwrap());
    }
}
