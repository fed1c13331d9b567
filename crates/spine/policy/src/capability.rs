//! Capabilities and the patterns that grants are made of.
//!
//! A capability is action and resource as one string. What is malformed is not
//! an error to be repaired but a value that nothing matches, not even `*`.
//! Matching never backtracks over bytes, so no pattern can be made slow. The
//! sets of patterns a principal holds are in [`crate::grant`].

use std::fmt;

use unicode_normalization::is_nfc;

/// The longest capability or pattern, in bytes.
pub const MAX_BYTES: usize = 1024;

/// The most dotted segments; a path counts as one.
pub const MAX_SEGMENTS: usize = 32;

/// Why a text is neither a capability nor a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCapability {
    /// There is nothing.
    #[error("an empty text is no capability")]
    Empty,
    /// More than [`MAX_BYTES`].
    #[error("{bytes} bytes are more than a capability may have ({MAX_BYTES})")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// More than [`MAX_SEGMENTS`].
    #[error("`{text}` has more than {MAX_SEGMENTS} segments")]
    TooManySegments {
        /// The text.
        text: String,
    },
    /// Two separators in a row, or one at an end.
    #[error("`{text}` has an empty segment")]
    EmptySegment {
        /// The text.
        text: String,
    },
    /// A control character.
    #[error("`{text}` has a control character")]
    Control {
        /// The text, escaped.
        text: String,
    },
    /// Letters and their accents are not composed.
    #[error("`{text}` is not in Unicode normal form C")]
    NotComposed {
        /// The text.
        text: String,
    },
    /// A path with `.` or `..`.
    #[error("`{text}` has a `.` or `..` in its path")]
    DotSegment {
        /// The text.
        text: String,
    },
}

/// One valid, concrete capability, split once.
#[derive(Clone, PartialEq, Eq)]
pub struct Capability {
    text: String,
    shape: Shape,
}

impl Capability {
    /// The capability that this text spells.
    ///
    /// # Errors
    /// The text breaks one of the rules of [`InvalidCapability`].
    pub fn parse(text: impl Into<String>) -> Result<Self, InvalidCapability> {
        let text = text.into();
        let shape = Shape::of(&text)?;
        Ok(Self { text, shape })
    }

    /// The capability as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn segment(&self, index: usize) -> &str {
        self.shape.segment(&self.text, index)
    }

    /// How many segments are ordinary ones, before a path.
    fn plain_segments(&self) -> usize {
        self.shape.count - usize::from(self.shape.path)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capability({})", self.text)
    }
}

/// One valid pattern, compiled once.
#[derive(Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    pieces: Vec<Piece>,
    path: Option<PathPattern>,
}

impl Pattern {
    /// The pattern that this text spells.
    ///
    /// # Errors
    /// The text breaks one of the rules of [`InvalidCapability`].
    pub fn parse(text: &str) -> Result<Self, InvalidCapability> {
        let shape = Shape::of(text)?;
        let plain = shape.count - usize::from(shape.path);
        let pieces = (0..plain)
            .map(|index| Piece::of(shape.segment(text, index)))
            .collect();
        let path = shape
            .path
            .then(|| PathPattern::of(shape.segment(text, plain)));
        let text = text.to_owned();
        Ok(Self { text, pieces, path })
    }

    /// Whether the pattern covers this capability.
    #[must_use]
    pub fn matches(&self, capability: &Capability) -> bool {
        self.matches_metered(capability, &mut Unmetered)
    }

