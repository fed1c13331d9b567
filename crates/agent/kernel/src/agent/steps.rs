//! Steps of the workflow: what the model asks for, and what the kernel saw.
//!
//! A step is decided by the pure machine, recorded, and only then taken. What
//! the model is told names the guard that failed and what would satisfy it.

use fluffy_contract::model::ToolCall;
use fluffy_contract::tool::{ToolOutcome, ToolOutput};
use fluffy_policy::word::{Mode, State};
use fluffy_tasks::Kind;
use fluffy_tools::arguments::{CompletePlan, PlanKind, RequestExemption};
use fluffy_tools::call::Call;
use fluffy_tools::refusal::{Refusal, RefusedBy};
use fluffy_tools::registry::Checked;
use fluffy_workflow::coverage::Covered;
use fluffy_workflow::evidence::{self, Baseline, Freeze, Green, NotGreen, Surroundings};
use fluffy_workflow::exemption::ExemptionRequest;
use fluffy_workflow::machine::{
    self, Approval, Flow, Input, StepError, SwitchAnswer, changes::source_digest,
};
use fluffy_workflow::results::{Outcome, Report};

use super::{Agent, DriveError};
use crate::course::Texts;
use crate::event::AgentEvent;
use crate::person::{Question, Said};
use crate::router::{RouteError, Routed, failed, refused};
use crate::session::Fact;
use crate::slots::Work;

impl Agent {
    /// A call that is the kernel's own.
    pub(super) async fn kernel_call(
        &mut self,
        call: &ToolCall,
        checked: &Checked,
    ) -> Result<Routed, DriveError> {
        let output = match &checked.call {
            // Judged by the tests and by policy where they are used.
            Call::Test(_) => self.run_tests().await?,
            Call::Shell(run) | Call::Debug(run) => self.debug(checked, run).await?,
            Call::Transition(transition) if transition.to == State::Validating => {
                Ok(text(self.validate().await?))
            }
            Call::GitCommit(commit) => {
                self.message = Some(commit.message.clone());
                Ok(text(self.validate().await?))
            }
            _ => match self.permitted(checked).await? {
                Err(refusal) => Err(refusal),
                Ok(()) => self.permitted_step(&checked.call).await?,
            },
        };
        Ok(match output {
            Ok(output) => {
                let course = self.course();
                self.router(&course).finish(&call.id, checked, &output)
            }
            Err(refusal) => refused(&refusal),
        })
    }

    async fn permitted(&self, checked: &Checked) -> Result<Result<(), Box<Refusal>>, DriveError> {
        let course = self.course();
        let router = self.router(&course);
        match router.all(&self.ground.desk, checked).await {
            Ok(_) => Ok(Ok(())),
            Err(RouteError::Refused(refusal)) => Ok(Err(refusal)),
            Err(RouteError::NotRecorded(error)) => Err(DriveError::Route(error)),
        }
    }

    async fn permitted_step(
        &mut self,
        call: &Call,
    ) -> Result<Result<ToolOutput, Box<Refusal>>, DriveError> {
        match call {
            Call::CompletePlan(plan) => self.complete_plan(plan).await,
            Call::RequestExemption(request) => self.exempt(request).await,
            Call::TestIsWrong(wrong) => {
                let question = format!("Is the test wrong? The agent says: {}", wrong.reason);
                match self.ask(&question).await {
                    Said::Yes => {
                        let approval = self.person();
                        let stepped = self.step(Input::ReopenTests { approval }).await?;
                        Ok(Ok(said(
                            stepped,
                            "the tests can be written again; nothing is red now",
                        )))
                    }
                    other => Ok(Err(self.not_approved("workflow.test_is_wrong", other))),
                }
            }
            Call::SetMode(set) => {
                let budget = self.known.debt.budget();
                let input = Input::SwitchMode {
                    to: set.mode,
                    answer: SwitchAnswer::Allowed,
                    budget,
                };
                let stepped = self.step(input).await?;
                Ok(Ok(said(stepped, "the mode is another now")))
            }
            Call::Transition(transition) => {
                let to = transition.to;
                Ok(Ok(failed(format!(
                    "nothing leads to `{to}` by itself: plan.complete ends planning, a failing \
                     test ends test_writing, `validating` is asked for when the code is done"
                ))))
            }
            _ => Ok(Ok(failed("this is no step of the workflow"))),
        }
    }

