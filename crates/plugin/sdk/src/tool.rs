//! What a plugin is: tools with names, summaries and schemas, and its life.

use std::fmt;

use serde_json::{Map, Value};

use crate::arguments::Arguments;

/// A plugin: its tools, and what it does when it begins and ends.
pub trait Plugin {
    /// Its tools: `tools![count, put]`.
    const TOOLS: &'static [Tool];

    /// Called once in every instance before anything else.
    ///
    /// # Errors
    /// The text is shown to the user, and the instance is not used.
    fn init() -> Result<(), String> {
        Ok(())
    }

    /// Whether it is well.
    ///
    /// # Errors
    /// The text says what is wrong.
    fn health() -> Result<(), String> {
        Ok(())
    }

    /// Called before a stateful instance ends; there is no promise that it is.
    fn shutdown() {}

    /// What the host is told about its tools.
    #[must_use]
    fn describe() -> Vec<Description> {
        let described = Self::TOOLS.iter().map(|tool| Description {
            name: tool.name,
            summary: tool.summary,
            parameters: (tool.parameters)(),
        });
        described.collect()
    }

    /// Carries out one call, as the host does it: arguments are a JSON object.
    ///
    /// # Errors
    /// There is no such tool, or the arguments are not for it.
    fn call(tool: &str, arguments: &str) -> Result<Output, String> {
        let found = Self::TOOLS.iter().find(|one| one.name == tool);
        let found = found.ok_or_else(|| format!("there is no tool `{tool}`"))?;
        let arguments: Map<String, Value> = serde_json::from_str(arguments)
            .map_err(|error| format!("the arguments are no JSON object: {error}"))?;
        Ok(match (found.run)(arguments)? {
            Ok(content) => Output {
                content,
                outcome: Outcome::Done,
            },
            Err(Failure { text }) => Output {
                content: text,
                outcome: Outcome::Failed,
            },
        })
    }
}

/// What a tool answers: a text for the model, or why it could not be done.
pub type Answer = Result<String, Failure>;

/// Why a tool could not do what it was asked to do; anything that can be shown
/// becomes one with `?`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What the model reads.
    pub text: String,
}

// It cannot be shown itself: then it could become one of itself in two ways.
impl<E: fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            text: error.to_string(),
        }
    }
}

/// What a call brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// For the model to read.
    pub content: String,
    /// Whether it did what it was asked to do.
    pub outcome: Outcome,
}

/// Whether a call did what it was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It did.
    Done,
    /// It could not, and its content says why.
    Failed,
}

/// What the host is told about a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// Its name: the function's.
    pub name: &'static str,
    /// What it is for: the first paragraph of the function's documentation.
    pub summary: &'static str,
    /// A JSON schema of its arguments.
    pub parameters: Value,
}

/// A tool, as `#[tool]` makes it of a function.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    name: &'static str,
    summary: &'static str,
    parameters: fn() -> Value,
    run: Run,
}

/// Reads the arguments, or says what is wrong with them, and runs the tool.
type Run = fn(Map<String, Value>) -> Result<Answer, String>;

impl Tool {
    /// For `#[tool]`.
    #[doc(hidden)]
    #[must_use]
    pub const fn new<A: Arguments>(name: &'static str, summary: &'static str, run: Run) -> Self {
        Self {
            name,
            summary,
            parameters: A::schema,
            run,
        }
    }
}

/// A function that is a tool; `#[tool]` implements it for a type of the
/// function's name.
pub trait Described {
    /// The tool.
    const TOOL: Tool;
}
