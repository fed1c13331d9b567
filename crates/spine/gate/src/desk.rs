//! One principal at the gate: what it asks, and what the answer was.
//!
//! Holds no power of its own: it builds requests in one principal's name and
//! sorts the gate's answers into yes, no and "somebody has to look".

use std::sync::Arc;

use fluffy_base::id::SandboxId;
use fluffy_policy::{Context, Principal, Refusal, Request};

use crate::gate::{ApproveError, AuthorizeError, Gate, Granted};

/// A gate, and who asks at it.
#[derive(Debug, Clone)]
pub struct Desk {
    /// Where decisions come from.
    pub gate: Arc<Gate>,
    /// Who asks.
    pub principal: Principal,
}

/// What became of a question.
#[derive(Debug)]
pub enum Answer {
    /// It is permitted.
    Granted(Granted),
    /// Somebody has to look at it first.
    Review(Box<Refusal>),
    /// It is denied.
    Denied(Box<Refusal>),
}

impl Desk {
    /// The same desk for what comes out of a sandbox.
    #[must_use]
    pub fn inside(&self, sandbox: SandboxId) -> Self {
        let principal = Principal {
            sandbox: Some(sandbox),
            ..self.principal.clone()
        };
        Self {
            gate: Arc::clone(&self.gate),
            principal,
        }
    }

    /// A request of this principal.
    #[must_use]
    pub fn request(&self, action: &str, resource: Option<&str>, context: &Context) -> Request {
        Request {
            principal: self.principal.clone(),
            action: action.to_owned(),
            resource: resource.map(str::to_owned),
            context: context.clone(),
        }
    }

    /// Asks the gate.
    ///
    /// # Errors
    /// The decision could not be recorded; then nothing is permitted.
    pub fn ask(&self, request: &Request) -> Result<Answer, AuthorizeError> {
        match self.gate.authorize(request) {
            Ok(granted) => Ok(Answer::Granted(granted)),
            Err(AuthorizeError::Refused { refusal, .. }) if refusal.is_reviewable() => {
                Ok(Answer::Review(refusal))
            }
            Err(AuthorizeError::Refused { refusal, .. }) => Ok(Answer::Denied(refusal)),
            Err(error @ AuthorizeError::NotRecorded(_)) => Err(error),
        }
    }

    /// Carries a person's yes to a review back to the gate.
    ///
    /// # Errors
    /// As [`Gate::authorize_approved`].
    pub fn approve(
        &self,
        request: &Request,
        review: &Refusal,
        by: &str,
    ) -> Result<Granted, ApproveError> {
        self.gate.authorize_approved(request, review, by)
    }
}
