//! Streams: what a list holds, then every change of it.
//!
//! A list is read again when the ledger has moved, and what differs is sent;
//! so a stream never shows what a page would not, and ends when its caller may
//! no longer look. Events are followed one by one, from where the caller says.
//! Bounded: a reader that does not read stops its stream, and nothing else.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_api::{Operation, Problem};
use fluffy_base::Digest;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, sleep, timeout_at};

use super::answer;
use super::backend::{Asked, Backend};
use super::body::AnswerBody;
use super::service::Shared;
use crate::node::{Had, LogLine};

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

/// How many streams each payer has open.
#[derive(Debug, Clone, Default)]
pub(super) struct Watches(Arc<Mutex<HashMap<String, usize>>>);

/// A stream that is open, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    watches: Watches,
    payer: String,
}

impl Watches {
    /// A place for one more stream, if there is one.
    pub(super) fn enter(&self, payer: String, most: usize) -> Option<Place> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(payer.clone()).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Place {
            watches: self.clone(),
            payer,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self
            .watches
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.payer) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.payer);
            }
        }
    }
}

/// Starts a stream; what can be refused is refused before it begins.
pub(super) async fn start<B: Backend>(
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
    if is_history(stream.asked.operation) {
        let asked_after = stream.asked.query.remove("after");
        let asked_after = asked_after.and_then(|after| after.parse().ok());
        let now = stream.shared.position().seq;
        let mut last = after.or(asked_after).unwrap_or(now);
        let first = stream.events(last).await?;
        tokio::spawn(async move {
            if stream.send_events(&mut last, first).await.is_some() {
                stream.follow(last).await;
            }
        });
    } else {
        let mut known = BTreeMap::new();
        let seq = stream.shared.position().seq;
        let first = stream.list().await?;
        tokio::spawn(async move {
            if stream.send_list(&mut known, seq, first).await.is_some() {
                stream.watch(known).await;
            }
        });
    }
    Ok(AnswerBody::Pieces(receiver))
}

/// Starts a stream of what instances print, beginning with what they printed.
pub(super) async fn follow_logs<B: Backend>(
    shared: Arc<Shared<B>>,
    mut asked: Asked,
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
    let mut had = Had::default();
    let first = backend.printed(&asked, &mut had).await;
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
        let _ = stream.follow_logs(first, had, printing).await;
    });
    Ok(AnswerBody::Pieces(receiver))
}

fn is_history(operation: Operation) -> bool {
    matches!(operation, Operation::ListEvents | Operation::ListAudit)
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
    async fn watch(mut self, mut known: BTreeMap<String, Digest>) {
        while self.moved().await.is_some() {
            let seq = self.shared.position().seq;
            let Ok(items) = self.list().await else { return };
            if self.send_list(&mut known, seq, items).await.is_none() {
                return;
            }
        }
    }

    async fn follow(mut self, mut last: u64) {
        while self.moved().await.is_some() {
            let Ok(items) = self.events(last).await else {
                return;
            };
            if self.send_events(&mut last, items).await.is_none() {
                return;
            }
        }
    }

    /// Sends lines as they are printed; none when there is no reader.
    async fn follow_logs(
        mut self,
        first: Vec<Value>,
        mut had: Had,
        mut printing: broadcast::Receiver<LogLine>,
    ) -> Option<()> {
        let mut seq = self.shared.position().seq;
        for line in &first {
            self.send("snapshot", seq, line).await?;
        }
        self.synced(seq).await?;
        let mut said = Instant::now();
        loop {
            // Lines that another replica heard are not heard of here.
            let until = Instant::now() + LOOK;
            let heard = tokio::select! {
                () = self.sender.closed() => return None,
                heard = timeout_at(until, printing.recv()) => heard,
            };
            match heard {
                Ok(Err(RecvError::Closed)) => return None,
                // What was missed is found where it is kept.
                Ok(Ok(_) | Err(RecvError::Lagged(_))) => sleep(GATHER).await,
                Err(_) => {}
            }
            printing = printing.resubscribe();
            let lines = self.shared.backend.printed(&self.asked, &mut had).await?;
            seq = self.shared.position().seq;
            for line in &lines {
                self.send("upsert", seq, line).await?;
                said = Instant::now();
            }
            if said.elapsed() >= WATERMARK {
                self.send("watermark", seq, &json!({ "seq": seq })).await?;
                said = Instant::now();
            }
        }
    }

    /// Waits until the ledger has moved, or until the reader should hear that
    /// it has not; none when there is no reader.
    async fn moved(&mut self) -> Option<()> {
        let mut positions = self.shared.backend.positions();
        let until = Instant::now() + WATERMARK;
        tokio::select! {
            () = self.sender.closed() => return None,
            changed = timeout_at(until, positions.changed()) => match changed {
                Ok(Ok(())) => sleep(GATHER).await,
                Ok(Err(_)) => return None,
                Err(_) => {
                    let seq = self.shared.position().seq;
                    self.send("watermark", seq, &json!({ "seq": seq })).await?;
                }
            },
        }
        Some(())
    }

    /// The whole list.
    async fn list(&self) -> Result<Vec<Value>, Box<Problem>> {
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
                self.send(kind, seq, &item).await?;
            }
        }
        for id in gone.into_keys() {
            self.send("delete", seq, &json!({ "id": id })).await?;
        }
        self.synced(seq).await
    }

    /// The events behind `last`: a few, and how far was looked.
    async fn events(&self, last: u64) -> Result<Events, Box<Problem>> {
        let seen = self.shared.position().seq;
        let mut page = self.asked.clone();
        page.query.insert("after".into(), last.to_string());
        page.query.insert("limit".into(), "200".into());
        let mut value = self
            .shared
            .backend
            .read(page)
            .await
            .map_err(answer::problem)?;
        // A page may end before anything was found; the next goes on there.
        let next = value.get("next_cursor").and_then(Value::as_str);
        let next = next.and_then(|next| next.parse().ok());
        let items = match value.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        };
        Ok(Events {
            items,
            looked: next.unwrap_or(seen),
            has_more: next.is_some(),
        })
    }

    async fn send_events(&mut self, last: &mut u64, mut events: Events) -> Option<()> {
        loop {
            for item in &events.items {
                let seq = item.get("seq").or_else(|| item.get("event")?.get("seq"));
                *last = seq.and_then(Value::as_u64).unwrap_or(*last);
                self.send("upsert", *last, item).await?;
            }
            *last = events.looked.max(*last);
            if !events.has_more {
                return self.synced(*last).await;
            }
            events = self.events(*last).await.ok()?;
        }
    }

    async fn synced(&mut self, seq: u64) -> Option<()> {
        if self.is_synced {
            return Some(());
        }
        self.is_synced = true;
        self.send("synced", seq, &json!({ "seq": seq })).await
    }

    async fn send(&self, kind: &str, seq: u64, data: &Value) -> Option<()> {
        let text = format!("event: {kind}\nid: {seq}\ndata: {data}\n\n");
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
