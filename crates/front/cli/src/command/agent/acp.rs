//! `fluffy acp`: editors drive a session through the Agent Client Protocol.
//!
//! JSON-RPC over standard input and output, one message a line, version 1 of
//! the protocol, spoken directly: the published crate brings a runtime of its
//! own for a dozen messages. Every session of the editor has a [`desk`] with
//! its own connection to the kernel of its project. Offers the editor nothing
//! that a person at the terminal could not do.

mod desk;
mod translate;
mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fluffy_base::id::ApprovalId;
use fluffy_config::project;
use fluffy_kernel::api::Presence;
use fluffy_kernel::event::PersonAnswer;
use fluffy_policy::word::Mode;
use fluffy_report::{ExitCode, Report, Styling};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::connect::{self, KernelPlace};
use super::{runtime, senses, wanted};
use crate::args::WorkArgs;
use crate::command::Outcome;
use crate::failure::Failure;
use crate::session::Session;
use desk::{Desk, FromDesk, ToDesk};
use wire::{INTERNAL, INVALID_PARAMS, INVALID_REQUEST, Incoming, Problem, UNKNOWN_METHOD};

/// The longest message that is taken.
const MAX_MESSAGE: u64 = 16 * 1024 * 1024;

/// How many sessions an editor may have open.
const MAX_SESSIONS: usize = 32;

/// Unread messages of all sessions before they wait.
const UNREAD: usize = 64;

/// Serves an editor until it closes our input.
pub(crate) fn run(session: &Session, args: &WorkArgs) -> Outcome {
    if args.record.is_some() {
        // An editor has many sessions, and they would all go to one file.
        let what = "the sessions of an editor cannot be recorded";
        let fix = "use `fluffy run --record FILE \"task\"`";
        return Err(Report::new(ExitCode::Usage, what).fix(fix).into());
    }
    runtime()?.block_on(async {
        let lines = senses::lines(MAX_MESSAGE)?;
        Editor::new(session, args).serve(lines).await
    })
}

/// The editor at the other end, and its sessions.
#[derive(Debug)]
struct Editor<'a> {
    cli: &'a Session,
    args: &'a WorkArgs,
    desks: BTreeMap<String, mpsc::Sender<ToDesk>>,
    tasks: JoinSet<()>,
    /// What was asked of the person, by the number of our request.
    asked: BTreeMap<u64, (String, ApprovalId)>,
    numbers: u64,
    to_us: mpsc::Sender<FromDesk>,
    from_desks: mpsc::Receiver<FromDesk>,
}

impl<'a> Editor<'a> {
    fn new(cli: &'a Session, args: &'a WorkArgs) -> Self {
        let (to_us, from_desks) = mpsc::channel(UNREAD);
        Self {
            cli,
            args,
            desks: BTreeMap::new(),
            tasks: JoinSet::new(),
            asked: BTreeMap::new(),
            numbers: 0,
            to_us,
            from_desks,
        }
    }

    async fn serve(mut self, mut lines: mpsc::Receiver<String>) -> Outcome {
        loop {
            tokio::select! {
                line = lines.recv() => match line {
                    Some(line) if line.trim().is_empty() => {}
                    Some(line) => self.line(&line).await?,
                    None => break,
                },
                Some(message) = self.from_desks.recv() => self.pass_on(message)?,
            }
        }
        // Desks end when nobody speaks to them any more; what they still say
        // has no reader.
        self.desks.clear();
        drop(self.from_desks);
        while self.tasks.join_next().await.is_some() {}
        Ok(ExitCode::Success)
    }

    async fn line(&mut self, line: &str) -> Result<(), Failure> {
        match wire::parse(line) {
            Ok(Incoming::Request { id, method, params }) => {
                if let Some(outcome) = self.request(&id, &method, &params).await {
                    self.send(&wire::answer(&id, outcome))?;
                }
            }
            Ok(Incoming::Notice { method, params }) => {
                if method == "session/cancel" {
                    // A session that does not exist needs no end.
                    let _ = self.tell(&params, ToDesk::Cancel);
                }
            }
            Ok(Incoming::Answer { id, result }) => self.answered(id, result.as_ref()),
            Err(problem) => self.send(&wire::answer(&Value::Null, Err(problem)))?,
        }
        Ok(())
    }

