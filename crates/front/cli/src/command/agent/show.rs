//! What a person sees of a session: events in, text in tones out.
//!
//! Pure: holds what is on the screen so far and nothing else. All text from
//! models, tools and repositories is made harmless on its way through
//! [`Text`]. Next: `flow` for prose, `ending` for the summary, `status` for the
//! bottom line.

mod diff;
mod ending;
mod flow;
#[cfg(test)]
pub(crate) mod sample;
pub(crate) mod words;

use fluffy_base::id::SessionId;
use fluffy_kernel::event::{AgentEvent, Outcome, PersonAnswer, SessionStarted, Spent};
use fluffy_report::{Text, Tone, sanitize_line};

pub(crate) use diff::diff;
pub(crate) use ending::ending;
use flow::Flow;
use words::{duration, model_name, number, short_id};

/// Prose in longer lines is hard to read, however wide the window.
const PROSE: usize = 100;

/// Where the words after the outcome of a call begin.
const MARGIN: usize = 11;

/// How many failed tests are named before the rest is counted.
const MAX_TESTS: usize = 10;

/// A session on its way to a screen or a pipe.
#[derive(Debug)]
pub(crate) struct Show {
    /// None in a pipe: nothing is cut or wrapped there.
    width: Option<usize>,
    /// Whose head was shown.
    session: Option<SessionId>,
    detail: Detail,
    prose: Flow,
    kind: Prose,
    /// What was shown last; prose stands apart from the rest.
    last: Option<Shown>,
    /// What the running calls act on, by the call's name.
    running: Vec<(String, String)>,
    spent: Spent,
}

/// How much is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// How it ended, and questions.
    Result,
    /// What matters.
    Normal,
    /// Also what the model thinks aloud.
    Everything,
}

/// What the open line of prose is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prose {
    Said,
    Thought,
}

/// What was shown last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Prose,
    Block,
}

impl Show {
    /// For a terminal of this width, or for a pipe.
    pub(crate) fn new(width: Option<usize>, detail: Detail) -> Self {
        Self {
            width,
            session: None,
            detail,
            prose: Flow::new(prose_width(width)),
            kind: Prose::Said,
            last: None,
            running: Vec::new(),
            spent: Spent::default(),
        }
    }

    /// The window has another size from here on.
    pub(crate) fn set_width(&mut self, width: Option<usize>) {
        self.width = width;
        self.prose.set_width(prose_width(width));
    }

    /// What there is to see of an event; often nothing.
    pub(crate) fn event(&mut self, event: &AgentEvent) -> Text {
        let is_result = matches!(
            event,
            AgentEvent::SessionEnded(_) | AgentEvent::ApprovalWanted { .. } | AgentEvent::Usage(_)
        );
        if self.detail == Detail::Result && !is_result {
            return Text::new();
        }
        match event {
            AgentEvent::TextDelta { text } => self.prose(Prose::Said, text),
            AgentEvent::ReasoningDelta { text } if self.detail == Detail::Everything => {
                self.prose(Prose::Thought, text)
            }
            AgentEvent::ReasoningDelta { .. } => Text::new(),
            AgentEvent::TurnStarted { .. } => {
                // All calls of the turn before have ended, heard of or not.
                self.running.clear();
                // What it says now is not what it said before.
                if self.last == Some(Shown::Prose) {
                    self.last = Some(Shown::Block);
                }
                self.end_prose()
            }
            AgentEvent::ToolStarted { call, subject, .. } => {
                self.running.push((call.clone(), subject.clone()));
                // It may take long: no word is held back meanwhile.
                self.end_prose()
            }
            AgentEvent::Usage(spent) => {
                self.spent = *spent;
                Text::new()
            }
            AgentEvent::TaskWarned { .. } | AgentEvent::TaskSpared { .. } => Text::new(),
            event => {
                let mut text = self.end_prose();
                let stands_apart = matches!(
                    event,
                    AgentEvent::SessionEnded(_) | AgentEvent::ApprovalWanted { .. }
                );
                let last = self.last.replace(Shown::Block);
                if last == Some(Shown::Prose) || (stands_apart && last.is_some()) {
                    text.plain("\n");
                }
                text.append(self.block(event));
                text
            }
        }
    }

