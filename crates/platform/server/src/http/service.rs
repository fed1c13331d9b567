//! The way of a request: from its first byte to its answer.
//!
//! The same for every operation: limits, who calls, what is left of their
//! budget, the form of what they sent, then the decision or the view. Nothing
//! here knows what an operation means. Next: `head`, `repeat`, `stream`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fluffy_api::operation::{Auth, Bucket, Kind, Method, Spec};
use fluffy_api::request::{self, Requests};
use fluffy_api::types::{Capabilities, Parked, Receipt};
use fluffy_api::version::Version;
use fluffy_api::{Operation, Problem, openapi};
use fluffy_base::id::RequestId;
use fluffy_control::{Caller, CallerKind, Outcome};
use fluffy_ledger::{Actor, ActorKind};
use hyper::body::{Body, Bytes};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::answer::{self, Reply, Told};
use super::backend::{Asked, Backend, Earlier, Health, Identity, OpenExec};
use super::body::{self, AnswerBody};
use super::cursor;
use super::exec;
use super::head::{self, Shown};
use super::listen::Door;
use super::metrics::Metrics;
use super::places::Places;
use super::rate::{Left, Payer, RateLimits, Rates};
use super::repeat::{self, Keys};
use super::stream;
use crate::fold::Position;
use crate::peers;

/// How a service behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which version it is, for clients of ours.
    pub version: Version,
    /// How many calls there may be.
    pub rates: RateLimits,
    /// How many requests are answered at once; more wait.
    pub at_once: usize,
    /// How long a request waits for its turn.
    pub turn: Duration,
    /// How long a request may take in all.
    pub deadline: Duration,
    /// The most connections of a listener at once; of one address a quarter.
    pub connections: usize,
    /// How long a connection may have no request, from the first one on.
    pub idle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: Version::own(),
            rates: RateLimits::default(),
            at_once: 256,
            turn: Duration::from_secs(5),
            deadline: Duration::from_secs(30),
            connections: 2048,
            idle: Duration::from_secs(180),
        }
    }
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A machine.
    Address(IpAddr),
    /// A user of this machine, on the local socket.
    Socket(u32),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Socket(user) => write!(f, "socket:{user}"),
        }
    }
}

/// Answers requests; to be cloned freely.
pub struct HttpService<B> {
    shared: Arc<Shared<B>>,
}

pub(super) struct Shared<B> {
    pub(super) backend: B,
    requests: Requests,
    document: Bytes,
    pub(super) options: Options,
    room: Semaphore,
    rates: Rates,
    keys: Keys,
    pub(super) places: Places,
    metrics: Metrics,
}

/// What came of a write, before it is an answer.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) status: u16,
    /// What the caller gets.
    shown: Value,
    /// What is stored for repeats: without what is shown once.
    pub(super) stored: Value,
    pub(super) position: Position,
    is_replay: bool,
}

/// What is known of a call on its way.
struct Way {
    request_id: String,
    peer: Peer,
    operation: Option<Operation>,
    left: Option<Left>,
}

impl<B: Backend> HttpService<B> {
    /// A service on a backend.
    #[must_use]
    pub fn new(backend: B, options: Options) -> Self {
        let document = openapi::document().to_string();
        Self {
            shared: Arc::new(Shared {
                backend,
                requests: Requests::new(),
                document: document.into(),
                room: Semaphore::new(options.at_once),
                rates: Rates::default(),
                keys: Keys::default(),
                places: Places::default(),
                metrics: Metrics::default(),
                options,
            }),
        }
    }

