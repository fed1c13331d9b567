//! The second wall behind the mounts: Landlock.
//!
//! Prepared once in a sandbox's init, put over each command by one system
//! call. It asks for every right the kernel knows and grants only those of the
//! plan's reach; what an older kernel lacks is in [`missing`], never left
//! out in silence. Next: `probe` tells people about it, `seccomp` is the third.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};

use crate::plan::Reach;

/// The least version behind mounts. Below it a file cannot be moved to another
/// directory at all, which no build survives.
pub(crate) const LEAST_ABI: i32 = 2;
/// The least version where there are no mounts. Below it anybody's file can be
/// cut to nothing.
pub(crate) const LEAST_ABI_ALONE: i32 = 3;

/// Why there is no wall.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WallError {
    /// The kernel has no Landlock, or it is off.
    #[error("this kernel has no Landlock, or it is switched off")]
    Unsupported,
    /// The kernel's Landlock is too old.
    #[error("the kernel's Landlock is version {found}, at least {least} is needed")]
    TooOld {
        /// What it has.
        found: i32,
        /// What it takes.
        least: i32,
    },
    /// A path of the reach is there but cannot be opened.
    #[error("cannot open `{}`", path.display())]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no descriptor left for the rules.
    #[error("cannot keep the rules")]
    Descriptor(#[source] io::Error),
    /// The kernel refused a rule.
    #[error("the kernel refuses the rules")]
    Rules(#[source] RulesetError),
}

/// A wall, ready to be put over processes.
#[derive(Debug)]
pub(crate) struct Wall {
    rules: RulesetCreated,
    /// The same rules, for the call that puts them over a process.
    descriptor: OwnedFd,
    abi: ABI,
    /// What was there to be allowed.
    allowed: Reach,
}

impl Wall {
    /// A wall for processes whose mounts and namespaces hold already.
    ///
    /// # Errors
    /// When the kernel's Landlock is older than [`LEAST_ABI`].
    pub(crate) fn prepare(reach: &Reach) -> Result<Self, WallError> {
        let abi = least(LEAST_ABI)?;
        Self::build(new_rules(abi), abi, reach)
    }

    /// A wall for processes that have nothing else: no connection by TCP, no
    /// abstract socket and no signal leaves it either.
    ///
    /// # Errors
    /// When the kernel's Landlock is older than [`LEAST_ABI_ALONE`].
    pub(crate) fn prepare_alone(reach: &Reach) -> Result<Self, WallError> {
        let abi = least(LEAST_ABI_ALONE)?;
        // Behind namespaces these would only part the commands of one sandbox
        // from each other.
        let rules = new_rules(abi).and_then(|rules| {
            let rules = match AccessNet::from_all(abi) {
                none if none.is_empty() => rules,
                all => rules.handle_access(all)?,
            };
            match Scope::from_all(abi) {
                none if none.is_empty() => Ok(rules),
                all => rules.scope(all),
            }
        });
        Self::build(rules, abi, reach)
    }

    /// Makes it the wall of this reach, after something was mounted at these
    /// places. Only what is new is added, where the rest stays as it was.
    ///
    /// # Errors
    /// When the kernel refuses a rule.
    pub(crate) fn extend(&mut self, reach: &Reach, mounted: &[&Path]) -> Result<(), WallError> {
        let stays = |path: &PathBuf| reach.write.contains(path);
        let reads = |path: &PathBuf| reach.read.contains(path) || stays(path);
        if !self.allowed.write.iter().all(stays) || !self.allowed.read.iter().all(reads) {
            // A rule cannot be taken back.
            *self = Self::prepare(reach)?;
            return Ok(());
        }
        // At and below a mount the same path is another file.
        let moved = |path: &PathBuf| mounted.iter().any(|place| path.starts_with(place));
        let missing = |paths: &[PathBuf], allowed: &[PathBuf]| {
            let new = |path: &&PathBuf| moved(path) || !allowed.contains(path);
            paths.iter().filter(new).cloned().collect()
        };
        let new = Reach {
            read: missing(&reach.read, &self.allowed.read),
            write: missing(&reach.write, &self.allowed.write),
        };
        self.allow(&new)
    }

    /// Puts the wall over the calling thread and all that it starts, for ever.
    /// Allocates nothing: it is called between `fork` and `execve`, after
    /// no-new-privileges.
    ///
    /// # Errors
    /// When the kernel refuses, which it does without no-new-privileges.
    pub(crate) fn enforce(&self) -> io::Result<()> {
        #[expect(
            unsafe_code,
            reason = "the crate's own call allocates and consumes the rules"
        )]
        // SAFETY: takes a descriptor and a number, touches no memory of ours.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_landlock_restrict_self,
                self.descriptor.as_raw_fd(),
                0_u32,
            )
        };
        if answer == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn build(
        rules: Result<Ruleset, RulesetError>,
        abi: ABI,
        reach: &Reach,
    ) -> Result<Self, WallError> {
        let rules = rules.and_then(Ruleset::create).map_err(WallError::Rules)?;
        let copy = rules.try_clone().map_err(WallError::Descriptor)?;
        let descriptor: Option<OwnedFd> = copy.into();
        let mut wall = Self {
            rules,
            descriptor: descriptor.ok_or(WallError::Unsupported)?,
            abi,
            allowed: Reach::default(),
        };
        wall.allow(reach)?;
        Ok(wall)
    }

    fn allow(&mut self, reach: &Reach) -> Result<(), WallError> {
        let read = AccessFs::from_read(self.abi);
        for path in &reach.read {
            if allow(&mut self.rules, path, read, self.abi)? {
                self.allowed.read.push(path.clone());
            }
        }
        for path in &reach.write {
            let rights = read | write_rights(self.abi, path);
            if allow(&mut self.rules, path, rights, self.abi)? {
                self.allowed.write.push(path.clone());
            }
        }
        Ok(())
    }
}

