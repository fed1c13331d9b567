//! What was compiled before, in files that only the host can write.
//!
//! Loading compiled code means running what is in the file. So a file is used
//! only when it is a plain file of ours that nobody else can write, and its
//! content carries a keyed hash over the module, the engine and the code; in
//! every other case it is removed and the plugin is compiled again. The key is
//! in the same folder and never leaves the host.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use fluffy_base::Digest;
use hmac::{Hmac, KeyInit as _, Mac as _};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use sha2::Sha256;

use crate::private::{read, write};

/// The largest compiled plugin.
pub(super) const MAX_CODE: usize = 192 << 20;

/// How many compiled plugins are kept.
const MAX_FILES: usize = 64;

const MAC: usize = 32;
/// As many bytes as a block of the hash.
const KEY_SIZE: usize = 64;
const KEY: &str = "key";
const ENDING: &str = "cwasm";

/// What was compiled before.
#[derive(Debug)]
pub struct CompiledCache {
    folder: PathBuf,
    directory: OwnedFd,
    key: [u8; KEY_SIZE],
}

/// Why there can be no cache.
#[derive(Debug, thiserror::Error)]
pub enum OpenCacheError {
    /// Somebody else could write there.
    #[error("`{}` is not a folder that only its owner, us, can write", folder.display())]
    NotOurs {
        /// Where.
        folder: PathBuf,
    },
    /// The disk failed.
    #[error("`{}` cannot be used", folder.display())]
    Disk {
        /// Where.
        folder: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl CompiledCache {
    /// Opens the cache in this folder, or makes it.
    ///
    /// # Errors
    /// Somebody else could write there, or the disk fails.
    pub fn open(folder: &Path) -> Result<Self, OpenCacheError> {
        let disk = |source: io::Error| OpenCacheError::Disk {
            folder: folder.to_owned(),
            source,
        };
        let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(disk(error)),
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(folder, flags, Mode::empty());
        let not_ours = || OpenCacheError::NotOurs {
            folder: folder.to_owned(),
        };
        let directory = opened.map_err(|_| not_ours())?;
        let found = rustix::fs::fstat(&directory).map_err(|error| disk(error.into()))?;
        if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o022 != 0 {
            return Err(not_ours());
        }
        let key = key(&directory).map_err(disk)?;
        Ok(Self {
            folder: folder.to_owned(),
            directory,
            key,
        })
    }

    /// What an engine of this identity made of the module, if it is certain.
    #[must_use]
    pub fn get(&self, module: Digest, engine: Digest) -> Option<Vec<u8>> {
        let name = name(module, engine);
        let code = read(&self.directory, &name, MAX_CODE + MAC)
            .ok()
            .and_then(|bytes| self.verified(&bytes, module, engine));
        if code.is_none() {
            // Whatever is there is of no use, also where it is a link.
            let _ = rustix::fs::unlinkat(&self.directory, &name, AtFlags::empty());
        }
        code
    }

    /// Keeps what an engine of this identity made of the module. A disk that
    /// is full costs only that it is compiled again.
    pub fn put(&self, module: Digest, engine: Digest, code: &[u8]) {
        if code.len() > MAX_CODE {
            return;
        }
        let mac = self.mac(code, module, engine).finalize().into_bytes();
        let to = name(module, engine);
        let _ = write(&self.directory, &to, &[&mac, code], RenameFlags::empty());
        self.prune();
    }

    fn verified(&self, bytes: &[u8], module: Digest, engine: Digest) -> Option<Vec<u8>> {
        let (mac, code) = bytes.split_at_checked(MAC)?;
        // In constant time.
        let known = self.mac(code, module, engine).verify_slice(mac);
        known.ok().map(|()| code.to_vec())
    }

    fn mac(&self, code: &[u8], module: Digest, engine: Digest) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new(&self.key.into());
        mac.update(b"fluffy compiled plugin 1");
        mac.update(module.as_bytes());
        mac.update(engine.as_bytes());
        mac.update(code);
        mac
    }

    /// Takes the oldest away when there are too many.
    fn prune(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else {
            return;
        };
        let mut files: Vec<_> = entries
            .filter_map(Result::ok)
            .filter(|entry| Path::new(&entry.file_name()).extension() == Some(ENDING.as_ref()))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.file_name())))
            .collect();
        files.sort_unstable();
        let too_many = files.len().saturating_sub(MAX_FILES);
        for (_, name) in files.into_iter().take(too_many) {
            let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty());
        }
    }
}

fn name(module: Digest, engine: Digest) -> String {
    format!("{module}-{engine}.{ENDING}")
}

