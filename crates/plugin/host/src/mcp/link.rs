//! The two streams of a server: requests out, answers and its own words in.
//!
//! One task reads and one writes, so a server that does not read cannot keep
//! us from reading it. Nothing piles up: what waits to be written is bounded,
//! and so is every line that is read.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fluffy_contract::isolation::{Child as _, Output};
use fluffy_sandbox::client::{ChildHandle, ChildInput};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::wire::{self, Fault, Lines, Message};
use crate::connection::Gone;
use crate::log::{Level, Log, Source};
use crate::room::words;

/// Lines that wait to be written.
const WAITING: usize = 64;

/// Requests that may be open at once.
const OPEN: usize = 256;

/// How much of its last words is kept for an error.
const LAST_WORDS: usize = 512;

/// How requests and answers look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// 2025-11-25 and before: a session with a handshake.
    Sessions,
    /// 2026-07-28: every request stands alone.
    Stateless,
}

/// A server's streams.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    /// Lines for the server; taken to end its input.
    lines: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    signals: mpsc::Sender<i32>,
    gone: watch::Receiver<Option<Gone>>,
}

#[derive(Debug)]
struct Shared {
    pending: Mutex<HashMap<u64, oneshot::Sender<Result<Value, Fault>>>>,
    number: AtomicU64,
    era: Mutex<Option<Era>>,
    is_stopping: Mutex<bool>,
    changed: Notify,
    log: Log,
    roots: Vec<PathBuf>,
    last_words: Mutex<String>,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The server said no.
    Fault(Fault),
    /// Too many requests are open.
    Busy,
    /// The server is gone.
    Gone(String),
}

impl Link {
    pub(super) fn open(
        mut child: ChildHandle,
        log: Log,
        roots: Vec<PathBuf>,
    ) -> std::io::Result<Self> {
        let input = child.take_input()?;
        let (lines, to_write) = mpsc::channel(WAITING);
        let (signals, to_send) = mpsc::channel(4);
        let (said_gone, gone) = watch::channel(None);
        let shared = Arc::new(Shared {
            pending: Mutex::default(),
            number: AtomicU64::new(1),
            era: Mutex::default(),
            is_stopping: Mutex::default(),
            changed: Notify::new(),
            log,
            roots,
            last_words: Mutex::default(),
        });
        tokio::spawn(write(input, to_write));
        let reader = Reader {
            shared: Arc::clone(&shared),
            replies: lines.downgrade(),
            output: Lines::default(),
            error: Lines::default(),
        };
        tokio::spawn(reader.run(child, to_send, said_gone));
        Ok(Self {
            shared,
            lines: Mutex::new(Some(lines)),
            signals,
            gone,
        })
    }

    /// Sends a request and waits for its answer. Dropping it cancels it.
    pub(super) async fn ask(&self, method: &str, params: Value) -> Result<Value, Unanswered> {
        let id = self.shared.number.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut pending = locked(&self.shared.pending);
            if pending.len() >= OPEN {
                return Err(Unanswered::Busy);
            }
            pending.insert(id, answer);
        }
        let mut open = OpenRequest {
            link: self,
            id: Some(id),
        };
        self.write(wire::request(id, method, params)).await?;
        let answered = answered.await;
        open.id = None;
        match answered {
            Ok(outcome) => outcome.map_err(Unanswered::Fault),
            Err(_) => Err(self.how_gone().await),
        }
    }

    /// Sends something that needs no answer.
    pub(super) async fn tell(&self, method: &str, params: Value) -> Result<(), Unanswered> {
        self.write(wire::notification(method, params)).await
    }

    /// Sends a request whose answer nobody waits for.
    pub(super) async fn tell_later(&self, method: &str, params: Value) -> Result<(), Unanswered> {
        let id = self.shared.number.fetch_add(1, Ordering::Relaxed);
        self.write(wire::request(id, method, params)).await
    }

    pub(super) fn speaks(&self, era: Era) {
        *locked(&self.shared.era) = Some(era);
    }

    /// Waits until the server says that its list of tools is another one.
    pub(super) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// From now on its end is what was asked for.
    pub(super) fn end_input(&self) {
        *locked(&self.shared.is_stopping) = true;
        drop(locked(&self.lines).take());
    }

    pub(super) async fn signal(&self, signal: i32) {
        let _ = self.signals.send(signal).await;
    }

    pub(super) async fn gone(&self) -> Gone {
        let mut gone = self.gone.clone();
        match gone.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(gone)) => gone.clone(),
            // The reader never ends without a word; a runtime that ends does.
            _ => Gone::Crashed {
                how: "its host is ending".to_owned(),
            },
        }
    }

    /// What it said last on its standard error, in one line.
    pub(super) fn last_words(&self) -> String {
        locked(&self.shared.last_words).trim().replace('\n', " ")
    }

    async fn write(&self, line: Vec<u8>) -> Result<(), Unanswered> {
        let lines = locked(&self.lines).clone();
        match lines {
            Some(lines) if lines.send(line).await.is_ok() => Ok(()),
            _ => Err(self.how_gone().await),
        }
    }

    async fn how_gone(&self) -> Unanswered {
        if *locked(&self.shared.is_stopping) {
            return Unanswered::Gone("it was stopped".to_owned());
        }
        Unanswered::Gone(match self.gone().await {
            Gone::Stopped => "it was stopped".to_owned(),
            Gone::Crashed { how } => how,
        })
    }
}

