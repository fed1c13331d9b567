//! Why a request is decided as it is: every rule about its action.
//!
//! Structured data for a table or a tree; a front end draws it. Looks at all
//! rules about the action, not only at those the index would pick, so it is
//! for people and not for the hot path.

use fluffy_base::Timestamp;
use serde::Serialize;

use crate::decision::Layer;
use crate::engine::Engine;
use crate::extension::Extensions;
use crate::record::DecisionRecord;
use crate::request::Request;
use crate::rule::{Miss, Origin, Outcome, Rule};
use crate::subject::Subject;

/// A decision and what each rule about the action made of the request.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// The decision, as it would be recorded.
    pub decision: DecisionRecord,
    /// Every rule about the action, built-in ones first.
    pub rules: Vec<Considered>,
}

/// What one rule made of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Considered {
    /// The rule's layer.
    pub layer: Layer,
    /// Where it comes from.
    pub origin: Origin,
    /// Its name.
    pub rule: String,
    /// Its line in its file; 0 where there is no file.
    pub line: u32,
    /// What it came to.
    pub outcome: Consideration,
    /// In words.
    pub because: String,
}

/// The ways in which a rule can come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Consideration {
    /// It allowed.
    Allowed,
    /// It denied.
    Denied,
    /// It asked for review.
    Reviewed,
    /// It does not apply.
    NotMatched,
    /// An exception turned it into a pass.
    Excepted,
    /// It would allow, but a constraint is not met.
    Unmet,
    /// It passes by itself.
    Passed,
}

impl Engine {
    /// Decides a request and explains the decision.
    pub fn explain(
        &self,
        request: &Request,
        now: Timestamp,
        extensions: &dyn Extensions,
    ) -> Explanation {
        let decision = self.evaluate(request, now, extensions);
        let rules = match Subject::read(request) {
            Err(_) => Vec::new(),
            Ok(subject) => {
                let facts = subject.facts();
                let rules = self.rules_about(&facts);
                let rules = rules.map(|(layer, rule)| consider(layer, rule, rule.judge(&facts)));
                rules.collect()
            }
        };
        Explanation {
            decision: DecisionRecord::of(&decision, request),
            rules,
        }
    }
}

fn consider(layer: Layer, rule: &Rule, outcome: Outcome) -> Considered {
    use crate::rule::Effect;
    let reason = || match rule.label.reason.as_str() {
        "" => "it matches".to_owned(),
        reason => reason.to_owned(),
    };
    let (outcome, because) = match outcome {
        Outcome::Speaks(Effect::Allow) => (Consideration::Allowed, reason()),
        Outcome::Speaks(Effect::Deny) => (Consideration::Denied, reason()),
        Outcome::Speaks(Effect::RequireReview) => (Consideration::Reviewed, reason()),
        Outcome::NotMatched(Miss::Action) => {
            (Consideration::NotMatched, "another action".to_owned())
        }
        Outcome::NotMatched(Miss::Field(field)) => (
            Consideration::NotMatched,
            format!("`{}` does not match", field.name()),
        ),
        Outcome::Excepted(position) => (
            Consideration::Excepted,
            format!("`except` number {} matches", position + 1),
        ),
        Outcome::Unmet(constraint) => (Consideration::Unmet, format!("`{constraint}` is not met")),
        Outcome::Passes => (Consideration::Passed, "it passes".to_owned()),
    };
    Considered {
        layer,
        origin: rule.label.origin,
        rule: rule.label.name.clone(),
        line: rule.label.line,
        outcome,
        because,
    }
}
