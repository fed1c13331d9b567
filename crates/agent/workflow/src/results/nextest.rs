//! `cargo nextest run` as people see it.
//!
//! Nextest indents everything that tests print, so its own lines can be told
//! apart; after its summary it repeats failures, which are not counted again.

use std::collections::BTreeMap;

use super::text::{self, Message};
use super::{Outcome, Report, Run, TestResult, Trouble, cargo};

pub(super) fn read(run: &Run<'_>, report: &mut Report) {
    if cargo::read_errors(run, report) {
        return;
    }
    let text = match run.stderr.contains("Nextest run") || run.stderr.contains("Summary [") {
        true => run.stderr,
        false => run.stdout,
    };
    let mut results = Attempts::default();
    let mut open: Option<(TestResult, Message)> = None;
    let mut said = None;
    for line in text.lines() {
        if let Some(counts) = line.strip_prefix("     Summary [") {
            said = counted(counts);
            break;
        }
        if let Some(result) = listed(line) {
            results.add(open.take());
            open = Some((result, Message::default()));
        } else if let Some((_, message)) = &mut open
            && let Some(output) = line.strip_prefix("    ")
        {
            message.line(output);
        }
    }
    results.add(open);
    let seen = results.list.len();
    for result in results.list {
        report.push(result);
    }
    match said {
        Some(said) if said != seen => report.trouble.push(Trouble::Counts { said, seen }),
        Some(_) => {}
        None if seen > 0 => report.broken_runner("nextest gave no summary"),
        None => {}
    }
    for result in &mut report.results {
        let file = result.message.as_deref().and_then(panicked_in);
        result.file = file.and_then(|file| text::workspace_path(run.root, file));
    }
}

/// Results by name: of several attempts at a test the last one counts.
#[derive(Default)]
struct Attempts {
    list: Vec<TestResult>,
    places: BTreeMap<String, usize>,
}

impl Attempts {
    fn add(&mut self, open: Option<(TestResult, Message)>) {
        let Some((mut result, message)) = open else {
            return;
        };
        if result.outcome != Outcome::Passed {
            result.message = message.finish();
        }
        let known = self.places.get(&result.key());
        match known.and_then(|place| self.list.get_mut(*place)) {
            Some(earlier) => *earlier = result,
            None => {
                self.places.insert(result.key(), self.list.len());
                self.list.push(result);
            }
        }
    }
}

/// `        PASS [   0.005s] (2/5) demo config::tests::reads`.
fn listed(line: &str) -> Option<TestResult> {
    let (word, rest) = line.trim_start().split_once(" [")?;
    if !line.starts_with("  ") {
        return None;
    }
    let word = match word.strip_prefix("TRY ") {
        Some(attempt) => attempt.split_once(' ')?.1,
        None => word,
    };
    let outcome = match word.trim_end() {
        "PASS" | "LEAK" | "FLAKY" => Outcome::Passed,
        "FAIL" | "TIMEOUT" | "LEAK-FAIL" => Outcome::Failed,
        "SKIP" => Outcome::Skipped,
        // A process that died: `SIGSEGV`, `ABORT`.
        "ABORT" => Outcome::Failed,
        signal if signal.starts_with("SIG") => Outcome::Failed,
        _ => return None,
    };
    let (_, rest) = rest.split_once(']')?;
    let rest = rest.trim_start();
    let rest = match rest.strip_prefix('(') {
        Some(counted) => counted.split_once(')')?.1.trim_start(),
        None => rest,
    };
    let (binary, name) = rest.split_once(' ')?;
    Some(TestResult {
        suite: Some(text::cut(binary, 200)),
        ..TestResult::new(name, outcome)
    })
}

/// `   0.688s] 5 tests run: 3 passed, 2 failed, 1 skipped`.
fn counted(line: &str) -> Option<usize> {
    let (_, rest) = line.split_once("] ")?;
    let (number, _) = rest.split_once(" test")?;
    // `3/5` when the run was stopped early.
    let number = number.split('/').next()?;
    number.trim().parse().ok()
}

/// The file of an integration test, which is where it usually panics.
fn panicked_in(message: &str) -> Option<&str> {
    let (_, place) = message.split_once(" panicked at ")?;
    let place = place.lines().next()?.trim_end_matches(':');
    let (file, _) = text::place(place)?;
    // A panic in source says nothing about where the test is.
    file.contains("tests/").then_some(file)
}

#[cfg(test)]
mod tests {
    use super::super::{Exit, Format, parse};
    use super::*;

    #[test]
    fn of_several_attempts_the_last_one_counts() {
        let stderr = [
            " Nextest run ID x with nextest profile: default",
            "  TRY 1 FAIL [   0.1s] (1/2) demo a",
            "  TRY 2 PASS [   0.1s] (1/2) demo a",
            "        PASS [   0.1s] (2/2) demo b",
            "     Summary [   0.2s] 2 tests run: 2 passed (1 flaky), 0 skipped",
        ];
        let run = Run {
            command: "cargo nextest run",
            root: "/w",
            stdout: "",
            stderr: &stderr.join("\n"),
            exit: Exit::Code(0),
        };
        let report = parse(Format::Nextest, &run);
        let found: Vec<(&str, Outcome)> = report
            .results
            .iter()
            .map(|r| (r.name.as_str(), r.outcome))
            .collect();
        assert_eq!(found, [("a", Outcome::Passed), ("b", Outcome::Passed)]);
        assert_eq!(report.trouble, []);
    }
}
