//! What the kernel and its egress process keep of this user's rights.
//!
//! The kernel: the project, our own state, and the system to read. The egress
//! process: what looking a name up takes. Put up once, before the first thread;
//! without them neither starts. Next: `fluffy_sandbox::own`.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use fluffy_report::ExitCode;
use fluffy_sandbox::own::{ConfineError, Role, confine};
use fluffy_sandbox::plan::Reach;

use crate::failure::{self, Failure};
use crate::session::Here;

/// The system's own files, which hold no secret of anybody.
const SYSTEM: [&str; 9] = [
    "/bin",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/proc",
    "/usr",
    "/dev/urandom",
];

/// Walls for the kernel of a project.
pub(super) fn put_up(here: &Here, project: &Path) -> Result<(), Failure> {
    let ledger = here.paths.ledger_dir(&here.settings);
    let ledger =
        ledger.map_err(|error| Failure::of(ExitCode::Usage, &error, "mend the configuration"))?;
    let mut write = vec![
        project.to_owned(),
        here.paths.state_dir.clone(),
        ledger,
        PathBuf::from("/dev/null"),
    ];
    for folder in &write {
        // What is not there cannot be kept open.
        if !folder.exists() {
            private_folder(folder).map_err(|error| failure::no_folder(folder, &error))?;
        }
    }
    let witnesses = here.settings.values().ledger.witness.iter();
    // Copies are put in their place whole, so their folder is written to.
    write.extend(witnesses.filter_map(|path| path.parent().map(Path::to_owned)));
    let mut read: Vec<PathBuf> = SYSTEM.map(PathBuf::from).into();
    let configuration = here.paths.config_file.parent();
    if let Some(folder) = configuration {
        // What is configured later is read too. Where the folder cannot be
        // made, nothing can be configured either.
        let _ = private_folder(folder);
        read.push(folder.to_owned());
    }
    read.extend(std::env::current_exe());
    confine(Role::Kernel, &Reach { read, write }).map_err(|error| {
        let fix = "the kernel does not run without its walls; `fluffy doctor` says what is missing";
        Failure::of(ExitCode::Internal, &error, fix)
    })
}

fn private_folder(path: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(path)
}

/// Walls for the egress process.
pub(super) fn of_egress() -> Result<(), ConfineError> {
    // Names: their sources, the libraries that ask them, and a resolver's
    // socket.
    let read = ["/etc", "/lib", "/lib64", "/run/systemd/resolve", "/usr/lib"];
    let read = read.map(PathBuf::from).into();
    let write = Vec::new();
    confine(Role::Egress, &Reach { read, write })
}
