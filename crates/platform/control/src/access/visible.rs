//! Who sees which event.
//!
//! An org sees its own. What the platform is made of is for its operators, and
//! decisions are for those who may read the audit.

use fluffy_base::id::OrgId;
use fluffy_ledger::{Domain, Event};

use crate::state::Owner;

/// Kinds of aggregates that no tenant sees.
const PLATFORM: &[&str] = &[
    "cluster",
    "enrollment_token",
    "lease",
    "ledger",
    "master_key",
    "node",
    "projection",
];

/// Whether an event is in the history of an org.
///
/// Whoever asks this has been allowed `events.read` or `audit.read` there.
#[must_use]
pub fn may_see(org: OrgId, audit: Audit, event: &Event) -> bool {
    let kind = event.aggregate.kind.as_str();
    event.domain == Domain::Platform
        && Owner::of(&event.scope).org == Some(org)
        && !PLATFORM.contains(&kind)
        && (audit == Audit::Included || kind != "principal")
}

/// Whether an event is of the platform itself: of no org, or of a kind that no
/// org sees. Every event is in this history or in that of one org.
///
/// Whoever asks this has been allowed `ledger.admin`.
#[must_use]
pub fn is_of_platform(event: &Event) -> bool {
    event.domain == Domain::Platform
        && (Owner::of(&event.scope).org.is_none()
            || PLATFORM.contains(&event.aggregate.kind.as_str()))
}

/// Whether decisions are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audit {
    /// With decisions: `audit.read`.
    Included,
    /// Without: `events.read`.
    Left,
}
