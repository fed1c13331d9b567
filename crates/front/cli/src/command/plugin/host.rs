//! What plugins of one command run on: a launcher of sandboxes, one of
//! containers when a plugin wants it, the policy in force and the ledger.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fluffy_contract::BoxFuture;
use fluffy_egress::HostNetwork;
use fluffy_ledger::Actor;
use fluffy_plugin_host::plugins::{Containers, Plugins};
use fluffy_report::{ExitCode, Report};
use fluffy_sandbox::client::{Journal, LauncherCommand, LauncherHandle};
use fluffy_sandbox::plan::{Engine, Settings};
use tokio::sync::OnceCell;

use crate::command::gate::Desk;
use crate::command::ledger::OpenLedger;
use crate::command::sandbox::{self, ground};
use crate::failure::{self, Failure};
use crate::kernel::plugins::{Standing, open};
use crate::session::{Here, Session};

/// What plugins of one command run on.
pub(crate) struct Host<'a> {
    pub(crate) session: &'a Session,
    pub(crate) here: &'a Here,
    pub(crate) opened: &'a OpenLedger,
    pub(crate) desk: &'a Desk,
}

impl Host<'_> {
    /// Plugins whose folders are below this one, in a project if there is one.
    pub(crate) async fn open(
        &self,
        root: &Path,
        project: Option<PathBuf>,
    ) -> Result<Plugins, Failure> {
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
        let policy = self.desk.gate.policy();
        let mut settings =
            ground::for_plugins(self.here, policy.engine.templates(), engine, &folder);
        settings.plugins = Some(root.canonicalize().unwrap_or_else(|_| root.to_owned()));
        let project = project.map(|path| path.canonicalize().unwrap_or(path));
        settings.projects.extend(project.clone());
        let actor = Actor::system("plugin-host");
        let journal = Journal::new(Arc::new(self.opened.ledger.clone()), actor);
        let containers = Wanted {
            settings: settings.clone(),
            journal: journal.clone(),
            launcher: OnceCell::new(),
        };
        let command = LauncherCommand::own().map_err(|error| internal(&error))?;
        let launcher = LauncherHandle::start(&command, settings, journal).await;
        open(Standing {
            folder: root,
            project: project.as_deref(),
            launcher: launcher.map_err(|error| internal(&error))?,
            containers: Arc::new(containers),
            gate: Arc::clone(&self.desk.gate),
            ledger: self.opened.ledger.clone(),
            network: Arc::new(HostNetwork),
        })
    }
}

/// A launcher of containers that is started when the first plugin wants it.
struct Wanted {
    settings: Settings,
    journal: Journal,
    launcher: OnceCell<Result<LauncherHandle, String>>,
}

impl Containers for Wanted {
    fn launcher(&self) -> BoxFuture<'_, Result<LauncherHandle, String>> {
        Box::pin(async { self.launcher.get_or_init(|| self.start()).await.clone() })
    }
}

impl Wanted {
    async fn start(&self) -> Result<LauncherHandle, String> {
        let found = fluffy_container::probe::probe(&sandbox::containers(), sandbox::user()).await;
        let found = found.map_err(|failure| {
            let fix = failure.fix.unwrap_or_default();
            format!("{}: {}; {fix}", failure.what, failure.why)
        })?;
        let command = fluffy_container::worker::launcher_command(&found.socket);
        let command = command.map_err(|error| error.to_string())?;
        let settings = Settings {
            engine: Engine::Container,
            ..self.settings.clone()
        };
        let started = LauncherHandle::start(&command, settings, self.journal.clone()).await;
        started.map_err(|error| fluffy_kernel::agent::explain(&error))
    }
}

/// A runtime for one command that speaks with plugins.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    Ok(runtime.map_err(|error| failure::no_threads(&error))?)
}
