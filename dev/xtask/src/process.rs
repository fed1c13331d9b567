//! Running other programs: with their output shown, or kept.
//!
//! Children get no standard input, so that nothing ever waits for a person
//! in CI.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::step::Outcome;

/// Runs a command with its output shown; fails with its own words above.
pub(crate) fn run(command: &mut Command, note: &str) -> Result<Outcome> {
    let shown = show(command);
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run `{shown}`"))?;
    Ok(if status.success() {
        Outcome::Passed(note.to_owned())
    } else {
        Outcome::Failed(format!("`{shown}` ended with {status}"))
    })
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With exit code 0.
    Well,
    /// With any other, or by a signal.
    Badly,
}

/// Runs a command with its output shown, and keeps the lines that matter.
///
/// Standard error is joined with standard output, as a terminal would.
pub(crate) fn run_and_keep(
    command: &mut Command,
    keep: impl Fn(&str) -> bool,
) -> Result<(Ended, Vec<String>)> {
    let shown = show(command);
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let copy = writer.try_clone().context("cannot share a pipe")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(copy)
        .spawn()
        .with_context(|| format!("cannot run `{shown}`"))?;
    // The command holds the other end of the pipe open until it is replaced.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut kept = Vec::new();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).context("cannot read")? > 0 {
        let _ = std::io::stdout().lock().write_all(&line);
        let text = String::from_utf8_lossy(&line);
        if keep(text.trim()) {
            kept.push(text.trim().to_owned());
        }
        line.clear();
    }
    let status = child.wait().context("cannot wait")?;
    let ended = match status.success() {
        true => Ended::Well,
        false => Ended::Badly,
    };
    Ok((ended, kept))
}

/// Runs a command quietly; its standard output, when it succeeds.
pub(crate) fn capture(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

/// Where a program is on PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let search_path = std::env::var_os("PATH")?;
    std::env::split_paths(&search_path)
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The command as a person would type it.
fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_outputs_are_kept() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three"]);
        let (ended, kept) = run_and_keep(&mut command, |line| line != "one").unwrap();
        assert_eq!(ended, Ended::Well);
        assert_eq!(kept, ["two", "three"]);
        let (ended, _) = run_and_keep(&mut Command::new("false"), |_| true).unwrap();
        assert_eq!(ended, Ended::Badly);
    }

    #[test]
    fn a_failure_names_the_command_and_its_status() {
        let outcome = run(Command::new("/bin/sh").args(["-c", "exit 3"]), "fine").unwrap();
        let Outcome::Failed(reason) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(
            reason.starts_with("`sh -c exit 3`") && reason.contains("3"),
            "{reason}"
        );
        assert!(run(&mut Command::new("/nonexistent"), "").is_err());
        assert!(find_program("sh").is_some() && find_program("no-such-thing").is_none());
    }
}