/// The version of the kernel's Landlock; nothing where it is not to be had.
#[must_use]
pub(crate) fn version() -> Option<i32> {
    const ASK_VERSION: u32 = 1;
    #[expect(unsafe_code, reason = "the crate keeps what it found to itself")]
    // SAFETY: with this flag the kernel takes no attributes, only returns a
    // number.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            ASK_VERSION,
        )
    };
    i32::try_from(answer).ok().filter(|version| *version > 0)
}

/// What Landlock of this version cannot hold back, a sentence for each.
#[must_use]
pub(crate) fn missing(version: i32) -> Vec<&'static str> {
    LATER
        .iter()
        .filter(|(since, _)| version < *since)
        .map(|(_, what)| *what)
        .collect()
}

/// What came after the first version, and since when.
const LATER: &[(i32, &str)] = &[
    (2, "moving files between directories (Linux 5.19)"),
    (3, "cutting files short (Linux 6.2)"),
    (4, "connections by TCP (Linux 6.7)"),
    (5, "commands to devices (Linux 6.10)"),
    (6, "signals and abstract sockets (Linux 6.12)"),
    (9, "connecting to sockets by their path (Linux 7.1)"),
];

fn least(least: i32) -> Result<ABI, WallError> {
    let found = version().ok_or(WallError::Unsupported)?;
    if found < least {
        return Err(WallError::TooOld { found, least });
    }
    Ok(ABI::from(found))
}

/// Rules that take every right on files the kernel knows; hard, so that one
/// the kernel does not know is an error and not a hole.
fn new_rules(abi: ABI) -> Result<Ruleset, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
}

/// Nobody may make devices, and only devices are spoken to as such.
fn write_rights(abi: ABI, path: &Path) -> BitFlags<AccessFs> {
    let mut rights = AccessFs::from_write(abi);
    rights.remove(AccessFs::MakeChar | AccessFs::MakeBlock);
    if !path.starts_with("/dev") {
        rights.remove(AccessFs::IoctlDev);
    }
    rights
}

/// Adds one path, and says whether it is there: otherwise it needs no rule.
fn allow(
    rules: &mut RulesetCreated,
    path: &Path,
    rights: BitFlags<AccessFs>,
    abi: ABI,
) -> Result<bool, WallError> {
    let failed = |source| WallError::Path {
        path: path.to_owned(),
        source,
    };
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    };
    let rights = if file.metadata().map_err(failed)?.is_dir() {
        rights
    } else {
        rights & AccessFs::from_file(abi)
    };
    rules
        .add_rule(PathBeneath::new(file, rights))
        .map_err(WallError::Rules)?;
    Ok(true)
}

#[cfg(test)]
mod tests;
