//! Master keys: 256 bits each, kept in files that only their owner reads.
//!
//! A key is named by the check value of its own bits, so a wrong file can't
//! pass for another. One is active and seals; the others only open what they
//! sealed. Without the key nothing is opened, and nothing else stops.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use fluffy_base::Digest;
use fluffy_base::id::MasterKeyId;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

/// The ending of a file with a master key.
const ENDING: &str = "key";
/// The ending of one that is used no more, and not read.
const RETIRED: &str = "retired";
/// The file with the key of fingerprints.
const FINGERPRINTS: &str = "fingerprints";
/// The file that names the key that seals.
const ACTIVE: &str = "active";

/// A key that wraps data keys.
pub struct MasterKey {
    id: MasterKeyId,
    bits: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

/// Why master keys can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadKeyError {
    /// A file can't be read or written.
    #[error("cannot use `{path}`")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Others may read it.
    #[error("others may read `{path}`: it must be for its owner alone (mode 0600)")]
    Exposed {
        /// Which.
        path: PathBuf,
    },
    /// It does not hold the key that its name says.
    #[error("`{path}` does not hold the master key that its name says")]
    Content {
        /// Which.
        path: PathBuf,
    },
    /// No key of this name.
    #[error("there is no master key `{id}`")]
    Missing {
        /// Which.
        id: MasterKeyId,
    },
    /// It seals what is new.
    #[error("`{id}` is the active master key; rotate first")]
    Active {
        /// Which.
        id: MasterKeyId,
    },
    /// The system gave no random bits.
    #[error("the system gives no random bits")]
    Randomness,
}

impl MasterKey {
    /// A fresh key.
    ///
    /// # Errors
    /// The system gives no random bits.
    pub fn generate() -> Result<Self, LoadKeyError> {
        let mut bits = Zeroizing::new([0; 32]);
        getrandom::fill(bits.as_mut_slice()).map_err(|_| LoadKeyError::Randomness)?;
        Ok(Self::of(bits))
    }

    fn of(bits: Zeroizing<[u8; 32]>) -> Self {
        let check = keyed(&bits, b"fluffy-master-key-check-v1");
        let (check, _) = check.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        let id = MasterKeyId::of_check(*check);
        Self { id, bits }
    }

    /// `mk_` and eight hexadecimal digits of its check value.
    #[must_use]
    pub fn id(&self) -> MasterKeyId {
        self.id
    }

    /// The key itself, for sealing.
    pub(crate) fn bits(&self) -> &[u8; 32] {
        &self.bits
    }
}

/// HMAC-SHA256.
pub(crate) fn keyed(key: &[u8; 32], message: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut out = Zeroizing::new([0; 32]);
    // Any key length is fine for HMAC, so this always is one.
    if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) {
        mac.update(message);
        out.copy_from_slice(&mac.finalize().into_bytes());
    }
    out
}

/// The master keys that are at hand.
#[derive(Debug)]
pub struct Keyring {
    folder: PathBuf,
    /// Makes fingerprints; it stays when master keys change, so that equal
    /// secrets stay equal.
    fingerprints: MasterKey,
    keys: BTreeMap<MasterKeyId, MasterKey>,
    active: MasterKeyId,
}

impl Keyring {
    /// Whether a folder has no master key, and none was ever active in it.
    #[must_use]
    pub fn is_absent(folder: &Path) -> bool {
        let Ok(mut entries) = fs::read_dir(folder) else {
            return true;
        };
        !entries.any(|entry| {
            let path = entry.map(|entry| entry.path()).unwrap_or_default();
            let is_key = path.extension().is_some_and(|ending| ending == ENDING);
            is_key || path.file_name().is_some_and(|name| name == ACTIVE)
        })
    }

