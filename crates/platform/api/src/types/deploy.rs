//! Deploys, rollbacks, scale, and how an env is.
//!
//! Data only. Next: `super::instance`.

use std::collections::BTreeMap;

use fluffy_base::id::{AppId, DeployId, EnvId, LedgerId, OrgId, ReleaseId};
use fluffy_base::{Digest, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{Condition, Isolation, Meta};
use super::network::Route;

/// The way from one spec of some groups to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Deploy {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<DeployId>,
    /// Whose.
    pub org_id: OrgId,
    /// Of which app.
    pub app_id: AppId,
    /// Where.
    pub env_id: EnvId,
    /// What for.
    #[schemars(extend("enum" = ["deploy", "rollback", "restart"]))]
    pub kind: String,
    /// Where it stands.
    #[schemars(extend("enum" = [
        "queued", "rolling", "paused", "succeeded", "failed", "canceled", "superseded"
    ]))]
    pub status: String,
    /// More about where it stands.
    pub message: Option<String>,
    /// Why it failed, as a stable word.
    pub failed_reason: Option<String>,
    /// What is deployed; null for a restart of several releases.
    pub release_id: Option<ReleaseId>,
    /// What each process type ran before.
    pub from_releases: BTreeMap<String, Option<ReleaseId>>,
    /// The process types that it is about.
    pub process_types: Vec<String>,
    /// How it goes.
    pub options: DeployOptions,
    /// How far each group is.
    pub groups: Vec<GroupProgress>,
    /// The weakest isolation of its instances.
    pub isolation: Option<Isolation>,
    /// Who asked for it.
    pub created_by: String,
    /// When it reached a final state.
    pub finished_at: Option<Timestamp>,
}

/// How far one group of a deploy is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupProgress {
    /// The process type.
    pub process: String,
    /// How many instances there should be.
    pub desired: u32,
    /// Live instances on the new spec.
    pub new: u32,
    /// Of these, how many are ready.
    pub ready: u32,
    /// Of these, how many have been ready long enough to count.
    pub available: u32,
    /// Live instances on an older spec.
    pub old: u32,
    /// Instances that were replaced because they failed.
    pub replaced: u32,
    /// What keeps it from going on.
    pub conditions: Vec<Condition>,
}

/// How a deploy goes, with everything filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeployOptions {
    /// How many instances more there may be on the way.
    pub max_surge: u32,
    /// How many available instances fewer there may be on the way.
    pub max_unavailable: u32,
    /// How long it may take, in seconds.
    pub timeout_seconds: u32,
    /// What happens when it fails.
    pub on_failure: OnFailure,
    /// Whether a single instance may go before its successor is there.
    pub allow_downtime: bool,
}

/// What happens when a deploy fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The release from before comes back.
    Rollback,
    /// The mix stays, and somebody has to look.
    Pause,
}

/// Asks for a deploy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateDeploy {
    /// What to deploy.
    pub release_id: ReleaseId,
    /// Which process types; all of the manifest if absent.
    #[serde(default)]
    #[schemars(length(min = 1, max = 16))]
    pub process_types: Option<Vec<String>>,
    /// What differs from the manifest.
    #[serde(default)]
    pub options: RequestedDeployOptions,
    /// The merge that it rests on, in the ledger of the agent that made it.
    #[serde(default)]
    pub source: Option<DeploySource>,
}

/// An event of another ledger, as whoever deploys knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploySource {
    /// Which ledger.
    pub ledger_id: LedgerId,
    /// The position of the event there.
    #[schemars(range(min = 1))]
    pub seq: u64,
    /// Its hash there.
    pub hash: Digest,
    /// A signed checkpoint of that ledger which covers it.
    #[schemars(length(max = 4096))]
    pub checkpoint: String,
}

/// What a deploy does otherwise than the manifest says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RequestedDeployOptions {
    /// How many instances more there may be on the way.
    #[schemars(range(max = 10))]
    pub max_surge: Option<u32>,
    /// How many available instances fewer there may be on the way.
    #[schemars(range(max = 10))]
    pub max_unavailable: Option<u32>,
    /// How long it may take, in seconds.
    #[schemars(range(min = 60, max = 3600))]
    pub timeout_seconds: Option<u32>,
    /// What happens when it fails.
    pub on_failure: Option<OnFailure>,
    /// Whether a single instance may go before its successor is there.
    pub allow_downtime: bool,
}

/// Asks for an earlier release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRollback {
    /// Which; the last that succeeded and is another if absent.
    #[serde(default)]
    pub to_release: Option<ReleaseId>,
    /// What differs from the manifest.
    #[serde(default)]
    pub options: RequestedDeployOptions,
}

/// How many instances each process type should have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Scale {
    /// Where.
    pub env_id: EnvId,
    /// The version of the env.
    pub version: u64,
    /// Each process type.
    pub processes: BTreeMap<String, ProcessScale>,
}

/// How many instances of one process type there should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessScale {
    /// How many.
    pub desired: u32,
    /// Who says so.
    #[schemars(extend("enum" = ["explicit", "manifest"]))]
    pub source: String,
    /// The fewest that can be asked for.
    pub min: u32,
    /// The most that can be asked for.
    pub max: u32,
}

/// Sets how many instances there should be; what is not named stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetScale {
    /// How many of each process type; null for what the manifest says.
    #[schemars(extend(
        "minProperties" = 1,
        "maxProperties" = 16,
        "propertyNames" = { "pattern": "^[a-z][a-z0-9-]{0,31}$" }
    ))]
    pub processes: BTreeMap<String, Option<u32>>,
    /// The version that the change is meant for.
    #[serde(default)]
    pub expected_version: Option<u64>,
}

/// How an env is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvStatus {
    /// Whose.
    pub org_id: OrgId,
    /// Of which app.
    pub app_id: AppId,
    /// Which.
    pub env_id: EnvId,
    /// Whether all is as it should be.
    #[schemars(extend("enum" = ["healthy", "progressing", "degraded", "empty", "deleting"]))]
    pub status: String,
    /// The weakest isolation in use; null while nothing runs.
    pub isolation: Option<Isolation>,
    /// What is so for now.
    pub conditions: Vec<Condition>,
    /// Wanted and seen, per process type.
    pub groups: Vec<GroupStatus>,
    /// Where it can be reached.
    pub routes: Vec<Route>,
    /// The newest deploy.
    pub last_deploy: Option<Deploy>,
    /// What last went wrong.
    pub last_error: Option<LastError>,
}

/// One process type of an env: wanted and seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupStatus {
    /// The process type.
    pub process: String,
    /// What it should run.
    pub release_id: ReleaseId,
    /// How many there should be.
    pub desired: u32,
    /// How many live instances there are.
    pub live: u32,
    /// How many of these are ready.
    pub ready: u32,
    /// How many of these run the wanted spec.
    pub current: u32,
    /// What is so for now.
    pub conditions: Vec<Condition>,
}

/// What last went wrong in an env.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastError {
    /// When.
    pub at: Timestamp,
    /// A stable word.
    pub reason: String,
    /// More, for people.
    pub detail: Option<String>,
    /// The instance, if it was one.
    pub instance_id: Option<String>,
}
