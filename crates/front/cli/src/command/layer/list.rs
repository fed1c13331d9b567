//! `fluffy layer list`: which layers there are, and what is in them.

use fluffy_layer::{HoldLayerError, Layer, LayerState};
use fluffy_report::{Cell, Column, ExitCode, Table, Tone};
use serde_json::{Value, json};

use super::{open_store, summary_line};
use crate::command::Outcome;
use crate::failure::Failure;
use crate::session::Session;

/// Which layers are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Open ones of this project.
    Here,
    /// Every one.
    All,
}

impl Which {
    pub(super) fn from_flag(all: bool) -> Self {
        if all { Self::All } else { Self::Here }
    }
}

/// Prints the layers.
pub(super) fn run(session: &Session, which: Which) -> Outcome {
    let here = session.here()?;
    let store = open_store(here)?;
    let listing = store.list().map_err(|error| {
        let fix = "check that the state directory is yours";
        Failure::of(ExitCode::Failure, &error, fix)
    })?;
    let project = session.folder()?;
    let project = here.paths.project_root.clone().unwrap_or(project);
    let wanted = |layer: &&Layer| match which {
        Which::All => true,
        Which::Here => {
            layer.project() == project && !matches!(layer.state(), LayerState::Retired { .. })
        }
    };
    let layers: Vec<Looked> = listing.layers.iter().filter(wanted).map(look).collect();
    for (folder, error) in &listing.damaged {
        session
            .printer
            .warn(&format!("`{}` cannot be read: {error}", folder.display()));
    }
    if session.json() {
        let layers: Vec<&Value> = layers.iter().map(|layer| &layer.json).collect();
        let damaged: Vec<_> = listing.damaged.iter().map(|(folder, _)| folder).collect();
        session
            .printer
            .json(&json!({"layers": layers, "damaged": damaged}))?;
        return Ok(ExitCode::Success);
    }
    show(session, &layers, which)?;
    if let Some(layer) = layers.iter().find(|layer| layer.state == "merging") {
        session.printer.warn(&format!(
            "a merge was interrupted; end it with `fluffy layer merge {}`",
            layer.id
        ));
    }
    Ok(ExitCode::Success)
}

/// A layer as it is listed.
struct Looked {
    id: String,
    state: &'static str,
    content: String,
    created: String,
    project: String,
    json: Value,
}

fn look(layer: &Layer) -> Looked {
    let (state, summary) = match (layer.state(), layer.clone().hold()) {
        (LayerState::Retired { .. }, _) => ("merged", None),
        (LayerState::Merging, _) => ("merging", None),
        (LayerState::Open, Ok(held)) => match held.difference() {
            Ok(difference) => ("open", Some(difference.summary)),
            Err(_) => ("unreadable", None),
        },
        (LayerState::Open, Err(HoldLayerError::Busy { .. })) => ("in use", None),
        (LayerState::Open, Err(_)) => ("unreadable", None),
    };
    let mut json = json!({
        "id": layer.id(),
        "state": state,
        "kind": layer.kind(),
        "created": layer.created(),
        "project": layer.project(),
    });
    if let (Some(summary), Value::Object(fields)) = (summary, &mut json) {
        fields.insert("summary".to_owned(), json!(summary));
    }
    Looked {
        id: layer.id().to_string(),
        state,
        content: summary.map_or_else(|| "–".to_owned(), summary_line),
        created: layer.created().to_string(),
        project: layer.project().display().to_string(),
        json,
    }
}

fn show(session: &Session, layers: &[Looked], which: Which) -> Result<(), Failure> {
    if layers.is_empty() {
        session.printer.note("No layer here.");
        return Ok(());
    }
    let mut columns = vec![
        Column::new("LAYER").whole(),
        Column::new("STATE"),
        Column::new("CHANGES"),
        Column::new("CREATED"),
    ];
    if which == Which::All {
        columns.push(Column::new("PROJECT"));
    }
    let mut table = Table::new(columns);
    for layer in layers {
        let tone = match layer.state {
            "merging" | "unreadable" => Tone::Caution,
            _ => Tone::Plain,
        };
        table.row([
            Cell::new(layer.id.as_str()),
            Cell::new(layer.state).tone(tone),
            Cell::new(layer.content.as_str()),
            Cell::new(layer.created.as_str()),
            Cell::new(layer.project.as_str()),
        ]);
    }
    session.printer.table(&table)?;
    Ok(())
}