    /// What it stands on.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.shared.backend
    }

    pub(super) fn options(&self) -> &Options {
        &self.shared.options
    }

    #[cfg(test)]
    pub(super) fn holder(&self) -> String {
        self.shared.places.holder()
    }

    /// Answers one request.
    pub async fn respond<R>(
        &self,
        door: Door,
        peer: Peer,
        request: Request<R>,
    ) -> Response<AnswerBody>
    where
        R: Body + Send + 'static,
        R::Data: Send,
        R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let shared = &self.shared;
        let (_running, began) = (shared.metrics.begin(), Instant::now());
        let mut way = Way {
            request_id: RequestId::generate().to_string(),
            peer,
            operation: None,
            left: None,
        };
        let deadline = shared.options.deadline;
        let handled = timeout(deadline, Shared::handle(shared, door, request, &mut way)).await;
        let mut result = handled.unwrap_or_else(|_| {
            let why = "the answer took too long";
            Err(answer::unavailable(why, Duration::from_secs(1)))
        });
        let left = match way.left {
            Some(left) => left,
            None => {
                // What was refused before anybody was known costs the address.
                let left = shared.count(Bucket::Read, Payer::Stranger(way.peer)).await;
                if !left.allowed {
                    result = Err(answer::rate_limited(&left));
                }
                left
            }
        };
        let told = Told {
            request_id: way.request_id,
            left,
            position: shared.position(),
        };
        let reply = result.unwrap_or_else(|problem| Reply::refusal(*problem, &told.request_id));
        let response = reply.send(&told);
        let status = response.status().as_u16();
        shared.metrics.count(way.operation, status, began.elapsed());
        response
    }
}

