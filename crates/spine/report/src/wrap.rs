//! Wraps and cuts text by the columns it takes on a screen.
//!
//! Expects sanitised text. A word longer than the width is never broken, so
//! that a path or a command can still be copied from the output.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// How many columns a text takes.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

/// The text as lines of at most `width` columns, new lines kept.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        wrap_paragraph(paragraph, width, &mut lines);
    }
    if lines.is_empty() {
        lines.push(String::new());
    }
    lines
}

/// The text cut to `width` columns, with `…` where something is missing.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > width {
            break;
        }
        out.push(c);
    }
    // A few sequences are wider together than their characters are alone.
    while columns(&out) >= width && out.pop().is_some() {}
    if width > 0 {
        out.push('…');
    }
    out
}

fn wrap_paragraph(paragraph: &str, width: usize, lines: &mut Vec<String>) {
    let indent_end = paragraph.len() - paragraph.trim_start().len();
    let indent = paragraph.get(..indent_end).unwrap_or_default();
    let mut line = indent.to_owned();
    let mut used = columns(indent);
    let mut fresh = true;
    for word in paragraph.split_whitespace() {
        let needed = columns(word);
        if !fresh && used + 1 + needed > width {
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
            used = columns(indent);
            fresh = true;
        }
        if !fresh {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += needed;
        fresh = false;
    }
    lines.push(line);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_move_to_the_next_line_whole() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("/a/very/long/path x", 4), ["/a/very/long/path", "x"]);
        assert_eq!(wrap("a\n\n  b c", 3), ["a", "", "  b", "  c"]);
        assert_eq!(wrap("漢字 漢字", 5), ["漢字", "漢字"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn cutting_counts_columns_not_bytes() {
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("漢字漢字", 4), "漢…");
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abc", 0), "");
    }

    proptest! {
        #[test]
        fn no_word_is_lost_and_no_line_too_long(text in "[a-z漢 ]{0,200}", width in 4usize..40) {
            let lines = wrap(text.trim(), width);
            let words: Vec<_> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
            prop_assert_eq!(words, text.split_whitespace().collect::<Vec<_>>());
            for line in lines {
                prop_assert!(columns(&line) <= width || !line.contains(' '), "{}", line);
            }
        }

        #[test]
        fn a_cut_text_fits(text in ".*", width in 0usize..20) {
            let text = crate::sanitize_line(&text).into_owned();
            prop_assert!(columns(&cut(&text, width)) <= width);
        }
    }
}
