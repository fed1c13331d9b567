//! One instance of a plugin, and the calls into it.
//!
//! Every call is armed anew with fuel and a deadline, and whatever the plugin
//! waits for is inside that deadline. An instance that was stopped is spent:
//! nobody knows what it left half-done, so it can only be dropped.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wasmtime::{Store, Val, ValType};
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::{ResourceTable, WasiCtxBuilder};

use super::bindings::ToolPlugin;
use super::bindings::exports::fluffy::plugin::tool;
use super::host::{ASKS_MAX, Host, System};
use super::{Form, Plugin};
use crate::guest::{self, Beat, Frame, Guest, HANDLES_MAX, RANDOM_MAX};
use crate::limits::{Bounds, Limits};
use crate::output;
use crate::stop::Stop;
use crate::ticker::{Running, Ticker};
use crate::tier::Usage;

/// The most tools, and the most bytes of all their descriptions.
const TOOLS_MAX: usize = 256;

/// One instance of a plugin.
pub struct Instance {
    store: Store<Guest<System>>,
    live: Live,
    output: output::Output,
    ticker: Arc<Ticker>,
    bounds: Bounds,
    spent: bool,
}

enum Live {
    Component(ToolPlugin),
    Library(wasmtime::Instance),
}

/// A tool, in the plugin's own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub summary: String,
    /// A JSON schema of its arguments, as text.
    pub parameters: String,
}

/// What a call brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// For the model.
    pub content: String,
    /// Whether it did what it was asked to.
    pub outcome: Outcome,
}

/// Whether a call did what it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It did.
    Done,
    /// It did not, and its content says why.
    Failed,
}

/// Why a call brought nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallFault {
    /// The plugin says no itself, in its own words.
    #[error("the plugin refused: {0}")]
    Refused(String),
    /// It was stopped.
    #[error("the plugin was stopped")]
    Stopped(#[source] Stop),
}

/// What a call brought, and what it used and said meanwhile.
#[derive(Debug)]
pub struct Metered<T> {
    /// What it brought.
    pub result: Result<T, CallFault>,
    /// What it used.
    pub usage: Usage,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
}

impl<T> Metered<T> {
    /// The same call with something made of its result.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Metered<U> {
        Metered {
            result: self.result.map(make),
            usage: self.usage,
            stdout: self.stdout,
            stderr: self.stderr,
        }
    }
}

impl Plugin {
    /// Makes an instance in a slot of the pool; its start functions run under
    /// these limits. Has to be awaited on a runtime with time.
    ///
    /// # Errors
    /// A limit, a trap in a start function, or no slot is free.
    pub async fn instantiate(&self, host: Arc<dyn Host>, limits: Limits) -> Result<Instance, Stop> {
        let output = output::Output::new(limits.output);
        let frame = frame(limits, self.bounds);
        let system = system(host, &output);
        let mut store = frame
            .store(&self.engine, system)
            .map_err(|error| Stop::of(&error))?;
        let running = self.ticker.run();
        let making = async {
            Ok(match &self.form {
                Form::Component(linked) => {
                    Live::Component(linked.instantiate_async(&mut store).await?)
                }
                Form::Library(linked) => Live::Library(linked.instantiate_async(&mut store).await?),
            })
        };
        let made = in_time(frame.deadline, making).await;
        drop(running);
        match made {
            Some(Ok(live)) => Ok(Instance {
                store,
                live,
                output,
                ticker: Arc::clone(&self.ticker),
                bounds: self.bounds,
                spent: false,
            }),
            Some(Err(error)) => Err(output
                .exceeded()
                .unwrap_or_else(|| guest::stop_of(&store, &error))),
            None => Err(Stop::Deadline),
        }
    }
}

