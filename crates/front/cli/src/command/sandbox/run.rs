//! `fluffy sandbox run`: permit, layer, sandbox, command, clean-up, layer.
//!
//! In that order, and each step takes the one before it back when it fails.
//! What the command wrote is only ever in its layer until `aftermath`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fluffy_base::id::SandboxId;
use fluffy_container as container;
use fluffy_contract::isolation::{Command, Exit, LayerMount, SandboxError, SandboxSpec};
use fluffy_layer::{CreateLayerError, HeldLayer, LayerDirectories, LayerStore};
use fluffy_ledger::Ledger;
use fluffy_policy::Permit;
use fluffy_report::{ExitCode, Report};
use fluffy_sandbox::client::{
    Journal, LauncherCommand, LauncherHandle, SandboxHandle, StartLauncherError,
};
use fluffy_sandbox::plan::Engine;
use fluffy_sandbox::template::Network;

use super::ending::{self, Ending, Ran};
use super::ground::Ground;
use super::outside::{Hosts, Recorder};
use super::{containers, no_engine, pump, user, wasm};
use crate::args::{RunArgs, TierArg};
use crate::command::gate::{Desk, Yes};
use crate::command::terminal::{self, RawTerminal};
use crate::command::{layer, ledger};
use crate::failure::{self, Failure};
use crate::session::{Here, Session};

/// How long is waited at most before an image is asked for again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Runs the command; gives the code to exit with.
pub(super) fn run(session: &Session, args: &RunArgs) -> Result<u8, Failure> {
    if args.tier == Some(TierArg::Wasm) {
        return wasm::run(session, args);
    }
    let here = session.here()?;
    let opened = ledger::open(session, here)?;
    let done = Desk::open(here, &opened).and_then(|desk| {
        let policy = desk.gate.policy();
        let ground = Ground::survey(session, here, args, policy.engine.templates())?;
        if ground.engine == Engine::Reduced {
            session.printer.warn(
                "reduced isolation: no namespaces of its own, only Landlock, seccomp and limits; \
                 it runs as you, and can change modes and times of your files",
            );
        }
        let run = Run {
            session,
            here,
            args,
            desk: &desk,
            ledger: &opened.ledger,
            yes: Yes::from_flag(args.yes),
        };
        run.whole(&ground)
    });
    ledger::close(session, opened)?;
    done
}

struct Run<'a> {
    session: &'a Session,
    here: &'a Here,
    args: &'a RunArgs,
    desk: &'a Desk,
    ledger: &'a Ledger,
    yes: Yes,
}

