//! The system-call filter around a whole container, in the engine's words.
//!
//! Commands run behind the template's own filter, which init puts over them;
//! this one holds for init too, and is what an engine's default would be. It
//! is made once. Next: `fluffy_sandbox::seccomp` has the tables.

use std::collections::BTreeSet;

use fluffy_sandbox::seccomp;
use fluffy_sandbox::template::Profile;
use serde_json::json;

/// What init does before a command starts, and commands never do.
const INIT: &[&str] = &[
    "capset",
    "clone3",
    "close_range",
    "execve",
    "landlock_add_rule",
    "landlock_create_ruleset",
    "landlock_restrict_self",
    "prctl",
    "prlimit64",
    "seccomp",
    "setrlimit",
    "signalfd4",
];

/// What the engine's runtime still does after it has put the filter on.
const RUNTIME: &[&str] = &[
    "faccessat2",
    "fchdir",
    "openat2",
    "setgroups",
    "setgid",
    "setuid",
];

/// The filter as the JSON that Docker and Podman read.
pub(crate) fn profile() -> String {
    let names: BTreeSet<&str> = seccomp::allowed(Profile::StandardNet)
        .chain(seccomp::allowed(Profile::StrictFiles))
        .chain(INIT.iter().copied())
        .chain(RUNTIME.iter().copied())
        .collect();
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [{ "names": names, "action": "SCMP_ACT_ALLOW" }],
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_makes_or_enters_namespaces_is_allowed() {
        let profile: serde_json::Value = serde_json::from_str(&profile()).unwrap();
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        let allowed: Vec<&str> = profile["syscalls"][0]["names"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect();
        for call in ["execve", "openat", "landlock_restrict_self", "seccomp"] {
            assert!(allowed.contains(&call), "{call}");
        }
        for call in [
            "bpf",
            "init_module",
            "io_uring_setup",
            "kexec_load",
            "keyctl",
            "mount",
            "perf_event_open",
            "pivot_root",
            "ptrace",
            "setns",
            "unshare",
            "userfaultfd",
        ] {
            assert!(!allowed.contains(&call), "{call}");
        }
    }
}
