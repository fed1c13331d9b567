//! The link to a guest: opens it, again after a break, and hears what it says.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::v1;
use fluffy_guest::host::{self, Connection, Events, GuestEvent, LinkLost, LogStream};
use fluffy_guest::log::{Content, Record};
use fluffy_guest::message::{Happening, Hello, Phase, State};
use fluffy_planner::reason::FailureReason;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Context, Inner, Instance};
use crate::decide::{Failure, Run};
use crate::driver::Handle;
use crate::session::Task;
use crate::ship::Share;
use crate::workload::Witness;
use crate::{now_ms, workload};

/// How long until a socket is tried again.
const AGAIN: Duration = Duration::from_millis(20);

/// How far a guest's clock may be off.
const SKEW_MS: u64 = 5_000;

/// A guest that answers again, and how it is.
pub(super) struct Relinked {
    pub(super) connection: Connection,
    pub(super) events: Events,
    pub(super) state: State,
}

/// Opens the link at a socket, trying until the time is over.
pub(super) async fn open(
    socket: &Path,
    limit: Duration,
    options: host::Options,
) -> Result<(Hello, Connection, Events), String> {
    let deadline = Instant::now() + limit;
    let mut last = "nothing listens".to_owned();
    while Instant::now() < deadline {
        let opened = timeout_at(deadline, async {
            let stream = UnixStream::connect(socket)
                .await
                .map_err(|it| it.to_string())?;
            host::open(stream, options)
                .await
                .map_err(|it| it.to_string())
        });
        match opened.await {
            Ok(Ok(opened)) => return Ok(opened),
            Ok(Err(error)) => last = error,
            Err(_) => break,
        }
        sleep(AGAIN).await;
    }
    Err(format!("link: {last}"))
}

impl Instance {
    /// Goes on with a link that is open.
    pub(super) fn connect(&mut self, connection: Connection, events: Events) {
        self.connection = Some(connection);
        let (context, sender) = (Arc::clone(&self.context), self.sender.clone());
        let (id, boot) = (self.id.clone(), self.kept.boot_id.clone());
        // It ends with the link, after the last line.
        self.hearing = Some(Task::of(pump(context, sender, id, boot, events)));
    }

    /// Opens the link again in the background.
    pub(super) fn relink(&self, handle: &Handle, limit: Duration) {
        let (boot, sender) = (handle.boot_id.clone(), self.sender.clone());
        let (id, socket) = (self.id.clone(), handle.link.clone());
        tokio::spawn(async move {
            let again = reopen(&socket, &id, &boot, limit).await;
            let inner = match again {
                Ok(again) => Inner::Relinked(boot, Box::new(again)),
                Err(why) => {
                    tracing::debug!(instance = id, why, "the guest does not answer");
                    Inner::Silent(boot)
                }
            };
            let _ = sender.send(inner).await;
        });
    }

    /// The same guest answers again.
    pub(super) async fn relinked(&mut self, again: Relinked) {
        let Run::Up(up) = &mut self.kept.seen.run else {
            return;
        };
        let state = again.state;
        match state.phase {
            Phase::Waiting => {
                // It was never told what to run, and its secrets are gone.
                let why = "the agent ended while it was being started";
                return self.kill(Failure::new(FailureReason::VmmLost, why)).await;
            }
            Phase::Running | Phase::Stopping if up.workload_ms.is_none() => {
                self.workload_started();
            }
            _ => {}
        }
        if let Some(ended) = state.ended {
            self.last_words = last_words(&ended.what);
        }
        self.connect(again.connection, again.events);
        if self.kept.seen.stop_ms.is_some() {
            // Whether it heard so before nobody knows.
            self.stop().await;
        }
    }

    pub(super) async fn lost(&mut self, lost: &LinkLost) {
        self.connection = None;
        self.context.metrics.count("agent_link_resets_total", "");
        if self.gone.is_some() {
            return self.ended().await;
        }
        let silent = matches!(lost, LinkLost::Unresponsive);
        if let Run::Up(up) = &mut self.kept.seen.run {
            if silent {
                up.silent = true;
            } else if let Some((handle, _)) = self.driven() {
                // It may be ending; then that is heard first.
                self.relink(&handle, super::SILENT);
            }
        }
    }
}

async fn reopen(socket: &Path, id: &str, boot: &str, limit: Duration) -> Result<Relinked, String> {
    let deadline = Instant::now() + limit;
    let (hello, connection, events) = open(socket, limit, host::Options::default()).await?;
    if hello.instance_id != id || hello.boot_id != boot {
        return Err("another guest answered".to_owned());
    }
    let state = timeout_at(deadline, connection.state()).await;
    let state = state.map_err(|_| "it does not say how it is")?;
    let state = state.map_err(|error| error.to_string())?;
    Ok(Relinked {
        connection,
        events,
        state,
    })
}

