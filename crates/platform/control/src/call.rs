//! What comes with every request, and what a decision wants appended.
//!
//! Plain data, and the outcome of a decision. Who the caller is was established before (a token's hash, a
//! certificate, a socket's peer); what it may do is decided here, on exact
//! state. Next: `state`.

use std::collections::BTreeMap;
use std::str::FromStr;

use fluffy_api::Operation;
use fluffy_base::id::{ApprovalId, MasterKeyId, NodeId, PrincipalId, SecretVersionId, TokenId};
use fluffy_base::{Digest, Timestamp};
use fluffy_ledger::{Actor, Aggregate, Domain, Draft, Scope};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::event::{Body, ResolvedDigest};
use crate::mint::Mint;
use crate::refusal::Refusal;

/// Who asks, as established by the door that it came in by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// How it was established.
    pub kind: CallerKind,
    /// The principal, as the ledger names it.
    pub actor: Actor,
}

/// How a caller was established.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerKind {
    /// Nobody: it showed no credential.
    Anonymous,
    /// By a token whose hash matched.
    Token(TokenId),
    /// By the local socket: it owns the data directory.
    Local,
    /// By a certificate of our own authority.
    Node(NodeId),
    /// A loop of the platform itself.
    System(Option<Fence>),
}

/// Under which lease a loop acts; an older epoch than the current is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The name of the lease.
    pub lease: String,
    /// The epoch that its holder acquired.
    pub epoch: u64,
}

/// What comes with every request.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Who asks.
    pub caller: &'a Caller,
    /// The call from outside that this is part of.
    pub request_id: &'a str,
    /// The time, which decisions take from nowhere else.
    pub now: Timestamp,
    /// The key under which it may be repeated.
    pub idempotency: Option<Idempotency<'a>>,
    /// The version that the object must have.
    pub if_match: Option<u64>,
    /// Where new ids come from.
    pub mint: &'a Mint,
}

/// The key under which a request may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idempotency<'a> {
    /// What the caller chose.
    pub key: &'a str,
    /// The hash of what it sent.
    pub body_hash: Digest,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Which operation.
    pub operation: Operation,
    /// What its path names, in order: ids or names.
    pub path: Vec<String>,
    /// What stands behind the question mark. A list goes on behind `after`,
    /// which is what its last page had as `next_cursor`.
    pub query: BTreeMap<String, String>,
    /// The body.
    pub body: Option<Value>,
    /// What was prepared outside.
    pub material: Material,
}

impl Request {
    /// A request without query, body or material.
    #[must_use]
    pub fn new(operation: Operation, path: &[&str]) -> Self {
        Self {
            operation,
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            query: BTreeMap::new(),
            body: None,
            material: Material::None,
        }
    }

    /// The body as the type that the operation takes.
    ///
    /// # Errors
    /// It has another shape, or a field that does not exist.
    pub fn read_body<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        let body = self
            .body
            .clone()
            .unwrap_or_else(|| Value::Object(Map::new()));
        serde_json::from_value(body).map_err(|error| {
            // What is wrong, as the reader says it: it names fields, and
            // shows what was sent to nobody but its sender.
            let why: String = error.to_string().chars().take(256).collect();
            let code = match why.starts_with("unknown field") {
                true => "unknown_field",
                false => "invalid_argument",
            };
            Refusal::new(code, why, "see the operation in the API reference")
        })
    }

    /// The credentials that were prepared.
    ///
    /// # Errors
    /// There are none, which is a mistake of whoever calls this.
    pub fn credential(&self) -> Result<&NewCredential, Refusal> {
        match &self.material {
            Material::Credential(credential) => Ok(credential),
            _ => Err(Refusal::new("internal", "no credential was prepared", "")),
        }
    }
}

/// One event that a decision wants appended.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact {
    /// Whose it is; its kind is that of the body.
    pub aggregate_id: String,
    /// What happened.
    pub body: Body,
    /// The tenant that it belongs to.
    pub scope: Scope,
    /// What ties it to others, such as a deploy.
    pub correlation: Option<String>,
    /// The event that led to it.
    pub cause: Option<u64>,
    /// The place, in the same decision, of the fact that allowed it.
    pub decided_by: Option<usize>,
    /// Who acted, where that is not the caller but whose command was approved.
    pub actor: Option<Actor>,
}

impl Fact {
    /// A fact without tenant or references.
    #[must_use]
    pub fn new(aggregate_id: impl ToString, body: Body) -> Self {
        Self {
            aggregate_id: aggregate_id.to_string(),
            body,
            scope: Scope::default(),
            correlation: None,
            cause: None,
            decided_by: None,
            actor: None,
        }
    }

    /// The same, of a tenant.
    #[must_use]
    pub fn of(mut self, scope: &Scope) -> Self {
        self.scope = scope.clone();
        self
    }