/// The key of this folder, made where there is none.
fn key(directory: &OwnedFd) -> io::Result<[u8; KEY_SIZE]> {
    let known = || {
        let bytes = read(directory, KEY, KEY_SIZE).ok()?;
        <[u8; KEY_SIZE]>::try_from(bytes).ok()
    };
    if let Some(key) = known() {
        return Ok(key);
    }
    let mut fresh = [0; KEY_SIZE];
    getrandom::fill(&mut fresh).map_err(io::Error::other)?;
    match write(directory, KEY, &[&fresh], RenameFlags::NOREPLACE) {
        Ok(()) => Ok(fresh),
        // Another process was first, or something else lies there: with a new
        // key everything is compiled again, which is the safe way to be wrong.
        Err(_) => match known() {
            Some(key) => Ok(key),
            None => write(directory, KEY, &[&fresh], RenameFlags::empty()).map(|()| fresh),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    struct Kit {
        root: tempfile::TempDir,
        cache: CompiledCache,
    }

    const MODULE: Digest = Digest([1; 32]);
    const ENGINE: Digest = Digest([2; 32]);

    impl Kit {
        /// With one compiled plugin.
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let cache = CompiledCache::open(&root.path().join("c")).unwrap();
            cache.put(MODULE, ENGINE, b"code");
            assert_eq!(cache.get(MODULE, ENGINE).as_deref(), Some(&b"code"[..]));
            Self { root, cache }
        }

        fn file(&self) -> PathBuf {
            self.root.path().join("c").join(name(MODULE, ENGINE))
        }

        /// Not used, and gone afterwards.
        #[track_caller]
        fn refused(&self) {
            assert_eq!(self.cache.get(MODULE, ENGINE), None);
            assert!(std::fs::symlink_metadata(self.file()).is_err());
        }
    }

    #[test]
    fn it_is_kept_for_the_same_module_and_engine_and_the_next_start() {
        let kit = Kit::new();
        let mode = std::fs::metadata(kit.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = CompiledCache::open(&kit.root.path().join("c")).unwrap();
        assert_eq!(again.get(MODULE, ENGINE).as_deref(), Some(&b"code"[..]));
        let other = Digest([3; 32]);
        assert_eq!(again.get(MODULE, other), None);
        assert_eq!(again.get(other, ENGINE), None);
        assert!(again.get(MODULE, ENGINE).is_some());
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let kit = Kit::new();
        let whole = std::fs::read(kit.file()).unwrap();
        for at in 0..whole.len() {
            kit.cache.put(MODULE, ENGINE, b"code");
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(kit.file(), changed).unwrap();
            kit.refused();
        }
        for length in [0, MAC - 1, MAC, whole.len() - 1] {
            kit.cache.put(MODULE, ENGINE, b"code");
            std::fs::write(kit.file(), &whole[..length]).unwrap();
            kit.refused();
        }
        // Control: the same bytes, written by the same hand.
        kit.cache.put(MODULE, ENGINE, b"code");
        std::fs::write(kit.file(), &whole).unwrap();
        assert!(kit.cache.get(MODULE, ENGINE).is_some());
    }

    #[test]
    fn a_file_of_another_module_engine_or_folder_does_not_fit() {
        let kit = Kit::new();
        let (module, engine) = (Digest([3; 32]), Digest([4; 32]));
        kit.cache.put(module, ENGINE, b"other");
        kit.cache.put(MODULE, engine, b"older");
        for (module, engine) in [(module, ENGINE), (MODULE, engine)] {
            let folder = kit.root.path().join("c");
            std::fs::copy(folder.join(name(module, engine)), kit.file()).unwrap();
            kit.refused();
        }
        // The same content under another key.
        let elsewhere = Kit::new();
        std::fs::copy(elsewhere.file(), kit.file()).unwrap();
        kit.refused();
    }

    #[test]
    fn only_a_plain_file_that_nobody_else_can_write_is_used() {
        let kit = Kit::new();
        let outside = kit.root.path().join("outside");
        std::fs::copy(kit.file(), &outside).unwrap();
        std::fs::remove_file(kit.file()).unwrap();
        symlink(&outside, kit.file()).unwrap();
        kit.refused();
        assert!(outside.exists());
        std::fs::hard_link(&outside, kit.file()).unwrap();
        kit.refused();
        kit.cache.put(MODULE, ENGINE, b"code");
        let open = std::fs::Permissions::from_mode(0o620);
        std::fs::set_permissions(kit.file(), open).unwrap();
        kit.refused();
        // A foreign owner; only root can make one.
        if rustix::process::geteuid().is_root() {
            kit.cache.put(MODULE, ENGINE, b"code");
            std::os::unix::fs::chown(kit.file(), Some(12345), None).unwrap();
            kit.refused();
        }
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("c");
        CompiledCache::open(&folder).unwrap();
        symlink(&folder, root.path().join("link")).unwrap();
        let refused = CompiledCache::open(&root.path().join("link"));
        assert!(matches!(refused, Err(OpenCacheError::NotOurs { .. })));
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&folder, open).unwrap();
        let refused = CompiledCache::open(&folder);
        assert!(matches!(refused, Err(OpenCacheError::NotOurs { .. })));
    }

    #[test]
    fn there_are_never_too_many() {
        let kit = Kit::new();
        for number in 0..u8::try_from(MAX_FILES + 5).unwrap() {
            kit.cache.put(Digest([number; 32]), ENGINE, b"x");
        }
        let count = std::fs::read_dir(kit.root.path().join("c"))
            .unwrap()
            .count();
        assert_eq!(count, MAX_FILES + 1);
    }
}
