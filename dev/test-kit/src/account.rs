//! The ordinary user that servers of the tests run as when we are root.
//!
//! Never makes a user: it takes one that the packages of Debian bring.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The users tried when we are root.
const SERVICE_USERS: [&str; 2] = ["postgres", "nobody"];

/// The user a server runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunAs {
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
    pub(crate) fn choose() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Myself);
        }
        let accounts = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
        match find_service(&accounts) {
            Some(found) => Ok(found),
            None => bail!(
                "this server must not run as root, and there is no user {}; \
                 make one (apt-get install postgresql) or run as an ordinary user",
                SERVICE_USERS.join(" or ")
            ),
        }
    }

    /// The command that runs a program as this user.
    pub(crate) fn command(&self, program: &Path) -> Command {
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
    pub(crate) fn own(&self, folder: &Path) -> Result<()> {
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
