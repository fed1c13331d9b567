//! What enrolment proves: the form of a token, and who has the overlay's key.
//!
//! Never keeps or prints a token: what is stored is its hash. The server's
//! side is `node/enrol.rs` of the server.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fluffy_base::Digest;
use ring::hmac;

/// What every enrolment token starts with.
const PREFIX: &str = "enroll_";

/// What the proof is for, so that it serves nothing else.
const PURPOSE: &[u8] = b"fluffy-enroll-v1";

/// A token that lets one machine become a node.
#[derive(Clone, PartialEq, Eq)]
pub struct EnrolmentToken(String);

/// A text that is not an enrolment token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an enrolment token is `{PREFIX}` and 43 characters of base64url")]
pub struct InvalidEnrolmentToken;

impl EnrolmentToken {
    /// The token of these random bytes.
    #[must_use]
    pub fn of(random: &[u8; 32]) -> Self {
        Self(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random)))
    }

    /// Reads a token that somebody gave.
    ///
    /// # Errors
    /// The text has another form; each token has one spelling.
    pub fn parse(text: &str) -> Result<Self, InvalidEnrolmentToken> {
        let body = text.strip_prefix(PREFIX).ok_or(InvalidEnrolmentToken)?;
        let mut random = [0; 32];
        match URL_SAFE_NO_PAD.decode_slice(body, &mut random) {
            Ok(32) => Ok(Self(text.to_owned())),
            _ => Err(InvalidEnrolmentToken),
        }
    }

    /// The token itself, for the one who is to have it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What a server keeps of it.
    #[must_use]
    pub fn hash(&self) -> Digest {
        Digest::of(self.0.as_bytes())
    }
}

impl fmt::Debug for EnrolmentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EnrolmentToken(…)")
    }
}

/// All that an enrolment was about, so that a proof holds for it alone.
#[derive(Debug, Clone, Copy)]
pub struct Transcript<'a> {
    /// The server's nonce.
    pub nonce: &'a [u8],
    /// The token's hash.
    pub token: Digest,
    /// The request for a certificate.
    pub csr: &'a [u8],
    /// The public key of the node in the overlay.
    pub overlay_key: &'a [u8],
}

impl Transcript<'_> {
    /// The proof of the one who has the secret that both keys share.
    #[must_use]
    pub fn prove(&self, shared: &[u8]) -> Vec<u8> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, shared);
        hmac::sign(&key, &self.text()).as_ref().to_vec()
    }

    /// Whether a proof is that of the one who has the shared secret.
    #[must_use]
    pub fn is_proved(&self, shared: &[u8], proof: &[u8]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, shared);
        hmac::verify(&key, &self.text(), proof).is_ok()
    }

    /// Hashes have one length, so the parts cannot run into each other.
    fn text(&self) -> Vec<u8> {
        let mut text = PURPOSE.to_vec();
        for part in [
            Digest::of(self.nonce),
            self.token,
            Digest::of(self.csr),
            Digest::of(self.overlay_key),
        ] {
            text.extend_from_slice(part.as_bytes());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_one_form_and_is_not_printed() {
        let token = EnrolmentToken::of(&[7; 32]);
        let text = token.reveal();
        assert_eq!(text.len(), PREFIX.len() + 43);
        assert_eq!(EnrolmentToken::parse(text).unwrap(), token);
        assert!(!format!("{token:?}").contains(&text[PREFIX.len()..]));
        let longer = format!("{text}A");
        let padded = format!("{text}=");
        // The last character has two bits that say nothing; they must be zero.
        let other_spelling = format!("{}d", &text[..text.len() - 1]);
        for wrong in [
            "",
            "enroll_",
            &text[1..],
            &text[..text.len() - 1],
            &longer,
            &padded,
            &other_spelling,
        ] {
            assert!(EnrolmentToken::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_proof_holds_for_one_enrolment_alone() {
        let token = EnrolmentToken::of(&[7; 32]).hash();
        let transcript = Transcript {
            nonce: b"nonce",
            token,
            csr: b"csr",
            overlay_key: b"key",
        };
        let proof = transcript.prove(b"shared");
        assert!(transcript.is_proved(b"shared", &proof));
        assert!(!transcript.is_proved(b"other", &proof));
        assert!(!transcript.is_proved(b"shared", &[]));
        let others = [
            Transcript {
                nonce: b"other",
                ..transcript
            },
            Transcript {
                token: Digest::of(b"other"),
                ..transcript
            },
            Transcript {
                csr: b"other",
                ..transcript
            },
            Transcript {
                overlay_key: b"other",
                ..transcript
            },
        ];
        for other in others {
            assert!(!other.is_proved(b"shared", &proof));
        }
    }
}
