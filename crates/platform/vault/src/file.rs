//! The file of secrets: `# FLUFFY_SECRETS_V1`, then `KEY=value` lines.
//!
//! No quoting, trimming or expansion; what a value means never depends on who
//! reads it. The canonical form has one spelling, so equal sets are equal
//! bytes. Errors name the line and the key, never the value.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The first line.
pub const HEADER: &str = "# FLUFFY_SECRETS_V1";
/// The largest canonical file.
pub const MAX_FILE: usize = 256 * 1024;
/// The most keys.
pub const MAX_KEYS: usize = 256;
/// The longest key.
pub const MAX_KEY: usize = 128;
/// The longest value that is written as it is.
pub const MAX_PLAIN: usize = 8 * 1024;
/// The longest value.
pub const MAX_VALUE: usize = 64 * 1024;
/// What a value of other bytes starts with.
const ENCODED: &str = "base64:";

/// The secrets of one environment.
#[derive(Default)]
pub struct Bundle {
    values: BTreeMap<String, Zeroizing<Vec<u8>>>,
}

impl std::fmt::Debug for Bundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// Why a text is not a file of secrets, or a value can't be in one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadBundleError {
    /// Not UTF-8.
    #[error("line {line} is not UTF-8")]
    NotText {
        /// Which.
        line: usize,
    },
    /// The first line that is not empty is not the header.
    #[error("line {line} must be `{HEADER}`")]
    Header {
        /// Which.
        line: usize,
    },
    /// A carriage return that ends no line, or a NUL.
    #[error("line {line} has a character that no line may have")]
    Character {
        /// Which.
        line: usize,
    },
    /// No `=`.
    #[error("line {line} is not `KEY=value`")]
    Entry {
        /// Which.
        line: usize,
    },
    /// Not a key.
    #[error(
        "the key in line {line} must be A-Z, 0-9 and `_`, not start with a digit, and have at most {MAX_KEY} characters"
    )]
    Key {
        /// Which; 0 if it was not in a file.
        line: usize,
    },
    /// A key twice.
    #[error("`{key}` in line {line} is there already")]
    Duplicate {
        /// Which.
        line: usize,
        /// The key.
        key: String,
    },
    /// Not base64.
    #[error("the value of `{key}` in line {line} starts with `base64:` and is not base64")]
    Base64 {
        /// Which.
        line: usize,
        /// The key.
        key: String,
    },
    /// A value that is too long.
    #[error("the value of `{key}` is longer than {limit} bytes")]
    TooLong {
        /// The key.
        key: String,
        /// What it may have.
        limit: usize,
    },
    /// Too many keys.
    #[error("there are more than {MAX_KEYS} keys")]
    TooMany,
    /// Too large altogether.
    #[error("the secrets take more than {MAX_FILE} bytes")]
    TooLarge,
}

