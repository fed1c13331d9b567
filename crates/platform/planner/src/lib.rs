//! Decides which instance runs where, and what is to be done about it.
//!
//! A pure core: [`plan`] takes the state and the time, and says what to append.
//! It never reads a clock, waits, mints an id or rolls a die; equal input gives
//! equal output. Start with [`model`] for what it sees, [`action`] for what it
//! says, [`lifecycle`] for what may lead where.
//!
//! # How a driver uses it
//!
//! Fold events into a [`model::State`]; call [`plan`] when something changed,
//! and every second at least, because time passes too. Append each
//! [`action::Step`] whole: check the versions that it expects, what nodes and
//! quotas have left and who holds volumes, all in that transaction. What is
//! refused is dropped; the next pass plans it anew. A pass that was planned on
//! an old state is therefore harmless, and so is a planner that dies halfway.
//!
//! # What it promises
//!
//! - No node, quota or volume is ever given twice, and memory stays booked
//!   until the node says that the instance stopped.
//! - Nothing is drained unless enough available ones remain, but for data,
//!   which goes before its successor comes, and only if that could start; where
//!   there is no room for both, also one of several that makes room by it.
//! - What an env does not accept any more gives way like what is old.
//! - What has a volume runs on the volume's home or not at all.
//! - Every deploy ends; who has less than it wants is told why, and a quota
//!   that is full is never called a cluster that is full.

#![forbid(unsafe_code)]

pub mod action;
mod deploys;
pub mod lifecycle;
pub mod model;
pub mod place;
mod plan;
pub mod reason;
mod rollout;
mod survey;

pub use deploys::RETRIES;
pub use plan::{MOVING_GROUPS, TURN, plan, ranking};
pub use rollout::{CRASH_PAUSE, EDGE_PATIENCE, FAILURE_PAUSE, MOVES};
