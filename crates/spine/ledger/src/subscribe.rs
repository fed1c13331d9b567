//! Subscriptions: every event from any position, in order.
//!
//! A subscription holds no place in the ledger: whoever remembers the last
//! position it dealt with can go on from there after a restart, without loss
//! or duplicate. It never skips: a hole stops it. Memory is bounded by one
//! page. Views that are kept up to date are in `projection`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::select_all;

use crate::engine::Engine;
use crate::error::StoreError;
use crate::event::{Aggregate, Domain, Event};
use crate::ledger::Ledger;
use crate::wake::Wake;

/// The most events read at once.
const PAGE: usize = 256;

/// Events of a ledger from some position on, as they come.
#[derive(Debug)]
pub struct Subscription {
    engine: Arc<Engine>,
    filter: Arc<Filter>,
    wake: Wake,
    /// The next position to read.
    next: u64,
    /// What was read and not handed out yet.
    ready: VecDeque<Delivery>,
}

/// What a subscription hands out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// An event that the filter picks.
    Event(Box<Event>),
    /// Everything up to this position was looked at; go on after it.
    Watermark(u64),
}

impl Delivery {
    /// The position to remember once this has been dealt with.
    #[must_use]
    pub fn seq(&self) -> u64 {
        match self {
            Self::Event(event) => event.seq,
            Self::Watermark(seq) => *seq,
        }
    }
}

/// Why a subscription can't go on from where it is.
#[derive(Debug, thiserror::Error)]
pub enum SubscriptionError {
    /// An event that should be there is not.
    #[error("event {seq} is missing from the ledger")]
    SequenceGap {
        /// The first that is missing.
        seq: u64,
    },
    /// The events from here on have been archived away.
    #[error("event {seq} is archived; the first at hand is {first}")]
    Archived {
        /// The one that was wanted.
        seq: u64,
        /// The first that can be read.
        first: u64,
    },
    /// The ledger ends before the position: it is not the one remembered.
    #[error("the ledger ends at event {last}, before {seq} which was asked for")]
    Ahead {
        /// The one that was wanted.
        seq: u64,
        /// The last there is.
        last: u64,
    },
    /// The storage can't be read; asking again continues at the same event.
    #[error("the ledger can't be read")]
    Store(#[source] StoreError),
    /// The runtime of the caller shuts down.
    #[error("the runtime ended while the ledger was read")]
    Interrupted,
}

impl Ledger {
    /// The events from `from_seq` on that the filter picks, those there are
    /// and those to come. Positions count from 1; 0 means the same as 1.
    #[must_use]
    pub fn subscribe(&self, from_seq: u64, filter: Filter) -> Subscription {
        let engine = Arc::clone(&self.shared.engine);
        Subscription {
            wake: Wake::new(self.shared.commits.clone(), &engine),
            engine,
            filter: Arc::new(filter),
            next: from_seq.max(1),
            ready: VecDeque::new(),
        }
    }

