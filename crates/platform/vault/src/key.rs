//! Master keys: 256 bits each, kept in files that only their owner reads.
//!
//! A key is named by the check value of its own bits, so a wrong file can't
//! pass for another. One is active and seals; the others only open what they
//! sealed. Without the key nothing is opened, and nothing else stops.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use fluffy_base::Digest;
use fluffy_base::id::MasterKeyId;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::shares::Custody;

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
    /// Their custodians have not brought them yet.
    #[error("the master keys are with their custodians, who have not brought enough shares")]
    Awaited,
    /// Only their custodians make one.
    #[error("the master keys are with their custodians: no key is made here")]
    WithCustodians,
    /// A key that was brought belongs to another platform.
    #[error("master key `{id}` is of another platform: its key of fingerprints is another")]
    Foreign {
        /// Which.
        id: MasterKeyId,
    },
    /// A key that was brought has the name of one that is here, and is another.
    #[error("what was brought is not the master key `{id}` that is here")]
    Other {
        /// Which.
        id: MasterKeyId,
    },
    /// A key that was brought could be anybody's.
    #[error(
        "nothing shows that master key `{id}` is of this platform: it opens nothing that is kept, \
         and follows no key that is here"
    )]
    Unproven {
        /// Which.
        id: MasterKeyId,
    },
    /// Keys that should be with custodians alone are in files as well.
    #[error(
        "there are files of master keys in `{path}` ({}), which would not need their custodians",
        .files.join(", ")
    )]
    InFiles {
        /// Where.
        path: PathBuf,
        /// Their names.
        files: Vec<String>,
    },
    /// Other keys open what they sealed, and custodians would not hold them.
    #[error("beside master key `{active}` others are in use: {}", named(.others))]
    Others {
        /// The one that seals.
        active: MasterKeyId,
        /// The others.
        others: Vec<MasterKeyId>,
    },
}

fn named(ids: &[MasterKeyId]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| format!("`{id}`")).collect();
    ids.join(", ")
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

    pub(crate) fn of(bits: Zeroizing<[u8; 32]>) -> Self {
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

    /// The same key once more.
    pub(crate) fn copy(&self) -> Self {
        Self {
            id: self.id,
            bits: self.bits.clone(),
        }
    }
}

/// Whether that is what [`keyed`] gives, without telling by time how much of it.
pub(crate) fn is_keyed(key: &[u8; 32], message: &[u8], said: &[u8; 32]) -> bool {
    Hmac::<Sha256>::new_from_slice(key).is_ok_and(|mut mac| {
        mac.update(message);
        mac.verify_slice(said).is_ok()
    })
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
    /// None if custodians brought them: then nothing is on a disk.
    folder: Option<PathBuf>,
    /// Makes fingerprints; it stays when master keys change, so that equal
    /// secrets stay equal.
    fingerprints: MasterKey,
    keys: BTreeMap<MasterKeyId, MasterKey>,
    active: MasterKeyId,
}

impl Keyring {
    /// Whether a folder has no master key, and none was ever active in it. What
    /// can't be looked at may have some.
    #[must_use]
    pub fn is_absent(folder: &Path) -> bool {
        let Ok(found) = names_in(folder) else {
            return false;
        };
        !found.iter().any(|name| {
            let is_key = name.extension().is_some_and(|ending| ending == ENDING);
            is_key || name.as_os_str() == ACTIVE
        })
    }

    /// Makes sure that nothing of master keys is in a folder: no key, none that
    /// was put away, and no key of fingerprints, which helps to guess secrets.
    ///
    /// # Errors
    /// There is, or the folder can't be looked at.
    pub fn must_be_nowhere_in(folder: &Path) -> Result<(), LoadKeyError> {
        let found = names_in(folder).map_err(|source| file_error(folder, source))?;
        let mut files: Vec<String> = (found.iter())
            .filter(|name| {
                let ending = name.extension().unwrap_or_default();
                [ENDING, RETIRED].iter().any(|it| ending == *it)
                    || [FINGERPRINTS, ACTIVE]
                        .iter()
                        .any(|it| name.as_os_str() == *it)
            })
            .map(|name| name.display().to_string())
            .collect();
        files.sort();
        let path = folder.to_owned();
        match files.is_empty() {
            true => Ok(()),
            false => Err(LoadKeyError::InFiles { path, files }),
        }
    }

