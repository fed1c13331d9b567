//! What policy says about a merge, path by path and as a whole.
//!
//! Only asks; the layer crate plans and applies, and whoever called answers
//! reviews. A deny of any path is a deny of the merge.

use std::collections::BTreeMap;

use fluffy_gate::{Answer, ApproveError, AuthorizeError, Desk};
use fluffy_layer::{Body, Difference, FileDifference, MergePlan, permit};
use fluffy_policy::{Context, Permit, Refusal, Request};

/// A request that was not simply granted.
#[derive(Debug)]
pub struct Judged {
    /// What was asked.
    pub request: Request,
    /// What was answered.
    pub refusal: Box<Refusal>,
}

/// What policy says about a whole merge.
#[derive(Debug)]
pub enum Verdict {
    /// These rules do not let it pass.
    Denied(Vec<Judged>),
    /// Somebody has to look at it first.
    Review(Box<Reviews>),
    /// It may be applied.
    Allowed(Permit),
}

/// What a person has to answer before a merge.
#[derive(Debug)]
pub struct Reviews {
    paths: Vec<Judged>,
    merge: Whole,
}

/// The merge as a whole.
#[derive(Debug)]
enum Whole {
    Permitted(Permit),
    Open(Judged),
}

/// Asks for every path of the plan and then for the merge as a whole; the
/// difference is that of the same paths.
///
/// # Errors
/// A decision could not be recorded.
pub fn judge(
    desk: &Desk,
    plan: &MergePlan,
    difference: &Difference,
    context: &Context,
) -> Result<Verdict, AuthorizeError> {
    let sizes = sizes(difference);
    let mut open = Vec::new();
    let mut denied = Vec::new();
    for need in plan.needs() {
        let (size, lines) = sizes.get(&need.resource).copied().unwrap_or_default();
        let context = Context {
            size: Some(size),
            lines: Some(lines),
            ..context.clone()
        };
        let request = desk.request(need.action, Some(&need.resource), &context);
        match desk.ask(&request)? {
            // The permit for the whole carries the merge out.
            Answer::Granted(_) => {}
            Answer::Review(refusal) => open.push(Judged { request, refusal }),
            Answer::Denied(refusal) => denied.push(Judged { request, refusal }),
        }
    }
    if !denied.is_empty() {
        return Ok(Verdict::Denied(denied));
    }
    let request = whole(desk, context, Some(difference.summary.weight));
    let merge = match desk.ask(&request)? {
        Answer::Granted(granted) if open.is_empty() => return Ok(Verdict::Allowed(granted.permit)),
        Answer::Granted(granted) => Whole::Permitted(granted.permit),
        Answer::Review(refusal) => Whole::Open(Judged { request, refusal }),
        Answer::Denied(refusal) => {
            return Ok(Verdict::Denied(vec![Judged { request, refusal }]));
        }
    };
    Ok(Verdict::Review(Box::new(Reviews { paths: open, merge })))
}

/// The request for a merge as a whole; without lines, for ending one that was
/// interrupted.
#[must_use]
pub fn whole(desk: &Desk, context: &Context, lines: Option<u64>) -> Request {
    let context = Context {
        lines,
        ..context.clone()
    };
    desk.request(permit::MERGE, None, &context)
}

impl Reviews {
    /// Carries a person's yes to all of it back to the gate.
    ///
    /// # Errors
    /// An approval could not be recorded or does not hold; nothing is merged.
    pub fn approve(self, desk: &Desk, by: &str) -> Result<Permit, ApproveError> {
        for Judged { request, refusal } in &self.paths {
            desk.approve(request, refusal, by)?;
        }
        match self.merge {
            Whole::Permitted(permit) => Ok(permit),
            Whole::Open(Judged { request, refusal }) => {
                Ok(desk.approve(&request, &refusal, by)?.permit)
            }
        }
    }

    /// The questions.
    pub fn open(&self) -> impl Iterator<Item = &Judged> {
        let merge = match &self.merge {
            Whole::Permitted(_) => None,
            Whole::Open(judged) => Some(judged),
        };
        self.paths.iter().chain(merge)
    }
}

/// Size and changed lines of every changed path, as rules name it.
fn sizes(difference: &Difference) -> BTreeMap<String, (u64, u64)> {
    let facts = |file: &FileDifference| {
        let size = file.change.after.map_or(0, |shape| shape.size);
        let lines = match &file.body {
            Body::Text { added, removed, .. } => added.saturating_add(*removed),
            Body::Whole { .. } | Body::Link { .. } | Body::Bare => 0,
        };
        let lines = u64::try_from(lines).unwrap_or(u64::MAX);
        Some((file.change.path.resource()?, (size, lines)))
    };
    difference.files.iter().filter_map(facts).collect()
}
