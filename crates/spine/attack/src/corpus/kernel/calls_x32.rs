//! Calls the kernel by x32 numbers.
//!
//! Asks for its own process number. Where the kernel lacks x32, the compiled
//! filter is interpreted instead (see the tests of `fluffy-sandbox`).

use crate::corpus::prelude::*;
use crate::sys::{kernel, process};

pub(crate) const ATTACK: Attack = Attack::new("calls-x32", Family::Kernel, Guard::Seccomp, attempt)
    .gains("calls the kernel by x32 numbers, which many filters forget")
    .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    let end = process::in_child(|| match kernel::getpid_x32() {
        Ok(_) => 0,
        Err(rustix::io::Errno::NOSYS) => 2,
        Err(_) => 1,
    });
    match end {
        Ok(process::End::Code(0)) => Outcome::succeeded("an x32 number answered"),
        Ok(process::End::Code(2)) => Outcome::unavailable("this kernel has no x32"),
        Ok(end) => Outcome::blocked(format!("x32 getpid: {end:?}")),
        Err(errno) => Outcome::stopped("fork", errno),
    }
}
