//! Tools: what the model can call.
//!
//! The router looks at what a call *would* do ([`CallPlan`]), gets every need
//! of it decided, and only then runs it. A need is one action on one resource;
//! a call that touches several files has several. A tool never decides about
//! itself; one that is not built in comes from a [`ToolSource`].

use std::time::Duration;

use fluffy_base::Span;
use fluffy_base::id::SandboxId;
use fluffy_policy::Permit;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::BoxFuture;

/// What a tool is, as the model and people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDescription {
    /// The dotted name: `fs.read`.
    pub name: String,
    /// One line for the list of tools.
    pub summary: String,
    /// JSON schema of the arguments.
    pub parameters: Value,
}

/// How the router treats every call of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handling {
    /// Where its calls run.
    pub place: Place,
    /// Whether a call that failed for a passing reason is made again.
    pub repeat: Repeat,
    /// Which part of a long result is kept.
    pub keep: Keep,
}

/// Where a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In the kernel, reading only what the session sees.
    Native,
    /// In a sandbox, always.
    Sandbox,
    /// It is the kernel's own: a step of the workflow.
    Kernel,
}

/// Whether a failed call is made again without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Never: nobody knows how much of it was done.
    Never,
    /// Once, because it changes nothing.
    Once {
        /// After this long.
        after: Duration,
    },
}

/// Which part of a result that is too long is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The beginning, as of a file.
    Head,
    /// The end, as of a test run.
    Tail,
    /// Both ends, as of a command's output.
    Ends,
}

/// What one call would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallPlan {
    /// What must be allowed, each of it; never empty.
    pub needs: Vec<Need>,
    /// What it reads and writes; decides what may run beside it.
    pub touches: Vec<Touch>,
}

/// One thing that a call needs to be allowed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Need {
    /// The action, as in the policy's registry.
    pub action: String,
    /// What it acts on, not yet normalised; nothing where it takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
}

/// A part of the project that a call reads or writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// Which of the two.
    pub access: Access,
    /// Where.
    pub area: Area,
}

/// Reading or writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// It looks.
    Read,
    /// It changes.
    Write,
}

/// A part of the project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// Any of it: nobody knows in advance.
    Everything,
    /// One path and all below it.
    Below(String),
}

/// What came back from a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOutput {
    /// What the model gets to read, before it is cut and sanitised.
    pub content: String,
    /// Whether the tool itself calls this a success.
    pub outcome: ToolOutcome,
}

/// Whether a call did what it was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    /// It did.
    Done,
    /// It ran and did not succeed (a failing command, a missing file).
    Failed,
}

/// Why a tool gave no output at all.
#[derive(Debug, thiserror::Error)]
pub enum CallToolError {
    /// The arguments do not fit the schema.
    #[error("`{tool}` cannot take these arguments: {problem}")]
    Arguments {
        /// The tool.
        tool: String,
        /// What is wrong with them, for the model to correct.
        problem: String,
    },
    /// The permits are for another capability than this call needs.
    #[error("the permits cover `{permitted}`, this call needs `{needed}`")]
    WrongPermit {
        /// What was permitted.
        permitted: String,
        /// What would have been needed.
        needed: String,
    },
    /// The sandbox or process behind the tool is gone.
    #[error("`{tool}` could not be run")]
    Unavailable {
        /// The tool.
        tool: String,
        /// What happened to it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Somebody who brings tools that are not built in: a plugin, or a server
/// that speaks the Model Context Protocol.
///
/// It says what its tools are and carries calls out. What a call needs to be
/// allowed is never its to say: that follows from its name.
pub trait ToolSource: Send + Sync {
    /// Its name, as in a plugin's manifest: `[a-z][a-z0-9-]{1,63}`.
    fn name(&self) -> &str;

    /// The sandbox it runs in; an approval holds for that one alone.
    fn sandbox(&self) -> SandboxId;

    /// Its tools as of now. Nothing of it is trusted.
    fn tools(&self) -> Vec<ForeignTool>;

    /// Carries a call out; the permit is for this tool of this source.
    fn call<'a>(
        &'a self,
        permit: Permit,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<ToolOutput, CallToolError>>;
}

/// A tool as its source describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignTool {
    /// The source's own name for it.
    pub name: String,
    /// What it is for: text of somebody nobody trusts.
    pub summary: String,
    /// JSON schema of the arguments.
    pub parameters: Value,
    /// What it does to the world, by what a person granted and not by its word.
    pub effect: Effect,
    /// How long a call may take.
    pub timeout: Span,
}

/// What a call does to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It only looks: asked again where the source was not there.
    Reads,
    /// It may change something: never made twice, and alone among its turn's
    /// calls.
    Acts,
}
