//! `fluffy plugin …`: install plugins and look after them.
//!
//! What is installed runs in kernels, which notice what changed when their next
//! session begins; here a plugin runs only in `install`, `test` and `dev`, and
//! always in its sandbox. Next: `install`, `bench`, and `kernel/plugins`.

mod bench;
mod config;
mod develop;
pub(crate) mod host;
mod install;
mod look;
mod new;
mod sample;
mod skills;
mod suite;
mod trial;

use std::path::{Path, PathBuf};

use fluffy_gate::Granted;
use fluffy_plugin_core::manifest::schema::manifest_schema;
use fluffy_plugin_host::archive::{UnpackError, unpack};
use fluffy_plugin_host::shelf::{Belongings, ChangeShelfError, ExamineError, Meeting, Shelf};
use fluffy_policy::Context;
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use crate::args::PluginCommand;
use crate::command::gate::{Desk, Yes};
use crate::command::{Outcome, ledger};
use crate::failure::{self, Failure};
use crate::session::{Here, Session};

/// Runs one of the `plugin` commands.
pub(crate) fn run(session: &Session, command: PluginCommand) -> Outcome {
    match command {
        PluginCommand::New { lang, name, dir } => new::run(session, lang, &name, dir),
        PluginCommand::Test { folder, grant } => trial::run(session, &folder, &grant),
        PluginCommand::Dev {
            folder,
            call,
            grant,
        } => develop::run(session, &folder, &grant, &call),
        PluginCommand::Install { path, grant, yes } => {
            install::run(session, &path, &grant, Yes::from_flag(yes))
        }
        PluginCommand::List { built_in: true, .. } => look::built_in(session),
        PluginCommand::List { rejected, .. } => {
            look::list(session, look::Which::from_flag(rejected))
        }
        PluginCommand::Inspect { plugin } => look::inspect(session, &plugin),
        PluginCommand::Logs { name, lines } => look::logs(session, &name, lines),
        PluginCommand::Schema => {
            session.printer.data(&format!("{:#}", manifest_schema()))?;
            Ok(ExitCode::Success)
        }
        PluginCommand::Config {
            name,
            set,
            secret,
            unset,
            yes,
        } => {
            let yes = Yes::from_flag(yes);
            let wanted = config::Wanted {
                set,
                secret,
                unset,
                yes,
            };
            config::run(session, &name, wanted)
        }
        PluginCommand::Enable { name, yes } => {
            let change = Change::new("plugins.enable", &name, Yes::from_flag(yes), "enabled");
            change.make(session, |shelf, granted| {
                shelf.switch(granted.permit, &name, None)
            })
        }
        PluginCommand::Disable { name, reason } => {
            let change = Change::new("plugins.disable", &name, Yes::Given, "disabled");
            change.make(session, |shelf, granted| {
                shelf.switch(granted.permit, &name, Some(reason))
            })
        }
        PluginCommand::Reload { name, yes } => {
            let change = Change::new("plugins.reload", &name, Yes::from_flag(yes), "reloaded");
            change.make(session, |shelf, granted| {
                shelf.reload(granted.permit, &name)
            })
        }
        PluginCommand::Remove { name, purge, yes } => {
            let change = Change::new("plugins.remove", &name, Yes::from_flag(yes), "removed");
            let belongings = if purge {
                Belongings::Remove
            } else {
                Belongings::Keep
            };
            change.make(session, |shelf, granted| {
                shelf.remove(granted.permit, &name, belongings)
            })
        }
    }
}

/// A change of what is installed.
struct Change<'a> {
    action: &'static str,
    name: &'a str,
    yes: Yes,
    done: &'static str,
}

impl<'a> Change<'a> {
    fn new(action: &'static str, name: &'a str, yes: Yes, done: &'static str) -> Self {
        Self {
            action,
            name,
            yes,
            done,
        }
    }

