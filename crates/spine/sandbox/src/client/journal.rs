//! What happened to sandboxes, for the ledger.
//!
//! Written by the caller's side, because the launcher holds no ledger. Never
//! holds arguments' values beyond the program's name, or variables.

use std::sync::Arc;

use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::{Command, Level, SandboxError};
use fluffy_ledger::{Actor, Aggregate, Domain, Draft, Ledger};
use fluffy_policy::Permit;
use serde_json::{Value, json};

/// Where sandboxes are recorded, and in whose name.
#[derive(Debug, Clone)]
pub struct Journal {
    ledger: Arc<Ledger>,
    actor: Actor,
}

impl Journal {
    /// Records into this ledger.
    #[must_use]
    pub fn new(ledger: Arc<Ledger>, actor: Actor) -> Self {
        Self { ledger, actor }
    }

    pub(super) fn created(
        &self,
        permit: &Permit,
        sandbox: SandboxId,
        template: &str,
        level: Level,
    ) {
        self.record(
            sandbox,
            "sandbox.created",
            json!({
                "decision": permit.decision_id().to_string(),
                "isolation": level,
                "template": template,
            }),
        );
    }

    pub(super) fn attached(&self, permit: &Permit, sandbox: SandboxId, template: &str) {
        self.record(
            sandbox,
            "sandbox.attached",
            json!({
                "decision": permit.decision_id().to_string(),
                "template": template,
            }),
        );
    }

    pub(super) fn failed(
        &self,
        permit: &Permit,
        sandbox: SandboxId,
        template: &str,
        error: &SandboxError,
    ) {
        self.record(
            sandbox,
            "sandbox.failed",
            json!({
                "decision": permit.decision_id().to_string(),
                "reason": error.to_string(),
                "template": template,
            }),
        );
    }

    pub(super) fn command(&self, permit: &Permit, sandbox: SandboxId, command: &Command) {
        self.record(
            sandbox,
            "sandbox.command",
            json!({
                "arguments": command.argv.len(),
                "decision": permit.decision_id().to_string(),
                "program": command.argv.first().map_or("", |program| shorten(program)),
            }),
        );
    }

    pub(super) fn destroyed(&self, sandbox: SandboxId) {
        self.record(sandbox, "sandbox.destroyed", json!({}));
    }

    pub(super) fn swept(&self, removed: &[String]) {
        let removed: Vec<&str> = removed.iter().take(100).map(|line| shorten(line)).collect();
        let aggregate = Aggregate::new("sandbox", "orphans");
        self.append(
            Draft::new(
                Domain::Agent,
                aggregate,
                "sandbox.swept",
                self.actor.clone(),
            )
            .payload(json!({ "removed": removed })),
        );
    }

    fn record(&self, sandbox: SandboxId, event_type: &str, payload: Value) {
        let aggregate = Aggregate::new("sandbox", sandbox.to_string());
        self.append(
            Draft::new(Domain::Agent, aggregate, event_type, self.actor.clone()).payload(payload),
        );
    }

    fn append(&self, draft: Draft) {
        // A ledger that cannot store refuses the next decision; what has
        // already happened can only be said aloud.
        if let Err(error) = self.ledger.record(draft) {
            tracing::error!(%error, "a sandbox event was not recorded");
        }
    }
}

fn shorten(text: &str) -> &str {
    text.get(..text.floor_char_boundary(200)).unwrap_or(text)
}
