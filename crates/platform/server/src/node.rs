//! The server's side of the node protocol.
//!
//! Carries what nodes say to the control side and back, and proves who said
//! it; decides nothing: that is the [`Desk`]'s. Start with [`NodeDoor`], which a
//! server opens, and [`NodeServer`], which serves connections; `enrol` makes a
//! machine a node, `session` is what a node and the server say all day, `exec`
//! carries the bytes of exec sessions, `errand` what is done at once, `blob` those of images, `registry` says how
//! others are reached,
//! `control` is the desk of the platform and `plan` what nodes are told.

mod blob;
mod ca;
mod control;
mod csr;
mod desk;
pub(crate) mod door;
mod edge;
mod enrol;
mod errand;
mod exec;
mod plan;
mod reach;
mod registry;
mod service;
mod session;
mod stream;
mod tls;

pub use ca::{Authority, AuthorityError, Certified, ReadAuthorityError, Role};
pub use control::{ControlDesk, LocalEdge};
pub use csr::{InvalidSigningRequest, SigningRequest};
pub use desk::{
    Approval, Desk, DeskError, Enrolment, Machine, Opened, Orders, Place, RefusedEnrolment,
    Standing, Token,
};
pub use door::{NodeDoor, OpenNodeDoorError};
pub use errand::ErrandError;
pub use exec::{Carried, ExecError, ExecLink};
pub use service::{NodeServer, NodeServerError};