    /// The answer; none where a desk gives it later.
    async fn request(
        &mut self,
        id: &Value,
        method: &str,
        params: &Value,
    ) -> Option<Result<Value, Problem>> {
        match method {
            "initialize" => Some(Ok(initialized())),
            // There is nobody to log in to: keys are the kernel's affair.
            "authenticate" => Some(Ok(json!({}))),
            "session/new" => Some(self.open(params).await),
            "session/prompt" => {
                let Some(text) = params.get("prompt").and_then(translate::prompt_text) else {
                    let words = "a prompt is text, links and embedded text";
                    return Some(Err(Problem::new(INVALID_PARAMS, words)));
                };
                let id = id.clone();
                self.tell(params, ToDesk::Prompt { id, text })
                    .err()
                    .map(Err)
            }
            "session/set_mode" => {
                let mode = params.get("modeId").and_then(Value::as_str);
                let Some(mode) = mode.and_then(|mode| mode.parse::<Mode>().ok()) else {
                    let words = "the modes are strict, explore and debug";
                    return Some(Err(Problem::new(INVALID_PARAMS, words)));
                };
                let id = id.clone();
                self.tell(params, ToDesk::Mode { id, mode }).err().map(Err)
            }
            other => {
                let words = format!("there is no method `{other}`");
                Some(Err(Problem::new(UNKNOWN_METHOD, words)))
            }
        }
    }

    async fn open(&mut self, params: &Value) -> Result<Value, Problem> {
        if self.desks.len() >= MAX_SESSIONS {
            let words = format!("{MAX_SESSIONS} sessions are open, which is the most");
            return Err(Problem::new(INVALID_REQUEST, words));
        }
        let folder = params.get("cwd").and_then(Value::as_str).map(PathBuf::from);
        let folder = folder.filter(|folder| folder.is_absolute());
        let folder = folder.and_then(|folder| folder.canonicalize().ok());
        let folder = folder.ok_or_else(|| {
            Problem::new(
                INVALID_PARAMS,
                "cwd is the absolute path of a folder that exists",
            )
        })?;
        let desk = self.desk(&folder).await;
        let desk = desk.map_err(|failure| Problem::new(INTERNAL, told(&failure)))?;
        let id = format!("acp-{}", self.numbers);
        self.numbers += 1;
        let (sender, receiver) = mpsc::channel(16);
        self.tasks
            .spawn(desk.named(id.clone()).run(receiver, self.to_us.clone()));
        self.desks.insert(id.clone(), sender);
        let mode = self.args.mode.map_or(Mode::Strict, wanted::mode);
        Ok(json!({"sessionId": id, "modes": translate::modes(mode)}))
    }

    async fn desk(&self, folder: &Path) -> Result<Desk, Failure> {
        let root = project::find_root(folder).unwrap_or_else(|| folder.to_owned());
        let here = self.cli.here_in(&root)?;
        let wanted = wanted::wanted(&here, folder, self.args, Presence::Present)?;
        let kernel = connect::kernel(KernelPlace::of(&here)?).await?;
        Ok(Desk::new(kernel, wanted))
    }

    fn tell(&self, params: &Value, message: ToDesk) -> Result<(), Problem> {
        let id = params
            .get("sessionId")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let desk = self.desks.get(id);
        let desk = desk
            .ok_or_else(|| Problem::new(INVALID_PARAMS, format!("there is no session `{id}`")))?;
        let told = desk.try_send(message);
        told.map_err(|_| Problem::new(INTERNAL, format!("the session `{id}` has ended or is busy")))
    }

    fn pass_on(&mut self, message: FromDesk) -> Result<(), Failure> {
        match message {
            FromDesk::Send(value) => self.send(&value),
            FromDesk::Ask {
                desk,
                approval,
                params,
            } => {
                let number = self.numbers;
                self.numbers += 1;
                self.asked.insert(number, (desk, approval));
                self.send(&wire::request(number, "session/request_permission", params))
            }
        }
    }

    /// Anything but a clear yes is a no.
    fn answered(&mut self, number: u64, result: Option<&Value>) {
        let Some((desk, approval)) = self.asked.remove(&number) else {
            return;
        };
        let outcome = result.and_then(|result| result.get("outcome"));
        let field = |name: &str| outcome?.get(name)?.as_str();
        let is_yes = field("outcome") == Some("selected") && field("optionId") == Some("approve");
        let answer = if is_yes {
            PersonAnswer::Approve
        } else {
            PersonAnswer::Reject
        };
        if let Some(desk) = self.desks.get(&desk) {
            // A desk that is gone has no question any more.
            let _ = desk.try_send(ToDesk::Answer { approval, answer });
        }
    }

    fn send(&self, message: &Value) -> Result<(), Failure> {
        Ok(self.cli.printer.json(message)?)
    }
}

fn initialized() -> Value {
    json!({
        "protocolVersion": wire::PROTOCOL,
        "agentCapabilities": {
            "loadSession": false,
            "promptCapabilities": {"image": false, "audio": false, "embeddedContext": true},
        },
        "agentInfo": {
            "name": "fluffy",
            "title": "Fluffy",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "authMethods": [],
    })
}

/// A failure as text, for the editor's own dialog.
fn told(failure: &Failure) -> String {
    match failure {
        Failure::Report(report) => report.render(100, Styling::Plain).trim().to_owned(),
        Failure::Print(error) => error.to_string(),
    }
}
