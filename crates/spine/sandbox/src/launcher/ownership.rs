//! Who made what: so that a launcher that was killed leaves nothing for ever.
//!
//! Each launcher has a directory with a lock it holds while it lives, and a
//! small file for every sandbox. Whoever gets the lock of another's directory
//! knows that its owner is dead and removes what it recorded. Layers are not
//! recorded here: they are people's work, and no sweep touches them.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fluffy_base::id::SandboxId;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::{Pid, PidfdFlags, Signal};

/// A process that cannot be confused with a later one of the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its id.
    pub(crate) pid: Pid,
    /// When it started, in the kernel's ticks since boot.
    pub(crate) started: u64,
}

impl Process {
    /// The process of this id, if there is one.
    pub(crate) fn find(pid: Pid) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
        // The name may hold spaces and parentheses; what follows the last is plain.
        let (_, rest) = stat.rsplit_once(')')?;
        let started = rest.split_ascii_whitespace().nth(19)?.parse().ok()?;
        Some(Self { pid, started })
    }

    fn write(self) -> String {
        format!("{} {}\n", self.pid.as_raw_pid(), self.started)
    }

    fn read(text: &str) -> Option<Self> {
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Self {
            pid: Pid::from_raw(pid.parse().ok()?)?,
            started: started.parse().ok()?,
        })
    }

    /// Ends it if it is still the same process.
    fn end(self) -> bool {
        let Ok(pidfd) = rustix::process::pidfd_open(self.pid, PidfdFlags::empty()) else {
            return false;
        };
        // After the descriptor is open the id cannot be given to another.
        Self::find(self.pid) == Some(self)
            && rustix::process::pidfd_send_signal(&pidfd, Signal::KILL).is_ok()
    }
}

/// How often a claim may lose against the sweeps of others.
const MOST_TRIES: u32 = 100;

/// A launcher's claim to what it makes.
#[derive(Debug)]
pub struct Ownership {
    all: PathBuf,
    own: PathBuf,
    label: String,
    _lock: OwnedFd,
}

impl Ownership {
    /// Makes this launcher's directory below the state directory.
    ///
    /// # Errors
    /// When the state directory cannot be used.
    pub fn take(state: &Path) -> io::Result<Self> {
        let all = state.join("launchers");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&all)?;
        let mut tries = 0;
        loop {
            match Self::claim(&all) {
                Err(error) if tries < MOST_TRIES && was_swept(&error) => tries += 1,
                claimed => return claimed,
            }
        }
    }

    fn claim(all: &Path) -> io::Result<Self> {
        // Filled and locked under another name first, so that nobody asks for
        // a launcher whose lock is not held yet. A sweep takes such names too,
        // because a crash may have left them, and can be quicker than we are.
        let label = SandboxId::generate().to_string().to_ascii_lowercase();
        let label = label.rsplit('_').next().unwrap_or("launcher").to_owned();
        let hidden = all.join(format!(".{label}"));
        fs::DirBuilder::new().mode(0o700).create(&hidden)?;
        fs::DirBuilder::new()
            .mode(0o700)
            .create(hidden.join("root"))?;
        let lock = lock(&hidden)?.ok_or(io::ErrorKind::WouldBlock)?;
        let own = all.join(&label);
        fs::rename(&hidden, &own)?;
        Ok(Self {
            all: all.to_owned(),
            own,
            label,
            _lock: lock,
        })
    }

    /// What marks this launcher's things.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// This launcher's own directory, removed with it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.own
    }

    /// The empty directory that roots are built on.
    pub(crate) fn anchor(&self) -> PathBuf {
        self.own.join("root")
    }

    /// Notes a sandbox before it is made.
    pub(crate) fn record(&self, sandbox: SandboxId) -> io::Result<()> {
        fs::write(self.own.join(sandbox.to_string()), "")
    }

    /// Notes its first process. Not being able to is no reason to fail: the
    /// kernel ends that process with the launcher.
    pub(crate) fn record_process(&self, sandbox: SandboxId, pid: Pid) {
        if let Some(process) = Process::find(pid) {
            let _ = fs::write(self.own.join(sandbox.to_string()), process.write());
        }
    }

    /// Drops the note of a sandbox that is gone.
    pub(crate) fn forget(&self, sandbox: SandboxId) {
        let _ = fs::remove_file(self.own.join(sandbox.to_string()));
    }

    /// Whether the launcher with this label still lives.
    #[must_use]
    pub fn is_alive(&self, label: &str) -> bool {
        label == self.label
            || (self.all.join(label).is_dir()
                && !matches!(lock(&self.all.join(label)), Ok(Some(_))))
    }

    /// Removes what dead launchers left; says what.
    pub fn sweep(&self) -> Vec<String> {
        let mut removed = Vec::new();
        let Ok(entries) = fs::read_dir(&self.all) else {
            return removed;
        };
        for entry in entries.flatten() {
            let directory = entry.path();
            if directory == self.own {
                continue;
            }
            // Held by a living launcher, or already gone.
            let Ok(Some(_held)) = lock(&directory) else {
                continue;
            };
            removed.extend(end_recorded(&directory));
            if remove_folder(&directory).is_ok() {
                removed.push(format!(
                    "record of launcher {}",
                    entry.file_name().display()
                ));
            }
        }
        removed
    }

    /// Removes this launcher's own directory.
    pub fn release(&self) {
        let _ = remove_folder(&self.own);
    }
}

