//! The socket to a launcher: questions out, answers and notices in.
//!
//! One thread reads for as long as the launcher lives and hands each answer to
//! whoever asked. When the launcher is gone every question fails and every
//! command has ended. Next: `protocol` for the words.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::Exit;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, socketpair};
use tokio::sync::{oneshot, watch};

use super::LauncherCommand;
use crate::plan::Settings;
use crate::protocol::{self, Answer, Ask, ExecId, Notice, Question, Reply};

/// Why there is no launcher.
#[derive(Debug, thiserror::Error)]
pub enum StartLauncherError {
    /// The process could not be started.
    #[error("cannot start the launcher `{program}`")]
    Spawn {
        /// The executable.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It started and ended, or spoke nonsense.
    #[error("the launcher did not answer")]
    Silent(#[source] io::Error),
    /// It said why it cannot work.
    #[error("the launcher cannot work: {what}: {why}")]
    Refused {
        /// What happened.
        what: String,
        /// Why.
        why: String,
    },
}

type Answered = (Answer, Vec<OwnedFd>);
type Exits = watch::Sender<Option<Exit>>;

/// A living launcher.
#[derive(Debug)]
pub(super) struct Link {
    socket: Arc<OwnedFd>,
    sending: Mutex<()>,
    numbers: AtomicU64,
    waiting: Arc<Waiting>,
}

/// A question on its way.
#[derive(Debug)]
pub(super) struct Asked(oneshot::Receiver<Answered>);

impl Asked {
    /// The answer.
    pub(super) async fn wait(self) -> io::Result<Answered> {
        self.0
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the launcher is gone"))
    }
}

/// Who waits for what.
#[derive(Debug, Default)]
struct Waiting {
    answers: Mutex<HashMap<u64, oneshot::Sender<Answered>>>,
    exits: Mutex<HashMap<(SandboxId, ExecId), Exits>>,
    gone: std::sync::atomic::AtomicBool,
    told: tokio::sync::Notify,
}

impl Link {
    pub(super) async fn start(
        command: &LauncherCommand,
        settings: &Settings,
    ) -> Result<Self, StartLauncherError> {
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let spawn = |source: io::Error| StartLauncherError::Spawn {
            program: command.program.display().to_string(),
            source,
        };
        let (ours, theirs) = pair.map_err(|error| spawn(error.into()))?;
        // Its socket is its standard input: no descriptor has to be passed by
        // hand. It gets no variable but the search path.
        let mut process = std::process::Command::new(&command.program);
        process
            .args(&command.arguments)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            // Ctrl-C in the caller's terminal is for the caller alone.
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null());
        let mut child = process.spawn().map_err(spawn)?;
        // It still holds their end, which would hide that they closed it.
        drop(process);
        // Collected there, so that no zombie is left whoever ended first.
        Self::greet(ours, settings.clone(), move || drop(child.wait())).await
    }

    /// Speaks to a launcher that somebody else started and waits for.
    pub(super) async fn over(
        socket: OwnedFd,
        settings: &Settings,
    ) -> Result<Self, StartLauncherError> {
        Self::greet(socket, settings.clone(), || {}).await
    }

    /// Wakes a launcher that knows its settings and waits to be asked.
    pub(super) async fn waking(socket: OwnedFd) -> Result<Self, StartLauncherError> {
        // Nobody waits for the answer to this one: questions count from 1.
        let first = Question {
            id: 0,
            ask: Ask::Sweep,
        };
        Self::greet(socket, first, || {}).await
    }

    async fn greet(
        ours: OwnedFd,
        first: impl serde::Serialize + Send + 'static,
        afterwards: impl FnOnce() + Send + 'static,
    ) -> Result<Self, StartLauncherError> {
        let silent = StartLauncherError::Silent;
        let hello = tokio::task::spawn_blocking({
            let ours = ours.try_clone().map_err(silent)?;
            move || {
                protocol::send(&ours, &first, &[])?;
                protocol::receive::<Answer>(&ours)
            }
        });
        match hello.await.map_err(io::Error::other).flatten() {
            Ok(Some((Answer::Done, _))) => {}
            Ok(Some((Answer::Failed { failure }, _))) => {
                return Err(StartLauncherError::Refused {
                    what: failure.what,
                    why: failure.why,
                });
            }
            Ok(_) => return Err(silent(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => return Err(silent(error)),
        }
        let socket = Arc::new(ours);
        let waiting = Arc::new(Waiting::default());
        let (reader, dispatch) = (Arc::clone(&socket), Arc::clone(&waiting));
        std::thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(move || {
                dispatch.read(&reader);
                afterwards();
            })
            .map_err(silent)?;
        Ok(Self {
            socket,
            sending: Mutex::new(()),
            numbers: AtomicU64::new(1),
            waiting,
        })
    }

    /// Asks and waits for the answer.
    pub(super) async fn ask(&self, ask: Ask, descriptors: &[OwnedFd]) -> io::Result<Answered> {
        self.ask_ahead(ask, descriptors)?.wait().await
    }

    /// Asks now; the answer is waited for later. Questions are answered in
    /// their order, so the next one may be asked at once.
    pub(super) fn ask_ahead(&self, ask: Ask, descriptors: &[OwnedFd]) -> io::Result<Asked> {
        let (sender, answer) = oneshot::channel();
        self.send(ask, descriptors, Some(sender))?;
        Ok(Asked(answer))
    }

    /// Whether the launcher is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.waiting.gone.load(Ordering::SeqCst)
    }

    /// Ready when the launcher is gone.
    pub(super) async fn gone(&self) {
        let told = self.waiting.told.notified();
        if !self.is_gone() {
            told.await;
        }
    }

    /// Asks without waiting.
    pub(super) fn tell(&self, ask: Ask) {
        // A launcher that is gone has nothing left to do.
        let _ = self.send(ask, &[], None);
    }

    fn send(
        &self,
        ask: Ask,
        descriptors: &[OwnedFd],
        answer: Option<oneshot::Sender<Answered>>,
    ) -> io::Result<()> {
        let id = self.numbers.fetch_add(1, Ordering::Relaxed);
        if let Some(answer) = answer {
            self.waiting.lock_answers().insert(id, answer);
            // After the reader has gone nobody would ever take it out again.
            if self.waiting.gone.load(Ordering::SeqCst) {
                self.waiting.lock_answers().remove(&id);
                return Err(io::Error::new(
                    io::ErrorKind::BrokenPipe,
                    "the launcher is gone",
                ));
            }
        }
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let sent = {
            let _one_at_a_time = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            protocol::send(&self.socket, &Question { id, ask }, &descriptors)
        };
        if sent.is_err() {
            self.waiting.lock_answers().remove(&id);
        }
        sent
    }

    /// What will hold a command's end, from before it is started.
    pub(super) fn expect_exit(
        &self,
        sandbox: SandboxId,
        exec: ExecId,
    ) -> watch::Receiver<Option<Exit>> {
        let (sender, receiver) = watch::channel(None);
        self.waiting.lock_exits().insert((sandbox, exec), sender);
        receiver
    }

    /// Forgets a command that was never started.
    pub(super) fn forget_exit(&self, sandbox: SandboxId, exec: ExecId) {
        self.waiting.lock_exits().remove(&(sandbox, exec));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The launcher sees the end and cleans up; the reader ends with it.
        let _ = rustix::net::shutdown(&*self.socket, Shutdown::Write);
    }
}

impl Waiting {
    fn lock_answers(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Answered>>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_exits(&self) -> std::sync::MutexGuard<'_, HashMap<(SandboxId, ExecId), Exits>> {
        self.exits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, socket: &OwnedFd) {
        while let Ok(Some((reply, descriptors))) = protocol::receive::<Reply>(socket) {
            match reply {
                Reply::Answer { id, answer } => {
                    if let Some(waiting) = self.lock_answers().remove(&id) {
                        // Whoever asked may have stopped waiting.
                        let _ = waiting.send((answer, descriptors));
                    }
                }
                Reply::Notice {
                    notice:
                        Notice::Exited {
                            sandbox,
                            exec,
                            exit,
                        },
                } => {
                    if let Some(exits) = self.lock_exits().remove(&(sandbox, exec)) {
                        let _ = exits.send(Some(exit));
                    }
                }
                // Its commands have each said that they ended.
                Reply::Notice {
                    notice: Notice::Ended { .. },
                } => {}
            }
        }
        self.gone.store(true, Ordering::SeqCst);
        self.told.notify_waiters();
        self.lock_answers().clear();
        self.lock_exits().clear();
    }
}
