//! The safe: secrets of envs, sealed and kept beside the ledger.
//!
//! Values come in, are sealed at once, and go out only to a node that runs an
//! instance with exactly that version. The master keys are in files that the
//! database never sees, or with people who bring them (`unseal`); without them
//! only this stops. Next: `material`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fluffy_base::Digest;
use fluffy_base::id::{EnvId, MasterKeyId, OrgId, SecretVersionId};
use fluffy_control::State;
use fluffy_vault::{About, Bundle, Custody, Keyring, LoadKeyError, MasterKey, OpenError, Sealed};
use zeroize::Zeroizing;

use crate::aside::{Aside, AsideError, Kind};
use crate::exec;
use crate::node::door;
use crate::platform::Platform;

/// Sealed versions of secrets, by version.
pub(crate) const SECRETS: Kind = Kind::new("secret");
/// Everything that master keys seal, and what people call it.
const SEALED: [(Kind, &str); 3] = [
    (SECRETS, "versions of secrets"),
    (door::AUTHORITY, "authorities"),
    (exec::ORDERS, "commands of exec sessions"),
];
/// How many are looked at at once.
const PAGE: u32 = 200;

/// Keeps secrets; to be cloned freely.
#[derive(Debug, Clone)]
pub struct Safe {
    aside: Aside,
    /// None while the master keys are not at hand: the server is sealed.
    keys: Arc<RwLock<Option<Keyring>>>,
    folder: PathBuf,
    /// The platform, if people bring its keys, so that the folder has none.
    custodians: Option<Platform>,
    /// How often a key was needed that is not at hand.
    missed: Arc<AtomicU64>,
}

/// What tells whether a key that was brought can be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is a key of this platform.
    Proven,
    /// That shows only once this one is here, which it says that it follows.
    Behind(MasterKeyId),
}

/// Whose a version of secrets is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretOwner {
    /// The org.
    pub org: OrgId,
    /// The env.
    pub env: EnvId,
    /// The version.
    pub version: SecretVersionId,
}

/// What is known of a version that was put in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Equal for equal secrets of one org, and no help in guessing them.
    pub data_hash: Digest,
    /// The size of the canonical file.
    pub size: u64,
    /// The key that it is sealed with.
    pub master_key: MasterKeyId,
}

/// Why the safe could not do something.
#[derive(Debug, thiserror::Error)]
pub enum SafeError {
    /// The master keys are not at hand.
    #[error("the master keys are not at hand")]
    Sealed,
    /// A master key is missing or can't be stored.
    #[error("a master key can't be used")]
    Key(#[from] LoadKeyError),
    /// What is kept is not what it should be.
    #[error("a sealed secret can't be opened")]
    Open(#[source] OpenError),
    /// It is not there.
    #[error("there is no such version")]
    Missing,
    /// The store beside the ledger failed.
    #[error("the store beside the ledger failed")]
    Aside(#[from] AsideError),
}

impl From<OpenError> for SafeError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Key(error) => Self::Key(error),
            error => Self::Open(error),
        }
    }
}

impl Safe {
    /// The safe whose keys are in a folder; sealed if they can't be read,
    /// which is told with it.
    #[must_use]
    pub fn open(aside: Aside, folder: &Path) -> (Self, Option<LoadKeyError>) {
        Self::open_knowing(aside, folder, &[])
    }

    /// The same, of a platform that has these keys in use, the active one
    /// first. No other is made in their place: what they sealed would be lost.
    #[must_use]
    pub fn open_knowing(
        aside: Aside,
        folder: &Path,
        known: &[MasterKeyId],
    ) -> (Self, Option<LoadKeyError>) {
        let safe = Self {
            aside,
            keys: Arc::default(),
            folder: folder.to_owned(),
            custodians: None,
            missed: Arc::default(),
        };
        let error = safe.look_again(known).err();
        (safe, error)
    }

