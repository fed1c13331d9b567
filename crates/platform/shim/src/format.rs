//! Puts a file system into a file: the process that becomes `mke2fs`.
//!
//! It is handed the file as its standard input, gives up root and everything
//! but that file and the system's programs, and only then becomes the program.
//! Whoever starts it decides which file, and how large it is.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use fluffy_sandbox::own::{Role, confine};
use fluffy_sandbox::plan::Reach;
use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Where systems have it.
const PLACES: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"];

/// What it needs to start: itself and its libraries.
const READS: [&str; 8] = [
    "/usr",
    "/lib",
    "/lib64",
    "/sbin",
    "/bin",
    "/etc/ld.so.cache",
    "/dev/null",
    "/dev/urandom",
];

/// Who it is: nobody.
pub const NOBODY: u32 = 65_534;

/// The file as the program finds it.
const FILE: &str = "/proc/self/fd/0";

/// What it may use of memory, and of time on a processor in seconds.
const MEMORY: u64 = 2 << 30;
const SECONDS: u64 = 30;

/// Every feature by name, so that the system's own settings change nothing. No
/// journal: what is written is gone with its instance anyway.
const FEATURES: &str = "none,extent,flex_bg,metadata_csum,64bit,filetype,dir_index,ext_attr,\
    sparse_super,large_file,huge_file,dir_nlink,extra_isize";

/// A file for so many bytes, or a directory, costs one of the inodes: as many
/// as there are are all there will ever be.
const BYTES_PER_INODE: &str = "16384";

/// Where this machine has `mke2fs`.
#[must_use]
pub fn mke2fs() -> Option<PathBuf> {
    let places = PLACES.iter().map(|place| Path::new(place).join("mke2fs"));
    places.into_iter().find(|program| program.is_file())
}

/// `fluffy worker mke2fs`: makes an ext4 file system that fills the file that
/// is its standard input, which belongs to [`NOBODY`].
#[must_use]
pub fn worker_main() -> ExitCode {
    let Err(why) = become_it();
    let _ = writeln!(io::stderr(), "{why}");
    ExitCode::FAILURE
}

fn become_it() -> Result<std::convert::Infallible, String> {
    let cannot = |what: &'static str| move |why: io::Error| format!("cannot {what}: {why}");
    let program = mke2fs().ok_or("there is no `mke2fs`")?;
    let size = File::open(FILE)
        .and_then(|file| file.metadata())
        .map_err(cannot("see the file"))?
        .len();
    leave(size).map_err(cannot("give up what it does not need"))?;
    let reach = Reach {
        read: READS.map(PathBuf::from).into(),
        write: vec![PathBuf::from(FILE)],
    };
    confine(Role::Tool, &reach).map_err(|error| match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    })?;
    let failed = Command::new(program)
        .args(["-q", "-F", "-b", "4096", "-I", "256", "-m", "0"])
        .args(["-i", BYTES_PER_INODE, "-O", FEATURES])
        .args(["-E", "lazy_itable_init=1,nodiscard", FILE])
        .env_clear()
        .env("MKE2FS_CONFIG", "/dev/null")
        .current_dir("/")
        .exec();
    Err(format!("cannot start `mke2fs`: {failed}"))
}

/// Leaves root and every capability; a file is never larger than this one.
fn leave(size: u64) -> io::Result<()> {
    // Whoever started it may be among the last to go; this is among the first.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Fsize, size),
        (Resource::As, MEMORY),
        (Resource::Cpu, SECONDS),
        (Resource::Nofile, 64),
    ] {
        let most = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        rustix::process::setrlimit(resource, most)?;
    }
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    Ok(())
}