impl Instance {
    /// Whether it was stopped in a call, and is of no use any more.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.spent
    }

    /// Tells it that it begins; once, before anything else.
    pub async fn init(&mut self, limits: Limits) -> Metered<()> {
        self.metered(limits, async |store, live| match live {
            Live::Component(plugin) => {
                let lifecycle = plugin.fluffy_plugin_lifecycle();
                Ok(lifecycle.call_init(store).await?.map_err(refused))
            }
            Live::Library(_) => Ok(Ok(())),
        })
        .await
    }

    /// Asks whether it is well.
    pub async fn health(&mut self, limits: Limits) -> Metered<()> {
        self.metered(limits, async |store, live| match live {
            Live::Component(plugin) => {
                let lifecycle = plugin.fluffy_plugin_lifecycle();
                Ok(lifecycle.call_health(store).await?.map_err(refused))
            }
            Live::Library(_) => Ok(Ok(())),
        })
        .await
    }

    /// Tells it that it ends.
    pub async fn shutdown(&mut self, limits: Limits) -> Metered<()> {
        self.metered(limits, async |store, live| match live {
            Live::Component(plugin) => {
                plugin
                    .fluffy_plugin_lifecycle()
                    .call_shutdown(store)
                    .await?;
                Ok(Ok(()))
            }
            Live::Library(_) => Ok(Ok(())),
        })
        .await
    }

    /// Its tools.
    pub async fn describe(&mut self, limits: Limits) -> Metered<Vec<Description>> {
        self.metered(limits, async |store, live| {
            let tools = match live {
                Live::Component(plugin) => {
                    let described = plugin.fluffy_plugin_tool().call_describe(store).await?;
                    described.into_iter().map(Description::from).collect()
                }
                Live::Library(instance) => functions(store, instance),
            };
            Ok(match tools.len() > TOOLS_MAX {
                true => Err(refused(format!("it has more than {TOOLS_MAX} tools"))),
                false => Ok(tools),
            })
        })
        .await
    }

    /// Carries out one call; the arguments are a JSON object as text.
    pub async fn execute(
        &mut self,
        tool: &str,
        arguments: &str,
        limits: Limits,
    ) -> Metered<Output> {
        self.metered(limits, async |store, live| match live {
            Live::Component(plugin) => {
                let interface = plugin.fluffy_plugin_tool();
                let done = interface.call_execute(store, tool, arguments).await?;
                Ok(done.map(Output::from).map_err(refused))
            }
            Live::Library(instance) => invoke(store, instance, tool, arguments).await,
        })
        .await
    }

    async fn metered<T>(
        &mut self,
        limits: Limits,
        call: impl AsyncFnOnce(&mut Store<Guest<System>>, &Live) -> Called<T>,
    ) -> Metered<T> {
        let frame = frame(limits, self.bounds);
        let at = Instant::now();
        let result = match self.start(&frame) {
            Err(stop) => Err(stop),
            Ok(_running) => {
                // Until it has come back, it counts as stopped: the future may
                // be dropped in the middle.
                self.spent = true;
                let called = call(&mut self.store, &self.live);
                match in_time(frame.deadline, called).await {
                    Some(Ok(answer)) => Ok(answer),
                    Some(Err(error)) => Err(self
                        .output
                        .exceeded()
                        .unwrap_or_else(|| guest::stop_of(&self.store, &error))),
                    None => Err(Stop::Deadline),
                }
            }
        };
        self.spent = result.is_err();
        let (stdout, stderr) = self.output.renew(limits.output);
        Metered {
            result: result.map_err(CallFault::Stopped).and_then(|answer| answer),
            usage: Usage::of(&self.store, &limits, at),
            stdout,
            stderr,
        }
    }

    fn start(&mut self, frame: &Frame) -> Result<Running, Stop> {
        if self.spent {
            let reason = "the instance was stopped before".to_owned();
            return Err(Stop::Host { reason });
        }
        frame
            .arm(&mut self.store)
            .map_err(|error| Stop::of(&error))?;
        self.store.data_mut().system.asks_left = ASKS_MAX;
        Ok(self.ticker.run())
    }
}

/// What a call into the engine gives: an error of it ends the instance.
type Called<T> = wasmtime::Result<Result<T, CallFault>>;

fn refused(text: String) -> CallFault {
    CallFault::Refused(text)
}

impl From<tool::Description> for Description {
    fn from(tool: tool::Description) -> Self {
        Self {
            name: tool.name,
            summary: tool.summary,
            parameters: tool.parameters,
        }
    }
}

impl From<tool::Output> for Output {
    fn from(output: tool::Output) -> Self {
        Self {
            content: output.content,
            outcome: match output.outcome {
                tool::Outcome::Done => Outcome::Done,
                tool::Outcome::Failed => Outcome::Failed,
            },
        }
    }
}