    /// The keys in a folder; makes the first one if there is none.
    ///
    /// # Errors
    /// A file can't be read, is exposed, or holds something else.
    pub fn open(folder: &Path) -> Result<Self, LoadKeyError> {
        let failed = |source| file_error(folder, source);
        fs::create_dir_all(folder).map_err(failed)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        let (keys, active) = read_folder(folder)?;
        let path = folder.join(FINGERPRINTS);
        if keys.is_empty() && active.is_none() && !path.exists() {
            store(&path, &MasterKey::generate()?)?;
        }
        let mut ring = Self {
            folder: folder.to_owned(),
            fingerprints: read_bits(&path)?,
            active: active.unwrap_or(MasterKeyId::of_check([0; 4])),
            keys,
        };
        if ring.keys.is_empty() && active.is_none() {
            ring.rotate()?;
        }
        if !ring.keys.contains_key(&ring.active) {
            return Err(LoadKeyError::Missing { id: ring.active });
        }
        Ok(ring)
    }

    /// The key that seals.
    ///
    /// # Errors
    /// It is not there.
    pub fn active(&self) -> Result<&MasterKey, LoadKeyError> {
        self.get(self.active)
    }

    /// The key of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&self, id: MasterKeyId) -> Result<&MasterKey, LoadKeyError> {
        self.keys.get(&id).ok_or(LoadKeyError::Missing { id })
    }

    /// The names of all keys, in order.
    pub fn ids(&self) -> impl Iterator<Item = MasterKeyId> {
        self.keys.keys().copied()
    }

    /// Makes a new key the active one; the others stay for opening.
    ///
    /// # Errors
    /// It can't be stored; then the active one is as before.
    pub fn rotate(&mut self) -> Result<&MasterKey, LoadKeyError> {
        let id = self.make()?;
        self.activate(id)?;
        self.get(id)
    }

    /// Makes a new key and stores it; it seals nothing until it is activated.
    ///
    /// # Errors
    /// It can't be stored.
    pub fn make(&mut self) -> Result<MasterKeyId, LoadKeyError> {
        let key = MasterKey::generate()?;
        store(&self.folder.join(format!("{}.{ENDING}", key.id)), &key)?;
        let id = key.id;
        self.keys.insert(id, key);
        Ok(id)
    }

    /// Makes a key that is at hand the active one.
    ///
    /// # Errors
    /// There is none of this name, or that can't be stored; then the active
    /// one is as before.
    pub fn activate(&mut self, id: MasterKeyId) -> Result<(), LoadKeyError> {
        self.get(id)?;
        let next = self.folder.join("active.next");
        write(&next, id.to_string().as_bytes())?;
        let active = self.folder.join(ACTIVE);
        fs::rename(&next, &active).map_err(|source| file_error(&active, source))?;
        self.active = id;
        Ok(())
    }

    /// Takes in what another process put into the folder: keys that are new,
    /// and which one is active. A key that is at hand stays at hand.
    ///
    /// # Errors
    /// A file can't be read, is exposed, or holds something else; then
    /// everything is as before.
    pub fn refresh(&mut self) -> Result<(), LoadKeyError> {
        let (keys, active) = read_folder(&self.folder)?;
        for (id, key) in keys {
            self.keys.entry(id).or_insert(key);
        }
        if let Some(active) = active.filter(|id| self.keys.contains_key(id)) {
            self.active = active;
        }
        Ok(())
    }

    /// The fingerprint of something of an organisation: equal things show, and
    /// none can be guessed from it.
    #[must_use]
    pub fn fingerprint(&self, org: &str, bytes: &[u8]) -> Digest {
        let org_key = keyed(&self.fingerprints.bits, org.as_bytes());
        Digest(*keyed(&org_key, bytes))
    }

    /// Puts a key away that seals nothing any more: its file gets another
    /// ending, under which nobody reads it. Removing it is for whoever knows
    /// which backups of the database need it.
    ///
    /// # Errors
    /// It is the active one, there is none of this name, or its file can't be
    /// renamed.
    pub fn put_away(&mut self, id: MasterKeyId) -> Result<(), LoadKeyError> {
        if id == self.active {
            return Err(LoadKeyError::Active { id });
        }
        self.get(id)?;
        let path = self.folder.join(format!("{id}.{ENDING}"));
        match fs::rename(&path, path.with_extension(RETIRED)) {
            // Another process over this folder was first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            moved => moved.map_err(|source| file_error(&path, source))?,
        }
        self.keys.remove(&id);
        Ok(())
    }

    /// Removes a key that never sealed anything.
    ///
    /// # Errors
    /// It is the active one, or there is none of this name.
    pub fn retire(&mut self, id: MasterKeyId) -> Result<(), LoadKeyError> {
        if id == self.active {
            return Err(LoadKeyError::Active { id });
        }
        self.get(id)?;
        let path = self.folder.join(format!("{id}.{ENDING}"));
        fs::remove_file(&path).map_err(|source| file_error(&path, source))?;
        self.keys.remove(&id);
        Ok(())
    }
}

