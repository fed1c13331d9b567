//! The hashes of credentials, kept beside the ledger.
//!
//! Found by what was shown, never the other way round. Whether a credential is
//! still good is in the state; a hash alone opens nothing.

use std::time::Duration;

use fluffy_base::Digest;

use crate::aside::{Aside, AsideError, Kind};
use crate::credential::CredentialKind;

const CREDENTIAL: Kind = Kind::new("credential");

/// The hashes in a store beside the ledger.
#[derive(Debug, Clone)]
pub struct Hashes {
    aside: Aside,
}

impl Hashes {
    /// Those in this store.
    #[must_use]
    pub const fn new(aside: Aside) -> Self {
        Self { aside }
    }

    /// Keeps the hash of a credential under what it stands for, for `life`.
    ///
    /// # Errors
    /// The store is not available.
    pub async fn keep(
        &self,
        kind: CredentialKind,
        hash: Digest,
        stands_for: &str,
        life: Option<Duration>,
    ) -> Result<(), AsideError> {
        let value = stands_for.as_bytes().to_vec();
        self.aside
            .put(CREDENTIAL, &key(kind, hash), value, life)
            .await
    }

    /// What the credential with this hash stands for, if it is known.
    ///
    /// # Errors
    /// The store is not available.
    pub async fn find(
        &self,
        kind: CredentialKind,
        hash: Digest,
    ) -> Result<Option<String>, AsideError> {
        let entry = self.aside.get(CREDENTIAL, &key(kind, hash)).await?;
        Ok(entry.and_then(|entry| String::from_utf8(entry.value).ok()))
    }

    /// Forgets a credential; it is of no more use.
    ///
    /// # Errors
    /// The store is not available.
    pub async fn forget(&self, kind: CredentialKind, hash: Digest) -> Result<(), AsideError> {
        let key = key(kind, hash);
        self.aside.delete(CREDENTIAL, &key).await.map(drop)
    }
}

fn key(kind: CredentialKind, hash: Digest) -> String {
    format!("{}{hash}", kind.prefix())
}
