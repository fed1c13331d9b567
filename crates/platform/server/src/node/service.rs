//! Serves nodes: connections, who is at their other end, and the calls.
//!
//! A connection without a certificate can enrol and nothing else, and not for
//! long. Every other call is made by a member, whose standing is looked at
//! anew each time. Next: `session`, `enrol`, `exec`.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use fluffy_api::node::{MAX_FROM_NODE, MAX_LOG_ENTRIES, dial, refusal, v1};
use fluffy_base::id::{ExecSessionId, LedgerId, NodeId};
use fluffy_base::{Clock, Digest, Timestamp};
use fluffy_image::{Registries, Shelf};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::{TlsAcceptor, rustls};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Code, Request, Response, Status, Streaming};
use v1::enrolment_server::{Enrolment, EnrolmentServer};
use v1::nodes_server::{Nodes, NodesServer};

use super::ca::{Authority, AuthorityError, Role};
use super::desk::{Desk, DeskError, Standing};
use super::enrol::{Passing, Strangers, enrol};
use super::errand::{ErrandError, Errands};
use super::exec::{Carried, ExecError, ExecLink, Execs};
use super::session::{Sessions, wrong};
use super::stream::{Inlet, Outbox, outbox};
use super::tls::{Members, Peer, acceptor};
use super::{blob, edge, registry, session};
use crate::logs::{Logs, Printer};
use crate::seats::{Seat, Seats};

/// The most connections at once.
const MAX_CONNECTIONS: usize = 1024;

/// The most calls of one connection at once; most are exec sessions.
const MAX_CALLS: u32 = 256;

/// What one call may send ahead. All calls together may send as much each, so
/// that those that nobody reads never hold up a session.
const STREAM_WINDOW: u32 = 64 << 10;

/// How long the handshake may take, and a connection without a certificate.
const GREETING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

/// How often an idle connection is tried, and how long an answer may take.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));

/// How often the standing of a connected member is looked at.
const STANDING: Duration = Duration::from_secs(1);

/// How old the server's own certificate becomes before it is replaced.
const CERTIFICATE_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Serves the nodes and edges of a cluster.
#[derive(Clone)]
pub struct NodeServer {
    shared: Arc<Shared>,
    names: Arc<[String]>,
    tls: Arc<Mutex<(Timestamp, TlsAcceptor)>>,
    connections: usize,
}

