//! What an attempt says of itself, and the lines it says it in.
//!
//! Written inside the sandbox by code that is trusted with nothing: the host
//! bounds what it reads and believes canaries first. Next: `verdict`.

use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The longest line the host reads from an attempt.
pub(crate) const LONGEST_LINE: usize = 64 * 1024;

/// What an attempt says came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase", deny_unknown_fields)]
pub enum Outcome {
    /// Something stopped it.
    Blocked {
        /// What it saw.
        detail: String,
        /// The system's error number.
        errno: Option<i32>,
    },
    /// It believes it worked.
    Succeeded {
        /// What it did.
        detail: String,
        /// What it carried off, for the host to compare with its secrets.
        loot: Vec<String>,
    },
    /// This machine lacks what the attempt needs.
    Unavailable {
        /// What is missing.
        detail: String,
    },
}

impl Outcome {
    /// Stopped by an error of the system.
    pub(crate) fn stopped(what: &str, error: impl Into<io::Error>) -> Self {
        let error: io::Error = error.into();
        Self::Blocked {
            detail: format!("{what}: {error}"),
            errno: error.raw_os_error(),
        }
    }

    /// Stopped by something other than an error number.
    pub(crate) fn blocked(detail: impl Into<String>) -> Self {
        Self::Blocked {
            detail: detail.into(),
            errno: None,
        }
    }

    /// Worked, with nothing to show but its word.
    pub(crate) fn succeeded(detail: impl Into<String>) -> Self {
        Self::looted(detail, Vec::new())
    }

    /// Worked, and here is what it found.
    pub(crate) fn looted(detail: impl Into<String>, loot: Vec<String>) -> Self {
        Self::Succeeded {
            detail: detail.into(),
            loot,
        }
    }

    /// Cannot be tried here.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::Unavailable {
            detail: detail.into(),
        }
    }

    /// Worked if the call did.
    pub(crate) fn of<T>(what: &str, result: Result<T, Errno>) -> Self {
        match result {
            Ok(_) => Self::succeeded(what),
            Err(errno) => Self::stopped(what, errno),
        }
    }

    /// As [`Outcome::of`], but any error except a refusal means it got through.
    ///
    /// For calls with arguments that can do no harm: the kernel looks at
    /// them only after it has let the caller in.
    pub(crate) fn of_reaching<T>(what: &str, result: Result<T, Errno>) -> Self {
        match result {
            Err(errno) if !matches!(errno, Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
                Self::succeeded(format!("{what}: reached the kernel ({errno})"))
            }
            other => Self::of(what, other),
        }
    }

    /// The first that worked, else the first that was stopped.
    pub(crate) fn best(outcomes: impl IntoIterator<Item = Self>) -> Self {
        let mut best: Option<Self> = None;
        for outcome in outcomes {
            if matches!(outcome, Self::Succeeded { .. }) {
                return outcome;
            }
            match (&best, &outcome) {
                (None, _) | (Some(Self::Unavailable { .. }), Self::Blocked { .. }) => {
                    best = Some(outcome);
                }
                _ => {}
            }
        }
        best.unwrap_or_else(|| Self::unavailable("nothing to try"))
    }
}

/// The line before an attempt; without it a run proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Marker {
    /// The attack's name.
    pub(crate) marker: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_documented_form() {
        let line = serde_json::to_string(&Outcome::stopped("open", Errno::ACCESS)).unwrap();
        assert!(
            line.starts_with(r#"{"outcome":"blocked","detail":"open: "#),
            "{line}"
        );
        assert!(line.ends_with(r#","errno":13}"#), "{line}");
    }

    #[test]
    fn one_success_outweighs_every_block() {
        let best = Outcome::best([
            Outcome::unavailable("a"),
            Outcome::blocked("b"),
            Outcome::succeeded("c"),
        ]);
        assert_eq!(best, Outcome::succeeded("c"));
        let best = Outcome::best([Outcome::unavailable("a"), Outcome::blocked("b")]);
        assert_eq!(best, Outcome::blocked("b"));
    }

    #[test]
    fn only_a_refusal_counts_as_one() {
        let refused: Result<(), _> = Err(Errno::PERM);
        assert!(matches!(
            Outcome::of_reaching("x", refused),
            Outcome::Blocked { .. }
        ));
        let reached: Result<(), _> = Err(Errno::FAULT);
        assert!(matches!(
            Outcome::of_reaching("x", reached),
            Outcome::Succeeded { .. }
        ));
    }
}
