//! The worker: the one process that runs the engine, inside the sandbox.
//!
//! One per plugin. It compiles, instantiates and calls; what the plugin asks
//! goes to the host as it is. Nothing is decided here, since all of this
//! process may one day be the plugin's. Next: `wire.rs` for what is said, and
//! `fetch.rs` for the one thing that is done here, through the proxy.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fluffy_base::ByteSize;
use fluffy_wasm::plugin::{
    Ask, CallFault, Compiled, Description, Fault, Host, Instance, Metered, Output, Plugin, Reply,
};
use fluffy_wasm::{Bounds, Limits, PluginTier, Stop};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;

use super::fetch::Fetcher;
use super::options::{Fuel, Instances};
use super::outbox::Outbox;
use super::wire::{
    Decoder, Done, Ended, FromWorker, MAX_LOAD, Orders, Question, ToWorker, Used, WireError, Work,
    encode,
};

/// How long a stateful instance may take to end.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Why the worker ended before its input did.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("the host's connection failed: {0}")]
    Connection(#[from] io::Error),
    #[error("the host sent {0}")]
    Message(#[from] WireError),
    #[error("the host sent something out of order")]
    Order,
    #[error("the engine does not start: {0}")]
    Engine(String),
}

/// Runs the worker on standard input and output until the host is gone.
#[must_use]
pub fn worker_main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4)
        .enable_all()
        .build();
    let served = runtime.map_err(ServeError::Connection).and_then(|runtime| {
        // On a thread of the runtime: what it starts runs there next, and
        // need not wake another one.
        let served = runtime.block_on(async { tokio::spawn(serve()).await });
        // A call that holds its thread is not waited for.
        runtime.shutdown_background();
        served.map_err(io::Error::other)?
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("{error}\n"));
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), ServeError> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    let mut input = Input {
        pipe: pipe::Receiver::from_owned_fd(input)?,
        decoder: Decoder::new(MAX_LOAD),
    };
    let link = Arc::new(Link::new(pipe::Sender::from_owned_fd(output)?));
    tokio::spawn({
        let link = Arc::clone(&link);
        async move { link.outbox.drive().await }
    });
    let tier = PluginTier::start(Bounds::default())
        .map_err(|error| ServeError::Engine(with_sources(&error)))?;
    let engine = tier.identity();
    link.send(&FromWorker::Hello { engine })?;
    let Some(first) = input.next().await? else {
        return Ok(());
    };
    let ToWorker::Load {
        orders,
        module,
        compiled,
    } = first
    else {
        return Err(ServeError::Order);
    };
    let plugin = match prepare(&tier, &link, &module.0, compiled.map(|blob| blob.0)) {
        Ok(plugin) => plugin,
        Err(what) => return fail(&link, what, input).await,
    };
    drop(module);
    let room = Arc::new(Shared::new(plugin, &orders, Arc::clone(&link)));
    // The plugin's questions are answered while it is asked for its tools.
    let describing = tokio::spawn(Arc::clone(&room).describe());
    let mut calls = Calls::default();
    let mut described = std::pin::pin!(describing);
    let mut loaded = false;
    loop {
        tokio::select! {
            tools = &mut described, if !loaded => {
                loaded = true;
                match tools.unwrap_or_else(|error| Err(error.to_string())) {
                    Ok(tools) => link.send(&FromWorker::Loaded { tools })?,
                    Err(what) => return fail(&link, what, input).await,
                }
            }
            message = input.next() => match message? {
                Some(ToWorker::Call { id, work }) => calls.start(&room, id, work),
                Some(ToWorker::Cancel { id }) => calls.cancel(id),
                Some(ToWorker::Answer { id, answer }) => link.answered(id, answer),
                Some(ToWorker::Load { .. }) => return Err(ServeError::Order),
                Some(ToWorker::Stop) => {
                    let ending = tokio::spawn(Arc::clone(&room).shutdown());
                    input.answer_until(ending, &link).await;
                    return Ok(());
                }
                None => return Ok(()),
            },
        }
    }
}

