//! The network, as far as the proxy needs it: names and connections.
//!
//! [`HostNetwork`] is this machine's own. A process that must have none asks
//! another one ([`crate::Outside`]). Judges nothing: `resolve.rs` does, and
//! only `dial.rs`, which uses up a permit, connects.

use std::io;
use std::net::{IpAddr, SocketAddr};

use fluffy_contract::BoxFuture;
use tokio::net::TcpStream;

/// Who knows names and opens connections.
pub trait Network: Send + Sync {
    /// The addresses of a name, in the order to try them.
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;

    /// A connection to exactly this address.
    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>>;
}

/// This machine's resolver and sockets.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostNetwork;

impl Network for HostNetwork {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(address))
    }
}
