//! A local server that speaks the wire formats of model providers, for tests.
//!
//! It answers by a script, or by a function of the conversation so far, checks
//! requests as strictly as the vendors do, keeps what it was sent, and breaks
//! in every way a network breaks. Written apart from `fluffy-models`, so that
//! a mistake there is not repeated here; never part of the product. Start with
//! [`ModelServer`]; what it says is a [`Reply`], what it heard a [`Conversation`].

mod conversation;
mod http;
mod reply;
mod server;
mod tls;
pub mod wire;

pub use conversation::{Answered, Called, Conversation, Said, Speaker};
pub use reply::{Delivery, Fault, Piece, Quirk, Reply, Stop, Tokens};
pub use server::{ModelServer, Options, Received};
pub use wire::Format;
