//! What a run of the tests said, as named results.
//!
//! Each format has its own parser below; [`parse`] picks one. A parser never
//! fails and never trusts: what it cannot read becomes [`Trouble`], and a
//! report with trouble proves nothing. What follows from a report is decided
//! in [`crate::evidence`].

mod cargo;
mod go;
mod javascript;
mod json;
mod junit;
mod libtest;
mod nextest;
mod pytest;
mod sniff;
mod spec;
mod tap;
mod text;

use fluffy_base::Digest;
use serde::{Deserialize, Serialize};

pub use text::same_file;
pub(crate) use text::{cut, workspace_path};

/// The most results a report holds.
pub const MAX_RESULTS: usize = 100_000;

/// The longest name of a test, in bytes.
pub const MAX_NAME: usize = 256;

/// The longest message of a result, in bytes.
pub const MAX_MESSAGE: usize = 2_000;

/// The most bytes of output that are looked at.
pub const MAX_OUTPUT: usize = 64 * 1024 * 1024;

/// Reads the output of one run.
#[must_use]
pub fn parse(format: Format, run: &Run<'_>) -> Report {
    if run.stdout.len().saturating_add(run.stderr.len()) > MAX_OUTPUT {
        let mut report = Report::new(Format::ExitCode, run.exit);
        report.trouble.push(Trouble::Cut);
        return report;
    }
    let stdout = text::plain(run.stdout);
    let stderr = text::plain(run.stderr);
    let plain = Run {
        stdout: &stdout,
        stderr: &stderr,
        ..*run
    };
    let format = match format {
        Format::Auto => sniff::format(&plain),
        other => other,
    };
    let mut report = Report::new(format, run.exit);
    match format {
        Format::Libtest => libtest::read(&plain, &mut report),
        Format::LibtestJson => json::libtest(&plain, &mut report),
        Format::Nextest => nextest::read(&plain, &mut report),
        Format::Pytest => pytest::read(&plain, &mut report),
        Format::Junit => junit::read(&plain, &mut report),
        Format::Tap => tap::read(&plain, &mut report),
        Format::NodeSpec => spec::read(&plain, &mut report),
        Format::GoJson => go::read(&plain, &mut report),
        Format::JestJson => json::jest(&plain, &mut report),
        Format::MochaJson => json::mocha(&plain, &mut report),
        Format::ExitCode | Format::Auto => by_exit_code(&plain, &mut report),
    }
    report.finish();
    report
}

/// The last resort: the whole command is one result.
fn by_exit_code(run: &Run<'_>, report: &mut Report) {
    let outcome = match run.exit {
        Exit::Code(0) => Outcome::Passed,
        // 126 and above are the shell's words for what did not run.
        Exit::Code(1..=125) => Outcome::Failed,
        Exit::Code(_) | Exit::Signal(_) | Exit::TimedOut => Outcome::Broken,
    };
    let tail = match run.stderr.trim().is_empty() {
        true => run.stdout,
        false => run.stderr,
    };
    let message = (outcome != Outcome::Passed).then(|| text::tail(tail));
    report.push(TestResult {
        message,
        ..TestResult::new(run.command, outcome)
    });
}

/// How the output of a runner is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// `cargo test`.
    Libtest,
    /// `cargo test -- --format json`, and nextest's `libtest-json`.
    LibtestJson,
    /// `cargo nextest run`.
    Nextest,
    /// `pytest`, best with `-v -rA`.
    Pytest,
    /// JUnit XML, whoever wrote it.
    Junit,
    /// The Test Anything Protocol.
    Tap,
    /// The ticks and crosses of `node --test`.
    NodeSpec,
    /// `go test -json`.
    GoJson,
    /// `jest --json` and `vitest --reporter=json`.
    JestJson,
    /// `mocha --reporter json`.
    MochaJson,
    /// Nothing but the exit code.
    ExitCode,
    /// Whatever it turns out to be.
    Auto,
}

impl Format {
    /// All there are.
    pub const ALL: [Self; 12] = [
        Self::Libtest,
        Self::LibtestJson,
        Self::Nextest,
        Self::Pytest,
        Self::Junit,
        Self::Tap,
        Self::NodeSpec,
        Self::GoJson,
        Self::JestJson,
        Self::MochaJson,
        Self::ExitCode,
        Self::Auto,
    ];
}

