//! The project's own clock: which of its files changed after some moment.
//!
//! Times of change come from the file system that holds the project, so the
//! moment is asked there too, by a file that never has a name. No program can
//! set a time of change, so "not changed since" can be trusted as far as the
//! clock itself is not set back.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fstat, openat, unlinkat};

use crate::tree::{Node, Tree};

/// Nanoseconds since 1970 as the project's file system counts them.
pub(crate) type Moment = i64;

/// How long to wait for the clock's next tick; ticks are 1 to 10 ms.
const PATIENCE: Duration = Duration::from_millis(60);

/// What to allow for a file system that counts in whole or double seconds.
const COARSE: i64 = 2_000_000_000;

/// A moment that all earlier changes are at or before, and no later ones.
///
/// Waits for the clock's next tick, for a change in the same tick could not be
/// told from one before.
pub(crate) fn settled_now(project: &Tree, store: &Path) -> io::Result<Moment> {
    let first = probe(project, store)?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
        if probe(project, store)? > first {
            return Ok(first);
        }
    }
    Ok(first.saturating_sub(COARSE))
}

/// A moment that no later change is at or before; the last tick is left out.
pub(crate) fn just_before(project: &Tree, store: &Path) -> io::Result<Moment> {
    Ok(probe(project, store)?.saturating_sub(1))
}

/// The time of change of a file made now, on the project's file system.
fn probe(project: &Tree, store: &Path) -> io::Result<Moment> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    let made: OwnedFd = match openat(project.root(), c".", flags, mode) {
        Ok(made) => made,
        // Read-only, or without unnamed files: the store's clock is the same
        // kernel's, for every local file system.
        Err(_) => named_probe(store)?,
    };
    Ok(Node::of(&fstat(&made)?)?.identity.changed)
}

fn named_probe(store: &Path) -> io::Result<OwnedFd> {
    let directory = Tree::open(store)?;
    let name = format!(".moment-{}", std::process::id());
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(
        directory.root(),
        name.as_bytes(),
        flags | OFlags::NOFOLLOW,
        Mode::from_raw_mode(0o600),
    )?;
    unlinkat(
        directory.root(),
        name.as_bytes(),
        rustix::fs::AtFlags::empty(),
    )?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::TreePath;

    fn changed(tree: &Tree, name: &str) -> Moment {
        let path = TreePath::parse(name.as_bytes()).unwrap();
        tree.node(&path).unwrap().unwrap().identity.changed
    }

    #[test]
    fn a_moment_parts_earlier_changes_from_later_ones() {
        let folder = tempfile::tempdir().unwrap();
        let tree = Tree::open(folder.path()).unwrap();
        for round in 0..20 {
            std::fs::write(folder.path().join("before"), round.to_string()).unwrap();
            let moment = settled_now(&tree, folder.path()).unwrap();
            std::fs::write(folder.path().join("after"), round.to_string()).unwrap();
            assert!(changed(&tree, "before") <= moment);
            assert!(changed(&tree, "after") > moment);
        }
        let moment = just_before(&tree, folder.path()).unwrap();
        std::fs::write(folder.path().join("after"), "again").unwrap();
        assert!(changed(&tree, "after") > moment);
        assert_eq!(tree.names(None).unwrap().len(), 2, "no probe is left");
    }

    #[test]
    fn a_read_only_project_borrows_the_clock_of_the_store() {
        let store = tempfile::tempdir().unwrap();
        // No file can be made in /proc.
        let tree = Tree::open(Path::new("/proc/self")).unwrap();
        let moment = just_before(&tree, store.path()).unwrap();
        assert!(moment > 1_700_000_000_000_000_000);
        assert_eq!(std::fs::read_dir(store.path()).unwrap().count(), 0);
    }
}
