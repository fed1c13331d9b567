//! Which lines the tests reach: lcov, Cobertura and istanbul.
//!
//! Read from the reports of a project's own tool. Percentages are kept in
//! hundredths as integers, so that equal coverage compares equal.

mod cobertura;
mod istanbul;
mod lcov;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// The largest report that is read, in bytes.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The most lines that a report tells about.
pub const MAX_LINES: usize = 5_000_000;

/// How a coverage report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoverageFormat {
    /// `lcov.info`.
    Lcov,
    /// `cobertura.xml`, `coverage.xml`.
    Cobertura,
    /// `coverage-summary.json`: counts per file, no lines.
    Istanbul,
}

impl CoverageFormat {
    /// How a report is written, by its first character.
    #[must_use]
    pub fn of(text: &str) -> Self {
        match text
            .trim_start_matches('\u{feff}')
            .trim_start()
            .chars()
            .next()
        {
            Some('<') => Self::Cobertura,
            Some('{') => Self::Istanbul,
            Some(_) | None => Self::Lcov,
        }
    }
}

/// Why a coverage report is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseCoverageError {
    /// Larger than [`MAX_BYTES`], or more lines than [`MAX_LINES`].
    #[error("the coverage report is too large")]
    TooLarge,
    /// A line or element is malformed.
    #[error("the coverage report is malformed: `{detail}`")]
    Malformed {
        /// The beginning of what is wrong.
        detail: String,
    },
    /// It is well-formed and says nothing.
    #[error("the coverage report names no lines")]
    Empty,
}

/// Reads a report; paths below `root` become paths of the workspace.
///
/// # Errors
/// The report is too large, malformed or empty.
pub fn parse(
    format: CoverageFormat,
    root: &str,
    text: &str,
) -> Result<Coverage, ParseCoverageError> {
    if text.len() > MAX_BYTES {
        return Err(ParseCoverageError::TooLarge);
    }
    let coverage = match format {
        CoverageFormat::Lcov => lcov::parse(root, text)?,
        CoverageFormat::Cobertura => cobertura::parse(root, text)?,
        CoverageFormat::Istanbul => istanbul::parse(root, text)?,
    };
    match coverage.total().found {
        0 => Err(ParseCoverageError::Empty),
        _ => Ok(coverage),
    }
}

fn malformed(detail: &str) -> ParseCoverageError {
    ParseCoverageError::Malformed {
        detail: crate::results::cut(detail, 120),
    }
}

/// Lines that exist and lines that were reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Lines that could be reached.
    pub found: u64,
    /// Lines that were.
    pub hit: u64,
}

/// What the tests of a project reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Coverage {
    files: BTreeMap<String, FileCoverage>,
}

/// What they reach of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FileCoverage {
    /// Each line that could be reached, and whether it was.
    Lines(BTreeMap<u32, Reached>),
    /// Only how many.
    Count(Count),
}

impl FileCoverage {
    fn is_reached(&self) -> bool {
        match self {
            Self::Lines(lines) => lines.values().any(|reached| *reached == Reached::Yes),
            Self::Count(count) => count.hit > 0,
        }
    }
}

/// Whether a line was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    No,
    Yes,
}

impl Coverage {
    fn line(&mut self, path: &str, line: u32, hits: u64) {
        let file = self.files.entry(path.to_owned());
        let file = file.or_insert_with(|| FileCoverage::Lines(BTreeMap::new()));
        if let FileCoverage::Lines(lines) = file {
            let reached = match hits {
                0 => Reached::No,
                _ => Reached::Yes,
            };
            let known = lines.entry(line).or_insert(reached);
            *known = (*known).max(reached);
        }
    }

    /// All files together.
    #[must_use]
    pub fn total(&self) -> Count {
        let mut total = Count::default();
        for file in self.files.values() {
            let count = match file {
                FileCoverage::Count(count) => *count,
                FileCoverage::Lines(lines) => Count {
                    found: lines.len() as u64,
                    hit: lines
                        .values()
                        .filter(|reached| **reached == Reached::Yes)
                        .count() as u64,
                },
            };
            total.found = total.found.saturating_add(count.found);
            total.hit = total.hit.saturating_add(count.hit);
        }
        total
    }

    /// The share of lines that are reached.
    #[must_use]
    pub fn points(&self) -> Points {
        Points::of(self.total())
    }

    /// Whether the report tells about single lines.
    #[must_use]
    pub fn has_lines(&self) -> bool {
        let lines = |file: &FileCoverage| matches!(file, FileCoverage::Lines(_));
        self.files.values().any(lines)
    }