/// Removes a folder of a launcher, also what nobody may open in it: what covers
/// hidden paths has no mode at all.
///
/// # Errors
/// Something of it cannot be removed.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            unlock(folder);
            fs::remove_dir_all(folder)
        }
        done => done,
    }
}

/// Makes every directory below one readable for its owner.
fn unlock(folder: &Path) {
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            // Of the entry itself: a link is no directory.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let _ = fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700));
                open.push(entry.path());
            }
        }
    }
}

fn end_recorded(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let process = Process::read(&fs::read_to_string(entry.path()).ok()?)?;
            process.end().then(|| {
                format!(
                    "process {} of {}",
                    process.pid.as_raw_pid(),
                    entry.file_name().display()
                )
            })
        })
        .collect()
}

/// Whether a directory went to a sweep before it was locked.
fn was_swept(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::NotFound
    )
}

/// The lock of a launcher's directory, if nobody else holds it.
fn lock(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(directory)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_does_not_lose_against_the_sweeps_of_others() {
        let state = tempfile::tempdir().unwrap();
        let sweeper = Ownership::take(state.path()).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sweeping = scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    sweeper.sweep();
                }
            });
            let claimed: Vec<_> = (0..300)
                .map(|_| Ownership::take(state.path()).map(|claim| claim.release()))
                .collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            sweeping.join().unwrap();
            for claim in claimed {
                claim.unwrap();
            }
        });
    }

    #[test]
    fn a_living_launcher_is_left_alone_and_a_dead_one_swept() {
        let state = tempfile::tempdir().unwrap();
        let first = Ownership::take(state.path()).unwrap();
        let second = Ownership::take(state.path()).unwrap();
        first.record(SandboxId::from_bits(7)).unwrap();
        assert!(second.sweep().is_empty());
        assert!(second.is_alive(first.label()));
        let (label, own) = (first.label().to_owned(), first.own.clone());
        drop(first);
        assert!(!second.is_alive(&label));
        assert_eq!(second.sweep().len(), 1);
        assert!(!own.exists());
    }

    #[test]
    fn only_the_very_process_is_ended() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let process = Process::find(pid).unwrap();
        assert_eq!(Process::read(&process.write()), Some(process));
        let other = Process {
            started: process.started + 1,
            ..process
        };
        assert!(!other.end(), "a later process of the same id is not ours");
        assert!(child.try_wait().unwrap().is_none());
        assert!(process.end());
        child.wait().unwrap();
    }
}
