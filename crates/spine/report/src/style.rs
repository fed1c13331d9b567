//! The five tones of our output, and whether to show them.
//!
//! A tone only underlines what the words already say: the same text without
//! colour must mean the same. The only other escape sequences that we produce
//! are those of `footer`.

/// Whether rendered text may hold colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Styling {
    /// No escape sequence at all.
    Plain,
    /// Colour and weight by ANSI sequences.
    Ansi,
}

/// What a piece of text is about; shown as a colour where there is colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// Ordinary text.
    #[default]
    Plain,
    /// Less important than what is around it.
    Dim,
    /// A heading or the main word of a line.
    Strong,
    /// Good: allowed, verified, passed.
    Good,
    /// Needs a look: reviewed, pending, unverified.
    Caution,
    /// Bad: denied, failed, broken.
    Bad,
}

impl Tone {
    /// The text in this tone. The text must already be sanitised.
    #[must_use]
    pub(crate) fn paint(self, text: &str, styling: Styling) -> String {
        let code = match (styling, self) {
            (Styling::Plain, _) | (_, Self::Plain) => return text.to_owned(),
            (Styling::Ansi, Self::Dim) => "2",
            (Styling::Ansi, Self::Strong) => "1",
            (Styling::Ansi, Self::Good) => "32",
            (Styling::Ansi, Self::Caution) => "33",
            (Styling::Ansi, Self::Bad) => "1;31",
        };
        if text.is_empty() {
            return String::new();
        }
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_styling_adds_nothing() {
        for tone in [Tone::Plain, Tone::Dim, Tone::Good, Tone::Bad] {
            assert_eq!(tone.paint("x", Styling::Plain), "x");
        }
        assert_eq!(Tone::Bad.paint("x", Styling::Ansi), "\x1b[1;31mx\x1b[0m");
        assert_eq!(Tone::Bad.paint("", Styling::Ansi), "");
    }
}
