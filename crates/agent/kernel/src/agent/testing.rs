//! The kernel runs the tests; nobody's word counts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use fluffy_base::id::TaskId;
use fluffy_contract::isolation::{Command, Exit, Finished, Limit};
use fluffy_contract::tool::Need;
use fluffy_layer::HeldLayer;
use fluffy_policy::Permit;
use fluffy_tasks::Kind;
use fluffy_tools::refusal::{Refusal, RefusedBy};
use fluffy_workflow::project::detect::TestCommand;
use fluffy_workflow::results::{self, Outcome, Report, Run};

use super::integration::NotRun;
use super::{Agent, DriveError};
use crate::course::Course;
use crate::event::AgentEvent;
use crate::freezer::Freezer;
use crate::router::{RouteError, Router};
use crate::slots::{Freeze, Work};
use crate::workshop::Booth;

/// What a test run came to.
pub(super) struct Tested {
    /// The named results.
    pub(super) report: Report,
    /// What was printed, for the model.
    pub(super) printed: String,
    /// Integration tests that are not in the report.
    pub(super) not_run: Vec<NotRun>,
    /// The task that it was; what is judged by it comes after.
    pub(super) task: TaskId,
}

/// How much of the output the model may want to see.
const MAX_PRINTED: usize = 512 * 1024;

impl Agent {
    /// How the tests are run here, in a line.
    pub(super) fn tests_line(&self) -> String {
        let commands = self.layout.commands.iter();
        let commands = commands.chain(self.layout.integration.values());
        let lines: Vec<String> = commands.map(|one| one.command.join(" ")).collect();
        match lines.is_empty() {
            true => "none found; write some where the language expects them".to_owned(),
            false => format!(
                "`{}`; test files are {}",
                lines.join("`, `"),
                self.layout.test_globs().join(", ")
            ),
        }
    }

    /// Runs all tests of the project as the session sees it now.
    pub(super) async fn test(&mut self) -> Result<Result<Tested, RouteError>, DriveError> {
        // A new test file can bring a new runner with it.
        let view = self.held.view()?;
        let layout = crate::course::survey(&view, &self.ground.overrides)?;
        self.layout = Arc::new(layout);
        let began = Instant::now();
        let work = self.work_of(Kind::TestRun, Some("code-executor"));
        let freezer = Arc::new(Freezer::new("test.run", Arc::clone(&self.ground.hub)));
        let work = Work {
            after: self.answered_by,
            freeze: Some(Arc::clone(&freezer) as Arc<dyn Freeze>),
            ..work
        };
        let task = work.id;
        let running = || self.run_commands(task, &freezer);
        let tested = self.ground.slots.run(work, running).await;
        let tested = match tested.unwrap_or_else(|error| Err(no_trial(&error))) {
            Ok(tested) => tested,
            Err(RouteError::NotRecorded(error)) => return Err(DriveError::Route(error)),
            Err(refused) => return Ok(Err(refused)),
        };
        self.tell_not_run(&tested);
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let names = |wanted: fn(Outcome) -> bool| -> BTreeSet<String> {
            let results = tested.report.results.iter();
            let some = results.filter(|result| wanted(result.outcome));
            some.map(fluffy_workflow::results::TestResult::key)
                .collect()
        };
        self.publish(AgentEvent::TestsRan {
            passed: names(|outcome| outcome == Outcome::Passed).len(),
            failed: names(|outcome| !matches!(outcome, Outcome::Passed | Outcome::Skipped))
                .into_iter()
                .collect(),
            skipped: names(|outcome| outcome == Outcome::Skipped).len(),
            took_ms,
        });
        Ok(Ok(tested))
    }

    /// Runs the commands in a layer that was made for this, over the project
    /// with exactly what would be merged: no cache, installed package or
    /// leftover of an earlier command has a say in what the tests prove.
    async fn run_commands(
        &self,
        task: TaskId,
        freezer: &Arc<Freezer>,
    ) -> Result<Tested, RouteError> {
        let course = self.course();
        let router = Router {
            freezer: Some(Arc::clone(freezer)),
            ..self.router(&course)
        };
        let trial = self.trial_layer(&router).await?;
        let done = self.in_trial(&router, &course, &trial, task).await;
        self.drop_trial(&router, trial).await;
        done
    }

    pub(super) async fn drop_trial(&self, router: &Router<'_>, trial: HeldLayer) {
        let id = trial.layer().id().to_string();
        let need = Need {
            action: fluffy_layer::permit::DROP.to_owned(),
            resource: Some(id),
        };
        if let Ok(permit) = router.permit(&self.ground.desk, "test.run", &need).await {
            // Else it stays until somebody drops it; nothing ever merges it.
            let _ = self.ground.layers.drop_layer(permit, trial);
        }
    }

