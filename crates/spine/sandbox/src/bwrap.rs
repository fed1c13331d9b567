//! A plan in the words of `bwrap`: a pure function from plan to arguments.
//!
//! Paths are data: each is its own argument, absolute and normal, so none can
//! be read as an option. What `bwrap` cannot do is refused, never left out.
//! Two things are weaker than on the native engine and said so: its scratch
//! file systems have no limit of files (the memory limit bounds them), and its
//! loopback is always up (the strict filters have no internet sockets). Next:
//! `foreign` starts it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::foreign::{INIT_ARGUMENTS, INSIDE_PROGRAM};
use crate::plan::{HiddenKind, INSIDE_ID, Mount, Plan, is_normal};

/// The descriptor of the first file's content; the others follow it.
pub(crate) const FIRST_FILE: usize = 4;

/// `bwrap` itself stops at nine thousand.
const ARGUMENTS_MAX: usize = 8_000;

/// What to start `bwrap` with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// Everything after its own name.
    pub(crate) list: Vec<OsString>,
    /// What descriptors 4, 5, … have to hold, from their start.
    pub(crate) files: Vec<String>,
}

/// Why a plan cannot be put into the words of `bwrap`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BwrapError {
    /// A path that could be read as something else.
    #[error("`{}` is not an absolute path without `.` and `..`", path.display())]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// A link that could be read as an option.
    #[error("`{}` cannot be what a link points to", target.display())]
    Target {
        /// What it should point to.
        target: PathBuf,
    },
    /// It cannot mount an overlay with extended attributes of its own.
    #[error("`{}` is an overlay, and bwrap needs a copy", inside.display())]
    Overlay {
        /// Where it should be seen.
        inside: PathBuf,
    },
    /// A part of something that is not there.
    #[error("`{}` is not inside anything that is mounted before it", inside.display())]
    Nowhere {
        /// The part.
        inside: PathBuf,
    },
    /// More mounts than it takes.
    #[error("the sandbox has more mounts than bwrap takes")]
    TooMany,
}

/// The arguments for `bwrap` that make the plan's sandbox around this program.
///
/// # Errors
/// When the plan holds what `bwrap` cannot do or would misread.
pub(crate) fn arguments(plan: &Plan, program: &Path) -> Result<Arguments, BwrapError> {
    let mut building = Building::default();
    building.words(&NAMESPACES);
    let id = INSIDE_ID.to_string();
    building.words(&["--uid", &id, "--gid", &id]);
    for mount in plan.mounts.iter().chain(&plan.late) {
        building.mount(mount)?;
    }
    building.option("--ro-bind", &[program, Path::new(INSIDE_PROGRAM)])?;
    // Last, since every mount point is made on it.
    building.option("--remount-ro", &[Path::new("/")])?;
    building.words(&["--chdir", "/", "--", INSIDE_PROGRAM]);
    building.words(&INIT_ARGUMENTS);
    match building.arguments.list.len() > ARGUMENTS_MAX {
        true => Err(BwrapError::TooMany),
        false => Ok(building.arguments),
    }
}

/// What holds for every sandbox.
const NAMESPACES: [&str; 14] = [
    "--unshare-user",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup",
    "--hostname",
    "sandbox",
    "--die-with-parent",
    "--new-session",
    "--as-pid-1",
    "--clearenv",
    // Root's own bwrap would keep them all.
    "--cap-drop",
    "ALL",
];

/// Arguments so far, and what of the host is seen where.
#[derive(Debug, Default)]
struct Building {
    arguments: Arguments,
    seen: Vec<(PathBuf, PathBuf)>,
}

