//! Runs all tests, with private servers beside them.
//!
//! Uses nextest where it is installed, else `cargo test`; both print every
//! failure. Doctests are a step of their own, because nextest has none.

use std::process::Command;

use anyhow::{Context, Result};
use fluffy_test_kit::{CAMPAIGN_ENV, POSTGRES_ENV, PrivatePostgres, SKIPS_ENV};

use crate::engines::Engines;
use crate::output;
use crate::process::{Ended, find_program, run, run_and_keep};
use crate::step::Outcome;
use crate::workspace::{Package, Workspace};

/// How long the campaigns among the tests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// About a tenth: what CI runs.
    Tenth,
    /// All of it: what `cargo xtask accept` runs.
    Full,
}

/// Runs the tests of all crates.
pub(crate) fn run_tests(workspace: &Workspace) -> Result<Outcome> {
    run_packages(workspace, &["--workspace"], Length::Tenth)
}

/// Runs the examples in the documentation of all libraries.
///
/// Crates without any say so in their manifests, because asking each costs a
/// second or two; one that says so and has some is a mistake.
pub(crate) fn run_doctests(workspace: &Workspace) -> Result<Outcome> {
    for package in &workspace.packages {
        let manifest = &package.manifest_path;
        let settings = std::fs::read_to_string(manifest)
            .with_context(|| format!("cannot read {}", manifest.display()))?;
        if settings.contains("doctest = false") && has_examples(workspace, package)? {
            let name = &package.name;
            let note = format!("{name} has examples, and its manifest says `doctest = false`");
            return Ok(Outcome::Failed(note));
        }
    }
    conclude(&mut workspace.cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]))
}

