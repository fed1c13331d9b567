//! The life of a plugin: its states, what leads from one to the next, and how
//! often it may crash.
//!
//! [`next`] is the whole table; everything else is illegal and changes
//! nothing. [`Cell`] holds the state of one plugin for concurrent callers.
//! Nothing here starts or stops anything: whoever does records each
//! [`Transition`] in the ledger. Next: `crash` for restarts.

mod cell;
mod crash;

use serde::{Deserialize, Serialize};

pub use cell::{Cell, Transition};
pub use crash::{CRASHES, Crashes, Verdict, WINDOW};

/// Where a plugin stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its directory was found; nothing of it has been read.
    Discovered,
    /// Its manifest, version, identity and the policy are looked at.
    Validating,
    /// It is being started.
    Loading,
    /// It takes calls.
    Running,
    /// It takes no new calls and finishes those it has.
    Draining,
    /// It was told to end.
    Stopping,
    /// It has ended, as it was told to.
    Stopped,
    /// It failed; only an explicit reload leads on.
    Error,
    /// It may not run here; a new discovery begins anew.
    Rejected,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Discovered,
        Self::Validating,
        Self::Loading,
        Self::Running,
        Self::Draining,
        Self::Stopping,
        Self::Stopped,
        Self::Error,
        Self::Rejected,
    ];

    /// The state as it is written in events and lists.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Discovered => "discovered",
            Self::Validating => "validating",
            Self::Loading => "loading",
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Error => "error",
            Self::Rejected => "rejected",
        }
    }
}

/// What happens to a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Its manifest is going to be read.
    Validate,
    /// The manifest, the version or policy says no.
    Reject,
    /// Nothing speaks against it: it is going to be started.
    Load,
    /// It answered and takes calls.
    Run,
    /// It shall take no more calls.
    Drain,
    /// Its calls are done, or their time is over: it is told to end.
    Stop,
    /// It has ended.
    End,
    /// Something went wrong: it crashed, hung or could not be started.
    Fail,
    /// A person or a new version asks for it again.
    Reload,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 9] = [
        Self::Validate,
        Self::Reject,
        Self::Load,
        Self::Run,
        Self::Drain,
        Self::Stop,
        Self::End,
        Self::Fail,
        Self::Reload,
    ];

    /// The event as it is written in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Validate => "validate",
            Self::Reject => "reject",
            Self::Load => "load",
            Self::Run => "run",
            Self::Drain => "drain",
            Self::Stop => "stop",
            Self::End => "end",
            Self::Fail => "fail",
            Self::Reload => "reload",
        }
    }
}

/// An event that means nothing in this state; nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a plugin that is `{}` cannot `{}`", state.as_str(), event.as_str())]
pub struct Illegal {
    /// Where the plugin stands, still.
    pub state: State,
    /// What was asked for.
    pub event: Event,
}

/// The state that follows.
///
/// # Errors
/// When the event means nothing in this state.
pub const fn next(state: State, event: Event) -> Result<State, Illegal> {
    use Event as E;
    use State as S;
    match (state, event) {
        (S::Discovered, E::Validate) => Ok(S::Validating),
        (S::Validating, E::Load) => Ok(S::Loading),
        (S::Validating, E::Reject) => Ok(S::Rejected),
        (S::Loading, E::Run) => Ok(S::Running),
        (S::Running, E::Drain) => Ok(S::Draining),
        (S::Draining, E::Stop) => Ok(S::Stopping),
        (S::Stopping, E::End) => Ok(S::Stopped),
        (S::Validating | S::Loading | S::Running | S::Draining | S::Stopping, E::Fail) => {
            Ok(S::Error)
        }
        (S::Error | S::Stopped, E::Reload) => Ok(S::Discovered),
        (S::Discovered | S::Running | S::Draining, E::Reject | E::Load | E::Run | E::End)
        | (S::Discovered, E::Drain | E::Stop | E::Fail | E::Reload)
        | (S::Validating, E::Validate | E::Run | E::Drain | E::Stop | E::End | E::Reload)
        | (S::Loading, E::Validate | E::Reject | E::Load | E::Drain)
        | (S::Loading, E::Stop | E::End | E::Reload)
        | (S::Running, E::Validate | E::Stop | E::Reload)
        | (S::Draining, E::Validate | E::Drain | E::Reload)
        | (S::Stopping, E::Validate | E::Reject | E::Load | E::Run)
        | (S::Stopping, E::Drain | E::Stop | E::Reload)
        | (S::Stopped | S::Error | S::Rejected, E::Validate | E::Reject | E::Load | E::Run)
        | (S::Stopped | S::Error | S::Rejected, E::Drain | E::Stop | E::End | E::Fail)
        | (S::Rejected, E::Reload) => Err(Illegal { state, event }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the specification; everything else is illegal.
    const LEGAL: &[(&str, &str, &str)] = &[
        ("discovered", "validate", "validating"),
        ("validating", "load", "loading"),
        ("validating", "reject", "rejected"),
        ("validating", "fail", "error"),
        ("loading", "run", "running"),
        ("loading", "fail", "error"),
        ("running", "drain", "draining"),
        ("running", "fail", "error"),
        ("draining", "stop", "stopping"),
        ("draining", "fail", "error"),
        ("stopping", "end", "stopped"),
        ("stopping", "fail", "error"),
        ("stopped", "reload", "discovered"),
        ("error", "reload", "discovered"),
    ];

    #[test]
    fn every_legal_transition_and_no_other() {
        let mut legal = 0;
        for state in State::ALL {
            for event in Event::ALL {
                let row = LEGAL
                    .iter()
                    .find(|(from, by, _)| *from == state.as_str() && *by == event.as_str());
                match (next(state, event), row) {
                    (Ok(to), Some((_, _, expected))) => {
                        assert_eq!(to.as_str(), *expected);
                        legal += 1;
                    }
                    (Err(illegal), None) => assert_eq!(illegal, Illegal { state, event }),
                    (found, _) => panic!("{state:?} {event:?}: {found:?}"),
                }
            }
        }
        assert_eq!(legal, LEGAL.len());
    }

    #[test]
    fn a_refusal_says_where_and_what() {
        let text = next(State::Loading, Event::Stop).unwrap_err().to_string();
        assert_eq!(text, "a plugin that is `loading` cannot `stop`");
    }

    #[test]
    fn states_are_written_as_they_are_stored() {
        for state in State::ALL {
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(json, format!("\"{}\"", state.as_str()));
        }
    }
}
