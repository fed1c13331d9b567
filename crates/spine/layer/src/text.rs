//! Texts compared and merged line by line. Pure, and bounded in time.
//!
//! Lines that repeat without end make any good diff quadratic. Such texts are
//! compared as long as there is [`Effort`] left, and then as one block that is
//! replaced: longer to read and just as true. Conflicts are only ever shown,
//! never a result.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use imara_diff::{Algorithm, Diff, Hunk, InternedInput, Token};

/// How many unchanged lines are shown around a change.
const CONTEXT: usize = 3;

/// How often a line may repeat before it no longer helps to find matches.
const REPEATS: u32 = 64;

/// About a second of comparing the worst of texts.
const EFFORT: u64 = 30_000 * 30_000;

const NO_NEWLINE: &str = "\\ No newline at end of file\n";

/// Whether bytes are compared as text: UTF-8 without NUL.
#[must_use]
pub(crate) fn is_text(bytes: &[u8]) -> bool {
    !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok()
}

/// A unified diff of one file, without its header.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Hunks {
    /// The hunks as text; empty if nothing differs.
    pub(crate) text: String,
    pub(crate) added: usize,
    pub(crate) removed: usize,
}

/// How much hard comparing is left for all texts of a layer together.
#[derive(Debug)]
pub(crate) struct Effort {
    left: u64,
}

impl Effort {
    pub(crate) const fn new() -> Self {
        Self { left: EFFORT }
    }

    /// Whether two texts may be compared well, which uses up their cost.
    fn allows(&mut self, input: &InternedInput<&str>) -> bool {
        let mut counts = BTreeMap::new();
        for token in &input.before {
            *counts.entry(token.0).or_insert(0u32) += 1;
        }
        let lines = input.before.iter().chain(&input.after);
        let is_repeated = |token: &&Token| counts.get(&token.0).is_some_and(|n| *n > REPEATS);
        let repeated = u64::try_from(lines.filter(is_repeated).count()).unwrap_or(u64::MAX);
        let cost = repeated.saturating_mul(repeated) / 4;
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

/// What became of a three-way merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Merged {
    /// Both sides' changes, which do not touch one another.
    Clean(String),
    /// The same with markers where they do, for people to read.
    Conflicts { shown: String, count: usize },
}

/// The unified diff from one text to another.
pub(crate) fn unified(before: &str, after: &str, effort: &mut Effort) -> Hunks {
    let (old, new) = (lines(before), lines(after));
    let mut out = Hunks::default();
    let changes = changes(before, after, effort);
    let mut rest = changes.as_slice();
    while let Some(first) = rest.first() {
        // Changes whose contexts meet are shown as one.
        let mut count = 1;
        let mut end = first.old.end;
        while let Some(next) = rest.get(count) {
            if next.old.start > end.saturating_add(2 * CONTEXT) {
                break;
            }
            end = next.old.end;
            count += 1;
        }
        let (group, after) = rest.split_at(count);
        print_group(&mut out, group, &old, &new);
        rest = after;
    }
    out
}

/// Merges what two sides made of the same text.
pub(crate) fn three_way(base: &str, project: &str, layer: &str, effort: &mut Effort) -> Merged {
    let (old, ours, theirs) = (lines(base), lines(project), lines(layer));
    let sides = [changes(base, project, effort), changes(base, layer, effort)];
    let mut cursors = [Cursor::new(&sides[0]), Cursor::new(&sides[1])];
    let (mut out, mut count, mut place) = (String::new(), 0, 0);
    loop {
        let [first, second] = &mut cursors;
        let start = match (first.next_start(), second.next_start()) {
            (None, None) => break,
            (a, b) => a.unwrap_or(usize::MAX).min(b.unwrap_or(usize::MAX)),
        };
        // Grows until no change of either side touches the region any more.
        let mut region = start..start;
        let (mut from_first, mut from_second) = (false, false);
        loop {
            let grown_first = first.take_touching(&mut region);
            let grown_second = second.take_touching(&mut region);
            from_first |= grown_first;
            from_second |= grown_second;
            if !grown_first && !grown_second {
                break;
            }
        }
        push(&mut out, &old, place..region.start);
        let (mine, other) = (first.span(&region), second.span(&region));
        match (from_first, from_second) {
            (true, false) => push(&mut out, &ours, mine),
            (false, true) => push(&mut out, &theirs, other),
            _ if ours.get(mine.clone()) == theirs.get(other.clone()) => {
                push(&mut out, &ours, mine);
            }
            _ => {
                count += 1;
                mark(&mut out, "<<<<<<< project", &ours, mine);
                mark(&mut out, "||||||| base", &old, region.clone());
                mark(&mut out, "=======", &theirs, other);
                out.push_str(">>>>>>> layer\n");
            }
        }
        place = region.end;
    }
    push(&mut out, &old, place..old.len());
    if count == 0 {
        Merged::Clean(out)
    } else {
        Merged::Conflicts { shown: out, count }
    }
}

/// One run of changed lines, as places in both texts.
struct Change {
    old: Range<usize>,
    new: Range<usize>,
}

/// One side's changes, and how far they have shifted what follows.
struct Cursor<'a> {
    rest: &'a [Change],
    /// Where the side is when the base is at `old`.
    old: usize,
    new: usize,
    /// The side's place where the region began, with the base's.
    began: (usize, usize),
}

