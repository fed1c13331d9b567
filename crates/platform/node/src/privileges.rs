//! What an agent gives up before it hears anybody.
//!
//! It stays root, because it makes namespaces, mounts and interfaces; of what
//! root may do it keeps what that takes. All that it starts has no more.

use std::fs;
use std::io;

use rustix::mm::MlockAllFlags;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// What an agent needs of root. `FOWNER` and `FSETID` are for roots of images:
/// the kernel changes a file of an overlay with the rights of who mounted it.
pub const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::IPC_LOCK);

/// What whoever also takes connections needs: the ports below 1024.
pub const NEEDED_BY_EDGE: CapabilitySet = CapabilitySet::NET_BIND_SERVICE;

/// What a server needs, which has keys in its memory and makes nothing on the
/// machine: files that may be another's, ports below 1024, memory that stays.
pub const NEEDED_BY_SERVER: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::IPC_LOCK);

/// How late the kernel takes an agent when there is no memory left: what runs
/// would be without its supervisor.
const OOM_SCORE: &str = "-900";

/// The most files that an agent, its server and its edge ever have open: two
/// for each of the connections of an edge, and as many for the rest.
const OPEN_FILES: u64 = 1 << 18;

/// Keeps `needed` of what root may do, and nothing of this process's memory
/// for others: no dump, no swap. To be called while there is one thread, since
/// these are a thread's own. Without root there is less to give up. As many
/// files as are needed may be open from here on, if anybody may.
///
/// # Errors
/// When the kernel does not take something back.
pub fn give_up(needed: CapabilitySet) -> io::Result<()> {
    undumpable()?;
    // Who may not have them serves fewer connections.
    let _ = open_files();
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let has = rustix::thread::capabilities(None)?.permitted;
    if has.contains(CapabilitySet::IPC_LOCK) {
        lock()?;
    }
    if has.contains(CapabilitySet::SYS_RESOURCE) {
        fs::write("/proc/self/oom_score_adj", OOM_SCORE)?;
    }
    if has.contains(CapabilitySet::SETPCAP) {
        lower_bounds(needed)?;
    }
    let kept = has & needed;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Keeps this process's memory for itself, as [`give_up`] does, and all that it
/// may do otherwise. Its memory stays out of the swap where that is allowed.
///
/// # Errors
/// When the kernel does not take something back.
pub fn conceal() -> io::Result<()> {
    undumpable()?;
    let may = rustix::thread::capabilities(None)?.effective;
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    // With less than all of it a later allocation would fail.
    if may.contains(CapabilitySet::IPC_LOCK) || limit.is_none() {
        lock()?;
    }
    Ok(())
}

fn undumpable() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    Ok(rustix::process::setrlimit(Resource::Core, none)?)
}

/// No page goes to the swap, from when it is touched: keys and secrets pass
/// through many buffers.
fn lock() -> io::Result<()> {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    Ok(rustix::mm::mlockall(all)?)
}

/// Makes use of what may be open, for itself: a workload gets limits of its
/// own, made from the most, which stays as it is.
fn open_files() -> io::Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    if limit.current.is_none_or(|current| current >= most) {
        return Ok(());
    }
    let raised = Rlimit {
        current: Some(most),
        ..limit
    };
    Ok(rustix::process::setrlimit(Resource::Nofile, raised)?)
}

fn lower_bounds(needed: CapabilitySet) -> io::Result<()> {
    for bit in 0..64 {
        let Some(capability) = CapabilitySet::from_bits(1 << bit) else {
            break;
        };
        if needed.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the last one that this kernel knows.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::process::{getrlimit, setrlimit};

    use super::*;

    #[test]
    fn as_many_files_may_be_open_as_anybody_lets_it_have() {
        let before = getrlimit(Resource::Nofile);
        let few = Rlimit {
            current: Some(100),
            ..before
        };
        setrlimit(Resource::Nofile, few).unwrap();
        open_files().unwrap();
        let after = getrlimit(Resource::Nofile);
        let most = before.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
        assert_eq!(after.current, Some(most));
        assert_eq!(after.maximum, before.maximum, "nobody else's changes");
        // What is more already stays.
        let all = Rlimit {
            current: before.maximum,
            ..before
        };
        setrlimit(Resource::Nofile, all).unwrap();
        open_files().unwrap();
        assert_eq!(getrlimit(Resource::Nofile), all);
    }
}
