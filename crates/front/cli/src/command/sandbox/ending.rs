//! How a run ends: the code, what became of the layer, what is said of it.
//!
//! Standard output is the command's own. Everything here goes to standard
//! error: for people a summary, with `--json` one object on the last line.

use std::time::Duration;

use fluffy_base::id::{LayerId, SandboxId};
use fluffy_contract::isolation::{Exit, Limit};
use fluffy_layer::{Difference, HeldLayer, LayerStore, Summary};
use fluffy_ledger::Ledger;
use fluffy_report::ExitCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::ground::Ground;
use crate::args::AftermathArgs;
use crate::command::gate::{Desk, Yes};
use crate::command::layer::{self, merge};
use crate::failure::Failure;
use crate::session::Session;

/// The system's number for a signal that nobody survives.
const KILLED: u8 = 128 + 9;

/// What ran, and how it ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    /// Where.
    pub(super) sandbox: SandboxId,
    /// How.
    pub(super) exit: Exit,
    /// How long it took, the sandbox included.
    pub(super) took: Duration,
}

/// What concluding needs.
pub(super) struct Ending<'a> {
    pub(super) session: &'a Session,
    pub(super) ground: &'a Ground,
    pub(super) desk: &'a Desk,
    pub(super) ledger: &'a Ledger,
    pub(super) store: &'a LayerStore,
    pub(super) yes: Yes,
}

/// What became of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Fate {
    /// Nothing was written.
    Empty,
    Kept,
    Merged,
    Discarded,
}

/// Merges, drops or keeps the layer; says what happened; gives the code.
pub(super) fn conclude(
    ending: &Ending<'_>,
    aftermath: &AftermathArgs,
    ran: Ran,
    held: HeldLayer,
) -> Result<u8, Failure> {
    let code = code_of(ran.exit);
    say_limit(ending, ran.exit);
    let id = held.layer().id();
    let difference = match held.difference() {
        Ok(difference) => difference,
        Err(error) => {
            // What it wrote is still there; it is only not to be shown.
            let failure = layer::unreadable(&error);
            ending.session.printer.report(&failure);
            finish_json(ending, ran, code, &json!({"id": id, "state": Fate::Kept}));
            return Ok(code);
        }
    };
    if !is_empty(&difference) {
        layer::record_written(
            ending.ledger,
            ending.desk,
            id,
            ran.sandbox,
            difference.summary,
        )?;
    }
    let (fate, code) = settle(ending, aftermath, ran, code, held, &difference)?;
    if ending.session.json() {
        finish_json(ending, ran, code, &layer_json(id, fate, difference.summary));
    } else {
        say(ending.session, id, fate, &difference);
    }
    Ok(code)
}

fn settle(
    ending: &Ending<'_>,
    aftermath: &AftermathArgs,
    ran: Ran,
    code: u8,
    mut held: HeldLayer,
    difference: &Difference,
) -> Result<(Fate, u8), Failure> {
    if is_empty(difference) {
        layer::give_back(ending.store, held)?;
        return Ok((Fate::Empty, code));
    }
    let inside = ending.desk.inside(ran.sandbox);
    if aftermath.discard {
        layer::drop_held(&inside, ending.store, held)?;
        return Ok((Fate::Discarded, code));
    }
    if !aftermath.merge {
        return Ok((Fate::Kept, code));
    }
    if code != 0 {
        ending
            .session
            .printer
            .note("Not merged: the command did not succeed.");
        return Ok((Fate::Kept, code));
    }
    let merging = merge::Merging {
        session: ending.session,
        desk: &inside,
        ledger: ending.ledger,
        yes: ending.yes,
    };
    match merging.merge(&mut held, &[]) {
        Ok(_) => Ok((Fate::Merged, code)),
        Err(Failure::Report(report)) => {
            ending.session.printer.report(&report);
            Ok((Fate::Kept, report.exit().number()))
        }
        Err(failure) => Err(failure),
    }
}

fn is_empty(difference: &Difference) -> bool {
    difference.files.is_empty() && difference.problems.is_empty()
}

