//! What a fork begins with: the facts and the layer of another session.
//!
//! The other one is only read. While it works nobody can say what its layer
//! holds, so it has to rest.

use fluffy_base::id::SessionId;
use fluffy_gate::Desk;
use fluffy_ipc::{ErrorCode, Failure as Refused};
use fluffy_kernel::api::Start;
use fluffy_kernel::store::SessionStore;
use fluffy_layer::HeldLayer;
use fluffy_policy::word::State;

use super::{Floor, Maker, internal, not_there, permit_layer};

/// Where a fork goes on from.
pub(super) struct Forked {
    /// What the other session stands on, and so this one.
    pub(super) floor: Floor,
    /// A layer with the same content.
    pub(super) held: HeldLayer,
    /// How many facts the other session has.
    pub(super) facts: usize,
}

impl Maker {
    /// What another session has, for a new one with this task.
    pub(super) async fn fork(
        &self,
        desk: &Desk,
        origin: SessionId,
        start: &Start,
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
            State::Idle if start.task.trim().is_empty() => {
                return refuse(
                    ErrorCode::InvalidParams,
                    "its task is done; say what the fork is to do",
                );
            }
            _ => {}
        }
        let tier = session.started.tier;
        if start.tier.is_some_and(|wanted| wanted != tier) {
            return refuse(
                ErrorCode::InvalidParams,
                "a fork runs on the tier of its origin: its files are there",
            );
        }
        let floor = self.floor(tier).await?;
        // Idle: what it had is in the project.
        let source = match session.workflow.state() {
            State::Idle => None,
            _ => self.hold(session.layer)?,
        };
        let held = match source {
            Some(source) => {
                let permit = permit_layer(desk, &floor)?;
                let twin = self.layers.duplicate(permit, &source);
                twin.map_err(|error| internal(&error))?
            }
            None => self.new_layer(desk, &floor)?,
        };
        Ok(Forked {
            floor,
            held,
            facts: facts.len(),
        })
    }
}
