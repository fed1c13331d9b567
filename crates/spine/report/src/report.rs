//! One error for people: what happened, why, and how to fix it.
//!
//! A command turns its typed error into a [`Report`] with the builder below;
//! the error's own text is `what` and its chain of sources is `why`. Must never
//! print (that is [`crate::printer`]) and never trusts a text: everything is
//! sanitised while it is rendered.

use std::borrow::Cow;
use std::error::Error;

use serde_json::{Map, Value, json};

use crate::excerpt::Excerpt;
use crate::exit::ExitCode;
use crate::json::sorted;
use crate::sanitize::sanitize_for_terminal;
use crate::style::{Styling, Tone};
use crate::wrap::wrap;

/// How many causes are followed before the rest is left out.
const MAX_CAUSES: usize = 16;

/// What happened, why, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    exit: ExitCode,
    what: String,
    why: Vec<String>,
    fix: Vec<String>,
    at: Vec<Excerpt>,
    rare: Box<Rare>,
}

/// What few reports have, apart so that the others stay small.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rare {
    code: Option<Cow<'static, str>>,
    request: Option<String>,
    more: Map<String, Value>,
}

impl Report {
    /// A report that says what happened.
    #[must_use]
    pub fn new(exit: ExitCode, what: impl Into<String>) -> Self {
        Self {
            exit,
            what: what.into(),
            why: Vec::new(),
            fix: Vec::new(),
            at: Vec::new(),
            rare: Box::default(),
        }
    }

    /// A report of an error and the chain of its sources.
    #[must_use]
    pub fn from_error(exit: ExitCode, error: &dyn Error) -> Self {
        Self::new(exit, error.to_string()).why_chain(error.source())
    }

    /// The stable word scripts match on; the exit code's name if not set.
    #[must_use]
    pub fn code(mut self, code: impl Into<Cow<'static, str>>) -> Self {
        self.rare.code = Some(code.into());
        self
    }

    /// The id of the call to a server that was refused, to ask about it.
    #[must_use]
    pub fn request(mut self, id: impl Into<String>) -> Self {
        self.rare.request = Some(id.into());
        self
    }

    /// Adds a field to the JSON form; those that are always there stay.
    #[must_use]
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.rare.more.insert(name.to_owned(), value);
        self
    }

    /// Adds one cause, the nearest first.
    #[must_use]
    pub fn why(mut self, cause: impl Into<String>) -> Self {
        self.why.push(cause.into());
        self
    }

    /// Adds an error and its sources as causes.
    #[must_use]
    pub fn why_chain(mut self, error: Option<&(dyn Error + 'static)>) -> Self {
        let chain = std::iter::successors(error, |cause| (*cause).source());
        for cause in chain.take(MAX_CAUSES) {
            let text = cause.to_string();
            // Foreign errors like to repeat their source in their own text.
            if self.why.last() != Some(&text) {
                self.why.push(text);
            }
        }
        self
    }

    /// Adds one thing to do about it.
    #[must_use]
    pub fn fix(mut self, hint: impl Into<String>) -> Self {
        self.fix.push(hint.into());
        self
    }

    /// Adds a place in a text the user wrote.
    #[must_use]
    pub fn at(mut self, place: Excerpt) -> Self {
        self.at.push(place);
        self
    }

    /// What the process should end with.
    #[must_use]
    pub const fn exit(&self) -> ExitCode {
        self.exit
    }

    /// The report as text of at most `width` columns, ending in a new line.
    #[must_use]
    pub fn render(&self, width: usize, styling: Styling) -> String {
        let mut lines = Vec::new();
        let head = |word: &str, tone: Tone| (word.to_owned(), tone);
        block(
            &mut lines,
            head("error", Tone::Bad),
            &self.what,
            (width, styling),
        );
        for place in &self.at {
            lines.extend(place.render(width, styling));
        }
        for cause in &self.why {
            block(
                &mut lines,
                head("  why", Tone::Strong),
                cause,
                (width, styling),
            );
        }
        for hint in &self.fix {
            block(
                &mut lines,
                head("  fix", Tone::Good),
                hint,
                (width, styling),
            );
        }
        if let Some(id) = &self.rare.request {
            block(
                &mut lines,
                head("  request", Tone::Dim),
                id,
                (width, styling),
            );
        }
        let mut text = lines.join("\n");
        text.push('\n');
        text
    }

    /// The stable JSON form, `{"error": {…}}`.
    ///
    /// `at` lists the places; columns and lines count from 1.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let place = |place: &Excerpt| {
            let (line, column) = place.position();
            let what = place.what();
            json!({ "file": place.file(), "line": line, "column": column, "what": what })
        };
        let at: Vec<Value> = self.at.iter().map(place).collect();
        let mut error = json!({
            "code": self.rare.code.as_deref().unwrap_or(self.exit.name()),
            "exit": self.exit.number(),
            "what": self.what,
            "why": self.why,
            "fix": self.fix,
            "at": at,
        });
        if let Some(fields) = error.as_object_mut() {
            let request = self
                .rare
                .request
                .as_ref()
                .map(|id| ("request_id", id.as_str()));
            fields.extend(request.map(|(name, id)| (name.to_owned(), id.into())));
            for (name, value) in &self.rare.more {
                fields.entry(name.as_str()).or_insert_with(|| value.clone());
            }
        }
        sorted(json!({ "error": error }))
    }
}

