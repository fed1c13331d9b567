//! The person at this terminal, as a principal.

use std::fs;
use std::sync::Arc;

use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::{Principal, PrincipalKind, ProcessIdentity};
use fluffy_report::ExitCode;

use crate::failure::Failure;

/// The trust label of a person at the command line, for rules.
const TAG: &str = "person";

/// Who is at the keyboard, as the system knows them.
pub(crate) fn name() -> String {
    format!("uid-{}", rustix::process::getuid().as_raw())
}

/// This person, through this process, with these capabilities.
pub(crate) fn principal(capabilities: &[&str]) -> Result<Principal, Failure> {
    let everything = || vec!["*".to_owned()];
    let lists = GrantLists {
        capabilities: capabilities.iter().map(|text| (*text).to_owned()).collect(),
        deny_capabilities: Vec::new(),
        workspace: everything(),
        user: everything(),
    };
    let grant = Grant::build(&lists).map_err(|error| {
        Failure::of(
            ExitCode::Internal,
            &error,
            "please report this: the grant is our own",
        )
    })?;
    let mut principal = Principal::new(PrincipalKind::User, name(), Arc::new(grant));
    principal.tags.insert(TAG.to_owned());
    principal.process = Some(process());
    Ok(principal)
}

/// This process, as approvals are bound to it.
pub(crate) fn process() -> ProcessIdentity {
    ProcessIdentity {
        pid: std::process::id(),
        started: started(),
    }
}

/// When this process started, in the kernel's ticks since boot; a reused pid
/// has another. Where /proc is missing, 0 still binds to the pid.
fn started() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name, which may hold anything but
    // ends at the last parenthesis; the start time is the 22nd field.
    let after_name = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest)
        .unwrap_or_default();
    after_name
        .split_whitespace()
        .nth(19)
        .and_then(|field| field.parse().ok())
        .unwrap_or(0)
}
