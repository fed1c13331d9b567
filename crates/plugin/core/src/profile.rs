//! From a manifest to what an operating system's sandbox is told.
//!
//! Three generators, all pure and all from one list of what is opened: our
//! native specification, the arguments of `bwrap` and a Seatbelt profile.
//! Paths are data and never part of a grammar; one that cannot be told as data
//! is refused. What the manifest does not ask for is not opened: an empty one
//! opens the plugin's own files and nothing else of anybody's.

mod bwrap;
mod native;
mod seatbelt;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use fluffy_policy::host::HostPattern;

use crate::manifest::reach::{Extent, Root};
use crate::manifest::{Execution, PathRule, Start};

pub use bwrap::{BwrapProfile, SECCOMP_DESCRIPTOR, bwrap};
pub use native::{NativeProfile, native};
pub use seatbelt::{SANDBOX_EXEC, SeatbeltProfile, seatbelt};

/// Where a plugin's things are on this machine. Every path is resolved: no
/// part of it is a link, or a name could lead out of its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The plugin's own files.
    pub files: PathBuf,
    /// Its data.
    pub data: PathBuf,
    /// Where its sockets meet the host's.
    pub meeting: PathBuf,
    /// The workspace; without one nothing of it is seen.
    pub workspace: Option<PathBuf>,
    /// The port of the egress proxy, for systems without a network of its own.
    pub proxy_port: u16,
    /// What there is of [`looks_at`].
    pub present: BTreeMap<PathBuf, Kind>,
}

/// What a path is, its links not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A link, and what it says.
    Link {
        /// What it says.
        target: PathBuf,
    },
}

/// A system that has a generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// Linux, with `bwrap`.
    Linux,
    /// macOS, with Seatbelt.
    Macos,
}

impl std::str::FromStr for System {
    type Err = ProfileError;

    /// Reads a system's name as `std::env::consts::OS` has it.
    fn from_str(name: &str) -> Result<Self, ProfileError> {
        match name {
            "linux" => Ok(Self::Linux),
            "macos" => Ok(Self::Macos),
            _ => Err(ProfileError::System {
                name: name.chars().take(64).collect(),
            }),
        }
    }
}

/// Which system calls a plugin may make: names of the sandbox's own profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seccomp {
    /// Processes, files and sockets of its own loopback.
    Standard,
    /// The same, where the only way out is the egress proxy.
    StandardNet,
}

impl Seccomp {
    fn of(hosts: &[HostPattern]) -> Self {
        match hosts.is_empty() {
            true => Self::Standard,
            false => Self::StandardNet,
        }
    }
}

/// Why there is no profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Nothing here can isolate on it.
    #[error("there is no sandbox for plugins on `{name}`")]
    System {
        /// Its name.
        name: String,
    },
    /// A path that could be read as something else.
    #[error("`{}` is not an absolute path without `.` and `..`", path.display())]
    Path {
        /// Which.
        path: PathBuf,
    },
    /// A path that Seatbelt cannot be told.
    #[error("`{}` is not valid text", path.display())]
    NotText {
        /// Which.
        path: PathBuf,
    },
    /// A place of the plugin that holds everybody else's too.
    #[error("`{}` cannot be a place of a plugin", path.display())]
    TooMuch {
        /// Which.
        path: PathBuf,
    },
    /// A link, which could lead anywhere tomorrow.
    #[error("`{}` is a link", path.display())]
    Link {
        /// Which.
        path: PathBuf,
    },
    /// A directory named as a file, or the other way round.
    #[error("`{rule}` names {}", match extent { Extent::Itself => "a directory, not a file; write it with `/*`", Extent::Below => "a file, not a directory; write it without `/*`" })]
    Kind {
        /// The manifest's path.
        rule: String,
        /// What it was named as.
        extent: Extent,
    },
    /// A module or an image has no process of this machine to start.
    #[error("only a program is started under this profile")]
    NoProgram,
}

/// Directories with programs and libraries, and public settings. Only those
/// that a machine has are opened; `/lib64` is not everywhere.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/ssl/certs",
];
const SYSTEM_MACOS: &[&str] = &[
    "/usr/lib",
    "/usr/bin",
    "/usr/share",
    "/bin",
    "/System/Library",
];

/// The paths whose kinds [`Places::present`] has to tell, where they exist.
#[must_use]
pub fn looks_at(execution: &Execution, system: System, workspace: Option<&Path>) -> Vec<PathBuf> {
    let reach = &execution.sandbox;
    let rules = reach.read_allow.iter().chain(&reach.read_deny);
    let asked = rules.filter_map(|rule| path_of(rule, workspace));
    system_paths(system).chain(asked).collect()
}

fn system_paths(system: System) -> impl Iterator<Item = PathBuf> {
    let paths = match system {
        System::Linux => SYSTEM,
        System::Macos => SYSTEM_MACOS,
    };
    paths.iter().map(PathBuf::from)
}

