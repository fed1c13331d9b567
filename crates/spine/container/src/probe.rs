//! Which engine this machine has, for people and for starting a launcher.
//!
//! Asks the engine about itself and nothing else; makes and removes nothing.
//! Next: `worker` starts a launcher with the socket that is found here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fluffy_sandbox::protocol::Failure;

use crate::address;
use crate::engine::Engine;

pub use crate::engine::{Brand, Ownership};

/// An engine that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Where it listens.
    pub socket: PathBuf,
    /// Which program it is.
    pub brand: Brand,
    /// Its own version.
    pub version: String,
    /// Who its containers are on the host.
    pub ownership: Ownership,
}

/// The engine that a sandbox would be made by.
///
/// # Errors
/// There is none that answers; the text has the exact fix.
pub async fn probe(environment: &BTreeMap<String, String>, user: u32) -> Result<Found, Failure> {
    let socket = address::find(environment, user).map_err(|error| error.failure())?;
    let engine = Engine::connect(&socket).await;
    let engine = engine.map_err(|error| error.failure())?;
    Ok(Found {
        brand: engine.brand(),
        version: engine.version().to_owned(),
        ownership: engine.ownership(),
        socket,
    })
}