/// Why nodes cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum NodeServerError {
    /// The server's own certificate cannot be made.
    #[error("the server has no certificate for nodes")]
    Certificate(#[from] AuthorityError),
    /// The certificates cannot be used.
    #[error("the server's certificate for nodes cannot be used")]
    Tls(#[from] rustls::Error),
}

/// What all connections share.
pub(super) struct Shared {
    pub(super) desk: Arc<dyn Desk>,
    pub(super) clock: Arc<dyn Clock>,
    /// None while its keys can't be opened: nobody new is let in then.
    pub(super) authority: ArcSwapOption<Authority>,
    pin: Digest,
    pub(super) sessions: Sessions,
    pub(super) execs: Execs,
    pub(super) errands: Errands,
    pub(super) strangers: Strangers,
    pub(super) passing: Passing,
    logs: Arc<Logs>,
    members: Arc<Members>,
    pub(super) shelf: OnceLock<Arc<Shelf>>,
    pub(super) registries: OnceLock<Arc<Registries>>,
}

impl NodeServer {
    /// Serves under these names and addresses.
    ///
    /// # Errors
    /// A name is no name, or there is no randomness for a key.
    pub fn new(
        desk: Arc<dyn Desk>,
        clock: Arc<dyn Clock>,
        authority: Authority,
        names: &[String],
    ) -> Result<Self, NodeServerError> {
        let own = authority.server(names, clock.now())?;
        let root = authority.root().clone();
        let cluster = authority.cluster();
        let server = Self::with(desk, clock, (cluster, &root), own, names)?;
        server.shared.authority.store(Some(Arc::new(authority)));
        Ok(server)
    }

    /// Serves with a certificate of before, while the authority's keys can't
    /// be opened: members go on, and nobody new is let in.
    ///
    /// # Errors
    /// The certificate can't be used.
    pub fn sealed(
        desk: Arc<dyn Desk>,
        clock: Arc<dyn Clock>,
        cluster: LedgerId,
        own: dial::Identity,
        names: &[String],
    ) -> Result<Self, NodeServerError> {
        let none = || rustls::Error::General("the certificate has no root".to_owned());
        let root = own.chain.last().cloned().ok_or_else(none)?;
        Self::with(desk, clock, (cluster, &root), own, names)
    }

    fn with(
        desk: Arc<dyn Desk>,
        clock: Arc<dyn Clock>,
        (cluster, root): (LedgerId, &CertificateDer<'static>),
        own: dial::Identity,
        names: &[String],
    ) -> Result<Self, NodeServerError> {
        let members = Arc::new(Members::new(cluster, root, Arc::clone(&desk))?);
        let now = clock.now();
        let tls = acceptor(Arc::clone(&members), own)?;
        Ok(Self {
            shared: Arc::new(Shared {
                desk,
                clock,
                authority: ArcSwapOption::empty(),
                // A certificate of our own making is one that can be read.
                pin: dial::pin(root).unwrap_or_else(|| Digest::of(root)),
                sessions: Sessions::default(),
                execs: Execs::default(),
                errands: Errands::default(),
                strangers: Strangers::default(),
                passing: Passing::default(),
                logs: Arc::default(),
                shelf: OnceLock::new(),
                registries: OnceLock::new(),
                members,
            }),
            names: names.into(),
            tls: Arc::new(Mutex::new((now, tls))),
            connections: MAX_CONNECTIONS,
        })
    }

    /// The same, with so many connections at once.
    #[must_use]
    pub const fn with_connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }

    /// Goes on with an authority whose issuing certificate is a newer one.
    ///
    /// # Errors
    /// The server's own certificate cannot be made.
    pub fn renew(&self, authority: Authority) -> Result<(), NodeServerError> {
        self.shared.authority.store(Some(Arc::new(authority)));
        self.renew_own().map(drop)
    }

    /// Serves a listener until the future is dropped.
    pub async fn serve(&self, listener: TcpListener) {
        let seats = Seats::new(self.connections);
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(free) = seats.free().await else {
                return;
            };
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(_) => {
                    // Out of descriptors, say: others need a moment.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            // Whose source has its share is closed; a handshake would be work.
            let Some(seat) = seats.give(free, Some(from.ip())) else {
                continue;
            };
            let _ = stream.set_nodelay(true);
            let server = self.clone();
            connections.spawn(async move {
                server.seated(stream, from.ip(), Some(seat)).await;
            });
        }
    }

    /// Serves one connection, of whatever kind, until it ends.
    pub async fn speak<S>(&self, stream: S, source: IpAddr)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.seated(stream, source, None).await;
    }

    async fn seated<S>(&self, stream: S, source: IpAddr, mut seat: Option<Seat>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Ok(tls) = self.current_tls() else { return };
        let greeted = tokio::time::timeout(GREETING.0, tls.accept(stream)).await;
        let Ok(Ok(stream)) = greeted else { return };
        let certificates = stream.get_ref().1.peer_certificates();
        let peer = certificates
            .and_then(<[_]>::first)
            .and_then(|certificate| self.shared.members.peer(certificate));
        // Any number of nodes may be behind one address, and none is shut out
        // by strangers there that came before it.
        if let (Some(seat), Some(peer)) = (&mut seat, &peer)
            && self.shared.admit(peer).is_ok()
        {
            seat.vouch();
        }
        let connection = Connection {
            shared: Arc::clone(&self.shared),
            peer,
            source,
        };
        let served = connection.serve(stream);
        let limit = async {
            match peer {
                Some(peer) => self.shared.revoked(&peer).await,
                None => tokio::time::sleep(GREETING.1).await,
            }
        };
        tokio::select! {
            () = served => {}
            () = limit => {}
        }
    }

    /// Has a node run a command, and gives the ends of it.
    ///
    /// Whether it may be run was decided before.
    ///
    /// # Errors
    /// The node is not connected here, refuses, or takes too long.
    pub async fn exec(&self, node: NodeId, open: v1::ExecOpen) -> Result<ExecLink, ExecError> {
        let Shared {
            sessions, execs, ..
        } = &*self.shared;
        execs.open(sessions, node, open).await
    }

    /// Has a node do something to one of its instances, and gives what it
    /// tells.
    ///
    /// Whether it may be done was decided before.
    ///
    /// # Errors
    /// It was not done, or nobody knows whether it was.
    pub async fn errand(
        &self,
        node: NodeId,
        what: (String, v1::errand::Of),
    ) -> Result<Option<v1::Diagnosis>, ErrandError> {
        let Shared {
            sessions, errands, ..
        } = &*self.shared;
        errands.run(sessions, node, what).await
    }

    /// Counts an exec session among those that are carried here; before it is
    /// recorded that it is connected.
    #[must_use]
    pub fn carry(&self, session: ExecSessionId) -> Carried {
        self.shared.execs.carry(session)
    }

    /// What a machine is told of the cluster's root before it enrols.
    #[must_use]
    pub fn pin(&self) -> Digest {
        self.shared.pin
    }

    /// Gives nodes the blobs of this shelf; the first one stays.
    pub fn serve_blobs(&self, shelf: Arc<Shelf>) {
        let _ = self.shared.shelf.set(shelf);
    }

    /// Has nodes reach registries so; what was said first stays.
    pub fn reach_registries(&self, registries: Arc<Registries>) {
        let _ = self.shared.registries.set(registries);
    }

    /// What workloads printed lately.
    #[must_use]
    pub fn logs(&self) -> Arc<Logs> {
        Arc::clone(&self.shared.logs)
    }

    /// The nodes that have a session here.
    #[must_use]
    pub fn connected(&self) -> BTreeSet<NodeId> {
        self.shared.sessions.nodes()
    }

    fn current_tls(&self) -> Result<TlsAcceptor, NodeServerError> {
        let (since, tls) = self
            .tls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match self.shared.clock.now().since(since) < CERTIFICATE_AGE {
            true => Ok(tls),
            false => self.renew_own(),
        }
    }

    fn renew_own(&self) -> Result<TlsAcceptor, NodeServerError> {
        let now = self.shared.clock.now();
        let Some(authority) = self.shared.authority.load_full() else {
            let tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
            return Ok(tls.1.clone());
        };
        let own = authority.server(&self.names, now)?;
        let tls = acceptor(Arc::clone(&self.shared.members), own)?;
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = (now, tls.clone());
        Ok(tls)
    }
}

