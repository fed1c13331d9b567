//! Leaves a tree so deep that whoever removes it by recursion fails.
//!
//! 800 folders, whose path is longer than any system call takes.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("deep-tree", Family::CleanUp, Guard::CleanUp, attempt)
        .gains("leaves folders so deep that nobody can remove them");

fn attempt(_: &Stage) -> Outcome {
    let made = (0..800).try_for_each(|_| {
        std::fs::create_dir("deeper")?;
        std::env::set_current_dir("deeper")
    });
    look::outcome("dig", made)
}
