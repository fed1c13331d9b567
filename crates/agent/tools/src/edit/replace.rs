//! Exact replacement: the old text must be there once, or all are meant.

use serde::{Deserialize, Serialize};

use super::apply::shown;
use super::nearest::{Near, nearest};

/// How many places are looked for one by one.
const MAX_PLACES: usize = 100;

/// How many of the matches are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// The only one; several are an error.
    Only,
    /// Every one.
    All,
}

/// A text in which something was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// The new text.
    pub text: String,
    /// How many places were changed.
    pub count: usize,
    /// The first changed line, counted from one.
    pub line: usize,
}

/// Why nothing was replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceTextError {
    /// There is nothing to look for.
    #[error("the old text is empty; write the whole file instead, or name what to replace")]
    Empty,
    /// The new text is the old one.
    #[error("the old and the new text are the same")]
    Same,
    /// The old text is not there.
    #[error("the old text is not in the file{}{}", only_space(*but_for_space), shown(near))]
    NotFound {
        /// The line where it is if space at the ends of lines does not count.
        but_for_space: Option<usize>,
        /// Where the file comes nearest.
        near: Vec<Near>,
    },
    /// The old text is there more than once.
    #[error(
        "the old text is in the file {count} times (lines {}): make it longer, or replace all",
        listed(lines)
    )]
    Ambiguous {
        /// How often.
        count: usize,
        /// The first lines at which it is, counted from one.
        lines: Vec<usize>,
    },
}

/// Replaces a text by another one.
///
/// In a file whose lines end with carriage returns both are read as if their
/// own did, because models do not write them.
///
/// # Errors
/// The old text is not there, or there are several and one was meant.
pub fn replace(
    text: &str,
    old: &str,
    new: &str,
    which: Which,
) -> Result<Replaced, ReplaceTextError> {
    if old.is_empty() {
        return Err(ReplaceTextError::Empty);
    }
    if old == new {
        return Err(ReplaceTextError::Same);
    }
    if let Some(replaced) = replace_exactly(text, old, new, which)? {
        return Ok(replaced);
    }
    let has_returns = text.contains("\r\n") && !old.contains('\r') && !new.contains('\r');
    if has_returns && (old.contains('\n') || new.contains('\n')) {
        let (old, new) = (old.replace('\n', "\r\n"), new.replace('\n', "\r\n"));
        if let Some(replaced) = replace_exactly(text, &old, &new, which)? {
            return Ok(replaced);
        }
    }
    let lines: Vec<&str> = text.lines().collect();
    let wanted: Vec<&str> = old.lines().collect();
    let places = super::locate::find(&lines, &wanted);
    Err(ReplaceTextError::NotFound {
        but_for_space: places.and_then(|(_, places)| places.first().map(|at| at + 1)),
        near: nearest(&lines, &wanted),
    })
}

fn replace_exactly(
    text: &str,
    old: &str,
    new: &str,
    which: Which,
) -> Result<Option<Replaced>, ReplaceTextError> {
    // Overlapping places count: with them nobody can say which one was meant.
    let mut places = Vec::new();
    let mut from = 0;
    let step = old.chars().next().map_or(1, char::len_utf8);
    while let Some(found) = text.get(from..).and_then(|rest| rest.find(old)) {
        places.push(from + found);
        if places.len() >= MAX_PLACES {
            break;
        }
        from += found + step;
    }
    let line = |at: &usize| {
        1 + text
            .get(..*at)
            .map_or(0, |before| before.matches('\n').count())
    };
    let Some(first) = places.first().map(line) else {
        return Ok(None);
    };
    let count = text.matches(old).count();
    if which == Which::Only && places.len() > 1 {
        return Err(ReplaceTextError::Ambiguous {
            count: count.max(places.len()),
            lines: places.iter().take(10).map(line).collect(),
        });
    }
    // A single line of a CRLF file may get several: they end as their neighbours.
    let fits = match text.contains("\r\n") && !old.contains('\n') && !new.contains('\r') {
        true => new.replace('\n', "\r\n"),
        false => new.to_owned(),
    };
    Ok(Some(Replaced {
        text: text.replace(old, &fits),
        count,
        line: first,
    }))
}

fn only_space(line: Option<usize>) -> String {
    line.map(|line| format!(", but for space or typography it is at line {line}"))
        .unwrap_or_default()
}

fn listed(lines: &[usize]) -> String {
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    lines.join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_place_is_replaced_and_several_are_refused() {
        let text = "a = 1\nb = 1\nc = 2\n";
        let replaced = replace(text, "b = 1", "b = 3", Which::Only).unwrap();
        assert_eq!(replaced.text, "a = 1\nb = 3\nc = 2\n");
        assert_eq!((replaced.count, replaced.line), (1, 2));
        let error = replace(text, "= 1", "= 4", Which::Only).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the old text is in the file 2 times (lines 1, 2): make it longer, or replace all"
        );
        let all = replace(text, "= 1", "= 4", Which::All).unwrap();
        assert_eq!((all.text.as_str(), all.count), ("a = 4\nb = 4\nc = 2\n", 2));
    }

    #[test]
    fn overlapping_places_are_several() {
        let error = replace("aaa", "aa", "b", Which::Only).unwrap_err();
        assert!(matches!(
            error,
            ReplaceTextError::Ambiguous { count: 2, .. }
        ));
        assert_eq!(replace("ééé", "éé", "x", Which::All).unwrap().text, "xé");
    }

    #[test]
    fn what_is_not_there_is_explained() {
        let text = "fn main() {\n    let x = 1;\n}\n";
        let error = replace(text, "fn main() {\n  let x = 1;", "x", Which::Only).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the old text is not in the file, but for space or typography it is at line 1; nearest \
             is line 1 (2 of 2 lines alike): `fn main() {`"
        );
        assert_eq!(
            replace(text, "", "x", Which::Only),
            Err(ReplaceTextError::Empty)
        );
        assert_eq!(
            replace(text, "x", "x", Which::All),
            Err(ReplaceTextError::Same)
        );
    }

    #[test]
    fn carriage_returns_stay() {
        let text = "one\r\ntwo\r\nthree\r\n";
        let replaced = replace(text, "one\ntwo", "1\n2\n2b", Which::Only).unwrap();
        assert_eq!(replaced.text, "1\r\n2\r\n2b\r\nthree\r\n");
        let replaced = replace(text, "two", "2\n2b", Which::Only).unwrap();
        assert_eq!(replaced.text, "one\r\n2\r\n2b\r\nthree\r\n");
        assert_eq!(
            replace("one\ntwo", "two", "2", Which::Only).unwrap().text,
            "one\n2"
        );
    }

    proptest! {
        #[test]
        fn what_is_there_once_is_replaced_there(
            before in "[a-c\n]{0,20}", old in "X[a-c\n]{0,6}", new in "[d-f\n]{0,6}", after in "[a-c\n]{0,20}",
        ) {
            let text = format!("{before}{old}{after}");
            let replaced = replace(&text, &old, &new, Which::Only).unwrap();
            prop_assert_eq!(replaced.text, format!("{before}{new}{after}"));
        }

        #[test]
        fn any_texts_are_taken(text in ".{0,40}", old in ".{0,5}", new in ".{0,5}") {
            let _ = replace(&text, &old, &new, Which::Only);
            let _ = replace(&text, &old, &new, Which::All);
        }
    }
}
