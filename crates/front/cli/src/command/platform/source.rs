//! What a deploy rests on: the merge of an agent, in the ledger of its user.
//!
//! The newest commit of this folder says which session made it; the ledger has
//! to say so too, with the commit's own name. Nothing is claimed otherwise.

use std::path::Path;
use std::process::{Command, Stdio};

use fluffy_ledger::proof::ProveError;
use fluffy_ledger::{Aggregate, Domain, Event, Ledger, Signing, Source, StoreError};
use fluffy_report::ExitCode;
use serde_json::Value;

use crate::command::ledger;
use crate::failure::Failure;
use crate::session::Session;

/// What a commit of an agent says about itself.
const TRAILER: &str = "Fluffy-Session: ";

/// How many events are read at once.
const PAGE: usize = 500;

/// The merge whose commit is the newest of this folder, if it is one.
pub(super) fn of_folder(session: &Session) -> Result<Option<Source>, Failure> {
    let here = session.here()?;
    let Some((commit, agent)) = newest(&session.folder()?) else {
        return Ok(None);
    };
    if !ledger::exists(&ledger::folder(here)?) {
        return Ok(None);
    }
    let open = ledger::open_existing(session, here)?;
    let found = rest(&open.ledger, (&commit, &agent), &ledger::signing(here));
    ledger::close(session, open)?;
    found.map_err(|error| {
        let fix = "run `fluffy audit verify`, which says what is wrong with it";
        Failure::of(ExitCode::Internal, &error, fix)
    })
}

/// The merge with a checkpoint that covers it.
fn rest(
    ledger: &Ledger,
    (commit, agent): (&str, &str),
    signing: &Signing,
) -> Result<Option<Source>, ProveError> {
    let Some(merge) = merge(ledger, commit, agent)? else {
        return Ok(None);
    };
    let checkpoint = ledger.checkpoint_covering(merge.seq, signing)?;
    Ok(Some(Source {
        ledger_id: ledger.id(),
        seq: merge.seq,
        hash: merge.hash,
        checkpoint: checkpoint.to_string(),
    }))
}

/// The newest commit and the session that it names, if there is one.
fn newest(folder: &Path) -> Option<(String, String)> {
    // Neither runs anything that a repository's configuration names.
    let name = git(folder, &["rev-parse", "--verify", "--quiet", "HEAD"])?;
    let text = git(folder, &["cat-file", "commit", "HEAD"])?;
    let mut lines = text.lines().rev();
    let agent = lines.find_map(|line| line.strip_prefix(TRAILER))?;
    Some((name.trim().to_owned(), agent.trim().to_owned()))
}

fn git(folder: &Path, words: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(words).stdin(Stdio::null());
    let output = git.output().ok().filter(|it| it.status.success())?;
    String::from_utf8(output.stdout).ok()
}

/// The event by which the merge was approved that became this commit.
fn merge(ledger: &Ledger, commit: &str, agent: &str) -> Result<Option<Event>, StoreError> {
    let of_agent = Aggregate::new("session", agent);
    let (mut approved, mut version) = (None, 0);
    loop {
        let events = ledger.read_aggregate(Domain::Agent, &of_agent, version, PAGE)?;
        let Some(last) = events.last() else {
            return Ok(None);
        };
        version = last.aggregate_version;
        for event in &events {
            match changed(event) {
                Some((kind, _)) if kind == "merge_approved" => approved = Some(event.seq),
                Some((kind, name)) if kind == "committed" && name == commit => {
                    return match approved {
                        Some(from) => note_of(ledger, agent, (from, event.seq)),
                        None => Ok(None),
                    };
                }
                _ => {}
            }
        }
    }
}

/// What a workflow's event says: its kind, and the commit if it names one.
fn changed(event: &Event) -> Option<(String, String)> {
    if event.event_type != "workflow.changed" {
        return None;
    }
    let payload = event.payload.value().ok()?;
    let text = |name: &str| payload.get(name).and_then(Value::as_str).map(str::to_owned);
    Some((text("type")?, text("commit").unwrap_or_default()))
}

/// The note about the merge itself, between its approval and its commit.
fn note_of(
    ledger: &Ledger,
    agent: &str,
    (from, to): (u64, u64),
) -> Result<Option<Event>, StoreError> {
    let mut next = from;
    while next < to {
        let events = ledger.read(next, PAGE)?;
        let Some(last) = events.last() else {
            return Ok(None);
        };
        next = last.seq + 1;
        let mut events = events.into_iter().take_while(|event| event.seq < to);
        let found = events.find(|it| it.event_type == "merge.approved" && it.actor.id == agent);
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}