    /// Whether this is the single `*`, which covers every valid capability.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.text == "*"
    }

    /// Whether everything that `other` matches is matched by this one too.
    ///
    /// A yes is certain. A pattern cannot name a literal `*`, so the stars of
    /// `other` are only ever matched by stars that span as much.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let covered = |text: String| Capability::parse(text).is_ok_and(|one| self.matches(&one));
        let plain = other.pieces.len();
        let segments: Vec<&str> = match &other.path {
            None => other.text.split('.').collect(),
            Some(_) => other.text.splitn(plain + 1, '.').collect(),
        };
        // Whatever spans one segment or name is asked to span two as well.
        let mut longer = segments.iter().enumerate().map(|(at, segment)| {
            let more = match (*segment, at == plain) {
                ("*", false) => "*.*".to_owned(),
                (path, true) if path.ends_with('*') => format!("{path}/*"),
                (segment, _) => segment.to_owned(),
            };
            let before = segments.get(..at).unwrap_or_default();
            let after = segments.get(at + 1..).unwrap_or_default();
            [before, &[more.as_str()], after].concat().join(".")
        });
        // A last `*` takes a path too, which no other piece does.
        let path = match other.pieces.last() {
            Some(Piece::Any) if other.path.is_none() => {
                format!("{}/a", other.text.trim_end_matches('*'))
            }
            _ => other.text.clone(),
        };
        covered(other.text.clone()) && longer.all(covered) && covered(path)
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn matches_metered(&self, capability: &Capability, meter: &mut impl Meter) -> bool {
        let mut segments = capability.shape.count;
        if let Some(path) = &self.path {
            if !capability.shape.path {
                return false;
            }
            segments -= 1;
            if !path.matches(capability.segment(segments), meter) {
                return false;
            }
        }
        self.pieces_match(capability, segments, meter)
    }

    /// Earliest-first matching: only the last `*` ever needs another try, so
    /// the work is at most pieces times segments.
    fn pieces_match(
        &self,
        capability: &Capability,
        segments: usize,
        meter: &mut impl Meter,
    ) -> bool {
        let plain = capability.plain_segments();
        let (mut piece, mut segment) = (0, 0);
        let mut retry: Option<(usize, usize)> = None;
        loop {
            match self.pieces.get(piece) {
                None if segment == segments => return true,
                Some(Piece::Any) if segment < segments => {
                    piece += 1;
                    segment += 1;
                    retry = Some((piece, segment));
                    continue;
                }
                // A path is matched by a path pattern or by a whole `*`.
                Some(Piece::One(wild))
                    if segment < segments.min(plain)
                        && wild.matches(capability.segment(segment), meter) =>
                {
                    piece += 1;
                    segment += 1;
                    continue;
                }
                _ => {}
            }
            match retry {
                Some((after, taken)) if taken < segments => {
                    piece = after;
                    segment = taken + 1;
                    retry = Some((after, taken + 1));
                }
                _ => return false,
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({})", self.text)
    }
}

/// Whether `pattern` covers `capability`; what is invalid matches nothing.
#[must_use]
pub fn matches(pattern: &str, capability: &str) -> bool {
    match (Pattern::parse(pattern), Capability::parse(capability)) {
        (Ok(pattern), Ok(capability)) => pattern.matches(&capability),
        _ => false,
    }
}

/// Counts the bytes that matching looked at; the real one counts nothing.
trait Meter {
    fn spend(&mut self, bytes: usize);
}

struct Unmetered;

impl Meter for Unmetered {
    fn spend(&mut self, _bytes: usize) {}
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    /// A whole `*`: one or more segments.
    Any,
    One(Wild),
}

impl Piece {
    fn of(text: &str) -> Self {
        match text {
            "*" => Self::Any,
            text => Self::One(Wild::of(text)),
        }
    }
}

/// A path in a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PathPattern {
    /// No `*` at all.
    Exact(String),
    /// One `*`, at the end: everything that starts with the text before it.
    Below(String),
    /// One `Wild` for each part between slashes.
    Parts {
        parts: Vec<Wild>,
        /// Whether it ends in `*` and so covers everything below.
        open: bool,
    },
}

impl PathPattern {
    fn of(text: &str) -> Self {
        match text.split_once('*') {
            None => Self::Exact(text.to_owned()),
            Some((before, "")) => Self::Below(before.to_owned()),
            Some(_) => Self::Parts {
                parts: text.split('/').map(Wild::of).collect(),
                open: text.ends_with('*'),
            },
        }
    }

