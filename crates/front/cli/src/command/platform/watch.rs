//! `--watch`: what a list holds, shown again whenever that changes.
//!
//! Follows the server's stream, and opens it again when it breaks. With
//! `--json` each change is a line.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{CallError, Change, ChangeKind, Watch};
use fluffy_report::{ExitCode, Text, Tone, Verbosity};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::ask::{Asker, Call};
use super::call::is_list;
use super::{refusal, status, view};
use crate::args::platform::kind;
use crate::command::Outcome;
use crate::failure::Failure;

/// The pause before what broke is tried again, and between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// How often in a row a stream may break without a single change.
const PATIENCE: u32 = 5;

/// How many rows of a history are shown: the newest.
const NEWEST: usize = 200;

/// What is known of a list that is watched.
#[derive(Default)]
struct Seen {
    /// Whether what was is told once, and only what comes then.
    is_history: bool,
    /// The rows, by their names in order: of numbers the shorter come first.
    rows: BTreeMap<(usize, String), Value>,
    /// The position of the last change.
    last: Option<u64>,
    /// How often in a row the stream broke without one.
    broken: u32,
}

/// Shows a list until the person has seen enough.
pub(crate) async fn run(asker: &mut Asker<'_>, operation: Operation, call: &Call) -> Outcome {
    if !is_list(operation) {
        return look(asker, operation, call).await;
    }
    let kind = kind(operation);
    let item = kind.strip_suffix("List").unwrap_or(&kind).to_owned();
    let mut seen = Seen {
        is_history: matches!(&*item, "AuditEntry" | "EventEnvelope"),
        ..Seen::default()
    };
    loop {
        let ended = match asker.watch(operation, call, seen.begin()).await {
            Ok(mut stream) => show(asker, &item, &mut stream, &mut seen).await?,
            Err(error) => Some(error),
        };
        seen.broken += 1;
        if let Some(error) = ended.filter(|error| seen.broken > PATIENCE || !may_pass(error)) {
            return Err(refusal::failed(&error, operation.spec().cli).into());
        }
        sleep(PAUSE).await;
    }
}

/// Follows one stream to its end; why it ended, if it broke.
async fn show(
    asker: &Asker<'_>,
    item: &str,
    stream: &mut Watch,
    seen: &mut Seen,
) -> Result<Option<CallError>, Failure> {
    let printer = &asker.session.printer;
    let mut complete = false;
    loop {
        let change = match stream.next().await {
            Ok(Some(change)) => change,
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(error)),
        };
        seen.broken = 0;
        seen.last = Some(change.seq);
        if asker.session.json() {
            printer.json(&line(item, &change))?;
            continue;
        }
        complete |= change.kind == ChangeKind::Synced;
        let changed = seen.take(change);
        if complete && (changed || seen.rows.is_empty()) {
            printer.clear()?;
            if printer.verbosity() == Verbosity::Quiet {
                for row in seen.rows.values() {
                    printer.data(&view::name(row))?;
                }
                continue;
            }
            printer.table(&view::table(item, seen.rows.values()))?;
        }
    }
}

impl Seen {
    /// Behind which position a stream is opened, if it goes on: what happened
    /// goes on where it was, and a list comes anew.
    fn begin(&mut self) -> Option<u64> {
        if !self.is_history {
            self.rows.clear();
            return None;
        }
        self.last
    }

    /// Takes a change in; whether there is something new to show.
    fn take(&mut self, change: Change) -> bool {
        let name = view::name(&change.value).into_owned();
        let key = (name.len(), name);
        match change.kind {
            ChangeKind::Snapshot | ChangeKind::Upsert => {
                self.rows.insert(key, change.value);
                if self.is_history && self.rows.len() > NEWEST {
                    self.rows.pop_first();
                }
                true
            }
            ChangeKind::Delete => self.rows.remove(&key).is_some(),
            ChangeKind::Synced => true,
            ChangeKind::Watermark => false,
        }
    }
}

const fn word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Snapshot => "snapshot",
        ChangeKind::Upsert => "upsert",
        ChangeKind::Delete => "delete",
        ChangeKind::Synced => "synced",
        ChangeKind::Watermark => "watermark",
    }
}

fn line(item: &str, change: &Change) -> Value {
    json!({
        "api_version": view::API_VERSION,
        "kind": item,
        "change": word(change.kind),
        "seq": change.seq,
        "data": change.value,
    })
}

/// What is no list is looked at again and again.
async fn look(asker: &mut Asker<'_>, operation: Operation, call: &Call) -> Outcome {
    let mut seen = Value::Null;
    loop {
        let value = asker.call(operation, call.clone()).await?.value;
        if value != seen {
            if asker.session.json() {
                let document = view::document(&kind(operation), &value);
                asker.session.printer.json(&document)?;
            } else {
                asker.session.printer.clear()?;
                status::show(asker.session, &value)?;
            }
            seen = value;
        }
        sleep(PAUSE).await;
    }
}