    /// Asks policy, makes the change, and says so.
    fn make(
        &self,
        session: &Session,
        work: impl FnOnce(&Shelf, Granted) -> Result<(), ChangeShelfError>,
    ) -> Outcome {
        let here = session.here()?;
        let shelf = shelf(here)?;
        // What is not there needs nobody's yes.
        shelf.record(self.name).map_err(|error| examined(&error))?;
        let opened = ledger::open(session, here)?;
        let made = Desk::open(here, &opened).and_then(|desk| {
            let request = desk.request(self.action, Some(self.name), &Context::default());
            let granted = desk.permit(&request, self.yes)?;
            work(&shelf, granted).map_err(|error| changed(&error))
        });
        ledger::close(session, opened)?;
        made?;
        if session.json() {
            session
                .printer
                .json(&json!({"plugin": self.name, "done": self.done}))?;
        } else {
            session
                .printer
                .data(&format!("`{}` is {}.", self.name, self.done))?;
        }
        Ok(ExitCode::Success)
    }
}

/// What is installed for this user.
fn shelf(here: &Here) -> Result<Shelf, Failure> {
    let paths = here.paths.create();
    paths.map_err(|error| failure::paths(&error))?;
    Shelf::open(&here.paths.plugins_dir).map_err(|error| {
        let fix = "check that the state directory is yours and that its disk has room";
        Failure::of(ExitCode::Failure, &error, fix)
    })
}

/// A plugin before it is installed: its folder, unpacked where it came as one
/// file. What was unpacked goes with this.
struct Source {
    folder: PathBuf,
    _unpacked: Option<Meeting>,
}

impl Source {
    fn open(shelf: &Shelf, path: &Path) -> Result<Self, Failure> {
        if !path.is_file() {
            return Ok(Self {
                folder: path.to_owned(),
                _unpacked: None,
            });
        }
        // An empty folder of our own, also swept when this process is killed.
        let place = shelf.meeting().map_err(|error| {
            let fix = "check that the state directory is yours and that its disk has room";
            Failure::of(ExitCode::Failure, &error, fix)
        })?;
        let folder = unpack(path, place.path()).map_err(|error| not_unpacked(&error))?;
        Ok(Self {
            folder,
            _unpacked: Some(place),
        })
    }
}

fn not_unpacked(error: &UnpackError) -> Failure {
    match error {
        UnpackError::File(_) => Failure::of(
            ExitCode::Failure,
            error,
            "check that you may read it and that the disk has room",
        ),
        UnpackError::Unknown => Failure::of(
            ExitCode::Usage,
            error,
            "name a folder with a `plugin.yaml`, or such an archive of it",
        ),
        _ => Failure::of(
            ExitCode::Usage,
            error,
            "nothing of it was kept; ask its author for another archive",
        ),
    }
}

/// A folder that is no plugin, in words for people.
fn examined(error: &ExamineError) -> Failure {
    match error {
        ExamineError::NotInstalled { .. } => Failure::of(
            ExitCode::NotFound,
            error,
            "`fluffy plugin list` shows what is installed",
        ),
        ExamineError::NoManifest { .. } => Failure::of(
            ExitCode::NotFound,
            error,
            "name the folder that has a `plugin.yaml`",
        ),
        ExamineError::Manifest { path, source } => {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            failure::refused_text(&shown(path), &text, source).into()
        }
        ExamineError::Files(_) => Failure::of(
            ExitCode::Usage,
            error,
            "remove it from the folder, or put it elsewhere",
        ),
        ExamineError::Changed => Report::new(ExitCode::Internal, error.to_string())
            .why("somebody changed them after they were looked at")
            .fix("install it again from a folder that you trust")
            .into(),
        ExamineError::Record { .. } => Failure::of(ExitCode::Internal, error, "install it again"),
    }
}

fn changed(error: &ChangeShelfError) -> Failure {
    match error {
        ChangeShelfError::Examine(error) => examined(error),
        ChangeShelfError::Permit { .. } => {
            Failure::of(ExitCode::Internal, error, "please report this")
        }
        ChangeShelfError::File { .. } => Failure::of(
            ExitCode::Failure,
            error,
            "check that the state directory is yours and that its disk has room",
        ),
    }
}

/// A path as people write it.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let path: PathBuf = path.strip_prefix(&here).unwrap_or(path).to_owned();
    path.display().to_string()
}
