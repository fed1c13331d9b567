//! Text in tones, put together piece by piece.
//!
//! Every piece is made harmless when it is added, so what comes from a model or
//! a tool can be mixed with our own words and colours. Next: `footer`.

use unicode_width::UnicodeWidthChar as _;

use crate::sanitize::sanitize_for_terminal;
use crate::style::{Styling, Tone};
use crate::wrap::{columns, wrap};

/// A text whose pieces have tones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text {
    pieces: Vec<(Tone, String)>,
}

impl Text {
    /// Nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { pieces: Vec::new() }
    }

    /// Adds a piece; new lines and tabs in it stay.
    pub fn add(&mut self, tone: Tone, text: &str) -> &mut Self {
        if !text.is_empty() {
            let safe = sanitize_for_terminal(text).into_owned();
            self.pieces.push((tone, safe));
        }
        self
    }

    /// Adds ordinary text.
    pub fn plain(&mut self, text: &str) -> &mut Self {
        self.add(Tone::Plain, text)
    }

    /// Adds a text wrapped to `width`, each line after `indent` columns.
    pub fn paragraph(&mut self, tone: Tone, text: &str, (indent, width): (usize, usize)) {
        let room = width.saturating_sub(indent).max(20);
        for line in wrap(&sanitize_for_terminal(text), room) {
            self.plain(&" ".repeat(indent));
            self.add(tone, &line);
            self.plain("\n");
        }
    }

    /// Adds all of another text.
    pub fn append(&mut self, other: Self) -> &mut Self {
        self.pieces.extend(other.pieces);
        self
    }

    /// Whether there is nothing to show.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// How many columns its last line takes.
    #[must_use]
    pub fn columns(&self) -> usize {
        let whole = self.render(Styling::Plain);
        columns(whole.rsplit('\n').next().unwrap_or_default())
    }

    /// Its first line, in at most `width` columns.
    #[must_use]
    pub fn cut(&self, width: usize) -> Self {
        let mut cut = Self::new();
        let mut left = width;
        let whole = self.render(Styling::Plain);
        let first = whole.split('\n').next().unwrap_or_default();
        let is_all = first.len() == whole.len() && columns(first) <= width;
        if !is_all {
            // Room for the mark that something is missing.
            left = left.saturating_sub(1);
        }
        'pieces: for (tone, text) in &self.pieces {
            let mut kept = String::new();
            for c in text.chars() {
                let taken = c.width().unwrap_or(0);
                if c == '\n' || taken > left {
                    cut.add(*tone, &kept);
                    break 'pieces;
                }
                left -= taken;
                kept.push(c);
            }
            cut.add(*tone, &kept);
        }
        if !is_all && width > 0 {
            cut.plain("…");
        }
        cut
    }

    /// The text, with colour where there may be colour.
    #[must_use]
    pub fn render(&self, styling: Styling) -> String {
        let mut out = String::new();
        for (tone, text) in &self.pieces {
            for (index, line) in text.split('\n').enumerate() {
                if index > 0 {
                    out.push('\n');
                }
                out.push_str(&tone.paint(line, styling));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pieces_keep_their_tones_and_lose_their_escapes() {
        let mut text = Text::new();
        text.add(Tone::Good, "a\nb").plain("\x1b[2J");
        assert_eq!(text.render(Styling::Plain), "a\nb\\x1b[2J");
        assert_eq!(
            text.render(Styling::Ansi),
            "\x1b[32ma\x1b[0m\n\x1b[32mb\x1b[0m\\x1b[2J"
        );
        assert_eq!(text.columns(), 8);
    }

    #[test]
    fn a_cut_text_says_that_something_is_missing() {
        let mut text = Text::new();
        text.add(Tone::Dim, "abc").plain("漢字");
        assert_eq!(text.cut(7).render(Styling::Plain), "abc漢字");
        assert_eq!(text.cut(6).render(Styling::Plain), "abc漢…");
        assert_eq!(text.cut(0).render(Styling::Plain), "");
        text.plain("\nmore");
        assert_eq!(text.cut(80).render(Styling::Plain), "abc漢字…");
    }

    #[test]
    fn a_paragraph_is_indented_and_wrapped() {
        let mut text = Text::new();
        text.paragraph(Tone::Plain, "one two three four five six seven", (2, 24));
        assert_eq!(
            text.render(Styling::Plain),
            "  one two three four\n  five six seven\n"
        );
    }

    proptest! {
        #[test]
        fn a_cut_text_fits_on_one_line(pieces in prop::collection::vec(".*", 0..4), width in 0usize..40) {
            let mut text = Text::new();
            for piece in &pieces {
                text.plain(piece);
            }
            let cut = text.cut(width).render(Styling::Plain);
            prop_assert!(!cut.contains('\n'));
            let taken: usize = cut.chars().map(|c| c.width().unwrap_or(0)).sum();
            prop_assert!(taken <= width, "{:?}", cut);
        }
    }
}