    /// The keys in a folder; makes the first one if there is none.
    ///
    /// # Errors
    /// A file can't be read, is exposed, or holds something else.
    pub fn open(folder: &Path) -> Result<Self, LoadKeyError> {
        private(folder)?;
        let (keys, active) = read_folder(folder)?;
        let path = folder.join(FINGERPRINTS);
        if keys.is_empty() && active.is_none() && !path.exists() {
            store(&path, &MasterKey::generate()?)?;
        }
        let mut ring = Self {
            folder: Some(folder.to_owned()),
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

    /// What custodians brought; in memory alone.
    #[must_use]
    pub fn of(custody: Custody) -> Self {
        let Custody {
            key, fingerprints, ..
        } = custody;
        Self {
            folder: None,
            fingerprints,
            active: key.id,
            keys: BTreeMap::from([(key.id, key)]),
        }
    }

    /// Takes in another key that custodians brought, which the caller knows to
    /// be of this platform; it seals nothing until it is activated.
    ///
    /// # Errors
    /// It can't be: as [`Keyring::vouches_for`].
    pub fn take_in(&mut self, custody: Custody) -> Result<(), LoadKeyError> {
        self.vouches_for(&custody)?;
        let Custody { key, .. } = custody;
        self.keys.entry(key.id).or_insert(key);
        Ok(())
    }

    /// Whether these keys show that one which custodians brought is of this
    /// platform: it is here, or who made it had one that is.
    ///
    /// # Errors
    /// They show that it is not.
    pub fn vouches_for(&self, custody: &Custody) -> Result<bool, LoadKeyError> {
        let id = custody.key.id;
        // Whoever has an old backup has these bits, so they prove nothing yet.
        if custody.fingerprints.bits() != self.fingerprints.bits() {
            return Err(LoadKeyError::Foreign { id });
        }
        match self.keys.get(&id) {
            Some(here) if here.bits() == custody.key.bits() => Ok(true),
            Some(_) => Err(LoadKeyError::Other { id }),
            None => Ok(self.keys.values().any(|key| custody.follows(key))),
        }
    }

    /// What custodians would hold of these keys: the active one.
    ///
    /// # Errors
    /// It is not there, or another one is in use, which they would not hold.
    pub fn custody(&self) -> Result<Custody, LoadKeyError> {
        let active = self.active()?;
        let others: Vec<MasterKeyId> = self.ids().filter(|id| *id != active.id).collect();
        if !others.is_empty() {
            let active = active.id;
            return Err(LoadKeyError::Others { active, others });
        }
        Ok(Custody {
            key: active.copy(),
            fingerprints: self.fingerprints.copy(),
            after: None,
        })
    }

    /// Puts a key that custodians brought into a folder again. What is there
    /// stays; the key seals only if none other did.
    ///
    /// # Errors
    /// The folder is another platform's, or can't be used.
    pub fn restore(folder: &Path, custody: &Custody) -> Result<Self, LoadKeyError> {
        private(folder)?;
        let (keys, active) = read_folder(folder)?;
        let Custody {
            key, fingerprints, ..
        } = custody;
        let path = folder.join(FINGERPRINTS);
        match path.exists() {
            true if read_bits(&path)?.bits() != fingerprints.bits() => {
                return Err(LoadKeyError::Foreign { id: key.id });
            }
            true => {}
            false => store(&path, fingerprints)?,
        }
        if !keys.contains_key(&key.id) {
            store(&file_of(folder, key.id), key)?;
        }
        if active.is_none() {
            name_active(folder, key.id)?;
        }
        Self::open(folder)
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
    /// It can't be stored, or only custodians make one.
    pub fn make(&mut self) -> Result<MasterKeyId, LoadKeyError> {
        let folder = self.folder.as_deref();
        let folder = folder.ok_or(LoadKeyError::WithCustodians)?;
        let key = MasterKey::generate()?;
        store(&file_of(folder, key.id), &key)?;
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
        if let Some(folder) = &self.folder {
            name_active(folder, id)?;
        }
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
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let (keys, active) = read_folder(folder)?;
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
        if let Some(folder) = &self.folder {
            let path = file_of(folder, id);
            match fs::rename(&path, path.with_extension(RETIRED)) {
                // Another process over this folder was first.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                moved => moved.map_err(|source| file_error(&path, source))?,
            }
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
        if let Some(folder) = &self.folder {
            let path = file_of(folder, id);
            fs::remove_file(&path).map_err(|source| file_error(&path, source))?;
        }
        self.keys.remove(&id);
        Ok(())
    }
}

/// The keys in a folder, and the one that is named as active.
type Found = (BTreeMap<MasterKeyId, MasterKey>, Option<MasterKeyId>);

/// What is in a folder; nothing if there is no such folder.
fn names_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().into())).collect()
}

fn private(folder: &Path) -> Result<(), LoadKeyError> {
    let failed = |source| file_error(folder, source);
    fs::create_dir_all(folder).map_err(failed)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(failed)
}

fn file_of(folder: &Path, id: MasterKeyId) -> PathBuf {
    folder.join(format!("{id}.{ENDING}"))
}

fn name_active(folder: &Path, id: MasterKeyId) -> Result<(), LoadKeyError> {
    let next = folder.join("active.next");
    write(&next, id.to_string().as_bytes())?;
    let active = folder.join(ACTIVE);
    fs::rename(&next, &active).map_err(|source| file_error(&active, source))
}

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
    // Room for all of it at once: growing would leave copies behind.
    let mut hex = Zeroizing::new(String::with_capacity(64));
    for byte in key.bits.iter() {
        // A text takes everything.
        let _ = write!(hex, "{byte:02x}");
    }
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
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in bits.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        for digit in pair {
            let digit = char::from(*digit).to_digit(16)?;
            *byte = (*byte << 4) | u8::try_from(digit).ok()?;
        }
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

