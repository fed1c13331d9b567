//! JUnit XML, whoever wrote it.
//!
//! Read as a stream of events: there is no tree to fill memory, no entity is
//! expanded beyond the five of XML, and no document is fetched.

use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use super::text::{self, Message};
use super::{Outcome, Report, Run, TestResult, pytest};

pub(super) fn read(run: &Run<'_>, report: &mut Report) {
    let Some(start) = run.stdout.find('<') else {
        return;
    };
    let mut reader = Reader::from_str(run.stdout.get(start..).unwrap_or_default());
    let mut state = State::default();
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => state.open(&tag),
            Ok(Event::Empty(tag)) => {
                state.open(&tag);
                state.close(tag.local_name().as_ref(), run.root, report);
            }
            Ok(Event::End(tag)) => state.close(tag.local_name().as_ref(), run.root, report),
            Ok(Event::Text(said)) => state.hear(&said),
            Ok(Event::CData(said)) => state.hear(&said),
            Ok(Event::GeneralRef(name)) => state.hear_reference(&name),
            Ok(Event::Eof) => break,
            Ok(Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_)) => {}
            Err(error) => {
                report.broken_runner(&format!("the report is not XML: {error}"));
                return;
            }
        }
    }
    if state.depth != 0 {
        report.broken_runner("the report ends in the middle");
    }
}

#[derive(Default)]
struct State {
    depth: usize,
    suites: Vec<String>,
    deeper: usize,
    case: Option<Case>,
    /// Whether text now belongs to a failure.
    speaking: bool,
}

struct Case {
    result: TestResult,
    class: String,
    headline: Option<String>,
    said: String,
}

impl State {
    fn open(&mut self, tag: &BytesStart<'_>) {
        self.depth += 1;
        match tag.local_name().as_ref() {
            "testsuite" => {
                let name = attribute(tag, "name").unwrap_or_default();
                // Nobody nests suites deeper than this.
                match self.suites.len() < 32 {
                    true => self.suites.push(text::cut(&name, 100)),
                    false => self.deeper += 1,
                }
            }
            "testcase" => {
                let name = attribute(tag, "name").unwrap_or_default();
                self.case = Some(Case {
                    result: TestResult {
                        file: attribute(tag, "file"),
                        ..TestResult::new(&name, Outcome::Passed)
                    },
                    class: attribute(tag, "classname").unwrap_or_default(),
                    headline: None,
                    said: String::new(),
                });
            }
            word @ ("failure" | "error" | "skipped") => {
                let Some(case) = &mut self.case else { return };
                let headline = attribute(tag, "message").unwrap_or_default();
                let outcome = match word {
                    "skipped" => Outcome::Skipped,
                    _ if is_outside_body(&headline, attribute(tag, "type").as_deref()) => {
                        Outcome::Broken
                    }
                    _ => Outcome::Failed,
                };
                case.result.outcome = case.result.outcome.max(outcome);
                case.headline.get_or_insert(headline);
                self.speaking = true;
            }
            _ => {}
        }
    }

    fn close(&mut self, name: &str, root: &str, report: &mut Report) {
        self.depth = self.depth.saturating_sub(1);
        match name {
            "testsuite" => match self.deeper.checked_sub(1) {
                Some(deeper) => self.deeper = deeper,
                None => drop(self.suites.pop()),
            },
            "failure" | "error" | "skipped" => self.speaking = false,
            "testcase" => {
                if let Some(case) = self.case.take() {
                    report.push(case.finish(&self.suites, root));
                }
            }
            _ => {}
        }
    }

    fn hear(&mut self, said: &str) {
        if let (true, Some(case)) = (self.speaking, &mut self.case) {
            let room = (4 * super::MAX_MESSAGE).saturating_sub(case.said.len());
            case.said.push_str(&text::cut(said, room));
        }
    }

    fn hear_reference(&mut self, name: &quick_xml::events::BytesRef<'_>) {
        let character = match name.resolve_char_ref() {
            Ok(Some(character)) => Some(character),
            Ok(None) => match name.xml10_content().as_ref() {
                "lt" => Some('<'),
                "gt" => Some('>'),
                "amp" => Some('&'),
                "apos" => Some('\''),
                "quot" => Some('"'),
                _ => None,
            },
            Err(_) => None,
        };
        if let Some(character) = character {
            self.hear(character.encode_utf8(&mut [0; 4]));
        }
    }
}

impl Case {
    fn finish(self, suites: &[String], root: &str) -> TestResult {
        let Self {
            mut result,
            class,
            headline,
            said,
        } = self;
        // pytest: a file that could not be loaded is a case named after it.
        if headline.as_deref() == Some("collection failure") {
            let path = format!("{}.py", result.name.replace('.', "/"));
            let lines: Vec<&str> = said.lines().collect();
            return pytest::collected(root, &path, &lines);
        }
        let names: Vec<&str> = suites
            .iter()
            .map(String::as_str)
            .filter(|name| !name.is_empty())
            .collect();
        // Node writes the same class everywhere; its suites are nested.
        let suite = match class.as_str() {
            "" | "test" => names.join(" > "),
            class => class.to_owned(),
        };
        result.suite = (!suite.is_empty()).then(|| text::cut(&suite, 200));
        result.file = result
            .file
            .and_then(|file| text::workspace_path(root, &file));
        let mut message = Message::default();
        for line in headline.iter().map(String::as_str).chain(said.lines()) {
            message.line(line);
        }
        result.message = message.finish();
        result
    }
}

/// pytest says so in the headline, Node in the type.
fn is_outside_body(headline: &str, kind: Option<&str>) -> bool {
    headline.starts_with("failed on setup")
        || headline.starts_with("failed on teardown")
        || headline == "collection failure"
        || matches!(kind, Some("hookFailed" | "cancelledByParent"))
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = tag.try_get_attribute(name).ok()??;
    let value = found.normalized_value(XmlVersion::Implicit1_0).ok()?;
    Some(text::cut(&value, super::MAX_MESSAGE))
}

#[cfg(test)]
mod tests {
    use super::super::{Exit, Format, Trouble, parse};
    use super::*;

    fn report(stdout: &str) -> Report {
        let run = Run {
            command: "mvn test",
            root: "/w",
            stdout,
            stderr: "",
            exit: Exit::Code(1),
        };
        parse(Format::Junit, &run)
    }

    #[test]
    fn entities_of_a_document_are_not_expanded() {
        let bomb = r#"<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>
            <testsuite name="s"><testcase name="t"><failure>&b;&lt;&#65;</failure></testcase></testsuite>"#;
        let found = report(bomb);
        assert_eq!(found.results[0].message.as_deref(), Some("<A"));
    }

    #[test]
    fn half_a_document_is_trouble() {
        let found = report("<testsuite name=\"s\"><testcase name=\"t\"/>");
        assert!(
            found
                .trouble
                .iter()
                .any(|t| matches!(t, Trouble::Runner { .. }))
        );
        let nonsense = report("<testsuite><<<");
        assert!(!nonsense.trouble.is_empty());
    }
}
