//! The container tier, for sessions that ask for it.
//!
//! Its launcher is started beside the kernel, before the kernel's walls, and
//! alone has the engine's socket. It is told what it may make before the first
//! session begins, and leaves the engine alone until one wants a container.
//! Next: `fluffy_container::worker`.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use fluffy_container::{address, worker};
use fluffy_contract::BoxFuture;
use fluffy_kernel::workshop::{Premises, Workshop};
use fluffy_sandbox::client::{Journal, LauncherHandle};
use fluffy_sandbox::plan::Settings;
use fluffy_sandbox::protocol;
use tokio::sync::{Mutex, watch};

use crate::command::sandbox::{containers, user};

/// The socket to a launcher of containers, or why there is none.
pub(super) type Line = Result<OwnedFd, String>;

/// Starts the launcher if there is an engine.
pub(super) fn start() -> Line {
    let engine = address::find(&containers(), user()).map_err(|error| {
        let failure = error.failure();
        let fix = failure.fix.unwrap_or_default();
        format!("{}: {}; {fix}", failure.what, failure.why)
    })?;
    let started = || -> io::Result<OwnedFd> {
        let command = worker::patient_launcher_command(&engine)?;
        let (ours, theirs) = UnixStream::pair()?;
        Command::new(command.program)
            .args(command.arguments)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(ours.into())
    };
    started().map_err(|error| format!("the launcher of containers does not start: {error}"))
}

/// What sandboxes of this tier are made from.
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) premises: Premises,
    pub(super) journal: Journal,
}

/// The tier, waiting or in use.
pub(super) struct Containers {
    plan: Plan,
    state: Mutex<State>,
    used: watch::Sender<Option<Used>>,
}

enum State {
    Waiting(OwnedFd),
    InUse(Arc<Workshop>),
    Nowhere(String),
}

/// What there is once a session wanted a container.
struct Used {
    launcher: LauncherHandle,
    workshop: Arc<Workshop>,
}

/// A plugin that can run in a container does.
impl fluffy_plugin_host::plugins::Containers for Containers {
    fn launcher(&self) -> BoxFuture<'_, Result<LauncherHandle, String>> {
        Box::pin(self.ready())
    }
}

impl Containers {
    /// Tells the launcher what it may make; nothing later can add to it.
    pub(super) fn new(line: Line, plan: Plan) -> Self {
        let state = line.and_then(|socket| {
            let told = protocol::send(&socket, &plan.settings, &[]);
            let told = told.map_err(|error| format!("the launcher of containers: {error}"));
            told.map(|()| socket)
        });
        Self {
            plan,
            state: Mutex::new(match state {
                Ok(socket) => State::Waiting(socket),
                Err(why) => State::Nowhere(why),
            }),
            used: watch::Sender::new(None),
        }
    }

    /// Sandboxes of this tier, or why there are none.
    pub(super) async fn workshop(&self) -> Result<Arc<Workshop>, String> {
        let mut state = self.state.lock().await;
        let was = std::mem::replace(&mut *state, State::Nowhere(String::new()));
        *state = match was {
            State::Waiting(socket) => self.awaken(socket).await,
            other => other,
        };
        match &*state {
            State::InUse(workshop) => Ok(Arc::clone(workshop)),
            State::Waiting(_) => Err("it is not ready".to_owned()),
            State::Nowhere(why) => Err(why.clone()),
        }
    }

    async fn ready(&self) -> Result<LauncherHandle, String> {
        self.workshop().await?;
        let used = self.used.borrow();
        let launcher = used.as_ref().map(|used| used.launcher.clone());
        launcher.ok_or_else(|| "it is not ready".to_owned())
    }

    async fn awaken(&self, socket: OwnedFd) -> State {
        let Plan {
            settings,
            premises,
            journal,
        } = &self.plan;
        let woken = LauncherHandle::awaken(socket, settings.clone(), journal.clone()).await;
        match woken {
            Ok(launcher) => {
                let workshop = Workshop::new(launcher.clone(), premises.clone());
                let workshop = Arc::new(workshop);
                self.used.send_replace(Some(Used {
                    launcher,
                    workshop: Arc::clone(&workshop),
                }));
                State::InUse(workshop)
            }
            Err(error) => State::Nowhere(fluffy_kernel::agent::explain(&error)),
        }
    }

    /// Sandboxes of this tier, if any session wanted one.
    pub(super) fn in_use(&self) -> Option<Arc<Workshop>> {
        let used = self.used.borrow();
        used.as_ref().map(|used| Arc::clone(&used.workshop))
    }

    /// Whether its launcher was in use and is gone.
    pub(super) fn is_lost(&self) -> bool {
        let used = self.used.borrow();
        used.as_ref().is_some_and(|used| used.launcher.is_gone())
    }

    /// Ready when its launcher was in use and is gone.
    pub(super) async fn lost(&self) {
        let mut told = self.used.subscribe();
        let launcher = match told.wait_for(Option::is_some).await {
            Ok(used) => used.as_ref().map(|used| used.launcher.clone()),
            Err(_) => None,
        };
        match launcher {
            Some(launcher) => launcher.gone().await,
            None => std::future::pending().await,
        }
    }
}
