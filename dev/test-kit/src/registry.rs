//! Debian's registry of images, one of a test's own.
//!
//! It is a child of a script that outlives us and ends it, however we end.

use std::ffi::OsStr;
use std::fs;
use std::process::{Child, ChildStdin, Command};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::{lifeline, wait_for};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the registry until its owner is gone, and takes its files away. Its
/// parent ends it: nobody else can have its number meanwhile.
const SCRIPT: &str = r#"
docker-registry serve "$1/config.yml" 2>"$1/log" &
pid=$!
echo "$pid" >"$1/pid"
read -r _ || true
kill -9 "$pid"
wait "$pid"
rm -rf -- "$1"
"#;

/// A registry on loopback; ends when it is dropped.
#[derive(Debug)]
pub struct RealRegistry {
    watchdog: Child,
    /// Closing it is the watchdog's signal.
    lifeline: Option<ChildStdin>,
    host: String,
    process: u32,
}

impl RealRegistry {
    /// Starts it; `settings` go into its environment.
    ///
    /// # Errors
    /// It is not installed, or ends at once.
    pub fn start(settings: &[(&str, &str)]) -> Result<Self> {
        let found = Command::new("docker-registry").arg("--version").output();
        found.context("docker-registry: run `cargo xtask test --only setup`")?;
        let folder = tempfile::tempdir()?;
        fs::write(
            folder.path().join("config.yml"),
            format!(
                "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  \
                 addr: 127.0.0.1:0\n",
                folder.path().join("storage").display()
            ),
        )?;
        let mut sh = Command::new("sh");
        sh.env("OTEL_TRACES_EXPORTER", "none")
            .envs(settings.iter().copied());
        let words = [OsStr::new("fluffy-registry"), folder.path().as_os_str()];
        let (watchdog, lifeline) = lifeline::start(sh, SCRIPT, &words)?;
        let mut registry = Self {
            watchdog,
            lifeline: Some(lifeline),
            host: String::new(),
            process: 0,
        };
        // From here on the watchdog removes the folder.
        let folder = TempDir::keep(folder);
        let mut log = String::new();
        let listening = wait_for("the registry listens", PATIENCE, || {
            log = fs::read_to_string(folder.join("log")).unwrap_or_default();
            let (_, rest) = log.split_once("listening on ")?;
            // The line has come whole.
            let (rest, _) = rest.split_once('\n')?;
            let host = rest.split(['"', ',', ' ']).next()?;
            Some(host.to_owned())
        });
        registry.host = listening.with_context(|| format!("docker-registry: {log}"))?;
        let process = fs::read_to_string(folder.join("pid"))?;
        registry.process = process
            .trim()
            .parse()
            .context("its process has no number")?;
        Ok(registry)
    }

    /// Its address and port.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl Drop for RealRegistry {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let _ = self.watchdog.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Whether the process is there, and has not just been ended.
    fn runs(process: u32) -> bool {
        let about = fs::read_to_string(PathBuf::from(format!("/proc/{process}/stat")));
        about.is_ok_and(|about| !about.contains(") Z "))
    }

    #[test]
    fn it_ends_with_its_owner_however_that_ends() {
        let registry = RealRegistry::start(&[]).unwrap();
        let process = registry.process;
        assert!(runs(process));
        drop(registry);
        assert!(!runs(process), "dropped");
        // Of an owner that is killed only the end of the pipe is left.
        let mut registry = RealRegistry::start(&[]).unwrap();
        let process = registry.process;
        let lifeline = registry.lifeline.take();
        std::mem::forget(registry);
        assert!(runs(process), "the control");
        drop(lifeline);
        wait_for("the registry has ended", PATIENCE, || {
            (!runs(process)).then_some(())
        })
        .unwrap();
    }
}
