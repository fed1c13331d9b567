//! Sandboxes that stay over a layer from call to call, until they are ended.
//!
//! At most one for a layer. What a command started in it ends with the command
//! or goes on, as its caller wants. It never outlives its workshop: when that is gone, so is
//! the way to the launcher, which then removes everything.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};

use fluffy_base::id::LayerId;
use fluffy_policy::Permit;
use fluffy_sandbox::client::SandboxHandle;
use tokio::sync::Mutex;

use super::{Booth, End, OpenBoothError, Over, Workshop};

/// What becomes of what a call started, when the call has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It is ended.
    End,
    /// It goes on.
    Leave,
}

/// All of one workshop; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct AllRunning(Arc<Lock<BTreeMap<LayerId, Running>>>);

/// One that stays.
#[derive(Debug, Clone)]
struct Running {
    sandbox: Arc<SandboxHandle>,
    directory: PathBuf,
    turn: Arc<Mutex<()>>,
}

/// Which one a call is in.
#[derive(Debug)]
pub(super) struct RunningKey {
    all: AllRunning,
    layer: LayerId,
}

impl RunningKey {
    /// It has ended by itself: the next call makes another.
    pub(super) fn forget(&self) {
        self.all.lock().remove(&self.layer);
    }
}

impl AllRunning {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LayerId, Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, layer: LayerId) -> Option<Running> {
        self.lock().get(&layer).cloned()
    }
}

impl Workshop {
    /// Whether a sandbox stays over this layer.
    #[must_use]
    pub fn is_running(&self, layer: LayerId) -> bool {
        self.running.lock().contains_key(&layer)
    }

    /// A place in the sandbox that stays over the layer, which is made if
    /// there is none; the permit is for `sandbox.create`. Waits for the call
    /// before.
    ///
    /// # Errors
    /// The layer cannot be mounted, or the sandbox cannot be made.
    pub async fn open_running(
        &self,
        permit: Permit,
        over: Over<'_>,
        after: After,
    ) -> Result<Booth, OpenBoothError> {
        let layer = over.held.layer().id();
        let running = match self.running.get(layer) {
            Some(running) => running,
            None => self.start(permit, over).await?,
        };
        let turn = Arc::clone(&running.turn).lock_owned().await;
        let key = RunningKey {
            all: self.running.clone(),
            layer,
        };
        Ok(Booth {
            sandbox: running.sandbox,
            directory: running.directory,
            end: match after {
                After::End => End::Emptied(key),
                After::Leave => End::Left(key),
            },
            freezer: None,
            _turn: turn,
        })
    }

    /// Ends the sandbox that stays over a layer, and everything in it.
    pub async fn end_running(&self, layer: LayerId) {
        let running = self.running.lock().remove(&layer);
        if let Some(running) = running {
            // When the launcher is gone, the system has ended the sandbox.
            let _ = running.sandbox.clean().await;
        }
    }

    async fn start(&self, permit: Permit, over: Over<'_>) -> Result<Running, OpenBoothError> {
        let layer = over.held.layer().id();
        let _turn = self.turn(layer).await;
        // Somebody else may have made it meanwhile.
        if let Some(running) = self.running.get(layer) {
            return Ok(running);
        }
        let (sandbox, directory) = self.make(permit, over).await?;
        let running = Running {
            sandbox: Arc::new(sandbox),
            directory,
            turn: Arc::default(),
        };
        self.running.lock().insert(layer, running.clone());
        Ok(running)
    }
}
