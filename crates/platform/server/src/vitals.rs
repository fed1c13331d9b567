//! Signs of life of nodes and edges, kept beside the ledger.
//!
//! Too many to be events, and worth nothing when they are old. How old one is
//! says the database, so it does not matter which replica heard it. What they
//! mean is decided by the loop that watches them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_base::id::NodeId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::aside::{Aside, AsideError, Kind};

const BEAT: Kind = Kind::new("heartbeat");
const IMAGES: Kind = Kind::new("node-images");
/// The most images of a node that are kept.
const MAX_IMAGES: usize = 256;
/// How long the last sign of a node is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// How many are read at once.
const PAGE: u32 = 1_000;

/// The signs of life in a store beside the ledger.
#[derive(Debug, Clone)]
pub struct Vitals {
    aside: Aside,
}

/// What a sign of life says; names and not places, so that servers of two
/// versions read each other's: what one does not know it leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Beat {
    /// How full the disk is, in hundredths.
    pub disk_percent: u8,
    /// Whether other nodes do not reach it.
    pub unreachable: bool,
    /// Whether it goes by the newest plan that it was sent.
    pub acknowledged: bool,
    /// The routing that an edge goes by.
    pub routing: Option<u64>,
    /// The routes that an edge cannot serve, and why.
    pub problems: Vec<(String, String)>,
    /// Whether it is an edge that serves this machine only.
    pub loopback: bool,
    /// The replica that heard it.
    pub replica: String,
    /// How far its clock is off.
    pub clock_off_ms: u64,
    /// What its machine lacks, by its own word; nothing if nothing.
    pub unfit: String,
}

impl Vitals {
    /// Those in this store.
    #[must_use]
    pub const fn new(aside: Aside) -> Self {
        Self { aside }
    }

    /// Notes that a node is alive.
    ///
    /// # Errors
    /// The store is not available; the next beat comes soon.
    pub async fn beat(&self, node: NodeId, beat: Beat) -> Result<(), AsideError> {
        let value = serde_json::to_vec(&beat)
            .map_err(|error| AsideError::Store(std::sync::Arc::new(error)))?;
        self.aside
            .put(BEAT, &node.to_string(), value, Some(KEPT))
            .await
    }

    /// Notes which images a node need not fetch.
    ///
    /// # Errors
    /// The store is not available; it is said again.
    pub async fn keep_images(&self, node: NodeId, images: &[String]) -> Result<(), AsideError> {
        let digest = |text: &String| text.strip_prefix("sha256:")?.parse::<Digest>().ok();
        let images: Vec<Digest> = images.iter().filter_map(digest).take(MAX_IMAGES).collect();
        let value = serde_json::to_vec(&images)
            .map_err(|error| AsideError::Store(std::sync::Arc::new(error)))?;
        self.aside
            .put(IMAGES, &node.to_string(), value, Some(KEPT))
            .await
    }

    /// The images that nodes need not fetch, as they said last.
    ///
    /// # Errors
    /// The store is not available.
    pub async fn images(&self) -> Result<BTreeMap<NodeId, BTreeSet<Digest>>, AsideError> {
        let all = self.read::<BTreeSet<Digest>>(IMAGES).await?;
        Ok(all.into_iter().map(|(node, (_, it))| (node, it)).collect())
    }

    /// The last sign of a node.
    ///
    /// # Errors
    /// The store is not available.
    pub async fn of(&self, node: NodeId) -> Result<Option<Beat>, AsideError> {
        let entry = self.aside.get(BEAT, &node.to_string()).await?;
        Ok(entry.and_then(|entry| serde_json::from_slice(&entry.value).ok()))
    }

    /// The last sign of every node, and how long ago it was.
    ///
    /// # Errors
    /// The store is not available.
    pub async fn all(&self) -> Result<BTreeMap<NodeId, (Duration, Beat)>, AsideError> {
        self.read(BEAT).await
    }

    /// What is kept of every node, and for how long.
    async fn read<T: DeserializeOwned>(
        &self,
        kind: Kind,
    ) -> Result<BTreeMap<NodeId, (Duration, T)>, AsideError> {
        let mut all = BTreeMap::new();
        let mut after = String::new();
        loop {
            let entries = self.aside.list(kind, &after, PAGE).await?;
            let Some(last) = entries.last() else {
                return Ok(all);
            };
            after.clone_from(&last.key);
            for entry in entries {
                let kept = serde_json::from_slice(&entry.value);
                if let (Ok(node), Ok(kept)) = (entry.key.parse(), kept) {
                    all.insert(node, (entry.age, kept));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_servers_of_another_version_are_understood() {
        let older = r#"{"disk_percent": 7, "replica": "a"}"#;
        let beat: Beat = serde_json::from_str(older).unwrap();
        assert_eq!((beat.disk_percent, beat.replica.as_str()), (7, "a"));
        let newer = r#"{"disk_percent": 7, "new": {"of": ["a", "later"]}}"#;
        let beat: Beat = serde_json::from_str(newer).unwrap();
        assert_eq!(beat.disk_percent, 7);
    }
}