    /// Whether a line is reached; `None` for one that holds no code.
    #[must_use]
    pub fn reaches(&self, path: &str, line: u32) -> Option<bool> {
        match self.files.get(path)? {
            FileCoverage::Lines(lines) => lines.get(&line).map(|reached| *reached == Reached::Yes),
            FileCoverage::Count(_) => None,
        }
    }

    /// The files that have any line reached.
    pub fn reached_files(&self) -> impl Iterator<Item = &str> {
        let files = self.files.iter().filter(|(_, file)| file.is_reached());
        files.map(|(path, _)| path.as_str())
    }

    /// The files of which no line is reached.
    pub fn unreached_files(&self) -> impl Iterator<Item = &str> {
        let files = self.files.iter().filter(|(_, file)| !file.is_reached());
        files.map(|(path, _)| path.as_str())
    }
}

/// Hundredths of a per cent point of coverage: `8412` is 84.12 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Points(u32);

impl Points {
    /// All lines.
    pub const ALL: Self = Self(10_000);

    /// A number of hundredths, at most all.
    #[must_use]
    pub const fn hundredths(hundredths: u32) -> Self {
        match hundredths > Self::ALL.0 {
            true => Self::ALL,
            false => Self(hundredths),
        }
    }

    /// The share of a count, rounded down.
    #[must_use]
    pub fn of(count: Count) -> Self {
        let hit = u128::from(count.hit.min(count.found)) * u128::from(Self::ALL.0);
        let share = hit.checked_div(u128::from(count.found)).unwrap_or(0);
        Self::hundredths(u32::try_from(share).unwrap_or(Self::ALL.0))
    }

    /// How much less this is than another; zero if it is not.
    #[must_use]
    pub const fn below(self, other: Self) -> Self {
        Self(other.0.saturating_sub(self.0))
    }

    /// This and more; several drops may add up to more than all.
    #[must_use]
    pub const fn more(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }

    /// This less a drop.
    #[must_use]
    pub const fn less(self, drop: Self) -> Self {
        Self(self.0.saturating_sub(drop.0))
    }
}

impl fmt::Display for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// The lines of each file that a change removes and adds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangedLines {
    /// Lines of the old version that are gone or different.
    pub before: BTreeMap<String, BTreeSet<u32>>,
    /// Lines of the new version that are new or different.
    pub after: BTreeMap<String, BTreeSet<u32>>,
}

impl ChangedLines {
    /// Adds what the hunks of a unified diff change in a file.
    ///
    /// Hunks that make no sense add nothing that is reached, see [`Covered`].
    pub fn add(&mut self, path: &str, hunks: &str) {
        let (mut old, mut new) = (0u32, 0u32);
        for line in hunks.lines() {
            if let Some((left, right)) = hunk_starts(line) {
                (old, new) = (left, right);
                continue;
            }
            let lines = match line.chars().next() {
                Some('-') => {
                    let lines = self.before.entry(path.to_owned()).or_default();
                    (lines, &mut old)
                }
                Some('+') => {
                    let lines = self.after.entry(path.to_owned()).or_default();
                    (lines, &mut new)
                }
                // The end of a file without a line break.
                Some('\\') => continue,
                Some(_) | None => {
                    old = old.saturating_add(1);
                    new = new.saturating_add(1);
                    continue;
                }
            };
            let (lines, at) = lines;
            lines.insert(*at);
            *at = at.saturating_add(1);
        }
    }
}

/// The first lines of `@@ -3,4 +5,6 @@`, before and after.
fn hunk_starts(line: &str) -> Option<(u32, u32)> {
    let rest = line.strip_prefix("@@ -")?;
    let (left, rest) = rest.split_once(" +")?;
    let (right, _) = rest.split_once(" @@")?;
    let first = |range: &str| range.split(',').next()?.parse().ok();
    Some((first(left)?, first(right)?))
}

/// Whether tests cover what a refactoring changes, before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Covered {
    uncovered: Vec<(String, u32)>,
    counted: usize,
}

