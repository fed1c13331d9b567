//! What stands in the way of a merge, in words: pure, from facts to reports.
//!
//! Every report names the paths, why, and what to do; nothing is decided here.
//! Next: `merge` asks the questions.

use fluffy_kernel::merge::{Judged, Reviews};
use fluffy_layer::{ApplyError, ConflictKind, MergePlan, PlanError, Trouble};
use fluffy_report::{ExitCode, Report};

use super::unreadable;
use crate::command::gate::denied;

/// How many paths of one kind are named in a report.
pub(super) const MAX_NAMED: usize = 20;

/// What is never merged, and what both sides changed.
pub(super) fn blocked(plan: &MergePlan) -> Option<Report> {
    if !plan.refusals().is_empty() {
        let what = match plan.refusals().len() {
            1 => "a path of the layer is never merged".to_owned(),
            count => format!("{count} paths of the layer are never merged"),
        };
        let mut report = Report::new(ExitCode::Denied, what).code("merge_refused");
        for refusal in plan.refusals().iter().take(MAX_NAMED) {
            let detail = refusal.detail.as_deref().map(|text| format!(" ({text})"));
            report = report.why(format!(
                "`{}`{}: {}",
                refusal.path,
                detail.unwrap_or_default(),
                refusal.reason.sentence()
            ));
        }
        let mut fixes: Vec<&str> = plan
            .refusals()
            .iter()
            .map(|refusal| refusal.reason.fix())
            .collect();
        fixes.dedup();
        for fix in fixes.into_iter().take(3) {
            report = report.fix(fix);
        }
        return Some(report.fix("or merge the rest with --without PATH"));
    }
    if plan.conflicts().is_empty() {
        return None;
    }
    let mut report = Report::new(
        ExitCode::Conflict,
        "the project changed underneath, and the two do not fit",
    )
    .code("merge_conflict");
    for conflict in plan.conflicts().iter().take(MAX_NAMED) {
        report = report.why(format!(
            "`{}`: {}",
            conflict.path,
            conflict_words(conflict.kind)
        ));
        if let Some(shown) = &conflict.shown {
            report = report.why(shown.clone());
        }
    }
    Some(
        report
            .fix("change the project so that it fits, or merge the rest with --without PATH")
            .fix("nothing was overwritten; the layer is as it was"),
    )
}

fn conflict_words(kind: ConflictKind) -> &'static str {
    match kind {
        ConflictKind::BothChanged => "both changed it",
        ConflictKind::BothAdded => "both added it, differently",
        ConflictKind::ChangedInProject => "the layer removed what the project changed",
        ConflictKind::RemovedInProject => "the layer changed what the project removed",
        ConflictKind::BaseUnknown => "they differ, and what was there before is not known",
        ConflictKind::DirectoryInTheWay => "something else stands where its directory should be",
        ConflictKind::DirectoryNotEmpty => "the directory to be removed holds something new",
    }
}

pub(super) fn trouble_words(trouble: &Trouble) -> String {
    match trouble {
        Trouble::ProjectChanged => "the project has something else there now".to_owned(),
        Trouble::LayerChanged => "the layer has something else there now".to_owned(),
        Trouble::NoDirectory => "the directory it belongs into is gone".to_owned(),
        Trouble::NotEmpty => "the directory to be removed is not empty".to_owned(),
        Trouble::Denied => "the system does not let us change it".to_owned(),
        Trouble::Kept { path } => format!("what the project had is kept as `{path}`"),
    }
}

/// The paths that policy denies, in one report.
pub(super) fn denials(refused: &[Judged]) -> Report {
    if let [Judged { request, refusal }] = refused {
        return denied(request, refusal);
    }
    let mut report = Report::new(
        ExitCode::Denied,
        format!("policy denies {} of the changes", refused.len()),
    );
    for Judged { request, refusal } in refused.iter().take(MAX_NAMED) {
        let resource = request.resource.as_deref().unwrap_or_default();
        let reason = refusal.decision().reasons().next().unwrap_or_default();
        let reason = if reason.is_empty() {
            "no rule allows it"
        } else {
            reason
        };
        report = report.why(format!("`{} {resource}`: {reason}", request.action));
    }
    report.fix("merge the rest with --without PATH")
}

/// What is to be looked at and why, without repeating itself.
pub(super) fn reasons(reviews: &Reviews) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    for Judged { request, refusal } in reviews.open() {
        for reason in refusal.decision().reasons() {
            let text = match &request.resource {
                Some(resource) => format!("`{resource}`: {reason}"),
                None => reason.to_owned(),
            };
            if !reasons.contains(&text) && reasons.len() < MAX_NAMED {
                reasons.push(text);
            }
        }
    }
    reasons
}

pub(super) fn no_plan(error: &PlanError) -> Report {
    match error {
        PlanError::Read(error) => unreadable(error),
        PlanError::File(_) => Report::from_error(ExitCode::Failure, error)
            .fix("check that the project and the state directory can be read"),
    }
}

pub(super) fn not_applied(error: &ApplyError, layer: &str) -> Report {
    let (exit, fix) = match error {
        ApplyError::Outdated { .. } => (ExitCode::Conflict, "run it again".to_owned()),
        ApplyError::NothingToResume { .. } => (
            ExitCode::NotFound,
            "`fluffy layer list --all` shows its state".to_owned(),
        ),
        ApplyError::Read(_) | ApplyError::File(_) => (
            ExitCode::Failure,
            format!(
                "make room and check the project's modes; `fluffy layer merge {layer}` goes on"
            ),
        ),
        ApplyError::Permit(_) | ApplyError::OtherLayer { .. } | ApplyError::Blocked { .. } => {
            (ExitCode::Internal, "please report this".to_owned())
        }
    };
    Report::from_error(exit, error).fix(fix)
}
