//! When two answers of a tool are the same: what differs between two runs of
//! the same thing says nothing.
//!
//! Times, ids, digests and where the project lies are left out, and the lines
//! of a test run may come in another order. Everything else counts. Pure.

use std::sync::LazyLock;

use regex::Regex;

use crate::record::{PROJECT, without};

/// What is left out, and what stands for it.
const LEFT_OUT: &[(&str, &str)] = &[
    // The copy of a project that reduced isolation works in.
    (r"[^\s'`]*/lay_[0-9A-Za-z]{26}/[a-z]+", PROJECT),
    (
        r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:?\d{2})?",
        "<moment>",
    ),
    (r"\b(duration_ms:?) [\d.]+", "$1 <duration>"),
    (
        r"\b\d+(\.\d+)? ?(ns|us|µs|ms|s|sec|seconds?)\b",
        "<duration>",
    ),
    (r"\b[a-z]{2,4}_[0-9A-Za-z]{26}\b", "<id>"),
    (r"\b[0-9a-f]{7,64}\b", "<digest>"),
    (r"(thread '[^']*') \(\d+\)", "$1"),
];

/// Tools that run tests, whose order is nobody's choice.
const TESTING: &[&str] = &["test.run", "workflow.transition", "git.commit"];

static PATTERNS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let made = LEFT_OUT.iter();
    // All of them are tried by a test.
    made.filter_map(|(pattern, word)| Some((Regex::new(pattern).ok()?, *word)))
        .collect()
});

/// A text without what may differ.
pub(crate) fn essence(text: &str, project: &str) -> String {
    let mut text = without(text, project);
    for (pattern, word) in PATTERNS.iter() {
        text = pattern.replace_all(&text, *word).into_owned();
    }
    text
}

/// Whether two such texts say the same, from this tool.
pub(crate) fn is_same(tool: &str, then: &str, now: &str) -> bool {
    if then == now {
        return true;
    }
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    TESTING.contains(&tool) && lines(then) == lines(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_one() {
        assert_eq!(PATTERNS.len(), LEFT_OUT.len());
    }

    #[test]
    fn what_differs_between_two_runs_is_left_out() {
        for (one, other) in [
            ("finished in 0.03s", "finished in 1.20s"),
            ("# duration_ms 12.5", "# duration_ms 3"),
            ("at /home/ann/p/src", "at <project>/src"),
            (
                "in /s/layers/lay_01JZZZZZZZZZZZZZZZZZZZZZZZ/tree/x",
                "in <project>/x",
            ),
            ("commit 3f78685", "commit 9c56cc51b374c3ba"),
            ("2026-01-02T03:04:05Z", "2027-01-02 03:04:05.1+01:00"),
            ("thread 'a' (71) panicked", "thread 'a' (9) panicked"),
            (
                "of ses_01JZZZZZZZZZZZZZZZZZZZZZZZ",
                "of ses_01JAAAAAAAAAAAAAAAAAAAAAAA",
            ),
        ] {
            assert_eq!(essence(one, "/home/ann/p"), essence(other, "/home/ann/p"));
        }
        for (one, other) in [("2 passed", "3 passed"), ("line 12", "line 13")] {
            assert_ne!(essence(one, ""), essence(other, ""));
        }
    }

    #[test]
    fn only_tests_may_come_in_another_order() {
        assert!(is_same("test.run", "a\nb\n", "b\na\n"));
        assert!(!is_same("test.run", "a\nb\n", "b\nb\n"));
        assert!(!is_same("fs.read", "a\nb\n", "b\na\n"));
    }
}
