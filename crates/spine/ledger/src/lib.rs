//! The append-only, gap-free, hash-chained log of events.
//!
//! [`Ledger`] is the handle: append a [`Batch`], record a [`Draft`], read
//! [`Event`]s. What is stored can be verified by anyone: every event is hashed
//! together with the one before it, a Merkle tree over the hashes gives short
//! proofs, and signed [`checkpoint`]s kept elsewhere catch whoever rewrites it
//! all. Nothing here decides anything, and nothing is ever updated.

#![forbid(unsafe_code)]

pub mod archive;
pub mod chain;
pub mod checkpoint;
pub mod class;
mod copy;
pub mod draft;
pub mod error;
pub mod event;
pub mod excerpt;
pub mod export;
pub mod health;
pub mod history;
pub mod key;
pub mod ledger;
pub mod projection;
pub mod proof;
pub mod retention;
pub mod salvage;
pub mod snapshot;
pub mod subscribe;
pub mod ticket;
pub mod tree;
pub mod upcast;
pub mod verify;
pub mod view;

mod engine;
mod postgres;
mod queue;
mod row;
mod sqlite;
mod wake;

pub use archive::{Segment, SegmentError};
pub use chain::Genesis;
pub use checkpoint::{Checkpoint, SignedCheckpoint, Signing, Witness};
pub use class::Durability;
pub use copy::CopyError;
pub use draft::{Batch, Draft, DraftError, SeqRef, Source};
pub use error::{AppendError, StoreError};
pub use event::{Actor, ActorKind, Aggregate, Domain, Event, Payload, Scope};
pub use excerpt::{Excerpt, ExcerptVerification, ProvenEvent};
pub use export::{Compression, ExportOptions, Exported};
pub use health::{Health, OnBreak, Opened};
pub use key::{PublicKey, SigningKeyFile};
pub use ledger::{Appended, Ledger, LedgerHead, LedgerOptions, OpenLedgerError};
pub use postgres::{AddressError, LoadRootsError, PostgresAddress, Way};
pub use projection::{
    DigestAt, HaltReason, Progress, Projection, ProjectionState, Projector, RebuildError, Rebuilt,
    StartProjectorError, ViewError, WaitError,
};
pub use proof::{GrowthProof, Proof, ProveError, ProvenPage, Stretch};
pub use retention::{Enforced, Level, Retention, RetentionError};
pub use salvage::{Lost, Recovered, Salvage, SalvageError};
pub use snapshot::SnapshotError;
pub use subscribe::{Delivery, Filter, Subscription, SubscriptionError};
pub use ticket::{Ticket, TicketLost};
pub use upcast::{UnfitPayload, Upcast, UpcastError, Upcasters};
pub use verify::{
    Extent, Finding, FindingKind, Start, Trust, Verification, VerifyError, VerifyOptions,
    verify_path,
};
pub use view::{ApplyError, Cell, Rows, Schema, ViewTx};
