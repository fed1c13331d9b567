//! `fluffy policy apply`: tried, answered by a person, pinned by hash.

use std::path::Path;

use fluffy_gate::{Bundle, Gate, Proposal};
use fluffy_policy::{Context, Request};
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use super::{clock, diff, places, read, read_proposal};
use crate::command::person::prompt;
use crate::command::{Outcome, ledger, person};
use crate::failure::{self, Failure};
use crate::session::{Here, Session};

/// What a person answered on the command line.
#[derive(Debug)]
pub(crate) struct Answers {
    /// Yes to the review.
    pub(crate) yes: bool,
    /// The phrase for a breaking change.
    pub(crate) confirm: Option<String>,
}

/// Tries a policy, asks, and puts it in force.
pub(crate) fn run(
    session: &Session,
    file: Option<&Path>,
    last: Option<usize>,
    answers: &Answers,
) -> Outcome {
    let here = session.here()?;
    let bundle = bundle(here, file)?;
    let opened = ledger::open(session, here)?;
    let gate = Gate::open_for_update(places(here)?, opened.ledger.clone(), clock())
        .map_err(|error| failure::load_policy(&error, None))?;
    let configured = usize::try_from(here.settings.values().policy.trial_last).unwrap_or(100);
    let proposal = gate
        .propose(bundle, last.unwrap_or(configured))
        .map_err(|error| failure::propose(&error, file))?;
    if proposal.in_force {
        ledger::close(session, opened)?;
        session.printer.note("This policy is in force already.");
        if session.json() {
            let value = json!({"applied": null, "in_force": proposal.digest});
            session.printer.json(&value)?;
        }
        return Ok(ExitCode::Success);
    }
    if !session.json() {
        diff::show(session, &proposal.trial)?;
    }
    let result = match ask(session, &proposal, answers)? {
        Answer::No(report) => Err(report.into()),
        Answer::Yes => {
            let updated = gate.update(&proposal, &own_request(here)?);
            updated.map_err(|error| failure::update(&error).into())
        }
    };
    ledger::close(session, opened)?;
    let digest = result.map_err(|failure: Failure| failure)?;
    if session.json() {
        session
            .printer
            .json(&json!({"applied": digest, "trial": proposal.trial}))?;
    } else {
        session
            .printer
            .data(&format!("Applied. The policy in force is {digest}."))?;
    }
    Ok(ExitCode::Success)
}

fn bundle(here: &Here, file: Option<&Path>) -> Result<Bundle, Failure> {
    if let Some(file) = file {
        return Ok(Bundle::of_rules(read(file)?));
    }
    read_proposal(here)?.ok_or_else(|| {
        Report::new(ExitCode::NotFound, "this project proposes no policy")
            .why("there is no `.fluffy/policy.yaml` here or above")
            .fix("run `fluffy init` to write one, or name a file")
            .into()
    })
}

enum Answer {
    Yes,
    No(Report),
}

/// The phrase that names exactly what would break.
pub(crate) fn phrase(breaking: usize) -> String {
    format!("break {breaking}")
}

fn ask(session: &Session, proposal: &Proposal, answers: &Answers) -> Result<Answer, Failure> {
    if proposal.trial.needs_confirmation() {
        let wanted = phrase(proposal.trial.breaking);
        let given = match &answers.confirm {
            Some(given) => Some(given.clone()),
            None => prompt(
                session,
                &format!("Type `{wanted}` to apply it all the same: "),
            )?,
        };
        return Ok(if given.as_deref() == Some(wanted.as_str()) {
            Answer::Yes
        } else {
            let what = "more than five decisions would turn from allow to deny";
            Answer::No(
                Report::new(ExitCode::AwaitingApproval, what)
                    .why("such a change needs the phrase that names how many")
                    .fix(format!("answer the prompt, or pass --confirm \"{wanted}\"")),
            )
        });
    }
    if answers.yes {
        return Ok(Answer::Yes);
    }
    let given = prompt(session, "Apply this policy? [y/N] ")?;
    Ok(match given.as_deref() {
        Some("y" | "Y" | "yes") => Answer::Yes,
        Some(_) => Answer::No(
            Report::new(ExitCode::AwaitingApproval, "the policy was not applied")
                .why("the answer was not yes")
                .fix("run it again and answer y, or pass --yes"),
        ),
        None => Answer::No(
            Report::new(
                ExitCode::AwaitingApproval,
                "a person has to review the policy",
            )
            .why("there is no terminal to ask in")
            .fix("run it in a terminal, or pass --yes after looking at the differences"),
        ),
    })
}

/// The person at this terminal, asking to change this project's policy.
fn own_request(here: &Here) -> Result<Request, Failure> {
    let root = here.paths.project_root.as_deref();
    let name = root
        .and_then(|root| root.file_name())
        .map(|name| name.to_string_lossy());
    // Names are plain words; which project it is stands in the pinned digest.
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' || c == '_' {
            c
        } else {
            '-'
        }
    };
    let resource: String = name
        .as_deref()
        .unwrap_or("project")
        .chars()
        .map(plain)
        .collect();
    Ok(Request {
        principal: person::principal(&["policy.update.*"])?,
        action: "policy.update".to_owned(),
        resource: Some(resource),
        context: Context::default(),
    })
}
