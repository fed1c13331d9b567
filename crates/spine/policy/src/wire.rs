//! The recorded forms: what the ledger keeps, versioned from the first day.
//!
//! Separate from the types the engine works with, so that those can change and
//! old recordings still read. A recorded decision is a report; nothing turns
//! one back into a permit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fluffy_base::Digest;
use fluffy_base::id::SandboxId;
use serde::{Deserialize, Serialize};

use crate::grant::{BuildGrantError, Grant, GrantLists};
use crate::request::{Context, Field, Principal, PrincipalKind, ProcessIdentity, Request};
use crate::word::{Mode, State, Tier};

/// A request, version 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestV1 {
    v: u32,
    principal: PrincipalV1,
    action: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    context: ContextV1,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrincipalV1 {
    kind: PrincipalKind,
    name: String,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    tags: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sandbox: Option<SandboxId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    process: Option<ProcessIdentity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on_behalf_of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grant: Option<GrantLists>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextV1 {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<State>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tier: Option<Tier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lines: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    redacted: BTreeMap<Field, Digest>,
}

/// Why a recorded request does not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadRequestError {
    /// A version this program does not know.
    #[error("version `{0}` of a recorded request is not known")]
    Version(u32),
    /// The recorded grant is malformed.
    #[error("the recorded grant is unusable")]
    Grant(#[source] BuildGrantError),
}

impl From<Request> for RequestV1 {
    fn from(request: Request) -> Self {
        let Request {
            principal,
            action,
            resource,
            context,
        } = request;
        Self {
            v: 1,
            principal: PrincipalV1 {
                kind: principal.kind,
                name: principal.name,
                tags: principal.tags,
                sandbox: principal.sandbox,
                process: principal.process,
                on_behalf_of: principal.on_behalf_of,
                grant: principal.grant.map(|grant| grant.lists()),
            },
            action,
            resource,
            context: ContextV1 {
                mode: context.mode,
                state: context.state,
                template: context.template,
                tier: context.tier,
                tenant: context.tenant,
                size: context.size,
                lines: context.lines,
                host: context.host,
                port: context.port,
                redacted: context.redacted,
            },
        }
    }
}

impl TryFrom<RequestV1> for Request {
    type Error = ReadRequestError;

    fn try_from(wire: RequestV1) -> Result<Self, ReadRequestError> {
        if wire.v != 1 {
            return Err(ReadRequestError::Version(wire.v));
        }
        let RequestV1 {
            principal,
            action,
            resource,
            context,
            ..
        } = wire;
        let grant = principal
            .grant
            .map(|lists| Grant::build(&lists))
            .transpose();
        Ok(Self {
            principal: Principal {
                kind: principal.kind,
                name: principal.name,
                tags: principal.tags,
                sandbox: principal.sandbox,
                process: principal.process,
                on_behalf_of: principal.on_behalf_of,
                grant: grant.map_err(ReadRequestError::Grant)?.map(Arc::new),
            },
            action,
            resource,
            context: Context {
                mode: context.mode,
                state: context.state,
                template: context.template,
                tier: context.tier,
                tenant: context.tenant,
                size: context.size,
                lines: context.lines,
                host: context.host,
                port: context.port,
                redacted: context.redacted,
            },
        })
    }
}
