//! What the HTTP layer stands on: who calls, decisions, views, small memory.
//!
//! A seam: the server answers with the control plane behind it, tests with a
//! double. Nothing here is about HTTP. Next: `super::service`.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::operation::Bucket;
use fluffy_base::{Digest, Timestamp, canonical};
use fluffy_control::{Caller, Outcome, Refusal, Subject};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::aside::{Claim, Draw};
use crate::fold::Position;
use crate::gateway::{Ended, Rejoin, Terms};
use crate::logs::{Follower, LogLine};
use crate::node::ExecLink;
use crate::peers::{Peer, Told};

/// What the HTTP layer stands on.
pub trait Backend: Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Timestamp;

    /// Ticks with what readers see.
    fn positions(&self) -> watch::Receiver<Position>;

    /// The end of the ledger, whether or not readers see it yet.
    fn head(&self) -> impl Future<Output = Result<Position, Refusal>> + Send;

    /// Who stands behind what was shown, if anybody does.
    fn identify(
        &self,
        identity: Identity<'_>,
    ) -> impl Future<Output = Result<Caller, Refusal>> + Send;

    /// Whose budget a call is counted by: the org that a path names, if the
    /// caller has anything in it, else the caller.
    fn payer(&self, caller: &Caller, org: Option<&str>) -> String;

    /// How many calls of a bucket a caller's own token has in a window, if it
    /// has a limit of its own, and under which name they are counted.
    fn own_limit(&self, caller: &Caller, bucket: Bucket) -> Option<(String, u64)> {
        let _ = (caller, bucket);
        None
    }

    /// Decides and records a write.
    fn write(&self, asked: Asked) -> impl Future<Output = Result<Wrote, Refusal>> + Send;

    /// What a write led to, as the views have it now.
    fn answer(&self, subject: &Subject) -> Value;

    /// What an earlier write led to, by the event of its decision; none if
    /// nothing followed it.
    fn led_to(&self, decision: u64) -> impl Future<Output = Option<Earlier>> + Send;

    /// Reads; a list in pages of `limit`, going on behind `after`.
    fn read(&self, asked: Asked) -> impl Future<Output = Result<Value, Refusal>> + Send;

    /// Reads again what a stream began with: as `read`, but the caller's look
    /// was recorded when it began.
    fn look_again(&self, asked: Asked) -> impl Future<Output = Result<Value, Refusal>> + Send {
        self.read(asked)
    }

    /// Ticks when instances print something; none where nobody listens to them.
    fn printing(&self) -> Option<broadcast::Receiver<LogLine>> {
        None
    }

    /// The lines of logs that a follower has not had yet; none once its caller
    /// may no longer look.
    fn printed(
        &self,
        asked: &Asked,
        who: &mut Follower,
    ) -> impl Future<Output = Option<Vec<Printed>>> + Send {
        let _ = (asked, who);
        std::future::ready(None)
    }

    /// The hash of a request as it is kept, which helps nobody to guess what
    /// was sent: it may have been a secret.
    fn fingerprint(&self, request: Digest) -> Digest;

    /// Whether a hash that was kept is of this request, which may have been
    /// kept where another was made of it.
    ///
    /// # Errors
    /// It can't be told now.
    fn is_same(&self, kept: Digest, request: Digest) -> Result<bool, Refusal> {
        Ok(kept == self.fingerprint(request))
    }

    /// The answer that was stored under a key.
    fn recall(&self, key: &str) -> impl Future<Output = Result<Option<Stored>, Refusal>> + Send;

    /// Stores an answer under a key, for a day.
    fn remember(
        &self,
        key: &str,
        answer: Stored,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// Lets the bearer of a session's token in, once; what is said in it is
    /// carried elsewhere.
    fn open_exec(&self, ask: OpenExec) -> impl Future<Output = Result<Opening, Refusal>> + Send {
        let refusal = Refusal::new(
            "not_supported",
            format!(
                "session `{}` is of a server that runs no commands",
                ask.session
            ),
            "connect to a server that nodes are connected to",
        );
        std::future::ready(Err(refusal))
    }

    /// The lines that another replica asks for with this ticket; none if no
    /// replica made it.
    fn lines_for(&self, ticket: &str) -> impl Future<Output = Option<io::Result<Told>>> + Send {
        let _ = ticket;
        std::future::ready(None)
    }

    /// What came of an errand that another replica asks for with this ticket,
    /// as it is sent back; none if no replica made it.
    fn errand_for(&self, ticket: &str) -> impl Future<Output = Option<Value>> + Send {
        let _ = ticket;
        std::future::ready(None)
    }

    /// Draws from a bucket that all replicas share; none if it is out of reach.
    fn draw(&self, bucket: &str, draw: Draw) -> impl Future<Output = Option<u64>> + Send;

    /// Says how many places of a name a holder has open, of those that all
    /// replicas share, and what it got; none if they are out of reach.
    fn claim_places(
        &self,
        name: &str,
        holder: &str,
        claim: Claim,
    ) -> impl Future<Output = Option<u64>> + Send;

    /// Keeps every place that a holder still has; how many, by name. None if
    /// they are out of reach.
    fn keep_places(
        &self,
        holder: &str,
        life: Duration,
    ) -> impl Future<Output = Option<BTreeMap<String, u64>>> + Send;

    /// How many replicas share the buckets, as far as is known.
    fn replicas(&self) -> u64;

    /// How the server is.
    fn health(&self) -> Health;

    /// Figures in the form of Prometheus, beside those of this layer.
    fn metrics(&self) -> String;

    /// What this server can do, for `getCapabilities`.
    fn features(&self) -> BTreeMap<String, bool>;
}