/// The functions of a plain module that take and return only integers.
fn functions(store: &mut Store<Guest<System>>, instance: &wasmtime::Instance) -> Vec<Description> {
    let exports: Vec<_> = instance
        .exports(&mut *store)
        .filter_map(|export| Some((export.name().to_owned(), export.into_func()?)))
        .collect();
    let plain = |kind: ValType| kind.is_i32() || kind.is_i64();
    exports
        .into_iter()
        .map(|(name, function)| (name, function.ty(&*store)))
        .filter(|(_, kind)| kind.params().all(plain) && kind.results().all(plain))
        .map(|(name, kind)| {
            let (takes, gives) = (kind.params().len(), kind.results().len());
            let schema = serde_json::json!({
                "type": "object",
                "properties": { "arguments": {
                    "type": "array", "items": { "type": "integer" },
                    "minItems": takes, "maxItems": takes,
                } },
                "required": ["arguments"],
            });
            Description {
                name,
                summary: format!("a function of {takes} integers that returns {gives}"),
                parameters: schema.to_string(),
            }
        })
        .collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Integers {
    arguments: Vec<i64>,
}

/// Calls a function of a plain module; its results are the content, in a line.
async fn invoke(
    store: &mut Store<Guest<System>>,
    instance: &wasmtime::Instance,
    name: &str,
    arguments: &str,
) -> Called<Output> {
    let Some(function) = instance.get_func(&mut *store, name) else {
        return Ok(Err(refused(format!("there is no function `{name}`"))));
    };
    let given: Integers = match serde_json::from_str(arguments) {
        Ok(given) => given,
        Err(error) => return Ok(Err(refused(format!("the arguments do not fit: {error}")))),
    };
    let kind = function.ty(&*store);
    let values: Option<Vec<Val>> = match kind.params().len() == given.arguments.len() {
        true => kind
            .params()
            .zip(&given.arguments)
            .map(|(wanted, given)| to_engine(&wanted, *given))
            .collect(),
        false => None,
    };
    let Some(values) = values else {
        return Ok(Err(refused("the arguments do not fit".to_owned())));
    };
    let mut results = vec![Val::I32(0); kind.results().len()];
    function
        .call_async(&mut *store, &values, &mut results)
        .await?;
    let results: Option<Vec<String>> = results
        .iter()
        .map(|result| match result {
            Val::I32(number) => Some(number.to_string()),
            Val::I64(number) => Some(number.to_string()),
            _ => None,
        })
        .collect();
    Ok(match results {
        Some(results) => Ok(Output {
            content: results.join(" "),
            outcome: Outcome::Done,
        }),
        None => Err(refused("its results are no integers".to_owned())),
    })
}

fn to_engine(wanted: &ValType, given: i64) -> Option<Val> {
    match wanted {
        ValType::I32 => i32::try_from(given).ok().map(Val::I32),
        ValType::I64 => Some(Val::I64(given)),
        _ => None,
    }
}

fn frame(limits: Limits, bounds: Bounds) -> Frame {
    let now = Instant::now();
    Frame {
        limits,
        bounds,
        // A time past the clock's end is as good as a day.
        deadline: now
            .checked_add(limits.time)
            .unwrap_or_else(|| now + Duration::from_secs(86_400)),
        beat: Beat::Yield,
    }
}

/// A WASI with clocks, random bytes and the two outputs, and nothing else.
fn system(host: Arc<dyn Host>, output: &output::Output) -> System {
    let mut builder = WasiCtxBuilder::new();
    builder.stdin(MemoryInputPipe::new(Vec::new()));
    builder.stdout(output.stdout());
    builder.stderr(output.stderr());
    builder.max_random_size(RANDOM_MAX);
    // These are the defaults; said here so that no update can change them.
    builder.allow_tcp(false);
    builder.allow_udp(false);
    builder.allow_ip_name_lookup(false);
    builder.allow_blocking_current_thread(false);
    let mut table = ResourceTable::new();
    table.set_max_capacity(HANDLES_MAX);
    System {
        host,
        wasi: builder.build(),
        table,
        asks_left: ASKS_MAX,
    }
}

async fn in_time<T>(deadline: Instant, future: impl Future<Output = T>) -> Option<T> {
    let deadline = tokio::time::Instant::from_std(deadline);
    tokio::time::timeout_at(deadline, future).await.ok()
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance")
            .field("spent", &self.spent)
            .finish_non_exhaustive()
    }
}
