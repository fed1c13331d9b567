//! A state is folded from the archive where the ledger itself begins later.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod bank;

use std::sync::Arc;
use std::time::Duration;

use fluffy_base::{ManualClock, Timestamp};
use fluffy_ledger::archive::segments;
use fluffy_ledger::{Ledger, LedgerOptions, Retention, Signing};
use fluffy_server::fold::{Fold, FoldError};
use fluffy_server::sequencer::{Sequencer, SequencerOptions, StartSequencerError};
use tempfile::TempDir;

use bank::{Bank, Job};

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test(flavor = "multi_thread")]
async fn what_was_archived_is_folded_from_the_archive() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("ledger");
    let clock = Arc::new(ManualClock::new(
        "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap(),
    ));
    let signing = Signing::in_directory(&home.path().join("keys"));
    let mut retention = Retention::agent(&path);
    retention.key = Some(signing.key.clone());
    retention.keep_hot = 7 * DAY;
    let options = LedgerOptions {
        signing: Some(signing),
        clock: clock.clone(),
        ..LedgerOptions::default()
    };
    let ledger = Ledger::open(&path, options).unwrap();
    let sequencer_options = || SequencerOptions {
        archive: Some(retention.archive.clone()),
        clock: clock.clone(),
        ..SequencerOptions::default()
    };
    let sequencer = Sequencer::<Bank>::start(ledger.clone(), sequencer_options()).unwrap();
    for day in 0..12 {
        let name = format!("n{day}");
        let job = Job::Open { name, mark: day };
        sequencer.submit(job).await.unwrap();
        clock.advance(DAY);
    }
    ledger.enforce(&retention).unwrap();
    let first = ledger.first_hot().unwrap();
    assert!(first > 1, "something was archived");
    assert!(segments(&retention.archive).unwrap().len() > 1);
    let last = ledger.head().unwrap().seq;
    sequencer
        .wait_for(
            fluffy_server::fold::Position {
                epoch: 1,
                seq: last,
            },
            Duration::from_secs(60),
        )
        .await
        .unwrap();
    let whole = sequencer.read(Bank::clone);
    assert_eq!(whole.accounts.len(), 12);
    let again = Sequencer::<Bank>::start(ledger.clone(), sequencer_options()).unwrap();
    assert_eq!(again.read(Bank::clone), whole);

    // Without the archive it is said what is missing, and with another one
    // what does not fit.
    let without = Sequencer::<Bank>::start(ledger.clone(), SequencerOptions::default());
    let Err(StartSequencerError::Fold(FoldError::Archived { first: named })) = without else {
        panic!("{without:?}");
    };
    assert_eq!(named, first);
    let second = &segments(&retention.archive).unwrap()[1];
    std::fs::remove_file(&second.path).unwrap();
    let mut fold = Fold::<Bank>::empty(&ledger);
    let gap = fold
        .read_archive(&retention.archive, first - 1)
        .unwrap_err();
    let FoldError::Archive { seq, source: None } = gap else {
        panic!("{gap:?}");
    };
    assert_eq!(seq, second.first_seq);
}
