//! A subject that is a program in front of another: `bwrap … -- worker`.
//!
//! Covers bare `bwrap`, our own `fluffy sandbox run` and no isolation at all;
//! `docker` puts one around `docker run`. Output is bounded, waiting too. Must
//! never use a shell.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fluffy_policy::word::Tier;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::attack::{Aftermath, Attack, Network, Streams};
use crate::excerpt::Excerpt;
use crate::pty::Terminal;
use crate::stage::Limits;
use crate::subject::{Ended, Ran, RunTrialError, Subject, Trial};
use crate::sys::spawn;

/// A subject that is a program in front of another.
#[derive(Debug, Clone)]
pub struct CommandSubject {
    /// Its name in tables.
    pub name: String,
    /// The program's version.
    pub version: String,
    /// The tier it is held to.
    pub tier: Tier,
    /// What it is supposed to hold back.
    pub limits: Limits,
    /// The program and its arguments; see [`Word`].
    pub words: Vec<Word>,
    /// Whether it has an egress proxy.
    pub egress: Egress,
    /// Reads how the command inside ended out of how the program did.
    pub ending: fn(&Ran) -> Ended,
    /// Whether it isolates at all.
    pub isolation: Isolated,
    /// Folders of its own that are empty whenever nothing runs.
    pub emptied: Vec<PathBuf>,
}

/// One word of a command line, or what stands there in a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// This text; `{project}` in it becomes the project's path.
    Text(String),
    /// These words if the writes are to be merged, the others if not.
    Aftermath(Vec<String>, Vec<String>),
    /// These words before each permitted host, if there is a network.
    Allow(Vec<String>),
    /// These words if it sits at a terminal.
    AtTerminal(Vec<String>),
    /// The attack's name and its stage.
    Arguments,
}

/// Whether a subject has an egress proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Egress {
    /// It has.
    Proxy,
    /// It has none, so attacks on one cannot be tried.
    None,
}

/// Whether a subject isolates at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolated {
    /// It does.
    Yes,
    /// It does not: to be run inside a throwaway sandbox only.
    No,
}

/// The file by which a throwaway sandbox can be known from inside.
pub const THROWAWAY: &str = "/run/fluffy-throwaway";

impl CommandSubject {
    /// Bare `bwrap`, as people use it.
    ///
    /// # Errors
    /// When there is no `bwrap`.
    pub fn bubblewrap(worker: &[String]) -> Result<Self, RunTrialError> {
        let version = version_of("bwrap")?;
        let mut words: Vec<Word> = "bwrap --unshare-all --die-with-parent --new-session \
             --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --bind {project} {project} \
             --chdir {project} --"
            .split_whitespace()
            .map(text)
            .collect();
        words.extend(worker.iter().map(|word| text(word)));
        words.push(Word::Arguments);
        Ok(Self {
            name: "bwrap".to_owned(),
            version,
            tier: Tier::Process,
            limits: Limits::TRIAL,
            words,
            egress: Egress::None,
            ending: |ran| ran.ended,
            isolation: Isolated::Yes,
            emptied: Vec::new(),
        })
    }

    /// No isolation at all; refuses to run outside a throwaway sandbox.
    #[must_use]
    pub fn bare(worker: &[String]) -> Self {
        let mut words: Vec<Word> = worker.iter().map(|word| text(word)).collect();
        words.push(Word::Arguments);
        Self {
            name: "none".to_owned(),
            version: String::new(),
            tier: Tier::Process,
            limits: Limits::TRIAL,
            words,
            egress: Egress::None,
            ending: |ran| ran.ended,
            isolation: Isolated::No,
            emptied: Vec::new(),
        }
    }

    /// The command line of one trial.
    fn command_line(&self, trial: &Trial<'_>) -> Vec<String> {
        let project = trial.project.to_string_lossy();
        let mut line = Vec::new();
        for word in &self.words {
            match word {
                Word::Text(text) => line.push(text.replace("{project}", &project)),
                Word::Aftermath(merge, discard) => line.extend(match trial.aftermath {
                    Aftermath::Merge => merge.clone(),
                    Aftermath::Discard => discard.clone(),
                }),
                Word::Allow(before) => {
                    if trial.network == Network::Restricted {
                        for allow in &trial.allow {
                            line.extend(before.clone());
                            line.push(allow.to_string());
                        }
                    }
                }
                Word::AtTerminal(words) => {
                    if trial.streams == Streams::Terminal {
                        line.extend(words.clone());
                    }
                }
                Word::Arguments => line.extend(trial.arguments.clone()),
            }
        }
        line
    }
}

