//! Text as lines that remember how they ended.
//!
//! Putting the lines of a text together again gives the same text, byte for
//! byte, whatever mixture of endings it has.

/// How a line ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With a newline.
    Lf,
    /// With a carriage return and a newline.
    CrLf,
    /// Not at all: it is the last one.
    None,
}

/// One line without its ending, and the ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) text: &'a str,
    pub(crate) ending: Ending,
}

impl Ending {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Lf => "\n",
            Self::CrLf => "\r\n",
            Self::None => "",
        }
    }
}

/// The lines of a text.
pub(crate) fn split(text: &str) -> Vec<Line<'_>> {
    let lines = text.split_inclusive('\n');
    lines
        .map(|line| {
            if let Some(text) = line.strip_suffix("\r\n") {
                let ending = Ending::CrLf;
                Line { text, ending }
            } else if let Some(text) = line.strip_suffix('\n') {
                let ending = Ending::Lf;
                Line { text, ending }
            } else {
                let ending = Ending::None;
                Line { text: line, ending }
            }
        })
        .collect()
}

/// The text of these lines.
pub(crate) fn join(lines: &[Line<'_>]) -> String {
    let length = lines.iter().map(|line| line.text.len() + 2).sum();
    let mut text = String::with_capacity(length);
    for line in lines {
        text.push_str(line.text);
        text.push_str(line.ending.as_str());
    }
    text
}

/// The ending that most lines have; a newline where there is none to ask.
pub(crate) fn usual_ending(lines: &[Line<'_>]) -> Ending {
    let count = |ending| lines.iter().filter(|line| line.ending == ending).count();
    match count(Ending::CrLf) > count(Ending::Lf) {
        true => Ending::CrLf,
        false => Ending::Lf,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_majority_decides_the_usual_ending() {
        assert_eq!(usual_ending(&split("a\r\nb\r\nc\n")), Ending::CrLf);
        assert_eq!(usual_ending(&split("a\r\nb\n")), Ending::Lf);
        assert_eq!(usual_ending(&split("a")), Ending::Lf);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_between_lines_and_text(text in "[a \r\n]{0,40}") {
            prop_assert_eq!(join(&split(&text)), text);
        }
    }
}
