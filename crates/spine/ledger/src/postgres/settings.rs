//! What an address says about TLS, taken out of its text.
//!
//! `tokio-postgres` reads the rest and knows neither `verify-ca` and
//! `verify-full` nor `sslrootcert`. The text is taken apart exactly as that
//! library does, so that no setting means one thing here and another there.

/// The settings that are ours, and what is left of the text.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// The address without them.
    pub(super) rest: String,
    /// The last `sslmode`.
    pub(super) mode: Option<String>,
    /// The last `sslrootcert`.
    pub(super) root: Option<String>,
}

impl Settings {
    /// Takes the settings out; none if the text is no address.
    pub(super) fn take(text: &str) -> Option<Self> {
        let url = ["postgres://", "postgresql://"];
        match url.iter().find_map(|prefix| text.strip_prefix(prefix)) {
            Some(after) => Self::of_url(text, text.len() - after.len()),
            None => Self::of_pairs(text),
        }
    }

    fn keep(&mut self, key: &str, value: String) -> bool {
        match key {
            "sslmode" => self.mode = Some(value),
            "sslrootcert" => self.root = Some(value),
            _ => return false,
        }
        true
    }

    /// `start` is where the text after `postgres://` begins.
    fn of_url(text: &str, start: usize) -> Option<Self> {
        let after = text.get(start..)?;
        // A `?` in a password belongs to the password.
        let host = after.find('@').map_or(0, |at| at + 1);
        let Some(mark) = after.get(host..)?.find('?') else {
            return Some(Self {
                rest: text.to_owned(),
                ..Self::default()
            });
        };
        let mark = start + host + mark;
        let mut settings = Self::default();
        let mut kept = Vec::new();
        for pair in text.get(mark + 1..)?.split('&') {
            let ours = match pair.split_once('=') {
                Some((key, value)) => settings.keep(&decoded(key)?, decoded(value)?),
                None => false,
            };
            if !ours {
                kept.push(pair);
            }
        }
        text.get(..mark)?.clone_into(&mut settings.rest);
        if !kept.is_empty() {
            settings.rest.push('?');
            settings.rest.push_str(&kept.join("&"));
        }
        Some(settings)
    }

    fn of_pairs(text: &str) -> Option<Self> {
        let mut settings = Self::default();
        let mut left = text.trim_start();
        while !left.is_empty() {
            let end = left.find(|c: char| c.is_whitespace() || c == '=')?;
            let (key, after) = left.split_at_checked(end)?;
            let value = after.trim_start().strip_prefix('=')?.trim_start();
            let (value, after) = value_of(value)?;
            let pair = left.get(..left.len() - after.len())?;
            if !settings.keep(key, value) {
                settings.rest.push_str(pair);
                settings.rest.push(' ');
            }
            left = after.trim_start();
        }
        Some(settings)
    }
}

/// A value, in quotes or up to a space, and what comes after it.
fn value_of(text: &str) -> Option<(String, &str)> {
    let (quoted, text) = match text.strip_prefix('\'') {
        Some(text) => (true, text),
        None => (false, text),
    };
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\'' if quoted => return Some((value, text.get(at + 1..)?)),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            space if space.is_whitespace() && !quoted => return Some((value, text.get(at..)?)),
            other => value.push(other),
        }
    }
    (!quoted).then_some((value, ""))
}

/// A text with its `%41` read; none if that is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text.as_bytes();
    while let [first, after @ ..] = left {
        let escaped = match (first, after) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        left = match escaped {
            Some((high, low)) => {
                bytes.push(high << 4 | low);
                after.get(2..).unwrap_or_default()
            }
            // Anything else stands for itself, as in `tokio-postgres`.
            None => {
                bytes.push(*first);
                after
            }
        };
    }
    String::from_utf8(bytes).ok()
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str) -> (String, Option<String>, Option<String>) {
        let settings = Settings::take(text).unwrap();
        (settings.rest, settings.mode, settings.root)
    }

    #[test]
    fn settings_are_taken_out_and_the_rest_is_left() {
        let some = |text: &str| Some(text.to_owned());
        for (text, rest, mode, root) in [
            ("postgres://u:p@h/d", "postgres://u:p@h/d", None, None),
            (
                "postgresql://u:a?sslmode=b@h/d?sslmode=verify-full&connect_timeout=3",
                "postgresql://u:a?sslmode=b@h/d?connect_timeout=3",
                some("verify-full"),
                None,
            ),
            (
                "postgres://h/d?sslrootcert=%2Fetc%2Fa%20b.pem&ssl%6dode=require",
                "postgres://h/d",
                some("require"),
                some("/etc/a b.pem"),
            ),
            (
                "host=h  password='it\\'s sslmode=x' sslmode = verify-ca sslrootcert='/a b'",
                "host=h password='it\\'s sslmode=x' ",
                some("verify-ca"),
                some("/a b"),
            ),
            ("sslmode=disable sslmode=prefer", "", some("prefer"), None),
        ] {
            assert_eq!(take(text), (rest.to_owned(), mode, root), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_none() {
        for text in ["nonsense", "host='h", "a b=c", "postgres://h?sslmode=%ff"] {
            assert!(Settings::take(text).is_none(), "{text}");
        }
    }
}
