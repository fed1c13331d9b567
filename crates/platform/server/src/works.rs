//! What operators have the server do by itself: rebuild, verify, archive; what
//! is done with `keys` is there.
//!
//! Whether they may was decided before. A call waits a while for its work and
//! answers with how it went; what takes longer goes on, and is looked at by the
//! id of the call, on every replica. How it went is kept beside the ledger;
//! what it changes is in the ledger like everything else. A work whose replica
//! is gone is said to be interrupted, and is asked for again.

mod keys;

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::types::{LongOperation, OperationError, Rebuild, RebuildFrom};
use fluffy_base::ByteSize;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::{Notice, Refusal};
use fluffy_ledger::archive;
use fluffy_ledger::retention::Retention;
use fluffy_ledger::{Domain, VerifyOptions};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::aside::{AsideError, Kind};
use crate::platform::Platform;
use crate::safe::Safe;

/// How long a call waits for its work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Works, by the id of the call that asked for them.
const WORKS: Kind = Kind::new("work");
/// How long is kept how one went.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often a replica says that it is at it, and after how long without a
/// word it is not.
const BEAT: Duration = Duration::from_secs(5);
const DEAD: Duration = Duration::from_secs(30);
/// How long events stay in the database, and how many at least.
const HOT: Duration = Duration::from_secs(90 * 24 * 3600);
const HOT_EVENTS: u64 = 5_000_000;
/// Segments are kept without end: for longer than anybody asks.
const FOREVER: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);

/// Why nothing is archived.
const NO_ARCHIVE: &str = "there is no archive: several servers share this database, and a segment in \
     the files of one would be found by no other; start all of them with `--archive FOLDER`, a \
     folder that all of them see";

/// How work went: what it found, or the code and words of why not.
type Worked = Result<Value, (&'static str, String)>;

/// Whether an operation is work of the server's own.
pub(crate) fn is_work(operation: Operation) -> bool {
    kind(operation).is_some()
}

/// What a work is called, and whether there may be two of it at a time.
fn kind(operation: Operation) -> Option<(&'static str, bool)> {
    Some(match operation {
        Operation::RebuildViews => ("rebuild", false),
        Operation::VerifyLedger => ("verify", true),
        Operation::RewrapKeys => ("rewrap", false),
        Operation::VerifyKeys => ("verify_keys", true),
        Operation::ArchiveLedger => ("archive", false),
        _ => return None,
    })
}

/// One work, and what it is done with.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(crate) platform: Platform,
    pub(crate) safe: Safe,
    /// What.
    pub(crate) operation: Operation,
    /// What of it, if it can be said.
    pub(crate) rebuild: Rebuild,
    /// The id of the call that asked for it.
    pub(crate) id: String,
}

/// How a work is, as it is kept.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// Who is at it.
    replica: String,
    operation: LongOperation,
}

impl Work {
    /// Begins, waits for a while, and says how it is then.
    ///
    /// # Errors
    /// The same is being done already, or nothing can be kept of it.
    pub(crate) async fn perform(self, patience: Duration) -> Result<LongOperation, Refusal> {
        let begun = self.begin().await?;
        let work = tokio::spawn(self.follow(begun.clone()));
        match timeout(patience, work).await {
            Ok(Ok(ended)) => Ok(ended),
            _ => Ok(begun),
        }
    }

    async fn begin(&self) -> Result<LongOperation, Refusal> {
        let (kind, shared) = kind(self.operation).unwrap_or(("", true));
        let taken = match shared {
            true => Ok(true),
            false => self.aside().take(&lease(kind), &self.id, DEAD).await,
        };
        if !taken.map_err(|error| unkept(&error))? {
            let code = match self.operation {
                Operation::RebuildViews => "rebuild_running",
                _ => "conflict",
            };
            let why = format!("there is a {kind} that has not ended yet");
            return Err(Refusal::new(code, why, "wait until it is done"));
        }
        let now = self.platform.clock().now();
        let begun = LongOperation {
            id: self.id.clone(),
            kind: kind.to_owned(),
            status: "running".to_owned(),
            progress: None,
            error: None,
            blockers: Vec::new(),
            result: None,
            created_at: now,
            updated_at: now,
        };
        // Before anything is done: who is told of it finds it.
        self.keep(&begun).await.map_err(|error| unkept(&error))?;
        Ok(begun)
    }

