//! Stops what a session runs where it is, and lets it go on.
//!
//! Work of a session has at most one sandbox at a time. Paused, that one is
//! frozen, and no command is started in the next; who listens to the session
//! hears of it. Decides nothing: `slots` says when. Next: `workshop`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fluffy_contract::BoxFuture;
use fluffy_contract::isolation::{Command, Sandbox as _, SandboxError};
use fluffy_policy::Permit;
use fluffy_sandbox::client::{ChildHandle, SandboxHandle};
use tokio::sync::{Mutex, MutexGuard, watch};

use crate::event::AgentEvent;
use crate::hub::Hub;
use crate::slots::Freeze;

/// Stops and resumes one piece of work.
#[derive(Debug)]
pub struct Freezer {
    /// What people call the work.
    name: String,
    hub: Arc<Hub>,
    /// Changed only by who has the sandbox locked.
    frozen: watch::Sender<bool>,
    /// Where a command of it runs.
    sandbox: Mutex<Weak<SandboxHandle>>,
}

impl Freezer {
    /// For work of this name, of the session with these listeners.
    #[must_use]
    pub fn new(name: impl Into<String>, hub: Arc<Hub>) -> Self {
        Self {
            name: name.into(),
            hub,
            frozen: watch::Sender::new(false),
            sandbox: Mutex::default(),
        }
    }

    /// Starts a command as soon as the work is not paused; the permit is for
    /// running it.
    ///
    /// # Errors
    /// As [`SandboxHandle::run`].
    pub async fn run(
        &self,
        sandbox: &Arc<SandboxHandle>,
        permit: Permit,
        command: Command,
    ) -> Result<ChildHandle, SandboxError> {
        let mut current = self.going().await;
        // A paused sandbox takes no command: until it has, nobody pauses.
        let child = sandbox.run(permit, command).await?;
        *current = Arc::downgrade(sandbox);
        Ok(child)
    }

    /// The command has ended: there is nothing to freeze until the next.
    pub(crate) async fn left(&self) {
        *self.sandbox.lock().await = Weak::new();
    }

    /// The sandbox, once it is not frozen.
    async fn going(&self) -> MutexGuard<'_, Weak<SandboxHandle>> {
        let mut frozen = self.frozen.subscribe();
        loop {
            let current = self.sandbox.lock().await;
            if !*self.frozen.borrow() {
                return current;
            }
            drop(current);
            // The sender is ours, so this ends only when it is so.
            let _ = frozen.wait_for(|frozen| !frozen).await;
        }
    }

    async fn freeze(&self) -> bool {
        let current = self.sandbox.lock().await;
        let paused = match current.upgrade() {
            Some(sandbox) => sandbox.pause().await,
            None => Ok(()),
        };
        match paused {
            // Between two sandboxes it stops before the next.
            Ok(()) | Err(SandboxError::Ended { .. }) => {
                self.frozen.send_replace(true);
                let name = self.name.clone();
                self.hub.publish(AgentEvent::TaskPaused { name });
                true
            }
            Err(_) => false,
        }
    }

    async fn thaw(&self) {
        let current = self.sandbox.lock().await;
        if !self.frozen.send_replace(false) {
            return;
        }
        if let Some(sandbox) = current.upgrade()
            && sandbox.resume().await.is_err()
        {
            // It may be gone. What is there and cannot go on must not stay.
            let _ = sandbox.kill().await;
        }
        let name = self.name.clone();
        self.hub.publish(AgentEvent::TaskResumed { name });
    }
}

impl Freeze for Freezer {
    fn warn(&self, after: Duration) {
        self.hub.publish(AgentEvent::TaskWarned {
            name: self.name.clone(),
            in_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
        });
    }

    fn spare(&self) {
        let name = self.name.clone();
        self.hub.publish(AgentEvent::TaskSpared { name });
    }

    fn pause(&self) -> BoxFuture<'_, bool> {
        Box::pin(self.freeze())
    }

    fn resume(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.thaw())
    }
}