impl<B: Backend> Shared<B> {
    async fn handle<R>(
        this: &Arc<Self>,
        door: Door,
        request: Request<R>,
        way: &mut Way,
    ) -> Result<Reply, Box<Problem>>
    where
        R: Body + Send + 'static,
        R::Data: Send,
        R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut request = request;
        let upgrade = hyper::upgrade::on(&mut request);
        let (head, body) = request.into_parts();
        let mut body = std::pin::pin!(body);
        let result = Self::answer(this, door, (head, upgrade), body.as_mut(), way).await;
        // A connection ends where a request was not read to its end, and a
        // client that still sends would never see its answer.
        body::discard(body).await;
        result
    }

    async fn answer<R>(
        this: &Arc<Self>,
        door: Door,
        (head, upgrade): (Parts, OnUpgrade),
        body: Pin<&mut R>,
        way: &mut Way,
    ) -> Result<Reply, Box<Problem>>
    where
        R: Body + Send + 'static,
        R::Data: Send,
        R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        head::check_size(&head)?;
        if let Some(reply) = this.operate(door, &head) {
            way.left = Some(Left::free());
            return Ok(reply);
        }
        let turn = timeout(this.options.turn, this.room.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            let why = "too many requests are being answered";
            return Err(answer::unavailable(why, this.options.turn));
        };
        if door == Door::Public && head.uri.path() == peers::LOGS {
            return this.lines(&head, way).await;
        }
        if door == Door::Public && head.uri.path() == peers::ERRAND {
            return this.errand(&head, way).await;
        }
        let routed = route(door, &head);
        // What the server is and speaks is told to every client.
        let is_asked = |about: &[Operation]| matches!(&routed, Ok((it, _)) if about.contains(it));
        if !is_asked(&[Operation::GetCapabilities, Operation::GetOpenapi]) {
            head::check_client(&head.headers, this.options.version)?;
        }
        let (operation, path) = routed?;
        way.operation = Some(operation);
        let spec = operation.spec();
        let caller = this.caller(spec, &head, way).await?;
        this.budget(operation, &caller, &path, way).await?;
        this.requests.check_path(spec, &path)?;
        let pairs = head::query_pairs(head.uri.query().unwrap_or_default())?;
        let query = request::query(spec, pairs)?;
        if spec.auth == Auth::ExecToken {
            let ask = open_exec(&path, way);
            return match exec::connect(&this.backend, &head, ask, upgrade).await {
                Err(problem) if problem.code == "exec_token_invalid" => {
                    Err(this.failed(problem, way).await)
                }
                opened => opened,
            };
        }
        let body = body::read(operation, &head.headers, body).await?;
        if let Some(body) = &body {
            this.requests.check_body(operation, body)?;
        }
        let asked = Asked {
            caller,
            request_id: way.request_id.clone(),
            source: way.peer.to_string(),
            operation,
            path,
            query,
            body,
            idempotency: None,
            if_match: head::if_match(&head.headers)?,
        };
        match spec.kind {
            Kind::Write => Self::write(this, asked, &head).await,
            Kind::Read | Kind::List => Self::read(this, asked, &head, way).await,
        }
    }

    /// What operators and their machines ask, without proving who they are.
    fn operate(&self, door: Door, head: &Parts) -> Option<Reply> {
        if !door.is_operated() || head.method != hyper::Method::GET {
            return None;
        }
        let plain = "text/plain; charset=utf-8";
        match head.uri.path() {
            "/healthz" => Some(Reply::text(200, plain, "ok\n")),
            "/readyz" => Some(match self.backend.health() {
                Health::Ready(None) => Reply::text(200, plain, "ready\n"),
                Health::Ready(Some(but)) => {
                    Reply::text(200, plain, format!("ready\nwarning: {but}\n"))
                }
                Health::Unready(why) => Reply::text(503, plain, format!("{why}\n")),
            }),
            "/metrics" => {
                let text = format!("{}{}", self.metrics.text(), self.backend.metrics());
                Some(Reply::text(200, "text/plain; version=0.0.4", text))
            }
            _ => None,
        }
    }

    /// What this replica has for another one; it costs nobody's budget.
    async fn lines(&self, head: &Parts, way: &mut Way) -> Result<Reply, Box<Problem>> {
        let ticket = head.headers.get(peers::TICKET);
        let ticket = ticket.and_then(|ticket| ticket.to_str().ok());
        let told = match ticket {
            Some(ticket) => self.backend.lines_for(ticket).await,
            None => None,
        };
        let Ok(told) = self.opened(told, way).await? else {
            let (why, fix) = ("lines can't be read", "try again in a moment");
            return Err(Box::new(Problem::new("unavailable", why, fix)));
        };
        let lines = serde_json::to_value(told.lines).unwrap_or_default();
        Ok(Reply::json(200, &lines).with(peers::THROUGH, told.through))
    }

    /// What a node of this replica does for another one; it costs nobody's
    /// budget.
    async fn errand(&self, head: &Parts, way: &mut Way) -> Result<Reply, Box<Problem>> {
        let ticket = head.headers.get(peers::TICKET);
        let ticket = ticket.and_then(|ticket| ticket.to_str().ok());
        let done = match ticket {
            Some(ticket) => self.backend.errand_for(ticket).await,
            None => None,
        };
        let done = self.opened(done, way).await?;
        Ok(Reply::json(200, &done))
    }

    /// What a ticket opened. Whoever shows none that does pays from the bucket
    /// of logins, like one whose token is bad.
    async fn opened<T>(&self, found: Option<T>, way: &mut Way) -> Result<T, Box<Problem>> {
        if let Some(found) = found {
            way.left = Some(Left::free());
            return Ok(found);
        }
        Err(self.failed(no_operation(), way).await)
    }

    /// Has whoever is at the other end pay for a credential that was not good;
    /// what they hear of it, which soon is no more than that it was too much.
    async fn failed(&self, refused: Box<Problem>, way: &mut Way) -> Box<Problem> {
        let left = self.count(Bucket::Auth, Payer::Stranger(way.peer)).await;
        way.left = Some(left);
        match left.allowed {
            true => refused,
            false => answer::rate_limited(&left),
        }
    }

    /// Who calls. Whoever cannot prove it pays from the bucket of logins.
    async fn caller(
        &self,
        spec: &Spec,
        head: &Parts,
        way: &mut Way,
    ) -> Result<Caller, Box<Problem>> {
        if spec.auth != Auth::Caller {
            return Ok(Caller {
                kind: CallerKind::Anonymous,
                actor: Actor::new(ActorKind::User, "anonymous"),
            });
        }
        let source = way.peer.to_string();
        let identity = match (head::token(&head.headers), way.peer) {
            (Shown::Token(hash), _) => Identity::Token {
                hash,
                source: &source,
            },
            (Shown::Nothing, Peer::Socket(user)) => Identity::Socket(user),
            (Shown::Nothing | Shown::Nonsense, _) => Identity::Nothing { source: &source },
        };
        let refusal = match self.backend.identify(identity).await {
            Ok(caller) => return Ok(caller),
            Err(refusal) => refusal,
        };
        let problem = answer::problem(refusal);
        match problem.status {
            401 => Err(self.failed(problem, way).await),
            _ => Err(problem),
        }
    }

    /// Counts a call, and refuses it if there is nothing left.
    async fn budget(
        &self,
        operation: Operation,
        caller: &Caller,
        path: &[String],
        way: &mut Way,
    ) -> Result<(), Box<Problem>> {
        let spec = operation.spec();
        let known = match spec.auth {
            Auth::Caller => Some(self.backend.payer(caller, head::org(operation, path))),
            Auth::None | Auth::ExecToken => None,
        };
        let stranger = Payer::Stranger(way.peer);
        let payer = known.as_deref().map_or(stranger, Payer::Known);
        let own = self.count_own(spec.rate, caller).await;
        let left = match own.filter(|own| !own.allowed) {
            // What a token's own limit refuses costs the org nothing.
            Some(refused) => refused,
            None => {
                let mut left = tightest(own, self.count(spec.rate, payer).await);
                if spec.rate == Bucket::Exec && left.allowed {
                    left = tightest(Some(left), self.count(Bucket::Write, payer).await);
                }
                left
            }
        };
        way.left = Some(left);
        match left.allowed {
            true => Ok(()),
            false => Err(answer::rate_limited(&left)),
        }
    }

    /// Counts a call by the limit of the caller's own token, if it has one.
    async fn count_own(&self, bucket: Bucket, caller: &Caller) -> Option<Left> {
        let (token, limit) = self.backend.own_limit(caller, bucket)?;
        let limits = self.options.rates.lowered(limit);
        let bucket = match bucket {
            Bucket::Exec => Bucket::Write,
            bucket => bucket,
        };
        let paid = (bucket, Payer::Known(&token));
        Some(self.rates.count(&self.backend, limits, paid).await)
    }

    async fn count(&self, bucket: Bucket, payer: Payer<'_>) -> Left {
        let limits = self.options.rates;
        self.rates
            .count(&self.backend, limits, (bucket, payer))
            .await
    }

    async fn write(
        this: &Arc<Self>,
        mut asked: Asked,
        head: &Parts,
    ) -> Result<Reply, Box<Problem>> {
        let spec = asked.operation.spec();
        // Logging in and out is nothing to repeat, and nobody has keys there.
        let key = match spec.takes_key() {
            true => head::idempotency_key(spec, &head.headers)?,
            false => None,
        };
        let wait = head::wait(&head.headers);
        let request_id = asked.request_id.clone();
        let this = Arc::clone(this);
        // A caller that goes away does not stop what it asked for half way.
        let written = tokio::spawn(async move {
            let Some(key) = key else {
                return this.finish(asked, wait).await;
            };
            let plain = asked.hash();
            let request = this.backend.fingerprint(plain);
            let storage = repeat::storage_key(&asked, &key);
            let _held = this.keys.hold(storage.clone())?;
            if let Some(stored) = repeat::settled(&this.backend, &storage, plain).await? {
                return Ok(this.replay(stored));
            }
            asked.idempotency = Some((key, request));
            let finished = this.finish(asked, wait).await;
            match &finished {
                Ok(finished) if !finished.is_replay => {
                    repeat::keep(&this.backend, &storage, request, finished).await;
                }
                Err(problem) if repeat::is_kept(problem.status) => {
                    let refused = this.refused(problem);
                    repeat::keep(&this.backend, &storage, request, &refused).await;
                }
                _ => {}
            }
            finished
        });
        let finished = written.await.unwrap_or_else(|_| {
            Err(Box::new(Problem::new(
                "internal",
                "the write broke off",
                "look at the server's log",
            )))
        })?;
        Ok(reply_of(finished, &request_id))
    }

    /// Has a write decided and recorded, and waits for its view.
    async fn finish(&self, asked: Asked, wait: Duration) -> Result<Finished, Box<Problem>> {
        let operation = asked.operation;
        let path = asked.path.clone();
        let stored_as = asked
            .idempotency
            .as_ref()
            .map(|(key, _)| repeat::storage_key(&asked, key));
        let wrote = self.backend.write(asked).await.map_err(answer::problem)?;
        let position = wrote.position;
        let (status, subject, is_replay) = match wrote.outcome {
            Outcome::Refused(refusal) => return Err(answer::problem(refusal)),
            Outcome::Parked {
                approval,
                expires_at,
            } => {
                let parked = Parked {
                    approval_id: approval,
                    expires_at,
                };
                let value = serde_json::to_value(parked).unwrap_or_default();
                return Ok(Finished::plain(202, value, position).telling(wrote.once));
            }
            Outcome::Done { status, subject } => (status, subject, false),
            Outcome::Replayed { seq } => {
                let stored = match stored_as {
                    Some(key) => self.backend.recall(&key).await.map_err(answer::problem)?,
                    None => None,
                };
                if let Some(stored) = stored {
                    return Ok(self.replay(stored));
                }
                match self.backend.led_to(seq).await {
                    Some(Earlier::Done(subject)) => (operation.spec().success, subject, true),
                    Some(Earlier::Parked(subject)) => (202, subject, true),
                    Some(Earlier::Refused(code)) => return Err(answer::repeated(&code)),
                    Some(Earlier::Unsettled) => return Err(answer::unsettled()),
                    None => return Err(answer::unknown()),
                }
            }
        };
        if !self.reached(position, wait).await {
            let receipt = Receipt {
                id: subject.id.clone(),
                seq: position.seq,
                status_url: status_url(operation, &path, &subject.id),
            };
            let value = serde_json::to_value(receipt).unwrap_or_default();
            // Nobody tells it later: what is shown of this then has no secret.
            return Ok(Finished::plain(202, value, position).telling(wrote.once));
        }
        let mut stored = self.backend.answer(&subject);
        if status == 202 && is_replay {
            stored = parked_again(&stored);
        }
        let finished = Finished {
            is_replay,
            ..Finished::plain(status, stored, position)
        };
        Ok(finished.telling(wrote.once))
    }

    fn replay(&self, stored: super::backend::Stored) -> Finished {
        let epoch = self.position().epoch;
        Finished {
            is_replay: true,
            ..Finished::plain(
                stored.status,
                stored.body,
                Position {
                    epoch,
                    seq: stored.seq,
                },
            )
        }
    }

    fn refused(&self, problem: &Problem) -> Finished {
        let value = serde_json::to_value(problem).unwrap_or_default();
        Finished::plain(problem.status, value, self.position())
    }

    async fn read(
        this: &Arc<Self>,
        asked: Asked,
        head: &Parts,
        way: &mut Way,
    ) -> Result<Reply, Box<Problem>> {
        match asked.operation {
            Operation::GetCapabilities => return Ok(Reply::json(200, &this.capabilities())),
            Operation::GetOpenapi => {
                return Ok(Reply::text(200, "application/json", this.document.clone()));
            }
            _ => {}
        }
        let headers = &head.headers;
        let wanted = head::min_position(headers, asked.query.get("min_seq"), this.position())?;
        if let Some(wanted) = wanted
            && !this.reached(wanted, head::wait(headers)).await
        {
            return Err(this.late(wanted).await);
        }
        let is_list = asked.operation.spec().kind == Kind::List;
        let is_watched = is_list || asked.operation == Operation::GetOperation;
        if is_watched && head::wants_stream(headers) {
            let after = head::last_event_id(headers)?;
            return stream::watch(this, asked, after, &mut way.left).await;
        }
        if asked.operation == Operation::GetLogs && head::wants_stream(headers) {
            let after = head::log_cursor(headers)?;
            return stream::follow(this, asked, after, &mut way.left).await;
        }
        let position = this.position();
        let value = match is_list {
            true => this.page(&asked).await?,
            false => {
                let mut asked = asked;
                asked.query.remove("min_seq");
                this.backend.read(asked).await.map_err(answer::problem)?
            }
        };
        Ok(Reply::json(200, &value).with("fluffy-applied-seq", position.seq))
    }

    /// One page of a list, its cursors made opaque.
    pub(super) async fn page(&self, asked: &Asked) -> Result<Value, Box<Problem>> {
        let mut page = asked.clone();
        page.query.remove("min_seq");
        if let Some(cursor) = page.query.remove("cursor") {
            let after = cursor::read(asked, &cursor)?;
            page.query.insert("after".into(), after);
        }
        let limit = page.query.entry("limit".into());
        limit.or_insert_with(|| "50".into());
        let mut value = self.backend.read(page).await.map_err(answer::problem)?;
        let next = match value.get("next_cursor") {
            Some(Value::String(after)) => cursor::write(asked, after).into(),
            _ => Value::Null,
        };
        if let Value::Object(fields) = &mut value {
            fields.insert("next_cursor".into(), next);
        }
        Ok(value)
    }

    /// Whether readers see a position before the wait is over.
    async fn reached(&self, wanted: Position, wait: Duration) -> bool {
        let mut positions = self.backend.positions();
        let reached = timeout(wait, positions.wait_for(|position| *position >= wanted)).await;
        matches!(reached, Ok(Ok(_)))
    }

    /// Why a position was not reached: it is late, or it does not exist; then
    /// it is said where the ledger ends.
    async fn late(&self, wanted: Position) -> Box<Problem> {
        match self.backend.head().await {
            Ok(head) if head < wanted => {
                // Nothing is late: whoever asks has the number from elsewhere.
                let mut problem = Problem::new(
                    "invalid_argument",
                    format!("there is no event {} yet", wanted.seq),
                    "send what `Fluffy-Seq` of a write to this server said, or nothing",
                );
                for (name, value) in [("head_seq", head.seq), ("head_epoch", head.epoch)] {
                    problem.details.insert(name.to_owned(), value.into());
                }
                Box::new(problem)
            }
            _ => Box::new(Problem::new(
                "projection_lag",
                format!("event {} is not in the view yet", wanted.seq),
                "send the call again in a moment",
            )),
        }
    }

    pub(super) fn position(&self) -> Position {
        *self.backend.positions().borrow()
    }

    fn capabilities(&self) -> Value {
        let limits = [
            ("body_bytes", body::MAX_BODY as u64),
            ("manifest_bytes", 64 << 10),
            ("secrets_bytes", 256 << 10),
            ("page", 200),
            ("reads_per_minute", self.options.rates.reads),
            ("writes_per_minute", self.options.rates.writes),
        ];
        let capabilities = Capabilities {
            version: env!("CARGO_PKG_VERSION").into(),
            api_versions: vec!["v1".into()],
            manifest_versions: vec!["v1".into()],
            features: self.backend.features(),
            limits: limits
                .into_iter()
                .map(|(name, most)| (name.to_owned(), most))
                .collect::<BTreeMap<_, _>>(),
        };
        serde_json::to_value(capabilities).unwrap_or_default()
    }
}

