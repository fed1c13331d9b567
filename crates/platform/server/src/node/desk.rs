//! The seam to the control side: what nodes may learn, and where it goes.
//!
//! Everything that is decided is decided behind this trait, on exact state;
//! this side only proves who spoke. Tests have a desk of their own.

use std::net::IpAddr;
use std::sync::Arc;

use fluffy_api::node::v1;
use fluffy_base::id::{EnrollmentTokenId, ExecSessionId, NodeId};
use fluffy_base::{Digest, Timestamp};
use fluffy_contract::BoxFuture;
use tokio::sync::watch;
use zeroize::Zeroizing;

use super::ca::Role;
use crate::logs::Printer;

/// What the control side knows and does for nodes.
pub trait Desk: Send + Sync + 'static {
    /// Whether the one with this certificate may act as this node, right now.
    ///
    /// Asked at every handshake and for every message, so it only looks.
    fn standing(&self, node: NodeId, fingerprint: &Digest) -> Standing;

    /// The token of this hash, if it can be used now.
    fn token(&self, hash: Digest) -> BoxFuture<'_, Result<Option<Token>, DeskError>>;

    /// Whether a machine may join, before it has a certificate.
    ///
    /// Refused with [`PENDING`](fluffy_api::node::PENDING) while a person has to
    /// look at it first, which uses up nothing; the machine asks again. Records
    /// that it asks, the first time.
    fn ask(&self, machine: Machine) -> BoxFuture<'_, Result<(), DeskError>>;

    /// Makes a machine a node: uses the token up, books addresses, records it.
    ///
    /// A duplicate, or what policy refuses, uses the token up as well; who has
    /// to be approved is refused as by [`ask`](Self::ask).
    fn enrol(&self, enrolment: Enrolment) -> BoxFuture<'_, Result<v1::Overlay, DeskError>>;

    /// Records an enrolment that was refused here; some refusals use it up.
    fn refused(&self, refused: RefusedEnrolment) -> BoxFuture<'_, ()>;

    /// A node used its certificate for the first time; says its state.
    fn confirm(&self, node: NodeId) -> BoxFuture<'_, Result<String, DeskError>>;

    /// A node connected.
    fn open(&self, node: NodeId, hello: v1::Hello) -> BoxFuture<'_, Result<Opened, DeskError>>;

    /// The exec sessions of a node that count as connected.
    fn execs(&self, node: NodeId) -> Vec<ExecSessionId> {
        let _ = node;
        Vec::new()
    }

    /// Nobody carries these sessions any more: whoever did is gone.
    fn lost(&self, sessions: Vec<ExecSessionId>) -> BoxFuture<'_, Result<(), DeskError>> {
        let _ = sessions;
        Box::pin(std::future::ready(Ok(())))
    }

    /// A node is alive.
    fn heartbeat(&self, node: NodeId, heartbeat: v1::Heartbeat);

    /// A node has other resources than before.
    fn capacity(
        &self,
        node: NodeId,
        capacity: v1::Capacity,
    ) -> BoxFuture<'_, Result<(), DeskError>>;

    /// Takes reports in order; says the number up to which all are durable.
    fn report(&self, node: NodeId, batch: v1::StatusBatch)
    -> BoxFuture<'_, Result<u64, DeskError>>;

    /// A node goes by this plan.
    fn plan_ack(&self, node: NodeId, ack: v1::PlanAck);

    /// A node gets another certificate; the one before may still be used until
    /// it ends.
    fn rotate(&self, node: NodeId, fingerprint: Digest) -> BoxFuture<'_, Result<(), DeskError>>;

    /// The file of a version of secrets, if a live assignment of the node is
    /// bound to it; recorded either way.
    fn secret(
        &self,
        node: NodeId,
        request: v1::SecretMaterialRequest,
    ) -> BoxFuture<'_, Result<Zeroizing<Vec<u8>>, DeskError>>;

    /// The image of a live instance that the node has, as its plan names it.
    fn image_of(&self, node: NodeId, request: &v1::RegistryAccessRequest) -> Option<String>;

    /// Whether a node may have the credentials of a registry for an instance;
    /// recorded either way.
    fn registry(
        &self,
        node: NodeId,
        request: v1::RegistryAccessRequest,
        registry: String,
    ) -> BoxFuture<'_, Result<(), DeskError>>;

    /// Whose lines this instance prints, if the node has it.
    fn printer(&self, node: NodeId, instance: &str) -> Option<Printer>;

    /// The routing table as it changes.
    fn table(&self) -> watch::Receiver<Arc<v1::RoutingTable>>;

    /// An edge goes by this table, or does not.
    fn edge_ack(&self, edge: NodeId, ack: v1::EdgeAck);

    /// An edge is alive, and goes by this table if it says so.
    fn edge_beat(&self, edge: NodeId, config: Option<v1::Position>);
}

