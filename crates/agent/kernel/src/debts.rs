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

/// A commit, and which landing it belongs to.
#[derive(Debug, Serialize, Deserialize)]
struct Counted {
    landing: Digest,
    commit: Commit,
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

    /// What a project owes.
    ///
    /// # Errors
    /// It is not known; then nobody may say that nothing is owed.
    pub fn of(&self, project: &Path) -> Result<Debt, LoadDebtError> {
        let events = self.ledger.history(Domain::Agent, &aggregate(project))?;
        let (mut debt, mut seen) = (Debt::default(), BTreeSet::new());
        for event in &events {
            let counted = event.payload.decode::<Counted>();
            let counted = counted.map_err(|source| LoadDebtError::Shape {
                seq: event.seq,
                source,
            })?;
            if seen.insert(counted.landing) {
                debt.commit(counted.commit);
            }
        }
        Ok(debt)
    }

    /// Counts a commit of a project.
    ///
    /// # Errors
    /// It could not be stored; then it must not be made.
    pub async fn count(
        &self,
        project: &Path,
        session: SessionId,
        landing: Digest,
        commit: Commit,
    ) -> Result<(), AppendError> {
        // Plain data of ours always has a JSON form.
        let payload = serde_json::to_value(Counted { landing, commit }).unwrap_or_default();
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
        let landing = |number: u8| Digest::of(&[number]);
        for number in 1..=4 {
            let counted = debts.count(project, session, landing(number), unverified);
            counted.await.unwrap();
        }
        // Ended again after a crash: it is the same commit.
        let again = debts.count(project, session, landing(4), unverified);
        again.await.unwrap();
        assert!(!debts.of(project).unwrap().budget().is_locked());
        let fifth = debts.count(project, session, landing(5), unverified);
        fifth.await.unwrap();
        assert!(debts.of(project).unwrap().budget().is_locked());
        assert!(!debts.of(other).unwrap().budget().is_locked());
        let good = Commit::Verified {
            coverage: None,
            fail_to_pass: 1,
        };
        let good = debts.count(project, session, landing(6), good);
        good.await.unwrap();
        assert!(!debts.of(project).unwrap().budget().is_locked());
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
            let landing = Digest::of(&[number]);
            let unverified = Commit::Unverified { coverage: None };
            let counted = debts.count(project, SessionId::from_bits(1), landing, unverified);
            counted.await.unwrap();
        }
        clock.advance(Duration::from_secs(60 * 86_400));
        let enforced = ledger.enforce(&Retention::agent(folder.path())).unwrap();
        assert!(enforced.pruned_to.is_some(), "{enforced:?}");
        assert!(debts.of(project).unwrap().budget().is_locked());
    }
}
