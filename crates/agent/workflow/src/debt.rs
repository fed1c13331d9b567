//! How much untested work a project has taken on, and when that is too much.
//!
//! Measured in coverage where the project's tool reports any: an unverified
//! commit that drops it by more than two points warns, by more than five locks
//! explore until strict commits win it back. Without coverage five unverified
//! commits are the budget. The ledger keeps each commit; this file only computes.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::coverage::Points;
use crate::evidence::Baseline;
use crate::results::{Outcome, Report};

/// A drop that is more than this warns.
pub const WARN: Points = Points::hundredths(200);

/// A drop that is more than this locks explore.
pub const LOCK: Points = Points::hundredths(500);

/// Unverified commits that may be made where there is no coverage.
pub const UNVERIFIED_COMMITS: u32 = 5;

/// What a project owes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Debt {
    /// The coverage after the last verified commit.
    baseline: Option<Points>,
    /// Coverage that unverified commits took away and nobody won back.
    owed: Points,
    /// Whether so much was owed that explore is locked until nothing is.
    locked: bool,
    /// Unverified commits without coverage that were not made good.
    unverified: u32,
}

/// Whether explore is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Budget {
    /// Nothing is owed that matters.
    Open,
    /// Coverage is more than two points below where it was.
    Warned {
        /// By how much.
        drop: Points,
    },
    /// Coverage is to be won back first.
    LockedByCoverage {
        /// By how much it is below.
        drop: Points,
    },
    /// The unverified commits are used up.
    LockedByCommits {
        /// How many there are.
        commits: u32,
    },
}

impl Budget {
    /// Whether explore is closed.
    #[must_use]
    pub const fn is_locked(self) -> bool {
        match self {
            Self::Open | Self::Warned { .. } => false,
            Self::LockedByCoverage { .. } | Self::LockedByCommits { .. } => true,
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("explore is open"),
            Self::Warned { drop } => write!(
                f,
                "commits that no test proves took {drop} points of coverage; more than {LOCK} \
                 lock explore"
            ),
            Self::LockedByCoverage { drop } => write!(
                f,
                "explore is locked until strict commits, with tests that failed before, win \
                 {drop} points of coverage back"
            ),
            Self::LockedByCommits { commits } => write!(
                f,
                "explore is locked by {commits} commits that no test proves; a strict one, with \
                 a test that failed before, wins one back"
            ),
        }
    }
}

/// Coverage before and after a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Before the task.
    pub before: Points,
    /// After it; of a verified commit only what counts, see [`counted`].
    pub after: Points,
}

/// A commit, as the budget sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Commit {
    /// It is verified.
    Verified {
        /// Its coverage, if there is any to be had.
        coverage: Option<Measured>,
        /// How many named tests went from red to green.
        fail_to_pass: usize,
    },
    /// It is unverified.
    Unverified {
        /// Its coverage, if there is any to be had.
        coverage: Option<Measured>,
    },
    /// It is exempt and touches no budget.
    Exempt,
}

impl Debt {
    /// The coverage after the last verified commit.
    #[must_use]
    pub const fn baseline(&self) -> Option<Points> {
        self.baseline
    }

    /// Whether explore is open now.
    #[must_use]
    pub fn budget(&self) -> Budget {
        let drop = self.owed;
        if self.locked {
            return Budget::LockedByCoverage { drop };
        }
        if self.unverified >= UNVERIFIED_COMMITS {
            return Budget::LockedByCommits {
                commits: self.unverified,
            };
        }
        match drop > WARN {
            true => Budget::Warned { drop },
            false => Budget::Open,
        }
    }

