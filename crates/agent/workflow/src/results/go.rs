//! `go test -json`, and what the compiler says when it does not get that far.
//!
//! A package that fails without a failing test died on its own, and proves
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::text::{self, Message};
use super::{CompileError, Outcome, Remedy, Report, Run, TestResult, cargo};

pub(super) fn read(run: &Run<'_>, report: &mut Report) {
    let mut outputs: BTreeMap<(String, String), Message> = BTreeMap::new();
    let mut build = String::new();
    let mut failed_packages = Vec::new();
    let mut packages_with_failures = BTreeSet::new();
    for line in run.stdout.lines().chain(run.stderr.lines()) {
        let event = match serde_json::from_str::<Event>(line) {
            Ok(event) => event,
            Err(_) => {
                // Before Go 1.24 the compiler's words are not wrapped.
                build.push_str(line);
                build.push('\n');
                continue;
            }
        };
        if event.action == "build-output" {
            build.push_str(&event.output);
            continue;
        }
        let outcome = match event.action.as_str() {
            "output" => {
                if let Some(test) = event.test {
                    let message = outputs.entry((event.package, test)).or_default();
                    if !event.output.starts_with("=== ") {
                        message.line(event.output.trim());
                    }
                }
                continue;
            }
            "pass" => Outcome::Passed,
            "fail" => Outcome::Failed,
            "skip" => Outcome::Skipped,
            _ => continue,
        };
        match event.test {
            None if outcome == Outcome::Failed => failed_packages.push(event.package),
            None => {}
            Some(test) => {
                let key = (event.package.clone(), test.clone());
                let message = outputs.remove(&key).and_then(Message::finish);
                if outcome == Outcome::Failed {
                    packages_with_failures.insert(event.package.clone());
                }
                report.push(TestResult {
                    suite: Some(text::cut(&event.package, 200)),
                    message: message.filter(|_| outcome != Outcome::Passed),
                    ..TestResult::new(&test, outcome)
                });
            }
        }
    }
    let built = read_build(run.root, &build, report);
    // A package that failed without a failing test died on its own.
    failed_packages.retain(|package| !packages_with_failures.contains(package));
    if let Some(package) = failed_packages.first()
        && built == Built::Whole
    {
        report.broken_runner(&format!("package `{package}` failed outside its tests"));
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event {
    action: String,
    #[serde(default)]
    package: String,
    test: Option<String>,
    #[serde(default)]
    output: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Built {
    Whole,
    Broken,
}

/// `config/a_test.go:6:13: undefined: Parse`.
fn read_build(root: &str, build: &str, report: &mut Report) -> Built {
    let mut files: BTreeMap<String, Vec<CompileError>> = BTreeMap::new();
    let mut stray = None;
    let mut failed = Built::Whole;
    for line in build.lines() {
        if line.starts_with("FAIL") {
            if line.contains("failed]") {
                failed = Built::Broken;
            }
            continue;
        }
        let Some((place, message)) = line.split_once(": ") else {
            continue;
        };
        let found = text::place(place)
            .and_then(|(path, line)| Some((text::workspace_path(root, path)?, line)));
        let Some((file, number)) = found else {
            stray.get_or_insert(line);
            continue;
        };
        failed = Built::Broken;
        let errors = files.entry(file.clone()).or_default();
        if errors.len() < 100 {
            errors.push(CompileError {
                file: Some(file),
                line: Some(number),
                message: text::cut(message, 400),
                remedy: remedy(message),
            });
        }
    }
    if failed == Built::Broken && files.is_empty() {
        report.broken_runner(stray.unwrap_or("a package could not be built"));
    } else if report.results.is_empty()
        && files.is_empty()
        && let Some(line) = stray
    {
        report.broken_runner(line);
    }
    for (file, errors) in files {
        report.push(cargo::result(&file, errors));
    }
    failed
}

fn remedy(message: &str) -> Remedy {
    const MISSING: &[&str] = &[
        "undefined",
        "not enough arguments",
        "too many arguments",
        "assignment mismatch",
        "cannot use",
        "unknown field",
        "does not implement",
        "is not in std",
        "is not in GOROOT",
        "no required module provides package",
        "cannot find package",
        "not exported by package",
        "not declared by package",
        "impossible type assertion",
        "invalid operation",
    ];
    match MISSING.iter().any(|text| message.contains(text)) {
        true => Remedy::Source,
        false => Remedy::Itself,
    }
}