impl Bundle {
    /// Reads a file.
    ///
    /// # Errors
    /// It is not one; the error says where, and never a value.
    pub fn parse(bytes: &[u8]) -> Result<Self, ReadBundleError> {
        if bytes.len() > 2 * MAX_FILE {
            return Err(ReadBundleError::TooLarge);
        }
        let mut bundle = Self::default();
        let mut headed = false;
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let number = index + 1;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line =
                std::str::from_utf8(line).map_err(|_| ReadBundleError::NotText { line: number })?;
            if line.contains(['\r', '\0']) {
                return Err(ReadBundleError::Character { line: number });
            }
            let empty = line.bytes().all(|byte| matches!(byte, b' ' | b'\t'));
            match (headed, empty) {
                (_, true) => {}
                (false, false) if line == HEADER => headed = true,
                (false, false) => return Err(ReadBundleError::Header { line: number }),
                (true, false) if line.starts_with('#') => {}
                (true, false) => bundle.entry(line, number)?,
            }
        }
        if !headed {
            return Err(ReadBundleError::Header { line: 1 });
        }
        bundle.fits()?;
        Ok(bundle)
    }

    fn entry(&mut self, line: &str, number: usize) -> Result<(), ReadBundleError> {
        let (key, value) = line
            .split_once('=')
            .ok_or(ReadBundleError::Entry { line: number })?;
        if !is_key(key) {
            return Err(ReadBundleError::Key { line: number });
        }
        if self.values.contains_key(key) {
            let key = key.to_owned();
            return Err(ReadBundleError::Duplicate { line: number, key });
        }
        let value = match value.strip_prefix(ENCODED) {
            Some(text) => STANDARD.decode(text).map_err(|_| ReadBundleError::Base64 {
                line: number,
                key: key.to_owned(),
            })?,
            None => value.as_bytes().to_vec(),
        };
        self.values.insert(key.to_owned(), Zeroizing::new(value));
        Ok(())
    }

    /// Sets one value, in place of what it was.
    ///
    /// # Errors
    /// The key can't be one, or a limit is passed; then nothing changed.
    pub fn set(&mut self, key: &str, value: Vec<u8>) -> Result<(), ReadBundleError> {
        if !is_key(key) {
            return Err(ReadBundleError::Key { line: 0 });
        }
        let before = self.values.insert(key.to_owned(), Zeroizing::new(value));
        let fits = self.fits();
        if fits.is_err() {
            match before {
                Some(before) => self.values.insert(key.to_owned(), before),
                None => self.values.remove(key),
            };
        }
        fits
    }

    /// Takes one value out; tells whether it was there.
    pub fn unset(&mut self, key: &str) -> bool {
        self.values.remove(key).is_some()
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// One value; look closely at every caller.
    #[must_use]
    pub fn expose(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key).map(|value| value.as_slice())
    }

    /// The one spelling of these secrets.
    #[must_use]
    pub fn canonical(&self) -> Zeroizing<Vec<u8>> {
        // Grown once: a buffer that moves leaves copies behind.
        let mut file = Zeroizing::new(Vec::with_capacity(self.size()));
        file.extend_from_slice(HEADER.as_bytes());
        file.push(b'\n');
        for (key, value) in &self.values {
            file.extend_from_slice(key.as_bytes());
            file.push(b'=');
            if is_plain(value) {
                file.extend_from_slice(value);
            } else {
                file.extend_from_slice(ENCODED.as_bytes());
                let encoded = Zeroizing::new(STANDARD.encode(value.as_slice()));
                file.extend_from_slice(encoded.as_bytes());
            }
            file.push(b'\n');
        }
        file
    }

    /// The length of the canonical file.
    fn size(&self) -> usize {
        let line = |(key, value): (&String, &Zeroizing<Vec<u8>>)| {
            let value = if is_plain(value) {
                value.len()
            } else {
                ENCODED.len() + value.len().div_ceil(3) * 4
            };
            key.len() + value + 2
        };
        HEADER.len() + 1 + self.values.iter().map(line).sum::<usize>()
    }

    fn fits(&self) -> Result<(), ReadBundleError> {
        if self.values.len() > MAX_KEYS {
            return Err(ReadBundleError::TooMany);
        }
        for (key, value) in &self.values {
            let limit = if is_plain(value) {
                MAX_PLAIN
            } else {
                MAX_VALUE
            };
            if value.len() > limit {
                let key = key.clone();
                return Err(ReadBundleError::TooLong { key, limit });
            }
        }
        if self.size() > MAX_FILE {
            return Err(ReadBundleError::TooLarge);
        }
        Ok(())
    }
}

fn is_key(text: &str) -> bool {
    let start = |byte: u8| matches!(byte, b'A'..=b'Z' | b'_');
    text.len() <= MAX_KEY
        && text.bytes().next().is_some_and(start)
        && text
            .bytes()
            .all(|byte| start(byte) || byte.is_ascii_digit())
}

