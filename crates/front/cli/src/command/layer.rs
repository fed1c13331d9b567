//! `fluffy layer …`: look at what sandboxes wrote; merge it or drop it.
//!
//! Layers are people's work: nothing here removes one unless it was asked to,
//! or the layer is empty. Next: `merge` for how one gets into its project.

mod diff;
mod list;
pub(crate) mod merge;
mod obstacle;

use std::fmt::Write;

use fluffy_base::id::{LayerId, SandboxId};
use fluffy_layer::{
    ChangeKind, Difference, DropLayerError, FindLayerError, HeldLayer, HoldLayerError, LayerStore,
    NodeKind, ReadLayerError, Summary, permit,
};
use fluffy_ledger::{Aggregate, Batch, Domain, Draft, Ledger};
use fluffy_policy::Context;
use fluffy_report::{ExitCode, Report};
use serde_json::{Value, json};

use crate::args::LayerCommand;
use crate::command::gate::{Desk, Yes};
use crate::command::{Outcome, ledger};
use crate::failure::Failure;
use crate::session::{Here, Session};

/// How many files of a layer are listed before the rest is counted.
const MAX_FILES: usize = 12;

/// Runs one of the `layer` commands.
pub(crate) fn run(session: &Session, command: LayerCommand) -> Outcome {
    match command {
        LayerCommand::List { all } => list::run(session, list::Which::from_flag(all)),
        LayerCommand::Diff { id } => diff::run(session, &id),
        LayerCommand::Merge { id, yes, without } => {
            merge::run(session, &id, Yes::from_flag(yes), &without)
        }
        LayerCommand::Drop { id, yes } => drop_layer(session, &id, Yes::from_flag(yes)),
    }
}

fn drop_layer(session: &Session, prefix: &str, yes: Yes) -> Outcome {
    let here = session.here()?;
    let store = open_store(here)?;
    let held = hold(&store, prefix)?;
    let id = held.layer().id();
    let opened = ledger::open(session, here)?;
    let dropped = Desk::open(here, &opened).and_then(|desk| {
        let desk = came_from(&opened.ledger, id)?
            .map_or_else(|| desk.clone(), |sandbox| desk.inside(sandbox));
        remove(&desk, &store, held, yes)?;
        record(&opened.ledger, &desk, id, "layer.dropped", json!({}))
    });
    ledger::close(session, opened)?;
    dropped?;
    if session.json() {
        session.printer.json(&json!({"dropped": id}))?;
    } else {
        session.printer.data(&format!("Dropped {id}."))?;
    }
    Ok(ExitCode::Success)
}

/// All layers of this user.
pub(crate) fn open_store(here: &Here) -> Result<LayerStore, Failure> {
    here.paths
        .create()
        .map_err(|error| crate::failure::paths(&error))?;
    LayerStore::open(&here.paths.state_dir).map_err(|error| {
        let fix = "check that the state directory is yours and that its disk has room";
        Failure::of(ExitCode::Failure, &error, fix)
    })
}

/// The layer whose id starts like this, for oneself.
pub(crate) fn hold(store: &LayerStore, prefix: &str) -> Result<HeldLayer, Failure> {
    let layer = store.find(prefix).map_err(|error| match error {
        FindLayerError::None { .. } => Failure::of(
            ExitCode::NotFound,
            &error,
            "`fluffy layer list --all` shows every layer",
        ),
        FindLayerError::Ambiguous { .. } => {
            Failure::of(ExitCode::Usage, &error, "give more of the id")
        }
        FindLayerError::File(_) => Failure::of(
            ExitCode::Failure,
            &error,
            "check that the state directory is yours",
        ),
    })?;
    layer.hold().map_err(|error| {
        let (exit, fix) = match error {
            HoldLayerError::Busy { .. } => (
                ExitCode::Conflict,
                "wait until the sandbox or merge that uses it has ended",
            ),
            HoldLayerError::Retired { .. } | HoldLayerError::Gone { .. } => (
                ExitCode::NotFound,
                "`fluffy layer list` shows the layers that can be used",
            ),
            HoldLayerError::File(_) => {
                (ExitCode::Failure, "check that the state directory is yours")
            }
        };
        Failure::of(exit, &error, fix)
    })
}

/// Removes a layer that its person asked to be dropped, or that is empty.
pub(crate) fn drop_held(desk: &Desk, store: &LayerStore, held: HeldLayer) -> Result<(), Failure> {
    remove(desk, store, held, Yes::Given)
}

/// Gives a layer back that nothing was written to; another one is kept.
pub(crate) fn give_back(store: &LayerStore, held: HeldLayer) -> Result<(), Failure> {
    match store.give_back(held) {
        Ok(_) => Ok(()),
        Err(error) => Err(unreadable(&error).into()),
    }
}

