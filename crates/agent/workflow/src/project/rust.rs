//! Which parts of a Rust file are tests.
//!
//! Source and tests share a file in Rust, so the workflow has to look inside.
//! This reads tokens, not syntax: that is enough to find `#[cfg(test)]` and
//! `#[test]` and the item that follows, needs no recursion, and a file that
//! it cannot read counts as changed in every part.

use std::ops::Range;

use fluffy_base::Digest;

/// The largest file that is looked into, in bytes.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;

/// The deepest nesting of brackets.
pub const MAX_DEPTH: usize = 256;

/// The most test regions of one file.
pub const MAX_REGIONS: usize = 50_000;

/// The Rust text cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionsError {
    /// Larger than [`MAX_BYTES`], or more regions than [`MAX_REGIONS`].
    #[error("a file of such a size is not looked into")]
    TooLarge,
    /// Brackets are nested deeper than [`MAX_DEPTH`].
    #[error("brackets are nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// A string, a comment or a bracket is not closed.
    #[error("something is not closed, line {line}")]
    Unclosed {
        /// Where it was opened, from 1.
        line: u32,
    },
}

/// One item that is compiled only for tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Where it is, in bytes, from its first attribute to its end.
    pub bytes: Range<usize>,
    /// Its first and last line, from 1.
    pub lines: Range<u32>,
    /// The items around it, outermost first, such as `pub mod config`.
    pub context: String,
}

/// A test function: its name and the modules around it in this file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestFunction {
    /// Such as `tests::reads_a_number`.
    pub path: String,
    /// The line of its name, from 1.
    pub line: u32,
}

/// The parts of a file that are compiled only for tests.
///
/// # Errors
/// The text is too large or something in it is not closed.
pub fn regions(text: &str) -> Result<Vec<Region>, RegionsError> {
    let tokens = significant(tokens(text)?);
    let items = find(text, &tokens)?;
    let lines = Lines::of(text);
    let regions = items.into_iter().map(|(bytes, context)| Region {
        lines: lines.at(bytes.start)..lines.at(bytes.end) + 1,
        bytes,
        context,
    });
    Ok(regions.collect())
}

/// Tests and source of a file, each in one spelling without its layout.
///
/// # Errors
/// The text is too large or something in it is not closed.
pub(crate) fn split(text: &str) -> Result<(String, String), RegionsError> {
    let all = tokens(text)?;
    let found = find(text, &significant(all.clone()))?;
    let mut test = String::new();
    let mut source = String::new();
    let mut ahead = found.iter().peekable();
    for token in &all {
        while ahead
            .next_if(|(bytes, _)| bytes.end <= token.bytes.start)
            .is_some()
        {}
        let part = match ahead.peek() {
            Some((bytes, context)) if bytes.contains(&token.bytes.start) => {
                // Where a test is belongs to the test: moved into a module
                // that is switched off, it would be another one.
                if bytes.start == token.bytes.start {
                    test.push_str("\n@ ");
                    test.push_str(context);
                }
                &mut test
            }
            Some(_) | None => &mut source,
        };
        part.push('\n');
        part.push_str(text.get(token.bytes.clone()).unwrap_or_default());
    }
    Ok((test, source))
}

/// The test functions of a file.
///
/// # Errors
/// The text is too large or something in it is not closed.
pub fn test_functions(text: &str) -> Result<Vec<TestFunction>, RegionsError> {
    let tokens = significant(tokens(text)?);
    let lines = Lines::of(text);
    let word = |at: usize| tokens.get(at).and_then(|token| token.word(text));
    let mut functions = Vec::new();
    // One entry per open bracket; only those of modules have a name.
    let mut around: Vec<Option<&str>> = Vec::new();
    let mut at = 0;
    let mut is_test = false;
    while let Some(token) = tokens.get(at) {
        match token.kind {
            Kind::Punctuation('#') => {
                if let Some((end, attribute)) = attribute(text, &tokens, at) {
                    is_test |= attribute == Attribute::Test;
                    at = end;
                    continue;
                }
            }
            Kind::Open(_) => {
                if around.len() >= MAX_DEPTH {
                    return Err(RegionsError::TooDeep);
                }
                let is_module = at.checked_sub(2).and_then(word) == Some("mod");
                around.push(at.checked_sub(1).and_then(word).filter(|_| is_module));
            }
            Kind::Close(_) => {
                around.pop();
            }
            Kind::Punctuation(';') => is_test = false,
            Kind::Word if word(at) == Some("mod") => is_test = false,
            Kind::Word if word(at) == Some("fn") && is_test => {
                is_test = false;
                if let (Some(name), Some(token)) = (word(at + 1), tokens.get(at + 1)) {
                    let names = around.iter().flatten().copied().chain([name]);
                    functions.push(TestFunction {
                        path: names.collect::<Vec<_>>().join("::"),
                        line: lines.at(token.bytes.start),
                    });
                }
            }
            Kind::Word | Kind::Punctuation(_) | Kind::Literal | Kind::Comment => {}
        }
        at += 1;
    }
    Ok(functions)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Literal,
    Comment,
    Open(char),
    Close(char),
    Punctuation(char),
}

