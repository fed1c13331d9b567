//! Through a pooler that gives a session of the server for one transaction.
//!
//! A real PgBouncer with fewer sessions than the ledger has readers, so that
//! every session is handed around; and two ledgers, as two programs would.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod postgres_kit;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fluffy_ledger::{Ledger, LedgerOptions, PostgresAddress};
use fluffy_test_kit::{FreshDatabase, PrivatePooler, PrivatePostgres};

const LIMIT: Duration = Duration::from_secs(60);

struct World {
    // Dropped in this order: a database needs its server.
    pooler: PrivatePooler,
    database: FreshDatabase,
    server: PrivatePostgres,
}

impl World {
    fn start() -> Self {
        let server = PrivatePostgres::start().unwrap();
        Self {
            pooler: PrivatePooler::start(&server, 2).unwrap(),
            database: FreshDatabase::create_in(&server).unwrap(),
            server,
        }
    }

    fn pooled(&self) -> PostgresAddress {
        let url = self.pooler.database_url(self.database.name());
        url.parse().unwrap()
    }

    fn direct(&self) -> PostgresAddress {
        self.database.url().parse().unwrap()
    }

    fn open(&self) -> Ledger {
        let address = self.pooled().with_direct(self.direct());
        Ledger::open_postgres(&address, LedgerOptions::default()).unwrap()
    }

    /// How many sessions of the server have this name.
    fn sessions(&self, name: &str) -> u32 {
        let sql = format!(
            "select count(*) from pg_stat_activity where datname = '{}' \
             and application_name = '{name}'",
            self.database.name()
        );
        let found = self.server.sql("postgres", &sql).unwrap();
        found.parse().unwrap()
    }
}

#[tokio::test]
async fn a_ledger_behind_a_pooler_appends_reads_and_wakes_as_without() {
    let world = World::start();
    let (one, two) = (world.open(), world.open());
    let mut acknowledged = BTreeMap::new();
    thread::scope(|scope| {
        for reader in [&one, &two] {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..40 {
                        let events = reader.read(1, 5).unwrap();
                        assert!(
                            events
                                .iter()
                                .map(|event| event.seq)
                                .eq(1..=events.len() as u64)
                        );
                        reader.head().unwrap();
                    }
                });
            }
        }
        for number in 0..60 {
            let ledger = if number % 2 == 0 { &one } else { &two };
            let batch = postgres_kit::draft((1, number));
            let appended = ledger.append_blocking(batch).unwrap();
            acknowledged.insert(appended.last_seq, (1, number));
        }
    });
    postgres_kit::check(&one, &acknowledged);
    postgres_kit::check(&two, &acknowledged);
    // Whoever listens is not behind the pooler.
    assert_eq!(world.sessions("fluffy-ledger-signal"), 2);
    assert_eq!(world.sessions("fluffy-ledger-writer"), 2);
    assert!(
        world.sessions("fluffy-ledger-reader") <= 2,
        "the pooler has two"
    );
    let heard = tokio::time::timeout(LIMIT, two.goes_past(59));
    heard.await.expect("the other one hears of it");
}

#[test]
fn what_is_read_leaves_nothing_behind_in_the_sessions_of_a_pooler() {
    let world = World::start();
    let ledger = world.open();
    ledger.append_blocking(postgres_kit::draft((1, 0))).unwrap();
    for _ in 0..20 {
        ledger.read(1, 10).unwrap();
    }
    // Others that share these sessions find them as they were.
    let others = world.pooler.database_url(world.database.name());
    for _ in 0..10 {
        let seen = world.server.sql_at(&others, "show search_path").unwrap();
        assert!(!seen.contains("ledger"), "{seen}");
        let seen = world
            .server
            .sql_at(&others, "show default_transaction_read_only");
        assert_eq!(seen.unwrap(), "off");
    }
}

#[test]
fn without_the_direct_address_a_pooler_is_found_out() {
    // The control: why there is such an address at all.
    let world = World::start();
    let opened = Ledger::open_postgres(&world.pooled(), LedgerOptions::default());
    let Ok(ledger) = opened else { return };
    // Until two of them meet in one session, which no number of tries promises.
    let (failed, until) = (AtomicBool::new(false), Instant::now() + LIMIT);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) && Instant::now() < until {
                    if ledger.read(1, 5).is_err() || ledger.head().is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(failed.into_inner(), "nothing needs the direct address");
}

#[test]
fn a_direct_address_of_another_database_is_refused() {
    let world = World::start();
    let other = FreshDatabase::create_in(&world.server).unwrap();
    let direct: PostgresAddress = other.url().parse().unwrap();
    let address = world.pooled().with_direct(direct);
    let error = Ledger::open_postgres(&address, LedgerOptions::default()).unwrap_err();
    let words = format!("{error:?}");
    assert!(words.contains("Elsewhere"), "{words}");
}
