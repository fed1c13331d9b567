//! Takes memory in many processes, each of which stays modest.
//!
//! Stops by itself at twice the limit, at most 8 GiB, in eight children.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::{memory, process};

pub(crate) const ATTACK: Attack = Attack::new(
    "memory-children",
    Family::Exhaustion,
    Guard::MemoryLimit,
    attempt,
)
.gains("takes the machine's memory in processes that are each below the limit")
.on_its_word();

const CHILDREN: u64 = 8;

fn attempt(stage: &Stage) -> Outcome {
    let each = stage.limits.memory.saturating_mul(2).min(8 << 30) / CHILDREN;
    let each = usize::try_from(each).unwrap_or(usize::MAX);
    let mut children = Vec::new();
    for _ in 0..CHILDREN {
        let Ok((reader, writer)) = std::io::pipe() else {
            return Outcome::blocked("no pipe");
        };
        match process::fork(|| hold(each, writer)) {
            Ok(child) => children.push((child, reader)),
            Err(errno) => return Outcome::stopped("fork", errno),
        }
    }
    // Each says when it holds its part, or is gone and says nothing.
    for (_, reader) in &children {
        hear(reader);
    }
    // What was taken from one for another is not held any more.
    let holding = || children.iter().filter(|(_, reader)| is_there(reader));
    let all = || u64::try_from(holding().count()).is_ok_and(|it| it == CHILDREN);
    let mut escaped = all();
    if escaped {
        look::hold_still();
        escaped = all();
    }
    let holding = holding().count();
    for (child, reader) in children {
        drop(reader);
        process::kill_child(child);
        // Reaped here or by the sandbox.
        let _end = process::wait(child);
    }
    if escaped {
        Outcome::succeeded(format!("{holding} children took {} MiB each", each >> 20))
    } else {
        Outcome::blocked(format!("only {holding} children got their memory"))
    }
}

fn hold(bytes: usize, mut writer: std::io::PipeWriter) -> i32 {
    use std::io::Write;
    if memory::map_and_touch(bytes).is_err() || writer.write_all(b"x").is_err() {
        return 1;
    }
    std::thread::sleep(std::time::Duration::from_secs(30));
    0
}

fn hear(mut reader: &std::io::PipeReader) {
    use std::io::Read;
    let _said = reader.read(&mut [0]);
}

/// Whether a child still has its end of the pipe.
fn is_there(reader: &std::io::PipeReader) -> bool {
    let mut polled = [PollFd::new(reader, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut polled, Some(&at_once)), Ok(0))
}
