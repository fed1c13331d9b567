//! What a layer holds, counted in small steps while hostile code writes to it.
//!
//! Never follows a link, never leaves the tree, never holds more than it must:
//! a step ends after its time, and a tree too wide to be counted is said to
//! be. It only reads. Next: `super` decides when a step is due.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};

/// What a file costs at least, so that empty ones are not free.
const LEAST_BYTES: u64 = 4_096;
/// How many directories may wait to be looked into.
const MOST_WAITING: usize = 200_000;
/// How long a path may be before a descriptor takes its place.
const LONGEST_PATH: usize = 1_024;
/// How many entries are counted between two looks at the clock.
const ENTRIES_PER_LOOK: u32 = 64;

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// There is more; this much was seen so far.
    More(u64),
    /// Everything was seen; the next step starts again.
    Whole(u64),
    /// There is more than can be counted.
    TooMuch,
}

/// A walk through a tree, again and again.
#[derive(Debug)]
pub(super) struct Walk {
    root: PathBuf,
    waiting: Vec<Waiting>,
    current: Option<Current>,
    seen: u64,
}

/// A directory that is still to be looked into.
#[derive(Debug)]
struct Waiting {
    base: Rc<OwnedFd>,
    path: PathBuf,
}

/// The directory that is being looked into.
#[derive(Debug)]
struct Current {
    entries: Dir,
    descriptor: Rc<OwnedFd>,
    place: Waiting,
}

impl Walk {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            waiting: Vec::new(),
            current: None,
            seen: 0,
        }
    }

    /// Goes on for about this long.
    pub(super) fn step(&mut self, time: Duration) -> Step {
        let until = Instant::now() + time;
        if self.current.is_none() && self.waiting.is_empty() {
            self.seen = 0;
            match self.begin() {
                Ok(()) => {}
                // Not there yet, or no more: nothing is in it.
                Err(_) => return Step::Whole(0),
            }
        }
        let mut looks = 0_u32;
        loop {
            match self.count_one() {
                Counted::One => {}
                Counted::Everything => return Step::Whole(self.seen),
                Counted::TooMuch => {
                    self.waiting.clear();
                    self.current = None;
                    return Step::TooMuch;
                }
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(ENTRIES_PER_LOOK) && Instant::now() >= until {
                return Step::More(self.seen);
            }
        }
    }

    fn begin(&mut self) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::PATH;
        let root = rustix::fs::openat(CWD, &self.root, flags, Mode::empty())?;
        self.waiting.push(Waiting {
            base: Rc::new(root),
            path: PathBuf::from("."),
        });
        Ok(())
    }

    fn count_one(&mut self) -> Counted {
        let Some(current) = &mut self.current else {
            let Some(next) = self.waiting.pop() else {
                return Counted::Everything;
            };
            // What was moved or removed meanwhile is not counted.
            self.current = open(next).ok();
            return Counted::One;
        };
        let entry = match current.entries.read() {
            Some(Ok(entry)) => entry,
            Some(Err(_)) | None => {
                self.current = None;
                return Counted::One;
            }
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            return Counted::One;
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let Ok(found) = rustix::fs::statat(&current.descriptor, name, flags) else {
            return Counted::One;
        };
        let blocks = u64::try_from(found.st_blocks).unwrap_or(0);
        let bytes = blocks.saturating_mul(512).max(LEAST_BYTES);
        self.seen = self.seen.saturating_add(bytes);
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            if self.waiting.len() >= MOST_WAITING {
                return Counted::TooMuch;
            }
            let below = current.below(name);
            self.waiting.push(below);
        }
        Counted::One
    }
}

/// What counting one entry came to.
enum Counted {
    One,
    Everything,
    TooMuch,
}

impl Current {
    fn below(&self, name: &CStr) -> Waiting {
        use std::os::unix::ffi::OsStrExt;
        let name = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let long = self.place.path.as_os_str().len() > LONGEST_PATH;
        Waiting {
            base: Rc::clone(if long {
                &self.descriptor
            } else {
                &self.place.base
            }),
            path: if long {
                name.to_owned()
            } else {
                self.place.path.join(name)
            },
        }
    }
}

fn open(place: Waiting) -> io::Result<Current> {
    let descriptor = rustix::fs::openat2(
        place.base.as_fd(),
        &place.path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV,
    )?;
    Ok(Current {
        entries: Dir::read_from(&descriptor)?,
        descriptor: Rc::new(descriptor),
        place,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn whole(walk: &mut Walk) -> u64 {
        loop {
            match walk.step(Duration::from_micros(1)) {
                Step::More(_) => {}
                Step::Whole(bytes) => return bytes,
                Step::TooMuch => panic!("too much"),
            }
        }
    }

    #[test]
    fn counts_blocks_and_files_and_starts_again() {
        let root = tempfile::tempdir().unwrap();
        let mut walk = Walk::new(root.path());
        assert_eq!(whole(&mut walk), 0);
        for number in 0..200 {
            fs::write(root.path().join(number.to_string()), "").unwrap();
        }
        assert_eq!(whole(&mut walk), 200 * LEAST_BYTES);
        fs::create_dir(root.path().join("deep")).unwrap();
        fs::write(root.path().join("deep/large"), vec![1; 1 << 20]).unwrap();
        let more = whole(&mut walk);
        assert!(more >= 201 * LEAST_BYTES + (1 << 20));
        fs::remove_file(root.path().join("deep/large")).unwrap();
        assert!(whole(&mut walk) < more);
    }

    #[test]
    fn a_hole_is_not_counted_and_a_link_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("large"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("link")).unwrap();
        let sparse = fs::File::create(root.path().join("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        let mut walk = Walk::new(root.path());
        assert!(whole(&mut walk) <= 4 * LEAST_BYTES);
    }

    #[test]
    fn no_depth_hides_a_file() {
        let root = tempfile::tempdir().unwrap();
        // Far deeper than a path may be long.
        let name = "d".repeat(200);
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::open(root.path(), flags, Mode::empty()).unwrap();
        for _ in 0..60 {
            rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, &name, flags, Mode::empty()).unwrap();
        }
        let file = rustix::fs::openat(
            &at,
            "file",
            OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::RUSR,
        )
        .unwrap();
        rustix::io::write(&file, &vec![1; 1 << 20]).unwrap();
        let mut walk = Walk::new(root.path());
        assert!(whole(&mut walk) >= 1 << 20);
    }

    #[test]
    fn a_step_ends_and_goes_on_where_it_was() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..200 {
            fs::write(root.path().join(number.to_string()), "").unwrap();
        }
        let mut walk = Walk::new(root.path());
        let mut steps = 0;
        while let Step::More(_) = walk.step(Duration::ZERO) {
            steps += 1;
        }
        assert!(steps >= 3, "{steps}");
    }
}
