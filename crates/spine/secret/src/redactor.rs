//! Takes secrets out of text: known values, known shapes, a policy's patterns.
//!
//! All matches are found in the original text, merged where they touch, and
//! replaced by one [`MARK`] each; then the result is searched again, because a
//! replacement can uncover a new match beside it. Time grows linearly with the
//! text for our own patterns. Redacting twice changes nothing. An encoded secret (base64, reversed)
//! is not found: the sandbox keeps secrets away, this keeps slips out.

use std::fmt;
use std::ops::Range;

use regex::{Regex, RegexBuilder};

use crate::secret::SecretString;
use crate::shapes::{self, Also};

/// What stands in the place of a secret.
pub const MARK: &str = "⟦redacted⟧";

/// Shorter values would tear ordinary text apart.
pub const MIN_SECRET: usize = 6;

/// How many values can be registered.
pub const MAX_SECRETS: usize = 256;

/// How many patterns a policy can bring, and how long each may be.
pub const MAX_PATTERNS: usize = 64;
const MAX_PATTERN_LENGTH: usize = 1024;

/// The memory one pattern may compile to.
const MAX_PATTERN_SIZE: usize = 1 << 20;

/// A text that needs more searches than this is replaced as a whole.
const MAX_PASSES: usize = 8;

/// Why a value or a pattern was not accepted. Never shows the value.
#[derive(Debug, thiserror::Error)]
pub enum RedactError {
    /// The value is too short to be told from ordinary text.
    #[error("a secret to redact must have at least {MIN_SECRET} bytes")]
    TooShort,
    /// The value holds the mark's own brackets or is a part of the mark.
    #[error("the secret cannot be told from the mark `{MARK}`")]
    LikeTheMark,
    /// There are too many values.
    #[error("more than {MAX_SECRETS} secrets to redact")]
    TooManySecrets,
    /// There are too many patterns.
    #[error("more than {MAX_PATTERNS} patterns to redact")]
    TooManyPatterns,
    /// The pattern is longer than allowed.
    #[error("pattern {number} is longer than {MAX_PATTERN_LENGTH} bytes")]
    PatternTooLong {
        /// Which pattern, from 1.
        number: usize,
    },
    /// The pattern is not a regular expression, or too costly.
    #[error("`{pattern}` is not a usable pattern")]
    Pattern {
        /// The pattern as written.
        pattern: String,
        /// What is wrong with it.
        #[source]
        source: Box<regex::Error>,
    },
    /// The pattern matches the empty text, so it would match everywhere.
    #[error("`{pattern}` matches the empty text")]
    PatternMatchesNothing {
        /// The pattern as written.
        pattern: String,
    },
}

/// Text without secrets, and how many were taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redacted {
    /// The text.
    pub text: String,
    /// How many places were replaced.
    pub count: usize,
}

/// Replaces secrets in text.
pub struct Redactor {
    patterns: Vec<(Regex, Also)>,
    secrets: Vec<SecretString>,
}

impl Redactor {
    /// Knows the shapes of [`shapes`] and a policy's own patterns.
    ///
    /// # Errors
    /// A pattern is too long, wrong, too costly or matches the empty text.
    pub fn new(policy_patterns: &[String]) -> Result<Self, RedactError> {
        if policy_patterns.len() > MAX_PATTERNS {
            return Err(RedactError::TooManyPatterns);
        }
        let mut patterns = shapes::compile().map_err(|source| RedactError::Pattern {
            pattern: "built in".to_owned(),
            source: Box::new(source),
        })?;
        for (index, pattern) in policy_patterns.iter().enumerate() {
            if pattern.len() > MAX_PATTERN_LENGTH {
                let number = index + 1;
                return Err(RedactError::PatternTooLong { number });
            }
            patterns.push((compile(pattern)?, Also::Nothing));
        }
        Ok(Self {
            patterns,
            secrets: Vec::new(),
        })
    }

    /// Knows no shape: takes out what is registered and nothing else.
    #[must_use]
    pub const fn of_values() -> Self {
        Self {
            patterns: Vec::new(),
            secrets: Vec::new(),
        }
    }

    /// Whether a registered value is in this text.
    #[must_use]
    pub fn finds_value(&self, text: &str) -> bool {
        let mut secrets = self.secrets.iter();
        secrets.any(|secret| text.contains(secret.expose().as_str()))
    }

    /// From now on this very value is taken out, too.
    ///
    /// # Errors
    /// The value is too short, looks like the mark, or is one too many.
    pub fn register(&mut self, secret: SecretString) -> Result<(), RedactError> {
        let value = secret.expose();
        if value.len() < MIN_SECRET {
            return Err(RedactError::TooShort);
        }
        // Such a value could reappear where a mark meets the text beside it.
        if value.contains(['⟦', '⟧']) || MARK.contains(value.as_str()) {
            return Err(RedactError::LikeTheMark);
        }
        if self.secrets.len() >= MAX_SECRETS {
            return Err(RedactError::TooManySecrets);
        }
        self.secrets.push(secret);
        Ok(())
    }

