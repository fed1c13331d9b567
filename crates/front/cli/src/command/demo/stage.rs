//! The demo's own world: a repository, a home and a state, in one folder.
//!
//! Programs run in it see this environment and nothing of the person's: no
//! key, no configuration, no ledger. Nothing stays behind.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fluffy_config::{ProcessEngine, env};
use fluffy_report::{ExitCode, Report};
use fluffy_sandbox::plan::Engine;
use fluffy_sandbox::probe;

use crate::command::platform::until_told;
use crate::failure::{self, Failure};
use crate::kernel::bootstrap::ENGINE;
use crate::session::{Here, Session};

/// What the model said; `tests/cli/scenario/rehearsed.rs` makes it.
pub(super) const RECORDING: &str = include_str!("session.jsonl");

/// The repository, without its secret.
const FILES: [(&str, &str); 7] = [
    (".fluffy/config.toml", include_str!("project/config.toml")),
    (".gitignore", ".env\n"),
    ("fluffy.toml", include_str!("project/fluffy.toml")),
    ("serve.pl", include_str!("project/serve.pl")),
    ("slug.sh", include_str!("project/slug.sh")),
    ("tests/run.sh", include_str!("project/tests/run.sh")),
    (
        "tests/spaces.test.sh",
        include_str!("project/tests/spaces.test.sh"),
    ),
];

/// What nobody may read.
const SECRET: (&str, &str) = (".env", "TOKEN=nobody-reads-this\n");

/// The person's variables that say how to show things and where programs are.
const PASSED_ON: &[&str] = &[
    "COLORTERM",
    "LANG",
    "LC_ALL",
    "NO_COLOR",
    "PATH",
    "TERM",
    "TMPDIR",
    "TZ",
];

/// How long a kernel may take to end when nobody needs it any more.
const ENDS: Duration = Duration::from_secs(30);

/// Everything the demo plays with.
#[derive(Debug)]
pub(super) struct Stage<'s> {
    pub(super) session: &'s Session,
    /// Why isolation is reduced here, if it is.
    pub(super) reduced: Option<String>,
    folder: tempfile::TempDir,
    program: PathBuf,
    /// Whether somebody asked us to end.
    interrupted: Arc<AtomicBool>,
}

/// What a program did.
#[derive(Debug)]
pub(super) struct Ran {
    /// Its exit code, unless a signal ended it.
    pub(super) code: Option<i32>,
    /// What it printed.
    pub(super) stdout: String,
    /// What it complained about.
    pub(super) stderr: String,
}

impl<'s> Stage<'s> {
    /// Makes the folder and the repository in it.
    pub(super) fn set(session: &'s Session, recording: &str) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("fluffy-demo-")
            .tempdir()
            .map_err(|error| no_room(&error))?;
        let stage = Self {
            session,
            reduced: reduced(session.here()?)?,
            program: std::env::current_exe().map_err(|error| failure::no_program(&error))?,
            folder,
            interrupted: watch(),
        };
        for name in ["home", "project"] {
            private(&stage.path(name)).map_err(|error| no_room(&error))?;
        }
        stage.write("session.jsonl", recording)?;
        // Without mounts nothing can hide it from commands, so there is none;
        // asking for it is refused all the same.
        let secret = Some(&SECRET).filter(|_| stage.reduced.is_none());
        for (path, text) in FILES.iter().chain(secret) {
            let path = stage.path("project").join(path);
            let parent = path.parent().unwrap_or(&path);
            fs::create_dir_all(parent).map_err(|error| no_room(&error))?;
            fs::write(&path, text).map_err(|error| no_room(&error))?;
        }
        for words in [
            &["init", "-q", "-b", "main"][..],
            &["config", "user.name", "Demo"],
            &["config", "user.email", "demo@localhost"],
            &["add", "-A"],
            &["commit", "-q", "-m", "Slugs of titles"],
        ] {
            stage.git(words)?;
        }
        Ok(stage)
    }

    /// Runs git in the repository; it must succeed.
    pub(super) fn git(&self, words: &[&str]) -> Result<Ran, Failure> {
        self.succeeds(self.command(Path::new("git")).args(words))
    }

    /// Runs a line of shell in the repository; it must succeed.
    pub(super) fn shell(&self, line: &str) -> Result<Ran, Failure> {
        self.succeeds(self.command(Path::new("sh")).args(["-c", line]))
    }

    /// Runs this program in the repository; it must succeed.
    pub(super) fn fluffy(&self, words: &[&str]) -> Result<Ran, Failure> {
        self.succeeds(self.command(&self.program).args(words))
    }

    /// Runs this program, however it ends.
    pub(super) fn ran(&self, words: &[&str]) -> Result<Ran, Failure> {
        let mut command = self.command(&self.program);
        self.finish(command.args(words))
    }

    /// Runs a program that only says something; it must succeed.
    pub(super) fn run(&self, program: &Path, words: &[&str]) -> Result<String, Failure> {
        Ok(self.succeeds(self.command(program).args(words))?.stdout)
    }