    /// Ends an open line, so that something else can be printed.
    pub(crate) fn end_prose(&mut self) -> Text {
        let rest = self.prose.end();
        let mut text = Text::new();
        text.add(self.prose_tone(), &rest);
        text
    }

    fn prose(&mut self, kind: Prose, piece: &str) -> Text {
        let mut text = Text::new();
        if kind != self.kind {
            text.append(self.end_prose());
            self.kind = kind;
            self.last = self.last.map(|_| Shown::Block);
        }
        if !piece.is_empty() && self.last.replace(Shown::Prose) == Some(Shown::Block) {
            text.plain("\n");
        }
        let shown = self.prose.take(piece);
        text.add(self.prose_tone(), &shown);
        text
    }

    const fn prose_tone(&self) -> Tone {
        match self.kind {
            Prose::Said => Tone::Plain,
            Prose::Thought => Tone::Dim,
        }
    }

    /// What begins on a line of its own.
    fn block(&mut self, event: &AgentEvent) -> Text {
        let mut text = Text::new();
        match event {
            AgentEvent::SessionStarted(started) => {
                self.started(&mut text, started);
                // It ends with room of its own.
                self.last = None;
            }
            AgentEvent::ToolFinished {
                call,
                tool,
                outcome,
                took_ms,
                summary,
            } => {
                let subject = self.take_running(call);
                let what = format!("{tool} {subject}");
                self.call(&mut text, *outcome, what.trim_end(), (*took_ms, summary));
            }
            AgentEvent::WorkflowChanged { from, to, why } => {
                text.add(Tone::Dim, &format!("  {:<8} {from} → ", "workflow"));
                text.add(Tone::Strong, to.as_str());
                self.beside(&mut text, why);
            }
            AgentEvent::TestsRan {
                passed,
                failed,
                skipped,
                took_ms,
            } => self.tests(&mut text, (*passed, failed, *skipped), *took_ms),
            AgentEvent::ApprovalWanted {
                question,
                reasons,
                shown,
                ..
            } => self.question(&mut text, question, reasons, shown.as_deref()),
            AgentEvent::ApprovalAnswered { answer, .. } => {
                let (tone, word) = match answer {
                    PersonAnswer::Approve => (Tone::Good, "approved"),
                    PersonAnswer::Reject => (Tone::Bad, "rejected"),
                };
                text.plain("  ").add(tone, word).plain(" by a person\n");
            }
            AgentEvent::TurnRestarted { reason } => {
                let line = format!("the answer above is void and asked for again: {reason}");
                text.paragraph(Tone::Caution, &line, (2, self.limit()));
            }
            AgentEvent::ReplayDiverged { place, diff: shown } => {
                text.paragraph(Tone::Bad, place, (2, self.limit()));
                text.append(diff(shown));
            }
            AgentEvent::Note { text: note } => {
                text.paragraph(Tone::Dim, &format!("note: {note}"), (2, self.limit()));
            }
            AgentEvent::TaskPaused { name } => {
                let line =
                    format!("paused: {name} stands still while something more urgent is done");
                text.paragraph(Tone::Dim, &line, (2, self.limit()));
            }
            AgentEvent::TaskResumed { name } => {
                let line = format!("resumed: {name} goes on where it was");
                text.paragraph(Tone::Dim, &line, (2, self.limit()));
            }
            AgentEvent::SessionEnded(ended) => {
                text.append(ending(ended, &self.spent, self.limit()));
            }
            AgentEvent::TextDelta { .. }
            | AgentEvent::ReasoningDelta { .. }
            | AgentEvent::TurnStarted { .. }
            | AgentEvent::ToolStarted { .. }
            | AgentEvent::TaskWarned { .. }
            | AgentEvent::TaskSpared { .. }
            | AgentEvent::Usage(_) => {}
        }
        text
    }