#[derive(Debug, Clone)]
struct Token {
    kind: Kind,
    bytes: Range<usize>,
}

impl Token {
    fn word<'a>(&self, text: &'a str) -> Option<&'a str> {
        let word = text.get(self.bytes.clone())?;
        (self.kind == Kind::Word).then(|| word.strip_prefix("r#").unwrap_or(word))
    }
}

fn significant(mut tokens: Vec<Token>) -> Vec<Token> {
    tokens.retain(|token| token.kind != Kind::Comment);
    tokens
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attribute {
    /// What follows is compiled only for tests.
    Test,
    Other,
}

type Item = (Range<usize>, String);

/// Every outermost item that carries a test attribute.
fn find(text: &str, tokens: &[Token]) -> Result<Vec<Item>, RegionsError> {
    let closing = matching(text, tokens)?;
    let mut items = Vec::new();
    // Where each open group ends, and what stands before it.
    let mut groups: Vec<(usize, String)> = Vec::new();
    let mut boundary = 0;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        while groups.last().is_some_and(|(end, _)| *end < at) {
            groups.pop();
        }
        match token.kind {
            Kind::Punctuation('#') => {
                let start = at;
                let mut is_test = false;
                while let Some((end, attribute)) = attribute(text, tokens, at) {
                    is_test |= attribute == Attribute::Test;
                    at = end;
                }
                if is_test {
                    let limit = groups.last().map_or(tokens.len(), |(end, _)| *end);
                    let end = item_end(text, tokens, &closing, at, limit);
                    let bytes = range(tokens, start, end);
                    let context = groups.last().map_or("", |(_, context)| context);
                    items.push((bytes, context.to_owned()));
                    if items.len() > MAX_REGIONS {
                        return Err(RegionsError::TooLarge);
                    }
                    at = end;
                    boundary = end;
                    continue;
                }
                if at == start {
                    at += 1;
                }
                continue;
            }
            Kind::Open('{') => {
                let around = groups.last().map_or("", |(_, context)| context);
                let header = text.get(range(tokens, boundary, at)).unwrap_or_default();
                let context = context(around, header);
                let end = closing.get(at).copied().unwrap_or(tokens.len());
                groups.push((end, context));
                boundary = at + 1;
            }
            Kind::Close('}') | Kind::Punctuation(';') => boundary = at + 1,
            Kind::Open(_) | Kind::Close(_) | Kind::Punctuation(_) => {}
            Kind::Word | Kind::Literal | Kind::Comment => {}
        }
        at += 1;
    }
    Ok(items)
}

/// The items around a place, with one more; a long text becomes a digest.
fn context(around: &str, header: &str) -> String {
    let header = header.split_whitespace().collect::<Vec<_>>().join(" ");
    let context = match around {
        "" => header,
        around => format!("{around} / {header}"),
    };
    match context.len() > 256 {
        true => Digest::of(context.as_bytes()).to_string(),
        false => context,
    }
}

/// From the first byte of one token to the last of the one before another.
fn range(tokens: &[Token], start: usize, end: usize) -> Range<usize> {
    let first = tokens.get(start).map_or(0, |token| token.bytes.start);
    let last = end.checked_sub(1).and_then(|last| tokens.get(last));
    first..last.map_or(first, |token| token.bytes.end).max(first)
}

