//! The control plane behind the HTTP layer.
//!
//! Finds out who calls, prepares what a write needs, has it decided and
//! appended, and reads what the state does not hold: events, logs, keys. Says
//! nothing about HTTP and decides nothing. Next: `http` above, `platform` below.

mod exported;
mod pages;
mod repeated;
mod unsettled;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::operation::Bucket;
use fluffy_api::types::{self, Projection, Projections};
use fluffy_base::id::{EnvId, InstanceId, MemberId, SecretVersionId, TokenId};
use fluffy_base::{Digest, Timestamp};
use fluffy_control::access::{Audit, Reads, caller_of_token, check_credential};
use fluffy_control::event::AuthzDecided;
use fluffy_control::{
    Body, Call, Caller, CallerKind, Noted, Outcome, Read, Refusal, Request, State, Subject,
};
use fluffy_ledger::{Actor, ActorKind, Aggregate, Domain};
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::aside::{AsideError, Claim, Draw, Kind};
use crate::credential::CredentialKind;
use crate::errand::{self, Errand, Errands, Sent};
use crate::exec::Execs;
use crate::failures::Failures;
use crate::fold::Position;
use crate::hashes::Hashes;
use crate::history::{self, HistoryError, Wanted, Whose};
use crate::http::{
    Asked, Backend, Earlier, Health, Identity, OpenExec, Opening, Printed, Stored, Wrote,
};
use crate::logs::{Cursor, Follower, LogLine, Logs, MOST_TEXT, Order, Query, fitting, stream_of};
use crate::machine::{Ask, Job, Reply};
use crate::material::{Once, Workshop};
use crate::peers::{Line, Reach, Told, Wanted as WantedLines};
use crate::personal::{Address, address_of, address_of_principal, is_address_of};
use crate::platform::Platform;
use crate::room::Fill;
use crate::safe;
use crate::sequencer::{Answer, SubmitError};
use crate::works::{self, Work};

use unsettled::Unsettled;

/// Answers for repeats, by key.
const ANSWERS: Kind = Kind::new("answer");
/// How long they are kept.
const REPEATABLE: Duration = Duration::from_secs(24 * 3600);
/// How many tokens are remembered, so that the store need not be asked.
const REMEMBERED: usize = 10_000;
/// How long this replica may take to hear of a token that another one made.
const FOLLOWS: Duration = Duration::from_secs(1);
/// How long rights that may have ended are gone by: within so long a revocation
/// reaches every replica, or the replica lets nobody in.
const STALE: Duration = Duration::from_secs(5);
/// How often a write that somebody else got ahead of is prepared anew.
const TRIES: usize = 3;
/// How far back logs are shown, unless asked otherwise.
const HOUR_IN_MICROS: i64 = 3_600_000_000;

