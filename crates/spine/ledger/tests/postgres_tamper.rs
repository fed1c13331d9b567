//! Whoever changes the tables behind the ledger's back is found out.
//!
//! The attacks are plain SQL by someone who owns the database and has dropped
//! the triggers. After each the tables are put back and must verify again, so
//! that every finding is that of its own attack.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod postgres_kit;

use fluffy_ledger::verify::{Finding, FindingKind, VerifyOptions};
use fluffy_ledger::{Ledger, LedgerOptions, PostgresAddress, Signing};
use fluffy_test_kit::FreshDatabase;

use postgres_kit::{draft, open};

const TABLES: [&str; 4] = ["events", "ledger_head", "aggregates", "tree"];

/// A ledger of 600 events whose tables can be put back.
struct Crime {
    database: FreshDatabase,
    ledger: Ledger,
}

impl Crime {
    fn prepare() -> Self {
        let database = FreshDatabase::create().unwrap();
        let ledger = open(database.url());
        for group in 0..6 {
            let drafts = (0..100).map(|number| draft((group, number))).collect();
            ledger
                .append_blocking(fluffy_ledger::Batch::new(drafts))
                .unwrap();
        }
        let crime = Self { database, ledger };
        for table in ["events", "events_0"] {
            crime.run(&format!("alter table ledger.{table} disable trigger user"));
        }
        crime.keep("saved");
        crime
    }

    fn run(&self, sql: &str) {
        self.database.sql(sql).unwrap();
    }

    /// Copies the tables, to be put back later.
    fn keep(&self, name: &str) {
        for table in TABLES {
            self.run(&format!(
                "create table {name}_{table} as select * from ledger.{table}"
            ));
        }
    }

    fn put_back(&self, name: &str) {
        for table in TABLES {
            self.run(&format!(
                "delete from ledger.{table}; insert into ledger.{table} select * from {name}_{table}"
            ));
        }
    }

    fn verdict(&self, options: &VerifyOptions) -> Result<(), Finding> {
        self.ledger.verify(options).unwrap().verdict
    }

    /// Commits one attack, and takes it back.
    fn commit(&self, attack: &str) -> Finding {
        self.run(attack);
        let found = self.verdict(&VerifyOptions::default());
        self.put_back("saved");
        assert_eq!(
            self.verdict(&VerifyOptions::default()),
            Ok(()),
            "after {attack}"
        );
        found.expect_err(attack)
    }
}

#[test]
fn a_change_in_any_column_is_found_at_its_event() {
    let crime = Crime::prepare();
    for (column, change) in [
        ("seq", "seq + 5000"),
        ("domain", "'agent'"),
        ("domain", "'nonsense'"),
        ("aggregate_type", "'apq'"),
        ("aggregate_id", "aggregate_id || 'x'"),
        ("aggregate_version", "aggregate_version + 1"),
        ("event_type", "'app.deleted'"),
        ("event_version", "2"),
        ("occurred_at", "occurred_at + 1"),
        ("actor_type", "'user'"),
        ("actor_id", "upper(actor_id)"),
        ("actor_on_behalf_of", "''"),
        ("org_id", "''"),
        ("app_id", "'a'"),
        ("env_id", "'e'"),
        ("request_id", "request_id || ' '"),
        ("idempotency_key", "''"),
        ("correlation_id", "'c'"),
        ("causation_seq", "1"),
        ("decision_seq", "0"),
        ("payload", "replace(payload, 'x', 'y')"),
        ("payload", "payload || ' '"),
        (
            "prev_hash",
            "set_byte(prev_hash, 31, get_byte(prev_hash, 31) # 1)",
        ),
        ("hash", "set_byte(hash, 0, get_byte(hash, 0) # 128)"),
        ("hash", "substring(hash from 2)"),
    ] {
        let attack = format!("update ledger.events set {column} = {change} where seq = 77");
        let finding = crime.commit(&attack);
        assert_eq!(finding.seq, 77, "{attack}: {finding:?}");
    }
}

#[test]
fn missing_moved_and_forged_events_are_found() {
    let crime = Crime::prepare();
    let forge = |seq: u64| {
        let columns = "domain, aggregate_type, aggregate_id, aggregate_version, event_type, \
            event_version, occurred_at, actor_type, actor_id, request_id, payload, prev_hash, hash";
        format!(
            "insert into ledger.events (seq, {columns}) select {seq}, {columns} \
             from ledger.events where seq = 300"
        )
    };
    for (attack, seq) in [
        ("delete from ledger.events where seq = 1", 1),
        ("delete from ledger.events where seq = 300", 300),
        (
            "delete from ledger.events where seq between 512 and 513",
            512,
        ),
        ("delete from ledger.events where seq > 550", 551),
        ("truncate ledger.events", 1),
        (
            "update ledger.events set seq = 9999 where seq = 10; \
             update ledger.events set seq = 10 where seq = 11; \
             update ledger.events set seq = 11 where seq = 9999",
            10,
        ),
        (forge(601).as_str(), 601),
        (forge(700).as_str(), 601),
        ("update ledger.ledger_head set seq = 599", 600),
        ("update ledger.ledger_head set hash = sha256('')", 600),
        ("delete from ledger.ledger_head", 600),
        (
            "update ledger.tree set hash = sha256('') where level = 8 and position = 1",
            257,
        ),
        ("delete from ledger.tree", 1),
    ] {
        let finding = crime.commit(attack);
        assert_eq!(finding.seq, seq, "{attack}: {finding:?}");
    }
    let finding = crime
        .commit("update ledger.aggregates set version = version + 1 where aggregate_id = 'app1'");
    assert_eq!(finding.kind, FindingKind::VersionMismatch, "{finding:?}");
    let finding = crime.commit("delete from ledger.aggregates where aggregate_id = 'app2'");
    assert_eq!(finding.kind, FindingKind::VersionMismatch, "{finding:?}");
}

#[test]
fn a_tail_cut_off_without_a_trace_is_found_by_a_checkpoint() {
    let crime = Crime::prepare();
    crime.ledger.close().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let signing = Signing::in_directory(directory.path());
    let address: PostgresAddress = crime.database.url().parse().unwrap();
    let options = LedgerOptions {
        signing: Some(signing.clone()),
        ..LedgerOptions::default()
    };
    let ledger = Ledger::open_postgres(&address, options).unwrap();
    ledger.append_blocking(draft((7, 0))).unwrap();
    let key = ledger.public_key();
    ledger.close().unwrap();
    let against = VerifyOptions {
        against: vec![std::fs::read_to_string(&signing.checkpoints).unwrap()],
        key,
        ..VerifyOptions::default()
    };
    assert_eq!(crime.verdict(&against), Ok(()));
    // Every table is as it once was: the rows alone can't show it.
    crime.put_back("saved");
    assert_eq!(crime.verdict(&VerifyOptions::default()), Ok(()));
    let finding = crime.verdict(&against).unwrap_err();
    assert_eq!(
        (finding.seq, finding.kind),
        (601, FindingKind::Truncated),
        "{finding:?}"
    );
}
