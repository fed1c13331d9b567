//! What a sandboxed call is made of, each part alone.
//!
//! The same workshop that the kernel uses, without a session around it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use fluffy_base::ByteSize;
use fluffy_contract::isolation::{Command as Inside, Exit, Tier};
use fluffy_kernel::hidden::find_hidden;
use fluffy_kernel::workshop::{Mounts, Over, Premises, Stay, Workshop};
use fluffy_layer::{LayerKind, LayerStore};
use fluffy_ledger::{Actor, Ledger, LedgerOptions};
use fluffy_sandbox::client::{Journal, LauncherCommand, LauncherHandle};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::template::Template;
use fluffy_test_kit::permit;

use super::time;
use crate::figure::{Bar, Figure};

const ROUNDS: usize = 100;
const TEMPLATE: &str = "code-executor";

/// The parts, in their order.
pub(super) fn run() -> Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(measure())
}

async fn measure() -> Result<Vec<Figure>> {
    let root = tempfile::tempdir()?;
    let project = root.path().join("project");
    std::fs::create_dir(&project)?;
    let layers = LayerStore::open(&root.path().join("state"))?;
    let launcher = launch(root.path(), layers.folder()).await?;
    let workshop = Workshop::new(
        launcher,
        Premises {
            project: project.clone(),
            template: TEMPLATE.to_owned(),
            tier: Tier::Process,
            mounts: Mounts::Yes,
            ahead: 1,
            stay: Stay::Call,
            environment: std::collections::BTreeMap::new(),
        },
    );
    let mut times: [Vec<f64>; 6] = Default::default();
    for _ in 0..ROUNDS {
        let [layer, cold, warm, inside, close, gone] = &mut times;
        let create = new_sandbox();
        let begun = Instant::now();
        let held = layers.create(create, &project, LayerKind::Overlay)?;
        layer.push(begun.elapsed().as_secs_f64());
        let hidden = find_hidden(&held, workshop.premises(), &|_| true)?;
        for is_warm in [false, true] {
            if is_warm {
                workshop.prepare(new_sandbox()).await?;
            }
            let permits = (new_sandbox(), permit("shell.exec", None));
            let begun = Instant::now();
            let booth = {
                let over = Over {
                    template: TEMPLATE,
                    held: &held,
                    hidden: &hidden,
                    protected: Vec::new(),
                };
                workshop.open(permits.0, over).await?
            };
            let made = begun.elapsed().as_secs_f64();
            if is_warm { &mut *warm } else { &mut *cold }.push(made);
            let begun = Instant::now();
            let done = booth
                .run(permits.1, Inside::new(["/usr/bin/true"]), b"")
                .await?;
            ensure!(done.exit == Exit::Code { code: 0 }, "{:?}", done.exit);
            if is_warm {
                inside.push(begun.elapsed().as_secs_f64());
            }
            let begun = Instant::now();
            booth.close().await;
            close.push(begun.elapsed().as_secs_f64());
        }
        let id = held.layer().id().to_string();
        let lose = permit("layer.drop", Some(&id));
        let begun = Instant::now();
        layers.drop_layer(lose, held)?;
        gone.push(begun.elapsed().as_secs_f64());
    }
    let names = [
        "part: make a layer",
        "part: make a sandbox over it",
        "part: take a waiting one instead",
        "part: mount the layer and run `true` in it",
        "part: take the sandbox down",
        "part: drop the layer",
    ];
    let figures = names.into_iter().zip(times);
    Ok(figures
        .map(|(name, seconds)| time(name, seconds, Bar::Inform))
        .collect())
}

fn new_sandbox() -> fluffy_policy::Permit {
    permit("sandbox.create", Some(TEMPLATE))
}

async fn launch(root: &Path, layers: &Path) -> Result<LauncherHandle> {
    let settings = Settings {
        templates: Template::builtin(ByteSize(8 << 30)),
        projects: vec![root.join("project")],
        plugins: None,
        layers: layers.to_owned(),
        state: root.join("state"),
        tools: Vec::new(),
        engine: Engine::Native,
    };
    let ledger = Ledger::open(&root.join("ledger.db"), LedgerOptions::default())?;
    let journal = Journal::new(Arc::new(ledger), Actor::system("bench"));
    let command = LauncherCommand {
        program: std::env::current_exe()?,
        arguments: vec!["worker".to_owned(), "launcher".to_owned()],
    };
    Ok(LauncherHandle::start(&command, settings, journal).await?)
}
