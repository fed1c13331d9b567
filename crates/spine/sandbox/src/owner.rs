//! Gives a tree to another user, also while somebody hostile changes it.
//!
//! What is written there is a sandbox's, and the sandbox may still run: every
//! step goes from a descriptor, below the tree and through no link, so that
//! nothing outside is ever given away.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

/// Gives everything in a folder, and the folder, to a user and a group.
///
/// # Errors
/// The system refuses; what vanishes or changes meanwhile is left out.
pub fn give_away(tree: &Path, user: u32, group: u32) -> io::Result<()> {
    walk(tree, user, group, |_| {})
}

/// `looked` is told of a folder that was seen and is not opened yet.
fn walk(tree: &Path, user: u32, group: u32, mut looked: impl FnMut(&Path)) -> io::Result<()> {
    let (owner, owners) = (Uid::from_raw(user), Gid::from_raw(group));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(tree, flags, Mode::empty())?;
    rustix::fs::fchown(&root, Some(owner), Some(owners))?;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    // Paths and not descriptors: how many there are is the sandbox's choice.
    let mut waiting = vec![PathBuf::from(".")];
    while let Some(below) = waiting.pop() {
        let folder = match rustix::fs::openat2(&root, &below, flags, Mode::empty(), beneath) {
            Ok(folder) => folder,
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => continue,
            Err(error) => return Err(error.into()),
        };
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let found = match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => found,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            if (found.st_uid, found.st_gid) != (user, group) {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                match rustix::fs::chownat(&folder, name, Some(owner), Some(owners), flags) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                let path = below.join(OsStr::from_bytes(name.to_bytes()));
                looked(&path);
                waiting.push(path);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, lchown, symlink};

    use super::*;

    /// Only root may give; for others, giving to themselves changes nothing.
    fn other() -> (u32, u32) {
        match rustix::process::geteuid().as_raw() {
            0 => (54_321, 54_321),
            own => (own, rustix::process::getegid().as_raw()),
        }
    }

    fn owner(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().uid()
    }

    #[test]
    fn a_tree_is_given_away_without_following_links() {
        let tree = tempfile::TempDir::new().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::create_dir_all(tree.path().join("deep/deeper")).unwrap();
        fs::write(tree.path().join("deep/deeper/file"), "").unwrap();
        symlink(outside.path(), tree.path().join("deep/link")).unwrap();
        let before = owner(outside.path());
        let (user, group) = other();
        give_away(tree.path(), user, group).unwrap();
        for name in ["", "deep", "deep/deeper", "deep/deeper/file", "deep/link"] {
            assert_eq!(owner(&tree.path().join(name)), user, "{name}");
        }
        assert_eq!(owner(outside.path()), before);
    }

    /// The same by paths, which is what a guard is needed against.
    fn by_paths(tree: &Path, (user, group): (u32, u32), mut looked: impl FnMut(&Path)) {
        let mut waiting = vec![tree.to_owned()];
        while let Some(folder) = waiting.pop() {
            for entry in fs::read_dir(&folder).unwrap().flatten() {
                lchown(entry.path(), Some(user), Some(group)).unwrap();
                if entry.metadata().unwrap().is_dir() {
                    looked(entry.path().strip_prefix(tree).unwrap());
                    waiting.push(entry.path());
                }
            }
        }
    }

    #[test]
    fn a_folder_that_becomes_a_link_meanwhile_leads_nowhere() {
        if rustix::process::geteuid().as_raw() != 0 {
            return;
        }
        let (user, group) = other();
        for guarded in [false, true] {
            let tree = tempfile::TempDir::new().unwrap();
            let outside = tempfile::TempDir::new().unwrap();
            let file = outside.path().join("file");
            fs::write(&file, "").unwrap();
            fs::create_dir(tree.path().join("deep")).unwrap();
            let swap = |below: &Path| {
                fs::remove_dir(tree.path().join(below)).unwrap();
                symlink(outside.path(), tree.path().join(below)).unwrap();
            };
            match guarded {
                true => walk(tree.path(), user, group, swap).unwrap(),
                false => by_paths(tree.path(), (user, group), swap),
            }
            let expected = if guarded { 0 } else { user };
            assert_eq!(owner(&file), expected, "guarded: {guarded}");
        }
    }
}