    /// Starts this program beside the demo; who gets it ends it.
    pub(super) fn start(&self, words: &[&str], complaints: fs::File) -> Result<Child, Failure> {
        let mut command = self.command(&self.program);
        command.args(words).stdin(Stdio::null());
        let started = command.stdout(Stdio::piped()).stderr(complaints).spawn();
        started.map_err(|error| self.not_run(&error))
    }

    /// Whether somebody asked us to end.
    pub(super) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Runs this program before everybody's eyes; its exit code.
    pub(super) fn fluffy_shown(&self, words: &[&str]) -> Result<Option<i32>, Failure> {
        let mut command = self.command(&self.program);
        let words = words.iter().map(|word| match *word {
            "session.jsonl" => self.path(word).into_os_string(),
            word => word.into(),
        });
        command.args(words);
        if self.session.json() {
            command.arg("--json");
        }
        let status = command.stdin(Stdio::null()).status();
        let code = status.map_err(|error| self.not_run(&error))?.code();
        self.go_on()?;
        Ok(code)
    }

    /// Writes a file beside the repository.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.path(name);
        fs::write(&path, text).map_err(|error| no_room(&error))?;
        Ok(path)
    }

    /// Waits for what still runs and removes everything.
    pub(super) fn end(self) -> Result<(), Failure> {
        let run = self.path("state").join("run");
        let deadline = Instant::now() + ENDS;
        while has_socket(&run) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.folder.close().map_err(|error| no_room(&error).into())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program in the repository, with nothing of the person's around it.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.path("project"))
            .env_clear()
            .env(env::HOME, self.path("home"))
            .env(env::FLUFFY_STATE_DIR, self.path("state"))
            .env(env::FLUFFY_KERNEL_LINGER, "1")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_PAGER", "cat");
        for name in PASSED_ON {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if self.reduced.is_some() {
            command.env(ENGINE, "reduced");
        }
        command
    }

    fn succeeds(&self, command: &mut Command) -> Result<Ran, Failure> {
        let ran = self.finish(command)?;
        if ran.code == Some(0) {
            return Ok(ran);
        }
        let program = Path::new(command.get_program()).file_name();
        let name = program.unwrap_or_default().to_string_lossy();
        let what = format!("a step of the demo failed: `{name}`");
        Err(Report::new(ExitCode::Failure, what)
            .why(ran.stderr.trim_end().to_owned())
            .fix("please report this with the output above")
            .into())
    }

    fn finish(&self, command: &mut Command) -> Result<Ran, Failure> {
        let ran = finish(command).map_err(|error| self.not_run(&error))?;
        self.go_on()?;
        Ok(ran)
    }

    /// Fails once somebody asked us to end: no further step begins.
    fn go_on(&self) -> Result<(), Failure> {
        match self.interrupted() {
            true => Err(Report::new(ExitCode::Failure, "interrupted").into()),
            false => Ok(()),
        }
    }

    fn not_run(&self, error: &io::Error) -> Failure {
        Report::new(ExitCode::Failure, "the demo cannot start what it shows")
            .why(error.to_string())
            .fix("install git; beside it the demo needs nothing but a shell")
            .into()
    }
}

/// Has Ctrl-C end the step that runs, and us after it in good order.
fn watch() -> Arc<AtomicBool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&interrupted);
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let Ok(runtime) = runtime.enable_all().build() else {
            return;
        };
        runtime.block_on(async { until_told().await });
        told.store(true, Ordering::Relaxed);
    });
    interrupted
}

fn finish(command: &mut Command) -> io::Result<Ran> {
    let output = command.stdin(Stdio::null()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Ran {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    })
}

/// Why the default isolation is not to be had here, if less of it is.
fn reduced(here: &Here) -> Result<Option<String>, Failure> {
    if here.settings.values().sandbox.engine == ProcessEngine::Reduced {
        return Ok(Some("`sandbox.engine` asks for it".to_owned()));
    }
    let probed = probe::Report::probe();
    let of = |engine| probed.engines.iter().find(|tried| tried.engine == engine);
    let obstacle = |engine| of(engine).and_then(|tried| tried.obstacle.as_ref());
    let Some(native) = obstacle(Engine::Native) else {
        return Ok(None);
    };
    match obstacle(Engine::Reduced) {
        None => Ok(Some(native.what.clone())),
        Some(reduced) => {
            let what = "nothing can be isolated on this machine";
            Err(Report::new(ExitCode::Failure, what)
                .code("no_sandbox")
                .why(native.what.clone())
                .why(reduced.what.clone())
                .fix("`fluffy doctor` says what it takes")
                .into())
        }
    }
}

fn has_socket(run: &Path) -> bool {
    let entries = fs::read_dir(run).into_iter().flatten().flatten();
    let mut sockets = entries.map(|entry| entry.path().join("kernel.sock"));
    sockets.any(|socket| socket.exists())
}

fn private(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(folder)
}

/// The temporary folder cannot be used.
pub(super) fn no_room(error: &io::Error) -> Report {
    Report::new(ExitCode::Failure, "cannot use the temporary folder")
        .why(error.to_string())
        .fix("make room in it, or set TMPDIR to another folder")
}
