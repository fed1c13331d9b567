//! Where the hunks of a patch land, and the text they make.
//!
//! All places are found in the text as it was; only then is the new one put
//! together. A hunk lands where its lines are, at the strictest tolerance, after
//! the hunk before it. If that is several places, an anchor, a line number or
//! the end of the file must say which; else it is refused.

use serde::{Deserialize, Serialize};

use super::lines::{Ending, Line, join, split, usual_ending};
use super::locate::{Tolerance, find};
use super::nearest::{Near, nearest};
use super::patch::{Hunk, HunkLine, Sign};

/// The most lines that are compared: those of the file for each hunk.
const MAX_COMPARED: usize = 50_000_000;

/// A text that hunks were applied to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The new text.
    pub text: String,
    /// Where each hunk landed.
    pub landed: Vec<Landed>,
}

/// Where a hunk landed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landed {
    /// The first line of the old text it speaks of, counted from one.
    pub line: usize,
    /// How loosely it had to be compared.
    pub tolerance: Tolerance,
}

/// Why a hunk does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyHunksError {
    /// The file is too long for so many hunks.
    #[error("{hunks} hunks are too many for a file of {lines} lines: write it as a whole")]
    TooMuch {
        /// How many hunks.
        hunks: usize,
        /// How many lines.
        lines: usize,
    },
    /// The lines that should be there are not.
    #[error("hunk {hunk}: its lines are not in the file{}", shown(near))]
    NotFound {
        /// Which hunk, counted from one.
        hunk: usize,
        /// Where the file comes nearest.
        near: Vec<Near>,
    },
    /// The lines are there, but before the hunk above.
    #[error(
        "hunk {hunk}: its lines are at line {line}, before the hunk above: order them as in the file"
    )]
    OutOfOrder {
        /// Which hunk, counted from one.
        hunk: usize,
        /// Where it would fit, counted from one.
        line: usize,
    },
    /// The lines are there more than once.
    #[error("hunk {hunk}: its lines are at {} places (lines {}): add more lines around it, or a line `@@ ` with one that stands above it", lines.len(), listed(lines))]
    Ambiguous {
        /// Which hunk, counted from one.
        hunk: usize,
        /// Where it would fit, counted from one.
        lines: Vec<usize>,
    },
    /// The line after `@@` is not there.
    #[error(
        "hunk {hunk}: there is no line `{anchor}` below the hunk above{}",
        shown(near)
    )]
    NoAnchor {
        /// Which hunk, counted from one.
        hunk: usize,
        /// The line.
        anchor: String,
        /// Where the file comes nearest.
        near: Vec<Near>,
    },
}

/// Applies hunks to a text.
///
/// # Errors
/// A hunk fits nowhere, or in more than one place.
pub fn apply(text: &str, hunks: &[Hunk]) -> Result<Applied, ApplyHunksError> {
    let old = split(text);
    if hunks.len().saturating_mul(old.len()) > MAX_COMPARED {
        return Err(ApplyHunksError::TooMuch {
            hunks: hunks.len(),
            lines: old.len(),
        });
    }
    let plain: Vec<&str> = old.iter().map(|line| line.text).collect();
    let mut landed = Vec::with_capacity(hunks.len());
    let mut new: Vec<Line<'_>> = Vec::with_capacity(old.len());
    let mut done = 0;
    let usual = usual_ending(&old);
    for (index, hunk) in hunks.iter().enumerate() {
        let place = locate(&plain, hunk, done, index + 1)?;
        new.extend(old.get(done..place.at).unwrap_or_default());
        put(&mut new, &old, hunk, &place, usual);
        done = place.at + place.length;
        landed.push(Landed {
            line: place.at + 1,
            tolerance: place.tolerance,
        });
    }
    new.extend(old.get(done..).unwrap_or_default());
    end_lines(&mut new, &old, hunks, usual);
    Ok(Applied {
        text: join(&new),
        landed,
    })
}

/// Where a hunk lands, as indices of lines.
struct Place {
    at: usize,
    length: usize,
    tolerance: Tolerance,
    /// The hunk's lines without what was left out to make it fit.
    used: usize,
}

fn locate(
    text: &[&str],
    hunk: &Hunk,
    done: usize,
    number: usize,
) -> Result<Place, ApplyHunksError> {
    let from = after_anchors(text, hunk, done, number)?;
    let old = hunk.lines.iter().filter(|line| line.sign != Sign::Add);
    let old: Vec<&str> = old.map(|line| HunkText::of(line).text).collect();
    if old.is_empty() {
        return insertion(text, hunk, from, done, number);
    }
    let mut used = hunk.lines.len();
    let mut length = old.len();
    let mut found = search(text, &old, from);
    // An empty line at the end of a hunk is often only the space before the next.
    if let (None, Some((last, rest))) = (&found, old.split_last())
        && last.trim().is_empty()
        && !rest.is_empty()
        && hunk
            .lines
            .last()
            .is_some_and(|line| line.sign == Sign::Keep)
    {
        found = search(text, rest, from);
        (used, length) = (used - 1, length - 1);
    }
    let Some((tolerance, places)) = found else {
        return Err(not_found(text, &old, number));
    };
    let at = choose(&places, text, hunk, length).ok_or_else(|| ApplyHunksError::Ambiguous {
        hunk: number,
        lines: places.iter().take(10).map(|at| at + 1).collect(),
    })?;
    Ok(Place {
        at,
        length,
        tolerance,
        used,
    })
}

fn search(text: &[&str], wanted: &[&str], from: usize) -> Option<(Tolerance, Vec<usize>)> {
    let (tolerance, mut places) = find(text.get(from..)?, wanted)?;
    for place in &mut places {
        *place += from;
    }
    Some((tolerance, places))
}

