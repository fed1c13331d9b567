//! The way to the kernel: found or started, and found again after a crash.
//!
//! A [`Kernel`] hears each event of its session once, in order, whatever
//! happens to the connection: it attaches again from the last number it heard.
//! Decides nothing about a session. Next: `conversation` uses it.

mod errors;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_base::id::{ApprovalId, SessionId};
use fluffy_config::ProcessEngine;
use fluffy_ipc::client::Events;
use fluffy_ipc::{CallError, Client, ConnectError, Event, Hello};
use fluffy_kernel::api::{self, Begun, Heard, Reply, Resume, SessionOrder, Start};
use fluffy_kernel::event::{AgentEvent, PersonAnswer};
use fluffy_report::Report;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::failure::{self, Failure};
use crate::session::Here;

/// Unread events before the connection waits for us.
const UNREAD: usize = 256;

/// How long a kernel that crashed may take to come back by itself.
const COMES_BACK: Duration = Duration::from_secs(5);

/// How long a kernel may take to start.
const STARTS: Duration = Duration::from_secs(15);

/// The longest pause between two attempts to connect.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// Where the kernel of a project is.
#[derive(Debug, Clone)]
pub(crate) struct KernelPlace {
    /// Its socket.
    pub(crate) socket: PathBuf,
    /// The project's root.
    pub(crate) project: PathBuf,
    /// Everything we keep.
    pub(crate) state: PathBuf,
    /// What becomes the kernel when none runs: this very program.
    pub(crate) program: PathBuf,
    /// The user's configuration, which may choose what isolates.
    pub(crate) configuration: PathBuf,
}

/// A connection to the kernel, and the session that is heard over it.
#[derive(Debug)]
pub(crate) struct Kernel {
    place: KernelPlace,
    client: Client,
    events: Events,
    /// What arrived while a call was waited for.
    waiting: VecDeque<Event>,
    heard: Option<Position>,
}

/// What was heard of a session.
#[derive(Debug)]
struct Position {
    /// What a kernel that does not know the session is asked.
    resume: Resume,
    last: u64,
    numbering: Numbering,
}

/// Whether the kernel still counts as it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbering {
    Goes,
    /// After a crash another kernel may count from the beginning.
    MayRestart,
}

/// The connection is gone; [`Kernel::reconnect`] may bring it back.
#[derive(Debug)]
pub(crate) struct Lost;

impl KernelPlace {
    /// The place of this project's kernel.
    pub(crate) fn of(here: &Here) -> Result<Self, Failure> {
        let project = here
            .paths
            .project_root
            .clone()
            .ok_or_else(errors::no_project)?;
        let state = here.paths.state_dir.clone();
        let program = std::env::current_exe().map_err(|error| failure::no_program(&error))?;
        let name = match here.settings.values().sandbox.engine {
            // Nobody gets a kernel that isolates less than they asked for.
            ProcessEngine::Reduced => project.join("reduced"),
            ProcessEngine::Native | ProcessEngine::Bwrap => project.clone(),
        };
        Ok(Self {
            socket: socket(&state, &name),
            project,
            state,
            program,
            configuration: here.paths.config_file.clone(),
        })
    }
}

/// The socket of a project's kernel; short, because addresses of sockets are.
pub(crate) fn socket(state: &Path, project: &Path) -> PathBuf {
    let digest = Digest::of(project.as_os_str().as_encoded_bytes()).to_string();
    let name: String = digest.chars().take(16).collect();
    state.join("run").join(name).join("kernel.sock")
}

/// Connects to the kernel of this project; starts it if none runs.
pub(crate) async fn kernel(place: KernelPlace) -> Result<Kernel, Failure> {
    let client = match connect(&place).await {
        Err(ConnectError::Unreachable { .. }) => {
            start_kernel(&place)?;
            let connected = connect_within(&place, STARTS).await;
            Ok(connected.map_err(|_| errors::not_started(&place).why(last_words(&place)))?)
        }
        connected => connected.map_err(|error| errors::connect(&error)),
    };
    Ok(Kernel::over(place, client?))
}

/// Connects to a kernel that runs already.
pub(crate) async fn running(place: KernelPlace) -> Result<Kernel, Failure> {
    let client = connect(&place).await;
    let client = client.map_err(|error| errors::connect(&error))?;
    Ok(Kernel::over(place, client))
}