    fn started(&mut self, text: &mut Text, started: &SessionStarted) {
        // It goes on with what the person has just typed.
        if self.session.replace(started.session) == Some(started.session) {
            return;
        }
        let session = started.session.to_string();
        let level = level_word(started.isolation);
        text.add(Tone::Strong, "fluffy").plain(&format!(
            " {}  {}  {}  {} ({level})\n",
            short_id(&session),
            started.mode,
            sanitize_line(model_name(&started.model)),
            started.tier,
        ));
        text.paragraph(
            Tone::Plain,
            &format!("> {}", started.task),
            (0, self.limit()),
        );
        text.plain("\n");
    }

    fn call(&self, text: &mut Text, outcome: Outcome, what: &str, (took, summary): (u64, &str)) {
        let (tone, word) = match outcome {
            Outcome::Done => (Tone::Good, "done"),
            Outcome::Failed => (Tone::Bad, "failed"),
            Outcome::Refused => (Tone::Caution, "refused"),
        };
        text.plain("  ").add(tone, &format!("{word:<8} "));
        let took = format!("  {}", duration(took));
        let mut subject = Text::new();
        subject.plain(&sanitize_line(what));
        if let Some(width) = self.width {
            subject = subject.cut(width.saturating_sub(MARGIN + took.len() + 1).max(20));
        }
        text.append(subject).add(Tone::Dim, &took);
        self.beside(text, summary);
    }

    /// A remark on the same line if it fits, else below it.
    fn beside(&self, text: &mut Text, remark: &str) {
        let remark = sanitize_line(remark);
        if remark.is_empty() {
            text.plain("\n");
            return;
        }
        let taken = text.columns() + 2 + remark.chars().count();
        if taken < self.limit() {
            text.plain("  ").add(Tone::Dim, &remark).plain("\n");
        } else {
            text.plain("\n");
            text.paragraph(Tone::Dim, &remark, (MARGIN, self.limit()));
        }
    }

    fn tests(&self, text: &mut Text, results: (usize, &[String], usize), took: u64) {
        let (passed, failed, skipped) = results;
        let count = |count: usize| number(u64::try_from(count).unwrap_or(u64::MAX));
        text.plain(&format!("  {:<8} ", "tests"));
        text.add(Tone::Good, &format!("{} passed", count(passed)))
            .plain(", ");
        let tone = if failed.is_empty() {
            Tone::Plain
        } else {
            Tone::Bad
        };
        text.add(tone, &format!("{} failed", count(failed.len())));
        text.plain(&format!(", {} skipped", count(skipped)));
        text.add(Tone::Dim, &format!("  {}\n", duration(took)));
        for name in failed.iter().take(MAX_TESTS) {
            let name = format!("failed: {}", sanitize_line(name));
            text.plain(&" ".repeat(MARGIN))
                .add(Tone::Bad, &name)
                .plain("\n");
        }
        let left = failed.len().saturating_sub(MAX_TESTS);
        if left > 0 {
            text.plain(&format!("{}and {left} more\n", " ".repeat(MARGIN)));
        }
    }

    fn question(&self, text: &mut Text, question: &str, reasons: &[String], shown: Option<&str>) {
        if let Some(shown) = shown {
            text.append(diff(shown)).plain("\n");
        }
        let question = format!("A person has to answer: {question}");
        text.paragraph(Tone::Caution, &question, (0, self.limit()));
        for reason in reasons {
            text.paragraph(Tone::Plain, &format!("because {reason}"), (2, self.limit()));
        }
    }

    fn take_running(&mut self, call: &str) -> String {
        let at = self.running.iter().position(|(id, _)| id == call);
        at.map(|at| self.running.swap_remove(at).1)
            .unwrap_or_default()
    }

    /// The widest a line of ours may be; a pipe has no limit.
    fn limit(&self) -> usize {
        self.width.unwrap_or(usize::MAX)
    }
}

/// How strong the isolation really is, in a word.
pub(crate) fn level_word(level: fluffy_contract::isolation::Level) -> String {
    // The word of the wire is the word of the documentation.
    let value = serde_json::to_value(level).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn prose_width(width: Option<usize>) -> Option<usize> {
    width.map(|width| width.saturating_sub(1).min(PROSE))
}

#[cfg(test)]
mod tests;
