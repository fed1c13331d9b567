//! Asks to load another kernel.
//!
//! With flags that do not exist, so nothing is ever loaded.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack = Attack::new("kexec", Family::Kernel, Guard::Seccomp, attempt)
    .gains("replaces the running kernel")
    .also_stopped_by(&[Guard::NoCapabilities])
    .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of_reaching("kexec_load", kernel::kexec_load())
}
