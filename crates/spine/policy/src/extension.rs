//! Layer 4: extensions, as the engine sees them.
//!
//! The engine is pure, so the scripts run elsewhere (the `script` crate keeps
//! them in a worker process) and answer through [`Extensions`]. An extension
//! that fails in any way answers [`Opinion::Failed`], which the engine reads as
//! deny: a guard that cannot speak has not consented.

use fluffy_base::Timestamp;

use crate::Request;

/// What one extension says about one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opinion {
    /// It has no objection and permits.
    Allow,
    /// It refuses.
    Deny,
    /// A person must look.
    RequireReview,
    /// It has nothing to say.
    Pass,
    /// It threw, timed out, ran out of memory, returned nonsense or is
    /// disabled; the text says which. Counts as deny.
    Failed,
}

/// One extension's answer, with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The extension's name: its file name without `.ts`.
    pub extension: String,
    /// What it says.
    pub opinion: Opinion,
    /// Why; for people. Empty when it gave none.
    pub reason: String,
}

/// The extensions that guard an action; a seam between the pure engine and the
/// worker process that runs the scripts.
pub trait Extensions: Send + Sync {
    /// The answers of every extension that declares the request's action, in
    /// any order. `now` is the one clock reading of this evaluation.
    fn ask(&self, request: &Request, now: Timestamp) -> Vec<Answer>;
}

/// No extensions at all.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoExtensions;

impl Extensions for NoExtensions {
    fn ask(&self, _request: &Request, _now: Timestamp) -> Vec<Answer> {
        Vec::new()
    }
}
