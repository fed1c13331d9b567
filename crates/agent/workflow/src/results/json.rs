//! Reports in JSON: libtest's and nextest's lines, jest's, vitest's, mocha's.
//!
//! Unknown fields are skipped; a report that lacks the known ones is no
//! report, and its runner counts as broken.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Deserialize;

use super::libtest::{Header, stable_name};
use super::text::{self, Message};
use super::{Outcome, Report, Run, TestResult, Trouble, cargo, javascript};

/// `cargo test -- --format json` and nextest's `libtest-json`.
pub(super) fn libtest(run: &Run<'_>, report: &mut Report) {
    if cargo::read_errors(run, report) {
        return;
    }
    let headers = run.stderr.lines().filter_map(Header::parse);
    let mut headers: VecDeque<Header> = headers.collect();
    let events = || {
        let lines = run.stdout.lines().filter(|line| line.starts_with('{'));
        lines.filter_map(|line| serde_json::from_str::<LibtestEvent>(line).ok())
    };
    let suites = events().filter(|event| event.kind == "suite" && event.event == "started");
    if suites.count() != headers.len() {
        headers.clear();
    }
    let mut header = None;
    let mut open = false;
    let mut seen = 0usize;
    for event in events() {
        match (event.kind.as_str(), event.event.as_str()) {
            ("suite", "started") => {
                header = headers.pop_front();
                (open, seen) = (true, 0);
            }
            ("suite", _) => {
                open = false;
                let said = event.passed + event.failed + event.ignored + event.measured;
                // Nextest counts a suite that it ran in parts oddly.
                if said != seen && report.format == super::Format::LibtestJson && header.is_some() {
                    report.trouble.push(Trouble::Counts { said, seen });
                }
            }
            ("test", word) => {
                let outcome = match word {
                    "ok" => Outcome::Passed,
                    "failed" | "timeout" => Outcome::Failed,
                    "ignored" => Outcome::Skipped,
                    _ => continue,
                };
                seen += 1;
                report.push(libtest_result(run.root, header.as_ref(), event, outcome));
            }
            _ => {}
        }
    }
    if open {
        report.broken_runner("a target ended before its tests did");
    }
}

#[derive(Deserialize)]
struct LibtestEvent {
    #[serde(rename = "type")]
    kind: String,
    event: String,
    #[serde(default)]
    name: String,
    stdout: Option<String>,
    message: Option<String>,
    #[serde(default)]
    passed: usize,
    #[serde(default)]
    failed: usize,
    #[serde(default)]
    ignored: usize,
    #[serde(default)]
    measured: usize,
}

fn libtest_result(
    root: &str,
    header: Option<&Header>,
    event: LibtestEvent,
    outcome: Outcome,
) -> TestResult {
    // Nextest writes `package::binary$name`.
    let (suite, name) = match event.name.split_once('$') {
        Some((binary, name)) => (Some(binary.to_owned()), name),
        None => (
            header.map(|header| header.suite.clone()),
            event.name.as_str(),
        ),
    };
    let name = stable_name(name);
    let file = header.and_then(|header| header.file.as_deref());
    let message = event
        .stdout
        .or(event.message)
        .map(|said| text::cut(said.trim(), super::MAX_MESSAGE));
    TestResult {
        suite,
        file: file.and_then(|file| text::workspace_path(root, file)),
        message: message.filter(|said| !said.is_empty()),
        ..TestResult::new(&name, outcome)
    }
}