impl Run<'_> {
    /// One way to a sandbox, and another where the first is not to be had.
    fn whole(&self, first: &Ground) -> Result<u8, Failure> {
        match self.on(first) {
            Err(NotRun::Unavailable(report)) => match first.instead() {
                Some(other) => {
                    self.session.printer.detail(&format!(
                        "engine {:?} with a layer of kind {:?} instead",
                        other.engine, other.layer
                    ));
                    self.on(&other).map_err(NotRun::into_failure)
                }
                None => Err(first.obstacle().unwrap_or(report).into()),
            },
            done => done.map_err(NotRun::into_failure),
        }
    }

    fn on(&self, ground: &Ground) -> Result<u8, NotRun> {
        let hosts = Hosts::of(self.desk, &self.args.allow, ground.context())?;
        let store = layer::open_store(self.here)?;
        let held = self.make_layer(ground, &store)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| Failure::from(failure::no_threads(&error)))?;
        let place = Place {
            ground,
            layers: store.folder(),
            held: &held,
        };
        let ran = runtime.block_on(self.in_sandbox(&place, hosts));
        // The proxy's last connections and our own threads hold nothing that
        // is waited for.
        runtime.shutdown_background();
        let ran = match ran {
            Ok(ran) => ran,
            Err(failure) => {
                // Mostly nothing ran. If something did, it is kept, and the
                // reason why there is no more to say comes first.
                let _ = layer::give_back(&store, held);
                return Err(failure);
            }
        };
        let ending = Ending {
            session: self.session,
            ground,
            desk: self.desk,
            ledger: self.ledger,
            store: &store,
            yes: self.yes,
        };
        Ok(ending::conclude(&ending, &self.args.aftermath, ran, held)?)
    }

    fn make_layer(&self, ground: &Ground, store: &LayerStore) -> Result<HeldLayer, Failure> {
        store
            .create(self.permit_create(ground)?, &ground.project, ground.layer)
            .map_err(|error| no_layer(&error).into())
    }

    fn permit_create(&self, ground: &Ground) -> Result<Permit, Failure> {
        let name = Some(ground.template.name.as_str());
        let request = self.desk.request("sandbox.create", name, &ground.context());
        Ok(self.desk.permit(&request, self.yes)?.permit)
    }

    async fn in_sandbox(&self, place: &Place<'_>, hosts: Hosts) -> Result<Ran, NotRun> {
        let launcher = self.launcher(place).await?;
        let began = Instant::now();
        let sandbox = self.create(&launcher, place).await?;
        let ran = self.command_in(&sandbox, place, hosts).await;
        // The kernel has ended everything even when the launcher is gone.
        if let Err(error) = sandbox.clean().await {
            self.session.printer.warn(&format!("cleaning up: {error}"));
        }
        Ok(Ran {
            sandbox: sandbox.id(),
            exit: ran?,
            took: began.elapsed(),
        })
    }

    async fn launcher(&self, place: &Place<'_>) -> Result<LauncherHandle, NotRun> {
        let program = match place.ground.engine {
            Engine::Native | Engine::Bwrap | Engine::Reduced => LauncherCommand::own(),
            Engine::Container => {
                let found = container::probe::probe(&containers(), user()).await;
                let found = found.map_err(|failure| NotRun::Failed(no_engine(&failure).into()))?;
                container::worker::launcher_command(&found.socket)
            }
        };
        let program = program.map_err(|error| Failure::from(failure::no_program(&error)))?;
        let settings = place.ground.settings(self.here, place.layers);
        let journal = Journal::new(self.ledger.clone().into(), self.desk.actor());
        let started = LauncherHandle::start(&program, settings, journal).await;
        started.map_err(|error| NotRun::Failed(no_launcher(&error).into()))
    }

    /// Makes the sandbox; waits where its image is still being made.
    async fn create(
        &self,
        launcher: &LauncherHandle,
        place: &Place<'_>,
    ) -> Result<SandboxHandle, NotRun> {
        let mut said = String::new();
        let mut pause = Duration::from_millis(100);
        loop {
            let permit = self.permit_create(place.ground)?;
            match launcher.create(permit, self.spec(place)).await {
                Err(SandboxError::Pending { progress }) => {
                    if progress != said {
                        self.session.printer.note(&progress);
                        said = progress;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(error @ SandboxError::TierUnavailable { .. }) => {
                    return Err(NotRun::Unavailable(no_sandbox(&error)));
                }
                created => {
                    return created.map_err(|error| NotRun::Failed(no_sandbox(&error).into()));
                }
            }
        }
    }

    fn spec(&self, place: &Place<'_>) -> SandboxSpec {
        let ground = place.ground;
        SandboxSpec {
            template: ground.template.name.clone(),
            tier: Some(ground.tier),
            project: Some(ground.project.clone()),
            layer: Some(mount(place.held)),
            writable: ground.writable.clone(),
            environment: ground.environment.clone(),
            image: self.args.image.clone(),
            ..SandboxSpec::default()
        }
    }

    async fn command_in(
        &self,
        sandbox: &SandboxHandle,
        place: &Place<'_>,
        hosts: Hosts,
    ) -> Result<Exit, Failure> {
        let template = &place.ground.template;
        let proxy = if template.network == Network::Restricted {
            let record = Recorder::new(self.ledger.clone(), self.desk);
            Some(hosts.serve(sandbox, &template.name, record).await?)
        } else {
            None
        };
        let permit = self.permit_command(sandbox.id(), place.ground)?;
        let interactive = terminal::is_interactive();
        let command = Command {
            directory: Some(place.directory()),
            terminal: interactive.then(terminal::size),
            output: self.args.output,
            time: self.args.time,
            ..Command::new(self.args.command.clone())
        };
        let child = sandbox
            .run(permit, command)
            .await
            .map_err(|error| no_sandbox(&error))?;
        let raw = interactive.then(RawTerminal::enter).transpose();
        let raw = raw.map_err(|error| failure::no_terminal(&error))?;
        let exit = pump::pump(child).await.map_err(|error| no_sandbox(&error));
        drop(raw);
        if let Some(proxy) = proxy {
            proxy.stop().await;
        }
        Ok(exit?)
    }

    fn permit_command(&self, sandbox: SandboxId, ground: &Ground) -> Result<Permit, Failure> {
        let desk = self.desk.inside(sandbox);
        let request = desk.request("shell.exec", None, &ground.context());
        Ok(desk.permit(&request, self.yes)?.permit)
    }
}

/// What a sandbox is made of.
struct Place<'a> {
    ground: &'a Ground,
    layers: &'a Path,
    held: &'a HeldLayer,
}