impl<'a> Cursor<'a> {
    fn new(changes: &'a [Change]) -> Self {
        Self {
            rest: changes,
            old: 0,
            new: 0,
            began: (0, 0),
        }
    }

    fn next_start(&mut self) -> Option<usize> {
        self.began = (self.old, self.new);
        self.rest.first().map(|change| change.old.start)
    }

    /// Takes all changes that touch the region, which grows by them.
    fn take_touching(&mut self, region: &mut Range<usize>) -> bool {
        let mut grown = false;
        while let Some((change, rest)) = self.rest.split_first() {
            if change.old.start > region.end {
                break;
            }
            region.end = region.end.max(change.old.end);
            (self.old, self.new) = (change.old.end, change.new.end);
            self.rest = rest;
            grown = true;
        }
        grown
    }

    /// The side's lines that stand for a region of the base.
    fn span(&self, region: &Range<usize>) -> Range<usize> {
        let (old, new) = self.began;
        let start = new.saturating_add(region.start.saturating_sub(old));
        let end = self.new.saturating_add(region.end.saturating_sub(self.old));
        start..end
    }
}

fn changes(before: &str, after: &str, effort: &mut Effort) -> Vec<Change> {
    let input = InternedInput::new(before, after);
    if !effort.allows(&input) {
        return block(&input);
    }
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    let range = |range: &Range<u32>| {
        usize::try_from(range.start).unwrap_or(0)..usize::try_from(range.end).unwrap_or(0)
    };
    let change = |hunk: Hunk| Change {
        old: range(&hunk.before),
        new: range(&hunk.after),
    };
    diff.hunks().map(change).collect()
}

/// Everything between the first and the last difference, as one change.
fn block(input: &InternedInput<&str>) -> Vec<Change> {
    let (old, new) = (&input.before, &input.after);
    let same = |(a, b): &(&Token, &Token)| a == b;
    let start = old.iter().zip(new).take_while(same).count();
    let rest = old.len().min(new.len()).saturating_sub(start);
    let ends = old.iter().rev().zip(new.iter().rev()).take(rest);
    let end = ends.take_while(same).count();
    let change = Change {
        old: start..old.len().saturating_sub(end),
        new: start..new.len().saturating_sub(end),
    };
    let is_empty = change.old.is_empty() && change.new.is_empty();
    if is_empty { Vec::new() } else { vec![change] }
}

fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

fn push(out: &mut String, lines: &[&str], range: Range<usize>) {
    for line in lines.get(range).unwrap_or_default() {
        out.push_str(line);
    }
}

fn mark(out: &mut String, marker: &str, lines: &[&str], range: Range<usize>) {
    out.push_str(marker);
    out.push('\n');
    push(out, lines, range);
    if !out.ends_with('\n') {
        out.push('\n');
    }
}

fn print_group(out: &mut Hunks, group: &[Change], old: &[&str], new: &[&str]) {
    let (Some(first), Some(last)) = (group.first(), group.last()) else {
        return;
    };
    let lead = first.old.start.min(CONTEXT);
    let trail = old.len().saturating_sub(last.old.end).min(CONTEXT);
    let olds = first.old.start - lead..last.old.end + trail;
    let news = first.new.start - lead..last.new.end + trail;
    // Writing to a string cannot fail.
    let _ = writeln!(out.text, "@@ -{} +{} @@", place(&olds), place(&news));
    let mut at = olds.start;
    for change in group {
        print_lines(&mut out.text, ' ', old, at..change.old.start);
        print_lines(&mut out.text, '-', old, change.old.clone());
        print_lines(&mut out.text, '+', new, change.new.clone());
        out.removed += change.old.len();
        out.added += change.new.len();
        at = change.old.end;
    }
    print_lines(&mut out.text, ' ', old, at..olds.end);
}

/// A range as a hunk's header counts it: from one, and before an empty one.
fn place(range: &Range<usize>) -> String {
    match range.len() {
        0 => format!("{},0", range.start),
        1 => (range.start + 1).to_string(),
        length => format!("{},{length}", range.start + 1),
    }
}

