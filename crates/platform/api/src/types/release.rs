//! Releases: an image and a manifest, for good.
//!
//! Data only. Next: `super::deploy`.

use fluffy_base::Digest;
use fluffy_base::Timestamp;
use fluffy_base::id::{AppId, OrgId, ReleaseId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::Meta;

/// An immutable pair of image and manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Release {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<ReleaseId>,
    /// Whose.
    pub org_id: OrgId,
    /// Of which app.
    pub app_id: AppId,
    /// Where it stands.
    #[schemars(extend("enum" = ["available", "blocked", "retired"]))]
    pub status: String,
    /// Why it is blocked.
    pub blocked_reason: Option<String>,
    /// The image as it was asked for.
    pub image_ref: String,
    /// What the reference pointed at: `sha256:…`.
    pub image_digest: String,
    /// What is pulled for each platform.
    pub platforms: Vec<ImagePlatform>,
    /// The largest compressed size of a platform.
    pub compressed_bytes: u64,
    /// The version of the manifest's schema.
    pub manifest_schema_version: String,
    /// The hash of the canonical manifest.
    pub manifest_hash: Digest,
    /// The canonical manifest; null once the release is retired.
    pub manifest: serde_json::Value,
    /// Who made it.
    pub created_by: String,
    /// When it was retired.
    pub retired_at: Option<Timestamp>,
}

/// The image of one platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImagePlatform {
    /// `linux`.
    pub os: String,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// `sha256:…`.
    pub digest: String,
}

/// Asks for a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRelease {
    /// The image: a tag or a digest; the manifest's if absent.
    #[serde(default)]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// The text of `fluffy.toml`.
    #[schemars(length(min = 1, max = 65536))]
    pub manifest: String,
}

/// Says why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BlockRelease {
    /// Why, for those who meet it.
    #[schemars(length(min = 1, max = 256))]
    pub reason: String,
}
