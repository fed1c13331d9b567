//! The sandboxes of one project's sessions: every command runs over a layer.
//!
//! One sandbox serves one call and is gone; the next is made while the model
//! thinks. One that is to stay (`running`) serves all calls over its layer
//! until it is ended. A layer is mounted by one sandbox at a time, so calls
//! over it take turns here, and so do commits of one project. Decides nothing:
//! every step takes the permit of a decision that was made elsewhere.

mod running;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use fluffy_base::id::{LayerId, SandboxId};
use fluffy_contract::Isolation as _;
use fluffy_contract::isolation::{
    Command, Finished, LayerMount, Level, Sandbox as _, SandboxError, SandboxSpec, Tier,
};
use fluffy_layer::{HeldLayer, LayerDirectories, ReadLayerError};
use fluffy_policy::{Context, Permit};
use fluffy_sandbox::client::{LauncherHandle, Pool, PoolSettings, SandboxHandle};
use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};

pub use self::running::After;
use self::running::{AllRunning, RunningKey};
use crate::freezer::Freezer;
use crate::hidden::Hidden;

/// What every sandbox of a project's sessions is made from.
#[derive(Debug, Clone)]
pub struct Premises {
    /// The project, seen inside at its own path.
    pub project: PathBuf,
    /// The template of commands and tests.
    pub template: String,
    /// How strongly it isolates.
    pub tier: Tier,
    /// Whether the project is mounted; without, commands start in the layer's
    /// own copy.
    pub mounts: Mounts,
    /// How many sandboxes are made ahead; none where an engine cannot mount
    /// the layer later.
    pub ahead: usize,
    /// How long the sandbox over a session's layer stays.
    pub stay: Stay,
    /// What is set inside.
    pub environment: BTreeMap<String, String>,
}

/// How long a sandbox over a session's layer stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// For one call: making one costs little.
    Call,
    /// For all calls of the session; between two nothing runs in it.
    Session,
}

/// Whether an engine can mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// It can.
    Yes,
    /// Reduced isolation cannot.
    No,
}

/// Sandboxes over layers of one project.
#[derive(Debug)]
pub struct Workshop {
    launcher: LauncherHandle,
    premises: Premises,
    pool: Pool,
    /// Whose turn it is over each layer that is in use.
    turns: std::sync::Mutex<BTreeMap<LayerId, Weak<Mutex<()>>>>,
    committing: Mutex<()>,
    last: std::sync::Mutex<Option<SandboxId>>,
    running: AllRunning,
    /// Commands that can be ended when memory is short.
    commands: std::sync::Mutex<Vec<Endable>>,
}

/// A command that can be ended, and whether it was.
#[derive(Debug, Clone)]
struct Endable {
    sandbox: Weak<SandboxHandle>,
    was_ended: Arc<AtomicBool>,
}

/// What one sandbox is put over.
#[derive(Debug)]
pub struct Over<'a> {
    /// The template it is made from.
    pub template: &'a str,
    /// The layer.
    pub held: &'a HeldLayer,
    /// Paths that cannot be opened in it.
    pub hidden: &'a Hidden,
    /// Paths that cannot be written in it.
    pub protected: Vec<PathBuf>,
}

