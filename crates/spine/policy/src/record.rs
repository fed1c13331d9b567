//! The recorded form of a decision: the payload of `policy.decision`.
//!
//! Holds the canonical request, the policy's hash, the verdict, who spoke and
//! why, and what became of a token: enough to judge again. It is a report and
//! yields no permit.

use fluffy_base::id::{DecisionId, TokenId};
use fluffy_base::{Digest, Timestamp};
use serde::{Deserialize, Serialize};

use crate::decision::{Decision, Layer, TokenOutcome, Verdict};
use crate::request::Request;
use crate::rule::{Effect, Origin};

/// The version that is written.
pub const VERSION: u32 = 1;

/// A decision and its request, as the ledger keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionRecord {
    /// The version of this form; see [`VERSION`].
    pub v: u32,
    /// The decision's id.
    pub id: DecisionId,
    /// The one clock reading of the evaluation.
    pub at: Timestamp,
    /// The hash of the policy.
    pub policy: Digest,
    /// The policy's epoch.
    pub epoch: u64,
    /// The answer.
    pub verdict: Verdict,
    /// Who spoke.
    pub spoke: Vec<SpokeRecord>,
    /// What became of the token, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenRecord>,
    /// What was asked.
    pub request: Request,
}

/// One voice, recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpokeRecord {
    /// In which layer.
    pub layer: Layer,
    /// From which origin.
    pub origin: Origin,
    /// The rule's name.
    pub rule: String,
    /// What it said.
    pub effect: Effect,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A token's part, recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    /// Which token.
    pub id: TokenId,
    /// What became of it.
    pub outcome: TokenOutcome,
}

impl DecisionRecord {
    /// The record of a decision about this request.
    #[must_use]
    pub fn of(decision: &Decision, request: &Request) -> Self {
        let spoke = decision.spoke().iter().map(|voice| SpokeRecord {
            layer: voice.layer,
            origin: voice.label.origin,
            rule: voice.label.name.clone(),
            effect: voice.effect,
            reason: voice.label.reason.clone(),
        });
        Self {
            v: VERSION,
            id: decision.id(),
            at: decision.at(),
            policy: decision.policy(),
            epoch: decision.epoch(),
            verdict: decision.verdict(),
            spoke: spoke.collect(),
            token: decision.token().map(|token| TokenRecord {
                id: token.id,
                outcome: token.outcome,
            }),
            request: request.clone(),
        }
    }
}