    /// The text without any secret we know of.
    #[must_use]
    pub fn redact(&self, text: &str) -> Redacted {
        let mut text = text.to_owned();
        let mut count = 0;
        for _ in 0..MAX_PASSES {
            let found = self.find(&text);
            if found.is_empty() {
                return Redacted { text, count };
            }
            count += found.len();
            text = replace(&text, &found);
        }
        // Fail closed: patterns that feed each other end with nothing shown.
        if !self.find(&text).is_empty() {
            MARK.clone_into(&mut text);
        }
        Redacted { text, count }
    }

    /// The text without secrets, cut to `limit` characters for a summary.
    ///
    /// Redacted first and cut after, so that no half of a secret is left.
    #[must_use]
    pub fn summary(&self, text: &str, limit: usize) -> Redacted {
        let mut redacted = self.redact(text);
        if let Some((cut, _)) = redacted.text.char_indices().nth(limit) {
            let keep = redacted.text.char_indices().nth(limit.saturating_sub(1));
            redacted.text.truncate(keep.map_or(cut, |(at, _)| at));
            if limit > 0 {
                redacted.text.push('…');
            }
        }
        redacted
    }

    /// All places to replace: in order, apart, and none that is a mark already.
    fn find(&self, text: &str) -> Vec<Range<usize>> {
        let marks: Vec<Range<usize>> = occurrences(text, MARK).collect();
        let mut found: Vec<Range<usize>> = Vec::new();
        for secret in &self.secrets {
            found.extend(occurrences(text, secret.expose()));
        }
        for (pattern, also) in &self.patterns {
            found.extend(matches(pattern, *also, text));
        }
        // What lies inside a mark was dealt with before.
        found.retain(|range| !range.is_empty() && !is_inside(range, &marks));
        merge(found, marks)
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor")
            .field("patterns", &self.patterns.len())
            .field("secrets", &self.secrets.len())
            .finish()
    }
}

fn compile(pattern: &str) -> Result<Regex, RedactError> {
    let regex = RegexBuilder::new(pattern)
        .size_limit(MAX_PATTERN_SIZE)
        .build()
        .map_err(|source| RedactError::Pattern {
            pattern: pattern.to_owned(),
            source: Box::new(source),
        })?;
    if regex.is_match("") {
        let pattern = pattern.to_owned();
        return Err(RedactError::PatternMatchesNothing { pattern });
    }
    Ok(regex)
}

/// Where a pattern matches: its group `secret`, or all of it.
fn matches(pattern: &Regex, also: Also, text: &str) -> Vec<Range<usize>> {
    // Groups cost more to find, so they are looked for only where there is one.
    let matches: Vec<regex::Match<'_>> = match pattern.captures_len() {
        1 => pattern.find_iter(text).collect(),
        _ => (pattern.captures_iter(text))
            .filter_map(|captures| captures.name("secret").or_else(|| captures.get(0)))
            .collect(),
    };
    let secrets = (matches.iter()).filter(|found| also.holds(found.as_str()));
    secrets.map(regex::Match::range).collect()
}

fn occurrences(text: &str, value: &str) -> impl Iterator<Item = Range<usize>> {
    let matches = text.match_indices(value);
    matches.map(|(at, found)| at..at + found.len())
}

/// Whether one of these ordered, separate ranges holds all of `range`.
fn is_inside(range: &Range<usize>, marks: &[Range<usize>]) -> bool {
    let after = marks.partition_point(|mark| mark.start <= range.start);
    let mark = after.checked_sub(1).and_then(|index| marks.get(index));
    mark.is_some_and(|mark| range.end <= mark.end)
}

/// The places found, in order; what overlaps or touches is one, marks too.
fn merge(found: Vec<Range<usize>>, marks: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let new = found.into_iter().map(|range| (range, true));
    let old = marks.into_iter().map(|range| (range, false));
    let mut ranges: Vec<(Range<usize>, bool)> = new.chain(old).collect();
    ranges.sort_by_key(|(range, _)| (range.start, range.end));
    let mut merged: Vec<(Range<usize>, bool)> = Vec::with_capacity(ranges.len());
    for (range, is_new) in ranges {
        match merged.last_mut() {
            Some((last, last_is_new)) if range.start <= last.end => {
                last.end = last.end.max(range.end);
                *last_is_new |= is_new;
            }
            _ => merged.push((range, is_new)),
        }
    }
    let changed = merged.into_iter().filter(|(_, is_new)| *is_new);
    changed.map(|(range, _)| range).collect()
}

fn replace(text: &str, found: &[Range<usize>]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for range in found {
        out.push_str(text.get(done..range.start).unwrap_or_default());
        out.push_str(MARK);
        done = range.end;
    }
    out.push_str(text.get(done..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests;
