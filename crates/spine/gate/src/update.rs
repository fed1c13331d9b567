//! Putting another policy in force: validated, tried, approved, pinned.
//!
//! The event is on disk before the new copy is: a crash in between leaves the
//! old policy and a record of what was about to happen, never a new policy
//! that nobody can account for.

use fluffy_base::Digest;
use fluffy_ledger::{AppendError, Batch, Event, Ledger, StoreError};
use fluffy_policy::Request;
use fluffy_policy::diagnostic::Diagnostic;
use fluffy_policy::record::DecisionRecord;
use fluffy_policy::trial::{self, TrialReport};
use serde_json::json;

use crate::bundle::Bundle;
use crate::gate::{ApproveError, AuthorizeError, Gate, Granted, draft_for};
use crate::load::{LoadPolicyError, LoadedPolicy};
use crate::pin::WritePinError;

/// A valid policy that is not in force, and what it would change.
#[derive(Debug)]
pub struct Proposal {
    bundle: Bundle,
    /// The digest it would be pinned by.
    pub digest: Digest,
    /// Whether it is what is in force already.
    pub in_force: bool,
    /// What is legal but pointless in it.
    pub warnings: Vec<Diagnostic>,
    /// What it would have decided differently.
    pub trial: TrialReport,
}

/// Why a policy cannot even be proposed.
#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    /// It is not valid.
    #[error("the proposed policy is not valid")]
    Invalid(#[source] LoadPolicyError),
    /// The decisions to try it on cannot be read.
    #[error("the recorded decisions cannot be read")]
    History(#[source] StoreError),
}

/// Why a policy was not put in force; the old one still is.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// This is no project, so there is nothing to pin a policy for.
    #[error("there is no project to apply a policy to")]
    NoProject,
    /// The update itself is denied.
    #[error("the update is not permitted")]
    NotPermitted(#[from] AuthorizeError),
    /// The approval did not hold.
    #[error("the approval does not hold")]
    NotApproved(#[from] ApproveError),
    /// The update could not be recorded.
    #[error("the update could not be recorded")]
    NotRecorded(#[source] AppendError),
    /// The copy could not be written.
    #[error("the policy could not be pinned")]
    NotPinned(#[from] WritePinError),
    /// It was pinned and then could not be loaded.
    #[error("the policy was pinned and could not be loaded")]
    NotLoaded(#[source] LoadPolicyError),
}

impl Gate {
    /// Validates a policy in memory and tries it on the last recorded
    /// decisions. Nothing changes.
    ///
    /// # Errors
    /// It is invalid, or history cannot be read.
    pub fn propose(&self, bundle: Bundle, last: usize) -> Result<Proposal, ProposeError> {
        // Decisions still in the buffer belong to history too; if they cannot
        // be written, a trial on what is on disk is still true.
        let _ = self.ledger.flush_blocking();
        let fresh = LoadedPolicy::with_project(&self.places, bundle.clone(), &self.clock)
            .map_err(ProposeError::Invalid)?;
        let events = decision_events(&self.ledger, last).map_err(ProposeError::History)?;
        let records: Vec<DecisionRecord> = events.iter().filter_map(record_of).collect();
        let current = self.policy();
        let mut trial = trial::compare(current.side(), fresh.side(), &records);
        // Of an unknown shape: nothing to show, but never silently left out.
        trial.not_replayed += events.len() - records.len();
        let digest = bundle.digest();
        Ok(Proposal {
            bundle,
            digest,
            in_force: current.pinned == Some(digest),
            warnings: fresh.engine.warnings().to_vec(),
            trial,
        })
    }

    /// The last recorded decisions, oldest first, without those of an unknown
    /// shape.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn decisions(&self, last: usize) -> Result<Vec<DecisionRecord>, StoreError> {
        Self::decisions_in(&self.ledger, last)
    }

    /// As [`Gate::decisions`], of any ledger.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn decisions_in(ledger: &Ledger, last: usize) -> Result<Vec<DecisionRecord>, StoreError> {
        let events = decision_events(ledger, last)?;
        Ok(events.iter().filter_map(record_of).collect())
    }

    /// Puts a proposal in force. `request` is the person's own, for
    /// `policy.update`; calling this is their answer to its review.
    ///
    /// # Errors
    /// It is denied, or something could not be recorded or written; then the
    /// old policy holds.
    pub fn update(&self, proposal: &Proposal, request: &Request) -> Result<Digest, UpdateError> {
        let pins = self.places.pins.as_ref().ok_or(UpdateError::NoProject)?;
        let Granted { permit, decision } = self.permit_reviewed(request)?;
        let from = self.policy().pinned;
        let event = |outcome: &str| {
            let payload = json!({
                "from": from,
                "to": proposal.digest,
                "outcome": outcome,
                "breaking": proposal.trial.breaking,
                "changed": proposal.trial.changed,
                "tried": proposal.trial.changed + proposal.trial.unchanged,
            });
            draft_for(&request.principal, "policy.update", payload).decided_by(decision.clone())
        };
        self.ledger
            .append_blocking(Batch::from(event("approved")))
            .map_err(UpdateError::NotRecorded)?;
        if let Err(error) = pins.pin(permit, &proposal.bundle) {
            // The failure to write is what the person must hear of, even when
            // the same full disk keeps this second event from being recorded.
            let _ = self.ledger.append_blocking(Batch::from(event("failed")));
            return Err(error.into());
        }
        self.reload().map_err(UpdateError::NotLoaded)?;
        Ok(proposal.digest)
    }

    /// The permit for a request whose reviews the caller has just answered.
    fn permit_reviewed(&self, request: &Request) -> Result<Granted, UpdateError> {
        let refusal = match self.authorize(request) {
            Ok(granted) => return Ok(granted),
            Err(AuthorizeError::Refused { refusal, .. }) if refusal.is_reviewable() => refusal,
            Err(error) => return Err(error.into()),
        };
        let approved = self.authorize_approved(request, &refusal, &request.principal.name);
        approved.map_err(|error| match error {
            ApproveError::Refused(refused) => UpdateError::NotPermitted(refused),
            error => UpdateError::NotApproved(error),
        })
    }
}

fn decision_events(ledger: &Ledger, last: usize) -> Result<Vec<Event>, StoreError> {
    ledger.last_where(last, |event| event.event_type == "policy.decision")
}

/// The replayable part of a recorded decision; an event of an unknown shape
/// has none.
fn record_of(event: &Event) -> Option<DecisionRecord> {
    let payload = event.payload.value().ok()?;
    serde_json::from_value(payload.get("record")?.clone()).ok()
}
