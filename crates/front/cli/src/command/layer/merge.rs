//! Merging a layer into its project: plan, refusals, policy, review, apply.
//!
//! Nothing is written before every question is answered. What stands in the
//! way is shown in full and recorded; what is merged is recorded before and
//! after. The layer crate does the work and survives a crash in it.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};

use fluffy_layer::{
    ApplyError, Body, Difference, HeldLayer, LayerState, MergePlan, MergeReport, TreePath, permit,
};
use fluffy_ledger::Ledger;
use fluffy_policy::{Context, Permit, Request};
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use super::obstacle::{
    Judged, MAX_NAMED, blocked, denials, no_plan, not_applied, reasons, trouble_words,
};
use super::{came_from, hold, open_store, record, summary_line, unreadable};
use crate::command::gate::{Answer, Desk, Yes, denied};
use crate::command::{Outcome, ledger};
use crate::failure::Failure;
use crate::session::Session;

/// Merges the layer whose id starts like this.
pub(super) fn run(session: &Session, prefix: &str, yes: Yes, without: &[String]) -> Outcome {
    let here = session.here()?;
    let store = open_store(here)?;
    let mut held = hold(&store, prefix)?;
    let id = held.layer().id();
    let without = paths(without)?;
    // The policy of the layer's project decides, wherever we are.
    let there = session.here_in(held.layer().project())?;
    let opened = ledger::open(session, &there)?;
    let merged = Desk::open(&there, &opened).and_then(|desk| {
        let sandbox = came_from(&opened.ledger, id)?;
        let merging = Merging {
            session,
            desk: &sandbox.map_or_else(|| desk.clone(), |sandbox| desk.inside(sandbox)),
            ledger: &opened.ledger,
            yes,
        };
        match held.layer().state() {
            LayerState::Merging => merging.resume(&mut held),
            LayerState::Open | LayerState::Retired { .. } => merging.merge(&mut held, &without),
        }
    });
    ledger::close(session, opened)?;
    let report = merged?;
    if session.json() {
        session.printer.json(&report)?;
        return Ok(ExitCode::Success);
    }
    let left = if report.retired {
        "The layer is merged and gone."
    } else {
        "What was left out is still in the layer."
    };
    let changes = match report.applied.len() {
        1 => "1 change".to_owned(),
        count => format!("{count} changes"),
    };
    session.printer.data(&format!("Merged {changes}. {left}"))?;
    Ok(ExitCode::Success)
}

fn paths(texts: &[String]) -> Result<Vec<TreePath>, Failure> {
    let parse = |text: &String| {
        let relative = text.trim_start_matches("./").trim_start_matches('/');
        TreePath::parse(relative.as_bytes()).map_err(|error| {
            Failure::of(
                ExitCode::Usage,
                &error,
                "write the path from the project's root, as the diff shows it",
            )
        })
    };
    texts.iter().map(parse).collect()
}

/// What merging needs.
pub(crate) struct Merging<'a> {
    pub(crate) session: &'a Session,
    pub(crate) desk: &'a Desk,
    pub(crate) ledger: &'a Ledger,
    pub(crate) yes: Yes,
}

