//! The caller's side: a launcher of its own, and the sandboxes it makes.
//!
//! Everything that has an effect takes a permit and writes to the ledger. The
//! launcher ends with its [`LauncherHandle`]: when the last clone is dropped it
//! sees its socket close and removes everything. Next: `child` for a running
//! command, `pool` for sandboxes that wait.

mod child;
mod journal;
mod link;
mod pool;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_contract::BoxFuture;
use fluffy_contract::isolation::{
    Child, Command, Isolation, Level, Sandbox, SandboxError, SandboxSpec, Stats, Tier,
};
use fluffy_policy::Permit;

use crate::plan::{Engine, PROXY_PORT, Settings};
use crate::protocol::{Answer, Ask, Failure, FailureKind, Warm};
use crate::template::{Lifetime, Template};
use link::{Asked, Link};

pub use child::{ChildHandle, ChildInput};
pub use journal::Journal;
pub use link::StartLauncherError;
pub use pool::{Pool, PoolSettings};

/// The actions that are carried out by running a command.
const RUNS: &[&str] = &[
    "exec.run",
    "fs.edit",
    "fs.remove",
    "fs.write",
    "git.commit",
    "git.diff",
    "git.log",
    "git.status",
    "model.generate",
    "sandbox.exec",
    "shell.exec",
    "test.run",
];

/// Refuses a permit for something else.
fn permitted(permit: &Permit, actions: &[&str]) -> Result<(), SandboxError> {
    if actions.contains(&permit.action()) {
        return Ok(());
    }
    Err(SandboxError::Refused {
        what: format!("a permit for `{}`", permit.capability()),
        reason: format!("one for `{}` is needed", actions.join("`, `")),
    })
}

/// How a launcher is started: this executable with a hidden word.
#[derive(Debug, Clone)]
pub struct LauncherCommand {
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl LauncherCommand {
    /// The running executable as `worker launcher`.
    ///
    /// # Errors
    /// When the executable cannot be found.
    pub fn own() -> std::io::Result<Self> {
        Ok(Self {
            program: std::env::current_exe()?,
            arguments: vec!["worker".to_owned(), "launcher".to_owned()],
        })
    }
}

/// A launcher process and the way to it; clones share it.
#[derive(Debug, Clone)]
pub struct LauncherHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    link: Link,
    journal: Journal,
    templates: Vec<Template>,
    tier: Tier,
    level: Level,
    execs: AtomicU64,
}

impl LauncherHandle {
    /// Starts a launcher, and lets it remove what dead ones left.
    ///
    /// # Errors
    /// When it cannot be started or cannot use its state directory.
    pub async fn start(
        command: &LauncherCommand,
        settings: Settings,
        journal: Journal,
    ) -> Result<Self, StartLauncherError> {
        let link = Link::start(command, &settings).await?;
        Ok(Self::with(link, settings, journal).await)
    }

    /// Speaks to a launcher that runs already, as its one client, and lets it
    /// remove what dead ones left.
    ///
    /// # Errors
    /// When it does not answer or cannot use its state directory.
    pub async fn over(
        socket: OwnedFd,
        settings: Settings,
        journal: Journal,
    ) -> Result<Self, StartLauncherError> {
        let link = Link::over(socket, &settings).await?;
        Ok(Self::with(link, settings, journal).await)
    }

    /// The same for a launcher that has its settings, which it got as its
    /// first message, and waits for the first question before it does anything.
    ///
    /// # Errors
    /// When it does not answer or cannot work with its settings.
    pub async fn awaken(
        socket: OwnedFd,
        settings: Settings,
        journal: Journal,
    ) -> Result<Self, StartLauncherError> {
        let link = Link::waking(socket).await?;
        Ok(Self::with(link, settings, journal).await)
    }

    async fn with(link: Link, settings: Settings, journal: Journal) -> Self {
        let (tier, level) = match settings.engine {
            Engine::Native | Engine::Bwrap => (Tier::Process, Level::SharedKernel),
            Engine::Reduced => (Tier::Process, Level::Reduced),
            Engine::Container => (Tier::Container, Level::SharedKernel),
        };
        let handle = Self {
            shared: Arc::new(Shared {
                link,
                journal,
                templates: settings.templates,
                tier,
                level,
                execs: AtomicU64::new(1),
            }),
        };
        handle.sweep().await;
        handle
    }

