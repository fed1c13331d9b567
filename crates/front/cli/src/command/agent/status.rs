//! The bottom line of a terminal: where the session stands right now.
//!
//! Pure: events in, one line out. Whether and where it is drawn is the
//! printer's affair.

use fluffy_contract::isolation::Level;
use fluffy_kernel::api;
use fluffy_kernel::event::{AgentEvent, Spent};
use fluffy_policy::word::{Mode, State, Tier};
use fluffy_report::{Text, Tone, sanitize_line};

use super::show::level_word;
use super::show::words::{model_name, money, short, tokens};

/// From this width on there is room for everything.
const WIDE: usize = 100;

/// What is known about a session while it runs.
#[derive(Debug, Default)]
pub(crate) struct StatusLine {
    known: Option<Known>,
    state: Option<State>,
    spent: Spent,
    activity: Activity,
}

#[derive(Debug)]
struct Known {
    mode: Mode,
    model: String,
    tier: Tier,
    isolation: Level,
}

/// What is going on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Activity {
    /// Nothing.
    #[default]
    Resting,
    /// The model is at it.
    Thinking,
    /// A tool runs.
    Running(String),
    /// The person is asked.
    Asking,
    /// The connection was lost.
    Reconnecting,
}

impl StatusLine {
    /// Takes in what an event says about it.
    pub(crate) fn hear(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::SessionStarted(started) => {
                self.known = Some(Known {
                    mode: started.mode,
                    model: started.model.clone(),
                    tier: started.tier,
                    isolation: started.isolation,
                });
                self.activity = Activity::Thinking;
            }
            AgentEvent::ToolStarted { tool, subject, .. } => {
                self.activity = Activity::Running(format!("{tool} {subject}"));
            }
            AgentEvent::WorkflowChanged { to, .. } => self.state = Some(*to),
            AgentEvent::ApprovalWanted { .. } => self.activity = Activity::Asking,
            AgentEvent::Usage(spent) => self.spent = *spent,
            AgentEvent::SessionEnded(_) => self.activity = Activity::Resting,
            AgentEvent::TurnStarted { .. }
            | AgentEvent::TextDelta { .. }
            | AgentEvent::ReasoningDelta { .. }
            | AgentEvent::TurnRestarted { .. }
            | AgentEvent::ToolFinished { .. }
            | AgentEvent::TestsRan { .. }
            | AgentEvent::ReplayDiverged { .. }
            | AgentEvent::ApprovalAnswered { .. } => self.activity = Activity::Thinking,
            AgentEvent::TaskPaused { name } => {
                self.activity = Activity::Running(format!("{name} (paused)"));
            }
            AgentEvent::TaskResumed { name } => self.activity = Activity::Running(name.clone()),
            AgentEvent::TaskWarned { .. }
            | AgentEvent::TaskSpared { .. }
            | AgentEvent::Note { .. } => {}
        }
    }

    /// Takes in what the kernel says when it is asked.
    pub(crate) fn update(&mut self, status: &api::Status) {
        self.known = Some(Known {
            mode: status.mode,
            model: status.model.clone(),
            tier: status.tier,
            isolation: status.isolation,
        });
        self.state = Some(status.state);
        self.spent = status.spent;
    }

    /// The connection to the kernel is gone for now.
    pub(crate) fn lost(&mut self) {
        self.activity = Activity::Reconnecting;
    }

    /// The line for this many columns; nothing before the session began.
    pub(crate) fn line(&self, width: usize) -> Text {
        let mut line = Text::new();
        let Some(known) = &self.known else {
            return line;
        };
        line.add(Tone::Strong, known.mode.as_str());
        let cost = self.spent.cost_micros.map(money).unwrap_or_default();
        let used = format!("{} tok {cost}", short(tokens(&self.spent)));
        let parts = [
            self.state.map(|state| state.to_string()),
            Some(sanitize_line(model_name(&known.model)).into_owned()),
            Some(used.trim_end().to_owned()),
            Some(self.tier(known, width)),
            self.activity.words(),
        ];
        for part in parts.into_iter().flatten() {
            line.add(Tone::Dim, " · ").plain(&part);
        }
        line.cut(width)
    }

    /// What the isolation really is, where there is room for it or it is weak.
    fn tier(&self, known: &Known, width: usize) -> String {
        if width >= WIDE || known.isolation == Level::Reduced {
            return format!("{} ({})", known.tier, level_word(known.isolation));
        }
        known.tier.to_string()
    }
}

impl Activity {
    fn words(&self) -> Option<String> {
        match self {
            Self::Resting => None,
            Self::Thinking => Some("thinking".to_owned()),
            Self::Running(what) => Some(sanitize_line(what).into_owned()),
            Self::Asking => Some("asks you".to_owned()),
            Self::Reconnecting => Some("reconnecting to the kernel".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use fluffy_report::Styling;

    use super::super::show::sample;
    use super::*;

    #[test]
    fn the_line_follows_the_session() {
        let mut status = StatusLine::default();
        assert!(status.line(79).is_empty());
        let mut lines: Vec<String> = Vec::new();
        for event in sample::session() {
            status.hear(&event);
            let line = status.line(79).render(Styling::Plain);
            if lines.last() != Some(&line) {
                lines.push(line);
            }
        }
        insta::assert_snapshot!(lines.join("\n"), @r"
        strict · openai/gpt-5 · 0 tok · process · thinking
        strict · planning · openai/gpt-5 · 0 tok · process · thinking
        strict · planning · openai/gpt-5 · 0 tok · process · fs.read src/config.rs
        strict · planning · openai/gpt-5 · 0 tok · process · thinking
        strict · planning · openai/gpt-5 · 0 tok · process · fs.write src/config.rs
        strict · planning · openai/gpt-5 · 0 tok · process · thinking
        strict · planning · openai/gpt-5 · 13.0k tok $0.04 · process · thinking
        strict · test_writing · openai/gpt-5 · 13.0k tok $0.04 · process · thinking
        strict · test_writing · openai/gpt-5 · 13.0k tok $0.04 · process · test.run (p…
        strict · test_writing · openai/gpt-5 · 13.0k tok $0.04 · process · test.run
        strict · test_writing · openai/gpt-5 · 13.0k tok $0.04 · process · thinking
        strict · test_writing · openai/gpt-5 · 13.0k tok $0.04 · process · shell.exec …
        strict · test_writing · openai/gpt-5 · 13.0k tok $0.04 · process · thinking
        strict · test_writing · openai/gpt-5 · 13.0k tok $0.04 · process · asks you
        strict · test_writing · openai/gpt-5 · 13.0k tok $0.04 · process · thinking
        strict · test_writing · openai/gpt-5 · 103.0k tok $0.30 · process · thinking
        strict · test_writing · openai/gpt-5 · 103.0k tok $0.30 · process
        ");
        status.lost();
        let line = status.line(200).render(Styling::Plain);
        assert!(line.ends_with("reconnecting to the kernel"), "{line}");
    }

    #[test]
    fn names_from_outside_cannot_break_the_line() {
        let mut status = StatusLine::default();
        for event in sample::session().into_iter().take(1) {
            status.hear(&event);
        }
        status.hear(&AgentEvent::ToolStarted {
            call: "c".to_owned(),
            tool: "shell.exec".to_owned(),
            subject: "a\nb\x1b[2J".to_owned(),
        });
        let line = status.line(200).render(Styling::Ansi);
        assert!(!line.contains('\n') && !line.contains("\x1b[2J"), "{line}");
    }
}
