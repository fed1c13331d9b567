//! WASM plugins: an engine in a sandboxed worker process, one per plugin.
//!
//! [`start`] starts the worker in the plugin's room, hands it the module and,
//! where there is one, the compiled code; [`WasmPlugin`] is the connection to
//! it. The engine never runs in this process. What the worker asks goes through
//! [`Services`]; whatever it says is taken for the plugin's word. Next:
//! `wasm/wire.rs` for what is said, `wasm/worker.rs` for the other side.

mod answer;
mod cache;
mod fetch;
mod options;
mod outbox;
mod wire;
mod worker;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_base::id::SandboxId;
use fluffy_contract::BoxFuture;
use fluffy_contract::isolation::{Child as _, Output};
use fluffy_contract::tool::{Effect, ForeignTool, ToolOutcome, ToolOutput};
use fluffy_sandbox::client::{ChildHandle, ChildInput};
use fluffy_wasm::plugin::{Description, Outcome};
use serde_json::Value;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinHandle;

pub use cache::{CompiledCache, OpenCacheError};
pub use options::{Fuel, Instances, MAX_CONCURRENCY, WasmOptionError, WasmOptions};
pub use wire::Used;
pub use worker::worker_main;

use crate::connection::{CallPluginError, Connection, Gone, MAX_MESSAGE, StartPluginError};
use crate::log::{Level, Source};
use crate::room::{Entry, Room, words};
use crate::services::Services;
use outbox::Outbox;
use wire::{Blob, Decoder, Done, Ended, FromWorker, MAX_FRAME, MAX_LOAD, ToWorker, Work, encode};

/// The words that make an executable of ours the worker.
pub const WORKER_ARGUMENTS: [&str; 2] = ["worker", "wasm"];

/// How long a worker may take to say hello, and to compile and load.
const HELLO: Duration = Duration::from_secs(60);
const LOAD: Duration = Duration::from_secs(300);

/// How much longer than a call its worker may take to say that it is over.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many questions of one plugin are answered at a time.
const ASKS_AT_ONCE: usize = 32;

/// The most of what a plugin says about a tool.
const MAX_SUMMARY: usize = 1 << 10;
const MAX_SCHEMA: usize = 64 << 10;

/// What a WASM plugin is started from.
#[derive(Debug)]
pub struct WasmEntry {
    /// Its room; the program is an executable of ours with
    /// [`WORKER_ARGUMENTS`].
    pub entry: Entry,
    /// The module or component, as it was verified.
    pub module: Vec<u8>,
    /// Where compiled code is kept; without one it is compiled every time.
    pub cache: Option<Arc<CompiledCache>>,
}

/// A started WASM plugin. Dropping it ends it.
#[derive(Debug)]
pub struct WasmPlugin {
    room: Room,
    tools: Vec<ForeignTool>,
    time: Duration,
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Debug)]
struct Shared {
    outbox: Outbox,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Done>>>,
    next: AtomicU64,
    asked: AtomicU64,
    slots: Semaphore,
    stopping: AtomicBool,
    gone: watch::Sender<Option<Gone>>,
}

/// Starts a WASM plugin.
///
/// # Errors
/// The sandbox cannot be made, or the plugin does not load: it is too large,
/// not valid, wants what nobody offers, or fails while it begins.
pub async fn start(
    entry: WasmEntry,
    services: Arc<Services>,
    options: WasmOptions,
) -> Result<WasmPlugin, StartPluginError> {
    let WasmEntry {
        entry,
        module,
        cache,
    } = entry;
    let (room, mut child) = Room::open(entry).await?;
    let input = child.take_input().and_then(ChildInput::into_pipe);
    let input = input.map_err(|error| ended(error.to_string()))?;
    // A call waits for its turn here, where waiting does not count.
    let slots = match options.instances {
        Instances::Stateful => 1,
        Instances::PerCall => usize::try_from(options.concurrency).unwrap_or(1),
    };
    let shared = Arc::new(Shared {
        outbox: Outbox::new(input),
        waiting: Mutex::default(),
        next: AtomicU64::new(0),
        asked: AtomicU64::new(0),
        slots: Semaphore::new(slots),
        stopping: AtomicBool::new(false),
        gone: watch::Sender::new(None),
    });
    let writer = tokio::spawn({
        let shared = Arc::clone(&shared);
        async move { shared.outbox.drive().await }
    });
    let mut reader = Reader {
        child,
        decoder: Decoder::new(MAX_LOAD),
        shared: Arc::clone(&shared),
        services,
        asks: Arc::new(Semaphore::new(ASKS_AT_ONCE)),
        ended: None,
        last: String::new(),
    };
    let (time, span) = (options.call_time(), options.call_timeout);
    let loaded = load(&mut reader, module, cache.as_deref(), &options).await;
    let tools = match loaded.and_then(|tools| foreign(tools, span)) {
        Ok(tools) => tools,
        Err(error) => {
            writer.abort();
            room.close().await;
            return Err(error);
        }
    };
    reader.decoder.set_limit(MAX_FRAME);
    let driver = tokio::spawn(reader.run());
    Ok(WasmPlugin {
        room,
        tools,
        time,
        shared,
        tasks: [writer, driver],
    })
}

