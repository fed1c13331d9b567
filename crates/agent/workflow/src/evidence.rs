//! What a run of the tests proves: red, green, or nothing.
//!
//! Red and green are about named tests. The kernel ran them and
//! [`crate::results`] read what they said; here it is decided what follows.
//! [`red()`] wants a new or changed test that fails for the right reason,
//! [`green()`] wants exactly those to pass, unchanged, and nothing else lost.
//! The values carry what the ledger keeps, and only these functions and the
//! ledger's events make them.

mod cause;
mod changed;
mod green;
mod red;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::Digest;
use serde::{Deserialize, Serialize};

pub use changed::ChangedFile;
pub use green::{Green, NotGreen, Proof, Surroundings, green, passing, refactor};
pub use red::{Failure, NotRed, Red, RedTest, red};

use crate::project::parts::Parts;
use crate::results::{Outcome, Report};

/// The most tests that one list of evidence names.
pub const MAX_NAMED: usize = 200;

/// The most bytes of names in one list; evidence has to fit into an event.
const MAX_NAMED_BYTES: usize = 16 * 1024;

/// How every test stood before the session touched anything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Baseline {
    outcomes: BTreeMap<String, Outcome>,
}

impl Baseline {
    /// Takes down a run; of two results with one name the worse counts.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        let mut baseline = Self::default();
        for result in &report.results {
            baseline.add(result.key(), result.outcome);
        }
        baseline
    }

    /// Whether no test is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    pub(crate) fn add(&mut self, key: String, outcome: Outcome) {
        let known = self.outcomes.entry(key).or_insert(outcome);
        *known = (*known).max(outcome);
    }

    /// Every test and its outcome, by name.
    pub fn outcomes(&self) -> impl Iterator<Item = (&str, Outcome)> {
        self.outcomes
            .iter()
            .map(|(key, outcome)| (key.as_str(), *outcome))
    }

    /// How a test ended, if it existed.
    #[must_use]
    pub fn outcome(&self, key: &str) -> Option<Outcome> {
        self.outcomes.get(key).copied()
    }

    /// The tests that passed, by name.
    pub fn passing(&self) -> impl Iterator<Item = &str> {
        let passed = |(key, outcome)| (outcome == Outcome::Passed).then_some(key);
        self.outcomes().filter_map(passed)
    }

    /// How many tests ran.
    #[must_use]
    pub fn executed(&self) -> usize {
        let ran =
            |(_, outcome): &(&str, Outcome)| matches!(outcome, Outcome::Passed | Outcome::Failed);
        self.outcomes().filter(ran).count()
    }

    /// A digest of all of it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        digest_of(self)
    }
}

/// What may not change while source is written.
///
/// It names every file whose tests or test configuration the session changed,
/// with a digest of just those parts. Files it does not name must be as they
/// are in the project. Beyond what fits into an event, files are folded into
/// one digest, and a difference among them is known without a name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Freeze {
    files: BTreeMap<String, Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rest: Option<Digest>,
}

/// The most bytes of paths that a freeze names.
const MAX_FROZEN_BYTES: usize = 48 * 1024;

impl Freeze {
    /// Takes down files whose tests or configuration differ from the project's.
    #[must_use]
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, Parts)>) -> Self {
        let files: BTreeMap<&str, Digest> = files
            .into_iter()
            .map(|(path, parts)| (path, parts.frozen()))
            .collect();
        let mut freeze = Self::default();
        let mut room = MAX_FROZEN_BYTES;
        for (path, digest) in files {
            match room.checked_sub(path.len() + 72) {
                Some(left) => {
                    room = left;
                    freeze.files.insert(path.to_owned(), digest);
                }
                None => {
                    room = 0;
                    let so_far = freeze.rest.map_or([0; 32], |digest| digest.0);
                    let parts = [&so_far[..], path.as_bytes(), digest.as_bytes()];
                    freeze.rest = Some(Digest::of_parts(&parts));
                }
            }
        }
        freeze
    }

    /// The paths that differ from another freeze.
    #[must_use]
    pub fn differences(&self, now: &Self) -> BTreeSet<String> {
        let paths = self.files.keys().chain(now.files.keys());
        let differs = |path: &&String| self.files.get(*path) != now.files.get(*path);
        let mut found: BTreeSet<String> = paths.filter(differs).cloned().collect();
        if self.rest != now.rest {
            found.insert("and more files than are named".to_owned());
        }
        found
    }

    /// Whether the session changed no test and no configuration.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.rest.is_none()
    }
}

/// The digest of a value's JSON, whose maps are sorted.
fn digest_of(value: &impl Serialize) -> Digest {
    // The types here have string keys only, so writing them cannot fail; if it
    // did, the empty text would match no recorded digest.
    let text = serde_json::to_string(value).unwrap_or_default();
    Digest::of(text.as_bytes())
}

/// As many names as one list may hold.
pub(crate) fn named(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut room = MAX_NAMED_BYTES;
    let fits = |name: &String| match room.checked_sub(name.len() + 4) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    };
    names.into_iter().take(MAX_NAMED).take_while(fits).collect()
}
