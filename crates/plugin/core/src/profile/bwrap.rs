//! A plugin under `bwrap` alone: a pure function from manifest to arguments.
//!
//! The launcher has arguments of its own for `bwrap`, which put its init into a
//! sandbox; these put the plugin's program into one without a launcher. Each
//! path is one argument, absolute and normal, so none can be read as an option.
//! The vector is made fresh for each call. Memory, processors and hosts are not
//! `bwrap`'s: whoever starts it sees to the limits and the proxy.

use std::ffi::OsString;
use std::path::Path;

use fluffy_policy::host::HostPattern;

use super::{Kind, Opened, Places, ProfileError, Seccomp, System, check, command, system_paths};
use crate::manifest::Execution;

/// The descriptor that holds the filter of system calls, compiled; `bwrap`
/// does not start without it.
pub const SECCOMP_DESCRIPTOR: u32 = 3;

/// What to start `bwrap` with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BwrapProfile {
    /// Everything after its own name.
    pub arguments: Vec<OsString>,
    /// The filter that [`SECCOMP_DESCRIPTOR`] has to hold.
    pub seccomp: Seccomp,
    /// What the egress proxy lets through. The network inside has nothing but
    /// a loopback, so there is no other way to any host.
    pub hosts: Vec<HostPattern>,
}

/// What holds for every plugin.
const ALWAYS: [&str; 17] = [
    "--unshare-user",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup",
    "--hostname",
    "plugin",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    // Root's own bwrap would keep them all.
    "--cap-drop",
    "ALL",
    "--uid",
    "1000",
    "--gid",
    "1000",
];

/// Bytes of the private `/tmp`.
const SCRATCH: &str = "67108864";

/// The arguments for `bwrap` that start a plugin's program.
///
/// # Errors
/// When a path is not what the manifest says, or cannot be told.
pub fn bwrap(execution: &Execution, places: &Places) -> Result<BwrapProfile, ProfileError> {
    let opened = Opened::of(execution, places)?;
    let program = command(execution, places)?;
    let mut building = Building::default();
    building.words(&ALWAYS);
    for path in system_paths(System::Linux) {
        building.system(&path, places)?;
    }
    building.words(&[
        "--dev", "/dev", "--proc", "/proc", "--size", SCRATCH, "--tmpfs", "/tmp",
    ]);
    building.bind("--ro-bind", &places.files)?;
    for (path, _) in &opened.read {
        building.bind("--ro-bind", path)?;
    }
    for (path, _, kind) in &opened.hidden {
        building.hide(path, kind.as_ref())?;
    }
    if opened.data {
        building.bind("--bind", &places.data)?;
    }
    building.bind("--bind", &places.meeting)?;
    // After the mounts, since every mount point is made on it.
    building.words(&[
        "--remount-ro",
        "/",
        "--setenv",
        "PATH",
        "/usr/local/bin:/usr/bin:/bin",
    ]);
    building.words(&["--setenv", "TMPDIR", "/tmp", "--setenv", "HOME"]);
    building.path(match opened.data {
        true => &places.data,
        false => Path::new("/tmp"),
    })?;
    building.words(&["--chdir"]);
    building.path(&places.files)?;
    building.words(&["--seccomp", &SECCOMP_DESCRIPTOR.to_string(), "--"]);
    building.arguments.extend(program);
    let hosts = execution.sandbox.hosts.clone();
    Ok(BwrapProfile {
        arguments: building.arguments,
        seccomp: Seccomp::of(&hosts),
        hosts,
    })
}

#[derive(Debug, Default)]
struct Building {
    arguments: Vec<OsString>,
}

impl Building {
    fn words(&mut self, words: &[&str]) {
        self.arguments.extend(words.iter().map(OsString::from));
    }

    fn path(&mut self, path: &Path) -> Result<(), ProfileError> {
        check(path)?;
        self.arguments.push(path.as_os_str().to_owned());
        Ok(())
    }

    fn bind(&mut self, option: &str, path: &Path) -> Result<(), ProfileError> {
        self.words(&[option]);
        self.path(path)?;
        self.path(path)
    }

    /// A part of the system, as it is there, or nothing.
    fn system(&mut self, path: &Path, places: &Places) -> Result<(), ProfileError> {
        match places.present.get(path) {
            None => Ok(()),
            Some(Kind::File | Kind::Directory) => self.bind("--ro-bind", path),
            Some(Kind::Link { target }) => {
                let bytes = target.as_os_str().as_encoded_bytes();
                if bytes.is_empty() || bytes.starts_with(b"-") || bytes.contains(&0) {
                    let path = target.clone();
                    return Err(ProfileError::Path { path });
                }
                self.words(&["--symlink"]);
                self.arguments.push(target.as_os_str().to_owned());
                self.path(path)
            }
        }
    }

    fn hide(&mut self, path: &Path, kind: Option<&Kind>) -> Result<(), ProfileError> {
        match kind {
            // Bound without its meaning as a device, it cannot be opened.
            Some(Kind::File) => {
                self.words(&["--ro-bind", "/dev/null"]);
                self.path(path)
            }
            Some(Kind::Directory) => {
                self.words(&["--perms", "0000", "--tmpfs"]);
                self.path(path)?;
                self.words(&["--remount-ro"]);
                self.path(path)
            }
            Some(Kind::Link { .. }) | None => Ok(()),
        }
    }
}
