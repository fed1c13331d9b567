//! Adds a key to the kernel's keyring.
//!
//! One small key in the session's own keyring.

use std::ffi::CString;

use crate::corpus::prelude::*;
use crate::sys::keyring;

pub(crate) const ATTACK: Attack = Attack::new("add-key", Family::Kernel, Guard::Seccomp, attempt)
    .gains("stores data in the kernel, past every limit and namespace")
    .on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let Ok(name) = CString::new(stage.unique()) else {
        return Outcome::unavailable("no name for a key");
    };
    Outcome::of("add_key", keyring::add(&name, b"stored"))
}
