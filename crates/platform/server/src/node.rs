//! The server's side of the node protocol.
//!
//! Carries what nodes say to the control side and back, and proves who said
//! it; decides nothing: that is the [`Desk`]'s. Start with [`NodeDoor`], which a
//! server opens, and [`NodeServer`], which serves connections; `enrol` makes a
//! machine a node, `session` is what a node and the server say all day, `exec`
//! carries the bytes of exec sessions, `logs` keeps what workloads printed,
//! `control` is the desk of the platform and `plan` what nodes are told.

mod ca;
mod control;
mod csr;
mod desk;
mod door;
mod edge;
mod enrol;
mod exec;
mod logs;
mod plan;
mod reach;
mod service;
mod session;
mod stream;
mod tls;

pub use ca::{Authority, AuthorityError, Certified, ReadAuthorityError, Role};
pub use control::ControlDesk;
pub use csr::{InvalidSigningRequest, SigningRequest};
pub use desk::{
    Desk, DeskError, Enrolment, Opened, Orders, Place, RefusedEnrolment, Standing, Token,
};
pub use door::{NodeDoor, OpenNodeDoorError};
pub use exec::{ExecError, ExecLink};
pub use logs::{Had, LogLine, Logs};
pub use service::{NodeServer, NodeServerError};
