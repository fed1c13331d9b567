//! Where PostgreSQL's programs are, and the user that may run them.
//!
//! Installs nothing itself: `cargo xtask test` does, and the errors say so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Where Debian and Ubuntu keep one folder per major version.
const DEBIAN_ROOT: &str = "/usr/lib/postgresql";

/// The programs we call; a client-only installation has not got all of them.
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "psql"];

/// The users tried when we are root, which PostgreSQL refuses to run as.
const SERVICE_USERS: [&str; 2] = ["postgres", "nobody"];

/// The folder that holds the newest installed server's programs.
pub(super) fn programs() -> Result<PathBuf> {
    let versions = fs::read_dir(DEBIAN_ROOT).into_iter().flatten().flatten();
    let mut folders: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    folders.sort();
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let newest_first = folders.into_iter().rev().map(|(_, folder)| folder);
    newest_first
        .chain(std::env::split_paths(&search_path))
        .find(|folder| has_all(folder))
        .with_context(|| {
            format!(
                "PostgreSQL's server programs are neither in {DEBIAN_ROOT}/*/bin nor on PATH; \
                 run `cargo xtask test`, or install them: apt-get install postgresql"
            )
        })
}

fn has_all(folder: &Path) -> bool {
    PROGRAMS.iter().all(|name| folder.join(name).is_file())
}

/// The user a server runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RunAs {
    /// The one who runs the tests.
    Myself,
    /// Another one, because we are root.
    Service {
        /// The numeric user.
        user: u32,
        /// The user's own group.
        group: u32,
    },
}

impl RunAs {
    /// The user that fits the one who asks.
    pub(super) fn choose() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Myself);
        }
        let accounts = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
        match find_service(&accounts) {
            Some(found) => Ok(found),
            None => bail!(
                "PostgreSQL does not run as root, and there is no user {}; \
                 install it (apt-get install postgresql) or run as an ordinary user",
                SERVICE_USERS.join(" or ")
            ),
        }
    }

    /// The command that runs a program as this user.
    pub(super) fn command(&self, program: &Path) -> Command {
        match self {
            Self::Myself => Command::new(program),
            Self::Service { user, group } => {
                // `setpriv` replaces itself, so the child's id is the server's.
                let mut command = Command::new("setpriv");
                command
                    .arg(format!("--reuid={user}"))
                    .arg(format!("--regid={group}"))
                    .args(["--clear-groups", "--"])
                    .arg(program);
                command
            }
        }
    }

    /// Hands a folder to this user.
    pub(super) fn own(&self, folder: &Path) -> Result<()> {
        match self {
            Self::Myself => Ok(()),
            Self::Service { user, group } => {
                std::os::unix::fs::chown(folder, Some(*user), Some(*group))
                    .with_context(|| format!("cannot hand {} over", folder.display()))
            }
        }
    }
}

fn find_service(accounts: &str) -> Option<RunAs> {
    SERVICE_USERS.iter().find_map(|name| {
        accounts.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == *name).then_some(())?;
            let user = fields.nth(1)?.parse().ok().filter(|id| *id != 0)?;
            let group = fields.next()?.parse().ok()?;
            Some(RunAs::Service { user, group })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_user_comes_before_nobody() {
        let accounts = "root:x:0:0:root:/root:/bin/sh\n\
                        nobody:x:65534:65533::/:/bin/false\n\
                        postgres:x:101:104::/var/lib/postgresql:/bin/bash\n";
        let postgres = RunAs::Service {
            user: 101,
            group: 104,
        };
        assert_eq!(find_service(accounts), Some(postgres));
        let without = accounts.replace("postgres:x:101", "postgrey:x:101");
        let nobody = RunAs::Service {
            user: 65534,
            group: 65533,
        };
        assert_eq!(find_service(&without), Some(nobody));
    }

    #[test]
    fn a_service_user_that_is_root_is_not_used() {
        assert_eq!(find_service("postgres:x:0:0::/:/bin/sh\n"), None);
        assert_eq!(find_service("postgres\nnobody:x\n"), None);
    }
}
