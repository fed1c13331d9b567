//! Opens a file by its number, past all paths (known as *shocker*).
//!
//! Opens the root folder of a file system, and reads nothing.

use std::os::fd::OwnedFd;

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack = Attack::new(
    "open-by-handle",
    Family::Paths,
    Guard::UserNamespace,
    attempt,
)
.gains("opens any file of the disk by its inode number, past all paths")
.also_stopped_by(&[Guard::NoCapabilities, Guard::Seccomp])
.on_its_word();

fn attempt(_: &Stage) -> Outcome {
    const ROOT_FOLDER: u32 = 2;
    let mount: OwnedFd = match std::fs::File::open(".") {
        Ok(file) => file.into(),
        Err(error) => return Outcome::stopped("open the project", error),
    };
    Outcome::of_reaching(
        "open_by_handle_at",
        kernel::open_by_handle(&mount, ROOT_FOLDER),
    )
}
