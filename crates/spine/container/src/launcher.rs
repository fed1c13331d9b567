//! The launcher of the container tier: the only process that has the engine.
//!
//! Serves one client in the words of `fluffy_sandbox::protocol`, as the native
//! launcher does. When the client is gone it removes every container and exits;
//! when it is killed, every init sees its socket close and ends, and the next
//! launcher removes what is left by its labels. Next: `sandbox` for one of them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::SandboxSpec;
use fluffy_sandbox::failure::{ended, refused, system};
use fluffy_sandbox::launcher::ownership::Ownership;
use fluffy_sandbox::plan::{Host, Settings};
use fluffy_sandbox::protocol::{self, Answer, Ask, Failure, Notice, Question, Reply, Warm};
use rustix::net::RecvFlags;
use rustix::process::{Resource, getrlimit};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::carry::Carried;
use crate::creation::Site;
use crate::engine::{Brand, Engine, EngineError, Listed, Removal};
use crate::filter;
use crate::host_image::HostImage;
use crate::images::Images;
use crate::sandbox::{self, Asked, Numbered};
use crate::shape::{OWNER_LABEL, STATE_LABEL, User};

/// How often what dead launchers left is looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How long a container without a launcher has to end by itself.
const END_LIMIT: Duration = Duration::from_secs(2);

/// How long between two looks whether it has.
const END_PAUSE: Duration = Duration::from_millis(20);

/// How many processes the user inside may have in all containers together; the
/// limit of one container is its control group's. Engines may raise no limit
/// beyond their own, and Podman's is not much more than this.
const MOST_PROCESSES: u64 = 16_384;

/// When a launcher begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// With its settings.
    AtOnce,
    /// With its first question.
    WhenAsked,
}