    /// Done when word comes that the ledger goes on after `seq`.
    ///
    /// Word may be late or get lost, and of another process that has the same
    /// file open there is none: whoever waits looks for itself now and then.
    pub async fn goes_past(&self, seq: u64) {
        let commits = self.shared.commits.clone();
        let told = std::iter::once(commits).chain(self.shared.engine.heard());
        let told = told.map(|mut source| {
            Box::pin(async move {
                if source.wait_for(|last| *last > seq).await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
        });
        select_all(told).await;
    }
}

impl Subscription {
    /// Waits for the next delivery. Nothing is lost if the wait is given up.
    ///
    /// # Errors
    /// A hole, or storage that can't be read; the position stays.
    pub async fn next(&mut self) -> Result<Delivery, SubscriptionError> {
        loop {
            if let Some(delivery) = self.ready.pop_front() {
                return Ok(delivery);
            }
            let (engine, next) = (Arc::clone(&self.engine), self.next);
            let filter = Arc::clone(&self.filter);
            let page = tokio::task::spawn_blocking(move || read(&engine, next, &filter)).await;
            if !self.take(page.map_err(|_| SubscriptionError::Interrupted)??) {
                self.wake.wait().await;
            }
        }
    }

    /// As [`Subscription::next`], for a thread; none if nothing came in time.
    ///
    /// # Errors
    /// As [`Subscription::next`].
    pub fn next_blocking(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<Delivery>, SubscriptionError> {
        // A timeout beyond what the clock can count never comes.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(delivery) = self.ready.pop_front() {
                return Ok(Some(delivery));
            }
            if !self.take(read(&self.engine, self.next, &self.filter)?) {
                let left = deadline.map_or(timeout, |deadline| {
                    deadline.saturating_duration_since(Instant::now())
                });
                if left.is_zero() {
                    return Ok(None);
                }
                self.wake.wait_blocking(left);
            }
        }
    }

    /// Whether the page brought the subscription any further.
    fn take(&mut self, page: Page) -> bool {
        let further = page.next > self.next;
        self.next = page.next;
        self.ready = page.deliveries;
        further
    }
}

#[derive(Debug)]
struct Page {
    deliveries: VecDeque<Delivery>,
    next: u64,
}

fn read(engine: &Engine, next: u64, filter: &Filter) -> Result<Page, SubscriptionError> {
    let events = read_on(engine, next, PAGE)?;
    let end = events.last().map_or(next, |last| last.seq + 1);
    let mut deliveries: VecDeque<Delivery> = events
        .into_iter()
        .filter(|event| filter.picks(event))
        .map(|event| Delivery::Event(Box::new(event)))
        .collect();
    let told = deliveries.back().map_or(next, |last| last.seq() + 1);
    if told < end {
        deliveries.push_back(Delivery::Watermark(end - 1));
    }
    Ok(Page {
        deliveries,
        next: end,
    })
}

/// The events from `next` on; none only if the ledger ends right there.
pub(crate) fn read_on(
    engine: &Engine,
    next: u64,
    limit: usize,
) -> Result<Vec<Event>, SubscriptionError> {
    let events = read_or_explain(engine, next, limit)?;
    if !events.is_empty() {
        return Ok(events);
    }
    // An empty answer looks the same at the end, past it, and where the tail
    // has been cut off; the head tells them apart.
    let last = engine.head().map_err(SubscriptionError::Store)?.seq;
    if next > last + 1 {
        return Err(SubscriptionError::Ahead { seq: next, last });
    }
    if next == last + 1 {
        return Ok(events);
    }
    let events = read_or_explain(engine, next, limit)?;
    if events.is_empty() {
        return Err(SubscriptionError::SequenceGap { seq: next });
    }
    Ok(events)
}

fn read_or_explain(
    engine: &Engine,
    next: u64,
    limit: usize,
) -> Result<Vec<Event>, SubscriptionError> {
    let error = match engine.read(next, limit) {
        Ok(events) => return Ok(events),
        Err(error) => error,
    };
    let StoreError::SequenceGap { seq } = error else {
        return Err(SubscriptionError::Store(error));
    };
    match engine.anchor().map_err(SubscriptionError::Store)? {
        Some(anchor) if seq <= anchor.head.seq => Err(SubscriptionError::Archived {
            seq,
            first: anchor.head.seq + 1,
        }),
        _ => Err(SubscriptionError::SequenceGap { seq }),
    }
}

/// Which events a subscription hands out; every condition must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    domain: Option<Domain>,
    event_types: Vec<String>,
    aggregate: Option<Aggregate>,
    actor: Option<String>,
    correlation: Option<String>,
}

impl Filter {
    /// Picks every event.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Only events of this domain.
    #[must_use]
    pub fn domain(mut self, domain: Domain) -> Self {
        self.domain = Some(domain);
        self
    }

    /// Only events of this type; `tool.*` means every type under `tool.`.
    /// Given more than once, any of them will do.
    #[must_use]
    pub fn event_type(mut self, pattern: impl Into<String>) -> Self {
        self.event_types.push(pattern.into());
        self
    }

    /// Only events of this aggregate.
    #[must_use]
    pub fn aggregate(mut self, aggregate: Aggregate) -> Self {
        self.aggregate = Some(aggregate);
        self
    }

    /// Only what this principal did, or had done on its behalf.
    #[must_use]
    pub fn actor(mut self, id: impl Into<String>) -> Self {
        self.actor = Some(id.into());
        self
    }

    /// Only events of this undertaking.
    #[must_use]
    pub fn correlation(mut self, correlation_id: impl Into<String>) -> Self {
        self.correlation = Some(correlation_id.into());
        self
    }

