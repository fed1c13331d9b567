//! Sandboxes beside a plain fork and exec, `bwrap` and the container engines.
//!
//! A round makes a sandbox, runs `true` in it and takes it down, ours and the
//! reference in turns. `bwrap` gets the same namespaces, mounts, files and
//! system-call filter, and runs as people run it: one process for each
//! command. It has no layer, no Landlock and no limits.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use fluffy_base::ByteSize;
use fluffy_contract::isolation::{Command as Inside, Exit, LayerMount, SandboxSpec};
use fluffy_ledger::{Actor, Ledger, LedgerOptions};
use fluffy_policy::Permit;
use fluffy_sandbox::client::{
    Journal, LauncherCommand, LauncherHandle, Pool, PoolSettings, SandboxHandle,
};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::seccomp::{Architecture, Filter};
use fluffy_sandbox::template::Template;
use fluffy_test_kit::permit;

use crate::figure::{Bar, Figure, Samples, Show};

const TEMPLATE: &str = "code-executor";
const ROUNDS: usize = 200;
const CYCLES: usize = 1_000;

/// All figures of the process and container tiers.
pub(crate) fn run() -> Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let ground = Ground::new().await?;
        let mut figures = ground.beside_bwrap().await?;
        figures.push(ground.cycles().await?);
        figures.extend(crate::container::figures().await?);
        Ok(figures)
    })
}

/// A project, a layer and a launcher.
struct Ground {
    root: tempfile::TempDir,
    launcher: LauncherHandle,
}

impl Ground {
    async fn new() -> Result<Self> {
        let root = tempfile::tempdir()?;
        for name in ["project", "state/layers/one/upper", "state/layers/one/work"] {
            std::fs::create_dir_all(root.path().join(name))?;
        }
        let settings = Settings {
            templates: Template::builtin(ByteSize(8 << 30)),
            projects: vec![root.path().join("project")],
            plugins: None,
            layers: root.path().join("state/layers"),
            state: root.path().join("state"),
            tools: Vec::new(),
            engine: Engine::Native,
        };
        let ledger = Ledger::open(&root.path().join("ledger.db"), LedgerOptions::default())?;
        let journal = Journal::new(Arc::new(ledger), Actor::system("bench"));
        let command = LauncherCommand {
            program: std::env::current_exe()?,
            arguments: vec!["worker".to_owned(), "launcher".to_owned()],
        };
        let launcher = LauncherHandle::start(&command, settings, journal).await?;
        Ok(Self { root, launcher })
    }

    fn project(&self) -> PathBuf {
        self.root.path().join("project")
    }

    fn spec(&self) -> SandboxSpec {
        let layer = self.root.path().join("state/layers/one");
        SandboxSpec {
            template: TEMPLATE.to_owned(),
            project: Some(self.project()),
            layer: Some(LayerMount::Overlay {
                upper: layer.join("upper"),
                work: layer.join("work"),
            }),
            ..SandboxSpec::default()
        }
    }

    /// `bwrap` with what our template has.
    fn bwrap(&self) -> Result<Bwrap> {
        let templates = Template::builtin(ByteSize(8 << 30));
        let template = templates.iter().find(|one| one.name == TEMPLATE);
        let profile = template.context("the template is gone")?.seccomp;
        let filter = self.root.path().join("filter");
        let compiled = Filter::compile(profile, Architecture::native())?;
        std::fs::write(&filter, compiled.to_bytes())?;
        let mut line = words(&[
            "bwrap --unshare-all --unshare-user --die-with-parent --new-session",
            "--cap-drop ALL --clearenv --hostname sandbox --seccomp 0",
            "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib",
            "--symlink usr/lib64 /lib64 --symlink usr/sbin /sbin",
            "--ro-bind /etc/ssl /etc/ssl --ro-bind /etc/alternatives /etc/alternatives",
            "--ro-bind /etc/ld.so.cache /etc/ld.so.cache",
        ]);
        for name in [
            "passwd",
            "group",
            "hosts",
            "hostname",
            "resolv.conf",
            "nsswitch.conf",
        ] {
            let own = self.root.path().join(name);
            std::fs::write(&own, "made for the sandbox\n")?;
            line.extend(words(&[&format!(
                "--ro-bind {} /etc/{name}",
                own.display()
            )]));
        }
        line.extend(words(&[
            "--dev /dev --proc /proc --tmpfs /tmp --tmpfs /var/tmp --tmpfs /run",
            "--tmpfs /home --tmpfs /dev/shm --bind",
        ]));
        let project = self.project().display().to_string();
        line.extend([project.clone(), project]);
        line.extend(words(&["--remount-ro / /usr/bin/true"]));
        Ok(Bwrap { line, filter })
    }