impl Building {
    fn mount(&mut self, mount: &Mount) -> Result<(), BwrapError> {
        match mount {
            Mount::Directory { inside } => self.option("--dir", &[inside]),
            Mount::ReadOnly { host, inside } => self.bind("--ro-bind", host, inside),
            Mount::Writable { host, inside } => self.bind("--bind", host, inside),
            Mount::Overlay { inside, .. } => Err(BwrapError::Overlay {
                inside: inside.clone(),
            }),
            Mount::Protect { inside } => {
                let host = self.host_of(inside)?;
                self.option("--ro-bind-try", &[&host, inside])
            }
            Mount::OnlyWritable { inside, parts } => self.only_writable(inside, parts),
            Mount::Pin { inside } => {
                let host = self.host_of(inside)?;
                self.option("--bind", &[&host, inside])
            }
            Mount::Hide { inside, kind } => self.hide(inside, *kind),
            Mount::Scratch { inside, size, .. } => {
                self.words(&["--size", &size.0.to_string()]);
                self.option("--tmpfs", &[inside])
            }
            Mount::File { inside, content } => {
                let descriptor = FIRST_FILE.saturating_add(self.arguments.files.len());
                self.arguments.files.push(content.clone());
                self.words(&["--ro-bind-data", &descriptor.to_string()]);
                self.path(inside)
            }
            Mount::Link { inside, target } => {
                let bytes = target.as_os_str().as_encoded_bytes();
                if bytes.is_empty() || bytes.starts_with(b"-") || bytes.contains(&0) {
                    return Err(BwrapError::Target {
                        target: target.clone(),
                    });
                }
                self.words(&["--symlink"]);
                self.arguments.list.push(target.clone().into_os_string());
                self.path(inside)
            }
            Mount::Devices => self.option("--dev", &[Path::new("/dev")]),
            Mount::Processes => self.option("--proc", &[Path::new("/proc")]),
        }
    }

    fn bind(&mut self, option: &str, host: &Path, inside: &Path) -> Result<(), BwrapError> {
        self.option(option, &[host, inside])?;
        self.seen.push((inside.to_owned(), host.to_owned()));
        Ok(())
    }

    fn hide(&mut self, inside: &Path, kind: HiddenKind) -> Result<(), BwrapError> {
        match kind {
            // Bound without its meaning as a device, it cannot be opened.
            HiddenKind::File => self.option("--ro-bind", &[Path::new("/dev/null"), inside]),
            HiddenKind::Directory => {
                self.words(&["--perms", "0000"]);
                self.option("--tmpfs", &[inside])?;
                self.option("--remount-ro", &[inside])
            }
            HiddenKind::Unseen => Err(BwrapError::Nowhere {
                inside: inside.to_owned(),
            }),
        }
    }

    /// The whole once more, read-only, and the parts writable on top of it.
    fn only_writable(&mut self, inside: &Path, parts: &[PathBuf]) -> Result<(), BwrapError> {
        let host = self.host_of(inside)?;
        self.option("--ro-bind", &[&host, inside])?;
        for part in parts {
            if !part.starts_with(inside) {
                return Err(BwrapError::Nowhere {
                    inside: part.clone(),
                });
            }
            let host = self.host_of(part)?;
            self.option("--bind", &[&host, part])?;
        }
        Ok(())
    }

    /// Where on the host something is that is seen inside.
    fn host_of(&self, inside: &Path) -> Result<PathBuf, BwrapError> {
        check(inside)?;
        let nowhere = || BwrapError::Nowhere {
            inside: inside.to_owned(),
        };
        let (from, host) = self
            .seen
            .iter()
            .rev()
            .find(|(seen, _)| inside.starts_with(seen))
            .ok_or_else(nowhere)?;
        let below = inside.strip_prefix(from).map_err(|_| nowhere())?;
        // Joining nothing would leave a slash at the end.
        Ok(match below.as_os_str().is_empty() {
            true => host.clone(),
            false => host.join(below),
        })
    }

    fn option(&mut self, option: &str, paths: &[&Path]) -> Result<(), BwrapError> {
        self.words(&[option]);
        paths.iter().try_for_each(|path| self.path(path))
    }

    fn path(&mut self, path: &Path) -> Result<(), BwrapError> {
        check(path)?;
        self.arguments.list.push(path.as_os_str().to_owned());
        Ok(())
    }

    fn words(&mut self, words: &[&str]) {
        let words = words.iter().map(OsString::from);
        self.arguments.list.extend(words);
    }
}

/// Refuses what `bwrap` or the kernel would read as another path.
fn check(path: &Path) -> Result<(), BwrapError> {
    match is_normal(path) {
        true => Ok(()),
        false => Err(BwrapError::Path {
            path: path.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests;
