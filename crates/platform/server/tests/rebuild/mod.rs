//! A long history of real commands, its views folded in every way there is.
//!
//! The views that followed the history, those folded again from the ledger
//! while people read, and those folded from the archive alone must be equal;
//! verification must pass, and name the event of which one byte was changed.
//! Used by a test at a small length and by the benchmarks at full length.

pub(crate) mod past;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fluffy_api::Operation;
use fluffy_base::id::RequestId;
use fluffy_base::{ByteSize, Digest, ManualClock};
use fluffy_control::{Call, Request, State};
use fluffy_ledger::archive::ARCHIVE;
use fluffy_ledger::{Batch, Ledger, LedgerOptions, Retention, Signing, VerifyOptions};
use fluffy_server::fold::{Fold, Position};
use fluffy_server::platform::{Platform, Storage};
use rusqlite::Connection;
use tokio::task::spawn_blocking;

use crate::world::local;
use past::Past;

/// How many events are appended at once.
const BATCH: usize = 1_000;
/// Nothing takes this long unless it is broken.
const LIMIT: Duration = Duration::from_secs(3_600);
const CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);

/// What was seen on the way.
#[derive(Debug)]
pub(crate) struct Found {
    /// How many events there were.
    pub(crate) events: u64,
    /// How long they took to fold again from the ledger.
    pub(crate) rebuilding: Duration,
    /// And from the archive alone.
    pub(crate) from_archive: Duration,
    /// How long the whole chain took to verify.
    pub(crate) verifying: Duration,
    /// How long each read took that was served while views were rebuilt.
    pub(crate) reads: Vec<Duration>,
}

/// Lets so many events happen and folds them in every way; panics where two
/// ways differ.
pub(crate) async fn run(seed: u64, events: u64, home: &Path) -> Found {
    let clock = Arc::new(ManualClock::new("2026-11-16T08:00:00Z".parse().unwrap()));
    let options = LedgerOptions {
        signing: Some(Signing::in_directory(&home.join("trust"))),
        clock: clock.clone(),
        ..LedgerOptions::default()
    };
    let storage = Storage::Directory(home.to_owned());
    let platform = Platform::open(&storage, options).await.unwrap();
    let ledger = platform.ledger().clone();
    let (past, last) = {
        let ledger = ledger.clone();
        spawn_blocking(move || live(&ledger, seed, events))
            .await
            .unwrap()
    };
    follow(&platform, last).await;
    assert_eq!(
        platform.sequencer().read(State::digests),
        past.digests(),
        "seed {seed}: the views are not those that were decided on"
    );
    let last = ledger
        .append_blocking(Batch::new(past.examples()))
        .unwrap()
        .last_seq;
    follow(&platform, last).await;
    let before = platform.sequencer().read(State::digests);

    let reader = Reader::start(&platform);
    let started = Instant::now();
    let rebuilt = platform.rebuild(false).await.unwrap();
    let rebuilding = started.elapsed();
    let reads = reader.stop().await;
    assert_eq!((rebuilt.seq, rebuilt.differ), (last, Vec::new()));
    assert_eq!(rebuilt.digests, before, "seed {seed}: after a rebuild");

    let (verifying, ledger) = spawn_blocking(move || {
        let started = Instant::now();
        verify(&ledger, last);
        (started.elapsed(), ledger)
    })
    .await
    .unwrap();
    flip(&ledger, &home.join("ledger"), seed % last + 1);

    clock.set(past.now().after(Duration::from_secs(10 * 86_400)));
    let archive = home.join("ledger").join(ARCHIVE);
    let (folded, from_archive) = spawn_blocking(move || archived(&ledger, &archive, last))
        .await
        .unwrap();
    assert_eq!(folded, before, "seed {seed}: from the archive alone");
    platform.close().await;
    Found {
        events: last,
        rebuilding,
        from_archive,
        verifying,
        reads,
    }
}

/// Lets things happen; where the ledger ends then.
fn live(ledger: &Ledger, seed: u64, events: u64) -> (Past, u64) {
    let mut past = Past::new(seed);
    let mut last = 0;
    while last < events {
        let drafts = past.next(BATCH);
        last = ledger.append_blocking(Batch::new(drafts)).unwrap().last_seq;
    }
    (past, last)
}

