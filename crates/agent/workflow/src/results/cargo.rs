//! What `rustc` says when a Rust test target does not compile.
//!
//! One result per file that has errors. Whether that file is a test, and
//! whether it may be red, is for [`crate::evidence`].

use std::collections::BTreeMap;

use super::text::{self, Message};
use super::{CompileError, Outcome, Remedy, Report, Run, TestResult, libtest};

/// Errors that go away when something that is missing is written, or when a
/// signature becomes what the test wants.
///
/// An error without a code is a syntax error or a denied lint, and those are
/// the file's own fault.
const MISSING: &[&str] = &[
    "E0004", "E0023", "E0026", "E0027", "E0046", "E0050", "E0053", "E0060", "E0061", "E0063",
    "E0107", "E0220", "E0277", "E0308", "E0369", "E0405", "E0407", "E0412", "E0422", "E0423",
    "E0425", "E0432", "E0433", "E0437", "E0438", "E0531", "E0532", "E0559", "E0560", "E0573",
    "E0574", "E0576", "E0583", "E0599", "E0600", "E0603", "E0604", "E0605", "E0608", "E0609",
    "E0610", "E0614", "E0616", "E0618", "E0624",
];

/// Beginnings of lines that summarise and are not errors themselves.
const SUMMARIES: &[&str] = &[
    "error: could not compile",
    "error: test failed",
    "error: doctest failed",
    "error: aborting due to",
    "error: test run failed",
    "error: command `",
    "error: build failed",
];

/// Adds a result for every file that did not compile, and says if any did not.
pub(super) fn read_errors(run: &Run<'_>, report: &mut Report) -> bool {
    let mut files: BTreeMap<String, Vec<CompileError>> = BTreeMap::new();
    let mut stopped = false;
    let mut homeless: Option<String> = None;
    let mut open: Option<(Option<&str>, &str)> = None;
    // Cargo compiles everything before it runs anything; what comes later was
    // printed by a test.
    let before = run
        .stdout
        .lines()
        .take_while(|line| libtest::started(line).is_none());
    for line in run.stderr.lines().chain(before) {
        if line.starts_with("error: could not compile") {
            stopped = true;
        }
        if let Some((code, message)) = headline(line) {
            if let Some((_, earlier)) = open.replace((code, message)) {
                homeless.get_or_insert_with(|| earlier.to_owned());
            }
            continue;
        }
        let Some(printed) = line.trim_start().strip_prefix("--> ") else {
            continue;
        };
        let Some((code, message)) = open.take() else {
            continue;
        };
        let Some((path, line)) = text::place(printed) else {
            continue;
        };
        match text::workspace_path(run.root, path) {
            None => homeless = Some(format!("{message} ({path})")),
            Some(file) => {
                let errors = files.entry(file.clone()).or_default();
                let error = error(file, line, code, message);
                // A library is compiled twice, for itself and for its tests.
                if errors.len() < 100 && !errors.contains(&error) {
                    errors.push(error);
                }
            }
        }
    }
    if !stopped {
        return false;
    }
    if let Some(detail) = homeless {
        report.broken_runner(&detail);
    }
    if files.is_empty() && report.trouble.is_empty() {
        report.broken_runner("a target did not compile, and no error was found");
    }
    for (file, errors) in files {
        report.push(result(&file, errors));
    }
    true
}

fn error(file: String, line: u32, code: Option<&str>, message: &str) -> CompileError {
    CompileError {
        file: Some(file),
        line: Some(line),
        message: text::cut(message, 400),
        remedy: match code.is_some_and(|code| MISSING.contains(&code)) {
            true => Remedy::Source,
            false => Remedy::Itself,
        },
    }
}

/// One result for a file that did not compile or load.
pub(super) fn result(file: &str, errors: Vec<CompileError>) -> TestResult {
    let mut message = Message::default();
    for error in &errors {
        match error.line {
            Some(line) => message.line(&format!("line {line}: {}", error.message)),
            None => message.line(&error.message),
        }
    }
    TestResult {
        file: Some(file.to_owned()),
        message: message.finish(),
        errors,
        ..TestResult::new(file, Outcome::DidNotCompile)
    }
}

/// `error[E0425]: …` and `error: …`, but not cargo's summaries.
fn headline(line: &str) -> Option<(Option<&str>, &str)> {
    if SUMMARIES.iter().any(|summary| line.starts_with(summary)) {
        return None;
    }
    let rest = line.strip_prefix("error")?;
    match rest.strip_prefix('[') {
        Some(coded) => {
            let (code, message) = coded.split_once("]: ")?;
            Some((Some(code), message))
        }
        None => Some((None, rest.strip_prefix(": ")?)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Exit, Format};
    use super::*;

    fn read(stderr: &str) -> Report {
        let mut report = Report::new(Format::Libtest, Exit::Code(101));
        let run = Run {
            command: "cargo test",
            root: "/w",
            stdout: "",
            stderr,
            exit: Exit::Code(101),
        };
        read_errors(&run, &mut report);
        report
    }

    #[test]
    fn an_error_outside_the_project_is_the_runners() {
        let report = read(
            "error[E0433]: failed to resolve\n --> /root/.cargo/registry/src/x-1.0/lib.rs:1:1\n\
             error: could not compile `x` (lib) due to 1 previous error\n",
        );
        assert!(report.results.is_empty());
        assert_eq!(report.trouble.len(), 1);
    }

    #[test]
    fn a_dependency_that_cannot_be_had_is_the_runners() {
        let report = read("error: no matching package named `nope` found\n");
        assert!(report.results.is_empty(), "nothing was compiled");
    }
}
