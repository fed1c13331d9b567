//! A container engine of one's own: private folder and socket, gone when we are.
//!
//! Never uses the engine of this machine, its images or its containers, and
//! leaves no mount and no process behind, also when its owner is killed.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tempfile::TempDir;

use super::scripts::{COMMON, DOCKER, PODMAN};
use super::{EngineKind, TestEngine};
use crate::account::RunAs;
use crate::{lifeline, wait_for};

/// Docker's first start makes its stores, slow on a busy disk.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Ends containers, daemons and mounts one after the other.
const STOP_LIMIT: Duration = Duration::from_secs(90);

/// The capability without which no engine can mount anything.
const SYS_ADMIN: u64 = 1 << 21;

/// A running container engine that nobody else uses.
///
/// Stopped and removed on drop, and also when this process dies.
#[derive(Debug)]
pub struct PrivateEngine {
    kind: EngineKind,
    folder: PathBuf,
    script: Child,
    /// Closing it is the script's signal.
    lifeline: Option<ChildStdin>,
}

/// How the script of an engine is started.
enum Start {
    As(RunAs),
    WithSudo,
}

impl PrivateEngine {
    /// Starts an engine, or says why this machine cannot have it.
    ///
    /// # Errors
    /// It should have started and did not; the text has the end of its log.
    pub fn start(kind: EngineKind) -> Result<Result<Self, String>> {
        let start = match choose_start(kind)? {
            Ok(start) => start,
            Err(reason) => return Ok(Err(reason)),
        };
        // A socket's path has to be short and another user may have to reach
        // it, so the folder is in /tmp whatever TMPDIR says.
        let folder = TempDir::with_prefix_in("fluffy-eng-", "/tmp")
            .context("cannot make a folder in /tmp")?;
        write_settings(kind, folder.path())?;
        if let Start::As(run_as) = &start {
            run_as.own(folder.path())?;
        }
        let (script, lifeline) = start_script(kind, &start, folder.path())?;
        let mut engine = Self {
            kind,
            // From here on the script removes the folder.
            folder: folder.keep(),
            script,
            lifeline: Some(lifeline),
        };
        engine.await_answer()?;
        Ok(Ok(engine))
    }

    /// Which engine it is.
    #[must_use]
    pub fn kind(&self) -> EngineKind {
        self.kind
    }

    /// The socket of its API.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("engine.sock")
    }

    /// What tests are told about it.
    #[must_use]
    pub fn for_tests(&self) -> TestEngine {
        TestEngine::At(self.socket())
    }

    fn await_answer(&mut self) -> Result<()> {
        let socket = self.socket();
        let process = self.folder.join("engine.pid");
        let answer = wait_for("the engine answers", START_LIMIT, || {
            if ping(&socket).is_some() {
                return Some(Ok(()));
            }
            if let Ok(Some(status)) = self.script.try_wait() {
                return Some(Err(anyhow!("its script ended with {status}")));
            }
            has_ended(&process).then(|| Err(anyhow!("it ended at once")))
        });
        answer
            .and_then(|answer| answer)
            .with_context(|| format!("cannot start {}:\n{}", self.kind.name(), self.log_tail()))
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.folder.join("engine.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for PrivateEngine {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let _ = wait_for("the engine has stopped", STOP_LIMIT, || {
            self.script.try_wait().ok().flatten()
        });
    }
}

/// Who runs this kind of engine here, or why nobody can.
fn choose_start(kind: EngineKind) -> Result<Result<Start, String>> {
    let root = rustix::process::geteuid().is_root();
    if root && !may_mount()? {
        let reason = "root has no CAP_SYS_ADMIN here (a container?), so no engine can mount";
        return Ok(Err(reason.to_owned()));
    }
    Ok(match (kind, root) {
        (EngineKind::Docker | EngineKind::Podman, true) => Ok(Start::As(RunAs::Myself)),
        (EngineKind::Podman, false) => Ok(Start::As(RunAs::Myself)),
        (EngineKind::Docker, false) if has_sudo() => Ok(Start::WithSudo),
        (EngineKind::Docker, false) => Err(
            "dockerd needs root: run as root, or let sudo work without a password (`sudo -n true`)"
                .to_owned(),
        ),
        (EngineKind::RootlessPodman, true) => Ok(Start::As(RunAs::choose()?)),
        (EngineKind::RootlessPodman, false) => {
            Err("the other Podman of this run is rootless already".to_owned())
        }
    })
}

fn may_mount() -> Result<bool> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read /proc")?;
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    Ok(set.is_some_and(|set| set & SYS_ADMIN != 0))
}

fn has_sudo() -> bool {
    let mut command = Command::new("sudo");
    command.args(["-n", "true"]).stdin(Stdio::null());
    command.output().is_ok_and(|output| output.status.success())
}

fn write_settings(kind: EngineKind, folder: &Path) -> Result<()> {
    let write = |name: &str, text: String| {
        fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))
    };
    let place = folder.display();
    if kind == EngineKind::Docker {
        // Empty, so that the machine's own settings are not used.
        write("docker.json", "{}".to_owned())?;
        return write(
            "containerd.toml",
            format!(
                "version = 2\nroot = \"{place}/containerd\"\nstate = \"{place}/state\"\n\
                 disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
                 [grpc]\naddress = \"{place}/containerd.sock\"\n"
            ),
        );
    }
    write(
        "containers.conf",
        // No ulimits of its own: they are more than some machines allow.
        format!(
            "[containers]\ndefault_ulimits = []\n[engine]\nruntime = \"runc\"\n\
             cgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nlock_type = \"file\"\n\
             tmp_dir = \"{place}/tmp\"\nvolume_path = \"{place}/volumes\"\n"
        ),
    )?;
    write(
        "storage.conf",
        format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = \"{place}/root\"\n\
             rootless_storage_path = \"{place}/root\"\nrunroot = \"{place}/run\"\n"
        ),
    )
}

fn start_script(kind: EngineKind, start: &Start, folder: &Path) -> Result<(Child, ChildStdin)> {
    let sh = match start {
        Start::As(run_as) => run_as.command(Path::new("sh")),
        Start::WithSudo => {
            let mut command = Command::new("sudo");
            command.args(["-n", "sh"]);
            command
        }
    };
    let body = match kind {
        EngineKind::Docker => DOCKER,
        EngineKind::Podman | EngineKind::RootlessPodman => PODMAN,
    };
    let group = fs::metadata(folder).context("the folder is gone")?.gid();
    let group = group.to_string();
    let words = ["fluffy-engine".as_ref(), folder.as_os_str(), group.as_ref()];
    lifeline::start(sh, &format!("{COMMON}{body}"), &words)
}

/// Asks whether an engine is there, as its own clients do.
fn ping(socket: &Path) -> Option<()> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(START_LIMIT)).ok()?;
    let request = b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n";
    stream.write_all(request).ok()?;
    let mut answer = Vec::new();
    stream.take(10_000).read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let well = answer.lines().next()?.contains(" 200 ");
    (well && answer.ends_with("OK")).then_some(())
}

/// Whether the process whose id the file has is no more.
fn has_ended(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|process| {
        let status = fs::read_to_string(format!("/proc/{}/status", process.trim()));
        // A process that nobody waited for yet is there as a zombie.
        status.map_or(true, |status| status.contains("\nState:\tZ"))
    })
}
