//! Green: what was red passes, unchanged, and nothing else was lost.
//!
//! Judges by names and digests only; what cannot be matched is missing, and
//! what is missing is not green. What is red is in [`super::red()`].

use std::collections::BTreeSet;

use fluffy_base::Digest;
use serde::{Deserialize, Serialize};

use super::cause::is_refused_socket;
use super::red::shown;
use super::{Baseline, Freeze, Red, digest_of, named};
use crate::coverage::Covered;
use crate::results::{Format, Outcome, Report, TestResult, Trouble};

/// What else a run is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// How every test stood before the session.
    pub baseline: &'a Baseline,
    /// What tests and configuration are, taken after the run: a build script
    /// could have changed them while it ran.
    pub freeze: &'a Freeze,
    /// Tests that a person allowed to remove, by name.
    pub removed: &'a BTreeSet<String>,
}

/// Decides whether every red test is green and nothing was lost.
///
/// # Errors
/// Everything that stands in the way.
pub fn green(red: &Red, run: &Report, around: &Surroundings<'_>) -> Result<Green, Box<NotGreen>> {
    let mut not = NotGreen::of(run, around);
    not.thawed.extend(red.freeze().differences(around.freeze));
    let mut fail_to_pass = Vec::new();
    for test in red.tests() {
        let results: Vec<_> = run
            .results
            .iter()
            .filter(|result| test.is(result, around.baseline))
            .collect();
        let passes = results
            .iter()
            .all(|result| result.outcome == Outcome::Passed);
        match passes && !results.is_empty() {
            true => fail_to_pass.extend(results.iter().map(|result| result.key())),
            false => not.still_red.push(test.name.clone()),
        }
    }
    let now = Baseline::of(run);
    for key in red.passing() {
        if now.outcome(key) != Some(Outcome::Passed) {
            not.lose(key, now.outcome(key));
        }
    }
    if run.executed() < red.executed() {
        not.fewer = Some((red.executed(), run.executed()));
    }
    not.check()?;
    let basis = Digest::of_parts(&[around.baseline.digest().as_bytes(), red.digest().as_bytes()]);
    fail_to_pass.sort();
    fail_to_pass.dedup();
    let idle = idle(run, around.baseline, &fail_to_pass);
    let green = Green::new(named(fail_to_pass), basis, run, around, Proof::FailToPass);
    Ok(Green { idle, ..green })
}

/// New tests that pass and that nobody saw fail. Where only the exit code of
/// the whole run is known, any test may be one.
fn idle(run: &Report, before: &Baseline, proven: &[String]) -> Vec<String> {
    let is_proven = |key: &String| proven.binary_search(key).is_ok();
    let is_idle = |key: &String| match run.format {
        Format::ExitCode => true,
        _ => before.outcome(key).is_none() && !is_proven(key),
    };
    let keys: BTreeSet<String> = run.results.iter().map(TestResult::key).collect();
    named(keys.into_iter().filter(is_idle))
}

/// Decides whether a refactoring kept every passing test passing.
///
/// It is verified only if those tests cover the changed lines before and
/// after; otherwise it may end, as unverified.
///
/// # Errors
/// Everything that stands in the way.
pub fn refactor(
    run: &Report,
    around: &Surroundings<'_>,
    covered: Option<&Covered>,
) -> Result<Green, Box<NotGreen>> {
    let mut not = NotGreen::of(run, around);
    not.thawed
        .extend(Freeze::default().differences(around.freeze));
    not.check()?;
    let same: BTreeSet<&str> = around.baseline.passing().collect();
    let now = Baseline::of(run);
    let unchanged = now.passing().collect::<BTreeSet<_>>() == same;
    let proof = match covered {
        Some(covered) if covered.is_complete() && unchanged => Proof::GreenToGreen,
        Some(covered) => Proof::Uncovered {
            places: named(
                covered
                    .uncovered()
                    .map(|(path, line)| format!("{path}:{line}")),
            ),
        },
        None => Proof::NoCoverage,
    };
    Ok(Green::new(
        Vec::new(),
        around.baseline.digest(),
        run,
        around,
        proof,
    ))
}

/// Decides whether existing tests still pass, for work without a red test.
///
/// # Errors
/// Everything that stands in the way.
pub fn passing(run: &Report, around: &Surroundings<'_>) -> Result<Green, Box<NotGreen>> {
    let mut not = NotGreen::of(run, around);
    // A project without tests has nothing that could fail, and often no
    // runner either.
    if around.baseline.is_empty() {
        let is_absence =
            |trouble: &Trouble| matches!(trouble, Trouble::NoTests | Trouble::Runner { .. });
        not.trouble.retain(|trouble| !is_absence(trouble));
    }
    not.check()?;
    Ok(Green::new(
        Vec::new(),
        around.baseline.digest(),
        run,
        around,
        Proof::Explored,
    ))
}

/// The evidence with which a change goes to review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Green {
    fail_to_pass: Vec<String>,
    pass_to_pass: usize,
    pass_to_pass_digest: Digest,
    executed: usize,
    basis: Digest,
    proof: Proof,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    idle: Vec<String>,
}

impl Green {
    fn new(
        fail_to_pass: Vec<String>,
        basis: Digest,
        run: &Report,
        around: &Surroundings<'_>,
        proof: Proof,
    ) -> Self {
        let kept = around
            .baseline
            .passing()
            .filter(|key| !around.removed.contains(*key));
        let kept: Vec<&str> = kept.collect();
        Self {
            fail_to_pass,
            pass_to_pass: kept.len(),
            pass_to_pass_digest: digest_of(&kept),
            executed: run.executed(),
            basis,
            proof,
            idle: Vec::new(),
        }
    }