/// Appends `word: text`, wrapped and indented below the text.
fn block(
    lines: &mut Vec<String>,
    (word, tone): (String, Tone),
    text: &str,
    (width, styling): (usize, Styling),
) {
    let indent = word.len() + 2;
    let text = sanitize_for_terminal(text);
    let body = wrap(&text, width.saturating_sub(indent).max(20));
    for (index, line) in body.iter().enumerate() {
        lines.push(match (index, line.is_empty()) {
            (0, _) => format!("{} {line}", tone.paint(&format!("{word}:"), styling)),
            (_, true) => String::new(),
            (_, false) => format!("{}{line}", " ".repeat(indent)),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::wrap::columns;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot load the policy")]
    struct LoadError(#[source] io::Error);

    fn sample() -> Report {
        let source = "version: 1\ncapabilities:\n  - nmae: write-source\n";
        let at = source.find("nmae").unwrap_or_default();
        Report::new(
            ExitCode::Usage,
            "`.fluffy/policy.yaml` is not a valid policy",
        )
        .code("policy_invalid")
        .at(
            Excerpt::from_bytes(".fluffy/policy.yaml", source, at..at + 4)
                .label("unknown field `nmae`"),
        )
        .why(
            "every field of a rule must be known, because a misspelt condition would \
                 otherwise make a rule match more than its author meant",
        )
        .fix("did you mean `name`?")
        .fix("run `fluffy policy check` to see all problems of the file at once")
    }

    #[test]
    fn a_report_at_80_columns_without_colour() {
        let text = sample().render(80, Styling::Plain);
        assert!(text.lines().all(|line| columns(line) <= 80), "{text}");
        insta::assert_snapshot!(text, @r"
        error: `.fluffy/policy.yaml` is not a valid policy
          --> .fluffy/policy.yaml:3:5
           |
         3 |   - nmae: write-source
           |     ^^^^ unknown field `nmae`
          why: every field of a rule must be known, because a misspelt condition would
               otherwise make a rule match more than its author meant
          fix: did you mean `name`?
          fix: run `fluffy policy check` to see all problems of the file at once
        ");
    }

    #[test]
    fn a_report_at_80_columns_with_colour() {
        let text = sample().render(80, Styling::Ansi);
        insta::assert_snapshot!(text.replace('\x1b', "^["), @r"
        ^[[1;31merror:^[[0m `.fluffy/policy.yaml` is not a valid policy
          ^[[2m-->^[[0m .fluffy/policy.yaml:3:5
           ^[[2m|^[[0m
         3 ^[[2m|^[[0m   - nmae: write-source
           ^[[2m|^[[0m     ^[[1;31m^^^^^[[0m unknown field `nmae`
        ^[[1m  why:^[[0m every field of a rule must be known, because a misspelt condition would
               otherwise make a rule match more than its author meant
        ^[[32m  fix:^[[0m did you mean `name`?
        ^[[32m  fix:^[[0m run `fluffy policy check` to see all problems of the file at once
        ");
    }

    #[test]
    fn colour_adds_no_word() {
        let coloured = sample().render(80, Styling::Ansi);
        let stripped = anstream::adapter::strip_str(&coloured).to_string();
        assert_eq!(stripped, sample().render(80, Styling::Plain));
    }

    #[test]
    fn the_json_form_is_stable() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&sample().to_json()).unwrap(), @r#"
        {
          "error": {
            "at": [
              {
                "column": 5,
                "file": ".fluffy/policy.yaml",
                "line": 3,
                "what": "unknown field `nmae`"
              }
            ],
            "code": "policy_invalid",
            "exit": 2,
            "fix": [
              "did you mean `name`?",
              "run `fluffy policy check` to see all problems of the file at once"
            ],
            "what": "`.fluffy/policy.yaml` is not a valid policy",
            "why": [
              "every field of a rule must be known, because a misspelt condition would otherwise make a rule match more than its author meant"
            ]
          }
        }
        "#);
        let bare = Report::new(ExitCode::NotFound, "x").to_json();
        assert_eq!(bare["error"]["code"], "not_found");
        assert_eq!(bare["error"]["at"], json!([]));
    }

    #[test]
    fn a_call_to_a_server_is_named_and_its_details_are_json() {
        let report = Report::new(ExitCode::Conflict, "cannot scale `db`")
            .code("E_VOLUME_REPLICA_LIMIT".to_owned())
            .request("req_1")
            .with("retryable", json!(false))
            .with("what", json!("another"));
        let text = report.render(80, Styling::Plain);
        assert_eq!(text, "error: cannot scale `db`\n  request: req_1\n");
        let error = &report.to_json()["error"];
        assert_eq!(error["code"], "E_VOLUME_REPLICA_LIMIT");
        assert_eq!(error["request_id"], "req_1");
        assert_eq!(error["retryable"], false);
        assert_eq!(error["what"], "cannot scale `db`");
    }

    #[test]
    fn an_error_brings_its_chain() {
        let error = LoadError(io::Error::other("permission denied"));
        let report = Report::from_error(ExitCode::Failure, &error);
        assert_eq!(
            report.render(80, Styling::Plain),
            "error: cannot load the policy\n  why: permission denied\n"
        );
    }

    #[test]
    fn hostile_text_is_shown_not_obeyed() {
        let hostile = "\x1b]52;c;eA==\x07 \u{202e}";
        let report = Report::new(ExitCode::Failure, hostile)
            .why(hostile)
            .fix(hostile)
            .at(Excerpt::at(hostile, hostile, (1, 1)).label(hostile));
        for styling in [Styling::Plain, Styling::Ansi] {
            let text = report.render(80, styling);
            assert!(
                !text.contains("\x1b]") && !text.contains('\u{202e}'),
                "{text:?}"
            );
        }
    }
}
