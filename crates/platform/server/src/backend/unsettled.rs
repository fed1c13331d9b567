//! Sums that the ledger is to have and has not yet: what was read, and what
//! was shown that is no credential.
//!
//! They are kept, oldest first, until they are appended, however long the
//! ledger cannot be written; so many, and then nothing more is allowed that
//! would have to be summed up. One that may have been appended is said again:
//! its window tells that it is the same. Next: `backend`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fluffy_control::Notice;
use fluffy_control::access::Notice as AccessNotice;

use crate::platform::Platform;
use crate::sequencer::SubmitError;

/// How many are kept: those of some hours.
const MOST: usize = 256;

/// Sums on their way into the ledger.
#[derive(Debug, Default)]
pub(super) struct Unsettled(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    sums: Mutex<VecDeque<AccessNotice>>,
    /// Held by whoever appends them: each is said once, in order.
    turn: tokio::sync::Mutex<()>,
}

impl Unsettled {
    /// Whether no more fit in.
    pub(super) fn is_full(&self) -> bool {
        self.0.sums().len() >= MOST
    }

    /// Adds one, to be appended by [`Unsettled::settle`].
    pub(super) fn add(&self, sum: AccessNotice) {
        self.0.sums().push_back(sum);
    }

    /// Appends all of them.
    ///
    /// # Errors
    /// The ledger is not available; what it has not got is still here.
    pub(super) async fn settle(&self, platform: &Platform) -> Result<(), SubmitError> {
        if self.0.sums().is_empty() {
            return Ok(());
        }
        let (waiting, platform) = (Arc::clone(&self.0), platform.clone());
        // A caller that goes away leaves none half said.
        let settling = tokio::spawn(async move { waiting.settle(&platform).await });
        settling.await.unwrap_or(Err(SubmitError::Closed))
    }
}

impl Waiting {
    async fn settle(&self, platform: &Platform) -> Result<(), SubmitError> {
        let _turn = self.turn.lock().await;
        loop {
            let Some(sum) = self.sums().front().cloned() else {
                return Ok(());
            };
            let said = platform.notice("access", None, Notice::Access(sum)).await;
            match said {
                // What can never be appended must not keep the others.
                Ok(_) | Err(SubmitError::Unrecordable(_)) => drop(self.sums().pop_front()),
                Err(error) => return Err(error),
            }
        }
    }

    fn sums(&self) -> MutexGuard<'_, VecDeque<AccessNotice>> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
