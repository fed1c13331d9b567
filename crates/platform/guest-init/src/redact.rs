//! Masks values of secrets in lines before they leave the guest.
//!
//! A value of 8 bytes or more is looked for as it is, in base64 at any of the
//! three places it can begin there, and as URLs write it; a value of several
//! lines is looked for line by line. Shorter values are not: they would mask
//! words that mean something else.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

const SHORTEST: usize = 8;

/// What is looked for.
#[derive(Default)]
pub(crate) struct Redactor {
    /// By first byte, longest first: pattern and key.
    patterns: Vec<Vec<(Vec<u8>, String)>>,
    longest: usize,
}

impl Redactor {
    /// Looks for these values.
    pub(crate) fn new<'a>(secrets: impl Iterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut redactor = Self {
            patterns: vec![Vec::new(); 256],
            longest: 0,
        };
        for (key, value) in secrets {
            if value.len() < SHORTEST {
                continue;
            }
            for line in value.split(|byte| matches!(byte, b'\n' | b'\r')) {
                redactor.add(key, line.to_vec());
            }
            for encoded in encodings(value) {
                redactor.add(key, encoded);
            }
        }
        for bucket in &mut redactor.patterns {
            bucket.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.len()));
            bucket.dedup();
        }
        redactor
    }

    fn add(&mut self, key: &str, pattern: Vec<u8>) {
        if pattern.len() < SHORTEST {
            return;
        }
        self.longest = self.longest.max(pattern.len());
        let first = pattern.first().copied().unwrap_or_default();
        if let Some(bucket) = self.patterns.get_mut(usize::from(first)) {
            bucket.push((pattern, key.to_owned()));
        }
    }

    /// How far a value can reach beyond its first byte.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The first `most` bytes of a line, with values masked that begin there.
    /// The line goes on for [`Self::longest`] bytes, if it is that long.
    pub(crate) fn mask(&self, line: &[u8], most: usize) -> Vec<u8> {
        let mut masked = Vec::with_capacity(line.len().min(most));
        let mut at = 0;
        while at < line.len().min(most) {
            let rest = line.get(at..).unwrap_or_default();
            match self.find(rest) {
                Some((pattern, key)) => {
                    masked.extend_from_slice(format!("[redacted:{key}]").as_bytes());
                    at += pattern.len();
                }
                None => {
                    masked.extend(rest.first());
                    at += 1;
                }
            }
        }
        masked
    }

    fn find(&self, text: &[u8]) -> Option<&(Vec<u8>, String)> {
        let bucket = self.patterns.get(usize::from(*text.first()?))?;
        bucket.iter().find(|(pattern, _)| text.starts_with(pattern))
    }
}

fn encodings(value: &[u8]) -> Vec<Vec<u8>> {
    let mut all = vec![percent(value, false), percent(value, true)];
    for engine in [&STANDARD, &URL_SAFE] {
        for (offset, shared) in [(0, 0), (1, 2), (2, 3)] {
            // What stands before the value decides about the first characters,
            // and what follows about the last ones.
            let mut shifted = vec![0; offset];
            shifted.extend_from_slice(value);
            shifted.truncate(shifted.len() / 3 * 3);
            let encoded = engine.encode(&shifted);
            let own = encoded.get(shared..).unwrap_or_default();
            all.push(own.as_bytes().to_vec());
        }
        // At the very end it is whole.
        all.push(
            engine
                .encode(value)
                .trim_end_matches('=')
                .as_bytes()
                .to_vec(),
        );
    }
    all
}

fn percent(value: &[u8], lower: bool) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(value.len() * 3);
    for byte in value {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            encoded.push(*byte);
        } else if lower {
            encoded.extend_from_slice(format!("%{byte:02x}").as_bytes());
        } else {
            encoded.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        let secrets: [(&str, &[u8]); 3] = [
            ("DB", b"p\xc3\xa4ss/word+1"),
            ("SHORT", b"1234567"),
            ("PEM", b"-----BEGIN-----\nMIIabcdefgh\nend"),
        ];
        Redactor::new(secrets.into_iter())
    }

    fn masked(line: &str) -> String {
        String::from_utf8_lossy(&redactor().mask(line.as_bytes(), 1_000)).into_owned()
    }

    #[test]
    fn a_value_is_masked_in_every_form() {
        let value = "p\u{e4}ss/word+1";
        assert_eq!(masked(&format!("a {value} b")), "a [redacted:DB] b");
        assert_eq!(masked("x=p%C3%A4ss%2Fword%2B1&"), "x=[redacted:DB]&");
        assert_eq!(masked("x=p%c3%a4ss%2fword%2b1&"), "x=[redacted:DB]&");
        for before in ["", "u:", "us:", "usr:"] {
            for after in ["", "x", "xy", "xyz"] {
                let text = STANDARD.encode(format!("{before}{value}{after}"));
                let line = masked(&format!("Basic {text}"));
                assert!(line.contains("[redacted:DB]"), "{before}|{after}: {line}");
            }
        }
        assert_eq!(masked("MIIabcdefgh"), "[redacted:PEM]");
        assert_eq!(masked("1234567 end"), "1234567 end");
    }

    #[test]
    fn a_value_at_the_cut_leaves_nothing_of_itself() {
        let line = format!("{}hunter2hunter2{}", "x".repeat(10), "y".repeat(30));
        let secrets: [(&str, &[u8]); 1] = [("KEY", b"hunter2hunter2")];
        let redactor = Redactor::new(secrets.into_iter());
        for most in 0..=line.len() {
            let text = redactor.mask(line.as_bytes(), most);
            let text = String::from_utf8(text).unwrap();
            assert!(!text.contains('h') && !text.contains("2"), "{most}: {text}");
        }
    }
}