impl Subject for CommandSubject {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn tier(&self) -> Tier {
        self.tier
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn lacks(&self, attack: &Attack) -> Option<String> {
        let needs_proxy = attack.network == Network::Restricted;
        (needs_proxy && self.egress == Egress::None)
            .then(|| format!("{} has no egress proxy", self.name))
    }

    fn run(&self, trial: &Trial<'_>) -> Result<Ran, RunTrialError> {
        if self.isolation == Isolated::No && !Path::new(THROWAWAY).exists() {
            return Err(RunTrialError::Unprotected {
                subject: self.name.clone(),
            });
        }
        let line = self.command_line(trial);
        let (program, arguments) = line
            .split_first()
            .map_or(("", line.as_slice()), |parts| (parts.0.as_str(), parts.1));
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(trial.project)
            .envs(trial.environment.iter().cloned());
        for descriptor in trial.descriptors {
            spawn::inherit(&mut command, descriptor.as_raw_fd());
        }
        let mut ran = match trial.streams {
            Streams::Pipes => run_on_pipes(command, program, trial.patience),
            Streams::Terminal => run_at_terminal(command, program, trial.patience),
        }?;
        ran.ended = (self.ending)(&ran);
        Ok(ran)
    }

    fn leftovers(&self) -> Vec<String> {
        let folders = self
            .emptied
            .iter()
            .filter_map(|folder| std::fs::read_dir(folder).ok());
        let entries = folders.flat_map(|entries| entries.flatten());
        entries
            .map(|entry| format!("`{}`", entry.path().display()))
            .collect()
    }
}

fn text(word: &str) -> Word {
    Word::Text(word.to_owned())
}

/// The first line that a program prints about its version.
fn version_of(program: &str) -> Result<String, RunTrialError> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|source| RunTrialError::Start {
            program: program.to_owned(),
            source,
        })?;
    let line = String::from_utf8_lossy(&output.stdout);
    Ok(line.lines().next().unwrap_or_default().trim().to_owned())
}

fn run_on_pipes(
    mut command: Command,
    program: &str,
    patience: Duration,
) -> Result<Ran, RunTrialError> {
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = start(&mut command, program)?;
    let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(RunTrialError::Read {
            program: program.to_owned(),
            source: io::ErrorKind::BrokenPipe.into(),
        });
    };
    let mut excerpts = [Excerpt::default(), Excerpt::default()];
    let streams = [output.as_fd(), errors.as_fd()];
    let ended = attend(&mut child, streams, &mut excerpts, patience).map_err(|source| {
        RunTrialError::Read {
            program: program.to_owned(),
            source,
        }
    })?;
    let [output, errors] = excerpts.map(Excerpt::into_bytes);
    Ok(Ran {
        output,
        errors,
        typed: Vec::new(),
        ended,
    })
}

fn run_at_terminal(
    mut command: Command,
    program: &str,
    patience: Duration,
) -> Result<Ran, RunTrialError> {
    let terminal = Terminal::open().map_err(RunTrialError::Terminal)?;
    let copy = || terminal.copy().map_err(RunTrialError::Terminal);
    command.stdin(copy()?).stdout(copy()?).stderr(copy()?);
    spawn::lead_session_at_input(&mut command);
    let mut child = start(&mut command, program)?;
    drop(command);
    let mut excerpts = [Excerpt::default(), Excerpt::default()];
    let streams = [terminal.screen(), terminal.screen()];
    let ended = attend(&mut child, streams, &mut excerpts, patience).map_err(|source| {
        RunTrialError::Read {
            program: program.to_owned(),
            source,
        }
    })?;
    let [first, second] = excerpts.map(Excerpt::into_bytes);
    Ok(Ran {
        output: [first, second].concat(),
        errors: Vec::new(),
        typed: terminal.pending_input(),
        ended,
    })
}

