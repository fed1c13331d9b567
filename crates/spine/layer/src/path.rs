//! Paths below a tree's root, as bytes: one spelling each, never upwards.
//!
//! A name in a layer was chosen by whoever ran in the sandbox: it may hold
//! newlines, escape sequences or no text at all. It is carried as bytes and
//! only ever shown escaped; the escaped form says exactly the same.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest path, in bytes.
pub const MAX_BYTES: usize = 4096;

/// The longest name between two slashes, in bytes.
pub const MAX_NAME: usize = 255;

/// The most names in one path.
pub const MAX_DEPTH: usize = 256;

/// A path below a root: not empty, no `.`, `..`, `//` or leading slash.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TreePath(Box<[u8]>);

/// Why bytes are not a path below a root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreePathError {
    /// It is empty, starts with a slash or has an empty name in it.
    #[error("`{shown}` has an empty name in it")]
    EmptyName {
        /// The path, escaped.
        shown: String,
    },
    /// It has `.` or `..` in it.
    #[error("`{shown}` has a `.` or `..` in it")]
    Dots {
        /// The path, escaped.
        shown: String,
    },
    /// It holds a NUL byte, or an escape that means nothing.
    #[error("`{shown}` holds a byte that no path can have")]
    Byte {
        /// The path, escaped.
        shown: String,
    },
    /// It, or a name in it, is too long, or it is too deep.
    #[error(
        "`{shown}…` is too long: at most {MAX_BYTES} bytes, {MAX_NAME} in a name, {MAX_DEPTH} names"
    )]
    TooLong {
        /// How it starts, escaped.
        shown: String,
    },
}

impl TreePath {
    /// The path that these bytes spell.
    ///
    /// # Errors
    /// They break one of the rules of [`TreePathError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, TreePathError> {
        let shown = || escape(bytes.get(..80).unwrap_or(bytes));
        if bytes.len() > MAX_BYTES {
            return Err(TreePathError::TooLong { shown: shown() });
        }
        if bytes.contains(&0) {
            return Err(TreePathError::Byte { shown: shown() });
        }
        for (depth, name) in bytes.split(|byte| *byte == b'/').enumerate() {
            if name.is_empty() {
                return Err(TreePathError::EmptyName { shown: shown() });
            }
            if name == b"." || name == b".." {
                return Err(TreePathError::Dots { shown: shown() });
            }
            if name.len() > MAX_NAME || depth >= MAX_DEPTH {
                return Err(TreePathError::TooLong { shown: shown() });
            }
        }
        Ok(Self(bytes.into()))
    }

    /// The path of `name` in the directory `parent`, or in the root.
    ///
    /// # Errors
    /// As [`TreePath::parse`].
    pub fn below(parent: Option<&Self>, name: &[u8]) -> Result<Self, TreePathError> {
        match parent {
            None => Self::parse(name),
            Some(parent) => Self::parse(&[&parent.0, b"/".as_slice(), name].concat()),
        }
    }

    /// The path as bytes, names separated by `/`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The names from the root downwards.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }

    /// The last name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.names().next_back().unwrap_or_default()
    }

    /// The directory it is in; nothing if that is the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let cut = self.0.iter().rposition(|byte| *byte == b'/')?;
        self.0.get(..cut).map(|bytes| Self(bytes.into()))
    }

    /// All directories above it, nearest first, without the root.
    pub fn ancestors(&self) -> impl Iterator<Item = Self> {
        std::iter::successors(self.parent(), Self::parent)
    }

    /// How many names it has.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.names().count()
    }

    /// Whether it is `directory` or something below it.
    #[must_use]
    pub fn is_within(&self, directory: &Self) -> bool {
        self.0
            .strip_prefix(&*directory.0)
            .is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
    }

    /// The path as a rule sees it; nothing if no rule could name it.
    #[must_use]
    pub fn resource(&self) -> Option<String> {
        let text = std::str::from_utf8(&self.0).ok()?;
        fluffy_policy::path::normalise(&format!("/{text}"))
            .ok()
            .map(std::borrow::Cow::into_owned)
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(&self.0))
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TreePath {
    type Err = TreePathError;

    fn from_str(text: &str) -> Result<Self, TreePathError> {
        let bytes = unescape(text).ok_or_else(|| TreePathError::Byte {
            shown: text.chars().take(80).collect(),
        })?;
        Self::parse(&bytes)
    }
}

