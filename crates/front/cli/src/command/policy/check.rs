//! `fluffy policy check`: errors with their place, warnings, what is pending.

use std::path::Path;

use fluffy_gate::{Bundle, LoadedPolicy, PinStore};
use fluffy_policy::diagnostic::Diagnostic;
use fluffy_policy::document::PolicyFile;
use fluffy_policy::rule::Origin;
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use super::{clock, is_in_force, places, proposal_folder, read, read_proposal};
use crate::command::Outcome;
use crate::failure;
use crate::session::{Here, Session};

/// Checks a file, or what this project proposes.
pub(crate) fn run(session: &Session, file: Option<&Path>) -> Outcome {
    match file {
        Some(file) => check_file(session, file),
        None => check_project(session),
    }
}

fn check_file(session: &Session, path: &Path) -> Outcome {
    let text = read(path)?;
    let file = PolicyFile::parse(&text, Origin::Project)
        .map_err(|refused| failure::refused_text(&path.display().to_string(), &text, &refused))?;
    finish(session, path, file.warnings(), None)
}

fn check_project(session: &Session) -> Outcome {
    let here = session.here()?;
    let (Some(folder), Some(bundle)) = (proposal_folder(here), read_proposal(here)?) else {
        let report = Report::new(ExitCode::NotFound, "this project has no policy of its own")
            .why("there is no `.fluffy/policy.yaml` here or above; the starter policy holds")
            .fix("run `fluffy init` to write one, or name a file");
        return Err(report.into());
    };
    let path = folder.join(fluffy_gate::bundle::POLICY_FILE);
    let policy = LoadedPolicy::with_project(&places(here)?, bundle.clone(), &clock())
        .map_err(|error| failure::load_policy(&error, Some(&path)))?;
    let status = standing(here, &bundle)?;
    finish(session, &path, policy.engine.warnings(), Some(status))
}

/// Whether the project's files are what is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    InForce,
    Pending,
}

fn standing(here: &Here, bundle: &Bundle) -> Result<Standing, failure::Failure> {
    let pins = places(here)?.pins;
    let current = pins.as_ref().map(PinStore::current).transpose();
    let current = current
        .map_err(|error| failure::damaged_pin(&error))?
        .flatten();
    let in_force = is_in_force(bundle, current.as_ref().map(Bundle::digest));
    Ok(if in_force {
        Standing::InForce
    } else {
        Standing::Pending
    })
}

fn finish(
    session: &Session,
    path: &Path,
    warnings: &[Diagnostic],
    standing: Option<Standing>,
) -> Outcome {
    if session.json() {
        let standing = standing.map(|standing| match standing {
            Standing::InForce => "in_force",
            Standing::Pending => "pending",
        });
        let result =
            json!({"valid": true, "file": path, "warnings": warnings, "standing": standing});
        session.printer.json(&result)?;
        return Ok(ExitCode::Success);
    }
    for warning in warnings {
        let place = format!("{}:{}", path.display(), warning);
        session.printer.warn(&format!(
            "{place}\n  why: {}\n  fix: {}",
            warning.why, warning.help
        ));
    }
    let count = match warnings.len() {
        0 => "no warnings".to_owned(),
        1 => "1 warning".to_owned(),
        count => format!("{count} warnings"),
    };
    session
        .printer
        .data(&format!("{} is valid, {count}", path.display()))?;
    match standing {
        Some(Standing::InForce) => session.printer.data("It is the policy in force.")?,
        Some(Standing::Pending) => session.printer.data(
            "It is pending: it differs from the policy in force. Apply it with `fluffy policy apply`.",
        )?,
        None => {}
    }
    Ok(ExitCode::Success)
}
