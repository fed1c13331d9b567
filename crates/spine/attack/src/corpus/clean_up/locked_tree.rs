//! Leaves folders that forbid even their owner to look inside.
//!
//! Two folders and a file.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("locked-tree", Family::CleanUp, Guard::CleanUp, attempt)
        .gains("leaves folders that an ordinary user cannot remove");

fn attempt(_: &Stage) -> Outcome {
    let made = fs::create_dir_all("locked/inner")
        .and_then(|()| fs::write("locked/inner/file", ""))
        .and_then(|()| fs::set_permissions("locked/inner", fs::Permissions::from_mode(0o000)))
        .and_then(|()| fs::set_permissions("locked", fs::Permissions::from_mode(0o000)));
    look::outcome("lock", made)
}