/// The output of one run, as it came.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The command, as people would write it.
    pub command: &'a str,
    /// Where the project was while it ran, such as `/workspace`.
    pub root: &'a str,
    /// Standard output; standard error may be mixed into it.
    pub stdout: &'a str,
    /// Standard error.
    pub stderr: &'a str,
    /// How it ended.
    pub exit: Exit,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// By its time limit.
    TimedOut,
}

/// How one test ended.
///
/// The order is from best to worst: of two results with one name the worse
/// counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ran and passed.
    Passed,
    /// It did not run, or was expected to fail.
    Skipped,
    /// It failed in its own body.
    Failed,
    /// The file or target it is in could not be compiled or loaded.
    DidNotCompile,
    /// It failed outside its own body: in a fixture, a hook, the runner.
    Broken,
}

/// One named result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestResult {
    /// The package, binary, file or class, if the name alone is ambiguous.
    pub suite: Option<String>,
    /// The name that the runner gives it.
    pub name: String,
    /// The file it is in, as a path of the workspace, if that is known.
    pub file: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// What the runner said about it.
    pub message: Option<String>,
    /// Why it did not compile; empty for every other outcome.
    pub errors: Vec<CompileError>,
}

impl TestResult {
    /// A result that has only a name.
    #[must_use]
    pub fn new(name: &str, outcome: Outcome) -> Self {
        Self {
            suite: None,
            name: bounded_name(name),
            file: None,
            outcome,
            message: None,
            errors: Vec::new(),
        }
    }

    /// Suite and name as one text, the same in every run.
    #[must_use]
    pub fn key(&self) -> String {
        match &self.suite {
            Some(suite) => format!("{suite} {}", self.name),
            None => self.name.clone(),
        }
    }
}

/// One reason why something could not be compiled or loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompileError {
    /// The file that is wrong, as a path of the workspace.
    pub file: Option<String>,
    /// The line, from 1.
    pub line: Option<u32>,
    /// What the compiler said.
    pub message: String,
    /// What could make it go away.
    pub remedy: Remedy,
}

/// What could make a compile error go away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Source that does not exist yet: a function, a module, a field.
    Source,
    /// Only the file itself: it is malformed.
    Itself,
}

/// Why a report proves nothing, or less than it seems to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Trouble {
    /// No test ran.
    #[error("no test ran")]
    NoTests,
    /// The runner counted differently from what it listed.
    #[error("the runner counted {said} results and listed {seen}")]
    Counts {
        /// What its summary says.
        said: usize,
        /// What was found.
        seen: usize,
    },
    /// The runner did not get as far as running tests, or died.
    #[error("the test runner is broken: {detail}")]
    Runner {
        /// What it said.
        detail: String,
    },
    /// The exit code contradicts the results.
    #[error("the runner ended with {exit:?} although its results say otherwise")]
    Contradiction {
        /// How it ended.
        exit: Exit,
    },
    /// There was more than is looked at.
    #[error("the output is larger than {MAX_OUTPUT} bytes or has more than {MAX_RESULTS} results")]
    Cut,
}

/// What one run said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How the output was read.
    pub format: Format,
    /// Every result, in the runner's order.
    pub results: Vec<TestResult>,
    /// What is wrong with the run itself.
    pub trouble: Vec<Trouble>,
    /// How it ended.
    pub exit: Exit,
}

impl Report {
    pub(crate) const fn new(format: Format, exit: Exit) -> Self {
        Self {
            format,
            results: Vec::new(),
            trouble: Vec::new(),
            exit,
        }
    }

    /// Several runs as one, for projects with more than one test command.
    ///
    /// A command without tests is no trouble if another one has some.
    #[must_use]
    pub fn join(reports: Vec<Self>) -> Self {
        let mut reports = reports.into_iter();
        let Some(mut whole) = reports.next() else {
            return Self {
                trouble: vec![Trouble::NoTests],
                ..Self::new(Format::ExitCode, Exit::Code(0))
            };
        };
        for report in reports {
            for result in report.results {
                whole.push(result);
            }
            whole.trouble.extend(report.trouble);
            if whole.exit == Exit::Code(0) {
                whole.exit = report.exit;
            }
            // One format for all would be a lie; only the exit code's matters.
            if whole.format == Format::ExitCode {
                whole.format = report.format;
            }
        }
        if !whole.results.is_empty() {
            whole.trouble.retain(|trouble| *trouble != Trouble::NoTests);
        }
        whole
    }

