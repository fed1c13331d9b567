//! `fluffy "task"`, `fluffy`, `fluffy run`, `fluffy acp`: the agent as people
//! and programs meet it.
//!
//! Talks to the kernel over IPC and shows what it says; decides nothing, runs
//! no tool and never writes to the project. Start with `conversation` for the
//! loop, `show` for the pictures, `connect` for the way to the kernel.

pub(crate) mod acp;
pub(crate) mod connect;
pub(crate) mod conversation;
mod keyring;
pub(crate) mod senses;
pub(crate) mod show;
mod slash;
mod status;
pub(crate) mod view;
pub(crate) mod wanted;

use std::io::{self, IsTerminal};

use fluffy_kernel::api::Presence;
use fluffy_kernel::event::SessionEnded;
use fluffy_report::{ExitCode, Report};
use tokio::runtime::Runtime;

use crate::args::{RunTaskArgs, TaskArgs, WorkArgs};
use crate::command::gate::Yes;
use crate::command::{Outcome, recordings};
use crate::failure::{self, Failure};
use crate::session::Session;
use connect::{KernelPlace, kernel};
use conversation::{Answers, Conversation, Ends, Manner};
use senses::{Keyboard, Senses};
use view::View;

/// `fluffy "task"`, or `fluffy` alone: a person watches.
pub(crate) fn task(session: &Session, args: &TaskArgs) -> Outcome {
    let task = args.words.join(" ");
    let keyboard = keyboard(session);
    if task.trim().is_empty() {
        if keyboard == Keyboard::Left {
            return Err(no_task().into());
        }
        return work(session, &args.work, None, keyboard);
    }
    work(session, &args.work, Some(&task), keyboard)
}

/// How a session went that was followed.
#[derive(Debug)]
pub(crate) struct Followed {
    /// What the program exits with.
    pub(crate) code: ExitCode,
    /// How the session ended, unless somebody left before.
    pub(crate) ended: Option<SessionEnded>,
}

/// `fluffy run`: nobody watches.
pub(crate) fn run(session: &Session, args: &RunTaskArgs) -> Outcome {
    let task = args.words.join(" ");
    if task.trim().is_empty() {
        return Err(no_task().into());
    }
    work(session, &args.work, Some(&task), Keyboard::Left)
}

fn work(session: &Session, args: &WorkArgs, task: Option<&str>, keyboard: Keyboard) -> Outcome {
    Ok(follow(session, args, task, keyboard)?.code)
}

/// Begins a session, follows it, and writes its recording if one is wanted.
pub(crate) fn follow(
    session: &Session,
    args: &WorkArgs,
    task: Option<&str>,
    keyboard: Keyboard,
) -> Result<Followed, Failure> {
    let manner = Manner {
        ends: match task {
            Some(_) => Ends::WithTask,
            None => Ends::WithPerson,
        },
        answers: answers(Yes::from_flag(args.yes_auto), keyboard),
    };
    let here = session.here()?;
    let place = KernelPlace::of(here)?;
    let folder = session.folder()?;
    let wanted = wanted::wanted(here, &folder, args, presence(manner.answers))?;
    let record = wanted.record.clone();
    let (code, id, ended) = runtime()?.block_on(async {
        let senses = Senses::of_process(keyboard)?;
        let kernel = kernel(place).await?;
        let view = View::new(&session.printer);
        let mut conversation = Conversation::new(kernel, view, manner).wanting(wanted);
        if let Some(task) = task {
            conversation.begin(task).await?;
        }
        let code = conversation.run(senses).await?;
        Ok::<_, Failure>((code, conversation.session(), conversation.ended().cloned()))
    })?;
    if let (Some(id), Some(path)) = (id, record) {
        recordings::write(session, id, &path)?;
    }
    Ok(Followed { code, ended })
}

/// Whether somebody at a terminal can type; JSON is read by programs.
pub(crate) fn keyboard(session: &Session) -> Keyboard {
    let is_there = io::stdin().is_terminal() && io::stdout().is_terminal();
    if is_there && !session.json() {
        Keyboard::Read
    } else {
        Keyboard::Left
    }
}

/// Who answers the questions of a session.
pub(crate) fn answers(yes: Yes, keyboard: Keyboard) -> Answers {
    match (yes, keyboard) {
        (Yes::Given, _) => Answers::AlwaysYes,
        (Yes::NotGiven, Keyboard::Read) => Answers::Person,
        (Yes::NotGiven, Keyboard::Left) => Answers::Nobody,
    }
}

/// What the kernel is told about who answers.
pub(crate) fn presence(answers: Answers) -> Presence {
    match answers {
        Answers::Person | Answers::AlwaysYes => Presence::Present,
        Answers::Nobody => Presence::Absent,
    }
}

/// What everything that talks to the kernel runs on.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failure::no_threads(&error).into())
}

fn no_task() -> Report {
    Report::new(ExitCode::Usage, "there is nothing to do")
        .why("no task was given, and there is no terminal to ask at")
        .fix("write the task in quotes: fluffy \"add a test for parse_config\"")
}
