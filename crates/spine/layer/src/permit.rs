//! Which permit each effect on a layer needs.
//!
//! A layer has no actions of its own: making one belongs to starting a sandbox,
//! undoing and dropping are writing and removing below the project's root, and
//! merging is merging.

use fluffy_policy::Permit;

/// Making a layer is a part of starting a sandbox.
pub const CREATE: &str = "sandbox.create";

/// Going back to a snapshot writes anywhere in the layer; the resource is `/`.
pub const RESTORE: &str = "fs.write";

/// Dropping removes everything in the layer; the resource is `/`.
pub const DROP: &str = "fs.remove";

/// Merging, and ending a merge that was interrupted.
pub const MERGE: &str = "merge.apply";

/// A permit for something else than what is to be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a permit for `{needed}` is needed, and this one is for `{given}`")]
pub struct WrongPermit {
    /// What is to be done.
    pub needed: String,
    /// What is permitted.
    pub given: String,
}

/// Refuses a permit for another action, or for less than the whole layer.
pub(crate) fn check(permit: &Permit, action: &str) -> Result<(), WrongPermit> {
    let whole = permit.resource().is_none_or(|resource| resource == "/");
    if permit.action() == action && (action == CREATE || whole) {
        return Ok(());
    }
    Err(wrong(permit, action.to_owned()))
}

/// Whether a permit is for exactly this action on this path.
pub(crate) fn covers(permit: &Permit, actions: &[&str], resource: &str) -> bool {
    actions.contains(&permit.action()) && permit.resource() == Some(resource)
}

pub(crate) fn wrong(permit: &Permit, needed: String) -> WrongPermit {
    WrongPermit {
        needed,
        given: permit.capability().to_string(),
    }
}