    /// The same with what integration tests of this name said beside it.
    ///
    /// Their results are named after them, so that none passes for another
    /// test. How the output is read stays the other tests' affair, unless
    /// there are none.
    #[must_use]
    pub fn beside(mut self, name: &str, other: Self) -> Self {
        if self.results.is_empty() {
            self.format = other.format;
        }
        for mut result in other.results {
            result.suite = Some(match result.suite {
                Some(suite) => bounded_name(&format!("{name} {suite}")),
                None => name.to_owned(),
            });
            self.push(result);
        }
        self.trouble.extend(other.trouble);
        if !self.results.is_empty() {
            self.trouble.retain(|trouble| *trouble != Trouble::NoTests);
        }
        if self.exit == Exit::Code(0) {
            self.exit = other.exit;
        }
        self
    }

    pub(crate) fn push(&mut self, result: TestResult) {
        match self.results.len() < MAX_RESULTS {
            true => self.results.push(result),
            false if self.trouble.contains(&Trouble::Cut) => {}
            false => self.trouble.push(Trouble::Cut),
        }
    }

    pub(crate) fn broken_runner(&mut self, detail: &str) {
        self.trouble.push(Trouble::Runner {
            detail: text::cut(detail.trim(), MAX_MESSAGE),
        });
    }

    /// Results that ran, whether they passed or failed.
    #[must_use]
    pub fn executed(&self) -> usize {
        let ran =
            |result: &&TestResult| matches!(result.outcome, Outcome::Passed | Outcome::Failed);
        self.results.iter().filter(ran).count()
    }

    /// Checks the results against how the run ended.
    fn finish(&mut self) {
        if self.results.is_empty() && self.trouble.is_empty() {
            match self.exit {
                Exit::Code(0) => self.trouble.push(Trouble::NoTests),
                Exit::Code(code) => self.broken_runner(&format!("no results and exit code {code}")),
                Exit::Signal(signal) => self.broken_runner(&format!("ended by signal {signal}")),
                Exit::TimedOut => self.broken_runner("ended by its time limit"),
            }
            return;
        }
        let bad = |result: &TestResult| result.outcome > Outcome::Skipped;
        let agrees = match self.exit {
            Exit::Code(0) => !self.results.iter().any(bad),
            Exit::Code(_) => self.results.iter().any(bad) || !self.trouble.is_empty(),
            Exit::Signal(_) | Exit::TimedOut => false,
        };
        if !agrees {
            self.trouble
                .push(Trouble::Contradiction { exit: self.exit });
        }
    }
}

