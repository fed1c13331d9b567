//! Runs the control plane: appends what it decides, serves what it knows.
//!
//! A [`sequencer`] keeps a [`fold::Machine`] exactly at the end of the ledger
//! and appends its decisions on condition that it still is there; [`aside`]
//! keeps what does not follow from events; [`node`] speaks to nodes and [`http`]
//! to everybody else. Nothing here decides by itself, and no reader sees what is
//! not committed.

#![forbid(unsafe_code)]

pub mod aside;
pub mod backend;
mod certificate;
pub mod credential;
pub mod dns;
pub mod doors;
mod errand;
pub mod exec;
mod failures;
mod figures;
pub mod fold;
pub mod gateway;
pub mod hashes;
mod histogram;
pub mod history;
pub mod hostnames;
pub mod http;
pub mod images;
pub mod logs;
pub mod loops;
pub mod machine;
pub mod material;
pub mod migrate;
pub mod node;
pub mod peers;
pub mod personal;
pub mod platform;
mod readers;
mod room;
pub mod safe;
mod seats;
pub mod sequencer;
pub mod server;
pub mod snapshot;
mod source;
pub mod unseal;
pub mod vitals;
mod works;
