//! A launcher of our own with a real engine, and a client that speaks to it.
//!
//! Ends the launcher with itself. Next: `main` for what is shown with it.

use std::collections::VecDeque;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use fluffy_base::ByteSize;
use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::{Command, Exit, LayerMount, SandboxSpec};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::protocol::{self, Answer, Ask, Failure, Notice, Question, Reply, Warm};
use fluffy_sandbox::template::Template;
use fluffy_test_kit::{EngineKind, TestEngine, record_skip};
use tempfile::TempDir;

/// A project, a layer over it, a state directory and an engine.
pub struct Site {
    pub folder: TempDir,
    pub socket: PathBuf,
    program: PathBuf,
    /// Who runs the launcher, where that is not us.
    user: Option<(u32, u32)>,
}

/// What a command left.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

impl Site {
    /// The engine of this kind, or nothing where this machine cannot have it.
    pub fn open(kind: EngineKind, test: &str) -> Option<Self> {
        let socket = match kind.for_tests().unwrap() {
            TestEngine::At(socket) => socket,
            TestEngine::Impossible(reason) => {
                record_skip(&format!("{test} ({})", kind.name()), &reason);
                return None;
            }
        };
        let folder = TempDir::with_prefix_in("fluffy-ct-", "/tmp").unwrap();
        for name in ["state", "layers", "layers/tree", "project"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        for place in ["project", "layers/tree"] {
            fs::write(folder.path().join(place).join("read.me"), "hello\n").unwrap();
        }
        // Others must be able to run it, wherever the build folder is.
        let program = folder.path().join("worker");
        fs::copy(env!("CARGO_BIN_EXE_fluffy-container-worker"), &program).unwrap();
        let owner = fs::metadata(&socket).unwrap();
        let us = rustix::process::geteuid().as_raw();
        let other = kind == EngineKind::RootlessPodman && owner.uid() != us;
        let user = other.then(|| (owner.uid(), owner.gid()));
        let site = Self {
            folder,
            socket,
            program,
            user,
        };
        site.hand_over();
        Some(site)
    }

    /// Gives everything here to whoever runs the launcher.
    pub fn hand_over(&self) {
        let Some((user, group)) = self.user else {
            return;
        };
        let mut open = vec![self.folder.path().to_owned()];
        while let Some(path) = open.pop() {
            std::os::unix::fs::chown(&path, Some(user), Some(group)).unwrap();
            if path.is_dir() {
                open.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            }
        }
        let everybody = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.folder.path(), everybody).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn settings(&self) -> Settings {
        Settings {
            templates: Template::builtin(ByteSize(8 << 30)),
            projects: vec![self.path("project")],
            plugins: None,
            layers: self.path("layers"),
            state: self.path("state"),
            tools: Vec::new(),
            engine: Engine::Container,
        }
    }

    /// A sandbox with the project and its layer.
    pub fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            template: "code-executor".to_owned(),
            project: Some(self.path("project")),
            layer: Some(LayerMount::Tree {
                tree: self.path("layers/tree"),
            }),
            ..SandboxSpec::default()
        }
    }

    pub fn launch(&self) -> Launcher {
        self.launch_with(self.settings()).unwrap()
    }

    pub fn launch_with(&self, settings: Settings) -> Result<Launcher, Failure> {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let mut command = match self.user {
            None => Process::new(&self.program),
            Some((user, group)) => {
                let mut command = Process::new("setpriv");
                command
                    .arg(format!("--reuid={user}"))
                    .arg(format!("--regid={group}"))
                    .args(["--clear-groups", "--"])
                    .arg(&self.program);
                command
            }
        };
        let process = command
            .args(["worker", "container-launcher"])
            .arg(&self.socket)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::from(theirs))
            .spawn()
            .unwrap();
        protocol::send(&ours, &settings, &[]).unwrap();
        match protocol::receive::<Answer>(&ours).unwrap().unwrap().0 {
            Answer::Done => Ok(Launcher {
                process,
                socket: Some(ours),
                asked: 0,
                notices: VecDeque::new(),
            }),
            Answer::Failed { failure } => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    fn docker(&self, arguments: &[&str]) -> Process {
        let host = format!("unix://{}", self.socket.display());
        let mut command = Process::new("docker");
        command.args(["--host", &host]).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Packs a folder.
    pub fn archive(&self, root: &Path) -> PathBuf {
        let archive = self.path("root.tar");
        let mut tar = Process::new("tar");
        tar.arg("-cf").arg(&archive).arg("-C").arg(root).arg(".");
        assert!(tar.status().unwrap().success());
        archive
    }

    /// Makes an image of a folder.
    pub fn import(&self, root: &Path, name: &str) {
        let archive = self.archive(root);
        let mut import = self.docker(&["import", "-", name]);
        let output = import.stdin(fs::File::open(&archive).unwrap()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    pub fn remove_image(&self, name: &str) {
        let output = self.docker(&["rmi", "--force", name]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// The containers that carry a label of ours, as the engine lists them.
    ///
    /// Docker sometimes lists one that it does not know any more; that is none.
    pub fn containers(&self) -> Vec<String> {
        let mut listed = self.labelled(&["ps", "--all", "--quiet"]);
        listed.retain(|id| {
            let inspected = self.docker(&["inspect", id]).output().unwrap();
            inspected.status.success()
        });
        listed
    }

    /// The volumes that carry a label of ours.
    pub fn volumes(&self) -> Vec<String> {
        self.labelled(&["volume", "ls", "--quiet"])
    }

    fn labelled(&self, list: &[&str]) -> Vec<String> {
        let state = self.path("state").canonicalize().unwrap();
        let digest = fluffy_base::Digest::of(state.as_os_str().as_encoded_bytes()).to_string();
        let mark: String = digest.chars().take(32).collect();
        let filter = format!("--filter=label=fluffy.state={mark}");
        let output = self.docker(list).arg(filter).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// How a launcher loses its client, or its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Kill,
    HangUp,
}

/// A launcher that runs.
pub struct Launcher {
    process: Child,
    socket: Option<OwnedFd>,
    asked: u64,
    notices: VecDeque<Notice>,
}

impl Launcher {
    /// Asks and waits for the answer; notices in between are kept.
    pub fn ask(&mut self, ask: Ask, descriptors: &[OwnedFd]) -> (Answer, Vec<OwnedFd>) {
        self.try_ask(ask, descriptors).expect("the launcher lives")
    }

    /// The same; nothing when the launcher is gone.
    pub fn try_ask(&mut self, ask: Ask, descriptors: &[OwnedFd]) -> Option<(Answer, Vec<OwnedFd>)> {
        self.asked += 1;
        let id = self.asked;
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let socket = self.socket.as_ref()?;
        protocol::send(socket, &Question { id, ask }, &descriptors).ok()?;
        loop {
            let (reply, descriptors) = protocol::receive::<Reply>(socket).ok()??;
            match reply {
                Reply::Answer {
                    id: answered,
                    answer,
                } => {
                    assert_eq!(answered, id, "one question at a time");
                    return Some((answer, descriptors));
                }
                Reply::Notice { notice } => self.notices.push_back(notice),
            }
        }
    }

    /// Makes, uses and removes sandboxes until the launcher is gone.
    pub fn work_until_gone(&mut self, spec: &SandboxSpec, word: &str) {
        let warm = Warm::Complete;
        let mut exec = 0;
        loop {
            let (sandbox, spec) = (SandboxId::generate(), spec.clone());
            exec += 1;
            let null = || OwnedFd::from(fs::File::options().write(true).open("/dev/null").unwrap());
            let streams = [null(), null(), null()];
            let command = Command::new(["sleep", word]);
            let done = self
                .try_ask(
                    Ask::Create {
                        sandbox,
                        spec,
                        warm,
                    },
                    &[],
                )
                .and_then(|_| {
                    self.try_ask(
                        Ask::Exec {
                            sandbox,
                            exec,
                            command,
                        },
                        &streams,
                    )
                })
                .and_then(|_| self.try_ask(Ask::Cleanup { sandbox }, &[]));
            if done.is_none() {
                return;
            }
        }
    }

    /// Ends the launcher, or only the way to it, after a while.
    pub fn end_after(&self, delay: Duration, way: Way) -> std::thread::JoinHandle<()> {
        let process = rustix::process::Pid::from_child(&self.process);
        let socket = self.socket.as_ref().unwrap().try_clone().unwrap();
        std::thread::spawn(move || {
            // Not a wait for anything: a random point of what goes on.
            std::thread::sleep(delay);
            match way {
                Way::Kill => {
                    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
                }
                Way::HangUp => {
                    rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).unwrap();
                }
            }
        })
    }

    /// Asks for something that must be done.
    pub fn must(&mut self, ask: Ask) {
        let (answer, _) = self.ask(ask, &[]);
        assert!(matches!(answer, Answer::Done), "{answer:?}");
    }

    pub fn create(&mut self, spec: SandboxSpec) -> Result<SandboxId, Answer> {
        let sandbox = SandboxId::generate();
        let warm = Warm::Complete;
        match self
            .ask(
                Ask::Create {
                    sandbox,
                    spec,
                    warm,
                },
                &[],
            )
            .0
        {
            Answer::Done => Ok(sandbox),
            other => Err(other),
        }
    }

    /// The next notice.
    pub fn notice(&mut self) -> Notice {
        if let Some(notice) = self.notices.pop_front() {
            return notice;
        }
        let socket = self.socket.as_ref().unwrap();
        match protocol::receive::<Reply>(socket).unwrap().unwrap().0 {
            Reply::Notice { notice } => notice,
            other => panic!("{other:?}"),
        }
    }

    /// How a command ended; other notices are kept out of it.
    pub fn exit_of(&mut self, exec: u64) -> Exit {
        loop {
            match self.notice() {
                Notice::Exited {
                    exec: ended, exit, ..
                } if ended == exec => return exit,
                _ => {}
            }
        }
    }

    /// Starts a command with an empty input; the readers of its output.
    pub fn start(
        &mut self,
        sandbox: SandboxId,
        exec: u64,
        command: Command,
    ) -> (std::io::PipeReader, std::io::PipeReader) {
        let input: OwnedFd = fs::File::open("/dev/null").unwrap().into();
        let (stdout, write_stdout) = std::io::pipe().unwrap();
        let (stderr, write_stderr) = std::io::pipe().unwrap();
        let streams = [input, write_stdout.into(), write_stderr.into()];
        let (answer, _) = self.ask(
            Ask::Exec {
                sandbox,
                exec,
                command,
            },
            &streams,
        );
        assert!(matches!(answer, Answer::Done), "{answer:?}");
        (stdout, stderr)
    }

    /// Runs a command to its end.
    pub fn run(&mut self, sandbox: SandboxId, exec: u64, argv: &[&str]) -> Ran {
        self.run_command(sandbox, exec, Command::new(argv.iter().copied()))
    }

    pub fn run_command(&mut self, sandbox: SandboxId, exec: u64, command: Command) -> Ran {
        let (mut out, mut err) = self.start(sandbox, exec, command);
        let errors = std::thread::spawn(move || {
            let mut stderr = String::new();
            err.read_to_string(&mut stderr).unwrap();
            stderr
        });
        let mut stdout = String::new();
        out.read_to_string(&mut stdout).unwrap();
        Ran {
            exit: self.exit_of(exec),
            stdout,
            stderr: errors.join().unwrap(),
        }
    }

    pub fn shell(&mut self, sandbox: SandboxId, exec: u64, script: &str) -> Ran {
        self.run(sandbox, exec, &["sh", "-c", script])
    }

    /// Kills the launcher as nothing else would.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Lets it notice that its client is gone, and waits until it has ended.
    pub fn finish(mut self) {
        self.socket = None;
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.socket = None;
        let _ = self.process.wait();
    }
}

/// Whether a process of ours with this word in its arguments still runs.
pub fn some_process_says(word: &str) -> bool {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .any(|line| contains(&line, word.as_bytes()))
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

/// A file's text.
pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}
