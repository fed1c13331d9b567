//! Puts a file beside the programs that run the sandbox.
//!
//! Removed at once where that works; whoever can do this can also replace
//! them, which is what CVE-2019-5736 was about.

use std::fs;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("replace-runner", Family::Paths, Guard::MountTable, attempt)
        .gains("overwrites the program that starts the next sandbox")
        .also_stopped_by(&[Guard::Landlock])
        .on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    Outcome::best(["/proc/1/exe", "/proc/self/exe"].map(|link| {
        let program = match fs::read_link(link) {
            Ok(program) => program,
            Err(error) => return Outcome::stopped(&format!("read {link}"), error),
        };
        let beside = program.with_file_name(stage.unique());
        let outcome = look::create(&beside, "planted");
        // Only there if it was created just now.
        let _removed = fs::remove_file(&beside);
        outcome
    }))
}
