//! Debug mode's commands: in one sandbox that stays, each looked at by a person.
//!
//! What a command starts there goes on when it has ended, so that the next one
//! finds it: a server, a debugger. It ends with the mode, before anything is
//! tested or merged, and with the session. No rule takes the person's place; a
//! rule that denies is not asked about. Next: `workshop`.

use std::sync::atomic::Ordering;

use fluffy_base::Digest;
use fluffy_contract::tool::ToolOutput;
use fluffy_gate::{Answer, Desk};
use fluffy_policy::Permit;
use fluffy_policy::word::Mode;
use fluffy_tools::arguments::RunCommand;
use fluffy_tools::call::Call;
use fluffy_tools::refusal::{Refusal, RefusedBy, Way};
use fluffy_tools::registry::Checked;
use serde_json::json;

use super::{Agent, DriveError};
use crate::person::{Question, Said};
use crate::router::{RouteError, Router, refused_by_layer};

/// The action that a command in a running sandbox is.
const ACTION: &str = "sandbox.exec";

/// The most of a command that fits into a question's line.
const LINE: usize = 120;

impl Agent {
    /// Runs a command in the session's running sandbox.
    pub(super) async fn debug(
        &self,
        checked: &Checked,
        run: &RunCommand,
    ) -> Result<Result<ToolOutput, Box<Refusal>>, DriveError> {
        match self.debug_now(checked, run).await {
            Ok(output) => Ok(Ok(output)),
            Err(RouteError::Refused(refusal)) => Ok(Err(refusal)),
            Err(RouteError::NotRecorded(error)) => Err(DriveError::Route(error)),
        }
    }

    /// Ends the session's running sandbox, and everything in it.
    pub(super) async fn end_running(&self) {
        let layer = self.held.layer().id();
        self.ground.workshop.end_running(layer).await;
    }

    async fn debug_now(
        &self,
        checked: &Checked,
        run: &RunCommand,
    ) -> Result<ToolOutput, RouteError> {
        let tool = checked.tool.as_str();
        let course = self.course();
        let router = self.router(&course);
        if self.session.workflow.mode() != Mode::Debug {
            return Err(self.other_mode(tool).into());
        }
        course.may_run(tool).map_err(RouteError::Refused)?;
        let before = course.guard(&self.held);
        let before = before.map_err(|error| refused_by_layer(tool, &error))?;
        let booth = router.open_running(tool).await?;
        let desk = self.ground.desk.inside(booth.id());
        let permit = self.permit_debug(&router, &desk, checked, run).await;
        let output = match permit {
            Ok(permit) => Ok(router.run_in(&booth, permit, run).await),
            Err(refused) => Err(refused),
        };
        booth.close().await;
        router.put_back(checked, &before, output?).await
    }

    /// A person's yes to this command, if policy does not say no before.
    async fn permit_debug(
        &self,
        router: &Router<'_>,
        desk: &Desk,
        checked: &Checked,
        run: &RunCommand,
    ) -> Result<Permit, RouteError> {
        let tool = checked.tool.as_str();
        if let Call::Shell(_) = &checked.call {
            // Whoever may not run commands may not run them here either.
            drop(router.all(desk, checked).await?);
        }
        let template = &self.ground.workshop.premises().template;
        let request = desk.request(ACTION, Some(template), &router.context);
        let answer = desk.ask(&request)?;
        let reasons = match &answer {
            Answer::Denied(refusal) => {
                return Err(Refusal::of_decision(tool, refusal.decision()).into());
            }
            Answer::Review(review) => review.decision().reasons().map(str::to_owned).collect(),
            Answer::Granted(_) => vec!["debug commands are looked at one by one".to_owned()],
        };
        match self
            .ground
            .person
            .ask(question(&run.command, reasons))
            .await
        {
            Said::Yes => self.reviewed.fetch_add(1, Ordering::Relaxed),
            said @ (Said::No | Said::Nobody) => {
                return Err(RouteError::Refused(self.not_approved(tool, said)));
            }
        };
        match answer {
            Answer::Granted(granted) => {
                // Policy wanted nobody's word; that there is one is recorded.
                let command = Digest::of(run.command.as_bytes());
                let facts = json!({"command": command, "by": self.ground.people.principal.name});
                let noted = self.note("debug.approved", facts).await;
                noted.map_err(|error| RouteError::NotRecorded(error.into()))?;
                Ok(granted.permit)
            }
            Answer::Review(review) | Answer::Denied(review) => {
                router.approved(desk, tool, (&request, &review))
            }
        }
    }

    fn other_mode(&self, tool: &str) -> Refusal {
        let workflow = &self.session.workflow;
        let by = RefusedBy::Workflow {
            mode: workflow.mode(),
            state: workflow.state(),
            guard: "debug_mode".to_owned(),
            reason: "it wants that the mode is debug".to_owned(),
        };
        let question = "a person switches to debug mode; until then use shell.exec".to_owned();
        Refusal::new(tool, by, Way::Approval { question })
    }
}

/// Shows the whole command; in the question itself if it fits.
fn question(command: &str, reasons: Vec<String>) -> Question {
    let is_short = command.chars().count() <= LINE && !command.contains('\n');
    let text = match is_short {
        true => format!("May the agent run `{command}` in the running sandbox?"),
        false => "May the agent run this in the running sandbox?".to_owned(),
    };
    Question {
        text,
        reasons,
        shown: (!is_short).then(|| command.to_owned()),
    }
}
