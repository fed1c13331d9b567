//! `fluffy plugin install`: look, ask, copy, start once, show its tools, ask.
//!
//! Until the second yes the plugin is installed and switched off, so a crash or
//! a no leaves nothing that runs.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use fluffy_contract::tool::ForeignTool;
use fluffy_egress::HostNetwork;
use fluffy_plugin_core::identity::{Change, changes};
use fluffy_plugin_host::shelf::{Examined, Placed, Record, Shelf, examine};
use fluffy_policy::Context;
use fluffy_policy::capability::Pattern;
use fluffy_report::{ExitCode, Report};
use fluffy_sandbox::client::{Journal, LauncherCommand, LauncherHandle};
use serde_json::json;

use super::{changed, examined, look, shelf};
use crate::command::gate::{Desk, Yes};
use crate::command::ledger::OpenLedger;
use crate::command::policy::apply::prompt;
use crate::command::sandbox::ground;
use crate::command::{Outcome, ledger};
use crate::failure::{self, Failure};
use crate::kernel::plugins::{Standing, open};
use crate::session::{Here, Session};

/// Why it does not run before its tools were seen.
const UNSEEN: &str = "its tools were not looked at yet; install it again";

/// How many differences are shown.
const MAX_CHANGES: usize = 40;

/// Installs the plugin in a folder.
pub(super) fn run(session: &Session, folder: &Path, grant: &[String], yes: Yes) -> Outcome {
    let here = session.here()?;
    let shelf = shelf(here)?;
    let found = examine(folder).map_err(|error| examined(&error))?;
    check_grant(grant)?;
    let name = found.manifest.name.clone();
    review(session, &shelf, &found, grant)?;
    agree(session, yes, "Install it? [y/N] ")?;
    let opened = ledger::open(session, here)?;
    let install = Install {
        session,
        here,
        opened: &opened,
        shelf: &shelf,
        name: &name,
    };
    let tools = install.whole(folder, &found, grant, yes);
    ledger::close(session, opened)?;
    let tools = tools?;
    if session.json() {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let digest = found.pin.digest;
        session
            .printer
            .json(&json!({"installed": name, "digest": digest, "tools": names}))?;
    } else {
        let next = "Its tools are there for the next session.";
        session
            .printer
            .data(&format!("`{name}` is installed. {next}"))?;
    }
    Ok(ExitCode::Success)
}

struct Install<'a> {
    session: &'a Session,
    here: &'a Here,
    opened: &'a OpenLedger,
    shelf: &'a Shelf,
    name: &'a str,
}

impl Install<'_> {
    fn whole(
        &self,
        folder: &Path,
        found: &Examined,
        grant: &[String],
        yes: Yes,
    ) -> Result<Vec<ForeignTool>, Failure> {
        let desk = Desk::open(self.here, self.opened)?;
        let granted = match grant {
            [] => vec!["*".to_owned()],
            some => some.to_vec(),
        };
        let mut record = Record::new(found, granted, &folder.display().to_string());
        record.disabled = Some(UNSEEN.to_owned());
        let permit = || {
            let request = desk.request("plugins.install", Some(self.name), &Context::default());
            // The person has just said yes to exactly this.
            desk.permit(&request, Yes::Given)
        };
        let placed = self.shelf.install(permit()?.permit, folder, &record);
        let placed = placed.map_err(|error| changed(&error))?;
        let tools = match &placed.manifest.execution {
            Some(_) => self.try_out(&desk, &placed)?,
            None => Vec::new(),
        };
        if !tools.is_empty() {
            show_tools(self.session, &tools)?;
            agree(self.session, yes, "Offer these tools to the model? [y/N] ")?;
        }
        let pinned = self.shelf.pin_tools(permit()?.permit, self.name, &tools);
        pinned.map_err(|error| changed(&error))?;
        Ok(tools)
    }

    /// Starts it once, in its sandbox, with no project.
    fn try_out(&self, desk: &Desk, placed: &Placed) -> Result<Vec<ForeignTool>, Failure> {
        let internal =
            |error: &dyn std::error::Error| Failure::of(ExitCode::Internal, error, "run it again");
        let engine = fluffy_sandbox::probe::Report::probe()
            .best()
            .ok_or_else(|| {
                Report::new(
                    ExitCode::Failure,
                    "plugins cannot be isolated on this machine",
                )
                .why("no engine of the process tier works here")
                .fix("`fluffy doctor` says what is missing")
            })?;
        let folder = self.session.folder()?;
        let policy = desk.gate.policy();
        let settings = ground::for_plugins(self.here, policy.engine.templates(), engine, &folder);
        let actor = fluffy_ledger::Actor::system("plugin-host");
        let journal = Journal::new(Arc::new(self.opened.ledger.clone()), actor);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| failure::no_threads(&error))?;
        let command = LauncherCommand::own().map_err(|error| internal(&error))?;
        let tried = runtime.block_on(async {
            let launcher = LauncherHandle::start(&command, settings, journal).await;
            let launcher = launcher.map_err(|error| internal(&error))?;
            let plugins = open(Standing {
                folder: &self.here.paths.plugins_dir,
                project: None,
                launcher,
                gate: Arc::clone(&desk.gate),
                ledger: self.opened.ledger.clone(),
                network: Arc::new(HostNetwork),
            })?;
            plugins.try_out(placed).await.map_err(|error| {
                let fix = format!("`fluffy plugin logs {}` shows what it said", self.name);
                Failure::of(ExitCode::Failure, &error, &fix)
            })
        });
        runtime.shutdown_background();
        tried
    }
}

