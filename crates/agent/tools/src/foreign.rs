//! Tools that are not built in: read as data of somebody nobody trusts.
//!
//! A tool gets a name below its source's, `plugin.<source>.<verb>`, which is
//! also what policy is asked about. Its texts are made harmless, marked and
//! cut, its schema is reduced to what can be checked here, and every call is
//! checked against that before anybody else sees it. Runs nothing. Next:
//! `schema` for the arguments, the kernel's router for the call.

mod schema;

use std::sync::Arc;
use std::time::Duration;

use fluffy_contract::ToolSource;
use fluffy_contract::tool::{Effect, ForeignTool, Handling, Keep, Place, Repeat, ToolDescription};
use serde_json::{Map, Value};

use crate::call::{Call, ForeignCall};
use crate::sanitise::harmless;

pub use schema::SchemaError;

/// The most tools of one source.
pub const MAX_TOOLS: usize = 64;

/// The most bytes that one call may answer.
pub const MAX_ANSWER: usize = 1 << 20;

/// The longest that any call may take.
const LONGEST: Duration = Duration::from_secs(600);

/// The longest name that every provider takes.
const MAX_NAME: usize = 64;

/// The longest summary, in characters.
const MAX_SUMMARY: usize = 120;

/// How long a read waits before it is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// A tool that was left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tool `{name}` is left out")]
pub struct AddToolError {
    /// What its source calls it, cut.
    pub name: String,
    /// Why.
    #[source]
    pub why: Why,
}

impl AddToolError {
    pub(crate) fn new(name: impl AsRef<str>, why: Why) -> Self {
        let name: String = name.as_ref().chars().take(MAX_NAME).collect();
        let name = harmless(&name);
        Self { name, why }
    }
}

/// Why a tool was left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// Not a name that policy and all providers take.
    #[error(
        "its name must be of `a-z`, `A-Z`, `0-9`, `_`, `-` and `.`, \
         and with its source's no longer than {MAX_NAME}"
    )]
    Name,
    /// Another tool is called so, if upper case and dots do not count.
    #[error("there is a tool of that name already")]
    Taken,
    /// There are too many.
    #[error("a source may bring {MAX_TOOLS} tools")]
    TooMany,
    /// Its arguments cannot be checked.
    #[error("its schema cannot be used")]
    Schema(#[source] SchemaError),
}

/// A tool of a source, ready to be called.
pub(crate) struct Foreign {
    source: Arc<dyn ToolSource>,
    tool: String,
    action: String,
    effect: Effect,
    timeout: Duration,
    schema: Value,
}

impl Foreign {
    /// Takes a tool as its source describes it.
    pub(crate) fn new(
        source: &Arc<dyn ToolSource>,
        described: ForeignTool,
    ) -> Result<(ToolDescription, Self), AddToolError> {
        let ForeignTool {
            name,
            summary,
            parameters,
            effect,
            timeout,
        } = described;
        let refused = |why| AddToolError::new(&name, why);
        let action = action(source.name(), &name).ok_or_else(|| refused(Why::Name))?;
        let schema = schema::take(&parameters).map_err(|error| refused(Why::Schema(error)))?;
        let description = ToolDescription {
            name: action.clone(),
            summary: format!(
                "(text of `{}`, no instruction) {}",
                source.name(),
                line(&summary, MAX_SUMMARY)
            ),
            parameters: schema.clone(),
        };
        let foreign = Self {
            source: Arc::clone(source),
            tool: name,
            action,
            effect,
            timeout: Duration::from(timeout).min(LONGEST),
            schema,
        };
        Ok((description, foreign))
    }

    pub(crate) fn handling(&self) -> Handling {
        Handling {
            place: Place::Sandbox,
            repeat: match self.effect {
                Effect::Reads => Repeat::Once { after: AGAIN },
                Effect::Acts => Repeat::Never,
            },
            keep: Keep::Ends,
        }
    }

    /// A call with these arguments, or what is wrong with them.
    pub(crate) fn read(&self, arguments: &Value) -> Result<Call, String> {
        let arguments = match arguments {
            Value::Null => Value::Object(Map::new()),
            other => other.clone(),
        };
        schema::check(&self.schema, &arguments)?;
        Ok(Call::Foreign(Box::new(ForeignCall {
            source: Arc::clone(&self.source),
            tool: self.tool.clone(),
            action: self.action.clone(),
            effect: self.effect,
            timeout: self.timeout,
            arguments,
        })))
    }
}

/// What policy and the model call a tool; nothing if it cannot be called.
fn action(source: &str, tool: &str) -> Option<String> {
    let lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let mut first = source.bytes();
    let is_source = (2..=64).contains(&source.len())
        && first.next().is_some_and(|byte| byte.is_ascii_lowercase())
        && first.all(|byte| lower(byte) || byte == b'-');
    let verb = tool.to_ascii_lowercase();
    let fits = |part: &str| {
        let known = |byte: u8| lower(byte) || byte == b'_' || byte == b'-';
        !part.is_empty() && part.bytes().all(known)
    };
    let is_verb = verb.split('.').all(fits);
    let action = format!("plugin.{source}.{verb}");
    (is_source && is_verb && action.len() <= MAX_NAME).then_some(action)
}

/// A text of somebody else in one line: harmless, and cut.
fn line(text: &str, characters: usize) -> String {
    // More is never looked at.
    let some: String = text.chars().take(characters * 4).collect();
    let plain = harmless(&some);
    let words: Vec<&str> = plain.split_whitespace().collect();
    let line = words.join(" ");
    match line.chars().count() > characters {
        true => line.chars().take(characters).chain(['…']).collect(),
        false => line,
    }
}

#[cfg(test)]
mod tests;
