//! Speaks to models: wire formats, client, retries, record and replay.
//!
//! [`adapter`] is the pure middle: a turn becomes a request, bytes become
//! events. [`client`] sends, [`attempt`] decides what happens after a failure,
//! [`driver`] does both for a chain of models, [`worker`] is the process all of
//! that runs in. Never decides what a session may do, and never sees a file:
//! keys come over a descriptor, the network through one given stream.

#![forbid(unsafe_code)]

pub mod adapter;
pub mod address;
pub mod answer;
pub mod attempt;
pub mod client;
pub mod driver;
pub mod price;
pub mod record;
pub mod replay;
mod retry_after;
mod same;
pub mod selection;
pub mod tokens;
pub mod worker;

pub use adapter::{Decoder, HttpRequest, ProviderSettings, Wire, encode};
pub use address::BaseUrl;
pub use answer::Answer;
