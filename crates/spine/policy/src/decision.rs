//! What the engine answers, and the proof that it said yes.
//!
//! A [`Permit`] is what every effectful function takes by value. It can only
//! come out of an allowed [`Decision`], cannot be copied, and a decision can
//! only come out of the engine. Recorded decisions ([`crate::record`]) are
//! reports and lead back to neither.

use std::fmt;
use std::sync::Arc;

use fluffy_base::id::{DecisionId, TokenId};
use fluffy_base::{Digest, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capability::Capability;
use crate::rule::{Effect, Label};

/// The answer to a request.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It may go ahead.
    Allow,
    /// It may not.
    Deny,
    /// It may after a person said so.
    RequireReview,
}

impl Verdict {
    /// The verdict as it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::RequireReview => "require_review",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The layer in which something spoke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Before all rules: the request itself is unusable.
    Request,
    /// The ceiling.
    Grants,
    /// Compiled-in rules.
    Builtin,
    /// A token.
    Token,
    /// Rules from files.
    Rules,
    /// Extensions.
    Extensions,
}

/// One voice in a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spoke {
    /// In which layer.
    pub layer: Layer,
    /// Who: the rule's origin, name, reason and line.
    pub label: Arc<Label>,
    /// What it said.
    pub effect: Effect,
}

/// What became of a token that came with the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenUse {
    /// Which token.
    pub id: TokenId,
    /// What became of it.
    pub outcome: TokenOutcome,
}

/// How a token fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenOutcome {
    /// It was valid and decided.
    Used,
    /// It does not belong to this engine's secret: forged. Denied.
    Forged,
    /// Its counter was used before. Denied.
    Replayed,
    /// Its time is over; the request was evaluated in full.
    Expired,
    /// Its operations are used up; evaluated in full.
    UsedUp,
    /// It was revoked or is no longer known; evaluated in full.
    Revoked,
    /// The policy changed since; evaluated in full.
    OldPolicy,
    /// It is for another sandbox, process, action, resource or state;
    /// evaluated in full.
    NotForThis,
}

/// What the engine decided, and everything that went into it.
#[derive(Debug)]
#[must_use = "a decision that nobody looks at protects nothing"]
pub struct Decision {
    pub(crate) id: DecisionId,
    pub(crate) at: Timestamp,
    pub(crate) verdict: Verdict,
    pub(crate) spoke: Vec<Spoke>,
    pub(crate) token: Option<TokenUse>,
    pub(crate) policy: Digest,
    pub(crate) epoch: u64,
    pub(crate) subject: Judged,
    /// Whether any extension declares the action.
    pub(crate) extended: bool,
}

/// What was judged: action and resource in their one spelling.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) action: String,
    pub(crate) resource: Option<String>,
    /// None for a request that never became one.
    pub(crate) capability: Option<Capability>,
}

impl Decision {
    /// The decision's id.
    #[must_use]
    pub const fn id(&self) -> DecisionId {
        self.id
    }

    /// The one clock reading the evaluation used.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// The answer.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Everything that spoke, sorted by layer and name.
    #[must_use]
    pub fn spoke(&self) -> &[Spoke] {
        &self.spoke
    }

    /// The reasons for the verdict; all of them where there are several.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        let decisive = match self.verdict {
            Verdict::Allow => Effect::Allow,
            Verdict::Deny => Effect::Deny,
            Verdict::RequireReview => Effect::RequireReview,
        };
        let voices = self
            .spoke
            .iter()
            .filter(move |voice| voice.effect == decisive);
        voices.map(|voice| match voice.label.reason.as_str() {
            "" => voice.label.name.as_str(),
            reason => reason,
        })
    }

    /// What became of the token, if one was presented.
    #[must_use]
    pub const fn token(&self) -> Option<&TokenUse> {
        self.token.as_ref()
    }

    /// The hash of the policy it was decided under.
    #[must_use]
    pub const fn policy(&self) -> Digest {
        self.policy
    }

    /// The policy's epoch.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The action that was judged.
    #[must_use]
    pub fn action(&self) -> &str {
        &self.subject.action
    }

    /// The resource that was judged, in its one spelling.
    #[must_use]
    pub fn resource(&self) -> Option<&str> {
        self.subject.resource.as_deref()
    }

    /// The permit, if the verdict is allow.
    ///
    /// # Errors
    /// The decision itself, as a refusal.
    pub fn into_permit(self) -> Result<Permit, Refusal> {
        match (self.verdict, self.subject.capability) {
            (Verdict::Allow, Some(capability)) => Ok(Permit {
                capability,
                action: self.subject.action,
                resource: self.subject.resource,
                decision: self.id,
            }),
            (_, capability) => {
                let subject = Judged {
                    capability,
                    ..self.subject
                };
                let decision = Box::new(Decision { subject, ..self });
                Err(Refusal { decision })
            }
        }
    }
}

/// The right to do one thing once; only an allowed decision yields one.
///
/// Not `Clone`, not `Default`, no public fields: an effect that takes a permit
/// by value has been decided.
#[derive(Debug)]
#[must_use]
pub struct Permit {
    capability: Capability,
    action: String,
    resource: Option<String>,
    decision: DecisionId,
}

impl Permit {
    /// What is permitted, as one string.
    #[must_use]
    pub const fn capability(&self) -> &Capability {
        &self.capability
    }

    /// The permitted action.
    #[must_use]
    pub fn action(&self) -> &str {
        &self.action
    }

    /// The permitted resource, in the spelling to be used.
    #[must_use]
    pub fn resource(&self) -> Option<&str> {
        self.resource.as_deref()
    }

    /// The decision it comes from.
    #[must_use]
    pub const fn decision_id(&self) -> DecisionId {
        self.decision
    }
}

/// A decision that was not allow.
#[derive(Debug)]
pub struct Refusal {
    decision: Box<Decision>,
}

impl Refusal {
    /// The decision behind it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Whether a person could still permit it.
    #[must_use]
    pub fn is_reviewable(&self) -> bool {
        self.decision.verdict == Verdict::RequireReview
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.is_reviewable() {
            true => "needs a person's review",
            false => "is denied",
        };
        match self.decision.resource() {
            Some(resource) => write!(f, "`{}` on `{resource}` {outcome}", self.decision.action()),
            None => write!(f, "`{}` {outcome}", self.decision.action()),
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    /// Implemented twice for what can be read from text, so that the mention
    /// below does not compile for such a type.
    trait NotReadable<Which> {
        fn holds() {}
    }

    impl<T> NotReadable<()> for T {}

    struct Readable;

    impl<T: DeserializeOwned> NotReadable<Readable> for T {}

    #[test]
    fn neither_permits_nor_decisions_are_read_from_text() {
        <Permit as NotReadable<_>>::holds();
        <Decision as NotReadable<_>>::holds();
    }
}
