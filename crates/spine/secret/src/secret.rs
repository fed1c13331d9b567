//! A value that is never shown, copied or kept by accident.
//!
//! No `Display`, no `Serialize`, no `Clone`; `Debug` shows nothing; the memory
//! is overwritten on drop; comparison takes the same time wherever the values
//! differ. Every use is a visible call of [`Secret::expose`].

use std::fmt;
use std::io::{self, Read};

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, Zeroizing};

/// The longest secret that is ever read.
pub const MAX_SECRET: usize = 64 * 1024;

/// A secret value.
///
/// ```
/// use fluffy_secret::SecretString;
///
/// let key = SecretString::from("hunter2".to_owned());
/// assert_eq!(format!("{key:?}"), "Secret(…)");
/// assert_eq!(key.expose(), "hunter2");
/// ```
pub struct Secret<T: Zeroize>(Zeroizing<T>);

/// A secret text.
pub type SecretString = Secret<String>;

/// Secret bytes.
pub type SecretBytes = Secret<Vec<u8>>;

impl<T: Zeroize> Secret<T> {
    /// The value itself; look closely at every caller.
    #[must_use]
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T: Zeroize> From<T> for Secret<T> {
    fn from(value: T) -> Self {
        Self(Zeroizing::new(value))
    }
}

impl<T: Zeroize> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// In constant time for values of equal length; only the length can leak.
impl<T: Zeroize + AsRef<[u8]>> PartialEq for Secret<T> {
    fn eq(&self, other: &Self) -> bool {
        let (ours, theirs): (&[u8], &[u8]) = (self.0.as_ref(), other.0.as_ref());
        ours.ct_eq(theirs).into()
    }
}

impl<T: Zeroize + AsRef<[u8]>> Eq for Secret<T> {}

/// Why a secret could not be read. Never says what was read.
#[derive(Debug, thiserror::Error)]
pub enum ReadSecretError {
    /// The source failed.
    #[error("cannot read the secret")]
    Read(#[source] io::Error),
    /// There was nothing, or only a line end.
    #[error("the secret is empty")]
    Empty,
    /// Longer than the caller or [`MAX_SECRET`] allows.
    #[error("the secret is longer than {limit} bytes")]
    TooLong {
        /// The limit that was passed.
        limit: usize,
    },
    /// Not UTF-8.
    #[error("the secret is not UTF-8 text")]
    NotText,
    /// There is no such variable.
    #[error("the environment variable `{name}` is not set")]
    NotSet {
        /// The variable.
        name: String,
    },
}

impl SecretString {
    /// Reads a secret of at most `limit` bytes; one line end is taken off.
    ///
    /// # Errors
    /// The source fails, or gives nothing, too much or no text. What was read
    /// is overwritten.
    pub fn from_reader(reader: impl Read, limit: usize) -> Result<Self, ReadSecretError> {
        let limit = limit.min(MAX_SECRET);
        // Room for a line end and for one byte that proves it is too long,
        // taken at once: growing would leave copies behind.
        let mut bytes = Zeroizing::new(vec![0; limit + 3]);
        let length = fill(reader, &mut bytes).map_err(ReadSecretError::Read)?;
        let read = bytes.get(..length).unwrap_or_default();
        let read = read.strip_suffix(b"\n").unwrap_or(read);
        let read = read.strip_suffix(b"\r").unwrap_or(read);
        if read.len() > limit {
            return Err(ReadSecretError::TooLong { limit });
        }
        if read.is_empty() {
            return Err(ReadSecretError::Empty);
        }
        match std::str::from_utf8(read) {
            Ok(text) => Ok(Self::from(text.to_owned())),
            Err(_) => Err(ReadSecretError::NotText),
        }
    }

