//! The control plane behind the HTTP layer.
//!
//! Finds out who calls, prepares what a write needs, has it decided and
//! appended, and reads what the state does not hold: events, logs, keys. Says
//! nothing about HTTP and decides nothing. Next: `http` above, `platform` below.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::operation::Bucket;
use fluffy_api::types::{self, Projection, Projections};
use fluffy_base::id::{MemberId, TokenId};
use fluffy_base::{Digest, Timestamp};
use fluffy_control::access::{Audit, Notice as AccessNotice, Reads, caller_of_token};
use fluffy_control::{
    Call, Caller, CallerKind, Notice, Outcome, Read, Refusal, Request, State, Subject,
};
use fluffy_ledger::{Actor, ActorKind, Aggregate, Domain};
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use tokio::task::spawn_blocking;

use crate::aside::{AsideError, Draw, Kind};
use crate::credential::CredentialKind;
use crate::exec::Execs;
use crate::fold::Position;
use crate::hashes::Hashes;
use crate::history::{self, HistoryError, Wanted};
use crate::http::{Asked, Backend, Health, Identity, OpenExec, Opening, Stored, Wrote};
use crate::machine::{Ask, Job, Reply};
use crate::material::{Once, Workshop};
use crate::node::{Had, LogLine, Logs};
use crate::peers::{Line, Wanted as WantedLines};
use crate::personal::{Address, address_of, is_address_of};
use crate::platform::Platform;
use crate::sequencer::{Answer, SubmitError};
use crate::works::{self, Work};

/// Answers for repeats, by key.
const ANSWERS: Kind = Kind::new("answer");
/// How long they are kept.
const REPEATABLE: Duration = Duration::from_secs(24 * 3600);
/// How many tokens are remembered, so that the store need not be asked.
const REMEMBERED: usize = 10_000;
/// How often a write that somebody else got ahead of is prepared anew.
const TRIES: usize = 3;
/// How far back logs are shown, unless asked otherwise.
const HOUR_IN_MICROS: i64 = 3_600_000_000;
/// Bad credentials of one source are recorded one by one up to so many a
/// minute, then as one.
const FAILURES: u64 = 10;

/// The control plane behind the HTTP layer.
#[derive(Debug)]
pub struct Control {
    platform: Platform,
    workshop: Workshop,
    hashes: Hashes,
    execs: Execs,
    logs: Arc<Logs>,
    /// The user of this machine that the platform belongs to, if it is local.
    owner: Option<u32>,
    /// Which token a hash is; whether that is still good is in the state.
    tokens: Mutex<HashMap<Digest, TokenId>>,
    reads: Mutex<Reads>,
    failures: Mutex<Failures>,
    replicas: AtomicU64,
}

/// Bad credentials by source, since they were last settled.
#[derive(Debug, Default)]
struct Failures(BTreeMap<String, u64>);

impl Control {
    /// The control plane on this replica.
    #[must_use]
    pub fn new(
        platform: Platform,
        workshop: Workshop,
        nodes: (Execs, Arc<Logs>),
        owner: Option<u32>,
    ) -> Self {
        let (execs, logs) = nodes;
        Self {
            hashes: Hashes::new(platform.aside().clone()),
            platform,
            workshop,
            execs,
            logs,
            owner,
            tokens: Mutex::default(),
            reads: Mutex::default(),
            failures: Mutex::default(),
            replicas: AtomicU64::new(1),
        }
    }

    /// Takes note of how many replicas there are.
    pub fn set_replicas(&self, count: u64) {
        self.replicas.store(count.max(1), Ordering::Relaxed);
    }

    /// Records the reads that were allowed since the last time, and the bad
    /// credentials beyond those recorded one by one.
    ///
    /// # Errors
    /// The ledger is not available; what was counted is lost with it.
    pub async fn settle(&self) -> Result<(), SubmitError> {
        let reads = lock(&self.reads).end();
        let folded = lock(&self.failures).end();
        for notice in reads.into_iter().chain(folded) {
            let notice = Notice::Access(notice);
            self.platform.notice("access", None, notice).await?;
        }
        Ok(())
    }

    fn job(&self, asked: &Asked, ask: Ask) -> Job {
        Job {
            caller: asked.caller.clone(),
            request_id: asked.request_id.clone(),
            now: self.now(),
            idempotency: asked.idempotency.clone(),
            if_match: asked.if_match,
            mint: Arc::clone(self.platform.mint()),
            ask,
        }
    }