    /// Takes a commit into account and says how the budget stands after it.
    ///
    /// Only what unverified work took away is owed, and only what verified
    /// work adds is won back: a strict commit may remove covered code, and an
    /// unverified one cannot pay with tests that nobody saw fail.
    pub fn commit(&mut self, commit: Commit) -> Budget {
        match commit {
            Commit::Exempt => {}
            Commit::Unverified { coverage: None } => {
                self.unverified = self.unverified.saturating_add(1);
            }
            Commit::Unverified {
                coverage: Some(Measured { before, after }),
            } => {
                self.owed = self.owed.more(after.below(before));
                self.locked |= self.owed > LOCK;
            }
            Commit::Verified {
                coverage,
                fail_to_pass,
            } => {
                if fail_to_pass > 0 {
                    self.unverified = self.unverified.saturating_sub(1);
                }
                if let Some(Measured { before, after }) = coverage {
                    self.owed = self.owed.less(before.below(after));
                    self.locked &= self.owed > Points::default();
                    self.baseline = Some(after);
                }
            }
        }
        self.budget()
    }
}

/// Which of a commit's new tests count towards recovery.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counting {
    /// They fail when the change is reverted.
    pub counting: Vec<String>,
    /// They pass without it, so they prove nothing.
    pub idle: Vec<String>,
}

/// Compares a run with the change to one with the change reverted.
#[must_use]
pub fn counting(new: &BTreeSet<String>, with: &Report, reverted: &Report) -> Counting {
    let (with, reverted) = (Baseline::of(with), Baseline::of(reverted));
    let mut found = Counting::default();
    for key in new {
        let passes = with.outcome(key) == Some(Outcome::Passed);
        // A file that cannot be loaded without the change takes its tests along.
        let fails = match reverted.outcome(key) {
            Some(Outcome::Failed | Outcome::DidNotCompile) => true,
            Some(Outcome::Passed | Outcome::Skipped | Outcome::Broken) => false,
            None => reverted
                .outcomes()
                .any(|(_, outcome)| outcome == Outcome::DidNotCompile),
        };
        match passes && fails {
            true => found.counting.push(key.clone()),
            false => found.idle.push(key.clone()),
        }
    }
    found
}

