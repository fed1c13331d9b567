//! Asks models through a worker in a sandbox of its own.
//!
//! A worker answers turn after turn of one session as long as each answer is
//! whole and the next question comes soon; else there is a new one. It gets the
//! key over its input, sees no file of the project and reaches its provider only
//! through the egress proxy, which asks policy about every connection and
//! records it.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use fluffy_contract::BoxFuture;
use fluffy_contract::isolation::{Child as _, Command, Output, SandboxSpec, Tier};
use fluffy_contract::model::{ModelEvent, ModelProvider, ModelStream, StartTurnError, Turn};
use fluffy_egress::{AllowList, ByGate, Network, ProxyHandle, Settings, ToLedger, serve};
use fluffy_gate::{Answer, Desk};
use fluffy_ledger::{Actor, ActorKind, Domain, Ledger};
use fluffy_models::address::Scheme;
use fluffy_models::worker::{ProxySetup, Setup, SetupLink, WorkerHandle};
use fluffy_policy::{Context, Permit};
use fluffy_sandbox::client::{ChildHandle, LauncherHandle, SandboxHandle};
use fluffy_sandbox::plan::PROXY_PORT;
use fluffy_secret::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const TEMPLATE: &str = "ai-provider";

/// How much may wait between the kernel and a worker.
const BUFFER: usize = 64 * 1024;

/// How long a worker waits for its next turn. Short beside the silence after
/// which its template ends it: a slow model must not pay for a slow tool.
const KEPT: Duration = Duration::from_secs(10);

/// The words that make `fluffy` a model worker.
pub const ARGUMENTS: [&str; 2] = ["worker", "model"];

/// Models behind sandboxed workers.
pub struct SandboxedModels {
    access: ModelAccess,
    kept: Arc<Mutex<Option<Kept>>>,
}

/// Which models there are, and how they are reached.
pub struct ModelAccess {
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
        self.access.fmt(f)
    }
}

impl std::fmt::Debug for ModelAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelAccess")
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

/// A worker and everything that carries it; ends when it is dropped.
struct Carrier {
    worker: WorkerHandle,
    sandbox: Arc<SandboxHandle>,
    proxy: Option<ProxyHandle>,
}

impl Drop for Carrier {
    fn drop(&mut self) {
        let (sandbox, proxy) = (Arc::clone(&self.sandbox), self.proxy.take());
        // Whoever drops it does not wait; both end by themselves too.
        tokio::spawn(async move {
            let _ = sandbox.clean().await;
            if let Some(proxy) = proxy {
                proxy.stop().await;
            }
        });
    }
}

/// A worker that waits for its next turn.
struct Kept {
    carrier: Carrier,
    since: Instant,
}

/// A running answer.
struct Carried {
    stream: Box<dyn ModelStream>,
    carrier: Option<Carrier>,
    kept: Arc<Mutex<Option<Kept>>>,
    is_whole: bool,
}

impl Carried {
    async fn take(&mut self) -> Option<ModelEvent> {
        let event = self.stream.next().await;
        self.is_whole |= matches!(event, Some(ModelEvent::Done { .. }));
        event
    }
}

impl ModelStream for Carried {
    fn next(&mut self) -> BoxFuture<'_, Option<ModelEvent>> {
        Box::pin(self.take())
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        // A worker that was interrupted or failed is not trusted with more.
        if let (true, Some(carrier)) = (self.is_whole, self.carrier.take()) {
            let since = Instant::now();
            *self.kept.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Kept { carrier, since });
            tokio::spawn(end_idle(Arc::downgrade(&self.kept), since));
        }
    }
}

/// Ends a worker that nobody asked again: it holds a key.
async fn end_idle(kept: Weak<Mutex<Option<Kept>>>, since: Instant) {
    tokio::time::sleep(KEPT).await;
    if let Some(kept) = kept.upgrade() {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        drop(kept.take_if(|kept| kept.since == since));
    }
}

impl ModelProvider for SandboxedModels {
    fn name(&self) -> &str {
        self.access.name()
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
            let carrier = match self.waiting() {
                Some(carrier) => {
                    let again = self.access.generate(&carrier.sandbox, &turn);
                    // Nothing is started: the worker runs by the first one.
                    drop(again.map_err(unreachable)?);
                    carrier
                }
                None => self.access.worker(&turn).await.map_err(unreachable)?,
            };
            let stream = carrier.worker.start(permit, turn).await?;
            Ok(Box::new(Carried {
                stream,
                carrier: Some(carrier),
                kept: Arc::clone(&self.kept),
                is_whole: false,
            }) as Box<dyn ModelStream>)
        })
    }
}

impl SandboxedModels {
    /// Models that are reached like this.
    #[must_use]
    pub fn new(access: ModelAccess) -> Self {
        Self {
            access,
            kept: Arc::default(),
        }
    }

    /// The worker of the last turn, if it is of use.
    fn waiting(&self) -> Option<Carrier> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.take()?;
        let is_fresh = kept.since.elapsed() < KEPT && !kept.carrier.worker.has_ended();
        is_fresh.then_some(kept.carrier)
    }
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

impl ModelAccess {
    fn name(&self) -> &str {
        let first = self.links.first();
        first.map_or("model", |link| link.settings.provider.as_str())
    }

    async fn worker(&self, turn: &Turn) -> Result<Carrier, Failed> {
        let context = context();
        let create = self.permit(&self.desk, "sandbox.create", TEMPLATE, &context)?;
        let spec = SandboxSpec {
            template: TEMPLATE.to_owned(),
            tier: Some(Tier::Process),
            ..SandboxSpec::default()
        };
        let sandbox = self.launcher.create(create, spec).await?;
        let made = self.in_sandbox(&sandbox, turn, &context).await;
        match made {
            Ok((proxy, worker)) => Ok(Carrier {
                worker,
                sandbox: Arc::new(sandbox),
                proxy: Some(proxy),
            }),
            Err(error) => {
                let _ = sandbox.clean().await;
                Err(error)
            }
        }
    }

    /// Asks whether this model may be asked, by a worker in this sandbox.
    fn generate(&self, sandbox: &SandboxHandle, turn: &Turn) -> Result<Permit, Failed> {
        let desk = self.desk.inside(sandbox.id());
        let model = format!("{}/{}", self.name(), turn.model);
        self.permit(&desk, "model.generate", &model, &context())
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
        let run = self.generate(sandbox, turn)?;
        let own = std::env::current_exe()?.to_string_lossy().into_owned();
        let words = std::iter::once(own).chain(ARGUMENTS.map(str::to_owned));
        let child = sandbox.run(run, Command::new(words)).await?;
        let (near, far) = tokio::io::duplex(BUFFER);
        tokio::spawn(carry(child, far));
        let (output, input) = tokio::io::split(near);
        let address = ([127, 0, 0, 1], PROXY_PORT).into();
        let mut setup = Setup::new(self.links.clone(), ProxySetup::Tcp { address });
        let is_plain = |link: &SetupLink| link.settings.base_url.scheme() == Scheme::Http;
        if !self.links.iter().all(is_plain) {
            setup.roots.clone_from(&self.roots);
        }
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

fn context() -> Context {
    Context {
        template: Some(TEMPLATE.to_owned()),
        tier: Some(Tier::Process),
        ..Context::default()
    }
}

/// Carries bytes between the worker's streams and the kernel until the worker
/// says nothing more; the end of its input is what makes it end.
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
        drop(input);
        std::future::pending::<()>().await;
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
    // A worker that was killed reads no more, and nobody else would end the
    // half that waits for the kernel's words: both go together.
    tokio::select! {
        () = inward => {}
        () = outward => {}
    }
}
