//! Typed ids, units, time and canonical JSON: the vocabulary of every crate.
//!
//! Holds no policy, no I/O and no state. Start with [`id`] for the registry of
//! ids, [`unit`] for what people write in configuration, [`time`] for the one
//! timestamp type, [`canonical`] for the bytes that get hashed.

pub mod canonical;
pub mod digest;
pub mod id;
pub mod time;
pub mod unit;

pub use digest::{Digest, Hasher};
pub use time::{Clock, ManualClock, SystemClock, Timestamp};
pub use unit::{ByteSize, Span};