    fn matches(&self, path: &str, meter: &mut impl Meter) -> bool {
        let (parts, open) = match self {
            Self::Exact(text) => return path == text,
            // A directory is not below itself.
            Self::Below(start) => {
                return path.starts_with(start.as_str())
                    && (path.len() > start.len() || !start.ends_with('/'));
            }
            Self::Parts { parts, open } => (parts, *open),
        };
        let mut names = path.split('/');
        for part in parts {
            match names.next() {
                Some(name) if part.matches(name, meter) => {}
                _ => return false,
            }
        }
        // A final `*` stands for something below, so never for the empty name
        // that the root directory splits into.
        match open {
            true => !path.ends_with('/'),
            false => names.next().is_none(),
        }
    }
}

/// Text with `*` in it, kept as the literal chunks between the stars.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wild {
    chunks: Vec<String>,
}

impl Wild {
    fn of(text: &str) -> Self {
        Self {
            chunks: text.split('*').map(str::to_owned).collect(),
        }
    }

    fn matches(&self, text: &str, meter: &mut impl Meter) -> bool {
        meter.spend(text.len());
        let (first, middle, last) = match self.chunks.as_slice() {
            [] => return text.is_empty(),
            [only] => return text == only,
            [first, middle @ .., last] => (first, middle, last),
        };
        let Some(mut rest) = text
            .strip_prefix(first.as_str())
            .and_then(|rest| rest.strip_suffix(last.as_str()))
        else {
            return false;
        };
        for chunk in middle {
            // The earliest hit leaves the most room, so it never needs undoing.
            match rest.split_once(chunk.as_str()) {
                Some((before, after)) => {
                    meter.spend(before.len() + chunk.len());
                    rest = after;
                }
                None => {
                    meter.spend(rest.len());
                    return false;
                }
            }
        }
        true
    }
}

/// Where the segments of a text end, and whether the last one is a path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shape {
    ends: [u16; MAX_SEGMENTS],
    count: usize,
    path: bool,
}

impl Shape {
    fn of(text: &str) -> Result<Self, InvalidCapability> {
        check_characters(text)?;
        let mut shape = Self {
            ends: [0; MAX_SEGMENTS],
            count: 0,
            path: false,
        };
        let mut start = 0;
        loop {
            let rest = text.get(start..).unwrap_or_default();
            let segment = rest.split('.').next().unwrap_or_default();
            shape.path = segment.starts_with('@') || segment.contains('/');
            let segment = if shape.path { rest } else { segment };
            if segment.is_empty() {
                return Err(InvalidCapability::EmptySegment { text: text.into() });
            }
            let end = start + segment.len();
            let slot = shape.ends.get_mut(shape.count);
            let slot =
                slot.ok_or_else(|| InvalidCapability::TooManySegments { text: text.into() })?;
            // INVARIANT: `end` is at most MAX_BYTES, which fits.
            *slot = u16::try_from(end).unwrap_or(u16::MAX);
            shape.count += 1;
            if shape.path {
                check_path(text, segment)?;
            }
            if end == text.len() {
                return Ok(shape);
            }
            start = end + 1;
        }
    }

    fn segment<'a>(&self, text: &'a str, index: usize) -> &'a str {
        let end = |index: usize| self.ends.get(index).map_or(0, |end| usize::from(*end));
        let start = if index == 0 { 0 } else { end(index - 1) + 1 };
        text.get(start..end(index)).unwrap_or_default()
    }
}

fn check_characters(text: &str) -> Result<(), InvalidCapability> {
    if text.is_empty() {
        return Err(InvalidCapability::Empty);
    }
    if text.len() > MAX_BYTES {
        return Err(InvalidCapability::TooLong { bytes: text.len() });
    }
    if text.is_ascii() {
        return match text.bytes().any(|byte| byte.is_ascii_control()) {
            true => Err(control(text)),
            false => Ok(()),
        };
    }
    if text.chars().any(char::is_control) {
        return Err(control(text));
    }
    if !is_nfc(text) {
        return Err(InvalidCapability::NotComposed { text: text.into() });
    }
    Ok(())
}

