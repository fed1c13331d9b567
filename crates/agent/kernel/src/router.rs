//! The one way from a call to an effect: schema, workflow, policy, run, sanitise.
//!
//! Nothing reaches a file or a process of a session but through here, and what
//! comes back is recorded by `agent` before the model sees it. A refusal is a
//! result like any other. Steps of the workflow are `agent`'s own.

mod foreign;
mod native;
mod telling;
mod typing;
mod write;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fluffy_base::{Digest, Span};
use fluffy_contract::isolation::{Command, Exit, Finished, Limit};
use fluffy_contract::tool::{CallToolError, Need, Repeat, ToolOutcome, ToolOutput};
use fluffy_gate::{Answer, ApproveError, AuthorizeError, Desk};
use fluffy_layer::HeldLayer;
use fluffy_policy::word::Mode;
use fluffy_policy::{Context, Permit, Refusal as PolicyRefusal, Request};
use fluffy_tasks::Memory;
use fluffy_tools::arguments::RunCommand;
use fluffy_tools::call::Call;
use fluffy_tools::paths::shown;
use fluffy_tools::refusal::{Refusal, RefusedBy};
use fluffy_tools::registry::Checked;
use fluffy_tools::sanitise::{Sanitiser, Source};

use crate::course::Course;
use crate::event::Outcome;
use crate::freezer::Freezer;
use crate::git;
use crate::hidden::Hidden;
use crate::person::{Person, Question, Said};
use crate::slots::Slots;
use crate::touching::TestFiles;
use crate::workshop::{After, Booth, Over, Stay, Workshop};

/// The most bytes of a command's output that are kept.
const MAX_OUTPUT: u64 = 4 << 20;

/// What calls of one session need.
pub(crate) struct Router<'a> {
    pub(crate) desk: &'a Desk,
    /// For a person's yes to what runs in no sandbox.
    pub(crate) people: &'a Desk,
    pub(crate) context: Context,
    pub(crate) workshop: &'a Workshop,
    pub(crate) slots: &'a Slots,
    /// Who can pause what runs in the sandboxes.
    pub(crate) freezer: Option<Arc<Freezer>>,
    pub(crate) held: &'a HeldLayer,
    pub(crate) hidden: &'a Hidden,
    pub(crate) person: &'a Person,
    pub(crate) course: &'a Course,
    /// Which files hold tests, once somebody looked.
    pub(crate) tests: &'a Arc<TestFiles>,
    /// Files that no test reached when coverage was last measured.
    pub(crate) unreached: &'a BTreeSet<String>,
    pub(crate) sanitiser: Sanitiser<'a>,
    pub(crate) stop: Arc<AtomicBool>,
    /// Set when somebody should have answered and nobody was there.
    pub(crate) unanswered: &'a AtomicBool,
    /// How often a person answered yes.
    pub(crate) reviewed: &'a AtomicUsize,
}

/// A call that has ended, ready to be recorded.
#[derive(Debug)]
pub(crate) struct Routed {
    pub(crate) outcome: Outcome,
    pub(crate) content: String,
    pub(crate) original: Digest,
    pub(crate) summary: String,
}

