//! Streams: what a list holds, then every change of it.
//!
//! A list is read again when the ledger has moved, and what differs is sent;
//! so a stream never shows what a page would not, and ends when its caller may
//! no longer look. Events are followed one by one, from where the caller says.
//! Bounded: a reader that does not read stops its stream, and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::operation::Kind;
use fluffy_api::{Operation, Problem};
use fluffy_base::Digest;
use fluffy_control::CallerKind;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::answer::{self, Reply};
use super::backend::{Asked, Backend, Printed};
use super::body::AnswerBody;
use super::head;
use super::places::{self, Place};
use super::rate::Left;
use super::service::Shared;
use crate::fold::Position;
use crate::logs::{Cursor, Follower, LogLine, MOST_TEXT};

/// The pieces that wait for a slow reader.
const WAITING: usize = 64;

/// The most objects of a list that are watched.
const MOST: usize = 10_000;

/// How often a stream says that it is alive.
const WATERMARK: Duration = Duration::from_secs(15);

/// How often lines are looked for that another replica heard.
const LOOK: Duration = Duration::from_secs(1);

/// How long changes are gathered before the list is read again.
const GATHER: Duration = Duration::from_millis(100);

/// Streams a list and its changes.
pub(super) async fn watch<B: Backend>(
    shared: &Arc<Shared<B>>,
    asked: Asked,
    after: Option<u64>,
    left: &mut Option<Left>,
) -> Result<Reply, Box<Problem>> {
    let org = head::org(asked.operation, &asked.path);
    let payer = shared.backend.payer(&asked.caller, org);
    let most = shared.options.rates.watches;
    let place = enter(shared, format!("watches of {payer}"), most, left).await?;
    let body = start(Arc::clone(shared), asked, after, place).await?;
    Ok(Reply::stream(body))
}

/// Streams logs as they are printed.
pub(super) async fn follow<B: Backend>(
    shared: &Arc<Shared<B>>,
    asked: Asked,
    after: Option<Cursor>,
    left: &mut Option<Left>,
) -> Result<Reply, Box<Problem>> {
    let org = head::org(asked.operation, &asked.path);
    let payer = shared.backend.payer(&asked.caller, org);
    let own = match &asked.caller.kind {
        CallerKind::Token(id) => id.to_string(),
        _ => asked.caller.actor.id.clone(),
    };
    let rates = shared.options.rates;
    // What a token's own limit refuses costs the org nothing.
    let most = rates.log_streams_of_token;
    let own = enter(shared, format!("logs to {own}"), most, left).await?;
    let all = enter(shared, format!("logs of {payer}"), rates.log_streams, left).await?;
    let body = follow_logs(Arc::clone(shared), (asked, after), [all, own]).await?;
    Ok(Reply::stream(body))
}

/// A place for another stream, or that there is none.
async fn enter<B: Backend>(
    shared: &Arc<Shared<B>>,
    name: String,
    most: u64,
    left: &mut Option<Left>,
) -> Result<Place, Box<Problem>> {
    if let Some(place) = places::enter(shared, name, most).await {
        return Ok(place);
    }
    let none = Left::crowded(most, shared.backend.now());
    *left = Some(none);
    Err(answer::crowded(&none))
}

/// Starts a stream; what can be refused is refused before it begins.
async fn start<B: Backend>(
    shared: Arc<Shared<B>>,
    mut asked: Asked,
    after: Option<u64>,
    place: Place,
) -> Result<AnswerBody, Box<Problem>> {
    asked.query.remove("min_seq");
    asked.query.remove("limit");
    asked.query.remove("cursor");
    let (sender, receiver) = mpsc::channel(WAITING);
    let mut stream = Stream {
        shared,
        asked,
        sender,
        is_synced: false,
        _place: place,
    };
    let mut pace = Pace::new(stream.shared.backend.positions());
    let seen = pace.seen();
    if is_history(stream.asked.operation) {
        let asked_after = stream.asked.query.remove("after");
        let asked_after = asked_after.and_then(|after| after.parse().ok());
        let mut last = after.or(asked_after).unwrap_or(seen);
        if last > seen {
            stream.check_reached(last).await?;
        }
        // This one look is recorded, where looks are.
        let page = stream.shared.backend.read(stream.events_behind(last)).await;
        let first = Events::of(page.map_err(answer::problem)?, seen);
        tokio::spawn(async move {
            let sent = stream.send_events(&mut last, first, &mut pace).await;
            if sent.is_some() {
                stream.follow(last, pace).await;
            }
        });
    } else {
        let mut known = BTreeMap::new();
        let first = stream.list().await?;
        tokio::spawn(async move {
            if stream.send_list(&mut known, seen, first).await.is_some() {
                stream.watch(known, seen, pace).await;
            }
        });
    }
    Ok(AnswerBody::Pieces(receiver))
}

