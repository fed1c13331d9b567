//! Tools: what the model can call.
//!
//! The router asks a tool what a call *would* do ([`Tool::need`]), gets that
//! decided, and only then runs it. One call acts on one resource; what touches
//! several is several calls. A tool never decides about itself.

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

/// What one call needs to be allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// The action, as in the policy's registry.
    pub action: String,
    /// What it acts on, not yet normalised.
    pub resource: String,
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
    /// The permit is for another capability than this call needs.
    #[error("the permit covers `{permitted}`, this call needs `{needed}`")]
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

/// Something the model can call.
pub trait Tool: Send + Sync {
    /// What this tool is.
    fn description(&self) -> &ToolDescription;

    /// What a call with these arguments needs to be allowed.
    ///
    /// # Errors
    /// The arguments do not fit.
    fn need(&self, arguments: &Value) -> Result<Need, CallToolError>;

    /// Runs the call; the permit is for what [`Tool::need`] said.
    fn call<'a>(
        &'a self,
        permit: Permit,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<ToolOutput, CallToolError>>;
}