/// The control plane behind the HTTP layer.
#[derive(Debug)]
pub struct Control {
    platform: Platform,
    workshop: Workshop,
    hashes: Hashes,
    execs: Execs,
    errands: Errands,
    logs: Arc<Logs>,
    /// The user of this machine that the platform belongs to, if it is local.
    owner: Option<u32>,
    /// Which token a hash is; whether that is still good is in the state.
    tokens: Mutex<HashMap<Digest, TokenId>>,
    reads: Mutex<Reads>,
    failures: Failures,
    unsettled: Unsettled,
    replicas: AtomicU64,
}

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
            errands: execs.errands(),
            failures: execs.failures(),
            platform,
            workshop,
            execs,
            logs,
            owner,
            tokens: Mutex::default(),
            reads: Mutex::default(),
            unsettled: Unsettled::default(),
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
    /// The ledger is not available; what was counted is kept for the next time.
    pub async fn settle(&self) -> Result<(), SubmitError> {
        // While older sums wait, the newest go on to be counted up.
        self.unsettled.settle(&self.platform).await?;
        let reads = lock(&self.reads).end();
        let folded = self.failures.end();
        reads
            .into_iter()
            .chain(folded)
            .for_each(|sum| self.unsettled.add(sum));
        self.unsettled.settle(&self.platform).await
    }

    /// Refuses whoever may have lost their rights without this replica having
    /// heard of it.
    fn check_fresh(&self) -> Result<(), Refusal> {
        let Some(why) = self.unheard() else {
            return Ok(());
        };
        let why = format!("{why}, so who may do what is not known");
        let fix = "try again in a moment, or at another server";
        Err(Refusal::new("unavailable", why, fix))
    }

    /// The same of a caller that is known; the owner of the machine has no
    /// rights to lose.
    fn check_rights(&self, caller: &Caller) -> Result<(), Refusal> {
        match caller.kind {
            CallerKind::Local => Ok(()),
            _ => self.check_fresh(),
        }
    }

    /// That this replica does not follow the ledger, if it does not.
    fn unheard(&self) -> Option<String> {
        let behind = self.platform.sequencer().behind();
        (behind > STALE).then(|| {
            let seconds = behind.as_secs();
            format!("this server has not reached the ledger's end for {seconds} seconds")
        })
    }

    /// Takes note of a read that is recorded in sum.
    async fn note(&self, now: Timestamp, read: Noted) -> Result<(), Refusal> {
        if self.unsettled.is_full() {
            let why = "too much was read since the ledger could last be written";
            return Err(unavailable(why));
        }
        let ended = lock(&self.reads).note(now, read);
        if let Some(ended) = ended {
            self.unsettled.add(ended);
            let settled = self.unsettled.settle(&self.platform).await;
            settled.map_err(|error| not_submitted(&error))?;
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
        let answer = self.platform.decide(job).await;
        answer.map_err(|error| not_submitted(&error))
    }

    async fn try_write(&self, asked: &Asked) -> Result<Wrote, Refusal> {
        let mut request = request_of(asked);
        let job = self.job(asked, Ask::Write(request.clone()));
        let states = self.platform.sequencer();
        let workshop = &self.workshop;
        let once = workshop.prepare(&job.call(), &mut request, states).await?;
        let ask = Ask::Write(request.clone());
        let answer = self.submit_write(asked, Job { ask, ..job }).await?;
        let Reply::Wrote(outcome) = answer.reply else {
            return Err(mistaken());
        };
        workshop.conclude(&request, &outcome);
        // What waits for a person is told its secret now: nobody could tell it
        // later, and until then it opens nothing.
        let told = matches!(outcome, Outcome::Done { .. } | Outcome::Parked { .. });
        Ok(Wrote {
            once: if told { once } else { Once::new() },
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
            // Its form was checked before.
            rebuild: asked
                .body
                .clone()
                .and_then(|body| serde_json::from_value(body).ok())
                .unwrap_or_default(),
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

    /// Has the signal sent that a call is on record for.
    async fn with_signal(&self, asked: &Asked, mut wrote: Wrote) -> Wrote {
        let Outcome::Done { .. } = &wrote.outcome else {
            return wrote;
        };
        if asked.operation != Operation::SignalInstance {
            return wrote;
        }
        let signal = asked.body.as_ref().and_then(|body| body["signal"].as_str());
        let errand = Errand::Signal(signal.unwrap_or_default().to_owned());
        let sent = match self.errand_to(asked, errand) {
            Some(sent) => self.errands.run(&sent).await.of_signal(),
            None => Err(mistaken()),
        };
        if let Err(refusal) = sent {
            wrote.outcome = Outcome::Refused(refusal);
        }
        wrote
    }

    /// An errand to the instance that a call names.
    fn errand_to(&self, asked: &Asked, errand: Errand) -> Option<Sent> {
        let id: InstanceId = asked.path.last()?.parse().ok()?;
        let node = self.look(|state| Some(state.runtime.plan.instances.get(&id)?.node))?;
        Some(Sent {
            node,
            instance: id.to_string(),
            errand,
        })
    }

    /// All that is known of an instance that somebody may see.
    async fn diagnosed(&self, asked: &Asked, instance: Value) -> Result<Value, Refusal> {
        let sent = self.errand_to(asked, Errand::Diagnose);
        let sent = sent.ok_or_else(mistaken)?;
        let (ledger, id) = (self.platform.ledger().clone(), sent.instance.clone());
        let changes = spawn_blocking(move || errand::transitions(&ledger, &id));
        // What the first process of a guest says is what the platform says.
        let mut lines = asked.clone();
        let hours = self.now().as_micros().saturating_sub(72 * HOUR_IN_MICROS);
        lines.query = BTreeMap::from([
            ("instance".to_owned(), sent.instance.clone()),
            ("stream".to_owned(), "platform".to_owned()),
            ("tail".to_owned(), errand::INIT_LINES.to_owned()),
            (
                "since".to_owned(),
                Timestamp::from_micros(hours).to_string(),
            ),
        ]);
        let mut who = Follower::default();
        let (changes, lines, done) = tokio::join!(
            changes,
            self.lines(&lines, &mut who),
            self.errands.run(&sent)
        );
        let Ok(Ok(changes)) = changes else {
            return Err(unavailable("the ledger can't be read"));
        };
        let mut lines = lines?;
        lines.sort_by_key(|it| it.line.at);
        let lines = lines.into_iter().map(|it| it.line).collect();
        let shown = errand::diagnosis(instance, changes, lines, done);
        Ok(json!(shown.ok_or_else(mistaken)?))
    }

    /// The env whose secrets a call may destroy, and the versions it has now.
    fn secrets_of(&self, asked: &Asked) -> Option<(EnvId, BTreeSet<SecretVersionId>)> {
        let may_destroy = matches!(
            asked.operation,
            Operation::DeleteEnv
                | Operation::DeleteSecrets
                | Operation::ReplaceSecrets
                | Operation::UpdateSecrets
        );
        let path: Vec<&str> = asked.path.iter().map(String::as_str).collect();
        let request = may_destroy.then(|| Request::new(asked.operation, &path))?;
        self.look(|state| {
            let env = fluffy_control::place_of(state, &request).owner.env?;
            Some((env, safe::versions_in(state, env)))
        })
    }

    /// Removes what was sealed of versions that are kept no more; what that
    /// misses, the loop of retention finds.
    async fn destroy(&self, (env, before): (EnvId, BTreeSet<SecretVersionId>)) {
        let now = self.look(|state| safe::versions_in(state, env));
        for version in before.difference(&now) {
            if let Err(error) = safe::destroy(self.platform.aside(), *version).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, %version, "a destroyed secret was not removed at once");
            }
        }
    }

    /// The address of the member that a call names, if it names one.
    fn member_of(&self, asked: &Asked) -> Option<Address> {
        if asked.operation == Operation::AddMember {
            let principal = asked.body.as_ref()?.get("principal_id")?.as_str()?;
            let place = fluffy_control::place_of;
            return self.look(|state| {
                let org = place(state, &request_of(asked)).owner.org?;
                address_of_principal(state, org, principal)
            });
        }
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
        if asked.operation != Operation::RemoveMember {
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

    /// Puts in what was printed today, which is in no event.
    fn with_log_bytes(&self, mut shown: Value) -> Value {
        let org = shown
            .get("org_id")
            .and_then(Value::as_str)
            .and_then(|org| org.parse().ok());
        let quota = shown.pointer_mut("/quotas/log_bytes_per_day/used");
        if let (Some(org), Some(used)) = (org, quota) {
            *used = json!(self.logs.used(org));
        }
        shown
    }

    /// What the state does not hold.
    async fn outside(&self, asked: &Asked) -> Result<Value, Refusal> {
        match asked.operation {
            Operation::ListEvents | Operation::ListAudit | Operation::ListPlatformEvents => {
                self.history(asked).await
            }
            Operation::ExportOrg => self.export(asked).await,
            // Who follows gets its lines in its stream.
            Operation::GetLogs if asked.query.contains_key("follow") => Ok(json!({ "items": [] })),
            Operation::GetLogs if asked.query.contains_key("cursor") => {
                self.lines_behind(asked).await
            }
            Operation::GetLogs => {
                let mut lines = self.lines(asked, &mut Follower::default()).await?;
                lines.sort_by_key(|it| it.line.at);
                let lines = lines.into_iter().map(|it| it.line).collect::<Vec<_>>();
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

    async fn history(&self, asked: &Asked) -> Result<Value, Refusal> {
        let wanted = self.look(|state| {
            let names = &state.access.names;
            let org = |audit| Some(Whose::Org(names.org(asked.path.first()?)?, audit));
            let whose = match asked.operation {
                Operation::ListPlatformEvents => Whose::Platform,
                Operation::ListAudit => org(Audit::Included)?,
                _ => org(Audit::Left)?,
            };
            Some(Wanted::of(whose, &asked.query, names))
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
    fn wanted_lines(&self, asked: &Asked, who: &Follower) -> Result<WantedLines, Refusal> {
        let text = |name: &str| asked.query.get(name).cloned();
        let time = |name: &str| text(name).and_then(|text| text.parse::<Timestamp>().ok());
        let place = self.look(|state| fluffy_control::place_of(state, &request_of(asked)));
        let follows = text("follow").is_some();
        let now = self.now();
        // A node's clock may be ahead: who follows gets what it says.
        let last = if follows { Timestamp::MAX } else { now };
        // The hour before the end, if only that is said.
        let end = time("until").unwrap_or(now);
        let before = end.as_micros().saturating_sub(HOUR_IN_MICROS);
        let tail = text("tail").and_then(|text| text.parse().ok());
        Ok(WantedLines {
            env: place.owner.env.ok_or_else(mistaken)?,
            process: text("process"),
            instance: text("instance"),
            stream: text("stream"),
            since: time("since").unwrap_or(Timestamp::from_micros(before)),
            until: time("until").unwrap_or(last),
            tail: tail.unwrap_or(1_000),
            reach: match &who.at {
                Some(cursor) => Reach::From(cursor.clone()),
                None if follows => Reach::Begin,
                None => Reach::Look,
            },
        })
    }

    /// The lines that were asked for and not had yet, whichever replica heard
    /// them, each replica's in the order in which it told them.
    async fn lines(&self, asked: &Asked, who: &mut Follower) -> Result<Vec<Line>, Refusal> {
        let wanted = self.wanted_lines(asked, who)?;
        let unread = |error: io::Error| {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "lines can't be read");
            unavailable("what was printed can't be read")
        };
        let mut told = vec![self.lines_here(&wanted).await.map_err(unread)?];
        if let Some(peers) = self.execs.peers() {
            match peers.lines(&wanted, self.now()).await {
                Ok(others) => told.extend(others),
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
        let mut lines = merged(told.iter_mut().map(|it| std::mem::take(&mut it.lines)));
        // What a node said again after a move is here twice.
        lines.retain(|it| {
            let instance = it.line.instance_id.to_string();
            who.had.is_new(&instance, &it.boot, &it.line.stream, it.seq)
        });
        let at = who.at.get_or_insert_default();
        if !matches!(wanted.reach, Reach::From(_)) {
            // All replicas together tell no more than one.
            let lengths = lines.iter().rev().map(|it| it.line.line.len());
            let kept = fitting(lengths, (wanted.tail, MOST_TEXT));
            for left in lines.drain(..lines.len().saturating_sub(kept)) {
                at.advance(&left.store, left.arrival);
            }
        }
        for it in &mut lines {
            at.advance(&it.store, it.arrival);
            it.cursor = at.to_string();
        }
        for told in &told {
            at.join(&told.through);
        }
        Ok(lines)
    }

    /// The lines that this replica heard.
    async fn lines_here(&self, wanted: &WantedLines) -> io::Result<Told> {
        let store = self.logs.store_id().to_owned();
        let ms = |at: Timestamp| u64::try_from(at.as_micros() / 1_000).unwrap_or(0);
        let found = self.logs.find(Query {
            env: wanted.env,
            process: wanted.process.clone(),
            instance: wanted.instance.clone(),
            stream: wanted.stream.clone(),
            since_ms: ms(wanted.since),
            until_ms: ms(wanted.until),
            most: wanted.tail,
            most_bytes: MOST_TEXT,
            order: match &wanted.reach {
                Reach::Look => Order::Time,
                Reach::Begin => Order::Arrival,
                Reach::From(cursor) => Order::After(cursor.of(&store)),
            },
        });
        let found = found.await?;
        let mut through = Cursor::default();
        through.advance(&store, found.through);
        let lines = found.lines.into_iter();
        let lines = lines.filter_map(|line| shown(&store, &line)).collect();
        Ok(Told { lines, through })
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

    /// Who stands behind a token that was made. Another replica may have done
    /// that a moment ago: its hash is kept before the event is here.
    async fn bearer(&self, id: TokenId) -> Option<Result<Caller, Refusal>> {
        let mut positions = self.platform.sequencer().positions();
        let find = async {
            loop {
                positions.mark_unchanged();
                let now = self.now();
                let known = self.look(|state| {
                    let caller = caller_of_token(state, id)?;
                    let good = check_credential(state, &caller, now);
                    Some(good.map(|()| caller))
                });
                if known.is_some() {
                    return known;
                }
                positions.changed().await.ok()?;
            }
        };
        timeout(FOLLOWS, find).await.ok().flatten()
    }

    /// Records that somebody showed what is no credential.
    async fn failed(&self, reason: &str, source: &str) {
        self.failures.note(reason, source, None).await;
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
            Identity::Socket(user) => {
                let source = format!("socket:{user}");
                self.failed("another user of the machine", &source).await;
                let why = "this socket is for the owner of the platform's data";
                Err(unauthenticated(why))
            }
            Identity::Nothing { source } => {
                self.failed("nothing was shown", source).await;
                Err(unauthenticated("no credential was shown"))
            }
            Identity::Token { hash, source } => {
                self.check_fresh()?;
                let found = self.token(hash).await;
                let found = found.map_err(|_| unavailable("tokens can't be looked up"))?;
                let known = match found {
                    Some(id) => self.bearer(id).await,
                    None => None,
                };
                let unknown = || Err(unauthenticated("the token is not known"));
                let known = known.unwrap_or_else(unknown);
                if let Err(refusal) = &known {
                    let reason = match refusal.code {
                        "token_expired" => "expired token",
                        "token_revoked" => "revoked token",
                        _ => "unknown token",
                    };
                    self.failed(reason, source).await;
                }
                known
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
        let secrets = self.secrets_of(&asked);
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
                if matches!(&wrote.outcome, Outcome::Refused(it) if it.code == "invalid_grant") {
                    self.failed("invalid grant", &asked.source).await;
                }
                if let Some(secrets) = secrets {
                    self.destroy(secrets).await;
                }
                let wrote = self.with_work(&asked, wrote).await;
                let wrote = self.with_signal(&asked, wrote).await;
                return Ok(self.with_email(&asked, wrote, before).await);
            }
        }
    }

    fn answer(&self, subject: &Subject) -> Value {
        self.look(|state| fluffy_control::answer(state, subject))
    }

    async fn led_to(&self, decision: u64) -> Option<Earlier> {
        let ledger = self.platform.ledger().clone();
        let led_to = spawn_blocking(move || {
            let events = ledger.read(decision, 200).ok()?;
            let decided = events.first()?;
            if let Ok(Body::AuthzDecided(AuthzDecided {
                refused: Some(code),
                ..
            })) = Body::read(decided)
            {
                return Some(Earlier::Refused(code));
            }
            let request = decided.request_id.clone();
            let mut same = events.into_iter().skip(1);
            let first = same
                .find(|event| event.request_id == request && event.event_type != "authz.decided")?;
            let Aggregate { kind, id } = first.aggregate;
            let subject = Subject::of(&kind, id);
            (first.domain == Domain::Platform).then_some(match &*first.event_type {
                "approval.requested" => Earlier::Parked(subject),
                // It is on record before it is sent.
                "instance.signal_requested" => Earlier::Unsettled,
                _ => Earlier::Done(subject),
            })
        });
        led_to.await.ok().flatten()
    }

    async fn read(&self, asked: Asked) -> Result<Value, Refusal> {
        self.check_rights(&asked.caller)?;
        let request = request_of(&asked);
        let job = self.job(&asked, Ask::Read(request.clone()));
        let Read {
            facts,
            noted,
            result,
        } = self.look(|state| fluffy_control::read(state, &job.call(), &request));
        let value = if facts.is_empty() {
            if let Some(noted) = noted {
                self.note(job.now, noted).await?;
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
            (Operation::DiagnoseInstance, instance) => self.diagnosed(&asked, instance).await,
            (Operation::GetQuotas, quotas) => Ok(self.with_log_bytes(quotas)),
            (_, value) => Ok(value),
        }
    }

    async fn look_again(&self, asked: Asked) -> Result<Value, Refusal> {
        let is_recorded = [Operation::ListAudit, Operation::ListPlatformEvents];
        if !is_recorded.contains(&asked.operation) {
            return self.read(asked).await;
        }
        self.check_rights(&asked.caller)?;
        // A record of every look would be something new to look at.
        let request = request_of(&asked);
        let job = self.job(&asked, Ask::Read(request.clone()));
        let read = self.look(|state| fluffy_control::read(state, &job.call(), &request));
        read.result?;
        self.outside(&asked).await
    }

    fn printing(&self) -> Option<broadcast::Receiver<LogLine>> {
        Some(self.logs.follow())
    }

    async fn printed(&self, asked: &Asked, who: &mut Follower) -> Option<Vec<Printed>> {
        self.check_rights(&asked.caller).ok()?;
        let request = request_of(asked);
        let job = self.job(asked, Ask::Read(request.clone()));
        self.look(|state| fluffy_control::would_allow(state, &job.call(), &request))?;
        let lines = self.lines(asked, who).await.ok()?.into_iter();
        let printed = lines.map(|it| Printed {
            line: json!(it.line),
            cursor: it.cursor,
        });
        Some(printed.collect())
    }

    fn fingerprint(&self, request: Digest) -> Digest {
        // Without the keys no secret is taken in whose hash could tell it.
        self.print(request).unwrap_or(request)
    }

    fn is_same(&self, kept: Digest, request: Digest) -> Result<bool, Refusal> {
        self.is_kept_of(kept, request).ok_or_else(repeated::untold)
    }

    async fn open_exec(&self, asked: OpenExec) -> Result<Opening, Refusal> {
        let execs = self.execs.clone();
        // A caller that goes away does not leave a session half open: nobody
        // takes what was opened then, and that ends it.
        let opened = tokio::spawn(async move { execs.open(&asked).await });
        opened.await.unwrap_or_else(|_| Err(mistaken()))
    }

    async fn lines_for(&self, ticket: &str) -> Option<io::Result<Told>> {
        let wanted = self.execs.peers()?.admit(ticket, self.now())?;
        Some(self.lines_here(&wanted).await)
    }

    async fn errand_for(&self, ticket: &str) -> Option<Value> {
        let sent = self.errands.admit(ticket)?;
        Some(json!(self.errands.run_here(&sent).await))
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
        // Nobody waits for what does not answer.
        if self.unheard().is_some() {
            return None;
        }
        self.platform.aside().draw(bucket, draw).await.ok()
    }

    async fn claim_places(&self, name: &str, holder: &str, claim: Claim) -> Option<u64> {
        self.platform.aside().claim(name, holder, claim).await.ok()
    }

    async fn keep_places(&self, holder: &str, life: Duration) -> Option<BTreeMap<String, u64>> {
        self.platform.aside().keep(holder, life).await.ok()
    }

    fn replicas(&self) -> u64 {
        self.replicas.load(Ordering::Relaxed)
    }

    fn health(&self) -> Health {
        if let Some(seq) = self.platform.ledger().refused_since() {
            return Health::Unready(SubmitError::Broken { seq }.to_string());
        }
        match self.platform.sequencer().halted() {
            None if self.platform.ledger().is_failing() => {
                Health::Unready("the ledger can't be written".to_owned())
            }
            None => match self.unheard() {
                Some(why) => Health::Unready(why),
                None => Health::Ready(self.platform.room().and_then(full)),
            },
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
                "fluffy_projection_lag_seconds{{name=\"platform\",quantile=\"{quantile}\"}} \
                 {seconds}.{rest:06}\n"
            ));
        }
        let (figures, now) = (self.platform.figures(), self.now());
        let missed = self.workshop.safe().missed();
        text.push_str(&self.look(|state| figures.text(state, now, missed)));
        if let Some(fill) = self.platform.room() {
            text.push_str(&format!(
                "# TYPE fluffy_ledger_disk_used_ratio gauge\n\
                 fluffy_ledger_disk_used_ratio {}.{:03}\n",
                fill.permille / 1000,
                fill.permille % 1000
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

/// A line as the interface shows it; none if it is of nobody.
fn shown(store: &str, line: &LogLine) -> Option<Line> {
    let micros = i64::try_from(line.at_ms.saturating_mul(1_000));
    Some(Line {
        boot: line.boot.to_string(),
        seq: line.seq,
        store: store.to_owned(),
        arrival: line.arrival,
        cursor: String::new(),
        line: types::LogLine {
            at: Timestamp::from_micros(micros.unwrap_or(i64::MAX)),
            instance_id: line.instance.parse().ok()?,
            process: line.source.process.clone(),
            stream: stream_of(&line.stream).to_owned(),
            line: line.text.to_string(),
            truncated: line.truncated,
            boot_id: Some(line.boot.to_string()),
            seq: Some(line.seq),
            dropped: line.dropped,
        },
    })
}

/// The lines of all replicas by their time, those of each in its order.
fn merged(told: impl Iterator<Item = Vec<Line>>) -> Vec<Line> {
    let mut told: Vec<_> = told.map(|lines| lines.into_iter().peekable()).collect();
    let mut all = Vec::new();
    loop {
        let first = told.iter_mut().filter_map(|lines| {
            let at = lines.peek()?.line.at;
            Some((at, lines))
        });
        let Some(next) = first.min_by_key(|(at, _)| *at) else {
            return all;
        };
        all.extend(next.1.next());
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
        SubmitError::Broken { seq } => {
            let fix = format!(
                "an operator looks with `fluffy events verify`, and either restores the ledger or \
                 starts the server with --accept-break {seq}"
            );
            Refusal::new("ledger_broken", error.to_string(), fix)
        }
        SubmitError::Unreadable { .. } => {
            let fix = "finish the upgrade of all servers, then send it again";
            Refusal::new("unavailable", error.to_string(), fix)
        }
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

/// What operators are told of a disk that fills up.
fn full(fill: Fill) -> Option<String> {
    let percent = fill.permille / 10;
    let why = format!("the disk of the ledger is {percent} % full; make room before it is full");
    fill.is_short.then_some(why)
}