fn control(text: &str) -> InvalidCapability {
    InvalidCapability::Control {
        text: text.escape_debug().to_string(),
    }
}

fn check_path(text: &str, path: &str) -> Result<(), InvalidCapability> {
    let inner = path.strip_prefix('/').unwrap_or(path);
    if inner.is_empty() {
        return Ok(());
    }
    for name in inner.split('/') {
        match name {
            "" => return Err(InvalidCapability::EmptySegment { text: text.into() }),
            "." | ".." => return Err(InvalidCapability::DotSegment { text: text.into() }),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counted(usize);

    impl Meter for Counted {
        fn spend(&mut self, bytes: usize) {
            self.0 += bytes + 1;
        }
    }

    #[test]
    fn the_table_of_the_specification() {
        for (pattern, capability, expected) in [
            ("sessions.read", "sessions.read", true),
            ("sessions.read", "sessions.write", false),
            ("*", "anything.here", true),
            ("sessions.*", "sessions.read", true),
            ("sessions.*", "messages.send", false),
            ("messages.send.*", "messages.send.telegram", true),
            ("exec.*", "exec.run.sandboxed", true),
            ("exec.*", "exec", false),
            (
                "filesystem.read./data/*",
                "filesystem.read./data/plugins/foo.txt",
                true,
            ),
            (
                "filesystem.read./data/*",
                "filesystem.read./etc/shadow",
                false,
            ),
            ("config.read.self", "config.read.self", true),
            ("config.read.self", "config.read.other", false),
            ("*.read.*", "config.read.self", true),
            ("env.deploy.acme/*", "env.deploy.acme/shop/prod", true),
            ("env.deploy.acme/*", "env.deploy.acme2/shop/prod", false),
            ("fs.read./data/*/log", "fs.read./data/a/log", true),
            ("fs.read./data/*/log", "fs.read./data/a/b/log", false),
            ("*", "a..b", false),
            ("", "sessions.read", false),
        ] {
            assert_eq!(
                matches(pattern, capability),
                expected,
                "{pattern} {capability}"
            );
        }
    }

    #[test]
    fn covering_is_about_every_capability() {
        let covers = |wide: &str, narrow: &str| {
            Pattern::parse(wide)
                .unwrap()
                .covers(&Pattern::parse(narrow).unwrap())
        };
        for (wide, narrow) in [
            ("*", "fs.read./docs/*"),
            ("fs.*", "fs.read./docs/*"),
            ("fs.read./docs/*", "fs.read./docs/private/*"),
            ("fs.read./docs/*", "fs.read./docs/a"),
            ("fs.read./d*s/*", "fs.read./docs/*"),
            ("net.connect.*", "net.connect.*.example.com:443"),
            ("net.connect.*.com:443", "net.connect.*.example.com:443"),
            ("exec.*", "exec.*"),
            ("*.*", "exec.*"),
        ] {
            assert!(covers(wide, narrow), "{wide} {narrow}");
        }
        for (wide, narrow) in [
            ("fs.read./docs/*", "fs.read./*"),
            ("fs.read./docs/*/*", "fs.read./docs/*"),
            ("fs.read./docs/*/x", "fs.read./docs/*"),
            (
                "net.connect.**.example.com:443",
                "net.connect.*.example.com:443",
            ),
            (
                "net.connect.a*.example.com:443",
                "net.connect.*.example.com:443",
            ),
            ("exec.**", "exec.*"),
            ("exec.*.*", "exec.*"),
            ("*.**", "exec.*"),
            ("exec.run", "exec.*"),
        ] {
            assert!(!covers(wide, narrow), "{wide} {narrow}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_covered_is_matched(
            wide in "[ab*]{1,2}(\\.[ab*]{1,2}){0,3}(\\./?[ab*]{1,2}(/[ab*]{1,2}){0,2})?",
            narrow in "[ab*]{1,2}(\\.[ab*]{1,2}){0,3}(\\./?[ab*]{1,2}(/[ab*]{1,2}){0,2})?",
            one in "[ab]{1,2}(\\.[ab]{1,2}){0,4}(\\./?[ab]{1,2}(/[ab]{1,2}){0,3})?",
        ) {
            let (wide, narrow) = (Pattern::parse(&wide).unwrap(), Pattern::parse(&narrow).unwrap());
            let one = Capability::parse(one).unwrap();
            if wide.covers(&narrow) && narrow.matches(&one) {
                proptest::prop_assert!(wide.matches(&one));
            }
            proptest::prop_assert!(narrow.covers(&narrow), "{}", narrow);
        }
    }

    #[test]
    fn a_prefix_of_a_name_is_not_a_prefix_of_a_path() {
        assert!(!matches("fs.read./data/*", "fs.read./data2/x"));
        assert!(!matches("fs.read./data/*", "fs.read./data"));
        assert!(!matches("fs.read./*", "fs.read./"));
        assert!(matches("fs.read./", "fs.read./"));
        assert!(matches("fs.read./da*", "fs.read./data/x.y"));
        assert!(!matches("fs.read./d*a*", "fs.read./d/a"));
        assert!(matches("fs.read.@data/*", "fs.read.@data/a.b/c"));
        assert!(!matches("fs.read.@data/*", "fs.read.@host/a"));
    }

    #[test]
    fn a_whole_star_takes_a_path_and_a_partial_one_does_not() {
        assert!(matches("fs.*", "fs.read./etc/x.y"));
        assert!(!matches("fs.read.e*", "fs.read./etc"));
        assert!(matches("fs.re*", "fs.read"));
        assert!(!matches("*.*", "exec"));
        assert!(matches("*.x.*", "a.x.x.b"));
        assert!(matches(
            "net.connect.*.example.com:443",
            "net.connect.a.b.example.com:443"
        ));
        assert!(!matches(
            "net.connect.*.example.com:443",
            "net.connect.example.com:443"
        ));
    }

    #[test]
    fn what_is_malformed_is_matched_by_nothing() {
        let long = "a".repeat(MAX_BYTES + 1);
        let many = ["a"; MAX_SEGMENTS + 1].join(".");
        for text in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a.\u{7f}b",
            "a.\u{85}",
            "a\nb",
            "fs./a//b",
            "fs./a/",
            "fs./a/../b",
            "fs./.",
            "fs.@data/..",
            "x.e\u{301}",
            "fs.a/",
            &long,
            &many,
        ] {
            assert!(!matches("*", text), "{text:?}");
            assert!(!matches(text, "a.b"), "{text:?}");
            assert!(!matches(text, text), "{text:?}");
        }
        assert!(matches("*", &"a".repeat(MAX_BYTES)));
        assert!(matches("*", &["a"; MAX_SEGMENTS].join(".")));
    }

    /// Twice the size costs about twice the bytes, never four times: measured
    /// in bytes looked at, so that a busy machine changes nothing.
    #[test]
    fn the_worst_patterns_stay_linear() {
        let cost = |pattern: &str, capability: &str| {
            let mut meter = Counted(0);
            Pattern::parse(pattern)
                .unwrap()
                .matches_metered(&Capability::parse(capability).unwrap(), &mut meter);
            meter.0
        };
        let inside = |size: usize| cost(&("a*".repeat(size) + "b*a"), &"a".repeat(2 * size));
        assert!(
            inside(500) <= 5 * inside(125),
            "{} {}",
            inside(500),
            inside(125)
        );
        let path = |size: usize| {
            cost(
                &format!("f./{}b", "a*/".repeat(size)),
                &format!("f./{}a", "a/".repeat(size)),
            )
        };
        assert!(path(300) <= 5 * path(75), "{} {}", path(300), path(75));
        // Between segments it is pieces times segments, with both at most 32.
        let between = cost(
            &format!("{}b", "*.a.".repeat(15)),
            &["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"; 32].join("."),
        );
        assert!(between <= MAX_SEGMENTS * MAX_SEGMENTS * 32, "{between}");
    }
}
