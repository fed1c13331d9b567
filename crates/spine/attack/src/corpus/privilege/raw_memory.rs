//! Opens the devices that are the machine's memory, log and disks.
//!
//! Opens for reading, and reads nothing.

use std::fs;
use std::os::unix::fs::FileTypeExt;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("raw-memory", Family::Privilege, Guard::MountTable, attempt)
        .gains("reads the machine's memory and disks as devices")
        .also_stopped_by(&[Guard::Landlock])
        .on_its_word();

fn attempt(_: &Stage) -> Outcome {
    let known = [
        "mem",
        "kmem",
        "port",
        "kmsg",
        "kvm",
        "fuse",
        "loop-control",
        "net/tun",
    ];
    let known = known.iter().map(|name| format!("/dev/{name}").into());
    let blocks = fs::read_dir("/dev").into_iter().flatten().flatten();
    let blocks = blocks
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_block_device()))
        .map(|entry| entry.path());
    Outcome::best(known.chain(blocks).map(|path: std::path::PathBuf| {
        look::outcome(&format!("open {}", path.display()), fs::File::open(&path))
    }))
}
