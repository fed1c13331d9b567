//! Exec sessions: from the token that a client shows to the node's stream.
//!
//! Whether somebody may run something was decided when the session was made,
//! and is again, on exact state, when its client comes. A token is good once,
//! for its session, at the door of its org: of two that show it at once the
//! ledger lets one in. What is run is kept sealed, because a command may hold
//! what no event should.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fluffy_api::node::v1;
use fluffy_api::types::CreateExec;
use fluffy_base::Digest;
use fluffy_base::id::{ExecSessionId, NodeId, OrgId};
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::runtime::notice::may_go_on;
use fluffy_control::{Notice, Outcome, Refusal, State};
use fluffy_planner::lifecycle::ExecState;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::aside::Kind;
use crate::credential::CredentialKind;
use crate::errand::Errands;
use crate::failures::Failures;
use crate::gateway::{Ended, Pass, Rejoin, Terms};
use crate::hashes::Hashes;
use crate::http::{ClientLine, OpenExec, OpenedExec, Opening};
use crate::machine::Reply;
use crate::material::unsealed;
use crate::node::{Carried, ExecError, ExecLink, NodeServer};
use crate::peers::{Peer, Peers};
use crate::personal::Personal;
use crate::platform::Platform;
use crate::safe::{Safe, SafeError};

/// Who speaks of sessions, in the ledger.
const PART: &str = "exec";
/// What sessions are to run, sealed.
pub(crate) const ORDERS: Kind = Kind::new("exec-order");
/// How long an order is kept: as long as a token can be good, and a little.
const KEPT: Duration = Duration::from_secs(600);

/// How often it is looked whether who opened a session still may.
const LOOK: Duration = Duration::from_secs(1);

/// How long a session goes on while this replica does not follow the ledger:
/// longer than a database takes to come back, and not for as long as it is cut
/// off from those who would end it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long this replica may take to hear of a session of another.
const FOLLOWS: Duration = Duration::from_secs(2);

/// Opens exec sessions; to be cloned freely.
#[derive(Debug, Clone)]
pub struct Execs {
    platform: Platform,
    safe: Safe,
    hashes: Hashes,
    personal: Personal,
    failures: Failures,
    nodes: NodeServer,
    peers: Option<Peers>,
    patience: Duration,
    /// Sessions that are carried here whose clients may come back.
    lasting: Arc<Mutex<HashMap<ExecSessionId, Lasting>>>,
}

/// A session whose client may come back.
#[derive(Debug, Clone)]
struct Lasting {
    /// What lets it in.
    pass: Arc<Pass>,
    /// Where it then goes on.
    clients: mpsc::Sender<ClientLine>,
}

/// What a session is to run.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    command: Vec<String>,
    env: BTreeMap<String, String>,
    stdin: bool,
    terminal: Option<(u16, u16)>,
}

/// Keeps what a session is to run.
pub(crate) async fn keep_order(safe: &Safe, id: &str, asked: &CreateExec) -> Result<(), SafeError> {
    let size = (asked.cols.unwrap_or(80), asked.rows.unwrap_or(24));
    let order = Order {
        command: asked.command.clone(),
        env: asked.env.clone(),
        stdin: asked.stdin,
        terminal: asked.tty.then_some(size),
    };
    // Texts and numbers always have this form.
    let bytes = zeroize::Zeroizing::new(postcard::to_allocvec(&order).unwrap_or_default());
    let sealed = safe.seal(&purpose(id), &bytes)?;
    Ok(safe.aside().put(ORDERS, id, sealed, Some(KEPT)).await?)
}

/// What an order's seal is for: this session and no other.
pub(crate) fn purpose(id: &str) -> String {
    format!("fluffy-exec-v1 {id}")
}

impl Execs {
    /// Sessions of this platform, whose nodes are connected here.
    #[must_use]
    pub fn new(platform: Platform, safe: Safe, nodes: NodeServer) -> Self {
        Self {
            hashes: Hashes::new(platform.aside().clone()),
            personal: Personal::new(platform.aside().clone()),
            failures: Failures::new(platform.clone()),
            platform,
            safe,
            nodes,
            peers: None,
            patience: PATIENCE,
            lasting: Arc::default(),
        }
    }

    /// The same, with replicas beside it that other nodes are connected to.
    #[must_use]
    pub fn beside(mut self, peers: Peers) -> Self {
        self.peers = Some(peers);
        self
    }

