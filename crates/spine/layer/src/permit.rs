//! Which permit each effect on a layer needs.
//!
//! Making a layer belongs to starting a sandbox, and merging is merging; what
//! is done to a layer itself is permitted for that one layer.

use fluffy_base::id::LayerId;
use fluffy_policy::Permit;

/// Making a layer is a part of starting a sandbox.
pub const CREATE: &str = "sandbox.create";

/// Going back to a snapshot; the resource is the layer's id.
pub const RESTORE: &str = "layer.restore";

/// Throwing it away; the resource is the layer's id.
pub const DROP: &str = "layer.drop";

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

/// Refuses a permit for another action.
pub(crate) fn check(permit: &Permit, action: &str) -> Result<(), WrongPermit> {
    if permit.action() == action {
        return Ok(());
    }
    Err(wrong(permit, action.to_owned()))
}

/// Refuses a permit for another action, or for another layer.
pub(crate) fn check_for(permit: &Permit, action: &str, layer: LayerId) -> Result<(), WrongPermit> {
    let layer = layer.to_string();
    if covers(permit, &[action], &layer) {
        return Ok(());
    }
    Err(wrong(permit, format!("{action}.{layer}")))
}

/// Whether a permit is for exactly this action on this resource.
pub(crate) fn covers(permit: &Permit, actions: &[&str], resource: &str) -> bool {
    actions.contains(&permit.action()) && permit.resource() == Some(resource)
}

pub(crate) fn wrong(permit: &Permit, needed: String) -> WrongPermit {
    WrongPermit {
        needed,
        given: permit.capability().to_string(),
    }
}
