//! The question whether a sandbox may reach a host, and the answer to it.
//!
//! The proxy asks before it looks a name up, once for every request. An answer
//! of yes is a `Permit`, which connecting uses up. `by_gate.rs` asks the gate,
//! `allow_list.rs` a list that a person wrote; nothing here allows anything.

use std::net::IpAddr;

use fluffy_base::id::SandboxId;
use fluffy_contract::BoxFuture;
use fluffy_ledger::SeqRef;
use fluffy_policy::Permit;
use serde::Serialize;

use crate::target::Target;

/// Who decides whether a sandbox may reach a host.
pub trait Decide: Send + Sync {
    /// Decides one request; an error of any kind is a no.
    fn decide<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Allowed, Denied>>;
}

/// One request, as far as a decision may look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Which sandbox asks.
    pub sandbox: SandboxId,
    /// The template it was made from.
    pub template: String,
    /// Whom it wants to reach.
    pub target: Target,
    /// In which way.
    pub kind: Kind,
}

/// The two ways through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A tunnel.
    Connect,
    /// One exchange of plain HTTP.
    Http,
}

/// A yes.
#[derive(Debug)]
pub struct Allowed {
    /// What connecting takes; for `net.connect` and exactly this target.
    pub permit: Permit,
    /// What was said yes to beyond the ordinary.
    pub terms: Terms,
    /// What allowed it, for the record.
    pub rule: Option<String>,
    /// Where the decision is recorded.
    pub decision: Option<SeqRef>,
}

/// What a yes includes beyond TLS to a public address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms {
    /// Where the host is to be found, instead of looking it up.
    pub place: Place,
    /// What a tunnel may carry.
    pub content: Content,
}

/// Where a host may be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Place {
    /// Wherever its name leads, if that is public.
    #[default]
    Public,
    /// At these addresses, which somebody wrote down; they need not be public.
    Exactly(Vec<IpAddr>),
}

/// What a tunnel may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Content {
    /// TLS whose server name is the host.
    #[default]
    Tls,
    /// Anything.
    Any,
}

/// A no.
#[derive(Debug)]
pub enum Denied {
    /// Decided so.
    Rule {
        /// What spoke, in its own words; empty if nothing allowed it.
        why: String,
        /// Which rule, for the record.
        rule: Option<String>,
        /// Where the decision is recorded.
        decision: Option<SeqRef>,
    },
    /// There was no decision; nothing is allowed without one.
    Undecided,
}