    /// Does it, says now and then that it is at it, and keeps how it went.
    async fn follow(self, begun: LongOperation) -> LongOperation {
        let lease = lease(&begun.kind);
        let mut doing = tokio::spawn(self.clone().run());
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let worked = loop {
            tokio::select! {
                worked = &mut doing => break worked,
                _ = beat.tick() => {
                    // One that is lost is made up for by the next.
                    let _ = self.keep(&begun).await;
                    let _ = self.aside().renew(&lease, &self.id, DEAD).await;
                }
            }
        };
        let failed = |code: &str, message: String| OperationError {
            code: code.to_owned(),
            message,
        };
        let (result, error) = match worked {
            Ok(Ok(found)) => (Some(found), None),
            Ok(Err((code, message))) => (None, Some(failed(code, message))),
            Err(_) => (
                None,
                Some(failed("internal", "the work ended early".to_owned())),
            ),
        };
        let ended = LongOperation {
            status: if error.is_none() {
                "succeeded"
            } else {
                "failed"
            }
            .to_owned(),
            result,
            error,
            updated_at: self.platform.clock().now(),
            ..begun
        };
        for pause in [0, 1, 5, 20] {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            if self.keep(&ended).await.is_ok() {
                break;
            }
        }
        // If this fails it ends by itself.
        let _ = self.aside().give_up(&lease, &self.id).await;
        ended
    }

    async fn run(self) -> Worked {
        let Self { platform, safe, .. } = &self;
        match self.operation {
            Operation::RebuildViews => rebuild(platform, &self.rebuild).await,
            Operation::VerifyLedger => verify(platform).await,
            Operation::RewrapKeys => keys::rewrap(platform, safe).await,
            Operation::VerifyKeys => keys::verify(platform, safe).await,
            _ => archive(platform, HOT_EVENTS).await,
        }
    }

    fn aside(&self) -> &crate::aside::Aside {
        self.platform.aside()
    }

    async fn keep(&self, operation: &LongOperation) -> Result<(), AsideError> {
        let kept = Kept {
            replica: self.platform.replica().to_owned(),
            operation: operation.clone(),
        };
        // Plain data is always JSON.
        let bytes = serde_json::to_vec(&kept).unwrap_or_default();
        self.aside().put(WORKS, &self.id, bytes, Some(KEPT)).await
    }
}

/// How a work is that was asked for by the call of this id.
pub(crate) async fn look(platform: &Platform, id: &str) -> Result<LongOperation, Refusal> {
    let entry = platform.aside().get(WORKS, id).await;
    let entry = entry.map_err(|error| unkept(&error))?;
    let unknown = || {
        let why = "nothing of that id is known";
        Refusal::new("not_found", why, "check the id; it is kept for 30 days")
    };
    let entry = entry.ok_or_else(unknown)?;
    let kept: Kept = serde_json::from_slice(&entry.value).map_err(|_| unknown())?;
    let here = kept.replica == platform.replica();
    // Files have one process at a time: whoever was before us is gone.
    let gone = !here && (platform.is_alone() || entry.age > DEAD);
    let mut operation = kept.operation;
    if operation.status == "running" && gone {
        operation.status = "failed".to_owned();
        operation.error = Some(OperationError {
            code: "interrupted".to_owned(),
            message: "the server that was at it ended; ask for it again".to_owned(),
        });
    }
    Ok(operation)
}

/// What keeps two of a kind apart.
fn lease(kind: &str) -> String {
    format!("work:{kind}")
}

fn unkept(error: &AsideError) -> Refusal {
    let why = format!("what becomes of it can't be kept: {error}");
    Refusal::new("unavailable", why, "try again in a moment")
}

/// Folds the ledger again and replaces the views that are not what it says;
/// tells of every view, or of the one that is named.
async fn rebuild(platform: &Platform, asked: &Rebuild) -> Worked {
    let from_archive = asked.from == RebuildFrom::Archive;
    if from_archive && platform.archive().is_none() {
        return Err(("not_supported", NO_ARCHIVE.to_owned()));
    }
    let rebuilt = platform.rebuild(from_archive).await;
    let mut rebuilt = rebuilt.map_err(|error| ("unavailable", error.to_string()))?;
    if let Some(view) = &asked.view {
        if !rebuilt.digests.contains_key(view.as_str()) {
            let names: Vec<_> = rebuilt.digests.keys().copied().collect();
            let why = format!("there is no view `{view}`: {}", names.join(", "));
            return Err(("not_found", why));
        }
        rebuilt.digests.retain(|name, _| name == view);
        rebuilt.differ.retain(|name| name == view);
    }
    let views = rebuilt.digests.iter();
    let views = views.map(|(view, digest)| ((*view).to_owned(), *digest));
    let notice = RuntimeNotice::Rebuilt {
        to_seq: rebuilt.seq,
        views: views.collect(),
    };
    let said = platform
        .notice("ledger", None, Notice::Runtime(notice))
        .await;
    said.map_err(|error| ("unavailable", error.to_string()))?;
    let digests = rebuilt.digests.iter();
    let digests: BTreeMap<_, _> = digests.map(|(view, it)| (*view, it.to_string())).collect();
    Ok(json!({"seq": rebuilt.seq, "digests": digests, "replaced": rebuilt.differ}))
}