    /// Whether it is gone; then nothing of it can be asked any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.link.is_gone()
    }

    /// Ready when it is gone.
    pub async fn gone(&self) {
        self.shared.link.gone().await;
    }

    /// Removes what launchers that are gone left behind; says what.
    pub async fn sweep(&self) -> Vec<String> {
        let removed = match self.shared.link.ask(Ask::Sweep, &[]).await {
            Ok((Answer::Swept { removed }, _)) => removed,
            _ => Vec::new(),
        };
        if !removed.is_empty() {
            self.shared.journal.swept(&removed);
        }
        removed
    }

    /// Makes a sandbox; the permit is for `sandbox.create`.
    ///
    /// # Errors
    /// When the request is refused, or this machine cannot do it.
    pub async fn create(
        &self,
        permit: Permit,
        spec: SandboxSpec,
    ) -> Result<SandboxHandle, SandboxError> {
        self.make(permit, spec, Warm::Complete).await
    }

    async fn make(
        &self,
        permit: Permit,
        spec: SandboxSpec,
        warm: Warm,
    ) -> Result<SandboxHandle, SandboxError> {
        permitted(&permit, &["sandbox.create"])?;
        let sandbox = SandboxId::generate();
        let handle = SandboxHandle {
            launcher: self.clone(),
            id: sandbox,
            lifetime: self.lifetime(&spec.template),
            cleanup: Arc::new(tokio::sync::OnceCell::new()),
            attaching: Mutex::new(None),
        };
        let template = spec.template.clone();
        let ask = Ask::Create {
            sandbox,
            spec,
            warm,
        };
        match self.shared.link.ask(ask, &[]).await {
            Ok((Answer::Done, _)) => {
                self.shared
                    .journal
                    .created(&permit, sandbox, &template, self.shared.level);
                Ok(handle)
            }
            answered => {
                let error = self.error(sandbox, "create it", answered);
                self.shared
                    .journal
                    .failed(&permit, sandbox, &template, &error);
                // What a failed creation left is removed like any other.
                let _ = self.shared.link.ask(Ask::Cleanup { sandbox }, &[]).await;
                Err(error)
            }
        }
    }

    fn lifetime(&self, template: &str) -> Lifetime {
        self.shared
            .templates
            .iter()
            .find(|known| known.name == template)
            .map_or(Lifetime::Owner, |template| template.time)
    }

    fn error(
        &self,
        sandbox: SandboxId,
        operation: &'static str,
        answered: std::io::Result<(Answer, Vec<OwnedFd>)>,
    ) -> SandboxError {
        match answered {
            Ok((Answer::Failed { failure }, _)) => self.failed(sandbox, operation, failure),
            Ok((Answer::Pending { progress }, _)) => SandboxError::Pending { progress },
            Ok(_) => SandboxError::Engine {
                sandbox,
                operation,
                source: "the launcher answered something else".into(),
            },
            Err(source) => SandboxError::Engine {
                sandbox,
                operation,
                source: source.into(),
            },
        }
    }

    fn failed(
        &self,
        sandbox: SandboxId,
        operation: &'static str,
        failure: Failure,
    ) -> SandboxError {
        let Failure {
            kind,
            what,
            why,
            fix,
        } = failure;
        let reason = match fix {
            Some(fix) => format!("{why}; to fix it: {fix}"),
            None => why,
        };
        match kind {
            // The error says it itself.
            FailureKind::Refused => SandboxError::Refused {
                what: what.trim_end_matches(" is refused").to_owned(),
                reason,
            },
            FailureKind::Unavailable => SandboxError::TierUnavailable {
                wanted: self.shared.tier,
                reason: format!("{what}: {reason}"),
            },
            FailureKind::Ended => SandboxError::Ended { sandbox },
            FailureKind::System => SandboxError::Engine {
                sandbox,
                operation,
                source: format!("{what}: {reason}").into(),
            },
        }
    }
}

impl Isolation for LauncherHandle {
    fn tier(&self) -> Tier {
        self.shared.tier
    }

    fn level(&self) -> Level {
        self.shared.level
    }

    fn create(
        &self,
        permit: Permit,
        spec: SandboxSpec,
    ) -> BoxFuture<'_, Result<Box<dyn Sandbox>, SandboxError>> {
        Box::pin(async move {
            let handle = Self::create(self, permit, spec).await?;
            Ok(Box::new(handle) as Box<dyn Sandbox>)
        })
    }
}

/// One sandbox. When it is dropped without [`SandboxHandle::clean`], the
/// launcher still removes it, without anybody waiting.
#[derive(Debug)]
pub struct SandboxHandle {
    launcher: LauncherHandle,
    id: SandboxId,
    lifetime: Lifetime,
    cleanup: Arc<tokio::sync::OnceCell<()>>,
    /// The project's mount, where nobody has waited for it yet.
    attaching: Mutex<Option<Asked>>,
}

impl SandboxHandle {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> SandboxId {
        self.id
    }

    /// Starts a command; the permit is for running it.
    ///
    /// # Errors
    /// When the sandbox has ended or the command is refused.
    pub async fn run(&self, permit: Permit, command: Command) -> Result<ChildHandle, SandboxError> {
        permitted(&permit, RUNS)?;
        let exec = self.launcher.shared.execs.fetch_add(1, Ordering::Relaxed);
        self.launcher
            .shared
            .journal
            .command(&permit, self.id, &command);
        let child = ChildHandle::start(self, exec, command).await;
        // If the project could not be mounted, that is the reason to give.
        self.attached().await?;
        child
    }