/// What the holder of a certificate may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Act as the node.
    Member,
    /// Nothing: the node was revoked or removed, or never was.
    Stranger,
}

/// An enrolment token that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: EnrollmentTokenId,
    /// What it is for.
    pub role: Role,
    /// What is known of where the machine will be.
    pub place: Place,
    /// What a person has to say of the machine that comes with it.
    pub approval: Approval,
}

/// What a person has to say of the machine that comes with a token, as far as
/// this replica has heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    /// Nothing, or they said yes.
    Settled,
    /// Whether it may join; no machine has asked yet.
    Needed,
    /// The same, and one asked.
    Awaited,
}

/// Where a machine may be that uses a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Where others reach it.
    Reachable,
    /// Also behind NAT.
    Anywhere,
}

/// A machine that proved what can be proved here, and what it joins with.
#[derive(Debug, Clone)]
pub struct Enrolment {
    /// Which machine.
    pub machine: Machine,
    /// The id that it gets.
    pub node: NodeId,
    /// Its certificate, as it is known by.
    pub fingerprint: Digest,
}

/// A machine that proved what can be proved here.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The token that it came with.
    pub token: EnrollmentTokenId,
    /// What for.
    pub role: Role,
    /// Of the key that its certificate is for: the same at every try.
    pub key: Digest,
    /// Its key in the overlay.
    pub overlay_key: [u8; 32],
    /// Where others reach it; empty behind NAT.
    pub endpoint: String,
    /// What it can.
    pub facts: v1::Facts,
    /// What makes the machine this machine; empty if it did not say.
    pub mark: Vec<u8>,
    /// The node that it says it was.
    pub former: Option<NodeId>,
    /// Where it called from.
    pub source: IpAddr,
}

/// An enrolment that failed before the desk was asked.
#[derive(Debug, Clone)]
pub struct RefusedEnrolment {
    /// The token, if it was one.
    pub token: Option<EnrollmentTokenId>,
    /// The code that the machine was told.
    pub code: &'static str,
    /// Where it called from.
    pub source: IpAddr,
    /// The key in the overlay that it named, if it came that far.
    pub key: Option<Digest>,
    /// When.
    pub at: Timestamp,
}

/// A session that was opened.
#[derive(Debug)]
pub struct Opened {
    /// The last report of this boot that is durable.
    pub reports_through: u64,
    /// What the node shall do, as it changes.
    pub orders: watch::Receiver<Arc<Orders>>,
}

/// What a node shall do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Orders {
    /// What it runs; none until there is a plan.
    pub plan: Option<v1::NodePlan>,
    /// Jobs that are not done.
    pub jobs: Vec<v1::Job>,
}

/// Why the desk did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeskError {
    /// It says no.
    #[error("{why}")]
    Refused {
        /// The code, as documented.
        code: &'static str,
        /// Why, for people.
        why: String,
    },
    /// It cannot say; later it may.
    #[error("the control side cannot be asked now")]
    Unavailable,
}
