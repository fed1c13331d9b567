//! `fluffy session resume|fork|undo`: what only the kernel can do.

use fluffy_base::id::SessionId;
use fluffy_kernel::api::{Reply, Resume, SessionOrder};
use fluffy_kernel::session::Session as Recorded;
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use super::{find, unreadable, with_store};
use crate::args::WorkArgs;
use crate::command::agent::connect::{KernelPlace, kernel};
use crate::command::agent::conversation::{Conversation, Ends, Manner};
use crate::command::agent::senses::Senses;
use crate::command::agent::view::View;
use crate::command::agent::wanted::{providers, wanted};
use crate::command::agent::{answers, keyboard, presence, runtime};
use crate::command::gate::Yes;
use crate::command::{Outcome, layer, recordings};
use crate::failure::Failure;
use crate::session::Session;

/// Goes on with a session and follows it.
pub(super) fn resume(session: &Session, prefix: &str, yes: Yes) -> Outcome {
    let (id, record, model) = with_store(session, |store| {
        let id = find(store, prefix)?;
        let found = store.load(id).map_err(|error| unreadable(&error))?;
        Ok((id, found.started.record, found.model))
    })?;
    let keyboard = keyboard(session);
    let manner = Manner {
        ends: Ends::WithTask,
        answers: answers(yes, keyboard),
    };
    let here = session.here()?;
    let place = KernelPlace::of(here)?;
    let resume = Resume {
        session: id,
        person: presence(manner.answers),
        providers: providers(here, &[model]),
    };
    let code = runtime()?.block_on(async {
        let senses = Senses::of_process(keyboard)?;
        let kernel = kernel(place).await?;
        let view = View::new(&session.printer);
        let mut conversation = Conversation::new(kernel, view, manner);
        conversation.resume(resume).await?;
        conversation.run(senses).await
    })?;
    if let Some(path) = record {
        recordings::write(session, id, &path)?;
    }
    Ok(code)
}

/// Begins a session from where another one stands, and follows it.
pub(super) fn fork(session: &Session, prefix: &str, task: &str, args: &WorkArgs) -> Outcome {
    let id = with_store(session, |store| find(store, prefix))?;
    let keyboard = keyboard(session);
    let manner = Manner {
        ends: Ends::WithTask,
        answers: answers(Yes::from_flag(args.yes_auto), keyboard),
    };
    let here = session.here()?;
    let place = KernelPlace::of(here)?;
    let mut wanted = wanted(here, &session.folder()?, args, presence(manner.answers))?;
    wanted.forked_from = Some(id);
    let record = wanted.record.clone();
    let (code, id) = runtime()?.block_on(async {
        let senses = Senses::of_process(keyboard)?;
        let kernel = kernel(place).await?;
        let view = View::new(&session.printer);
        let mut conversation = Conversation::new(kernel, view, manner).wanting(wanted);
        conversation.begin(task).await?;
        let code = conversation.run(senses).await?;
        Ok::<_, Failure>((code, conversation.session()))
    })?;
    if let (Some(id), Some(path)) = (id, record) {
        recordings::write(session, id, &path)?;
    }
    Ok(code)
}

/// Takes the last turn back that changed something.
pub(super) fn undo(session: &Session, prefix: Option<&str>) -> Outcome {
    let id = match prefix {
        Some(prefix) => with_store(session, |store| find(store, prefix))?,
        None => newest(session)?,
    };
    let place = KernelPlace::of(session.here()?)?;
    let reply = runtime()?.block_on(async {
        let mut kernel = kernel(place).await?;
        kernel.order(id, SessionOrder::Undo).await
    })?;
    match reply {
        Reply::Refused { text } => Err(not_undone(id, &text).into()),
        Reply::Done { text } | Reply::Text { text } => {
            if session.json() {
                session
                    .printer
                    .json(&json!({"session": id, "undone": text}))?;
            } else {
                session.printer.data(&text)?;
            }
            Ok(ExitCode::Success)
        }
        Reply::Status(_) => Err(not_undone(id, "the kernel did not say what it did").into()),
    }
}

/// The newest session whose layer is over this project.
fn newest(session: &Session) -> Result<SessionId, Failure> {
    let here = session.here()?;
    let layers = layer::open_store(here)?;
    let project = KernelPlace::of(here)?.project;
    let is_ours = |recorded: &Recorded| {
        let found = layers.find(&recorded.layer.to_string());
        found.is_ok_and(|layer| layer.project() == project)
    };
    with_store(session, |store| {
        let listed = store.list().map_err(|error| unreadable(&error))?;
        let mut loaded = listed.iter().filter_map(|one| store.load(one.id).ok());
        let found = loaded.find(is_ours);
        let none = || Report::new(ExitCode::NotFound, "this project has no session to undo");
        Ok(found.ok_or_else(none)?.id)
    })
}

fn not_undone(id: SessionId, why: &str) -> Report {
    Report::new(ExitCode::Conflict, format!("nothing of `{id}` was undone"))
        .why(why.to_owned())
        .fix("`fluffy session show ID` says what happened in it")
}
