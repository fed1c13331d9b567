//! Reads the key that its user keeps in the kernel.
//!
//! Reads only. Keyrings are in no namespace of their own.

use std::ffi::CString;

use crate::corpus::prelude::*;
use crate::sys::keyring;

pub(crate) const ATTACK: Attack =
    Attack::new("keyring-read", Family::Privilege, Guard::Seccomp, attempt)
        .gains("reads passwords and tickets that the user keeps in the kernel")
        .also_stopped_by(&[Guard::SessionKeyring]);

fn attempt(stage: &Stage) -> Outcome {
    let Some(Ok(name)) = stage.key.as_deref().map(CString::new) else {
        return Outcome::unavailable("this machine let no key be added");
    };
    match keyring::read(&name) {
        Ok(secret) => Outcome::looted("keyctl", vec![secret]),
        Err(errno) => Outcome::stopped("keyctl", errno),
    }
}