    async fn complete_plan(
        &mut self,
        plan: &CompletePlan,
    ) -> Result<Result<ToolOutput, Box<Refusal>>, DriveError> {
        // How every test stood before anything was touched.
        let tested = match self.test().await? {
            Ok(tested) => tested,
            Err(RouteError::Refused(refusal)) => return Ok(Err(refusal)),
            Err(RouteError::NotRecorded(error)) => return Err(DriveError::Route(error)),
        };
        let baseline = Baseline::of(&tested.report);
        let input = Input::CompletePlan {
            kind: match plan.kind {
                PlanKind::Change => machine::PlanKind::Change,
                PlanKind::Refactor => machine::PlanKind::Refactor,
            },
            baseline,
            budget: self.known.debt.budget(),
        };
        let stepped = self.step(input).await?;
        let course = self.course();
        let touching = self.router(&course).touching(&plan.paths).await;
        let advice = format!(
            "State {} now. Tests here: {}\n{touching}",
            self.session.workflow.state(),
            self.tests_line()
        );
        let advice = advice.trim_end();
        Ok(Ok(said(stepped, advice)))
    }

    /// `test.run`: and, while tests are written, whether one is red.
    async fn run_tests(&mut self) -> Result<Result<ToolOutput, Box<Refusal>>, DriveError> {
        let tested = match self.test().await? {
            Ok(tested) => tested,
            Err(RouteError::Refused(refusal)) => return Ok(Err(refusal)),
            Err(RouteError::NotRecorded(error)) => return Err(DriveError::Route(error)),
        };
        let mut head = counts(&tested.report);
        if self.session.workflow.state() == State::TestWriting {
            let texts = Texts::of(&self.course().written(&self.held)?);
            let changed = texts.changed(&self.layout);
            let changes = texts.changes(&self.layout);
            let freeze = changes.freeze.clone();
            let baseline = self.session.workflow.baseline();
            let judged = evidence::red(baseline, &tested.report, &changed, freeze);
            let stepped = self.step(Input::StartCoding { judged, changes }).await?;
            match stepped {
                Ok(()) => head.push_str(
                    "\nThe kernel saw a new test fail. State code_writing now: write the code; \
                     tests are read-only.",
                ),
                Err(error) => head.push_str(&format!("\nStill test_writing: {}", chain(&error))),
            }
        }
        Ok(Ok(ToolOutput {
            content: format!("{head}\n\n{}", tested.printed),
            outcome: ToolOutcome::Done,
        }))
    }

    /// The work is said to be done: submit, test, review, merge, commit; each
    /// from where a crash may have left it.
    pub(super) async fn validate(&mut self) -> Result<String, DriveError> {
        // What is tested and merged is written by nobody any more.
        self.end_running().await;
        match self.session.workflow.state() {
            State::Reviewing => return self.land(None).await,
            State::Committing => return self.finish_landing().await,
            State::Validating => {}
            State::Idle
            | State::Planning
            | State::TestWriting
            | State::CodeWriting
            | State::Exploring
            | State::RetroactiveTesting => {
                if let Err(error) = self.submit().await? {
                    return Ok(format!("Not validated: {}", chain(&error)));
                }
            }
        }
        let tested = match self.test().await? {
            Ok(tested) => tested,
            Err(RouteError::Refused(refusal)) => return Ok(refusal.for_model()),
            Err(RouteError::NotRecorded(error)) => return Err(DriveError::Route(error)),
        };
        let covered = match self.session.workflow.flow() {
            Some(Flow::Refactor) => self.covered().await?,
            Some(Flow::TestFirst | Flow::Explore | Flow::Exempt) | None => None,
        };
        // After the runs: what a build script wrote is looked at too.
        let texts = Texts::of(&self.course().written(&self.held)?);
        let freeze = texts.changes(&self.layout).freeze;
        let work = Work {
            after: Some(tested.task),
            ..self.work_of(Kind::Validate, None)
        };
        let validated = work.id;
        let judging = || async { self.judge(&tested.report, &freeze, covered.as_ref()) };
        let judged = match self.ground.slots.run(work, judging).await {
            Ok(judged) => judged,
            Err(error) => return Ok(format!("Not validated: {}", chain(&error))),
        };
        let head = counts(&tested.report);
        let why = judged.as_ref().err().map(ToString::to_string);
        if let Err(error) = self.step(Input::ReportTests { judged }).await? {
            return Ok(format!("Not validated: {}", chain(&error)));
        }
        if let Some(why) = why {
            return Ok(format!(
                "Validation failed: {why}\n{head}\n\n{}",
                tested.printed
            ));
        }
        self.land(Some(validated)).await
    }

