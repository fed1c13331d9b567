//! The platform's whole state, folded from events.
//!
//! `apply` is the only way in and depends on the event alone, so two folds of
//! the same events are equal. Never skips an event that it does not know: it
//! stops there.

use std::collections::BTreeMap;

use fluffy_base::id::{AppId, EnvId, OrgId};
use fluffy_base::{Digest, Timestamp};
use fluffy_ledger::{Domain, Event, Scope};
use serde::{Deserialize, Serialize};

use crate::access::Access;
use crate::event::{Body, ReadEventError};
use crate::idempotency::Replays;
use crate::runtime::Runtime;

/// Everything the platform knows, at one position of the ledger.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The last event in it.
    pub seq: u64,
    /// The epoch of the ledger that it was folded from.
    pub epoch: u64,
    /// Who there is and what they may do.
    pub access: Access,
    /// What runs, where, and what is wanted.
    pub runtime: Runtime,
    /// What every aggregate has: its version, its owner, and when it changed.
    pub metas: BTreeMap<String, BTreeMap<String, Meta>>,
    /// Which requests were done before.
    pub replays: Replays,
    /// The current epoch of every lease; an older one may append nothing.
    pub leases: BTreeMap<String, u64>,
}

/// The tenant's objects that something belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The org.
    pub org: Option<OrgId>,
    /// The app in it.
    pub app: Option<AppId>,
    /// The environment of the app.
    pub env: Option<EnvId>,
}

impl Owner {
    /// The owner that an event's scope names.
    #[must_use]
    pub fn of(scope: &Scope) -> Self {
        Self {
            org: scope.org_id.as_deref().and_then(|id| id.parse().ok()),
            app: scope.app_id.as_deref().and_then(|id| id.parse().ok()),
            env: scope.env_id.as_deref().and_then(|id| id.parse().ok()),
        }
    }

    /// The scope that an event of this owner has.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope {
            org_id: self.org.map(|id| id.to_string()),
            app_id: self.app.map(|id| id.to_string()),
            env_id: self.env.map(|id| id.to_string()),
        }
    }
}

/// What every aggregate has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// How many events it has.
    pub version: u64,
    /// When the first happened.
    pub created_at: Timestamp,
    /// When the last happened.
    pub updated_at: Timestamp,
    /// To whom the first belonged, which never changes.
    pub owner: Owner,
}

/// Why an event can't be folded in.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    /// It is not the next one.
    #[error("event {found} came where event {wanted} was due")]
    SequenceGap {
        /// The one that was due.
        wanted: u64,
        /// The one that came.
        found: u64,
    },
    /// Its type, version or payload is not known.
    #[error("event {seq} can't be read")]
    Unknown {
        /// Which.
        seq: u64,
        /// Why not.
        #[source]
        source: ReadEventError,
    },
}

impl State {
    /// Folds the next event in.
    ///
    /// # Errors
    /// It is not the next one, or it is not known; the state is as before.
    pub fn apply(&mut self, event: &Event) -> Result<(), FoldError> {
        if event.seq != self.seq + 1 {
            return Err(FoldError::SequenceGap {
                wanted: self.seq + 1,
                found: event.seq,
            });
        }
        if event.domain == Domain::Platform {
            let body = Body::read(event).map_err(|source| FoldError::Unknown {
                seq: event.seq,
                source,
            })?;
            self.note(event);
            self.fold(event, &body);
        }
        self.seq = event.seq;
        Ok(())
    }

    /// What an aggregate has, if it has any event.
    #[must_use]
    pub fn meta(&self, kind: &str, id: &str) -> Option<&Meta> {
        self.metas.get(kind)?.get(id)
    }

    /// The digest of every view; equal for equal folds.
    #[must_use]
    pub fn digests(&self) -> BTreeMap<&'static str, Digest> {
        let mut digests = BTreeMap::from([
            ("aggregates", digest(&self.metas)),
            ("guards", digest(&(&self.replays, &self.leases))),
        ]);
        digests.extend(self.access.digests());
        digests.extend(self.runtime.digests());
        digests
    }

    fn note(&mut self, event: &Event) {
        let kind = self.metas.entry(event.aggregate.kind.clone()).or_default();
        let meta = kind.entry(event.aggregate.id.clone()).or_insert(Meta {
            version: 0,
            created_at: event.occurred_at,
            updated_at: event.occurred_at,
            owner: Owner::of(&event.scope),
        });
        meta.version = event.aggregate_version;
        meta.updated_at = event.occurred_at;
    }

    fn fold(&mut self, event: &Event, body: &Body) {
        if let Body::LeaderAcquired(lease) = body {
            let epoch = self.leases.entry(lease.lease.clone()).or_default();
            *epoch = lease.epoch.max(*epoch);
        }
        self.replays.apply(event, body);
        let mut forgotten = self.access.apply(event, body);
        forgotten.extend(self.runtime.apply(event, body));
        for (kind, id) in forgotten {
            if let Some(metas) = self.metas.get_mut(kind) {
                metas.remove(&id);
            }
        }
    }
}

/// The digest of the bytes of a part of the state.
pub(crate) fn digest(part: &impl Serialize) -> Digest {
    // Plain data of ours always has bytes.
    Digest::of(&postcard::to_allocvec(part).unwrap_or_default())
}