/// Says why the plugin cannot be loaded, and waits for the host to end us.
async fn fail(link: &Link, what: String, mut input: Input) -> Result<(), ServeError> {
    link.send(&FromWorker::Failed { what })?;
    while input.next().await?.is_some() {}
    Ok(())
}

fn prepare(
    tier: &PluginTier,
    link: &Link,
    module: &[u8],
    compiled: Option<Vec<u8>>,
) -> Result<Plugin, String> {
    let kept = compiled.map(kept);
    let prepared = tier
        .prepare(module, kept.as_ref())
        .map_err(|error| with_sources(&error))?;
    if let Some(compiled) = prepared.compiled {
        let code = super::wire::Blob(compiled.as_bytes().to_vec());
        let said = link.send(&FromWorker::Compiled { code });
        said.map_err(|error| error.to_string())?;
    }
    Ok(prepared.plugin)
}

#[expect(
    unsafe_code,
    reason = "the host hands over only what it has kept itself, behind a keyed hash"
)]
fn kept(bytes: Vec<u8>) -> Compiled {
    // SAFETY: see `cache.rs`; and whoever lies to us here is the host, which
    // could run anything in this sandbox anyway.
    unsafe { Compiled::kept(bytes) }
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text.chars().take(2_000).collect()
}

struct Input {
    pipe: pipe::Receiver,
    decoder: Decoder,
}

impl Input {
    /// The next message; nothing when the host is gone. Can be dropped.
    async fn next(&mut self) -> Result<Option<ToWorker>, ServeError> {
        let mut bytes = [0; 16 << 10];
        loop {
            if let Some(message) = self.decoder.next()? {
                return Ok(Some(message));
            }
            match self.pipe.read(&mut bytes).await? {
                0 => return Ok(None),
                read => self.decoder.feed(bytes.get(..read).unwrap_or_default()),
            }
        }
    }

    /// Passes answers on until the task is over; everything else is too late.
    async fn answer_until(&mut self, ending: tokio::task::JoinHandle<()>, link: &Link) {
        let mut ending = std::pin::pin!(ending);
        loop {
            tokio::select! {
                _ = &mut ending => return,
                message = self.next() => match message {
                    Ok(Some(ToWorker::Answer { id, answer })) => link.answered(id, answer),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return,
                },
            }
        }
    }
}

/// The way to the host, and who waits for its answers.
struct Link {
    outbox: Outbox,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Result<Reply, Fault>>>>,
    next: AtomicU64,
    fetcher: Fetcher,
}

impl Link {
    fn new(output: pipe::Sender) -> Self {
        Self {
            outbox: Outbox::new(output),
            waiting: Mutex::default(),
            next: AtomicU64::new(0),
            fetcher: Fetcher::new(),
        }
    }

    fn send(&self, message: &FromWorker) -> Result<(), ServeError> {
        let frame = encode(message)?;
        // A host that is gone is seen at the input.
        self.outbox.send(frame);
        Ok(())
    }

    fn answered(&self, id: u64, answer: Result<Reply, Fault>) {
        // Nobody waits where the call was cancelled meanwhile.
        if let Some(waiting) = self.lock().remove(&id) {
            let _ = waiting.send(answer);
        }
    }

    async fn question(&self, question: Question) -> Result<Reply, Fault> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, waiting) = oneshot::channel();
        self.lock().insert(id, answer);
        let _forget = Forget { link: self, id };
        self.send(&FromWorker::Ask { id, question })
            .map_err(|error| Fault::Failed(error.to_string()))?;
        let gone = || Fault::Failed("the host is gone".to_owned());
        waiting.await.map_err(|_| gone())?
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Result<Reply, Fault>>>> {
        // Each change is one insertion or removal.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a question back that nobody waits for.
struct Forget<'a> {
    link: &'a Link,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.link.lock().remove(&self.id);
    }
}

