//! `cargo test` as people see it.
//!
//! A test can print whatever it likes, so lines count only where the harness
//! prints them, and each target's own count must agree with what was found.

use std::collections::{BTreeMap, VecDeque};

use super::text::{self, Message};
use super::{Outcome, Report, Run, TestResult, Trouble, cargo};

pub(super) fn read(run: &Run<'_>, report: &mut Report) {
    cargo::read_errors(run, report);
    let mut reader = Reader {
        root: run.root,
        waiting: headers(run.stderr, run.stdout),
        announced: None,
        target: None,
        part: Part::Between,
        report,
    };
    for line in run.stdout.lines() {
        reader.line(line);
    }
    reader.end_target();
}

/// The targets named on standard error, if that is how they can be told apart.
fn headers(stderr: &str, stdout: &str) -> VecDeque<Header> {
    let named: VecDeque<Header> = stderr.lines().filter_map(Header::parse).collect();
    let started = stdout.lines().filter(|line| started(line).is_some());
    match named.len() == started.count() {
        true => named,
        // A target without the usual harness prints no start; then guessing
        // which is which would be worse than not knowing.
        false => VecDeque::new(),
    }
}

/// What cargo says before it runs a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// The binary and its main file, or the package of doc tests.
    pub(super) suite: String,
    /// The main file of an integration test.
    pub(super) file: Option<String>,
}

impl Header {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let line = line.trim_start();
        if let Some(package) = line.strip_prefix("Doc-tests ") {
            return Some(Self {
                suite: format!("doc {}", package.trim()),
                file: None,
            });
        }
        let (what, binary) = line
            .strip_prefix("Running ")?
            .strip_suffix(')')?
            .rsplit_once(" (")?;
        let stem = binary.rsplit(['/', '\\']).next()?;
        let stem = stem.rsplit_once('-').map_or(stem, |(stem, _)| stem);
        let file = match what.strip_prefix("unittests ") {
            Some(_) => None,
            None => Some(what.to_owned()),
        };
        let main = what.strip_prefix("unittests ").unwrap_or(what);
        Some(Self {
            suite: format!("{stem}({main})"),
            file,
        })
    }
}

/// `running 3 tests`.
pub(super) fn started(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("running ")?;
    let count = rest.strip_suffix(" tests").or(rest.strip_suffix(" test"))?;
    count.parse().ok()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Before or after a target.
    Between,
    /// `test a ... ok`.
    List,
    /// What tests printed.
    Output,
}

struct Reader<'a> {
    root: &'a str,
    waiting: VecDeque<Header>,
    announced: Option<Header>,
    target: Option<Target>,
    part: Part,
    report: &'a mut Report,
}

#[derive(Default)]
struct Target {
    header: Option<Header>,
    expected: usize,
    results: Vec<(String, Outcome, Option<String>)>,
    messages: BTreeMap<String, Message>,
    speaker: Option<String>,
}

impl Reader<'_> {
    fn line(&mut self, line: &str) {
        if self.part == Part::Between || self.target.is_none() {
            if let Some(header) = Header::parse(line) {
                self.announced = Some(header);
            } else if let Some(expected) = started(line) {
                self.target = Some(Target {
                    header: self.announced.take().or_else(|| self.waiting.pop_front()),
                    expected,
                    ..Target::default()
                });
                self.part = Part::List;
            }
            return;
        }
        if let Some(counts) = line.strip_prefix("test result: ") {
            let said = summed(counts);
            if let Some(target) = &self.target
                && said != Some(target.results.len())
            {
                let (said, seen) = (said.unwrap_or_default(), target.results.len());
                self.report.trouble.push(Trouble::Counts { said, seen });
            }
            self.take_target();
            return;
        }
        // A target that died is followed by the next one's header.
        if self.part == Part::List
            && let Some(header) = Header::parse(line)
        {
            self.end_target();
            self.announced = Some(header);
            return;
        }
        let Some(target) = &mut self.target else {
            return;
        };
        match self.part {
            Part::Between => {}
            Part::List if matches!(line, "failures:" | "successes:") => self.part = Part::Output,
            Part::List => target.results.extend(listed(line)),
            Part::Output => target.output(line),
        }
    }

    /// A target that never gave its summary did not come to its end.
    fn end_target(&mut self) {
        if let Some(target) = &self.target {
            let detail = format!(
                "a target ended after {} of its {} tests",
                target.results.len(),
                target.expected
            );
            self.report.broken_runner(&detail);
        }
        self.take_target();
    }

    fn take_target(&mut self) {
        self.part = Part::Between;
        let Some(mut target) = self.target.take() else {
            return;
        };
        if target.results.len() != target.expected {
            let (said, seen) = (target.expected, target.results.len());
            let counts = Trouble::Counts { said, seen };
            if !self.report.trouble.contains(&counts) {
                self.report.trouble.push(counts);
            }
        }
        let header = target.header.take();
        for (name, outcome, reason) in target.results {
            let message = target.messages.remove(&name).and_then(Message::finish);
            let file = header.as_ref().and_then(|header| header.file.as_deref());
            self.report.push(TestResult {
                suite: header.as_ref().map(|header| header.suite.clone()),
                file: file.and_then(|file| text::workspace_path(self.root, file)),
                message: message.or(reason),
                ..TestResult::new(&name, outcome)
            });
        }
    }
}

