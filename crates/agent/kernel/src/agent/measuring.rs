//! Coverage, by the project's own tool, before a change and with it.
//!
//! Measured as tests are run: in a layer made for that one run, over exactly
//! what would be merged, and over the project alone. A report that was there
//! before the run says nothing. What cannot be measured is no coverage, never
//! a guess. Next: `workflow::coverage` reads it, `workflow::debt` judges it.

use fluffy_base::Digest;
use fluffy_contract::isolation::{Command, Exit};
use fluffy_contract::tool::Need;
use fluffy_layer::{Body, HeldLayer, TreePath};
use fluffy_tasks::Kind;
use fluffy_workflow::coverage::{self, ChangedLines, Coverage, CoverageFormat, Covered};
use fluffy_workflow::debt::{self, Budget, Commit, Counting, Measured};
use fluffy_workflow::machine::{Flow, Standing};
use fluffy_workflow::project::detect::CoverageCommand;

use super::undo::mark_of;
use super::{Agent, DriveError};
use crate::course::Written;
use crate::event::AgentEvent;
use crate::router::{RouteError, Router};

/// The largest report that is read: the kernel's memory is bounded.
const MAX_REPORT: u64 = 16 << 20;

/// The most bytes of names that are kept of files no test reaches.
const MAX_UNREACHED: usize = 16 << 10;

/// The coverage of the project, and with what the layer changes.
#[derive(Debug)]
pub(super) struct Pair {
    /// What the layer changed then.
    mark: Digest,
    before: Coverage,
    after: Coverage,
}

