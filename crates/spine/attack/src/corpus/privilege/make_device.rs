//! Makes a device node for the first disk and opens it.
//!
//! Opens for reading, and reads nothing; the node is removed.

use std::fs;
use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;
use crate::sys::kernel;

pub(crate) const ATTACK: Attack = Attack::new(
    "make-device",
    Family::Privilege,
    Guard::UserNamespace,
    attempt,
)
.gains("makes the host's disk a file of its own")
.also_stopped_by(&[Guard::NoCapabilities])
.on_its_word();

fn attempt(_: &Stage) -> Outcome {
    // The major numbers of SCSI, virtio and NVMe disks.
    Outcome::best([(8, 0), (254, 0), (259, 0)].map(|(major, minor)| {
        let path = Path::new("disk");
        if let Err(errno) = kernel::make_device(path, major, minor) {
            return Outcome::stopped("mknod", errno);
        }
        let outcome = look::outcome("open the disk", fs::File::open(path));
        // Made just now.
        let _removed = fs::remove_file(path);
        outcome
    }))
}