/// The coverage after a strict commit, as far as it counts.
///
/// `without_idle` is a measurement without the tests that prove nothing; if
/// there are such tests and nobody measured without them, nothing is won.
#[must_use]
pub fn counted(
    before: Points,
    after: Points,
    tests: &Counting,
    without_idle: Option<Points>,
) -> Points {
    match (tests.idle.is_empty(), without_idle) {
        (true, _) => after,
        (false, Some(measured)) => after.min(measured),
        (false, None) => after.min(before),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::results::{Exit, Format, TestResult};

    fn points(whole: u32) -> Points {
        Points::hundredths(whole * 100)
    }

    fn measured(before: u32, after: u32) -> Option<Measured> {
        Some(Measured {
            before: points(before),
            after: points(after),
        })
    }

    fn explored(before: u32, after: u32) -> Commit {
        Commit::Unverified {
            coverage: measured(before, after),
        }
    }

    fn strict(before: u32, after: u32) -> Commit {
        Commit::Verified {
            coverage: measured(before, after),
            fail_to_pass: 1,
        }
    }

    #[test]
    fn more_than_two_points_warn_and_more_than_five_lock() {
        let mut debt = Debt::default();
        assert_eq!(debt.commit(strict(70, 80)), Budget::Open);
        assert_eq!(debt.baseline(), Some(points(80)));
        assert_eq!(debt.commit(explored(80, 78)), Budget::Open);
        assert_eq!(
            debt.commit(explored(78, 77)),
            Budget::Warned { drop: points(3) }
        );
        assert_eq!(
            debt.commit(explored(77, 75)),
            Budget::Warned { drop: points(5) }
        );
        assert_eq!(
            debt.commit(explored(75, 74)),
            Budget::LockedByCoverage { drop: points(6) }
        );
    }

    #[test]
    fn a_lock_opens_only_when_verified_work_won_everything_back() {
        let mut debt = Debt::default();
        debt.commit(explored(80, 70));
        assert!(
            debt.commit(explored(70, 90)).is_locked(),
            "unverified tests buy nothing"
        );
        assert!(debt.commit(strict(70, 79)).is_locked());
        assert_eq!(debt.commit(strict(79, 80)), Budget::Open);
    }

    #[test]
    fn a_small_strict_commit_does_not_launder_a_debt() {
        let mut debt = Debt::default();
        debt.commit(explored(80, 76));
        for _ in 0..10 {
            assert_eq!(
                debt.commit(strict(76, 76)),
                Budget::Warned { drop: points(4) }
            );
        }
        // One that removes covered code owes nothing for that.
        assert_eq!(
            debt.commit(strict(76, 70)),
            Budget::Warned { drop: points(4) }
        );
    }

    #[test]
    fn without_coverage_five_commits_are_the_budget() {
        let mut debt = Debt::default();
        let unknown = Commit::Unverified { coverage: None };
        for _ in 0..4 {
            assert_eq!(debt.commit(unknown), Budget::Open);
        }
        assert_eq!(debt.commit(unknown), Budget::LockedByCommits { commits: 5 });
        let verified = |fail_to_pass| Commit::Verified {
            coverage: None,
            fail_to_pass,
        };
        assert!(
            debt.commit(verified(0)).is_locked(),
            "no evidence, nothing returned"
        );
        assert_eq!(debt.commit(verified(3)), Budget::Open, "one is returned");
        assert!(debt.commit(unknown).is_locked());
    }

    #[test]
    fn exempt_commits_touch_nothing() {
        let mut debt = Debt::default();
        debt.commit(explored(80, 70));
        let before = debt.clone();
        debt.commit(Commit::Exempt);
        assert_eq!(debt, before);
    }

    #[test]
    fn tests_that_pass_without_the_change_buy_nothing() {
        let run = |outcomes: &[(&str, Outcome)]| {
            let mut report = Report::new(Format::Pytest, Exit::Code(0));
            for (name, outcome) in outcomes {
                report.push(TestResult::new(name, *outcome));
            }
            report
        };
        let new: BTreeSet<String> = ["real", "empty"].map(ToOwned::to_owned).into();
        let with = run(&[("real", Outcome::Passed), ("empty", Outcome::Passed)]);
        let reverted = run(&[("real", Outcome::Failed), ("empty", Outcome::Passed)]);
        let found = counting(&new, &with, &reverted);
        assert_eq!(
            (found.counting.as_slice(), found.idle.as_slice()),
            (&["real".to_owned()][..], &["empty".to_owned()][..])
        );
        assert_eq!(counted(points(70), points(80), &found, None), points(70));
        assert_eq!(
            counted(points(70), points(80), &found, Some(points(74))),
            points(74)
        );
        let all = Counting {
            idle: Vec::new(),
            ..found
        };
        assert_eq!(counted(points(70), points(80), &all, None), points(80));
        let gone = counting(&new, &with, &run(&[("/a.py", Outcome::DidNotCompile)]));
        assert_eq!(gone.counting.len(), 2);
    }

    proptest! {
        /// A lock opens only by a verified commit, and only when the verified
        /// commits since it fell added at least what was taken away.
        #[test]
        fn invariant_only_verified_work_opens_a_lock(
            commits in proptest::collection::vec((any::<bool>(), 0u32..=100, 0u32..=100), 0..60),
        ) {
            let mut debt = Debt::default();
            let (mut taken, mut won) = (0i64, 0i64);
            for (is_strict, before, after) in commits {
                let was = debt.budget().is_locked();
                let change = i64::from(after) - i64::from(before);
                let now = match is_strict {
                    true => debt.commit(strict(before, after)),
                    false => debt.commit(explored(before, after)),
                };
                match is_strict {
                    true => won += change.max(0),
                    false => taken += (-change).max(0),
                }
                if was && !now.is_locked() {
                    prop_assert!(is_strict);
                    prop_assert!(won >= taken);
                }
            }
        }
    }
}
