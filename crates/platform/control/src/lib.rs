//! The platform's state and every decision about it: a pure state machine.
//!
//! [`State`] is the fold of the ledger's events; [`write`](fn@write) and its kin
//! decide on it and say what to append. Whoever drives it appends on condition
//! that the ledger still ends where the state does, so every guard holds in the
//! append itself. Never reads a clock, waits, or draws a number: time and ids
//! come in with the call. Start with [`event`], then [`state`], then [`call`].

#![forbid(unsafe_code)]

pub mod access;
pub mod call;
pub mod event;
pub mod idempotency;
pub mod mint;
pub mod operations;
pub mod refusal;
pub mod runtime;
pub mod shape;
pub mod state;

pub use call::{
    Call, Caller, CallerKind, Change, Fact, Fence, Idempotency, Material, Outcome, Request,
    Subject, Written,
};
pub use event::{Body, ReadEventError};
pub use mint::Mint;
pub use operations::{
    Noted, Notice, Read, answer, notice, org_of_caller, place_of, read, would_allow, write,
};
pub use refusal::{FieldProblem, Refusal};
pub use state::{FoldError, Meta, Owner, State};
