//! Apps and their envs.
//!
//! Data only. Next: `super::release`.

use std::collections::BTreeMap;

use fluffy_base::id::{AppId, EnvId, Ipv4Id, OrgId, ProjectId, ReleaseId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{Condition, Isolation, Meta, present};

/// An app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct App {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<AppId>,
    /// Whose.
    pub org_id: OrgId,
    /// The project that groups it.
    pub project_id: Option<ProjectId>,
    /// Its name in paths and grants.
    pub name: String,
    /// Its name for people.
    pub display_name: String,
    /// What it is for.
    pub description: Option<String>,
}

/// Asks for an app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateApp {
    /// Its name in paths and grants, for good.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{0,31}$"))]
    pub name: String,
    /// Its name for people; the name if absent.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub display_name: Option<String>,
    /// The project that groups it: an id or a name.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub project: Option<String>,
    /// What it is for.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub description: Option<String>,
}

/// Changes an app.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateApp {
    /// Its new name for people.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub display_name: Option<String>,
    /// The project that groups it, by id or name; null takes it out.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(min = 1, max = 64))]
    pub project: Option<Option<String>>,
    /// What it is for; null removes it.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 256))]
    pub description: Option<Option<String>>,
    /// The version that the change is meant for.
    #[serde(default)]
    pub expected_version: Option<u64>,
}

/// One place where an app runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Env {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<EnvId>,
    /// Whose.
    pub org_id: OrgId,
    /// Of which app.
    pub app_id: AppId,
    /// Its name in paths and grants.
    pub name: String,
    /// Its name for people.
    #[serde(default)]
    pub display_name: String,
    /// Whether it is there or being cleared away.
    #[schemars(extend("enum" = ["active", "deleting"]))]
    pub status: String,
    /// Whether only operators, or explicit grants, may change it.
    pub protected: bool,
    /// Whether instances may share a kernel with others.
    pub allow_shared_kernel: bool,
    /// The weakest isolation in use; null while nothing runs.
    pub isolation: Option<Isolation>,
    /// The release that each process type should run.
    pub desired_releases: BTreeMap<String, ReleaseId>,
    /// Its public IPv4 address.
    pub ipv4: Option<Ipv4>,
    /// What is so for now.
    pub conditions: Vec<Condition>,
}

/// A public IPv4 address of an env.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ipv4 {
    /// The allocation.
    pub allocation_id: Ipv4Id,
    /// The address.
    pub address: String,
}

/// Asks for an env.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateEnv {
    /// Its name in paths and grants, for good.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{0,31}$"))]
    pub name: String,
    /// Its name for people; the name if absent.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub display_name: Option<String>,
    /// Whether only operators, or explicit grants, may change it.
    #[serde(default)]
    pub protected: bool,
    /// Whether instances may share a kernel with others.
    ///
    /// Absent means no, and yes in `fluffy up`; a protected env never may.
    #[serde(default)]
    pub allow_shared_kernel: Option<bool>,
}

/// Changes an env.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateEnv {
    /// Its new name for people.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub display_name: Option<String>,
    /// Whether only operators, or explicit grants, may change it.
    #[serde(default)]
    pub protected: Option<bool>,
    /// Whether instances may share a kernel with others.
    #[serde(default)]
    pub allow_shared_kernel: Option<bool>,
    /// The version that the change is meant for.
    #[serde(default)]
    pub expected_version: Option<u64>,
}
