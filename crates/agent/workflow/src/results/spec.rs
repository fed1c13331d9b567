//! The ticks and crosses of `node --test`, for output nobody asked to be TAP.
//!
//! Tests print to the same place, so a line of theirs that looks like a
//! result is caught only by Node's own count.

use super::text::{self, Message, indent};
use super::{Outcome, Report, Run, TestResult, Trouble};

pub(super) fn read(run: &Run<'_>, report: &mut Report) {
    let mut parents: Vec<(usize, &str)> = Vec::new();
    let mut lines = run.stdout.lines();
    for line in lines.by_ref() {
        let depth = indent(line);
        let text = line.trim_start_matches(' ');
        if text.starts_with("ℹ tests ") {
            check(text, report);
            break;
        }
        if let Some(name) = text.strip_prefix("▶ ") {
            parents.retain(|(indent, _)| *indent < depth);
            // Nobody nests suites deeper than this.
            if parents.len() < 32 {
                parents.push((depth, without_time(name).0));
            }
            continue;
        }
        let Some((outcome, rest)) = marked(text) else {
            continue;
        };
        let (name, directive) = without_time(rest);
        // The line that closes a suite repeats its name.
        if parents.last() == Some(&(depth, name)) {
            parents.pop();
            continue;
        }
        parents.retain(|(indent, _)| *indent < depth);
        let names = parents.iter().map(|(_, name)| *name);
        let name = names.chain([name]).collect::<Vec<_>>().join(" > ");
        let outcome = match directive.starts_with("# TODO") || directive.starts_with("# SKIP") {
            true => Outcome::Skipped,
            false => outcome,
        };
        report.push(TestResult::new(&name, outcome));
    }
    explain(lines, run.root, report);
}

fn marked(text: &str) -> Option<(Outcome, &str)> {
    const MARKS: &[(&str, Outcome)] = &[
        ("✔ ", Outcome::Passed),
        ("✖ ", Outcome::Failed),
        ("﹣ ", Outcome::Skipped),
    ];
    MARKS
        .iter()
        .find_map(|(mark, outcome)| Some((*outcome, text.strip_prefix(mark)?)))
}

/// `name (1.2ms) # SKIP why` → `name`, `# SKIP why`.
fn without_time(text: &str) -> (&str, &str) {
    match text.rsplit_once(" (") {
        Some((name, rest)) => match rest.split_once("ms)") {
            Some((number, after)) if number.parse::<f64>().is_ok() => (name, after.trim()),
            Some(_) | None => (text, ""),
        },
        None => (text, ""),
    }
}

fn check(text: &str, report: &mut Report) {
    let said = text.trim_start_matches("ℹ tests ").trim().parse::<usize>();
    let seen = report.results.len();
    match said {
        Ok(0) => report.trouble.push(Trouble::NoTests),
        Ok(said) if said != seen => report.trouble.push(Trouble::Counts { said, seen }),
        Ok(_) => {}
        Err(_) => report.broken_runner(text),
    }
}

/// `test at test/a.js:7:1`, the cross again, and what went wrong.
fn explain<'a>(lines: impl Iterator<Item = &'a str>, root: &str, report: &mut Report) {
    let mut file = None;
    let mut open: Option<(&str, Option<String>, Message)> = None;
    let mut explained = Vec::new();
    for line in lines {
        if let Some(place) = line.strip_prefix("test at ") {
            explained.extend(open.take());
            let path = text::place(place).map_or(place, |(path, _)| path);
            file = text::workspace_path(root, path);
        } else if let Some(name) = line.strip_prefix("✖ ") {
            explained.extend(open.take());
            open = Some((without_time(name).0, file.take(), Message::default()));
        } else if let Some((.., message)) = &mut open {
            message.line(line.trim_start());
        }
    }
    explained.extend(open);
    for (name, file, message) in explained {
        let failed = report.results.iter_mut().find(|result| {
            let own = result.name.rsplit(" > ").next();
            result.outcome == Outcome::Failed && result.message.is_none() && own == Some(name)
        });
        if let Some(result) = failed {
            result.file = file;
            result.message = message.finish();
        }
    }
}