impl Host for Link {
    fn ask(&self, ask: Ask) -> Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send + '_>> {
        Box::pin(async move {
            let request = match ask {
                Ask::Fetch(request) => request,
                ask => return self.question(Question::Ask(ask)).await,
            };
            let target = super::fetch::target(&request)?;
            let address = target.address();
            self.question(Question::MayConnect { address }).await?;
            let response = self.fetcher.fetch(&target, request).await?;
            Ok(Reply::Response(response))
        })
    }
}

/// What all calls of the plugin share.
struct Shared {
    plugin: Plugin,
    limits: Limits,
    instances: Instances,
    link: Arc<Link>,
    slots: Semaphore,
    /// Made ahead, for the next call.
    ready: Mutex<Option<Instance>>,
    /// The one of a stateful plugin.
    kept: tokio::sync::Mutex<Option<Instance>>,
}

impl Shared {
    fn new(plugin: Plugin, orders: &Orders, link: Arc<Link>) -> Self {
        let limits = Limits {
            fuel: match orders.fuel {
                Fuel::ByLanguage => Some(plugin.language().fuel()),
                Fuel::Units(units) => Some(units),
                Fuel::Off => None,
            },
            time: Duration::from_millis(orders.call_millis),
            memory: ByteSize(orders.memory),
            table_elements: usize::try_from(orders.table_elements).unwrap_or(usize::MAX),
            ..Limits::default()
        };
        Self {
            plugin,
            limits,
            instances: orders.instances,
            link,
            slots: Semaphore::new(usize::try_from(orders.concurrency).unwrap_or(1)),
            ready: Mutex::default(),
            kept: tokio::sync::Mutex::default(),
        }
    }

    async fn describe(self: Arc<Self>) -> Result<Vec<Description>, String> {
        let mut instance = self.begin().await.map_err(|done| words(&done))?;
        let tools = instance.describe(self.limits).await;
        let tools = tools.result.map_err(|fault| with_sources(&fault))?;
        match self.instances {
            Instances::Stateful => *self.kept.lock().await = Some(instance),
            Instances::PerCall => {
                drop(instance);
                self.make_ready().await;
            }
        }
        Ok(tools)
    }

    async fn call(&self, work: Work) -> Done {
        let Ok(_slot) = self.slots.acquire().await else {
            return failed(Ended::Instance("it ends".to_owned()));
        };
        match self.instances {
            Instances::PerCall => match self.begin().await {
                Ok(mut instance) => self.run(&mut instance, work).await,
                Err(done) => *done,
            },
            Instances::Stateful => {
                let mut kept = self.kept.lock().await;
                let usable = kept.take().filter(|instance| !instance.is_spent());
                let fresh = match usable {
                    Some(instance) => Ok(instance),
                    None => self.begin().await,
                };
                match fresh {
                    // It stays in its place, so that a call that is cancelled
                    // leaves it there, spent.
                    Ok(instance) => self.run(kept.insert(instance), work).await,
                    Err(done) => *done,
                }
            }
        }
    }

    /// An instance that has begun.
    async fn begin(&self) -> Result<Instance, Box<Done>> {
        let ready = self.ready().take();
        let mut instance = match ready {
            Some(instance) => instance,
            None => self.instantiate().await.map_err(|stop| {
                let ended = ended(CallFault::Stopped(stop));
                Box::new(failed(ended))
            })?,
        };
        let began = instance.init(self.limits).await;
        match began.result {
            Ok(()) => {
                self.write_log(began.stdout, began.stderr);
                Ok(instance)
            }
            Err(_) => Err(Box::new(done(began.map(|()| None)))),
        }
    }

    async fn instantiate(&self) -> Result<Instance, Stop> {
        let host = Arc::clone(&self.link);
        self.plugin.instantiate(host, self.limits).await
    }

    /// Makes an instance for the next call; one that cannot be made now will
    /// say so in its call.
    async fn make_ready(&self) {
        if self.instances == Instances::Stateful || self.ready().is_some() {
            return;
        }
        if let Ok(instance) = self.instantiate().await {
            *self.ready() = Some(instance);
        }
    }

