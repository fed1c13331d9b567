//! WASM plugins: a warm call, an instance, and a call through the worker.
//!
//! The reference is `wasmtime` used directly, with the same engine settings
//! (fuel, epochs, a pool) and nothing else: no deadline, no meter, no host.
//! `extism` is in a process of its own, since it brings an older engine.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::pin::Pin;
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use fluffy_contract::isolation::{Command, PluginMount, SandboxSpec};
use fluffy_plugin_host::Connection as _;
use fluffy_plugin_host::room::Entry;
use fluffy_plugin_host::wasm::{WORKER_ARGUMENTS, WasmEntry, WasmOptions, start};
use fluffy_test_kit::{extism_peer, permit, sample_plugin};
use fluffy_wasm::plugin::{Ask, Fault, Host, Plugin, Reply};
use fluffy_wasm::{Bounds, Limits, PluginTier};
use serde::Deserialize;
use serde_json::json;
use wasmtime::component::{Component, ComponentType, InstancePre, Lift, Linker};
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store as EngineStore,
};

use super::stage::Stage;
use crate::figure::{Bar, Figure, Samples, Show};

const ROUNDS: usize = 40;
const CALLS: u32 = 2_000;
const ARGUMENTS: &str = r#"{"text":"a short text, as arguments are"}"#;

/// How much slower than the engine alone we may be.
const WITHIN: Bar = Bar::TimesReference(1.0 / 1.5);
const FASTER: Bar = Bar::TimesReference(1.0);

pub(super) fn run() -> Result<Vec<Figure>> {
    let module = sample_plugin()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut figures = runtime.block_on(inside(&module))?;
    // As a session's task calls it: on a thread of the runtime.
    let called = runtime.spawn(through_the_worker(module));
    figures.push(runtime.block_on(called)??);
    Ok(figures)
}

/// Has nothing to answer.
struct Silent;

impl Host for Silent {
    fn ask(&self, _ask: Ask) -> Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send + '_>> {
        Box::pin(async { Err(Fault::Denied("nothing".to_owned())) })
    }
}

/// What happens inside the worker.
async fn inside(module: &[u8]) -> Result<Vec<Figure>> {
    let plugin = from_cache(module)?;
    let raw = Raw::new(module)?;
    let limits = Limits::default();
    let mut ours = plugin.instantiate(Arc::new(Silent), limits).await?;
    let mut theirs = raw.instance().await?;
    let (mut calls, mut raw_calls) = (Vec::new(), Vec::new());
    let (mut instances, mut raw_instances) = (Vec::new(), Vec::new());
    let mut extism = Extism::start()?;
    let (mut peer_calls, mut peer_instances) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let peer = extism.round()?;
        peer_calls.push(peer.call);
        peer_instances.push(peer.instance);
        let begun = Instant::now();
        for _ in 0..CALLS {
            let done = ours.execute("echo", ARGUMENTS, limits).await;
            ensure!(done.result.is_ok_and(|output| output.content == ARGUMENTS));
        }
        calls.push(begun.elapsed().as_secs_f64() / f64::from(CALLS));
        let begun = Instant::now();
        for _ in 0..CALLS {
            let content = theirs.echo(ARGUMENTS).await?;
            ensure!(content == ARGUMENTS);
        }
        raw_calls.push(begun.elapsed().as_secs_f64() / f64::from(CALLS));
        let begun = Instant::now();
        for _ in 0..CALLS {
            plugin.instantiate(Arc::new(Silent), limits).await?;
        }
        instances.push(begun.elapsed().as_secs_f64() / f64::from(CALLS));
        let begun = Instant::now();
        for _ in 0..CALLS {
            raw.instance().await?;
        }
        raw_instances.push(begun.elapsed().as_secs_f64() / f64::from(CALLS));
    }
    let figure = |what: &str, ours: &[f64], (name, theirs): (&str, &[f64]), bar| Figure {
        what: what.to_owned(),
        ours: Samples::new(ours.to_vec(), Show::Time),
        reference: Some((name.to_owned(), Samples::new(theirs.to_vec(), Show::Time))),
        bar,
    };
    let (call, instance) = (
        "a call into a warm WASM instance",
        "an instance of a compiled WASM plugin",
    );
    let raw = "wasmtime alone";
    let peer = "extism 1.30";
    Ok(vec![
        figure(call, &calls, (raw, &raw_calls), Bar::Under(5e-6)),
        figure(call, &calls, (raw, &raw_calls), WITHIN),
        figure(call, &calls, (peer, &peer_calls), FASTER),
        figure(
            instance,
            &instances,
            (raw, &raw_instances),
            Bar::Under(50e-6),
        ),
        figure(instance, &instances, (raw, &raw_instances), WITHIN),
        figure(instance, &instances, (peer, &peer_instances), FASTER),
    ])
}

