//! What tests of several crates share: servers, a clean home, seeds, patience.
//!
//! Never a dependency of the product, only a dev-dependency (and one of
//! `xtask`). Start with [`PrivatePostgres`] for a server of one's own,
//! [`FreshDatabase`] for a database in the shared one, [`EngineKind`] for a
//! container engine, [`TestContext`] for the built `fluffy` in a clean home,
//! [`Guest`] for a kernel of one's own, [`PublishedServers`] for foreign ones.

mod acceptance;
mod account;
#[cfg(feature = "wasm")]
mod component;
mod context;
mod engine;
mod go;
mod guest;
mod lifeline;
mod permit;
mod postgres;
mod published;
mod random;
mod registry;
mod seed;
mod skip;
mod wait;

pub use acceptance::{Acceptance, Limit};
#[cfg(feature = "wasm")]
pub use component::{
    axum_peer, component, extism_peer, plugin_cargo, plugin_target, sample_plugin,
};
pub use context::{Finished, TestContext};
pub use engine::{EngineKind, PrivateEngine, TestEngine};
pub use go::GoPlugins;
pub use guest::{EMULATOR, Guest, GuestImage, GuestKernel};
pub use permit::permit;
pub use postgres::{FreshDatabase, Network, POSTGRES_ENV, PrivatePooler, PrivatePostgres};
pub use published::PublishedServers;
pub use random::Random;
pub use registry::RealRegistry;
pub use seed::{CAMPAIGN_ENV, SEED_ENV, Seed, campaign};
pub use skip::{SKIPS_ENV, record_skip};
pub use wait::wait_for;
