//! Containers of ours beside the engines' own commands.
//!
//! A round makes a container, runs `true` in it and removes it, ours and
//! `docker run --rm` or `podman run --rm` in turns, with the same image, mounts
//! and guards. Needs the engines that `cargo xtask bench sandbox` starts.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use fluffy_base::ByteSize;
use fluffy_contract::isolation::{Command as Inside, Exit, LayerMount, SandboxSpec};
use fluffy_ledger::{Actor, Ledger, LedgerOptions};
use fluffy_sandbox::client::{Journal, LauncherHandle};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::template::Template;
use fluffy_test_kit::{EngineKind, TestEngine, permit};

use crate::figure::{Bar, Figure, Samples, Show};

const ROUNDS: usize = 30;

/// All figures of the container tier.
pub(crate) async fn figures() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        if let TestEngine::At(socket) = kind.for_tests()? {
            figures.extend(beside(kind, &socket).await?);
        }
    }
    Ok(figures)
}

async fn beside(kind: EngineKind, socket: &Path) -> Result<Vec<Figure>> {
    let root = tempfile::tempdir()?;
    for name in ["project", "state/layers/one/tree"] {
        std::fs::create_dir_all(root.path().join(name))?;
    }
    let launcher = launch(root.path(), socket).await?;
    let spec = SandboxSpec {
        template: "code-executor".to_owned(),
        project: Some(root.path().join("project")),
        layer: Some(LayerMount::Tree {
            tree: root.path().join("state/layers/one/tree"),
        }),
        ..SandboxSpec::default()
    };
    let (mut whole, mut peer, mut again) = (Vec::new(), Vec::new(), Vec::new());
    // The first round makes the image; it is not counted.
    for round in 0..=ROUNDS {
        let begun = Instant::now();
        let create = permit("sandbox.create", Some("code-executor"));
        let sandbox = launcher.create(create, spec.clone()).await?;
        let running = Instant::now();
        let child = sandbox.run(permit("shell.exec", None), Inside::new(["/usr/bin/true"]));
        let finished = child.await?.finish().await?;
        ensure!(
            finished.exit == Exit::Code { code: 0 },
            "{:?}",
            finished.exit
        );
        let ran = running.elapsed().as_secs_f64();
        sandbox.clean().await?;
        let took = begun.elapsed().as_secs_f64();
        let theirs = by_the_engine(kind, socket, &root.path().join("project"))?;
        if round > 0 {
            whole.push(took);
            again.push(ran);
            peer.push(theirs);
        }
    }
    let name = kind.name();
    Ok(vec![
        Figure {
            what: format!("make a {name} container, run `true`, remove it"),
            ours: Samples::new(whole, Show::Time),
            reference: Some((format!("{name} run --rm"), Samples::new(peer, Show::Time))),
            bar: Bar::TimesReference(1.0 / 1.15),
        },
        Figure {
            what: format!("run `true` in a running {name} container"),
            ours: Samples::new(again, Show::Time),
            reference: None,
            bar: Bar::Inform,
        },
    ])
}

async fn launch(root: &Path, socket: &Path) -> Result<LauncherHandle> {
    let settings = Settings {
        templates: Template::builtin(ByteSize(8 << 30)),
        projects: vec![root.join("project")],
        plugins: None,
        layers: root.join("state/layers"),
        state: root.join("state"),
        tools: Vec::new(),
        engine: Engine::Container,
    };
    let ledger = Ledger::open(&root.join("ledger.db"), LedgerOptions::default())?;
    let journal = Journal::new(Arc::new(ledger), Actor::system("bench"));
    let command = fluffy_container::worker::launcher_command(socket)?;
    Ok(LauncherHandle::start(&command, settings, journal).await?)
}

/// The same by hand, as people would type it.
fn by_the_engine(kind: EngineKind, socket: &Path, project: &Path) -> Result<f64> {
    let address = format!("unix://{}", socket.display());
    let image = image_of_the_host(&address)?;
    let mut command = match kind {
        EngineKind::Docker => Command::new("docker"),
        EngineKind::Podman | EngineKind::RootlessPodman => Command::new("podman"),
    };
    match kind {
        EngineKind::Docker => command.args(["--host", &address]),
        EngineKind::Podman | EngineKind::RootlessPodman => {
            command.args(["--remote", "--url", &address])
        }
    };
    command
        .args([
            "run",
            "--rm",
            "--network=none",
            "--read-only",
            "--cap-drop=ALL",
        ])
        .args(["--security-opt=no-new-privileges", "--user=1000:1000"])
        .args(["--ulimit=nproc=16384:16384", "--ulimit=nofile=16384:16384"])
        .args([
            "--pids-limit=512",
            "--memory=4g",
            "--tmpfs=/tmp",
            "--volume=/usr:/usr:ro",
        ])
        .arg(format!("--volume={0}:{0}", project.display()))
        .args([image.as_str(), "/usr/bin/true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let begun = Instant::now();
    let status = command
        .status()
        .context("cannot run the engine's command")?;
    ensure!(status.success(), "`{} run` failed", kind.name());
    Ok(begun.elapsed().as_secs_f64())
}

/// The image our launcher has made; both engines understand Docker's command.
fn image_of_the_host(address: &str) -> Result<String> {
    let output = Command::new("docker")
        .args([
            "--host",
            address,
            "images",
            "--format={{.Repository}}:{{.Tag}}",
        ])
        .output()
        .context("cannot run docker")?;
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = names.lines().find(|name| name.contains("fluffy-host-"));
    found
        .map(str::to_owned)
        .context("our launcher has made no image")
}
