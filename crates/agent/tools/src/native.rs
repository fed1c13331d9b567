//! Tools that only read, inside the kernel: what the session sees, and no more.
//!
//! Everything goes through one [`View`], so a read sees the layer over the
//! project and no link leads anywhere. Each function uses up a permit for its
//! own action and path. Nothing here writes, runs or sends anything.
//!
//! [`View`]: fluffy_layer::View

mod glob;
mod grep;
mod ignores;
mod list;
mod matches;
mod own;
mod read;
mod walk;

pub use glob::find_files;
pub use grep::{SearchTextError, search_text, search_text_output};
pub use list::{ask_path, list_directory};
pub use matches::{FileMatches, MatchLine, TextMatches};
pub use own::{IgnoredPaths, own_files};
pub use read::read_file;

use std::sync::atomic::{AtomicBool, Ordering};

use fluffy_contract::tool::{CallToolError, ToolOutcome, ToolOutput};
use fluffy_layer::ReadViewError;
use fluffy_policy::Permit;

use crate::paths::covers;

/// What a search that goes through many files must ask on its way.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// Whether a file may be read, by its resource: `/src/lib.rs`.
    pub may_read: &'a (dyn Fn(&str) -> bool + Sync),
    /// Whether somebody wants it to end.
    pub stop: &'a AtomicBool,
}

impl std::fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope")
            .field("stop", &self.stop)
            .finish_non_exhaustive()
    }
}

impl Scope<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Refuses a permit for something else than this call.
fn check(permit: &Permit, action: &str, resource: &str) -> Result<(), CallToolError> {
    match covers(permit, action, resource) {
        true => Ok(()),
        false => Err(CallToolError::WrongPermit {
            permitted: permit.capability().to_string(),
            needed: format!("{action}.{resource}"),
        }),
    }
}

fn done(content: impl Into<String>) -> ToolOutput {
    ToolOutput {
        content: content.into(),
        outcome: ToolOutcome::Done,
    }
}

fn failed(content: impl Into<String>) -> ToolOutput {
    ToolOutput {
        content: content.into(),
        outcome: ToolOutcome::Failed,
    }
}

/// A failed read as the model hears it; what may pass is an error to try again.
fn refused(tool: &str, error: ReadViewError) -> Result<ToolOutput, CallToolError> {
    match error {
        ReadViewError::File(error) => Err(CallToolError::Unavailable {
            tool: tool.to_owned(),
            source: Box::new(error),
        }),
        other => Ok(failed(other.to_string())),
    }
}

#[cfg(test)]
mod tests;