/// When a stream goes on: it hears of every move of the ledger since it last
/// looked, also of one while it was reading or sending.
struct Pace {
    positions: watch::Receiver<Position>,
    epoch: u64,
    /// When its reader next hears that it is alive.
    due: Instant,
}

/// What a stream does next.
enum Next {
    /// Look what is new.
    Look,
    /// Say that it is alive.
    Say,
}

impl Pace {
    fn new(positions: watch::Receiver<Position>) -> Self {
        let epoch = positions.borrow().epoch;
        Self {
            positions,
            epoch,
            due: Instant::now() + WATERMARK,
        }
    }

    /// Where the ledger is, before it is looked at.
    fn seen(&mut self) -> u64 {
        self.positions.borrow_and_update().seq
    }

    /// Waits for what is next. None at the end: the server ends, or the ledger
    /// is another than the one that the stream began in, whose numbers mean
    /// other events.
    async fn next(&mut self) -> Option<Next> {
        let next = tokio::select! {
            biased;
            () = sleep_until(self.due) => {
                self.due = Instant::now() + WATERMARK;
                Next::Say
            }
            changed = self.positions.changed() => {
                changed.ok()?;
                sleep(GATHER).await;
                Next::Look
            }
        };
        (self.positions.borrow().epoch == self.epoch).then_some(next)
    }
}

/// Starts a stream of what instances print, beginning with what they printed,
/// or where somebody was who followed it before.
async fn follow_logs<B: Backend>(
    shared: Arc<Shared<B>>,
    (mut asked, after): (Asked, Option<Cursor>),
    places: [Place; 2],
) -> Result<AnswerBody, Box<Problem>> {
    asked.query.remove("min_seq");
    asked.query.insert("follow".into(), "true".into());
    let backend = &shared.backend;
    let ended = || Problem::new("forbidden", "these logs can't be followed", "log in again");
    // Whatever is printed from here on is heard of.
    let printing = backend.printing().ok_or_else(|| Box::new(ended()))?;
    // It is decided and recorded like any look at logs.
    backend.read(asked.clone()).await.map_err(answer::problem)?;
    let mut who = Follower::default();
    if after.is_some() {
        // Who goes on gets all of it, however much they asked for at first.
        asked.query.insert("tail".into(), MOST.to_string());
        who.at = after;
    }
    let first = backend.printed(&asked, &mut who).await;
    let first = first.ok_or_else(|| Box::new(ended()))?;
    // Later lines are not counted by what was asked of the first ones.
    asked.query.insert("tail".into(), MOST.to_string());
    let (sender, receiver) = mpsc::channel(WAITING);
    let [place, own] = places;
    let stream = Stream {
        shared,
        asked,
        sender,
        is_synced: false,
        _place: place,
    };
    tokio::spawn(async move {
        let _own = own;
        // It ends when the reader is gone, or may no longer look.
        let _ = stream.follow_logs(first, who, printing).await;
    });
    Ok(AnswerBody::Pieces(receiver))
}

/// Whether there may be more where these lines are from: one look has so many,
/// or so long ones, and no more.
fn may_go_on(lines: &[Printed]) -> bool {
    let text = lines.iter().filter_map(|it| it.line.get("line")?.as_str());
    lines.len() >= MOST || text.map(str::len).sum::<usize>() >= MOST_TEXT
}

fn is_history(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::ListEvents | Operation::ListAudit | Operation::ListPlatformEvents
    )
}

struct Stream<B> {
    shared: Arc<Shared<B>>,
    asked: Asked,
    sender: mpsc::Sender<Bytes>,
    is_synced: bool,
    _place: Place,
}

