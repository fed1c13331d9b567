//! The Test Anything Protocol, with the subtests of Node and vitest.
//!
//! Comments are whatever tests printed, so they prove nothing; they are kept
//! only to explain a file that could not be loaded.

use super::text::{self, Message, indent};
use super::{Outcome, Report, Run, TestResult, Trouble, cargo, javascript};

pub(super) fn read(run: &Run<'_>, report: &mut Report) {
    let mut reader = Reader {
        root: run.root,
        parents: Vec::new(),
        comments: Message::default(),
        open: None,
        plan: None,
        top: 0,
        report,
    };
    for line in run.stdout.lines() {
        reader.line(line);
    }
    reader.close();
    match reader.plan {
        Some(0) if reader.top == 0 => reader.report.trouble.push(Trouble::NoTests),
        Some(said) if said != reader.top => {
            let seen = reader.top;
            reader.report.trouble.push(Trouble::Counts { said, seen });
        }
        Some(_) => {}
        None if reader.top > 0 => reader
            .report
            .broken_runner("there is no plan such as `1..3`"),
        None => {}
    }
}

/// The deepest nesting of subtests.
const MAX_NESTED: usize = 32;

struct Reader<'a> {
    root: &'a str,
    /// Subtests that are open: how far indented, their name, and whether
    /// results inside them were seen.
    parents: Vec<(usize, String, Seen)>,
    comments: Message,
    open: Option<Open>,
    plan: Option<usize>,
    top: usize,
    report: &'a mut Report,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Nothing,
    Children,
}

/// A result whose explanation may still follow.
struct Open {
    result: TestResult,
    indent: usize,
    explained: Message,
    location: Option<String>,
    failure: Option<String>,
    children: Seen,
    in_block: bool,
}

impl Reader<'_> {
    fn line(&mut self, line: &str) {
        let depth = indent(line);
        let text = line.trim_start_matches(' ');
        if let Some(open) = &mut self.open {
            if text == "---" && !open.in_block && depth > open.indent {
                open.in_block = true;
                return;
            }
            if open.in_block {
                match text == "..." {
                    true => self.close(),
                    false => open.explain(text),
                }
                return;
            }
        }
        if let Some(result) = Line::parse(text) {
            self.close();
            self.result(depth, result);
        } else if let Some(name) = text.strip_prefix("# Subtest: ") {
            self.close();
            self.parents.retain(|(indent, ..)| *indent < depth);
            self.enter(depth, &unescape(name));
        } else if let Some(comment) = text.strip_prefix('#') {
            self.comments
                .line(comment.strip_prefix(' ').unwrap_or(comment));
        } else if text == "}" {
            self.close();
            self.parents.retain(|(indent, ..)| *indent < depth);
        } else if let Some(plan) = plan(text) {
            self.close();
            if depth == 0 {
                self.plan = Some(plan);
            }
        } else if text.starts_with("Bail out!") {
            self.close();
            self.report.broken_runner(text);
        } else if let Some(open) = &mut self.open
            && depth > open.indent
        {
            // Mocha explains without a block.
            open.explained.line(text);
        }
    }

    /// Opens a subtest; what is nested absurdly deep counts where it is cut.
    fn enter(&mut self, depth: usize, name: &str) {
        if self.parents.len() < MAX_NESTED {
            let name = text::cut(name, super::MAX_NAME);
            self.parents.push((depth, name, Seen::Nothing));
        }
    }

    fn result(&mut self, depth: usize, line: Line) {
        if depth == 0 {
            self.top += 1;
        }
        let own = self.parents.iter().find(|(indent, ..)| *indent == depth);
        let children = own.map_or(Seen::Nothing, |(_, _, seen)| *seen);
        self.parents.retain(|(indent, ..)| *indent < depth);
        for (.., seen) in &mut self.parents {
            *seen = Seen::Children;
        }
        if line.opens {
            self.enter(depth, &line.name);
            return;
        }
        let names = self.parents.iter().map(|(_, name, _)| name.as_str());
        let mut name = names.collect::<Vec<_>>().join(" > ");
        if !name.is_empty() {
            name.push_str(" > ");
        }
        name.push_str(&line.name);
        self.open = Some(Open {
            result: TestResult {
                message: line.reason,
                ..TestResult::new(&name, line.outcome)
            },
            indent: depth,
            explained: Message::default(),
            location: None,
            failure: None,
            children,
            in_block: false,
        });
    }

    fn close(&mut self) {
        let comments = std::mem::take(&mut self.comments);
        let Some(open) = self.open.take() else {
            // What was printed before the first result may explain it.
            self.comments = comments;
            return;
        };
        let Open {
            mut result,
            failure,
            location,
            explained,
            children,
            ..
        } = open;
        let failure = failure.as_deref().unwrap_or_default();
        // A suite fails because of its tests, which are listed themselves.
        if children == Seen::Children
            && (result.outcome != Outcome::Failed || failure == "subtestsFailed")
        {
            return;
        }
        let place = location.as_deref().and_then(text::place);
        // Node says where a test is, vitest names its file first.
        let first = result.name.split(" > ").next().unwrap_or_default();
        let path = match place {
            Some((path, _)) => Some(path),
            None => Some(first).filter(|name| looks_like_a_file(name)),
        };
        result.file = path.and_then(|path| text::workspace_path(self.root, path));
        if result.outcome == Outcome::Failed {
            let named_file = text::workspace_path(self.root, &result.name);
            let explanation = explained.finish();
            if let Some(own) = named_file.filter(|file| looks_like_a_file(file)) {
                let printed = comments.finish().or(explanation).unwrap_or_default();
                let error = javascript::load_error(self.root, &own, &printed);
                self.report.push(cargo::result(&own, vec![error]));
                return;
            }
            result.message = explanation.or(result.message);
            if children == Seen::Children
                || matches!(
                    failure,
                    "hookFailed" | "cancelledByParent" | "parentAlreadyFinished"
                )
            {
                result.outcome = Outcome::Broken;
            }
        }
        self.report.push(result);
    }
}

