//! A plugin under macOS's Seatbelt: a pure function from manifest to text.
//!
//! The text is ours alone: paths go in as parameters, one per filter, and are
//! never part of it. Everything is denied that is not named. Seatbelt has one
//! network for everybody, so of it only the egress proxy's port is open, and
//! the proxy knows hosts and ports. The last rule that matches wins.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use fluffy_policy::host::HostPattern;

use super::{Opened, Places, ProfileError, System, check, command, system_paths};
use crate::manifest::Execution;
use crate::manifest::reach::Extent;

/// The one program that applies a profile; never looked up in `PATH`.
pub const SANDBOX_EXEC: &str = "/usr/bin/sandbox-exec";

/// A profile: a text, and the paths it speaks of by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeatbeltProfile {
    /// The rules; no path of anybody is in it.
    pub text: String,
    /// The paths, by the name that the rules use.
    pub parameters: Vec<(String, String)>,
    /// What the egress proxy lets through.
    pub hosts: Vec<HostPattern>,
    /// The plugin's program and its arguments.
    command: Vec<OsString>,
}

/// What every process needs of the system to run at all, and no file of it.
pub(super) const ALWAYS: [&str; 12] = [
    "(version 1)",
    "(deny default)",
    "(allow process-fork)",
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

const READ: &str = "file-read*";
const RUN: &str = "file-read* file-map-executable process-exec";
const WRITE: &str = "file-read* file-write*";

/// The Seatbelt profile of a plugin's program.
///
/// # Errors
/// When a path is not what the manifest says, or cannot be told.
pub fn seatbelt(execution: &Execution, places: &Places) -> Result<SeatbeltProfile, ProfileError> {
    let opened = Opened::of(execution, places)?;
    let mut building = Building::default();
    for rule in ALWAYS {
        building.line(rule);
    }
    let present = |path: &std::path::PathBuf| places.present.contains_key(path);
    for path in system_paths(System::Macos).filter(present) {
        building.rule("allow", RUN, Extent::Below, &path)?;
    }
    building.rule("allow", RUN, Extent::Below, &places.files)?;
    for (path, extent) in &opened.read {
        building.rule("allow", READ, *extent, path)?;
    }
    // After what they take away from; a deny holds for what is not there yet.
    for (path, extent, _) in &opened.hidden {
        building.rule("deny", READ, *extent, path)?;
    }
    if opened.data {
        building.rule("allow", WRITE, Extent::Below, &places.data)?;
    }
    building.rule("allow", WRITE, Extent::Below, &places.meeting)?;
    let meeting = building.parameter(&places.meeting)?;
    for (operation, side) in [
        ("network-bind", "local"),
        ("network-inbound", "local"),
        ("network-outbound", "remote"),
    ] {
        building.line(&format!(
            "(allow {operation} ({side} unix-socket (subpath (param \"{meeting}\"))))"
        ));
    }
    building.above()?;
    let hosts = execution.sandbox.hosts.clone();
    if !hosts.is_empty() {
        let port = places.proxy_port;
        building.line(&format!(
            "(allow network-outbound (remote tcp \"localhost:{port}\"))"
        ));
    }
    Ok(SeatbeltProfile {
        text: building.text,
        parameters: building.parameters,
        hosts,
        command: command(execution, places)?,
    })
}

impl SeatbeltProfile {
    /// What to start, the program first; a fresh vector for each call.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut argv = vec![SANDBOX_EXEC.into(), "-p".into(), self.text.clone().into()];
        for (name, value) in &self.parameters {
            argv.push("-D".into());
            argv.push(format!("{name}={value}").into());
        }
        argv.push("--".into());
        argv.extend(self.command.iter().cloned());
        argv
    }
}

#[derive(Debug, Default)]
struct Building {
    text: String,
    parameters: Vec<(String, String)>,
}

impl Building {
    fn line(&mut self, rule: &str) {
        self.text.push_str(rule);
        self.text.push('\n');
    }

    /// One rule with one path.
    fn rule(
        &mut self,
        verdict: &str,
        operations: &str,
        extent: Extent,
        path: &Path,
    ) -> Result<(), ProfileError> {
        let name = self.parameter(path)?;
        let filter = match extent {
            Extent::Itself => "literal",
            Extent::Below => "subpath",
        };
        self.line(&format!(
            "({verdict} {operations} ({filter} (param \"{name}\")))"
        ));
        Ok(())
    }

    /// The name of a path, which it has from now on.
    fn parameter(&mut self, path: &Path) -> Result<String, ProfileError> {
        check(path)?;
        let text = path.to_str().ok_or_else(|| ProfileError::NotText {
            path: path.to_owned(),
        })?;
        if let Some((name, _)) = self.parameters.iter().find(|(_, value)| value == text) {
            return Ok(name.clone());
        }
        let name = format!("PATH_{}", self.parameters.len());
        self.parameters.push((name.clone(), text.to_owned()));
        Ok(name)
    }

    /// Lets programs see that the directories above the paths exist: those that
    /// ask for their own place look at each of them.
    fn above(&mut self) -> Result<(), ProfileError> {
        let mut above = BTreeSet::new();
        for (_, path) in &self.parameters {
            above.extend(Path::new(path).ancestors().skip(1).map(Path::to_owned));
        }
        for path in above {
            let name = self.parameter(&path)?;
            self.line(&format!(
                "(allow file-read-metadata (literal (param \"{name}\")))"
            ));
        }
        Ok(())
    }
}
