//! Errands: something that a node does to one instance at once, or not at all.
//!
//! Whether somebody may have it done was decided before. Nothing is done twice
//! and nothing waits for long: a node that is not here, is too old, or does not
//! answer has not done it, as far as anybody knows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fluffy_api::node::{feature, v1};
use fluffy_base::id::NodeId;
use tokio::sync::oneshot;

use super::session::Sessions;

/// How long a node has to answer.
const PATIENCE: Duration = Duration::from_secs(8);

/// Why an errand was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ErrandError {
    /// The node is not connected here.
    #[error("the instance's node is not connected")]
    Disconnected,
    /// The node is too old for it.
    #[error("the instance's node runs an older fluffy, which can't do that")]
    Unsupported,
    /// The node says no.
    #[error("the node did not do it: {0}")]
    Refused(String),
    /// The node did not answer in time.
    #[error("the instance's node does not answer")]
    TimedOut,
}

/// Errands that a node has not answered yet.
#[derive(Debug, Default)]
pub(super) struct Errands {
    last: AtomicU64,
    waiting: Mutex<HashMap<String, Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    node: NodeId,
    answer: oneshot::Sender<v1::ErrandDone>,
}

impl Errands {
    /// Has a node that is connected here do something to an instance.
    pub(super) async fn run(
        &self,
        sessions: &Sessions,
        node: NodeId,
        (instance, of): (String, v1::errand::Of),
    ) -> Result<Option<v1::Diagnosis>, ErrandError> {
        if !sessions.nodes().contains(&node) {
            return Err(ErrandError::Disconnected);
        }
        if !sessions.can(node, feature::ERRANDS) {
            return Err(ErrandError::Unsupported);
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed).to_string();
        let (answer, answered) = oneshot::channel();
        self.lock().insert(id.clone(), Waiting { node, answer });
        // However this ends, also by being dropped: it waits no more.
        let _forget = Forget(self, id.clone());
        let errand = v1::Errand {
            errand_id: id,
            instance_id: instance,
            of: Some(of),
        };
        let done = async {
            let told = v1::server_message::Message::Errand(errand);
            let told = sessions.tell(node, told).await;
            told.map_err(|_| ErrandError::Disconnected)?;
            answered.await.map_err(|_| ErrandError::Disconnected)
        };
        let done = tokio::time::timeout(PATIENCE, done).await;
        let done = done.unwrap_or(Err(ErrandError::TimedOut))?;
        match done.refused.is_empty() {
            true => Ok(done.diagnosis),
            false => {
                let code = done.refused.chars().take(64).collect();
                Err(ErrandError::Refused(code))
            }
        }
    }

    /// A node did an errand, or did not.
    pub(super) fn done(&self, node: NodeId, done: v1::ErrandDone) {
        let mut waiting = self.lock();
        if waiting
            .get(&done.errand_id)
            .is_some_and(|it| it.node == node)
            && let Some(waiting) = waiting.remove(&done.errand_id)
        {
            // Where nobody waits any more, it is too late.
            let _ = waiting.answer.send(done);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Forget<'a>(&'a Errands, String);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}
