//! Asks for access to the ports of devices.
//!
//! Uses none.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack = Attack::new("io-ports", Family::Kernel, Guard::Seccomp, attempt)
    .gains("drives devices by their ports")
    .also_stopped_by(&[Guard::NoCapabilities])
    .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::of("ioperm", kernel::io_ports())
}