/// Reads an outer attribute at a `#`: where it ends and what it means.
fn attribute(text: &str, tokens: &[Token], at: usize) -> Option<(usize, Attribute)> {
    if tokens.get(at)?.kind != Kind::Punctuation('#') || tokens.get(at + 1)?.kind != Kind::Open('[')
    {
        return None;
    }
    let mut depth = 0usize;
    let mut end = at + 1;
    loop {
        match tokens.get(end)?.kind {
            Kind::Open(_) => depth += 1,
            Kind::Close(_) => depth = depth.saturating_sub(1),
            Kind::Word | Kind::Literal | Kind::Comment | Kind::Punctuation(_) => {}
        }
        end += 1;
        if depth == 0 {
            break;
        }
    }
    let inner = tokens.get(at + 2..end - 1).unwrap_or_default();
    let meaning = match is_test_attribute(text, inner) {
        true => Attribute::Test,
        false => Attribute::Other,
    };
    Some((end, meaning))
}

/// `test`, `tokio::test(…)`, `cfg(test)`, `cfg(all(test, …))`.
fn is_test_attribute(text: &str, inner: &[Token]) -> bool {
    const MACROS: &[&str] = &[
        "test",
        "rstest",
        "test_case",
        "quickcheck",
        "wasm_bindgen_test",
        "bench",
        "proptest",
    ];
    let path = inner
        .iter()
        .take_while(|token| !matches!(token.kind, Kind::Open(_)));
    let last = path.filter_map(|token| token.word(text)).last();
    if last.is_some_and(|last| MACROS.contains(&last)) {
        return true;
    }
    if last != Some("cfg") {
        return false;
    }
    // Inside `cfg(…)`: `test` itself, or directly inside `all(…)`. What is in
    // `any` or `not` is compiled without tests too.
    let mut around: Vec<Option<&str>> = Vec::new();
    let mut previous = None;
    for token in inner {
        match token.kind {
            Kind::Open(_) => around.push(previous),
            Kind::Close(_) => {
                around.pop();
            }
            Kind::Word if token.word(text) == Some("test") => {
                let inside_all = |group: &Option<&str>| matches!(group, Some("cfg" | "all"));
                if around.iter().all(inside_all) {
                    return true;
                }
            }
            Kind::Word | Kind::Literal | Kind::Comment | Kind::Punctuation(_) => {}
        }
        previous = token.word(text);
    }
    false
}

/// The token after the item that starts at `at`.
fn item_end(text: &str, tokens: &[Token], closing: &[usize], at: usize, limit: usize) -> usize {
    let words = tokens.get(at..).unwrap_or_default().iter().take(8);
    let words: Vec<&str> = words.filter_map(|token| token.word(text)).collect();
    let keyword = words
        .iter()
        .find(|word| !matches!(**word, "pub" | "crate" | "super" | "unsafe" | "async"));
    let is_function = words.iter().take(4).any(|word| *word == "fn");
    let to_semicolon = matches!(
        keyword,
        Some(&("use" | "const" | "static" | "type" | "let"))
    ) && !is_function;
    let mut at = at;
    while at < limit {
        match tokens.get(at).map(|token| token.kind) {
            Some(Kind::Punctuation(';')) => return at + 1,
            Some(Kind::Punctuation(',')) if !to_semicolon => return at + 1,
            Some(Kind::Open(bracket)) => {
                let close = closing.get(at).copied().unwrap_or(limit);
                at = close + 1;
                if bracket == '{' && !to_semicolon {
                    return at.min(limit);
                }
            }
            Some(Kind::Word | Kind::Literal | Kind::Comment) => at += 1,
            Some(Kind::Close(_) | Kind::Punctuation(_)) => at += 1,
            None => return limit,
        }
    }
    limit
}