/// Checks every event that is at hand, and the checkpoints that this server
/// signed.
async fn verify(platform: &Platform) -> Worked {
    let unread = |why: String| ("unavailable", format!("the ledger can't be read: {why}"));
    let (ledger, signing) = (platform.ledger().clone(), platform.signing().cloned());
    let archived = platform.archive().cloned();
    let verified = spawn_blocking(move || {
        let against = match &signing {
            Some(signing) => match std::fs::read_to_string(&signing.checkpoints) {
                Ok(text) => vec![text],
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                Err(error) => return Err(error.to_string()),
            },
            None => Vec::new(),
        };
        let first_hot = ledger.first_hot().map_err(|error| error.to_string())?;
        let mut segments = match archived {
            Some(folder) => archive::segments(&folder).map_err(|error| error.to_string())?,
            None => Vec::new(),
        };
        // What is still in the database is read there.
        segments.retain(|segment| segment.last_seq < first_hot);
        let options = VerifyOptions {
            against,
            key: ledger.public_key(),
            archives: segments.into_iter().map(|segment| segment.path).collect(),
            ..VerifyOptions::default()
        };
        ledger.verify(&options).map_err(|error| error.to_string())
    });
    let verified = match verified.await {
        Ok(verified) => verified.map_err(unread)?,
        Err(_) => return Err(unread("the server ends".to_owned())),
    };
    match &verified.verdict {
        Ok(()) => Ok(json!({
            "events": verified.events,
            "last_seq": verified.last_seq,
            "last_hash": verified.last_hash.to_string(),
            "checkpoints": verified.checkpoints_checked,
            "public_key": platform.ledger().public_key().map(|key| key.to_string()),
        })),
        Err(finding) => Err(("internal", finding.to_string())),
    }
}

/// Seals and empties as [`archive`], without being asked; what fails is for
/// the next time.
pub(crate) async fn archive_in_passing(platform: &Platform) {
    if platform.archive().is_none() {
        return;
    }
    if let Err((_, why)) = archive(platform, HOT_EVENTS).await {
        tracing::warn!(why, "the days that are over were not archived");
    }
}

/// From which event on nothing leaves the database: of the newest there are
/// always many, what no saved state covers would have to be folded from the
/// archive, and while the law wants anything kept, everything is.
async fn hold_from(platform: &Platform, hot_events: u64) -> u64 {
    let now = platform.clock().now();
    let is_held = platform.sequencer().read(|state| {
        let mut orgs = state.access.orgs.values();
        orgs.any(|org| org.legal_hold.is_some_and(|until| until > now))
    });
    let newest = platform.sequencer().applied().seq;
    let beyond = newest.saturating_sub(hot_events);
    if is_held || beyond == 0 {
        return 1;
    }
    let snapshots = platform.snapshots();
    let mut saved = snapshots.newest().await.map_or(0, |at| at.seq);
    if saved < beyond {
        match snapshots.take(platform.sequencer().save()).await {
            Ok(()) => saved = snapshots.newest().await.map_or(0, |at| at.seq),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "less leaves the database: no state was saved");
            }
        }
    }
    beyond.min(saved) + 1
}

/// Seals the days that are over into segments, and empties the database of
/// what is old enough. Segments are never deleted.
async fn archive(platform: &Platform, hot_events: u64) -> Worked {
    let Some(folder) = platform.archive().cloned() else {
        return Err(("not_supported", NO_ARCHIVE.to_owned()));
    };
    let (ledger, key) = (platform.ledger().clone(), platform.signing().cloned());
    let hold_from = hold_from(platform, hot_events).await;
    let enforced = spawn_blocking(move || {
        let retention = Retention {
            archive: folder,
            keep_hot: HOT,
            keep: FOREVER,
            budget: ByteSize(u64::MAX),
            segment_events: 1_000_000,
            hold_from: Some(hold_from),
            domain: Domain::Platform,
            key: key.map(|signing| signing.key),
        };
        let done = ledger.enforce(&retention);
        let done = done.map_err(|error| error.to_string())?;
        Ok::<_, String>((done, ledger.first_hot().map_err(|error| error.to_string())?))
    });
    let (done, first_hot) = match enforced.await {
        Ok(Ok(done)) => done,
        Ok(Err(why)) => return Err(("unavailable", why)),
        Err(_) => return Err(("unavailable", "the server ends".to_owned())),
    };
    let sealed = done.sealed.iter().map(|segment| {
        let file = segment.path.file_name().unwrap_or_default();
        json!({
            "first_seq": segment.first_seq,
            "last_seq": segment.last_seq,
            "file": file.to_string_lossy(),
            "bytes": segment.bytes,
        })
    });
    Ok(json!({
        "sealed": sealed.collect::<Vec<_>>(),
        "pruned_to": done.pruned_to,
        "first_hot_seq": first_hot,
    }))
}

#[cfg(test)]
mod tests;