fn start(command: &mut Command, program: &str) -> Result<Child, RunTrialError> {
    command.spawn().map_err(|source| RunTrialError::Start {
        program: program.to_owned(),
        source,
    })
}

/// Reads both streams until the child has ended, not until they are closed:
/// what an attack leaves behind may hold them open for ever.
fn attend(
    child: &mut Child,
    streams: [BorrowedFd<'_>; 2],
    excerpts: &mut [Excerpt; 2],
    patience: Duration,
) -> io::Result<Ended> {
    let deadline = Instant::now() + patience;
    for stream in streams {
        rustix::io::ioctl_fionbio(stream, true)?;
    }
    loop {
        // Asked before reading, so that the last words are read after it.
        let status = child.try_wait()?;
        for (stream, excerpt) in streams.iter().zip(excerpts.iter_mut()) {
            excerpt.take_from(*stream);
        }
        if let Some(status) = status {
            return Ok(ended(status));
        }
        if Instant::now() >= deadline {
            kill_group(child);
            child.wait()?;
            return Ok(Ended::Overdue);
        }
        wait_a_little(streams)?;
    }
}

/// Waits for output, or for the next look at the child.
fn wait_a_little(streams: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    const LOOK: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 5_000_000,
    };
    let mut polled = streams.map(|stream| PollFd::from_borrowed_fd(stream, PollFlags::IN));
    match poll(&mut polled, Some(&LOOK)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    // A closed stream is always ready; without this the loop would spin.
    if polled
        .iter()
        .any(|stream| stream.revents().contains(PollFlags::HUP))
    {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Ends a child and its group, which `start` made for it.
fn kill_group(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Gone by itself is as good.
        let _ended = kill_process_group(group, Signal::KILL);
    }
    let _ended = child.kill();
}

fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Code { code },
        (None, Some(signal)) => Ended::Signal { signal },
        (None, None) => Ended::Overdue,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(program: &[&str]) -> Command {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]);
        command
    }

    #[test]
    fn a_flood_is_read_to_its_end_and_kept_in_part() {
        let flood = line(&[
            "sh",
            "-c",
            "echo start; head -c 30000000 /dev/zero; echo end",
        ]);
        let ran = run_on_pipes(flood, "sh", Duration::from_secs(60)).unwrap();
        assert_eq!(ran.ended, Ended::Code { code: 0 });
        assert!(ran.output.starts_with(b"start\n"));
        assert!(ran.output.ends_with(b"end\n"));
        assert!(ran.output.len() < 1 << 20);
    }

    #[test]
    fn what_holds_the_pipes_open_is_not_waited_for() {
        let command = line(&["sh", "-c", "sleep 30 & echo started $!"]);
        let began = Instant::now();
        let ran = run_on_pipes(command, "sh", Duration::from_secs(25)).unwrap();
        assert!(began.elapsed() < Duration::from_secs(20));
        let text = String::from_utf8(ran.output).unwrap();
        let number = text.trim().strip_prefix("started ").unwrap();
        crate::sys::process::signal(number.parse().unwrap(), libc::SIGKILL).unwrap();
    }

    #[test]
    fn an_endless_command_is_ended() {
        let ran = run_on_pipes(line(&["sleep", "60"]), "sleep", Duration::from_millis(50)).unwrap();
        assert_eq!(ran.ended, Ended::Overdue);
    }

    #[test]
    fn no_isolation_is_refused_on_a_real_machine() {
        let subject = CommandSubject::bare(&["/bin/true".to_owned()]);
        let folder = tempfile::tempdir().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let trial = Trial {
            arguments: [String::new(), String::new()],
            project: folder.path(),
            environment: &[],
            descriptors: [null.as_fd(), null.as_fd()],
            streams: Streams::Pipes,
            network: Network::None,
            allow: [("x", None), ("y", Some("127.0.0.1"))].map(|(host, address)| {
                crate::subject::Allow {
                    host,
                    port: 1,
                    address,
                }
            }),
            aftermath: Aftermath::Discard,
            patience: Duration::from_secs(5),
        };
        let refused = subject.run(&trial);
        assert!(matches!(refused, Err(RunTrialError::Unprotected { .. })));
    }
}