/// Why there is no coverage.
#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error("{0}")]
    Said(String),
    #[error("it could not be run")]
    Route(#[source] RouteError),
    #[error("its report cannot be read")]
    Report(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<RouteError> for MeasureError {
    fn from(error: RouteError) -> Self {
        Self::Route(error)
    }
}

impl Agent {
    /// What the commit under way does to the coverage, as far as it counts.
    pub(super) async fn coverage_of_commit(&mut self) -> Result<Option<Measured>, DriveError> {
        let workflow = &self.session.workflow;
        // An exempt commit touches no budget.
        if matches!(workflow.flow(), Some(Flow::Exempt) | None) {
            return Ok(None);
        }
        let is_verified = workflow.standing() == Some(Standing::Verified);
        let Some(pair) = self.measure().await? else {
            return Ok(None);
        };
        let (before, after) = (pair.before.points(), pair.after.points());
        if !is_verified {
            return Ok(Some(Measured { before, after }));
        }
        let counted = debt::counted(before, after, &self.counting(), None);
        if counted < after {
            let text = format!(
                "coverage rose from {before} % to {after} %, which wins nothing back: not every \
                 new or changed test was seen to fail without the change"
            );
            self.publish(AgentEvent::Note { text });
        }
        let after = counted;
        Ok(Some(Measured { before, after }))
    }

    /// Files that no test reaches with the change, as many as an event holds.
    pub(super) fn unreached(&self) -> Option<Vec<String>> {
        let files = self.measured.as_ref()?.after.unreached_files();
        let mut room = MAX_UNREACHED;
        let fits = |path: &&str| match room.checked_sub(path.len()) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        Some(files.take_while(fits).map(str::to_owned).collect())
    }

    /// Which tests of a verified commit count: those that the kernel saw fail.
    fn counting(&self) -> Counting {
        let workflow = &self.session.workflow;
        let green = workflow.green();
        let proven = green.map(|green| green.fail_to_pass().to_vec());
        let mut idle = green.map_or_else(Vec::new, |green| green.idle().to_vec());
        // Who changes an old test, or how tests run, may change what counts.
        idle.extend(workflow.sensitive().iter().cloned());
        let counting = proven.unwrap_or_default();
        if counting.is_empty() {
            idle.push("no test failed before".to_owned());
        }
        Counting { counting, idle }
    }

    /// Whether the tests cover what a refactoring changes; nothing where that
    /// is not known of single lines.
    pub(super) async fn covered(&mut self) -> Result<Option<Covered>, DriveError> {
        if self.measure().await?.is_none() {
            return Ok(None);
        }
        let difference = self.held.difference()?;
        let ignored = self.ignored(&difference)?;
        let difference = difference.without(&ignored);
        let mut changed = ChangedLines::default();
        for file in &difference.files {
            let (Some(path), Body::Text { hunks, .. }) = (file.change.path.resource(), &file.body)
            else {
                return Ok(None);
            };
            changed.add(&path, hunks);
        }
        let pair = self.measured.as_ref();
        let pair = pair.filter(|pair| pair.before.has_lines() && pair.after.has_lines());
        Ok(pair.map(|pair| Covered::of(&changed, &pair.before, &pair.after)))
    }

    /// Says how the budget stands after a commit.
    pub(super) fn say_debt(&mut self, commit: Commit) {
        let budget = self.known.debt.budget();
        self.evidence.debt = (budget != Budget::Open).then_some(budget);
        match (commit, budget) {
            (Commit::Unverified { .. }, Budget::Open) | (Commit::Exempt, _) => {}
            (Commit::Verified { .. }, Budget::Open) => {}
            (Commit::Unverified { .. } | Commit::Verified { .. }, budget) => {
                self.publish(AgentEvent::Note {
                    text: budget.to_string(),
                });
            }
        }
    }

    /// Measures both, unless it was done for the very same change.
    async fn measure(&mut self) -> Result<Option<&Pair>, DriveError> {
        let Some(tool) = self.layout.coverage.clone() else {
            return Ok(None);
        };
        let written = self.course().written(&self.held)?;
        let mark = mark_of(&written);
        if self.measured.as_ref().is_none_or(|pair| pair.mark != mark) {
            self.measured = None;
            let work = self.work_of(Kind::TestRun, Some("code-executor"));
            let both = || async {
                let before = self.measure_one(&tool, &[]).await?;
                let after = self.measure_one(&tool, &written).await?;
                Ok::<_, MeasureError>((before, after))
            };
            let both = self.ground.slots.run(work, both).await;
            match both.unwrap_or_else(|error| Err(MeasureError::Report(error.into()))) {
                Ok((before, after)) => {
                    self.measured = Some(Pair {
                        mark,
                        before,
                        after,
                    });
                }
                Err(MeasureError::Route(RouteError::NotRecorded(error))) => {
                    return Err(DriveError::Route(error));
                }
                Err(error) => {
                    let why = super::steps::chain(&error);
                    let text = format!("coverage is not known: {why}");
                    self.publish(AgentEvent::Note { text });
                }
            }
        }
        Ok(self.measured.as_ref())
    }

    async fn measure_one(
        &self,
        tool: &CoverageCommand,
        written: &[Written],
    ) -> Result<Coverage, MeasureError> {
        let course = self.course();
        let router = self.router(&course);
        let trial = self.trial_layer(&router).await?;
        let done = self.measure_in(&router, &trial, tool, written).await;
        self.drop_trial(&router, trial).await;
        done
    }

    async fn measure_in(
        &self,
        router: &Router<'_>,
        trial: &HeldLayer,
        tool: &CoverageCommand,
        written: &[Written],
    ) -> Result<Coverage, MeasureError> {
        let unreadable =
            |error: &dyn std::error::Error| MeasureError::Report(super::steps::chain(error).into());
        let report = TreePath::parse(tool.report.as_bytes()).map_err(|error| unreadable(&error))?;
        let mut filled: Vec<Written> = written.to_vec();
        filled.retain(|one| one.path != report);
        let view = trial.view().map_err(|error| unreadable(&error))?;
        // What was there before the run must not be taken for its report.
        if let Ok(Some(_)) = view.look(&report) {
            filled.push(Written {
                path: report.clone(),
                project: None,
                before: None,
                after: None,
            });
        }
        router.fill(trial, &filled).await?;
        self.run_tool(router, trial, tool).await?;
        let view = trial.view().map_err(|error| unreadable(&error))?;
        let bytes = view.read(&report, MAX_REPORT);
        let bytes = bytes.map_err(|error| unreadable(&error))?;
        let text = String::from_utf8(bytes).map_err(|error| unreadable(&error))?;
        let root = self.ground.workshop.premises().project.clone();
        let format = CoverageFormat::of(&text);
        // A large report takes a while; that must not hold up anybody else.
        let root = root.to_string_lossy().into_owned();
        let parse = move || coverage::parse(format, &root, &text);
        let parsed = tokio::task::spawn_blocking(parse).await;
        let parsed = parsed.map_err(|error| unreadable(&error))?;
        parsed.map_err(|error| unreadable(&error))
    }

    async fn run_tool(
        &self,
        router: &Router<'_>,
        trial: &HeldLayer,
        tool: &CoverageCommand,
    ) -> Result<(), MeasureError> {
        let protected = router.course.protected(&self.ground.workshop);
        let booth = router.open_over("test.run", trial, protected).await?;
        let need = Need {
            action: "test.run".to_owned(),
            resource: None,
        };
        let desk = self.ground.desk.inside(booth.id());
        let finished = match router.permit(&desk, "test.run", &need).await {
            Ok(permit) => {
                let command = Command::new(tool.command.clone());
                Ok(booth.run(permit, command, b"").await)
            }
            Err(error) => Err(error),
        };
        booth.close().await;
        let said = match finished? {
            Ok(finished) => match finished.exit {
                Exit::Code { code: 0 } => return Ok(()),
                Exit::Code { code } => format!("ended with exit code {code}"),
                Exit::Signal { signal } => format!("was ended by signal {signal}"),
                Exit::NotStarted { errno } => format!("could not be started (errno {errno})"),
                Exit::Limit { limit } => format!("was ended by a limit: {limit:?}"),
            },
            Err(error) => super::steps::chain(&error),
        };
        let line = tool.command.join(" ");
        Err(MeasureError::Said(format!("`{line}` {said}")))
    }
}
