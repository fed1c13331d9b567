//! The allow-list proxy: the only way out of a restricted sandbox.
//!
//! It speaks HTTP `CONNECT` and absolute-form HTTP on a listener that was born
//! inside the sandbox, decides every request, resolves names itself, refuses
//! what is not public, compares the name in TLS with the name it allowed,
//! limits and records. It never opens TLS and never keeps content.
//!
//! ```
//! use std::sync::Arc;
//!
//! use fluffy_base::id::SandboxId;
//! use fluffy_egress::{AllowList, Exchange, Record, RecordError, Settings, serve};
//!
//! struct Forget;
//! impl Record for Forget {
//!     fn record(&self, _: &Exchange) -> Result<(), RecordError> {
//!         Ok(())
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! let port = listener.local_addr()?.port();
//! let list = Arc::new(AllowList::parse(&["index.crates.io:443"])?);
//! let id = SandboxId::generate();
//! let proxy = serve(listener, Settings::new(id, "code-executor", list, Arc::new(Forget)))?;
//! let mut variables = fluffy_sandbox::plan::proxy_variables(port);
//! assert!(variables.any(|(name, _)| name == "HTTPS_PROXY"));
//! proxy.stop().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The way of a request
//!
//! 1. [`head`] reads it, [`target`] its host: one spelling, or a refusal.
//! 2. [`decide`] says yes or no ([`ByGate`], [`AllowList`]).
//! 3. `resolve` looks the name up, [`address`] judges every answer.
//! 4. `dial` uses up the permit and connects to what was judged.
//! 5. `tunnel` compares the name in the [`hello`], or `answer` carries one
//!    exchange; [`Limits`] hold all the while.
//! 6. [`record`] keeps what happened, and [`Reason`] tells the client why not.

#![forbid(unsafe_code)]

pub mod address;
mod allow_list;
mod answer;
mod body;
mod by_gate;
mod connection;
pub mod decide;
mod dial;
mod guard;
pub mod head;
pub mod hello;
mod limits;
mod network;
pub mod outside;
mod proxy;
mod reason;
pub mod record;
mod resolve;
pub mod target;
mod tunnel;

pub use allow_list::{AllowList, AllowListError, MAX_ENTRIES};
pub use by_gate::ByGate;
pub use decide::{Allowed, Decide, Denied, Question};
pub use limits::Limits;
pub use network::{HostNetwork, Network};
pub use outside::Outside;
pub use proxy::{Listener, ProxyHandle, Settings, serve};
pub use reason::Reason;
pub use record::{Exchange, Record, RecordError, ToLedger};
pub use target::Target;

#[cfg(test)]
mod tests;