/// Starts the kernel of a project, which then serves its socket.
fn start_kernel(place: &KernelPlace) -> Result<(), Report> {
    let log = log(place).map_err(|error| errors::not_started(place).why(error.to_string()))?;
    let started = std::process::Command::new(&place.program)
        .args(["worker", "bootstrap"])
        .arg(&place.configuration)
        .arg(&place.project)
        .arg(&place.socket)
        // A key that is set here goes over the socket, to the model's worker.
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| is_for_kernel(name)))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(log)
        .process_group(0)
        .spawn();
    started
        .map(drop)
        .map_err(|error| errors::not_started(place).why(error.to_string()))
}

/// Whether a kernel may know a variable of the person's environment.
fn is_for_kernel(name: &OsStr) -> bool {
    const KNOWN: [&str; 10] = [
        "CONTAINER_HOST",
        "DOCKER_HOST",
        "HOME",
        "LANG",
        "LOGNAME",
        "PATH",
        "TMPDIR",
        "TZ",
        "USER",
        "USERPROFILE",
    ];
    let Some(name) = name.to_str() else {
        return false;
    };
    let ours = ["FLUFFY_", "XDG_", "LC_"];
    KNOWN.contains(&name) || ours.iter().any(|prefix| name.starts_with(prefix))
}

/// Where a kernel says why it ended.
fn log(place: &KernelPlace) -> std::io::Result<std::fs::File> {
    let folder = place.state.join("run");
    // The state directory may not be there yet, and is nobody else's business.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)?;
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log_file(place))
}

fn log_file(place: &KernelPlace) -> PathBuf {
    let name = place.socket.parent().and_then(Path::file_name);
    let name = name.unwrap_or_default().to_string_lossy();
    place.state.join("run").join(format!("{name}.log"))
}

/// The last line that a kernel wrote before it ended.
fn last_words(place: &KernelPlace) -> String {
    const END: u64 = 4096;
    let path = log_file(place);
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(&path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(END)))?;
        let mut bytes = Vec::new();
        file.take(END).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.lines().last().unwrap_or_default().to_owned())
    };
    match read() {
        Ok(line) if !line.is_empty() => format!("its last words in `{}`: {line}", path.display()),
        _ => "it said nothing before it ended".to_owned(),
    }
}

impl Kernel {
    fn over(place: KernelPlace, client: Client) -> Self {
        let events = client.subscribe(UNREAD);
        Self {
            place,
            client,
            events,
            waiting: VecDeque::new(),
            heard: None,
        }
    }

    /// Begins a session; its events follow.
    pub(crate) async fn start(&mut self, start: &Start) -> Result<SessionId, Failure> {
        let Begun { session } = self.call(api::START, start).await?;
        self.follow(Resume {
            session,
            person: start.person,
            providers: start.providers.clone(),
        });
        Ok(session)
    }

    /// Goes on with a session; its events follow.
    pub(crate) async fn resume(&mut self, resume: Resume) -> Result<(), Failure> {
        let Begun { .. } = self.call(api::RESUME, &resume).await?;
        self.follow(resume);
        Ok(())
    }

    /// The next event of the session.
    pub(crate) async fn next(&mut self) -> Result<AgentEvent, Lost> {
        loop {
            let event = match self.waiting.pop_front() {
                Some(event) => event,
                None => self.events.next().await.ok_or(Lost)?,
            };
            if let Some(event) = self.hear(&event) {
                return Ok(event);
            }
        }
    }

    /// Finds the kernel again and hears on from the last event.
    pub(crate) async fn reconnect(&mut self) -> Result<(), Failure> {
        let mut client = connect_within(&self.place, COMES_BACK).await;
        if matches!(client, Err(ConnectError::Unreachable { .. })) {
            start_kernel(&self.place)?;
            client = connect_within(&self.place, STARTS).await;
        }
        self.client = client.map_err(|error| errors::connect(&error))?;
        self.events = self.client.subscribe(UNREAD);
        // What had arrived was sent by the old one and comes again.
        self.waiting.clear();
        let Some(position) = &mut self.heard else {
            return Ok(());
        };
        position.numbering = Numbering::MayRestart;
        let resume = position.resume.clone();
        let attach = api::Attach {
            session: resume.session,
            after: position.last,
        };
        match self.request::<_, ()>(api::ATTACH, &attach).await {
            Ok(()) => Ok(()),
            // A new kernel knows the session from the ledger alone.
            Err(CallError::Failed { .. }) => self.resume(resume).await,
            Err(error) => Err(errors::call(&error).into()),
        }
    }