/// Why there is no sandbox over a layer.
#[derive(Debug, thiserror::Error)]
pub enum OpenBoothError {
    /// The layer cannot be mounted.
    #[error(transparent)]
    Layer(#[from] ReadLayerError),
    /// The sandbox cannot be made.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

/// A call's place in a sandbox over a layer, until it is closed.
#[derive(Debug)]
pub struct Booth {
    sandbox: Arc<SandboxHandle>,
    directory: PathBuf,
    end: End,
    /// Who can pause what runs in it.
    freezer: Option<Arc<Freezer>>,
    _turn: OwnedMutexGuard<()>,
}

/// What becomes of a sandbox when the call has ended.
#[derive(Debug)]
enum End {
    /// It is gone.
    Removed,
    /// It stays, and nothing runs in it.
    Emptied(RunningKey),
    /// It stays, and what runs in it.
    Left(RunningKey),
}

impl End {
    fn key(&self) -> Option<&RunningKey> {
        match self {
            Self::Removed => None,
            Self::Emptied(key) | Self::Left(key) => Some(key),
        }
    }
}

impl Workshop {
    /// Sandboxes that this launcher makes.
    #[must_use]
    pub fn new(launcher: LauncherHandle, premises: Premises) -> Self {
        let settings = PoolSettings {
            spec: base(&premises),
            size: premises.ahead,
        };
        Self {
            pool: Pool::new(launcher.clone(), settings),
            launcher,
            premises,
            turns: std::sync::Mutex::default(),
            committing: Mutex::default(),
            last: std::sync::Mutex::default(),
            running: AllRunning::default(),
            commands: std::sync::Mutex::default(),
        }
    }

    /// Whether the launcher is gone: nothing that happens now means anything.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.launcher.is_gone()
    }

    /// What the isolation really is on this machine.
    #[must_use]
    pub fn level(&self) -> Level {
        self.launcher.level()
    }

    /// What the sandboxes are made from.
    #[must_use]
    pub fn premises(&self) -> &Premises {
        &self.premises
    }

    /// The circumstances that rules can look at.
    #[must_use]
    pub fn context(&self) -> Context {
        Context {
            template: Some(self.premises.template.clone()),
            tier: Some(self.premises.tier),
            ..Context::default()
        }
    }

    /// The newest sandbox: what a layer holds came out of it.
    #[must_use]
    pub fn last(&self) -> Option<SandboxId> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a sandbox ahead, unless one waits; the permit is for
    /// `sandbox.create`.
    ///
    /// # Errors
    /// It cannot be made.
    pub async fn prepare(&self, permit: Permit) -> Result<(), SandboxError> {
        self.pool.fill(permit).await
    }

    /// How many more could wait.
    pub async fn missing(&self) -> usize {
        let waiting = self.pool.waiting().await;
        self.premises.ahead.saturating_sub(waiting)
    }

    /// As [`Workshop::prepare`], while the caller goes on. What cannot be made
    /// ahead is made, or refused, when it is needed.
    pub fn prepare_soon(&self, permit: Permit) {
        let pool = self.pool.clone();
        tokio::spawn(async move {
            let _ = pool.fill(permit).await;
        });
    }

    /// Ends the sandboxes that only wait.
    pub async fn end_waiting(&self) {
        self.pool.end_waiting().await;
    }

    /// Ends the commands of all sessions that can be run again.
    pub async fn end_commands(&self) {
        let running = {
            let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *commands)
        };
        for Endable { sandbox, was_ended } in running {
            if let Some(sandbox) = sandbox.upgrade() {
                was_ended.store(true, Ordering::Relaxed);
                // When the launcher is gone, the system has ended it.
                let _ = sandbox.kill().await;
            }
        }
    }

    /// Waits until no other commit of this project is made.
    pub(crate) async fn committing(&self) -> MutexGuard<'_, ()> {
        self.committing.lock().await
    }

    /// Waits until no other sandbox is over this layer.
    async fn turn(&self, layer: LayerId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| turn.strong_count() > 0);
            let known = turns.get(&layer).and_then(Weak::upgrade);
            let turn: Arc<Mutex<()>> = known.unwrap_or_default();
            turns.insert(layer, Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }

    /// A sandbox over the layer; the permit is for `sandbox.create`. Waits for
    /// the one before.
    ///
    /// # Errors
    /// The layer cannot be mounted, or the sandbox cannot be made.
    pub async fn open(&self, permit: Permit, over: Over<'_>) -> Result<Booth, OpenBoothError> {
        let turn = self.turn(over.held.layer().id()).await;
        let (sandbox, directory) = self.make(permit, over).await?;
        Ok(Booth {
            sandbox: Arc::new(sandbox),
            directory,
            end: End::Removed,
            freezer: None,
            _turn: turn,
        })
    }

    /// A sandbox, and where commands start in it; it is the caller's turn.
    async fn make(
        &self,
        permit: Permit,
        over: Over<'_>,
    ) -> Result<(SandboxHandle, PathBuf), OpenBoothError> {
        let directories = over.held.prepare_mount()?;
        let directory = match (&directories, self.premises.mounts) {
            (LayerDirectories::Copy { tree }, Mounts::No) => tree.clone(),
            _ => self.premises.project.clone(),
        };
        let spec = SandboxSpec {
            template: over.template.to_owned(),
            layer: Some(mount(directories)),
            protected: over.protected,
            hidden: over.hidden.paths().to_vec(),
            ..base(&self.premises)
        };
        let sandbox = self.pool.take(permit, spec).await?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(sandbox.id());
        Ok((sandbox, directory))
    }
}

