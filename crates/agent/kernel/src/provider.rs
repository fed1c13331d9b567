//! Asks models through a worker in a sandbox of its own.
//!
//! A worker lives for one turn. It gets the key over its input, sees no file of
//! the project and reaches its provider only through the egress proxy, which
//! asks policy about every connection and records it.

use std::sync::Arc;

use fluffy_contract::BoxFuture;
use fluffy_contract::isolation::{Child as _, Command, Output, SandboxSpec, Tier};
use fluffy_contract::model::{ModelEvent, ModelProvider, ModelStream, StartTurnError, Turn};
use fluffy_egress::{AllowList, ByGate, Network, ProxyHandle, Settings, ToLedger, serve};
use fluffy_gate::{Answer, Desk};
use fluffy_ledger::{Actor, ActorKind, Domain, Ledger};
use fluffy_models::worker::{ProxySetup, Setup, SetupLink, WorkerHandle};
use fluffy_policy::{Context, Permit};
use fluffy_sandbox::client::{ChildHandle, LauncherHandle, SandboxHandle};
use fluffy_sandbox::plan::PROXY_PORT;
use fluffy_secret::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const TEMPLATE: &str = "ai-provider";

/// How much may wait between the kernel and a worker.
const BUFFER: usize = 64 * 1024;

/// The words that make `fluffy` a model worker.
pub const ARGUMENTS: [&str; 2] = ["worker", "model"];

/// Models behind sandboxed workers.
pub struct SandboxedModels {
    /// Who makes the sandboxes.
    pub launcher: LauncherHandle,
    /// In whose name policy is asked.
    pub desk: Desk,
    /// Where connections are recorded.
    pub ledger: Ledger,
    /// The models, in the order they are tried.
    pub links: Vec<SetupLink>,
    /// Their keys, in the same order.
    pub keys: Vec<Option<SecretString>>,
    /// Whom TLS trusts, as PEM; none for the machine's own.
    pub roots: Option<String>,
    /// What the proxy reaches them through.
    pub network: Arc<dyn Network>,
}

impl std::fmt::Debug for SandboxedModels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxedModels")
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

/// A running answer and everything that carries it.
struct Carried {
    stream: Box<dyn ModelStream>,
    /// Ends when it is dropped.
    _worker: WorkerHandle,
    sandbox: Option<SandboxHandle>,
    proxy: Option<ProxyHandle>,
}

impl ModelStream for Carried {
    fn next(&mut self) -> BoxFuture<'_, Option<ModelEvent>> {
        self.stream.next()
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let (sandbox, proxy) = (self.sandbox.take(), self.proxy.take());
        // Whoever drops it does not wait; both end by themselves too.
        tokio::spawn(async move {
            if let Some(sandbox) = sandbox {
                let _ = sandbox.clean().await;
            }
            if let Some(proxy) = proxy {
                proxy.stop().await;
            }
        });
    }
}

impl ModelProvider for SandboxedModels {
    fn name(&self) -> &str {
        let first = self.links.first();
        first.map_or("model", |link| link.settings.provider.as_str())
    }

    fn start(
        &self,
        permit: Permit,
        turn: Turn,
    ) -> BoxFuture<'_, Result<Box<dyn ModelStream>, StartTurnError>> {
        Box::pin(async move {
            let unreachable = |source| StartTurnError::Unreachable {
                provider: self.name().to_owned(),
                source,
            };
            let (sandbox, proxy, worker) = self.worker(&turn).await.map_err(unreachable)?;
            match worker.start(permit, turn).await {
                Ok(stream) => Ok(Box::new(Carried {
                    stream,
                    _worker: worker,
                    sandbox: Some(sandbox),
                    proxy: Some(proxy),
                }) as Box<dyn ModelStream>),
                Err(error) => {
                    let _ = sandbox.clean().await;
                    Err(error)
                }
            }
        })
    }
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