impl<B: Backend> Stream<B> {
    /// Sends what differs whenever the ledger has moved. Ends when the reader
    /// is gone or may no longer look.
    async fn watch(mut self, mut known: BTreeMap<String, Digest>, mut seq: u64, mut pace: Pace) {
        while let Some(next) = self.next(&mut pace).await {
            let sent = match next {
                Next::Say => self.alive(seq).await,
                Next::Look => {
                    seq = pace.seen();
                    let Ok(items) = self.list().await else { return };
                    self.send_list(&mut known, seq, items).await
                }
            };
            if sent.is_none() {
                return;
            }
        }
    }

    async fn follow(mut self, mut last: u64, mut pace: Pace) {
        while let Some(next) = self.next(&mut pace).await {
            let sent = match next {
                Next::Say => self.alive(last).await,
                Next::Look => {
                    let Ok(events) = self.events(last, &mut pace).await else {
                        return;
                    };
                    self.send_events(&mut last, events, &mut pace).await
                }
            };
            if sent.is_none() {
                return;
            }
        }
    }

    /// Waits for what is next; none when there is no reader.
    async fn next(&self, pace: &mut Pace) -> Option<Next> {
        tokio::select! {
            () = self.sender.closed() => None,
            next = pace.next() => next,
        }
    }

    /// Says that the stream is alive, and up to where everything was sent.
    async fn alive(&self, seq: u64) -> Option<()> {
        self.send("watermark", &seq, &json!({ "seq": seq })).await
    }

    /// Sends lines as they are printed; none when there is no reader.
    async fn follow_logs(
        mut self,
        first: Vec<Printed>,
        mut who: Follower,
        mut printing: broadcast::Receiver<LogLine>,
    ) -> Option<()> {
        let mut is_full = may_go_on(&first);
        self.send_lines("snapshot", first).await?;
        self.is_synced = true;
        self.say_where("synced", &who).await?;
        let mut said = Instant::now();
        loop {
            // Lines that another replica heard are not heard of here.
            let until = Instant::now() + LOOK;
            let heard = tokio::select! {
                () = self.sender.closed() => return None,
                // There is more where the last ones were from.
                () = std::future::ready(()), if is_full => Err(None),
                heard = timeout_at(until, printing.recv()) => heard.map_err(Some),
            };
            match heard {
                Ok(Err(RecvError::Closed)) => return None,
                // What was missed is found where it is kept.
                Ok(Ok(_) | Err(RecvError::Lagged(_))) => sleep(GATHER).await,
                Err(_) => {}
            }
            printing = printing.resubscribe();
            let lines = self.shared.backend.printed(&self.asked, &mut who).await?;
            is_full = may_go_on(&lines);
            if !lines.is_empty() {
                self.send_lines("upsert", lines).await?;
                said = Instant::now();
            }
            if said.elapsed() >= WATERMARK {
                self.say_where("watermark", &who).await?;
                said = Instant::now();
            }
        }
    }

    /// Sends lines, each with where its reader is then, and lets each go: a
    /// reader that does not read holds no more than is left.
    async fn send_lines(&self, kind: &str, lines: Vec<Printed>) -> Option<()> {
        for Printed { line, cursor } in lines {
            self.send(kind, &cursor, &line).await?;
        }
        Some(())
    }

    /// Says where a reader is who has had all that there is.
    async fn say_where(&self, kind: &str, who: &Follower) -> Option<()> {
        let seq = self.shared.position().seq;
        let at = who.at.as_ref().map(ToString::to_string);
        let at = at.unwrap_or_default();
        self.send(kind, &at, &json!({ "seq": seq })).await
    }

