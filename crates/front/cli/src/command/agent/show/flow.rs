//! Streamed prose, wrapped by words as it arrives.
//!
//! A word is held back until it is whole, so that no line has to be taken back.
//! Code between fences keeps its own lines. Pure; knows nothing of terminals.

use unicode_width::UnicodeWidthChar as _;

/// Prose on its way to the screen.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Lines are at most this wide; none leaves them as they are.
    width: Option<usize>,
    /// Where the next letter goes.
    column: usize,
    /// The word that is not whole yet.
    word: String,
    /// The spaces before it.
    gap: usize,
    /// The first letters of the line as it was sent.
    beginning: String,
    fenced: Fenced,
}

/// Whether the text is code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Fenced {
    /// Prose.
    #[default]
    No,
    /// Between two fences.
    Yes,
}

/// What a line of a fence begins with.
const FENCE: &str = "```";

impl Flow {
    /// Prose in lines of at most this width, if there is a limit.
    pub(crate) fn new(width: Option<usize>) -> Self {
        Self {
            width,
            ..Self::default()
        }
    }

    /// Another width from here on.
    pub(crate) const fn set_width(&mut self, width: Option<usize>) {
        self.width = width;
    }

    /// What can be shown now that this has arrived.
    pub(crate) fn take(&mut self, piece: &str) -> String {
        let mut out = String::new();
        for c in piece.chars() {
            match c {
                '\n' => {
                    self.end_word(&mut out);
                    self.end_line(&mut out);
                }
                ' ' | '\t' => {
                    self.end_word(&mut out);
                    self.gap += if c == '\t' { 4 } else { 1 };
                    self.began(' ');
                }
                c => {
                    self.word.push(c);
                    self.began(c);
                }
            }
        }
        if self.width.is_none() {
            // Nothing is ever wrapped, so nothing has to wait.
            self.end_word(&mut out);
            out.push_str(&" ".repeat(std::mem::take(&mut self.gap)));
        }
        out
    }

    /// The rest of it, up to the beginning of a new line.
    pub(crate) fn end(&mut self) -> String {
        let mut out = String::new();
        self.end_word(&mut out);
        if self.column > 0 || self.gap > 0 {
            out.push('\n');
        }
        self.column = 0;
        self.gap = 0;
        self.beginning.clear();
        self.fenced = Fenced::No;
        out
    }

    fn began(&mut self, c: char) {
        if self.beginning.len() < FENCE.len() {
            self.beginning.push(c);
        }
    }

    fn end_word(&mut self, out: &mut String) {
        let word = std::mem::take(&mut self.word);
        if word.is_empty() {
            return;
        }
        let taken: usize = word.chars().map(|c| c.width().unwrap_or(0)).sum();
        let is_prose = self.fenced == Fenced::No;
        let limit = self.width.filter(|_| is_prose);
        let is_over = limit.is_some_and(|limit| self.column + self.gap + taken > limit);
        if is_over && self.column > 0 {
            out.push('\n');
            self.column = 0;
        } else {
            out.push_str(&" ".repeat(self.gap));
            self.column += self.gap;
        }
        self.gap = 0;
        self.column += taken;
        out.push_str(&word);
    }

    fn end_line(&mut self, out: &mut String) {
        if self.beginning == FENCE {
            self.fenced = match self.fenced {
                Fenced::No => Fenced::Yes,
                Fenced::Yes => Fenced::No,
            };
        }
        self.beginning.clear();
        self.column = 0;
        self.gap = 0;
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flow(width: Option<usize>, pieces: &[&str]) -> String {
        let mut flow = Flow::new(width);
        let mut out: String = pieces.iter().map(|piece| flow.take(piece)).collect();
        out.push_str(&flow.end());
        out
    }

    #[test]
    fn words_arrive_in_pieces_and_move_whole() {
        assert_eq!(
            flow(
                Some(12),
                &["I wi", "ll look at ", "the", " parser\n\nfirst"]
            ),
            "I will look\nat the\nparser\n\nfirst\n"
        );
    }

    #[test]
    fn code_keeps_its_lines_and_its_indentation() {
        let code = "see:\n```rust\nfn main() { println!(\"a b c d e\"); }\n    x\n```\nthat is all of it\n";
        assert_eq!(
            flow(Some(12), &[code]),
            "see:\n```rust\nfn main() { println!(\"a b c d e\"); }\n    x\n```\nthat is all\nof it\n"
        );
    }

    #[test]
    fn a_pipe_gets_every_letter_at_once() {
        let mut flow = Flow::new(None);
        assert_eq!(flow.take("a lo"), "a lo");
        assert_eq!(flow.take("ng "), "ng ");
        assert_eq!(flow.end(), "\n");
    }

    proptest! {
        #[test]
        fn no_word_is_lost_however_it_is_cut(
            pieces in prop::collection::vec("[a-z漢` \n]{0,20}", 0..10), width in 4usize..40,
        ) {
            let whole = pieces.concat();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let out = flow(Some(width), &pieces);
            let words: Vec<&str> = out.split_whitespace().collect();
            prop_assert_eq!(words, whole.split_whitespace().collect::<Vec<_>>());
            prop_assert_eq!(&out, &flow(Some(width), &[&whole]));
        }
    }
}
