//! The guards of a sandbox, by name, so that a proof can leave some out.
//!
//! No request and no message can. Only a launcher that was started with
//! `--weaken`, inside a sandbox made to be thrown away, builds one that lacks
//! guards: there the attack which they stop must succeed. The user namespace
//! is none of them: without it nothing could be built, nor thrown away.

use serde::{Deserialize, Serialize};

/// One thing that stands between a command and the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guard {
    /// Only what the plan names is mounted.
    MountTable,
    /// The masks and read-only parts of `/proc`.
    ProcMasks,
    /// Its own process ids.
    PidNamespace,
    /// Its own network.
    NetworkNamespace,
    /// Its own shared memory and message queues.
    IpcNamespace,
    /// The system-call filter.
    Seccomp,
    /// Landlock behind the mounts.
    Landlock,
    /// No capability is left.
    NoCapabilities,
    /// Set-user-id programs gain nothing.
    NoNewPrivileges,
    /// A session of its own, away from the caller's terminal.
    NewSession,
    /// Only the named variables.
    EnvironmentScrub,
    /// Only the three streams.
    DescriptorScrub,
    /// A keyring of its own.
    SessionKeyring,
    /// Memory of the whole tree.
    MemoryLimit,
    /// Processes of the whole tree.
    PidLimit,
    /// No core files.
    CoreLimit,
    /// The size of one file.
    FileSizeLimit,
    /// What the layer may hold.
    DiskLimit,
    /// The size of `/tmp` and the like.
    ScratchLimit,
    /// Open files of a process.
    OpenFilesLimit,
    /// When its time is over.
    TimeLimit,
    /// All processes end with the sandbox.
    KillTree,
}

impl Guard {
    /// Every guard.
    pub const ALL: &[Self] = &[
        Self::MountTable,
        Self::ProcMasks,
        Self::PidNamespace,
        Self::NetworkNamespace,
        Self::IpcNamespace,
        Self::Seccomp,
        Self::Landlock,
        Self::NoCapabilities,
        Self::NoNewPrivileges,
        Self::NewSession,
        Self::EnvironmentScrub,
        Self::DescriptorScrub,
        Self::SessionKeyring,
        Self::MemoryLimit,
        Self::PidLimit,
        Self::CoreLimit,
        Self::FileSizeLimit,
        Self::DiskLimit,
        Self::ScratchLimit,
        Self::OpenFilesLimit,
        Self::TimeLimit,
        Self::KillTree,
    ];

    /// The guard of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::Value::String(name.to_owned())).ok()
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            _ => format!("{self:?}"),
        }
    }
}

/// The guards that a control leaves out; none in every real sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Guards(u32);

impl Guards {
    /// Nothing left out.
    pub const NONE: Self = Self(0);

    /// These, and also this one.
    #[must_use]
    pub const fn with(self, guard: Guard) -> Self {
        // A fieldless enum of fewer than 32: its discriminant is its bit.
        Self(self.0 | 1 << guard as u32)
    }

    /// Whether this one is left out.
    #[must_use]
    pub const fn lacks(self, guard: Guard) -> bool {
        self.0 & (1 << guard as u32) != 0
    }

    /// Whether process ids are its own. Its end ends every process in it, so
    /// leaving that out leaves this out.
    pub(crate) const fn has_pid_namespace(self) -> bool {
        !self.lacks(Guard::PidNamespace) && !self.lacks(Guard::KillTree)
    }

    /// Whether every guard stands.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Marks a sandbox made to be thrown away; only inside one may a guard be
/// left out.
pub const THROWAWAY: &str = "/run/fluffy-throwaway";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for guard in Guard::ALL {
            assert_eq!(Guard::named(&guard.name()), Some(*guard));
        }
        assert_eq!(Guard::named("pid-namespace"), Some(Guard::PidNamespace));
        assert_eq!(Guard::named("nothing"), None);
    }

    #[test]
    fn only_what_was_left_out_is_lacking() {
        for left_out in Guard::ALL {
            let guards = Guards::NONE.with(*left_out);
            let lacking: Vec<_> = Guard::ALL
                .iter()
                .filter(|one| guards.lacks(**one))
                .collect();
            assert_eq!(lacking, [left_out]);
        }
        let two = Guards::NONE.with(Guard::MountTable).with(Guard::KillTree);
        assert!(two.lacks(Guard::MountTable) && two.lacks(Guard::KillTree));
        assert!(!two.lacks(Guard::Seccomp) && !two.is_empty());
    }
}
