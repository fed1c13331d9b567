//! `fluffy plugin install`: look, ask, copy, start once, show its tools, ask.
//!
//! Until the second yes the plugin is installed and switched off, so a crash or
//! a no leaves nothing that runs.

use std::fmt::Write as _;
use std::path::Path;

use fluffy_contract::tool::ForeignTool;
use fluffy_plugin_core::identity::{Change, changes};
use fluffy_plugin_core::manifest::Kind;
use fluffy_plugin_host::go_plugin::resource;
use fluffy_plugin_host::plugins::{LaunchError, Plugins};
use fluffy_plugin_host::shelf::{Examined, Placed, Record, Shelf, examine};
use fluffy_policy::Context;
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use super::bench::{check_grant, granted};
use super::host::{Host, runtime};
use super::{Source, changed, config, examined, look, shelf, skills};
use crate::command::gate::{Desk, Yes};
use crate::command::ledger::OpenLedger;
use crate::command::person::prompt;
use crate::command::{Outcome, ledger};
use crate::failure::Failure;
use crate::session::{Here, Session};

/// Why it does not run before its tools were seen.
const UNSEEN: &str = "its tools were not looked at yet; install it again";

/// How many differences are shown.
const MAX_CHANGES: usize = 40;

/// Installs the plugin in a folder or an archive.
pub(super) fn run(session: &Session, path: &Path, grant: &[String], yes: Yes) -> Outcome {
    let here = session.here()?;
    let shelf = shelf(here)?;
    let source = Source::open(&shelf, path)?;
    let found = examine(&source.folder).map_err(|error| examined(&error))?;
    check_grant(grant)?;
    let name = found.manifest.name.clone();
    let skills = skills::of(&source.folder, &found)?;
    review(session, &shelf, &found, grant)?;
    skills::show(session, &skills)?;
    agree(session, yes, "Install it? [y/N] ")?;
    let opened = ledger::open(session, here)?;
    let install = Install {
        session,
        here,
        opened: &opened,
        shelf: &shelf,
        name: &name,
        path,
    };
    let tools = install.whole(&source.folder, &found, grant, yes);
    ledger::close(session, opened)?;
    let tools = tools?;
    if session.json() {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let digest = found.pin.digest;
        session
            .printer
            .json(&json!({"installed": name, "digest": digest, "tools": names}))?;
    } else {
        let next = match found.manifest.kind {
            Kind::Skill => "The model is told of it in the next session.",
            Kind::Provider => "It answers in the next session that asks for its models.",
            Kind::Channel => "`fluffy channel run` carries a session through it.",
            Kind::Tool => "Its tools are there for the next session.",
        };
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
    /// Where it comes from, as the person said.
    path: &'a Path,
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
        let source = self.path.display().to_string();
        let mut record = Record::new(found, granted(grant), &source);
        record.disabled = Some(UNSEEN.to_owned());
        let permit = || {
            let request = desk.request("plugins.install", Some(self.name), &Context::default());
            // The person has just said yes to exactly this.
            desk.permit(&request, Yes::Given)
        };
        let placed = self.shelf.install(permit()?.permit, folder, &record);
        let placed = placed.map_err(|error| changed(&error))?;
        self.check_settings(&placed)?;
        let tools = match placed.manifest.kind {
            // The person has seen all there is to it.
            Kind::Skill => skills::tools(&placed)?,
            Kind::Tool => {
                let tools = self.try_out(&desk, async |plugins| plugins.try_out(&placed).await)?;
                if !tools.is_empty() {
                    show_tools(self.session, &tools)?;
                    agree(self.session, yes, "Offer these tools to the model? [y/N] ")?;
                }
                tools
            }
            Kind::Provider => {
                let models =
                    self.try_out(&desk, async |plugins| plugins.try_models(&placed).await)?;
                self.show_models(&models)?;
                Vec::new()
            }
            Kind::Channel => {
                self.try_out(&desk, async |plugins| plugins.try_out(&placed).await)?;
                Vec::new()
            }
        };
        let pinned = self.shelf.pin_tools(permit()?.permit, self.name, &tools);
        pinned.map_err(|error| changed(&error))?;
        Ok(tools)
    }

    /// What does not start without settings has to wait for them.
    fn check_settings(&self, placed: &Placed) -> Result<(), Failure> {
        let set = self.shelf.settings(self.name);
        let set = set.map_err(|error| config::unusable(&error, self.name))?;
        let missing = config::missing(placed, &set);
        if missing.is_empty() {
            let usable = set.resolved(&placed.manifest);
            return usable
                .map(drop)
                .map_err(|error| config::unusable(&error, self.name));
        }
        let source = &placed.record.source;
        let steps = missing.iter().map(|how| format!("`{how}`"));
        let steps: Vec<String> = steps
            .chain([format!("`fluffy plugin install {source}` again")])
            .collect();
        let what = format!("`{}` is copied and does not run yet", self.name);
        Err(Report::new(ExitCode::Failure, what)
            .why("it needs settings that nobody has given it")
            .fix(steps.join(", then "))
            .into())
    }

    /// Starts it once, in its sandbox, with no project.
    fn try_out<T>(
        &self,
        desk: &Desk,
        look: impl AsyncFnOnce(&Plugins) -> Result<T, LaunchError>,
    ) -> Result<T, Failure> {
        let host = Host {
            session: self.session,
            here: self.here,
            opened: self.opened,
            desk,
        };
        let runtime = runtime()?;
        let tried = runtime.block_on(async {
            let plugins = host.open(&self.here.paths.plugins_dir, None).await?;
            look(&plugins).await.map_err(|error| {
                let fix = format!("`fluffy plugin logs {}` shows what it said", self.name);
                Failure::of(ExitCode::Failure, &error, &fix)
            })
        });
        runtime.shutdown_background();
        tried
    }

    /// Says how its models are asked for.
    fn show_models(&self, models: &[String]) -> Result<(), Failure> {
        if self.session.json() {
            return Ok(());
        }
        let mut text = "\nIts models, as --model takes them:\n".to_owned();
        for model in models {
            let _ = writeln!(text, "  {}", resource(self.name, model));
        }
        Ok(self.session.printer.data(text.trim_end())?)
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