/// Why a call came to no result at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    /// Something said no.
    #[error("{}", .0.for_people())]
    Refused(Box<Refusal>),
    /// A decision or an approval could not be recorded: the session stops.
    #[error("a decision could not be recorded")]
    NotRecorded(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<Refusal> for RouteError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl From<AuthorizeError> for RouteError {
    fn from(error: AuthorizeError) -> Self {
        Self::NotRecorded(error.into())
    }
}

impl Router<'_> {
    /// Makes a checked call that is no step of the workflow.
    pub(crate) async fn route(&self, call: &str, checked: &Checked) -> Result<Routed, RouteError> {
        let first = self.first_changes(checked);
        match self.run(checked).await {
            Ok(output) => {
                let beyond = self.beyond(&output, &first).await;
                Ok(self.finish_with(call, checked, &output, &beyond))
            }
            Err(RouteError::Refused(refusal)) => Ok(refused(&refusal)),
            Err(error) => Err(error),
        }
    }

    /// A result as the model and the ledger get it.
    pub(crate) fn finish(&self, call: &str, checked: &Checked, output: &ToolOutput) -> Routed {
        self.finish_with(call, checked, output, "")
    }

    /// The same with something more for the model, which people need not see.
    fn finish_with(
        &self,
        call: &str,
        checked: &Checked,
        output: &ToolOutput,
        beyond: &str,
    ) -> Routed {
        let tool = checked.tool.as_str();
        let source = Source { tool, call };
        let content = format!("{}{beyond}", output.content);
        let made = self
            .sanitiser
            .sanitise(source, checked.handling.keep, content.as_bytes());
        Routed {
            outcome: match output.outcome {
                ToolOutcome::Done => Outcome::Done,
                ToolOutcome::Failed => Outcome::Failed,
            },
            content: made.text,
            original: made.original,
            summary: summary(&output.content),
        }
    }

    async fn run(&self, checked: &Checked) -> Result<ToolOutput, RouteError> {
        match &checked.call {
            Call::Read(_) | Call::List(_) | Call::Exists(_) | Call::Grep(_) | Call::Glob(_) => {
                self.native(checked).await
            }
            Call::Write(_) | Call::Replace(_) | Call::Patch(_) | Call::Remove(_) => {
                self.write(checked).await
            }
            Call::Shell(command) => self.shell(checked, command).await,
            Call::GitStatus => {
                let words = ["status", "--short", "--branch", "--"];
                let command = git::command_on_paths(&words, &self.readable("."));
                self.git(checked, command).await
            }
            Call::GitDiff(show) => {
                let words = ["diff", "--no-ext-diff", "--no-textconv", "HEAD", "--"];
                let paths = self.readable(below(&show.path));
                let command = git::command_on_paths(&words, &paths);
                self.git(checked, command).await
            }
            Call::GitLog(log) => {
                let count = format!("-{}", log.count.unwrap_or(20).clamp(1, 100));
                let words = ["log", "--oneline", "--decorate", &count, "--"];
                let words = [&words[..], &[below(&log.path)]].concat();
                self.git(checked, git::command(&words)).await
            }
            Call::Foreign(call) => self.foreign(checked, call).await,
            Call::Debug(_)
            | Call::Test(_)
            | Call::GitCommit(_)
            | Call::CompletePlan(_)
            | Call::RequestExemption(_)
            | Call::Transition(_)
            | Call::TestIsWrong(_)
            | Call::SetMode(_) => Ok(failed("this is a step of the workflow")),
        }
    }

    /// A read, once more after a moment if the system failed.
    async fn native(&self, checked: &Checked) -> Result<ToolOutput, RouteError> {
        let first = self.native_once(checked).await?;
        let (Err(CallToolError::Unavailable { .. }), Repeat::Once { after }) =
            (&first, checked.handling.repeat)
        else {
            return Ok(first.unwrap_or_else(|error| failed(error.to_string())));
        };
        tokio::time::sleep(after).await;
        let second = self.native_once(checked).await?;
        Ok(second.unwrap_or_else(|error| failed(error.to_string())))
    }

    async fn native_once(
        &self,
        checked: &Checked,
    ) -> Result<Result<ToolOutput, CallToolError>, RouteError> {
        let permit = self.all(self.desk, checked).await?;
        let view = match self.held.view() {
            Ok(view) => view,
            Err(error) => return Ok(Ok(failed(error.to_string()))),
        };
        let reading = native::Reading {
            call: checked.call.clone(),
            view,
            permit,
            desk: self.desk.clone(),
            context: self.context.clone(),
            stop: Arc::clone(&self.stop),
        };
        // A search can take long; it must not hold up anybody else.
        let read = tokio::task::spawn_blocking(move || reading.read()).await;
        Ok(read.unwrap_or_else(|_| Ok(failed("the read was ended"))))
    }

    async fn shell(&self, checked: &Checked, run: &RunCommand) -> Result<ToolOutput, RouteError> {
        self.course
            .may_run(&checked.tool)
            .map_err(RouteError::Refused)?;
        let before = self
            .course
            .guard(self.held)
            .map_err(|error| refused_by_layer(&checked.tool, &error))?;
        let booth = self
            .open(&checked.tool, self.course.protected(self.workshop))
            .await?;
        let done = self.command(&booth, checked, run).await;
        booth.close().await;
        let output = done?;
        self.put_back(checked, &before, output).await
    }

    async fn command(
        &self,
        booth: &Booth,
        checked: &Checked,
        run: &RunCommand,
    ) -> Result<ToolOutput, RouteError> {
        let permit = self.all(&self.desk.inside(booth.id()), checked).await?;
        Ok(self.run_in(booth, permit, run).await)
    }

    /// What a shell command printed in a sandbox.
    pub(crate) async fn run_in(
        &self,
        booth: &Booth,
        permit: Permit,
        run: &RunCommand,
    ) -> ToolOutput {
        let project = &self.workshop.premises().project;
        let directory = below(&run.directory);
        let command = Command {
            directory: (directory != ".").then(|| project.join(directory)),
            output: Some(fluffy_base::ByteSize(MAX_OUTPUT)),
            time: run.seconds.map(|seconds| Span {
                millis: u64::from(seconds) * 1_000,
            }),
            ..Command::new(["sh", "-c", &run.command])
        };
        let run = booth.run_unless_short(self.workshop, permit, command);
        match run.await {
            Ok(Some(finished)) => output_of(&finished),
            Ok(None) => failed("(ended: the kernel needed memory; run it again later)"),
            Err(error) => failed(error.to_string()),
        }
    }

    /// A path for git, without what is hidden below it.
    fn readable(&self, path: &str) -> Vec<String> {
        let project = &self.workshop.premises().project;
        let hidden = self.hidden.paths().iter();
        let hidden = hidden.filter_map(|path| path.strip_prefix(project).ok()?.to_str());
        git::without(path, hidden)
    }

    async fn git(&self, checked: &Checked, command: Command) -> Result<ToolOutput, RouteError> {
        let booth = self.open(&checked.tool, Vec::new()).await?;
        let done = async {
            let permit = self.all(&self.desk.inside(booth.id()), checked).await?;
            let run = booth.run(permit, command, b"").await;
            Ok(run.map_or_else(|error| failed(error.to_string()), |done| output_of(&done)))
        };
        let done = done.await;
        booth.close().await;
        done
    }

    /// A sandbox over the session's layer: the one that runs, if there is one.
    pub(crate) async fn open(
        &self,
        tool: &str,
        protected: Vec<PathBuf>,
    ) -> Result<Booth, RouteError> {
        let stays = self.workshop.premises().stay == Stay::Session;
        if stays || self.workshop.is_running(self.held.layer().id()) {
            return self.open_running(tool).await;
        }
        self.open_over(tool, self.held, protected).await
    }

    /// The sandbox over the session's layer that stays from call to call.
    pub(crate) async fn open_running(&self, tool: &str) -> Result<Booth, RouteError> {
        let template = &self.workshop.premises().template;
        let permit = self.permit_sandbox(tool, template).await?;
        let over = Over {
            template,
            held: self.held,
            hidden: self.hidden,
            protected: self.course.protected(self.workshop),
        };
        let after = match self.context.mode {
            Some(Mode::Debug) => After::Leave,
            _ => After::End,
        };
        let opened = self.workshop.open_running(permit, over, after).await;
        opened.map_err(|error| refused_by_layer(tool, &error))
    }

    async fn permit_sandbox(&self, tool: &str, template: &str) -> Result<Permit, RouteError> {
        let need = Need {
            action: "sandbox.create".to_owned(),
            resource: Some(template.to_owned()),
        };
        self.permit(self.desk, tool, &need).await
    }

    /// A sandbox over another layer of this project, of the template that the
    /// circumstances name.
    pub(crate) async fn open_over(
        &self,
        tool: &str,
        held: &HeldLayer,
        protected: Vec<PathBuf>,
    ) -> Result<Booth, RouteError> {
        let own = &self.workshop.premises().template;
        let template = self.context.template.as_ref().unwrap_or(own);
        let permit = self.permit_sandbox(tool, template).await?;
        let over = Over {
            template,
            held,
            hidden: self.hidden,
            protected,
        };
        let opened = self.workshop.open(permit, over).await;
        self.prepare().await?;
        let booth = opened.map_err(|error| refused_by_layer(tool, &error))?;
        Ok(booth.under(self.freezer.clone()))
    }

    /// Has the next sandboxes made meanwhile, where policy allows it without
    /// asking anybody.
    pub(crate) async fn prepare(&self) -> Result<(), RouteError> {
        if self.slots.memory().kernel >= Memory::KERNEL_STOP {
            // What only waits is the first to go.
            self.workshop.end_waiting().await;
            return Ok(());
        }
        let template = &self.workshop.premises().template;
        let request = self
            .desk
            .request("sandbox.create", Some(template), &self.context);
        for _ in 0..self.workshop.missing().await {
            if let Answer::Granted(granted) = self.desk.ask(&request)? {
                self.workshop.prepare_soon(granted.permit);
            }
        }
        Ok(())
    }

    /// Permits for everything that a call needs.
    async fn each(&self, desk: &Desk, checked: &Checked) -> Result<Vec<Permit>, RouteError> {
        let mut permits = Vec::new();
        for need in &checked.plan.needs {
            permits.push(self.permit(desk, &checked.tool, need).await?);
        }
        Ok(permits)
    }

    /// Permits for the files that a call writes, each with its size; the last.
    pub(super) async fn all_sized(
        &self,
        desk: &Desk,
        checked: &Checked,
        sizes: &Sizes,
    ) -> Result<Permit, RouteError> {
        let mut last = None;
        for need in &checked.plan.needs {
            let size = need.resource.as_deref().and_then(|path| sizes.get(path));
            let (size, lines) = size.copied().unwrap_or_default();
            let context = Context {
                size: Some(size),
                lines: Some(lines),
                ..self.context.clone()
            };
            let permit = self.permit_in(desk, &checked.tool, need, &context);
            last = Some(permit.await?);
        }
        last.ok_or_else(|| needless(&checked.tool))
    }

    /// As [`Router::each`], for an effect that takes one: the last.
    pub(crate) async fn all(&self, desk: &Desk, checked: &Checked) -> Result<Permit, RouteError> {
        let last = self.each(desk, checked).await?.pop();
        last.ok_or_else(|| needless(&checked.tool))
    }

    /// Asks policy, and a person where policy wants one.
    pub(crate) async fn permit(
        &self,
        desk: &Desk,
        tool: &str,
        need: &Need,
    ) -> Result<Permit, RouteError> {
        self.permit_in(desk, tool, need, &self.context).await
    }

    /// As [`Router::permit`], under other circumstances.
    pub(crate) async fn permit_in(
        &self,
        desk: &Desk,
        tool: &str,
        need: &Need,
        context: &Context,
    ) -> Result<Permit, RouteError> {
        let request = desk.request(&need.action, need.resource.as_deref(), context);
        let review = match desk.ask(&request)? {
            Answer::Granted(granted) => return Ok(granted.permit),
            Answer::Denied(refusal) => {
                return Err(Refusal::of_decision(tool, refusal.decision()).into());
            }
            Answer::Review(review) => review,
        };
        let about = need.resource.as_deref().map(shown).unwrap_or_default();
        let question = Question {
            text: format!("May the agent use `{}` on `{about}`?", need.action),
            reasons: review.decision().reasons().map(str::to_owned).collect(),
            shown: None,
        };
        match self.person.ask(question).await {
            Said::Yes => {
                self.reviewed.fetch_add(1, Ordering::Relaxed);
                self.approved(desk, tool, (&request, &review))
            }
            Said::No => {
                let reason = String::new();
                Err(Refusal::without_way(tool, RefusedBy::Person { reason }).into())
            }
            Said::Nobody => {
                self.unanswered.store(true, Ordering::Relaxed);
                Err(Refusal::of_decision(tool, review.decision()).into())
            }
        }
    }

    /// A person's yes. It is bound to the sandbox that uses it; a call of the
    /// kernel's own has none and is made in the person's name.
    pub(crate) fn approved(
        &self,
        desk: &Desk,
        tool: &str,
        (request, review): (&Request, &PolicyRefusal),
    ) -> Result<Permit, RouteError> {
        let by = &self.people.principal.name;
        let denied = |refusal: &PolicyRefusal| -> RouteError {
            Refusal::of_decision(tool, refusal.decision()).into()
        };
        let approved = match desk.principal.sandbox {
            Some(_) => desk.approve(request, review, by),
            None => {
                let resource = request.resource.as_deref();
                let own = self
                    .people
                    .request(&request.action, resource, &request.context);
                match self.people.ask(&own)? {
                    Answer::Granted(granted) => return Ok(granted.permit),
                    Answer::Denied(refusal) => return Err(denied(&refusal)),
                    Answer::Review(review) => self.people.approve(&own, &review, by),
                }
            }
        };
        match approved {
            Ok(granted) => Ok(granted.permit),
            Err(ApproveError::Refused(AuthorizeError::Refused { refusal, .. })) => {
                Err(denied(&refusal))
            }
            Err(error) => Err(RouteError::NotRecorded(error.into())),
        }
    }
}