    /// Asks for the project's mount without waiting for it.
    fn attach_ahead(&self, ask: Ask) -> Result<(), SandboxError> {
        let asked = self.launcher.shared.link.ask_ahead(ask, &[]);
        let asked = asked.map_err(|source| SandboxError::Engine {
            sandbox: self.id,
            operation: "attach its project",
            source: source.into(),
        })?;
        *self
            .attaching
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(asked);
        Ok(())
    }

    async fn attached(&self) -> Result<(), SandboxError> {
        let asked = self
            .attaching
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(asked) = asked else {
            return Ok(());
        };
        match asked.wait().await {
            Ok((Answer::Done, _)) => Ok(()),
            answered => Err(self.launcher.error(self.id, "attach its project", answered)),
        }
    }

    /// A listener on the sandbox's own loopback, for the egress proxy.
    ///
    /// # Errors
    /// When the sandbox has ended or has no loopback.
    pub async fn listen_for_proxy(&self) -> Result<std::net::TcpListener, SandboxError> {
        let ask = Ask::Listen {
            sandbox: self.id,
            port: PROXY_PORT,
        };
        match self.launcher.shared.link.ask(ask, &[]).await {
            Ok((Answer::Done, mut descriptors)) if descriptors.len() == 1 => {
                let listener = descriptors.pop().map(std::net::TcpListener::from);
                listener.ok_or(SandboxError::Ended { sandbox: self.id })
            }
            answered => Err(self
                .launcher
                .error(self.id, "listen on its loopback", answered)),
        }
    }

    /// Ends every process in it; the sandbox itself can be used again.
    ///
    /// # Errors
    /// When the sandbox has ended.
    pub async fn end_all(&self) -> Result<(), SandboxError> {
        let ask = Ask::EndAll { sandbox: self.id };
        self.order("end what runs in it", ask).await
    }

    /// Ends everything in it and removes what it left; may be called again.
    ///
    /// # Errors
    /// When the launcher is gone; then the kernel has ended the sandbox.
    pub async fn clean(&self) -> Result<(), SandboxError> {
        let cleaned = self.cleanup.get_or_try_init(|| async {
            self.order("clean it up", Ask::Cleanup { sandbox: self.id })
                .await?;
            self.launcher.shared.journal.destroyed(self.id);
            Ok(())
        });
        cleaned.await.copied()
    }

    async fn order(&self, operation: &'static str, ask: Ask) -> Result<(), SandboxError> {
        match self.launcher.shared.link.ask(ask, &[]).await {
            Ok((Answer::Done, _)) => Ok(()),
            answered => Err(self.launcher.error(self.id, operation, answered)),
        }
    }
}

impl Drop for SandboxHandle {
    fn drop(&mut self) {
        if !self.cleanup.initialized() {
            self.launcher
                .shared
                .link
                .tell(Ask::Cleanup { sandbox: self.id });
            self.launcher.shared.journal.destroyed(self.id);
        }
    }
}

impl Sandbox for SandboxHandle {
    fn id(&self) -> SandboxId {
        self.id
    }

    fn exec(
        &self,
        permit: Permit,
        command: Command,
    ) -> BoxFuture<'_, Result<Box<dyn Child>, SandboxError>> {
        Box::pin(async move {
            let child = self.run(permit, command).await?;
            Ok(Box::new(child) as Box<dyn Child>)
        })
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), SandboxError>> {
        Box::pin(self.order("pause it", Ask::Pause { sandbox: self.id }))
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), SandboxError>> {
        Box::pin(self.order("resume it", Ask::Resume { sandbox: self.id }))
    }

    fn stats(&self) -> BoxFuture<'_, Result<Stats, SandboxError>> {
        Box::pin(async move {
            let ask = Ask::Stats { sandbox: self.id };
            match self.launcher.shared.link.ask(ask, &[]).await {
                Ok((Answer::Stats { stats }, _)) => Ok(stats),
                answered => Err(self.launcher.error(self.id, "say what it uses", answered)),
            }
        })
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, Result<(), SandboxError>> {
        let grace_millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        Box::pin(self.order(
            "stop it",
            Ask::Stop {
                sandbox: self.id,
                grace_millis,
            },
        ))
    }

    fn kill(&self) -> BoxFuture<'_, Result<(), SandboxError>> {
        Box::pin(self.order("kill it", Ask::Kill { sandbox: self.id }))
    }

    fn cleanup(&self) -> BoxFuture<'_, Result<(), SandboxError>> {
        Box::pin(self.clean())
    }
}