impl std::fmt::Debug for NodeServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeServer({:?})", self.shared.members)
    }
}

impl Shared {
    /// When a member may act no more, and has had a moment to hear of it.
    async fn revoked(&self, peer: &Peer) {
        while self.admit(peer).is_ok() {
            tokio::time::sleep(STANDING).await;
        }
        tokio::time::sleep(STANDING).await;
    }

    /// Checks that a member may still act.
    pub(super) fn admit(&self, peer: &Peer) -> Result<(), Status> {
        match self.desk.standing(peer.node, &peer.fingerprint) {
            Standing::Member => Ok(()),
            Standing::Stranger => Err(refusal(
                Code::PermissionDenied,
                "node_revoked",
                "this certificate is not accepted any more; enrol anew",
            )),
        }
    }
}

/// One connection and who is at its other end.
#[derive(Clone)]
struct Connection {
    shared: Arc<Shared>,
    peer: Option<Peer>,
    source: IpAddr,
}

impl Connection {
    async fn serve<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let answer = service_fn(move |request| {
            let connection = self.clone();
            async move { Ok::<_, Infallible>(connection.route(request).await) }
        });
        // How a connection ended is the node's business.
        let _ = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_CALLS)
            .max_header_list_size(16 << 10)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW.saturating_mul(MAX_CALLS))
            .keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .serve_connection(TokioIo::new(stream), answer)
            .await;
    }

    async fn route(self, request: http::Request<Incoming>) -> http::Response<Body> {
        let service = request
            .uri()
            .path()
            .trim_start_matches('/')
            .split('/')
            .next();
        let answer = match service {
            Some("fluffy.node.v1.Enrolment") => {
                let server = EnrolmentServer::new(self);
                let mut server = server.max_decoding_message_size(64 << 10);
                server.call(request).await
            }
            Some("fluffy.node.v1.Nodes") => {
                let server = NodesServer::new(self);
                let mut server = server.max_decoding_message_size(MAX_FROM_NODE);
                server.call(request).await
            }
            _ => return Status::unimplemented("no such service").into_http(),
        };
        match answer {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }

    /// The member at the other end, if it is one and may act.
    fn member(&self) -> Result<Peer, Status> {
        let peer = self.peer.ok_or_else(|| {
            let words = "this call needs the certificate of a node";
            refusal(Code::Unauthenticated, "unauthenticated", words)
        })?;
        self.shared.admit(&peer)?;
        Ok(peer)
    }

    /// The same, with a certificate that has not ended and for this role.
    fn current(&self, role: Role) -> Result<Peer, Status> {
        let peer = self.member()?;
        if peer.is_late(self.shared.clock.now()) {
            let words = "the certificate has ended; ask for a new one in a session";
            return Err(refusal(
                Code::FailedPrecondition,
                "certificate_expired",
                words,
            ));
        }
        must_have(&peer, role)?;
        Ok(peer)
    }
}

