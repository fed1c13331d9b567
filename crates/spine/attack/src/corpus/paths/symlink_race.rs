//! Swaps a file and a link as fast as it can while another thread reads.
//!
//! Half a second, reads only.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("symlink-race", Family::Paths, Guard::MountTable, attempt)
        .gains("reads a file outside by swapping a checked file for a link")
        .also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let made = std::fs::write("plain", "plain").and_then(|()| symlink(stage.canary(), "swapped"));
    if let Err(error) = made {
        return Outcome::stopped("make the pair", error);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // Fails only while the other exchange is under way.
                let _swapped = renameat_with(CWD, "plain", CWD, "swapped", RenameFlags::EXCHANGE);
            }
        });
        let deadline = Instant::now() + Duration::from_millis(500);
        let mut last = Outcome::blocked("never read anything");
        while Instant::now() < deadline {
            last = look::read("plain");
            if matches!(last, Outcome::Succeeded { .. }) {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        last
    })
}
