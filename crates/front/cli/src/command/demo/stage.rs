//! The demo's project, state and gate, in a temporary folder.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use fluffy_base::id::SandboxId;
use fluffy_gate::{Gate, PinStore, PolicyPlaces};
use fluffy_ledger::{Ledger, LedgerOptions, Signing};
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::word::{Mode, Tier};
use fluffy_policy::{Context, Principal, PrincipalKind, ProcessIdentity, Request};
use fluffy_report::{ExitCode, Printer, Report};

use crate::command::policy::clock;
use crate::failure::{self, Failure};
use crate::session::{Session, worker_command};

/// Everything the demo plays with.
#[derive(Debug)]
pub(super) struct Stage<'s> {
    pub(super) session: &'s Session,
    pub(super) folder: tempfile::TempDir,
    pub(super) gate: Gate,
    pub(super) ledger: Ledger,
    agent: Principal,
}

impl<'s> Stage<'s> {
    /// Builds the folder and opens the gate.
    pub(super) fn set(session: &'s Session) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("fluffy-demo-")
            .tempdir()
            .map_err(|error| no_room(&error))?;
        let project = folder.path().join("project");
        fs::create_dir_all(project.join("src")).map_err(|error| no_room(&error))?;
        let state = folder.path().join("state");
        let options = LedgerOptions {
            signing: Some(Signing::in_directory(&state.join("keys"))),
            ..LedgerOptions::default()
        };
        let ledger = Ledger::open(&state.join("ledger"), options)
            .map_err(|error| failure::open_ledger(&error))?;
        let places = PolicyPlaces {
            organisation: folder.path().join("organisation.yaml"),
            user: folder.path().join("user.yaml"),
            pins: Some(PinStore::of_project(&state.join("policy"), &project)),
            worker: worker_command()?,
        };
        let gate = Gate::open(places, ledger.clone(), clock())
            .map_err(|error| failure::load_policy(&error, None))?;
        Ok(Self {
            session,
            folder,
            gate,
            ledger,
            agent: agent()?,
        })
    }

    /// How checkpoints of the demo's ledger are signed.
    pub(super) fn signing(&self) -> Signing {
        Signing::in_directory(&self.folder.path().join("state/keys"))
    }

    /// The folder of the demo's ledger.
    pub(super) fn ledger_folder(&self) -> PathBuf {
        self.folder.path().join("state/ledger")
    }

    /// A request of the demo's agent, in its sandbox.
    pub(super) fn request(&self, action: &str, resource: &str) -> Request {
        Request {
            principal: self.agent.clone(),
            action: action.to_owned(),
            resource: Some(resource.to_owned()),
            context: Context {
                mode: Some(Mode::Strict),
                template: Some("code-executor".to_owned()),
                tier: Some(Tier::Process),
                size: Some(812),
                lines: Some(24),
                ..Context::default()
            },
        }
    }

    /// Where the demo prints: its data when read by people, nothing as JSON.
    pub(super) fn printer(&self) -> Option<&Printer> {
        (!self.session.json()).then_some(&self.session.printer)
    }

    /// One line of the play.
    pub(super) fn say(&self, text: &str) -> Result<(), Failure> {
        match self.printer() {
            Some(printer) => Ok(printer.data(text)?),
            None => Ok(()),
        }
    }

    /// A heading.
    pub(super) fn act(&self, number: u8, title: &str) -> Result<(), Failure> {
        self.say(&format!("\n{number}. {title}"))
    }

    /// Ends the play and removes the folder.
    pub(super) fn end(self) -> Result<(), Failure> {
        self.say(
            "\nThat was all real: the engine, the worker process, the ledger on disk. Next:\n  \
             fluffy init                                 a policy for your project\n  \
             fluffy policy explain fs.write /src/lib.rs  what an agent may do, and why\n  \
             fluffy audit verify                         nobody touched the record",
        )?;
        let Self {
            folder,
            gate,
            ledger,
            ..
        } = self;
        drop(gate);
        drop(ledger);
        folder.close().map_err(|error| no_room(&error).into())
    }
}

fn agent() -> Result<Principal, Failure> {
    let everything = || vec!["*".to_owned()];
    let grant = Grant::build(&GrantLists {
        capabilities: everything(),
        deny_capabilities: Vec::new(),
        workspace: everything(),
        user: everything(),
    });
    let grant = grant.map_err(|error| {
        Failure::of(
            ExitCode::Internal,
            &error,
            "please report this: the grant is our own",
        )
    })?;
    let mut agent = Principal::new(PrincipalKind::Agent, "agent", Arc::new(grant));
    agent.sandbox = Some(SandboxId::generate());
    agent.process = Some(ProcessIdentity {
        pid: std::process::id(),
        started: 1,
    });
    agent.on_behalf_of = Some("you".to_owned());
    Ok(agent)
}

/// The temporary folder cannot be used.
pub(super) fn no_room(error: &io::Error) -> Report {
    Report::new(ExitCode::Failure, "cannot use the temporary folder")
        .why(error.to_string())
        .fix("make room in it, or set TMPDIR to another folder")
}
