//! How full the disk of the ledger is, and saying so before it is full.
//!
//! Only looks: nothing is deleted and nothing is refused here. A ledger in a
//! database is on a disk that this process does not see. Next: `figures`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::loops::every;

/// From here on it is said, in thousandths.
const HIGH: u32 = 800;
/// Below this it is well again; between the two nothing is said twice.
const LOW: u32 = 780;
/// How often it is looked at.
const PERIOD: Duration = Duration::from_secs(10);

/// The disk of a ledger that is kept in a folder.
#[derive(Debug)]
pub(crate) struct Room {
    folder: PathBuf,
    is_short: AtomicBool,
}

/// How full the disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fill {
    /// Thousandths in use, as `df` counts.
    pub(crate) permille: u32,
    /// Whether somebody has to make room.
    pub(crate) is_short: bool,
    /// Whether that is since this look.
    turned: bool,
}

impl Room {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            is_short: AtomicBool::new(false),
        }
    }

    /// Looks now, and says once when it became short of room or well again;
    /// nothing where the system does not tell.
    pub(crate) fn look(&self) -> Option<Fill> {
        let fill = self.fill()?;
        let percent = fill.permille / 10;
        let folder = self.folder.display();
        if fill.turned && fill.is_short {
            tracing::warn!(
                %folder,
                percent,
                "the disk of the ledger is filling up; when it is full nothing can be changed \
                 any more: make room (docs/runbook.md, The ledger's disk is filling up)"
            );
        } else if fill.turned {
            tracing::info!(%folder, percent, "the disk of the ledger has room again");
        }
        Some(fill)
    }

    fn fill(&self) -> Option<Fill> {
        let disk = rustix::fs::statvfs(&self.folder).ok()?;
        // What is kept back for root is neither in use nor to be had.
        let used = disk.f_blocks.saturating_sub(disk.f_bfree);
        let all = used.saturating_add(disk.f_bavail);
        let permille = used.saturating_mul(1000) / all.max(1);
        let permille = u32::try_from(permille).unwrap_or(1000);
        let was_short = self.is_short.load(Ordering::Relaxed);
        let is_short = short(permille, was_short);
        let before = self.is_short.swap(is_short, Ordering::Relaxed);
        Some(Fill {
            permille,
            is_short,
            turned: before != is_short,
        })
    }

    /// Looks again and again, until told to stop.
    pub(crate) async fn watch(&self, mut stop: watch::Receiver<bool>) {
        let looks = every(PERIOD, || async {
            self.look();
        });
        tokio::select! {
            () = looks => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }
}

/// Whether a disk as full as this is short of room, having been so or not.
const fn short(permille: u32, was_short: bool) -> bool {
    match was_short {
        true => permille >= LOW,
        false => permille >= HIGH,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use fluffy_test_kit::record_skip;
    use tempfile::TempDir;

    use super::*;

    const SIZE: usize = 10 << 20;

    /// A disk of ten mebibytes; unmounted when dropped.
    struct Small(TempDir);

    impl Small {
        /// None if the system does not let us mount.
        fn mount() -> Option<Self> {
            let small = Self(tempfile::tempdir().unwrap());
            let size = format!("size={SIZE}");
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &size, "fluffy-test"]);
            let mounted = mount.arg(small.path()).output();
            mounted.is_ok_and(|it| it.status.success()).then_some(small)
        }

        fn path(&self) -> &Path {
            self.0.path()
        }

        /// Has this many hundredths of it in use.
        fn fill(&self, percent: usize) {
            let bytes = vec![1; SIZE * percent / 100];
            fs::write(self.path().join("filler"), bytes).unwrap();
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(self.path()).status();
        }
    }

    #[test]
    fn a_disk_that_fills_up_is_said_once_each_way() {
        const NAME: &str = "a_disk_that_fills_up_is_said_once_each_way";
        let Some(disk) = Small::mount() else {
            return record_skip(NAME, "tmpfs can't be mounted");
        };
        let room = Room::new(disk.path().to_owned());
        // What the disk has in use, whether that is too much, and whether it
        // is said; the first two are the control.
        for (percent, is_short, turned) in [
            (40, false, false),
            (79, false, false),
            (81, true, true),
            (95, true, false),
            (79, true, false),
            (77, false, true),
            (79, false, false),
            (81, true, true),
        ] {
            disk.fill(percent);
            let fill = room.look().unwrap();
            let near = fill.permille.abs_diff(u32::try_from(percent * 10).unwrap());
            assert!(near <= 5, "{percent} %: {fill:?}");
            assert_eq!(
                (fill.is_short, fill.turned),
                (is_short, turned),
                "{percent} %"
            );
        }
    }

    #[test]
    fn between_the_two_bounds_it_stays_as_it_is() {
        assert!(!short(HIGH - 1, false) && short(HIGH, false));
        assert!(short(LOW, true) && !short(LOW - 1, true));
    }

    #[test]
    fn a_disk_that_is_not_there_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Room::new(folder.path().join("none")).look(), None);
    }
}
