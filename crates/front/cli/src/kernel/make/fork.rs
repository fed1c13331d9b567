//! What a fork begins with: the facts and the layer of another session.
//!
//! The other one is only read. While it works nobody can say what its layer
//! holds, so it has to rest.

use fluffy_base::id::SessionId;
use fluffy_gate::Desk;
use fluffy_ipc::{ErrorCode, Failure as Refused};
use fluffy_kernel::store::SessionStore;
use fluffy_layer::HeldLayer;
use fluffy_policy::word::State;

use super::{Maker, internal, not_there};

/// Where a fork goes on from.
pub(super) struct Forked {
    /// A layer with the same content.
    pub(super) held: HeldLayer,
    /// How many facts the other session has.
    pub(super) facts: usize,
}

impl Maker {
    /// What another session has, for a new one with this task.
    pub(super) fn fork(
        &self,
        desk: &Desk,
        origin: SessionId,
        task: &str,
    ) -> Result<Forked, Refused> {
        let store = SessionStore::new(self.ledger.clone());
        let facts = store.facts(origin).map_err(|error| not_there(&error))?;
        let session = store.load(origin).map_err(|error| not_there(&error))?;
        let refuse = |code, why: &str| Err(Refused::new(code, why.to_owned()));
        match session.workflow.state() {
            State::Committing => {
                return refuse(
                    ErrorCode::Conflict,
                    "its merge is not at its end; resume it first",
                );
            }
            State::Idle if task.trim().is_empty() => {
                return refuse(
                    ErrorCode::InvalidParams,
                    "its task is done; say what the fork is to do",
                );
            }
            _ => {}
        }
        // Idle: what it had is in the project.
        let source = match session.workflow.state() {
            State::Idle => None,
            _ => self.hold(session.layer)?,
        };
        let held = match source {
            Some(source) => {
                let permit = self.permit_layer(desk)?;
                let twin = self.layers.duplicate(permit, &source);
                twin.map_err(|error| internal(&error))?
            }
            None => self.new_layer(desk)?,
        };
        Ok(Forked {
            held,
            facts: facts.len(),
        })
    }
}
