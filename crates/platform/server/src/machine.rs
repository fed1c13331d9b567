//! The platform's state as the machine that a sequencer drives.
//!
//! A job holds everything a decision takes in, so it can be decided again on a
//! later state; what it wants appended becomes drafts here. Decides nothing:
//! that is `fluffy-control`'s. Next: `server`.

use std::sync::Arc;

use fluffy_base::{Digest, Timestamp};
use fluffy_control::event::{FIRST_READERS, LeaderAcquired};
use fluffy_control::{
    Call, Caller, Fact, FoldError, Idempotency, Mint, Notice, Outcome, Read, Refusal, Request,
    State, Written,
};
use fluffy_ledger::{Aggregate, Event};
use serde_json::Value;

use crate::fold::{Decided, Machine};
use crate::snapshot::Saved;

/// What is asked of the platform, with all that its decision takes in.
#[derive(Debug, Clone)]
pub struct Job {
    /// Who asks.
    pub caller: Caller,
    /// The call from outside that this is part of.
    pub request_id: String,
    /// When it was asked.
    pub now: Timestamp,
    /// The key under which it may be repeated, and the hash of what was sent.
    pub idempotency: Option<(String, Digest)>,
    /// The version that the object must have.
    pub if_match: Option<u64>,
    /// Where new ids come from.
    pub mint: Arc<Mint>,
    /// What is asked.
    pub ask: Ask,
}

/// What is asked.
#[derive(Debug, Clone)]
pub enum Ask {
    /// A request that changes something.
    Write(Request),
    /// A request that changes nothing, but whose decision is recorded.
    Read(Request),
    /// Something that happened without a request.
    Notice(Notice),
    /// The next term of a lease.
    Lead {
        /// Which.
        lease: String,
        /// Who leads in it.
        replica: String,
    },
}

/// What came of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Of a write or a notice.
    Wrote(Outcome),
    /// Of a read.
    Read(Result<Value, Refusal>),
    /// The number of the term that began.
    Term(u64),
}

impl Job {
    /// Hands out what decisions take, for as long as it is needed.
    pub fn call(&self) -> Call<'_> {
        Call {
            caller: &self.caller,
            request_id: &self.request_id,
            now: self.now,
            idempotency: self.idempotency.as_ref().map(|(key, hash)| Idempotency {
                key,
                body_hash: *hash,
            }),
            if_match: self.if_match,
            mint: &self.mint,
        }
    }
}

impl Machine for State {
    type Job = Job;
    type Reply = Reply;
    type Unknown = FoldError;

    fn decide(&self, job: &mut Job) -> Decided<Reply> {
        let call = job.call();
        let written = match &job.ask {
            Ask::Write(request) => fluffy_control::write(self, &call, request),
            Ask::Notice(notice) => fluffy_control::notice(self, &call, notice),
            Ask::Lead { lease, replica } => {
                let epoch = self.leases.get(lease).copied().unwrap_or(0) + 1;
                let acquired = LeaderAcquired {
                    lease: lease.clone(),
                    epoch,
                    replica_id: replica.clone(),
                };
                let fact = Fact::new(lease, acquired.into());
                return decided(self, &call, &[fact], Reply::Term(epoch));
            }
            Ask::Read(request) => {
                let Read { facts, result, .. } = fluffy_control::read(self, &call, request);
                return decided(self, &call, &facts, Reply::Read(result));
            }
        };
        let Written { facts, outcome } = written;
        decided(self, &call, &facts, Reply::Wrote(outcome))
    }

    fn apply(&mut self, event: &Event) -> Result<(), FoldError> {
        State::apply(self, event)
    }

    fn version(&self, aggregate: &Aggregate) -> u64 {
        let meta = self.meta(&aggregate.kind, &aggregate.id);
        meta.map_or(0, |meta| meta.version)
    }

    fn enter(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    fn readers(&self) -> u64 {
        self.runtime.cluster.reader_version.max(FIRST_READERS)
    }
}

impl Saved for State {
    fn schema() -> Digest {
        fluffy_control::shape::shape()
    }
}

fn decided(state: &State, call: &Call<'_>, facts: &[Fact], reply: Reply) -> Decided<Reply> {
    let first = state.seq + 1;
    let drafts = facts.iter().map(|fact| fact.draft(call, first));
    Decided {
        drafts: drafts.collect(),
        reply,
    }
}
