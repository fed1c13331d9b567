//! What the fault tests share: children that append, and a plain re-hash.
//!
//! The re-hash goes through serde and the canonical form, not through the
//! ledger's own hashing, so that a fault in one is not a fault in both.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use fluffy_base::{Digest, canonical};
use fluffy_ledger::{Actor, Aggregate, Domain, Draft, Event, Ledger, LedgerOptions, Signing};
use serde_json::{Value, json};

/// The directory of the ledger that a child appends to.
pub(crate) const CHILD_ENV: &str = "FLUFFY_LEDGER_CHILD";

/// A ledger in `home/ledger`, signed by a key in `home/keys`.
pub(crate) fn open(home: &Path) -> Ledger {
    Ledger::open(&home.join("ledger"), signed(home)).expect("the ledger opens")
}

/// Options that sign with a key in `home/keys`.
pub(crate) fn signed(home: &Path) -> LedgerOptions {
    LedgerOptions {
        signing: Some(Signing::in_directory(&home.join("keys"))),
        ..LedgerOptions::default()
    }
}

/// A draft of the security class.
pub(crate) fn security(id: &str, payload: Value) -> Draft {
    draft(id, "session.mode", payload)
}

/// A draft of the operational class.
pub(crate) fn operational(id: &str, payload: Value) -> Draft {
    draft(id, "tool.execute", payload)
}

fn draft(id: &str, event_type: &str, payload: Value) -> Draft {
    let actor = Actor::system("fault-test");
    Draft::new(
        Domain::Agent,
        Aggregate::new("session", id),
        event_type,
        actor,
    )
    .payload(payload)
}

/// A child running one test of this binary, and the lines it prints.
pub(crate) struct Worker {
    child: Child,
    lines: Receiver<String>,
}

impl Worker {
    /// Starts this binary again, to run `test` with [`CHILD_ENV`] set.
    pub(crate) fn start(test: &str, home: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("the test binary"))
            .args(["--exact", test, "--nocapture"])
            .env(CHILD_ENV, home)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            // A line that the kill cut off is no acknowledgement.
            for line in whole_lines(output) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines }
    }

    /// The next line; none when the child is gone or the deadline passed.
    pub(crate) fn line_until(&self, deadline: Instant) -> Option<String> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).ok()
    }

    /// Kills it without warning; what it still printed before that.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().expect("the child is ours");
        self.child.wait().expect("the child is ours");
        self.lines.iter().collect()
    }

    /// Waits for its end; everything it printed, and whether it passed.
    pub(crate) fn finish(mut self) -> (Vec<String>, bool) {
        let lines = self.lines.iter().collect();
        let status = self.child.wait().expect("the child is ours");
        (lines, status.success())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // After a failed test nothing may be left behind; an error only says
        // that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn whole_lines(mut output: impl BufRead) -> impl Iterator<Item = String> {
    std::iter::from_fn(move || {
        let mut line = String::new();
        output.read_line(&mut line).ok()?;
        line.strip_suffix('\n').map(str::to_owned)
    })
}

/// The end of a part of the chain that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) seq: u64,
    pub(crate) hash: Digest,
}

/// Hashes everything from the beginning; panics at the first bad event.
pub(crate) fn check_chain(ledger: &Ledger) -> Checked {
    try_check(ledger).expect("a whole chain")
}

/// Hashes everything from the beginning; what is wrong first.
pub(crate) fn try_check(ledger: &Ledger) -> Result<Checked, String> {
    let genesis = Checked {
        seq: 0,
        hash: ledger.genesis().hash(),
    };
    try_check_after(ledger, genesis, |_| {})
}

/// Hashes everything after a part that was checked before.
pub(crate) fn check_after(ledger: &Ledger, from: Checked, seen: impl FnMut(&Event)) -> Checked {
    try_check_after(ledger, from, seen).expect("a whole chain")
}

fn try_check_after(
    ledger: &Ledger,
    from: Checked,
    mut seen: impl FnMut(&Event),
) -> Result<Checked, String> {
    let mut end = from;
    loop {
        let events = ledger
            .read(end.seq + 1, 1_000)
            .map_err(|error| format!("after {}: {error}", end.seq))?;
        if events.is_empty() {
            break;
        }
        for event in &events {
            let fits = event.seq == end.seq + 1
                && event.prev_hash == end.hash
                && rehash(event) == Some(event.hash);
            if !fits {
                return Err(format!("event {} does not follow {}", event.seq, end.seq));
            }
            end = Checked {
                seq: event.seq,
                hash: event.hash,
            };
            seen(event);
        }
    }
    let head = ledger.head().map_err(|error| error.to_string())?;
    if (head.seq, head.hash) != (end.seq, end.hash) {
        return Err(format!(
            "the head row says {}, the rows {}",
            head.seq, end.seq
        ));
    }
    Ok(end)
}

/// The hash of an event, by the definition and not by the ledger's code.
fn rehash(event: &Event) -> Option<Digest> {
    let mut value = json!({
        "actor": {"type": event.actor.kind, "id": event.actor.id},
        "aggregate_id": event.aggregate.id,
        "aggregate_type": event.aggregate.kind,
        "aggregate_version": event.aggregate_version,
        "domain": event.domain,
        "event_type": event.event_type,
        "event_version": event.event_version,
        "occurred_at": event.occurred_at,
        "payload": event.payload.value().ok()?,
        "request_id": event.request_id,
        "seq": event.seq,
    });
    if let Some(causation) = event.causation_seq {
        value["causation_seq"] = json!(causation);
    }
    let text = canonical::to_string(&value).ok()?;
    Some(Digest::of_parts(&[
        event.prev_hash.as_bytes(),
        text.as_bytes(),
    ]))
}

/// A deadline that only a hanging test reaches.
pub(crate) fn patience() -> Instant {
    Instant::now() + Duration::from_secs(120)
}