    /// New tests that were never seen to fail, so prove nothing.
    #[must_use]
    pub fn idle(&self) -> &[String] {
        &self.idle
    }

    /// The tests that the kernel saw fail and then pass.
    #[must_use]
    pub fn fail_to_pass(&self) -> &[String] {
        &self.fail_to_pass
    }

    /// How many tests passed before and pass now.
    #[must_use]
    pub const fn pass_to_pass(&self) -> usize {
        self.pass_to_pass
    }

    /// How many tests ran.
    #[must_use]
    pub const fn executed(&self) -> usize {
        self.executed
    }

    /// What this follows from: the baseline, and what was red.
    #[must_use]
    pub const fn basis(&self) -> Digest {
        self.basis
    }

    /// What it proves.
    #[must_use]
    pub const fn proof(&self) -> &Proof {
        &self.proof
    }
}

/// What a passing run proves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Proof {
    /// Named tests failed and now pass.
    FailToPass,
    /// The same tests pass and cover what changed, before and after.
    GreenToGreen,
    /// The same tests pass, and changed lines are not covered.
    Uncovered {
        /// `path:line` of some of them; empty if only the list of tests differs.
        places: Vec<String>,
    },
    /// The same tests pass, and nobody knows what they cover.
    NoCoverage,
    /// Existing tests pass; nothing was red first.
    Explored,
}

impl Proof {
    /// Whether the change may be called verified.
    #[must_use]
    pub const fn is_verified(&self) -> bool {
        match self {
            Self::FailToPass | Self::GreenToGreen => true,
            Self::Uncovered { .. } | Self::NoCoverage | Self::Explored => false,
        }
    }
}

/// Everything that keeps a run from being green.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, thiserror::Error)]
#[error("the tests are not green: {}", self.summary())]
pub struct NotGreen {
    /// What is wrong with the run itself.
    pub trouble: Vec<Trouble>,
    /// Tests that were red and do not pass.
    pub still_red: Vec<String>,
    /// Tests that fail and did not fail before.
    pub failing: Vec<String>,
    /// Tests that passed before and are gone.
    pub missing: Vec<String>,
    /// Tests that passed before and are skipped.
    pub skipped: Vec<String>,
    /// Failures for want of a network; they are failures all the same.
    pub refused_sockets: Vec<String>,
    /// Frozen files that are not as they were.
    pub thawed: Vec<String>,
    /// How many tests ran before, and now, if those are fewer.
    pub fewer: Option<(usize, usize)>,
}

impl NotGreen {
    /// What is wrong by the baseline alone.
    fn of(run: &Report, around: &Surroundings<'_>) -> Self {
        let mut not = Self {
            trouble: run.trouble.clone(),
            ..Self::default()
        };
        let now = Baseline::of(run);
        let kept = |key: &&str| !around.removed.contains(*key);
        let before: Vec<&str> = around.baseline.passing().filter(kept).collect();
        for key in &before {
            match now.outcome(key) {
                Some(Outcome::Passed) => {}
                other => not.lose(key, other),
            }
        }
        for result in &run.results {
            let key = result.key();
            if result.outcome <= Outcome::Skipped {
                continue;
            }
            if is_refused_socket(result.message.as_deref().unwrap_or_default()) {
                not.refused_sockets.push(key.clone());
            }
            // What passed before is in the list already, what failed before
            // is not this session's doing.
            if around
                .baseline
                .outcome(&key)
                .is_none_or(|was| was == Outcome::Skipped)
            {
                not.failing.push(key);
            }
        }
        let ran_before = around
            .baseline
            .executed()
            .saturating_sub(around.removed.len());
        if run.executed() < ran_before {
            not.fewer = Some((ran_before, run.executed()));
        }
        not
    }

    fn lose(&mut self, key: &str, now: Option<Outcome>) {
        let list = match now {
            None => &mut self.missing,
            Some(Outcome::Skipped) => &mut self.skipped,
            Some(Outcome::Passed | Outcome::Failed | Outcome::DidNotCompile | Outcome::Broken) => {
                &mut self.failing
            }
        };
        list.push(key.to_owned());
    }

    fn check(mut self) -> Result<(), Box<Self>> {
        if self == Self::default() {
            return Ok(());
        }
        self.trouble.truncate(20);
        for list in [
            &mut self.still_red,
            &mut self.failing,
            &mut self.missing,
            &mut self.skipped,
            &mut self.refused_sockets,
            &mut self.thawed,
        ] {
            list.sort();
            list.dedup();
            *list = named(std::mem::take(list));
        }
        Err(Box::new(self))
    }

    fn summary(&self) -> String {
        let lists = [
            ("still red", &self.still_red),
            ("failing", &self.failing),
            ("gone", &self.missing),
            ("skipped", &self.skipped),
            ("socket refused", &self.refused_sockets),
            ("frozen and changed", &self.thawed),
        ];
        let mut parts: Vec<String> = self.trouble.iter().map(ToString::to_string).collect();
        for (what, names) in lists {
            if !names.is_empty() {
                parts.push(format!("{what}: {}", shown(names)));
            }
        }
        if let Some((before, now)) = self.fewer {
            parts.push(format!("{now} tests ran, before it were {before}"));
        }
        parts.join("; ")
    }
}
