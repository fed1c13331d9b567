//! Leaves a process behind that holds files and a folder of the project.
//!
//! It sleeps for two minutes. Mounts that are in use cannot be taken away.

use std::fs::File;

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack =
    Attack::new("file-holder", Family::CleanUp, Guard::KillTree, attempt)
        .gains("keeps the sandbox's mounts and files in use after its end")
        .also_stopped_by(&[Guard::PidNamespace]);

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("leave a process", process::fork(hold))
}

fn hold() -> i32 {
    process::setsid();
    let _held = (
        File::create("held"),
        File::open("README.md"),
        File::open("/tmp"),
    );
    // Where it cannot go there, it stays here.
    let _moved = std::env::set_current_dir("source");
    std::thread::sleep(std::time::Duration::from_secs(120));
    0
}
