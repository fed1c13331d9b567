//! Crashes with everything in memory, and looks for the core file.
//!
//! Removes it where there is one.

use std::fs;

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack =
    Attack::new("core-dump", Family::LeakingIn, Guard::CoreLimit, attempt)
        .gains("leaves a core file, or starts the host's crash handler, by crashing")
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    // Where it cannot be raised, the limit in force is what counts.
    let _raised = process::want_core_files();
    if process::core_limit().is_ok_and(|limit| limit > 0) {
        let end = process::in_child(|| {
            process::crash();
            0
        });
        remove_core_files();
        return match end {
            Ok(process::End::Signal { core: true, .. }) => Outcome::succeeded("a core was written"),
            Ok(_) => Outcome::succeeded("the limit of core files could be raised"),
            Err(errno) => Outcome::stopped("fork", errno),
        };
    }
    Outcome::blocked("the limit of core files is zero for good")
}

fn remove_core_files() {
    for entry in fs::read_dir(".").into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("core") {
            // Ours: the project has no such file.
            let _removed = fs::remove_file(entry.path());
        }
    }
}
