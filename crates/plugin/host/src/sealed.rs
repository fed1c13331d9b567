//! Secrets that lie on a disk: encrypted, and good for one purpose only.
//!
//! ChaCha20-Poly1305 with a random nonce for each sealing. What a text was
//! sealed for is authenticated with it, so it opens nowhere else. Keeps and
//! makes no key: whoever stores sealed texts keeps one apart from them.

use std::fmt;

use fluffy_secret::SecretBytes;
use fluffy_secret::secret::MAX_SECRET;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

/// How many bytes a key has.
pub const KEY_SIZE: usize = 32;

/// A key that seals and opens.
pub struct SealingKey(LessSafeKey);

/// Why something was not sealed or opened. Never shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It was sealed with another key or for something else, or was changed.
    #[error("the secret was sealed with another key or for something else, or was changed")]
    NotOurs,
    /// More than a secret is.
    #[error("more than {MAX_SECRET} bytes cannot be sealed")]
    TooLong,
    /// The system gives no random numbers, or the key is none.
    #[error("the system cannot encrypt")]
    System,
}

impl SealingKey {
    /// A new key's bytes.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn fresh() -> Result<SecretBytes, SealError> {
        let mut bytes = vec![0; KEY_SIZE];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| SealError::System)?;
        Ok(SecretBytes::from(bytes))
    }

    /// The key of these bytes.
    ///
    /// # Errors
    /// They are not [`KEY_SIZE`].
    pub fn new(bytes: &SecretBytes) -> Result<Self, SealError> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, bytes.expose());
        key.map(|key| Self(LessSafeKey::new(key)))
            .map_err(|_| SealError::System)
    }

    /// Seals a secret for one purpose.
    ///
    /// # Errors
    /// It is too long, or the system gives no random numbers.
    pub fn seal(&self, purpose: &str, secret: &SecretBytes) -> Result<Vec<u8>, SealError> {
        let secret = secret.expose();
        if secret.len() > MAX_SECRET {
            return Err(SealError::TooLong);
        }
        let mut nonce = [0; NONCE_LEN];
        let filled = SystemRandom::new().fill(&mut nonce);
        filled.map_err(|_| SealError::System)?;
        // With room for the tag at once: growing would leave a copy behind.
        let mut text = Vec::with_capacity(secret.len() + CHACHA20_POLY1305.tag_len());
        text.extend_from_slice(secret);
        let about = Aad::from(purpose.as_bytes());
        let unique = Nonce::assume_unique_for_key(nonce);
        let sealed = self.0.seal_in_place_append_tag(unique, about, &mut text);
        sealed.map_err(|_| SealError::System)?;
        Ok([nonce.as_slice(), &text].concat())
    }

    /// Opens what was sealed for this purpose.
    ///
    /// # Errors
    /// It was not, or not with this key, or was changed.
    pub fn open(&self, purpose: &str, sealed: &[u8]) -> Result<SecretBytes, SealError> {
        let (nonce, text) = sealed
            .split_first_chunk::<NONCE_LEN>()
            .ok_or(SealError::NotOurs)?;
        let mut text = Zeroizing::new(text.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let about = Aad::from(purpose.as_bytes());
        let opened = self.0.open_in_place(nonce, about, &mut text);
        let opened = opened.map_err(|_| SealError::NotOurs)?;
        Ok(SecretBytes::from(opened.to_vec()))
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> SecretBytes {
        SecretBytes::from(text.as_bytes().to_vec())
    }

    #[test]
    fn only_the_same_key_and_purpose_open_what_nobody_changed() {
        let key = SealingKey::new(&SealingKey::fresh().unwrap()).unwrap();
        let other = SealingKey::new(&SealingKey::fresh().unwrap()).unwrap();
        let sealed = key.seal("a", &secret("hunter2")).unwrap();
        assert_eq!(key.open("a", &sealed).unwrap().expose(), b"hunter2");
        assert_eq!(key.open("b", &sealed).unwrap_err(), SealError::NotOurs);
        assert_eq!(other.open("a", &sealed).unwrap_err(), SealError::NotOurs);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(key.open("a", &changed).unwrap_err(), SealError::NotOurs);
            let cut = key.open("a", &sealed[..at]);
            assert_eq!(cut.unwrap_err(), SealError::NotOurs);
        }
    }

    #[test]
    fn the_same_secret_is_never_sealed_the_same_way() {
        let key = SealingKey::new(&SealingKey::fresh().unwrap()).unwrap();
        let seal = || key.seal("a", &secret("hunter2")).unwrap();
        let (one, two) = (seal(), seal());
        assert_ne!(one, two);
        let shown = |sealed: &[u8]| sealed.windows(7).any(|some| some == b"hunter2");
        assert!(!shown(&one) && !shown(&two));
        assert_eq!(format!("{key:?}"), "SealingKey(…)");
    }

    #[test]
    fn a_key_of_another_size_and_a_long_secret_are_refused() {
        let short = SealingKey::new(&secret("short"));
        assert_eq!(short.unwrap_err(), SealError::System);
        let key = SealingKey::new(&SealingKey::fresh().unwrap()).unwrap();
        let long = SecretBytes::from(vec![b'a'; MAX_SECRET + 1]);
        assert_eq!(key.seal("a", &long).unwrap_err(), SealError::TooLong);
    }
}
