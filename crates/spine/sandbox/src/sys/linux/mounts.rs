//! Builds a sandbox's file system from a plan's mounts.
//!
//! Runs in the sandbox's own mount and user namespace, as its init. Host paths
//! are looked up below `host`, which is `/` while the root is built and the
//! what is kept of it when a layer is attached late. Nothing is ever followed
//! out of a source: it is opened first and only its descriptor is mounted.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_change, move_mount, open_tree, unmount,
};

use super::call::{Attributes, set_attributes};
use crate::guard::{Guard, Guards};
use crate::plan::{HiddenKind, Mount, look};

/// Where what is kept of the old root stays until the sandbox is complete.
const KEPT: &str = ".host";
/// Where the old root is for a moment when only parts of it are kept.
const OLD_ROOT: &str = ".old";
/// Where what covers hidden paths is, while it is needed.
const COVERS: &str = ".covers";

/// What [`attach`] will find of the host.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keep<'a> {
    /// Everything: it is let go at once.
    Whole,
    /// These directories: letting few mounts go later is quick, and a sandbox
    /// that waits holds no more than it needs.
    Parts(&'a [PathBuf]),
}

/// A step that failed, for the report to the person.
#[derive(Debug)]
pub(crate) struct MountError {
    /// What was being done.
    pub(crate) step: String,
    /// Why it failed.
    pub(crate) error: io::Error,
}

type Done = Result<(), MountError>;

/// Builds the root below `anchor`, an empty directory, and moves into it. The
/// old root stays reachable for [`attach`] until [`finish`].
pub(crate) fn build(anchor: &Path, mounts: &[Mount], keep: Keep<'_>, without: Guards) -> Done {
    let step = |step: &str| {
        let step = step.to_owned();
        move |error: rustix::io::Errno| MountError {
            step,
            error: error.into(),
        }
    };
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .map_err(step("make mounts private"))?;
    if without.lacks(Guard::MountTable) {
        // Everything stays as the launcher sees it, the project too.
        let root = Path::new("/");
        let place = Place {
            host: root,
            root,
            without,
        };
        return place.put(&Mount::Processes);
    }
    let root = scratch(
        &[("size", "4m"), ("nr_inodes", "4096"), ("mode", "0755")],
        MountAttrFlags::MOUNT_ATTR_NOSUID,
    )
    .map_err(|error| MountError {
        step: "make a new root".to_owned(),
        error,
    })?;
    move_mount(
        root.as_fd(),
        "",
        CWD,
        anchor,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .map_err(step("mount the new root"))?;
    let place = Place {
        host: Path::new("/"),
        root: anchor,
        without,
    };
    for mount in mounts {
        place.put(mount)?;
    }
    let name = match keep {
        Keep::Whole => KEPT,
        Keep::Parts(parts) => {
            place.keep(parts).map_err(|error| MountError {
                step: "keep what comes later".to_owned(),
                error,
            })?;
            OLD_ROOT
        }
    };
    let old = anchor.join(name);
    fs::create_dir(&old).map_err(|error| MountError {
        step: "keep the old root".to_owned(),
        error,
    })?;
    rustix::process::pivot_root(anchor, &old).map_err(step("change the root"))?;
    rustix::process::chdir("/").map_err(step("enter the new root"))?;
    match keep {
        Keep::Whole => Ok(()),
        Keep::Parts(_) => let_go(OLD_ROOT),
    }
}

/// Adds mounts to a built root whose old root is still kept.
pub(crate) fn attach(mounts: &[Mount], without: Guards) -> Done {
    if without.lacks(Guard::MountTable) {
        return Ok(());
    }
    let kept = Path::new("/").join(KEPT);
    let place = Place {
        host: &kept,
        root: Path::new("/"),
        without,
    };
    let hides = |mount: &Mount| matches!(mount, Mount::Hide { .. });
    if !mounts.iter().any(hides) {
        return mounts.iter().try_for_each(|mount| place.put(mount));
    }
    place.make_covers().map_err(|error| MountError {
        step: "make what covers hidden paths".to_owned(),
        error,
    })?;
    mounts.iter().try_for_each(|mount| place.put(mount))?;
    let_go(COVERS)
}

/// Lets the old root go and makes the new one read-only.
pub(crate) fn finish(without: Guards) -> Done {
    if without.lacks(Guard::MountTable) {
        return Ok(());
    }
    let_go(KEPT)?;
    // Not recursive: what is mounted below has its own attributes.
    rustix::mount::mount_remount(
        "/",
        rustix::mount::MountFlags::BIND
            | rustix::mount::MountFlags::RDONLY
            | rustix::mount::MountFlags::NOSUID,
        "",
    )
    .map_err(|error| MountError {
        step: "make the root read-only".to_owned(),
        error: error.into(),
    })
}

/// Takes everything at a place below the root away.
fn let_go(name: &str) -> Done {
    let place = Path::new("/").join(name);
    let failed = |step: &'static str| {
        move |error: io::Error| MountError {
            step: step.to_owned(),
            error,
        }
    };
    unmount(&place, UnmountFlags::DETACH)
        .map_err(|error| failed("let the old root go")(error.into()))?;
    fs::remove_dir(&place).map_err(failed("remove the old root's place"))
}