async fn load(
    reader: &mut Reader,
    module: Vec<u8>,
    cache: Option<&CompiledCache>,
    options: &WasmOptions,
) -> Result<Vec<Description>, StartPluginError> {
    let hello = within(HELLO, reader.next()).await?;
    let FromWorker::Hello { engine } = hello else {
        return Err(out_of_order("something before its hello"));
    };
    let digest = Digest::of(&module);
    let compiled = cache.and_then(|cache| cache.get(digest, engine));
    // The first code comes before anything of the plugin has run; what comes
    // later, or without being wanted, may be the plugin's.
    let mut keep = cache.filter(|_| compiled.is_none());
    let load = ToWorker::Load {
        orders: options.into(),
        module: Blob(module),
        compiled: compiled.map(Blob),
    };
    reader.shared.send(&load).map_err(|_| too_large())?;
    drop(load);
    let loading = async {
        loop {
            match reader.next().await? {
                FromWorker::Compiled { code } => {
                    if let Some(cache) = keep.take() {
                        cache.put(digest, engine, &code.0);
                    }
                }
                FromWorker::Loaded { tools } => return Ok(tools),
                FromWorker::Failed { what } => return Err(ended(what)),
                FromWorker::Ask { id, question } => reader.ask(id, question).await,
                FromWorker::Said { stdout, stderr } => reader.said(&stdout, &stderr),
                FromWorker::Hello { .. } | FromWorker::Done { .. } => {
                    return Err(out_of_order("something else than its tools"));
                }
            }
        }
    };
    within(LOAD, loading).await
}

async fn within<T>(
    after: Duration,
    future: impl Future<Output = Result<T, StartPluginError>>,
) -> Result<T, StartPluginError> {
    let done = tokio::time::timeout(after, future).await;
    done.unwrap_or(Err(StartPluginError::Late { after }))
}

fn ended(how: String) -> StartPluginError {
    StartPluginError::Ended { how }
}

fn out_of_order(what: &str) -> StartPluginError {
    StartPluginError::Protocol {
        protocol: "wasm",
        what: what.to_owned(),
    }
}

fn too_large() -> StartPluginError {
    out_of_order("its module is too large")
}

/// The tools, checked: they are the plugin's own words.
fn foreign(
    tools: Vec<Description>,
    timeout: fluffy_base::Span,
) -> Result<Vec<ForeignTool>, StartPluginError> {
    let mut names = BTreeSet::new();
    let mut foreign = Vec::new();
    for tool in tools {
        let shown: String = tool.name.chars().take(64).collect();
        let refuse = |what: &str| Err(out_of_order(&format!("the tool `{shown}` {what}")));
        if !is_name(&tool.name) {
            return refuse("has no usable name");
        }
        if tool.parameters.len() > MAX_SCHEMA {
            return refuse("has a schema of more than 64 KiB");
        }
        let Ok(parameters @ Value::Object(_)) = serde_json::from_str(&tool.parameters) else {
            return refuse("has a schema that is no JSON object");
        };
        if !names.insert(tool.name.clone()) {
            return refuse("is there twice");
        }
        let end = tool
            .summary
            .floor_char_boundary(MAX_SUMMARY.min(tool.summary.len()));
        foreign.push(ForeignTool {
            name: tool.name,
            summary: tool.summary.get(..end).unwrap_or_default().to_owned(),
            parameters,
            effect: Effect::Acts,
            timeout,
        });
    }
    Ok(foreign)
}

/// `[A-Za-z][A-Za-z0-9_-]{0,63}`.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    name.len() <= 64
        && name.bytes().all(plain)
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
}