/// Serves one client with the engine at this socket until the client is gone.
///
/// # Errors
/// When the client cannot be heard.
pub(crate) fn serve(client: OwnedFd, engine: &Path, begin: Begin) -> io::Result<()> {
    let Some((settings, _)) = protocol::receive::<Settings>(&client)? else {
        return Ok(());
    };
    if begin == Begin::WhenAsked && !is_asked(&client)? {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // One thread for all sandboxes, as none of them ever computes for long.
    let sandboxes = tokio::task::LocalSet::new();
    sandboxes.block_on(&runtime, async {
        match Launcher::start(client.try_clone()?, settings, engine).await {
            Ok(mut launcher) => {
                protocol::send(&client, &Answer::Done, &[])?;
                launcher.run(questions(client)?).await;
                launcher.end_everything().await;
                Ok(())
            }
            Err(failure) => protocol::send(&client, &Answer::Failed { failure }, &[]),
        }
    })
}

/// Waits for the first question, which stays unread; whether there is one.
fn is_asked(client: &OwnedFd) -> io::Result<bool> {
    let mut byte = [0_u8; 1];
    loop {
        match rustix::net::recv(client, &mut byte, RecvFlags::PEEK) {
            Ok((_, count)) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads on a thread of its own, so that no wait of ours keeps it from it.
fn questions(client: OwnedFd) -> io::Result<mpsc::Receiver<(Question, Vec<OwnedFd>)>> {
    let (sender, questions) = mpsc::channel(64);
    std::thread::Builder::new()
        .name("client".to_owned())
        .spawn(move || {
            while let Ok(Some(question)) = protocol::receive::<Question>(&client) {
                if sender.blocking_send(question).is_err() {
                    return;
                }
            }
        })?;
    Ok(questions)
}

/// The way back to the client; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Client(Arc<OwnedFd>);

impl Client {
    /// Answers a question, with descriptors. A client that is gone is noticed
    /// by whoever reads its questions.
    pub(crate) fn answer(&self, id: u64, answer: Answer, descriptors: &[OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let _ = protocol::send(&*self.0, &Reply::Answer { id, answer }, &descriptors);
    }

    /// Tells what nobody asked for.
    pub(crate) fn notice(&self, notice: Notice) {
        let _ = protocol::send(&*self.0, &Reply::Notice { notice }, &[]);
    }
}

struct Launcher {
    client: Client,
    site: Arc<Site>,
    ownership: Arc<Ownership>,
    sandboxes: BTreeMap<SandboxId, Handle>,
}

/// A sandbox's task and the way to it.
struct Handle {
    asked: mpsc::UnboundedSender<Numbered>,
    task: JoinHandle<()>,
}

impl Launcher {
    async fn start(client: OwnedFd, settings: Settings, socket: &Path) -> Result<Self, Failure> {
        let engine = Engine::connect(socket)
            .await
            .map_err(|error| error.failure())?;
        let state = |error: io::Error| system("use the state directory", &error);
        let ownership = Ownership::take(&settings.state).map_err(state)?;
        let folder = ownership.directory().to_owned();
        let host = Host::probe();
        let carried = Carried::of_this_program(&folder)
            .map_err(|error| system("read our own program", &error))?;
        let filter = match engine.brand() {
            Brand::Docker => filter::profile(),
            // Podman wants a file.
            Brand::Podman => {
                let file = folder.join("seccomp.json");
                std::fs::write(&file, filter::profile()).map_err(state)?;
                file.display().to_string()
            }
        };
        let labels = HashMap::from([
            (OWNER_LABEL.to_owned(), ownership.label().to_owned()),
            (STATE_LABEL.to_owned(), state_mark(&settings.state)),
        ]);
        let most = getrlimit(Resource::Nproc).maximum;
        let site = Site {
            images: Images::new(engine.clone(), HostImage::new(&host)),
            settings,
            host,
            engine,
            carried,
            launcher: User {
                user: rustix::process::geteuid().as_raw(),
                group: rustix::process::getegid().as_raw(),
            },
            filter,
            folder,
            labels,
            most_processes: most.map_or(MOST_PROCESSES, |most| most.min(MOST_PROCESSES)),
        };
        let site = Arc::new(site);
        let early = Arc::clone(&site);
        // Before the first sandbox asks for it, without holding anybody up.
        tokio::spawn(async move { early.images.host_image().await.map(drop) });
        Ok(Self {
            client: Client(Arc::new(client)),
            site,
            ownership: Arc::new(ownership),
            sandboxes: BTreeMap::new(),
        })
    }

    /// Answers until the client is gone.
    async fn run(&mut self, mut questions: mpsc::Receiver<(Question, Vec<OwnedFd>)>) {
        let mut sweeps = tokio::time::interval(SWEEP_EVERY);
        // The first tick comes at once; the client asks for that sweep itself.
        sweeps.tick().await;
        loop {
            tokio::select! {
                question = questions.recv() => match question {
                    Some((question, descriptors)) => self.ask(question, descriptors),
                    None => return,
                },
                _ = sweeps.tick() => {
                    self.sandboxes.retain(|_, handle| !handle.task.is_finished());
                    tokio::spawn(sweep(Arc::clone(&self.site), Arc::clone(&self.ownership)));
                }
            }
        }
    }

    fn ask(&mut self, question: Question, descriptors: Vec<OwnedFd>) {
        let id = question.id;
        let (sandbox, asked) = match question.ask {
            Ask::Create {
                sandbox,
                spec,
                warm,
            } => return self.create(id, sandbox, spec, warm),
            Ask::Sweep => {
                let (site, ownership) = (Arc::clone(&self.site), Arc::clone(&self.ownership));
                let client = self.client.clone();
                tokio::spawn(async move {
                    let removed = sweep(site, ownership).await;
                    client.answer(id, Answer::Swept { removed }, &[]);
                });
                return;
            }
            Ask::Attach { .. } => {
                let failure = refused(
                    "the sandbox",
                    "engines add no mount to a container that exists",
                );
                return self.client.answer(id, Answer::Failed { failure }, &[]);
            }
            Ask::Exec {
                sandbox,
                exec,
                command,
            } => (sandbox, Asked::Exec(exec, command, descriptors)),
            Ask::Signal {
                sandbox,
                exec,
                signal,
            } => (sandbox, Asked::Signal(exec, signal)),
            Ask::End {
                sandbox,
                exec,
                limit,
            } => (sandbox, Asked::End(exec, limit)),
            Ask::EndAll { sandbox } => (sandbox, Asked::EndAll),
            Ask::Listen { sandbox, port } => (sandbox, Asked::Listen(port)),
            Ask::Pause { sandbox } => (sandbox, Asked::Pause),
            Ask::Resume { sandbox } => (sandbox, Asked::Resume),
            Ask::Stats { sandbox } => (sandbox, Asked::Stats),
            Ask::Stop {
                sandbox,
                grace_millis,
            } => (sandbox, Asked::Stop(Duration::from_millis(grace_millis))),
            Ask::Kill { sandbox } => (sandbox, Asked::Kill),
            Ask::Cleanup { sandbox } => (sandbox, Asked::Cleanup),
        };
        // Asked again, or for what never was: there is nothing left to clean.
        let otherwise = match asked {
            Asked::Cleanup => Answer::Done,
            _ => Answer::Failed { failure: ended() },
        };
        let sent = self
            .sandboxes
            .get(&sandbox)
            .is_some_and(|handle| handle.asked.send((id, asked)).is_ok());
        if !sent {
            self.client.answer(id, otherwise, &[]);
        }
    }

    fn create(&mut self, id: u64, sandbox: SandboxId, spec: SandboxSpec, warm: Warm) {
        let failure = match (warm, self.sandboxes.get(&sandbox)) {
            (Warm::Waiting, _) => Some(refused(
                "the sandbox",
                "engines add no mount to a container that exists",
            )),
            (Warm::Complete, Some(handle)) if !handle.task.is_finished() => {
                Some(refused("the sandbox", "the sandbox's id is in use"))
            }
            (Warm::Complete, _) => None,
        };
        if let Some(failure) = failure {
            return self.client.answer(id, Answer::Failed { failure }, &[]);
        }
        let (asked, questions) = mpsc::unbounded_channel();
        let (site, client) = (Arc::clone(&self.site), self.client.clone());
        let task =
            tokio::task::spawn_local(sandbox::live(site, client, (id, sandbox, spec), questions));
        self.sandboxes.insert(sandbox, Handle { asked, task });
    }

    /// Every sandbox removes itself, all at the same time.
    async fn end_everything(&mut self) {
        let sandboxes = std::mem::take(&mut self.sandboxes);
        let tasks: Vec<_> = sandboxes
            .into_values()
            .map(|handle| {
                // Closing its questions is the sandbox's sign to end.
                drop(handle.asked);
                handle.task
            })
            .collect();
        for task in tasks {
            let _ = task.await;
        }
        self.ownership.release();
    }
}

/// Removes what launchers of this state directory left that are gone.
async fn sweep(site: Arc<Site>, ownership: Arc<Ownership>) -> Vec<String> {
    let engine = &site.engine;
    let label = format!("{STATE_LABEL}={}", state_mark(&site.settings.state));
    let is_dead = |thing: &Listed| {
        let owner = thing.labels.get(OWNER_LABEL);
        !owner.is_some_and(|owner| ownership.is_alive(owner))
    };
    let listed = |listed: Result<Vec<Listed>, EngineError>| {
        let listed = listed.unwrap_or_else(|error| {
            tracing::warn!(%error, "nothing is swept");
            Vec::new()
        });
        listed.into_iter().filter(is_dead).collect::<Vec<_>>()
    };
    let mut removed = Vec::new();
    for container in listed(engine.list(&label).await) {
        await_end(engine, &container.id).await;
        match engine.remove(&container.id).await {
            Ok(Removal::Done) => removed.push(format!("container {}", container.id)),
            Ok(Removal::Needless) => {}
            Err(error) => tracing::warn!(%error, container = container.id, "not swept"),
        }
    }
    // Only Podman has any of ours, and listing them takes a moment.
    if engine.brand() == Brand::Podman {
        for volume in listed(engine.list_volumes(&label).await) {
            match engine.remove_volume(&volume.id).await {
                Ok(()) => removed.push(format!("volume {}", volume.id)),
                Err(error) => tracing::warn!(%error, volume = volume.id, "not swept"),
            }
        }
    }
    // Afterwards: without its directory an owner could not be told from a
    // living one of another machine.
    removed.extend(ownership.sweep());
    removed
}

/// Waits a little for an init that has just lost its launcher: Docker keeps a
/// ghost of a container that ends by itself while it is removed.
async fn await_end(engine: &Engine, container: &str) {
    let ended = async {
        while let Ok(condition) = engine.inspect(container).await
            && condition.process.is_some()
        {
            tokio::time::sleep(END_PAUSE).await;
        }
    };
    // What has not ended by then is ended by its removal.
    let _ = tokio::time::timeout(END_LIMIT, ended).await;
}

/// What marks the containers of one state directory.
fn state_mark(state: &Path) -> String {
    let path = state.canonicalize().unwrap_or_else(|_| state.to_owned());
    let digest = Digest::of(path.as_os_str().as_encoded_bytes());
    digest.to_string().chars().take(32).collect()
}