/// Where sources are found and targets are made.
struct Place<'a> {
    host: &'a Path,
    root: &'a Path,
    without: Guards,
}

impl Place<'_> {
    fn put(&self, mount: &Mount) -> Done {
        let (what, result) = match mount {
            Mount::Directory { inside } => (inside.clone(), self.directory(inside).map(drop)),
            Mount::ReadOnly { host, inside } => (
                inside.clone(),
                self.bind(host, inside, Attributes::READ_ONLY),
            ),
            Mount::Writable { host, inside } => (
                inside.clone(),
                self.bind(host, inside, Attributes::WRITABLE),
            ),
            Mount::Overlay {
                lower,
                upper,
                work,
                inside,
            } => (inside.clone(), self.overlay([lower, upper, work], inside)),
            Mount::Protect { inside } => (inside.clone(), self.protect(inside)),
            Mount::OnlyWritable { inside, parts } => {
                (inside.clone(), self.only_writable(inside, parts))
            }
            Mount::Pin { inside } => (inside.clone(), self.pin(inside)),
            Mount::Hide { inside, .. } => (inside.clone(), self.hide(inside)),
            Mount::Scratch {
                inside,
                size,
                inodes,
            } => (inside.clone(), self.scratch(inside, size.0, *inodes)),
            Mount::File { inside, content } => (inside.clone(), self.file(inside, content)),
            Mount::Link { inside, target } => (inside.clone(), self.link(inside, target)),
            Mount::Devices => ("/dev".into(), self.devices()),
            Mount::Processes => ("/proc".into(), self.processes()),
        };
        result.map_err(|error| MountError {
            step: format!("mount `{}`", what.display()),
            error,
        })
    }

    /// The place of an absolute path below the new root.
    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn source(&self, path: &Path) -> PathBuf {
        self.host.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Puts parts of the host where [`attach`] looks for them, on a mount of
    /// their own, so that they go in one step.
    fn keep(&self, parts: &[PathBuf]) -> io::Result<()> {
        let kept = Path::new("/").join(KEPT);
        self.scratch(&kept, 1 << 20, 4_096)?;
        for part in parts {
            let tree = clone_tree(&self.source(part))?;
            let target = kept.join(part.strip_prefix("/").unwrap_or(part));
            attach_tree(&tree, &self.directory(&target)?)?;
        }
        Ok(())
    }

    fn directory(&self, inside: &Path) -> io::Result<PathBuf> {
        let target = self.inside(inside);
        fs::create_dir_all(&target)?;
        Ok(target)
    }

    fn bind(&self, host: &Path, inside: &Path, attributes: Attributes) -> io::Result<()> {
        let tree = clone_tree(&self.source(host))?;
        set_attributes(tree.as_fd(), attributes)?;
        let target = self.target_like(&tree, inside)?;
        attach_tree(&tree, &target)
    }

    /// Makes an empty file or directory, whatever the source is.
    fn target_like(&self, source: &OwnedFd, inside: &Path) -> io::Result<PathBuf> {
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(source)?.st_mode);
        if kind == rustix::fs::FileType::Directory {
            return self.directory(inside);
        }
        let target = self.inside(inside);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        if !target.exists() {
            fs::File::create(&target)?;
        }
        Ok(target)
    }

    fn overlay(&self, [lower, upper, work]: [&PathBuf; 3], inside: &Path) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |path: &Path| rustix::fs::open(self.source(path), flags, Mode::empty());
        let (lower, upper, work) = (open(lower)?, open(upper)?, open(work)?);
        let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // By descriptor: a path could hold the separators of these options.
        let named = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        fsconfig_set_string(&overlay, "lowerdir", named(&lower))?;
        fsconfig_set_string(&overlay, "upperdir", named(&upper))?;
        fsconfig_set_string(&overlay, "workdir", named(&work))?;
        fsconfig_set_flag(&overlay, "userxattr")?;
        fsconfig_create(&overlay)?;
        let mounted = fsmount(
            &overlay,
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
        )?;
        let target = self.directory(inside)?;
        attach_tree(&mounted, &target)
    }

    fn protect(&self, inside: &Path) -> io::Result<()> {
        let target = self.inside(inside);
        let tree = match clone_tree(&target) {
            Ok(tree) => tree,
            // What is not there cannot be protected by a mount; merging
            // refuses it, and Landlock has no rule for it either.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        set_attributes(tree.as_fd(), Attributes::READ_ONLY)?;
        attach_tree(&tree, &target)
    }

    fn pin(&self, inside: &Path) -> io::Result<()> {
        let target = self.inside(inside);
        match look(self.root, inside.strip_prefix("/").unwrap_or(inside))? {
            Some(HiddenKind::Directory) => attach_tree(&clone_tree(&target)?, &target),
            _ => Ok(()),
        }
    }

    /// One file and one directory that nobody can open: without capabilities
    /// their modes hold for their owner too, and read-only nobody changes them.
    fn make_covers(&self) -> io::Result<()> {
        let options = [("mode", "0700"), ("size", "4096"), ("nr_inodes", "8")];
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mounted = scratch(&options, attributes)?;
        let covers = self.directory(&Path::new("/").join(COVERS))?;
        attach_tree(&mounted, &covers)?;
        let none = || fs::Permissions::from_mode(0o000);
        fs::write(covers.join("file"), "")?;
        fs::set_permissions(covers.join("file"), none())?;
        fs::create_dir(covers.join("directory"))?;
        fs::set_permissions(covers.join("directory"), none())
    }

    fn hide(&self, inside: &Path) -> io::Result<()> {
        // A link on the way is an error: what it leads to is not what was meant.
        let cover = match look(self.root, inside.strip_prefix("/").unwrap_or(inside))? {
            None => return Ok(()),
            Some(HiddenKind::Directory) => "directory",
            Some(HiddenKind::File | HiddenKind::Unseen) => "file",
        };
        let tree = clone_tree(&self.inside(&Path::new("/").join(COVERS).join(cover)))?;
        set_attributes(tree.as_fd(), Attributes::READ_ONLY)?;
        attach_tree(&tree, &self.inside(inside))
    }

    fn only_writable(&self, inside: &Path, parts: &[PathBuf]) -> io::Result<()> {
        // The writable parts are taken before the whole becomes read-only.
        let parts = parts
            .iter()
            .map(|part| {
                let target = self.inside(part);
                let tree = clone_tree(&target).map_err(|error| {
                    let text = format!("`{}` must exist: {error}", part.display());
                    io::Error::new(error.kind(), text)
                })?;
                Ok((tree, target))
            })
            .collect::<io::Result<Vec<_>>>()?;
        self.protect(inside)?;
        for (tree, target) in parts {
            set_attributes(tree.as_fd(), Attributes::WRITABLE)?;
            attach_tree(&tree, &target)?;
        }
        Ok(())
    }

    fn scratch(&self, inside: &Path, size: u64, inodes: u64) -> io::Result<()> {
        let (size, inodes) = (size.to_string(), inodes.to_string());
        let options = [
            ("mode", "0700"),
            ("size", size.as_str()),
            ("nr_inodes", inodes.as_str()),
        ];
        let limited = if self.without.lacks(Guard::ScratchLimit) {
            1
        } else {
            options.len()
        };
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let mounted = scratch(options.get(..limited).unwrap_or(&options), attributes)?;
        let target = self.directory(inside)?;
        attach_tree(&mounted, &target)
    }

    fn file(&self, inside: &Path, content: &str) -> io::Result<()> {
        let target = self.inside(inside);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&target, content)?;
        fs::set_permissions(&target, fs::Permissions::from_mode(0o444))
    }

    fn link(&self, inside: &Path, target: &Path) -> io::Result<()> {
        let place = self.inside(inside);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        symlink(target, place)
    }

    fn devices(&self) -> io::Result<()> {
        self.scratch(Path::new("/dev"), 64 << 10, 64)?;
        fs::set_permissions(
            self.inside(Path::new("/dev")),
            fs::Permissions::from_mode(0o755),
        )?;
        for name in ["null", "zero", "full", "random", "urandom", "tty"] {
            let path = Path::new("/dev").join(name);
            self.bind(&path, &path, Attributes::DEVICE)?;
        }
        for (name, target) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
            ("ptmx", "pts/ptmx"),
        ] {
            self.link(&Path::new("/dev").join(name), Path::new(target))?;
        }
        let terminals = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&terminals, "ptmxmode", "0666")?;
        fsconfig_set_string(&terminals, "mode", "0620")?;
        fsconfig_create(&terminals)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mounted = fsmount(&terminals, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        let target = self.directory(Path::new("/dev/pts"))?;
        attach_tree(&mounted, &target)
    }

    fn processes(&self) -> io::Result<()> {
        let mounted = if self.without.has_pid_namespace() {
            let proc = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&proc)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            fsmount(&proc, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?
        } else {
            clone_tree(&self.source(Path::new("/proc")))?
        };
        let target = self.directory(Path::new("/proc"))?;
        attach_tree(&mounted, &target)?;
        if self.without.lacks(Guard::ProcMasks) {
            return Ok(());
        }
        // Where the launcher runs as root, the files of the kernel belong to
        // the very user that commands run as: being read-only is the guard.
        for name in ["sys", "irq", "bus", "fs", "sysrq-trigger", "driver", "tty"] {
            self.protect(&Path::new("/proc").join(name))?;
        }
        for name in [
            "kcore",
            "keys",
            "key-users",
            "kmsg",
            "timer_list",
            "sched_debug",
            "kallsyms",
            "kpageflags",
            "kpagecount",
            "kpagecgroup",
            "slabinfo",
            "vmallocinfo",
            "mtrr",
        ] {
            let path = self.inside(&Path::new("/proc").join(name));
            if path.exists() {
                let null = clone_tree(&self.source(Path::new("/dev/null")))?;
                set_attributes(null.as_fd(), Attributes::READ_ONLY)?;
                attach_tree(&null, &path)?;
            }
        }
        for name in ["acpi", "scsi", "asound"] {
            let path = Path::new("/proc").join(name);
            if self.inside(&path).exists() {
                self.scratch(&path, 4096, 1)?;
                self.protect(&path)?;
            }
        }
        Ok(())
    }
}

fn scratch(options: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let memory = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&memory, *key, *value)?;
    }
    fsconfig_create(&memory)?;
    Ok(fsmount(&memory, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(CWD, path, flags)?)
}

fn attach_tree(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(tree.as_fd(), "", CWD, target, flags)?)
}
