//! A double of the control plane: apps by name, and nothing else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::node::v1;
use fluffy_api::operation::Bucket;
use fluffy_base::{Clock, Digest, ManualClock, Timestamp};
use fluffy_control::{Caller, CallerKind, Outcome, Refusal, Subject};
use fluffy_ledger::{Actor, ActorKind};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::super::backend::{
    Asked, Backend, Earlier, Health, Identity, OpenExec, OpenedExec, Opening, Stored, Wrote,
};
use crate::aside::{Claim, Draw};
use crate::fold::Position;
use crate::gateway::{Ended, Terms};
use crate::node::ExecLink;

#[derive(Clone)]
pub(super) struct Double(Arc<Inside>);

struct Inside {
    pub(super) clock: ManualClock,
    positions: watch::Sender<Position>,
    state: Mutex<State>,
    is_held: AtomicBool,
    is_out_of_reach: AtomicBool,
    replicas: AtomicUsize,
    failures: AtomicUsize,
    stall: AtomicBool,
    stalled: Notify,
    go_on: Notify,
    exec: Mutex<Option<(Digest, OpenedExec)>>,
}

/// The other ends of an exec session.
pub(super) struct Session {
    pub(super) to_node: mpsc::Receiver<v1::ExecToNode>,
    pub(super) from_node: mpsc::Sender<v1::exec_from_node::Frame>,
    pub(super) ended: oneshot::Receiver<Ended>,
    _revoke: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    head: u64,
    tokens: BTreeMap<Digest, String>,
    own_limit: Option<u64>,
    apps: BTreeMap<String, Value>,
    events: Vec<Value>,
    used: BTreeMap<String, (Digest, u64)>,
    stored: BTreeMap<String, Stored>,
    drawn: BTreeMap<(String, u64), u64>,
    places: BTreeMap<(String, String), (u64, Instant)>,
    silent: Option<String>,
}

impl Default for Double {
    fn default() -> Self {
        Self(Arc::new(Inside {
            clock: ManualClock::new("2026-11-16T08:00:30Z".parse().unwrap()),
            positions: watch::channel(Position { epoch: 1, seq: 0 }).0,
            state: Mutex::default(),
            is_held: AtomicBool::new(false),
            is_out_of_reach: AtomicBool::new(false),
            replicas: AtomicUsize::new(1),
            failures: AtomicUsize::new(0),
            stall: AtomicBool::new(false),
            stalled: Notify::new(),
            go_on: Notify::new(),
            exec: Mutex::default(),
        }))
    }
}

impl Double {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    pub(super) fn know(&self, hash: Digest, name: &str) {
        self.state().tokens.insert(hash, name.into());
    }

    /// Gives all tokens a limit of their own, or none.
    pub(super) fn limit_tokens(&self, limit: Option<u64>) {
        self.state().own_limit = limit;
    }

    pub(super) fn forget(&self, name: &str) {
        self.state().tokens.retain(|_, known| known != name);
        self.advance();
    }

    pub(super) fn failures(&self) -> usize {
        self.0.failures.load(Ordering::SeqCst)
    }

    pub(super) fn pass(&self, time: Duration) {
        self.0.clock.advance(time);
    }

    /// Views stand still; writes go on.
    pub(super) fn hold(&self) {
        self.0.is_held.store(true, Ordering::SeqCst);
    }

    pub(super) fn release(&self) {
        self.0.is_held.store(false, Ordering::SeqCst);
        self.show();
    }

    pub(super) fn restore(&self) {
        let mut state = self.state();
        state.head = 1;
        state.events.truncate(1);
        drop(state);
        self.0.positions.send_replace(Position { epoch: 2, seq: 1 });
    }

    pub(super) fn out_of_reach(&self, replicas: usize) {
        self.0.is_out_of_reach.store(true, Ordering::SeqCst);
        self.0.replicas.store(replicas, Ordering::SeqCst);
    }

