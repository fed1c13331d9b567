//! Asks to load a module.
//!
//! Without bytes, so nothing is ever loaded.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack =
    Attack::new("load-module", Family::Kernel, Guard::Seccomp, attempt)
        .gains("loads code into the kernel")
        .also_stopped_by(&[Guard::NoCapabilities])
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of_reaching("init_module", kernel::init_module())
}
