//! An instance as the subject of attacks: a new one for each trial, with the
//! attacker and a copy of the project in its image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fluffy_attack::{
    Aftermath, Attack, Ended, Guard, Limits, Network, Ran, Reason, RunTrialError, Streams, Subject,
    Trial,
};
use fluffy_guest::host::{Events, GuestEvent, LogStream, Options, open};
use fluffy_guest::log::Content;
use fluffy_guest::message::Happening;
use fluffy_policy::word::Tier;
use fluffy_shim::Word;
use rustix::io::FdFlags;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::image::image_of;
use crate::kit::{Instance, PATIENCE, disk};

/// Where the attacker is in the image.
const WORKER: &str = "/attacker";

/// How large the disk is that it writes to.
const DISK: u64 = 128 << 20;

/// Who attacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Nobody in particular.
    App,
    /// The instance's own user 0, with all that has.
    Root,
}

/// The subject.
#[derive(Debug)]
pub(crate) struct InInstance {
    user: User,
    /// The attacker and what it needs, as a layer.
    base: Vec<u8>,
    runtime: Runtime,
}

impl InInstance {
    pub(crate) fn new(user: User) -> Self {
        Self {
            user,
            base: base(),
            runtime: Runtime::new().unwrap(),
        }
    }
}

impl Subject for InInstance {
    fn name(&self) -> &str {
        "instance"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn tier(&self) -> Tier {
        Tier::Process
    }

    fn limits(&self) -> Limits {
        Limits {
            disk: DISK,
            tmpfs: Limits::TRIAL.memory / 4,
            ..Limits::TRIAL
        }
    }

    fn lacks(&self, attack: &Attack) -> Option<String> {
        let why = match (
            attack.guard,
            attack.aftermath,
            attack.network,
            attack.streams,
        ) {
            (Guard::TimeLimit, ..) => "an instance runs as long as it is wanted",
            (Guard::OutputLimit, ..) => "lines are bounded by the node, which keeps the newest",
            (Guard::FileSizeLimit, ..) => "one file may fill the room that there is",
            (_, Aftermath::Merge, ..) => "nothing of an instance is merged anywhere",
            (_, _, Network::Restricted, _) => "an instance has no egress proxy",
            (_, _, _, Streams::Terminal) => "an instance never has its user's terminal",
            _ => return None,
        };
        Some(why.to_owned())
    }

    fn run(&self, trial: &Trial<'_>) -> Result<Ran, RunTrialError> {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root.erofs");
        let project = packed(&[], &[trial.project.to_owned()]);
        image_of(&[&self.base, &project], &root);
        // The starter has these open: an attack looks whether they come along.
        for descriptor in trial.descriptors {
            rustix::io::fcntl_setfd(descriptor, FdFlags::empty()).unwrap();
        }
        let limits = self.limits();
        let (mut instance, word) = Instance::try_start_by(
            |order| {
                order.root = root;
                order.scratch = Some(disk(&order.dir, DISK));
                order.memory_bytes = limits.memory;
                order.pids = limits.pids;
            },
            |shim| {
                shim.envs(trial.environment.iter().cloned());
            },
        );
        for descriptor in trial.descriptors {
            rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC).unwrap();
        }
        assert_eq!(word, Word::Ready);
        let mut config = instance.config("");
        config.command = [WORKER, "attack"].map(str::to_owned).to_vec();
        config.command.extend(trial.arguments.clone());
        config.workdir = trial.project.display().to_string();
        config.rlimits.nofile = limits.descriptors;
        if self.user == User::App {
            (config.user.uid, config.user.gid) = (1_000, 1_000);
        }
        let ran = self.runtime.block_on(async {
            let stream = UnixStream::connect(&instance.order.link).await.unwrap();
            let options = Options {
                handshake: PATIENCE,
                ..Options::default()
            };
            let (_, connection, events) = open(stream, options).await.unwrap();
            connection.configure(config, None).await.unwrap();
            let listened = tokio::time::timeout(trial.patience, listen(events)).await;
            let Ok(mut ran) = listened else {
                return ran(Ended::Overdue);
            };
            // Memory may have ended init itself, which says nothing then.
            let record = match ran.ended {
                Ended::Overdue => Some(instance.exit_file().await),
                _ => None,
            };
            if let Some(record) = record {
                ran.ended = match (record.oom, record.exit_code, record.signal) {
                    (true, ..) => Ended::Limit {
                        reason: Reason::Memory,
                    },
                    (false, Some(code), _) => Ended::Code { code },
                    (false, None, Some(signal)) => Ended::Signal { signal },
                    (false, None, None) => Ended::Overdue,
                };
            }
            ran
        });
        drop(instance);
        Ok(ran)
    }

