//! What a node and the server say to each other, as long as it is connected.
//!
//! Reports are taken in the order of their numbers, each once; plans go out
//! newest first, and an older one never after a newer one. A node that is
//! revoked is cut off at its next message and within a second. Decides
//! nothing: that is the desk's.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fluffy_api::node::{MAX_REPORTS, OLDEST_PROTOCOL, PROTOCOL, feature, refusal, v1};
use fluffy_base::id::{BootId, NodeId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tonic::{Code, Status, Streaming};
use v1::node_message::Message as Said;
use v1::server_message::Message as Told;

use super::csr::SigningRequest;
use super::desk::{DeskError, Orders};
use super::enrol::millis;
use super::service::{Shared, of_desk};
use super::stream::{Inlet, gone};
use super::tls::Peer;

/// How long the first message may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a node says that it is alive.
const HEARTBEAT_SECONDS: u32 = 5;

/// How often a connected node's standing is looked at.
const TICK: Duration = Duration::from_secs(1);

/// How long until a node is asked again for a new key.
const ASK_AGAIN: Duration = Duration::from_secs(3600);

/// How many batches of one node wait; one more is dropped, and repeated by it.
const WAITING: usize = 4;

/// The most images that a node names as cached.
const MAX_IMAGES: usize = 4096;

/// The sessions that are open here, one per node.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<NodeId, Open>>);

#[derive(Debug)]
struct Open {
    orders: mpsc::Sender<Told>,
    /// What the node can do beside its minor version.
    features: BTreeSet<String>,
    /// Dropping it tells the session that a newer one took its place.
    _place: oneshot::Sender<()>,
}

impl Sessions {
    /// Says something to a node that is connected here.
    pub(super) async fn tell(&self, node: NodeId, message: Told) -> Result<(), Status> {
        let open = self.lock().get(&node).map(|open| open.orders.clone());
        let orders = open.ok_or_else(gone)?;
        orders.send(message).await.map_err(|_| gone())
    }

    /// The nodes that are connected here.
    pub(super) fn nodes(&self) -> BTreeSet<NodeId> {
        self.lock().keys().copied().collect()
    }

    /// Whether a node that is connected here says that it can do something.
    pub(super) fn can(&self, node: NodeId, feature: &str) -> bool {
        let all = self.lock();
        all.get(&node)
            .is_some_and(|open| open.features.contains(feature))
    }

    fn enter(
        &self,
        node: NodeId,
        features: BTreeSet<String>,
    ) -> (mpsc::Receiver<Told>, oneshot::Receiver<()>) {
        let (orders, ordered) = mpsc::channel(WAITING);
        let (place, replaced) = oneshot::channel();
        let open = Open {
            orders,
            features,
            _place: place,
        };
        self.lock().insert(node, open);
        (ordered, replaced)
    }

    /// Forgets the session of these orders, unless a newer one is there.
    fn leave(&self, node: NodeId) {
        let mut open = self.lock();
        if open.get(&node).is_some_and(|open| open.orders.is_closed()) {
            open.remove(&node);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds one session until either side ends it.
pub(super) async fn hold(
    shared: Arc<Shared>,
    peer: Peer,
    said: Streaming<v1::NodeMessage>,
    told: Inlet<v1::ServerMessage>,
) {
    let (session, ended) = match Session::open(shared, peer, said, told.clone()).await {
        Err(status) => (None, status),
        Ok(mut session) => {
            let ended = session.run().await;
            (Some(session), ended)
        }
    };
    if let Some(mut session) = session {
        session.ordered.close();
        session.shared.sessions.leave(peer.node);
    }
    told.end(ended).await;
}

struct Session {
    shared: Arc<Shared>,
    peer: Peer,
    boot: String,
    said: Streaming<v1::NodeMessage>,
    told: Inlet<v1::ServerMessage>,
    ordered: mpsc::Receiver<Told>,
    replaced: oneshot::Receiver<()>,
    orders: Option<watch::Receiver<Arc<Orders>>>,
    sent: Sent,
    reports: mpsc::Sender<Heard>,
    /// When the node was last asked for a new key, until it sent one.
    asked: Option<Instant>,
    _worker: JoinSet<()>,
}

/// What a node was told already.
#[derive(Default)]
struct Sent {
    plan: Option<v1::Position>,
    jobs: BTreeSet<String>,
}

/// What takes the desk a while.
enum Heard {
    Reports(v1::StatusBatch),
    Capacity(v1::Capacity),
}

impl Session {
    async fn open(
        shared: Arc<Shared>,
        peer: Peer,
        mut said: Streaming<v1::NodeMessage>,
        told: Inlet<v1::ServerMessage>,
    ) -> Result<Self, Status> {
        let hello = first_hello(&mut said).await?;
        check_hello(&peer, &hello)?;
        let boot = hello.boot_id.clone();
        let held = hello.plan;
        // What this server does not know of is nothing to it.
        let known = |name: &&String| feature::ALL.contains(&name.as_str());
        let named = hello.features.iter().take(feature::MOST);
        let features = named.filter(known).cloned().collect();
        // Who comes with a certificate that has ended gets a new one, and
        // nothing else.
        let late = peer.is_late(shared.clock.now());
        let opened = match late {
            true => None,
            false => Some(shared.desk.open(peer.node, hello).await.map_err(of_desk)?),
        };
        if !late {
            forget_execs(&shared, peer.node).await?;
        }
        let (ordered, replaced) = shared.sessions.enter(peer.node, features);
        let through = opened.as_ref().map_or(0, |opened| opened.reports_through);
        let (reports, heard) = mpsc::channel(WAITING);
        let mut worker = JoinSet::new();
        worker.spawn(take_reports(Taking {
            shared: Arc::clone(&shared),
            node: peer.node,
            boot: boot.clone(),
            through,
            heard,
            told: told.clone(),
        }));
        let welcome = v1::Welcome {
            protocol: PROTOCOL,
            heartbeat_seconds: HEARTBEAT_SECONDS,
            reports_through: through,
            clock_ms: millis(shared.clock.now()),
        };
        told.say(message(Told::Welcome(welcome))).await?;
        Ok(Self {
            shared,
            peer,
            boot,
            said,
            told,
            ordered,
            replaced,
            orders: opened.map(|opened| opened.orders),
            sent: Sent {
                plan: held,
                jobs: BTreeSet::new(),
            },
            reports,
            asked: None,
            _worker: worker,
        })
    }

    /// Runs until it ends, and says why.
    async fn run(&mut self) -> Status {
        match self.talk().await {
            Ok(()) => gone(),
            Err(status) => status,
        }
    }

    async fn talk(&mut self) -> Result<(), Status> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.send_orders().await?;
        loop {
            tokio::select! {
                said = self.said.message() => match said? {
                    None => return Ok(()),
                    Some(said) => {
                        self.shared.admit(&self.peer)?;
                        self.hear(said).await?;
                    }
                },
                changed = changed(&mut self.orders) => {
                    changed?;
                    self.shared.admit(&self.peer)?;
                    self.send_orders().await?;
                }
                Some(order) = self.ordered.recv() => {
                    self.shared.admit(&self.peer)?;
                    self.told.say(message(order)).await?;
                }
                _ = tick.tick() => {
                    self.shared.admit(&self.peer)?;
                    self.ask_for_key().await?;
                }
                _ = &mut self.replaced => return Err(refusal(
                    Code::Aborted,
                    "session_replaced",
                    "a newer session of this node took its place",
                )),
                () = self.told.closed() => return Ok(()),
            }
        }
    }

    async fn hear(&mut self, said: v1::NodeMessage) -> Result<(), Status> {
        let said = said.message.ok_or_else(|| wrong("an empty message"))?;
        if self.orders.is_none() && !matches!(said, Said::CertificateRequest(_)) {
            return Err(refusal(
                Code::FailedPrecondition,
                "certificate_expired",
                "the certificate has ended; only a new one can be asked for",
            ));
        }
        let (desk, node) = (&self.shared.desk, self.peer.node);
        match said {
            Said::Hello(_) => return Err(wrong("a second hello")),
            Said::Heartbeat(heartbeat) => desk.heartbeat(node, heartbeat),
            Said::PlanAck(ack) => desk.plan_ack(node, ack),
            Said::ExecRefused(refused) => self.shared.execs.refuse(node, refused),
            Said::ErrandDone(done) => self.shared.errands.done(node, done),
            Said::CertificateRequest(request) => self.certify(&request).await?,
            Said::Capacity(capacity) => {
                if capacity.cached_images.len() > MAX_IMAGES {
                    return Err(wrong("too many cached images"));
                }
                let _ = self.reports.try_send(Heard::Capacity(capacity));
            }
            Said::Status(batch) => {
                if batch.boot_id != self.boot || batch.reports.len() > MAX_REPORTS {
                    return Err(wrong("a batch of another boot, or one that is too large"));
                }
                // What finds no room is not acknowledged, and so repeated.
                let _ = self.reports.try_send(Heard::Reports(batch));
            }
        }
        Ok(())
    }

    /// Sends a plan and jobs that the node has not been told yet.
    async fn send_orders(&mut self) -> Result<(), Status> {
        let Some(orders) = &mut self.orders else {
            return Ok(());
        };
        let orders = Arc::clone(&orders.borrow_and_update());
        if let Some(plan) = &orders.plan {
            let position = plan.position();
            if self.sent.plan.is_none_or(|sent| position.is_above(sent)) {
                self.told.say(message(Told::Plan(plan.clone()))).await?;
                self.sent.plan = Some(position);
            }
        }
        let open: BTreeSet<&String> = orders.jobs.iter().map(|job| &job.job_id).collect();
        self.sent.jobs.retain(|job| open.contains(job));
        for job in &orders.jobs {
            if self.sent.jobs.insert(job.job_id.clone()) {
                self.told.say(message(Told::Job(job.clone()))).await?;
            }
        }
        Ok(())
    }

    async fn ask_for_key(&mut self) -> Result<(), Status> {
        let due =
            self.peer.is_due(self.shared.clock.now()) && self.shared.authority.load().is_some();
        let asked = self.asked.is_some_and(|at| at.elapsed() < ASK_AGAIN);
        if due && !asked {
            self.asked = Some(Instant::now());
            let ask = Told::RenewCertificate(v1::RenewCertificate {});
            self.told.say(message(ask)).await?;
        }
        Ok(())
    }

    /// Gives the node another certificate, once for each time it was asked.
    async fn certify(&mut self, request: &v1::CertificateRequest) -> Result<(), Status> {
        if self.asked.is_none() {
            return Err(wrong("a request for a certificate that nobody asked for"));
        }
        let request = SigningRequest::parse(&request.csr);
        let request = request.map_err(|error| wrong(&error.to_string()))?;
        let Peer { node, role, .. } = self.peer;
        let authority = self.shared.authority.load_full();
        let authority = authority.ok_or_else(|| of_desk(DeskError::Unavailable))?;
        let made = authority.certify(&request, (node, role), self.shared.clock.now());
        let made = made.map_err(|_| of_desk(DeskError::Unavailable))?;
        let rotated = self.shared.desk.rotate(node, made.fingerprint).await;
        rotated.map_err(of_desk)?;
        let certificate = v1::Certificate {
            certificate_chain: made.chain.iter().map(|der| der.to_vec()).collect(),
            not_after_ms: millis(made.not_after),
        };
        self.told
            .say(message(Told::Certificate(certificate)))
            .await?;
        // The next one only after the next question.
        self.peer = self.peer.renewed(made.not_after);
        self.asked = None;
        Ok(())
    }
}

/// Ends the exec sessions of a node that nobody carries: one that is carried
/// is so by the replica that the node is connected to, which is this one now.
async fn forget_execs(shared: &Shared, node: NodeId) -> Result<(), Status> {
    // In this order: what counts as connected was counted as carried before.
    let mut lost = shared.desk.execs(node);
    lost.retain(|id| !shared.execs.is_carried(*id));
    if lost.is_empty() {
        return Ok(());
    }
    shared.desk.lost(lost).await.map_err(of_desk)
}

async fn first_hello(said: &mut Streaming<v1::NodeMessage>) -> Result<v1::Hello, Status> {
    match timeout(PATIENCE, said.message()).await {
        Ok(Ok(Some(v1::NodeMessage {
            message: Some(Said::Hello(hello)),
        }))) => Ok(hello),
        Ok(Err(status)) => Err(status),
        _ => Err(wrong("no hello")),
    }
}

/// Checks who says hello, and in which version.
pub(super) fn check_hello(peer: &Peer, hello: &v1::Hello) -> Result<(), Status> {
    peer.must_be(&hello.node_id)?;
    if !(OLDEST_PROTOCOL..=PROTOCOL).contains(&hello.protocol) {
        let words = format!(
            "this server speaks {OLDEST_PROTOCOL} to {PROTOCOL}, the node {}",
            hello.protocol
        );
        return Err(refusal(
            Code::FailedPrecondition,
            "version_unsupported",
            words,
        ));
    }
    match hello.boot_id.parse::<BootId>() {
        Ok(_) => Ok(()),
        Err(_) => Err(wrong("a boot id that is none")),
    }
}

/// The next change of orders; never, if there are none.
async fn changed(orders: &mut Option<watch::Receiver<Arc<Orders>>>) -> Result<(), Status> {
    match orders {
        Some(orders) => orders
            .changed()
            .await
            .map_err(|_| of_desk(DeskError::Unavailable)),
        None => std::future::pending().await,
    }
}

struct Taking {
    shared: Arc<Shared>,
    node: NodeId,
    boot: String,
    through: u64,
    heard: mpsc::Receiver<Heard>,
    told: Inlet<v1::ServerMessage>,
}

/// Hands reports to the desk, so that its pace is not that of heartbeats.
async fn take_reports(mut taking: Taking) {
    let desk = Arc::clone(&taking.shared.desk);
    while let Some(heard) = taking.heard.recv().await {
        let done = match heard {
            Heard::Capacity(capacity) => desk.capacity(taking.node, capacity).await,
            Heard::Reports(batch) => {
                let done = match next_reports(batch, taking.through) {
                    Some(fresh) => desk.report(taking.node, fresh).await,
                    None => Ok(taking.through),
                };
                match done {
                    Ok(through) => {
                        taking.through = through;
                        let ack = v1::StatusAck {
                            boot_id: taking.boot.clone(),
                            through,
                        };
                        if taking
                            .told
                            .say(message(Told::StatusAck(ack)))
                            .await
                            .is_err()
                        {
                            return;
                        }
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
        };
        // What the desk cannot take now is not acknowledged, and so repeated.
        if let Err(error @ DeskError::Refused { .. }) = done {
            return taking.told.end(of_desk(error)).await;
        }
    }
}

/// The reports that are new, if they go on where the last ones ended.
fn next_reports(mut batch: v1::StatusBatch, through: u64) -> Option<v1::StatusBatch> {
    batch.reports.retain(|report| report.number > through);
    let steps = batch.reports.iter().map(|report| report.number - through);
    let in_order = (1..).zip(steps).all(|(expected, step)| expected == step);
    (in_order && !batch.reports.is_empty()).then_some(batch)
}

fn message(message: Told) -> v1::ServerMessage {
    v1::ServerMessage {
        message: Some(message),
    }
}

/// What a node that keeps to the protocol never does.
pub(super) fn wrong(what: &str) -> Status {
    refusal(Code::InvalidArgument, "invalid_argument", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(numbers: &[u64]) -> v1::StatusBatch {
        v1::StatusBatch {
            boot_id: String::new(),
            reports: numbers
                .iter()
                .map(|number| v1::Report {
                    number: *number,
                    ..Default::default()
                })
                .collect(),
        }
    }

    #[test]
    fn each_report_is_taken_once_and_in_order() {
        let taken = |numbers: &[u64], through| {
            let next = next_reports(batch(numbers), through)?;
            Some(next.reports.iter().map(|report| report.number).collect())
        };
        assert_eq!(taken(&[1, 2], 0), Some(vec![1, 2]));
        assert_eq!(taken(&[1, 2, 3], 2), Some(vec![3]), "said again");
        assert_eq!(taken(&[1, 2], 2), None, "all said again");
        assert_eq!(taken(&[4], 2), None, "one is missing before it");
        assert_eq!(taken(&[3, 5], 2), None, "one is missing in it");
        assert_eq!(taken(&[4, 3], 2), None, "in the wrong order");
        assert_eq!(taken(&[3, 3], 2), None, "twice in one batch");
        assert_eq!(taken(&[], 2), None);
        assert_eq!(taken(&[u64::MAX], u64::MAX - 1), Some(vec![u64::MAX]));
        assert_eq!(taken(&[u64::MAX], u64::MAX), None);
    }
}