    /// Hears nothing more of this holder of places.
    pub(super) fn silence(&self, holder: &str) {
        self.state().silent = Some(holder.to_owned());
    }

    pub(super) fn in_reach(&self) {
        self.0.is_out_of_reach.store(false, Ordering::SeqCst);
    }

    /// The next read waits until it may go on.
    pub(super) fn stall(&self) {
        self.0.stall.store(true, Ordering::SeqCst);
    }

    pub(super) async fn stalled(&self) {
        self.0.stalled.notified().await;
    }

    pub(super) fn go_on(&self) {
        self.0.go_on.notify_one();
    }

    /// Lets the bearer of this token in, once.
    pub(super) fn expect_exec(&self, token: Digest) -> Session {
        let (to_node, at_node) = mpsc::channel(4);
        let (from_node, link) = mpsc::channel(4);
        let (revoke, revoked) = watch::channel(false);
        let (ended, end) = oneshot::channel();
        let opened = OpenedExec {
            link: ExecLink {
                to_node,
                from_node: link,
                tells_started: false,
            },
            terms: Terms {
                session: "exec_1".to_owned(),
                longest: Duration::from_secs(60),
                tty: false,
            },
            revoked,
            rejoin: None,
            ended,
        };
        *self.0.exec.lock().unwrap() = Some((token, opened));
        Session {
            to_node: at_node,
            from_node,
            ended: end,
            _revoke: revoke,
        }
    }

    async fn wait_if_stalled(&self) {
        if self.0.stall.swap(false, Ordering::SeqCst) {
            self.0.stalled.notify_one();
            self.0.go_on.notified().await;
        }
    }

    pub(super) fn stored(&self) -> Vec<Stored> {
        self.state().stored.values().cloned().collect()
    }

    /// Loses the answers that were kept for repeats.
    pub(super) fn lose_answers(&self) {
        self.state().stored.clear();
    }

    pub(super) fn apps(&self) -> usize {
        self.state().apps.len()
    }

    fn advance(&self) -> Position {
        let mut state = self.state();
        state.head += 1;
        let position = Position {
            epoch: self.0.positions.borrow().epoch,
            seq: state.head,
        };
        state
            .events
            .push(json!({ "seq": position.seq, "event_type": "app.changed" }));
        drop(state);
        if !self.0.is_held.load(Ordering::SeqCst) {
            self.show();
        }
        position
    }

    fn show(&self) {
        let seq = self.state().head;
        let epoch = self.0.positions.borrow().epoch;
        self.0.positions.send_replace(Position { epoch, seq });
    }

    fn decide(&self, asked: &Asked) -> (Outcome, Map<String, Value>) {
        let refuse = |code, why: &str| {
            let refusal = Refusal::new(code, why, "choose another");
            (Outcome::Refused(refusal), Map::new())
        };
        let name = asked.body.as_ref().and_then(|body| body["name"].as_str());
        let name = name
            .or(asked.path.get(1).map(String::as_str))
            .unwrap_or("none");
        if name == "forbidden" {
            return refuse("forbidden", "not this one");
        }
        let mut state = self.state();
        let next = state.head + 1;
        if let Some((key, hash)) = &asked.idempotency {
            match state.used.get(key) {
                Some((known, seq)) if known == hash => {
                    return (Outcome::Replayed { seq: *seq }, Map::new());
                }
                Some(_) => return refuse("idempotency_key_reuse", "another body"),
                None => {}
            }
        }
        match asked.operation {
            Operation::CreateApp | Operation::CreateVolume if state.apps.contains_key(name) => {
                return refuse("name_taken", "it exists");
            }
            Operation::CreateApp | Operation::CreateVolume => {
                let app = json!({ "id": name, "name": name, "version": 1 });
                state.apps.insert(name.into(), app);
            }
            Operation::UpdateApp => {
                let Some(app) = state.apps.get_mut(name) else {
                    return refuse("not_found", "nothing is there");
                };
                let version = app["version"].as_u64().unwrap();
                if asked.if_match.is_some_and(|wanted| wanted != version) {
                    return refuse("precondition_failed", "another version");
                }
                app["version"] = json!(version + 1);
            }
            Operation::DeleteApp => {
                state.apps.remove(name);
            }
            _ => return refuse("not_supported", "the double knows apps only"),
        }
        if let Some((key, hash)) = &asked.idempotency {
            state.used.insert(key.clone(), (*hash, next));
        }
        let once = json!({ "secret": "shown once" }).as_object().cloned();
        let outcome = Outcome::Done {
            status: asked.operation.spec().success,
            subject: Subject::of("app", name),
        };
        (outcome, once.unwrap_or_default())
    }
}

