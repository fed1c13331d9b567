//! Cuts a text to a number of tokens, at lines, and says what is missing.

use std::borrow::Cow;

use fluffy_contract::tool::Keep;
use serde::{Deserialize, Serialize};

/// No token is longer, in ordinary text; more bytes than that are too many tokens.
const MAX_TOKEN: usize = 32;

/// Tokens for the line that says what was left out.
const NOTICE: usize = 40;

/// How often a cut is made smaller when its tokens turn out to be too many.
const ROUNDS: usize = 12;

/// What was cut out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// How many lines, or parts of them.
    pub lines: usize,
    /// How many bytes.
    pub bytes: usize,
}

impl LeftOut {
    pub(super) fn together(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(Self {
                lines: one.lines.saturating_add(other.lines),
                bytes: one.bytes.saturating_add(other.bytes),
            }),
            (one, other) => one.or(other),
        }
    }

    fn of(text: &str) -> Self {
        Self {
            lines: text.lines().count(),
            bytes: text.len(),
        }
    }
}

/// At most this many bytes of an output, as text.
pub(super) fn bytes(original: &[u8], keep: Keep, limit: usize) -> (Cow<'_, str>, Option<LeftOut>) {
    let Some(excess) = original
        .len()
        .checked_sub(limit)
        .filter(|excess| *excess > 0)
    else {
        return (String::from_utf8_lossy(original), None);
    };
    let piece = |from: usize, to: usize| original.get(from..to).unwrap_or_default();
    let (start, end) = match keep {
        Keep::Head => (limit, original.len()),
        Keep::Tail => (0, excess),
        Keep::Ends => (limit / 2, limit / 2 + excess),
    };
    let missing = piece(start, end);
    let left_out = LeftOut {
        lines: missing.split(|byte| *byte == b'\n').count(),
        bytes: missing.len(),
    };
    let head = String::from_utf8_lossy(piece(0, start));
    let tail = String::from_utf8_lossy(piece(end, original.len()));
    let note = format!("\n[… {} bytes left out …]\n", left_out.bytes);
    (Cow::Owned(format!("{head}{note}{tail}")), Some(left_out))
}

/// A text of at most this many tokens.
pub(super) fn tokens(
    text: &str,
    keep: Keep,
    limit: usize,
    count: &(dyn Fn(&str) -> usize + Sync),
) -> (String, Option<LeftOut>) {
    // Counting costs time, so a text that is far too long is not counted.
    if text.len() <= limit.saturating_mul(MAX_TOKEN) && count(text) <= limit {
        return (text.to_owned(), None);
    }
    // Tokens do not add up exactly, so what was put together is counted again.
    let mut budget = limit.saturating_sub(NOTICE);
    for _ in 0..ROUNDS {
        let (cut, left_out) = cut(text, keep, budget, count);
        if count(&cut) <= limit {
            return (cut, Some(left_out));
        }
        budget = budget * 3 / 4;
    }
    (String::new(), Some(LeftOut::of(text)))
}

fn cut(
    text: &str,
    keep: Keep,
    budget: usize,
    count: &(dyn Fn(&str) -> usize + Sync),
) -> (String, LeftOut) {
    let (for_head, for_tail) = match keep {
        Keep::Head => (budget, 0),
        Keep::Tail => (0, budget),
        Keep::Ends => (budget / 2, budget / 2),
    };
    let head = head(text, for_head, count);
    let rest = text.get(head..).unwrap_or_default();
    let tail = tail(rest, for_tail, count);
    let missing = rest.get(..tail).unwrap_or_default();
    let left_out = LeftOut::of(missing);
    let (before, after) = (
        text.get(..head).unwrap_or_default(),
        rest.get(tail..).unwrap_or_default(),
    );
    let newline = if before.is_empty() || before.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let LeftOut { lines, bytes } = left_out;
    (
        format!("{before}{newline}[… {lines} lines, {bytes} bytes left out …]\n{after}"),
        left_out,
    )
}

/// How many bytes from the beginning fit, in whole lines if there is one.
fn head(text: &str, budget: usize, count: &(dyn Fn(&str) -> usize + Sync)) -> usize {
    let (mut used, mut kept) = (0usize, 0usize);
    for line in text.split_inclusive('\n') {
        let cost = count(line);
        if used.saturating_add(cost) > budget {
            let left = budget.saturating_sub(used);
            // A part of a line only where it is most of what there is to show.
            return match left > budget / 2 {
                true => kept + part(line, left, count, |line, at| line.get(..at)),
                false => kept,
            };
        }
        used += cost;
        kept += line.len();
    }
    kept
}

/// From which byte on the rest fits, in whole lines if there is one.
fn tail(text: &str, budget: usize, count: &(dyn Fn(&str) -> usize + Sync)) -> usize {
    let (mut used, mut start) = (0usize, text.len());
    while start > 0 {
        let before = text.get(..start).unwrap_or_default();
        let newline = before
            .trim_end_matches('\n')
            .rfind('\n')
            .map_or(0, |at| at + 1);
        // Several empty lines at once are one step.
        let line = text.get(newline..start).unwrap_or_default();
        let cost = count(line);
        if used.saturating_add(cost) > budget {
            let left = budget.saturating_sub(used);
            return match left > budget / 2 {
                true => {
                    let length = line.len();
                    let kept = part(line, left, count, |line, at| line.get(length - at..));
                    start - kept
                }
                false => start,
            };
        }
        used += cost;
        start = newline;
    }
    start
}

/// The most bytes of a line that fit.
fn part<'a>(
    line: &'a str,
    budget: usize,
    count: &(dyn Fn(&str) -> usize + Sync),
    piece: impl Fn(&'a str, usize) -> Option<&'a str>,
) -> usize {
    let (mut low, mut high) = (0, line.len().min(budget.saturating_mul(MAX_TOKEN)));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        // Inside a character: the next shorter one.
        let fits = (0..4).find_map(|less| {
            let at = middle.checked_sub(less)?;
            piece(line, at).map(|text| (at, text))
        });
        match fits {
            Some((at, text)) if at > low && count(text) <= budget => low = at,
            _ => high = middle - 1,
        }
    }
    low
}
