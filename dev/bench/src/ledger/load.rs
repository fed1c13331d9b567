//! Events to append, and threads that append them.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use fluffy_ledger::{
    Actor, Aggregate, AppendError, Batch, Domain, Draft, Durability, Ledger, LedgerOptions, Signing,
};
use serde_json::json;
use tokio::runtime::Builder;

/// How many aggregates get events in turn.
const AGGREGATES: u64 = 100;

/// What the events of a load are like.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    /// Their class.
    pub(super) durability: Durability,
    /// The size of their payload.
    pub(super) payload: usize,
}

impl Kind {
    /// The event of this number.
    pub(super) fn draft(self, number: u64) -> Draft {
        self.draft_of(number, format!("a{}", number % AGGREGATES))
    }

    /// The event of this number, of this aggregate.
    pub(super) fn draft_of(self, number: u64, aggregate: String) -> Draft {
        let (domain, name) = match self.durability {
            Durability::Operational => (Domain::Agent, "tool.execute"),
            Durability::Security => (Domain::Platform, "app.updated"),
        };
        let aggregate = Aggregate::new("app", aggregate);
        Draft::new(domain, aggregate, name, Actor::system("bench"))
            .payload(json!({"number": number, "text": self.text(number)}))
    }

    /// The payload of the event of this number, as it is stored.
    pub(super) fn payload(self, number: u64) -> String {
        format!("{{\"number\":{number},\"text\":\"{}\"}}", self.text(number))
    }

    fn text(self, number: u64) -> String {
        let frame = "{\"number\":,\"text\":\"\"}".len() + number.to_string().len();
        "x".repeat(self.payload.saturating_sub(frame))
    }
}

/// Checkpoints are signed, as everywhere in the product.
pub(super) fn signed(directory: &Path) -> LedgerOptions {
    LedgerOptions {
        signing: Some(Signing::in_directory(&directory.join("trust"))),
        ..LedgerOptions::default()
    }
}

/// Fills a ledger with this many events as fast as it goes.
pub(super) fn fill(ledger: &Ledger, kind: Kind, events: u64) -> Result<()> {
    const BATCH: usize = 1_000;
    for first in (0..events).step_by(BATCH) {
        let numbers = first..events.min(first + BATCH as u64);
        ledger.append_blocking(Batch::new(numbers.map(|n| kind.draft(n)).collect()))?;
    }
    Ok(())
}

/// What a crowd of writers got done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    /// How many events are stored.
    pub(super) events: u64,
    /// How long it took until the last was.
    pub(super) time: Duration,
}

impl Done {
    /// The time of one event in the crowd.
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 events")]
    pub(super) fn seconds_per_event(self) -> f64 {
        self.time.as_secs_f64() / self.events as f64
    }

    /// Events per transaction, at least one.
    pub(super) fn group(self, transactions: u64) -> usize {
        let transactions = transactions.max(1);
        let group = (self.events + transactions / 2) / transactions;
        usize::try_from(group).unwrap_or(usize::MAX).max(1)
    }
}

/// Runs `write` on several threads, each with its place among them, and adds
/// up the events they say they stored.
pub(super) fn crowd(
    writers: u64,
    write: impl Fn(u64) -> Result<u64> + Send + Sync,
) -> Result<Done> {
    let write = &write;
    let start = Instant::now();
    let events = thread::scope(|scope| -> Result<u64> {
        let threads: Vec<_> = (0..writers)
            .map(|writer| scope.spawn(move || write(writer)))
            .collect();
        let mut events = 0;
        for thread in threads {
            events += thread.join().map_err(|_| anyhow!("a writer panicked"))??;
        }
        Ok(events)
    })?;
    Ok(Done {
        events,
        time: start.elapsed(),
    })
}

/// Appends events one by one, each durable before the next, for this long.
///
/// The writers are tasks of one runtime, as the requests of a server are.
pub(super) fn storm(ledger: &Ledger, kind: Kind, writers: u64, time: Duration) -> Result<Done> {
    let runtime = Builder::new_current_thread().build()?;
    let start = Instant::now();
    let deadline = start + time;
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let ledger = ledger.clone();
            runtime.spawn(async move {
                let mut events = 0;
                while Instant::now() < deadline {
                    let number = writer * 1_000_000 + events;
                    ledger.append(kind.draft(number)).await?;
                    events += 1;
                }
                Ok::<u64, AppendError>(events)
            })
        })
        .collect();
    let events = runtime.block_on(async {
        let mut events = 0;
        for task in tasks {
            events += task.await??;
        }
        Ok::<u64, anyhow::Error>(events)
    })?;
    Ok(Done {
        events,
        time: start.elapsed(),
    })
}
