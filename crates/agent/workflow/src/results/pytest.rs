//! `pytest` as people see it, with `-v`, `-rA` or both.
//!
//! Lines count only above the sections in which tests speak for themselves,
//! and in the short summary; pytest's own count must agree.

use std::collections::BTreeMap;

use super::text::{self, Message};
use super::{CompileError, Exit, Outcome, Remedy, Report, Run, TestResult, Trouble, cargo};

pub(super) fn read(run: &Run<'_>, report: &mut Report) {
    let pages = Pages::split(run.stdout);
    let mut found = Found::default();
    for line in &pages.progress {
        found.progress(line);
    }
    // Without `-v` only the summary names tests.
    if found.order.is_empty() {
        for line in &pages.summary {
            found.summary(line);
        }
    }
    let seen = found.counted;
    for name in &found.order {
        let Some((outcome, reason)) = found.results.remove(name) else {
            continue;
        };
        let (file, _) = name.split_once("::").unwrap_or((name, ""));
        let message = pages.messages.get(&section_name(name)).cloned();
        report.push(TestResult {
            file: text::workspace_path(run.root, file),
            message: message.and_then(Message::finish).or(reason),
            ..TestResult::new(name, outcome)
        });
    }
    for (path, traceback) in &pages.collecting {
        report.push(collected(run.root, path, traceback));
    }
    match (pages.counts, run.exit) {
        (_, Exit::Code(5)) => report.trouble.push(Trouble::NoTests),
        (Some(0), _) => report.trouble.push(Trouble::NoTests),
        (Some(said), _) if said != seen + pages.collecting.len() => {
            let seen = seen + pages.collecting.len();
            report.trouble.push(Trouble::Counts { said, seen });
        }
        (Some(_), _) => {}
        (None, _) => report.broken_runner(&text::tail(match run.stderr.trim() {
            "" => run.stdout,
            stderr => stderr,
        })),
    }
}

/// The output, cut where pytest's own headings are.
#[derive(Default)]
struct Pages<'a> {
    progress: Vec<&'a str>,
    summary: Vec<&'a str>,
    /// What was said about each failing test, by its heading.
    messages: BTreeMap<String, Message>,
    /// What went wrong while a file was loaded.
    collecting: Vec<(&'a str, Vec<&'a str>)>,
    counts: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Progress,
    Failures,
    Summary,
}

impl<'a> Pages<'a> {
    fn split(stdout: &'a str) -> Self {
        let mut pages = Self::default();
        let mut page = Page::Progress;
        let mut speaker: Option<Speaker<'a>> = None;
        for line in stdout.lines() {
            if let Some(counts) = final_counts(line) {
                pages.counts = Some(counts);
                continue;
            }
            match heading(line, '=') {
                Some("ERRORS" | "FAILURES" | "PASSES" | "XPASSES") => {
                    page = Page::Failures;
                    speaker = None;
                    continue;
                }
                Some("short test summary info") => {
                    page = Page::Summary;
                    continue;
                }
                Some(_) | None => {}
            }
            match page {
                Page::Progress => pages.progress.push(line),
                Page::Summary => pages.summary.push(line),
                Page::Failures => match heading(line, '_').map(Speaker::of) {
                    Some(next) => {
                        if let Speaker::Collecting(path) = next {
                            pages.collecting.push((path, Vec::new()));
                        }
                        speaker = Some(next);
                    }
                    None => pages.hear(speaker, line),
                },
            }
        }
        pages
    }

    fn hear(&mut self, speaker: Option<Speaker<'a>>, line: &'a str) {
        match speaker {
            Some(Speaker::Collecting(_)) => {
                if let Some((_, lines)) = self.collecting.last_mut()
                    && lines.len() < 400
                {
                    lines.push(line);
                }
            }
            Some(Speaker::Test(name)) if line.starts_with("E  ") => {
                let message = self.messages.entry(name.to_owned()).or_default();
                let line = line.strip_prefix("E   ").unwrap_or(line);
                message.line(line.trim_end());
            }
            Some(Speaker::Test(_)) | None => {}
        }
    }
}

