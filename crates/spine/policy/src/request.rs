//! What is asked: principal, action, resource, context.
//!
//! A request is plain data. It is recorded in the ledger exactly as it was
//! judged and can be judged again from the recording, so it holds everything a
//! rule may look at, the grant included, and no secret. Reading it makes no
//! promise that it is well-formed: the engine denies what is not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fluffy_base::Digest;
use fluffy_base::canonical::{self, CanonicalError};
use fluffy_base::id::SandboxId;
use serde::{Deserialize, Serialize};

use crate::grant::Grant;
use crate::wire::RequestV1;
use crate::word::{Mode, State, Tier};

/// One question to the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "RequestV1", try_from = "RequestV1")]
pub struct Request {
    /// Who acts.
    pub principal: Principal,
    /// The dotted verb, such as `fs.write`.
    pub action: String,
    /// What it acts on; the action says of which kind.
    pub resource: Option<String>,
    /// Everything else that rules may look at.
    pub context: Context,
}

impl Request {
    /// The recorded form: canonical JSON, one text for one request.
    ///
    /// # Errors
    /// A number beyond what JSON readers keep exactly.
    pub fn canonical(&self) -> Result<String, CanonicalError> {
        // Serializing plain data of ours cannot fail; a failure would show up
        // as `null`, which no reader takes for a request.
        let value = serde_json::to_value(self).unwrap_or_default();
        canonical::to_string(&value)
    }
}

/// Who acts: a user, an agent session, a plugin, a service, a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// What sort of actor it is.
    pub kind: PrincipalKind,
    /// Its name, unique within its kind.
    pub name: String,
    /// Trust labels, fixed when it was registered.
    pub tags: BTreeSet<String>,
    /// The isolated run it speaks from.
    pub sandbox: Option<SandboxId>,
    /// The operating system's word for the process that asks.
    pub process: Option<ProcessIdentity>,
    /// For whom it acts, where it acts for another.
    pub on_behalf_of: Option<String>,
    /// Its ceiling; none means unregistered, and nothing is allowed.
    pub grant: Option<Arc<Grant>>,
}

impl Principal {
    /// A principal with a ceiling and nothing else.
    #[must_use]
    pub fn new(kind: PrincipalKind, name: impl Into<String>, grant: Arc<Grant>) -> Self {
        Self {
            kind,
            name: name.into(),
            tags: BTreeSet::new(),
            sandbox: None,
            process: None,
            on_behalf_of: None,
            grant: Some(grant),
        }
    }
}

/// The sorts of principals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrincipalKind {
    /// A person.
    User,
    /// A session of the agent.
    Agent,
    /// A plugin.
    Plugin,
    /// A service that logs in with its own credential.
    Service,
    /// A machine of the platform.
    Node,
}

/// A process that a reused pid does not inherit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessIdentity {
    /// The process id.
    pub pid: u32,
    /// Its start time, or the number of its pidfd, whichever the system gives.
    pub started: u64,
}

/// The circumstances of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Context {
    /// The session's mode.
    pub mode: Option<Mode>,
    /// The workflow's state.
    pub state: Option<State>,
    /// The template of the sandbox.
    pub template: Option<String>,
    /// How strongly the sandbox isolates.
    pub tier: Option<Tier>,
    /// Whose data it is about, on the platform.
    pub tenant: Option<String>,
    /// The size in bytes of what is written or sent.
    pub size: Option<u64>,
    /// How many lines it has or changes.
    pub lines: Option<u64>,
    /// The peer's name, for actions whose resource is not itself a host.
    pub host: Option<String>,
    /// The peer's port.
    pub port: Option<u16>,
    /// Fields left out of a recording, each with a keyed hash of its value.
    pub redacted: BTreeMap<Field, Digest>,
}

/// The fields of a request that a rule can look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// The resource, where it is a path.
    Path,
    /// The host and port.
    Host,
    /// The principal's name.
    Caller,
    /// The principal's tags.
    CallerTag,
    /// The session's mode.
    Mode,
    /// The workflow's state.
    State,
    /// The sandbox's template.
    Template,
    /// The sandbox's tier.
    Tier,
    /// The tenant.
    Tenant,
    /// The size in bytes.
    Size,
    /// The number of lines.
    Lines,
}

impl Field {
    /// All fields.
    pub const ALL: [Self; 11] = [
        Self::Path,
        Self::Host,
        Self::Caller,
        Self::CallerTag,
        Self::Mode,
        Self::State,
        Self::Template,
        Self::Tier,
        Self::Tenant,
        Self::Size,
        Self::Lines,
    ];

    /// The field's name in a policy file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Path => "path_glob",
            Self::Host => "host",
            Self::Caller => "caller",
            Self::CallerTag => "caller_tag",
            Self::Mode => "mode",
            Self::State => "state",
            Self::Template => "template",
            Self::Tier => "tier",
            Self::Tenant => "tenant",
            Self::Size => "size",
            Self::Lines => "lines",
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::grant::GrantLists;

    use super::*;

    fn request() -> Request {
        let grant = Grant::build(&GrantLists {
            capabilities: vec!["fs.*".into()],
            deny_capabilities: vec!["exec.*".into()],
            workspace: vec!["*".into()],
            user: vec!["*".into()],
        });
        Request {
            principal: Principal {
                tags: ["third_party".to_owned()].into(),
                sandbox: Some(SandboxId::from_bits(7)),
                process: Some(ProcessIdentity { pid: 1, started: 2 }),
                on_behalf_of: Some("maria".into()),
                ..Principal::new(PrincipalKind::Plugin, "tracker", Arc::new(grant.unwrap()))
            },
            action: "fs.write".into(),
            resource: Some("/src/é.rs".into()),
            context: Context {
                mode: Some(Mode::Strict),
                state: Some(State::CodeWriting),
                tier: Some(Tier::Microvm),
                size: Some(12),
                redacted: [(Field::Tenant, Digest::of(b"x"))].into(),
                ..Context::default()
            },
        }
    }

    #[test]
    fn a_request_survives_its_recording() {
        let original = request();
        let text = original.canonical().unwrap();
        let back: Request = serde_json::from_str(&text).unwrap();
        assert_eq!(back, original);
        assert_eq!(back.canonical().unwrap(), text);
        assert!(text.contains("\"v\":1"), "{text}");
    }

    #[test]
    fn what_is_absent_is_absent_from_the_recording() {
        let bare = Request {
            principal: Principal {
                grant: None,
                ..Principal::new(
                    PrincipalKind::User,
                    "a",
                    Arc::new(Grant::build(&GrantLists::default()).unwrap()),
                )
            },
            action: "log.write".into(),
            resource: None,
            context: Context::default(),
        };
        let text = bare.canonical().unwrap();
        assert_eq!(
            text,
            r#"{"action":"log.write","context":{},"principal":{"kind":"user","name":"a"},"v":1}"#
        );
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), bare);
    }

    #[test]
    fn a_recording_of_another_version_or_with_unknown_fields_is_refused() {
        let text = request().canonical().unwrap();
        for broken in [
            text.replace("\"v\":1", "\"v\":2"),
            text.replace("\"v\":1", "\"v\":1,\"extra\":0"),
            text.replace("\"fs.*\"", "\"fs..x\""),
            text.replace("\"strict\"", "\"lenient\""),
        ] {
            assert!(
                serde_json::from_str::<Request>(&broken).is_err(),
                "{broken}"
            );
        }
    }

    #[test]
    fn a_number_that_json_cannot_keep_has_no_recording() {
        let mut huge = request();
        huge.context.size = Some(u64::MAX);
        assert!(huge.canonical().is_err());
    }
}
