//! `docker run` as a developer types it, to compare with.
//!
//! The project is bound into a container, everything else is Docker's default:
//! no limit, no option, no profile of ours. Its image has the worker, `tar` and
//! `gzip` with their libraries, from this host, so nothing is fetched. Must
//! never touch a container or an image that is not its own.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fluffy_policy::word::Tier;

use crate::attack::Attack;
use crate::command::{CommandSubject, Egress, Isolated, Word};
use crate::stage::Limits;
use crate::subject::{Ran, RunTrialError, Subject, Trial};

/// What attempts start besides the worker.
const PROGRAMS: [&str; 2] = ["/usr/bin/tar", "/usr/bin/gzip"];

/// `docker run`; its image and its containers go when it is dropped.
#[derive(Debug)]
pub struct DockerRun {
    command: CommandSubject,
    docker: Docker,
    image: String,
    label: String,
}

impl DockerRun {
    /// Makes the image for this worker, whose first word is a program's path,
    /// with the engine at this address or else with the one in use.
    ///
    /// # Errors
    /// There is no `docker`, nobody answers it, or the image cannot be made.
    pub fn start(worker: &[String], address: Option<&str>) -> Result<Self, RunTrialError> {
        let docker = Docker::at(address);
        let mark = std::process::id();
        let image = format!("localhost/fluffy-selftest:{mark}");
        let label = format!("fluffy.selftest={mark}");
        let format = "{{.Client.Version}}, engine {{.Server.Version}}";
        let asked = docker.ask(&["version", "--format", format])?;
        let version = format!("docker {}", text_of(&asked.stdout));
        make_image(&docker, &image, worker.first().map_or("", String::as_str))?;
        let line = format!(
            "run --rm --label {label} --volume {{project}}:{{project}} --workdir {{project}}"
        );
        let mut words = docker
            .words
            .iter()
            .map(|word| text(word))
            .collect::<Vec<_>>();
        words.extend(line.split_whitespace().map(text));
        words.push(Word::AtTerminal(vec![
            "--interactive".into(),
            "--tty".into(),
        ]));
        words.push(text(&image));
        words.extend(worker.iter().map(|word| text(word)));
        words.push(Word::Arguments);
        Ok(Self {
            command: CommandSubject {
                name: "docker run".to_owned(),
                version,
                tier: Tier::Container,
                limits: Limits::TRIAL,
                words,
                egress: Egress::None,
                ending: |ran| ran.ended,
                isolation: Isolated::Yes,
                emptied: Vec::new(),
            },
            docker,
            image,
            label,
        })
    }
}

/// The command, and which engine it speaks to.
#[derive(Debug)]
struct Docker {
    words: Vec<String>,
}

impl Docker {
    fn at(address: Option<&str>) -> Self {
        let mut words = vec!["docker".to_owned()];
        words.extend(address.map(|address| format!("--host={address}")));
        Self { words }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut words = self.words.iter();
        let mut command = Command::new(words.next().map_or("docker", String::as_str));
        command.args(words).args(arguments).stdin(Stdio::null());
        command
    }

    fn ask(&self, arguments: &[&str]) -> Result<Output, RunTrialError> {
        let output = self.command(arguments).output();
        checked(
            "docker",
            output.map_err(|source| not_started("docker", source))?,
        )
    }
}

impl Subject for DockerRun {
    fn name(&self) -> &str {
        self.command.name()
    }

    fn version(&self) -> &str {
        self.command.version()
    }

    fn tier(&self) -> Tier {
        self.command.tier()
    }

    fn limits(&self) -> Limits {
        self.command.limits()
    }

    fn lacks(&self, attack: &Attack) -> Option<String> {
        self.command.lacks(attack)
    }

    fn run(&self, trial: &Trial<'_>) -> Result<Ran, RunTrialError> {
        self.command.run(trial)
    }

    fn leftovers(&self) -> Vec<String> {
        self.command.leftovers()
    }
}

impl Drop for DockerRun {
    fn drop(&mut self) {
        // Only where a command was given up on is there still a container.
        let filter = format!("--filter=label={}", self.label);
        let listed = self.docker.ask(&["ps", "--all", "--quiet", &filter]);
        let listed = listed.map(|output| text_of(&output.stdout));
        for container in listed.unwrap_or_default().lines() {
            // A drop has nobody to tell; the label says whose it is.
            let _removed = self.docker.ask(&["rm", "--force", "--volumes", container]);
        }
        let _removed = self.docker.ask(&["rmi", "--force", &self.image]);
    }
}

/// Packs the programs as this host has them.
fn make_image(docker: &Docker, image: &str, worker: &str) -> Result<(), RunTrialError> {
    let mut files = BTreeSet::new();
    for program in PROGRAMS.into_iter().chain([worker]) {
        files.extend(libraries(program)?);
        files.insert(PathBuf::from(program));
    }
    let relative = files.iter().filter_map(|file| file.strip_prefix("/").ok());
    let mut tar = Command::new("tar")
        .args(["--create", "--dereference", "--directory", "/", "--"])
        .args(relative)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| not_started("tar", source))?;
    let archive = tar.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let imported = docker
        .command(&["import", "-", image])
        .stdin(archive)
        .output();
    let packed = tar.wait().map_err(|source| not_started("tar", source))?;
    let imported = imported.map_err(|source| not_started("docker", source))?;
    if packed.success() {
        checked("docker", imported).map(drop)
    } else {
        Err(not_started("tar", io::Error::other(packed.to_string())))
    }
}

/// The libraries of a program and its loader, as the loader itself lists them.
fn libraries(program: &str) -> Result<Vec<PathBuf>, RunTrialError> {
    let output = Command::new(program)
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| not_started(program, source))?;
    let listed = checked(program, output)?;
    let text = text_of(&listed.stdout);
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths.map(|path| Path::new(path).to_owned()).collect())
}

/// The output, or what the program complained about.
fn checked(program: &str, output: Output) -> Result<Output, RunTrialError> {
    if output.status.success() {
        return Ok(output);
    }
    let complaint = io::Error::other(text_of(&output.stderr));
    Err(not_started(program, complaint))
}

fn not_started(program: &str, source: io::Error) -> RunTrialError {
    RunTrialError::Start {
        program: program.to_owned(),
        source,
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

fn text(word: &str) -> Word {
    Word::Text(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_packed_with_its_loader() {
        let found = libraries("/usr/bin/tar").unwrap();
        let has = |part: &str| {
            let named = |path: &PathBuf| path.to_string_lossy().contains(part);
            found.iter().any(|path| named(path) && path.is_file())
        };
        assert!(has("/libc.so") && has("/ld-linux"), "{found:?}");
    }
}