    /// The whole list.
    async fn list(&self) -> Result<Vec<Value>, Box<Problem>> {
        if self.asked.operation.spec().kind != Kind::List {
            let one = self.shared.backend.read(self.asked.clone()).await;
            return Ok(vec![one.map_err(answer::problem)?]);
        }
        let mut items = Vec::new();
        let mut page = self.asked.clone();
        page.query.insert("limit".into(), "200".into());
        loop {
            let mut value = self.shared.page(&page).await?;
            if let Some(Value::Array(more)) = value.get_mut("items") {
                items.append(more);
            }
            match value.get("next_cursor") {
                Some(Value::String(cursor)) if items.len() < MOST => {
                    page.query.insert("cursor".into(), cursor.clone());
                }
                Some(Value::String(_)) => {
                    return Err(Box::new(Problem::new(
                        "invalid_argument",
                        format!("more than {MOST} objects cannot be watched at once"),
                        "watch a part of them, by a filter",
                    )));
                }
                _ => return Ok(items),
            }
        }
    }

    async fn send_list(
        &mut self,
        known: &mut BTreeMap<String, Digest>,
        seq: u64,
        items: Vec<Value>,
    ) -> Option<()> {
        let mut gone = std::mem::take(known);
        for item in items {
            let id = item.get("id").and_then(Value::as_str).unwrap_or_default();
            let hash = Digest::of(item.to_string().as_bytes());
            let before = gone.remove(id);
            known.insert(id.to_owned(), hash);
            if before != Some(hash) {
                let kind = if self.is_synced { "upsert" } else { "snapshot" };
                self.send(kind, &seq, &item).await?;
            }
        }
        for id in gone.into_keys() {
            self.send("delete", &seq, &json!({ "id": id })).await?;
        }
        self.synced(seq).await
    }

    /// Refuses to go on behind an event that there is not: the ledger was
    /// restored from before it, and what comes would not be what is missed.
    async fn check_reached(&self, last: u64) -> Result<(), Box<Problem>> {
        let head = self.shared.backend.head().await;
        let head = head.map_err(answer::problem)?;
        match last > head.seq {
            true => Err(Box::new(Problem::new(
                "events_archived",
                format!("there is no event {last}: the last one is {}", head.seq),
                format!("begin after {}, or anew", head.seq),
            ))),
            false => Ok(()),
        }
    }

    /// What asks for the events behind `last`: a few.
    fn events_behind(&self, last: u64) -> Asked {
        let mut page = self.asked.clone();
        page.query.insert("after".into(), last.to_string());
        page.query.insert("limit".into(), "200".into());
        page
    }

    /// The events behind `last`: a few, and how far was looked.
    async fn events(&self, last: u64, pace: &mut Pace) -> Result<Events, Box<Problem>> {
        let seen = pace.seen();
        let page = self.shared.backend.look_again(self.events_behind(last));
        Ok(Events::of(page.await.map_err(answer::problem)?, seen))
    }

    async fn send_events(
        &mut self,
        last: &mut u64,
        mut events: Events,
        pace: &mut Pace,
    ) -> Option<()> {
        loop {
            for item in &events.items {
                let seq = item.get("seq").or_else(|| item.get("event")?.get("seq"));
                *last = seq.and_then(Value::as_u64).unwrap_or(*last);
                self.send("upsert", last, item).await?;
            }
            *last = events.looked.max(*last);
            if !events.has_more {
                return self.synced(*last).await;
            }
            events = self.events(*last, pace).await.ok()?;
        }
    }

    async fn synced(&mut self, seq: u64) -> Option<()> {
        if self.is_synced {
            return Some(());
        }
        self.is_synced = true;
        self.send("synced", &seq, &json!({ "seq": seq })).await
    }

    async fn send(
        &self,
        kind: &str,
        id: &(impl std::fmt::Display + ?Sized + Sync),
        data: &Value,
    ) -> Option<()> {
        let text = format!("event: {kind}\nid: {id}\ndata: {data}\n\n");
        self.sender.send(text.into()).await.ok()
    }
}

/// Some events of a history.
struct Events {
    items: Vec<Value>,
    /// The position up to which there is nothing more.
    looked: u64,
    /// Whether there may be more behind it.
    has_more: bool,
}

impl Events {
    /// Those of a page that was read when the ledger was seen up to `seen`.
    fn of(mut page: Value, seen: u64) -> Self {
        // A page may end before anything was found; the next goes on there.
        let next = page.get("next_cursor").and_then(Value::as_str);
        let next = next.and_then(|next| next.parse().ok());
        let items = match page.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        };
        Self {
            items,
            looked: next.unwrap_or(seen),
            has_more: next.is_some(),
        }
    }
}