impl Target {
    /// `---- name stdout ----` begins what one test printed.
    fn output(&mut self, line: &str) {
        let speaker = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = speaker {
            self.speaker = Some(stable_name(name));
        } else if matches!(line, "failures:" | "successes:") {
            self.speaker = None;
        } else if let Some(name) = &self.speaker
            && !line.starts_with("stack backtrace:")
        {
            self.messages.entry(name.clone()).or_default().line(line);
        }
    }
}

/// `test a::b ... ok`.
fn listed(line: &str) -> Option<(String, Outcome, Option<String>)> {
    let (name, said) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let (outcome, reason) = match said {
        "ok" => (Outcome::Passed, None),
        "FAILED" => (Outcome::Failed, None),
        "ignored" => (Outcome::Skipped, None),
        other => match other.strip_prefix("ignored, ") {
            Some(reason) => (Outcome::Skipped, Some(text::cut(reason, 200))),
            // `FAILED (time limit exceeded)` and the like.
            None if other.starts_with("FAILED") => (Outcome::Failed, Some(other.to_owned())),
            None => return None,
        },
    };
    Some((stable_name(name), outcome, reason))
}

/// A name that stays the same when lines move and attributes change.
pub(super) fn stable_name(name: &str) -> String {
    let ends = [" - should panic", " - compile fail", " - compile"];
    let name = ends
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(name);
    // Documentation tests are named after their line: `a.rs - f (line 3)`.
    match name.rsplit_once(" (line ") {
        Some((before, line)) if line.trim_end_matches(')').parse::<u32>().is_ok() => {
            before.to_owned()
        }
        Some(_) | None => name.to_owned(),
    }
}

/// The sum of passed, failed, ignored and measured.
fn summed(counts: &str) -> Option<usize> {
    let (_, counts) = counts.split_once(". ")?;
    let mut sum = 0usize;
    for part in counts.split(';') {
        let (number, what) = part.trim().split_once(' ')?;
        if matches!(what, "passed" | "failed" | "ignored" | "measured") {
            sum = sum.checked_add(number.parse().ok()?)?;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::super::{Exit, Format, parse};
    use super::*;

    fn report(stdout: &str, code: i32) -> Report {
        let run = Run {
            command: "cargo test",
            root: "/w",
            stdout,
            stderr: "",
            exit: Exit::Code(code),
        };
        parse(Format::Libtest, &run)
    }

    #[test]
    fn a_forged_line_makes_the_counts_disagree() {
        let forged = "running 1 test\ntest fake ... ok\ntest real ... ok\n\n\
                      test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let found = report(forged, 0);
        assert!(
            found
                .trouble
                .contains(&Trouble::Counts { said: 1, seen: 2 })
        );
        let both = forged.replace("running 1 test", "running 2 tests");
        assert_eq!(
            report(&both, 0).trouble,
            [Trouble::Counts { said: 1, seen: 2 }]
        );
        let honest = forged.replace("test fake ... ok\n", "");
        assert_eq!(report(&honest, 0).trouble, []);
    }

    #[test]
    fn what_a_failing_test_printed_is_not_cargo_speaking() {
        let found = report(
            "running 1 test\ntest a ... FAILED\n\nfailures:\n\n---- a stdout ----\n\
             error[E0425]: cannot find\n --> src/lib.rs:1:1\nerror: could not compile `x` (lib)\n\
             \x20    Running tests/b.rs (target/debug/deps/b-1)\ntest b ... ok\n\n\nfailures:\n    a\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n",
            101,
        );
        assert_eq!(found.trouble, []);
        assert_eq!(found.results.len(), 1);
        assert_eq!(found.results[0].outcome, Outcome::Failed);
    }

    #[test]
    fn a_target_that_died_is_trouble() {
        let found = report("running 2 tests\ntest a ... ok\n", 101);
        assert!(matches!(
            found.trouble.first(),
            Some(Trouble::Runner { .. })
        ));
    }

    #[test]
    fn an_exit_code_that_contradicts_the_results_is_trouble() {
        let all_pass = "running 1 test\ntest a ... ok\n\n\
                        test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(
            report(all_pass, 101).trouble,
            [Trouble::Contradiction {
                exit: Exit::Code(101)
            }]
        );
    }

    #[test]
    fn headers_on_standard_error_are_matched_in_order() {
        let block = |name: &str| {
            format!(
                "\nrunning 1 test\ntest {name} ... ok\n\n\
                 test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n"
            )
        };
        let stdout = block("a") + &block("b");
        let run = Run {
            command: "cargo test",
            root: "/w",
            stdout: &stdout,
            stderr: "     Running unittests src/lib.rs (target/debug/deps/demo-12)\n     \
                     Running tests/b.rs (target/debug/deps/b-34)\n",
            exit: Exit::Code(0),
        };
        let found = parse(Format::Libtest, &run);
        let keys: Vec<String> = found.results.iter().map(TestResult::key).collect();
        assert_eq!(keys, ["demo(src/lib.rs) a", "b(tests/b.rs) b"]);
        assert_eq!(found.results[1].file.as_deref(), Some("/tests/b.rs"));
    }
}
