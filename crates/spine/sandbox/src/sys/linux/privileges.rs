//! Who a sandbox's processes are, and what they may not do.
//!
//! Privileges are only ever given up here. The order matters and is said
//! where it does.

use std::fs;
use std::io;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::guard::{Guard, Guards};
use crate::plan::{Engine, INSIDE_ID, Limits};

/// Maps the one user and group that exist inside to the caller's own.
pub(crate) fn map_ids(uid: u32, gid: u32) -> io::Result<()> {
    // The launcher may be closed to inspection; its child must be able to
    // write its own maps.
    open_to_own_user()?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{INSIDE_ID} {uid} 1\n"))?;
    fs::write("/proc/self/gid_map", format!("{INSIDE_ID} {gid} 1\n"))
}

/// Lets the process use its own entries of `/proc` after a change of user.
pub(crate) fn open_to_own_user() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    Ok(())
}

/// Makes this process end with its parent and keeps others from looking in.
pub(crate) fn tie_to_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// The same for a process that is about to become another program, which
/// closes itself to others when it has started.
pub(crate) fn tie_to_parent_for_exec() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// Makes processes that lose their parent this one's children, as they are
/// anyway where it is the first of its namespace.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// The limits that hold for each process of a command.
pub(crate) fn set_limits(limits: &Limits, engine: Engine, without: Guards) -> io::Result<()> {
    let files = rustix::process::getrlimit(Resource::Nofile)
        .maximum
        .unwrap_or(u64::MAX)
        .min(OPEN_FILES);
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Memlock, 64 << 20),
        (Resource::Msgqueue, 1 << 20),
        (Resource::Sigpending, 4_096),
        (Resource::Rtprio, 0),
        (Resource::Fsize, limits.file_size.0),
        (Resource::Nofile, files),
        // Counted within the user namespace: all processes of the sandbox,
        // its init too.
        (Resource::Nproc, u64::from(limits.user_pids)),
    ] {
        let left_out = match resource {
            Resource::Fsize => without.lacks(Guard::FileSizeLimit),
            Resource::Nofile => without.lacks(Guard::OpenFilesLimit),
            // Elsewhere it would count every process of the host's user.
            Resource::Nproc => !engine.has_user_namespace() || without.lacks(Guard::PidLimit),
            Resource::Core => without.lacks(Guard::CoreLimit),
            _ => false,
        };
        if left_out {
            // As much as whoever started the launcher has.
            let Rlimit { maximum, .. } = rustix::process::getrlimit(resource);
            let current = maximum;
            setrlimit(resource, Rlimit { current, maximum })?;
            continue;
        }
        let most = rustix::process::getrlimit(resource)
            .maximum
            .map_or(most, |hard| hard.min(most));
        setrlimit(
            resource,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        )?;
    }
    Ok(())
}

/// Many build tools open thousands of files; a million would be an attack.
const OPEN_FILES: u64 = 16_384;

/// Gives up that any program could ever gain a capability, for this process
/// and all that it starts. Before the capabilities themselves go: this is one.
pub(crate) fn lower_bounds(without: Guards) -> io::Result<()> {
    if without.lacks(Guard::NoCapabilities) {
        return Ok(());
    }
    for bit in 0..64 {
        let Some(capability) = CapabilitySet::from_bits(1 << bit) else {
            break;
        };
        let lowered = match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(true) => rustix::thread::remove_capability_from_bounding_set(capability),
            // An engine took it already; without it nobody may lower bounds.
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        match lowered {
            Ok(()) => {}
            // Past the last capability this kernel knows.
            Err(rustix::io::Errno::INVAL) => break,
            // Somebody without privileges cannot lower the bounds, and with
            // no-new-privileges gains nothing from them.
            Err(rustix::io::Errno::PERM) if has_none()? => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Gives up every capability, for good.
pub(crate) fn drop_capabilities(without: Guards) -> io::Result<()> {
    if without.lacks(Guard::NoCapabilities) {
        keep_sets()?;
    } else {
        drop_sets()?;
    }
    if !without.lacks(Guard::NoNewPrivileges) {
        rustix::thread::set_no_new_privs(true)?;
    }
    Ok(())
}

/// Lets the program have every capability that its init has; an ordinary user
/// keeps none of them across `execve` otherwise.
fn keep_sets() -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.inheritable = sets.permitted;
    rustix::thread::set_capabilities(None, sets)?;
    for capability in sets.permitted.iter() {
        rustix::thread::configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

fn has_none() -> io::Result<bool> {
    Ok(rustix::thread::capabilities(None)?.effective.is_empty())
}

fn drop_sets() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_without_capabilities_needs_no_lower_bounds() {
        // Capabilities are a thread's own.
        let lowered = std::thread::spawn(|| {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets {
                effective: none,
                permitted: none,
                inheritable: none,
            };
            rustix::thread::set_capabilities(None, sets).unwrap();
            lower_bounds(Guards::NONE)
        });
        lowered.join().unwrap().unwrap();
    }
}