impl Merging<'_> {
    /// Merges a layer, or says what stands in the way; then nothing is merged.
    pub(crate) fn merge(
        &self,
        held: &mut HeldLayer,
        without: &[TreePath],
    ) -> Result<MergeReport, Failure> {
        let difference = held.difference().map_err(|error| unreadable(&error))?;
        let plan = held.plan_merge().map_err(|error| no_plan(&error))?;
        let plan = plan.leave_out(without);
        if let Some(report) = blocked(&plan) {
            return Err(self.rejected(&plan, report)?);
        }
        let (permit, reviews) = self.ask_policy(&plan, &difference)?;
        let permit = match (permit, reviews.is_empty()) {
            (Some(permit), true) => permit,
            (permit, _) => {
                if let Some(report) = self.consent(&reviews, &difference)? {
                    return Err(self.rejected(&plan, report)?);
                }
                self.approve(permit, &reviews)?
            }
        };
        let facts = json!({
            "plan": plan.digest(),
            "steps": plan.steps().len(),
            "lines": plan.summary().weight,
            "reviewed": reviews.len(),
        });
        record(
            self.ledger,
            self.desk,
            plan.layer(),
            "merge.approved",
            facts,
        )?;
        let applied = held.apply(permit, &plan);
        self.applied(&plan.layer().to_string(), applied)
    }

    /// Ends a merge that was interrupted.
    fn resume(&self, held: &mut HeldLayer) -> Result<MergeReport, Failure> {
        let layer = held.layer().id();
        self.session
            .printer
            .note("A merge of this layer was interrupted; the rest of it is done now.");
        let request = self.merge_request(None);
        let permit = match self.desk.ask(&request)? {
            Answer::Granted(granted) => granted.permit,
            Answer::Denied(refusal) => return Err(denied(&request, &refusal).into()),
            Answer::Review(review) => {
                if !self.says_yes("Finish the merge? [y/N] ")? {
                    return Err(crate::command::gate::awaits(&request, &review).into());
                }
                self.desk.approve(&request, &review)?.permit
            }
        };
        let applied = held.resume(permit);
        self.applied(&layer.to_string(), applied)
    }

    /// Asks for every path and for the whole; a deny ends it here.
    fn ask_policy(
        &self,
        plan: &MergePlan,
        difference: &Difference,
    ) -> Result<(Option<Permit>, Vec<Judged>), Failure> {
        let sizes = sizes(difference);
        let mut reviews = Vec::new();
        let mut refused: Vec<Judged> = Vec::new();
        for need in plan.needs() {
            let (size, lines) = sizes.get(&need.resource).copied().unwrap_or_default();
            let context = Context {
                size: Some(size),
                lines: Some(lines),
                ..Context::default()
            };
            let request = self
                .desk
                .request(need.action, Some(&need.resource), &context);
            match self.desk.ask(&request)? {
                // The permit for the whole carries the merge out.
                Answer::Granted(_) => {}
                Answer::Review(review) => reviews.push((request, review)),
                Answer::Denied(refusal) => refused.push((request, refusal)),
            }
        }
        if let Some(report) = denials(&refused) {
            return Err(self.rejected(plan, report)?);
        }
        let request = self.merge_request(Some(plan.summary().weight));
        match self.desk.ask(&request)? {
            Answer::Granted(granted) => Ok((Some(granted.permit), reviews)),
            Answer::Review(review) => {
                // Last, so that its permit is the one that is used.
                reviews.push((request, review));
                Ok((None, reviews))
            }
            Answer::Denied(refusal) => Err(self.rejected(plan, denied(&request, &refusal))?),
        }
    }

    fn merge_request(&self, lines: Option<u64>) -> Request {
        let context = Context {
            lines,
            ..Context::default()
        };
        self.desk.request(permit::MERGE, None, &context)
    }

    /// Nothing if the person agrees; else what to tell them.
    fn consent(
        &self,
        reviews: &[Judged],
        difference: &Difference,
    ) -> Result<Option<Report>, Failure> {
        if self.yes == Yes::Given {
            return Ok(None);
        }
        let mut report = Report::new(
            ExitCode::AwaitingApproval,
            "policy wants a person to look at this merge",
        );
        for why in reasons(reviews) {
            report = report.why(why);
        }
        if self.session.json() || !io::stdin().is_terminal() {
            let fix = "look at `fluffy layer diff`, then merge it with --yes";
            return Ok(Some(report.fix(fix)));
        }
        self.session.printer.note(&difference.to_string());
        for why in reasons(reviews) {
            self.session
                .printer
                .note(&format!("To be looked at: {why}"));
        }
        let question = format!("Merge {}? [y/N] ", summary_line(difference.summary));
        if self.says_yes(&question)? {
            return Ok(None);
        }
        Ok(Some(report.why("the answer was not yes").fix(
            "it is still in its layer: `fluffy layer merge` asks again",
        )))
    }

    fn says_yes(&self, question: &str) -> Result<bool, Failure> {
        if self.yes == Yes::Given {
            return Ok(true);
        }
        if self.session.json() || !io::stdin().is_terminal() {
            return Ok(false);
        }
        // On standard error: standard output may be a command's own.
        let mut stderr = io::stderr().lock();
        let _ = stderr.write_all(question.as_bytes());
        let _ = stderr.flush();
        drop(stderr);
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        Ok(read.is_ok() && matches!(line.trim(), "y" | "Y" | "yes"))
    }

    /// Turns the person's yes into permits; the last one carries the merge out.
    fn approve(&self, permit: Option<Permit>, reviews: &[Judged]) -> Result<Permit, Failure> {
        let mut permit = permit;
        for (request, review) in reviews {
            let granted = self.desk.approve(request, review)?;
            if request.action == permit::MERGE {
                permit = Some(granted.permit);
            }
        }
        permit.ok_or_else(|| {
            Report::new(ExitCode::Internal, "the merge was not decided")
                .fix("run it again")
                .into()
        })
    }

    /// Records that nothing was merged, and why.
    fn rejected(&self, plan: &MergePlan, report: Report) -> Result<Failure, Failure> {
        let facts = json!({
            "plan": plan.digest(),
            "reason": report.exit().name(),
            "refusals": plan.refusals().len(),
            "conflicts": plan.conflicts().len(),
        });
        record(
            self.ledger,
            self.desk,
            plan.layer(),
            "merge.rejected",
            facts,
        )?;
        Ok(report.into())
    }

    fn applied(
        &self,
        layer: &str,
        applied: Result<MergeReport, ApplyError>,
    ) -> Result<MergeReport, Failure> {
        let report = applied.map_err(|error| not_applied(&error, layer))?;
        let facts = json!({
            "applied": report.applied.len(),
            "troubles": report.troubles.len(),
            "retired": report.retired,
        });
        record(self.ledger, self.desk, report.layer, "merge.applied", facts)?;
        if report.troubles.is_empty() {
            return Ok(report);
        }
        let mut told = Report::new(
            ExitCode::Conflict,
            "the project changed during the merge; some of it was not merged",
        );
        for trouble in report.troubles.iter().take(MAX_NAMED) {
            let what = trouble_words(&trouble.trouble);
            told = told.why(format!("`{}`: {what}", trouble.path));
        }
        Err(told
            .fix("what was not merged is still in the layer; merge it again")
            .into())
    }
}

/// Size and changed lines of every changed path, as rules name it.
fn sizes(difference: &Difference) -> BTreeMap<String, (u64, u64)> {
    let facts = |file: &fluffy_layer::FileDifference| {
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
