//! A shell script that cleans up when we are gone, however we went.
//!
//! It reads from a pipe that we hold: the end of that is our own, also on
//! Ctrl-C and on `kill -9`. Never waits for anything else by itself.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};

/// Starts a script with `sh`, however that is to be run; the first of the
/// words is its name. Closing the pipe is its signal.
pub(crate) fn start(
    mut sh: Command,
    script: &str,
    words: &[&OsStr],
) -> Result<(Child, ChildStdin)> {
    let mut child = sh
        .args(["-c", script])
        .args(words)
        .current_dir("/")
        // Its own group: Ctrl-C is for us, the script cleans up afterwards.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start sh")?;
    let lifeline = child.stdin.take().context("sh has no input")?;
    Ok((child, lifeline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait_for;
    use std::time::Duration;

    #[test]
    fn it_waits_for_its_owner_and_then_does_its_work() {
        let folder = tempfile::tempdir().unwrap();
        let done = folder.path().join("done");
        let words = [OsStr::new("name"), done.as_os_str()];
        let script = "read -r _ || true; echo \"$0\" >\"$1\"";
        let (mut child, lifeline) = start(Command::new("sh"), script, &words).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        assert!(!done.exists());
        drop(lifeline);
        let ended = wait_for("the script has ended", Duration::from_secs(20), || {
            child.try_wait().unwrap()
        });
        assert!(ended.unwrap().success());
        assert_eq!(std::fs::read_to_string(&done).unwrap(), "name\n");
    }
}
