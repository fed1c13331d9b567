//! Path globs, read like those of `.gitignore`, in which order is irrelevant.
//!
//! As there, a glob that matches a directory covers everything below it, a
//! name without `/` matches at any depth, and `**` spans any number of names.
//! A glob speaks of the workspace unless it starts with `@data/` or `@host/`.
//! The earliest match of each part always suffices, so nothing backtracks.

use std::fmt;

use unicode_normalization::UnicodeNormalization;

use crate::path::ROOTS;

/// The longest glob, in bytes.
pub const MAX_BYTES: usize = 512;

/// Why a text is not a glob.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// There is nothing to match.
    #[error("an empty glob matches nothing")]
    Empty,
    /// Longer than [`MAX_BYTES`].
    #[error("a glob has at most {MAX_BYTES} bytes")]
    TooLong,
    /// A control character.
    #[error("`{0}` has a control character")]
    Control(String),
    /// `.`, `..` or `//`, which no normalised path has.
    #[error("`{0}` has a `.`, `..` or `//`, which no path has")]
    Unreachable(String),
    /// A `[` without its `]`, or a range that is upside down.
    #[error("`{0}` has a broken `[…]`")]
    Class(String),
    /// A `\` at the end.
    #[error("`{0}` ends in a `\\`")]
    Escape(String),
    /// A root that does not exist.
    #[error("`{0}` starts with a root that does not exist")]
    Root(String),
    /// A list that only excludes.
    #[error("every glob starts with `!`, so nothing can match")]
    OnlyExcluding,
}

/// Whether letters must agree in case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    Exact,
    /// For guards that must hold on file systems that ignore case.
    Folded,
}

/// A normalised path, split once for any number of globs.
#[derive(Debug, Clone)]
pub(crate) struct SplitPath<'a> {
    pub(crate) root: &'a str,
    pub(crate) names: Vec<&'a str>,
}

impl<'a> SplitPath<'a> {
    /// Splits a path that is already normalised.
    pub(crate) fn of(normal: &'a str) -> Self {
        let (root, below) = crate::path::split_root(normal).unwrap_or_default();
        let names = match below {
            "" => Vec::new(),
            below => below.split('/').collect(),
        };
        Self { root, names }
    }
}

/// A list of globs; `!` excludes, and exclusion wins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GlobSet {
    include: Vec<Glob>,
    exclude: Vec<Glob>,
}

impl GlobSet {
    /// Compiles a list; an empty one matches nothing.
    ///
    /// # Errors
    /// The position of the first unusable glob and what is wrong with it.
    pub fn build<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, (usize, GlobError)> {
        Self::build_with(texts, Case::Exact)
    }

    pub(crate) fn build_with<'a>(
        texts: impl IntoIterator<Item = &'a str>,
        case: Case,
    ) -> Result<Self, (usize, GlobError)> {
        let mut set = Self::default();
        for (index, text) in texts.into_iter().enumerate() {
            let (text, list) = match text.strip_prefix('!') {
                Some(rest) => (rest, &mut set.exclude),
                None => (text, &mut set.include),
            };
            list.push(Glob::parse(text, case).map_err(|error| (index, error))?);
        }
        match set.include.is_empty() && !set.exclude.is_empty() {
            true => Err((0, GlobError::OnlyExcluding)),
            false => Ok(set),
        }
    }

    /// Whether a normalised path is in the set.
    #[must_use]
    pub fn matches(&self, normal_path: &str) -> bool {
        self.matches_split(&SplitPath::of(normal_path))
    }

    pub(crate) fn matches_split(&self, path: &SplitPath<'_>) -> bool {
        self.include.iter().any(|glob| glob.matches(path))
            && !self.exclude.iter().any(|glob| glob.matches(path))
    }

    pub(crate) fn include(&self) -> &[Glob] {
        &self.include
    }

    pub(crate) fn exclude(&self) -> &[Glob] {
        &self.exclude
    }

    /// Whether nothing can ever be in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.include.is_empty()
    }
}

/// One compiled glob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    text: String,
    root: &'static str,
    /// Runs of names; between two runs lies any number of names.
    runs: Vec<Vec<Name>>,
    /// Whether the first run starts at the root.
    anchored: bool,
    case: Case,
}