/// The keys in a folder, and the one that is named as active.
type Found = (BTreeMap<MasterKeyId, MasterKey>, Option<MasterKeyId>);

fn read_folder(folder: &Path) -> Result<Found, LoadKeyError> {
    let failed = |source| file_error(folder, source);
    let mut keys = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending == ENDING) {
            let key = read(&path)?;
            keys.insert(key.id, key);
        }
    }
    let named = folder.join(ACTIVE);
    let active = match fs::read_to_string(&named) {
        Ok(text) => {
            let content = || LoadKeyError::Content { path: named };
            Some(text.trim().parse().map_err(|_| content())?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(file_error(&named, error)),
    };
    Ok((keys, active))
}

fn file_error(path: &Path, source: io::Error) -> LoadKeyError {
    let path = path.to_owned();
    LoadKeyError::File { path, source }
}

fn read(path: &Path) -> Result<MasterKey, LoadKeyError> {
    let key = read_bits(path)?;
    let name = key.id.to_string();
    if path.file_stem().is_some_and(|stem| stem == name.as_str()) {
        return Ok(key);
    }
    let path = path.to_owned();
    Err(LoadKeyError::Content { path })
}

fn store(path: &Path, key: &MasterKey) -> Result<(), LoadKeyError> {
    let hex: String = key.bits.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = Zeroizing::new(hex);
    write(path, hex.as_bytes())
}

fn read_bits(path: &Path) -> Result<MasterKey, LoadKeyError> {
    let failed = |source| file_error(path, source);
    let file = fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        let path = path.to_owned();
        return Err(LoadKeyError::Exposed { path });
    }
    let mut hex = Zeroizing::new(String::with_capacity(128));
    let limited = file.take(128).read_to_string(&mut hex);
    limited.map_err(failed)?;
    let key = unhex(hex.trim()).map(MasterKey::of);
    key.ok_or_else(|| LoadKeyError::Content {
        path: path.to_owned(),
    })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), LoadKeyError> {
    let failed = |source| file_error(path, source);
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.sync_all().map_err(failed)
}