impl Backend for Double {
    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    fn positions(&self) -> watch::Receiver<Position> {
        self.0.positions.subscribe()
    }

    async fn head(&self) -> Result<Position, Refusal> {
        let epoch = self.0.positions.borrow().epoch;
        let seq = self.state().head;
        Ok(Position { epoch, seq })
    }

    async fn identify(&self, identity: Identity<'_>) -> Result<Caller, Refusal> {
        let known = match identity {
            Identity::Token { hash, .. } => self.state().tokens.get(&hash).cloned(),
            Identity::Socket(_) => Some("local".into()),
            Identity::Nothing { .. } => None,
        };
        let Some(name) = known else {
            self.0.failures.fetch_add(1, Ordering::SeqCst);
            return Err(Refusal::new(
                "unauthenticated",
                "nobody is known by this",
                "log in",
            ));
        };
        Ok(Caller {
            kind: CallerKind::Local,
            actor: Actor::new(ActorKind::User, name),
        })
    }

    fn payer(&self, caller: &Caller, org: Option<&str>) -> String {
        org.unwrap_or(&caller.actor.id).to_owned()
    }

    fn own_limit(&self, caller: &Caller, _: Bucket) -> Option<(String, u64)> {
        let limit = self.state().own_limit?;
        Some((format!("token of {}", caller.actor.id), limit))
    }

    async fn write(&self, asked: Asked) -> Result<Wrote, Refusal> {
        self.wait_if_stalled().await;
        let (outcome, once) = self.decide(&asked);
        Ok(Wrote {
            outcome,
            once,
            position: self.advance(),
        })
    }

    fn answer(&self, subject: &Subject) -> Value {
        let gone = json!({ "id": subject.id, "deleted": true });
        self.state().apps.get(&subject.id).cloned().unwrap_or(gone)
    }

    async fn led_to(&self, decision: u64) -> Option<Earlier> {
        let state = self.state();
        let (key, _) = state.used.iter().find(|(_, (_, seq))| *seq == decision)?;
        // The double's keys end with the name.
        Some(Earlier::Done(Subject::of("app", key.rsplit('-').next()?)))
    }

    async fn read(&self, asked: Asked) -> Result<Value, Refusal> {
        self.wait_if_stalled().await;
        let state = self.state();
        let caller = &asked.caller.actor.id;
        if caller != "local" && !state.tokens.values().any(|known| known == caller) {
            return Err(Refusal::new("token_revoked", "it was revoked", "log in"));
        }
        let after = asked.query.get("after").cloned().unwrap_or_default();
        let limit: usize = asked
            .query
            .get("limit")
            .map_or(0, |text| text.parse().unwrap());
        match asked.operation {
            Operation::ListApps => {
                let mut items: Vec<&Value> = state
                    .apps
                    .iter()
                    .filter(|(name, _)| **name > after)
                    .map(|(_, app)| app)
                    .collect();
                let more = items.len() > limit;
                items.truncate(limit);
                let next = items.last().filter(|_| more).map(|app| app["id"].clone());
                Ok(json!({ "items": items, "next_cursor": next }))
            }
            Operation::ListEvents => {
                let after: u64 = after.parse().unwrap_or(0);
                let after = usize::try_from(after).unwrap();
                let items: Vec<_> = state.events.iter().skip(after).take(limit).collect();
                let more = state.events.len() > after + items.len();
                let next = items
                    .last()
                    .filter(|_| more)
                    .map(|item| item["seq"].to_string());
                Ok(json!({ "items": items, "next_cursor": next }))
            }
            Operation::GetApp => {
                state.apps.get(&asked.path[1]).cloned().ok_or_else(|| {
                    Refusal::new("not_found", "nothing is there", "look at the list")
                })
            }
            Operation::Whoami => Ok(json!({ "principal_id": caller })),
            _ => Ok(json!({})),
        }
    }

