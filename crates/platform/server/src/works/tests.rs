//! Works that outlast their calls, on files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fluffy_base::id::RequestId;
use fluffy_base::{Clock as _, ManualClock, SystemClock, Timestamp};
use fluffy_control::Body;
use fluffy_control::event::OrgLegalHoldSet;
use fluffy_ledger::{Actor, Aggregate, Draft, LedgerOptions, Signing};
use fluffy_test_kit::FreshDatabase;
use tempfile::TempDir;

use super::*;
use crate::loops::lease::Timing;
use crate::platform::{Founder, Storage};
use crate::server::{Options, Server};

/// More than any machine needs.
const LONG: Duration = Duration::from_secs(120);

struct Stage {
    folder: TempDir,
    /// Where the ledger is, if not in the folder.
    database: Option<FreshDatabase>,
    clock: Arc<ManualClock>,
}

impl Stage {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(SystemClock.now()));
        let folder = tempfile::tempdir().unwrap();
        Self {
            folder,
            database: None,
            clock,
        }
    }

    /// The same on PostgreSQL, with an archive that all replicas would see.
    fn on_postgres() -> Self {
        Self {
            database: Some(FreshDatabase::create().unwrap()),
            ..Self::new()
        }
    }

    fn storage(&self) -> Storage {
        match &self.database {
            None => Storage::Directory(self.folder.path().join("data")),
            Some(database) => Storage::Database {
                address: Box::new(database.url().parse().unwrap()),
                archive: Some(self.archive()),
            },
        }
    }

    fn archive(&self) -> PathBuf {
        self.folder.path().join("data/ledger/archive")
    }

    async fn start(&self) -> Server {
        let folder: &Path = self.folder.path();
        let ledger = LedgerOptions {
            signing: Some(Signing::in_directory(&folder.join("notary"))),
            clock: Arc::clone(&self.clock) as _,
            ..LedgerOptions::default()
        };
        Server::start(Options {
            storage: self.storage(),
            ledger,
            founder: Founder::Local,
            timing: Timing::default(),
        })
        .await
        .unwrap()
    }

    fn work(&self, server: &Server, operation: Operation) -> Work {
        let platform = server.platform().clone();
        let keys = self.folder.path().join("keys");
        let (safe, error) = Safe::open(platform.aside().clone(), &keys);
        assert!(error.is_none(), "{error:?}");
        let id = RequestId::generate().to_string();
        Work {
            platform,
            safe,
            operation,
            rebuild: Rebuild::default(),
            id,
        }
    }

    /// Rebuilds what is named.
    async fn rebuilt(&self, server: &Server, rebuild: Rebuild) -> LongOperation {
        let work = self.work(server, Operation::RebuildViews);
        let work = Work { rebuild, ..work };
        work.perform(LONG).await.unwrap()
    }

    /// Does it to its end.
    async fn done(&self, server: &Server, operation: Operation) -> LongOperation {
        let work = self.work(server, operation);
        work.perform(LONG).await.unwrap()
    }
}