/// The code to exit with, as a shell would give it.
fn code_of(exit: Exit) -> u8 {
    match exit {
        Exit::Code { code } => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        Exit::Signal { signal } => u8::try_from(128 + (signal & 0x7f)).unwrap_or(u8::MAX),
        Exit::Limit { limit: Limit::Time } => 124,
        Exit::Limit {
            limit: Limit::Memory | Limit::Pids | Limit::Output | Limit::Disk,
        } => KILLED,
        Exit::NotStarted { errno } if errno == rustix::io::Errno::NOENT.raw_os_error() => 127,
        Exit::NotStarted { .. } => 126,
    }
}

/// Why the command ended, where its code does not say it.
fn say_limit(ending: &Ending<'_>, exit: Exit) {
    let template = &ending.ground.template;
    let name = &template.name;
    let text = match exit {
        Exit::Code { .. } | Exit::Signal { .. } => return,
        Exit::Limit { limit } => match limit {
            Limit::Time => "ended: its time was over".to_owned(),
            Limit::Memory => format!(
                "ended: it used more memory than template `{name}` gives ({})",
                template.memory
            ),
            Limit::Pids => format!(
                "ended: it started more processes than template `{name}` allows ({})",
                template.pids
            ),
            Limit::Output => "ended: it printed more than --output allows".to_owned(),
            Limit::Disk => format!(
                "ended: it wrote more than template `{name}` allows ({} in all, {} in one file), \
                 or the disk is nearly full",
                template.disk, template.file_size
            ),
        },
        Exit::NotStarted { errno } => {
            let error = std::io::Error::from_raw_os_error(errno);
            format!("the command could not be started: {error}")
        }
    };
    // With --json the object says it.
    if !ending.session.json() {
        ending.session.printer.warn(&text);
    }
}

fn layer_json(id: LayerId, fate: Fate, summary: Summary) -> Value {
    match fate {
        Fate::Empty => json!({"state": fate}),
        _ => json!({
            "id": id,
            "state": fate,
            "files": summary.files,
            "added": summary.added,
            "removed": summary.removed,
        }),
    }
}

fn finish_json(ending: &Ending<'_>, ran: Ran, code: u8, layer: &Value) {
    if !ending.session.json() {
        return;
    }
    let took = u64::try_from(ran.took.as_millis()).unwrap_or(u64::MAX);
    ending.session.printer.json_talk(&json!({
        "code": code,
        "exit": ran.exit,
        "sandbox": ran.sandbox,
        "template": ending.ground.template.name,
        "tier": ending.ground.tier.as_str(),
        "engine": ending.ground.engine,
        "took_ms": took,
        "layer": layer,
    }));
}

fn say(session: &Session, id: LayerId, fate: Fate, difference: &Difference) {
    let summary = layer::summary_line(difference.summary);
    let text = match fate {
        Fate::Empty => return,
        Fate::Merged => format!("Merged {summary}."),
        Fate::Discarded => format!("Discarded {summary}."),
        Fate::Kept => {
            let files = layer::file_lines(difference);
            format!(
                "\nThe project is unchanged. Layer {id} holds {summary}:\n{files}\
                 look at it:  fluffy layer diff {id}\n\
                 merge it:    fluffy layer merge {id}\n\
                 drop it:     fluffy layer drop {id}"
            )
        }
    };
    session.printer.note(&text);
}

/// So that the list of our own codes and these never overlap by accident.
const _: () = assert!(ExitCode::BudgetExhausted.number() < 124);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        let limit = |limit| Exit::Limit { limit };
        for (exit, code) in [
            (Exit::Code { code: 0 }, 0),
            (Exit::Code { code: 3 }, 3),
            (Exit::Code { code: 255 }, 255),
            (Exit::Signal { signal: 15 }, 143),
            (limit(Limit::Time), 124),
            (limit(Limit::Memory), 137),
            (limit(Limit::Output), 137),
            (Exit::NotStarted { errno: 2 }, 127),
            (Exit::NotStarted { errno: 13 }, 126),
            (Exit::NotStarted { errno: 8 }, 126),
        ] {
            assert_eq!(code_of(exit), code, "{exit:?}");
        }
    }
}
