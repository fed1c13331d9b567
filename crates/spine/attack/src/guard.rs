//! The guards of a sandbox, one name for each.
//!
//! A control leaves out exactly one of them (`--weaken NAME`), so every name
//! stands for something that can be left out alone. Must never decide anything.

use std::fmt;

use serde::Serialize;

macro_rules! guards {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// The one thing that stops an attack.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Guard {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Guard {
            /// Every guard, in the order of the tables.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Its name, as `--weaken` spells it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

guards! {
    /// Only what the plan names is mounted, and the root is read-only.
    MountTable = "mount-table",
    /// The masks and read-only parts of `/proc`.
    ProcMasks = "proc-masks",
    /// A user namespace, so no right over anything outside.
    UserNamespace = "user-namespace",
    /// Its own pid namespace, and a `/proc` of it.
    PidNamespace = "pid-namespace",
    /// Its own network namespace with nothing but loopback.
    NetworkNamespace = "network-namespace",
    /// Its own System V and POSIX message queues and segments.
    IpcNamespace = "ipc-namespace",
    /// No capability survives into a command.
    NoCapabilities = "no-capabilities",
    /// Nothing executed can gain a privilege.
    NoNewPrivileges = "no-new-privileges",
    /// The filter of system calls.
    Seccomp = "seccomp",
    /// Landlock behind the mounts.
    Landlock = "landlock",
    /// A keyring of its own.
    SessionKeyring = "session-keyring",
    /// A session of its own, without the user's terminal.
    NewSession = "new-session",
    /// Only listed variables come in.
    EnvironmentScrub = "environment-scrub",
    /// Only the three streams come in.
    DescriptorScrub = "descriptor-scrub",
    /// No core files.
    CoreLimit = "core-limit",
    /// The limit of memory for the whole tree.
    MemoryLimit = "memory-limit",
    /// The limit of processes and threads.
    PidLimit = "pid-limit",
    /// The limit of one file's size.
    FileSizeLimit = "file-size-limit",
    /// The limit of what a layer may hold.
    DiskLimit = "disk-limit",
    /// The sizes and inode counts of `/tmp` and the like.
    ScratchLimit = "scratch-limit",
    /// The limit of open files.
    OpenFilesLimit = "open-files-limit",
    /// The limit of output.
    OutputLimit = "output-limit",
    /// The limit of time.
    TimeLimit = "time-limit",
    /// Everything dies with the sandbox.
    KillTree = "kill-tree",
    /// Whatever was left is removed, whatever its shape.
    CleanUp = "clean-up",
    /// What a merge refuses, or asks a person about.
    MergeRefusal = "merge-refusal",
    /// The proxy asks for every host and port.
    EgressDecision = "egress-decision",
    /// The proxy checks the address it connects to.
    EgressAddressCheck = "egress-address-check",
    /// The proxy compares the TLS server name.
    EgressServerName = "egress-server-name",
    /// The proxy reads requests strictly.
    EgressStrictParse = "egress-strict-parse",
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
