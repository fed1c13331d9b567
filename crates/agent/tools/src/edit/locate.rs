//! Finds a run of lines in a text, first exactly and then more and more loosely.
//!
//! Linear in the text however repetitive it is, because the text and the patch
//! may both come from somebody who wants it to take forever.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// How loosely two lines were compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    /// Character by character.
    Exact,
    /// Without the space at the end of lines.
    TrailingSpace,
    /// Without the space at both ends of lines.
    Indentation,
    /// The same, with typographic dashes, quotes and spaces as plain ones.
    Typography,
}

impl Tolerance {
    /// From the strictest to the loosest.
    pub const ALL: [Self; 4] = [
        Self::Exact,
        Self::TrailingSpace,
        Self::Indentation,
        Self::Typography,
    ];

    /// What of a line is compared.
    pub(crate) fn key(self, line: &str) -> Cow<'_, str> {
        match self {
            Self::Exact => Cow::Borrowed(line),
            Self::TrailingSpace => Cow::Borrowed(line.trim_end()),
            Self::Indentation => Cow::Borrowed(line.trim()),
            Self::Typography if line.is_ascii() => Cow::Borrowed(line.trim()),
            Self::Typography => {
                let plain: String = line.chars().map(plain).collect();
                Cow::Owned(plain.trim().to_owned())
            }
        }
    }
}

/// Where the wanted lines are, at the strictest tolerance that finds them.
///
/// Nothing if no tolerance does. The wanted lines must not be empty.
pub(crate) fn find(text: &[&str], wanted: &[&str]) -> Option<(Tolerance, Vec<usize>)> {
    Tolerance::ALL.into_iter().find_map(|tolerance| {
        let places = find_with(tolerance, text, wanted);
        (!places.is_empty()).then_some((tolerance, places))
    })
}

/// Where the wanted lines are at one tolerance.
fn find_with(tolerance: Tolerance, text: &[&str], wanted: &[&str]) -> Vec<usize> {
    if wanted.is_empty() || wanted.len() > text.len() {
        return Vec::new();
    }
    // Each different line gets a number, so that comparing lines costs nothing.
    let mut numbers: HashMap<Cow<'_, str>, usize> = HashMap::new();
    let mut needle = Vec::with_capacity(wanted.len());
    for line in wanted {
        let next = numbers.len();
        needle.push(*numbers.entry(tolerance.key(line)).or_insert(next));
    }
    let haystack = text
        .iter()
        .map(|line| numbers.get(&tolerance.key(line)).copied());
    search(haystack, &needle)
}

/// Knuth, Morris and Pratt's search: every place, also overlapping ones.
fn search(haystack: impl Iterator<Item = Option<usize>>, needle: &[usize]) -> Vec<usize> {
    let border = borders(needle);
    let fallback = |matched: usize| {
        let before = matched.checked_sub(1);
        before.and_then(|at| border.get(at)).copied().unwrap_or(0)
    };
    let mut places = Vec::new();
    let mut matched = 0;
    for (at, line) in haystack.enumerate() {
        while matched > 0 && (matched == needle.len() || needle.get(matched).copied() != line) {
            matched = fallback(matched);
        }
        if needle.get(matched).copied() == line {
            matched += 1;
        }
        if matched == needle.len() {
            places.push((at + 1).saturating_sub(matched));
        }
    }
    places
}

/// For each prefix, the longest proper prefix that is also its suffix.
fn borders(needle: &[usize]) -> Vec<usize> {
    let mut borders: Vec<usize> = Vec::with_capacity(needle.len());
    let mut length = 0;
    for (at, item) in needle.iter().enumerate() {
        if at > 0 {
            while length > 0 && needle.get(length) != Some(item) {
                let before = length.checked_sub(1);
                length = before.and_then(|at| borders.get(at)).copied().unwrap_or(0);
            }
            if needle.get(length) == Some(item) {
                length += 1;
            }
        }
        borders.push(length);
    }
    borders
}

/// The plain character that a typographic one stands for.
const fn plain(c: char) -> char {
    match c {
        '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' | '\u{ff0d}' => '-',
        '\u{2018}'..='\u{201b}' | '\u{2032}' | '\u{ff07}' => '\'',
        '\u{201c}'..='\u{201f}' | '\u{2033}' | '\u{ff02}' | '\u{ab}' | '\u{bb}' => '"',
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_strictest_tolerance_that_fits_is_taken() {
        let text = [
            "fn a() {",
            "    “x” – y",
            "}",
            "fn a() {",
            "\t\"x\" - y  ",
            "}",
        ];
        for (wanted, expected) in [
            (vec!["fn a() {"], Some((Tolerance::Exact, vec![0, 3]))),
            (
                vec!["\t\"x\" - y", "}"],
                Some((Tolerance::TrailingSpace, vec![4])),
            ),
            (vec!["\"x\" - y"], Some((Tolerance::Indentation, vec![4]))),
            (
                vec!["fn a() {", "\"x\" — y"],
                Some((Tolerance::Typography, vec![0, 3])),
            ),
            (vec!["fn b() {"], None),
            (vec!["}"; 9], None),
        ] {
            assert_eq!(find(&text, &wanted), expected, "{wanted:?}");
        }
    }

    #[test]
    fn repetition_costs_no_more_than_its_length() {
        let text = vec!["x"; 200_000];
        let mut wanted = vec!["x"; 100_000];
        assert_eq!(find_with(Tolerance::Exact, &text, &wanted).len(), 100_001);
        wanted.push("y");
        assert!(find(&text, &wanted).is_none());
    }

    proptest! {
        #[test]
        fn the_search_agrees_with_the_obvious_one(
            text in proptest::collection::vec("[ab]{0,2}", 0..30),
            wanted in proptest::collection::vec("[ab]{0,2}", 1..5),
        ) {
            let text: Vec<&str> = text.iter().map(String::as_str).collect();
            let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
            let windows = text.windows(wanted.len()).enumerate();
            let obvious: Vec<usize> = windows
                .filter(|(_, window)| *window == wanted.as_slice())
                .map(|(at, _)| at)
                .collect();
            prop_assert_eq!(find_with(Tolerance::Exact, &text, &wanted), obvious);
        }
    }
}
