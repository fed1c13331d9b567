//! Failures in words for people: what happened, why, how to fix it.
//!
//! Pure: from a step and an error number to a text. The fixes here are those
//! that `fluffy doctor` gives too.

use std::io;

use crate::plan::PlanError;
use crate::protocol::{Failure, FailureKind};

/// The system refused something that should work everywhere.
#[must_use]
pub fn system(what: &str, error: &io::Error) -> Failure {
    Failure {
        kind: FailureKind::System,
        what: format!("cannot {what}"),
        why: error.to_string(),
        fix: None,
    }
}

/// Something no sandbox may have.
#[must_use]
pub fn refused(what: &str, why: &str) -> Failure {
    Failure {
        kind: FailureKind::Refused,
        what: format!("{what} is refused"),
        why: why.to_owned(),
        fix: None,
    }
}

/// A sandbox that is not, or no longer, there.
#[must_use]
pub fn ended() -> Failure {
    Failure {
        kind: FailureKind::Ended,
        what: "the sandbox has ended".to_owned(),
        why: "it was cleaned up, or a limit or its own init ended it".to_owned(),
        fix: None,
    }
}

/// A command whose preparation failed; nothing of it ran.
pub(crate) fn command(step: &str, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::InvalidInput => FailureKind::Refused,
        _ => FailureKind::System,
    };
    Failure {
        kind,
        what: "the command was not started".to_owned(),
        why: match error.kind() {
            io::ErrorKind::InvalidInput => format!("it asks to {step}"),
            _ => format!("cannot {step}: {error}"),
        },
        fix: None,
    }
}

/// The second wall cannot be built.
pub(crate) fn landlock(error: &dyn std::error::Error) -> Failure {
    Failure {
        kind: FailureKind::Unavailable,
        what: "Landlock cannot be used".to_owned(),
        why: error.to_string(),
        fix: Some(
            "boot a kernel of 6.2 or later with `landlock` in CONFIG_LSM, or add `lsm=landlock,…` to its command line"
                .to_owned(),
        ),
    }
}

/// A step of making namespaces and mounts failed: mostly the host forbids it.
pub(crate) fn native(step: &str, error: &io::Error) -> Failure {
    Failure {
        kind: FailureKind::Unavailable,
        what: format!("cannot {step} for a sandbox"),
        why: error.to_string(),
        fix: native_fix(step, error.raw_os_error().unwrap_or(0)).map(str::to_owned),
    }
}

/// How to fix what forbids namespaces, by the step that failed.
fn native_fix(step: &str, errno: i32) -> Option<&'static str> {
    match (step, errno) {
        ("make namespaces", libc::EPERM | libc::ENOSYS) => Some(
            "in a container: start it with `--security-opt seccomp=unconfined`; on Debian: `sysctl kernel.unprivileged_userns_clone=1`; on Ubuntu 24.04 and later: install bubblewrap and use the `bwrap` engine",
        ),
        ("make namespaces", libc::ENOSPC | libc::EUSERS) => {
            Some("allow more user namespaces: `sysctl user.max_user_namespaces=15000`")
        }
        ("map the user", libc::EPERM | libc::EACCES) => Some(
            "on Ubuntu 24.04 and later AppArmor forbids it: install bubblewrap and use the `bwrap` engine, or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
        ),
        ("mount `/proc`", libc::EPERM | libc::EACCES) => Some(
            "parts of the outer /proc are hidden, as containers do: start the container with `--security-opt unmask=/proc/*` (Podman) or `--security-opt systempaths=unconfined` (Docker)",
        ),
        (step, libc::EPERM | libc::EACCES)
            if step.starts_with("mount") || step.starts_with("make") =>
        {
            Some(
                "mounting is forbidden here: in a container start it with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`",
            )
        }
        _ => None,
    }
}

impl PlanError {
    /// The same for people, with the fix where there is one.
    #[must_use]
    pub fn failure(&self) -> Failure {
        plan(self)
    }
}

/// A request the plan refuses.
pub(crate) fn plan(error: &PlanError) -> Failure {
    let fix = match error {
        PlanError::UnknownTemplate { known, .. } => {
            Some(format!("use one of: {}", known.join(", ")))
        }
        PlanError::Outside { .. } => Some(
            "start the command in that directory, or name a path inside the project".to_owned(),
        ),
        PlanError::NotNormal { .. } => Some("write the path out".to_owned()),
        PlanError::Link { .. } => Some("name the place that the link leads to".to_owned()),
        PlanError::Variable { .. } => Some("set it inside, in the command itself".to_owned()),
        PlanError::Time { .. } | PlanError::Limit { .. } => {
            Some("ask for less, or add a template to the policy".to_owned())
        }
        PlanError::TooManyHidden { .. } => Some(
            "move them into one directory that policy denies as a whole, or allow reading some"
                .to_owned(),
        ),
        PlanError::CannotHide { .. } => Some(
            "move it out of the project, allow reading it in the policy, or use an engine that mounts: `fluffy doctor`"
                .to_owned(),
        ),
        PlanError::NeedsCopy => Some("make the layer with the kind `copy`".to_owned()),
        PlanError::Project { .. } | PlanError::Tier { .. } => None,
    };
    Failure {
        kind: FailureKind::Refused,
        what: "the sandbox is refused".to_owned(),
        why: error.to_string(),
        fix,
    }
}
