//! Works that outlast their calls, on files.

use std::path::Path;
use std::sync::Arc;

use fluffy_base::id::RequestId;
use fluffy_base::{Clock as _, ManualClock, SystemClock};
use fluffy_ledger::{LedgerOptions, Signing};
use tempfile::TempDir;

use super::*;
use crate::loops::lease::Timing;
use crate::platform::{Founder, Storage};
use crate::server::{Options, Server};

/// More than any machine needs.
const LONG: Duration = Duration::from_secs(120);

struct Stage {
    folder: TempDir,
    clock: Arc<ManualClock>,
}

impl Stage {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(SystemClock.now()));
        let folder = tempfile::tempdir().unwrap();
        Self { folder, clock }
    }

    async fn start(&self) -> Server {
        let folder: &Path = self.folder.path();
        let ledger = LedgerOptions {
            signing: Some(Signing::in_directory(&folder.join("notary"))),
            clock: Arc::clone(&self.clock) as _,
            ..LedgerOptions::default()
        };
        Server::start(Options {
            storage: Storage::Directory(folder.join("data")),
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
            id,
        }
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

#[tokio::test]
async fn days_that_are_over_are_sealed_and_all_still_fits() {
    let stage = Stage::new();
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
    let folder = stage.folder.path().join("data/ledger/archive");
    let segments = archive::segments(&folder).unwrap();
    assert_eq!(segments.len(), 1);
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
