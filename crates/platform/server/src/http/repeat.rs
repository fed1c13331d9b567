//! Repeated writes: one key, one effect, one answer.
//!
//! Whether a key was used is decided in the append, on exact state; this keeps
//! the answers, and tells a caller that repeats itself too early to wait. What
//! is shown once is not stored. Next: `super::service`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use fluffy_api::Problem;
use fluffy_base::Digest;

use super::backend::{Asked, Backend, Stored};
use super::service::Finished;

/// The keys that are being worked on here.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys(Arc<Mutex<HashSet<String>>>);

/// A key that is being worked on, until this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    keys: Keys,
    key: String,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut keys = self.keys.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.remove(&self.key);
    }
}

impl Keys {
    /// Begins the work of a key.
    pub(super) fn hold(&self, key: String) -> Result<Held, Box<Problem>> {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !keys.insert(key.clone()) {
            return Err(Box::new(Problem::new(
                "idempotency_in_progress",
                "the first call with this key has not been answered yet",
                "send it again in a moment",
            )));
        }
        Ok(Held {
            keys: self.clone(),
            key,
        })
    }
}

/// Where the answer of a request is stored.
pub(super) fn storage_key(asked: &Asked, key: &str) -> String {
    let org = super::head::org(asked.operation, &asked.path).unwrap_or_default();
    let parts = [
        asked.caller.actor.id.as_str(),
        asked.operation.spec().id,
        org,
        key,
    ];
    let text = serde_json::json!(parts).to_string();
    Digest::of(text.as_bytes()).to_string()
}

/// What was answered before, if that settles it.
///
/// A refusal is repeated as it was. A success is not handed out here: whether
/// the caller may still see it is decided first.
pub(super) async fn settled<B: Backend>(
    backend: &B,
    key: &str,
    request: Digest,
) -> Result<Option<Stored>, Box<Problem>> {
    let stored = backend.recall(key).await.map_err(super::answer::problem)?;
    let Some(stored) = stored else {
        return Ok(None);
    };
    let is_same = backend.is_same(stored.request, request);
    match is_same.map_err(super::answer::problem)? {
        false => Err(Box::new(Problem::new(
            "idempotency_key_reuse",
            "this key came with another request before",
            "use a new key for a new request",
        ))),
        true => Ok((stored.status >= 400).then_some(stored)),
    }
}

/// Whether an answer is kept: what may be otherwise next time is not.
pub(super) fn is_kept(status: u16) -> bool {
    !matches!(status, 401 | 403 | 429) && status < 500
}

/// Keeps an answer. That it could not be kept is no failure of the write:
/// a repeat then gets what the views have.
pub(super) async fn keep<B: Backend>(backend: &B, key: &str, request: Digest, finished: &Finished) {
    if !is_kept(finished.status) {
        return;
    }
    let stored = Stored {
        request,
        status: finished.status,
        body: finished.stored.clone(),
        seq: finished.position.seq,
    };
    if let Err(refusal) = backend.remember(key, stored).await {
        tracing::warn!(
            code = refusal.code,
            "an answer could not be kept for repeats"
        );
    }
}