fn must_have(peer: &Peer, role: Role) -> Result<(), Status> {
    match peer.role == role {
        true => Ok(()),
        false => Err(refusal(
            Code::PermissionDenied,
            "wrong_role",
            "this call is not for members of this role",
        )),
    }
}

/// Codes after which a node asks again, later.
const WAITS: [&str; 2] = ["secrets_key_unavailable", "integrity_failed"];

/// What the desk says, as a node hears it.
pub(super) fn of_desk(error: DeskError) -> Status {
    match error {
        // What may be another answer later is no refusal for good.
        DeskError::Refused { code, why } if WAITS.contains(&code) => {
            refusal(Code::Unavailable, code, why)
        }
        DeskError::Refused { code, why } => refusal(Code::PermissionDenied, code, why),
        DeskError::Unavailable => {
            let words = "the server cannot do this now; try again";
            refusal(Code::Unavailable, "unavailable", words)
        }
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Enrolment for Connection {
    type EnrollStream = Outbox<v1::EnrollResponse>;

    async fn enroll(
        &self,
        request: Request<Streaming<v1::EnrollRequest>>,
    ) -> Answer<Self::EnrollStream> {
        let (told, answers) = outbox();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(enrol(shared, self.source, request.into_inner(), told));
        Ok(Response::new(answers))
    }
}

#[tonic::async_trait]
impl Nodes for Connection {
    type SessionStream = Outbox<v1::ServerMessage>;
    type ExecAttachStream = Outbox<v1::ExecToNode>;
    type PushLogsStream = Outbox<v1::LogAck>;
    type GetBlobStream = Outbox<v1::BlobPiece>;
    type EdgeConfigStream = Outbox<v1::RoutingTable>;

    async fn confirm(&self, request: Request<v1::ConfirmRequest>) -> Answer<v1::ConfirmResponse> {
        let peer = self.member()?;
        peer.must_be(&request.into_inner().node_id)?;
        let state = self.shared.desk.confirm(peer.node).await.map_err(of_desk)?;
        Ok(Response::new(v1::ConfirmResponse { state }))
    }

    async fn session(
        &self,
        request: Request<Streaming<v1::NodeMessage>>,
    ) -> Answer<Self::SessionStream> {
        let peer = self.member()?;
        must_have(&peer, Role::Worker)?;
        let (told, answers) = outbox();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(session::hold(shared, peer, request.into_inner(), told));
        Ok(Response::new(answers))
    }

    async fn exec_attach(
        &self,
        request: Request<Streaming<v1::ExecFromNode>>,
    ) -> Answer<Self::ExecAttachStream> {
        use v1::exec_from_node::Frame;
        let peer = self.current(Role::Worker)?;
        let mut from = request.into_inner();
        let first = tokio::time::timeout(GREETING.0, from.message()).await;
        let Ok(Ok(Some(v1::ExecFromNode {
            frame: Some(Frame::Attach(attach)),
        }))) = first
        else {
            return Err(wrong("the first frame must name a session"));
        };
        peer.must_be(&attach.node_id)?;
        let (told, answers) = outbox();
        let (shared, node) = (Arc::clone(&self.shared), peer.node);
        let hang_up = async move |over| {
            let over = v1::server_message::Message::ExecOpen(over);
            // A node that is not there has nothing left of it.
            let _ = shared.sessions.tell(node, over).await;
        };
        self.shared
            .execs
            .attach(node, &attach.session_id, from, told, hang_up)?;
        Ok(Response::new(answers))
    }

    async fn get_secret_material(
        &self,
        request: Request<v1::SecretMaterialRequest>,
    ) -> Answer<v1::SecretMaterial> {
        let peer = self.current(Role::Worker)?;
        let request = request.into_inner();
        peer.must_be(&request.node_id)?;
        let file = self.shared.desk.secret(peer.node, request).await;
        let file = file.map_err(of_desk)?.to_vec();
        Ok(Response::new(v1::SecretMaterial { file }))
    }

    async fn push_logs(
        &self,
        request: Request<Streaming<v1::LogBatch>>,
    ) -> Answer<Self::PushLogsStream> {
        let peer = self.current(Role::Worker)?;
        let (told, answers) = outbox();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let ended = take_logs(&shared, &peer, request.into_inner(), &told).await;
            if let Err(status) = ended {
                told.end(status).await;
            }
        });
        Ok(Response::new(answers))
    }

    async fn get_blob(&self, request: Request<v1::BlobRequest>) -> Answer<Self::GetBlobStream> {
        let peer = self.current(Role::Worker)?;
        let request = request.into_inner();
        peer.must_be(&request.node_id)?;
        let (told, answers) = outbox();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(blob::send(shared, request, told));
        Ok(Response::new(answers))
    }

    async fn get_registry_access(
        &self,
        request: Request<v1::RegistryAccessRequest>,
    ) -> Answer<v1::RegistryAccess> {
        let peer = self.current(Role::Worker)?;
        let request = request.into_inner();
        peer.must_be(&request.node_id)?;
        let access = registry::access(&self.shared, peer.node, request).await?;
        Ok(Response::new(access))
    }

    async fn edge_config(
        &self,
        request: Request<Streaming<v1::EdgeMessage>>,
    ) -> Answer<Self::EdgeConfigStream> {
        let peer = self.current(Role::Edge)?;
        let (told, answers) = outbox();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(edge::hold(shared, peer, request.into_inner(), told));
        Ok(Response::new(answers))
    }
}

