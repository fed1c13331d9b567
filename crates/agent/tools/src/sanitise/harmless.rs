//! Text without anything that could move, hide or reorder what is read.
//!
//! Escape sequences of terminals go. Other control characters, text that no eye
//! sees and marks of direction are written out, so that what was hidden shows.

use std::fmt::Write as _;

/// A sequence longer than this is none, and is shown instead of swallowed.
const MAX_SEQUENCE: usize = 256;

/// The text without escape sequences and hidden characters.
#[must_use]
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = rest.get(c.len_utf8()..).unwrap_or_default();
        rest = match c {
            '\u{1b}' => after_sequence(after).unwrap_or_else(|| {
                out.push_str("\\x1b");
                after
            }),
            // What a terminal would overwrite is a line of its own here.
            '\r' => {
                if !after.starts_with('\n') {
                    out.push('\n');
                }
                after
            }
            '\n' | '\t' => {
                out.push(c);
                after
            }
            c if is_hidden(c) => {
                let _ = match c.is_ascii() {
                    true => write!(out, "\\x{:02x}", u32::from(c)),
                    false => write!(out, "\\u{{{:x}}}", u32::from(c)),
                };
                after
            }
            c => {
                out.push(c);
                after
            }
        };
    }
    out
}

/// What follows an escape sequence; nothing if it is none.
fn after_sequence(text: &str) -> Option<&str> {
    let mut characters = text.char_indices();
    match characters.next()?.1 {
        '[' => {
            let end = characters
                .take(MAX_SEQUENCE)
                .find(|(_, c)| !matches!(c, '\u{20}'..='\u{3f}'))?;
            let (at, last) = end;
            matches!(last, '\u{40}'..='\u{7e}').then(|| text.get(at + 1..))?
        }
        // Titles, links and the like end with a bell or with `ESC \`.
        ']' | 'P' | 'X' | '^' | '_' => {
            let body = characters.take(MAX_SEQUENCE);
            for (at, c) in body {
                match c {
                    '\u{7}' => return text.get(at + 1..),
                    '\u{1b}' => return text.get(at + 1..)?.strip_prefix('\\'),
                    '\n' => return None,
                    _ => {}
                }
            }
            None
        }
        '\u{20}'..='\u{2f}' => {
            let (at, last) = characters.next()?;
            last.is_ascii_graphic().then(|| text.get(at + 1..))?
        }
        '\u{30}'..='\u{7e}' => text.get(1..),
        _ => None,
    }
}

/// Whether a character is not seen, or changes how others are.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0d}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sequences_go_and_hidden_text_shows() {
        for (text, expected) in [
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}x", "x"),
            ("\u{1b}]8;;http://a\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{1b}(Bx\u{1b}7y\u{1b}=z", "xyz"),
            ("sk-\u{1b}[0mabc", "sk-abc"),
            ("50%\r100%\r\ndone\n", "50%\n100%\ndone\n"),
            ("a\u{8}b\0", "a\\x08b\\x00"),
            (
                "a\u{202e}b\u{200b}\u{e0041}",
                "a\\u{202e}b\\u{200b}\\u{e0041}",
            ),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{1b}]never ends", "\\x1b]never ends"),
            ("\u{1b}", "\\x1b"),
            ("\u{1b}[", "\\x1b["),
            ("grün 日本\t👩\u{200d}🔧", "grün 日本\t👩\u{200d}🔧"),
        ] {
            assert_eq!(harmless(text), expected, "{text:?}");
        }
        let long = format!("\u{1b}]{}\u{7}", "x".repeat(1_000));
        assert!(harmless(&long).contains("xxx"), "nothing long is swallowed");
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_left_and_once_is_enough(text in "(\\PC|[\u{1b}\\[\\]\\\\a;0-9\r\n\u{7}\u{9b}\u{202e}]){0,60}") {
            let once = harmless(&text);
            prop_assert!(!once.chars().any(|c| is_hidden(c) && c != '\n' && c != '\t'));
            prop_assert_eq!(harmless(&once), once);
        }
    }
}
