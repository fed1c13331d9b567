//! `fluffy session resume|fork|undo`: what only the kernel can do.

use fluffy_base::id::SessionId;
use fluffy_kernel::api::{Reply, Resume, SessionOrder};
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
use crate::command::{Outcome, recordings};
use crate::failure::Failure;
use crate::session::Session;

/// Goes on with a session and follows it.
pub(super) fn resume(session: &Session, prefix: &str, yes: Yes) -> Outcome {
    let (id, record) = with_store(session, |store| {
        let id = find(store, prefix)?;
        let found = store.load(id).map_err(|error| unreadable(&error))?;
        Ok((id, found.started.record))
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
        providers: providers(here),
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
pub(super) fn undo(session: &Session, prefix: &str) -> Outcome {
    let id = with_store(session, |store| find(store, prefix))?;
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

fn not_undone(id: SessionId, why: &str) -> Report {
    Report::new(ExitCode::Conflict, format!("nothing of `{id}` was undone"))
        .why(why.to_owned())
        .fix("`fluffy session show ID` says what happened in it")
}