    /// What a run proves of what was done.
    fn judge(
        &self,
        run: &Report,
        freeze: &Freeze,
        covered: Option<&Covered>,
    ) -> Result<Green, Box<NotGreen>> {
        let workflow = &self.session.workflow;
        let around = Surroundings {
            baseline: workflow.baseline(),
            freeze,
            removed: &std::collections::BTreeSet::new(),
        };
        match (workflow.flow(), workflow.red()) {
            (Some(Flow::TestFirst), Some(red)) => evidence::green(red, run, &around),
            (Some(Flow::Refactor), _) => evidence::refactor(run, &around, covered),
            _ => evidence::passing(run, &around),
        }
    }

    async fn submit(&mut self) -> Result<Result<(), StepError>, DriveError> {
        let texts = Texts::of(&self.course().written(&self.held)?);
        let changed = texts.changed(&self.layout);
        let source = source_digest(&changed);
        let stripped = self.stripped(&changed).await?;
        let submit = Input::Submit {
            changes: texts.changes(&self.layout),
            source,
            stripped,
        };
        self.step(submit).await
    }

    async fn exempt(
        &mut self,
        request: &RequestExemption,
    ) -> Result<Result<ToolOutput, Box<Refusal>>, DriveError> {
        let asked = ExemptionRequest {
            category: request.category,
            paths: request.paths.clone(),
            reason: request.reason.clone(),
        };
        let policy = self.ground.desk.gate.policy();
        let globs = policy.engine.exemption(request.category);
        let checked = match asked.check(globs) {
            Ok(checked) => checked,
            Err(error) => return Ok(Ok(failed(chain(&error)))),
        };
        // The permit that let it come so far was a rule's or a person's yes.
        let exemption = checked.grant(self.person());
        let stepped = self.step(Input::GrantExemption { exemption }).await?;
        Ok(Ok(said(stepped, "granted; call plan.complete to go on")))
    }

    /// Lets the machine decide, records what follows, and takes it.
    pub(super) async fn step(&mut self, input: Input) -> Result<Result<(), StepError>, DriveError> {
        let from = self.session.workflow.state();
        let mode = self.session.workflow.mode();
        let why = input.name();
        let mut ahead = self.session.workflow.clone();
        let events = match ahead.step(input) {
            Ok(events) => events,
            Err(error) => return Ok(Err(error)),
        };
        for event in events {
            self.record(Fact::Workflow(event)).await?;
        }
        if mode == Mode::Debug && self.session.workflow.mode() != Mode::Debug {
            self.end_running().await;
        }
        let to = self.session.workflow.state();
        if from != to {
            let why = why.replace('_', " ");
            self.publish(AgentEvent::WorkflowChanged { from, to, why });
        }
        Ok(Ok(()))
    }

    pub(super) async fn ask(&self, text: &str) -> Said {
        let question = Question {
            text: text.to_owned(),
            reasons: Vec::new(),
            shown: None,
        };
        let said = self.ground.person.ask(question).await;
        if said == Said::Yes {
            self.reviewed
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        said
    }

    pub(super) fn person(&self) -> Approval {
        let name = self.ground.desk.principal.on_behalf_of.clone();
        Approval::Person {
            name: name.unwrap_or_else(|| "person".to_owned()),
        }
    }

    pub(super) fn not_approved(&self, tool: &str, said: Said) -> Box<Refusal> {
        let reason = match said {
            Said::Nobody => {
                self.unanswered
                    .store(true, std::sync::atomic::Ordering::Relaxed);
                "nobody is there to ask".to_owned()
            }
            Said::Yes | Said::No => String::new(),
        };
        Box::new(Refusal::without_way(tool, RefusedBy::Person { reason }))
    }
}

fn text(content: String) -> ToolOutput {
    ToolOutput {
        content,
        outcome: ToolOutcome::Done,
    }
}

fn said(stepped: Result<(), StepError>, done: &str) -> ToolOutput {
    match stepped {
        Ok(()) => text(done.to_owned()),
        Err(error) => failed(format!(
            "the guard `{}` does not hold: {}",
            error.guard().meaning(),
            chain(&error)
        )),
    }
}

/// An error and its causes in a line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

/// A report in a line.
fn counts(report: &fluffy_workflow::results::Report) -> String {
    let count = |wanted: Outcome| {
        let results = report.results.iter();
        results.filter(|result| result.outcome == wanted).count()
    };
    let mut text = format!(
        "{} passed, {} failed, {} skipped",
        count(Outcome::Passed),
        count(Outcome::Failed) + count(Outcome::DidNotCompile) + count(Outcome::Broken),
        count(Outcome::Skipped)
    );
    for trouble in report.trouble.iter().take(3) {
        text.push_str(&format!("; {trouble}"));
    }
    text
}
