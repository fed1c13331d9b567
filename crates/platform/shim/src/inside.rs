//! What the first process of an instance does before it becomes `fluffy-init`:
//! it is in namespaces of its own already, and makes them its own.
//!
//! The order matters: what needs a privilege comes before that is given up,
//! and the host's files go out of sight before anything of the image runs.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change,
    mount_remount, unmount,
};
use rustix::process::Signal;
use rustix::thread::CapabilitySet;

use crate::{Failure, Order, call, network, root};

/// Where the new root is until it is the root: a directory that every machine
/// has and everybody may enter. Only this process sees that it is covered.
const ANCHOR: &str = "/usr";

/// What init needs: to mount, to name the machine, to lower bounds for good,
/// and what it hands on to the workload's user 0.
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// What of `/proc` tells of the machine, and is hidden.
const HIDDEN: [&str; 9] = [
    "diskstats",
    "kcore",
    "keys",
    "key-users",
    "kmsg",
    "latency_stats",
    "partitions",
    "timer_list",
    "sched_debug",
];
/// What of `/proc` steers the machine, and is only to be read.
const FIXED: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

/// What init is started with, from 0 on.
pub(crate) struct Descriptors {
    pub(crate) nothing: OwnedFd,
    pub(crate) console: OwnedFd,
    pub(crate) listener: OwnedFd,
    pub(crate) report: OwnedFd,
    pub(crate) filter: OwnedFd,
    pub(crate) program: OwnedFd,
}

/// Becomes init; returns only if that failed.
pub(crate) fn become_init(order: &Order, system: OwnedFd, given: Descriptors) -> Failure {
    match prepare(order, &system) {
        Err(failure) => failure,
        Ok(()) => {
            drop(system);
            match execute(order, given) {
                Ok(never) => match never {},
                Err(error) => container("start init")(error),
            }
        }
    }
}

fn failure(code: &str, step: &str, error: &io::Error) -> Failure {
    Failure {
        code: code.to_owned(),
        detail: format!("cannot {step}: {error}"),
    }
}

fn container(step: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |error| failure("container_start_failed", step, &error)
}

fn prepare(order: &Order, system: &OwnedFd) -> Result<(), Failure> {
    call::become_root().map_err(container("become the instance's own user 0"))?;
    // After the change of user, which would forget it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| container("end with the shim")(error.into()))?;
    call::own_cgroups().map_err(container("leave the host's control groups"))?;
    network::inside(order).map_err(|error| {
        failure(
            "network_setup_failed",
            "set the instance's network up",
            &error,
        )
    })?;
    Mounts(Path::new(ANCHOR))
        .make(order, system)
        .map_err(|(step, error)| failure("rootfs_build_failed", &step, &error))?;
    lower_bounds().map_err(container("give privileges up"))
}

type Done = Result<(), (String, io::Error)>;

/// The new root, while it is below a directory of the old one.
struct Mounts<'a>(&'a Path);

