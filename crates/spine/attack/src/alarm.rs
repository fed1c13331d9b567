//! What a canary saw: the proof that something got out.
//!
//! Must never be raised by anything an attempt merely claims. Next: `ground`.

use std::fmt;
use std::path::PathBuf;

/// One canary that was disturbed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alarm {
    /// A secret came out.
    SecretSeen {
        /// Where it was kept.
        kept: &'static str,
    },
    /// Something outside the project changed.
    Changed {
        /// What.
        path: PathBuf,
    },
    /// Something reached the project that a merge should have held back.
    Planted {
        /// What.
        path: String,
    },
    /// Something outside was connected to.
    Reached {
        /// What.
        what: &'static str,
    },
    /// A process outside was harmed.
    VictimHarmed,
    /// Text was put into the user's terminal as if it had been typed.
    Typed,
    /// Something outlived its sandbox.
    LeftBehind {
        /// What.
        what: String,
    },
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SecretSeen { kept } => write!(f, "it read a secret from {kept}"),
            Self::Changed { path } => write!(f, "it changed `{}`", path.display()),
            Self::Planted { path } => write!(f, "it got `{path}` into the project"),
            Self::Reached { what } => write!(f, "it reached {what}"),
            Self::VictimHarmed => write!(f, "it harmed a process outside"),
            Self::Typed => write!(f, "it typed into the user's terminal"),
            Self::LeftBehind { what } => write!(f, "it left {what} behind"),
        }
    }
}
