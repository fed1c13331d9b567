//! Events of an org with their proofs, page by page.
//!
//! The first page signs a checkpoint; the others are of the same tree, whoever
//! answers them and whatever is appended meanwhile. What is in the archive is
//! read there, and what cannot be read is refused: a page never leaves
//! something out in silence.

use std::path::PathBuf;

use fluffy_api::types::{ExportedEvent, OrgExport, SignedRoot};
use fluffy_control::Refusal;
use fluffy_control::access::{Audit, may_see};
use fluffy_ledger::{Ledger, ProveError, PublicKey, SegmentError, Stretch, archive};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::{Control, mistaken, unavailable};
use crate::http::Asked;

/// How many events a page has, unless asked otherwise.
const PAGE: u64 = 500;

/// Why a page can't be had.
#[derive(Debug, thiserror::Error)]
enum ExportPageError {
    /// There is no proof.
    #[error("the events can't be proven")]
    Prove(#[from] ProveError),
    /// The archive can't be read.
    #[error("the archive can't be read")]
    Archive(#[from] SegmentError),
}

impl Control {
    /// One page.
    pub(super) async fn export(&self, asked: &Asked) -> Result<Value, Refusal> {
        let name = asked.path.first().map(String::as_str).unwrap_or_default();
        let org = self.look(|state| state.access.names.org(name));
        let org = org.ok_or_else(mistaken)?;
        let number = |name: &str| asked.query.get(name)?.parse::<u64>().ok();
        let (after, size) = (number("after").unwrap_or(0), number("size"));
        let limit = usize::try_from(number("limit").unwrap_or(PAGE)).unwrap_or(usize::MAX);
        let signing = self.platform.signing().cloned();
        let signing = signing.ok_or_else(|| {
            let why = "this server signs no checkpoints, and without one nothing is proven";
            Refusal::new("not_supported", why, "ask the operators to give it a key")
        })?;
        let ledger = self.platform.ledger().clone();
        let folder = self.platform.archive().cloned();
        let page = spawn_blocking(move || {
            let signed = match size {
                Some(_) => None,
                // For this export alone: who asks often fills nothing.
                None => Some(ledger.checkpoint_of_all(&signing)?),
            };
            let covered = signed.as_ref().map(|it| it.checkpoint.size);
            let size = size.or(covered).unwrap_or(0);
            let archives = segments(&ledger, folder)?;
            let stretch = Stretch {
                after,
                size,
                limit,
                archives: &archives,
            };
            let page = ledger.prove_page(&stretch, |event| may_see(org, Audit::Included, event))?;
            let items = page.items.into_iter().map(|it| ExportedEvent {
                event: it.event_json(),
                path: it.path,
            });
            let key = |key: PublicKey| key.to_string();
            Ok::<_, ExportPageError>(json!(OrgExport {
                ledger_id: ledger.id().to_string(),
                org_id: org.to_string(),
                size,
                checkpoint: signed.map(|note| SignedRoot {
                    note: note.to_string(),
                    key: ledger.public_key().map(key).unwrap_or_default(),
                }),
                items: items.collect(),
                next_after: page.next,
            }))
        });
        match page.await {
            Ok(page) => page.map_err(|error| self.not_exported(&error)),
            Err(_) => Err(mistaken()),
        }
    }

    fn not_exported(&self, error: &ExportPageError) -> Refusal {
        match error {
            ExportPageError::Prove(ProveError::NoSuchEvent { seq }) => {
                let why = format!("the ledger has no {seq} events");
                let fix = "begin anew without `size`, and go on with that of the first page";
                Refusal::new("cursor_invalid", why, fix)
            }
            ExportPageError::Prove(ProveError::Archived { seq }) => {
                let begin = self.platform.ledger().provable_after();
                let begin = begin.map_or_else(|_| "a later one".to_owned(), |it| it.to_string());
                let why = format!(
                    "event {seq} is in the archive, and this server has not got its segment"
                );
                let fix = format!(
                    "begin after event {begin}, or ask an operator to put the segments back"
                );
                Refusal::new("events_archived", why, fix)
            }
            ExportPageError::Prove(ProveError::Broken { .. }) => {
                tracing::error!("the ledger's tree does not lead to its root");
                let why = "what is stored is not what was signed";
                let fix = "tell the operators: `fluffy events verify` names the first bad event";
                Refusal::new("internal", why, fix)
            }
            other => {
                let error = other as &dyn std::error::Error;
                tracing::warn!(error, "an org was not exported");
                unavailable("the ledger or its archive can't be read")
            }
        }
    }
}

/// The segments of what has left the database.
fn segments(ledger: &Ledger, folder: Option<PathBuf>) -> Result<Vec<PathBuf>, ExportPageError> {
    let first_hot = ledger.first_hot().map_err(ProveError::from)?;
    let found = match folder {
        Some(folder) if first_hot > 1 => archive::segments(&folder)?,
        _ => Vec::new(),
    };
    let archived = found.into_iter().filter(|it| it.first_seq < first_hot);
    Ok(archived.map(|it| it.path).collect())
}