/// How a guest says that it ended, if it does.
fn last_words(what: &Happening) -> Option<Failure> {
    match what {
        Happening::Failed { code, detail } => Some(workload::guest_failure(code, detail)),
        Happening::Exited {
            exit_code,
            signal,
            oom,
            ..
        } => {
            let ended = workload::exited(*exit_code, *signal);
            Some(match oom {
                true => workload::out_of_memory(ended, Witness::Guest),
                false => ended,
            })
        }
        Happening::ConfigApplied | Happening::WorkloadStarted { .. } | Happening::Unknown => None,
    }
}

/// Hears what a guest says until its link is lost.
async fn pump(
    context: Arc<Context>,
    sender: mpsc::Sender<Inner>,
    id: String,
    boot: String,
    mut events: Events,
) {
    let mut share = Share::new();
    let mut dropped = [0; 3];
    while let Some(event) = events.next().await {
        let inner = match event {
            GuestEvent::Log { stream, record } => {
                let lost = match stream {
                    LogStream::Stdout => &mut dropped[0],
                    LogStream::Stderr => &mut dropped[1],
                    LogStream::Init => &mut dropped[2],
                };
                if let Some(mut entry) = entry(stream, record, lost) {
                    match share.pass(entry.line.len()) {
                        Some(before) => {
                            entry.dropped = entry.dropped.saturating_add(before);
                            (entry.instance_id, entry.boot_id) = (id.clone(), boot.clone());
                            let _ = context.lines.send(entry).await;
                        }
                        None => context.metrics.count("log_dropped_total", "rate"),
                    }
                }
                continue;
            }
            GuestEvent::Status(status) => match &status.what {
                Happening::WorkloadStarted { .. } => Inner::Workload(boot.clone()),
                what => match last_words(what) {
                    Some(words) => Inner::LastWords(boot.clone(), words),
                    None => continue,
                },
            },
            GuestEvent::Stats(_) => continue,
            GuestEvent::Lost(lost) => Inner::Lost(boot.clone(), lost),
        };
        if sender.send(inner).await.is_err() {
            return;
        }
    }
}

/// A record as servers take it; a gap is counted in the next line.
fn entry(stream: LogStream, record: Record, lost: &mut u64) -> Option<v1::LogEntry> {
    let (text, truncated) = match record.content {
        Content::Gap { dropped } => {
            *lost = lost.saturating_add(dropped);
            return None;
        }
        Content::Line { text, truncated } => (text, truncated),
    };
    let now = now_ms();
    let stream = match stream {
        LogStream::Stdout => "stdout",
        LogStream::Stderr => "stderr",
        LogStream::Init => "init",
    };
    let mut line = String::from_utf8_lossy(&text).into_owned();
    // What is no text becomes longer.
    let cut = line.floor_char_boundary(fluffy_api::node::MAX_LOG_LINE);
    let truncated = truncated || cut < line.len();
    line.truncate(cut);
    Some(v1::LogEntry {
        stream: stream.to_owned(),
        seq: record.sequence,
        at_ms: match record.time_ms.abs_diff(now) > SKEW_MS {
            true => now,
            false => record.time_ms,
        },
        line,
        truncated,
        dropped: std::mem::take(lost),
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_text_of_bounded_length_at_a_sane_time() {
        let record = |text: &[u8], time_ms| Record {
            sequence: 3,
            time_ms,
            content: Content::Line {
                text: text.to_vec(),
                truncated: false,
            },
        };
        let mut lost = 7;
        let made = entry(LogStream::Stderr, record(&[0xff; 16 << 10], 0), &mut lost).unwrap();
        assert!(made.line.len() <= 16 << 10 && made.truncated);
        assert_eq!(
            (made.stream.as_str(), made.seq, made.dropped),
            ("stderr", 3, 7)
        );
        assert!(
            made.at_ms.abs_diff(now_ms()) < 60_000,
            "the guest's clock lies"
        );
        let gap = Record {
            content: Content::Gap { dropped: 5 },
            ..record(b"", now_ms())
        };
        assert!(entry(LogStream::Stdout, gap, &mut lost).is_none());
        let made = entry(LogStream::Stdout, record(b"x", now_ms()), &mut lost).unwrap();
        assert_eq!((made.line.as_str(), made.dropped), ("x", 5));
    }
}
