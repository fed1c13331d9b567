//! Which requests were done before: their keys, for a day.
//!
//! Part of the state, so a repeated request is recognised on every replica
//! and after a restart. Holds where the first decision is and the hash of its
//! body; the answer itself is kept outside.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::problem::Code;
use fluffy_base::id::OrgId;
use fluffy_base::{Digest, Timestamp};
use fluffy_ledger::Event;
use serde::{Deserialize, Serialize};

use crate::call::{Call, Outcome};
use crate::event::Body;
use crate::refusal::Refusal;
use crate::state::Owner;

const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The keys of the last day.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Replays {
    done: BTreeMap<Digest, Done>,
    /// In the order in which they go.
    order: VecDeque<(Timestamp, Digest)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Done {
    seq: u64,
    body_hash: Digest,
    at: Timestamp,
}

impl Replays {
    /// What a request with a key gets if the key was used before.
    pub(crate) fn find(
        &self,
        call: &Call<'_>,
        operation: Operation,
        org: Option<OrgId>,
        principal: &str,
    ) -> Option<Outcome> {
        let idempotency = call.idempotency?;
        let key = digest_of(org, principal, operation.spec().id, idempotency.key);
        let done = self.done.get(&key)?;
        if done.at.after(KEPT) <= call.now {
            return None;
        }
        if done.body_hash == idempotency.body_hash {
            return Some(Outcome::Replayed { seq: done.seq });
        }
        Some(Outcome::Refused(Refusal::new(
            "idempotency_key_reuse",
            "this key came with another request before",
            "use a new key for a new request",
        )))
    }

    /// Folds one event in.
    pub(crate) fn apply(&mut self, event: &Event, body: &Body) {
        let Body::AuthzDecided(decided) = body else {
            return;
        };
        let (Some(operation), Some(body_hash), Some(key)) = (
            &decided.operation,
            decided.body_hash,
            &event.idempotency_key,
        ) else {
            return;
        };
        // A denial is decided anew each time, and so is what may be otherwise
        // the next time.
        if decided.outcome == "deny" || decided.refused.as_deref().is_some_and(is_passing) {
            return;
        }
        let now = event.occurred_at;
        while let Some((at, key)) = self.order.front().copied() {
            if at.after(KEPT) > now {
                break;
            }
            self.order.pop_front();
            if self.done.get(&key).is_some_and(|done| done.at == at) {
                self.done.remove(&key);
            }
        }
        let org = Owner::of(&event.scope).org;
        let key = digest_of(org, &decided.principal_id, operation, key);
        let done = Done {
            seq: event.seq,
            body_hash,
            at: now,
        };
        self.done.insert(key, done);
        self.order.push_back((now, key));
    }
}

/// Whether a refusal of this code is not repeated under its key.
fn is_passing(code: &str) -> bool {
    let status = Code::find(code).map_or(500, |code| code.status);
    matches!(status, 401 | 403 | 429) || status >= 500
}

fn digest_of(org: Option<OrgId>, principal: &str, operation: &str, key: &str) -> Digest {
    let org = org.map(|org| org.to_string()).unwrap_or_default();
    // None of the first three has a line feed in it.
    Digest::of_parts(&[
        org.as_bytes(),
        b"\n",
        principal.as_bytes(),
        b"\n",
        operation.as_bytes(),
        b"\n",
        key.as_bytes(),
    ])
}
