//! Credentials as texts: 256 random bits and a checksum behind a known prefix.
//!
//! The prefix lets people and scanners tell what they found, the checksum lets
//! a typing mistake be told from a credential that is unknown. Only hashes are
//! kept; a text is shown once, to whom it is for.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fluffy_base::Digest;
use fluffy_secret::SecretString;
use zeroize::Zeroizing;

/// The characters of 256 bits.
const BODY: usize = 43;
/// The characters of the checksum.
const CHECK: usize = 6;

/// What a credential is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CredentialKind {
    /// Calls, for a quarter of an hour.
    Access,
    /// Gets the next access token, once.
    Refresh,
    /// Calls, of a program that was given it.
    Api,
    /// The secret of a service principal.
    Client,
    /// Lets somebody in, once.
    Invite,
    /// Opens one exec session, once.
    Exec,
    /// Lets the client of an exec session in again, once.
    Resume,
    /// Lets one machine become a node, once; its text has a form of its own.
    Enrolment,
}

impl CredentialKind {
    /// Every kind whose texts are made here.
    pub const ALL: &[Self] = &[
        Self::Access,
        Self::Refresh,
        Self::Api,
        Self::Client,
        Self::Invite,
        Self::Exec,
        Self::Resume,
    ];

    /// What its texts start with.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Access => "flf_at_",
            Self::Refresh => "flf_rt_",
            Self::Api => "flf_pat_",
            Self::Client => "flf_cs_",
            Self::Invite => "flf_inv_",
            Self::Exec => "flf_ex_",
            Self::Resume => "flf_er_",
            Self::Enrolment => "enroll_",
        }
    }
}

/// A credential's text, and the hash that is kept of it.
#[derive(Debug)]
pub struct Credential {
    /// The text, for its owner.
    pub text: SecretString,
    /// What is kept.
    pub hash: Digest,
}

/// The system gave no random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bits")]
pub struct NoRandomness;

impl Credential {
    /// A fresh one.
    ///
    /// # Errors
    /// The system gives no random bits.
    pub fn generate(kind: CredentialKind) -> Result<Self, NoRandomness> {
        let mut bits = Zeroizing::new([0u8; 32]);
        getrandom::fill(bits.as_mut_slice()).map_err(|_| NoRandomness)?;
        let mut text = String::with_capacity(kind.prefix().len() + BODY + CHECK);
        text.push_str(kind.prefix());
        URL_SAFE_NO_PAD.encode_string(bits.as_slice(), &mut text);
        let check = checksum(&text);
        text.push_str(&check);
        let hash = Digest::of(text.as_bytes());
        Ok(Self {
            text: text.into(),
            hash,
        })
    }
}

/// The kind and hash of a text, if it can be a credential at all.
#[must_use]
pub fn recognise(text: &str) -> Option<(CredentialKind, Digest)> {
    let of_kind = |kind: &&CredentialKind| text.starts_with(kind.prefix());
    let kind = *CredentialKind::ALL.iter().find(of_kind)?;
    if text.len() != kind.prefix().len() + BODY + CHECK || !text.is_ascii() {
        return None;
    }
    let (body, check) = text.split_at(text.len() - CHECK);
    (checksum(body) == check).then(|| (kind, Digest::of(text.as_bytes())))
}

/// Guards against mistakes, not against people.
fn checksum(text: &str) -> String {
    let digest = Digest::of_parts(&[b"fluffy-credential-v1", text.as_bytes()]);
    let mut check = URL_SAFE_NO_PAD.encode(digest.as_bytes());
    check.truncate(CHECK);
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_recognised_and_only_whole() {
        for kind in CredentialKind::ALL {
            let credential = Credential::generate(*kind).unwrap();
            let text = credential.text.expose();
            assert_eq!(recognise(text), Some((*kind, credential.hash)));
            for place in 0..text.len() {
                let mut other = text.clone().into_bytes();
                other[place] = if other[place] == b'x' { b'y' } else { b'x' };
                let other = String::from_utf8(other).unwrap();
                assert_eq!(recognise(&other), None, "{place}");
            }
            assert_eq!(recognise(&text[..text.len() - 1]), None);
            assert_eq!(recognise(&format!("{text}x")), None);
        }
        assert_eq!(recognise(""), None);
        assert_eq!(recognise("flf_at_ü"), None);
    }

    #[test]
    fn no_two_are_alike() {
        let mut hashes: Vec<Digest> = (0..100)
            .map(|_| Credential::generate(CredentialKind::Api).unwrap().hash)
            .collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 100);
    }
}