fn print_lines(out: &mut String, sign: char, lines: &[&str], range: Range<usize>) {
    for line in lines.get(range).unwrap_or_default() {
        out.push(sign);
        out.push_str(line);
        if !line.ends_with('\n') {
            out.push('\n');
            out.push_str(NO_NEWLINE);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unified(before: &str, after: &str) -> Hunks {
        super::unified(before, after, &mut Effort::new())
    }

    fn three_way(base: &str, project: &str, layer: &str) -> Merged {
        super::three_way(base, project, layer, &mut Effort::new())
    }

    fn clean(base: &str, project: &str, layer: &str) -> String {
        match three_way(base, project, layer) {
            Merged::Clean(text) => text,
            conflict => panic!("{conflict:?}"),
        }
    }

    #[test]
    fn a_diff_reads_as_people_know_it() {
        let before: String = (1..=20).map(|n| format!("{n}\n")).collect();
        let after = before.replace("5\n", "five\n").replace("20\n", "20");
        let hunks = unified(&before, &after);
        assert_eq!((hunks.added, hunks.removed), (3, 3));
        assert!(
            hunks
                .text
                .starts_with("@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n")
        );
        assert!(
            hunks
                .text
                .ends_with("-20\n+20\n\\ No newline at end of file\n")
        );
        assert_eq!(unified("", "a\n").text, "@@ -0,0 +1 @@\n+a\n");
        assert_eq!(unified("a\n", "").text, "@@ -1 +0,0 @@\n-a\n");
        assert_eq!(unified("a\n", "a\n"), Hunks::default());
    }

    #[test]
    fn changes_apart_are_merged_and_touching_ones_conflict() {
        let base = "a\nb\nc\nd\ne\n";
        assert_eq!(
            clean(base, "A\nb\nc\nd\ne\n", "a\nb\nc\nd\nE\n"),
            "A\nb\nc\nd\nE\n"
        );
        assert_eq!(
            clean(base, "x\na\nb\nc\nd\ne\n", "a\nb\nc\ne\n"),
            "x\na\nb\nc\ne\n"
        );
        assert_eq!(clean(base, base, "new\n"), "new\n");
        assert_eq!(clean(base, "new\n", base), "new\n");
        assert_eq!(
            clean(base, "a\nX\nc\nd\ne\n", "a\nX\nc\nd\ne\n"),
            "a\nX\nc\nd\ne\n"
        );
        let Merged::Conflicts { shown, count } =
            three_way(base, "a\nP\nc\nd\ne\n", "a\nL\nc\nd\nE")
        else {
            panic!("both changed line two");
        };
        assert_eq!(count, 1);
        assert_eq!(
            shown,
            "a\n<<<<<<< project\nP\n||||||| base\nb\n=======\nL\n>>>>>>> layer\nc\nd\nE"
        );
        // Neighbours: neither side saw the other's line.
        assert!(matches!(
            three_way(base, "a\nP\nc\nd\ne\n", "a\nb\nL\nd\ne\n"),
            Merged::Conflicts { count: 1, .. }
        ));
    }

    #[test]
    fn a_hostile_text_does_not_take_for_ever() {
        // Many repeated lines in another order: the worst case of a plain diff.
        let before: String = (0..60_000u64)
            .map(|n| format!("{}\n", n * 7919 % 97))
            .collect();
        let after: String = (0..60_000u64)
            .map(|n| format!("{}\n", n * 104_729 % 89))
            .collect();
        let hunks = unified(&before, &after);
        assert_eq!(
            (hunks.added, hunks.removed),
            (59_999, 59_999),
            "as one block"
        );
        assert_eq!(unified(&before, &before), Hunks::default());
        let long: String = (0..60_000u64).map(|n| format!("{n}\n")).collect();
        let changed = long.replace("\n777\n", "\nseven\n");
        assert_eq!(unified(&long, &changed).added, 1, "long alone is no reason");
    }

    fn text() -> impl Strategy<Value = String> {
        proptest::collection::vec("[abc]{0,1}\n", 0..12).prop_map(|lines| lines.concat())
    }

    proptest! {
        #[test]
        fn a_merge_with_an_unchanged_side_is_the_other(base in text(), side in text()) {
            prop_assert_eq!(three_way(&base, &base, &side), Merged::Clean(side.clone()));
            prop_assert_eq!(three_way(&base, &side, &base), Merged::Clean(side.clone()));
            prop_assert_eq!(three_way(&base, &side, &side), Merged::Clean(side));
        }

        #[test]
        fn who_is_called_project_does_not_matter(base in text(), a in text(), b in text()) {
            match (three_way(&base, &a, &b), three_way(&base, &b, &a)) {
                (Merged::Clean(one), Merged::Clean(other)) => prop_assert_eq!(one, other),
                (Merged::Conflicts { count: one, .. }, Merged::Conflicts { count: other, .. }) => {
                    prop_assert_eq!(one, other);
                }
                (one, other) => prop_assert!(false, "{one:?} {other:?}"),
            }
        }
    }
}
