//! A ledger whose disk fills up: what operators see of it, before it is full.

use std::fs;
use std::path::Path;
use std::process::Command;

use fluffy_ledger::LedgerOptions;
use fluffy_server::doors::Doors;
use fluffy_server::loops::lease::Timing;
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::server::{Options, Server};
use fluffy_test_kit::record_skip;
use rustix::fs::statvfs;
use tempfile::TempDir;

use crate::house::ask;

/// Room for a ledger and its journal many times over.
const SIZE: u64 = 256 << 20;

/// A file system of its own; unmounted when dropped.
struct Disk(TempDir);

impl Disk {
    fn mount() -> Option<Self> {
        let disk = Self(tempfile::tempdir().unwrap());
        let size = format!("size={SIZE}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "fluffy-test"]);
        let mounted = mount.arg(disk.path()).output();
        mounted.is_ok_and(|it| it.status.success()).then_some(disk)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Has this many hundredths of it in use, whatever is on it already.
    fn fill(&self, percent: u64) {
        let filler = self.path().join("filler");
        let _ = fs::remove_file(&filler);
        let disk = statvfs(self.path()).unwrap();
        let used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize;
        let bytes = vec![1; usize::try_from(SIZE * percent / 100 - used).unwrap()];
        fs::write(filler, bytes).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// How full the disk is by the server's figures, in thousandths.
async fn gauge(folder: &Path) -> u64 {
    let text = ask(folder, "/metrics").await;
    let name = "fluffy_ledger_disk_used_ratio ";
    let ratio = text.lines().find_map(|line| line.strip_prefix(name));
    let ratio = ratio.unwrap_or_else(|| panic!("{text}"));
    ratio.replace('.', "").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_that_the_disk_of_the_ledger_fills_up() {
    const NAME: &str = "operators_see_that_the_disk_of_the_ledger_fills_up";
    let Some(disk) = Disk::mount() else {
        return record_skip(NAME, "tmpfs can't be mounted");
    };
    let folder = disk.path().join("data");
    let options = Options {
        storage: Storage::Directory(folder.clone()),
        ledger: LedgerOptions::default(),
        founder: Founder::Local,
        timing: Timing::default(),
    };
    let mut server = Server::start(options).await.unwrap();
    let doors = Doors {
        keys: folder.join("keys"),
        socket: Some(folder.join("api.sock")),
        ..Doors::default()
    };
    server.open(doors).await.unwrap();
    // The control: a disk that has room is not spoken of.
    for (percent, is_said) in [
        (50, false),
        (79, false),
        (85, true),
        (79, true),
        (60, false),
    ] {
        disk.fill(percent);
        let near = gauge(&folder).await.abs_diff(percent * 10);
        assert!(near <= 10, "{percent} %: off by {near}");
        let ready = ask(&folder, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
        let is_shown = ready.contains("warning: the disk of the ledger is");
        assert_eq!(is_shown, is_said, "{percent} %: {ready}");
    }
}
