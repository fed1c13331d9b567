//! What this machine can do, found out by trying, for `fluffy doctor`.
//!
//! Every engine is tried in a child that is thrown away; what fails is
//! explained with the setting that forbids it and the exact change. Never
//! guesses from a version, never changes a setting itself. Next: `attempt`
//! tries, `cause` explains, `host` and `tools` look around.

mod attempt;
mod cause;
mod host;
mod tools;

use std::process::{Command, Stdio};

use fluffy_base::ByteSize;
use fluffy_base::id::SandboxId;
use serde::Serialize;

pub use self::tools::Tools;
use crate::cgroup::Cgroups;
use crate::failure;
use crate::foreign;
use crate::plan::{Engine, Limits, Reach};
use crate::protocol::{Failure, FailureKind};
use crate::seccomp::{Architecture, Filter};
use crate::template::{Lifetime, Profile};
use crate::wall::{self, Wall};

/// What the engines of the process tier can do on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Every engine, the strongest first.
    pub engines: Vec<Tried>,
    /// What works, but not as well as it could.
    pub weaknesses: Vec<Weakness>,
    /// The version of the kernel's Landlock.
    pub landlock: Option<i32>,
}

/// One engine that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// Which.
    pub engine: Engine,
    /// What stands in its way; nothing if it works.
    pub obstacle: Option<Failure>,
}

/// Something that is not held back, or only in a costlier way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Weakness {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
    /// How to change it, where that is known.
    pub fix: Option<String>,
}

impl Report {
    /// Tries everything; takes some hundredths of a second.
    #[must_use]
    pub fn probe() -> Self {
        let native = attempt::native();
        let mut weaknesses = Vec::new();
        if let Ok(tried) = &native
            && let Some(errno) = tried.overlay
        {
            weaknesses.push(cause::overlay(errno));
        }
        weaknesses.extend(control_groups());
        let landlock = wall::version();
        weaknesses.extend(landlock.into_iter().flat_map(old_landlock));
        Self {
            engines: vec![
                Tried {
                    engine: Engine::Native,
                    obstacle: native
                        .err()
                        .map(|stopped| cause::native(&stopped, &cause::Settings::read()))
                        .or_else(no_wall),
                },
                Tried {
                    engine: Engine::Bwrap,
                    obstacle: bwrap().or_else(no_wall),
                },
                Tried {
                    engine: Engine::Reduced,
                    obstacle: reduced(),
                },
            ],
            weaknesses,
            landlock,
        }
    }

    /// The strongest engine that works. Never the reduced one, which has to be
    /// asked for.
    #[must_use]
    pub fn best(&self) -> Option<Engine> {
        self.engines
            .iter()
            .filter(|tried| tried.obstacle.is_none())
            .map(|tried| tried.engine)
            .find(|engine| *engine != Engine::Reduced)
    }
}

/// The second wall is part of every engine.
fn no_wall() -> Option<Failure> {
    Wall::prepare(&Reach::default())
        .err()
        .map(|error| failure::landlock(&error))
}

fn bwrap() -> Option<Failure> {
    const MOST_SAID: usize = 400;
    let Some(program) = foreign::find_bwrap() else {
        return Some(foreign::no_bwrap());
    };
    let tried = Command::new(&program)
        .args(["--unshare-all", "--cap-drop", "ALL", "--die-with-parent"])
        .args(["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"])
        .args(["--", "true"])
        .stdin(Stdio::null())
        .output();
    let why = match tried {
        Ok(output) if output.status.success() => return None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            said.trim().chars().take(MOST_SAID).collect()
        }
        Err(error) => error.to_string(),
    };
    Some(cause::bwrap(why, &cause::Settings::read()))
}

fn reduced() -> Option<Failure> {
    let wall = match Wall::prepare_alone(&Reach::default()) {
        Ok(wall) => wall,
        Err(error) => return Some(failure::landlock(&error)),
    };
    let compiled = Filter::compile_alone(Profile::Standard, Architecture::native());
    let tried = compiled
        .map_err(std::io::Error::other)
        .and_then(|filter| attempt::reduced(&wall, &filter));
    tried.err().map(|error| Failure {
        kind: FailureKind::Unavailable,
        what: "Landlock and a system-call filter cannot be put over a process".to_owned(),
        why: error.to_string(),
        fix: Some("boot a kernel with CONFIG_SECCOMP_FILTER and Landlock".to_owned()),
    })
}

/// Makes a group and removes it; says what it could not limit.
fn control_groups() -> Vec<Weakness> {
    let cgroups = Cgroups::find("probe");
    let limits = Limits {
        memory: ByteSize(64 << 20),
        cpu_milli: Some(1_000),
        pids: 16,
        user_pids: 17,
        time: Lifetime::Owner,
        disk: ByteSize(0),
        file_size: ByteSize(0),
    };
    let group = cgroups.create(SandboxId::generate(), &limits);
    let settings = cause::Settings::read();
    let mut weaknesses: Vec<Weakness> = cgroups
        .missing()
        .iter()
        .map(|missing| cause::control_group(missing.purpose, &missing.why, &settings))
        .collect();
    if let Some(group) = group {
        for lost in group.missing() {
            if !cgroups.missing().iter().any(|known| known.purpose == *lost) {
                let why = "a group could not be made where it should be possible";
                weaknesses.push(cause::control_group(lost, why, &settings));
            }
        }
        group.remove();
    }
    weaknesses
}

fn old_landlock(version: i32) -> impl Iterator<Item = Weakness> {
    wall::missing(version)
        .into_iter()
        .map(move |what| Weakness {
            what: format!("Landlock does not hold back {what}"),
            why: format!("the kernel's Landlock is version {version}"),
            fix: Some(
                "a newer kernel; until then only mounts and namespaces hold it back".to_owned(),
            ),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_reported_whole() {
        let report = Report::probe();
        let engines: Vec<Engine> = report.engines.iter().map(|tried| tried.engine).collect();
        assert_eq!(engines, [Engine::Native, Engine::Bwrap, Engine::Reduced]);
        for failure in report.engines.iter().filter_map(|t| t.obstacle.as_ref()) {
            assert!(!failure.what.is_empty() && !failure.why.is_empty());
        }
        assert_eq!(report.landlock, wall::version());
        let best = report.best();
        assert_ne!(best, Some(Engine::Reduced));
        let native = &report.engines[0];
        assert_eq!(best == Some(Engine::Native), native.obstacle.is_none());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["engines"][0]["engine"], "native");
    }

    #[test]
    fn reduced_is_never_the_best() {
        let report = Report {
            engines: vec![Tried {
                engine: Engine::Reduced,
                obstacle: None,
            }],
            weaknesses: vec![],
            landlock: Some(7),
        };
        assert_eq!(report.best(), None);
    }
}
