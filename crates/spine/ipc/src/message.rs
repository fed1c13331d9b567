//! The messages inside frames, by wire version.
//!
//! Everything outside this module uses the newest version; older ones stay as
//! files of their own for as long as a peer may speak them, and their golden
//! files under `tests/golden` for ever. Next: `v1`, then `handshake`.

pub mod v1;

pub use v1::{ErrorCode, Event, Failure, Message, MessageError, Request, RequestId, Response};
