//! Whole plugins: many found and looked at, and one reloaded under load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fluffy_contract::ToolSource;
use fluffy_egress::HostNetwork;
use fluffy_plugin_core::resolve::{Candidate, resolve};
use fluffy_plugin_host::plugins::{Ground, Plugins};
use fluffy_plugin_host::shelf::{Placed, Record, Shelf, examine};
use fluffy_policy::PrincipalKind;
use fluffy_test_kit::{permit, sample_plugin};
use semver::Version;
use serde_json::json;
use tokio::time::MissedTickBehavior;

use super::stage::Stage;
use crate::figure::{Bar, Figure, Samples, Show};

const ROUNDS: usize = 20;
const PLUGINS: usize = 100;
const RELOADS: u32 = 20;

pub(super) fn run() -> Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let discovered = discovered()?;
    let reloaded = runtime.block_on(reloaded())?;
    Ok(vec![discovered, reloaded])
}

/// Finds installed plugins: reads and checks each manifest, compares every
/// file with what was reviewed, and puts them in order.
fn discovered() -> Result<Figure> {
    let root = tempfile::tempdir()?;
    let shelf = Shelf::open(&root.path().join("p"))?;
    for index in 0..PLUGINS {
        let source = root.path().join(format!("source-{index}"));
        let name = format!("plugin-{index}");
        let runs = "command: [ python3, server.py ], protocol: mcp";
        let more = format!("execution: {{ tier: process, {runs} }}\ncapabilities: [ \"kv.*\" ]");
        write(&source, &name, "1.0.0", &more)?;
        std::fs::write(source.join("server.py"), "#".repeat(16 << 10))?;
        install(&shelf, &source)?;
    }
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let found = shelf.list()?.into_iter();
        let placed: Vec<Placed> = found.filter_map(|found| found.placed.ok()).collect();
        let candidate = |Placed { manifest, .. }| {
            let (version, dependencies) = (manifest.version, manifest.dependencies);
            let candidate = Candidate {
                version,
                dependencies,
            };
            (manifest.name, candidate)
        };
        let candidates: BTreeMap<_, _> = placed.into_iter().map(candidate).collect();
        let order = resolve(&candidates).order;
        times.push(begun.elapsed().as_secs_f64());
        ensure!(order.len() == PLUGINS, "{} were found", order.len());
    }
    Ok(Figure {
        what: format!("{PLUGINS} plugins discovered and validated"),
        ours: Samples::new(times, Show::Time),
        reference: None,
        bar: Bar::Under(100e-3),
    })
}

/// Calls 1,000 times a second, whatever becomes of the calls before, while the
/// plugin is replaced again and again: each call must be answered.
async fn reloaded() -> Result<Figure> {
    let stage = Stage::new().await?;
    let shelf = Shelf::open(&stage.below("p"))?;
    let source = source(&stage, 0)?;
    let plugins = Plugins::new(Ground {
        shelf: shelf.clone(),
        launcher: stage.launcher.clone(),
        containers: Arc::new(Err("a module runs in no container".to_owned())),
        host: stage.desk(PrincipalKind::Service, "plugin-host")?,
        ledger: stage.ledger.clone(),
        network: Arc::new(HostNetwork),
        workspace: None,
        allowed: Mutex::new(vec!["*".to_owned()]),
        person: "ann".to_owned(),
        version: Version::new(0, 1, 0),
        program: stage.program.clone(),
    });
    let placed = install(&shelf, &source)?;
    let tools = plugins.try_out(&placed).await?;
    let pin = |shelf: &Shelf| {
        let allowed = permit("plugins.install", Some("busy"));
        shelf.pin_tools(allowed, "busy", &tools)
    };
    pin(&shelf)?;
    plugins.refresh().await;
    let busy = plugins.sources().into_iter().next();
    let busy = busy.context("the plugin does not run")?;
    let quiet = at_a_thousand(&busy, tokio::time::sleep(Duration::from_secs(2))).await?;
    let reloads = async {
        for round in 1..=RELOADS {
            let source = self::source(&stage, round)?;
            install(&shelf, &source)?;
            pin(&shelf)?;
            plugins.reload("busy").await?;
        }
        anyhow::Ok(())
    };
    let (under_reload, done) = at_a_thousand_until(&busy, reloads).await?;
    done?;
    plugins.stop_all().await;
    Ok(Figure {
        what: format!("a call at 1,000 calls/s during {RELOADS} reloads, none lost"),
        ours: Samples::new(under_reload, Show::Time),
        reference: Some((
            "without a reload".to_owned(),
            Samples::new(quiet, Show::Time),
        )),
        bar: Bar::Inform,
    })
}

async fn at_a_thousand(busy: &Arc<dyn ToolSource>, until: impl Future) -> Result<Vec<f64>> {
    Ok(at_a_thousand_until(busy, until).await?.0)
}

/// The times of all calls until then; an error if one was lost, or if fewer
/// were made than it says.
async fn at_a_thousand_until<T>(
    busy: &Arc<dyn ToolSource>,
    until: impl Future<Output = T>,
) -> Result<(Vec<f64>, T)> {
    let mut until = std::pin::pin!(until);
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut calls = Vec::new();
    let begun = Instant::now();
    let done = loop {
        tokio::select! {
            done = &mut until => break done,
            _ = tick.tick() => {
                let busy = Arc::clone(busy);
                calls.push(tokio::spawn(async move {
                    let begun = Instant::now();
                    let allowed = permit("plugin.busy.echo", None);
                    let said = json!({ "text": "a short text" });
                    let answered = busy.call(allowed, "echo", &said).await;
                    answered.map(|_| begun.elapsed().as_secs_f64())
                }));
            }
        }
    };
    let rate = calls.len() as f64 / begun.elapsed().as_secs_f64();
    ensure!(rate > 950.0, "only {rate:.0} calls/s were made");
    let mut times = Vec::new();
    for call in calls {
        times.push(call.await?.context("a call was lost")?);
    }
    Ok((times, done))
}

/// The sample component as a plugin of this version.
fn source(stage: &Stage, patch: u32) -> Result<PathBuf> {
    let source = stage.below(&format!("source-{patch}"));
    let more = "execution: { tier: wasm, module: plugin.wasm }\n\
                tools:\n  - { name: echo, summary: Echoes, effect: reads }";
    write(&source, "busy", &format!("1.0.{patch}"), more)?;
    std::fs::write(source.join("plugin.wasm"), sample_plugin()?)?;
    Ok(source)
}

fn write(source: &Path, name: &str, version: &str, more: &str) -> Result<()> {
    std::fs::create_dir_all(source)?;
    let manifest = format!(
        "name: {name}\nversion: {version}\ntype: tool\nengine: \">=0.1\"\napi: 1\n{more}\n"
    );
    Ok(std::fs::write(source.join("plugin.yaml"), manifest)?)
}

fn install(shelf: &Shelf, source: &Path) -> Result<Placed> {
    let examined = examine(source)?;
    let record = Record::new(&examined, vec!["*".to_owned()], "here");
    let allowed = permit("plugins.install", Some(&examined.manifest.name));
    Ok(shelf.install(allowed, source, &record)?)
}
