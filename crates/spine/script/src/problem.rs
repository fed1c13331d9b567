//! What is wrong with an extension's source: where, what, why and how to fix it.
//!
//! Made in the worker, shown to a person by the host. The worker is not
//! trusted, so [`Problem::tamed`] bounds and cleans every text before anyone
//! sees it. Next: `strip` finds most of them, `engine` the rest.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest text that a script or its worker gets to show a person.
pub(crate) const MAX_TEXT: usize = 500;

/// Why an extension's source was refused, in words for its author.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Problem {
    /// Where in the source; `None` when no single place is at fault.
    pub at: Option<Position>,
    /// What was found.
    pub what: String,
    /// Why that is refused.
    pub why: String,
    /// What the author can do about it.
    pub fix: String,
}

/// A place in a source text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
}

impl Problem {
    /// This problem, with every text bounded and free of control characters.
    pub(crate) fn tamed(self) -> Self {
        Self {
            at: self.at,
            what: tame(&self.what),
            why: tame(&self.why),
            fix: tame(&self.fix),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.at {
            write!(f, "line {}, column {}: ", at.line, at.column)?;
        }
        write!(f, "{}: {}; {}", self.what, self.why, self.fix)
    }
}

impl std::error::Error for Problem {}

impl Position {
    /// The place of a byte offset; an offset past the end means the end.
    pub(crate) fn of(source: &str, offset: u32) -> Self {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let before = source
            .char_indices()
            .take_while(|(start, _)| *start < offset)
            .map(|(_, character)| character);
        let (mut line, mut column) = (1_u32, 1_u32);
        for character in before {
            if character == '\n' {
                line = line.saturating_add(1);
                column = 1;
            } else {
                column = column.saturating_add(1);
            }
        }
        Self { line, column }
    }
}

/// The text cut to [`MAX_TEXT`] characters, with everything that could fool a
/// terminal (control characters, bidirectional overrides) made visible.
pub(crate) fn tame(text: &str) -> String {
    text.chars()
        .take(MAX_TEXT)
        .map(|character| {
            if misleads(character) {
                '\u{fffd}'
            } else {
                character
            }
        })
        .collect()
}

fn misleads(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}')
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_not_bytes() {
        let source = "ä\nöü x";
        let offset = u32::try_from(source.find('x').unwrap()).unwrap();
        assert_eq!(
            Position::of(source, offset),
            Position { line: 2, column: 4 }
        );
        assert_eq!(Position::of(source, 0), Position { line: 1, column: 1 });
        assert_eq!(Position::of(source, 999), Position { line: 2, column: 5 });
    }

    #[test]
    fn text_for_people_is_bounded_and_cannot_move_the_cursor() {
        let text = tame(&format!("\u{1b}[2J\u{202e}{}", "ä".repeat(9_999)));
        assert_eq!(text.chars().count(), MAX_TEXT);
        assert!(text.starts_with("\u{fffd}[2J\u{fffd}ä"), "{text}");
    }

    #[test]
    fn a_problem_reads_as_one_line() {
        let problem = Problem {
            at: Some(Position { line: 3, column: 7 }),
            what: "`enum`".to_owned(),
            why: "it makes code".to_owned(),
            fix: "use a union".to_owned(),
        };
        assert_eq!(
            problem.to_string(),
            "line 3, column 7: `enum`: it makes code; use a union"
        );
    }
}
