//! Decisions for what a person asks for on the command line.
//!
//! One gate and one principal for a command. A review is answered by the
//! person who typed the command, by `--yes` or at the terminal; a deny never.

use std::ops::Deref;
use std::sync::Arc;

use fluffy_base::id::SandboxId;
use fluffy_gate::{Answer, ApproveError, AuthorizeError, Gate, Granted};
use fluffy_ledger::{Actor, ActorKind};
use fluffy_policy::{Refusal, Request};
use fluffy_report::{ExitCode, Report};

use crate::command::ledger::OpenLedger;
use crate::command::person;
use crate::command::policy::{clock, places};
use crate::failure::{self, Failure};
use crate::session::Here;

/// What a person at the command line can at most be permitted.
const CEILING: &[&str] = &[
    "fs.remove.*",
    "fs.write.*",
    "layer.drop.*",
    "merge.apply",
    "net.connect.*",
    "plugins.*",
    "sandbox.create.*",
    "shell.exec",
];

/// The gate of one command, for the person who typed it.
#[derive(Debug, Clone)]
pub(crate) struct Desk(pub(crate) fluffy_gate::Desk);

impl Deref for Desk {
    type Target = fluffy_gate::Desk;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Desk {
    /// Opens the gate with the policy in force here.
    pub(crate) fn open(here: &Here, opened: &OpenLedger) -> Result<Self, Failure> {
        let gate = Gate::open(places(here)?, opened.ledger.clone(), clock())
            .map_err(|error| failure::load_policy(&error, None))?;
        Ok(Self(fluffy_gate::Desk {
            gate: Arc::new(gate),
            principal: person::principal(CEILING)?,
        }))
    }

    /// The person, as the ledger names them.
    pub(crate) fn actor(&self) -> Actor {
        Actor::new(ActorKind::User, person::name())
    }

    /// The same desk for what comes out of a sandbox.
    pub(crate) fn inside(&self, sandbox: SandboxId) -> Self {
        Self(self.0.inside(sandbox))
    }

    /// Asks the gate.
    pub(crate) fn ask(&self, request: &Request) -> Result<Answer, Failure> {
        let asked = self.0.ask(request);
        asked.map_err(|error| failure::not_recorded(&error).into())
    }

    /// Carries the person's yes to a review back to the gate.
    pub(crate) fn approve(&self, request: &Request, review: &Refusal) -> Result<Granted, Failure> {
        let approved = self.0.approve(request, review, &self.principal.name);
        approved.map_err(|error| match error {
            ApproveError::Refused(AuthorizeError::Refused { refusal, .. }) => {
                denied(request, &refusal).into()
            }
            error => not_approved(&error),
        })
    }

    /// A permit, with the person's yes to a review where they gave it.
    pub(crate) fn permit(&self, request: &Request, yes: Yes) -> Result<Granted, Failure> {
        match (self.ask(request)?, yes) {
            (Answer::Granted(granted), _) => Ok(granted),
            (Answer::Review(review), Yes::Given) => self.approve(request, &review),
            (Answer::Review(review), Yes::NotGiven) => Err(awaits(request, &review).into()),
            (Answer::Denied(refusal), _) => Err(denied(request, &refusal).into()),
        }
    }
}

/// Whether the person said yes beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Yes {
    /// With `--yes`, or at the terminal.
    Given,
    /// Not yet.
    NotGiven,
}

impl Yes {
    /// From the flag.
    pub(crate) fn from_flag(given: bool) -> Self {
        if given { Self::Given } else { Self::NotGiven }
    }
}

/// A person's yes did not lead to a permit.
pub(crate) fn not_approved(error: &ApproveError) -> Failure {
    match error {
        ApproveError::Refused(AuthorizeError::Refused { .. }) => Failure::of(
            ExitCode::Denied,
            error,
            "`fluffy audit tail` shows which rule denies it",
        ),
        ApproveError::Refused(error) => failure::not_recorded(error).into(),
        ApproveError::NotIssued(_) | ApproveError::NotRecorded(_) => {
            let fix = "make room on the disk of the state directory, then ask again";
            Failure::of(ExitCode::Internal, error, fix)
        }
    }
}

/// A rule denies it, or none allows it.
pub(crate) fn denied(request: &Request, refusal: &Refusal) -> Report {
    let report = Report::new(
        ExitCode::Denied,
        format!("policy denies {}", shown(request)),
    );
    with_reasons(report, refusal).fix(format!(
        "see who decides: `fluffy policy explain {}`",
        explain_words(request)
    ))
}

/// Somebody has to look at it.
pub(crate) fn awaits(request: &Request, review: &Refusal) -> Report {
    let report = Report::new(
        ExitCode::AwaitingApproval,
        format!("policy wants a person to look at {}", shown(request)),
    );
    with_reasons(report, review).fix("look at it, then run the command again with --yes")
}

fn with_reasons(mut report: Report, refusal: &Refusal) -> Report {
    let mut any = false;
    for reason in refusal.decision().reasons().filter(|text| !text.is_empty()) {
        report = report.why(reason.to_owned());
        any = true;
    }
    if any {
        report
    } else {
        report.why("no rule allows it")
    }
}

fn shown(request: &Request) -> String {
    match &request.resource {
        Some(resource) => format!("`{}` on `{resource}`", request.action),
        None => format!("`{}`", request.action),
    }
}

fn explain_words(request: &Request) -> String {
    let resource = request.resource.as_deref().unwrap_or("\"\"");
    format!(
        "{} {resource} --as {} --kind user --tag person",
        request.action, request.principal.name
    )
}