impl WasmPlugin {
    /// Carries one call out, and says what it used. Dropping the future
    /// cancels the call.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub async fn call_metered(
        &self,
        tool: &str,
        arguments: &Value,
    ) -> Result<(ToolOutput, Used), (CallPluginError, Used)> {
        let unused = |error| (error, Used::default());
        if !self.tools.iter().any(|known| known.name == tool) {
            let tool = tool.chars().take(64).collect();
            return Err(unused(CallPluginError::NoSuchTool { tool }));
        }
        let work = Work::Execute {
            tool: tool.to_owned(),
            arguments: arguments.to_string(),
        };
        let done = self.work(work).await.map_err(unused)?;
        let used = done.usage;
        match done.result {
            Ok(Some(output)) if output.content.len() > MAX_MESSAGE => {
                let limit = "message size";
                Err((CallPluginError::Limit { limit }, used))
            }
            Ok(Some(output)) => {
                let output = ToolOutput {
                    content: output.content,
                    outcome: match output.outcome {
                        Outcome::Done => ToolOutcome::Done,
                        Outcome::Failed => ToolOutcome::Failed,
                    },
                };
                Ok((output, used))
            }
            Ok(None) => {
                let what = "an answer without an output".to_owned();
                Err((CallPluginError::Nonsense { what }, used))
            }
            Err(ended) => Err((self.error(ended), used)),
        }
    }

    /// How many questions it has asked so far.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.shared.asked.load(Ordering::Relaxed)
    }

    async fn work(&self, work: Work) -> Result<Done, CallPluginError> {
        let shared = &self.shared;
        let _slot = shared.slots.acquire().await.map_err(|_| shared.is_gone())?;
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let (done, waiting) = oneshot::channel();
        shared.lock().insert(id, done);
        let _cancel = Cancel { shared, id };
        // Looked at after the entry is there: whoever ends it sees the entry.
        if shared.gone.borrow().is_some() {
            return Err(shared.is_gone());
        }
        let call = ToWorker::Call { id, work };
        shared.send(&call).map_err(|_| CallPluginError::Limit {
            limit: "message size",
        })?;
        // The worker ends the call itself; this is for one that cannot.
        let after = self.time.saturating_add(PATIENCE);
        match tokio::time::timeout(after, waiting).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) => Err(shared.is_gone()),
            Err(_) => Err(CallPluginError::Late { after }),
        }
    }

    fn error(&self, ended: Ended) -> CallPluginError {
        let limit = |limit| CallPluginError::Limit { limit };
        match ended {
            Ended::Refused(text) => CallPluginError::Refused { text: cut(&text) },
            Ended::Trapped(how) => CallPluginError::Trapped { how: cut(&how) },
            Ended::Instance(how) => CallPluginError::Trapped { how: cut(&how) },
            Ended::Deadline => CallPluginError::Late { after: self.time },
            Ended::Fuel => limit("fuel"),
            Ended::Memory => limit("memory"),
            Ended::Table => limit("tables"),
            Ended::Output => limit("output"),
            Ended::Asks => limit("questions"),
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(2_000).collect()
}

impl Connection for WasmPlugin {
    fn sandbox(&self) -> SandboxId {
        self.room.sandbox()
    }

    fn tools(&self) -> Vec<ForeignTool> {
        self.tools.clone()
    }

    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<ToolOutput, CallPluginError>> {
        Box::pin(async move {
            let called = self.call_metered(tool, arguments).await;
            called.map(|(output, _)| output).map_err(|(error, _)| error)
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<(), CallPluginError>> {
        Box::pin(async move {
            let done = self.work(Work::Health).await?;
            done.result.map(drop).map_err(|ended| self.error(ended))
        })
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.shared.stopping.store(true, Ordering::SeqCst);
            let _ = self.shared.send(&ToWorker::Stop);
            let _ = tokio::time::timeout(grace, self.gone()).await;
            self.room.close().await;
            self.gone().await;
        })
    }

    fn gone(&self) -> BoxFuture<'_, Gone> {
        Box::pin(async move {
            let mut gone = self.shared.gone.subscribe();
            let seen = gone.wait_for(Option::is_some).await;
            // The sender is ours, so it cannot have gone away.
            let seen = seen.ok().and_then(|gone| gone.clone());
            seen.unwrap_or(Gone::Stopped)
        })
    }
}

impl Drop for WasmPlugin {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Shared {
    fn send(&self, message: &ToWorker) -> Result<(), wire::WireError> {
        let frame = encode(message)?;
        if let ToWorker::Call { .. } = message
            && frame.len() > MAX_MESSAGE
        {
            let (found, limit) = (frame.len(), MAX_MESSAGE);
            return Err(wire::WireError::TooLarge { found, limit });
        }
        // A worker that is gone is seen at its output.
        self.outbox.send(frame);
        Ok(())
    }

    fn is_gone(&self) -> CallPluginError {
        let how = match self.gone.borrow().as_ref() {
            Some(Gone::Crashed { how }) => how.clone(),
            Some(Gone::Stopped) | None => "it was stopped".to_owned(),
        };
        CallPluginError::Gone { how }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Done>>> {
        // Each change is one insertion or removal.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a call back that nobody waits for.
struct Cancel<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        // A call that is over is not in the list any more.
        if self.shared.lock().remove(&self.id).is_some() {
            let _ = self.shared.send(&ToWorker::Cancel { id: self.id });
        }
    }
}

/// The one who reads what the worker says.
struct Reader {
    child: ChildHandle,
    decoder: Decoder,
    shared: Arc<Shared>,
    services: Arc<Services>,
    asks: Arc<Semaphore>,
    /// What it said that nobody may say.
    ended: Option<String>,
    /// The last of what it wrote to standard error.
    last: String,
}

impl Reader {
    async fn run(mut self) {
        while let Ok(message) = self.next().await {
            match message {
                FromWorker::Ask { id, question } => self.ask(id, question).await,
                FromWorker::Said { stdout, stderr } => self.said(&stdout, &stderr),
                FromWorker::Done { id, done } => {
                    self.said(&done.stdout, &done.stderr);
                    // Nobody waits where the call was cancelled meanwhile.
                    if let Some(waiting) = self.shared.lock().remove(&id) {
                        let _ = waiting.send(done);
                    }
                }
                FromWorker::Hello { .. }
                | FromWorker::Compiled { .. }
                | FromWorker::Loaded { .. }
                | FromWorker::Failed { .. } => {
                    self.ended = Some("it said something out of order".to_owned());
                    break;
                }
            }
        }
        let how = self.how().await;
        let gone = match self.shared.stopping.load(Ordering::SeqCst) {
            true => Gone::Stopped,
            false => Gone::Crashed { how },
        };
        self.shared.gone.send_replace(Some(gone));
        // Whoever waits learns it now, and whoever comes sees `gone`.
        self.shared.lock().clear();
    }

    /// The next message; an error when there is none any more.
    async fn next(&mut self) -> Result<FromWorker, StartPluginError> {
        loop {
            match self.decoder.next() {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(error) => {
                    self.ended = Some(error.to_string());
                    return Err(out_of_order(&error.to_string()));
                }
            }
            match self.child.output().await {
                Ok(Some(Output::Stdout(bytes))) => self.decoder.feed(&bytes),
                Ok(Some(Output::Stderr(bytes))) => {
                    self.write_log(Source::Stderr, &bytes);
                    let said = cut(String::from_utf8_lossy(&bytes).trim());
                    if !said.is_empty() {
                        self.last = said;
                    }
                }
                Ok(None) | Err(_) => return Err(ended(self.how().await)),
            }
        }
    }

    /// Answers a question beside the others; waits when there are too many.
    async fn ask(&mut self, id: u64, question: wire::Question) {
        self.shared.asked.fetch_add(1, Ordering::Relaxed);
        let Ok(slot) = Arc::clone(&self.asks).acquire_owned().await else {
            return;
        };
        let (shared, services) = (Arc::clone(&self.shared), Arc::clone(&self.services));
        tokio::spawn(async move {
            let answer = answer::answer(&services, question).await;
            let _ = shared.send(&ToWorker::Answer { id, answer });
            drop(slot);
        });
    }

    fn said(&self, stdout: &[u8], stderr: &[u8]) {
        self.write_log(Source::Stdout, stdout);
        self.write_log(Source::Stderr, stderr);
    }

    fn write_log(&self, source: Source, bytes: &[u8]) {
        let level = match source {
            Source::Stderr => Level::Warn,
            Source::Log | Source::Stdout | Source::Host => Level::Info,
        };
        for line in String::from_utf8_lossy(bytes).lines() {
            self.services.log_file().write(level, source, line);
        }
    }

    /// How it ended, in words; ends it where it has not.
    async fn how(&mut self) -> String {
        if let Some(how) = &self.ended {
            return how.clone();
        }
        match self.child.wait().await {
            Ok(exit) if self.last.is_empty() => words(exit),
            Ok(exit) => format!("{}; it said: {}", words(exit), self.last),
            Err(error) => error.to_string(),
        }
    }
}