fn not_found(text: &[&str], wanted: &[&str], hunk: usize) -> ApplyHunksError {
    match find(text, wanted) {
        Some((_, places)) => ApplyHunksError::OutOfOrder {
            hunk,
            line: places.first().map_or(1, |at| at + 1),
        },
        None => ApplyHunksError::NotFound {
            hunk,
            near: nearest(text, wanted),
        },
    }
}

/// The one of these places that is meant; nothing if nothing says which.
fn choose(places: &[usize], text: &[&str], hunk: &Hunk, length: usize) -> Option<usize> {
    if hunk.at_end {
        let last = places.last().copied()?;
        return (last + length == text.len() || places.len() == 1).then_some(last);
    }
    if let [only] = places {
        return Some(*only);
    }
    if let Some(line) = hunk.line {
        let hint = line.saturating_sub(1);
        let near = places.iter().map(|at| (at.abs_diff(hint), *at));
        let (distance, at) = near.min()?;
        let tied = places.iter().filter(|at| at.abs_diff(hint) == distance);
        return (tied.count() == 1).then_some(at);
    }
    // Below an anchor the first one is meant.
    (!hunk.anchors.is_empty()).then(|| places.first().copied())?
}

/// The line from which a hunk is looked for.
fn after_anchors(
    text: &[&str],
    hunk: &Hunk,
    done: usize,
    number: usize,
) -> Result<usize, ApplyHunksError> {
    let mut from = done;
    for (index, anchor) in hunk.anchors.iter().enumerate() {
        // The next anchor is below this one; the hunk may repeat the last.
        let start = if index == 0 { from } else { from + 1 };
        let found = search(text, &[anchor.as_str()], start);
        from = found
            .and_then(|(_, places)| places.first().copied())
            .ok_or_else(|| ApplyHunksError::NoAnchor {
                hunk: number,
                anchor: anchor.chars().take(80).collect(),
                near: nearest(text, &[anchor.as_str()]),
            })?;
    }
    Ok(from)
}

/// A hunk that only adds: after its anchor, at its line, or at the end.
fn insertion(
    text: &[&str],
    hunk: &Hunk,
    from: usize,
    done: usize,
    number: usize,
) -> Result<Place, ApplyHunksError> {
    let at = match hunk.line {
        _ if hunk.at_end => text.len(),
        _ if !hunk.anchors.is_empty() => from + 1,
        Some(line) => line.saturating_sub(1),
        None => text.len(),
    };
    if at < done || at > text.len() {
        return Err(ApplyHunksError::NotFound {
            hunk: number,
            near: Vec::new(),
        });
    }
    Ok(Place {
        at,
        length: 0,
        tolerance: Tolerance::Exact,
        used: hunk.lines.len(),
    })
}

/// Adds what a hunk makes of the lines it speaks of.
fn put<'a>(
    new: &mut Vec<Line<'a>>,
    old: &[Line<'a>],
    hunk: &'a Hunk,
    place: &Place,
    usual: Ending,
) {
    let is_explicit = is_explicit(hunk);
    let mut at = place.at;
    for line in hunk.lines.iter().take(place.used) {
        let line = HunkText::of(line);
        match line.sign {
            Sign::Keep => {
                new.extend(old.get(at));
                at += 1;
            }
            Sign::Remove => at += 1,
            Sign::Add => {
                let beside = old.get(at.min(place.at + place.length.saturating_sub(1)));
                let ending = match (is_explicit, beside.map(|line| line.ending)) {
                    (true, _) => line.ending,
                    (false, Some(Ending::None) | None) => usual,
                    (false, Some(ending)) => ending,
                };
                new.push(Line {
                    text: line.text,
                    ending,
                });
            }
        }
    }
}

/// Whether a hunk says itself how its lines end.
fn is_explicit(hunk: &Hunk) -> bool {
    let says = |line: &HunkLine| line.unterminated || line.text.ends_with('\r');
    hunk.lines.iter().any(says)
}

/// Only the last line may lack its newline, and it does if it did before.
fn end_lines(new: &mut [Line<'_>], old: &[Line<'_>], hunks: &[Hunk], usual: Ending) {
    let says_itself = hunks.last().is_some_and(is_explicit);
    let Some((last, others)) = new.split_last_mut() else {
        return;
    };
    for line in others {
        if line.ending == Ending::None {
            line.ending = usual;
        }
    }
    let unterminated = old.last().is_some_and(|line| line.ending == Ending::None);
    if unterminated && !says_itself {
        last.ending = Ending::None;
    }
}

/// A hunk's line without the carriage return that ends it in the file.
struct HunkText<'a> {
    sign: Sign,
    text: &'a str,
    ending: Ending,
}

impl<'a> HunkText<'a> {
    fn of(line: &'a HunkLine) -> Self {
        let (text, ending) = match line.text.strip_suffix('\r') {
            _ if line.unterminated => (line.text.as_str(), Ending::None),
            Some(text) => (text, Ending::CrLf),
            None => (line.text.as_str(), Ending::Lf),
        };
        Self {
            sign: line.sign,
            text,
            ending,
        }
    }
}

fn listed(lines: &[usize]) -> String {
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    lines.join(", ")
}

/// The nearest places as the end of a message.
pub(super) fn shown(near: &[Near]) -> String {
    let places: Vec<String> = near.iter().map(ToString::to_string).collect();
    match places.is_empty() {
        true => String::new(),
        false => format!("; nearest is {}", places.join(", then ")),
    }
}

#[cfg(test)]
mod tests;
