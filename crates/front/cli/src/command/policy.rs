//! `fluffy policy …`: check, explain, decide, test, diff, apply, schema.

mod apply;
mod check;
mod decide;
pub(crate) mod diff;
pub(crate) mod explain;
mod request;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fluffy_base::{Clock, SystemClock};
use fluffy_gate::bundle::read_text;
use fluffy_gate::{Bundle, PinStore, PolicyPlaces};
use fluffy_policy::schema;
use fluffy_policy::starter::STARTER;
use fluffy_report::{ExitCode, Report, sorted};

use crate::args::{PolicyCommand, SchemaKind};
use crate::command::Outcome;
use crate::failure::Failure;
use crate::session::{Here, Session, worker_command};

/// Runs one of the `policy` commands.
pub(crate) fn run(session: &Session, command: PolicyCommand) -> Outcome {
    match command {
        PolicyCommand::Check { file } => check::run(session, file.as_deref()),
        PolicyCommand::Explain { request, bare } => {
            let assume = if bare {
                explain::Assume::Nothing
            } else {
                explain::Assume::Ordinary
            };
            explain::run(session, &request, assume)
        }
        PolicyCommand::Decide { request } => decide::run(session, &request),
        PolicyCommand::Test { file } => table::run(session, &file),
        PolicyCommand::Diff { old, new, last } => diff::run(session, &old, &new, last),
        PolicyCommand::Apply {
            file,
            last,
            yes,
            confirm,
        } => {
            let answers = apply::Answers { yes, confirm };
            apply::run(session, file.as_deref(), last, &answers)
        }
        PolicyCommand::Schema { of } => print_schema(session, of),
    }
}

fn print_schema(session: &Session, of: SchemaKind) -> Outcome {
    let schema = match of {
        SchemaKind::Policy => schema::policy_schema(),
        SchemaKind::Test => schema::test_table_schema(),
    };
    let schema = sorted(schema);
    // A schema is JSON either way; without --json it is laid out for reading.
    if session.json() {
        session.printer.json(&schema)?;
    } else {
        session.printer.data(&format!("{schema:#}"))?;
    }
    Ok(ExitCode::Success)
}

/// The clock of the real world.
pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

/// Where the policy of this project and user lives.
pub(crate) fn places(here: &Here) -> Result<PolicyPlaces, Failure> {
    let pins = here
        .paths
        .project_root
        .as_ref()
        .map(|root| PinStore::of_project(&here.paths.pins_dir, root));
    Ok(PolicyPlaces {
        organisation: here.paths.org_policy.clone(),
        user: here.paths.user_policy.clone(),
        pins,
        worker: worker_command()?,
    })
}

/// The text of a file that a person named.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let text = read_text(path).map_err(|error| {
        Failure::of(
            ExitCode::Usage,
            &error,
            "name a plain text file that you can read",
        )
    })?;
    text.ok_or_else(|| {
        Report::new(
            ExitCode::NotFound,
            format!("there is no file `{}`", path.display()),
        )
        .fix("check the path; `fluffy init` writes a starter policy")
        .into()
    })
}

/// The folder of this project's own policy files.
pub(crate) fn proposal_folder(here: &Here) -> Option<PathBuf> {
    Some(
        here.paths
            .project_root
            .as_ref()?
            .join(fluffy_config::project::DIRECTORY),
    )
}

/// What the project proposes, if anything.
pub(crate) fn read_proposal(here: &Here) -> Result<Option<Bundle>, Failure> {
    let Some(folder) = proposal_folder(here) else {
        return Ok(None);
    };
    Bundle::read(&folder).map_err(|error| {
        let fix = "make it a plain text file, or remove it";
        Failure::of(ExitCode::Usage, &error, fix)
    })
}

/// Says so when the project's files are not what is enforced.
pub(crate) fn warn_if_pending(session: &Session, here: &Here, pinned: Option<fluffy_base::Digest>) {
    let Ok(Some(proposal)) = read_proposal(here) else {
        return;
    };
    if !is_in_force(&proposal, pinned) {
        session.printer.warn(
            "`.fluffy/policy.yaml` is pending: it differs from the policy in force and changes \
             nothing until you run `fluffy policy apply`",
        );
    }
}

/// Whether a bundle is what is enforced: the pinned one, or the starter policy
/// while nothing is pinned.
pub(crate) fn is_in_force(bundle: &Bundle, pinned: Option<fluffy_base::Digest>) -> bool {
    let enforced = pinned.unwrap_or_else(|| Bundle::of_rules(STARTER).digest());
    bundle.digest() == enforced
}
