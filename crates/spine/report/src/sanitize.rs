//! Makes text from outside harmless for a terminal.
//!
//! A file name, a model's answer or a plugin's error can hold escape sequences
//! that set the clipboard (OSC 52), the title, a false link (OSC 8) or the
//! order of letters (bidi overrides). All of them become visible text here.
//! Never used to hide secrets: that is `fluffy-secret`'s `Redactor`.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text with every control and invisible character made visible.
///
/// New lines and tabs stay, `\r\n` becomes a new line, everything else that a
/// terminal could act on is written out, as in `\x1b` or `\u{202e}`.
#[must_use]
pub fn sanitize_for_terminal(text: &str) -> Cow<'_, str> {
    clean(text, |c| c == '\n' || c == '\t')
}

/// As [`sanitize_for_terminal`], but the result is always a single line.
#[must_use]
pub fn sanitize_line(text: &str) -> Cow<'_, str> {
    clean(text, |_| false)
}

/// JSON on one line, safe to show: what a terminal acts on is `\u` escaped.
pub(crate) fn json_line(value: &serde_json::Value) -> String {
    let text = value.to_string();
    if !text.contains(is_unsafe) {
        return text;
    }
    // Such characters occur only inside JSON strings, where an escape means
    // the same; above U+FFFF JSON wants a pair of escapes.
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

fn clean(text: &str, keep: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(|c| is_unsafe(c) && !keep(c)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if !is_unsafe(c) || keep(c) {
            safe.push(c);
        } else if c == '\r' && keep('\n') && chars.peek() == Some(&'\n') {
            // The new line that follows says it all.
        } else {
            push_visible(&mut safe, c);
        }
    }
    Cow::Owned(safe)
}

fn push_visible(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if u32::from(c) < 0x100 => {
            let _ = write!(out, "\\x{:02x}", u32::from(c));
        }
        c => {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
    }
}

/// Characters that a terminal obeys, or that people cannot see.
fn is_unsafe(c: char) -> bool {
    matches!(c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        // Soft hyphen, Arabic letter mark, zero-width space, direction marks.
        | '\u{ad}' | '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
        // Line separators, bidi embeddings, overrides and isolates.
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        // Byte order mark, annotations, tag characters.
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_attacks_become_text() {
        for (attack, shown) in [
            ("\x1b]52;c;ZWNobw==\x07", r"\x1b]52;c;ZWNobw==\x07"),
            ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
            (
                "\x1b]8;;http://evil\x1b\\ok\x1b]8;;\x1b\\",
                r"\x1b]8;;http://evil\x1b\ok\x1b]8;;\x1b\",
            ),
            ("\x1b[2J\x1b[1;1H", r"\x1b[2J\x1b[1;1H"),
            ("\u{9b}31m", r"\x9b31m"),
            ("a\0b", r"a\x00b"),
            ("\u{202e}txt.exe\u{2066}", r"\u{202e}txt.exe\u{2066}"),
            ("done\rerror", r"done\rerror"),
            ("\u{8}\u{8}\u{7f}", r"\x08\x08\x7f"),
            ("\u{e0041}", r"\u{e0041}"),
        ] {
            assert_eq!(sanitize_for_terminal(attack), shown);
        }
    }

    #[test]
    fn ordinary_text_is_not_touched_nor_copied() {
        let text = "größe = 7\t# 漢字 👩‍👧 e\u{301}\n";
        assert!(matches!(sanitize_for_terminal(text), Cow::Borrowed(t) if t == text));
    }

    #[test]
    fn one_line_stays_one_line() {
        assert_eq!(sanitize_line("a\nerror: b\tc"), r"a\nerror: b\tc");
        assert_eq!(sanitize_for_terminal("a\r\nb"), "a\nb");
        assert_eq!(sanitize_line("a\r\nb"), r"a\r\nb");
    }

    proptest! {
        #[test]
        fn nothing_unsafe_survives(text in "\\PC*|.*|[\\x00-\\u{ff}]*") {
            let safe = sanitize_for_terminal(&text);
            prop_assert!(!safe.contains(|c| is_unsafe(c) && c != '\n' && c != '\t'));
            let line = sanitize_line(&text);
            prop_assert!(!line.contains(is_unsafe));
            prop_assert_eq!(sanitize_line(&line), line.as_ref());
        }

        #[test]
        fn safe_json_means_the_same(text in "[\\x00-\\u{ff}\\u{2028}\\u{e0041}]*") {
            let value = serde_json::json!({ "text": text });
            let line = json_line(&value);
            prop_assert!(!line.contains(is_unsafe));
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
        }
    }
}
