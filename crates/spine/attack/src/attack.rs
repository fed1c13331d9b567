//! What one attempted escape is: a name, its gain, the guard that stops it.
//!
//! Data only. The attempts stand in `corpus`, one file each; `run` plays them
//! and `verdict` says what came of it. Must never know any particular sandbox.

use std::fmt;

use fluffy_policy::word::Tier;
use serde::Serialize;

use crate::guard::Guard;
use crate::outcome::Outcome;
use crate::stage::Stage;

/// One attempt to get out of a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    /// Its name, which is also its file's.
    pub name: &'static str,
    /// What kind of attempt it is.
    pub family: Family,
    /// What would be gained, for people.
    pub what: &'static str,
    /// The guard that stops it.
    pub guard: Guard,
    /// Guards that would stop it too; a control has to leave them out as well.
    pub also: &'static [Guard],
    /// The tiers that claim to stop it.
    pub tiers: &'static [Tier],
    /// What decides whether it worked.
    pub proof: Proof,
    /// Paths in the project that must come out as they went in.
    pub guarded: &'static [&'static str],
    /// Whether it sits at the user's terminal.
    pub streams: Streams,
    /// What network it is given.
    pub network: Network,
    /// What happens to its writes afterwards.
    pub aftermath: Aftermath,
    /// Played inside the sandbox.
    pub attempt: fn(&Stage) -> Outcome,
    /// Played in a second, fresh sandbox once the first is gone.
    pub revisit: Option<fn(&Stage) -> Outcome>,
    /// Played at the same time in a sandbox beside it, which has a secret.
    pub sibling: Option<fn(&Stage) -> Outcome>,
}

impl Attack {
    /// An attempt judged by its canary, on pipes, without network or merge.
    pub(crate) const fn new(
        name: &'static str,
        family: Family,
        guard: Guard,
        attempt: fn(&Stage) -> Outcome,
    ) -> Self {
        Self {
            name,
            family,
            what: "",
            guard,
            also: &[],
            tiers: &[Tier::Process, Tier::Container],
            proof: Proof::Canary,
            guarded: &[],
            streams: Streams::Pipes,
            network: Network::None,
            aftermath: Aftermath::Discard,
            attempt,
            revisit: None,
            sibling: None,
        }
    }

    /// Says what it would gain.
    pub(crate) const fn gains(self, what: &'static str) -> Self {
        Self { what, ..self }
    }

    /// Names the guards that stand behind the first.
    pub(crate) const fn also_stopped_by(self, also: &'static [Guard]) -> Self {
        Self { also, ..self }
    }

    /// Lets the attempt's own word decide: no canary can see it from outside.
    pub(crate) const fn on_its_word(self) -> Self {
        Self {
            proof: Proof::Word,
            ..self
        }
    }

    /// Runs it at the user's terminal.
    pub(crate) const fn at_a_terminal(self) -> Self {
        Self {
            streams: Streams::Terminal,
            ..self
        }
    }

    /// Gives it the egress proxy with one permitted host.
    pub(crate) const fn behind_the_proxy(self) -> Self {
        Self {
            network: Network::Restricted,
            ..self
        }
    }

    /// Merges what it wrote; these paths must come out as they went in.
    pub(crate) const fn merged(self, guarded: &'static [&'static str]) -> Self {
        Self {
            aftermath: Aftermath::Merge,
            guarded,
            ..self
        }
    }

    /// Puts another sandbox beside it.
    pub(crate) const fn beside(self, sibling: fn(&Stage) -> Outcome) -> Self {
        Self {
            sibling: Some(sibling),
            ..self
        }
    }

    /// Looks again from a second, fresh sandbox.
    pub(crate) const fn revisited(self, revisit: fn(&Stage) -> Outcome) -> Self {
        Self {
            revisit: Some(revisit),
            ..self
        }
    }
}

/// The kinds of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Reaching files outside by their paths.
    Paths,
    /// Becoming more than an ordinary user of the sandbox.
    Privilege,
    /// Calls into parts of the kernel that nobody needs.
    Kernel,
    /// Using up what others need.
    Exhaustion,
    /// Reaching somebody outside.
    TalkingOut,
    /// Seeing what was never handed in.
    LeakingIn,
    /// Code that runs later, outside.
    Persistence,
    /// Archives whose contents point outside.
    Archives,
    /// Outliving the sandbox.
    CleanUp,
}

impl Family {
    /// Every family, in the order of the tables.
    pub const ALL: [Self; 9] = [
        Self::Paths,
        Self::Privilege,
        Self::Kernel,
        Self::Exhaustion,
        Self::TalkingOut,
        Self::LeakingIn,
        Self::Persistence,
        Self::Archives,
        Self::CleanUp,
    ];

    /// Its name for people; with `-` or `_` also that of its folder.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paths => "paths",
            Self::Privilege => "privilege",
            Self::Kernel => "kernel",
            Self::Exhaustion => "exhaustion",
            Self::TalkingOut => "talking-out",
            Self::LeakingIn => "leaking-in",
            Self::Persistence => "persistence",
            Self::Archives => "archives",
            Self::CleanUp => "clean-up",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What decides whether an attempt worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// A canary outside; the attempt's own word counts for nothing.
    Canary,
    /// What the kernel answered inside, or a canary.
    Word,
}

/// What the three streams of an attempt are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// Pipes.
    Pipes,
    /// The terminal from which the user started the sandbox.
    Terminal,
}

/// What network an attempt is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// None that leaves the sandbox.
    None,
    /// The egress proxy, with the stage's permitted host allowed.
    Restricted,
}

/// What happens to the writes of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aftermath {
    /// They are thrown away.
    Discard,
    /// They are merged into the project, as far as nobody needs to be asked.
    Merge,
}
