//! The HTTP interface: one way for every operation of the table.
//!
//! Knows methods, headers, limits and forms of answers, and nothing of what an
//! operation means: that is decided behind [`Backend`]. Every answer, refusals
//! of this layer included, has the request's id, the epoch and what is left of
//! the rate limit. Start with `service`, which is the way of a request.

mod answer;
mod backend;
mod body;
mod cursor;
mod exec;
mod head;
mod listen;
mod metrics;
mod places;
mod rate;
mod repeat;
mod running;
mod service;
mod stream;

pub use backend::{
    Asked, Backend, ClientLine, Earlier, Health, Identity, OpenExec, OpenedExec, Opening, Printed,
    Stored, Wrote,
};
pub use body::AnswerBody;
pub use listen::{Door, Listener, Tls};
pub use rate::RateLimits;
pub use service::{HttpService, Options, Peer};

#[cfg(test)]
mod tests;