    fn fingerprint(&self, request: Digest) -> Digest {
        request
    }

    async fn recall(&self, key: &str) -> Result<Option<Stored>, Refusal> {
        Ok(self.state().stored.get(key).cloned())
    }

    async fn remember(&self, key: &str, answer: Stored) -> Result<(), Refusal> {
        self.state().stored.insert(key.into(), answer);
        Ok(())
    }

    async fn open_exec(&self, ask: OpenExec) -> Result<Opening, Refusal> {
        let mut exec = self.0.exec.lock().unwrap();
        let opened = exec.take_if(|(token, _)| ask.token == Some(*token));
        opened
            .map(|(_, opened)| Opening::Here(Box::new(opened)))
            .ok_or_else(|| {
                Refusal::new(
                    "exec_token_invalid",
                    "it opens nothing",
                    "ask for a session",
                )
            })
    }

    async fn draw(&self, bucket: &str, draw: Draw) -> Option<u64> {
        if self.0.is_out_of_reach.load(Ordering::SeqCst) {
            return None;
        }
        // Others get ahead while a store answers.
        tokio::task::yield_now().await;
        let seconds = u64::try_from(self.now().as_micros() / 1_000_000).unwrap();
        let window = seconds / draw.window.as_secs();
        let mut state = self.state();
        let drawn = state.drawn.entry((bucket.into(), window)).or_default();
        let got = draw.wanted.min(draw.limit - *drawn);
        *drawn += got;
        Some(got)
    }

    async fn claim_places(&self, name: &str, holder: &str, claim: Claim) -> Option<u64> {
        if self.0.is_out_of_reach.load(Ordering::SeqCst) {
            return None;
        }
        tokio::task::yield_now().await;
        let mut state = self.state();
        if state.silent.as_deref() == Some(holder) {
            return None;
        }
        let now = Instant::now();
        state.places.retain(|_, (_, until)| *until > now);
        let others = state.places.iter();
        let others = others.filter(|((of, by), _)| of == name && by != holder);
        let others: u64 = others.map(|(_, (count, _))| count).sum();
        let got = claim.wanted.min(claim.limit.saturating_sub(others));
        let key = (name.to_owned(), holder.to_owned());
        state.places.insert(key, (got, now + claim.life));
        Some(got)
    }

    async fn keep_places(&self, holder: &str, life: Duration) -> Option<BTreeMap<String, u64>> {
        if self.0.is_out_of_reach.load(Ordering::SeqCst) {
            return None;
        }
        let mut state = self.state();
        if state.silent.as_deref() == Some(holder) {
            return None;
        }
        let now = Instant::now();
        state.places.retain(|_, (_, until)| *until > now);
        let own = state.places.iter_mut().filter(|((_, by), _)| by == holder);
        let kept = own.map(|((name, _), (count, until))| {
            *until = now + life;
            (name.clone(), *count)
        });
        Some(kept.collect())
    }

    fn replicas(&self) -> u64 {
        self.0.replicas.load(Ordering::SeqCst) as u64
    }

    fn health(&self) -> Health {
        match self.0.is_held.load(Ordering::SeqCst) {
            false => Health::Ready(None),
            true => Health::Unready("the view stands still".into()),
        }
    }

    fn metrics(&self) -> String {
        "fluffy_double 1\n".into()
    }

    fn features(&self) -> BTreeMap<String, bool> {
        BTreeMap::new()
    }
}
