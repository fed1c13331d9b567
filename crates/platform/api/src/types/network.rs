//! Routes: from a public port to a process of an env.
//!
//! Data only. Next: `super::secret`.

use fluffy_base::id::{AppId, EnvId, OrgId, RouteId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::Meta;

/// A way from a public port to a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Route {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<RouteId>,
    /// Whose.
    pub org_id: OrgId,
    /// Of which app.
    pub app_id: AppId,
    /// Where.
    pub env_id: EnvId,
    /// Where it stands.
    #[schemars(extend("enum" = ["pending", "active", "degraded", "blocked", "deleting", "deleted"]))]
    pub status: String,
    /// Why, as a stable word.
    pub reason: Option<String>,
    /// The name that it answers to.
    pub hostname: Option<String>,
    /// Whether the name is proven to be the org's.
    pub verified: bool,
    /// What proves it, while it is not.
    pub challenge: Option<Challenge>,
    /// The public port.
    pub listen_port: u16,
    /// How connections are told apart.
    pub protocol_hint: ProtocolHint,
    /// The process type that answers.
    pub backend_process: String,
    /// The port that it answers on.
    pub backend_port: u16,
    /// Whether the client's address is sent ahead.
    pub proxy_protocol: ProxyProtocol,
    /// Whether the process said that it expects that.
    pub backend_expects_proxy_protocol: bool,
    /// Whether it must be reachable by IPv4; a raw route then listens there alone.
    pub ipv4_required: bool,
    /// Where this machine reaches it, if the platform made it for that.
    pub address: Option<String>,
}

/// What to put into the DNS to prove a hostname.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Challenge {
    /// The name of the record.
    pub record: String,
    /// Its text.
    pub value: String,
}

/// How connections are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProtocolHint {
    /// By the name in the TLS greeting; nothing is decrypted.
    TlsPassthrough,
    /// By the port alone.
    TcpRaw,
}

/// Whether the client's address is sent ahead of the bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProxyProtocol {
    /// It is not.
    #[default]
    Off,
    /// By PROXY protocol version 2.
    V2,
}

/// Asks for a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRoute {
    /// The name that it answers to; required to tell connections apart by it.
    #[serde(default)]
    #[schemars(length(min = 1, max = 253))]
    pub hostname: Option<String>,
    /// The public port.
    #[schemars(range(min = 1))]
    pub listen_port: u16,
    /// How connections are told apart.
    pub protocol_hint: ProtocolHint,
    /// The process type that answers.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{0,31}$"))]
    pub backend_process: String,
    /// The port that it answers on, as its manifest declares it.
    #[schemars(range(min = 1))]
    pub backend_port: u16,
    /// Whether the client's address is sent ahead.
    #[serde(default)]
    pub proxy_protocol: ProxyProtocol,
    /// That the process expects that; required with it.
    #[serde(default)]
    pub backend_expects_proxy_protocol: bool,
    /// Whether it must be reachable by IPv4; a raw route then listens there alone.
    #[serde(default)]
    pub ipv4_required: bool,
}

/// Changes a route; hostname and public port are for good.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateRoute {
    /// The process type that answers.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{0,31}$"))]
    pub backend_process: Option<String>,
    /// The port that it answers on.
    #[schemars(range(min = 1))]
    pub backend_port: Option<u16>,
    /// Whether the client's address is sent ahead.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// That the process expects that; required with it.
    pub backend_expects_proxy_protocol: Option<bool>,
    /// Whether it must be reachable by IPv4; a raw route then listens there alone.
    pub ipv4_required: Option<bool>,
    /// The version that the change is meant for.
    pub expected_version: Option<u64>,
}