impl Finished {
    fn plain(status: u16, value: Value, position: Position) -> Self {
        Self {
            status,
            stored: value.clone(),
            shown: value,
            position,
            is_replay: false,
        }
    }

    /// With what is shown this once and never stored.
    fn telling(mut self, once: serde_json::Map<String, Value>) -> Self {
        if let Value::Object(fields) = &mut self.shown {
            fields.extend(once);
        }
        self
    }
}

/// What was said of a command when it began to wait, from what is shown of it.
fn parked_again(approval: &Value) -> Value {
    serde_json::json!({
        "approval_id": approval.get("id"),
        "expires_at": approval.get("expires_at"),
    })
}

/// The one of which less is left.
fn tightest(one: Option<Left>, other: Left) -> Left {
    match one {
        Some(one) if other.allowed && one.remaining <= other.remaining => one,
        _ => other,
    }
}

fn reply_of(finished: Finished, request_id: &str) -> Reply {
    let reply = match finished.status {
        // A stored refusal is one again, of another call.
        400.. => match serde_json::from_value(finished.shown) {
            Ok(problem) => Reply::refusal(problem, request_id),
            Err(_) => Reply::refusal(Problem::new("internal", "", ""), request_id),
        },
        status => Reply::json(status, &finished.shown).with("fluffy-seq", finished.position.seq),
    };
    match finished.is_replay {
        true => reply.with("idempotency-replayed", "true"),
        false => reply,
    }
}

