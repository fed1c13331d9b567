//! Walls for processes of our own that cannot be in a sandbox.
//!
//! The kernel makes the sandboxes' plans and the egress process reaches the
//! network, so neither runs in one. Each gives up, once and before its first
//! thread, what it will never need: Landlock for files, a filter for calls.
//! What they may decide is not decided here. Next: `wall` and `seccomp`.

use std::io;

use crate::plan::Reach;
use crate::seccomp::{Architecture, CompileError, Filter};
use crate::template::Profile;
use crate::wall::{Wall, WallError};

/// Which of our own processes it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Files within its reach, unix sockets, its own workers; no network.
    Kernel,
    /// The network; reads what names need, writes nothing, starts nothing.
    Egress,
    /// Becomes a program of the system, which works on files within its reach
    /// and starts nothing; no network.
    Tool,
}

/// Why a process of ours has no walls.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// Landlock is not to be had.
    #[error("cannot keep it to its files: {why}")]
    Files {
        /// Why.
        why: String,
    },
    /// The filter cannot be made for this machine.
    #[error("cannot make the filter of its system calls")]
    Compile(#[from] CompileError),
    /// The system refused.
    #[error("cannot put its walls up")]
    Refused(#[source] io::Error),
}

impl From<WallError> for ConfineError {
    fn from(error: WallError) -> Self {
        let why = match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        Self::Files { why }
    }
}

/// Puts walls around the calling process, for ever. It must not have a second
/// thread yet, which would be left outside.
///
/// # Errors
/// There are no walls, or not all of them: the process must end.
pub fn confine(role: Role, reach: &Reach) -> Result<(), ConfineError> {
    let wall = match role {
        // Where Landlock knows no network, the filter still does.
        Role::Kernel | Role::Tool => match Wall::prepare_alone(reach) {
            Err(WallError::TooOld { .. }) => Wall::prepare(reach),
            prepared => prepared,
        },
        Role::Egress => Wall::prepare(reach),
    }?;
    let native = Architecture::native();
    let filter = match role {
        Role::Kernel => Filter::compile_kernel(native),
        Role::Egress => Filter::compile(Profile::StrictNet, native),
        Role::Tool => Filter::compile_alone(Profile::StrictFiles, native),
    }?;
    let refused = ConfineError::Refused;
    rustix::thread::set_no_new_privs(true).map_err(|error| refused(error.into()))?;
    wall.enforce().map_err(refused)?;
    filter.install().map_err(refused)
}

/// Takes every file, every connection and, where the kernel can, every signal
/// to others from the calling thread and all that it starts, for ever. What is
/// open stays open. For workers that work on what they were handed; the filter
/// of [`crate::seccomp::seal`] comes on top.
///
/// # Errors
/// There is no wall: the process must end.
pub fn renounce_files() -> Result<(), ConfineError> {
    let nothing = Reach::default();
    let wall = match Wall::prepare_alone(&nothing) {
        Err(WallError::TooOld { .. }) => Wall::prepare(&nothing),
        prepared => prepared,
    }?;
    let refused = ConfineError::Refused;
    rustix::thread::set_no_new_privs(true).map_err(|error| refused(error.into()))?;
    wall.enforce().map_err(refused)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use std::process::Command;

    use rustix::net::{AddressFamily, SocketType, socket};
    use tempfile::TempDir;

    use super::*;

    const INET: AddressFamily = AddressFamily::INET;

    /// What a process of ours might try once somebody else controls it.
    fn attempts(folder: &TempDir, server: &TcpListener) -> Vec<(&'static str, bool)> {
        let path = |name: &str| folder.path().join(name);
        vec![
            ("read within", fs::read(path("open/file")).is_ok()),
            ("write within", fs::write(path("own/new"), "x").is_ok()),
            ("read beside", fs::read(path("secret")).is_ok()),
            ("write beside", fs::write(path("open/new"), "x").is_ok()),
            ("unix socket", UnixStream::pair().is_ok()),
            (
                "connect",
                TcpStream::connect(server.local_addr().unwrap()).is_ok(),
            ),
            (
                "ask for a name",
                socket(INET, SocketType::DGRAM, None).is_ok(),
            ),
            ("start a program", Command::new("true").status().is_ok()),
            ("new namespaces", {
                let flags = rustix::thread::UnshareFlags::NEWUSER;
                #[expect(unsafe_code, reason = "of a thread that ends with this test")]
                // SAFETY: it shares no descriptors.
                let unshared = unsafe { rustix::thread::unshare_unsafe(flags) };
                // A thread among others may not; the filter answers first.
                unshared != Err(rustix::io::Errno::PERM)
            }),
        ]
    }

    /// What works in a thread with this role, or without any.
    fn what_works(role: Option<Role>) -> Vec<&'static str> {
        let folder = tempfile::tempdir().unwrap();
        for name in ["open", "own"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("open/file"), "x").unwrap();
        fs::write(folder.path().join("secret"), "x").unwrap();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        // Walls are a thread's and last for ever, so it gets one of its own.
        let tried = std::thread::spawn(move || {
            let mut read: Vec<PathBuf> = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/dev"]
                .map(PathBuf::from)
                .into();
            read.push(folder.path().join("open"));
            let write = vec![folder.path().join("own")];
            if let Some(role) = role {
                confine(role, &Reach { read, write }).unwrap();
            }
            attempts(&folder, &server)
        });
        let tried = tried.join().unwrap();
        tried
            .into_iter()
            .filter_map(|(name, works)| works.then_some(name))
            .collect()
    }

    #[test]
    fn a_kernel_has_its_files_and_no_network() {
        assert_eq!(
            what_works(Some(Role::Kernel)),
            [
                "read within",
                "write within",
                "unix socket",
                "start a program"
            ]
        );
    }

    #[test]
    fn an_egress_process_has_the_network_and_nothing_to_send() {
        assert_eq!(
            what_works(Some(Role::Egress)),
            ["read within", "unix socket", "connect", "ask for a name"]
        );
    }

    #[test]
    fn a_tool_has_its_files_and_nothing_else() {
        assert_eq!(
            what_works(Some(Role::Tool)),
            ["read within", "write within", "unix socket"]
        );
    }

    #[test]
    fn without_walls_everything_works() {
        assert_eq!(
            what_works(None),
            [
                "read within",
                "write within",
                "read beside",
                "write beside",
                "unix socket",
                "connect",
                "ask for a name",
                "start a program",
                "new namespaces",
            ]
        );
    }
}
