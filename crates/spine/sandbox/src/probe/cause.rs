//! From where an attempt was stopped to the setting that forbids it.
//!
//! Pure but for [`Settings::read`]. A fix is a line to type or the text of a
//! file to write; nothing here carries it out. Next: `super` puts it together.

use std::fs;
use std::path::PathBuf;

use super::Weakness;
use super::attempt::{Step, Stopped};
use crate::protocol::{Failure, FailureKind};

/// Settings of a machine that forbid namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// `kernel.unprivileged_userns_clone`, of Debian's kernels.
    pub(super) debian: Option<i64>,
    /// `user.max_user_namespaces`.
    pub(super) most: Option<i64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, of Ubuntu's.
    pub(super) apparmor: Option<i64>,
    /// Inside which engine's container this runs.
    pub(super) container: Option<Container>,
    /// Whether this is the superuser.
    pub(super) root: bool,
    /// This program.
    pub(super) program: PathBuf,
}

/// Whose container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Docker,
    Podman,
}

impl Settings {
    pub(super) fn read() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        let exists = |path: &str| fs::exists(path).unwrap_or(false);
        Self {
            debian: number("/proc/sys/kernel/unprivileged_userns_clone"),
            most: number("/proc/sys/user/max_user_namespaces"),
            apparmor: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            container: if exists("/run/.containerenv") {
                Some(Container::Podman)
            } else if exists("/.dockerenv") {
                Some(Container::Docker)
            } else {
                None
            },
            root: rustix::process::geteuid().is_root(),
            program: std::env::current_exe().unwrap_or_else(|_| "fluffy".into()),
        }
    }
}

/// Why the native engine was stopped, and what to change.
pub(super) fn native(stopped: &Stopped, settings: &Settings) -> Failure {
    let what = match stopped.step {
        Step::Namespaces => "namespaces cannot be made",
        Step::Map => "a user cannot be mapped into a namespace",
        Step::Mount | Step::Overlay => "nothing can be mounted in a namespace",
        Step::Processes => "`/proc` cannot be mounted in a namespace",
    };
    let (why, fix) = reason(stopped, settings);
    let error = std::io::Error::from_raw_os_error(stopped.errno);
    Failure {
        kind: FailureKind::Unavailable,
        what: what.to_owned(),
        why: format!("{why} ({error})"),
        fix,
    }
}

/// Why `bwrap` was stopped, and what to change.
pub(super) fn bwrap(said: String, settings: &Settings) -> Failure {
    // It is stopped by the same settings, only not by a profile of its own.
    let stopped = Stopped {
        step: if said.contains("proc") {
            Step::Processes
        } else {
            Step::Namespaces
        },
        errno: libc::EPERM,
    };
    Failure {
        kind: FailureKind::Unavailable,
        what: "bubblewrap cannot make a sandbox".to_owned(),
        why: if said.is_empty() {
            "it failed without a word".to_owned()
        } else {
            said
        },
        fix: reason(&stopped, settings).1,
    }
}

/// An overlay is only quicker than a copy.
pub(super) fn overlay(errno: i32) -> Weakness {
    let error = std::io::Error::from_raw_os_error(errno);
    Weakness {
        what: "layers are whole copies of the project".to_owned(),
        why: format!("an overlay cannot be mounted in a user namespace ({error})"),
        fix: Some(
            "a kernel of 5.11 or later with CONFIG_OVERLAY_FS (`modprobe overlay`)".to_owned(),
        ),
    }
}

/// A limit that has to be kept by looking from time to time.
pub(super) fn control_group(purpose: &str, why: &str, settings: &Settings) -> Weakness {
    let fix = match (settings.container, settings.root) {
        (Some(Container::Docker), _) => {
            "start the container with `--cgroupns=private --privileged`, or leave it to fluffy's own watch".to_owned()
        }
        (Some(Container::Podman), _) => {
            "start the container with `--cgroupns=private --security-opt unmask=/sys/fs/cgroup`".to_owned()
        }
        (None, true) => "mount control groups: `mount -t cgroup2 none /sys/fs/cgroup`".to_owned(),
        (None, false) => format!(
            "run `systemd-run --user --scope {} …`; for a share of the processors write \
             `[Service]\\nDelegate=cpu memory pids` to /etc/systemd/system/user@.service.d/delegate.conf \
             and log in again",
            settings.program.display()
        ),
    };
    Weakness {
        what: format!("no control group limits the {purpose}"),
        why: why.to_owned(),
        fix: Some(fix),
    }
}

