//! Recognises the format of output that nobody announced.
//!
//! A wrong guess is harmless: the parser that is picked finds no summary and
//! reports trouble.

use super::{Format, Run};

/// The format that the output is written in; the exit code if in none.
pub(super) fn format(run: &Run<'_>) -> Format {
    let both = || run.stdout.lines().chain(run.stderr.lines()).take(20_000);
    let start = run.stdout.trim_start();
    if start.starts_with("<?xml") || start.starts_with("<testsuite") {
        return Format::Junit;
    }
    for line in both() {
        let text = line.trim_start();
        if text.starts_with("TAP version") || is_plan(line) {
            return Format::Tap;
        }
        if text.starts_with("Nextest run ID")
            || text.starts_with("Starting ") && text.contains(" binaries")
        {
            return Format::Nextest;
        }
        if line.contains("test session starts") || line.contains(" short test summary info ") {
            return Format::Pytest;
        }
        if text.starts_with('{') && text.contains("\"Action\":") && text.contains("\"Package\":") {
            return Format::GoJson;
        }
        if text.starts_with('{') && text.contains("\"type\"") && text.contains("\"suite\"") {
            return Format::LibtestJson;
        }
        if text.contains("\"numTotalTests\"") || text.contains("\"testResults\"") {
            return Format::JestJson;
        }
        if line.starts_with("error: could not compile `") || is_libtest(line) {
            return Format::Libtest;
        }
        if text.starts_with("ℹ tests ") {
            return Format::NodeSpec;
        }
        if line.starts_with("  \"stats\": {") {
            return Format::MochaJson;
        }
    }
    Format::ExitCode
}

fn is_plan(line: &str) -> bool {
    let rest = line.strip_prefix("1..");
    rest.is_some_and(|rest| {
        rest.split(' ')
            .next()
            .is_some_and(|n| n.parse::<u32>().is_ok())
    })
}

fn is_libtest(line: &str) -> bool {
    line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test"))
}