/// Bytes and lines of files after a call, by resource.
type Sizes = std::collections::BTreeMap<String, (u64, u64)>;

fn needless(tool: &str) -> RouteError {
    let reason = "it says nothing about what it does".to_owned();
    Refusal::without_way(tool, RefusedBy::Sandbox { reason }).into()
}

/// A refusal as a result.
pub(crate) fn refused(refusal: &Refusal) -> Routed {
    let content = refusal.for_model();
    Routed {
        outcome: Outcome::Refused,
        original: Digest::of(content.as_bytes()),
        content,
        summary: refusal.for_people(),
    }
}

/// A result in the kernel's own words.
pub(crate) fn told(content: String) -> Routed {
    Routed {
        outcome: Outcome::Done,
        original: Digest::of(content.as_bytes()),
        summary: content.clone(),
        content,
    }
}

/// A result that says that something did not work.
pub(crate) fn failed(content: impl Into<String>) -> ToolOutput {
    ToolOutput {
        content: content.into(),
        outcome: ToolOutcome::Failed,
    }
}

pub(crate) fn refused_by_layer(tool: &str, error: &dyn std::error::Error) -> RouteError {
    let reason = error.to_string();
    Refusal::without_way(tool, RefusedBy::Sandbox { reason }).into()
}

/// A resource as git and commands in the project take it.
fn below(resource: &str) -> &str {
    match shown(resource) {
        "" => ".",
        path => path,
    }
}