/// For every opening bracket, where its closing one is.
fn matching(text: &str, tokens: &[Token]) -> Result<Vec<usize>, RegionsError> {
    let mut closing = vec![usize::MAX; tokens.len()];
    let mut open: Vec<(usize, char)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Open(_) if open.len() >= MAX_DEPTH => return Err(RegionsError::TooDeep),
            Kind::Open(bracket) => open.push((at, bracket)),
            Kind::Close(bracket) => match open.pop() {
                Some((start, opened)) if closes(opened) == bracket => {
                    if let Some(slot) = closing.get_mut(start) {
                        *slot = at;
                    }
                }
                Some(_) | None => return Err(unclosed(text, token.bytes.start)),
            },
            Kind::Word | Kind::Literal | Kind::Comment | Kind::Punctuation(_) => {}
        }
    }
    match open.last().and_then(|(at, _)| tokens.get(*at)) {
        Some(token) => Err(unclosed(text, token.bytes.start)),
        None => Ok(closing),
    }
}

const fn closes(open: char) -> char {
    match open {
        '(' => ')',
        '[' => ']',
        _ => '}',
    }
}

fn unclosed(text: &str, at: usize) -> RegionsError {
    RegionsError::Unclosed {
        line: Lines::of(text).at(at),
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, RegionsError> {
    if text.len() > MAX_BYTES {
        return Err(RegionsError::TooLarge);
    }
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let first = rest.chars().next().unwrap_or_default();
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let (kind, length) = token(rest, first).ok_or_else(|| unclosed(text, at))?;
        let bytes = at..at + length;
        at = bytes.end;
        tokens.push(Token { kind, bytes });
    }
    Ok(tokens)
}

/// The token at the start of a text and its length, if it is closed.
fn token(rest: &str, first: char) -> Option<(Kind, usize)> {
    if rest.starts_with("//") {
        let end = rest.find('\n').unwrap_or(rest.len());
        return Some((Kind::Comment, end));
    }
    if rest.starts_with("/*") {
        return Some((Kind::Comment, block_comment(rest)?));
    }
    if let Some(length) = string(rest) {
        return length.map(|length| (Kind::Literal, length));
    }
    match first {
        '\'' => Some(character_or_lifetime(rest)),
        '(' | '[' | '{' => Some((Kind::Open(first), 1)),
        ')' | ']' | '}' => Some((Kind::Close(first), 1)),
        _ if first.is_alphanumeric() || first == '_' => Some((Kind::Word, word_length(rest))),
        _ => Some((Kind::Punctuation(first), first.len_utf8())),
    }
}

fn word_length(rest: &str) -> usize {
    let body = rest.strip_prefix("r#").unwrap_or(rest);
    let end = body.find(|c: char| !c.is_alphanumeric() && c != '_');
    rest.len() - body.len() + end.unwrap_or(body.len())
}

fn block_comment(rest: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut previous = None;
    for (at, character) in rest.char_indices() {
        match (previous, character) {
            (Some('/'), '*') => depth += 1,
            (Some('*'), '/') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {
                previous = Some(character);
                continue;
            }
        }
        // Both characters are used up: `/*/` neither opens nor closes twice.
        previous = None;
    }
    None
}

/// `None`: no string starts here. `Some(None)`: one does and never ends.
#[expect(
    clippy::option_option,
    reason = "the two are different answers, named in the doc"
)]
fn string(rest: &str) -> Option<Option<usize>> {
    let body = rest.trim_start_matches(['b', 'c', 'r']);
    let prefix = rest.get(..rest.len() - body.len())?;
    if prefix.len() > 2 {
        return None;
    }
    if prefix.ends_with('r') {
        let after = body.trim_start_matches('#');
        let hashes = body.len() - after.len();
        let inner = after.strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = inner
            .find(&end)
            .map(|at| prefix.len() + hashes + 1 + at + end.len());
        return Some(length);
    }
    let inner = body.strip_prefix('"')?;
    let mut escaped = false;
    for (at, character) in inner.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(Some(prefix.len() + 1 + at + 1)),
            _ => {}
        }
    }
    Some(None)
}

/// `'a'` is a character, `'a` a lifetime.
fn character_or_lifetime(rest: &str) -> (Kind, usize) {
    let mut characters = rest.char_indices().skip(1);
    let first = characters.next();
    let second = characters.next();
    match (first, second) {
        (Some((_, '\\')), Some((escaped, _))) => {
            // The escaped character may itself be a quote.
            let after = rest.get(escaped..).and_then(|tail| tail.chars().next());
            let from = escaped + after.map_or(0, char::len_utf8);
            let close = rest.get(from..).and_then(|tail| tail.find('\''));
            (Kind::Literal, close.map_or(rest.len(), |at| from + at + 1))
        }
        (Some(_), Some((at, '\''))) => (Kind::Literal, at + 1),
        _ => {
            let body = rest.get(1..).unwrap_or_default();
            (Kind::Literal, 1 + word_length(body))
        }
    }
}

