//! Secrets of an env: keys and versions go out, values only come in.
//!
//! Data only; no answer has a field for a value, and requests are not printed.
//! Next: `super::volume`.

use std::collections::BTreeMap;
use std::fmt;

use fluffy_base::Timestamp;
use fluffy_base::id::{AppId, EnvId, OrgId, SecretBundleId, SecretVersionId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::Meta;

/// The secrets of an env, without their values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretBundle {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<SecretBundleId>,
    /// Whose.
    pub org_id: OrgId,
    /// Of which app.
    pub app_id: AppId,
    /// Where.
    pub env_id: EnvId,
    /// Where it stands.
    #[schemars(extend("enum" = ["active", "rotating", "rotation_failed", "deleted"]))]
    pub status: String,
    /// The version that everything should run with.
    pub current_version_id: SecretVersionId,
    /// The names in the current version.
    pub keys: Vec<String>,
    /// The versions that are kept, newest first.
    pub versions: Vec<SecretVersion>,
}

/// One version of the secrets of an env.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretVersion {
    /// Which.
    pub id: SecretVersionId,
    /// Where it stands.
    #[schemars(extend("enum" = ["current", "previous", "destroyed"]))]
    pub status: String,
    /// A keyed hash of the values, to tell versions apart.
    pub data_hash: String,
    /// How many names it has.
    pub key_count: u32,
    /// How large it is.
    pub size_bytes: u64,
    /// The key that its data key is sealed with.
    pub master_key_id: String,
    /// When it was made.
    pub created_at: Timestamp,
}

/// Replaces all secrets of an env: by a map, a file, or an older version.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReplaceSecrets {
    /// Every name with its value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 256))]
    pub values: Option<BTreeMap<String, String>>,
    /// The text of a secrets file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 262144))]
    pub file: Option<String>,
    /// An older version, to go back to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_id: Option<SecretVersionId>,
    /// The version that the change is meant for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_version: Option<u64>,
}

impl fmt::Debug for ReplaceSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplaceSecrets").finish_non_exhaustive()
    }
}

/// Sets and unsets some secrets of an env.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateSecrets {
    /// Names with their new values.
    #[schemars(extend("maxProperties" = 256))]
    pub set: BTreeMap<String, String>,
    /// Names that go.
    #[schemars(length(max = 256))]
    pub unset: Vec<String>,
    /// The version that the change is meant for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_version: Option<u64>,
}

impl fmt::Debug for UpdateSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateSecrets").finish_non_exhaustive()
    }
}
