//! The one registry of tools: what exists, and whether a call fits.
//!
//! Every call comes through [`Registry::check`] first; what it does not know or
//! cannot read is refused with a message the model can correct itself from.
//! It decides nothing about permission: a checked call only says what it needs.

mod standard;

use std::sync::Arc;

use fluffy_contract::ToolSource;
use fluffy_contract::tool::{CallPlan, Handling, ToolDescription};
use serde_json::Value;

use crate::call::Call;
use crate::foreign::{AddToolError, Foreign, MAX_TOOLS, Why};
use crate::paths::ProjectPaths;
use crate::schema;

/// The most bytes of one call's arguments.
pub const MAX_ARGUMENT_BYTES: usize = 8 << 20;

/// All tools of a session.
pub struct Registry {
    tools: Vec<Entry>,
    paths: ProjectPaths,
}

struct Entry {
    description: ToolDescription,
    handling: Handling,
    read: Read,
}

/// Makes a call of arguments, or says what is wrong with them.
type ReadArguments = dyn Fn(Value, &ProjectPaths) -> Result<Call, String> + Send + Sync;

/// How the arguments of a tool are read.
enum Read {
    Own(Box<ReadArguments>),
    Foreign(Box<Foreign>),
}

/// A call that fits, with what it would do.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The tool's name.
    pub tool: String,
    /// How its calls are treated.
    pub handling: Handling,
    /// What must be allowed, and what it touches.
    pub plan: CallPlan,
    /// The call itself.
    pub call: Call,
}

/// Why a call does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckCallError {
    /// There is no such tool.
    #[error("there is no tool `{name}`{}", meant(nearest.as_deref()))]
    UnknownTool {
        /// The name, shortened.
        name: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// The arguments are not what the tool takes.
    #[error("`{tool}` takes {signature}: {problem}")]
    Arguments {
        /// The tool.
        tool: String,
        /// What is wrong, for the model to correct.
        problem: String,
        /// What it takes, in a line.
        signature: String,
    },
    /// There is too much of them.
    #[error("the arguments of `{tool}` have more than {MAX_ARGUMENT_BYTES} bytes")]
    TooLarge {
        /// The tool.
        tool: String,
    },
}

impl Registry {
    /// The tools of the product, for a project in this folder.
    #[must_use]
    pub fn standard(paths: ProjectPaths) -> Self {
        let tools = standard::tools();
        Self { tools, paths }
    }

    /// Adds the tools of a plugin or a server; says which were left out, and
    /// why. None can take the name of another.
    pub fn add(&mut self, source: &Arc<dyn ToolSource>) -> Vec<AddToolError> {
        let mut left_out = Vec::new();
        for (number, described) in source.tools().into_iter().enumerate() {
            let name = described.name.clone();
            if number >= MAX_TOOLS {
                left_out.push(AddToolError::new(name, Why::TooMany));
                break;
            }
            let (description, foreign) = match Foreign::new(source, described) {
                Ok(read) => read,
                Err(error) => {
                    left_out.push(error);
                    continue;
                }
            };
            let is_known =
                |tool: &ToolDescription| on_the_wire(&tool.name) == on_the_wire(&description.name);
            if self.descriptions().any(is_known) {
                left_out.push(AddToolError::new(name, Why::Taken));
                continue;
            }
            self.tools.push(Entry {
                handling: foreign.handling(),
                description,
                read: Read::Foreign(Box::new(foreign)),
            });
        }
        left_out
    }

    /// What every tool is, in the order of the registry.
    pub fn descriptions(&self) -> impl Iterator<Item = &ToolDescription> {
        self.tools.iter().map(|entry| &entry.description)
    }

    /// The list of tools for the system prompt: one line each.
    #[must_use]
    pub fn summaries(&self) -> String {
        let lines = self.descriptions().map(|tool| {
            let summary: String = tool.summary.chars().take(160).collect();
            format!("- {}: {summary}\n", tool.name)
        });
        lines.collect()
    }

    /// Reads a call that the model made.
    ///
    /// Providers do not take dots in names, so `fs_read` is `fs.read`.
    ///
    /// # Errors
    /// There is no such tool, or it does not take these arguments.
    pub fn check(&self, name: &str, arguments: &Value) -> Result<Checked, CheckCallError> {
        let entry = self.find(name).ok_or_else(|| self.unknown(name))?;
        let tool = entry.description.name.clone();
        if size(arguments) > MAX_ARGUMENT_BYTES {
            return Err(CheckCallError::TooLarge { tool });
        }
        let wrong = |problem: String| CheckCallError::Arguments {
            tool: tool.clone(),
            problem,
            signature: schema::signature(&entry.description.parameters),
        };
        let (call, plan) = match &entry.read {
            Read::Own(read) => {
                // A model that has nothing to say sends nothing.
                let arguments = match arguments {
                    Value::Null => Value::Object(serde_json::Map::new()),
                    other => other.clone(),
                };
                let call = read(arguments, &self.paths).map_err(wrong)?;
                let plan = call.plan();
                (call, plan)
            }
            Read::Foreign(foreign) => {
                let call = foreign.read(arguments).map_err(wrong)?;
                let plan = call.plan();
                (call, plan)
            }
        };
        Ok(Checked {
            tool: entry.description.name.clone(),
            handling: entry.handling,
            plan,
            call,
        })
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        let exact = |entry: &&Entry| entry.description.name == name;
        let alike = |entry: &&Entry| on_the_wire(&entry.description.name) == name;
        let mut entries = self.tools.iter();
        entries
            .find(exact)
            .or_else(|| self.tools.iter().find(alike))
    }

    fn unknown(&self, name: &str) -> CheckCallError {
        let name: String = name.chars().take(64).collect();
        let words = |text: &str| -> Vec<String> {
            let parts = text.split(['.', '_', '-', '/']);
            parts
                .map(str::to_lowercase)
                .filter(|word| !word.is_empty())
                .collect()
        };
        let asked = words(&name);
        let shared = |tool: &str| {
            words(tool)
                .iter()
                .filter(|word| asked.contains(word))
                .count()
        };
        let best = self.descriptions().max_by_key(|tool| shared(&tool.name));
        let nearest = best.filter(|tool| shared(&tool.name) > 0);
        CheckCallError::UnknownTool {
            nearest: nearest.map(|tool| tool.name.clone()),
            name,
        }
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.descriptions().map(|tool| &tool.name);
        f.debug_list().entries(names).finish()
    }
}

/// A name as providers take it: without dots.
fn on_the_wire(name: &str) -> String {
    name.replace('.', "_")
}

/// How much a value holds, in bytes.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(|each| size(each) + 1).sum(),
        Value::Object(object) => object
            .iter()
            .map(|(key, each)| key.len() + size(each) + 1)
            .sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

fn meant(nearest: Option<&str>) -> String {
    nearest
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