/// `extism`, which measures itself when asked to.
struct Extism {
    child: Child,
    asks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

#[derive(Deserialize)]
struct PeerRound {
    call: f64,
    instance: f64,
}

impl Extism {
    fn start() -> Result<Self> {
        let mut child = Process::new(extism_peer()?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let asks = child.stdin.take().context("it has no input")?;
        let answers = child.stdout.take().context("it has no output")?;
        Ok(Self {
            child,
            asks,
            answers: BufReader::new(answers).lines(),
        })
    }

    fn round(&mut self) -> Result<PeerRound> {
        self.asks.write_all(b"\n")?;
        let line = self.answers.next().context("extism ended")??;
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Extism {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The plugin from code that was compiled before.
#[expect(unsafe_code, reason = "the code is what the engine gave out just now")]
fn from_cache(module: &[u8]) -> Result<Plugin> {
    let tier = PluginTier::start(Bounds::default())?;
    let compiled = tier.prepare(module, None)?.compiled;
    let bytes = compiled
        .context("nothing was compiled")?
        .as_bytes()
        .to_vec();
    // SAFETY: unchanged since the line above.
    let kept = unsafe { fluffy_wasm::plugin::Compiled::kept(bytes) };
    let prepared = tier.prepare(module, Some(&kept))?;
    ensure!(prepared.compiled.is_none(), "it was compiled again");
    Ok(prepared.plugin)
}

/// The engine alone.
struct Raw {
    engine: Engine,
    linked: InstancePre<()>,
    execute: wasmtime::component::ComponentExportIndex,
}

struct RawInstance {
    store: EngineStore<()>,
    execute: wasmtime::component::TypedFunc<(String, String), (Result<RawOutput, String>,)>,
}

#[derive(ComponentType, Lift)]
#[component(record)]
struct RawOutput {
    content: String,
    #[expect(dead_code, reason = "part of what comes back")]
    outcome: RawOutcome,
}

#[expect(dead_code, reason = "part of what comes back")]
#[derive(Clone, Copy, ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
enum RawOutcome {
    #[component(name = "done")]
    Done,
    #[component(name = "failed")]
    Failed,
}

impl Raw {
    fn new(module: &[u8]) -> Result<Self> {
        let mut config = Config::new();
        config.consume_fuel(true).epoch_interruption(true);
        let pool = PoolingAllocationConfig::default();
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
        let engine = Engine::new(&config).map_err(error)?;
        let component = Component::from_binary(&engine, module).map_err(error)?;
        let mut linker = Linker::new(&engine);
        linker
            .define_unknown_imports_as_traps(&component)
            .map_err(error)?;
        let interface = component.get_export_index(None, "fluffy:plugin/tool@1.0.0");
        let execute = component.get_export_index(interface.as_ref(), "execute");
        Ok(Self {
            linked: linker.instantiate_pre(&component).map_err(error)?,
            execute: execute.context("there is no `execute`")?,
            engine,
        })
    }

    async fn instance(&self) -> Result<RawInstance> {
        let mut store = EngineStore::new(&self.engine, ());
        store.set_fuel(u64::MAX).map_err(error)?;
        store.set_epoch_deadline(u64::MAX / 2);
        let instance = self.linked.instantiate_async(&mut store).await;
        let instance = instance.map_err(error)?;
        let execute = instance.get_typed_func(&mut store, self.execute);
        let execute = execute.map_err(error)?;
        Ok(RawInstance { store, execute })
    }
}

impl RawInstance {
    async fn echo(&mut self, arguments: &str) -> Result<String> {
        let given = ("echo".to_owned(), arguments.to_owned());
        let called = self.execute.call_async(&mut self.store, given).await;
        let (output,) = called.map_err(error)?;
        Ok(output.map_err(|text| anyhow!(text))?.content)
    }
}

fn error(error: wasmtime::Error) -> anyhow::Error {
    anyhow!("{error:#}")
}

/// From the host through the worker in its sandbox and back.
async fn through_the_worker(module: Vec<u8>) -> Result<Figure> {
    const CALLS: usize = 2_000;
    let stage = Stage::new().await?;
    let own = stage.program.to_str().context("a path that is no text")?;
    let entry = WasmEntry {
        entry: Entry {
            launcher: stage.launcher.clone(),
            create: permit("sandbox.create", Some("plugin")),
            run: permit("exec.run", Some("sample")),
            spec: SandboxSpec {
                template: "plugin".to_owned(),
                plugin: Some(PluginMount {
                    files: stage.below("p/files"),
                    data: None,
                    meeting: None,
                }),
                ..SandboxSpec::default()
            },
            command: Command::new(std::iter::once(own).chain(WORKER_ARGUMENTS)),
            way: None,
        },
        module,
        cache: None,
    };
    let stateful = json!({ "stateful": true });
    let options = WasmOptions::parse(stateful.as_object().context("an object")?)?;
    let plugin = start(entry, stage.services()?, options).await?;
    let arguments = json!({ "text": "a short text, as arguments are" });
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let begun = Instant::now();
        plugin.call("echo", &arguments).await?;
        times.push(begun.elapsed().as_secs_f64());
    }
    plugin.stop(Duration::from_secs(5)).await;
    Ok(Figure {
        what: "a call of a WASM plugin, through its worker and back".to_owned(),
        ours: Samples::new(times, Show::Time),
        reference: None,
        bar: Bar::Under(100e-6),
    })
}
