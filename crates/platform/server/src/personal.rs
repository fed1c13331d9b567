//! Personal data: beside the ledger, where it can be erased.
//!
//! An event holds a keyed hash of an e-mail address or a reference to where a
//! call came from, never the thing itself, so that erasing leaves the chain
//! whole. An address goes with its member; where a call came from, after a
//! month. Decides nothing.

use std::time::Duration;

use fluffy_base::id::{MemberId, OrgId, RequestId};
use fluffy_control::State;
use fluffy_control::access::Member;

use crate::aside::{Aside, AsideError, Kind};

/// E-mail addresses of members, by org and keyed hash.
const ADDRESSES: Kind = Kind::new("member-email");
/// Where calls came from, by reference.
const SOURCES: Kind = Kind::new("source");
/// How long that is kept.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// How many are looked at at once.
const PAGE: u32 = 200;

/// Keeps personal data; to be cloned freely.
#[derive(Debug, Clone)]
pub struct Personal {
    aside: Aside,
}

/// Whose e-mail address it is: somebody's in an org.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    org: OrgId,
    hash: String,
}

impl Address {
    fn key(&self) -> String {
        format!("{} {}", self.org, self.hash)
    }

    /// What an entry's key says.
    pub(crate) fn of_key(key: &str) -> Option<Self> {
        let (org, hash) = key.split_once(' ')?;
        Some(Self {
            org: org.parse().ok()?,
            hash: hash.to_owned(),
        })
    }
}

/// The address of a member, if they have one.
pub(crate) fn address_of(state: &State, id: MemberId) -> Option<Address> {
    let member = state.access.members.get(&id)?;
    let hash = Some(member.email_hash.clone()).filter(|hash| !hash.is_empty())?;
    let org = member.owner.org?;
    Some(Address { org, hash })
}

/// The address of somebody in an org, if they have one.
pub(crate) fn address_of_principal(state: &State, org: OrgId, who: &str) -> Option<Address> {
    let mut members = state.access.members.values();
    let own = |it: &&Member| it.owner.org == Some(org) && it.principal == who;
    let hash = members.find(own)?.email_hash.clone();
    (!hash.is_empty()).then_some(Address { org, hash })
}

/// Whether any member has this address.
pub(crate) fn is_address_of(state: &State, address: &Address) -> bool {
    let mut members = state.access.members.values();
    members.any(|it| it.owner.org == Some(address.org) && it.email_hash == address.hash)
}

impl Personal {
    /// What is kept in this store.
    #[must_use]
    pub const fn new(aside: Aside) -> Self {
        Self { aside }
    }

    /// Keeps the e-mail address of somebody in an org.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn keep_email(
        &self,
        org: OrgId,
        hash: &str,
        email: &str,
    ) -> Result<(), AsideError> {
        let hash = hash.to_owned();
        let key = Address { org, hash }.key();
        let email = email.as_bytes().to_vec();
        self.aside.put(ADDRESSES, &key, email, None).await
    }

    /// An e-mail address, unless it was erased or can't be read now.
    pub(crate) async fn email(&self, address: &Address) -> Option<String> {
        let entry = self.aside.get(ADDRESSES, &address.key()).await;
        let entry = entry.unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "an address was not looked up");
            None
        });
        String::from_utf8(entry?.value).ok()
    }

    /// Erases an e-mail address; if that fails, the next sweep does.
    pub(crate) async fn erase_email(&self, address: &Address) {
        if let Err(error) = self.aside.delete(ADDRESSES, &address.key()).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "an address was not erased at once");
        }
    }

    /// Keeps where a call came from for a while; the reference to it. Without
    /// the store the event goes without.
    pub(crate) async fn keep_source(&self, source: &str) -> Option<String> {
        let reference = format!("pii_{}", RequestId::generate());
        let value = source.as_bytes().to_vec();
        let kept = self.aside.put(SOURCES, &reference, value, Some(KEPT)).await;
        kept.ok().map(|()| reference)
    }

    /// Where a call came from, as long as that is kept.
    ///
    /// # Errors
    /// The store fails.
    pub async fn source(&self, reference: &str) -> Result<Option<String>, AsideError> {
        let entry = self.aside.get(SOURCES, reference).await?;
        Ok(entry.and_then(|entry| String::from_utf8(entry.value).ok()))
    }

    /// Erases the addresses that are nobody's, unless they are new.
    ///
    /// # Errors
    /// The store fails; what is left is erased the next time.
    pub(crate) async fn sweep(
        &self,
        is_kept: impl Fn(&str) -> bool,
        young: Duration,
    ) -> Result<(), AsideError> {
        let mut after = String::new();
        loop {
            let page = self.aside.list(ADDRESSES, &after, PAGE).await?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after.clone_from(&last.key);
            for entry in &page {
                if entry.age > young && !is_kept(&entry.key) {
                    self.aside.delete(ADDRESSES, &entry.key).await?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_nobodys_is_swept_and_what_is_new_stays() {
        let folder = tempfile::tempdir().unwrap();
        let personal = Personal::new(Aside::open(folder.path()).unwrap());
        let org = OrgId::from_bits(1);
        let address = |hash: &str| Address {
            org,
            hash: hash.to_owned(),
        };
        for hash in ["kept", "left"] {
            let email = format!("{hash}@example.org");
            personal.keep_email(org, hash, &email).await.unwrap();
        }
        let is_kept = |key: &str| Address::of_key(key).unwrap() == address("kept");
        let hour = Duration::from_secs(3600);
        personal.sweep(is_kept, hour).await.unwrap();
        let left = personal.email(&address("left")).await;
        assert_eq!(left.as_deref(), Some("left@example.org"));
        // The database's clock has to move on.
        let limit = std::time::Instant::now() + Duration::from_secs(60);
        while personal.email(&address("left")).await.is_some() {
            assert!(std::time::Instant::now() < limit);
            personal.sweep(is_kept, Duration::ZERO).await.unwrap();
        }
        let kept = personal.email(&address("kept")).await;
        assert_eq!(kept.as_deref(), Some("kept@example.org"));
    }

    #[tokio::test]
    async fn where_a_call_came_from_is_found_by_its_reference_alone() {
        let folder = tempfile::tempdir().unwrap();
        let personal = Personal::new(Aside::open(folder.path()).unwrap());
        let reference = personal.keep_source("192.0.2.7").await.unwrap();
        assert!(!reference.contains("192.0.2.7"));
        let source = personal.source(&reference).await.unwrap();
        assert_eq!(source.as_deref(), Some("192.0.2.7"));
        assert_eq!(personal.source("pii_other").await.unwrap(), None);
    }
}
