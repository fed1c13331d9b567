//! The event: one immutable fact, and the envelope every domain shares.
//!
//! Holds data only: what may be appended is checked in `draft`, bytes and
//! hashes are made in `row`. Nothing here may change a stored event.

use std::fmt;
use std::str::FromStr;

use fluffy_base::{Digest, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::row::RowRef;

/// One immutable fact in the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Global position: 1, 2, 3 … without gaps.
    pub seq: u64,
    /// Which face of the product the fact belongs to.
    pub domain: Domain,
    /// Whose fact it is.
    pub aggregate: Aggregate,
    /// The aggregate's own gap-free counter, from 1.
    pub aggregate_version: u64,
    /// Dotted name, such as `tool.execute`.
    pub event_type: String,
    /// Schema version of the payload, from 1.
    pub event_version: u32,
    /// When it happened, for people; never used for ordering.
    pub occurred_at: Timestamp,
    /// The principal that acted.
    pub actor: Actor,
    /// Tenant scope, where there is one.
    pub scope: Scope,
    /// The call from outside that led here.
    pub request_id: String,
    /// The key under which the caller may repeat the request.
    pub idempotency_key: Option<String>,
    /// What ties together everything one undertaking does.
    pub correlation_id: Option<String>,
    /// The event that led to this one.
    pub causation_seq: Option<u64>,
    /// The decision that allowed this.
    pub decision_seq: Option<u64>,
    /// The facts themselves.
    pub payload: Payload,
    /// The hash of the event before, or of the genesis record.
    pub prev_hash: Digest,
    /// SHA-256 of `prev_hash` and the canonical JSON of all other fields.
    pub hash: Digest,
}

impl Event {
    /// Whether the event is what its own hash says. That nobody put another
    /// in its place is shown by the chain: see [`crate::verify`].
    #[must_use]
    pub fn is_intact(&self) -> bool {
        let row = RowRef::of(self);
        row.expected_hash(&self.prev_hash, &mut String::new()) == self.hash
    }
}

/// A JSON object as its canonical text (RFC 8785).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Payload(Box<str>);

impl Payload {
    /// Takes text that is already canonical; callers inside the crate prove it
    /// by hashing or by having just written it.
    pub(crate) fn from_canonical(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The canonical text, exactly as stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The payload as a JSON value.
    ///
    /// # Errors
    /// The stored text is not JSON, which only tampering can cause.
    pub fn value(&self) -> Result<Value, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    /// The payload as the type its schema describes.
    ///
    /// # Errors
    /// The payload does not have that shape.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text names no member of a closed list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}")]
pub struct UnknownName {
    text: String,
    what: &'static str,
}

macro_rules! closed_names {
    ($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every member, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name as stored.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(UnknownName { text: text.chars().take(64).collect(), what: $what }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

closed_names! {
    /// Which face of the product a fact belongs to.
    Domain ("domain") {
        /// The coding agent.
        Agent = "agent",
        /// The plugin runtime.
        Plugin = "plugin",
        /// The platform.
        Platform = "platform",
    }
}

closed_names! {
    /// What kind of principal acted.
    ActorKind ("kind of actor") {
        /// A person.
        User = "user",
        /// A program with its own credential.
        ServicePrincipal = "service_principal",
        /// An agent session.
        Agent = "agent",
        /// A machine of the platform.
        Node = "node",
        /// The product itself.
        System = "system",
    }
}

/// The principal that acted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Actor {
    /// What kind of principal.
    pub kind: ActorKind,
    /// Which one.
    pub id: String,
    /// The principal it acted for, where that is another one.
    pub on_behalf_of: Option<String>,
}

impl Actor {
    /// A principal that acts for itself.
    #[must_use]
    pub fn new(kind: ActorKind, id: impl Into<String>) -> Self {
        Self {
            kind,
            id: id.into(),
            on_behalf_of: None,
        }
    }

    /// The product itself, named by the part that acts.
    #[must_use]
    pub fn system(part: impl Into<String>) -> Self {
        Self::new(ActorKind::System, part)
    }

    /// The same principal, acting for another.
    #[must_use]
    pub fn on_behalf_of(mut self, principal: impl Into<String>) -> Self {
        self.on_behalf_of = Some(principal.into());
        self
    }
}

/// Whose facts share one gap-free version counter.
///
/// The counter belongs to (domain, kind, id): the same pair in two domains is
/// two aggregates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Aggregate {
    /// Such as `session` or `deploy`.
    pub kind: String,
    /// Which one.
    pub id: String,
}

impl Aggregate {
    /// The aggregate of this kind and id.
    #[must_use]
    pub fn new(kind: impl Into<String>, id: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            id: id.into(),
        }
    }
}

/// The tenant a fact belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The organisation.
    pub org_id: Option<String>,
    /// The app in it.
    pub app_id: Option<String>,
    /// The environment of the app.
    pub env_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_names_read_back() {
        for domain in Domain::ALL {
            assert_eq!(domain.as_str().parse(), Ok(*domain));
        }
        for kind in ActorKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(*kind));
            let json = serde_json::to_string(kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
        }
        assert!("Agent".parse::<Domain>().is_err());
    }
}