    /// The safe whose keys people bring; sealed until they do.
    ///
    /// # Errors
    /// There are keys in one of the folders where they would be without, or it
    /// can't be looked at: whoever reads it needs nobody.
    pub(crate) fn open_without<'f>(
        platform: &Platform,
        folders: impl IntoIterator<Item = &'f Path>,
    ) -> Result<Self, LoadKeyError> {
        let mut last = PathBuf::new();
        for folder in folders {
            Keyring::must_be_nowhere_in(folder)?;
            last = folder.to_owned();
        }
        Ok(Self {
            aside: platform.aside().clone(),
            keys: Arc::default(),
            folder: last,
            custodians: Some(platform.clone()),
            missed: Arc::default(),
        })
    }

    /// Whether a key that was brought is of this platform, which has these keys
    /// in use, the newest first.
    ///
    /// A key that was brought before vouches for its successor. Without one it
    /// has to be known by its name, and, since a name is short, to open what is
    /// kept; only who waits for the very first key takes any.
    ///
    /// # Errors
    /// It is another's, nothing shows that it is not, or the store fails.
    pub(crate) async fn standing(
        &self,
        custody: &Custody,
        known: &[MasterKeyId],
    ) -> Result<Standing, SafeError> {
        let id = custody.key_id();
        let (vouched, is_known) = (self.vouched_for(custody)?, known.contains(&id));
        let is_proven = match vouched {
            Some(true) => true,
            // What it would seal from now on, what is kept does not vouch for.
            Some(false) if known.first() == Some(&id) => false,
            Some(false) => is_known && self.opened_by(custody).await? == Some(true),
            None if known.is_empty() => true,
            // A first start that did not come to its end has kept nothing yet.
            None => is_known && self.opened_by(custody).await?.unwrap_or(true),
        };
        if is_proven {
            return Ok(Standing::Proven);
        }
        let before = custody.after().filter(|before| known.contains(before));
        match (before, known.first()) {
            (Some(before), _) if !self.key_ids().contains(&before) => Ok(Standing::Behind(before)),
            (_, Some(newest)) if vouched.is_none() && !is_known => {
                Err(LoadKeyError::Missing { id: *newest }.into())
            }
            _ => Err(LoadKeyError::Unproven { id }.into()),
        }
    }

    /// Whether the keys that are at hand vouch for it; none if there are none.
    fn vouched_for(&self, custody: &Custody) -> Result<Option<bool>, LoadKeyError> {
        let keys = self.keys();
        keys.as_ref()
            .map(|ring| ring.vouches_for(custody))
            .transpose()
    }

    /// Whether anything that is kept opens by a key; none if nothing is kept
    /// that every platform has.
    async fn opened_by(&self, custody: &Custody) -> Result<Option<bool>, AsideError> {
        let opens = |purpose: &str, sealed: &[u8]| {
            let owners = &[];
            let sealed = postcard::from_bytes::<Sealed>(sealed);
            sealed.is_ok_and(|it| custody.opens(&it, &About { purpose, owners }))
        };
        let (mut opened, mut authorities) = (false, 0);
        let authority = each(&self.aside, door::AUTHORITY, |_, sealed| {
            authorities += 1;
            opened |= opens(door::PURPOSE, sealed);
        });
        authority.await?;
        if authorities == 0 {
            return Ok(None);
        }
        if opened {
            return Ok(Some(true));
        }
        let orders = each(&self.aside, exec::ORDERS, |name, sealed| {
            opened |= opens(&exec::purpose(name), sealed);
        });
        orders.await?;
        let secrets = each(&self.aside, SECRETS, |name, sealed| {
            let (version, sealed) = (name.parse().ok(), postcard::from_bytes::<Sealed>(sealed));
            let platform = self.custodians.as_ref();
            if let (false, Some(version), Some(platform), Ok(sealed)) =
                (opened, version, platform, sealed)
                && sealed.master_key_id == custody.key_id()
            {
                let owner = platform.sequencer().read(|state| owner_of(state, version));
                opened = owner.is_some_and(|it| it.about(|about| custody.opens(&sealed, about)));
            }
        });
        secrets.await?;
        Ok(Some(opened))
    }

    /// Takes in a key that was brought and whose [`Standing`] is proven. The
    /// first one unseals; another one seals only if it is the newest.
    ///
    /// # Errors
    /// The keys that are at hand show that it is another's.
    pub(crate) fn take(&self, custody: Custody) -> Result<(), LoadKeyError> {
        let (id, newest) = (custody.key_id(), self.newest());
        let mut keys = self.keys_mut();
        let Some(ring) = keys.as_mut() else {
            *keys = Some(Keyring::of(custody));
            return Ok(());
        };
        ring.take_in(custody)?;
        match newest == Some(id) {
            true => ring.activate(id),
            false => Ok(()),
        }
    }

    /// The newest key of the platform, where custodians bring its keys.
    fn newest(&self) -> Option<MasterKeyId> {
        let platform = self.custodians.as_ref()?;
        platform.sequencer().read(live_keys).first().copied()
    }

    /// The key without which the cluster's authority can't be opened, if it is
    /// not at hand.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn needs(&self) -> Result<Option<MasterKeyId>, AsideError> {
        let mut needed = None;
        let authority = each(&self.aside, door::AUTHORITY, |_, sealed| {
            let sealed = postcard::from_bytes::<Sealed>(sealed);
            needed = sealed.ok().map(|it| it.master_key_id);
        });
        authority.await?;
        let at_hand = self.key_ids();
        Ok(needed.filter(|id| !at_hand.contains(id)))
    }

    /// How a key comes here that is somewhere else.
    pub(crate) fn how_to_get(&self, id: MasterKeyId) -> String {
        match self.custodians {
            Some(_) => format!("its custodians bring the shares of {id}: `fluffy server unseal`"),
            None => format!(
                "copy the file `{id}.key` from the server that made it to `{}` (mode 0600)",
                self.folder.display()
            ),
        }
    }

    /// Looks for the keys again, while there are none.
    ///
    /// # Errors
    /// They are still not there; it stays sealed.
    pub fn look_again(&self, known: &[MasterKeyId]) -> Result<(), LoadKeyError> {
        if self.custodians.is_some() {
            let sealed = self.is_sealed();
            return if sealed {
                Err(LoadKeyError::Awaited)
            } else {
                Ok(())
            };
        }
        let missing = |id: &MasterKeyId| LoadKeyError::Missing { id: *id };
        if let Some(active) = known.first()
            && Keyring::is_absent(&self.folder)
        {
            return Err(missing(active));
        }
        let ring = Keyring::open(&self.folder)?;
        if let Some(active) = known.first()
            && !known.iter().any(|id| ring.get(*id).is_ok())
        {
            return Err(missing(active));
        }
        *self.keys_mut() = Some(ring);
        Ok(())
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.keys().is_none()
    }

    /// Seals a version and puts it aside.
    ///
    /// # Errors
    /// The keys are not at hand, or the store fails.
    pub async fn put(&self, owner: &SecretOwner, bundle: &Bundle) -> Result<Kept, SafeError> {
        let (sealed, kept) = self.counted(self.seal_version(owner, &bundle.canonical()))?;
        self.store(owner, &sealed).await?;
        Ok(kept)
    }

    fn seal_version(
        &self,
        owner: &SecretOwner,
        canonical: &[u8],
    ) -> Result<(Sealed, Kept), SafeError> {
        let newest = self.newest();
        let keys = self.keys();
        let ring = keys.as_ref().ok_or(SafeError::Sealed)?;
        let key = sealing(ring, newest)?;
        let kept = Kept {
            data_hash: ring.fingerprint(&owner.org.to_string(), canonical),
            size: canonical.len() as u64,
            master_key: key.id(),
        };
        Ok((owner.seal(canonical, key)?, kept))
    }

    /// Counts a use of the keys that came to nothing because one is missing.
    pub(crate) fn counted<R>(&self, used: Result<R, SafeError>) -> Result<R, SafeError> {
        if let Err(SafeError::Sealed | SafeError::Key(_)) = &used {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
        used
    }

    /// How often a key was needed that is not at hand.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// The canonical file of a version; look closely at every caller.
    ///
    /// # Errors
    /// It is not there, its key is not, or it was altered.
    pub async fn expose(&self, owner: &SecretOwner) -> Result<Zeroizing<Vec<u8>>, SafeError> {
        let sealed = self.sealed(owner).await?;
        self.with_keys(|keys| owner.about(|about| sealed.open(about, keys)))
    }

    /// Uses the keys, those included that came into the folder since they were
    /// read, if one is missing: another server over it may have made it.
    fn with_keys<R>(
        &self,
        open: impl Fn(&Keyring) -> Result<R, OpenError>,
    ) -> Result<R, SafeError> {
        self.counted(self.try_with_keys(open))
    }

    fn try_with_keys<R>(
        &self,
        open: impl Fn(&Keyring) -> Result<R, OpenError>,
    ) -> Result<R, SafeError> {
        let opened = open(self.keys().as_ref().ok_or(SafeError::Sealed)?);
        let Err(OpenError::Key(LoadKeyError::Missing { .. })) = opened else {
            return Ok(opened?);
        };
        let mut keys = self.keys_mut();
        let ring = keys.as_mut().ok_or(SafeError::Sealed)?;
        ring.refresh()?;
        Ok(open(ring)?)
    }

    /// Seals something of the cluster itself, such as the keys of its authority.
    ///
    /// # Errors
    /// The keys are not at hand, or not the newest, which custodians keep.
    pub fn seal(&self, purpose: &str, bytes: &[u8]) -> Result<Vec<u8>, SafeError> {
        self.counted(self.try_seal(purpose, bytes, self.newest()))
    }

    /// Seals what is kept nowhere and good for moments only, so that a key of
    /// before does for it.
    ///
    /// # Errors
    /// The keys are not at hand.
    pub fn seal_in_passing(&self, purpose: &str, bytes: &[u8]) -> Result<Vec<u8>, SafeError> {
        self.counted(self.try_seal(purpose, bytes, None))
    }

    fn try_seal(
        &self,
        purpose: &str,
        bytes: &[u8],
        newest: Option<MasterKeyId>,
    ) -> Result<Vec<u8>, SafeError> {
        let keys = self.keys();
        let ring = keys.as_ref().ok_or(SafeError::Sealed)?;
        let owners = &[];
        let key = sealing(ring, newest)?;
        let sealed = Sealed::seal(bytes, &About { purpose, owners }, key)?;
        postcard::to_allocvec(&sealed).map_err(|_| SafeError::Open(OpenError::Integrity))
    }

    /// Opens what was sealed for a purpose; look closely at every caller.
    ///
    /// # Errors
    /// Its key is not at hand, or it is something else.
    pub fn unseal(&self, purpose: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SafeError> {
        let sealed = read(sealed)?;
        let owners = &[];
        self.with_keys(|ring| sealed.open(&About { purpose, owners }, ring))
    }

    /// The same with the keys that were read already: what anybody can make up
    /// has no folder read for it, and nobody wait. A key that another server
    /// made is read when it is in use (`doors`).
    ///
    /// # Errors
    /// Its key was not read, or it is something else.
    pub fn unseal_at_hand(
        &self,
        purpose: &str,
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, SafeError> {
        let sealed = read(sealed)?;
        let owners = &[];
        let keys = self.keys();
        let ring = keys.as_ref().ok_or(SafeError::Sealed)?;
        Ok(sealed.open(&About { purpose, owners }, ring)?)
    }

    /// Whether something is sealed with the active master key.
    #[must_use]
    pub fn is_current(&self, sealed: &[u8]) -> bool {
        let sealed = postcard::from_bytes::<Sealed>(sealed);
        sealed.is_ok_and(|it| self.key_ids().first() == Some(&it.master_key_id))
    }

    /// Where it keeps what it sealed.
    pub(crate) const fn aside(&self) -> &Aside {
        &self.aside
    }

    /// The keys that are at hand, the active one first; none while sealed.
    #[must_use]
    pub fn key_ids(&self) -> Vec<MasterKeyId> {
        let keys = self.keys();
        let Some(ring) = keys.as_ref() else {
            return Vec::new();
        };
        let active = ring.active().map(MasterKey::id).ok();
        let others = ring.ids().filter(|id| Some(*id) != active);
        active.into_iter().chain(others).collect()
    }

    /// Makes a new master key, which seals nothing until [`Safe::activate`]:
    /// it has to be in the ledger first.
    ///
    /// # Errors
    /// The server is sealed, or the key can't be stored.
    pub fn make_key(&self) -> Result<MasterKeyId, SafeError> {
        let mut keys = self.keys_mut();
        let ring = keys.as_mut().ok_or(SafeError::Sealed)?;
        Ok(ring.make()?)
    }

    /// Seals with this key from now on.
    ///
    /// # Errors
    /// The server is sealed, or the key is not in its folder.
    pub fn activate(&self, id: MasterKeyId) -> Result<(), SafeError> {
        let mut keys = self.keys_mut();
        let ring = keys.as_mut().ok_or(SafeError::Sealed)?;
        if ring.get(id).is_err() {
            ring.refresh()?;
        }
        match ring.active()?.id() == id {
            true => Ok(()),
            false => Ok(ring.activate(id)?),
        }
    }

    /// Throws a key away that never sealed anything.
    ///
    /// # Errors
    /// The server is sealed, the key seals, or there is none of this name.
    pub fn discard(&self, id: MasterKeyId) -> Result<(), SafeError> {
        let mut keys = self.keys_mut();
        let ring = keys.as_mut().ok_or(SafeError::Sealed)?;
        Ok(ring.retire(id)?)
    }

    /// Puts away a key that was retired, if it is here; tells whether it was.
    ///
    /// # Errors
    /// It seals here all the same, or its file can't be renamed.
    pub fn put_away(&self, id: MasterKeyId) -> Result<bool, SafeError> {
        let mut keys = self.keys_mut();
        match keys.as_mut().filter(|ring| ring.get(id).is_ok()) {
            Some(ring) => Ok(ring.put_away(id).map(|()| true)?),
            None => Ok(false),
        }
    }

    /// What is sealed with a key, in words; none if nothing is.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn sealed_with(&self, id: MasterKeyId) -> Result<Option<String>, AsideError> {
        let mut found = Vec::new();
        for (kind, what) in SEALED {
            let mut count = 0;
            let counted = each(&self.aside, kind, |_, sealed| {
                let sealed = postcard::from_bytes::<Sealed>(sealed);
                count += u64::from(sealed.is_ok_and(|it| it.master_key_id == id));
            });
            counted.await?;
            if count > 0 {
                found.push(format!("{count} {what}"));
            }
        }
        Ok((!found.is_empty()).then(|| found.join(", ")))
    }

    /// By which key a sealed version opens.
    pub(crate) fn opens(
        &self,
        owner: &SecretOwner,
        sealed: &[u8],
    ) -> Result<MasterKeyId, SafeError> {
        let sealed = read(sealed)?;
        self.with_keys(|ring| owner.about(|about| sealed.open(about, ring)))?;
        Ok(sealed.master_key_id)
    }

    /// By which key something of the cluster itself opens.
    pub(crate) fn opens_for(&self, purpose: &str, sealed: &[u8]) -> Result<MasterKeyId, SafeError> {
        self.unseal(purpose, sealed)?;
        Ok(read(sealed)?.master_key_id)
    }

    /// Wraps a version with the active master key, if it is not; tells which
    /// one it was wrapped with before.
    ///
    /// # Errors
    /// As [`Safe::expose`]; the version is as before.
    pub async fn rewrap(&self, owner: &SecretOwner) -> Result<Option<MasterKeyId>, SafeError> {
        let sealed = self.sealed(owner).await?;
        let moved = self.with_keys(|ring| {
            let to = ring.active()?;
            match sealed.master_key_id == to.id() {
                true => Ok(None),
                false => owner.about(|about| sealed.rewrap(about, ring, to).map(Some)),
            }
        })?;
        let Some(moved) = moved else {
            return Ok(None);
        };
        self.store(owner, &moved).await?;
        Ok(Some(sealed.master_key_id))
    }

    /// A hash that shows equal texts of one org and helps nobody to guess
    /// them; none while sealed.
    #[must_use]
    pub fn fingerprint(&self, org: &str, text: &[u8]) -> Option<Digest> {
        Some(self.keys().as_ref()?.fingerprint(org, text))
    }

    async fn sealed(&self, owner: &SecretOwner) -> Result<Sealed, SafeError> {
        let entry = self.aside.get(SECRETS, &owner.version.to_string()).await?;
        read(&entry.ok_or(SafeError::Missing)?.value)
    }

    async fn store(&self, owner: &SecretOwner, sealed: &Sealed) -> Result<(), SafeError> {
        let bytes = postcard::to_allocvec(sealed);
        let bytes = bytes.map_err(|_| SafeError::Open(OpenError::Integrity))?;
        let key = owner.version.to_string();
        Ok(self.aside.put(SECRETS, &key, bytes, None).await?)
    }

    fn keys(&self) -> RwLockReadGuard<'_, Option<Keyring>> {
        self.keys
            .read()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    fn keys_mut(&self) -> RwLockWriteGuard<'_, Option<Keyring>> {
        self.keys
            .write()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

/// The key that seals what is kept: the newest, where people bring the keys.
/// Theirs of before may be with others by now.
fn sealing(ring: &Keyring, newest: Option<MasterKeyId>) -> Result<&MasterKey, LoadKeyError> {
    newest.map_or_else(|| ring.active(), |id| ring.get(id))
}

/// A sealed object as it was stored.
fn read(sealed: &[u8]) -> Result<Sealed, SafeError> {
    postcard::from_bytes(sealed).map_err(|_| SafeError::Open(OpenError::Integrity))
}

/// Passes every entry of a kind on, by key and value. Needs no key.
///
/// # Errors
/// The store fails.
pub(crate) async fn each(
    aside: &Aside,
    kind: Kind,
    mut visit: impl FnMut(&str, &[u8]),
) -> Result<(), AsideError> {
    let mut after = String::new();
    loop {
        let page = aside.list(kind, &after, PAGE).await?;
        let Some(last) = page.last() else {
            return Ok(());
        };
        after.clone_from(&last.key);
        for entry in &page {
            visit(&entry.key, &entry.value);
        }
    }
}

/// Removes the sealed versions that nothing refers to any more, unless they
/// were put in just now; tells how many. Needs no key.
///
/// # Errors
/// The store fails; what is left is removed the next time.
pub(crate) async fn sweep(
    aside: &Aside,
    is_kept: impl Fn(&str) -> bool,
    young: std::time::Duration,
) -> Result<u64, AsideError> {
    let (mut after, mut removed) = (String::new(), 0);
    loop {
        let page = aside.list(SECRETS, &after, PAGE).await?;
        let Some(last) = page.last() else {
            return Ok(removed);
        };
        after.clone_from(&last.key);
        for entry in &page {
            if entry.age > young && !is_kept(&entry.key) {
                removed += u64::from(aside.delete(SECRETS, &entry.key).await?);
            }
        }
    }
}

/// Removes a sealed version that was destroyed. Needs no key.
///
/// # Errors
/// The store fails.
pub(crate) async fn destroy(aside: &Aside, version: SecretVersionId) -> Result<(), AsideError> {
    aside.delete(SECRETS, &version.to_string()).await.map(drop)
}

/// The versions of secrets that are kept.
pub(crate) fn versions_of(state: &State) -> BTreeSet<SecretVersionId> {
    let bundles = state.runtime.bundles.values();
    let versions = bundles.flat_map(|bundle| &bundle.versions);
    versions.map(|version| version.id).collect()
}

/// Those of one env.
pub(crate) fn versions_in(state: &State, env: EnvId) -> BTreeSet<SecretVersionId> {
    let bundle = state.runtime.envs.get(&env).and_then(|env| env.bundle);
    let bundle = bundle.and_then(|id| state.runtime.bundles.get(&id));
    let versions = bundle.into_iter().flat_map(|bundle| &bundle.versions);
    versions.map(|version| version.id).collect()
}

/// Whose a version is.
pub(crate) fn owner_of(state: &State, version: SecretVersionId) -> Option<SecretOwner> {
    let mut bundles = state.runtime.bundles.values();
    let bundle = bundles.find(|bundle| bundle.versions.iter().any(|it| it.id == version))?;
    let (org, env) = (bundle.org, bundle.env);
    Some(SecretOwner { org, env, version })
}

/// The master keys that are used no more.
pub(crate) fn retired_keys(state: &State) -> Vec<MasterKeyId> {
    let keys = state.runtime.cluster.keys.iter();
    let retired = keys.filter(|(_, key)| key.retired_at.is_some());
    retired.map(|(id, _)| *id).collect()
}

/// The master keys that are in use, the active one first.
pub(crate) fn live_keys(state: &State) -> Vec<MasterKeyId> {
    let keys = state.runtime.cluster.keys.iter();
    let mut live: Vec<_> = keys.filter(|(_, key)| key.retired_at.is_none()).collect();
    live.sort_by_key(|(_, key)| std::cmp::Reverse(key.introduced_at));
    live.into_iter().map(|(id, _)| *id).collect()
}

impl SecretOwner {
    fn seal(&self, bytes: &[u8], key: &MasterKey) -> Result<Sealed, SafeError> {
        Ok(self.about(|about| Sealed::seal(bytes, about, key))?)
    }

    /// What binds a seal to its owner. An env has one bundle, so the env says
    /// which.
    fn about<R>(&self, with: impl FnOnce(&About<'_>) -> R) -> R {
        let owners = [
            self.org.to_string(),
            self.env.to_string(),
            self.version.to_string(),
        ];
        let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
        with(&About {
            purpose: "fluffy-secrets-v1",
            owners: &owners,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn safe() -> (tempfile::TempDir, Safe) {
        let folder = tempfile::tempdir().unwrap();
        let aside = Aside::open(folder.path()).unwrap();
        let (safe, error) = Safe::open(aside, &folder.path().join("keys"));
        assert!(error.is_none(), "{error:?}");
        (folder, safe)
    }

    fn owner(version: u128) -> SecretOwner {
        SecretOwner {
            org: OrgId::from_bits(1),
            env: EnvId::from_bits(2),
            version: SecretVersionId::from_bits(version),
        }
    }

    fn bundle() -> Bundle {
        Bundle::parse(b"# FLUFFY_SECRETS_V1\nPASSWORD=hunter2\n").unwrap()
    }

    #[tokio::test]
    async fn a_version_comes_out_as_it_went_in_and_only_as_itself() {
        let (folder, safe) = safe().await;
        let kept = safe.put(&owner(1), &bundle()).await.unwrap();
        assert_eq!(
            *safe.expose(&owner(1)).await.unwrap(),
            *bundle().canonical()
        );
        assert_eq!(kept.size, bundle().canonical().len() as u64);
        // Another env that names the same version does not get it.
        let thief = SecretOwner {
            env: EnvId::from_bits(3),
            ..owner(1)
        };
        let error = safe.expose(&thief).await.unwrap_err();
        assert!(matches!(error, SafeError::Open(_)), "{error}");
        let error = safe.expose(&owner(2)).await.unwrap_err();
        assert!(matches!(error, SafeError::Missing), "{error}");
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap_or_default();
            let found = bytes.windows(7).any(|bytes| bytes == b"hunter2");
            assert!(!found, "{}", path.display());
        }
    }

    #[tokio::test]
    async fn what_is_the_clusters_own_opens_for_its_purpose_alone() {
        let (_folder, safe) = safe().await;
        let sealed = safe.seal("authority", b"key").unwrap();
        assert!(!sealed.windows(3).any(|bytes| bytes == b"key"));
        assert_eq!(*safe.unseal("authority", &sealed).unwrap(), *b"key");
        assert!(safe.unseal("other", &sealed).is_err());
        assert!(safe.unseal("authority", &sealed[1..]).is_err());
    }

    #[tokio::test]
    async fn keys_are_rotated_and_versions_follow() {
        let (_folder, safe) = safe().await;
        let before = safe.put(&owner(1), &bundle()).await.unwrap();
        let next = safe.make_key().unwrap();
        assert_ne!(before.master_key, next);
        assert_eq!(safe.key_ids(), [before.master_key, next]);
        let moved = safe.rewrap(&owner(1)).await.unwrap();
        assert_eq!(moved, None, "it is not active");
        safe.activate(next).unwrap();
        assert_eq!(safe.key_ids(), [next, before.master_key]);
        let from = Some(before.master_key);
        assert_eq!(safe.rewrap(&owner(1)).await.unwrap(), from);
        assert_eq!(safe.rewrap(&owner(1)).await.unwrap(), None);
        assert_eq!(safe.sealed(&owner(1)).await.unwrap().master_key_id, next);
        assert_eq!(
            *safe.expose(&owner(1)).await.unwrap(),
            *bundle().canonical()
        );
    }

    #[tokio::test]
    async fn without_its_keys_it_is_sealed_and_says_so() {
        let (folder, safe) = safe().await;
        safe.put(&owner(1), &bundle()).await.unwrap();
        let id = safe.key_ids()[0];
        std::fs::remove_file(folder.path().join(format!("keys/{id}.key"))).unwrap();
        let aside = Aside::open(folder.path()).unwrap();
        let (sealed, error) = Safe::open(aside, &folder.path().join("keys"));
        assert!(matches!(error, Some(LoadKeyError::Missing { .. })));
        for error in [
            sealed.expose(&owner(1)).await.map(drop).unwrap_err(),
            sealed
                .put(&owner(2), &bundle())
                .await
                .map(drop)
                .unwrap_err(),
            sealed.make_key().map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, SafeError::Sealed), "{error}");
        }
    }

    #[tokio::test]
    async fn what_nobody_refers_to_is_swept_but_not_what_is_new() {
        let (_folder, safe) = safe().await;
        for version in 1..=3 {
            safe.put(&owner(version), &bundle()).await.unwrap();
        }
        let kept = owner(2).version.to_string();
        let hour = Duration::from_secs(3600);
        let swept = async |young| sweep(safe.aside(), |key| key == kept, young).await.unwrap();
        assert_eq!(swept(hour).await, 0);
        // The database's clock has to move on.
        let limit = std::time::Instant::now() + Duration::from_secs(60);
        let mut removed = 0;
        while removed < 2 {
            assert!(std::time::Instant::now() < limit, "{removed}");
            removed += swept(Duration::ZERO).await;
        }
        safe.expose(&owner(2)).await.unwrap();
        assert!(safe.expose(&owner(1)).await.is_err());
    }

    /// Two servers over one folder of keys and one store.
    #[tokio::test]
    async fn what_one_server_seals_with_a_new_key_another_opens() {
        let (folder, one) = safe().await;
        let aside = Aside::open(folder.path()).unwrap();
        let (other, error) = Safe::open(aside, &folder.path().join("keys"));
        assert!(error.is_none(), "{error:?}");
        let next = one.make_key().unwrap();
        one.activate(next).unwrap();
        let kept = one.put(&owner(1), &bundle()).await.unwrap();
        assert_eq!(kept.master_key, next);
        let sealed = one.seal("authority", b"key").unwrap();
        assert_eq!(
            *other.expose(&owner(1)).await.unwrap(),
            *bundle().canonical()
        );
        assert_eq!(*other.unseal("authority", &sealed).unwrap(), *b"key");
        assert_eq!(
            other.put(&owner(2), &bundle()).await.unwrap().master_key,
            next
        );
        // A server whose folder does not have it says which one is missing.
        let aside = Aside::open(folder.path()).unwrap();
        let (third, _) = Safe::open(aside, &folder.path().join("other"));
        let error = third.expose(&owner(1)).await.unwrap_err();
        let missing = matches!(&error, SafeError::Key(LoadKeyError::Missing { id }) if *id == next);
        assert!(missing, "{error:?}");
        let error = third.activate(next).unwrap_err();
        assert!(matches!(error, SafeError::Key(_)), "{error}");
    }
}
