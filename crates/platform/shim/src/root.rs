//! The file system of an instance: its image, read-only, and over it what it
//! writes, on a disk of its own that is a file of the node. Nothing of it is
//! ever mounted where the host would see it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_change, move_mount, open_tree, unmount,
};

use crate::call::{self, LoopAccess};

/// Where the parts are for a moment: directories that every machine has, of
/// which only this process sees that they are covered.
const IMAGE: &str = "/sys";
const ROOM: &str = "/usr";

/// How often another loop device is tried when somebody else was faster.
const TRIES: usize = 64;

/// Where what an instance writes goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Room<'a> {
    /// A file with a file system that nobody has used yet.
    Disk(&'a Path),
    /// So many bytes of memory, charged to who writes.
    Memory(u64),
}

/// Makes the root of an instance, for whoever mounts it: the image, whose
/// owners are those of `namespace`, and room for what is written.
///
/// # Errors
/// What was being done, and why it failed.
pub(crate) fn make(
    image: &Path,
    namespace: &OwnedFd,
    owner: u32,
    room: Room<'_>,
) -> Result<OwnedFd, (String, io::Error)> {
    let at = |step: &str| {
        let step = step.to_owned();
        move |error: io::Error| (step, error)
    };
    call::own_mounts().map_err(at("leave the host's mounts"))?;
    // Nothing of ours goes out, and what the host unmounts goes here too: it
    // would stay busy for as long as the instance runs.
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
    .map_err(|error| at("keep mounts from the host")(error.into()))?;
    let lower = open_image(image).map_err(at("mount the image"))?;
    call::map_owners(lower.as_fd(), namespace.as_fd()).map_err(at("map the image's owners"))?;
    attach(&lower, Path::new(IMAGE)).map_err(at("attach the image"))?;
    let lower = open_directory(Path::new(IMAGE)).map_err(at("open the image"))?;
    let room = match room {
        Room::Disk(file) => File::options()
            .read(true)
            .write(true)
            .open(file)
            .and_then(|file| open_disk(&file))
            .map_err(at("mount the scratch disk"))?,
        Room::Memory(bytes) => memory(bytes).map_err(at("make room for writes"))?,
    };
    attach(&room, Path::new(ROOM)).map_err(at("attach the room for writes"))?;
    for name in ["upper", "work"] {
        let directory = Path::new(ROOM).join(name);
        fs::create_dir(&directory)
            .and_then(|()| fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)))
            .and_then(|()| chown(&directory, Some(owner), Some(owner)))
            .map_err(at("prepare the room for writes"))?;
    }
    let open = |name| open_directory(&Path::new(ROOM).join(name)).map_err(at("open the room"));
    let both = overlay([lower, open("upper")?, open("work")?]);
    let both = both.map_err(at("lay one over the other"))?;
    for place in [IMAGE, ROOM] {
        unmount(place, UnmountFlags::DETACH).map_err(|error| at("let go")(error.into()))?;
    }
    Ok(both)
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Mounts an EROFS file or an unfolded one, at no place.
fn open_image(image: &Path) -> io::Result<OwnedFd> {
    if image.is_dir() {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        return Ok(open_tree(CWD, image, flags)?);
    }
    let device = loop_device(&File::open(image)?, LoopAccess::Read)?;
    let system = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&system, "source", format!("/dev/loop{}", device.1))?;
    fsconfig_set_flag(&system, "ro")?;
    fsconfig_create(&system)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Mounts a file with an ext4 file system, at no place, to be written to.
pub(crate) fn open_disk(file: &File) -> io::Result<OwnedFd> {
    let device = loop_device(file, LoopAccess::Write)?;
    let system = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&system, "source", format!("/dev/loop{}", device.1))?;
    // What was never written reads as zeros: nothing has to write them now.
    fsconfig_set_flag(&system, "noinit_itable")?;
    // It does not outlive its instance, so nobody has to wait, nor the node's
    // own disk, until it is safe from a loss of power.
    fsconfig_set_flag(&system, "nobarrier")?;
    fsconfig_set_string(&system, "errors", "remount-ro")?;
    fsconfig_create(&system)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// A loop device of a file. It is gone when nothing is mounted of it.
fn loop_device(file: &File, access: LoopAccess) -> io::Result<(File, i32)> {
    let control = File::options()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    for _ in 0..TRIES {
        let number = call::free_loop(control.as_fd())?;
        let device = File::options()
            .read(true)
            .write(access == LoopAccess::Write)
            .open(format!("/dev/loop{number}"))?;
        match call::set_loop(device.as_fd(), file.as_fd(), access) {
            Ok(()) => return Ok((device, number)),
            // Somebody else was faster.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Memory for what is written, charged to who writes.
fn memory(bytes: u64) -> io::Result<OwnedFd> {
    let system = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&system, "size", bytes.to_string())?;
    // A file costs at least as much as a few pages.
    fsconfig_set_string(&system, "nr_inodes", (bytes >> 14).max(1_024).to_string())?;
    fsconfig_set_string(&system, "mode", "0755")?;
    fsconfig_create(&system)?;
    Ok(fsmount(
        &system,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NODEV,
    )?)
}

fn overlay([lower, upper, work]: [OwnedFd; 3]) -> io::Result<OwnedFd> {
    let system = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let named = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    fsconfig_set_string(&system, "lowerdir", named(&lower))?;
    fsconfig_set_string(&system, "upperdir", named(&upper))?;
    fsconfig_set_string(&system, "workdir", named(&work))?;
    fsconfig_create(&system)?;
    Ok(fsmount(
        &system,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )?)
}

/// Puts a mount at a place.
pub(crate) fn attach(mount: &OwnedFd, place: &Path) -> io::Result<()> {
    Ok(move_mount(
        mount.as_fd(),
        "",
        CWD,
        place,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?)
}
