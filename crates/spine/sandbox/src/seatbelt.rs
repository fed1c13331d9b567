//! A plan in the words of macOS's Seatbelt: a pure function from plan to text.
//!
//! The text is ours alone: paths go in as parameters, one per filter, and are
//! never part of it. Everything is denied that is not named; an empty plan
//! allows nothing. Seatbelt cannot mount, so a plan with mounts is refused; and
//! it cannot tell a sandbox's own loopback from the host's, so there is none
//! but the proxy's port. Less than the plan asks for, never more.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::plan::{PROXY_PORT, Plan, is_normal};
use crate::template::{Network, Profile};

/// The one program that applies a profile; never looked up in `PATH`.
pub const SANDBOX_EXEC: &str = "/usr/bin/sandbox-exec";

/// More paths than a reasonable sandbox has.
const PATHS_MAX: usize = 1_000;

/// A profile: a text, and the paths it speaks of by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeatbeltProfile {
    /// The rules; no path of the plan is in it.
    pub text: String,
    /// The paths, by the name that the rules use.
    pub parameters: Vec<(String, String)>,
}

/// Why a plan cannot be put into a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeatbeltError {
    /// A path that could be read as something else.
    #[error("`{}` is not an absolute path without `.` and `..`", path.display())]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// A name that is no text; the system has none such.
    #[error("`{}` is not valid text", path.display())]
    NotText {
        /// The path.
        path: PathBuf,
    },
    /// It cannot mount anything.
    #[error("the plan has mounts, which Seatbelt cannot make")]
    Mounts,
    /// More paths than a profile takes.
    #[error("the plan has {found} paths, and {limit} are allowed")]
    TooMany {
        /// How many it has.
        found: usize,
        /// How many it may have.
        limit: usize,
    },
}

/// The profile of a plan without mounts.
///
/// # Errors
/// When the plan holds what a profile cannot say.
pub fn profile(plan: &Plan) -> Result<SeatbeltProfile, SeatbeltError> {
    if !plan.mounts.is_empty() || !plan.late.is_empty() {
        return Err(SeatbeltError::Mounts);
    }
    let (read, write) = (&plan.reach.read, &plan.reach.write);
    let found = read.len().saturating_add(write.len());
    if found > PATHS_MAX {
        let limit = PATHS_MAX;
        return Err(SeatbeltError::TooMany { found, limit });
    }
    let mut building = Building::default();
    building.line("(version 1)");
    building.line("(deny default)");
    if found == 0 {
        // A process that can read nothing cannot start; it needs no rules.
        return Ok(building.profile);
    }
    for rule in RUNNING {
        building.line(rule);
    }
    if let Profile::Standard | Profile::StandardNet = plan.seccomp {
        building.line("(allow process-fork)");
    }
    for path in read {
        building.allow(
            &["file-read*", "process-exec", "file-map-executable"],
            "READ",
            path,
        )?;
    }
    for path in write {
        let operations = [
            "file-read*",
            "file-write*",
            "process-exec",
            "file-map-executable",
        ];
        building.allow(&operations, "WRITE", path)?;
    }
    building.above(read.iter().chain(write))?;
    if plan.network == Network::Restricted {
        let proxy = format!("(allow network-outbound (remote tcp \"localhost:{PROXY_PORT}\"))");
        building.line(&proxy);
    }
    Ok(building.profile)
}

impl SeatbeltProfile {
    /// What to start for a command under this profile, the program first.
    #[must_use]
    pub fn command(&self, command: &[OsString]) -> Vec<OsString> {
        let mut argv = vec![SANDBOX_EXEC.into(), "-p".into(), self.text.clone().into()];
        for (name, value) in &self.parameters {
            argv.push("-D".into());
            argv.push(format!("{name}={value}").into());
        }
        argv.push("--".into());
        argv.extend(command.iter().cloned());
        argv
    }
}

/// What every process needs of the system to run at all, and no file of it.
const RUNNING: [&str; 9] = [
    "(allow signal (target same-sandbox))",
    "(allow process-info* (target same-sandbox))",
    "(allow sysctl-read (sysctl-name \"hw.activecpu\"))",
    "(allow sysctl-read (sysctl-name \"hw.logicalcpu\"))",
    "(allow sysctl-read (sysctl-name \"hw.memsize\"))",
    "(allow sysctl-read (sysctl-name \"hw.ncpu\"))",
    "(allow sysctl-read (sysctl-name \"hw.pagesize\"))",
    "(allow sysctl-read (sysctl-name \"kern.argmax\"))",
    "(allow sysctl-read (sysctl-name \"kern.osrelease\"))",
];

/// A profile so far.
#[derive(Debug, Default)]
struct Building {
    profile: SeatbeltProfile,
}

impl Building {
    fn line(&mut self, rule: &str) {
        self.profile.text.push_str(rule);
        self.profile.text.push('\n');
    }

    /// Allows operations on a path and all below it.
    fn allow(&mut self, operations: &[&str], kind: &str, path: &Path) -> Result<(), SeatbeltError> {
        let name = self.parameter(kind, real(text_of(path)?));
        let mut rule = String::from("(allow");
        for operation in operations {
            // Writing into a text cannot fail.
            let _ = write!(rule, " {operation}");
        }
        let _ = write!(rule, " (subpath (param \"{name}\")))");
        self.line(&rule);
        Ok(())
    }

    /// Allows to see that the directories above the paths exist: programs that
    /// ask for their own place look at each of them.
    fn above<'a>(&mut self, paths: impl Iterator<Item = &'a PathBuf>) -> Result<(), SeatbeltError> {
        let mut above = std::collections::BTreeSet::new();
        for path in paths {
            let given = text_of(path)?;
            let resolved = real(given.clone());
            for text in [given, resolved] {
                let ancestors = Path::new(&text).ancestors().skip(1);
                above.extend(ancestors.filter_map(Path::to_str).map(str::to_owned));
            }
        }
        for path in above {
            let name = self.parameter("ABOVE", path);
            self.line(&format!(
                "(allow file-read-metadata (literal (param \"{name}\")))"
            ));
        }
        Ok(())
    }

    fn parameter(&mut self, kind: &str, value: String) -> String {
        let name = format!("{kind}_{}", self.profile.parameters.len());
        self.profile.parameters.push((name.clone(), value));
        name
    }
}

/// The path as text, if it means just what it says.
fn text_of(path: &Path) -> Result<String, SeatbeltError> {
    if !is_normal(path) {
        return Err(SeatbeltError::Path {
            path: path.to_owned(),
        });
    }
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(SeatbeltError::NotText {
            path: path.to_owned(),
        }),
    }
}

/// Where macOS really keeps these three; the kernel compares resolved paths.
fn real(path: String) -> String {
    match ["/etc", "/tmp", "/var"]
        .iter()
        .find(|root| Path::new(&path).starts_with(root))
    {
        Some(_) => format!("/private{path}"),
        None => path,
    }
}

#[cfg(test)]
mod tests;
