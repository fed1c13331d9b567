//! Reads the memory of another process.
//!
//! Of its own child, a word both know.

use crate::corpus::prelude::*;
use crate::sys::process;

pub(crate) const ATTACK: Attack =
    Attack::new("read-memory", Family::Privilege, Guard::Seccomp, attempt)
        .gains("reads secrets out of the memory of other processes of the same user")
        .on_its_word();

static WORD: u64 = 0x5ec2_e75e_c2e7_5ec2;

fn attempt(_: &Stage) -> Outcome {
    let child = match process::fork(pause) {
        Ok(child) => child,
        Err(errno) => return Outcome::stopped("fork", errno),
    };
    let outcome = Outcome::of("process_vm_readv", process::read_memory_of(child, &WORD));
    process::kill_child(child);
    // Reaped here or by the sandbox.
    let _end = process::wait(child);
    outcome
}

fn pause() -> i32 {
    std::thread::sleep(std::time::Duration::from_secs(60));
    0
}