impl Open {
    fn explain(&mut self, text: &str) {
        let value = |key: &str| {
            let value = text.strip_prefix(key)?.trim();
            Some(value.trim_matches(['\'', '"']).to_owned())
        };
        if let Some(location) = value("location: ") {
            self.location.get_or_insert(location);
        } else if let Some(failure) = value("failureType: ") {
            self.failure = Some(failure);
        } else if !text.starts_with("duration_ms:") {
            self.explained.line(text);
        }
    }
}

/// `not ok 2 - name # SKIP why`.
struct Line {
    name: String,
    outcome: Outcome,
    reason: Option<String>,
    /// Whether results inside it follow in braces.
    opens: bool,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let (passed, rest) = match text.strip_prefix("not ok") {
            Some(rest) => (Outcome::Failed, rest),
            None => (Outcome::Passed, text.strip_prefix("ok")?),
        };
        if !rest.is_empty() && !rest.starts_with(' ') {
            return None;
        }
        let rest = rest.trim_start();
        let rest = rest
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .trim_start();
        let rest = rest.strip_prefix("- ").unwrap_or(rest);
        let (opens, rest) = match rest.strip_suffix(" {") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let (name, directive) = directive(rest);
        let word = directive.split(' ').next().unwrap_or_default();
        let skipped =
            word.to_ascii_uppercase().starts_with("SKIP") || word.eq_ignore_ascii_case("todo");
        let reason = directive.get(word.len()..).unwrap_or_default().trim();
        Some(Self {
            name: match name.trim() {
                "" => "unnamed".to_owned(),
                name => unescape(name),
            },
            outcome: match skipped {
                true => Outcome::Skipped,
                false => passed,
            },
            reason: (skipped && !reason.is_empty()).then(|| text::cut(reason, 200)),
            opens,
        })
    }
}

/// Splits at the first `#` that is not escaped.
fn directive(text: &str) -> (&str, &str) {
    for (at, _) in text.match_indices(" # ") {
        let before = text.get(..at).unwrap_or_default();
        if !before.ends_with('\\') {
            let after = text.get(at + 3..).unwrap_or_default();
            return (before, after.trim());
        }
    }
    match text.strip_suffix(" #") {
        Some(name) => (name, ""),
        None => (text, ""),
    }
}

fn unescape(name: &str) -> String {
    name.trim().replace("\\#", "#").replace("\\\\", "\\")
}

/// `1..6`.
fn plan(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("1..")?;
    let digits = rest.split(' ').next()?;
    digits.parse().ok()
}

fn looks_like_a_file(name: &str) -> bool {
    const ENDINGS: &[&str] = &[".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx"];
    ENDINGS.iter().any(|ending| name.ends_with(ending)) && !name.contains(" > ")
}

#[cfg(test)]
mod tests {
    use super::super::{Exit, Format, parse};
    use super::*;

    fn outcomes(stdout: &str, code: i32) -> (Vec<(String, Outcome)>, Vec<Trouble>) {
        let run = Run {
            command: "prove",
            root: "/w",
            stdout,
            stderr: "",
            exit: Exit::Code(code),
        };
        let report = parse(Format::Tap, &run);
        let pairs = report.results.into_iter().map(|r| (r.name, r.outcome));
        (pairs.collect(), report.trouble)
    }

    #[test]
    fn plain_tap_is_read() {
        let (found, trouble) = outcomes("1..3\nok 1 - a\nnot ok 2 b\nok 3 - c # skip no\n", 1);
        let expected = [
            ("a", Outcome::Passed),
            ("b", Outcome::Failed),
            ("c", Outcome::Skipped),
        ];
        let expected = expected.map(|(name, outcome)| (name.to_owned(), outcome));
        assert_eq!(found, expected);
        assert_eq!(trouble, []);
    }

    #[test]
    fn a_missing_or_wrong_plan_is_trouble() {
        assert!(matches!(
            outcomes("ok 1\n", 0).1.first(),
            Some(Trouble::Runner { .. })
        ));
        assert_eq!(
            outcomes("1..2\nok 1\n", 0).1,
            [Trouble::Counts { said: 2, seen: 1 }]
        );
        assert_eq!(outcomes("1..0 # SKIP none\n", 0).1, [Trouble::NoTests]);
    }

    #[test]
    fn escaped_hashes_are_part_of_the_name() {
        let (found, _) = outcomes("ok 1 - a \\# b # TODO later\n1..1\n", 0);
        assert_eq!(found, [("a # b".to_owned(), Outcome::Skipped)]);
    }

    #[test]
    fn bailing_out_is_trouble() {
        let (_, trouble) = outcomes("1..2\nok 1\nBail out! no database\n", 1);
        assert!(
            trouble
                .iter()
                .any(|trouble| matches!(trouble, Trouble::Runner { .. }))
        );
    }
}