/// Follows the events of an org from a place on, or from now.
pub(crate) async fn tail(
    asker: &mut Asker<'_>,
    call: &Call,
    (after, count): (Option<u64>, Option<u64>),
) -> Outcome {
    let mut last = after;
    let mut left = count.unwrap_or(u64::MAX);
    let mut broken = 0;
    while left > 0 {
        let opened = asker.watch(Operation::ListEvents, call, last).await;
        let mut ended = None;
        match opened {
            Err(error) => ended = Some(error),
            Ok(mut stream) => {
                while left > 0 {
                    let change = match stream.next().await {
                        Ok(Some(change)) => change,
                        Ok(None) => break,
                        Err(error) => {
                            ended = Some(error);
                            break;
                        }
                    };
                    broken = 0;
                    last = Some(change.seq);
                    if change.value.get("event_type").is_some() {
                        left -= 1;
                        event(asker, &change.value)?;
                    }
                }
            }
        }
        broken += 1;
        if let Some(error) = ended.filter(|error| broken > PATIENCE || !may_pass(error)) {
            return Err(refusal::failed(&error, "events tail").into());
        }
        if left > 0 {
            sleep(PAUSE).await;
        }
    }
    Ok(ExitCode::Success)
}

/// Follows what instances print, from what they printed on. After a break it
/// goes on exactly where it was.
pub(crate) async fn logs(asker: &mut Asker<'_>, operation: Operation, mut call: Call) -> Outcome {
    let mut broken = 0;
    let mut at: Option<String> = None;
    loop {
        let ended = match asker.resume(operation, &call, at.as_deref()).await {
            Err(error) => Some(error),
            Ok(mut stream) => loop {
                let change = match stream.next().await {
                    Ok(Some(change)) => change,
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                };
                broken = 0;
                if change.value.get("line").is_some() {
                    log_line(asker, &change.value)?;
                }
                if !change.id.is_empty() {
                    at = Some(change.id);
                }
            },
        };
        broken += 1;
        if let Some(error) = ended.filter(|error| broken > PATIENCE || !may_pass(error)) {
            return Err(refusal::failed(&error, operation.spec().cli).into());
        }
        if at.is_some() {
            call.query
                .retain(|(name, _)| name != "since" && name != "tail");
        }
        sleep(PAUSE).await;
    }
}

/// Puts a line before each one before which some were lost.
pub(crate) fn with_gaps(mut logs: Value) -> Value {
    let Some(Value::Array(items)) = logs.get_mut("items") else {
        return logs;
    };
    for line in std::mem::take(items) {
        if let Some(gap) = gap(&line) {
            let mut lost = line.clone();
            if let Some(fields) = lost.as_object_mut() {
                fields.insert("line".to_owned(), gap.into());
            }
            items.push(lost);
        }
        items.push(line);
    }
    logs
}

/// What is said of lines that were lost before one.
fn gap(line: &Value) -> Option<String> {
    match line.get("dropped").and_then(Value::as_u64)? {
        0 => None,
        1 => Some("… 1 line was lost".to_owned()),
        many => Some(format!("… {many} lines were lost")),
    }
}

fn log_line(asker: &Asker<'_>, line: &Value) -> Result<(), Failure> {
    let printer = &asker.session.printer;
    if asker.session.json() {
        return Ok(printer.json(&view::document("LogLine", line))?);
    }
    let text = |name: &str| line.get(name).and_then(Value::as_str).unwrap_or_default();
    let (at, process, printed) = (text("at"), text("process"), text("line"));
    if printer.verbosity() == Verbosity::Quiet {
        return Ok(printer.data(printed)?);
    }
    if let Some(gap) = gap(line) {
        let mut lost = Text::new();
        lost.add(Tone::Dim, &format!("{at}  {process}  {gap}"))
            .plain("\n");
        printer.text(&lost)?;
    }
    Ok(printer.data(&format!("{at}  {process}  {printed}"))?)
}

fn event(asker: &Asker<'_>, event: &Value) -> Result<(), Failure> {
    let printer = &asker.session.printer;
    if asker.session.json() {
        let document = json!({
            "api_version": view::API_VERSION, "kind": "EventEnvelope", "data": event,
        });
        return Ok(printer.json(&document)?);
    }
    let text = |pointer: &str| {
        event
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let seq = event.get("seq").and_then(Value::as_u64).unwrap_or_default();
    let line = format!(
        "{seq:>8}  {}  {:<28}  {}  {}",
        text("/occurred_at"),
        text("/event_type"),
        text("/aggregate_id"),
        text("/actor/id"),
    );
    Ok(printer.data(line.trim_end())?)
}

/// Whether the same may succeed a little later.
pub(super) fn may_pass(error: &CallError) -> bool {
    match error {
        CallError::Refused(problem) => problem.retryable,
        CallError::Broken { .. } | CallError::Unreachable { .. } => true,
        _ => false,
    }
}