impl Covered {
    /// Compares changed lines with the coverage of both versions.
    ///
    /// A line that holds no code, such as a comment, needs no cover.
    #[must_use]
    pub fn of(changed: &ChangedLines, before: &Coverage, after: &Coverage) -> Self {
        let mut covered = Self {
            uncovered: Vec::new(),
            counted: 0,
        };
        for (lines, coverage) in [(&changed.before, before), (&changed.after, after)] {
            for (path, lines) in lines {
                // A file that no report mentions is not covered at all.
                let known = coverage.files.contains_key(path);
                for line in lines {
                    match coverage.reaches(path, *line) {
                        Some(true) => covered.counted += 1,
                        None if known => {}
                        Some(false) | None => covered.uncovered.push((path.clone(), *line)),
                    }
                }
            }
        }
        covered
    }

    /// Whether at least one changed line is reached and none is missed.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.uncovered.is_empty() && self.counted > 0
    }

    /// The changed lines that no test reaches.
    pub fn uncovered(&self) -> impl Iterator<Item = &(String, u32)> {
        self.uncovered.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_exact_and_rounded_down() {
        let points = |hit, found| Points::of(Count { found, hit });
        assert_eq!(points(2, 3).to_string(), "66.66");
        assert_eq!(points(3, 3), Points::ALL);
        assert_eq!(points(0, 0).to_string(), "0.00");
        assert_eq!(points(9, 3), Points::ALL);
        assert_eq!(points(u64::MAX, u64::MAX), Points::ALL);
        assert_eq!(points(1, 3).below(points(2, 3)).to_string(), "33.33");
    }

    #[test]
    fn a_report_is_known_by_its_first_character() {
        use CoverageFormat::{Cobertura, Istanbul, Lcov};
        for (text, format) in [
            ("TN:\nSF:a.js\n", Lcov),
            ("SF:a.js\n", Lcov),
            ("<?xml version=\"1.0\"?><coverage/>", Cobertura),
            ("\u{feff}\n<coverage/>", Cobertura),
            ("{\"total\": {}}", Istanbul),
            ("", Lcov),
        ] {
            assert_eq!(CoverageFormat::of(text), format, "{text}");
        }
    }

    #[test]
    fn no_file_has_more_covered_lines_than_lines() {
        let report = |covered: u64| {
            let text =
                format!(r#"{{"/w/a.js": {{"lines": {{"total": 3, "covered": {covered}}}}}}}"#);
            parse(CoverageFormat::Istanbul, "/w", &text)
        };
        assert_eq!(report(3).unwrap().points(), Points::ALL);
        assert!(matches!(
            report(4),
            Err(ParseCoverageError::Malformed { .. })
        ));
    }

    #[test]
    fn hunks_say_which_lines_are_gone_and_new() {
        let mut changed = ChangedLines::default();
        let hunks = "@@ -2,4 +2,4 @@ fn a()\n one\n-two\n+2\n+--3\n three\n-+four\n\
                     \\ No newline at end of file\n@@ -90 +91,0 @@\n-x\n";
        changed.add("/a", hunks);
        changed.add("/new", "@@ -0,0 +1,2 @@\n+a\n+b\n");
        let of = |lines: &BTreeMap<String, BTreeSet<u32>>, path: &str| -> Vec<u32> {
            lines.get(path).into_iter().flatten().copied().collect()
        };
        assert_eq!(of(&changed.before, "/a"), [3, 5, 90]);
        assert_eq!(of(&changed.after, "/a"), [3, 4]);
        assert_eq!(of(&changed.after, "/new"), [1, 2]);
        assert!(of(&changed.before, "/new").is_empty());
    }

    #[test]
    fn every_changed_line_of_code_must_be_reached_in_both_versions() {
        let mut coverage = Coverage::default();
        coverage.line("/a", 1, 1);
        coverage.line("/a", 2, 0);
        let lines = |line: u32| BTreeMap::from([("/a".to_owned(), BTreeSet::from([line]))]);
        let judge = |before: u32, after: u32| {
            let changed = ChangedLines {
                before: lines(before),
                after: lines(after),
            };
            Covered::of(&changed, &coverage, &coverage)
        };
        assert!(judge(1, 1).is_complete());
        assert!(judge(1, 9).is_complete(), "line 9 holds no code");
        assert!(!judge(9, 9).is_complete(), "nothing was reached");
        assert!(!judge(1, 2).is_complete());
        assert!(!judge(2, 1).is_complete());
        let unknown = BTreeMap::from([("/b".to_owned(), BTreeSet::from([1]))]);
        let changed = ChangedLines {
            before: lines(1),
            after: unknown,
        };
        let covered = Covered::of(&changed, &coverage, &coverage);
        assert_eq!(
            covered.uncovered().collect::<Vec<_>>(),
            [&("/b".to_owned(), 1)]
        );
    }
}