    /// Whether the event meets every condition.
    #[must_use]
    pub fn picks(&self, event: &Event) -> bool {
        let Self {
            domain,
            event_types,
            aggregate,
            actor,
            correlation,
        } = self;
        let by =
            |id: &String| event.actor.id == *id || event.actor.on_behalf_of.as_ref() == Some(id);
        domain.is_none_or(|domain| event.domain == domain)
            && (event_types.is_empty() || event_types.iter().any(|p| fits(p, &event.event_type)))
            && aggregate
                .as_ref()
                .is_none_or(|aggregate| event.aggregate == *aggregate)
            && actor.as_ref().is_none_or(by)
            && (correlation.is_none() || event.correlation_id == *correlation)
    }
}

fn fits(pattern: &str, event_type: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => event_type.starts_with(prefix),
        None => event_type == pattern,
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::draft::{Batch, Draft};
    use crate::engine::Anchor;
    use crate::event::Actor;
    use crate::ledger::LedgerOptions;

    fn draft(event_type: &str) -> Draft {
        let aggregate = Aggregate::new("session", "one");
        Draft::new(
            Domain::Agent,
            aggregate,
            event_type,
            Actor::system("kernel"),
        )
    }

    fn ledger(directory: &TempDir, events: usize) -> Ledger {
        let ledger = Ledger::open(directory.path(), LedgerOptions::default()).unwrap();
        let drafts = (0..events).map(|_| draft("tool.execute")).collect();
        ledger.append_blocking(Batch::new(drafts)).unwrap();
        ledger
    }

    fn tamper(directory: &TempDir, sql: &str) {
        let database = directory.path().join("ledger.db");
        let connection = rusqlite::Connection::open(database).unwrap();
        let triggers = "SELECT group_concat('DROP TRIGGER ' || name, ';') FROM sqlite_master \
            WHERE type = 'trigger'";
        let drop: String = connection
            .query_row(triggers, [], |row| row.get(0))
            .unwrap();
        connection.execute_batch(&drop).unwrap();
        connection.execute_batch(sql).unwrap();
    }

    /// Positions up to the error that ends the subscription.
    fn run(mut subscription: Subscription) -> (Vec<u64>, SubscriptionError) {
        let mut seen = Vec::new();
        loop {
            match subscription.next_blocking(Duration::ZERO) {
                Ok(delivery) => seen.push(delivery.expect("an error comes first").seq()),
                Err(error) => {
                    // It does not go away by asking again.
                    assert!(subscription.next_blocking(Duration::ZERO).is_err());
                    return (seen, error);
                }
            }
        }
    }

    #[test]
    fn a_hole_stops_a_subscription() {
        for (sql, last) in [
            ("DELETE FROM events WHERE seq = 4", 3),
            ("DELETE FROM events WHERE seq = 1", 0),
            ("DELETE FROM events WHERE seq >= 6", 5),
        ] {
            let directory = TempDir::new().unwrap();
            let ledger = ledger(&directory, 7);
            tamper(&directory, sql);
            let (seen, error) = run(ledger.subscribe(1, Filter::all()));
            assert_eq!(seen, (1..=last).collect::<Vec<_>>(), "{sql}");
            let SubscriptionError::SequenceGap { seq } = error else {
                panic!("{sql}: {error:?}");
            };
            assert_eq!(seq, last + 1, "{sql}");
        }
    }

    #[test]
    fn a_malformed_row_stops_a_subscription() {
        let directory = TempDir::new().unwrap();
        let ledger = ledger(&directory, 3);
        tamper(
            &directory,
            "UPDATE events SET domain = 'nowhere' WHERE seq = 3",
        );
        let (seen, error) = run(ledger.subscribe(1, Filter::all()));
        assert_eq!(seen, [1, 2]);
        let malformed = SubscriptionError::Store(StoreError::Malformed {
            seq: 3,
            column: "domain",
        });
        assert_eq!(format!("{error:?}"), format!("{malformed:?}"));
    }

    #[test]
    fn archived_events_are_not_called_missing() {
        let directory = TempDir::new().unwrap();
        let ledger = ledger(&directory, 5);
        let anchor = Anchor {
            head: ledger.shared.engine.head().unwrap(),
            note: String::new(),
        };
        ledger.append_blocking(draft("tool.result")).unwrap();
        ledger.shared.engine.prune(&anchor).unwrap();
        let (_, error) = run(ledger.subscribe(2, Filter::all()));
        assert!(
            matches!(error, SubscriptionError::Archived { seq: 2, first: 6 }),
            "{error:?}"
        );
        let mut rest = ledger.subscribe(6, Filter::all());
        assert_eq!(
            rest.next_blocking(Duration::ZERO).unwrap().unwrap().seq(),
            6
        );
    }

    #[test]
    fn every_condition_of_a_filter_must_hold() {
        let event = Event {
            actor: Actor::system("kernel").on_behalf_of("ann"),
            ..ledger(&TempDir::new().unwrap(), 1)
                .read(1, 1)
                .unwrap()
                .remove(0)
        };
        let session = |id: &str| Aggregate::new("session", id);
        for (filter, picks) in [
            (Filter::all(), true),
            (Filter::all().domain(Domain::Agent), true),
            (Filter::all().domain(Domain::Platform), false),
            (Filter::all().event_type("tool.execute"), true),
            (Filter::all().event_type("tool"), false),
            (Filter::all().event_type("tool.*"), true),
            (Filter::all().event_type("policy.*"), false),
            (
                Filter::all()
                    .event_type("policy.*")
                    .event_type("tool.execute"),
                true,
            ),
            (Filter::all().aggregate(session("one")), true),
            (Filter::all().aggregate(session("two")), false),
            (Filter::all().actor("kernel"), true),
            (Filter::all().actor("ann"), true),
            (Filter::all().actor("bob"), false),
            (Filter::all().correlation("c"), false),
            (Filter::all().actor("ann").domain(Domain::Plugin), false),
        ] {
            assert_eq!(filter.picks(&event), picks, "{filter:?}");
        }
    }
}