async fn follow(platform: &Platform, seq: u64) {
    let wanted = Position { epoch: 1, seq };
    platform.sequencer().wait_for(wanted, LIMIT).await.unwrap();
}

fn verify(ledger: &Ledger, last: u64) {
    let verified = ledger.verify(&VerifyOptions::default()).unwrap();
    assert_eq!((verified.verdict, verified.last_seq), (Ok(()), last));
}

/// Changes one byte of one event and back; it is found while it is changed.
fn flip(ledger: &Ledger, directory: &Path, seq: u64) {
    let attacker = Connection::open(directory.join("ledger.db")).unwrap();
    attacker.busy_timeout(Duration::from_secs(60)).unwrap();
    attacker
        .execute_batch("DROP TRIGGER IF EXISTS events_are_never_updated")
        .unwrap();
    let row = i64::try_from(seq).unwrap();
    let select = "SELECT payload FROM events WHERE seq = ?1";
    let honest: String = attacker.query_row(select, [row], |row| row.get(0)).unwrap();
    let mut forged = honest.clone().into_bytes();
    let byte = forged.iter_mut().find(|byte| byte.is_ascii_alphanumeric());
    // An empty payload has no letter; what follows its brace is as good.
    match byte {
        Some(byte) => *byte = if *byte == b'a' { b'b' } else { b'a' },
        None => forged = b"[]".to_vec(),
    }
    let update = "UPDATE events SET payload = ?1 WHERE seq = ?2";
    let write = |payload: &str| attacker.execute(update, (payload, row)).unwrap();
    write(&String::from_utf8(forged).unwrap());
    let found = ledger.verify(&VerifyOptions::default()).unwrap();
    let finding = found.verdict.unwrap_err();
    assert_eq!(finding.seq, seq, "{finding:?}");
    write(&honest);
    verify(ledger, ledger.head().unwrap().seq);
}

/// Moves everything to the archive and folds that; how long it took.
fn archived(
    ledger: &Ledger,
    archive: &Path,
    last: u64,
) -> (BTreeMap<&'static str, Digest>, Duration) {
    let retention = Retention {
        archive: archive.to_owned(),
        keep_hot: Duration::from_secs(86_400),
        keep: CENTURY,
        budget: ByteSize(1 << 40),
        segment_events: 100_000,
        ..Retention::agent(archive)
    };
    ledger.enforce(&retention).unwrap();
    assert!(ledger.first_hot().unwrap() > last, "something was left");
    let started = Instant::now();
    let mut fold = Fold::<State>::empty(ledger);
    fold.read_archive(archive, last).unwrap();
    assert_eq!(fold.position.seq, last);
    (fold.machine.digests(), started.elapsed())
}

/// Somebody who reads all the time.
struct Reader {
    stop: Arc<AtomicBool>,
    reading: tokio::task::JoinHandle<Vec<Duration>>,
}

impl Reader {
    fn start(platform: &Platform) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, platform) = (Arc::clone(&stop), platform.clone());
        let reading = tokio::spawn(async move {
            let mut times = Vec::new();
            while times.is_empty() || !ended.load(Ordering::Acquire) {
                let started = Instant::now();
                read(&platform);
                times.push(started.elapsed());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            times
        });
        Self { stop, reading }
    }

    async fn stop(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::Release);
        self.reading.await.unwrap()
    }
}

fn read(platform: &Platform) {
    let caller = local();
    let call = Call {
        caller: &caller,
        request_id: &RequestId::generate().to_string(),
        now: platform.clock().now(),
        idempotency: None,
        if_match: None,
        mint: platform.mint(),
    };
    let request = Request::new(Operation::ListApps, &["local"]);
    let read = platform
        .sequencer()
        .read(|state| fluffy_control::read(state, &call, &request));
    let found = read.result.unwrap();
    let items = found.get("items").and_then(serde_json::Value::as_array);
    assert_ne!(items.map(Vec::len), Some(0));
}