/// The starts of lines, to turn bytes into lines.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    fn at(&self, byte: usize) -> u32 {
        let before = self.0.partition_point(|newline| *newline < byte);
        u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r##"
//! A file.
use std::fmt;

pub fn parse<'a>(text: &'a str) -> char { // #[cfg(test)] mod no {}
    let _ = r#"#[cfg(test)] mod fake { "#;
    let _ = ('\'', '{', "}\"{", b'"');
    /* { /* nested */ */
    'x'
}

#[cfg(test)]
use std::collections::{BTreeMap, BTreeSet};

pub mod inner {
    #[derive(Debug)]
    pub struct A;

    /// Tests.
    #[cfg(all(test, unix))]
    mod tests {
        use super::*;
        #[test]
        #[should_panic(expected = "no")]
        fn one() { panic!("no") }
        #[tokio::test(flavor = "current_thread")]
        async fn two() {}
        fn not_a_test() {}
    }
}

#[cfg(not(test))]
fn real() {}
#[cfg(any(test, feature = "x"))]
fn both() {}
#[cfg_attr(test, derive(Debug))]
struct S { #[cfg(test)] seen: u32, kept: u8 }
#[test]
fn outside() {}
"##;

    #[test]
    fn regions_are_exactly_what_only_tests_compile() {
        let found = regions(FILE).unwrap();
        let texts: Vec<&str> = found
            .iter()
            .map(|region| &FILE[region.bytes.clone()])
            .collect();
        assert_eq!(texts.len(), 4, "{texts:#?}");
        assert_eq!(
            texts[0],
            "#[cfg(test)]\nuse std::collections::{BTreeMap, BTreeSet};"
        );
        assert!(texts[1].starts_with("#[cfg(all(test, unix))]") && texts[1].ends_with('}'));
        assert_eq!(found[1].context, "pub mod inner");
        assert_eq!(found[1].lines, 20..30);
        assert_eq!(texts[2], "#[cfg(test)] seen: u32,");
        assert_eq!(texts[3], "#[test]\nfn outside() {}");
    }

    #[test]
    fn test_functions_have_their_modules() {
        let found = test_functions(FILE).unwrap();
        let paths: Vec<&str> = found.iter().map(|test| test.path.as_str()).collect();
        assert_eq!(paths, ["inner::tests::one", "inner::tests::two", "outside"]);
        assert_eq!(found[0].line, 25);
    }

    #[test]
    fn layout_is_no_change_and_wrapping_is() {
        let base = "mod a {\n#[cfg(test)]\nmod tests { fn x() {} }\n}";
        let spaced = "mod a {\n\n  #[cfg(test)]\n  mod tests {\n fn x() {} }\n}\n\n";
        assert_eq!(split(base), split(spaced));
        let wrapped = "#[cfg(any())] mod a {\n#[cfg(test)]\nmod tests { fn x() {} }\n}";
        assert_ne!(split(base).unwrap().0, split(wrapped).unwrap().0);
    }

    #[test]
    fn what_is_not_closed_is_an_error() {
        for text in [
            "fn a() {", "\"", "r#\"\"", "/* /* */", "/*/", "fn a() )", "(]",
        ] {
            assert!(regions(text).is_err(), "{text}");
        }
        let deep = "(".repeat(MAX_DEPTH + 1);
        assert_eq!(regions(&deep), Err(RegionsError::TooDeep));
        assert_eq!(regions("a\n{"), Err(RegionsError::Unclosed { line: 2 }));
    }

    #[test]
    fn odd_ends_do_not_panic() {
        for text in [
            "'",
            "'\\",
            "'\\'",
            "#",
            "#[",
            "#[cfg(test)]",
            "r",
            "r#",
            "b'",
            "é'é'é",
            "#[test]",
        ] {
            let _ = (regions(text), test_functions(text), split(text));
        }
    }
}