    /// Takes a copy of an environment variable.
    ///
    /// The variable itself stays where it is: in this process's memory, in
    /// `/proc/self/environ`, and in every child that inherits the environment.
    /// Whoever starts a child must give it an environment of its own.
    ///
    /// # Errors
    /// The variable is not set, empty, too long or not text.
    pub fn from_env(name: &str) -> Result<Self, ReadSecretError> {
        let Some(value) = std::env::var_os(name) else {
            let name = name.to_owned();
            return Err(ReadSecretError::NotSet { name });
        };
        let bytes = Zeroizing::new(value.into_encoded_bytes());
        Self::from_reader(bytes.as_slice(), MAX_SECRET)
    }
}

/// Reads until the buffer is full or the source has ended.
fn fill(mut reader: impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(free) = buffer.get_mut(filled..).filter(|free| !free.is_empty()) {
        match reader.read(free) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8], limit: usize) -> Result<SecretString, ReadSecretError> {
        SecretString::from_reader(bytes, limit)
    }

    #[test]
    fn debug_shows_nothing_however_it_is_asked() {
        let secret = SecretString::from("hunter2".to_owned());
        let texts = [
            format!("{secret:?}"),
            format!("{secret:#?}"),
            format!("{:?}", Some(&secret)),
            format!("{:?}", secret.expose() == "x"),
        ];
        assert!(texts.iter().all(|text| !text.contains("hunter2")));
        assert_eq!(texts[0], "Secret(…)");
    }

    #[test]
    fn the_value_is_overwritten_on_drop() {
        struct Watched(Arc<AtomicUsize>);
        impl Zeroize for Watched {
            fn zeroize(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let count = Arc::new(AtomicUsize::new(0));
        let secret = Secret::from(Watched(Arc::clone(&count)));
        assert_eq!(count.load(Ordering::SeqCst), 0);
        drop(secret);
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn equality_is_of_the_values() {
        let secret = |text: &str| SecretString::from(text.to_owned());
        assert_eq!(secret("same"), secret("same"));
        assert_ne!(secret("same"), secret("samE"));
        assert_ne!(secret("same"), secret("same "));
        assert_eq!(SecretBytes::from(vec![1]), SecretBytes::from(vec![1]));
    }

    #[test]
    fn one_line_end_is_taken_off() {
        for (bytes, value) in [
            (&b"key"[..], "key"),
            (b"key\n", "key"),
            (b"key\r\n", "key"),
            (b"key\n\n", "key\n"),
            (b" key ", " key "),
        ] {
            assert_eq!(read(bytes, 10).unwrap().expose(), value);
        }
    }

    #[test]
    fn limits_and_text_are_checked() {
        assert!(read(b"1234567890", 10).is_ok());
        assert!(read(b"1234567890\r\n", 10).is_ok());
        for long in [&b"12345678901"[..], b"12345678901\n", &[b'x'; 500]] {
            let error = read(long, 10).unwrap_err();
            assert!(matches!(error, ReadSecretError::TooLong { limit: 10 }));
        }
        assert!(matches!(read(b"", 10), Err(ReadSecretError::Empty)));
        assert!(matches!(read(b"\r\n", 10), Err(ReadSecretError::Empty)));
        assert!(matches!(read(b"\xff", 10), Err(ReadSecretError::NotText)));
        let endless = SecretString::from_reader(io::repeat(b'x'), usize::MAX);
        assert!(matches!(
            endless,
            Err(ReadSecretError::TooLong { limit: MAX_SECRET })
        ));
    }

    #[test]
    fn a_variable_is_read_and_a_missing_one_is_named() {
        // Cargo sets this one for every test it runs.
        let name = SecretString::from_env("CARGO_PKG_NAME").unwrap();
        assert_eq!(name.expose(), "fluffy-secret");
        let error = SecretString::from_env("FLUFFY_NO_SUCH_VARIABLE").unwrap_err();
        assert!(error.to_string().contains("`FLUFFY_NO_SUCH_VARIABLE`"));
    }

    proptest! {
        #[test]
        fn no_input_panics_and_no_error_shows_it(tail: Vec<u8>, limit in 0usize..32) {
            let bytes = [b"x4q9", tail.as_slice()].concat();
            match read(&bytes, limit) {
                Ok(secret) => prop_assert!((1..=limit).contains(&secret.expose().len())),
                Err(error) => {
                    let shown = format!("{error:?}{error}");
                    prop_assert!(!shown.contains("x4q9"), "{}", shown);
                }
            }
        }
    }
}
