//! What is done to an instance at once: a signal to its workload, and telling
//! what this node knows of it.
//!
//! Answers soon or not at all: a guest that is silent is told of as silent, and
//! keeps nobody waiting. Texts are bounded here, for a guest may have made them.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use fluffy_api::node::v1;
use fluffy_guest::message::Phase;
use tokio::time::timeout;
use v1::errand::Of;

use super::start::PIDS;
use super::{Instance, Says};
use crate::decide::{Desired, Failure, Run};
use crate::workload;

/// The signals that a workload may be sent from outside.
const SIGNALS: [&str; 6] = ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"];
/// How long a guest has to say how it is.
const PATIENCE: Duration = Duration::from_secs(2);
/// How much of a console is told: so many bytes from its end, in so many lines
/// of so many characters.
const CONSOLE: (u64, usize, usize) = (64 << 10, 200, 1024);
/// The longest text that is told.
const MAX_TEXT: usize = 1024;

impl Instance {
    pub(super) async fn errand(&mut self, errand: v1::Errand) {
        let mut done = v1::ErrandDone {
            errand_id: errand.errand_id,
            ..v1::ErrandDone::default()
        };
        match errand.of {
            Some(Of::Signal(signal)) => {
                if let Err(code) = self.signal(&signal).await {
                    code.clone_into(&mut done.refused);
                }
            }
            Some(Of::Diagnose(_)) => return self.diagnose(done),
            None => "unknown_errand".clone_into(&mut done.refused),
        }
        let _ = self.context.says.send(Says::Done(Box::new(done))).await;
    }

    async fn signal(&self, signal: &str) -> Result<(), &'static str> {
        if !SIGNALS.contains(&signal) {
            return Err("unknown_signal");
        }
        let wanted = workload::wanted(&self.kept.assignment, self.kept.planned);
        let up = self.kept.seen.is_up() && wanted.desired == Desired::Running;
        let (true, Some(connection)) = (up, &self.connection) else {
            return Err("instance_not_running");
        };
        let sent = timeout(PATIENCE, connection.signal(signal)).await;
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err("guest_unresponsive"),
        }
    }

    /// Tells what is known, without keeping the instance waiting.
    fn diagnose(&self, mut done: v1::ErrandDone) {
        let seen = &self.kept.seen;
        let (run, up) = match &seen.run {
            Run::Nothing => ("nothing", None),
            Run::Working => ("starting", None),
            Run::Up(up) => ("up", Some(up.clone())),
            Run::Ended(_) => ("ended", None),
        };
        let now = match &seen.run {
            Run::Ended(failure) => Some((0, failure)),
            _ => None,
        };
        let last = seen.past.last.as_ref().map(|(at, failure)| (*at, failure));
        let mut told = v1::Diagnosis {
            boot_id: self.kept.boot_id.clone(),
            run: run.to_owned(),
            workload_since_ms: up.as_ref().and_then(|up| up.workload_ms).unwrap_or(0),
            healthy: up.and_then(|up| up.well),
            last_failure: now.or(last).map(|(at, failure)| failed(at, failure)),
            failures: seen.past.streak,
            crash_loop: seen.past.looping,
            ..v1::Diagnosis::default()
        };
        let driven = self.driven();
        let (connection, says) = (self.connection.clone(), self.context.says.clone());
        let spec = self.kept.assignment.workload.as_ref();
        let resources = spec.and_then(|spec| spec.resources);
        let memory = resources.map_or(0, |it| it.memory_limit_bytes);
        tokio::spawn(async move {
            if let Some(connection) = connection
                && let Ok(Ok(state)) = timeout(PATIENCE, connection.state()).await
            {
                told.phase = phase(state.phase).to_owned();
                told.workload_pid = state.workload_pid.unwrap_or(0);
                let sessions = state.exec_sessions.len();
                told.exec_sessions = u32::try_from(sessions).unwrap_or(u32::MAX);
            }
            if let Some((handle, driver)) = driven {
                driver.name().clone_into(&mut told.driver);
                if let Ok(Ok(stats)) = timeout(PATIENCE, driver.stats(&handle)).await {
                    told.uses = Some(v1::InstanceUse {
                        memory_bytes: stats.memory_bytes,
                        memory_peak_bytes: stats.memory_peak_bytes,
                        cpu_usec: stats.cpu_usec,
                        processes: stats.processes,
                        oom_kills: stats.oom_kills,
                        memory_limit_bytes: memory,
                        process_limit: PIDS.into(),
                    });
                }
                let console = handle.console;
                let console = tokio::task::spawn_blocking(move || last_lines(&console)).await;
                told.console = console.unwrap_or_default();
            }
            done.diagnosis = Some(told);
            let _ = says.send(Says::Done(Box::new(done))).await;
        });
    }
}

fn failed(at_ms: u64, failure: &Failure) -> v1::InstanceFailure {
    v1::InstanceFailure {
        at_ms: failure.at_ms.unwrap_or(at_ms),
        reason: failure.reason.to_string(),
        detail: failure.detail.chars().take(MAX_TEXT).collect(),
        exit_code: failure.exit_code,
    }
}

const fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Applying => "applying",
        Phase::Prestart => "prestart",
        Phase::Running => "running",
        Phase::Stopping => "stopping",
        Phase::Ended => "ended",
        Phase::Unknown => "unknown",
    }
}

/// The last lines of a console; none if it cannot be read.
fn last_lines(console: &Path) -> Vec<String> {
    let (most, lines, length) = CONSOLE;
    let mut bytes = Vec::new();
    let read = File::open(console).and_then(|mut file| {
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(most)))?;
        file.take(most).read_to_end(&mut bytes)
    });
    if read.is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    let last = all.iter().skip(all.len().saturating_sub(lines));
    last.map(|line| line.chars().take(length).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_is_told_by_its_last_lines_however_long_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("console.log");
        assert!(last_lines(&file).is_empty());
        let mut text: String = (0..300).map(|number| format!("line {number}\n")).collect();
        text.push_str(&"x".repeat(5_000));
        text.push_str("\n\u{1b}[31mlast\n");
        std::fs::write(&file, &text).unwrap();
        let lines = last_lines(&file);
        assert_eq!(lines.len(), CONSOLE.1);
        assert_eq!(lines[0], "line 102");
        assert_eq!(lines[198].len(), CONSOLE.2);
        // Far more than is looked at, without a single end of a line.
        std::fs::write(&file, vec![0xff; 1 << 20]).unwrap();
        let lines = last_lines(&file);
        assert_eq!((lines.len(), lines[0].chars().count()), (1, CONSOLE.2));
    }
}