    pub(super) async fn trial_layer(&self, router: &Router<'_>) -> Result<HeldLayer, RouteError> {
        let need = Need {
            action: "sandbox.create".to_owned(),
            resource: Some(self.ground.workshop.premises().template.clone()),
        };
        let permit = router.permit(&self.ground.desk, "test.run", &need).await?;
        let project = self.ground.workshop.premises().project.clone();
        let made = self
            .ground
            .layers
            .create(permit, &project, self.ground.kind);
        made.map_err(|error| no_trial(&error))
    }

    async fn in_trial(
        &self,
        router: &Router<'_>,
        course: &Course,
        trial: &HeldLayer,
        task: TaskId,
    ) -> Result<Tested, RouteError> {
        let written = course
            .written(&self.held)
            .map_err(|error| no_trial(&error))?;
        router.fill(trial, &written).await?;
        let project = self.ground.workshop.premises().project.clone();
        let mut reports = Vec::new();
        let mut printed = String::new();
        for one in &self.layout.commands {
            let protected = course.protected(&self.ground.workshop);
            let booth = router.open_over("test.run", trial, protected).await?;
            let finished = match self.permit_test(router, &booth).await {
                Ok(permit) => Ok(self.run_test(&booth, permit, one).await),
                Err(error) => Err(error),
            };
            booth.close().await;
            let finished = finished?;
            let line = one.command.join(" ");
            add(&mut printed, &line, &finished);
            reports.push(read(
                &line,
                &project.to_string_lossy(),
                one.format,
                &finished,
            ));
        }
        if reports.is_empty() && self.layout.integration.is_empty() {
            let nothing = Run {
                command: "",
                root: "",
                stdout: "",
                stderr: "",
                exit: results::Exit::Code(0),
            };
            reports.push(results::parse(results::Format::Auto, &nothing));
        }
        let tested = Tested {
            report: Report::join(reports),
            printed,
            not_run: Vec::new(),
            task,
        };
        self.integrate(router, course, trial, tested).await
    }

    /// Whether a command of the tests may run in this sandbox.
    pub(super) async fn permit_test(
        &self,
        router: &Router<'_>,
        booth: &Booth,
    ) -> Result<Permit, RouteError> {
        let need = Need {
            action: "test.run".to_owned(),
            resource: None,
        };
        let desk = self.ground.desk.inside(booth.id());
        router.permit(&desk, "test.run", &need).await
    }

    /// Runs a command of the tests. One that could not be run at all has no
    /// result, and proves nothing.
    pub(super) async fn run_test(
        &self,
        booth: &Booth,
        permit: Permit,
        one: &TestCommand,
    ) -> Finished {
        let project = &self.ground.workshop.premises().project;
        let directory = one.directory.trim_start_matches('/');
        let command = Command {
            environment: one.environment.clone(),
            directory: (!directory.is_empty()).then(|| project.join(directory)),
            ..Command::new(one.command.clone())
        };
        let finished = booth.run(permit, command, b"").await;
        finished.unwrap_or_else(|error| Finished {
            exit: Exit::NotStarted { errno: 0 },
            stdout: Vec::new(),
            stderr: error.to_string().into_bytes(),
            took: std::time::Duration::ZERO,
        })
    }
}

fn no_trial(error: &dyn std::error::Error) -> RouteError {
    let reason = super::steps::chain(error);
    Refusal::without_way("test.run", RefusedBy::Sandbox { reason }).into()
}

pub(super) fn read(line: &str, root: &str, format: results::Format, finished: &Finished) -> Report {
    let (stdout, stderr) = (
        String::from_utf8_lossy(&finished.stdout),
        String::from_utf8_lossy(&finished.stderr),
    );
    let run = Run {
        command: line,
        root,
        stdout: &stdout,
        stderr: &stderr,
        exit: match finished.exit {
            Exit::Code { code } => results::Exit::Code(code),
            Exit::Signal { signal } => results::Exit::Signal(signal),
            Exit::Limit { limit: Limit::Time } => results::Exit::TimedOut,
            Exit::Limit { .. } => results::Exit::Signal(9),
            Exit::NotStarted { .. } => results::Exit::Code(127),
        },
    };
    results::parse(format, &run)
}

pub(super) fn add(printed: &mut String, line: &str, finished: &Finished) {
    printed.push_str(&format!("$ {line}\n"));
    for bytes in [&finished.stdout, &finished.stderr] {
        let room = MAX_PRINTED.saturating_sub(printed.len());
        let start = bytes.len().saturating_sub(room);
        let tail = bytes.get(start..).unwrap_or_default();
        printed.push_str(&String::from_utf8_lossy(tail));
        if !printed.ends_with('\n') {
            printed.push('\n');
        }
    }
}
