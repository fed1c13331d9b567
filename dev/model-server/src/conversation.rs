//! What the server heard, in one form for all formats.
//!
//! For functions that answer by what was said. Names are our dotted ones
//! again. Never used to check a request: `wire` does that first.

use serde_json::Value;

use crate::wire::Format;

/// A conversation as a request holds it.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// The format it came in.
    pub format: Format,
    /// The model asked for.
    pub model: String,
    /// The instructions.
    pub system: String,
    /// What was said.
    pub said: Vec<Said>,
    /// The names of the tools offered, dotted.
    pub tools: Vec<String>,
    /// How many requests came before this one.
    pub number: usize,
}

/// One entry of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// By whom.
    pub by: Speaker,
    /// Its text.
    pub text: String,
    /// The calls it made.
    pub calls: Vec<Called>,
    /// The results it brought.
    pub results: Vec<Answered>,
}

/// Who said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// The person, or a tool.
    User,
    /// The model.
    Model,
}

/// A call in the history.
#[derive(Debug, Clone, PartialEq)]
pub struct Called {
    /// Its id; for formats without ids, its name.
    pub id: String,
    /// The tool, dotted.
    pub name: String,
    /// The arguments.
    pub arguments: Value,
}

/// A result in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The call's id; for formats without ids, its name.
    pub id: String,
    /// What came back.
    pub content: String,
}

impl Conversation {
    /// The results that came after the model's last words.
    #[must_use]
    pub fn last_results(&self) -> Vec<&Answered> {
        let tail = self
            .said
            .iter()
            .rev()
            .take_while(|said| said.by == Speaker::User);
        let mut results: Vec<&Answered> = tail.flat_map(|said| said.results.iter().rev()).collect();
        results.reverse();
        results
    }

    /// How many times the model has spoken.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.said
            .iter()
            .filter(|said| said.by == Speaker::Model)
            .count()
    }

    /// The last thing a person said.
    #[must_use]
    pub fn last_text(&self) -> &str {
        let mut texts = self
            .said
            .iter()
            .rev()
            .filter(|said| said.by == Speaker::User);
        texts
            .find(|said| !said.text.is_empty())
            .map_or("", |said| said.text.as_str())
    }
}

impl Said {
    pub(crate) const fn new(by: Speaker) -> Self {
        Self {
            by,
            text: String::new(),
            calls: Vec::new(),
            results: Vec::new(),
        }
    }
}

/// Our name for a name on the wire.
pub(crate) fn dotted(name: &str) -> String {
    name.replace("__", ".")
}

/// The name on the wire of one of our tools.
pub(crate) fn on_the_wire(name: &str) -> String {
    name.replace('.', "__")
}
