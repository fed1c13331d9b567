//! How git is called: in a sandbox, with nothing of its own that runs.
//!
//! A repository's configuration can name programs in a dozen places. None of
//! them is started: hooks, filters, file system monitors, pagers, signing and
//! external diffs are off for every call, whatever the repository says.

use fluffy_contract::isolation::{Command, Exit, Finished, SandboxError};
use fluffy_policy::Permit;

use crate::workshop::Booth;

/// Settings that win over the repository's own.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.pager=cat",
    "core.editor=false",
    "commit.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
    "safe.directory=*",
];

/// No file outside the repository has a say, and nobody is asked anything.
const VARIABLES: &[(&str, &str)] = &[
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("LC_ALL", "C.UTF-8"),
];

/// Why a call of git did not give what it was made for.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// It could not be run.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// It ended with an error.
    #[error("`git {what}` failed: {said}")]
    Failed {
        /// Its first word.
        what: String,
        /// Its code; none if something ended it.
        code: Option<i32>,
        /// What it said, in a line.
        said: String,
    },
}

/// The command, ready to be run in a sandbox over the repository.
#[must_use]
pub fn command(arguments: &[&str]) -> Command {
    assembled(&["--literal-pathspecs"], arguments)
}

/// The same for arguments that end in patterns of paths, as [`without`] makes.
#[must_use]
pub fn command_on_paths(arguments: &[&str], paths: &[String]) -> Command {
    let paths = paths.iter().map(String::as_str);
    let words: Vec<&str> = arguments.iter().copied().chain(paths).collect();
    assembled(&[], &words)
}

/// Patterns for a path of the project and all below it but these. What cannot
/// be read would end a comparison, and what was committed of it would be shown.
#[must_use]
pub fn without<'a>(path: &str, left_out: impl Iterator<Item = &'a str>) -> Vec<String> {
    let left_out = left_out.map(|path| format!(":(exclude,literal){path}"));
    std::iter::once(format!(":(literal){path}"))
        .chain(left_out)
        .collect()
}

fn assembled(options: &[&str], arguments: &[&str]) -> Command {
    let settings = SETTINGS.iter().flat_map(|setting| ["-c", setting]);
    let words = std::iter::once("git")
        .chain(settings)
        .chain(["--no-pager"])
        .chain(options.iter().copied())
        .chain(arguments.iter().copied());
    let variables = VARIABLES
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Command {
        environment: variables.collect(),
        ..Command::new(words)
    }
}

/// Runs it; what it printed, if it succeeded.
///
/// # Errors
/// It could not be run, or ended with an error.
pub async fn output(
    booth: &Booth,
    permit: Permit,
    command: Command,
    input: &[u8],
) -> Result<Vec<u8>, GitError> {
    let what = command
        .argv
        .iter()
        .skip_while(|word| *word != "--literal-pathspecs")
        .nth(1)
        .cloned()
        .unwrap_or_default();
    let finished = booth.run(permit, command, input).await?;
    match finished.exit {
        Exit::Code { code: 0 } => Ok(finished.stdout),
        exit => Err(GitError::Failed {
            what,
            code: match exit {
                Exit::Code { code } => Some(code),
                _ => None,
            },
            said: said(&finished),
        }),
    }
}

fn said(finished: &Finished) -> String {
    const MOST: usize = 300;
    let text = String::from_utf8_lossy(&finished.stderr);
    let line = text.lines().find(|line| !line.trim().is_empty());
    let line: String = line.unwrap_or_default().chars().take(MOST).collect();
    if line.is_empty() {
        format!("{:?}", finished.exit)
    } else {
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_after_everything_that_is_ours() {
        let command = command(&["status", "--porcelain"]);
        assert_eq!(command.argv.first().unwrap(), "git");
        let ours = command
            .argv
            .iter()
            .position(|word| word == "status")
            .unwrap();
        assert!(command.argv[..ours].contains(&"core.hooksPath=/dev/null".to_owned()));
        assert_eq!(command.argv[ours + 1], "--porcelain");
        assert_eq!(command.environment["GIT_CONFIG_GLOBAL"], "/dev/null");
    }
}