impl Mounts<'_> {
    fn make(&self, order: &Order, system: &OwnedFd) -> Done {
        let at = |step: &str| {
            let step = step.to_owned();
            move |error: io::Error| (step, error)
        };
        mount_change(
            "/",
            MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
        )
        .map_err(|error| at("make mounts private")(error.into()))?;
        root::attach(system, self.0).map_err(at("attach the root"))?;
        self.processes().map_err(at("mount `/proc`"))?;
        self.machine().map_err(at("mount `/sys`"))?;
        self.devices(order.memory_bytes / 8)
            .map_err(at("make `/dev`"))?;
        self.memory("run", 0o755, order.memory_bytes / 8)
            .map_err(at("mount `/run`"))?;
        self.memory("tmp", 0o1777, order.memory_bytes / 4)
            .map_err(at("mount `/tmp`"))?;
        self.enter().map_err(at("enter the new root"))
    }

    /// A directory of the new root. Whatever else an image has there goes: a
    /// link would lead out of it.
    fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => return Ok(path),
            Ok(_) => fs::remove_file(&path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    fn memory(&self, name: &str, mode: u32, bytes: u64) -> io::Result<PathBuf> {
        let place = self.directory(name)?;
        let inodes = (bytes >> 14).max(256);
        let options = format!("size={bytes},mode={mode:o},nr_inodes={inodes}");
        let options = CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", &place, "tmpfs", flags, options.as_c_str())?;
        Ok(place)
    }

    fn processes(&self) -> io::Result<()> {
        let place = self.directory("proc")?;
        let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("proc", &place, "proc", safe, None)?;
        for name in FIXED {
            let path = place.join(name);
            if path.exists() {
                mount_bind(&path, &path)?;
                mount_remount(&path, MountFlags::BIND | MountFlags::RDONLY | safe, "")?;
            }
        }
        for name in HIDDEN {
            let path = place.join(name);
            if path.exists() {
                mount_bind("/dev/null", &path)?;
            }
        }
        for name in ["acpi", "fs/ext4", "scsi"] {
            let path = place.join(name);
            if path.exists() {
                mount(
                    "tmpfs",
                    &path,
                    "tmpfs",
                    safe | MountFlags::RDONLY,
                    c"size=0,nr_inodes=2",
                )?;
            }
        }
        Ok(())
    }

    fn machine(&self) -> io::Result<()> {
        let place = self.directory("sys")?;
        let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
        mount("sysfs", &place, "sysfs", safe, None)?;
        for name in [
            // Where the disks of others are, and what they write.
            "block",
            "class/block",
            "dev/block",
            "devices/virtual/block",
            "fs/ext4",
            "firmware",
            "kernel/debug",
            "kernel/security",
            "fs/bpf",
            "power",
        ] {
            let path = place.join(name);
            if path.exists() {
                mount("tmpfs", &path, "tmpfs", safe, c"size=0,nr_inodes=2")?;
            }
        }
        Ok(())
    }

    fn devices(&self, shared: u64) -> io::Result<()> {
        let place = self.directory("dev")?;
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        mount(
            "tmpfs",
            &place,
            "tmpfs",
            flags,
            c"size=64k,mode=0755,nr_inodes=64",
        )?;
        for name in ["null", "zero", "full", "random", "urandom", "tty"] {
            // A device can only be shown, not made, in here.
            let path = place.join(name);
            File::create(&path)?;
            mount_bind(Path::new("/dev").join(name), &path)?;
        }
        fs::create_dir(place.join("pts"))?;
        let options = c"newinstance,ptmxmode=0666,mode=0620,gid=5";
        mount("devpts", place.join("pts"), "devpts", flags, options)?;
        self.memory("dev/shm", 0o1777, shared)?;
        for (name, target) in [
            ("ptmx", "pts/ptmx"),
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ] {
            symlink(target, place.join(name))?;
        }
        Ok(())
    }

    /// The old root goes out of sight for good.
    fn enter(&self) -> io::Result<()> {
        rustix::process::chdir(self.0)?;
        // The old root is put over the new one, and then taken away.
        rustix::process::pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")?;
        Ok(())
    }
}

fn lower_bounds() -> io::Result<()> {
    for bit in 0..64 {
        let Some(capability) = CapabilitySet::from_bits(1 << bit) else {
            break;
        };
        if NEEDED.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the last one that this kernel knows.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

fn execute(order: &Order, given: Descriptors) -> io::Result<std::convert::Infallible> {
    let words = ["fluffy-init", "3", "4", "5", &order.instance, &order.boot];
    let words = words
        .into_iter()
        .map(CString::new)
        .collect::<Result<Vec<_>, _>>()?;
    let program = rustix::io::fcntl_dupfd_cloexec(&given.program, 100)?;
    let error = given.console.try_clone()?;
    call::arrange(vec![
        given.nothing,
        given.console,
        error,
        given.listener,
        given.report,
        given.filter,
    ])?;
    Err(call::execute(program.as_fd(), &words))
}

/// Where nothing is read and nothing is kept.
pub(crate) fn nothing() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/null", flags, Mode::empty())?)
}
