//! How our processes talk: length-prefixed JSON with a proven peer.
//!
//! A [`Server`] offers methods on a [`Listener`]; a [`Client`] calls them, many
//! at a time, over one connection. The server knows from the operating system
//! which process is at the other end ([`PeerIdentity`]), and every queue, frame
//! and wait has a bound. Decides nothing: what a peer may do is for policy.
//! Start with [`server`]; the bytes are in [`frame`], their meaning in
//! [`message`], the first message in [`handshake`].
//!
//! ```
//! use fluffy_ipc::{ApiRange, Client, Hello, Listener, Server};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # #[cfg(unix)] {
//! # let directory = tempfile::tempdir()?;
//! let path = directory.path().join("run/kernel.sock");
//! let server = Server::new("kernel", ApiRange::current_and_previous(1))
//!     .method("add", |_context, (a, b): (i64, i64)| async move { Ok(a + b) });
//! let listener = Listener::bind(&path)?;
//! let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
//! let serving = tokio::spawn(server.serve(listener, async { drop(stopped.await) }));
//!
//! let client = Client::connect(&path, Hello::new("example", "1.0", 1)).await?;
//! let sum: i64 = client.call("add", &(40, 2)).await?;
//! assert_eq!(sum, 42);
//!
//! drop(stop);
//! serving.await??;
//! # }
//! # Ok(())
//! # }
//! ```

pub mod client;
pub mod frame;
pub mod handshake;
pub mod listener;
pub mod message;
pub mod peer;
pub mod server;
mod sys;
mod transport;

pub use client::{CallError, Client, ConnectError};
pub use handshake::{ApiRange, Hello, Welcome};
pub use listener::{BindError, Listener};
pub use message::{ErrorCode, Event, Failure, RequestId};
pub use peer::{PeerIdentity, PeerProcess};
pub use server::{RequestContext, Server};
pub use transport::Disconnected;
