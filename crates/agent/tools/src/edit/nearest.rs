//! Where a text comes nearest to lines that it does not have.
//!
//! For error messages only: it never decides where something is changed. Every
//! line of the text that is equal to a wanted one, but for space, votes for the
//! place at which the wanted lines would then begin.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::locate::Tolerance;

/// How many places are named at most.
const PLACES: usize = 3;

/// How many lines of the text are looked at.
const LINES: usize = 100_000;

/// How often one wanted line may vote for each line of the text.
const VOTES: usize = 4;

/// A place that comes near.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Near {
    /// The line, counted from one.
    pub line: usize,
    /// How many of the wanted lines are there.
    pub alike: usize,
    /// How many were wanted.
    pub wanted: usize,
    /// What the text has there.
    pub text: String,
}

impl std::fmt::Display for Near {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            line,
            alike,
            wanted,
            text,
        } = self;
        write!(f, "line {line} ({alike} of {wanted} lines alike): `{text}`")
    }
}

/// The places that come nearest, best first.
pub(crate) fn nearest(text: &[&str], wanted: &[&str]) -> Vec<Near> {
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, line) in wanted.iter().enumerate() {
        let key = line.trim();
        if !key.is_empty() {
            let list = places.entry(key).or_default();
            if list.len() < VOTES {
                list.push(at);
            }
        }
    }
    let mut votes: HashMap<usize, usize> = HashMap::new();
    for (at, line) in text.iter().take(LINES).enumerate() {
        for offset in places.get(line.trim()).into_iter().flatten() {
            if let Some(start) = at.checked_sub(*offset) {
                *votes.entry(start).or_default() += 1;
            }
        }
    }
    if votes.is_empty() {
        return alike(text, wanted);
    }
    let mut ranked: Vec<(usize, usize)> = votes.into_iter().collect();
    ranked.sort_by_key(|(start, count)| (std::cmp::Reverse(*count), *start));
    let found = ranked.into_iter().take(PLACES);
    found
        .map(|(start, count)| near(text, wanted, start, count))
        .collect()
}

/// Where no line is equal: the line that shares the most words with one.
fn alike(text: &[&str], wanted: &[&str]) -> Vec<Near> {
    let longest = wanted.iter().max_by_key(|line| line.trim().len());
    let key = Tolerance::Typography.key(longest.copied().unwrap_or_default());
    let words: Vec<&str> = words(&key).take(32).collect();
    let score = |line: &str| words_shared(line, &words);
    let best = text.iter().take(LINES).enumerate();
    let best = best
        .map(|(at, line)| (score(line), at))
        .max_by_key(|(score, at)| (*score, std::cmp::Reverse(*at)));
    match best {
        // One shared word says nothing, unless there is only one.
        Some((score, at)) if score >= 2.min(words.len()) && score > 0 => {
            vec![near(text, wanted, at, 0)]
        }
        _ => Vec::new(),
    }
}

fn words_shared(line: &str, wanted: &[&str]) -> usize {
    let shared = words(line).take(64).filter(|word| wanted.contains(word));
    shared.count().min(wanted.len())
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let parts = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    parts.filter(|word| word.len() >= 3)
}

fn near(text: &[&str], wanted: &[&str], start: usize, alike: usize) -> Near {
    let shown = text.get(start).copied().unwrap_or_default().trim();
    Near {
        line: start + 1,
        alike: alike.min(wanted.len()),
        wanted: wanted.len(),
        text: shown.chars().take(80).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_with_the_most_equal_lines_comes_first() {
        let text = ["a", "b", "x", "c", "  a", "b", "c", "d"];
        let found = nearest(&text, &["a", "b", "c", "e"]);
        assert_eq!((found[0].line, found[0].alike), (5, 3));
        assert_eq!(found[0].to_string(), "line 5 (3 of 4 lines alike): `a`");
    }

    #[test]
    fn without_an_equal_line_shared_words_decide() {
        let text = ["let parsed = parse_config(path)?;", "return Ok(());"];
        let found = nearest(&text, &["let config = parse_config(path)"]);
        assert_eq!(found[0].line, 1);
        assert!(nearest(&text, &["entirely different"]).is_empty());
        assert!(nearest(&[], &["x"]).is_empty());
    }
}
