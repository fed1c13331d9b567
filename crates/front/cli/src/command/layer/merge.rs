//! Merging a layer into its project: plan, refusals, policy, review, apply.
//!
//! Nothing is written before every question is answered. What stands in the
//! way is shown in full and recorded; what is merged is recorded before and
//! after. The layer crate does the work and survives a crash in it.

use std::io::{self, BufRead, IsTerminal, Write};

use fluffy_gate::Answer;
use fluffy_kernel::merge::{Reviews, Verdict, judge, whole};
use fluffy_layer::{
    ApplyError, Difference, HeldLayer, LayerState, MergePlan, MergeReport, TreePath,
};
use fluffy_ledger::Ledger;
use fluffy_policy::Context;
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use super::obstacle::{MAX_NAMED, blocked, denials, no_plan, not_applied, reasons, trouble_words};
use super::{came_from, hold, open_store, record, summary_line, unreadable};
use crate::command::gate::{Desk, Yes, denied, not_approved};
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
        let difference = difference.without(without);
        if let Some(report) = blocked(&plan) {
            return Err(self.rejected(&plan, report)?);
        }
        let desk = &self.desk.0;
        let verdict = judge(desk, &plan, &difference, &Context::default())
            .map_err(|error| crate::failure::not_recorded(&error))?;
        let mut reviewed = 0;
        let permit = match verdict {
            Verdict::Allowed(permit) => permit,
            Verdict::Denied(refused) => return Err(self.rejected(&plan, denials(&refused))?),
            Verdict::Review(reviews) => {
                if let Some(report) = self.consent(&reviews, &difference)? {
                    return Err(self.rejected(&plan, report)?);
                }
                reviewed = reviews.open().count();
                let approved = reviews.approve(desk, &desk.principal.name);
                approved.map_err(|error| not_approved(&error))?
            }
        };
        let facts = json!({
            "plan": plan.digest(),
            "steps": plan.steps().len(),
            "lines": difference.summary.weight,
            "reviewed": reviewed,
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
        let request = whole(&self.desk.0, &Context::default(), None);
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

    /// Nothing if the person agrees; else what to tell them.
    fn consent(
        &self,
        reviews: &Reviews,
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
