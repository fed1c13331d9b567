//! Calls the kernel through its 32-bit table.
//!
//! Asks for its own process number. Filters that compare numbers alone read
//! a different call than the kernel performs.

use crate::corpus::prelude::*;
use crate::sys::{kernel, process};

pub(crate) const ATTACK: Attack =
    Attack::new("calls-32-bit", Family::Kernel, Guard::Seccomp, attempt)
        .gains("calls the kernel by other numbers than the filter compares")
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    // In a child, since a good filter kills whoever tries.
    let end = process::in_child(|| match kernel::getpid_32_bit() {
        Some(number) if number > 0 => 0,
        Some(_) => 1,
        None => 2,
    });
    match end {
        Ok(process::End::Code(0)) => Outcome::succeeded("int 0x80 answered"),
        Ok(process::End::Code(2)) => Outcome::unavailable("this processor has no 32-bit table"),
        // What a kernel without 32-bit support does.
        Ok(process::End::Signal {
            signal: libc::SIGSEGV,
            ..
        }) => Outcome::unavailable("this kernel has no 32-bit table"),
        Ok(end) => Outcome::blocked(format!("int 0x80: {end:?}")),
        Err(errno) => Outcome::stopped("fork", errno),
    }
}