    async fn beside_bwrap(&self) -> Result<Vec<Figure>> {
        let pool = Pool::new(
            self.launcher.clone(),
            PoolSettings {
                spec: SandboxSpec {
                    layer: None,
                    ..self.spec()
                },
                size: 1,
            },
        );
        let bwrap = self.bwrap()?;
        let mut times: [Vec<f64>; 6] = Default::default();
        for _ in 0..ROUNDS {
            let [cold, warm, clean, raw, peer, again] = &mut times;
            let permits = (create(), command());
            let begun = Instant::now();
            let sandbox = self.launcher.create(permits.0, self.spec()).await?;
            run_true(&sandbox, permits.1).await?;
            cold.push(begun.elapsed().as_secs_f64());
            let ended = Instant::now();
            sandbox.clean().await?;
            clean.push(ended.elapsed().as_secs_f64());

            pool.fill(create()).await?;
            let permits = (create(), command(), command());
            let begun = Instant::now();
            let sandbox = pool.take(permits.0, self.spec()).await?;
            run_true(&sandbox, permits.1).await?;
            warm.push(begun.elapsed().as_secs_f64());
            let begun = Instant::now();
            run_true(&sandbox, permits.2).await?;
            again.push(begun.elapsed().as_secs_f64());
            sandbox.clean().await?;

            let nothing = File::open("/dev/null")?;
            raw.push(outside(&["/usr/bin/true".to_owned()], nothing)?);
            peer.push(outside(&bwrap.line, File::open(&bwrap.filter)?)?);
        }
        let [cold, warm, clean, raw, peer, again] = times.map(|one| Samples::new(one, Show::Time));
        let figure =
            |what: &str, ours: &Samples, reference: Option<(&str, &Samples)>, bar| Figure {
                what: what.to_owned(),
                ours: ours.clone(),
                reference: reference.map(|(name, samples)| (name.to_owned(), samples.clone())),
                bar,
            };
        let beside = Some(("bwrap", &peer));
        Ok(vec![
            figure(
                "make a sandbox and run `true`, cold",
                &cold,
                beside,
                Bar::TimesReference(1.0 / 1.5),
            ),
            figure("the same, absolute", &cold, None, Bar::Under(0.010)),
            figure(
                "take a waiting one and run `true`",
                &warm,
                beside,
                Bar::TimesReference(3.0),
            ),
            figure("the same, absolute", &warm, None, Bar::Under(0.003)),
            figure(
                "run `true` in a running sandbox",
                &again,
                Some(("fork and exec", &raw)),
                Bar::Inform,
            ),
            figure(
                "take it down and leave nothing",
                &clean,
                None,
                Bar::Under(0.020),
            ),
        ])
    }

    /// The last hundred of a thousand cycles beside the first hundred.
    async fn cycles(&self) -> Result<Figure> {
        let mut times = Vec::with_capacity(CYCLES);
        for _ in 0..CYCLES {
            let permits = (create(), command());
            let begun = Instant::now();
            let sandbox = self.launcher.create(permits.0, self.spec()).await?;
            run_true(&sandbox, permits.1).await?;
            sandbox.clean().await?;
            times.push(begun.elapsed().as_secs_f64());
        }
        let last = times.split_off(CYCLES - 100);
        times.truncate(100);
        Ok(Figure {
            what: "cycles 901–1,000 beside the first 100".to_owned(),
            ours: Samples::new(last, Show::Time),
            reference: Some(("first 100".to_owned(), Samples::new(times, Show::Time))),
            bar: Bar::TimesReference(0.8),
        })
    }
}

/// Words of command lines without a space in any of them.
fn words(lines: &[&str]) -> Vec<String> {
    let words = lines.iter().flat_map(|line| line.split(' '));
    words.map(str::to_owned).collect()
}

fn create() -> Permit {
    permit("sandbox.create", Some(TEMPLATE))
}

// Made outside what is timed: each compiles a policy.
fn command() -> Permit {
    permit("shell.exec", None)
}

async fn run_true(sandbox: &SandboxHandle, permit: Permit) -> Result<()> {
    let child = sandbox.run(permit, Inside::new(["/usr/bin/true"])).await?;
    let finished = child.finish().await?;
    ensure!(
        finished.exit == Exit::Code { code: 0 },
        "{:?}",
        finished.exit
    );
    Ok(())
}

/// A command line of `bwrap`, and the filter it reads from standard input.
struct Bwrap {
    line: Vec<String>,
    filter: PathBuf,
}

fn outside(line: &[String], input: File) -> Result<f64> {
    let (program, arguments) = line.split_first().context("an empty command")?;
    let begun = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .status()
        .with_context(|| format!("cannot run `{program}`; `cargo xtask test` installs it"))?;
    ensure!(status.success(), "`{program}` failed");
    Ok(begun.elapsed().as_secs_f64())
}
