//! Requests for certificates: a key, the proof that it is theirs, nothing else.
//!
//! PKCS#10 has room for names and extensions; a node gets none of them from
//! its own request. So there is one shape that is taken, byte for byte but for
//! the key and the signature, and nothing to be parsed.

use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};

/// The signed part before the key: version 0, no subject, a P-256 key.
const HEAD: &[u8] = &[
    0x30, 0x62, // the signed part, 98 bytes
    0x02, 0x01, 0x00, // version 0
    0x30, 0x00, // no subject
    0x30, 0x59, 0x30, 0x13, // a key and what kind of key
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, // on an elliptic curve
    0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, // P-256
    0x03, 0x42, 0x00, // the key's 65 bytes follow
];

/// An uncompressed point of the curve.
const KEY: usize = 65;

/// The signed part after the key: no attributes.
const TAIL: &[u8] = &[0xa0, 0x00];

/// How it is signed: ECDSA with SHA-256.
const SIGNED_BY: &[u8] = &[
    0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02,
];

/// A request whose signature was checked.
#[derive(Debug, Clone)]
pub struct SigningRequest {
    key: [u8; KEY],
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSigningRequest {
    /// It is not the one shape.
    #[error("not a request for a P-256 key without names")]
    Shape,
    /// It was not signed with the key that it is for.
    #[error("not signed with its own key")]
    Signature,
}

impl SigningRequest {
    /// Reads a request and checks its signature.
    ///
    /// # Errors
    /// It has another shape, or was signed with another key.
    pub fn parse(der: &[u8]) -> Result<Self, InvalidSigningRequest> {
        let (signed, key, signature) = parts(der).ok_or(InvalidSigningRequest::Shape)?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key)
            .verify(signed, signature)
            .map_err(|_| InvalidSigningRequest::Signature)?;
        Ok(Self { key: *key })
    }
}

/// The signed bytes, the key in them, and the signature.
fn parts(der: &[u8]) -> Option<(&[u8], &[u8; KEY], &[u8])> {
    let body = content(0x30, der)?;
    let (signed, rest) = body.split_at_checked(HEAD.len() + KEY + TAIL.len())?;
    let key = signed.strip_prefix(HEAD)?.strip_suffix(TAIL)?;
    let signature = content(0x03, rest.strip_prefix(SIGNED_BY)?)?;
    // A string of bits starts with how many of the last byte are not used.
    Some((signed, key.try_into().ok()?, signature.strip_prefix(&[0])?))
}

/// What is in a value of this tag, if the value is all there is.
fn content(tag: u8, der: &[u8]) -> Option<&[u8]> {
    let (length, content) = match der.strip_prefix(&[tag])? {
        [0x81, length, content @ ..] if *length >= 0x80 => (*length, content),
        [length, content @ ..] if *length < 0x80 => (*length, content),
        _ => return None,
    };
    (content.len() == usize::from(length)).then_some(content)
}

impl PublicKeyData for SigningRequest {
    fn der_bytes(&self) -> &[u8] {
        &self.key
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P384_SHA384, SanType,
    };

    use super::*;

    fn nameless() -> CertificateParams {
        let mut wanted = CertificateParams::default();
        wanted.distinguished_name = DistinguishedName::new();
        wanted
    }

    fn request(wanted: &CertificateParams, key: &KeyPair) -> Vec<u8> {
        wanted.serialize_request(key).unwrap().der().to_vec()
    }

    #[test]
    fn a_key_without_names_is_taken() {
        let key = KeyPair::generate().unwrap();
        let read = SigningRequest::parse(&request(&nameless(), &key)).unwrap();
        assert_eq!(read.der_bytes(), key.public_key_raw());
    }

    /// Another program's requests have the same shape.
    #[test]
    fn a_request_of_openssl_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("openssl")
            .args(["req", "-new", "-newkey", "ec", "-nodes", "-subj", "/"])
            .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-outform", "DER", "-keyout", "key", "-out", "csr"])
            .current_dir(&folder)
            .output()
            .expect("`cargo xtask test --only setup` installs openssl");
        assert!(made.status.success(), "{made:?}");
        SigningRequest::parse(&std::fs::read(folder.path().join("csr")).unwrap()).unwrap();
    }

    #[test]
    fn names_attributes_and_other_keys_are_refused() {
        let key = KeyPair::generate().unwrap();
        let mut named = nameless();
        named.distinguished_name.push(DnType::CommonName, "node");
        let mut with_names = nameless();
        with_names.subject_alt_names = vec![SanType::URI(
            "fluffy://cluster/node/other".try_into().unwrap(),
        )];
        let other_curve = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        for wrong in [
            request(&named, &key),
            request(&with_names, &key),
            request(&nameless(), &other_curve),
            Vec::new(),
            vec![0x30, 0x80],
            vec![0x30; 300],
        ] {
            let refused = SigningRequest::parse(&wrong).unwrap_err();
            assert_eq!(refused, InvalidSigningRequest::Shape);
        }
    }

    /// Somebody else's key with one's own signature, byte by byte.
    #[test]
    fn every_changed_bit_is_noticed() {
        let key = KeyPair::generate().unwrap();
        let good = request(&nameless(), &key);
        SigningRequest::parse(&good).unwrap();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(SigningRequest::parse(&bad).is_err(), "byte {at} bit {bit}");
            }
            assert!(SigningRequest::parse(&good[..at]).is_err());
        }
        let mut longer = good.clone();
        longer.push(0);
        assert!(SigningRequest::parse(&longer).is_err());
    }
}