fn has_examples(workspace: &Workspace, package: &Package) -> Result<bool> {
    let folder = package.manifest_path.with_file_name("src");
    for file in workspace.files(&folder.to_string_lossy(), ".rs")? {
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let mut lines = text.lines().map(str::trim_start);
        if lines.any(|line| line.starts_with("/// ```") || line.starts_with("//! ```")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Runs tests while private servers are there for them.
///
/// `packages` are the words by which cargo chooses them.
pub(crate) fn run_packages(
    workspace: &Workspace,
    packages: &[&str],
    length: Length,
) -> Result<Outcome> {
    let nextest = find_program("cargo-nextest").is_some();
    let mut command = if nextest {
        workspace.cargo(&["nextest", "run", "--no-fail-fast"])
    } else {
        workspace.cargo(&["test", "--tests", "--no-fail-fast"])
    };
    command.args(packages);
    if nextest {
        command.arg(format!("--test-threads={}", at_once()));
    }
    if length == Length::Full {
        command.env(CAMPAIGN_ENV, "full");
        if nextest {
            command.args(["--profile", "accept"]);
        }
    }
    let postgres = PrivatePostgres::start().context("cannot start a private PostgreSQL")?;
    output::line(&postgres.version()?);
    let engines = Engines::start()?;
    engines.tell(&mut command);
    let folder = tempfile::TempDir::new().context("cannot make a folder")?;
    let skips = folder.path().join("skips");
    command.env(SKIPS_ENV, &skips);
    let outcome = conclude(command.env(POSTGRES_ENV, postgres.url()))?;
    let skips = std::fs::read_to_string(&skips).unwrap_or_default();
    Ok(with_skips(outcome, &skips))
}

/// How many tests run at once: more than there are cores, because much of what
/// they do is waiting for processes, disks and deadlines.
fn at_once() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores + cores.div_ceil(2)
}

/// Runs any command while a private PostgreSQL is there for it.
pub(crate) fn run_other(program: &str, arguments: &[String]) -> Result<Outcome> {
    let postgres = PrivatePostgres::start().context("cannot start a private PostgreSQL")?;
    let mut command = Command::new(program);
    run(
        command.args(arguments).env(POSTGRES_ENV, postgres.url()),
        "",
    )
}

/// Adds the tests that could not run on this machine to the note.
fn with_skips(outcome: Outcome, skips: &str) -> Outcome {
    for line in skips.lines() {
        output::line(&format!("skipped {line}"));
    }
    match (outcome, skips.lines().count()) {
        (Outcome::Passed(note), count) if count > 0 => {
            Outcome::Passed(format!("{note}, of which {count} skipped (see above)"))
        }
        (outcome, _) => outcome,
    }
}

fn conclude(command: &mut Command) -> Result<Outcome> {
    let (ended, lines) = run_and_keep(command, is_result)?;
    Ok(judge(ended, &Count::of(&lines)))
}

fn judge(ended: Ended, count: &Count) -> Outcome {
    match (ended, count.passed + count.failed) {
        // A filter that fits nothing must not look like success.
        (Ended::Well, 0) => Outcome::Failed("no test was run".to_owned()),
        (Ended::Well, _) => Outcome::Passed(format!("{} passed", count.passed)),
        (Ended::Badly, 0) => Outcome::Failed("the tests could not be run".to_owned()),
        (Ended::Badly, _) => Outcome::Failed(format!(
            "{} failed, {} passed; see above",
            count.failed, count.passed
        )),
    }
}

/// Whether a line has the numbers of a finished run.
fn is_result(line: &str) -> bool {
    line.starts_with("test result: ") || is_summary(line)
}

/// Whether a line is nextest's sum of a whole run.
fn is_summary(line: &str) -> bool {
    line.contains(" tests run: ") || line.contains(" test run: ")
}

/// How many tests ended how.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
}

impl Count {
    /// Adds up the results of `cargo test`, or takes those of nextest, which
    /// shows the `test result` of every failed test once more.
    fn of(lines: &[String]) -> Self {
        let summaries = lines.iter().any(|line| is_summary(line));
        let mut count = Self::default();
        for line in lines.iter().filter(|line| !summaries || is_summary(line)) {
            let words: Vec<&str> = line
                .split(|c: char| !c.is_alphanumeric())
                .filter(|word| !word.is_empty())
                .collect();
            for pair in words.windows(2) {
                if let [number, kind] = pair
                    && let Ok(number) = number.parse::<u64>()
                {
                    match *kind {
                        "passed" => count.passed += number,
                        "failed" | "timed" | "exec" => count.failed += number,
                        _ => {}
                    }
                }
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_cargo_test_are_added_up() {
        let lines = [
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ];
        let expected = Count {
            passed: 13,
            failed: 2,
        };
        assert_eq!(Count::of(&lines.map(str::to_owned)), expected);
    }

    #[test]
    fn the_summary_of_nextest_counts_alone() {
        let lines = [
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 34 filtered out",
            "Summary [   0.312s] 15 tests run: 12 passed (1 slow), 3 failed, 4 skipped",
        ];
        assert!(lines.iter().all(|line| is_result(line)));
        assert!(!is_result("test results::x ... ok"));
        let expected = Count {
            passed: 12,
            failed: 3,
        };
        assert_eq!(Count::of(&lines.map(str::to_owned)), expected);
    }

    #[test]
    fn skipped_tests_are_counted() {
        let passed = || Outcome::Passed("9 passed".to_owned());
        assert_eq!(with_skips(passed(), ""), passed());
        assert_eq!(
            with_skips(passed(), "one: no KVM\ntwo: no KVM\n"),
            Outcome::Passed("9 passed, of which 2 skipped (see above)".to_owned())
        );
        let failed = Outcome::Failed("1 failed".to_owned());
        assert_eq!(with_skips(failed.clone(), "one: no KVM\n"), failed);
    }

    #[test]
    fn a_run_without_a_test_is_no_success() {
        let count = |passed, failed| Count { passed, failed };
        let failed = |reason: &str| Outcome::Failed(reason.to_owned());
        assert_eq!(judge(Ended::Well, &count(0, 0)), failed("no test was run"));
        let broken = failed("the tests could not be run");
        assert_eq!(judge(Ended::Badly, &count(0, 0)), broken);
        let some = failed("1 failed, 3 passed; see above");
        assert_eq!(judge(Ended::Badly, &count(3, 1)), some);
        let fine = Outcome::Passed("3 passed".to_owned());
        assert_eq!(judge(Ended::Well, &count(3, 0)), fine);
    }
}
