//! Whether this machine can be a node, and what would make it a better one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::Resource;

use crate::driver::{InstanceDriver, Room};
use crate::facts::{disk_used_permille, meminfo};
use crate::images::image_form;

/// The files that many instances need open at once.
const FILES: u64 = 65_536;

/// How something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// It works, and could be better.
    Warn,
    /// It does not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How it stands.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
}

/// What was found, and how that stands.
type Found = (Verdict, String);

/// Looks at everything that a node needs, which may be told to unfold images.
pub async fn doctor(
    folder: &Path,
    drivers: &[Arc<dyn InstanceDriver>],
    unfold_images: bool,
) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut rooms = Vec::new();
    for driver in drivers {
        let (verdict, detail) = match driver.probe().await {
            Ok(probe) => {
                rooms.push(probe.room);
                pass(format!("{}: {}", driver.level(), probe.detail))
            }
            Err(why) => warn(format!("{why}; {}", why.fix)),
        };
        checks.push(Check {
            name: driver.name(),
            verdict,
            detail,
        });
    }
    let is_usable = |check: &Check| check.verdict == Verdict::Pass;
    let usable = checks.iter().filter(|check| is_usable(check)).count();
    for (name, (verdict, detail)) in [
        ("drivers", usable_drivers(usable)),
        ("images", images(unfold_images)),
        ("scratch", scratch(&rooms)),
        ("kvm", kvm()),
        ("cgroups", cgroups()),
        ("user namespaces", user_namespaces()),
        ("landlock", landlock()),
        ("nftables", nftables()),
        (
            "tun",
            present("/dev/net/tun", "no VPN and no microVM has a network"),
        ),
        (
            "wireguard",
            present(
                "/sys/module/wireguard",
                "the overlay runs outside the kernel",
            ),
        ),
        ("disk", disk(folder)),
        ("reflink", reflink(folder)),
        ("encryption", encryption(folder)),
        ("clock", clock()),
        ("open files", open_files()),
        ("swap", swap()),
        ("ksm", ksm()),
        ("smt", smt()),
        ("boot pair", warn("none: no microVMs".to_owned())),
    ] {
        checks.push(Check {
            name,
            verdict,
            detail,
        });
    }
    checks
}

fn pass(detail: impl Into<String>) -> Found {
    (Verdict::Pass, detail.into())
}

fn warn(detail: impl Into<String>) -> Found {
    (Verdict::Warn, detail.into())
}

fn fail(detail: impl Into<String>) -> Found {
    (Verdict::Fail, detail.into())
}

/// A small file of the kernel, without its end of line.
fn text(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn usable_drivers(usable: usize) -> Found {
    match usable {
        0 => fail("no driver can be used"),
        some => pass(format!("{some} can be used")),
    }
}

fn images(unfold: bool) -> Found {
    match image_form(unfold).1 {
        None => pass("files, mounted as they are"),
        Some(why) => warn(format!("unfolded into folders, which takes longer: {why}")),
    }
}

/// Where what instances write goes.
fn scratch(rooms: &[Room]) -> Found {
    match (rooms, rooms.iter().find_map(Room::shortfall)) {
        ([], _) => warn("not tried: no driver can be used"),
        (_, None) => pass("every instance writes to a disk of its own, as large as it declares"),
        (_, Some(less)) => warn(less),
    }
}

fn kvm() -> Found {
    match Path::new("/dev/kvm").exists() {
        true => warn("/dev/kvm is there, and nothing here uses it yet"),
        false => warn("no /dev/kvm: no microVMs"),
    }
}

fn cgroups() -> Found {
    let unified = text("/sys/fs/cgroup/cgroup.controllers");
    match unified {
        Some(found) if found.split_whitespace().any(|it| it == "memory") => {
            pass(format!("version 2: {found}"))
        }
        _ if Path::new("/sys/fs/cgroup/memory").is_dir() => {
            let has = |name: &&str| Path::new("/sys/fs/cgroup").join(name).is_dir();
            let found: Vec<&str> = ["cpu", "memory", "pids", "blkio"]
                .into_iter()
                .filter(has)
                .collect();
            pass(format!("version 1: {}", found.join(" ")))
        }
        _ => fail("there is no memory controller"),
    }
}

fn user_namespaces() -> Found {
    match text("/proc/sys/user/max_user_namespaces").as_deref() {
        Some("0") | None => fail("switched off; sysctl user.max_user_namespaces=10000"),
        Some(most) => pass(format!("up to {most}")),
    }
}

fn landlock() -> Found {
    match fluffy_shim::landlock_version() {
        version @ 2.. => pass(format!("version {version}")),
        1 => fail("version 1; at least 2 is needed (Linux 5.19)"),
        _ => fail("the kernel has none, or it is switched off"),
    }
}

fn nftables() -> Found {
    match fluffy_shim::firewall::probe() {
        Ok(()) => pass("the kernel keeps instances from the machine and from each other"),
        Err(error) => fail(format!("no instance starts without it: {error}")),
    }
}

fn present(path: &str, without: &str) -> Found {
    match Path::new(path).exists() {
        true => pass("here"),
        false => warn(format!("no {path}: {without}")),
    }
}

fn disk(folder: &Path) -> Found {
    let used = disk_used_permille(folder);
    let detail = format!("{}.{} % in use", used / 10, used % 10);
    match used {
        900.. => fail(detail),
        850.. => warn(detail),
        _ => pass(detail),
    }
}

/// Whether a file there can be copied without copying its bytes.
fn reflink(folder: &Path) -> Found {
    let file = || -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, folder, flags, Mode::RUSR | Mode::WUSR);
        Ok(opened?.into())
    };
    let tried = file().and_then(|from| {
        io::Write::write_all(&mut &from, &[1; 4096])?;
        Ok(rustix::fs::ioctl_ficlone(file()?, from)?)
    });
    match tried {
        Ok(()) => pass("copies of volumes cost nothing"),
        Err(_) => warn("the file system cannot: copies of volumes are whole; XFS or btrfs can"),
    }
}

