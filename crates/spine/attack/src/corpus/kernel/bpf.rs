//! Loads a BPF program and makes a map.
//!
//! Both are closed at once.

use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack = Attack::new("bpf", Family::Kernel, Guard::Seccomp, attempt)
    .gains("runs programs inside the kernel")
    .also_stopped_by(&[Guard::NoCapabilities])
    .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    Outcome::best([
        Outcome::of("bpf(map)", kernel::bpf_map_create()),
        Outcome::of("bpf(program)", kernel::bpf_program_load()),
    ])
}
