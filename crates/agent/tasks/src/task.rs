//! What a task is: its kind, its urgency, what it waits for, how it ended.
//!
//! Data only: every field is checked when it is read or submitted, and
//! nothing here knows about slots or time. Next: `phase` for where a task
//! stands, `submit` for what is refused.

use std::fmt;
use std::str::FromStr;

use fluffy_base::Span;
use fluffy_base::id::TaskId;
use serde::{Deserialize, Serialize};

/// One piece of work, as it is submitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Chosen by whoever submits it; never used twice.
    pub id: TaskId,
    /// What people call it; named when it is the cause of a failure.
    pub name: String,
    /// What it does.
    pub kind: Kind,
    /// The template of its sandbox; nothing means that it needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Word>,
    /// How urgent it is.
    pub priority: Priority,
    /// The tasks that must succeed before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<TaskId>,
    /// How long it may run, pauses not counted.
    pub time: Span,
}

/// What a task does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Kind {
    /// Asks a model.
    AiGenerate,
    /// Runs tests.
    TestRun,
    /// Checks a change against its evidence.
    Validate,
    /// Has a change reviewed.
    Review,
    /// Commits a change.
    Commit,
    /// Something that a plugin brought, by its name.
    Plugin(Word),
}

/// How urgent a task is: 1 (system) to 5 (idle).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

/// A name of a template or a plugin: `a-z 0-9 - _ .`, 1 to 64 characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Word(String);

/// How a task ended; it never changes again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It did what it was for.
    Succeeded,
    /// It did not, and neither will what depends on it.
    Failed {
        /// Why.
        cause: Cause,
    },
    /// Nobody wants it any more.
    Cancelled {
        /// The task that was cancelled; nothing when it was this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with: Option<Origin>,
    },
}

/// Why a task failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Cause {
    /// It said so itself.
    Itself {
        /// In its words, cut to [`MAX_REASON`] characters.
        reason: String,
    },
    /// A task that it depends on, directly or not, failed first.
    Dependency {
        /// The one that failed by itself, not one in between.
        origin: Origin,
    },
    /// Its time was over.
    Time,
    /// It was ended to get memory back, for the second time.
    Memory,
    /// It was running during too many crashes.
    Crashes,
}

/// The task where a failure or a cancellation began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Which.
    pub task: TaskId,
    /// What it is called.
    pub name: String,
}

/// The longest reason that is kept of a failure, in characters.
pub const MAX_REASON: usize = 1_024;

/// Why a text or a number is not part of a task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseTaskError {
    /// Not a kind of task.
    #[error(
        "`{0}` is not a kind of task: \
         ai_generate, test_run, validate, review, commit or plugin:NAME"
    )]
    Kind(String),
    /// Not a priority.
    #[error("`{0}` is not a priority: 1 (system) to 5 (idle)")]
    Priority(u8),
    /// Not a name.
    #[error("`{0}` is not a name: 1 to 64 of `a-z`, `0-9`, `-`, `_` and `.`")]
    Word(String),
}

impl Kind {
    const NAMED: [(&'static str, Self); 5] = [
        ("ai_generate", Self::AiGenerate),
        ("test_run", Self::TestRun),
        ("validate", Self::Validate),
        ("review", Self::Review),
        ("commit", Self::Commit),
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AiGenerate => f.write_str("ai_generate"),
            Self::TestRun => f.write_str("test_run"),
            Self::Validate => f.write_str("validate"),
            Self::Review => f.write_str("review"),
            Self::Commit => f.write_str("commit"),
            Self::Plugin(name) => write!(f, "plugin:{name}"),
        }
    }
}

impl FromStr for Kind {
    type Err = ParseTaskError;

    fn from_str(text: &str) -> Result<Self, ParseTaskError> {
        if let Some(name) = text.strip_prefix("plugin:") {
            return name.parse().map(Self::Plugin);
        }
        Self::NAMED
            .into_iter()
            .find_map(|(name, kind)| (name == text).then_some(kind))
            .ok_or_else(|| ParseTaskError::Kind(shorten(text, 64)))
    }
}

impl TryFrom<String> for Kind {
    type Error = ParseTaskError;

    fn try_from(text: String) -> Result<Self, ParseTaskError> {
        text.parse()
    }
}

impl From<Kind> for String {
    fn from(kind: Kind) -> Self {
        kind.to_string()
    }
}

impl Priority {
    /// 1: the system's own; nothing ever rises to it.
    pub const SYSTEM: Self = Self(1);
    /// 2: somebody waits for it; as far as waiting lifts a task.
    pub const URGENT: Self = Self(2);
    /// 3: the ordinary work of a session.
    pub const NORMAL: Self = Self(3);
    /// 4: nobody waits for it.
    pub const LOW: Self = Self(4);
    /// 5: when there is nothing else to do.
    pub const IDLE: Self = Self(5);

    /// Its number, 1 to 5.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// This priority after waiting for so many age thresholds.
    #[must_use]
    pub fn risen(self, levels: u8) -> Self {
        let highest = self.0.min(Self::URGENT.0);
        Self(self.0.saturating_sub(levels).max(highest))
    }
}

impl TryFrom<u8> for Priority {
    type Error = ParseTaskError;

    fn try_from(number: u8) -> Result<Self, ParseTaskError> {
        if (Self::SYSTEM.0..=Self::IDLE.0).contains(&number) {
            Ok(Self(number))
        } else {
            Err(ParseTaskError::Priority(number))
        }
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> Self {
        priority.0
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Word {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Word {
    type Err = ParseTaskError;

    fn from_str(text: &str) -> Result<Self, ParseTaskError> {
        let known =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        if (1..=64).contains(&text.len()) && text.bytes().all(known) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseTaskError::Word(shorten(text, 64)))
        }
    }
}

impl TryFrom<String> for Word {
    type Error = ParseTaskError;

    fn try_from(text: String) -> Result<Self, ParseTaskError> {
        text.parse()
    }
}

impl From<Word> for String {
    fn from(word: Word) -> Self {
        word.0
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// At most so many characters of a text.
pub(crate) fn shorten(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_one_spelling_each() {
        for text in [
            "ai_generate",
            "test_run",
            "validate",
            "review",
            "commit",
            "plugin:jira-tool",
        ] {
            assert_eq!(text.parse::<Kind>().unwrap().to_string(), text);
        }
        for text in ["", "Commit", "plugin", "plugin:", "plugin:a b", "deploy"] {
            assert!(text.parse::<Kind>().is_err(), "{text}");
        }
    }

    #[test]
    fn waiting_lifts_to_two_and_never_to_one() {
        let rows = [(5, 1, 4), (5, 3, 2), (5, 200, 2), (2, 9, 2), (1, 9, 1)];
        for (number, levels, expected) in rows {
            let priority = Priority::try_from(number).unwrap();
            assert_eq!(priority.risen(levels).number(), expected);
        }
        assert!(Priority::try_from(0).is_err());
        assert!(Priority::try_from(6).is_err());
    }

    #[test]
    fn a_name_is_short_and_plain() {
        assert!("ai-provider".parse::<Word>().is_ok());
        for text in ["", "A", "a/b", "ä", "x".repeat(65).as_str()] {
            assert!(text.parse::<Word>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_task_with_a_field_too_many_is_refused() {
        let json = r#"{"id":"tsk_00000000000000000000000001","name":"t","kind":"commit",
            "priority":3,"time":"5s"}"#;
        assert!(serde_json::from_str::<Task>(json).is_ok());
        let more = json.replace("\"time\"", "\"slots\":4,\"time\"");
        assert!(serde_json::from_str::<Task>(&more).is_err());
    }
}
