//! The place in a text a user wrote, and how it is shown.
//!
//! Only for text from policy, configuration, manifest and test files. Keeps
//! the one line that matters, never the file. Rendered as plain ASCII, so it
//! reads the same in a terminal, a pipe and a bug report.

use std::ops::Range;

use crate::sanitize::sanitize_line;
use crate::style::{Styling, Tone};
use crate::wrap::{columns, cut};

/// One marked place in a file: line, column and the text around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    file: String,
    line: usize,
    column: usize,
    length: usize,
    text: String,
    label: String,
}

impl Excerpt {
    /// Marks one character at a line and column, both counted from 1.
    #[must_use]
    pub fn at(file: impl Into<String>, source: &str, (line, column): (usize, usize)) -> Self {
        let text = source.lines().nth(line.saturating_sub(1));
        Self {
            file: file.into(),
            line: line.max(1),
            column: column.max(1),
            length: 1,
            text: text.unwrap_or_default().to_owned(),
            label: String::new(),
        }
    }

    /// As [`Excerpt::at`], for a caller that has only the line.
    #[must_use]
    pub fn on_line(file: impl Into<String>, text: &str, (line, column): (usize, usize)) -> Self {
        let mut excerpt = Self::at(file, text, (1, column));
        excerpt.line = line.max(1);
        excerpt
    }

    /// Marks a range of bytes, as parsers give it, within its first line.
    #[must_use]
    pub fn from_bytes(file: impl Into<String>, source: &str, range: Range<usize>) -> Self {
        let start = source.floor_char_boundary(range.start);
        let end = source.ceil_char_boundary(range.end.max(start));
        let before = source.get(..start).unwrap_or_default();
        let marked = source.get(start..end).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        let length = marked.lines().next().unwrap_or_default().chars().count();
        Self::at(file, source, (line, column)).length(length)
    }

    /// How many characters are marked; at least one.
    #[must_use]
    pub fn length(mut self, length: usize) -> Self {
        self.length = length.max(1);
        self
    }

    /// A few words beside the mark.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// What is said about the place; empty if nothing is.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.label
    }

    /// The file as it was named by the caller.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Line and column, both counted from 1, in characters.
    #[must_use]
    pub const fn position(&self) -> (usize, usize) {
        (self.line, self.column)
    }

    /// The lines that show the place, at most `width` columns each.
    pub(crate) fn render(&self, width: usize, styling: Styling) -> Vec<String> {
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        let bar = Tone::Dim.paint("|", styling);
        let room = width.saturating_sub(number.len() + 4).max(20);
        let window = self.window(room);
        let label = sanitize_line(&self.label);
        let marks = Tone::Bad.paint(&"^".repeat(window.marked), styling);
        let pad = " ".repeat(window.offset);
        let place = format!(
            "{}:{}:{}",
            sanitize_line(&self.file),
            self.line,
            self.column
        );
        let mut lines = vec![
            format!(" {gutter}{} {place}", Tone::Dim.paint("-->", styling)),
            format!(" {gutter} {bar}"),
            format!(" {number} {bar} {}", window.text)
                .trim_end()
                .to_owned(),
        ];
        let beside = window.offset + window.marked + 1 + columns(&label) <= room;
        if label.is_empty() || beside {
            lines.push(format!(" {gutter} {bar} {pad}{marks} {label}"));
        } else {
            lines.push(format!(" {gutter} {bar} {pad}{marks}"));
            lines.push(format!(" {gutter} {bar} {}", cut(&label, room)));
        }
        for line in &mut lines {
            line.truncate(line.trim_end().len());
        }
        lines
    }

    /// The part of the line around the mark that fits into `room` columns.
    fn window(&self, room: usize) -> Window {
        let shown = |c: char| match c {
            '\t' => "    ".to_owned(),
            c => sanitize_line(c.encode_utf8(&mut [0; 4])).into_owned(),
        };
        let first = self.column - 1;
        let total: usize = self.text.chars().map(|c| columns(&shown(c))).sum();
        let skip = if total <= room {
            0
        } else {
            // A third of the room before the mark keeps its surroundings visible.
            let before: Vec<usize> = (self.text.chars().take(first))
                .map(|c| columns(&shown(c)))
                .collect();
            let mut left = room / 3;
            let kept = before.iter().rev().take_while(|width| {
                left = left.saturating_sub(**width);
                left > 0
            });
            before.len() - kept.count()
        };
        let mut text = String::from(if skip > 0 { "…" } else { "" });
        let (mut offset, mut marked) = (columns(&text), 0);
        for (index, c) in self.text.chars().enumerate().skip(skip) {
            let piece = shown(c);
            let piece_width = columns(&piece);
            if columns(&text) + piece_width + 1 > room && total > room {
                text.push('…');
                break;
            }
            text.push_str(&piece);
            if index < first {
                offset += piece_width;
            } else if index < first + self.length {
                marked += piece_width;
            }
        }
        Window {
            text,
            offset,
            marked: marked.max(1),
        }
    }
}