    #[test]
    fn what_custodians_brought_is_on_no_disk_and_seals_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let files = Keyring::open(folder.path()).unwrap();
        let first = files.active().unwrap().id();
        let mut ring = Keyring::of(files.custody().unwrap());
        assert_eq!(ring.active().unwrap().id(), first);
        let print = |ring: &Keyring| ring.fingerprint("org_a", b"A=1\n");
        assert_eq!(print(&ring), print(&files));
        let error = ring.make().unwrap_err();
        assert!(matches!(error, LoadKeyError::WithCustodians), "{error}");
        let next = files.custody().unwrap().next().unwrap();
        let second = next.key_id();
        ring.take_in(next).unwrap();
        assert_eq!(ring.active().unwrap().id(), first, "it only opens so far");
        ring.activate(second).unwrap();
        ring.refresh().unwrap();
        assert_eq!(ring.active().unwrap().id(), second);
        ring.put_away(first).unwrap();
        assert_eq!(ring.ids().collect::<Vec<_>>(), [second]);
        let error = ring.take_in(Custody::generate().unwrap()).unwrap_err();
        assert!(matches!(error, LoadKeyError::Foreign { .. }), "{error}");
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            3,
            "the files of before, and nothing else"
        );
    }

    /// The attack: somebody who has the key of fingerprints, from an old
    /// backup, makes a key of their own. The control is the true successor.
    #[test]
    fn the_key_of_fingerprints_alone_vouches_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let files = Keyring::open(folder.path()).unwrap();
        let custody = files.custody().unwrap();
        let ring = Keyring::of(files.custody().unwrap());
        let stolen = tempfile::tempdir().unwrap();
        fs::copy(
            folder.path().join(FINGERPRINTS),
            stolen.path().join(FINGERPRINTS),
        )
        .unwrap();
        let own = Keyring::open(stolen.path()).unwrap().custody().unwrap();
        assert_eq!(own.fingerprints.bits(), files.fingerprints.bits());
        assert!(!ring.vouches_for(&own).unwrap());
        // Its own successor follows a key that is not here, and a proof of
        // another key is none of it.
        assert!(!ring.vouches_for(&own.next().unwrap()).unwrap());
        let next = custody.next().unwrap();
        let moved = Custody {
            after: next.after.clone(),
            ..own
        };
        assert!(!ring.vouches_for(&moved).unwrap());
        assert!(ring.vouches_for(&next).unwrap());
        assert!(ring.vouches_for(&custody).unwrap());
        // The name is 32 bits long, so it is not believed either.
        let bits = Zeroizing::new([7; 32]);
        let namesake = Custody {
            key: MasterKey {
                id: custody.key.id,
                bits,
            },
            fingerprints: files.fingerprints.copy(),
            after: None,
        };
        let error = ring.vouches_for(&namesake).unwrap_err();
        assert!(matches!(error, LoadKeyError::Other { .. }), "{error}");
    }

    #[test]
    fn custodians_get_no_key_while_another_one_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let mut ring = Keyring::open(folder.path()).unwrap();
        let first = ring.active().unwrap().id();
        ring.rotate().unwrap();
        let error = ring.custody().map(drop).unwrap_err();
        assert!(error.to_string().contains(&first.to_string()), "{error}");
        ring.put_away(first).unwrap();
        ring.custody().unwrap();
    }

    #[test]
    fn whatever_is_left_of_keys_in_a_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys");
        Keyring::must_be_nowhere_in(&keys).unwrap();
        assert!(Keyring::is_absent(&keys));
        fs::create_dir(&keys).unwrap();
        fs::write(keys.join("README"), "").unwrap();
        Keyring::must_be_nowhere_in(&keys).unwrap();
        for name in [
            "mk_00000001.key",
            "mk_00000001.retired",
            FINGERPRINTS,
            ACTIVE,
        ] {
            let path = keys.join(name);
            fs::write(&path, "").unwrap();
            let error = Keyring::must_be_nowhere_in(&keys).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            fs::remove_file(&path).unwrap();
        }
        // What is no folder, or can't be read, may have some.
        let file = keys.join("README");
        let error = Keyring::must_be_nowhere_in(&file).unwrap_err();
        assert!(matches!(error, LoadKeyError::File { .. }), "{error}");
        assert!(!Keyring::is_absent(&file));
    }

    #[test]
    fn a_key_that_was_lost_comes_back_from_its_custodians() {
        let folder = tempfile::tempdir().unwrap();
        let ring = Keyring::open(folder.path()).unwrap();
        let (id, custody) = (ring.active().unwrap().id(), ring.custody().unwrap());
        let lost = folder.path().join(format!("{id}.key"));
        fs::remove_file(&lost).unwrap();
        let error = Keyring::open(folder.path()).unwrap_err();
        assert!(matches!(error, LoadKeyError::Missing { .. }), "{error}");
        let again = Keyring::restore(folder.path(), &custody).unwrap();
        assert_eq!(
            again.active().unwrap().bits(),
            ring.active().unwrap().bits()
        );
        let mode = fs::metadata(&lost).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Into a folder of nothing as well, and not into another platform's.
        let empty = tempfile::tempdir().unwrap();
        let new = empty.path().join("keys");
        let again = Keyring::restore(&new, &custody).unwrap();
        assert_eq!(again.active().unwrap().id(), id);
        let print = |ring: &Keyring| ring.fingerprint("org_a", b"A=1\n");
        assert_eq!(print(&again), print(&ring));
        let foreign = Custody::generate().unwrap();
        let error = Keyring::restore(&new, &foreign).unwrap_err();
        assert!(matches!(error, LoadKeyError::Foreign { .. }), "{error}");
        assert_eq!(Keyring::open(&new).unwrap().ids().collect::<Vec<_>>(), [id]);
    }

    /// A key of before comes back for what it sealed; the one that seals stays.
    #[test]
    fn a_key_of_before_comes_back_beside_the_active_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut ring = Keyring::open(folder.path()).unwrap();
        let (first, custody) = (ring.active().unwrap().id(), ring.custody().unwrap());
        let second = ring.rotate().unwrap().id();
        fs::remove_file(folder.path().join(format!("{first}.key"))).unwrap();
        let again = Keyring::restore(folder.path(), &custody).unwrap();
        assert_eq!(again.active().unwrap().id(), second);
        assert!(again.get(first).is_ok());
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