    fn look<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        self.platform.sequencer().read(look)
    }

    async fn submit(&self, job: Job) -> Result<Answer<Reply>, Refusal> {
        let answer = self.platform.sequencer().submit(job).await;
        answer.map_err(|error| not_submitted(&error))
    }

    async fn try_write(&self, asked: &Asked) -> Result<Wrote, Refusal> {
        let mut request = request_of(asked);
        let job = self.job(asked, Ask::Write(request.clone()));
        let states = self.platform.sequencer();
        let workshop = &self.workshop;
        let once = workshop.prepare(&job.call(), &mut request, states).await?;
        let answer = self
            .submit(Job {
                ask: Ask::Write(request),
                ..job
            })
            .await?;
        let Reply::Wrote(outcome) = answer.reply else {
            return Err(mistaken());
        };
        let done = matches!(outcome, Outcome::Done { .. });
        Ok(Wrote {
            once: if done { once } else { Once::new() },
            outcome,
            position: answer.position,
        })
    }

    /// Does what was allowed and is the server's own to do.
    async fn with_work(&self, asked: &Asked, mut wrote: Wrote) -> Wrote {
        let Outcome::Done { subject, .. } = &mut wrote.outcome else {
            return wrote;
        };
        if !works::is_work(asked.operation) {
            return wrote;
        }
        let work = Work {
            platform: self.platform.clone(),
            safe: self.workshop.safe().clone(),
            operation: asked.operation,
            id: subject.id.clone(),
        };
        match work.perform(works::PATIENCE).await {
            Ok(operation) => {
                if let Value::Object(fields) = json!(operation) {
                    subject.details = fields;
                }
            }
            Err(refusal) => wrote.outcome = Outcome::Refused(refusal),
        }
        wrote
    }

    /// The member that a call names, if it names one.
    fn member_of(&self, asked: &Asked) -> Option<Address> {
        let of_member = matches!(
            asked.operation,
            Operation::UpdateMember | Operation::RemoveMember
        );
        let id: MemberId = asked.path.last().filter(|_| of_member)?.parse().ok()?;
        self.look(|state| address_of(state, id))
    }

    /// Shows the address of a member that was changed, and erases that of one
    /// that is gone.
    async fn with_email(&self, asked: &Asked, mut wrote: Wrote, of: Option<Address>) -> Wrote {
        let Some(address) = of.filter(|_| matches!(wrote.outcome, Outcome::Done { .. })) else {
            return wrote;
        };
        if asked.operation == Operation::UpdateMember {
            let email = self.workshop.personal().email(&address).await;
            wrote.once.insert("email".to_owned(), json!(email));
        } else if !self.look(|state| is_address_of(state, &address)) {
            self.workshop.personal().erase_email(&address).await;
        }
        wrote
    }

    /// Puts the addresses of members in, as far as they are kept.
    async fn with_emails(&self, mut list: Value) -> Value {
        let items = list.get_mut("items").and_then(Value::as_array_mut);
        for member in items.into_iter().flatten() {
            let id = member["id"].as_str().and_then(|id| id.parse().ok());
            let address = id.and_then(|id| self.look(|state| address_of(state, id)));
            if let Some(address) = address {
                let email = self.workshop.personal().email(&address).await;
                member["email"] = json!(email);
            }
        }
        list
    }

    /// Says which master keys this server has.
    fn with_key_files(&self, mut shown: Value) -> Value {
        let at_hand = self.workshop.safe().key_ids();
        let keys = shown.get_mut("keys").and_then(Value::as_array_mut);
        for key in keys.into_iter().flatten() {
            let id = key["id"].as_str().unwrap_or_default();
            key["available"] = json!(at_hand.iter().any(|it| it.to_string() == id));
        }
        shown
    }

    /// What the state does not hold.
    async fn outside(&self, asked: &Asked) -> Result<Value, Refusal> {
        match asked.operation {
            Operation::ListEvents => self.history(asked, Audit::Left).await,
            Operation::ListAudit => self.history(asked, Audit::Included).await,
            Operation::GetLogs => {
                let lines = self.lines(asked, &mut Had::default()).await?;
                Ok(json!({ "items": lines }))
            }
            Operation::GetProjections => self.projections().await,
            Operation::GetPlatformOperation => {
                let id = asked.path.first().map(String::as_str).unwrap_or_default();
                Ok(json!(works::look(&self.platform, id).await?))
            }
            _ => Ok(Value::Null),
        }
    }

    async fn history(&self, asked: &Asked, audit: Audit) -> Result<Value, Refusal> {
        let org = asked.path.first().map(String::as_str).unwrap_or_default();
        let wanted = self.look(|state| {
            let names = &state.access.names;
            let org = names.org(org)?;
            Some(Wanted::of(org, audit, &asked.query, names))
        });
        let wanted = wanted.ok_or_else(mistaken)?;
        let ledger = self.platform.ledger().clone();
        // What is not applied here yet is not shown, so that every read of one
        // replica is of one moment.
        let through = self.platform.sequencer().applied().seq;
        let page = spawn_blocking(move || history::page(&ledger, &wanted, through)).await;
        match page {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(HistoryError::Archived { first })) => {
                let why = format!("the events before {first} are in the archive");
                let fix = format!("begin after {}, or ask an operator", first - 1);
                Err(Refusal::new("events_archived", why, fix))
            }
            Ok(Err(HistoryError::Store(_))) | Err(_) => {
                Err(unavailable("the ledger can't be read"))
            }
        }
    }

    /// Which lines are asked for.
    fn wanted_lines(&self, asked: &Asked) -> Result<WantedLines, Refusal> {
        let text = |name: &str| asked.query.get(name).cloned();
        let time = |name: &str| text(name).and_then(|text| text.parse::<Timestamp>().ok());
        let place = self.look(|state| fluffy_control::place_of(state, &request_of(asked)));
        let now = self.now();
        let an_hour_ago = now.as_micros().saturating_sub(HOUR_IN_MICROS);
        // A node's clock may be ahead: who follows gets what it says.
        let last = match text("follow") {
            Some(_) => Timestamp::from_micros(i64::MAX),
            None => now,
        };
        let tail = text("tail").and_then(|text| text.parse().ok());
        Ok(WantedLines {
            env: place.owner.env.ok_or_else(mistaken)?,
            process: text("process"),
            instance: text("instance"),
            since: time("since").unwrap_or(Timestamp::from_micros(an_hour_ago)),
            until: time("until").unwrap_or(last),
            tail: tail.unwrap_or(1_000),
        })
    }

    /// The lines that were asked for and not had yet, whichever replica heard
    /// them, the oldest first.
    async fn lines(&self, asked: &Asked, had: &mut Had) -> Result<Vec<types::LogLine>, Refusal> {
        let wanted = self.wanted_lines(asked)?;
        let mut lines = self.lines_here(&wanted);
        if let Some(peers) = self.execs.peers() {
            match peers.lines(&wanted, self.now()).await {
                Ok(others) => lines.extend(others),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "another replica did not tell its lines");
                    // Who follows gets them when it does.
                    if !asked.query.contains_key("follow") {
                        let why = "another server that may have lines does not answer";
                        return Err(unavailable(why));
                    }
                }
            }
        }
        // What a node said again after a move is here twice.
        lines.sort_by(|one, other| {
            let place = |it: &Line| (it.line.instance_id, it.seq);
            let names = |it: &Line| (it.boot.clone(), it.line.stream.clone());
            (names(one), place(one)).cmp(&(names(other), place(other)))
        });
        lines.retain(|it| {
            let instance = it.line.instance_id.to_string();
            had.is_new(&instance, &it.boot, &it.line.stream, it.seq)
        });
        lines.sort_by_key(|it| it.line.at);
        let first = lines.len().saturating_sub(wanted.tail);
        Ok(lines.drain(first..).map(|it| it.line).collect())
    }

    /// The lines that this replica heard.
    fn lines_here(&self, wanted: &WantedLines) -> Vec<Line> {
        let instances = self.look(|state| {
            let all = state.runtime.plan.instances.iter();
            let of_env = all.filter(|(_, it)| it.group.env == wanted.env);
            let wanted = of_env.filter(|(id, it)| {
                let process = wanted.process.as_deref();
                let instance = wanted.instance.as_deref();
                process.is_none_or(|name| name == &*it.group.process)
                    && instance.is_none_or(|name| name == id.to_string())
            });
            let named = wanted.map(|(id, it)| (*id, it.group.process.to_string()));
            named.collect::<Vec<_>>()
        });
        let window = wanted.since..=wanted.until;
        let mut lines: Vec<Line> = Vec::new();
        for (instance_id, process) in instances {
            let kept = self.logs.of(&instance_id.to_string());
            lines.extend(kept.into_iter().map(|line| Line {
                boot: line.boot.to_string(),
                seq: line.seq,
                line: types::LogLine {
                    at: Timestamp::from_micros(
                        i64::try_from(line.at_ms.saturating_mul(1_000)).unwrap_or(i64::MAX),
                    ),
                    instance_id,
                    process: process.clone(),
                    stream: stream_of(&line.stream).to_owned(),
                    line: line.text.to_string(),
                    truncated: line.truncated,
                },
            }));
        }
        lines.retain(|it| window.contains(&it.line.at));
        lines.sort_by_key(|it| it.line.at);
        lines.split_off(lines.len().saturating_sub(wanted.tail))
    }

    async fn projections(&self) -> Result<Value, Refusal> {
        let head = self.head().await?;
        let applied = self.platform.sequencer().applied();
        let digests = self.look(State::digests);
        let lag = self.platform.sequencer().lag();
        let items = digests.into_iter().map(|(name, digest)| Projection {
            name: name.to_owned(),
            applied_seq: applied.seq,
            lag_milliseconds: lag.percentile_99 / 1_000,
            digest: Some(digest.to_string()),
        });
        let shown = Projections {
            head_seq: head.seq,
            epoch: head.epoch,
            items: items.collect(),
        };
        Ok(json!(shown))
    }

    async fn token(&self, hash: Digest) -> Result<Option<TokenId>, AsideError> {
        if let Some(id) = lock(&self.tokens).get(&hash) {
            return Ok(Some(*id));
        }
        for kind in [CredentialKind::Access, CredentialKind::Api] {
            let found = self.hashes.find(kind, hash).await?;
            if let Some(id) = found.and_then(|id| id.parse().ok()) {
                let mut tokens = lock(&self.tokens);
                if tokens.len() >= REMEMBERED {
                    tokens.clear();
                }
                tokens.insert(hash, id);
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Records that somebody showed what is no credential.
    async fn failed(&self, reason: &str, source: &str) {
        let count = lock(&self.failures).count(source);
        if count > FAILURES {
            return;
        }
        let notice = AccessNotice::AuthFailed {
            reason: reason.to_owned(),
            pii_ref: self.workshop.personal().keep_source(source).await,
            count: 1,
        };
        let notice = Notice::Access(notice);
        let recorded = self.platform.notice("access", None, notice).await;
        if let Err(error) = recorded {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "a bad credential was not recorded");
        }
    }
}

impl Failures {
    /// Counts one; how many there were of this source.
    fn count(&mut self, source: &str) -> u64 {
        // Sources are bounded by the limit of calls without a login, per
        // source; beyond this many they share one count.
        let known = self.0.len() < 1_000 || self.0.contains_key(source);
        let source = if known { source } else { "others" };
        let count = self.0.entry(source.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// What was not recorded one by one.
    fn end(&mut self) -> Option<AccessNotice> {
        let by_source = std::mem::take(&mut self.0);
        let beyond = by_source
            .values()
            .map(|count| count.saturating_sub(FAILURES));
        let count: u64 = beyond.sum();
        (count > 0).then(|| AccessNotice::AuthFailed {
            reason: "folded".to_owned(),
            pii_ref: None,
            count,
        })
    }
}

impl Backend for Control {
    fn now(&self) -> Timestamp {
        self.platform.clock().now()
    }

    fn positions(&self) -> watch::Receiver<Position> {
        self.platform.sequencer().positions()
    }

    async fn head(&self) -> Result<Position, Refusal> {
        let ledger = self.platform.ledger().clone();
        let head = spawn_blocking(move || ledger.head()).await;
        match head {
            Ok(Ok(head)) => Ok(Position {
                seq: head.seq,
                epoch: head.epoch,
            }),
            _ => Err(unavailable("the ledger can't be read")),
        }
    }

    async fn identify(&self, identity: Identity<'_>) -> Result<Caller, Refusal> {
        match identity {
            Identity::Socket(user) if Some(user) == self.owner => Ok(Caller {
                kind: CallerKind::Local,
                actor: Actor::new(ActorKind::User, "local"),
            }),
            Identity::Socket(_) => Err(unauthenticated(
                "this socket is for the owner of the platform's data",
            )),
            Identity::Nothing { source } => {
                self.failed("nothing was shown", source).await;
                Err(unauthenticated("no credential was shown"))
            }
            Identity::Token { hash, source } => {
                let found = self.token(hash).await;
                let found = found.map_err(|_| unavailable("tokens can't be looked up"))?;
                let caller = found.and_then(|id| self.look(|state| caller_of_token(state, id)));
                match caller {
                    Some(caller) => Ok(caller),
                    None => {
                        self.failed("unknown token", source).await;
                        Err(unauthenticated("the token is not known"))
                    }
                }
            }
        }
    }

    fn payer(&self, caller: &Caller, org: Option<&str>) -> String {
        let call = Call {
            caller,
            request_id: "",
            now: self.now(),
            idempotency: None,
            if_match: None,
            mint: self.platform.mint(),
        };
        let org =
            org.and_then(|org| self.look(|state| fluffy_control::org_of_caller(state, &call, org)));
        org.map_or_else(|| caller.actor.id.clone(), |org| org.to_string())
    }

    fn own_limit(&self, caller: &Caller, bucket: Bucket) -> Option<(String, u64)> {
        let CallerKind::Token(id) = &caller.kind else {
            return None;
        };
        let limit = self.look(|state| {
            let token = state.access.tokens.get(id)?;
            match bucket {
                Bucket::Read => token.reads,
                Bucket::Write | Bucket::Exec => token.writes,
                Bucket::Auth => None,
            }
        })?;
        Some((id.to_string(), limit))
    }

    async fn write(&self, asked: Asked) -> Result<Wrote, Refusal> {
        let mut tries = 0;
        let before = self.member_of(&asked);
        loop {
            tries += 1;
            let wrote = self.try_write(&asked).await?;
            // Somebody else changed what this was prepared on, and the caller
            // named no version: it is prepared anew.
            let overtaken = matches!(
                &wrote.outcome,
                Outcome::Refused(refusal) if refusal.code == "conflict"
                    && refusal.details.contains_key("overtaken")
            );
            if !overtaken || tries == TRIES {
                let wrote = self.with_work(&asked, wrote).await;
                return Ok(self.with_email(&asked, wrote, before).await);
            }
        }
    }

    fn answer(&self, subject: &Subject) -> Value {
        self.look(|state| fluffy_control::answer(state, subject))
    }

    async fn led_to(&self, decision: u64) -> Option<Subject> {
        let ledger = self.platform.ledger().clone();
        let led_to = spawn_blocking(move || {
            let events = ledger.read(decision, 200).ok()?;
            let decided = events.first()?.request_id.clone();
            let mut same = events.into_iter().skip(1);
            let first = same
                .find(|event| event.request_id == decided && event.event_type != "authz.decided")?;
            let Aggregate { kind, id } = first.aggregate;
            (first.domain == Domain::Platform).then(|| Subject::of(&kind, id))
        });
        led_to.await.ok().flatten()
    }

    async fn read(&self, asked: Asked) -> Result<Value, Refusal> {
        let request = request_of(&asked);
        let job = self.job(&asked, Ask::Read(request.clone()));
        let Read {
            facts,
            noted,
            result,
        } = self.look(|state| fluffy_control::read(state, &job.call(), &request));
        let value = if facts.is_empty() {
            let ended = noted.and_then(|noted| lock(&self.reads).note(job.now, noted));
            if let Some(notice) = ended {
                let notice = Notice::Access(notice);
                let noted = self.platform.notice("access", None, notice).await;
                noted.map_err(|error| not_submitted(&error))?;
            }
            result?
        } else {
            // It is recorded before anything of it goes out.
            match self.submit(job).await?.reply {
                Reply::Read(result) => result?,
                _ => return Err(mistaken()),
            }
        };
        match (asked.operation, value) {
            (_, Value::Null) => self.outside(&asked).await,
            (Operation::ListMembers, list) => Ok(self.with_emails(list).await),
            (Operation::GetKeys, keys) => Ok(self.with_key_files(keys)),
            (_, value) => Ok(value),
        }
    }

    fn printing(&self) -> Option<broadcast::Receiver<LogLine>> {
        Some(self.logs.follow())
    }

    async fn printed(&self, asked: &Asked, had: &mut Had) -> Option<Vec<Value>> {
        let request = request_of(asked);
        let job = self.job(asked, Ask::Read(request.clone()));
        self.look(|state| fluffy_control::would_allow(state, &job.call(), &request))?;
        let lines = self.lines(asked, had).await.ok()?;
        Some(lines.iter().map(|line| json!(line)).collect())
    }

    fn fingerprint(&self, request: Digest) -> Digest {
        let print = self
            .workshop
            .safe()
            .fingerprint("request", request.as_bytes());
        // Without the keys no secret is taken in whose hash could tell it.
        print.unwrap_or(request)
    }

    async fn open_exec(&self, asked: OpenExec) -> Result<Opening, Refusal> {
        self.execs.open(&asked).await
    }

    fn lines_for(&self, ticket: &str) -> Option<Value> {
        let wanted = self.execs.peers()?.admit(ticket, self.now())?;
        serde_json::to_value(self.lines_here(&wanted)).ok()
    }

    async fn recall(&self, key: &str) -> Result<Option<Stored>, Refusal> {
        let stored = self.platform.aside().get(ANSWERS, key).await;
        let stored = stored.map_err(|_| unavailable("stored answers can't be read"))?;
        Ok(stored.and_then(|entry| serde_json::from_slice(&entry.value).ok()))
    }

    async fn remember(&self, key: &str, answer: Stored) -> Result<(), Refusal> {
        let bytes = serde_json::to_vec(&answer).map_err(|_| mistaken())?;
        let stored = self
            .platform
            .aside()
            .put(ANSWERS, key, bytes, Some(REPEATABLE));
        stored
            .await
            .map_err(|_| unavailable("the answer can't be stored"))
    }

    async fn draw(&self, bucket: &str, draw: Draw) -> Option<u64> {
        self.platform.aside().draw(bucket, draw).await.ok()
    }

    fn replicas(&self) -> u64 {
        self.replicas.load(Ordering::Relaxed)
    }

    fn health(&self) -> Health {
        match self.platform.sequencer().halted() {
            None if self.platform.ledger().is_failing() => {
                Health::Unready("the ledger can't be written".to_owned())
            }
            None => Health::Ready,
            Some(error) => Health::Unready(error.to_string()),
        }
    }

    fn metrics(&self) -> String {
        let applied = self.platform.sequencer().applied();
        let lag = self.platform.sequencer().lag();
        let mut text = format!(
            "# TYPE fluffy_applied_seq gauge\nfluffy_applied_seq {}\n\
             # TYPE fluffy_projection_lag_seconds gauge\n",
            applied.seq
        );
        for (quantile, micros) in [("0.5", lag.median), ("0.99", lag.percentile_99)] {
            // Written by hand: whole microseconds need no floating point.
            let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
            text.push_str(&format!(
                "fluffy_projection_lag_seconds{{quantile=\"{quantile}\"}} {seconds}.{rest:06}\n"
            ));
        }
        text
    }

    fn features(&self) -> BTreeMap<String, bool> {
        let local = self.owner.is_some();
        let features = [
            ("approvals", true),
            ("exec", true),
            ("local", local),
            ("secrets", !self.workshop.safe().is_sealed()),
        ];
        let named = features.map(|(name, on)| (name.to_owned(), on));
        named.into_iter().collect()
    }
}

/// The stream of a line, as the interface names it.
fn stream_of(name: &str) -> &'static str {
    match name {
        "stdout" => "stdout",
        "stderr" => "stderr",
        _ => "platform",
    }
}

fn request_of(asked: &Asked) -> Request {
    Request {
        operation: asked.operation,
        path: asked.path.clone(),
        query: asked.query.clone(),
        body: asked.body.clone(),
        material: fluffy_control::Material::None,
    }
}

fn not_submitted(error: &SubmitError) -> Refusal {
    match error {
        SubmitError::Unrecordable(_) => mistaken(),
        SubmitError::OutcomeUnknown(_) => {
            let why = "the database did not say whether the request was recorded";
            let fix = "send it again with the same Idempotency-Key, or look whether it was done";
            Refusal::new("unavailable", why, fix)
        }
        error => unavailable(&error.to_string()),
    }
}

fn unavailable(why: &str) -> Refusal {
    Refusal::new("unavailable", why, "try again in a moment")
}

fn unauthenticated(why: &str) -> Refusal {
    Refusal::new("unauthenticated", why, "log in with `fluffy login`")
}

/// A mistake of ours, which the log has more about.
fn mistaken() -> Refusal {
    let fix = "tell the operators the request id";
    Refusal::new("internal", "the server made a mistake", fix)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
