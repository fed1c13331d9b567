//! What the interface says of itself.
//!
//! Data only. Next: `crate::operation`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What this server can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Capabilities {
    /// The version of the program.
    pub version: String,
    /// Versions of this interface that are served.
    pub api_versions: Vec<String>,
    /// Versions of manifests that are read.
    pub manifest_versions: Vec<String>,
    /// What is there and what is not.
    pub features: BTreeMap<String, bool>,
    /// Bounds of requests, by name.
    pub limits: BTreeMap<String, u64>,
}
