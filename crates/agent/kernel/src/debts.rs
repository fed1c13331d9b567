//! What a project owes for commits that no test proves, kept in the ledger.
//!
//! Each commit is one event of the project; the debt is their fold. A commit
//! that is ended after a crash counts once, and one that was archived still
//! does. Next: `fluffy_workflow::debt`.

use std::collections::BTreeSet;
use std::path::Path;

use fluffy_base::Digest;
use fluffy_base::id::SessionId;
use fluffy_ledger::{
    Actor, ActorKind, Aggregate, AppendError, Batch, Domain, Draft, Ledger, SegmentError,
};
use fluffy_workflow::debt::{Commit, Debt};
use serde::{Deserialize, Serialize};

const KIND: &str = "debt";
const EVENT: &str = "debt.commit";

/// A commit, as it is counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Which landing it belongs to.
    pub landing: Digest,
    /// What it does to the budget.
    pub commit: Commit,
    /// Files that no test reached after it, if that was measured; some of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreached: Option<Vec<String>>,
}

/// What is known of a project from its commits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Known {
    /// What it owes.
    pub debt: Debt,
    /// Files that no test reached when coverage was last measured.
    pub unreached: BTreeSet<String>,
}

/// Why the debt of a project is not known.
#[derive(Debug, thiserror::Error)]
pub enum LoadDebtError {
    /// The ledger or its archive cannot be read.
    #[error(transparent)]
    Ledger(#[from] SegmentError),
    /// An event of it has an unknown shape.
    #[error("event {seq} about what the project owes cannot be read")]
    Shape {
        /// Which event.
        seq: u64,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// Debts in a ledger.
#[derive(Debug, Clone)]
pub struct Debts {
    ledger: Ledger,
}

impl Debts {
    /// The debts in this ledger.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        Self { ledger }
    }

    /// What a project owes, and what its tests reached last.
    ///
    /// # Errors
    /// It is not known; then nobody may say that nothing is owed.
    pub fn of(&self, project: &Path) -> Result<Known, LoadDebtError> {
        let events = self.ledger.history(Domain::Agent, &aggregate(project))?;
        let (mut known, mut seen) = (Known::default(), BTreeSet::new());
        for event in &events {
            let counted = event.payload.decode::<Counted>();
            let counted = counted.map_err(|source| LoadDebtError::Shape {
                seq: event.seq,
                source,
            })?;
            if seen.insert(counted.landing) {
                known.debt.commit(counted.commit);
            }
            if let Some(unreached) = counted.unreached {
                known.unreached = unreached.into_iter().collect();
            }
        }
        Ok(known)
    }

    /// Counts a commit of a project.
    ///
    /// # Errors
    /// It could not be stored; then it must not be made.
    pub async fn count(
        &self,
        project: &Path,
        session: SessionId,
        counted: &Counted,
    ) -> Result<(), AppendError> {
        // Plain data of ours always has a JSON form.
        let payload = serde_json::to_value(counted).unwrap_or_default();
        let actor = Actor::new(ActorKind::Agent, session.to_string());
        let draft = Draft::new(Domain::Agent, aggregate(project), EVENT, actor).payload(payload);
        self.ledger.append(Batch::from(draft).durable()).await?;
        Ok(())
    }
}

fn aggregate(project: &Path) -> Aggregate {
    let digest = Digest::of(project.as_os_str().as_encoded_bytes()).to_string();
    Aggregate::new(KIND, digest)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fluffy_base::{ManualClock, Timestamp};
    use fluffy_ledger::{LedgerOptions, Retention};

    use super::*;

    #[tokio::test]
    async fn five_unproven_commits_lock_explore_until_one_is_made_good() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(folder.path(), LedgerOptions::default()).unwrap();
        let debts = Debts::new(ledger);
        let (project, other) = (Path::new("/a"), Path::new("/b"));
        let session = SessionId::from_bits(1);
        let unverified = Commit::Unverified { coverage: None };
        let landing = |number: u8, commit: Commit| Counted {
            landing: Digest::of(&[number]),
            commit,
            unreached: None,
        };
        for number in 1..=4 {
            let counted = landing(number, unverified);
            debts.count(project, session, &counted).await.unwrap();
        }
        // Ended again after a crash: it is the same commit.
        let again = landing(4, unverified);
        debts.count(project, session, &again).await.unwrap();
        let is_locked = |project: &Path| debts.of(project).unwrap().debt.budget().is_locked();
        assert!(!is_locked(project));
        let fifth = landing(5, unverified);
        debts.count(project, session, &fifth).await.unwrap();
        assert!(is_locked(project));
        assert!(!is_locked(other));
        let good = Commit::Verified {
            coverage: None,
            fail_to_pass: 1,
        };
        let good = landing(6, good);
        debts.count(project, session, &good).await.unwrap();
        assert!(!is_locked(project));
    }

    #[tokio::test]
    async fn what_was_reached_last_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(folder.path(), LedgerOptions::default()).unwrap();
        let debts = Debts::new(ledger);
        let project = Path::new("/a");
        let files = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        for (number, unreached) in [
            Some(files(&["/a.js", "/b.js"])),
            Some(files(&["/b.js"])),
            None,
        ]
        .into_iter()
        .enumerate()
        {
            let counted = Counted {
                landing: Digest::of(&number.to_be_bytes()),
                commit: Commit::Exempt,
                unreached,
            };
            let session = SessionId::from_bits(1);
            debts.count(project, session, &counted).await.unwrap();
        }
        let known = debts.of(project).unwrap();
        assert_eq!(known.unreached, files(&["/b.js"]).into_iter().collect());
    }

    #[tokio::test]
    async fn what_was_archived_is_still_owed() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(0)));
        let options = LedgerOptions {
            clock: clock.clone(),
            ..LedgerOptions::default()
        };
        let ledger = Ledger::open(folder.path(), options).unwrap();
        let debts = Debts::new(ledger.clone());
        let project = Path::new("/a");
        for number in 1..=5 {
            let counted = Counted {
                landing: Digest::of(&[number]),
                commit: Commit::Unverified { coverage: None },
                unreached: None,
            };
            let session = SessionId::from_bits(1);
            debts.count(project, session, &counted).await.unwrap();
        }
        clock.advance(Duration::from_secs(60 * 86_400));
        let enforced = ledger.enforce(&Retention::agent(folder.path())).unwrap();
        assert!(enforced.pruned_to.is_some(), "{enforced:?}");
        assert!(debts.of(project).unwrap().debt.budget().is_locked());
    }
}
