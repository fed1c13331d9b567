//! Red: a new or changed test fails, for the right reason.
//!
//! Goes through a run result by result and never takes a failure for red
//! that source could not mend, or that was there before the session. Which
//! test is in which file is found out in `changed.rs`.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::Digest;
use serde::{Deserialize, Serialize};

use super::cause::is_refused_socket;
use super::changed::{ChangedFile, Looked, endings};
use super::{Baseline, Freeze, MAX_NAMED, digest_of, named};
use crate::project::declared::names_it;
use crate::results::{Format, Outcome, Remedy, Report, TestResult, Trouble, cut, same_file};

/// Decides whether a run is red.
///
/// # Errors
/// Why it is not: the first thing that would have to change.
pub fn red(
    baseline: &Baseline,
    run: &Report,
    changed: &[ChangedFile<'_>],
    freeze: Freeze,
) -> Result<Red, NotRed> {
    if let Some(trouble) = run.trouble.first() {
        return Err(match trouble {
            Trouble::NoTests => NotRed::NoTests,
            Trouble::Runner { detail } => NotRed::Runner {
                detail: detail.clone(),
            },
            Trouble::Counts { .. } | Trouble::Contradiction { .. } | Trouble::Cut => {
                NotRed::Doubtful {
                    trouble: trouble.clone(),
                }
            }
        });
    }
    let changed: Vec<Looked<'_>> = changed.iter().filter_map(Looked::at).collect();
    if changed.is_empty() {
        return Err(NotRed::NothingNew);
    }
    let compiled = |result: &TestResult| result.outcome != Outcome::DidNotCompile;
    if run.results.iter().all(compiled) {
        let lost = lost(baseline, run);
        if !lost.is_empty() {
            return Err(NotRed::Lost { tests: named(lost) });
        }
    }
    let mut judge = Judge::new(baseline, run.format, changed);
    for result in &run.results {
        judge.hear(result);
    }
    if judge.red.is_empty() {
        return Err(judge.reason());
    }
    Ok(Red {
        tests: fitting(judge.red),
        passing: named(judge.already_pass),
        executed: run.executed(),
        freeze,
    })
}

/// As many red tests as fit into an event; the others must pass all the same,
/// because at the end no test may fail that did not fail before.
fn fitting(tests: Vec<RedTest>) -> Vec<RedTest> {
    let mut room = MAX_RED_BYTES;
    let fits = |test: &RedTest| {
        let bytes = serde_json::to_string(test).map_or(usize::MAX, |text| text.len());
        room = room.saturating_sub(bytes);
        room > 0
    };
    tests.into_iter().take(MAX_NAMED).take_while(fits).collect()
}

/// The most bytes of red tests in one piece of evidence.
const MAX_RED_BYTES: usize = 128 * 1024;

/// The evidence that new tests fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Red {
    tests: Vec<RedTest>,
    passing: Vec<String>,
    executed: usize,
    freeze: Freeze,
}

impl Red {
    /// The tests that fail and have to pass.
    #[must_use]
    pub fn tests(&self) -> &[RedTest] {
        &self.tests
    }

    /// New or changed tests that passed from the start and have to stay so.
    #[must_use]
    pub fn passing(&self) -> &[String] {
        &self.passing
    }

    /// How many tests ran.
    #[must_use]
    pub const fn executed(&self) -> usize {
        self.executed
    }

    /// What may not change from here on.
    #[must_use]
    pub const fn freeze(&self) -> &Freeze {
        &self.freeze
    }

    /// A digest of all of it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        digest_of(self)
    }
}

/// One test that is red.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedTest {
    /// The runner's name, or the declared one if it never ran.
    pub name: String,
    /// Where it is, if that is known.
    pub file: Option<String>,
    /// How it fails.
    pub failure: Failure,
    /// What the runner said.
    pub message: String,
}

impl RedTest {
    /// Whether a result is that of this test.
    pub(super) fn is(&self, result: &TestResult, baseline: &Baseline) -> bool {
        let key = result.key();
        if key == self.name {
            return true;
        }
        match self.failure {
            Failure::InItsBody => false,
            // It never ran, so its whole name is not known. It is not the name
            // of a test that ran before the session.
            Failure::DoesNotCompile => {
                let file = self.file.as_deref().zip(result.file.as_deref());
                baseline.outcome(&key).is_none()
                    && names_it(&result.name, &self.name)
                    && file.is_none_or(|(own, its)| same_file(own, its))
            }
        }
    }
}