/// Whether what is there is on an encrypted disk.
fn encryption(folder: &Path) -> Found {
    let without = || warn("the disk is not encrypted by dm-crypt: who has it reads it");
    let Ok(device) = fs::metadata(folder).map(|found| found.dev()) else {
        return without();
    };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let uuid = text(format!("/sys/dev/block/{major}:{minor}/dm/uuid"));
    match uuid.is_some_and(|uuid| uuid.starts_with("CRYPT-")) {
        true => pass("dm-crypt"),
        false => without(),
    }
}

/// Whether somebody keeps the clock, as far as that can be seen.
fn clock() -> Found {
    let keepers = [
        ("/run/systemd/timesync/synchronized", "systemd-timesyncd"),
        ("/run/chrony/chronyd.pid", "chrony"),
        ("/run/ntpd.pid", "ntpd"),
        ("/dev/ptp_kvm", "the hypervisor"),
    ];
    let mut found = keepers.iter().filter(|(path, _)| Path::new(path).exists());
    match found.next() {
        Some((_, name)) => pass(format!("kept by {name}")),
        None => warn("nobody is seen to keep it; run chrony or systemd-timesyncd"),
    }
}

fn open_files() -> Found {
    match rustix::process::getrlimit(Resource::Nofile).maximum {
        Some(most) if most < FILES => warn(format!("at most {most}; {FILES} is better")),
        Some(most) => pass(format!("up to {most}")),
        None => pass("as many as there are"),
    }
}

fn swap() -> Found {
    match meminfo("SwapTotal") {
        0 => pass("off"),
        some => warn(format!(
            "{} MiB: memory of tenants goes to disk",
            some >> 20
        )),
    }
}

fn ksm() -> Found {
    match text("/sys/kernel/mm/ksm/run").as_deref() {
        None | Some("0") => pass("off"),
        Some(_) => warn("on: memory of tenants is shared"),
    }
}

fn smt() -> Found {
    match text("/sys/devices/system/cpu/smt/active").as_deref() {
        Some("1") => {
            warn("on: tenants share cores; switch it off where they do not trust each other")
        }
        _ => pass("off"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everything_is_looked_at_once_and_without_a_driver_it_is_no_node() {
        let folder = tempfile::tempdir().unwrap();
        let checks = doctor(folder.path(), &[], false).await;
        let mut names: Vec<&str> = checks.iter().map(|check| check.name).collect();
        let drivers = checks.iter().find(|check| check.name == "drivers").unwrap();
        assert_eq!(drivers.verdict, Verdict::Fail);
        assert!(checks.iter().all(|check| !check.detail.is_empty()));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), all), (19, 19));
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0, "it leaves nothing");
    }
}
