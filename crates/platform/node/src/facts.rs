//! What this machine is and has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fluffy_api::node::v1;
use fluffy_base::Digest;

use crate::doctor::{Verdict, doctor};
use crate::driver::InstanceDriver;

/// What does not change while a node runs.
pub async fn facts(drivers: &[Arc<dyn InstanceDriver>]) -> v1::Facts {
    let mut usable = Vec::new();
    for driver in drivers {
        if let Ok(probe) = driver.probe().await {
            usable.push(v1::Driver {
                name: driver.name().to_owned(),
                level: driver.level().to_string(),
                max_vcpus: probe.max_vcpus,
                max_memory_bytes: probe.max_memory_bytes,
            });
        }
    }
    v1::Facts {
        arch: arch().to_owned(),
        drivers: usable,
        labels: [].into(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        failed_checks: Vec::new(),
    }
}

/// What a server is told when a session begins: what the machine can now, and
/// what a node needs and it has not.
pub(crate) async fn examined(folder: PathBuf, drivers: Vec<Arc<dyn InstanceDriver>>) -> v1::Facts {
    // Whether images are unfolded is no matter of whether they can be had.
    let checks = doctor(&folder, &drivers, false).await;
    let failed = checks.iter().filter(|it| it.verdict == Verdict::Fail);
    v1::Facts {
        failed_checks: failed.map(|it| it.name.to_owned()).collect(),
        ..facts(&drivers).await
    }
}

/// What makes this machine, and the node in this folder of it, that one: a
/// hash that says nothing else, and something else in every cluster. Empty if
/// the machine has nothing of its own.
#[must_use]
pub fn machine(cluster: &Digest, folder: &Path) -> Vec<u8> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let own = [
        read("/etc/machine-id"),
        read("/sys/class/dmi/id/product_uuid"),
        first_mac(),
    ];
    if own.iter().all(|text| text.trim().is_empty()) {
        return Vec::new();
    }
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let mut parts = vec![b"fluffy-machine-v1".as_slice(), cluster.as_bytes()];
    parts.extend(own.iter().map(|text| text.trim().as_bytes()));
    parts.push(folder.as_os_str().as_encoded_bytes());
    Digest::of_parts(&parts).as_bytes().to_vec()
}

/// The address of the first network card; those of instances are none.
fn first_mac() -> String {
    let Ok(entries) = fs::read_dir("/sys/class/net") else {
        return String::new();
    };
    let cards = entries.flatten().map(|entry| entry.path());
    let cards: BTreeSet<_> = cards.filter(|path| path.join("device").exists()).collect();
    let address = |card: &PathBuf| fs::read_to_string(card.join("address")).ok();
    cards.iter().find_map(address).unwrap_or_default()
}

/// As images call it.
pub(crate) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// What the machine has; what of it is the host's own is the planner's to say.
pub(crate) fn capacity(folder: &Path, cached_images: Vec<String>) -> v1::Capacity {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let disk = rustix::fs::statvfs(folder);
    v1::Capacity {
        cpu_cores: cores as u64,
        memory_bytes: meminfo("MemTotal"),
        disk_bytes: disk.map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize)),
        cached_images,
    }
}

/// What is free on the disk, in bytes.
pub(crate) fn disk_free(folder: &Path) -> u64 {
    let disk = rustix::fs::statvfs(folder);
    disk.map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Thousandths of the disk that are in use.
pub(crate) fn disk_used_permille(folder: &Path) -> u32 {
    let Ok(disk) = rustix::fs::statvfs(folder) else {
        return 0;
    };
    // What is kept back for others is neither in use nor to be had.
    let used = disk.f_blocks.saturating_sub(disk.f_bfree);
    let all = used.saturating_add(disk.f_bavail);
    let permille = used.saturating_mul(1000) / all.max(1);
    u32::try_from(permille).unwrap_or(1000)
}

/// A line of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim_start_matches(':').split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_memory_is_said_and_the_reserve_is_taken_off_once() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            capacity(folder.path(), Vec::new()).memory_bytes,
            meminfo("MemTotal")
        );
    }

    #[test]
    fn a_machine_is_the_same_one_in_one_cluster_and_folder() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|it| Digest::of(it.as_bytes()));
        let first = machine(&one, folder.path());
        assert_eq!(first, machine(&one, &folder.path().join(".")));
        if !first.is_empty() {
            assert_eq!(first.len(), 32);
            assert_ne!(first, machine(&other, folder.path()));
            assert_ne!(first, machine(&one, Path::new("/")));
        }
    }
}
