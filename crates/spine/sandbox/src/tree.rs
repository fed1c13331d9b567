//! Signals to a tree of processes that has no namespace of its own.
//!
//! Only reduced isolation needs this. A process is signalled through a
//! descriptor that was open while it was seen in the tree twice, so an id that
//! was given to somebody else meanwhile is never hit.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::watch::processes;

/// How often a tree that grows while it is ended is looked at again.
const ROUNDS: usize = 200;

/// Sends a signal to every process below this one, once.
pub(crate) fn signal_below(root: Pid, signal: Signal) -> usize {
    let opened: BTreeMap<i32, OwnedFd> = below(root)
        .filter_map(|pid| {
            let descriptor = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
            Some((pid, descriptor))
        })
        .collect();
    below(root)
        .filter_map(|pid| opened.get(&pid))
        .filter(|process| !has_ended(process))
        .filter(|process| pidfd_send_signal(process, signal).is_ok())
        .count()
}

/// Ends every process below this one, however fast it starts others.
pub(crate) fn end_below(root: Pid) {
    for _ in 0..ROUNDS {
        // What stands still starts nothing.
        signal_below(root, Signal::STOP);
        if signal_below(root, Signal::KILL) == 0 {
            return;
        }
    }
}

/// Whether it only waits for its parent to notice, as long as that may take.
fn has_ended(process: &OwnedFd) -> bool {
    const AT_ONCE: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&AT_ONCE)).is_ok_and(|ended| ended > 0)
}

fn below(root: Pid) -> impl Iterator<Item = i32> {
    processes::tree(root)
        .into_iter()
        .filter(move |pid| *pid != root.as_raw_nonzero().get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_but_was_not_waited_for_is_no_process() {
        // The program that the shell becomes knows nothing of its child.
        let mut root = std::process::Command::new("sh")
            .args(["-c", "sleep 300 & exec sleep 301"])
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&root);
        let patience = std::time::Duration::from_secs(20);
        let ended = || (signal_below(pid, Signal::KILL) == 1).then_some(());
        fluffy_test_kit::wait_for("the child is there", patience, ended).unwrap();
        let gone = || (signal_below(pid, Signal::KILL) == 0).then_some(());
        fluffy_test_kit::wait_for("the child has ended", patience, gone).unwrap();
        root.kill().unwrap();
        root.wait().unwrap();
    }

    #[test]
    fn a_tree_is_ended_and_its_root_is_not() {
        let script = "sleep 300 & (sleep 300 & sleep 300; true) & wait";
        let mut root = std::process::Command::new("sh")
            .args(["-c", script])
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&root);
        let patience = std::time::Duration::from_secs(20);
        let grown = || (below(pid).count() >= 4).then_some(());
        fluffy_test_kit::wait_for("the tree has grown", patience, grown).unwrap();
        end_below(pid);
        root.wait().unwrap();
        assert_eq!(below(pid).count(), 0);
    }
}
