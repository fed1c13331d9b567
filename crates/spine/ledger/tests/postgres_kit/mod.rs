//! What the tests of the PostgreSQL engine share: load, and looking at it after.
//!
//! Every event carries who wrote it and its number, so that what is missing or
//! there twice can be named.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use fluffy_ledger::verify::VerifyOptions;
use fluffy_ledger::{
    Actor, Aggregate, AppendError, Domain, Draft, Ledger, LedgerOptions, PostgresAddress,
    StoreError,
};
use serde_json::{Value, json};

/// Who wrote an event, and its number among theirs.
pub(crate) type Mark = (u64, u64);

/// What was acknowledged: the position of each mark.
pub(crate) type Acknowledged = BTreeMap<u64, Mark>;

pub(crate) fn open(url: &str) -> Ledger {
    let address: PostgresAddress = url.parse().unwrap();
    Ledger::open_postgres(&address, LedgerOptions::default()).unwrap()
}

/// A draft of the security class.
pub(crate) fn draft((writer, number): Mark) -> Draft {
    let aggregate = Aggregate::new("app", format!("app{}", writer % 5));
    Draft::new(
        Domain::Platform,
        aggregate,
        "app.updated",
        Actor::system("test"),
    )
    .payload(json!({"writer": writer, "number": number, "text": "x".repeat(400)}))
}

/// Checks that the ledger is a chain without gap, holds everything that was
/// acknowledged where it was said to be, and nothing twice.
pub(crate) fn check(ledger: &Ledger, acknowledged: &Acknowledged) {
    let mut previous = ledger.genesis().hash();
    let mut marks = HashSet::new();
    let mut next = 1;
    loop {
        let events = ledger.read(next, 1_000).unwrap();
        for event in &events {
            assert_eq!((event.seq, event.prev_hash), (next, previous));
            let payload = event.payload.value().unwrap();
            let field = |name: &str| payload.get(name).and_then(Value::as_u64).unwrap();
            let mark = (field("writer"), field("number"));
            assert!(marks.insert(mark), "{mark:?} is there twice, at {next} too");
            if let Some(expected) = acknowledged.get(&next) {
                assert_eq!(mark, *expected, "acknowledged at {next}");
            }
            previous = event.hash;
            next += 1;
        }
        if events.is_empty() {
            break;
        }
    }
    let head = ledger.head().unwrap();
    assert_eq!((head.seq, head.hash), (next - 1, previous));
    let verification = ledger.verify(&VerifyOptions::default()).unwrap();
    assert_eq!(
        (verification.verdict, verification.last_seq),
        (Ok(()), next - 1)
    );
    let last = acknowledged.keys().next_back().copied().unwrap_or(0);
    assert!(
        last < next,
        "{last} was acknowledged, the ledger ends at {}",
        next - 1
    );
}

/// Threads that append until told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    writers: Vec<JoinHandle<Acknowledged>>,
}

impl Load {
    pub(crate) fn start(ledger: &Ledger, writers: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let count = Arc::new(AtomicU64::new(0));
        let start = |writer| {
            let (ledger, stop, count) = (ledger.clone(), Arc::clone(&stop), Arc::clone(&count));
            thread::spawn(move || {
                let mut acknowledged = Acknowledged::new();
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    match ledger.append_blocking(draft((writer, number))) {
                        Ok(appended) => {
                            acknowledged.insert(appended.last_seq, (writer, number));
                            count.fetch_add(1, Ordering::Relaxed);
                            number += 1;
                        }
                        // Nothing was written: the same event may be tried again.
                        Err(AppendError::Store(
                            StoreError::Unavailable(_) | StoreError::Busy(_),
                        )) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
                acknowledged
            })
        };
        let writers = (0..writers).map(start).collect();
        Self {
            stop,
            count,
            writers,
        }
    }

    /// How many events were acknowledged so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(self) -> Acknowledged {
        self.stop.store(true, Ordering::Relaxed);
        self.writers
            .into_iter()
            .flat_map(|writer| writer.join().unwrap())
            .collect()
    }
}
