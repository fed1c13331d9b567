//! Leaves a key in the kernel for whoever comes next.
//!
//! One small key in the keyring of the session.

use std::ffi::CString;

use crate::corpus::prelude::*;
use crate::sys::keyring;

pub(crate) const ATTACK: Attack = Attack::new("key-left", Family::CleanUp, Guard::Seccomp, attempt)
    .gains("hands data to the next sandbox in the kernel's keyring")
    .also_stopped_by(&[Guard::SessionKeyring])
    .revisited(revisit);

fn attempt(stage: &Stage) -> Outcome {
    match CString::new(stage.unique()) {
        Ok(name) => Outcome::of("add_key", keyring::add(&name, b"left")),
        Err(_) => Outcome::unavailable("no name for a key"),
    }
}

fn revisit(stage: &Stage) -> Outcome {
    match CString::new(stage.unique()) {
        Ok(name) => Outcome::of("find the key", keyring::read(&name)),
        Err(_) => Outcome::unavailable("no name for a key"),
    }
}
