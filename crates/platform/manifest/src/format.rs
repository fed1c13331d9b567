//! Writes a manifest in the one way that it is written, comments included.
//!
//! Works on tokens, so nothing is lost and no value is spelt anew: only white
//! space changes. One space around `=`, four per level, at most one empty line,
//! one before each table.

use toml::de::DeTable;
use toml_parser::Source;
use toml_parser::lexer::TokenKind;

use crate::problem::{Code, Problem};
use crate::reader::Reader;

/// The text in its one form.
///
/// # Errors
/// It is not TOML.
pub fn format(text: &str) -> Result<String, Vec<Problem>> {
    if let Err(error) = DeTable::parse(text) {
        let mut reader = Reader::new(text);
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        let span = error.span().unwrap_or(0..0);
        reader.add(Code::TomlSyntax, "", &span, message);
        return Err(reader.problems);
    }
    let source = Source::new(text);
    let mut lines = Lines::default();
    let mut line: Vec<(TokenKind, &str)> = Vec::new();
    for token in source.lex() {
        match token.kind() {
            TokenKind::Whitespace => {}
            TokenKind::Newline | TokenKind::Eof => lines.add(&std::mem::take(&mut line)),
            kind => {
                let written = source.get(token).map(|raw| raw.as_str());
                line.push((kind, written.unwrap_or_default()));
            }
        }
    }
    Ok(lines.out)
}

/// The lines so far.
#[derive(Debug, Default)]
struct Lines {
    out: String,
    depth: usize,
    empty: bool,
    comment: bool,
}

impl Lines {
    fn add(&mut self, line: &[(TokenKind, &str)]) {
        let Some((first, _)) = line.first() else {
            self.empty = true;
            return;
        };
        let header = self.depth == 0 && *first == TokenKind::LeftSquareBracket;
        // A comment belongs to what follows it.
        let apart = self.empty || (header && !self.comment);
        if apart && !self.out.is_empty() {
            self.out.push('\n');
        }
        (self.empty, self.comment) = (false, *first == TokenKind::Comment);
        let closes = usize::from(is_close(*first));
        let indent = self.depth.saturating_sub(closes);
        self.out.push_str(&"    ".repeat(indent));
        let mut before = None;
        for (kind, written) in line {
            if before.is_some_and(|before| is_apart(before, *kind)) {
                self.out.push(' ');
            }
            match kind {
                TokenKind::Comment => self.out.push_str(written.trim_end()),
                _ => self.out.push_str(written),
            }
            if is_close(*kind) {
                self.depth = self.depth.saturating_sub(1);
            } else if is_open(*kind) {
                self.depth += 1;
            }
            before = Some(*kind);
        }
        self.out.push('\n');
    }
}

fn is_open(kind: TokenKind) -> bool {
    matches!(
        kind,
        TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket
    )
}

fn is_close(kind: TokenKind) -> bool {
    matches!(
        kind,
        TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket
    )
}

/// Whether a space is between two tokens of a line.
fn is_apart(before: TokenKind, after: TokenKind) -> bool {
    match (before, after) {
        (_, TokenKind::Comment) => true,
        (TokenKind::LeftCurlyBracket, TokenKind::RightCurlyBracket) => false,
        (TokenKind::Dot | TokenKind::LeftSquareBracket, _) => false,
        (_, TokenKind::Dot | TokenKind::Comma | TokenKind::RightSquareBracket) => false,
        _ => true,
    }
}
