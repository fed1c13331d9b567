//! What is kept beside the ledger because it does not follow from events.
//!
//! Hashes of tokens, sealed secrets, answers for repeats, heartbeats, leases,
//! rates: small entries by kind and key, a file for the embedded engine and a
//! schema of its own in PostgreSQL. Time is the database's. An entry is written
//! before the event that refers to it; one that no event refers to does no harm.
//! Never the only place of a fact.

mod postgres;
mod sqlite;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_ledger::PostgresAddress;

/// The largest value.
pub const MAX_VALUE: usize = 256 << 20;
/// The longest key.
pub const MAX_KEY: usize = 512;
/// How long a call waits for its turn.
const TURN: Duration = Duration::from_secs(5);

/// The store beside the ledger; to be cloned freely.
#[derive(Debug, Clone)]
pub struct Aside {
    engine: Engine,
}

#[derive(Debug, Clone)]
enum Engine {
    Sqlite(Arc<sqlite::Store>),
    Postgres(Arc<postgres::Store>),
}

/// What an entry is; keys of different kinds are never the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind(&'static str);

impl Kind {
    /// The kind of this name, which is never used for anything else.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// What was written.
    pub value: Vec<u8>,
    /// How long ago, by the database's clock.
    pub age: Duration,
}

/// Why the store could not do something.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AsideError {
    /// Too many wait already.
    #[error("too many calls wait for the store beside the ledger")]
    Busy,
    /// It can't be reached, or does not answer in time.
    #[error("the store beside the ledger is not available")]
    Unavailable(#[source] Arc<dyn Error + Send + Sync>),
    /// It answered with an error.
    #[error("the store beside the ledger reported an error")]
    Store(#[source] Arc<dyn Error + Send + Sync>),
    /// A key or value is too large.
    #[error("an entry is larger than the store beside the ledger takes")]
    TooLarge,
}

impl Aside {
    /// Opens the file `aside.db` in a directory that exists, and ends whatever
    /// leases a process before this one held.
    ///
    /// # Errors
    /// The file can't be made or is not ours.
    pub fn open(directory: &Path) -> Result<Self, AsideError> {
        let store = sqlite::Store::open(&directory.join("aside.db"))?;
        Ok(Self {
            engine: Engine::Sqlite(Arc::new(store)),
        })
    }

    /// Opens the schema `fluffy_aside` of a database.
    ///
    /// # Errors
    /// The server can't be reached, or refuses to make the tables.
    pub async fn open_postgres(address: &PostgresAddress) -> Result<Self, AsideError> {
        let store = postgres::Store::open(address).await?;
        Ok(Self {
            engine: Engine::Postgres(Arc::new(store)),
        })
    }

    /// Writes an entry, in the place of one that is there; it is gone after
    /// `life`, if that is given.
    ///
    /// # Errors
    /// See [`AsideError`].
    pub async fn put(
        &self,
        kind: Kind,
        key: &str,
        value: Vec<u8>,
        life: Option<Duration>,
    ) -> Result<(), AsideError> {
        check(key, &value)?;
        match &self.engine {
            Engine::Sqlite(store) => store.put(kind.0, key, value, life).await,
            Engine::Postgres(store) => store.put(kind.0, key, &value, life).await,
        }
    }

    /// Writes an entry unless there is one; false if there is.
    ///
    /// # Errors
    /// See [`AsideError`]; it may have been written.
    pub async fn put_new(
        &self,
        kind: Kind,
        key: &str,
        value: Vec<u8>,
        life: Option<Duration>,
    ) -> Result<bool, AsideError> {
        check(key, &value)?;
        match &self.engine {
            Engine::Sqlite(store) => store.put_new(kind.0, key, value, life).await,
            Engine::Postgres(store) => store.put_new(kind.0, key, &value, life).await,
        }
    }

    /// The entry with this key.
    ///
    /// # Errors
    /// See [`AsideError`].
    pub async fn get(&self, kind: Kind, key: &str) -> Result<Option<Entry>, AsideError> {
        match &self.engine {
            Engine::Sqlite(store) => store.get(kind.0, key).await,
            Engine::Postgres(store) => store.get(kind.0, key).await,
        }
    }

    /// Removes an entry; false if there was none.
    ///
    /// # Errors
    /// See [`AsideError`].
    pub async fn delete(&self, kind: Kind, key: &str) -> Result<bool, AsideError> {
        match &self.engine {
            Engine::Sqlite(store) => store.delete(kind.0, key).await,
            Engine::Postgres(store) => store.delete(kind.0, key).await,
        }
    }

    /// The entries of a kind with keys after `after`, in their order.
    ///
    /// # Errors
    /// See [`AsideError`].
    pub async fn list(
        &self,
        kind: Kind,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Entry>, AsideError> {
        match &self.engine {
            Engine::Sqlite(store) => store.list(kind.0, after, limit).await,
            Engine::Postgres(store) => store.list(kind.0, after, limit).await,
        }
    }

    /// The keys of a kind, the last first.
    ///
    /// # Errors
    /// See [`AsideError`].
    pub async fn last_keys(&self, kind: Kind, limit: u32) -> Result<Vec<String>, AsideError> {
        match &self.engine {
            Engine::Sqlite(store) => store.last_keys(kind.0, limit).await,
            Engine::Postgres(store) => store.last_keys(kind.0, limit).await,
        }
    }

    /// Draws up to `wanted` from a bucket that gives `limit` in a window, and
    /// gives what it got; all who draw together never get more than `limit`.
    ///
    /// # Errors
    /// See [`AsideError`]; something may have been drawn.
    pub async fn draw(&self, bucket: &str, draw: Draw) -> Result<u64, AsideError> {
        check(bucket, &[])?;
        match &self.engine {
            Engine::Sqlite(store) => store.draw(bucket, draw).await,
            Engine::Postgres(store) => store.draw(bucket, draw).await,
        }
    }

    /// Says how many of the places of this name a holder has, and gives what it
    /// got: what it wants, or what others leave of the limit. It has them for
    /// `life`, unless it says so again or [keeps](Self::keep) them.
    ///
    /// # Errors
    /// See [`AsideError`]; it may have got them.
    pub async fn claim(&self, name: &str, holder: &str, claim: Claim) -> Result<u64, AsideError> {
        check(name, &[])?;
        check(holder, &[])?;
        match &self.engine {
            Engine::Sqlite(store) => store.claim(name, holder, claim).await,
            Engine::Postgres(store) => store.claim(name, holder, claim).await,
        }
    }

    /// Keeps every place that a holder still has for another `life`; how many,
    /// by name.
    ///
    /// # Errors
    /// See [`AsideError`]; they may have been kept.
    pub async fn keep(
        &self,
        holder: &str,
        life: Duration,
    ) -> Result<BTreeMap<String, u64>, AsideError> {
        match &self.engine {
            Engine::Sqlite(store) => store.keep(holder, life).await,
            Engine::Postgres(store) => store.keep(holder, life).await,
        }
    }

    /// Takes a lease that nobody holds, or that `holder` does; false if
    /// somebody else does. It ends `life` after now unless it is renewed.
    ///
    /// # Errors
    /// See [`AsideError`]; it may have been taken.
    pub async fn take(&self, name: &str, holder: &str, life: Duration) -> Result<bool, AsideError> {
        check(name, holder.as_bytes())?;
        match &self.engine {
            Engine::Sqlite(store) => store.take(name, holder, life).await,
            Engine::Postgres(store) => store.take(name, holder, life).await,
        }
    }

    /// Keeps a lease for another `life`; false if it has ended meanwhile.
    ///
    /// # Errors
    /// See [`AsideError`]; it may have been renewed.
    pub async fn renew(
        &self,
        name: &str,
        holder: &str,
        life: Duration,
    ) -> Result<bool, AsideError> {
        match &self.engine {
            Engine::Sqlite(store) => store.renew(name, holder, life).await,
            Engine::Postgres(store) => store.renew(name, holder, life).await,
        }
    }

    /// Gives a lease up, if it is still held.
    ///
    /// # Errors
    /// See [`AsideError`]; then it ends by itself.
    pub async fn give_up(&self, name: &str, holder: &str) -> Result<(), AsideError> {
        match &self.engine {
            Engine::Sqlite(store) => store.give_up(name, holder).await,
            Engine::Postgres(store) => store.give_up(name, holder).await,
        }
    }

    /// Removes what has ended; how many.
    ///
    /// # Errors
    /// See [`AsideError`].
    pub async fn sweep(&self) -> Result<u64, AsideError> {
        match &self.engine {
            Engine::Sqlite(store) => store.sweep().await,
            Engine::Postgres(store) => store.sweep().await,
        }
    }
}

/// How much of a bucket is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// How much is wanted at most.
    pub wanted: u64,
    /// How much there is in a window.
    pub limit: u64,
    /// How long a window is; they are counted from the start of 1970.
    pub window: Duration,
}

/// How many places are wanted of those that all share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// How many the holder wants to have in all; none gives up what it has.
    pub wanted: u64,
    /// How many there are for all holders.
    pub limit: u64,
    /// How long it has them.
    pub life: Duration,
}

/// Copies every entry that has not ended from the file in a directory into a
/// database; how many. Leases and rates begin anew there.
pub(crate) async fn copy(directory: &Path, to: &PostgresAddress) -> Result<u64, AsideError> {
    let from = sqlite::Store::open(&directory.join("aside.db"))?;
    let target = postgres::Store::open(to).await?;
    let (mut after, mut count) = ((String::new(), String::new()), 0);
    while let Some(row) = from.next_after(&after).await? {
        let life = row.life;
        target.put(&row.kind, &row.key, &row.value, life).await?;
        after = (row.kind, row.key);
        count += 1;
    }
    Ok(count)
}

fn check(key: &str, value: &[u8]) -> Result<(), AsideError> {
    if key.len() > MAX_KEY || value.len() > MAX_VALUE {
        return Err(AsideError::TooLarge);
    }
    Ok(())
}

/// A duration as the tables hold it.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A number as the tables hold it.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
