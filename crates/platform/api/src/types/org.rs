//! Orgs, their limits, and projects.
//!
//! Data only. Next: `super::app`.

use std::collections::BTreeMap;

use fluffy_base::Timestamp;
use fluffy_base::id::{OrgId, ProjectId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{Meta, present};

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Org {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<OrgId>,
    /// Its name in paths and grants.
    pub slug: String,
    /// Its name for people.
    pub display_name: String,
    /// Until when nothing of its history may go.
    pub legal_hold_until: Option<Timestamp>,
}

/// Asks for an org.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateOrg {
    /// Its name in paths and grants, for good.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{1,38}$"))]
    pub slug: String,
    /// Its name for people; the slug if absent.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub display_name: Option<String>,
}

/// Changes an org.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateOrg {
    /// Its new name for people.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub display_name: Option<String>,
    /// Until when nothing of its history may go; null lifts it. Only operators
    /// of the platform set it.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub legal_hold_until: Option<Option<Timestamp>>,
    /// The version that the change is meant for.
    #[serde(default)]
    pub expected_version: Option<u64>,
}

/// The limits of an org and what it uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quotas {
    /// Whose.
    pub org_id: OrgId,
    /// The version of the org.
    pub version: u64,
    /// Each dimension.
    pub quotas: BTreeMap<String, Quota>,
}

/// One limit of an org.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quota {
    /// The most it may have; null is no limit.
    pub limit: Option<u64>,
    /// What it has.
    pub used: u64,
}

/// The dimensions of quotas, as they are written.
pub const QUOTA_DIMENSIONS: &[&str] = &[
    "apps",
    "attachments",
    "concurrent_restores",
    "cpu",
    "envs",
    "exec_sessions",
    "instances",
    "ipv4",
    "log_bytes_per_day",
    "memory",
    "public_ports",
    "releases",
    "routes",
    "snapshots_per_volume",
    "volume_bytes",
    "volumes",
];

/// Sets limits of an org; what is not named stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetQuotas {
    /// The new limit of each dimension; `cpu` in thousandths, memory in bytes,
    /// null for no limit.
    #[schemars(extend(
        "minProperties" = 1,
        "propertyNames" = { "enum": QUOTA_DIMENSIONS }
    ))]
    pub limits: BTreeMap<String, Option<u64>>,
    /// The version that the change is meant for.
    #[serde(default)]
    pub expected_version: Option<u64>,
}

/// A label that groups apps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Project {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<ProjectId>,
    /// Whose.
    pub org_id: OrgId,
    /// Its name in paths.
    pub name: String,
    /// Its name for people.
    pub display_name: String,
}

/// Asks for a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateProject {
    /// Its name in paths, for good.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{0,31}$"))]
    pub name: String,
    /// Its name for people; the name if absent.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub display_name: Option<String>,
}

/// Changes a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateProject {
    /// Its new name for people.
    #[schemars(length(min = 1, max = 64))]
    pub display_name: String,
    /// The version that the change is meant for.
    #[serde(default)]
    pub expected_version: Option<u64>,
}