    async fn run(&self, instance: &mut Instance, work: Work) -> Done {
        let metered = match work {
            Work::Execute { tool, arguments } => instance
                .execute(&tool, &arguments, self.limits)
                .await
                .map(Some),
            Work::Health => instance.health(self.limits).await.map(|()| None),
        };
        done(metered)
    }

    async fn shutdown(self: Arc<Self>) {
        let ending = async {
            if let Some(mut instance) = self.kept.lock().await.take() {
                instance.shutdown(self.limits).await;
            }
        };
        let _ = tokio::time::timeout(SHUTDOWN, ending).await;
    }

    fn ready(&self) -> MutexGuard<'_, Option<Instance>> {
        // A handle, whole at any moment.
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an instance said before its call; our own output is for frames.
    fn write_log(&self, stdout: Vec<u8>, stderr: Vec<u8>) {
        if !stdout.is_empty() || !stderr.is_empty() {
            let _ = self.link.send(&FromWorker::Said { stdout, stderr });
        }
    }
}

/// The calls that run now.
#[derive(Default)]
struct Calls {
    running: Arc<Mutex<HashMap<u64, AbortHandle>>>,
}

impl Calls {
    fn start(&mut self, room: &Arc<Shared>, id: u64, work: Work) {
        let (room, running) = (Arc::clone(room), Arc::clone(&self.running));
        // The task ends itself only after its handle is in the list.
        let mut list = lock(&self.running);
        let task = tokio::spawn(async move {
            let done = room.call(work).await;
            lock(&running).remove(&id);
            let _ = room.link.send(&FromWorker::Done { id, done });
            room.make_ready().await;
        });
        list.insert(id, task.abort_handle());
    }

    fn cancel(&mut self, id: u64) {
        if let Some(task) = lock(&self.running).remove(&id) {
            task.abort();
        }
    }
}

fn lock(list: &Mutex<HashMap<u64, AbortHandle>>) -> MutexGuard<'_, HashMap<u64, AbortHandle>> {
    // Each change is one insertion or removal.
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

fn done(metered: Metered<Option<Output>>) -> Done {
    let usage = metered.usage;
    Done {
        result: metered.result.map_err(ended),
        usage: Used {
            fuel_left: usage.fuel_left,
            memory: usage.memory.0,
            micros: u64::try_from(usage.took.as_micros()).unwrap_or(u64::MAX),
        },
        stdout: metered.stdout,
        stderr: metered.stderr,
    }
}

fn failed(ended: Ended) -> Done {
    Done {
        result: Err(ended),
        usage: Used::default(),
        stdout: Vec::new(),
        stderr: Vec::new(),
    }
}

fn ended(fault: CallFault) -> Ended {
    match fault {
        CallFault::Refused(text) => Ended::Refused(text),
        CallFault::Stopped(stop) => match stop {
            Stop::Trapped(kind) => Ended::Trapped(kind.to_string()),
            Stop::Fuel => Ended::Fuel,
            Stop::Deadline => Ended::Deadline,
            Stop::Memory { .. } => Ended::Memory,
            Stop::Table { .. } => Ended::Table,
            Stop::Output { .. } => Ended::Output,
            Stop::Asks { .. } => Ended::Asks,
            Stop::Host { reason } => Ended::Instance(reason),
        },
    }
}

fn words(done: &Done) -> String {
    match &done.result {
        Ok(_) => String::new(),
        Err(Ended::Refused(text)) => format!("it refuses to begin: {text}"),
        Err(Ended::Trapped(how)) => format!("it trapped: {how}"),
        Err(Ended::Instance(how)) => how.clone(),
        Err(Ended::Fuel) => "it used all its fuel".to_owned(),
        Err(Ended::Deadline) => "its time was over".to_owned(),
        Err(Ended::Memory) => "it wanted more memory than it may have".to_owned(),
        Err(Ended::Table) => "it wanted larger tables than it may have".to_owned(),
        Err(Ended::Output) => "it wrote more than is kept".to_owned(),
        Err(Ended::Asks) => "it asked its host too often".to_owned(),
    }
}