impl SandboxedModels {
    async fn worker(
        &self,
        turn: &Turn,
    ) -> Result<(SandboxHandle, ProxyHandle, WorkerHandle), Failed> {
        let context = Context {
            template: Some(TEMPLATE.to_owned()),
            tier: Some(Tier::Process),
            ..Context::default()
        };
        let create = self.permit(&self.desk, "sandbox.create", TEMPLATE, &context)?;
        let spec = SandboxSpec {
            template: TEMPLATE.to_owned(),
            tier: Some(Tier::Process),
            ..SandboxSpec::default()
        };
        let sandbox = self.launcher.create(create, spec).await?;
        let made = self.in_sandbox(&sandbox, turn, &context).await;
        match made {
            Ok((proxy, worker)) => Ok((sandbox, proxy, worker)),
            Err(error) => {
                let _ = sandbox.clean().await;
                Err(error)
            }
        }
    }

    async fn in_sandbox(
        &self,
        sandbox: &SandboxHandle,
        turn: &Turn,
        context: &Context,
    ) -> Result<(ProxyHandle, WorkerHandle), Failed> {
        let desk = self.desk.inside(sandbox.id());
        let listener = sandbox.listen_for_proxy().await?;
        let proxy = serve(listener, self.proxy_settings(sandbox, &desk, context)?)?;
        let model = format!("{}/{}", self.name(), turn.model);
        let run = self.permit(&desk, "model.generate", &model, context)?;
        let own = std::env::current_exe()?.to_string_lossy().into_owned();
        let words = std::iter::once(own).chain(ARGUMENTS.map(str::to_owned));
        let child = sandbox.run(run, Command::new(words)).await?;
        let (near, far) = tokio::io::duplex(BUFFER);
        tokio::spawn(carry(child, far));
        let (output, input) = tokio::io::split(near);
        let address = ([127, 0, 0, 1], PROXY_PORT).into();
        let mut setup = Setup::new(self.links.clone(), ProxySetup::Tcp { address });
        setup.roots.clone_from(&self.roots);
        let again = |key: &SecretString| SecretString::from(key.expose().clone());
        let keys = self
            .keys
            .iter()
            .map(|key| key.as_ref().map(again))
            .collect();
        let worker = WorkerHandle::start(input, output, setup, keys).await?;
        Ok((proxy, worker))
    }

    fn proxy_settings(
        &self,
        sandbox: &SandboxHandle,
        desk: &Desk,
        context: &Context,
    ) -> Result<Settings, Failed> {
        // A person chose these addresses; a server on this machine is reached
        // only because of that, and only if policy allows it too.
        let chosen: Vec<String> = self
            .links
            .iter()
            .filter(|link| link.settings.base_url.is_loopback())
            .map(|link| link.settings.base_url.authority())
            .collect();
        let policy = ByGate::new(
            Arc::clone(&desk.gate),
            desk.principal.clone(),
            context.clone(),
        );
        let decide = policy.beyond(AllowList::parse(&chosen)?);
        let actor = Actor::new(ActorKind::Agent, desk.principal.name.clone());
        let record = ToLedger::new(self.ledger.clone(), Domain::Agent, actor);
        let decide = Arc::new(decide);
        Ok(Settings {
            network: Arc::clone(&self.network),
            ..Settings::new(sandbox.id(), TEMPLATE, decide, Arc::new(record))
        })
    }

    fn permit(
        &self,
        desk: &Desk,
        action: &str,
        resource: &str,
        context: &Context,
    ) -> Result<Permit, Failed> {
        let request = desk.request(action, Some(resource), context);
        match desk.ask(&request)? {
            Answer::Granted(granted) => Ok(granted.permit),
            Answer::Review(refusal) | Answer::Denied(refusal) => Err(refusal.to_string().into()),
        }
    }
}

/// Carries bytes between the worker's streams and the kernel until one ends.
async fn carry(mut child: ChildHandle, far: DuplexStream) {
    let Ok(mut input) = child.take_input() else {
        return;
    };
    let (mut from_kernel, mut to_kernel) = tokio::io::split(far);
    let inward = async move {
        let mut buffer = vec![0; BUFFER];
        while let Ok(count) = from_kernel.read(&mut buffer).await {
            let Some(piece) = buffer.get(..count).filter(|piece| !piece.is_empty()) else {
                break;
            };
            if input.write(piece).await.is_err() {
                break;
            }
        }
    };
    let outward = async move {
        while let Ok(Some(output)) = child.output().await {
            // What it says on its other stream is for nobody.
            if let Output::Stdout(bytes) = output
                && to_kernel.write_all(&bytes).await.is_err()
            {
                break;
            }
        }
    };
    tokio::join!(inward, outward);
}
