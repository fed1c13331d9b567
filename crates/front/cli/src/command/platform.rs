//! The platform: manifests, contexts, and everything a server is asked.
//!
//! `run` is every command that asks a server: those that are one call follow
//! from the table of operations (`call.rs`), the rest is in `extra.rs`.

mod ask;
mod call;
pub(crate) mod complete;
mod context;
mod contexts;
mod custody;
mod edge;
pub(crate) mod exec;
mod export;
mod export_org;
mod extra;
mod image;
mod launch;
mod manifest;
mod migrate;
mod node;
mod progress;
mod receipt;
mod refusal;
mod serve;
mod source;
mod status;
pub(crate) mod target;
mod view;
mod watch;

pub(crate) use context::run as context;
pub(crate) use image::run as image;
pub(crate) use manifest::run as manifest;
pub(crate) use migrate::run as ledger;
pub(crate) use node::run as node;
pub(crate) use serve::{server, until_told, up};

use crate::args::platform::{PlatformCommand, derived};
use crate::command::Outcome;
use crate::session::Session;

/// Runs a command that asks a server.
pub(crate) fn run(session: &Session, command: &PlatformCommand) -> Outcome {
    let words = command.words.join(" ");
    if let Some(outcome) = custody::run(session, &words, &command.matches) {
        return outcome;
    }
    let mut asker = ask::Asker::new(session, &call::flags(&command.matches))?;
    ask::block(async {
        let found = derived().into_iter().find(|(known, _)| *known == words);
        match found {
            Some((_, operations)) => call::run(&mut asker, &operations, &command.matches).await,
            None => extra::run(&mut asker, &words, &command.matches).await,
        }
    })
}