    fn leftovers(&self) -> Vec<String> {
        // An instance that leaves something panics when it is dropped.
        Vec::new()
    }
}

fn ran(ended: Ended) -> Ran {
    Ran {
        output: Vec::new(),
        errors: Vec::new(),
        typed: Vec::new(),
        ended,
    }
}

/// What it says, and how it ends; `Overdue` if nobody said how.
async fn listen(mut events: Events) -> Ran {
    let mut ran = ran(Ended::Overdue);
    while let Some(event) = events.next().await {
        match event {
            GuestEvent::Log { stream, record } => {
                let Content::Line { text, .. } = record.content else {
                    continue;
                };
                let stream = match stream {
                    LogStream::Stdout => &mut ran.output,
                    LogStream::Stderr | LogStream::Init => &mut ran.errors,
                };
                stream.extend(text);
                stream.push(b'\n');
            }
            GuestEvent::Status(status) => {
                ran.ended = match status.what {
                    Happening::Exited {
                        exit_code: Some(code),
                        ..
                    } => Ended::Code { code },
                    Happening::Exited {
                        signal: Some(signal),
                        ..
                    } => Ended::Signal { signal },
                    Happening::Failed { code, detail } => panic!("{code}: {detail}"),
                    _ => continue,
                };
                return ran;
            }
            GuestEvent::Stats(_) => {}
            GuestEvent::Lost(_) => break,
        }
    }
    ran
}

/// The attacker, stripped, with what attempts start besides it.
fn base() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let own = std::env::current_exe().unwrap();
    let attacker = folder.path().join("attacker");
    let stripped = Command::new("strip")
        .arg("-o")
        .arg(&attacker)
        .arg(&own)
        .status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(&own, &attacker).unwrap();
    }
    let mut files = Vec::new();
    for program in ["/usr/bin/tar", "/usr/bin/gzip"].map(Path::new) {
        files.extend(libraries(program));
        files.push(program.to_owned());
    }
    files.extend(libraries(&own));
    files.sort();
    files.dedup();
    let mut archive = packed(&["--dereference"], &files);
    // Two blocks of nothing end an archive; another one follows here.
    let end = archive.iter().rposition(|byte| *byte != 0).unwrap();
    archive.truncate((end + 1).next_multiple_of(512));
    let second = Command::new("tar")
        .args(["--create", "--owner=0", "--group=0", "--directory"])
        .arg(folder.path())
        .arg("attacker")
        .output()
        .unwrap();
    assert!(second.status.success());
    archive.extend(second.stdout);
    archive
}

/// Files of this machine, at the same places.
fn packed(flags: &[&str], files: &[PathBuf]) -> Vec<u8> {
    let relative = files.iter().map(|file| file.strip_prefix("/").unwrap());
    let packed = Command::new("tar")
        .args(["--create", "--owner=1000", "--group=1000"])
        .args(flags)
        .args(["--directory", "/", "--"])
        .args(relative)
        .stderr(Stdio::null())
        .output()
        .unwrap();
    assert!(packed.status.success());
    packed.stdout
}

/// The libraries of a program and its loader, as the loader itself lists them.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = Command::new(program)
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .output()
        .unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).collect()
}
