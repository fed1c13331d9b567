//! The whole server behind its HTTP interface: real clients, real decisions.
//!
//! Nothing is doubled but images and the machines of nodes. What every
//! operation answers is held against the published document.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

#[path = "interface/alerts.rs"]
mod alerts;
#[path = "interface/approvals.rs"]
mod approvals;
#[path = "interface/archived.rs"]
mod archived;
#[path = "interface/credentials.rs"]
mod credentials;
mod crew;
#[path = "interface/custody.rs"]
mod custody;
#[path = "interface/cut.rs"]
mod cut;
#[path = "interface/doors.rs"]
mod doors;
#[path = "interface/exec.rs"]
mod exec;
#[path = "interface/exported.rs"]
mod exported;
#[path = "interface/hostnames.rs"]
mod hostnames;
#[path = "interface/house.rs"]
mod house;
#[path = "interface/isolation.rs"]
mod isolation;
#[path = "interface/keys.rs"]
mod keys;
#[path = "interface/manifests.rs"]
mod manifests;
#[path = "interface/nameserver.rs"]
mod nameserver;
#[path = "interface/personal.rs"]
mod personal;
#[path = "interface/reach.rs"]
mod reach;
#[path = "interface/repeats.rs"]
mod repeats;
#[path = "interface/room.rs"]
mod room;
#[path = "interface/secrets.rs"]
mod secrets;
#[path = "interface/strangers.rs"]
mod strangers;
#[path = "interface/tour.rs"]
mod tour;
#[path = "interface/watchers.rs"]
mod watchers;