/// A line for somebody who follows.
#[derive(Debug, Clone, PartialEq)]
pub struct Printed {
    /// The line.
    pub line: Value,
    /// Where they are once they have it.
    pub cursor: String,
}

/// What a caller showed.
#[derive(Debug, Clone, Copy)]
pub enum Identity<'a> {
    /// A bearer token.
    Token {
        /// Its hash.
        hash: Digest,
        /// Where the call came from, for the record of failures.
        source: &'a str,
    },
    /// The local socket, as this user of the machine.
    Socket(u32),
    /// Nothing that could be a token.
    Nothing {
        /// Where the call came from, for the record of failures.
        source: &'a str,
    },
}

/// What is asked, with everything that HTTP adds to it.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Who asks.
    pub caller: Caller,
    /// The id of the call.
    pub request_id: String,
    /// Where the call came from.
    pub source: String,
    /// What.
    pub operation: Operation,
    /// What its path names.
    pub path: Vec<String>,
    /// What stands behind the question mark; a list goes on behind `after`.
    pub query: BTreeMap<String, String>,
    /// The body.
    pub body: Option<Value>,
    /// The key under which it may be repeated, and the hash of the request.
    pub idempotency: Option<(String, Digest)>,
    /// The version that the object must have.
    pub if_match: Option<u64>,
}

impl Asked {
    /// The hash of all that makes it another request than the next one.
    #[must_use]
    pub fn hash(&self) -> Digest {
        let body = self.body.clone().unwrap_or(Value::Null);
        let whole = serde_json::json!([self.operation.spec().id, self.path, self.query, body]);
        // A number that has no canonical form is hashed as it is written.
        let text = canonical::to_string(&whole).unwrap_or_else(|_| whole.to_string());
        Digest::of(text.as_bytes())
    }
}

/// What an earlier write led to.
#[derive(Debug, Clone, PartialEq)]
pub enum Earlier {
    /// This.
    Done(Subject),
    /// It waits, or waited, for a person.
    Parked(Subject),
    /// It was refused with this code.
    Refused(String),
    /// It is on record, and what came of it only its answer told.
    Unsettled,
}

/// What somebody who opens an exec session shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenExec {
    /// The org in the path.
    pub org: String,
    /// The session in the path.
    pub session: String,
    /// The hash of the token, if it can be one.
    pub token: Option<Digest>,
    /// The same of one that lets a client in again.
    pub resume: Option<Digest>,
    /// Where the call came from.
    pub source: String,
    /// The id of the call.
    pub request_id: String,
}

/// Where an exec session goes on.
#[derive(Debug)]
pub enum Opening {
    /// Here: its client was let in.
    Here(Box<OpenedExec>),
    /// Here: its client was let in again, and goes on where this leads.
    Again(mpsc::Sender<ClientLine>),
    /// At the replica that its node is connected to, which decides.
    Elsewhere(Peer),
}

/// The connection of a session's client.
pub type ClientLine = TokioIo<Upgraded>;

/// An exec session that is open.
#[derive(Debug)]
pub struct OpenedExec {
    /// The node's end.
    pub link: ExecLink,
    /// What it is carried by.
    pub terms: Terms,
    /// Becomes true when somebody ends it.
    pub revoked: watch::Receiver<bool>,
    /// How its client comes back, if it may.
    pub rejoin: Option<Rejoin<ClientLine>>,
    /// Hears how it ended.
    pub ended: oneshot::Sender<Ended>,
}

/// What became of a write.
#[derive(Debug, Clone)]
pub struct Wrote {
    /// How it was decided.
    pub outcome: Outcome,
    /// What is shown once and stored nowhere.
    pub once: Map<String, Value>,
    /// The last event of it.
    pub position: Position,
}

/// An answer as it is stored for repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// The hash of the request.
    pub request: Digest,
    /// The status.
    pub status: u16,
    /// The body, without what is shown once.
    pub body: Value,
    /// The last event of the write.
    pub seq: u64,
}

/// How a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It takes requests; something may need an operator all the same.
    Ready(Option<String>),
    /// It does not, for this reason.
    Unready(String),
}