#[tokio::test]
async fn what_outlasts_its_call_is_followed_to_its_end() {
    let stage = Stage::new();
    let server = stage.start().await;
    for operation in [Operation::RebuildViews, Operation::VerifyLedger] {
        let work = stage.work(&server, operation);
        let id = work.id.clone();
        let begun = work.perform(Duration::ZERO).await.unwrap();
        assert_eq!(begun.status, "running");
        let deadline = tokio::time::Instant::now() + LONG;
        let ended = loop {
            let now = look(server.platform(), &id).await.unwrap();
            assert!(tokio::time::Instant::now() < deadline, "{now:?}");
            match now.status.as_str() {
                "running" => tokio::time::sleep(Duration::from_millis(10)).await,
                _ => break now,
            }
        };
        assert_eq!(ended.status, "succeeded", "{ended:?}");
        assert!(ended.result.is_some() && ended.error.is_none(), "{ended:?}");
        // It is there after a restart too, and the next one may begin.
        assert_eq!(look(server.platform(), &id).await.unwrap(), ended);
    }
    let id = RequestId::generate().to_string();
    let unknown = look(server.platform(), &id).await.unwrap_err();
    assert_eq!(unknown.code, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn of_two_rebuilds_at_a_time_the_second_is_refused() {
    let stage = Stage::new();
    let server = stage.start().await;
    let first = stage.work(&server, Operation::RebuildViews);
    let begun = first.begin().await.unwrap();
    let second = stage.work(&server, Operation::RebuildViews);
    let refused = second.clone().perform(LONG).await.unwrap_err();
    assert_eq!(refused.code, "rebuild_running");
    // Another kind does not mind, and when it is done there may be another.
    let verified = stage.done(&server, Operation::VerifyLedger).await;
    assert_eq!(verified.status, "succeeded", "{verified:?}");
    assert_eq!(first.follow(begun).await.status, "succeeded");
    assert_eq!(second.perform(LONG).await.unwrap().status, "succeeded");
    server.stop().await;
}

#[tokio::test]
async fn what_a_restart_interrupts_says_so() {
    let stage = Stage::new();
    let server = stage.start().await;
    let done = stage.done(&server, Operation::VerifyLedger).await;
    let work = stage.work(&server, Operation::RebuildViews);
    work.begin().await.unwrap();
    let id = work.id.clone();
    drop(work);
    assert_eq!(
        look(server.platform(), &id).await.unwrap().status,
        "running"
    );
    server.stop().await;
    let server = stage.start().await;
    let left = look(server.platform(), &id).await.unwrap();
    assert_eq!(left.status, "failed");
    assert_eq!(left.error.unwrap().code, "interrupted");
    // What had ended is as it was, and the same can be asked for again.
    assert_eq!(look(server.platform(), &done.id).await.unwrap(), done);
    let again = stage.done(&server, Operation::RebuildViews).await;
    assert_eq!(again.status, "succeeded", "{again:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn days_that_are_over_are_sealed_and_all_still_fits() {
    for stage in [Stage::new(), Stage::on_postgres()] {
        sealed_and_sound(&stage).await;
    }
}

async fn sealed_and_sound(stage: &Stage) {
    let server = stage.start().await;
    let nothing = stage.done(&server, Operation::ArchiveLedger).await;
    assert_eq!(nothing.status, "succeeded", "{nothing:?}");
    assert_eq!(
        nothing.result.unwrap()["sealed"],
        json!([]),
        "today is not over"
    );
    let head = server.platform().ledger().head().unwrap().seq;
    stage.clock.advance(Duration::from_secs(2 * 24 * 3600));
    let sealed = stage.done(&server, Operation::ArchiveLedger).await;
    let result = sealed
        .result
        .unwrap_or_else(|| panic!("{:?}", sealed.error));
    assert_eq!(result["sealed"][0]["first_seq"], 1);
    assert!(
        result["sealed"][0]["last_seq"].as_u64() >= Some(head),
        "{result}"
    );
    // Nothing leaves the database before its time.
    assert_eq!(result["first_hot_seq"], 1);
    let segments = archive::segments(&stage.archive()).unwrap();
    assert_eq!(segments.len(), 1);
    // It is on record, which is of today and leads to no other segment.
    let again = stage.done(&server, Operation::ArchiveLedger).await;
    assert_eq!(again.result.unwrap()["sealed"], json!([]));
    let mut events = server.platform().ledger().read(1, 10_000).unwrap();
    events.retain(|event| event.event_type == "ledger.segment_sealed");
    assert_eq!((events.len(), events[0].domain), (1, Domain::Platform));
    let said = events[0].payload.value().unwrap();
    let file = segments[0].path.file_name().unwrap().to_string_lossy();
    assert_eq!(said["uri"], file.as_ref());
    assert_eq!(said["first_seq"], 1);
    assert_eq!(said["last_seq"], segments[0].last_seq);
    // A checkpoint is signed when the ledger is closed.
    server.stop().await;
    let server = stage.start().await;
    let verified = stage.done(&server, Operation::VerifyLedger).await;
    let result = verified
        .result
        .unwrap_or_else(|| panic!("{:?}", verified.error));
    assert!(result["checkpoints"].as_u64() >= Some(1), "{result}");
    assert!(result["public_key"].is_string(), "{result}");
    let rebuilt = stage.done(&server, Operation::RebuildViews).await;
    assert_eq!(rebuilt.status, "succeeded", "{rebuilt:?}");
    let from_archive = Rebuild {
        view: Some("orgs".to_owned()),
        from: RebuildFrom::Archive,
    };
    let rebuilt = stage.rebuilt(&server, from_archive.clone()).await;
    let views = rebuilt
        .result
        .unwrap_or_else(|| panic!("{:?}", rebuilt.error));
    let views = views["digests"].as_object().unwrap();
    assert_eq!(views.keys().collect::<Vec<_>>(), ["orgs"]);
    // It is the archive that is read: without it, it says so.
    std::fs::remove_file(&segments[0].path).unwrap();
    std::fs::write(&segments[0].path, b"something else").unwrap();
    let rebuilt = stage.rebuilt(&server, from_archive).await;
    assert_eq!(rebuilt.status, "failed", "{rebuilt:?}");
    let unknown = Rebuild {
        view: Some("weather".to_owned()),
        ..Rebuild::default()
    };
    let rebuilt = stage.rebuilt(&server, unknown).await;
    assert_eq!(rebuilt.error.unwrap().code, "not_found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_common_archive_a_database_keeps_everything() {
    let database = FreshDatabase::create().unwrap();
    let server = Server::start(Options {
        storage: Storage::database(database.url().parse().unwrap()),
        ledger: LedgerOptions::default(),
        founder: Founder::Local,
        timing: Timing::default(),
    })
    .await
    .unwrap();
    let stage = Stage::new();
    let archived = stage.done(&server, Operation::ArchiveLedger).await;
    assert_eq!(archived.error.unwrap().code, "not_supported");
    let from_archive = Rebuild {
        from: RebuildFrom::Archive,
        ..Rebuild::default()
    };
    let rebuilt = stage.rebuilt(&server, from_archive).await;
    assert_eq!(rebuilt.error.unwrap().code, "not_supported");
    server.stop().await;
}

/// Whoever rewrites the whole chain can't rewrite what was signed.
#[tokio::test]
async fn a_checkpoint_of_another_history_is_found() {
    let (stage, other) = (Stage::new(), Stage::new());
    for stage in [&stage, &other] {
        stage.start().await.stop().await;
    }
    let server = stage.start().await;
    let sound = stage.done(&server, Operation::VerifyLedger).await;
    assert_eq!(sound.status, "succeeded", "{sound:?}");
    server.stop().await;
    // The ledger of one with the key and checkpoints of the other.
    let notary = |stage: &Stage| stage.folder.path().join("notary/ledger.checkpoints");
    std::fs::copy(notary(&other), notary(&stage)).unwrap();
    let server = stage.start().await;
    let broken = stage.done(&server, Operation::VerifyLedger).await;
    assert_eq!(broken.status, "failed", "{broken:?}");
    assert_eq!(broken.error.unwrap().code, "internal");
    server.stop().await;
}

impl Stage {
    /// Puts a legal hold on the org of the owner, or takes it away.
    async fn hold(&self, server: &Server, until: Option<Timestamp>) {
        let states = server.platform().sequencer();
        let org = states.read(|state| *state.access.orgs.keys().next().unwrap());
        let body = Body::from(OrgLegalHoldSet { until });
        let aggregate = Aggregate::new("org", org.to_string());
        let actor = Actor::system("test");
        let draft = Draft::new(Domain::Platform, aggregate, body.event_type(), actor)
            .payload(body.payload());
        server.platform().ledger().append(draft).await.unwrap();
        self.until(|| states.read(|state| state.access.orgs[&org].legal_hold == until))
            .await;
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        let deadline = tokio::time::Instant::now() + LONG;
        while !is_so() {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What the law wants kept stays where it is; what leaves the database is in
/// a segment and behind a saved state, and all of it is on record.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaves_the_database_under_a_legal_hold() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let stage = Stage::new();
    let server = stage.start().await;
    let platform = server.platform().clone();
    let later = stage.clock.now().after(DAY * 200);
    stage.hold(&server, Some(later)).await;
    stage.clock.advance(DAY * 2);
    let sealed = archive(&platform, 0).await.unwrap();
    let last = sealed["sealed"][0]["last_seq"].as_u64().unwrap();
    let cluster = || {
        let states = platform.sequencer();
        states.read(|state| {
            (
                state.runtime.cluster.sealed_to,
                state.runtime.cluster.pruned_to,
            )
        })
    };
    // The server may have sealed more by itself.
    let sealed = || cluster().0 >= last && cluster().1 == 0;
    stage.until(sealed).await;
    stage.clock.advance(DAY * 100);
    archive(&platform, 0).await.unwrap();
    assert_eq!(platform.ledger().first_hot().unwrap(), 1, "it is held");
    // One that is over holds nothing.
    stage.hold(&server, Some(stage.clock.now())).await;
    let pruned = archive(&platform, 0).await.unwrap();
    assert!(pruned["pruned_to"].as_u64() >= Some(last), "{pruned}");
    let first = platform.ledger().first_hot().unwrap();
    assert!(first > last);
    stage.until(|| cluster().1 >= first - 1).await;
    let saved = platform.snapshots().newest().await.unwrap();
    assert!(saved.seq >= first - 1, "{saved:?}");
    server.stop().await;
    let server = stage.start().await;
    let verified = stage.done(&server, Operation::VerifyLedger).await;
    assert_eq!(verified.status, "succeeded", "{verified:?}");
    server.stop().await;
}

/// The days that are over are sealed without anybody asking.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_archives_by_itself() {
    let stage = Stage::new();
    stage.start().await.stop().await;
    stage.clock.advance(Duration::from_secs(2 * 24 * 3600));
    let server = stage.start().await;
    let sealed = || {
        let states = server.platform().sequencer();
        states.read(|state| state.runtime.cluster.sealed_to) > 0
    };
    stage.until(sealed).await;
    assert_eq!(archive::segments(&stage.archive()).unwrap().len(), 1);
    server.stop().await;
}

/// A view that is not what the ledger says is replaced, with the snapshots
/// that would bring it back, and that it was rebuilt is on record.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_replaces_what_differs() {
    let stage = Stage::new();
    let server = stage.start().await;
    let platform = server.platform().clone();
    let rebuilt = stage.done(&server, Operation::RebuildViews).await;
    let replaced = |rebuilt: &LongOperation| rebuilt.result.as_ref().unwrap()["replaced"].clone();
    assert_eq!(replaced(&rebuilt), json!([]));
    let mut wrong = platform.sequencer().save();
    wrong.machine.runtime.routing_seq += 1_000;
    platform.snapshots().take(wrong.clone()).await.unwrap();
    platform.sequencer().install(wrong).await.unwrap();
    let seq = || platform.sequencer().read(|state| state.runtime.routing_seq);
    assert!(seq() >= 1_000, "control: it is wrong");
    let rebuilt = stage.done(&server, Operation::RebuildViews).await;
    assert_eq!(replaced(&rebuilt), json!(["routes"]), "{rebuilt:?}");
    assert!(seq() < 1_000);
    assert_eq!(platform.snapshots().newest().await, None);
    let sound = stage.done(&server, Operation::RebuildViews).await;
    assert_eq!(replaced(&sound), json!([]));
    // Every rebuild is on record, with what it found.
    let events = platform.ledger().read(1, 10_000).unwrap();
    let recorded = events
        .iter()
        .filter(|event| event.event_type == "projection.rebuilt" && event.aggregate.id == "routes");
    let recorded: Vec<_> = recorded.map(|it| it.payload.value().unwrap()).collect();
    assert_eq!(recorded.len(), 3);
    let result = sound.result.unwrap();
    assert_eq!(recorded[2]["digest"], result["digests"]["routes"]);
    assert_eq!(recorded[2]["to_seq"], result["seq"]);
    server.stop().await;
}