/// Removes a layer, with a permit for just that one.
fn remove(desk: &Desk, store: &LayerStore, held: HeldLayer, yes: Yes) -> Result<(), Failure> {
    let id = held.layer().id().to_string();
    let request = desk.request(permit::DROP, Some(&id), &Context::default());
    let granted = desk.permit(&request, yes)?;
    store
        .drop_layer(granted.permit, held)
        .map_err(|error: DropLayerError| {
            let fix = "check that the state directory is yours; what is left is removed next time";
            Failure::of(ExitCode::Failure, &error, fix)
        })
}

/// A layer or its project could not be read.
pub(crate) fn unreadable(error: &ReadLayerError) -> Report {
    let (exit, fix) = match error {
        ReadLayerError::Merging { .. } => (
            ExitCode::Conflict,
            "end the merge with `fluffy layer merge ID`",
        ),
        ReadLayerError::ProjectReplaced { .. } => (
            ExitCode::Conflict,
            "put the project's directory back, or drop the layer",
        ),
        ReadLayerError::Changing { .. } => (
            ExitCode::Transient,
            "end what writes to it, and run the command again",
        ),
        ReadLayerError::TooManyEntries { .. } => (
            ExitCode::Failure,
            "drop it, and let the command write build results below /tmp",
        ),
        ReadLayerError::Damaged { .. } | ReadLayerError::File(_) => (
            ExitCode::Failure,
            "check that the state directory and the project can be read",
        ),
    };
    Report::from_error(exit, error)
        .code("unreadable_layer")
        .fix(fix)
}

/// Records that a sandbox wrote to a layer.
pub(crate) fn record_written(
    ledger: &Ledger,
    desk: &Desk,
    layer: LayerId,
    sandbox: SandboxId,
    summary: Summary,
) -> Result<(), Failure> {
    let payload = json!({
        "sandbox": sandbox,
        "files": summary.files,
        "added": summary.added,
        "removed": summary.removed,
    });
    record(ledger, desk, layer, "layer.written", payload)
}

/// Records something about a layer, and waits until it is stored.
pub(super) fn record(
    ledger: &Ledger,
    desk: &Desk,
    layer: LayerId,
    event_type: &str,
    payload: Value,
) -> Result<(), Failure> {
    let draft = Draft::new(Domain::Agent, aggregate(layer), event_type, desk.actor());
    ledger
        .append_blocking(Batch::from(draft.payload(payload)))
        .map(drop)
        .map_err(|error| {
            let fix = "make room on the disk of the state directory";
            Failure::of(ExitCode::Internal, &error, fix)
        })
}

/// The sandbox that last wrote to a layer, for rules about sandboxes.
pub(super) fn came_from(ledger: &Ledger, layer: LayerId) -> Result<Option<SandboxId>, Failure> {
    const FEW: usize = 1_000;
    let events = ledger
        .read_aggregate(Domain::Agent, &aggregate(layer), 0, FEW)
        .map_err(|error| crate::failure::read_ledger(&error))?;
    let sandbox = |event: &fluffy_ledger::Event| {
        let payload = event.payload.value().ok()?;
        payload.get("sandbox")?.as_str()?.parse().ok()
    };
    Ok(events.iter().rev().find_map(sandbox))
}

fn aggregate(layer: LayerId) -> Aggregate {
    Aggregate::new("layer", layer.to_string())
}

/// A layer in numbers: `3 files (+12 −4)`.
pub(crate) fn summary_line(summary: Summary) -> String {
    let files = match summary.files {
        1 => "1 file".to_owned(),
        count => format!("{count} files"),
    };
    format!("{files} (+{} −{})", summary.added, summary.removed)
}

/// The changed files of a layer, a line each, at most a dozen.
pub(crate) fn file_lines(difference: &Difference) -> String {
    let mut text = String::new();
    let is_file = |shape: Option<&fluffy_layer::Shape>| {
        shape.is_some_and(|shape| shape.kind != NodeKind::Directory)
    };
    let files = || {
        difference.files.iter().filter(|file| {
            is_file(file.change.before.as_ref()) || is_file(file.change.after.as_ref())
        })
    };
    for file in files().take(MAX_FILES) {
        let mark = mark(file.change.kind);
        let _ = writeln!(text, "  {mark} {}", file.change.path);
    }
    let rest = files().count().saturating_sub(MAX_FILES);
    if rest > 0 {
        let _ = writeln!(text, "  and {rest} more");
    }
    text
}

/// What happened to a path, in one letter, as git writes it.
fn mark(kind: ChangeKind) -> char {
    match kind {
        ChangeKind::Added => 'A',
        ChangeKind::Modified | ChangeKind::Relinked => 'M',
        ChangeKind::Deleted => 'D',
        ChangeKind::Mode => 'P',
        ChangeKind::Retyped => 'T',
    }
}