/// A name that fits; what was cut off lives on in a digest.
fn bounded_name(name: &str) -> String {
    let name: String = match name.contains(char::is_control) {
        true => name.replace(char::is_control, " "),
        false => name.to_owned(),
    };
    let name = name.trim();
    if name.len() <= MAX_NAME {
        return name.to_owned();
    }
    let digest = Digest::of(name.as_bytes()).to_string();
    let digest: String = digest.chars().take(12).collect();
    format!("{}… {digest}", text::cut(name, MAX_NAME - 16))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exit(stdout: &str, exit: Exit) -> Report {
        let run = Run {
            command: "make test",
            root: "/w",
            stdout,
            stderr: "",
            exit,
        };
        parse(Format::Auto, &run)
    }

    #[test]
    fn the_exit_code_is_the_last_resort() {
        let outcome = |code| exit("something", Exit::Code(code)).results[0].outcome;
        assert_eq!(outcome(0), Outcome::Passed);
        assert_eq!(outcome(1), Outcome::Failed);
        assert_eq!(outcome(127), Outcome::Broken, "there is no such command");
        let killed = exit("", Exit::TimedOut);
        assert_eq!(killed.results[0].outcome, Outcome::Broken);
        assert!(!killed.trouble.is_empty());
        assert_eq!(exit("x", Exit::Code(2)).results[0].name, "make test");
    }

    #[test]
    fn joined_runs_keep_their_trouble() {
        let tap = |text: &str, code| exit(text, Exit::Code(code));
        let whole = Report::join(vec![
            tap("1..1\nok 1 - a\n", 0),
            tap("1..0\n", 0),
            tap("1..2\nnot ok 1 - b\n", 1),
        ]);
        assert_eq!(whole.results.len(), 2);
        assert_eq!(whole.trouble, [Trouble::Counts { said: 2, seen: 1 }]);
        assert_eq!(whole.exit, Exit::Code(1));
        assert_eq!(Report::join(vec![]).trouble, [Trouble::NoTests]);
    }

    #[test]
    fn integration_tests_never_pass_for_another_test() {
        let unit = exit("1..1\nok 1 - a\n", Exit::Code(0));
        let other = exit("1..1\nnot ok 1 - a\n", Exit::Code(1));
        let whole = unit.clone().beside("server", other.clone());
        let keys: Vec<String> = whole.results.iter().map(TestResult::key).collect();
        assert_eq!(keys, ["a", "server a"]);
        assert_eq!(whole.exit, Exit::Code(1));
        assert_eq!(whole.trouble, []);
        // A runner whose exit code is all there is stays one.
        let plain = exit("something", Exit::Code(0)).beside("server", other.clone());
        assert_eq!(plain.format, Format::ExitCode);
        let alone = Report::join(vec![]).beside("server", other);
        assert_eq!((alone.format, alone.trouble.len()), (Format::Tap, 0));
        let nothing = unit.beside("server", exit("1..0\n", Exit::Code(0)));
        assert_eq!(nothing.trouble, []);
    }

    #[test]
    fn names_are_bounded_and_stay_different() {
        let long = "x".repeat(10_000);
        let (one, other) = (format!("{long}1"), format!("{long}2"));
        let name = |text: &str| TestResult::new(text, Outcome::Passed).name;
        assert!(name(&one).len() <= MAX_NAME);
        assert_ne!(name(&one), name(&other));
        assert_eq!(name("a\nb"), "a b");
    }

    /// Lines that parsers look for, to be put together in any order.
    const PIECES: &[&str] = &[
        "running 2 tests",
        "test a ... ok",
        "test b ... FAILED",
        "failures:",
        "---- a stdout ----",
        "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
        "     Running tests/a.rs (target/debug/deps/a-1)",
        "error[E0425]: x",
        " --> src/a.rs:1:1",
        "error: could not compile `a`",
        "        PASS [ 0.1s] (1/2) a b",
        "     Summary [ 1s] 1 tests run",
        "a.py::b PASSED [ 5%]",
        "=== FAILURES ===",
        "___ b ___",
        "E   x",
        "=== 1 passed in 0.1s ===",
        "___ ERROR collecting a.py ___",
        "a.py:1: in <module>",
        "SKIPPED [3] a.py:1: x",
        "<testsuite>",
        "<testcase name=\"a\">",
        "</testcase>",
        "<failure message=\"&lt;\">",
        "&x;",
        "TAP version 13",
        "ok 1 - a # SKIP",
        "not ok 2 - /w/a.js",
        "  ---",
        "  ...",
        "# Subtest: a",
        "    ok 1 - b",
        "1..2",
        "}",
        "ok 1 - a {",
        "Bail out!",
        "✔ a (1ms)",
        "▶ s",
        "✖ s (1ms)",
        "ℹ tests 2",
        "test at a.js:1:1",
        r#"{"Action":"fail","Package":"p","Test":"T"}"#,
        "a_test.go:1:2: undefined: x",
        "FAIL p [build failed]",
        r#"{"type":"suite","event":"started","test_count":1}"#,
        r#"{"type":"test","event":"ok","name":"a$b"}"#,
        r#"{"numTotalTests":1,"testResults":[{"name":"/w/a","status":"failed","assertionResults":[]}]}"#,
        "{",
        "\"stats\"",
        "é",
        "",
        "\u{1b}[31m",
        "'",
        "[",
        "%]",
        "::",
        " - ",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// No output makes a parser panic, and a green run has no trouble.
        #[test]
        fn parsers_take_anything(
            picks in proptest::collection::vec((0..PIECES.len(), any::<bool>()), 0..30),
            noise in "\\PC{0,40}",
            code in -1i32..130,
        ) {
            let mut stdout = String::new();
            for (pick, newline) in picks {
                stdout.push_str(PIECES[pick]);
                stdout.push_str(if newline { "\n" } else { &noise });
            }
            for format in Format::ALL {
                let run = Run { command: "x", root: "/w", stdout: &stdout, stderr: &noise, exit: Exit::Code(code) };
                let report = parse(format, &run);
                let bad = report.results.iter().any(|result| result.outcome > Outcome::Skipped);
                let clean = report.trouble.is_empty();
                prop_assert!(!clean || !report.results.is_empty(), "{format:?}: nothing proves nothing");
                prop_assert!(!clean || bad == (code != 0), "{format:?}: {report:?}");
                for result in &report.results {
                    prop_assert!(result.name.len() <= MAX_NAME);
                    prop_assert!(result.message.as_ref().is_none_or(|said| said.len() <= MAX_MESSAGE));
                }
            }
        }
    }
}
