//! Attaches to a child of its own as a debugger.
//!
//! A debugger sees system calls after some filters have, and can change them.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack =
    Attack::new("trace-child", Family::Privilege, Guard::Seccomp, attempt)
        .gains("uses the kernel's debugger interface, which has had many faults")
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    let child = match process::fork(pause) {
        Ok(child) => child,
        Err(errno) => return Outcome::stopped("fork", errno),
    };
    let outcome = Outcome::of("ptrace", process::ptrace_seize(child));
    process::kill_child(child);
    // Reaped here or by the sandbox.
    let _end = process::wait(child);
    outcome
}

fn pause() -> i32 {
    std::thread::sleep(std::time::Duration::from_secs(60));
    0
}