/// `jest --json` and `vitest --reporter=json`.
pub(super) fn jest(run: &Run<'_>, report: &mut Report) {
    let Some(found) = embedded::<Jest>(run.stdout, "\"testResults\"") else {
        report.broken_runner(&text::tail(match run.stderr.trim() {
            "" => run.stdout,
            stderr => stderr,
        }));
        return;
    };
    let mut seen = 0usize;
    for file in found.test_results {
        let path = text::workspace_path(run.root, &file.name);
        let loaded = file.status != "failed" || !file.assertion_results.is_empty();
        seen += file.assertion_results.len();
        for test in file.assertion_results {
            let outcome = match test.status.as_str() {
                "passed" => Outcome::Passed,
                "failed" => Outcome::Failed,
                _ => Outcome::Skipped,
            };
            let mut message = Message::default();
            for line in test.failure_messages.iter().flat_map(|text| text.lines()) {
                message.line(line);
            }
            let names = test.ancestor_titles.iter().chain([&test.title]);
            let names: Vec<&str> = names.map(String::as_str).collect();
            report.push(TestResult {
                suite: path.clone(),
                file: path.clone(),
                message: message.finish(),
                ..TestResult::new(&names.join(" > "), outcome)
            });
        }
        if !loaded {
            let own = path.unwrap_or(file.name);
            let said = text::plain(&file.message);
            let error = javascript::load_error(run.root, &own, &said);
            report.push(cargo::result(&own, vec![error]));
        }
    }
    if let Some(said) = found.total
        && said != seen
    {
        report.trouble.push(Trouble::Counts { said, seen });
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Jest {
    #[serde(rename = "numTotalTests")]
    total: Option<usize>,
    test_results: Vec<JestFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JestFile {
    name: String,
    status: String,
    #[serde(default)]
    message: String,
    assertion_results: Vec<JestTest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JestTest {
    title: String,
    #[serde(default)]
    ancestor_titles: Vec<String>,
    status: String,
    #[serde(default)]
    failure_messages: Vec<String>,
}

/// `mocha --reporter json`.
pub(super) fn mocha(run: &Run<'_>, report: &mut Report) {
    let Some(found) = embedded::<Mocha>(run.stdout, "\"stats\"") else {
        // Mocha loads every file before it runs the first test.
        let printed = format!("{}\n{}", run.stderr, run.stdout);
        let error = javascript::load_error(run.root, "", &printed);
        match error.file.clone().filter(|file| !file.is_empty()) {
            Some(file) => report.push(cargo::result(&file, vec![error])),
            None => report.broken_runner(&text::tail(&printed)),
        }
        return;
    };
    let id = |test: &MochaTest| (test.full_title.clone(), test.file.clone());
    let listed: BTreeSet<_> = found.tests.iter().map(id).collect();
    let pending: BTreeSet<_> = found.pending.iter().map(id).collect();
    let failures = found.failures.iter();
    let failures: BTreeMap<_, _> = failures.map(|test| (id(test), &test.err.message)).collect();
    let seen = found.tests.len();
    for test in &found.tests {
        let failed = failures.get(&id(test)).copied();
        let outcome = match (failed, pending.contains(&id(test))) {
            (Some(_), _) => Outcome::Failed,
            (None, true) => Outcome::Skipped,
            (None, false) => Outcome::Passed,
        };
        let file = test.file.as_deref();
        let file = file.and_then(|file| text::workspace_path(run.root, file));
        let said = failed.and_then(Option::as_deref);
        report.push(TestResult {
            suite: file.clone(),
            file,
            message: said.map(|said| text::cut(said, super::MAX_MESSAGE)),
            ..TestResult::new(&test.full_title, outcome)
        });
    }
    // A hook that failed is in no list of tests.
    for (name, file) in failures.into_keys() {
        if !listed.contains(&(name.clone(), file)) {
            report.push(TestResult::new(&name, Outcome::Broken));
        }
    }
    if found.stats.tests != seen {
        let said = found.stats.tests;
        report.trouble.push(Trouble::Counts { said, seen });
    }
}

#[derive(Deserialize)]
struct Mocha {
    stats: MochaStats,
    tests: Vec<MochaTest>,
    #[serde(default)]
    pending: Vec<MochaTest>,
    #[serde(default)]
    failures: Vec<MochaTest>,
}

#[derive(Deserialize)]
struct MochaStats {
    tests: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MochaTest {
    full_title: String,
    file: Option<String>,
    #[serde(default)]
    err: MochaError,
}

#[derive(Deserialize, Default)]
struct MochaError {
    message: Option<String>,
}

/// The last JSON object of the output that holds a mark.
///
/// Tests print too, so the object may stand among other lines; the last one
/// is the reporter's.
fn embedded<'a, T: Deserialize<'a>>(text: &'a str, mark: &str) -> Option<T> {
    let end = text.rfind('}')?;
    let body = text.get(..=end)?;
    let marked = body.rfind(mark)?;
    let before = body.get(..marked)?;
    let starts = before.rmatch_indices('{').map(|(at, _)| at);
    let at_line_start = |at: &usize| *at == 0 || before.as_bytes().get(at - 1) == Some(&b'\n');
    starts.filter(at_line_start).take(16).find_map(|at| {
        let mut stream = serde_json::Deserializer::from_str(body.get(at..)?).into_iter::<T>();
        stream.next()?.ok()
    })
}