#[derive(Clone, Copy)]
enum Speaker<'a> {
    Test(&'a str),
    Collecting(&'a str),
}

impl<'a> Speaker<'a> {
    fn of(heading: &'a str) -> Self {
        if let Some(path) = heading.strip_prefix("ERROR collecting ") {
            return Self::Collecting(path);
        }
        let name = heading
            .strip_prefix("ERROR at setup of ")
            .or(heading.strip_prefix("ERROR at teardown of "));
        Self::Test(name.unwrap_or(heading))
    }
}

/// The results so far; of two with one name the worse counts.
#[derive(Default)]
struct Found {
    order: Vec<String>,
    results: BTreeMap<String, (Outcome, Option<String>)>,
    counted: usize,
}

impl Found {
    fn add(&mut self, name: &str, outcome: Outcome, reason: Option<String>) {
        match self.results.get_mut(name) {
            None => {
                self.order.push(name.to_owned());
                self.results.insert(name.to_owned(), (outcome, reason));
            }
            Some(known) if known.0 < outcome => *known = (outcome, reason),
            Some(_) => {}
        }
    }

    /// `tests/a.py::test_b PASSED   [ 12%]`.
    fn progress(&mut self, line: &str) {
        if !line.contains("::") {
            return;
        }
        let line = match line.trim_end().strip_suffix("%]") {
            Some(rest) => rest.rsplit_once('[').map_or(line, |(rest, _)| rest),
            None => line,
        };
        for (word, outcome) in WORDS {
            let Some((name, rest)) = line.rsplit_once(&format!(" {word}")) else {
                continue;
            };
            let reason = rest.trim();
            let whole = reason.is_empty() || (reason.starts_with('(') && reason.ends_with(')'));
            if name.contains("::") && whole && !name.starts_with(' ') {
                self.counted += 1;
                let reason = reason.trim_matches(['(', ')']);
                let reason = (!reason.is_empty()).then(|| text::cut(reason, 200));
                self.add(name.trim_end(), *outcome, reason);
                return;
            }
        }
    }

    /// `FAILED tests/a.py::test_b - AssertionError: …`.
    fn summary(&mut self, line: &str) {
        for (word, outcome) in WORDS {
            let Some(rest) = line.strip_prefix(word).and_then(|l| l.strip_prefix(' ')) else {
                continue;
            };
            let (name, reason) = match rest.split_once(" - ") {
                Some((name, reason)) => (name, Some(text::cut(reason, 200))),
                None => (rest, None),
            };
            // A file that did not load is in its own section.
            if *outcome != Outcome::Broken || name.contains("::") {
                self.counted += skipped_count(name).unwrap_or(1);
                self.add(name, *outcome, reason);
            }
            return;
        }
    }
}

/// `SKIPPED [3] tests/a.py:20: slow` stands for three.
fn skipped_count(name: &str) -> Option<usize> {
    let (number, _) = name.strip_prefix('[')?.split_once(']')?;
    number.parse().ok()
}

const WORDS: &[(&str, Outcome)] = &[
    ("PASSED", Outcome::Passed),
    ("FAILED", Outcome::Failed),
    ("SKIPPED", Outcome::Skipped),
    ("XFAIL", Outcome::Skipped),
    ("XPASS", Outcome::Passed),
    ("ERROR", Outcome::Broken),
];

/// The text between two runs of a character that fill the line.
fn heading(line: &str, fill: char) -> Option<&str> {
    let inner = line.strip_prefix(fill)?.strip_suffix(fill)?;
    let inner = inner.trim_matches(fill);
    let inner = inner.strip_prefix(' ')?.strip_suffix(' ')?;
    (!inner.is_empty()).then_some(inner)
}

/// `===== 3 failed, 2 passed in 0.15s =====`, with or without its frame.
fn final_counts(line: &str) -> Option<usize> {
    let line = line.trim_matches(['=', ' ']);
    let (counts, time) = line.rsplit_once(" in ")?;
    if !time.split(' ').next()?.ends_with('s') {
        return None;
    }
    if counts == "no tests ran" {
        return Some(0);
    }
    let mut sum = 0usize;
    for part in counts.split(", ") {
        let (number, what) = part.split_once(' ')?;
        let number: usize = number.parse().ok()?;
        match what {
            "passed" | "failed" | "skipped" | "xfailed" | "xpassed" | "error" | "errors" => {
                sum = sum.checked_add(number)?;
            }
            "warning" | "warnings" | "deselected" | "rerun" => {}
            _ => return None,
        }
    }
    Some(sum)
}

/// The heading of a test's section: `TestNetwork.test_server`.
fn section_name(node: &str) -> String {
    match node.split_once("::") {
        Some((_, inner)) => inner.replace("::", "."),
        None => node.to_owned(),
    }
}

/// A file that pytest could not load.
pub(super) fn collected(root: &str, path: &str, traceback: &[&str]) -> TestResult {
    let own = text::workspace_path(root, path);
    let errors = vec![load_error(root, own.as_deref(), traceback)];
    cargo::result(own.as_deref().unwrap_or(path), errors)
}

/// Who is to blame for a traceback: the last file of ours in it.
fn load_error(root: &str, own: Option<&str>, traceback: &[&str]) -> CompileError {
    let mut frame = None;
    let mut last = "";
    let mut malformed = None;
    for line in traceback {
        if let Some(error) = line.strip_prefix("E  ") {
            last = error.trim();
            // A syntax error names its file and has no frame.
            if let Some(rest) = last.strip_prefix("File \"") {
                malformed = rest.split_once('"').map(|(path, _)| path);
            }
        } else if let Some((place, _)) = line.split_once(": in ")
            && let Some((path, number)) = text::place(place)
            && let Some(path) = text::workspace_path(root, path)
            && !path.contains("/site-packages/")
        {
            frame = Some((path, number));
        }
    }
    let missing = [
        "ImportError",
        "ModuleNotFoundError",
        "AttributeError",
        "NameError",
    ];
    let kind = last.split(':').next().unwrap_or_default();
    let file = match (malformed, frame.as_ref()) {
        (Some(path), _) => text::workspace_path(root, path),
        (None, Some((path, _))) => Some(path.clone()),
        (None, None) => own.map(ToOwned::to_owned),
    };
    CompileError {
        line: frame.filter(|_| malformed.is_none()).map(|(_, line)| line),
        file,
        message: text::cut(last, 400),
        remedy: match malformed.is_none() && missing.contains(&kind) {
            true => Remedy::Source,
            false => Remedy::Itself,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_fill_the_line() {
        assert_eq!(heading("=== ERRORS ===", '='), Some("ERRORS"));
        assert_eq!(heading("___ test_a[x y] ___", '_'), Some("test_a[x y]"));
        assert_eq!(heading("=====", '='), None);
        assert_eq!(heading("= open", '='), None);
    }

    #[test]
    fn counts_are_read_with_and_without_a_frame() {
        assert_eq!(
            final_counts("= 3 failed, 2 passed, 1 error in 0.1s ="),
            Some(6)
        );
        assert_eq!(
            final_counts("1 passed, 4 warnings in 61.00s (0:01:01)"),
            Some(1)
        );
        assert_eq!(final_counts("no tests ran in 0.01s"), Some(0));
        assert_eq!(final_counts("what I did in 2 days"), None);
    }

    #[test]
    fn a_name_may_hold_a_word_of_pytest() {
        let mut found = Found::default();
        found.progress("tests/a.py::test_b[x PASSED y] FAILED   [ 50%]");
        let expected = (Outcome::Failed, None);
        assert_eq!(
            found.results.get("tests/a.py::test_b[x PASSED y]"),
            Some(&expected)
        );
    }
}