/// Where a path of a manifest is; the plugin's own data is a place of its own.
fn path_of(rule: &PathRule, workspace: Option<&Path>) -> Option<PathBuf> {
    let root = match rule.root() {
        Root::Workspace => workspace?,
        Root::Host => Path::new("/"),
        Root::Data => return None,
    };
    Some(match rule.names() {
        "" => root.to_owned(),
        names => root.join(names),
    })
}

/// What a manifest opens on this machine, checked: the source of each profile.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Opened {
    /// What is read.
    read: Vec<(PathBuf, Extent)>,
    /// What of that stays unread, and what it is, if it is there.
    hidden: Vec<(PathBuf, Extent, Option<Kind>)>,
    /// Whether its data is opened.
    data: bool,
}

impl Opened {
    fn of(execution: &Execution, places: &Places) -> Result<Self, ProfileError> {
        check_places(places)?;
        let workspace = places.workspace.as_deref();
        let reach = &execution.sandbox;
        let mut opened = Self {
            read: Vec::new(),
            hidden: Vec::new(),
            data: reach
                .write_allow
                .iter()
                .any(|rule| rule.root() == Root::Data),
        };
        for rule in &reach.read_allow {
            if let Some(path) = path_of(rule, workspace)
                && kind_at(rule, &path, places)?.is_some()
            {
                opened.read.push((path, rule.extent()));
            }
        }
        for rule in &reach.read_deny {
            let seen = reach.read_allow.iter().any(|wide| wide.covers(rule));
            if let (Some(path), true) = (path_of(rule, workspace), seen) {
                let kind = kind_at(rule, &path, places)?;
                opened.hidden.push((path, rule.extent(), kind));
            }
        }
        Ok(opened)
    }
}

/// What is there, if it is what the manifest says.
fn kind_at(rule: &PathRule, path: &Path, places: &Places) -> Result<Option<Kind>, ProfileError> {
    check(path)?;
    match (places.present.get(path), rule.extent()) {
        (None, _) => Ok(None),
        (Some(Kind::Link { .. }), _) => Err(ProfileError::Link {
            path: path.to_owned(),
        }),
        (Some(Kind::File), Extent::Itself) => Ok(Some(Kind::File)),
        (Some(Kind::Directory), Extent::Below) => Ok(Some(Kind::Directory)),
        (Some(Kind::File | Kind::Directory), extent) => Err(ProfileError::Kind {
            rule: rule.to_string(),
            extent,
        }),
    }
}

/// Refuses what a tool or the kernel would read as another path, or none.
fn check(path: &Path) -> Result<(), ProfileError> {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let clean = path.is_absolute()
        && path.components().all(plain)
        && !path.as_os_str().as_encoded_bytes().contains(&0);
    // `components` hides `/./` and `//`; the text must be what it means.
    let rebuilt: PathBuf = path.components().collect();
    match clean && rebuilt.as_os_str() == path.as_os_str() {
        true => Ok(()),
        false => Err(ProfileError::Path {
            path: path.to_owned(),
        }),
    }
}

/// Refuses places that hold what is not the plugin's.
fn check_places(places: &Places) -> Result<(), ProfileError> {
    const TOPS: &[&str] = &[
        "/", "/bin", "/dev", "/etc", "/home", "/lib", "/private", "/proc", "/root", "/run",
        "/sbin", "/sys", "/tmp", "/usr", "/var",
    ];
    const NEVER_WRITTEN: &[&str] = &[
        "/bin", "/dev", "/etc", "/lib", "/proc", "/sbin", "/sys", "/usr",
    ];
    let readable = [Some(&places.files), places.workspace.as_ref()];
    let readable: Vec<&PathBuf> = readable.into_iter().flatten().collect();
    let writable = [&places.data, &places.meeting];
    for place in readable.iter().copied().chain(writable) {
        check(place)?;
        if TOPS.iter().any(|top| place == Path::new(top)) {
            return Err(ProfileError::TooMuch {
                path: place.clone(),
            });
        }
    }
    for place in writable {
        // What it may write must not hold what it may only read, itself first.
        let holds = readable.iter().any(|path| path.starts_with(place));
        if holds || NEVER_WRITTEN.iter().any(|system| place.starts_with(system)) {
            return Err(ProfileError::TooMuch {
                path: place.clone(),
            });
        }
    }
    Ok(())
}

/// The command of a program; a file of the plugin by its whole path.
fn command(
    execution: &Execution,
    places: &Places,
) -> Result<Vec<std::ffi::OsString>, ProfileError> {
    let Start::Program { command, .. } = &execution.start else {
        return Err(ProfileError::NoProgram);
    };
    let mut words = command.iter();
    let program = words.next().ok_or(ProfileError::NoProgram)?;
    let program = match program.strip_prefix("./") {
        Some(own) => {
            let path = places.files.join(own);
            check(&path)?;
            path.into_os_string()
        }
        None => program.into(),
    };
    Ok([program].into_iter().chain(words.map(Into::into)).collect())
}

#[cfg(test)]
mod tests;
