//! The sandbox of one plugin: its program, and its proxy where it has one.
//!
//! The program always starts inside. A plugin that was granted hosts gets a
//! proxy, which asks policy in the plugin's name about every connection; one
//! that was not gets none, and its network leads nowhere.

use std::sync::{Arc, Mutex, PoisonError};

use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::{Command, Exit, Limit, SandboxSpec};
use fluffy_egress::{ByGate, Network, ProxyHandle, Settings, ToLedger, serve};
use fluffy_gate::Desk;
use fluffy_ledger::{Actor, ActorKind, Domain, Ledger};
use fluffy_policy::{Context, Permit};
use fluffy_sandbox::client::{ChildHandle, LauncherHandle, SandboxHandle};

use crate::connection::StartPluginError;

/// What a plugin's program is started with.
#[derive(Debug)]
pub struct Entry {
    /// Who makes the sandbox.
    pub launcher: LauncherHandle,
    /// For `sandbox.create`.
    pub create: Permit,
    /// For `exec.run`.
    pub run: Permit,
    /// From what the sandbox is made.
    pub spec: SandboxSpec,
    /// The program.
    pub command: Command,
    /// The way out, for a template with a network.
    pub way: Option<Way>,
}

/// The way out of a plugin's sandbox.
#[derive(Clone)]
pub struct Way {
    /// In whose name policy is asked: the plugin's.
    pub desk: Desk,
    /// The circumstances.
    pub context: Context,
    /// Where connections are recorded.
    pub ledger: Ledger,
    /// What the proxy reaches them through.
    pub network: Arc<dyn Network>,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Way").finish_non_exhaustive()
    }
}

/// A plugin's sandbox. Dropping it ends everything in it.
#[derive(Debug)]
pub struct Room {
    sandbox: Arc<SandboxHandle>,
    proxy: Mutex<Option<ProxyHandle>>,
}

impl Room {
    /// Makes the sandbox and starts the program in it.
    ///
    /// # Errors
    /// The sandbox is refused or cannot be made, or there is no such program.
    pub async fn open(entry: Entry) -> Result<(Self, ChildHandle), StartPluginError> {
        let Entry {
            launcher,
            create,
            run,
            spec,
            command,
            way,
        } = entry;
        let template = spec.template.clone();
        let sandbox = launcher.create(create, spec).await.map_err(failed)?;
        let room = Self {
            sandbox: Arc::new(sandbox),
            proxy: Mutex::default(),
        };
        if let Some(way) = way {
            let proxy = room.open_way(&template, way).await?;
            *room.proxy.lock().unwrap_or_else(PoisonError::into_inner) = Some(proxy);
        }
        let child = room.sandbox.run(run, command).await.map_err(failed)?;
        Ok((room, child))
    }

    /// Which sandbox it is.
    #[must_use]
    pub fn sandbox(&self) -> SandboxId {
        self.sandbox.id()
    }

    /// Ends everything in it and waits for that. May be called again.
    pub async fn close(&self) {
        // What is not removed now is removed by the launcher's sweep.
        let _ = self.sandbox.clean().await;
        let proxy = self.take_proxy();
        if let Some(proxy) = proxy {
            proxy.stop().await;
        }
    }

    async fn open_way(&self, template: &str, way: Way) -> Result<ProxyHandle, StartPluginError> {
        let desk = way.desk.inside(self.sandbox.id());
        let listener = self.sandbox.listen_for_proxy().await.map_err(failed)?;
        let actor = Actor::new(ActorKind::ServicePrincipal, desk.principal.name.clone());
        let record = ToLedger::new(way.ledger, Domain::Plugin, actor);
        let decide = Arc::new(ByGate::new(desk.gate, desk.principal, way.context));
        let settings = Settings {
            network: way.network,
            ..Settings::new(self.sandbox.id(), template, decide, Arc::new(record))
        };
        serve(listener, settings).map_err(failed)
    }

    fn take_proxy(&self) -> Option<ProxyHandle> {
        let mut proxy = self.proxy.lock().unwrap_or_else(PoisonError::into_inner);
        proxy.take()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let (sandbox, proxy) = (Arc::clone(&self.sandbox), self.take_proxy());
        // Outside a runtime the launcher's own end removes it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let _ = sandbox.clean().await;
            if let Some(proxy) = proxy {
                proxy.stop().await;
            }
        });
    }
}

/// How a plugin's program ended, in words.
#[must_use]
pub fn words(exit: Exit) -> String {
    match exit {
        Exit::Code { code } => format!("exit code {code}"),
        Exit::Signal { signal } => format!("signal {signal}"),
        Exit::Limit { limit } => match limit {
            Limit::Time => "its time was over".to_owned(),
            Limit::Memory => "it used more memory than it may".to_owned(),
            Limit::Pids => "it started more processes than it may".to_owned(),
            Limit::Output => "it wrote more than is kept".to_owned(),
            Limit::Disk => "it wrote more files than it may".to_owned(),
        },
        Exit::NotStarted { errno } => {
            let error = std::io::Error::from_raw_os_error(errno);
            format!("it could not be started: {error}")
        }
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> StartPluginError {
    StartPluginError::Sandbox {
        source: Box::new(error),
    }
}
