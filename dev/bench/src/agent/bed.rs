//! A repository, a model that plays a script at once, and the real `fluffy`.
//!
//! Keeps when each request reached the model and when each event came out.
//! Judges nothing: `calls`, `footprint` and `long` do.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fluffy_model_server::{Format, ModelServer, Options, Reply};
use fluffy_test_kit::{TestContext, wait_for};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);
const MODEL: &str = "anthropic/claude-opus-4-8";

/// A runner of tests that costs next to nothing.
const RUNNER: &str = r#"n=0 failed=0
for t in tests/*.t; do
  n=$((n+1))
  if sh "$t"; then echo "ok $n - $t"; else echo "not ok $n - $t"; failed=1; fi
done
echo "1..$n"
exit $failed
"#;

/// A project with a model.
pub(super) struct Bed {
    pub(super) context: TestContext,
    _server: ModelServer,
    play: Arc<Mutex<Play>>,
    tier: &'static str,
}

/// What the model will say, and when it was asked.
#[derive(Default)]
struct Play {
    replies: VecDeque<Reply>,
    /// Said when nothing else is left.
    then: Reply,
    asked: Vec<Instant>,
}

/// What one session left behind.
pub(super) struct Ran {
    pub(super) began: Instant,
    /// When each request was with the model.
    pub(super) asked: Vec<Instant>,
    pub(super) events: Vec<(Instant, Value)>,
    pub(super) code: Option<i32>,
}

impl Bed {
    /// A repository with these files and a test that passes.
    pub(super) fn new(files: &[(String, String)]) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("fluffy");
        ensure!(
            program.is_file(),
            "there is no {}; build fluffy-cli with the same profile",
            program.display()
        );
        let play = Arc::new(Mutex::new(Play::default()));
        let mind = Arc::clone(&play);
        let options = Options {
            forgets: true,
            ..Options::default()
        };
        let server = ModelServer::start(options, move |_| {
            let mut play = lock(&mind);
            play.asked.push(Instant::now());
            let then = play.then.clone();
            play.replies.pop_front().unwrap_or(then)
        })?;
        let mut context = TestContext::new(program)?;
        context
            .set("ANTHROPIC_BASE_URL", &server.base_url(Format::Anthropic))
            .set("FLUFFY_KERNEL_LINGER", "3")
            .set("FLUFFY_BUDGET_TURNS", "10000")
            .set("FLUFFY_BUDGET_TOKENS", "1000000000")
            .set("FLUFFY_BUDGET_COST_CENTS", "1000000")
            .set("FLUFFY_BUDGET_WALL_TIME", "10h");
        context.write(
            ".fluffy/config.toml",
            "tests.command = [\"sh\", \"tests/run.sh\"]\n",
        )?;
        context.write("tests/run.sh", RUNNER)?;
        context.write("tests/first.t", "grep -q first src/code.txt\n")?;
        context.write("src/code.txt", "first\n")?;
        for (path, text) in files {
            context.write(path, text)?;
        }
        let bed = Self {
            context,
            _server: server,
            play,
            tier: "process",
        };
        bed.git(&["init", "-q", "-b", "main"])?;
        bed.git(&["add", "-A"])?;
        bed.git(&["commit", "-q", "-m", "before"])?;
        Ok(bed)
    }

    /// The same with tools in containers of the engine at this socket.
    pub(super) fn contained(socket: &Path) -> Result<Self> {
        let mut bed = Self::new(&[])?;
        let engine = format!("unix://{}", socket.display());
        bed.context.set("DOCKER_HOST", &engine);
        bed.tier = "container";
        Ok(bed)
    }

    /// A whole session in which the model says this, and then nothing more.
    pub(super) fn run(&self, replies: Vec<Reply>) -> Result<Ran> {
        self.run_watched(replies, |_| Ok(()))
    }

    /// The same, with a look at every event as it comes.
    pub(super) fn run_watched(
        &self,
        replies: Vec<Reply>,
        mut watch: impl FnMut(&Value) -> Result<()>,
    ) -> Result<Ran> {
        let began = Instant::now();
        let mut child = self.start(replies, Reply::text("That is all."))?;
        let output = child.stdout.take().context("its output is a pipe")?;
        let mut events = Vec::new();
        for line in BufReader::new(output).lines() {
            let line = line?;
            let now = Instant::now();
            let event: Value = serde_json::from_str(&line)?;
            watch(&event)?;
            events.push((now, event));
        }
        let code = child.wait()?.code();
        Ok(Ran {
            began,
            asked: std::mem::take(&mut lock(&self.play).asked),
            events,
            code,
        })
    }

    /// Starts a session; whoever starts it ends it.
    pub(super) fn start(&self, replies: Vec<Reply>, then: Reply) -> Result<Child> {
        {
            let mut play = lock(&self.play);
            play.replies = replies.into();
            play.then = then;
            play.asked.clear();
        }
        let mut command = self.context.command();
        command
            .args(["run", "--json", "--model", MODEL, "--tier", self.tier])
            .arg("do the task")
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        command.spawn().context("cannot run fluffy")
    }

    /// How many requests have reached the model in this session.
    pub(super) fn asked(&self) -> usize {
        lock(&self.play).asked.len()
    }

    /// Where this user's state is.
    pub(super) fn state(&self) -> PathBuf {
        self.context.home().join(".local/state/fluffy")
    }

    /// The process that is the kernel of this project, if there is one.
    pub(super) fn kernel(&self) -> Result<Option<u32>> {
        self.worker(&["kernel"])
    }

    /// A process of this project that does one of these.
    fn worker(&self, roles: &[&str]) -> Result<Option<u32>> {
        let project = self.context.project().canonicalize()?;
        let project = project.to_string_lossy().into_owned();
        for entry in std::fs::read_dir("/proc")? {
            let Some(id) = entry?.file_name().to_str().and_then(|id| id.parse().ok()) else {
                continue;
            };
            // Whatever ends meanwhile is none.
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let words: Vec<&str> = line.split('\0').collect();
            if let [_, "worker", role, of @ ..] = words.as_slice()
                && roles.contains(role)
                && of.contains(&project.as_str())
            {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Waits until the kernel has ended by itself.
    pub(super) fn rest(&self) -> Result<()> {
        wait_for("the kernel ends by itself", PATIENCE, || {
            matches!(self.worker(&["bootstrap", "kernel"]), Ok(None)).then_some(())
        })
    }

    fn git(&self, words: &[&str]) -> Result<()> {
        let status = Command::new("git")
            .current_dir(self.context.project())
            .env("HOME", self.context.home())
            .args(["-c", "user.name=Ann", "-c", "user.email=ann@example.com"])
            .args(words)
            .status()
            .context("cannot run git")?;
        ensure!(status.success(), "git {words:?} failed");
        Ok(())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Its folders go away with it, and a kernel still writes into them.
        let _ = self.rest();
    }
}

impl Ran {
    /// Seconds between the two events of every call of a tool; all must have
    /// been made.
    pub(super) fn calls(&self, tool: &str) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for (ended, event) in self.of("tool.finished", tool) {
            let same = |(_, one): &&(Instant, Value)| {
                one.get("type").is_some_and(|kind| kind == "tool.started")
                    && one.get("call") == event.get("call")
            };
            let started = self.events.iter().find(same);
            let (started, _) = started.context("a call that never started")?;
            ensure!(
                event.get("outcome").is_some_and(|how| how == "done"),
                "{event}"
            );
            times.push(ended.duration_since(*started).as_secs_f64());
        }
        ensure!(!times.is_empty(), "`{tool}` was never called");
        Ok(times)
    }

    /// Events of a kind about a tool.
    fn of<'a>(
        &'a self,
        kind: &'a str,
        tool: &'a str,
    ) -> impl Iterator<Item = &'a (Instant, Value)> {
        self.events.iter().filter(move |(_, event)| {
            event.get("type").is_some_and(|one| one == kind)
                && event.get("tool").is_some_and(|one| one == tool)
        })
    }

    /// Seconds from each request to the next.
    pub(super) fn turns(&self) -> Vec<f64> {
        let pairs = self.asked.iter().zip(self.asked.iter().skip(1));
        pairs
            .map(|(one, next)| next.duration_since(*one).as_secs_f64())
            .collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