    /// The draft that becomes its event, if the first fact gets `first_seq`.
    #[must_use]
    pub fn draft(&self, call: &Call<'_>, first_seq: u64) -> Draft {
        let aggregate = Aggregate::new(self.body.aggregate_kind(), self.aggregate_id.clone());
        let actor = self.actor.as_ref().unwrap_or(&call.caller.actor).clone();
        let mut draft = Draft::new(Domain::Platform, aggregate, self.body.event_type(), actor)
            .event_version(self.body.event_version())
            .payload(self.body.payload())
            .scope(self.scope.clone())
            .occurred_at(call.now)
            .request(call.request_id);
        if let Some(idempotency) = call.idempotency {
            draft = draft.idempotency(idempotency.key);
        }
        if let Some(correlation) = &self.correlation {
            draft = draft.correlation(correlation.clone());
        }
        if let Some(cause) = self.cause {
            draft = draft.caused_by(cause);
        }
        if let Some(place) = self.decided_by {
            draft = draft.decided_by(first_seq + place as u64);
        }
        draft
    }
}

/// What was prepared outside before a request is decided: never a value that
/// somebody must not see, only ids, names and hashes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Material {
    /// Nothing.
    #[default]
    None,
    /// What an image reference stands for now.
    Image(ResolvedImage),
    /// A version of secrets whose sealed form was put aside.
    Secret(SealedSecret),
    /// Credentials whose hashes were put aside.
    Credential(NewCredential),
    /// What was looked up or checked, in a word: how a hostname was proven,
    /// what a file system check said, which key was made.
    Proof(String),
}

/// The proof that nothing in the server's store is sealed with a master key.
pub const NOTHING_SEALED: &str = "nothing";

/// What an image reference stands for now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResolvedImage {
    /// The reference as it was given.
    pub image_ref: String,
    /// The digest of what it named.
    pub index_or_manifest_digest: String,
    /// The image for each kind of machine.
    pub resolved_digests: Vec<ResolvedDigest>,
    /// The size of all layers.
    pub compressed_bytes: u64,
}

/// A version of secrets whose sealed form was put aside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SealedSecret {
    /// The version under which it was put aside.
    pub version_id: SecretVersionId,
    /// A keyed hash of the plain form.
    pub data_hash: Digest,
    /// The names of the secrets, sorted.
    pub keys: Vec<String>,
    /// The size of the plain form.
    pub size_bytes: u64,
    /// The key that it is sealed with.
    pub master_key_id: MasterKeyId,
    /// What it was made from.
    pub basis: Basis,
}

/// What a version of secrets was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Nothing: it is a whole new set.
    Nothing,
    /// What was there, which was nothing before the first version.
    Current(Option<SecretVersionId>),
}

/// Credentials whose hashes were put aside.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NewCredential {
    /// The ids under which hashes were put aside; an access token comes before
    /// its refresh token.
    pub issued: Vec<String>,
    /// What was shown for them, in an exchange.
    pub shown: Option<Shown>,
    /// A keyed hash of the address of whoever is invited.
    pub email_hash: Option<String>,
}

/// What was shown in exchange for tokens; its hash matched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shown {
    /// An invite or a refresh token.
    Token(TokenId),
    /// The secret of a service principal, as of this rotation.
    Secret {
        /// Whose.
        principal: PrincipalId,
        /// Of which rotation; none for the first secret.
        rotation: Option<String>,
    },
}

impl NewCredential {
    /// One of the ids under which hashes were put aside.
    ///
    /// # Errors
    /// There is none of that kind, which is a mistake of whoever calls this.
    pub fn id<Id: FromStr>(&self, place: usize) -> Result<Id, Refusal> {
        let id = self.issued.get(place).and_then(|id| id.parse().ok());
        id.ok_or_else(|| Refusal::new("internal", "no credential was prepared", ""))
    }
}

/// What a command wants appended, and what it answers with.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// What happens, in order. Those without scope get that of the request.
    pub facts: Vec<Fact>,
    /// What the answer shows.
    pub subject: Subject,
    /// The status of the answer.
    pub status: u16,
}

/// What an answer shows, read from the state after the append.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// The kind of object: that of its aggregate.
    pub kind: String,
    /// Which; empty for none.
    pub id: String,
    /// More fields of the answer.
    pub details: Map<String, Value>,
    /// What an approved command led to.
    pub result: Option<Box<Self>>,
}

impl Subject {
    /// The object itself.
    #[must_use]
    pub fn of(kind: &str, id: impl ToString) -> Self {
        Self {
            kind: kind.to_owned(),
            id: id.to_string(),
            ..Self::default()
        }
    }

    /// The same with one more field in the answer.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }
}

/// A decision: what to append, whatever its outcome, and the outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// What happens, in order; a denial is recorded too.
    pub facts: Vec<Fact>,
    /// How it ended.
    pub outcome: Outcome,
}

impl Written {
    /// Nothing happens.
    #[must_use]
    pub const fn refused(refusal: Refusal) -> Self {
        Self {
            facts: Vec::new(),
            outcome: Outcome::Refused(refusal),
        }
    }
}

impl From<Change> for Written {
    fn from(change: Change) -> Self {
        Self {
            facts: change.facts,
            outcome: Outcome::Done {
                status: change.status,
                subject: change.subject,
            },
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It was done.
    Done {
        /// The status of the answer.
        status: u16,
        /// What the answer shows.
        subject: Subject,
    },
    /// It waits for a person.
    Parked {
        /// Under which id.
        approval: ApprovalId,
        /// Until when.
        expires_at: Timestamp,
    },
    /// It was done before under the same key.
    Replayed {
        /// The event of its decision then.
        seq: u64,
    },
    /// It was not done.
    Refused(Refusal),
}
