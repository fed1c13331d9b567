//! Snapshots: what is folded from one equals what is folded from the start.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod bank;

use fluffy_ledger::Ledger;
use fluffy_server::aside::{Aside, Kind};
use fluffy_server::fold::{Fold, Position};
use fluffy_server::sequencer::{Sequencer, SequencerOptions};
use fluffy_server::snapshot::{Saved, Snapshots};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::watch;

use bank::{Bank, Job, fold, open};

/// As the module names it.
const SNAPSHOT: Kind = Kind::new("snapshot");

impl Saved for Bank {
    fn schema() -> fluffy_base::Digest {
        fluffy_base::Digest::of(b"bank 1")
    }
}

struct Place {
    directory: TempDir,
    ledger: Ledger,
    aside: Aside,
}

impl Place {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let ledger = open(directory.path().join("ledger").to_str().unwrap());
        let aside = Aside::open(directory.path()).unwrap();
        Self {
            directory,
            ledger,
            aside,
        }
    }

    fn snapshots(&self) -> Snapshots<Bank> {
        Snapshots::new(self.aside.clone())
    }

    /// Starts from a snapshot where there is one, off the runtime's threads.
    async fn start(&self) -> Sequencer<Bank> {
        let options = SequencerOptions {
            recall: self.snapshots().recall(Handle::current()),
            ..SequencerOptions::default()
        };
        let ledger = self.ledger.clone();
        let start = move || Sequencer::start(ledger, options).unwrap();
        tokio::task::spawn_blocking(start).await.unwrap()
    }

    async fn open_accounts(&self, sequencer: &Sequencer<Bank>, from: u64, to: u64) {
        for number in from..to {
            let name = format!("n{number}");
            let job = Job::Open { name, mark: number };
            sequencer.submit(job).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_and_the_rest_equal_the_whole() {
    let place = Place::new();
    let sequencer = place.start().await;
    place.open_accounts(&sequencer, 0, 20).await;
    let (stop, stopped) = watch::channel(false);
    let keeping = tokio::spawn({
        let (snapshots, sequencer) = (place.snapshots(), sequencer.clone());
        async move { snapshots.keep(&sequencer, stopped).await }
    });
    place.open_accounts(&sequencer, 20, 30).await;
    // At the close a last one is taken.
    stop.send_replace(true);
    keeping.await.unwrap();
    place.open_accounts(&sequencer, 30, 40).await;
    let saved = place.snapshots().load(0).await.unwrap();
    assert_eq!(saved.position, Position { epoch: 1, seq: 30 });
    let again = place.start().await;
    assert_eq!(again.read(Bank::clone), fold(&place.ledger));
    assert_eq!(again.applied().seq, 40);
}

/// A snapshot that claims more than the ledger says shows that it is used.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_used_and_not_only_kept() {
    let place = Place::new();
    let sequencer = place.start().await;
    place.open_accounts(&sequencer, 0, 5).await;
    let mut saved = sequencer.save();
    saved.machine.accounts.insert("planted".to_owned(), 7);
    place.snapshots().take(saved).await.unwrap();
    let again = place.start().await;
    assert!(again.read(|bank| bank.accounts.contains_key("planted")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_or_foreign_snapshot_is_ignored() {
    let place = Place::new();
    let sequencer = place.start().await;
    let planted = |fold: &Fold<Bank>| {
        let mut fold = fold.clone();
        fold.machine.accounts.insert("planted".to_owned(), 7);
        fold
    };
    place.open_accounts(&sequencer, 0, 5).await;
    place.snapshots().take(sequencer.save()).await.unwrap();
    place.open_accounts(&sequencer, 5, 10).await;
    place
        .snapshots()
        .take(planted(&sequencer.save()))
        .await
        .unwrap();
    let key = place.aside.last_keys(SNAPSHOT, 1).await.unwrap().remove(0);
    let good = place.aside.get(SNAPSHOT, &key).await.unwrap().unwrap();
    let whole = fold(&place.ledger);
    let ignored = async |value: Vec<u8>| {
        place.aside.put(SNAPSHOT, &key, value, None).await.unwrap();
        assert_eq!(place.start().await.read(Bank::clone), whole);
        let older = place.snapshots().load(0).await.unwrap();
        assert_eq!(older.position.seq, 5);
    };
    // Torn, flipped, empty, and something else altogether.
    ignored(good.value[..good.value.len() / 2].to_vec()).await;
    // Flips of the packed bytes may unpack to the same, so these are of what
    // is in them.
    let unpacked = zstd::decode_all(good.value.as_slice()).unwrap();
    for at in (0..unpacked.len()).step_by(7) {
        let mut flipped = unpacked.clone();
        flipped[at] ^= 0x10;
        ignored(zstd::encode_all(flipped.as_slice(), 1).unwrap()).await;
    }
    ignored(Vec::new()).await;
    ignored(b"no snapshot".to_vec()).await;
    // Of an event that the ledger never had.
    let mut foreign = planted(&sequencer.save());
    foreign.hash = fluffy_base::Digest::of(b"elsewhere");
    place.snapshots().take(foreign).await.unwrap();
    assert_eq!(place.start().await.read(Bank::clone), whole);
    drop(place.directory);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_three_of_this_ledger_are_kept() {
    let place = Place::new();
    let sequencer = place.start().await;
    let mut lost = sequencer.save();
    lost.position.seq = 1_000;
    place.snapshots().take(lost).await.unwrap();
    for round in 0..5 {
        place
            .open_accounts(&sequencer, round * 2, round * 2 + 2)
            .await;
        place.snapshots().take(sequencer.save()).await.unwrap();
    }
    let mut kept = Vec::new();
    for nth in 0.. {
        let Some(fold) = place.snapshots().load(nth).await else {
            break;
        };
        kept.push(fold.position.seq);
    }
    assert_eq!(kept, [10, 8, 6]);
}

/// A server that is killed before a snapshot is due goes on counting where the
/// last one was taken.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_killed_again_and_again_still_takes_snapshots() {
    let place = Place::new();
    let keep = |sequencer: &Sequencer<Bank>| {
        let snapshots = place.snapshots().with_stride(10);
        let sequencer = sequencer.clone();
        let (stop, stopped) = watch::channel(false);
        // Never told to stop: it dies with the process.
        std::mem::forget(stop);
        tokio::spawn(async move { snapshots.keep(&sequencer, stopped).await })
    };
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let newest = async || {
        let newest = place.snapshots().newest().await;
        newest.map_or(0, |position| position.seq)
    };
    for life in 0..6 {
        let sequencer = place.start().await;
        // One may be taken later than it is due, and the next is counted from it.
        let due = newest().await + 10;
        let keeping = keep(&sequencer);
        let events = (life + 1) * 6;
        place.open_accounts(&sequencer, life * 6, events).await;
        while due <= events && newest().await < due {
            assert!(
                std::time::Instant::now() < limit,
                "none was taken in life {life}"
            );
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        keeping.abort();
    }
    assert!(newest().await >= 30);
}
