//! Starts an init that another program puts into its sandbox, or none does.
//!
//! `bwrap` where only it may make user namespaces; nothing at all in reduced
//! isolation. The init is this very executable, started as
//! `worker sandbox-init` with its socket as descriptor 3; its first message is
//! the plan. Next: `bwrap` for the arguments, `init` for what then happens.

use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use crate::cgroup::Group;
use crate::failure;
use crate::plan::{Engine, Plan, settle_hidden};
use crate::protocol::{self, Failure};
use crate::sys::linux::call::{self, Forked};

/// Where the executable is seen inside.
pub(crate) const INSIDE_PROGRAM: &str = "/run/fluffy-init";
/// The arguments that make it an init.
pub const INIT_ARGUMENTS: [&str; 2] = ["worker", "sandbox-init"];

/// Starts the init; it waits for its plan.
pub(crate) fn spawn(
    plan: &Plan,
    group: Option<&Group>,
    control: OwnedFd,
) -> Result<(Pid, OwnedFd), Failure> {
    let system = |error: io::Error| failure::system("start the sandbox's init", &error);
    let own = fs::read_link("/proc/self/exe").map_err(system)?;
    if let Some(scratch) = &plan.scratch {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(scratch)
            .map_err(system)?;
    }
    let (program, argv, files) = match plan.engine {
        Engine::Bwrap => {
            let program = find_bwrap().ok_or_else(no_bwrap)?;
            let refused =
                |error: &dyn std::error::Error| failure::refused("the sandbox", &error.to_string());
            let late = settle_hidden(plan.late.clone()).map_err(|error| refused(&error))?;
            let plan = Plan {
                late,
                ..plan.clone()
            };
            let arguments =
                crate::bwrap::arguments(&plan, &own).map_err(|error| refused(&error))?;
            let mut argv = vec![OsString::from("bwrap")];
            argv.extend(arguments.list);
            (program, argv, arguments.files)
        }
        Engine::Reduced => {
            let mut argv = vec![own.clone().into_os_string()];
            argv.extend(INIT_ARGUMENTS.map(OsString::from));
            (own, argv, Vec::new())
        }
        Engine::Native | Engine::Container => {
            return Err(failure::refused("the sandbox", "its engine is another one"));
        }
    };
    start(&program, &argv, &files, group, control).map_err(system)
}

/// Descriptor 3 is the socket; the files' contents follow from 4 on.
fn start(
    program: &Path,
    argv: &[OsString],
    files: &[String],
    group: Option<&Group>,
    control: OwnedFd,
) -> io::Result<(Pid, OwnedFd)> {
    let text = |text: &std::ffi::OsStr| {
        CString::new(text.as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
    };
    let program = text(program.as_os_str())?;
    let argv = argv
        .iter()
        .map(|one| text(one))
        .collect::<io::Result<Vec<_>>>()?;
    let (argv, none) = (call::Words::new(argv), call::Words::new(Vec::new()));
    match call::fork_into(0, group.and_then(Group::descriptor))? {
        Forked::Parent { pid, pidfd } => Ok((pid, pidfd)),
        Forked::Child => {
            let joined = group.map_or(Ok(()), Group::join);
            let control = joined.and_then(|()| call::only_descriptor(control));
            let ready = control.and_then(|control| {
                crate::sys::linux::privileges::tie_to_parent_for_exec()?;
                call::keep_across_exec(control)?;
                files.iter().try_for_each(|content| hand_over(content))
            });
            if ready.is_ok() {
                call::execute(&program, &argv, &none);
            }
            call::exit_now(127)
        }
    }
}

/// Opens the next descriptor with this content, for the next program.
fn hand_over(content: &str) -> io::Result<()> {
    let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::empty())?;
    let mut file = fs::File::from(file);
    file.write_all(content.as_bytes())?;
    file.rewind()?;
    call::keep_across_exec(file.into())
}

/// What `worker sandbox-init` does.
///
/// # Errors
/// When its launcher is gone, or a guard cannot be had.
pub fn init_main() -> io::Result<()> {
    serve_init(call::inherited_control()?)
}

/// What an init does that has found the socket to its launcher.
///
/// # Errors
/// When its launcher is gone, or a guard cannot be had.
pub fn serve_init(control: OwnedFd) -> io::Result<()> {
    let Some((plan, _)) = protocol::receive::<Plan>(&control)? else {
        return Ok(());
    };
    crate::init::run_foreign(control, &plan)
}

/// `bwrap` of the system; never one that a project could bring along.
pub(crate) fn find_bwrap() -> Option<PathBuf> {
    ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.is_file())
}

pub(crate) fn no_bwrap() -> Failure {
    Failure {
        kind: protocol::FailureKind::Unavailable,
        what: "the `bwrap` engine cannot be used".to_owned(),
        why: "bubblewrap is not installed".to_owned(),
        fix: Some("apt-get install bubblewrap".to_owned()),
    }
}