impl Booth {
    /// Which sandbox it is.
    #[must_use]
    pub fn id(&self) -> SandboxId {
        self.sandbox.id()
    }

    /// The same, for work that can be paused.
    #[must_use]
    pub fn under(self, freezer: Option<Arc<Freezer>>) -> Self {
        Self { freezer, ..self }
    }

    /// Runs a command that is ended when the kernel needs memory; nothing if
    /// it was. As [`Booth::run`] in all else.
    ///
    /// # Errors
    /// As [`Booth::run`].
    pub async fn run_unless_short(
        &self,
        workshop: &Workshop,
        permit: Permit,
        command: Command,
    ) -> Result<Option<Finished>, SandboxError> {
        let was_ended = Arc::new(AtomicBool::new(false));
        {
            let commands = &workshop.commands;
            let mut commands = commands.lock().unwrap_or_else(PoisonError::into_inner);
            commands.retain(|one| one.sandbox.strong_count() > 0);
            commands.push(Endable {
                sandbox: Arc::downgrade(&self.sandbox),
                was_ended: Arc::clone(&was_ended),
            });
        }
        let finished = self.run(permit, command, b"").await;
        match was_ended.load(Ordering::Relaxed) {
            true => Ok(None),
            false => finished.map(Some),
        }
    }

    /// Runs a command to its end; the permit is for running it. What it reads
    /// as its input is all there is.
    ///
    /// # Errors
    /// The sandbox has ended, or the command is refused.
    pub async fn run(
        &self,
        permit: Permit,
        command: Command,
        input: &[u8],
    ) -> Result<Finished, SandboxError> {
        let finished = self.run_to_its_end(permit, command, input).await;
        if let (Err(SandboxError::Ended { .. }), Some(key)) = (&finished, self.end.key()) {
            key.forget();
        }
        finished
    }

    async fn run_to_its_end(
        &self,
        permit: Permit,
        command: Command,
        input: &[u8],
    ) -> Result<Finished, SandboxError> {
        let command = Command {
            directory: command.directory.or_else(|| Some(self.directory.clone())),
            ..command
        };
        let mut child = match &self.freezer {
            Some(freezer) => freezer.run(&self.sandbox, permit, command).await?,
            None => self.sandbox.run(permit, command).await?,
        };
        let mut stdin = child.take_input().map_err(|source| SandboxError::Engine {
            sandbox: self.sandbox.id(),
            operation: "take its input",
            source: source.into(),
        })?;
        let feed = async move {
            // A command that does not want its input may close it.
            let _ = stdin.write(input).await;
        };
        let ((), finished) = tokio::join!(feed, child.finish());
        if let Some(freezer) = &self.freezer {
            freezer.left().await;
        }
        finished
    }

    /// A listener on its own loopback, for the egress proxy.
    ///
    /// # Errors
    /// The sandbox has ended or has no loopback.
    pub async fn listen_for_proxy(&self) -> Result<std::net::TcpListener, SandboxError> {
        self.sandbox.listen_for_proxy().await
    }

    /// Ends everything in it while the caller goes on, who knows that nothing
    /// runs in it any more. The next over a layer waits for that.
    pub fn close_soon(self) {
        tokio::spawn(self.close());
    }

    /// Ends everything in it, unless it is one that stays.
    pub async fn close(self) {
        match self.end {
            // When the launcher is gone, the system has ended the sandbox.
            End::Removed => drop(self.sandbox.clean().await),
            End::Emptied(key) => {
                // One that cannot be emptied is not used again.
                if self.sandbox.end_all().await.is_err() {
                    key.forget();
                    let _ = self.sandbox.clean().await;
                }
            }
            End::Left(_) => {}
        }
    }
}

fn base(premises: &Premises) -> SandboxSpec {
    SandboxSpec {
        template: premises.template.clone(),
        tier: Some(premises.tier),
        project: Some(premises.project.clone()),
        environment: premises.environment.clone(),
        ..SandboxSpec::default()
    }
}

fn mount(directories: LayerDirectories) -> LayerMount {
    match directories {
        LayerDirectories::Overlay { upper, work } => LayerMount::Overlay { upper, work },
        LayerDirectories::Copy { tree } => LayerMount::Tree { tree },
    }
}