/// How a red test fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// It ran and failed.
    InItsBody,
    /// What it needs does not exist yet.
    DoesNotCompile,
}

/// Why a run is not red.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NotRed {
    /// No test ran.
    #[error("no test ran")]
    NoTests,
    /// The runner did not get as far as running tests.
    #[error("the test runner is broken: {detail}")]
    Runner {
        /// What it said.
        detail: String,
    },
    /// The run contradicts itself.
    #[error("the run proves nothing: {trouble}")]
    Doubtful {
        /// What is wrong with it.
        trouble: Trouble,
    },
    /// No test is new or changed.
    #[error("no test is new or changed")]
    NothingNew,
    /// The new or changed tests pass already.
    #[error("the new or changed tests pass already: {}", shown(tests))]
    AlreadyPass {
        /// Those tests.
        tests: Vec<String>,
    },
    /// Tests that ran before are gone or skipped.
    #[error("tests that passed before are gone or skipped: {}", shown(tests))]
    Lost {
        /// Those tests.
        tests: Vec<String>,
    },
    /// Only tests that are neither new nor changed fail.
    #[error("what fails is neither new nor changed: {}", shown(tests))]
    Elsewhere {
        /// What fails.
        tests: Vec<String>,
    },
    /// A test file is malformed, which no source can mend.
    #[error("the test itself is malformed: {message}")]
    Malformed {
        /// The file.
        file: String,
        /// What the compiler said.
        message: String,
    },
    /// Tests failed in a fixture or hook, not in their own body.
    #[error("tests fail outside their own body: {}", shown(tests))]
    OutsideBody {
        /// Those tests.
        tests: Vec<String>,
    },
    /// Tests failed because the sandbox has no network.
    #[error("tests fail because a socket was refused: {}", shown(tests))]
    RefusedSocket {
        /// Those tests.
        tests: Vec<String>,
    },
}

/// The first few names, as one text.
pub(super) fn shown(names: &[String]) -> String {
    let first: Vec<String> = names
        .iter()
        .take(5)
        .map(|name| format!("`{name}`"))
        .collect();
    match names.len().saturating_sub(first.len()) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Tests that passed in the baseline and now are absent or skipped.
fn lost(baseline: &Baseline, run: &Report) -> Vec<String> {
    let now = Baseline::of(run);
    let gone = |key: &&str| matches!(now.outcome(key), None | Some(Outcome::Skipped));
    baseline
        .passing()
        .filter(gone)
        .map(ToOwned::to_owned)
        .collect()
}

/// Goes through a run and sorts what it says.
struct Judge<'a> {
    baseline: &'a Baseline,
    format: Format,
    changed: Vec<Looked<'a>>,
    /// Which changed files declare a test whose name ends in a word.
    by_word: BTreeMap<String, BTreeSet<usize>>,
    /// Whether a declared test passed in the baseline, once it was looked up.
    passed: BTreeMap<String, bool>,
    red: Vec<RedTest>,
    already_pass: Vec<String>,
    refused: Vec<String>,
    outside: Vec<String>,
    elsewhere: Vec<String>,
    malformed: Option<(String, String)>,
}

/// What the session did to a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum History {
    Fresh,
    Old,
}

impl<'a> Judge<'a> {
    fn new(baseline: &'a Baseline, format: Format, changed: Vec<Looked<'a>>) -> Self {
        let mut by_word: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for (at, file) in changed.iter().enumerate() {
            for word in file.words() {
                by_word.entry(word.to_owned()).or_default().insert(at);
            }
        }
        Self {
            baseline,
            format,
            changed,
            by_word,
            passed: BTreeMap::new(),
            red: Vec::new(),
            already_pass: Vec::new(),
            refused: Vec::new(),
            outside: Vec::new(),
            elsewhere: Vec::new(),
            malformed: None,
        }
    }

    fn hear(&mut self, result: &TestResult) {
        let key = result.key();
        match result.outcome {
            Outcome::Skipped => {}
            Outcome::DidNotCompile => self.hear_errors(result),
            Outcome::Passed => match self.history(result) {
                History::Fresh => self.already_pass.push(key),
                History::Old => {}
            },
            Outcome::Broken => match self.history(result) {
                History::Fresh => self.outside.push(key),
                History::Old => self.elsewhere.push(key),
            },
            Outcome::Failed => match self.history(result) {
                History::Fresh => self.hear_failure(key, result),
                History::Old => self.elsewhere.push(key),
            },
        }
    }