impl Glob {
    pub(crate) fn parse(text: &str, case: Case) -> Result<Self, GlobError> {
        let shown = || text.chars().take(128).collect::<String>();
        if text.len() > MAX_BYTES {
            return Err(GlobError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(GlobError::Control(shown()));
        }
        let (root, below) = match text.starts_with('@') {
            false => ("", text),
            true => ROOTS
                .iter()
                .find_map(|root| Some((*root, text.strip_prefix(root)?.strip_prefix('/')?)))
                .ok_or_else(|| GlobError::Root(shown()))?,
        };
        let composed: String = match below.is_ascii() {
            true => below.to_owned(),
            false => below.nfc().collect(),
        };
        let folded = match case {
            Case::Exact => composed,
            Case::Folded => composed.to_lowercase(),
        };
        let body = folded.strip_suffix('/').unwrap_or(&folded);
        let (body, leading) = match body.strip_prefix('/') {
            Some(rest) => (rest, true),
            None => (body, false),
        };
        if body.is_empty() {
            return Err(GlobError::Empty);
        }
        let slashes = leading || body.contains('/');
        let mut glob = Self {
            text: text.to_owned(),
            root,
            runs: vec![Vec::new()],
            anchored: slashes || body == "**",
            case,
        };
        for name in body.split('/') {
            glob.push(name).map_err(|error| error.of(shown()))?;
        }
        // `a/**` is everything below `a`, so at least one name must follow.
        if body.ends_with("/**") && body != "**" {
            glob.runs.pop();
            glob.push("*").map_err(|error| error.of(shown()))?;
        }
        Ok(glob)
    }

    fn push(&mut self, name: &str) -> Result<(), Flaw> {
        match name {
            "" | "." | ".." => return Err(Flaw::Unreachable),
            "**" => {
                if self.runs.last().is_some_and(Vec::is_empty) && self.runs.len() > 1 {
                    return Ok(());
                }
                self.runs.push(Vec::new());
            }
            name => {
                let name = Name::parse(name)?;
                if let Some(run) = self.runs.last_mut() {
                    run.push(name);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn matches(&self, path: &SplitPath<'_>) -> bool {
        if self.root != path.root {
            return false;
        }
        match self.case {
            Case::Exact => self.matches_names(&path.names),
            // Most paths are lowercase already, and then nothing is copied.
            Case::Folded if path.names.iter().all(|name| is_folded(name)) => {
                self.matches_names(&path.names)
            }
            Case::Folded => {
                let folded: Vec<String> =
                    path.names.iter().map(|name| name.to_lowercase()).collect();
                let names: Vec<&str> = folded.iter().map(String::as_str).collect();
                self.matches_names(&names)
            }
        }
    }

    /// What follows the last run is below something that matches.
    fn matches_names(&self, names: &[&str]) -> bool {
        let mut rest = names;
        let mut runs = self.runs.iter();
        if self.anchored
            && let Some(first) = runs.next()
        {
            match starts_with(rest, first) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        for run in runs {
            let hit = (0..=rest.len()).find_map(|at| starts_with(rest.get(at..)?, run));
            match hit {
                Some(after) => rest = after,
                None => return false,
            }
        }
        true
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) const fn root(&self) -> &'static str {
        self.root
    }

    /// The literal names that every match starts with.
    pub(crate) fn literal_prefix(&self) -> Vec<&str> {
        let first = self.runs.first().filter(|_| self.anchored);
        let names = first.into_iter().flatten();
        names.map_while(Name::literal).collect()
    }

    /// Every literal name that a match has somewhere.
    pub(crate) fn literals(&self) -> impl Iterator<Item = &str> {
        self.runs.iter().flatten().filter_map(Name::literal)
    }

    /// The endings, such as `.rs`, that some name of each match has.
    pub(crate) fn endings(&self) -> impl Iterator<Item = &str> {
        self.runs.iter().flatten().filter_map(Name::ending)
    }

    /// Whether everything below its literal prefix matches.
    pub(crate) fn is_whole_tree(&self) -> bool {
        let [run] = self.runs.as_slice() else {
            return self.runs.iter().all(Vec::is_empty);
        };
        let tail = run.iter().skip_while(|name| name.literal().is_some());
        self.anchored && tail.clone().count() <= 1 && tail.clone().all(|name| *name == Name::Any)
    }

    /// Whether no path can match both; `false` when that is not certain.
    pub(crate) fn is_disjoint_from(&self, other: &Self) -> bool {
        if self.root != other.root {
            return true;
        }
        // One of the two may ignore case; then so does the other for safety.
        let differ = |(our, their): (&&str, &&str)| our.to_lowercase() != their.to_lowercase();
        let (ours, theirs) = (self.literal_prefix(), other.literal_prefix());
        ours.iter().zip(&theirs).any(differ)
    }

    /// Whether everything `other` matches is certainly matched by this too.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        if self.root != other.root || self.case != other.case {
            return false;
        }
        if self.runs == other.runs && self.anchored == other.anchored {
            return true;
        }
        let (ours, theirs) = (self.literal_prefix(), other.literal_prefix());
        // `a/**` needs a name below `a`; `a` alone is a match of `a` too.
        let has_star = self.runs.iter().flatten().any(|name| *name == Name::Any);
        let deeper = !has_star || other.runs.iter().flatten().count() > ours.len();
        self.is_whole_tree() && theirs.starts_with(&ours) && deeper
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_folded(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase())
}

/// What follows `run` when `names` starts with it.
fn starts_with<'a, 'b>(names: &'a [&'b str], run: &[Name]) -> Option<&'a [&'b str]> {
    let (head, rest) = names.split_at_checked(run.len())?;
    let all = head
        .iter()
        .zip(run)
        .all(|(name, wanted)| wanted.matches(name));
    all.then_some(rest)
}

enum Flaw {
    Unreachable,
    Class,
    Escape,
}

impl Flaw {
    fn of(self, text: String) -> GlobError {
        match self {
            Self::Unreachable => GlobError::Unreachable(text),
            Self::Class => GlobError::Class(text),
            Self::Escape => GlobError::Escape(text),
        }
    }
}

/// A pattern for one name between slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Any,
    Literal(String),
    /// `*` and then literal text: the usual `*.rs`.
    Ending(String),
    /// Chunks of single-character patterns between stars.
    Chunks(Vec<Vec<Letter>>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Letter {
    Is(char),
    Any,
    OneOf(Vec<(char, char)>),
    NoneOf(Vec<(char, char)>),
}

impl Letter {
    fn matches(&self, letter: char) -> bool {
        let inside = |ranges: &[(char, char)]| {
            ranges
                .iter()
                .any(|(low, high)| (*low..=*high).contains(&letter))
        };
        match self {
            Self::Is(wanted) => *wanted == letter,
            Self::Any => true,
            Self::OneOf(ranges) => inside(ranges),
            Self::NoneOf(ranges) => !inside(ranges),
        }
    }
}

impl Name {
    fn parse(text: &str) -> Result<Self, Flaw> {
        // The usual shapes need no letters taken apart.
        let plain = |text: &str| !text.contains(['*', '?', '[', '\\']);
        match text.strip_prefix('*') {
            None if plain(text) => return Ok(Self::Literal(text.to_owned())),
            Some("") => return Ok(Self::Any),
            Some(rest) if plain(rest) => return Ok(Self::Ending(rest.to_owned())),
            _ => {}
        }
        let mut chunks = vec![Vec::new()];
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            let letter = match letter {
                '*' => {
                    chunks.push(Vec::new());
                    continue;
                }
                '?' => Letter::Any,
                '[' => parse_class(&mut letters)?,
                '\\' => Letter::Is(letters.next().ok_or(Flaw::Escape)?),
                letter => Letter::Is(letter),
            };
            if let Some(chunk) = chunks.last_mut() {
                chunk.push(letter);
            }
        }
        Ok(Self::simplest(chunks))
    }

    fn simplest(chunks: Vec<Vec<Letter>>) -> Self {
        let literal = |chunk: &[Letter]| -> Option<String> {
            let plain = chunk.iter().map(|letter| match letter {
                Letter::Is(letter) => Some(*letter),
                _ => None,
            });
            plain.collect()
        };
        match chunks.as_slice() {
            [only] => literal(only).map(Self::Literal),
            stars if stars.iter().all(Vec::is_empty) => Some(Self::Any),
            [first, last] if first.is_empty() => literal(last).map(Self::Ending),
            _ => None,
        }
        .unwrap_or(Self::Chunks(chunks))
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Literal(text) => name == text,
            Self::Ending(text) => name.ends_with(text.as_str()),
            Self::Chunks(chunks) => chunks_match(chunks, name),
        }
    }

    fn literal(&self) -> Option<&str> {
        match self {
            Self::Literal(text) => Some(text),
            _ => None,
        }
    }

    fn ending(&self) -> Option<&str> {
        match self {
            Self::Ending(text) => text.rfind('.').and_then(|dot| text.get(dot..)),
            _ => None,
        }
    }
}

fn parse_class(letters: &mut std::str::Chars<'_>) -> Result<Letter, Flaw> {
    let mut ranges: Vec<(char, char)> = Vec::new();
    let mut next = letters.next().ok_or(Flaw::Class)?;
    let negated = matches!(next, '!' | '^');
    if negated {
        next = letters.next().ok_or(Flaw::Class)?;
    }
    loop {
        if next == ']' && !ranges.is_empty() {
            break;
        }
        let low = match next {
            '\\' => letters.next().ok_or(Flaw::Escape)?,
            letter => letter,
        };
        next = letters.next().ok_or(Flaw::Class)?;
        let mut after = letters.clone();
        let high = match (next, after.next()) {
            ('-', Some(high)) if high != ']' => {
                let high = match high {
                    '\\' => after.next().ok_or(Flaw::Escape)?,
                    letter => letter,
                };
                *letters = after;
                next = letters.next().ok_or(Flaw::Class)?;
                high
            }
            _ => low,
        };
        if low > high {
            return Err(Flaw::Class);
        }
        ranges.push((low, high));
    }
    Ok(match negated {
        true => Letter::NoneOf(ranges),
        false => Letter::OneOf(ranges),
    })
}

/// First chunk at the start, last at the end, the others as early as they fit.
fn chunks_match(chunks: &[Vec<Letter>], name: &str) -> bool {
    let letters: Vec<char> = name.chars().collect();
    let fits = |chunk: &[Letter], letters: &[char]| {
        chunk.len() == letters.len()
            && chunk
                .iter()
                .zip(letters)
                .all(|(wanted, letter)| wanted.matches(*letter))
    };
    let (first, middle, last) = match chunks {
        [] => return letters.is_empty(),
        [only] => return fits(only, &letters),
        [first, middle @ .., last] => (first, middle, last),
    };
    let Some((head, rest)) = letters.split_at_checked(first.len()) else {
        return false;
    };
    let Some(at) = rest.len().checked_sub(last.len()) else {
        return false;
    };
    let (mut rest, tail) = rest.split_at(at);
    if !fits(first, head) || !fits(last, tail) {
        return false;
    }
    for chunk in middle.iter().filter(|chunk| !chunk.is_empty()) {
        let hit = rest
            .windows(chunk.len())
            .position(|window| fits(chunk, window));
        match hit.and_then(|at| rest.get(at + chunk.len()..)) {
            Some(after) => rest = after,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(globs: &[&str], path: &str) -> bool {
        GlobSet::build(globs.iter().copied()).unwrap().matches(path)
    }

    #[test]
    fn globs_read_like_those_of_gitignore() {
        for (glob, path, expected) in [
            ("src/**", "/src/a/b.rs", true),
            ("src/**", "/src", false),
            ("src/**", "/lib/src/a", false),
            ("src/*", "/src/a", true),
            ("src/*", "/src/a/b", true), // `a` matches, and what is below it
            ("src/*.rs", "/src/a/b.rs", false),
            ("*.rs", "/src/a/b.rs", true),
            ("Cargo.toml", "/a/b/Cargo.toml", true),
            ("/Cargo.toml", "/a/Cargo.toml", false),
            ("/Cargo.toml", "/Cargo.toml", true),
            ("secrets", "/a/secrets/key", true),
            ("secrets/", "/a/secrets/key", true),
            ("secrets", "/a/secrets2/key", false),
            ("a/**/b", "/a/b", true),
            ("a/**/b", "/a/x/y/b", true),
            ("a/**/b", "/x/a/b", false),
            ("**/b/c", "/a/b/c", true),
            ("**", "/", true),
            ("**", "/a", true),
            ("*", "/", false),
            ("**/**/b", "/b", true),
            ("a?c", "/abc", true),
            ("a?c", "/a/c", false),
            ("[a-c]x", "/bx", true),
            ("[!a-c]x", "/bx", false),
            ("[]x]y", "/]y", true),
            ("a[-z]", "/a-", true),
            ("\\*x", "/*x", true),
            ("\\*x", "/ax", false),
            ("t*st*.rs", "/test_a.rs", true),
            ("*a*b*", "/xbxaxb", true),
            ("*ab", "/b", false),
            ("@data/*", "@data/x/y", true),
            ("@host/**/fluffy", "@host/etc/fluffy/x", true),
            ("**", "@host/etc", false),
            ("e\u{301}", "/é", true),
            (".GIT", "/.git", false),
        ] {
            assert_eq!(fits(&[glob], path), expected, "{glob} {path}");
        }
    }

    #[test]
    fn exclusion_wins_in_any_order() {
        assert!(!fits(&["src/**", "!src/gen/**"], "/src/gen/a"));
        assert!(!fits(&["!src/gen/**", "src/**"], "/src/gen/a"));
        assert!(fits(&["!src/gen/**", "src/**"], "/src/a"));
        assert!(!fits(&[], "/a"));
        assert_eq!(GlobSet::build(["!a"]), Err((0, GlobError::OnlyExcluding)));
    }

    #[test]
    fn broken_globs_say_where_and_why() {
        for (glob, expected) in [
            ("", GlobError::Empty),
            ("/", GlobError::Empty),
            ("a//b", GlobError::Unreachable("a//b".into())),
            ("../a", GlobError::Unreachable("../a".into())),
            ("[a", GlobError::Class("[a".into())),
            ("[z-a]", GlobError::Class("[z-a]".into())),
            ("a\\", GlobError::Escape("a\\".into())),
            ("@home/a", GlobError::Root("@home/a".into())),
            ("a\tb", GlobError::Control("a\tb".into())),
        ] {
            assert_eq!(GlobSet::build(["ok", glob]), Err((1, expected)), "{glob}");
        }
        assert_eq!(
            GlobSet::build([&*"a".repeat(513)]),
            Err((0, GlobError::TooLong))
        );
    }

    #[test]
    fn folded_globs_hold_where_case_is_ignored() {
        let guard = GlobSet::build_with([".fluffy/policy.yaml"], Case::Folded).unwrap();
        assert!(guard.matches("/.Fluffy/POLICY.yaml"));
        assert!(guard.matches("/.fluffy/policy.yaml"));
        assert!(!guard.matches("/.fluffy/other.yaml"));
    }

    #[test]
    fn covering_and_disjointness_never_overstate() {
        let glob = |text| Glob::parse(text, Case::Exact).unwrap();
        assert!(glob("src/**").covers(&glob("src/a/**")));
        assert!(glob("src/**").covers(&glob("src/a.rs")));
        assert!(glob("src/**").covers(&glob("src/**")));
        assert!(glob("**").covers(&glob("a/*.rs")));
        assert!(glob("@data/**").covers(&glob("@data/a/*.rs")));
        assert!(!glob("**").covers(&glob("@data/a")));
        assert!(!glob("src/**").covers(&glob("src")));
        assert!(!glob("src/*.rs").covers(&glob("src/a/**")));
        assert!(!glob("src/**").covers(&glob("*.rs")));
        assert!(glob("src/**").is_disjoint_from(&glob("tests/**")));
        assert!(!glob("src/**").is_disjoint_from(&glob("*.rs")));
        assert!(!glob("src/**").is_disjoint_from(&glob("src/a")));
        assert!(glob("@data/**").is_disjoint_from(&glob("**")));
    }
}