impl Place<'_> {
    /// Where the command starts: without mounts, in the layer's own copy.
    fn directory(&self) -> PathBuf {
        let ground = self.ground;
        match (ground.engine, self.held.layer().directories()) {
            (Engine::Reduced, LayerDirectories::Copy { tree }) => {
                let below = ground.directory.strip_prefix(&ground.project);
                below.map_or_else(|_| tree.clone(), |below| tree.join(below))
            }
            _ => ground.directory.clone(),
        }
    }
}

/// Why nothing ran.
enum NotRun {
    /// This machine cannot do it in this way.
    Unavailable(Report),
    /// Anything else.
    Failed(Failure),
}

impl NotRun {
    fn into_failure(self) -> Failure {
        match self {
            Self::Unavailable(report) => report.into(),
            Self::Failed(failure) => failure,
        }
    }
}

impl From<Failure> for NotRun {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

fn mount(held: &HeldLayer) -> LayerMount {
    match held.layer().directories() {
        LayerDirectories::Overlay { upper, work } => LayerMount::Overlay { upper, work },
        LayerDirectories::Copy { tree } => LayerMount::Tree { tree },
    }
}

fn no_layer(error: &CreateLayerError) -> Report {
    let fix = match error {
        CreateLayerError::Nested { .. } => {
            "work in a folder below, or set FLUFFY_STATE_DIR to a folder outside the project"
        }
        CreateLayerError::Copy { .. } => {
            "make the project's files readable, and room in the state directory"
        }
        CreateLayerError::Permit(_) | CreateLayerError::File(_) => {
            "check that the state directory is yours and that its disk has room"
        }
    };
    Report::from_error(ExitCode::Failure, error)
        .code("no_layer")
        .fix(fix)
}

fn no_launcher(error: &StartLauncherError) -> Report {
    Report::from_error(ExitCode::Internal, error)
        .code("no_sandbox")
        .fix("check the limits on processes (ulimit -u) and that the state directory is yours")
}

fn no_sandbox(error: &SandboxError) -> Report {
    let exit = match error {
        SandboxError::Pending { .. } => ExitCode::Transient,
        SandboxError::Refused { .. } => ExitCode::Usage,
        _ => ExitCode::Failure,
    };
    let report = Report::from_error(exit, error).code("no_sandbox");
    match error {
        SandboxError::Pending { .. } => report.fix("run the command again in a moment"),
        // Says its fix itself.
        SandboxError::Refused { .. } => report,
        SandboxError::TierUnavailable { .. }
        | SandboxError::Ended { .. }
        | SandboxError::Engine { .. } => {
            report.fix("`fluffy doctor` says what this machine can do, and how to get more")
        }
    }
}