/// What a command printed, and how it ended, in words.
fn output_of(finished: &Finished) -> ToolOutput {
    let mut text = String::from_utf8_lossy(&finished.stdout).into_owned();
    if !finished.stderr.is_empty() {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&String::from_utf8_lossy(&finished.stderr));
    }
    let end = match finished.exit {
        Exit::Code { code: 0 } if !text.is_empty() => None,
        Exit::Code { code } => Some(format!("exit code {code}")),
        Exit::Signal { signal } => Some(format!("ended by signal {signal}")),
        Exit::NotStarted { errno } => Some(format!("could not be started (errno {errno})")),
        Exit::Limit { limit } => Some(match limit {
            Limit::Time => "ended: it took too long".to_owned(),
            Limit::Memory => "ended: it used too much memory".to_owned(),
            Limit::Pids => "ended: it started too many processes".to_owned(),
            Limit::Output => "ended: it printed too much".to_owned(),
            Limit::Disk => "ended: it wrote too much".to_owned(),
        }),
    };
    if let Some(end) = end {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("({end})"));
    }
    ToolOutput {
        content: text,
        outcome: match finished.exit {
            Exit::Code { code: 0 } => ToolOutcome::Done,
            _ => ToolOutcome::Failed,
        },
    }
}

/// The first words of a result, for people.
fn summary(content: &str) -> String {
    const MOST: usize = 100;
    let lines = content.lines().count();
    let first = content.lines().find(|line| !line.trim().is_empty());
    let first: String = first
        .unwrap_or_default()
        .trim()
        .chars()
        .take(MOST)
        .collect();
    match lines {
        0 => "nothing".to_owned(),
        1 => first,
        many => format!("{many} lines: {first}"),
    }
}