    /// The same, whose sessions go on for another time while this replica does
    /// not follow the ledger.
    #[must_use]
    pub const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Who has the same nodes do other things.
    pub(crate) fn errands(&self) -> Errands {
        Errands::new(
            self.platform.clone(),
            self.nodes.clone(),
            self.peers.clone(),
        )
    }

    /// Where bad credentials go on record, all of them counted together.
    pub(crate) fn failures(&self) -> Failures {
        self.failures.clone()
    }

    /// The replicas beside this one, if there can be any.
    pub(crate) const fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }

    /// Lets the client of a session in, or says where it is let in.
    ///
    /// # Errors
    /// The token is not good for it, or the command can't be run. Nothing has
    /// reached the node in the first case.
    pub async fn open(&self, asked: &OpenExec) -> Result<Opening, Refusal> {
        if let Some(hash) = asked.resume {
            return self.open_again(asked, hash).await;
        }
        let Some(id) = self.proven(asked).await? else {
            return Err(self.refused(asked).await);
        };
        if let Some(peer) = self.elsewhere(id).await? {
            return Ok(Opening::Elsewhere(peer));
        }
        // From before it counts as connected until its end is on record.
        let carried = self.nodes.carry(id);
        let connected = RuntimeNotice::ExecConnected {
            session: id,
            pii_ref: self.personal.keep_source(&asked.source).await,
        };
        let connected = Notice::Runtime(connected);
        let answer = self.platform.notice(PART, None, connected).await;
        let answer = answer.map_err(|error| unavailable(&error.to_string()))?;
        match answer.reply {
            Reply::Wrote(Outcome::Done { .. }) => {}
            // Used, over, revoked, or its instance is gone: all the same to
            // whoever shows it.
            _ => return Err(self.refused(asked).await),
        }
        let (ended, result) = oneshot::channel();
        match self.start(id).await {
            Ok((link, terms)) => {
                let (revoke, revoked) = watch::channel(false);
                let rejoin = self.may_resume(id).then(|| self.let_last(id));
                tokio::spawn(self.clone().attend((id, carried), revoke, result));
                Ok(Opening::Here(Box::new(OpenedExec {
                    link,
                    terms,
                    revoked,
                    rejoin,
                    ended,
                })))
            }
            Err(refusal) => {
                self.end(id, &failed()).await;
                Err(refusal)
            }
        }
    }

    /// Lets the client of a session in again whose connection broke.
    async fn open_again(&self, asked: &OpenExec, hash: Digest) -> Result<Opening, Refusal> {
        // What goes on was known to every replica before it could break.
        let id = self.org_of(asked).and(asked.session.parse().ok());
        let lasting = id.and_then(|id| Some((id, self.lasting().get(&id)?.clone())));
        let Some((id, lasting)) = lasting else {
            // Only the replica that carries it can tell.
            if let Some(peer) = self.carried_elsewhere(id).await? {
                return Ok(Opening::Elsewhere(peer));
            }
            return Err(self.refused(asked).await);
        };
        if !lasting.pass.redeem(hash) {
            return Err(self.refused(asked).await);
        }
        let resumed = RuntimeNotice::ExecResumed {
            session: id,
            pii_ref: self.personal.keep_source(&asked.source).await,
        };
        let resumed = Notice::Runtime(resumed);
        let answer = self.platform.notice(PART, None, resumed).await;
        let answer = answer.map_err(|error| unavailable(&error.to_string()))?;
        match answer.reply {
            Reply::Wrote(Outcome::Done { .. }) => Ok(Opening::Again(lasting.clients)),
            _ => Err(self.refused(asked).await),
        }
    }

    /// The replica that a session's node is connected to, if it is another and
    /// the session goes on.
    async fn carried_elsewhere(&self, id: Option<ExecSessionId>) -> Result<Option<Peer>, Refusal> {
        let Some(id) = id.filter(|id| self.may_resume(*id) && self.is_connected(*id)) else {
            return Ok(None);
        };
        self.elsewhere(id).await
    }

    fn may_resume(&self, id: ExecSessionId) -> bool {
        let states = self.platform.sequencer();
        states.read(|state| {
            let session = state.runtime.execs.get(&id);
            session.is_some_and(|session| session.resume)
        })
    }

    /// From now on the client of a session may come back to it.
    fn let_last(&self, id: ExecSessionId) -> Rejoin<ClientLine> {
        // Whoever was let in is taken before the next can be.
        let (clients, came) = mpsc::channel(1);
        let pass = Arc::new(Pass::default());
        let lasting = Lasting {
            pass: Arc::clone(&pass),
            clients,
        };
        self.lasting().insert(id, lasting);
        Rejoin {
            pass,
            clients: came,
        }
    }

    fn lasting(&self) -> MutexGuard<'_, HashMap<ExecSessionId, Lasting>> {
        self.lasting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, if the token is its own and it is of the org in the path.
    async fn proven(&self, asked: &OpenExec) -> Result<Option<ExecSessionId>, Refusal> {
        let Some(hash) = asked.token else {
            return Ok(None);
        };
        let found = self.hashes.find(CredentialKind::Exec, hash).await;
        let found = found.map_err(|error| unavailable(&error.to_string()))?;
        let found = found.filter(|id| *id == asked.session);
        let Some(id) = found.and_then(|id| id.parse().ok()) else {
            return Ok(None);
        };
        self.known(|state| state.runtime.execs.get(&id).map(drop))
            .await;
        Ok(self.org_of(asked).map(|_| id))
    }

    /// The org in the path, if the session in it is of that org.
    fn org_of(&self, asked: &OpenExec) -> Option<OrgId> {
        let id: ExecSessionId = asked.session.parse().ok()?;
        self.platform.sequencer().read(|state| {
            let org = state.runtime.execs.get(&id)?.org;
            (state.access.names.org(&asked.org) == Some(org)).then_some(org)
        })
    }

    /// The replica that a session's node is connected to, if it is another.
    async fn elsewhere(&self, id: ExecSessionId) -> Result<Option<Peer>, Refusal> {
        let Some(peers) = &self.peers else {
            return Ok(None);
        };
        let Some(node) = self.node_of(id).await else {
            return Ok(None);
        };
        if self.nodes.connected().contains(&node) {
            return Ok(None);
        }
        let found = peers.of(node).await;
        found.map_err(|error| unavailable(&error.to_string()))
    }

    /// The node of a session.
    async fn node_of(&self, id: ExecSessionId) -> Option<NodeId> {
        let place = self.known(|state| place_of(state, id)).await;
        place.map(|(node, ..)| node)
    }

    /// What is known of a session. Another replica may have made it a moment
    /// ago: its token is kept before the event is here.
    async fn known<T>(&self, look: impl Fn(&State) -> Option<T>) -> Option<T> {
        let mut positions = self.platform.sequencer().positions();
        let find = async {
            loop {
                positions.mark_unchanged();
                if let Some(known) = self.platform.sequencer().read(&look) {
                    return Some(known);
                }
                positions.changed().await.ok()?;
            }
        };
        timeout(FOLLOWS, find).await.ok().flatten()
    }

    /// What a session is to run; it is kept for one look.
    async fn order(&self, id: &str) -> Result<Order, Refusal> {
        let aside = self.platform.aside();
        let entry = aside.get(ORDERS, id).await;
        let entry = entry.map_err(|error| unavailable(&error.to_string()))?;
        let gone = || unavailable("what it should run is not there any more");
        let sealed = entry.ok_or_else(gone)?.value;
        let bytes = self.safe.unseal(&purpose(id), &sealed).map_err(unsealed)?;
        // If this fails it ends by itself.
        let _ = aside.delete(ORDERS, id).await;
        postcard::from_bytes(&bytes).map_err(|_| gone())
    }

    async fn start(&self, id: ExecSessionId) -> Result<(ExecLink, Terms), Refusal> {
        let order = self.order(&id.to_string()).await?;
        let known = self.platform.sequencer().read(|state| place_of(state, id));
        let (node, instance, longest) = known.ok_or_else(invalid)?;
        let as_root = self.platform.sequencer().read(|state| {
            let session = state.runtime.execs.get(&id);
            session.is_some_and(|session| session.as_root)
        });
        let terms = Terms {
            session: id.to_string(),
            longest: Duration::from_secs(longest),
            tty: order.terminal.is_some(),
        };
        let open = v1::ExecOpen {
            session_id: id.to_string(),
            instance_id: instance,
            command: order.command,
            env: order.env.into_iter().collect(),
            stdin: order.stdin,
            terminal: order.terminal.map(|(cols, rows)| v1::Terminal {
                cols: cols.into(),
                rows: rows.into(),
            }),
            max_seconds: u32::try_from(longest).unwrap_or(u32::MAX),
            as_root,
            // Whoever opens it knows what the node can.
            tell_started: false,
        };
        let link = self
            .nodes
            .exec(node, open)
            .await
            .map_err(|error| match error {
                ExecError::Disconnected { .. } => {
                    unavailable("the instance's node is not connected to this server")
                }
                ExecError::Refused { code, .. } => {
                    let why = format!("the node does not run it: {code}");
                    Refusal::new("instance_not_running", why, "choose another instance")
                }
                ExecError::Unsupported { .. } => Refusal::new(
                    "not_supported",
                    "the instance's node runs an older fluffy, which can't do that",
                    "bring the node up to date, or leave out what it can't do",
                ),
                ExecError::TimedOut { .. } => unavailable("the node did not start it in time"),
            })?;
        Ok((link, terms))
    }

    /// Ends a session when the state says so or who opened it may no longer,
    /// and records how it ended.
    async fn attend(
        self,
        (id, _carried): (ExecSessionId, Carried),
        revoke: watch::Sender<bool>,
        mut result: oneshot::Receiver<Ended>,
    ) {
        let mut positions = self.platform.sequencer().positions();
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            let goes_on = tokio::select! {
                ended = &mut result => break ended.unwrap_or_else(|_| failed()),
                moved = positions.changed() => moved.is_ok() && self.is_connected(id),
                // Also without an event: a grant ends by time, and the session
                // may have been ended while its command was being started.
                _ = looks.tick() => {
                    self.is_connected(id) && self.may_go_on(id) && self.is_followed()
                }
            };
            if !goes_on {
                revoke.send_replace(true);
                break result.await.unwrap_or_else(|_| failed());
            }
        };
        self.lasting().remove(&id);
        self.end(id, &ended).await;
    }

    fn is_connected(&self, id: ExecSessionId) -> bool {
        let state = self.platform.sequencer().read(|state| {
            let session = state.runtime.execs.get(&id);
            session.map(|session| session.state)
        });
        state == Some(ExecState::Connected)
    }

    fn may_go_on(&self, id: ExecSessionId) -> bool {
        let now = self.platform.clock().now();
        let states = self.platform.sequencer();
        states.read(|state| may_go_on(state, now, id))
    }

    /// Whether it would be known here by now if a session had to end.
    fn is_followed(&self) -> bool {
        self.platform.sequencer().behind() <= self.patience
    }

    /// Records the end; it is tried until it is there, because a session that
    /// never ends would count for as long as it may last.
    async fn end(&self, id: ExecSessionId, ended: &Ended) {
        for pause in [0, 1, 5, 20].into_iter().chain(std::iter::repeat(60)) {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            let notice = RuntimeNotice::ExecEnded {
                session: id,
                end_reason: ended.reason.to_owned(),
                exit_code: ended.exit_code.map(i64::from),
                bytes_in: ended.bytes_in,
                bytes_out: ended.bytes_out,
            };
            let notice = Notice::Runtime(notice);
            if self.platform.notice(PART, None, notice).await.is_ok() {
                return;
            }
        }
    }

    /// Has a token that was not good on record, and says so. It is in the
    /// history of an org only if the path names a session of it: that much no
    /// stranger knows, and nobody writes into the history of others.
    async fn refused(&self, asked: &OpenExec) -> Refusal {
        let org = self.org_of(asked);
        let reason = "exec_token_invalid";
        self.failures.note(reason, &asked.source, org).await;
        invalid()
    }
}

/// Where a session runs and how long it may.
fn place_of(state: &State, id: ExecSessionId) -> Option<(NodeId, String, u64)> {
    let session = state.runtime.execs.get(&id)?;
    let instance = state.runtime.plan.instances.get(&session.instance)?;
    Some((
        instance.node,
        session.instance.to_string(),
        session.max_seconds,
    ))
}

/// The command was never reached.
const fn failed() -> Ended {
    Ended {
        exit_code: None,
        reason: "instance_gone",
        bytes_in: 0,
        bytes_out: 0,
    }
}

fn invalid() -> Refusal {
    Refusal::new(
        "exec_token_invalid",
        "the token is not good for this session, was used, or its time is over",
        "ask for a new session",
    )
}

fn unavailable(why: &str) -> Refusal {
    Refusal::new("unavailable", why, "try again in a moment")
}