/// Whether a value is written as it is.
fn is_plain(value: &[u8]) -> bool {
    std::str::from_utf8(value)
        .is_ok_and(|text| !text.contains(['\0', '\r', '\n']) && !text.starts_with(ENCODED))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Bundle, ReadBundleError> {
        Bundle::parse(text.as_bytes())
    }

    #[test]
    fn a_file_is_read_and_written_in_one_spelling() {
        let text = " \n# FLUFFY_SECRETS_V1\r\n# who knows\nB= two words \"x\" \nA=base64:AAE=\n\n_C9=\nD=a=b";
        let bundle = parse(text).unwrap();
        assert_eq!(bundle.expose("A"), Some([0u8, 1].as_slice()));
        assert_eq!(bundle.expose("B"), Some(b" two words \"x\" ".as_slice()));
        let canonical = bundle.canonical();
        let expected = "# FLUFFY_SECRETS_V1\nA=base64:AAE=\nB= two words \"x\" \nD=a=b\n_C9=\n";
        assert_eq!(std::str::from_utf8(&canonical).unwrap(), expected);
        assert_eq!(canonical.len(), bundle.size());
        assert_eq!(format!("{bundle:?}"), r#"{"A", "B", "D", "_C9"}"#);
    }

    #[test]
    fn what_is_wrong_is_named_without_the_value() {
        let cases: &[(&[u8], &str)] = &[
            (b"", "line 1 must be"),
            (b"A=hunter2", "line 1 must be"),
            (b"# FLUFFY_SECRETS_V1\nhunter2", "line 2 is not `KEY=value`"),
            (b"# FLUFFY_SECRETS_V1\na=hunter2", "the key in line 2"),
            (b"# FLUFFY_SECRETS_V1\n9=hunter2", "the key in line 2"),
            (b"# FLUFFY_SECRETS_V1\nA=1\nA=hunter2", "`A` in line 3"),
            (b"# FLUFFY_SECRETS_V1\nA=base64:hunter2!", "`A` in line 2"),
            (
                b"# FLUFFY_SECRETS_V1\nA=hun\rter2",
                "line 2 has a character",
            ),
            (
                b"# FLUFFY_SECRETS_V1\nA=hunter2\0",
                "line 2 has a character",
            ),
            (b"# FLUFFY_SECRETS_V1\nA=hunter2\xff", "line 2 is not UTF-8"),
        ];
        for (text, expected) in cases {
            let error = Bundle::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn limits_hold_and_a_refused_value_changes_nothing() {
        let mut bundle = Bundle::default();
        bundle.set("A", vec![b'x'; MAX_PLAIN]).unwrap();
        let before = bundle.canonical();
        for (key, value) in [
            ("A", vec![b'x'; MAX_PLAIN + 1]),
            ("B", vec![0; MAX_VALUE + 1]),
            ("a", vec![]),
        ] {
            assert!(bundle.set(key, value).is_err(), "{key}");
            assert_eq!(bundle.canonical(), before);
        }
        for key in ["B", "C"] {
            bundle.set(key, vec![0; MAX_VALUE]).unwrap();
        }
        assert_eq!(
            bundle.set("D", vec![0; MAX_VALUE]),
            Err(ReadBundleError::TooLarge)
        );
        let many: String = (0..=MAX_KEYS).map(|n| format!("K{n}=\n")).collect();
        let error = parse(&format!("{HEADER}\n{many}")).unwrap_err();
        assert_eq!(error, ReadBundleError::TooMany);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(values in proptest::collection::btree_map("[A-Z_][A-Z0-9_]{0,8}", proptest::collection::vec(any::<u8>(), 0..40), 0..12)) {
            let mut bundle = Bundle::default();
            for (key, value) in &values {
                bundle.set(key, value.clone()).unwrap();
            }
            let again = Bundle::parse(&bundle.canonical()).unwrap();
            prop_assert_eq!(again.canonical(), bundle.canonical());
            for (key, value) in &values {
                prop_assert_eq!(again.expose(key), Some(value.as_slice()));
            }
        }

        #[test]
        fn nothing_makes_the_reader_fall(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut text = format!("{HEADER}\n").into_bytes();
            text.extend(bytes);
            if let Ok(bundle) = Bundle::parse(&text) {
                Bundle::parse(&bundle.canonical()).unwrap();
            }
        }
    }
}