/// The setting that is to blame, the most likely first.
fn reason(stopped: &Stopped, settings: &Settings) -> (&'static str, Option<String>) {
    let command = |text: &str| Some(text.to_owned());
    if settings.most == Some(0) || matches!(stopped.errno, libc::ENOSPC | libc::EUSERS) {
        return (
            "this machine allows no more user namespaces",
            command("sysctl -w user.max_user_namespaces=15000"),
        );
    }
    match (stopped.step, settings.container) {
        (Step::Processes, Some(container)) => {
            return (
                "the engine of this container hides parts of its own `/proc`",
                command(match container {
                    Container::Docker => {
                        "start the container with `--security-opt systempaths=unconfined`"
                    }
                    Container::Podman => "start the container with `--security-opt unmask=ALL`",
                }),
            );
        }
        // Whatever forbids this hides `/proc` too, so both are named at once.
        (_, Some(container)) => {
            return (
                "the engine of this container forbids it",
                command(match container {
                    Container::Docker => {
                        "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`"
                    }
                    Container::Podman => {
                        "start the container with `--security-opt seccomp=unconfined --security-opt unmask=ALL`"
                    }
                }),
            );
        }
        (_, None) => {}
    }
    if !settings.root && settings.debian == Some(0) {
        return (
            "only the superuser may make user namespaces here",
            command("sysctl -w kernel.unprivileged_userns_clone=1"),
        );
    }
    if !settings.root && settings.apparmor.is_some_and(|restricted| restricted != 0) {
        return (
            "AppArmor allows user namespaces only to programs with a profile",
            Some(profile(settings)),
        );
    }
    match stopped.errno {
        libc::ENOSYS | libc::EINVAL => (
            "this kernel has no user namespaces, or a filter hides them",
            command("boot a kernel of 5.11 or later with CONFIG_USER_NS"),
        ),
        libc::ETIMEDOUT | libc::EIO => ("the attempt did not end by itself", None),
        _ => (
            "a security module or an outer sandbox forbids it",
            command(
                "start fluffy outside of it, or use the `bwrap` engine if that is allowed more",
            ),
        ),
    }
}

/// The text that gives this program what bubblewrap has.
fn profile(settings: &Settings) -> String {
    let program = settings.program.display();
    format!(
        "install bubblewrap, or write to /etc/apparmor.d/fluffy:\n\
         abi <abi/4.0>,\n\
         include <tunables/global>\n\
         profile fluffy {program} flags=(unconfined) {{\n\
         \u{20} userns,\n\
         }}\n\
         and run `apparmor_parser -r /etc/apparmor.d/fluffy`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fix(step: Step, errno: i32, settings: &Settings) -> String {
        native(&Stopped { step, errno }, settings)
            .fix
            .unwrap_or_default()
    }

    #[test]
    fn each_setting_has_its_own_fix() {
        let plain = Settings {
            program: "/opt/fluffy".into(),
            ..Settings::default()
        };
        let table = [
            (
                Step::Namespaces,
                libc::EPERM,
                Settings {
                    debian: Some(0),
                    ..plain.clone()
                },
                "kernel.unprivileged_userns_clone=1",
            ),
            (
                Step::Namespaces,
                libc::ENOSPC,
                Settings {
                    most: Some(0),
                    ..plain.clone()
                },
                "user.max_user_namespaces",
            ),
            (
                Step::Map,
                libc::EPERM,
                Settings {
                    apparmor: Some(1),
                    ..plain.clone()
                },
                "profile fluffy /opt/fluffy flags=(unconfined) {\n  userns,\n}",
            ),
            (
                Step::Namespaces,
                libc::EPERM,
                Settings {
                    container: Some(Container::Docker),
                    ..plain.clone()
                },
                "seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined",
            ),
            (
                Step::Namespaces,
                libc::EPERM,
                Settings {
                    container: Some(Container::Podman),
                    ..plain.clone()
                },
                "seccomp=unconfined --security-opt unmask=ALL",
            ),
            (
                Step::Processes,
                libc::EPERM,
                Settings {
                    container: Some(Container::Docker),
                    ..plain.clone()
                },
                "systempaths=unconfined",
            ),
            (
                Step::Processes,
                libc::EPERM,
                Settings {
                    container: Some(Container::Podman),
                    ..plain.clone()
                },
                "unmask=ALL",
            ),
            (
                Step::Namespaces,
                libc::ENOSYS,
                plain.clone(),
                "CONFIG_USER_NS",
            ),
            (Step::Mount, libc::EACCES, plain.clone(), "bwrap"),
        ];
        for (step, errno, settings, expected) in table {
            let fix = fix(step, errno, &settings);
            assert!(fix.contains(expected), "{settings:?}: {fix}");
        }
    }

    #[test]
    fn the_superuser_is_not_stopped_by_what_stops_others() {
        let settings = Settings {
            debian: Some(0),
            apparmor: Some(1),
            root: true,
            ..Settings::default()
        };
        let fix = fix(Step::Namespaces, libc::EPERM, &settings);
        assert!(!fix.contains("unprivileged_userns_clone") && !fix.contains("apparmor.d"));
    }

    #[test]
    fn what_bubblewrap_said_is_the_reason() {
        let failure = bwrap("bwrap: No permissions".into(), &Settings::default());
        assert_eq!(failure.why, "bwrap: No permissions");
        assert!(!bwrap(String::new(), &Settings::default()).why.is_empty());
    }

    #[test]
    fn weaknesses_say_how_to_change_them() {
        for settings in [
            Settings::default(),
            Settings {
                root: true,
                ..Settings::default()
            },
            Settings {
                container: Some(Container::Docker),
                ..Settings::default()
            },
            Settings {
                container: Some(Container::Podman),
                ..Settings::default()
            },
        ] {
            let weakness = control_group("number of processes", "why", &settings);
            assert!(weakness.fix.is_some());
        }
        assert!(overlay(libc::EPERM).why.contains("overlay"));
    }
}