/// A request that may be given up.
struct OpenRequest<'a> {
    link: &'a Link,
    id: Option<u64>,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        locked(&self.link.shared.pending).remove(&id);
        let params = json!({"requestId": id, "reason": "nobody waits for it any more"});
        let line = wire::notification("notifications/cancelled", params);
        // A server that does not even read is not told.
        if let Some(lines) = &*locked(&self.link.lines) {
            let _ = lines.try_send(line);
        }
    }
}

async fn write(mut input: ChildInput, mut lines: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if input.write(&line).await.is_err() {
            return;
        }
    }
}

struct Reader {
    shared: Arc<Shared>,
    replies: mpsc::WeakSender<Vec<u8>>,
    output: Lines,
    error: Lines,
}

impl Reader {
    async fn run(
        mut self,
        mut child: ChildHandle,
        mut signals: mpsc::Receiver<i32>,
        gone: watch::Sender<Option<Gone>>,
    ) {
        let broken = loop {
            let said = tokio::select! {
                said = child.output() => said,
                Some(signal) = signals.recv() => {
                    let _ = child.signal(signal).await;
                    continue;
                }
            };
            match said {
                Ok(Some(Output::Stdout(bytes))) => match self.output.feed(&bytes) {
                    Ok(lines) => lines.iter().for_each(|line| self.hear(line)),
                    Err(wire::TooLong) => {
                        break Some("it wrote a line that is longer than a message may be");
                    }
                },
                Ok(Some(Output::Stderr(bytes))) => self.note(&bytes),
                Ok(None) | Err(_) => break None,
            }
        };
        let how = match broken {
            Some(how) => {
                // Dropping it ends the program.
                drop(child);
                how.to_owned()
            }
            None => match child.wait().await {
                Ok(exit) => words(exit),
                Err(_) => "its sandbox is gone".to_owned(),
            },
        };
        let is_stopping = *locked(&self.shared.is_stopping);
        self.shared.log.write(Level::Info, Source::Host, &how);
        let _ = gone.send(Some(match is_stopping {
            true => Gone::Stopped,
            false => Gone::Crashed { how },
        }));
        // Whoever waits for an answer sees that there will be none.
        locked(&self.shared.pending).clear();
    }

    fn hear(&self, line: &[u8]) {
        match Message::read(line) {
            Message::Answer { id, outcome } => {
                // One that nobody waits for any more is dropped.
                if let Some(waiting) = locked(&self.shared.pending).remove(&id) {
                    let _ = waiting.send(outcome);
                }
            }
            Message::Request { id, method } => self.answer(&id, &method),
            Message::Notification { method, params } => self.take_note(&method, &params),
            Message::Noise => {
                let text = String::from_utf8_lossy(line);
                if !text.trim().is_empty() {
                    self.shared.log.write(Level::Warn, Source::Stdout, &text);
                }
            }
        }
    }

    /// Answers a request of the server's; the new era has none.
    fn answer(&self, id: &Value, method: &str) {
        let era = *locked(&self.shared.era);
        let line = match (era, method) {
            (Some(Era::Stateless), _) => {
                let text = format!("dropped its request `{method}`: this protocol has none");
                self.shared.log.write(Level::Warn, Source::Host, &text);
                return;
            }
            (_, "ping") => wire::reply(id, json!({})),
            (_, "roots/list") => wire::reply(id, json!({"roots": roots(&self.shared.roots)})),
            (_, method) => {
                let text = format!("refused its request `{method}`: it was not granted");
                self.shared.log.write(Level::Warn, Source::Host, &text);
                wire::refusal(id, "this was not granted")
            }
        };
        // A server that asks without reading the answers gets none.
        if let Some(replies) = self.replies.upgrade() {
            let _ = replies.try_send(line);
        }
    }

    fn take_note(&self, method: &str, params: &Value) {
        match method {
            "notifications/tools/list_changed" => self.shared.changed.notify_one(),
            "notifications/message" => {
                let level = match params.get("level").and_then(Value::as_str) {
                    Some("debug") => Level::Debug,
                    Some("info" | "notice") => Level::Info,
                    Some("warning") => Level::Warn,
                    _ => Level::Error,
                };
                let text = match params.get("data") {
                    Some(Value::String(text)) => text.clone(),
                    Some(other) => other.to_string(),
                    None => String::new(),
                };
                self.shared.log.write(level, Source::Log, &text);
            }
            _ => {}
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        let Ok(lines) = self.error.feed(bytes) else {
            // Too long for a line, and nobody needs all of it.
            self.error = Lines::default();
            return;
        };
        for line in lines {
            let text = String::from_utf8_lossy(&line);
            self.shared.log.write(Level::Info, Source::Stderr, &text);
            let mut last = locked(&self.shared.last_words);
            last.push_str(&text);
            last.push('\n');
            let start = last.ceil_char_boundary(last.len().saturating_sub(LAST_WORDS));
            last.drain(..start);
        }
    }
}

/// The folders that were granted, as a server asks for them.
fn roots(folders: &[PathBuf]) -> Vec<Value> {
    let uri = |folder: &PathBuf| {
        let path = folder.to_str()?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
        let encoded = path.bytes().map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        });
        Some(json!({"uri": format!("file://{}", encoded.collect::<String>())}))
    };
    folders.iter().filter_map(uri).collect()
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Each holds a plain value that is whole at any moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