/// Keeps what a node says that its own instances printed.
async fn take_logs(
    shared: &Shared,
    peer: &Peer,
    mut batches: Streaming<v1::LogBatch>,
    told: &Inlet<v1::LogAck>,
) -> Result<(), Status> {
    while let Some(batch) = batches.message().await? {
        shared.admit(peer)?;
        peer.must_be(&batch.node_id)?;
        if batch.entries.len() > MAX_LOG_ENTRIES {
            return Err(wrong("a batch of logs that is too large"));
        }
        let own = own_lines(shared, peer.node, batch.entries);
        if let Err(error) = shared.logs.keep(peer.node, own).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "lines were not kept; their node sends them again");
            let words = "the server cannot keep lines now; try again";
            return Err(refusal(Code::Unavailable, "unavailable", words));
        }
        told.say(v1::LogAck {
            through: batch.number,
        })
        .await?;
    }
    Ok(())
}

/// The entries of a node's own instances, and whose they are: what another
/// node has is not this one's to speak for.
fn own_lines(
    shared: &Shared,
    node: NodeId,
    entries: Vec<v1::LogEntry>,
) -> Vec<(Printer, v1::LogEntry)> {
    let mut known: HashMap<String, Option<Printer>> = HashMap::new();
    let mut own = Vec::new();
    for entry in entries {
        let printer = known
            .entry(entry.instance_id.clone())
            .or_insert_with_key(|id| {
                let printer = shared.desk.printer(node, id);
                // The last words of one that was collected meanwhile.
                let source = || shared.logs.source(node, id);
                printer.or_else(|| {
                    source().map(|source| Printer {
                        source,
                        daily: u64::MAX,
                    })
                })
            });
        own.extend(printer.clone().map(|printer| (printer, entry)));
    }
    own
}