fn open_exec(path: &[String], way: &Way) -> OpenExec {
    let mut names = path.iter().cloned();
    OpenExec {
        org: names.next().unwrap_or_default(),
        session: names.next().unwrap_or_default(),
        token: None,
        resume: None,
        source: way.peer.to_string(),
        request_id: way.request_id.clone(),
    }
}

/// Where the result of a write can be read.
fn status_url(operation: Operation, path: &[String], id: &str) -> String {
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    let own = operation.path_with(&names).unwrap_or_default();
    let is_read = |url: &str| Operation::find(Method::Get, url).is_some();
    let made = format!("{own}/{id}");
    if is_read(&made) {
        return made;
    }
    // What was changed is what the path leads to, or what it is below.
    let changes = operation.spec().success != 201;
    let above = std::iter::successors(Some(own.as_str()), |url| Some(url.rsplit_once('/')?.0));
    let mut above = above.take(if changes { usize::MAX } else { 1 });
    if let Some(url) = above.find(|url| is_read(url)) {
        return url.to_owned();
    }
    match head::org(operation, path) {
        Some(org) if operation == Operation::CreateExec => format!("/v1/orgs/{org}/exec/{id}"),
        Some(org) => format!("/v1/orgs/{org}/operations/{id}"),
        None => format!("/v1/operations/{id}"),
    }
}

/// The operation that a request is about.
fn route(door: Door, head: &Parts) -> Result<(Operation, Vec<String>), Box<Problem>> {
    let path = head.uri.path();
    let found = door
        .has_operations()
        .then(|| Method::parse(head.method.as_str()))
        .flatten()
        .and_then(|method| Operation::find(method, path));
    if let Some(found) = found {
        return Ok(found);
    }
    let allowed: Vec<_> = match door.has_operations() {
        true => Operation::methods(path),
        false => Vec::new(),
    };
    if allowed.is_empty() {
        return Err(no_operation());
    }
    let allowed: Vec<_> = allowed.into_iter().map(Method::as_str).collect();
    let allowed = allowed.join(", ");
    let mut problem = Problem::new(
        "method_not_allowed",
        "the path does not take this method",
        format!("it takes {allowed}"),
    );
    problem.details.insert("allow".into(), allowed.into());
    Err(Box::new(problem))
}

fn no_operation() -> Box<Problem> {
    Box::new(Problem::new(
        "not_found",
        "no operation has this path",
        "look at /v1/openapi.json for the paths there are",
    ))
}

impl<B> Clone for HttpService<B> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<B> fmt::Debug for HttpService<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpService").finish_non_exhaustive()
    }
}