fn unhex(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut bits = Zeroizing::new([0; 32]);
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = Zeroizing::new(digits?);
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in bits.iter_mut().zip(digits.chunks_exact(2)) {
        let value = pair.iter().fold(0, |value, digit| (value << 4) | digit);
        *byte = u8::try_from(value).ok()?;
    }
    Some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_and_the_newest_seals() {
        let folder = tempfile::tempdir().unwrap();
        let mut ring = Keyring::open(folder.path()).unwrap();
        let first = ring.active().unwrap().id();
        let bits = *ring.active().unwrap().bits();
        let second = ring.rotate().unwrap().id();
        assert_ne!(first, second);
        let mut again = Keyring::open(folder.path()).unwrap();
        assert_eq!(again.active().unwrap().id(), second);
        assert_eq!(*again.get(first).unwrap().bits(), bits);
        assert!(matches!(
            again.retire(second),
            Err(LoadKeyError::Active { .. })
        ));
        again.retire(first).unwrap();
        let last = Keyring::open(folder.path()).unwrap();
        assert_eq!(last.ids().collect::<Vec<_>>(), [second]);
    }

    #[test]
    fn a_key_that_is_put_away_is_not_read_and_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let mut ring = Keyring::open(folder.path()).unwrap();
        let mut other = Keyring::open(folder.path()).unwrap();
        let first = ring.active().unwrap().id();
        let error = ring.put_away(first).unwrap_err();
        assert!(matches!(error, LoadKeyError::Active { .. }), "{error}");
        ring.rotate().unwrap();
        ring.put_away(first).unwrap();
        assert!(ring.get(first).is_err());
        other.refresh().unwrap();
        other.put_away(first).unwrap();
        let again = Keyring::open(folder.path()).unwrap();
        assert!(again.get(first).is_err());
        let away = folder.path().join(format!("{first}.retired"));
        fs::rename(&away, folder.path().join(format!("{first}.key"))).unwrap();
        assert!(Keyring::open(folder.path()).unwrap().get(first).is_ok());
    }

    /// Two processes over one folder: what one makes, the other can use.
    #[test]
    fn a_key_that_another_process_made_is_taken_in() {
        let folder = tempfile::tempdir().unwrap();
        let mut one = Keyring::open(folder.path()).unwrap();
        let mut other = Keyring::open(folder.path()).unwrap();
        let first = one.active().unwrap().id();
        let made = one.make().unwrap();
        assert_eq!(one.active().unwrap().id(), first, "it only opens so far");
        other.refresh().unwrap();
        assert_eq!(other.active().unwrap().id(), first);
        assert_eq!(
            other.get(made).unwrap().bits(),
            one.get(made).unwrap().bits()
        );
        one.activate(made).unwrap();
        other.refresh().unwrap();
        assert_eq!(other.active().unwrap().id(), made);
        // A file that is taken away takes no key from who has it.
        fs::remove_file(folder.path().join(format!("{first}.key"))).unwrap();
        other.refresh().unwrap();
        other.get(first).unwrap();
        let unknown = MasterKeyId::of_check([9; 4]);
        let error = other.activate(unknown).unwrap_err();
        assert!(matches!(error, LoadKeyError::Missing { .. }), "{error}");
        assert_eq!(other.active().unwrap().id(), made);
    }

    #[test]
    fn fingerprints_stay_when_keys_change() {
        let folder = tempfile::tempdir().unwrap();
        let mut ring = Keyring::open(folder.path()).unwrap();
        let print = ring.fingerprint("org_a", b"A=1\n");
        ring.rotate().unwrap();
        let again = Keyring::open(folder.path()).unwrap();
        assert_eq!(again.fingerprint("org_a", b"A=1\n"), print);
        assert_ne!(again.fingerprint("org_b", b"A=1\n"), print);
        assert_ne!(again.fingerprint("org_a", b"A=2\n"), print);
        assert_ne!(print, Digest::of(b"A=1\n"));
        let other = tempfile::tempdir().unwrap();
        let other = Keyring::open(other.path()).unwrap();
        assert_ne!(other.fingerprint("org_a", b"A=1\n"), print);
    }

    #[test]
    fn a_file_that_others_read_or_that_lies_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let ring = Keyring::open(folder.path()).unwrap();
        let id = ring.active().unwrap().id();
        let path = folder.path().join(format!("{id}.key"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Keyring::open(folder.path()).unwrap_err();
        assert!(matches!(error, LoadKeyError::Exposed { .. }), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Keyring::open(folder.path()).unwrap();
        fs::write(&path, "00".repeat(32)).unwrap();
        let error = Keyring::open(folder.path()).unwrap_err();
        assert!(matches!(error, LoadKeyError::Content { .. }), "{error}");
    }

    /// A lost key must not be replaced by a new one in silence.
    #[test]
    fn a_key_that_is_gone_is_missed() {
        let folder = tempfile::tempdir().unwrap();
        let ring = Keyring::open(folder.path()).unwrap();
        let id = ring.active().unwrap().id();
        fs::remove_file(folder.path().join(format!("{id}.key"))).unwrap();
        let error = Keyring::open(folder.path()).unwrap_err();
        assert!(matches!(error, LoadKeyError::Missing { .. }), "{error}");
    }
}
