//! A request made ready for judging: recognised, normalised, split once.
//!
//! What does not get through here is denied before any rule runs, with the
//! reason that a person and the model are told.

use crate::action::{self, Known, ResourceError, ResourceKind, Target, UnknownAction};
use crate::capability::{Capability, InvalidCapability};
use crate::decision::Judged;
use crate::glob::SplitPath;
use crate::host;
use crate::request::{Field, Request};

const MAX_NAME: usize = 256;
const MAX_TAGS: usize = 256;

/// Why a request is denied before rules run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnusableRequest {
    /// The action does not exist.
    #[error("the action is not known")]
    Action(#[source] UnknownAction),
    /// The resource is not what the action takes.
    #[error("the resource is not usable")]
    Resource(#[source] ResourceError),
    /// Action and resource do not make a capability.
    #[error("action and resource make no capability")]
    Capability(#[source] InvalidCapability),
    /// The context's host is malformed, or not the resource's.
    #[error("the context names the host `{0}`, which is malformed or not the resource's")]
    Host(String),
    /// The principal has no name, an overlong one, or too many tags.
    #[error("the principal is malformed")]
    Principal,
}

/// A request that rules may look at.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    request: &'a Request,
    action: Known<'a>,
    target: Target<'a>,
    host: Option<String>,
    pub(crate) capability: Capability,
}

/// What rules look at, borrowed from a [`Subject`].
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) request: &'a Request,
    pub(crate) action: Known<'a>,
    pub(crate) path: Option<SplitPath<'a>>,
    pub(crate) host: Option<&'a str>,
    pub(crate) port: Option<u16>,
}

impl<'a> Subject<'a> {
    pub(crate) fn read(request: &'a Request) -> Result<Self, UnusableRequest> {
        let principal = &request.principal;
        let named = (1..=MAX_NAME).contains(&principal.name.len());
        if !named || principal.tags.len() > MAX_TAGS {
            return Err(UnusableRequest::Principal);
        }
        let action = action::recognise(&request.action)
            .ok_or_else(|| UnusableRequest::Action(UnknownAction::of(&request.action)))?;
        let target = action
            .resource_kind()
            .read(request.resource.as_deref())
            .map_err(UnusableRequest::Resource)?;
        let host = context_host(request, &target)?;
        let capability = capability_of(&request.action, &target)?;
        Ok(Self {
            request,
            action,
            target,
            host,
            capability,
        })
    }

    pub(crate) fn facts(&self) -> Facts<'_> {
        let (host, port) = match &self.target {
            Target::Address(address) => (Some(address.host()), Some(address.port())),
            _ => (self.host.as_deref(), self.request.context.port),
        };
        let path = match &self.target {
            Target::Path(path) => Some(SplitPath::of(path)),
            // A tenant's object is a path as well: org, app, env.
            Target::Text(text)
                if self.request.context.tenant.is_some()
                    && self.action.resource_kind() == ResourceKind::Object =>
            {
                Some(SplitPath {
                    root: "",
                    names: text.split('/').collect(),
                })
            }
            _ => None,
        };
        Facts {
            request: self.request,
            action: self.action,
            path,
            host,
            port,
        }
    }

    /// Whether this is the resource, in its one spelling.
    pub(crate) fn is_on(&self, resource: Option<&str>) -> bool {
        match (&self.target, resource) {
            (Target::None, None) => true,
            (Target::Path(path), Some(text)) => path == text,
            (Target::Address(address), Some(text)) => address.to_string() == text,
            (Target::Text(own), Some(text)) => *own == text,
            _ => false,
        }
    }

    /// What was judged, with the resource in its one spelling.
    pub(crate) fn into_judged(self) -> Judged {
        let resource = match self.target {
            Target::None => None,
            Target::Path(path) => Some(path.into_owned()),
            Target::Address(address) => Some(address.to_string()),
            Target::Text(text) => Some(text.to_owned()),
        };
        Judged {
            action: self.request.action.clone(),
            resource,
            capability: Some(self.capability),
        }
    }
}

impl Facts<'_> {
    /// Whether the request does not have the field, or not all of it.
    pub(crate) fn lacks(&self, field: Field) -> bool {
        let context = &self.request.context;
        match field {
            Field::Path => self.path.is_none(),
            Field::Host => self.host.is_none() || self.port.is_none(),
            Field::Caller | Field::CallerTag => false,
            Field::Mode => context.mode.is_none(),
            Field::State => context.state.is_none(),
            Field::Template => context.template.is_none(),
            Field::Tier => context.tier.is_none(),
            Field::Tenant => context.tenant.is_none(),
            Field::Size => context.size.is_none(),
            Field::Lines => context.lines.is_none(),
        }
    }
}

fn capability_of(action: &str, target: &Target<'_>) -> Result<Capability, UnusableRequest> {
    let text = match target {
        Target::None => action.to_owned(),
        Target::Path(path) => join(action, path),
        Target::Address(address) => join(action, &address.to_string()),
        Target::Text(text) => join(action, text),
    };
    Capability::parse(text).map_err(UnusableRequest::Capability)
}

fn join(action: &str, resource: &str) -> String {
    let mut text = String::with_capacity(action.len() + resource.len() + 1);
    text.push_str(action);
    text.push('.');
    text.push_str(resource);
    text
}

fn context_host(request: &Request, target: &Target<'_>) -> Result<Option<String>, UnusableRequest> {
    // Two ports for one connection would let a rule look at the wrong one.
    if let (Target::Address(address), Some(port)) = (target, request.context.port)
        && address.port() != port
    {
        return Err(UnusableRequest::Host(format!("{address}")));
    }
    let Some(text) = &request.context.host else {
        return Ok(None);
    };
    let refused = || UnusableRequest::Host(text.chars().take(128).collect());
    let host = host::normalise(text).ok_or_else(refused)?;
    match target {
        Target::Address(address) if address.host() != host => Err(refused()),
        _ => Ok(Some(host)),
    }
}