    /// Says something in the session.
    pub(crate) async fn say(&mut self, session: SessionId, text: &str) -> Result<(), Failure> {
        let text = text.to_owned();
        self.call(api::SAY, &api::Say { session, text }).await
    }

    /// Answers a question.
    pub(crate) async fn answer(
        &mut self,
        session: SessionId,
        approval: ApprovalId,
        answer: PersonAnswer,
    ) -> Result<(), Failure> {
        let answer = api::AnswerApproval {
            session,
            approval,
            answer,
        };
        self.call(api::ANSWER, &answer).await
    }

    /// Ends the turn; goes on without us, so that nobody has to wait for it.
    pub(crate) fn stop(&self, session: SessionId) -> JoinHandle<Result<(), CallError>> {
        let client = self.client.clone();
        tokio::spawn(async move { client.call(api::STOP, &api::Which { session }).await })
    }

    /// Has an order carried out.
    pub(crate) async fn order(
        &mut self,
        session: SessionId,
        order: SessionOrder,
    ) -> Result<Reply, Failure> {
        self.call(api::COMMAND, &api::Order { session, order })
            .await
    }

    /// The same without waiting: an order that changes something is carried
    /// out between two steps, and somebody may have to answer first.
    pub(crate) fn order_later(
        &self,
        session: SessionId,
        order: SessionOrder,
    ) -> impl Future<Output = Result<Reply, Report>> + Send + use<> {
        let client = self.client.clone();
        async move {
            let order = api::Order { session, order };
            let called = client.call(api::COMMAND, &order).await;
            called.map_err(|error| errors::call(&error))
        }
    }

    fn follow(&mut self, resume: Resume) {
        self.heard = Some(Position {
            resume,
            last: 0,
            numbering: Numbering::Goes,
        });
    }

    /// The event, if it is one of our session that is new.
    fn hear(&mut self, event: &Event) -> Option<AgentEvent> {
        if event.method != api::EVENT {
            return None;
        }
        // A kind that we do not know comes from a newer kernel, and adding
        // kinds is no new version.
        let heard: Heard = serde_json::from_str(event.params.get()).ok()?;
        let position = self.heard.as_mut()?;
        if heard.session != position.resume.session {
            return None;
        }
        let begins = matches!(heard.event, AgentEvent::SessionStarted(_));
        let starts_anew = begins && position.numbering == Numbering::MayRestart;
        if heard.number <= position.last && !starts_anew {
            return None;
        }
        position.last = heard.number;
        position.numbering = Numbering::Goes;
        Some(heard.event)
    }

    async fn call<P, R>(&mut self, method: &str, params: &P) -> Result<R, Failure>
    where
        P: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        let called = self.request(method, params).await;
        called.map_err(|error| errors::call(&error).into())
    }

    /// Takes events in while it waits: a connection whose events nobody takes
    /// brings no answer either.
    async fn request<P, R>(&mut self, method: &str, params: &P) -> Result<R, CallError>
    where
        P: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        let client = self.client.clone();
        let mut call = std::pin::pin!(client.call(method, params));
        let mut open = true;
        loop {
            tokio::select! {
                answer = &mut call => return answer,
                event = self.events.next(), if open => match event {
                    Some(event) => self.waiting.push_back(event),
                    None => open = false,
                },
            }
        }
    }
}

async fn connect(place: &KernelPlace) -> Result<Client, ConnectError> {
    let hello = Hello::new("cli", env!("CARGO_PKG_VERSION"), api::VERSION);
    Client::connect(&place.socket, hello).await
}

/// Connects as soon as somebody serves the socket, for as long as this.
async fn connect_within(place: &KernelPlace, patience: Duration) -> Result<Client, ConnectError> {
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_millis(5);
    loop {
        match connect(place).await {
            Err(error) if error.is_retryable() && Instant::now() + pause < deadline => {
                sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
            connected => return connected,
        }
    }
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
pub(crate) mod tests;