/// Shows what a person is asked about.
fn review(
    session: &Session,
    shelf: &Shelf,
    found: &Examined,
    grant: &[String],
) -> Result<(), Failure> {
    if session.json() {
        return Ok(());
    }
    let mut text = look::described(&found.manifest, grant);
    let old = shelf.record(&found.manifest.name).ok();
    if let Some(old) = old {
        let differences = changes(&old.pin, &found.pin);
        let _ = match differences.len() {
            0 => writeln!(text, "\nIt is what is installed already."),
            _ => writeln!(
                text,
                "\nWhat is different from the installed {}:",
                old.pin.version
            ),
        };
        for change in differences.iter().take(MAX_CHANGES) {
            let _ = writeln!(text, "  {}", in_words(change));
        }
        if let Some(more) = differences
            .len()
            .checked_sub(MAX_CHANGES)
            .filter(|more| *more > 0)
        {
            let _ = writeln!(text, "  and {more} more");
        }
    }
    session.printer.data(text.trim_end())?;
    Ok(())
}

fn show_tools(session: &Session, tools: &[ForeignTool]) -> Result<(), Failure> {
    if session.json() {
        return Ok(());
    }
    let mut text = "\nIts tools, in its own words:\n".to_owned();
    for tool in tools {
        let words: Vec<&str> = tool.summary.split_whitespace().collect();
        let summary: String = words.join(" ").chars().take(200).collect();
        let _ = writeln!(text, "  {}  {summary}", tool.name);
    }
    session.printer.data(text.trim_end())?;
    Ok(())
}

/// A yes, given beforehand or now.
fn agree(session: &Session, yes: Yes, question: &str) -> Result<(), Failure> {
    if yes == Yes::Given {
        return Ok(());
    }
    let refused = |why: &str| {
        Report::new(ExitCode::AwaitingApproval, "the plugin was not installed")
            .why(why)
            .fix("look at what it could do, then answer y, or pass --yes")
    };
    match prompt(session, question)?.as_deref() {
        Some("y" | "Y" | "yes") => Ok(()),
        Some(_) => Err(refused("the answer was not yes").into()),
        None => Err(refused("there is no terminal to ask in").into()),
    }
}

fn check_grant(grant: &[String]) -> Result<(), Failure> {
    for text in grant {
        Pattern::parse(text).map_err(|error| {
            let fix = "write a capability such as `kv.*` or `net.connect.example.com:443`";
            Failure::of(ExitCode::Usage, &error, fix)
        })?;
    }
    Ok(())
}

fn in_words(change: &Change) -> String {
    match change {
        Change::CapabilityAdded { capability } => format!("+ could also do `{capability}`"),
        Change::DenialRemoved { capability } => format!("+ no longer denies itself `{capability}`"),
        Change::UnreadRemoved { path } => format!("+ could also read `{path}`"),
        Change::Runs { tier } => format!("+ runs a program now, on tier {}", tier.as_str()),
        Change::TierLowered { from, to } => {
            format!(
                "+ is less isolated: {} instead of {}",
                to.as_str(),
                from.as_str()
            )
        }
        Change::ToolAdded { tool } => format!("  has the new tool `{tool}`"),
        Change::ToolChanged { tool } => format!("  describes its tool `{tool}` otherwise"),
        Change::ToolRemoved { tool } => format!("  has no tool `{tool}` any more"),
        Change::CapabilityRemoved { capability } => format!("- does without `{capability}`"),
        Change::ManifestChanged => "  has another manifest".to_owned(),
        Change::FileAdded { path } => format!("  has the new file `{path}`"),
        Change::FileChanged { path } => format!("  has another file `{path}`"),
        Change::FileRemoved { path } => format!("  has no file `{path}` any more"),
    }
}