    fn hear_failure(&mut self, key: String, result: &TestResult) {
        let message = result.message.as_deref().unwrap_or_default();
        match is_refused_socket(message) {
            true => self.refused.push(key),
            false => self.red.push(RedTest {
                name: key,
                file: result.file.clone(),
                failure: Failure::InItsBody,
                message: cut(message, 300),
            }),
        }
    }

    /// Every error must be in tests that the session wrote, and one that
    /// source can mend.
    fn hear_errors(&mut self, result: &TestResult) {
        let mut files: Vec<&Looked<'_>> = Vec::new();
        for error in &result.errors {
            let Some(file) = self.changed.iter().find(|file| file.is_in_tests(error)) else {
                self.elsewhere.push(result.key());
                return;
            };
            if error.remedy == Remedy::Itself {
                let known = (file.file.path.to_owned(), error.message.clone());
                self.malformed.get_or_insert(known);
                return;
            }
            if !files.iter().any(|known| known.file.path == file.file.path) {
                files.push(file);
            }
        }
        for file in files {
            for name in file.unrunnable(self.baseline) {
                self.red.push(RedTest {
                    name,
                    file: Some(file.file.path.to_owned()),
                    failure: Failure::DoesNotCompile,
                    message: cut(result.message.as_deref().unwrap_or_default(), 300),
                });
            }
        }
    }

    /// Whether a test is new or changed, or as it was.
    fn history(&mut self, result: &TestResult) -> History {
        let was = self.baseline.outcome(&result.key());
        // The whole command is one result: it changed if any test did.
        if self.format == Format::ExitCode {
            return match was {
                Some(Outcome::Passed) => History::Fresh,
                Some(_) | None => History::Old,
            };
        }
        let holding = self.holding(result);
        if holding.is_empty() {
            return History::Old;
        }
        let before = holding.iter().flat_map(|file| file.declared_before(result));
        let before: Vec<String> = before.map(ToOwned::to_owned).collect();
        match was {
            Some(Outcome::Passed | Outcome::Skipped) => History::Fresh,
            // It failed before the session, so that it fails now proves nothing.
            Some(Outcome::Failed | Outcome::DidNotCompile | Outcome::Broken) => History::Old,
            None if before.is_empty() => History::Fresh,
            // New parameters of a test that passed with its old ones.
            None => match before.iter().any(|name| self.has_passed(name)) {
                true => History::Fresh,
                false => History::Old,
            },
        }
    }

    /// The changed files that a test may be in.
    fn holding(&self, result: &TestResult) -> Vec<&Looked<'a>> {
        let named = endings(&result.name).into_iter();
        let named = named.filter_map(|word| self.by_word.get(word)).flatten();
        let mut places: BTreeSet<usize> = named.copied().collect();
        if result.file.is_some() {
            places.extend(0..self.changed.len());
        }
        let files = places.into_iter().filter_map(|at| self.changed.get(at));
        files.filter(|file| file.holds(result)).collect()
    }

    fn has_passed(&mut self, declared: &str) -> bool {
        if let Some(known) = self.passed.get(declared) {
            return *known;
        }
        let passed = self.baseline.passing().any(|key| names_it(key, declared));
        self.passed.insert(declared.to_owned(), passed);
        passed
    }

    /// The nearest thing to red, as the reason why it is not.
    fn reason(self) -> NotRed {
        if !self.refused.is_empty() {
            let tests = named(self.refused);
            return NotRed::RefusedSocket { tests };
        }
        if let Some((file, message)) = self.malformed {
            return NotRed::Malformed { file, message };
        }
        if !self.outside.is_empty() {
            let tests = named(self.outside);
            return NotRed::OutsideBody { tests };
        }
        if !self.already_pass.is_empty() {
            let tests = named(self.already_pass);
            return NotRed::AlreadyPass { tests };
        }
        match self.elsewhere.is_empty() {
            false => NotRed::Elsewhere {
                tests: named(self.elsewhere),
            },
            true => NotRed::NothingNew,
        }
    }
}