impl TryFrom<String> for TreePath {
    type Error = TreePathError;

    fn try_from(text: String) -> Result<Self, TreePathError> {
        text.parse()
    }
}

impl From<TreePath> for String {
    fn from(path: TreePath) -> String {
        path.to_string()
    }
}

/// Bytes as text that is safe to show and says exactly the same.
#[must_use]
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                c if misleads(c) => push_bytes(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => out.push(c),
            }
        }
        push_bytes(&mut out, chunk.invalid());
    }
    out
}

/// The bytes that [`escape`] turned into this text.
#[must_use]
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'\\' {
            out.push(*first);
            rest = after;
            continue;
        }
        rest = match after {
            [b'\\', after @ ..] => {
                out.push(b'\\');
                after
            }
            [b'x', high, low, after @ ..] => {
                out.push(hex(*high)? << 4 | hex(*low)?);
                after
            }
            _ => return None,
        };
    }
    Some(out)
}

/// Whether a character could move, hide or reorder what a person sees.
fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn push_bytes(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        out.push_str("\\x");
        for nibble in [byte >> 4, byte & 15] {
            out.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
    }
}

fn hex(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_not_below_a_root_is_refused() {
        for wrong in [
            "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b",
        ] {
            assert!(TreePath::parse(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
        assert!(TreePath::parse("a".repeat(256).as_bytes()).is_err());
        assert!(TreePath::parse("a/".repeat(256).as_bytes()).is_err());
        assert!(TreePath::parse(format!("{}a", "a/".repeat(256)).as_bytes()).is_err());
        assert!(TreePath::parse(format!("{}a", "a/".repeat(255)).as_bytes()).is_ok());
    }

    #[test]
    fn a_path_knows_its_place() {
        let deep = path("src/a/b.rs");
        assert_eq!(deep.name(), b"b.rs");
        assert_eq!(deep.parent(), Some(path("src/a")));
        assert_eq!(
            deep.ancestors().collect::<Vec<_>>(),
            [path("src/a"), path("src")]
        );
        assert!(deep.is_within(&path("src")) && deep.is_within(&deep));
        assert!(!path("srcs").is_within(&path("src")));
        assert_eq!(path("one").parent(), None);
        assert_eq!(deep.resource().as_deref(), Some("/src/a/b.rs"));
        assert_eq!(path("a\nb").resource(), None);
        assert_eq!(path("a\\b").resource(), None);
    }

    #[test]
    fn what_could_mislead_is_shown_escaped() {
        assert_eq!(path("a\u{1b}[2J\n").to_string(), "a\\x1b[2J\\x0a");
        assert_eq!(
            path("a\u{202e}txt.exe").to_string(),
            "a\\xe2\\x80\\xaetxt.exe"
        );
        assert_eq!(path("back\\slash").to_string(), "back\\\\slash");
        assert_eq!(path("grün/日本").to_string(), "grün/日本");
        assert!("a\\q".parse::<TreePath>().is_err());
        assert!("a\\x0".parse::<TreePath>().is_err());
    }

    proptest! {
        #[test]
        fn the_escaped_form_says_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let shown = escape(&bytes);
            prop_assert_eq!(unescape(&shown), Some(bytes.clone()));
            prop_assert!(!shown.chars().any(char::is_control));
            if let Ok(path) = TreePath::parse(&bytes) {
                let json = serde_json::to_string(&path).unwrap();
                prop_assert_eq!(serde_json::from_str::<TreePath>(&json).unwrap(), path);
            }
        }
    }
}