struct Window {
    text: String,
    offset: usize,
    marked: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(excerpt: &Excerpt, width: usize) -> String {
        excerpt.render(width, Styling::Plain).join("\n")
    }

    #[test]
    fn bytes_become_line_and_column() {
        let source = "a = 1\nгод = 2\n";
        let at = source.find('2').unwrap();
        let excerpt = Excerpt::from_bytes("f", source, at..at + 1);
        assert_eq!(excerpt.position(), (2, 7));
        assert_eq!(
            Excerpt::from_bytes("f", source, 900..901).position(),
            (3, 1)
        );
        assert_eq!(
            Excerpt::from_bytes("f", source, 7..usize::MAX).position().0,
            2
        );
    }

    #[test]
    fn the_mark_is_under_its_text_with_tabs_and_wide_letters() {
        let excerpt = Excerpt::at("f.toml", "\t漢字 = bad", (1, 7))
            .length(3)
            .label("not a number");
        insta::assert_snapshot!(shown(&excerpt, 80), @r"
          --> f.toml:1:7
           |
         1 |     漢字 = bad
           |            ^^^ not a number
        ");
    }

    #[test]
    fn a_long_line_is_shown_around_the_mark() {
        let source = format!("key = \"{}\" oops{}", "x".repeat(300), "y".repeat(300));
        let at = source.find("oops").unwrap();
        let excerpt = Excerpt::from_bytes("f", &source, at..at + 4).label("here");
        let text = shown(&excerpt, 60);
        assert!(text.contains("oops"), "{text}");
        assert!(text.lines().all(|line| columns(line) <= 60), "{text}");
        let mark = text.lines().last().unwrap().find('^').unwrap();
        let line = text.lines().nth(2).unwrap();
        let column = columns(&line[..line.find("oops").unwrap()]);
        assert_eq!(mark, column);
    }

    #[test]
    fn what_takes_many_columns_does_not_push_the_mark_away() {
        let source = format!("{}bad{}", "\u{202e}".repeat(40), "y".repeat(200));
        let text = shown(&Excerpt::at("f", &source, (1, 41)).length(3), 60);
        let line = text.lines().nth(2).unwrap();
        let at = columns(&line[..line.find("bad").unwrap()]);
        assert_eq!(text.lines().last().unwrap().find("^^^"), Some(at), "{text}");
        let lone = Excerpt::on_line("f", "a = 1", (9, 5));
        assert_eq!(lone.position(), (9, 5));
        assert!(shown(&lone, 60).contains(" 9 | a = 1"));
    }

    proptest! {
        #[test]
        fn no_place_panics_and_nothing_escapes(
            source in ".*", line in 0usize..4, column in 0usize..200, length in 0usize..50,
        ) {
            let excerpt = Excerpt::at(source.clone(), &source, (line, column)).length(length);
            prop_assert!(!shown(&excerpt, 80).contains('\x1b'));
            let _ = Excerpt::from_bytes("f", &source, column..length);
        }
    }
}
