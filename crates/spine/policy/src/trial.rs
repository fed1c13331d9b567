//! Trying a policy before it holds: recorded requests under old and new.
//!
//! Both sides are evaluated anew from the recorded inputs, so only the rules
//! differ and tokens play no part. A request with a left-out field that some
//! rule looks at is reported as not replayable and never guessed.

use fluffy_base::id::DecisionId;
use serde::Serialize;

use crate::decision::{Decision, Verdict};
use crate::engine::Engine;
use crate::extension::Extensions;
use crate::record::{DecisionRecord, VERSION};
use crate::request::Request;
use crate::subject::Subject;

/// The most differences a report lists; the others are counted.
pub const MAX_CHANGES: usize = 100_000;

/// More breaking changes than this need a typed confirmation.
pub const CONFIRM_ABOVE: usize = 5;

/// A policy with its extensions.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// The rules.
    pub engine: &'a Engine,
    /// The extensions.
    pub extensions: &'a dyn Extensions,
}

impl std::fmt::Debug for Side<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Side")
            .field("policy", &self.engine.digest())
            .finish_non_exhaustive()
    }
}

/// What would be different.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TrialReport {
    /// The differences, in the order of the recordings.
    pub changes: Vec<Change>,
    /// How many differences there are, listed or not.
    pub changed: usize,
    /// How many allows would become denies.
    pub breaking: usize,
    /// How many requests are decided as before.
    pub unchanged: usize,
    /// How many could not be replayed.
    pub not_replayed: usize,
}

impl TrialReport {
    /// Whether a person must type a phrase before this policy is applied.
    #[must_use]
    pub const fn needs_confirmation(&self) -> bool {
        self.breaking > CONFIRM_ABOVE
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The recorded decision.
    pub decision: DecisionId,
    /// Who asked.
    pub principal: String,
    /// For what.
    pub action: String,
    /// On what.
    pub resource: Option<String>,
    /// What it is.
    pub class: Class,
    /// Why: the reasons of the new decision, or why there is none.
    pub because: Vec<String>,
}

/// The kinds of differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// It was denied or reviewed and would be allowed.
    NewlyAllowed,
    /// It was allowed and would be denied: BREAKING.
    Breaking,
    /// It was reviewed and would be denied.
    NewlyDenied,
    /// It was allowed or denied and would need a review.
    NewlyReviewed,
    /// It cannot be evaluated again.
    CannotReplay,
}

/// Compares two policies on recorded decisions.
pub fn compare<'r>(
    old: Side<'_>,
    new: Side<'_>,
    records: impl IntoIterator<Item = &'r DecisionRecord>,
) -> TrialReport {
    let mut report = TrialReport::default();
    for record in records {
        match replay(old, new, record) {
            Ok((before, after)) => match class_of(before.verdict(), after.verdict()) {
                None => report.unchanged += 1,
                Some(class) => {
                    report.breaking += usize::from(class == Class::Breaking);
                    report.changed += 1;
                    let because = after.reasons().map(str::to_owned).collect();
                    report.list(record, class, because);
                }
            },
            Err(why) => {
                report.not_replayed += 1;
                report.list(record, Class::CannotReplay, vec![why]);
            }
        }
    }
    report
}

impl TrialReport {
    fn list(&mut self, record: &DecisionRecord, class: Class, because: Vec<String>) {
        if self.changes.len() < MAX_CHANGES {
            self.changes.push(Change {
                decision: record.id,
                principal: record.request.principal.name.clone(),
                action: record.request.action.clone(),
                resource: record.request.resource.clone(),
                class,
                because,
            });
        }
    }
}

const fn class_of(before: Verdict, after: Verdict) -> Option<Class> {
    match (before, after) {
        (Verdict::Allow, Verdict::Allow)
        | (Verdict::Deny, Verdict::Deny)
        | (Verdict::RequireReview, Verdict::RequireReview) => None,
        (Verdict::Deny | Verdict::RequireReview, Verdict::Allow) => Some(Class::NewlyAllowed),
        (Verdict::Allow, Verdict::Deny) => Some(Class::Breaking),
        (Verdict::RequireReview, Verdict::Deny) => Some(Class::NewlyDenied),
        (Verdict::Allow | Verdict::Deny, Verdict::RequireReview) => Some(Class::NewlyReviewed),
    }
}

fn replay(
    old: Side<'_>,
    new: Side<'_>,
    record: &DecisionRecord,
) -> Result<(Decision, Decision), String> {
    if record.v != VERSION {
        return Err(format!(
            "recorded in version `{}`, which is not known",
            record.v
        ));
    }
    let request = &record.request;
    if !request.context.redacted.is_empty() {
        needs_redacted(old.engine, request)?;
        needs_redacted(new.engine, request)?;
    }
    let evaluate = |side: Side<'_>| side.engine.evaluate(request, record.at, side.extensions);
    let (before, after) = (evaluate(old), evaluate(new));
    let asked = before.extended || after.extended;
    match asked && !request.context.redacted.is_empty() {
        true => Err("an extension looks at the request, of which a part was left out".to_owned()),
        false => Ok((before, after)),
    }
}

/// Refuses when some rule looks at a field that was left out.
fn needs_redacted(engine: &Engine, request: &Request) -> Result<(), String> {
    let Ok(subject) = Subject::read(request) else {
        return Err("the part that was left out is the resource".to_owned());
    };
    let facts = subject.facts();
    for field in request.context.redacted.keys() {
        let looking = engine
            .rules_about(&facts)
            .find(|(_, rule)| rule.looks_at(*field));
        if let Some((_, rule)) = looking {
            let rule = rule.label.id();
            return Err(format!(
                "`{rule}` looks at `{}`, which was left out",
                field.name()
            ));
        }
    }
    Ok(())
}
