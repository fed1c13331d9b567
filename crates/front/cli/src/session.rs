//! What every command stands on: printer, places, settings.
//!
//! No ledger and no policy is opened before a command asks for it.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use fluffy_config::{ColorMode, Environment, Paths, Settings, project};
use fluffy_report::{ColorWish, Format, Printer, PrinterOptions, Report, Verbosity};
use fluffy_script::WorkerCommand;

use crate::args::Global;
use crate::failure::{self, Failure};

/// How this program starts itself as the worker for policy extensions.
pub(crate) const WORKER_ARGUMENTS: [&str; 2] = ["worker", "policy-script"];

/// What every command stands on.
#[derive(Debug)]
pub(crate) struct Session {
    /// Where all output goes.
    pub(crate) printer: Printer,
    environment: Environment,
    start: PathBuf,
    verbose: bool,
    here: Result<Here, Report>,
    /// Whether odd variables were told of; once is enough.
    warned: Cell<bool>,
}

/// The places and settings of this project and user.
#[derive(Debug)]
pub(crate) struct Here {
    /// Where everything is.
    pub(crate) paths: Paths,
    /// What is configured.
    pub(crate) settings: Settings,
}

impl Session {
    /// A session for these flags. Broken configuration is not an error yet:
    /// a command that needs none still works.
    pub(crate) fn new(global: &Global) -> Self {
        let environment = Environment::of_process();
        let start = global.project.clone().unwrap_or_else(|| PathBuf::from("."));
        let here = folder(&start)
            .and_then(|folder| load(&environment, project::find_root(&folder).as_deref()));
        let color = here
            .as_ref()
            .map_or(ColorMode::Auto, |here| here.settings.values().ui.color);
        let options = PrinterOptions {
            verbosity: match (global.quiet, global.verbose) {
                (true, _) => Verbosity::Quiet,
                (_, true) => Verbosity::Verbose,
                _ => Verbosity::Normal,
            },
            format: if global.json {
                Format::Json
            } else {
                Format::Text
            },
            color: match color {
                ColorMode::Auto => ColorWish::Auto,
                ColorMode::Always => ColorWish::Always,
                ColorMode::Never => ColorWish::Never,
            },
        };
        Self {
            printer: Printer::new(options),
            environment,
            start,
            verbose: global.verbose,
            here,
            warned: Cell::new(false),
        }
    }

    /// Whether results are wanted as JSON.
    pub(crate) fn json(&self) -> bool {
        self.printer.format() == Format::Json
    }

    /// Whether more is wanted than the result.
    pub(crate) fn verbose(&self) -> bool {
        self.verbose
    }

    /// The folder the command works in, absolute.
    pub(crate) fn folder(&self) -> Result<PathBuf, Failure> {
        Ok(folder(&self.start)?)
    }

    /// The places and settings of the project around the folder, if any.
    pub(crate) fn here(&self) -> Result<&Here, Failure> {
        let here = self
            .here
            .as_ref()
            .map_err(|report| Failure::from(report.clone()))?;
        let odd = here.settings.unknown_variables();
        for variable in odd.iter().take_while(|_| !self.warned.get()) {
            let hint = variable
                .nearest
                .as_ref()
                .map(|name| format!("; did you mean `{name}`?"));
            let hint = hint.unwrap_or_default();
            self.printer.warn(&format!(
                "`{}` is not a variable of fluffy{hint}",
                variable.name
            ));
        }
        self.warned.set(true);
        Ok(here)
    }

    /// A variable of the environment; one that is no text counts as not set.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        self.environment.get(name)?.to_str().map(str::to_owned)
    }

    /// The places and settings with this folder as the project.
    pub(crate) fn here_in(&self, root: &Path) -> Result<Here, Failure> {
        Ok(load(&self.environment, Some(root))?)
    }
}

/// The command line that starts the script worker.
pub(crate) fn worker_command() -> Result<WorkerCommand, Failure> {
    let program = std::env::current_exe().map_err(|error| failure::no_program(&error))?;
    Ok(WorkerCommand {
        program,
        args: WORKER_ARGUMENTS.map(Into::into).to_vec(),
    })
}

fn folder(start: &Path) -> Result<PathBuf, Report> {
    start
        .canonicalize()
        .map_err(|error| failure::no_folder(start, &error))
}

fn load(environment: &Environment, root: Option<&Path>) -> Result<Here, Report> {
    let paths = Paths::resolve(environment, root).map_err(|error| failure::paths(&error))?;
    let settings = fluffy_config::load(&paths, environment.clone(), Vec::new(), None)
        .map_err(|error| failure::config(&error))?;
    Ok(Here { paths, settings })
}
