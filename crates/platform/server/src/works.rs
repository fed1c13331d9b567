//! What operators have the server do by itself: rebuild, verify, rewrap.
//!
//! Whether they may was decided before. The work is done in the call, and its
//! answer says how it went; work that takes longer than a call goes on, and
//! what it changes is in the ledger like everything else.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::types::OperationError;
use fluffy_base::id::MasterKeyId;
use fluffy_control::Notice;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_ledger::VerifyOptions;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::material::Once;
use crate::platform::Platform;
use crate::safe::{Safe, SecretOwner};

/// How long a call waits for its work.
const PATIENCE: Duration = Duration::from_secs(20);

/// How work went: what it found, or the code and words of why not.
type Worked = Result<Value, (&'static str, String)>;

/// Whether an operation is work of the server's own.
pub(crate) fn is_work(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::RebuildViews
            | Operation::VerifyLedger
            | Operation::RewrapKeys
            | Operation::ArchiveLedger
    )
}

/// Does the work; what the answer says of it.
pub(crate) async fn perform(platform: Platform, safe: Safe, operation: Operation) -> Once {
    let work = tokio::spawn(async move {
        match operation {
            Operation::RebuildViews => rebuild(&platform).await,
            Operation::VerifyLedger => verify(&platform).await,
            Operation::RewrapKeys => rewrap(&platform, &safe).await,
            _ => Err((
                "not_supported",
                "this server was given no place for an archive".to_owned(),
            )),
        }
    });
    let mut once = Once::new();
    let mut say = |name: &str, value: Value| once.insert(name.to_owned(), value);
    match timeout(PATIENCE, work).await {
        Err(_) => {
            say("status", json!("running"));
        }
        Ok(Ok(Ok(found))) => {
            say("status", json!("succeeded"));
            say("result", found);
        }
        Ok(failed) => {
            let (code, message) = match failed {
                Ok(Err(failed)) => failed,
                _ => ("internal", "the work ended early".to_owned()),
            };
            let code = code.to_owned();
            say("status", json!("failed"));
            say("error", json!(OperationError { code, message }));
        }
    }
    once
}

/// Folds the ledger again and compares every view.
async fn rebuild(platform: &Platform) -> Worked {
    let rebuilt = platform.rebuild().await;
    let rebuilt = rebuilt.map_err(|error| ("unavailable", error.to_string()))?;
    if !rebuilt.differ.is_empty() {
        let views = rebuilt.differ.join(", ");
        return Err(("internal", format!("these views differ: {views}")));
    }
    let digests = rebuilt.digests.iter();
    let digests: BTreeMap<_, _> = digests.map(|(view, it)| (*view, it.to_string())).collect();
    Ok(json!({"seq": rebuilt.seq, "digests": digests}))
}

async fn verify(platform: &Platform) -> Worked {
    let ledger = platform.ledger().clone();
    let verified = spawn_blocking(move || ledger.verify(&VerifyOptions::default())).await;
    let Ok(Ok(verified)) = verified else {
        return Err(("unavailable", "the ledger can't be read".to_owned()));
    };
    match &verified.verdict {
        Ok(()) => Ok(json!({
            "events": verified.events,
            "last_seq": verified.last_seq,
            "last_hash": verified.last_hash.to_string(),
        })),
        Err(finding) => Err(("internal", finding.to_string())),
    }
}

/// Wraps every version with the active key, and records it once all are.
async fn rewrap(platform: &Platform, safe: &Safe) -> Worked {
    let Some(to) = safe.key_ids().first().copied() else {
        let why = "the master keys are not at hand".to_owned();
        return Err(("secrets_key_unavailable", why));
    };
    let versions = platform.sequencer().read(|state| {
        let bundles = state.runtime.bundles.values();
        let versions = bundles.flat_map(|bundle| {
            let (org, env) = (bundle.org, bundle.env);
            bundle.versions.iter().map(move |it| {
                let version = it.id;
                (it.master_key, SecretOwner { org, env, version })
            })
        });
        versions.collect::<Vec<_>>()
    });
    let mut moved: BTreeMap<MasterKeyId, u64> = BTreeMap::new();
    for (from, owner) in versions.iter().filter(|(from, _)| *from != to) {
        let rewrapped = safe.rewrap(owner).await;
        rewrapped.map_err(|error| ("secrets_key_unavailable", error.to_string()))?;
        *moved.entry(*from).or_default() += 1;
    }
    for (from, count) in &moved {
        let (from, count) = (*from, *count);
        let notice = RuntimeNotice::KeyRewrapped { from, to, count };
        let said = platform.notice("keys", None, Notice::Runtime(notice)).await;
        said.map_err(|error| ("unavailable", error.to_string()))?;
    }
    let count: u64 = moved.values().sum();
    Ok(json!({"master_key_id": to.to_string(), "rewrapped": count}))
}
