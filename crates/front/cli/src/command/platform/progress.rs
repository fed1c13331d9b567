//! Waits for what takes a while, and draws how far it is.
//!
//! A line at the bottom of a terminal, plain lines of talk without one; why it
//! does not go on is said in both. What is waited for goes on when nobody waits
//! any more, so Ctrl-C and a server that is away never lose what was begun.
//! Next: `progress/work.rs` for when something is done.

mod shown;
mod work;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use fluffy_api::Operation;
use fluffy_api::client::CallError;
use fluffy_base::Span;
use fluffy_report::{ExitCode, Report, Text, Tone, Verbosity};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use self::shown::Shown;
pub(crate) use self::work::{Standing, Work};
use super::ask::{Asker, Call};
use super::{refusal, view, watch};
use crate::args::platform::kind;
use crate::command::Outcome;
use crate::failure::{self, Failure};

/// How long is waited unless somebody says otherwise.
pub(crate) const PATIENCE: Span = Span { millis: 600_000 };

/// How often is looked.
const PAUSE: Duration = Duration::from_millis(400);

/// How long is waited for a way in to be open.
const WAYS: Duration = Duration::from_secs(5);

/// How many lines are shown of what failed.
const LINES: u32 = 10;

/// How wide a bar is.
const BAR: u64 = 12;

/// Waits until it is done; ends as it ended, or with 6 when time is up.
pub(crate) async fn follow(asker: &mut Asker<'_>, work: &Work, patience: Span) -> Outcome {
    let began = asker.client().await.ok().and_then(|it| it.seen());
    // Heard from here to the end: once a listener is there, the signal does
    // nothing by itself any more.
    let interrupts = signal(SignalKind::interrupt());
    let mut interrupts = interrupts.map_err(|error| failure::no_threads(&error))?;
    let last = last(asker, work, patience, &mut interrupts).await?;
    let is_bad = ["failed", "paused"].contains(&text(&last, "status"));
    if work.read == Operation::GetDeploy
        && is_bad
        && !asker.session.json()
        && let Some(began) = began
    {
        // Who may not read them, gets no answer or has seen enough, is told
        // why it failed.
        let words = tokio::select! {
            words = last_words(asker, began.seq) => words,
            _ = interrupts.recv() => None,
        };
        return match words {
            Some(words) => badly(asker, work, &last, &words),
            None => end(asker, work, &last, &[]),
        };
    }
    let ways = match work.read {
        // It is done, whether anybody can say now how it is reached or not.
        Operation::GetDeploy if text(&last, "status") == "succeeded" => tokio::select! {
            ways = ways(asker) => ways.unwrap_or_default(),
            _ = interrupts.recv() => Vec::new(),
        },
        _ => Vec::new(),
    };
    end(asker, work, &last, &ways)
}

/// Why an instance failed, and what it printed.
struct LastWords {
    instance: String,
    reason: String,
    lines: Vec<String>,
}

/// Why an instance failed, or was not well, last since an event, and its last
/// lines, if anybody may and can tell them.
async fn last_words(asker: &mut Asker<'_>, after: u64) -> Option<LastWords> {
    let params = Operation::GetLogs.spec().path_params();
    let path = params.map(|part| Some(asker.target.part(part).ok()?.name.clone()));
    let path = path.collect::<Option<Vec<_>>>()?;
    let [org, app, env] = path.as_slice() else {
        return None;
    };
    let query = |pairs: &[(&str, String)]| {
        let pairs = pairs.iter();
        let pairs = pairs.map(|(name, value)| ((*name).to_owned(), value.clone()));
        pairs.collect()
    };
    let events = Call {
        path: vec![org.clone()],
        query: query(&[
            ("after", after.to_string()),
            ("types", "instance.status_changed".to_owned()),
            ("env", format!("{app}/{env}")),
            ("limit", "200".to_owned()),
        ]),
        ..Call::default()
    };
    let events = asker.call(Operation::ListEvents, events).await.ok()?.value;
    let events = events.get("items")?.as_array()?;
    let is_bad = |it: &&Value| {
        let status = it.get("payload").map_or("", |said| text(said, "status"));
        matches!(status, "failed" | "unhealthy")
    };
    let last = events.iter().rev().find(is_bad)?;
    let instance = text(last, "aggregate_id").to_owned();
    let said = last.get("payload")?;
    let reason = match (text(said, "reason_code"), text(said, "reason_detail")) {
        (code, "") => code.to_owned(),
        (code, detail) => format!("{code}: {detail}"),
    };
    let logs = Call {
        path: path.clone(),
        query: query(&[("instance", instance.clone()), ("tail", LINES.to_string())]),
        ..Call::default()
    };
    let logs = asker.call(Operation::GetLogs, logs).await.ok()?.value;
    let lines = logs.get("items")?.as_array()?.iter();
    let lines: Vec<String> = lines.map(|it| text(it, "line").to_owned()).collect();
    let found = !lines.is_empty() || !reason.is_empty();
    found.then_some(LastWords {
        instance,
        reason,
        lines,
    })
}

/// Ends as it ended, with what was printed by what failed.
fn badly(asker: &Asker<'_>, work: &Work, value: &Value, words: &LastWords) -> Outcome {
    let LastWords {
        instance,
        reason,
        lines,
    } = words;
    let printer = &asker.session.printer;
    match printer.verbosity() {
        Verbosity::Quiet => printer.data(&work.id)?,
        _ => printer.data(&line(&work.id, value))?,
    }
    if !reason.is_empty() {
        printer.note(&format!("what was wrong with {instance}: {reason}"));
    }
    if !lines.is_empty() {
        printer.note(&format!("the last that {instance} printed:"));
    }
    for line in lines {
        printer.note(&format!("  {line}"));
    }
    let hint = format!("`fluffy logs --instance {instance}` shows more of what it printed");
    Err(ended_badly(&work.id, value).fix(hint).into())
}

/// The ways in from this machine, once it is known where they are.
async fn ways(asker: &mut Asker<'_>) -> Result<Vec<Value>, Failure> {
    let params = Operation::GetStatus.spec().path_params();
    let path = params.map(|part| Ok(asker.target.part(part)?.name.clone()));
    let path = path.collect::<Result<Vec<_>, Failure>>()?;
    let began = Instant::now();
    loop {
        let call = Call {
            path: path.clone(),
            ..Call::default()
        };
        let mut status = asker.call(Operation::GetStatus, call).await?.value;
        let routes = status.get_mut("routes").map(Value::take);
        let mut routes = match routes {
            Some(Value::Array(routes)) => routes,
            _ => Vec::new(),
        };
        routes.retain(|route| !text(route, "address").is_empty());
        let moves = routes.iter().any(|it| text(it, "status") == "pending");
        if !moves || began.elapsed() >= WAYS {
            return Ok(routes);
        }
        sleep(PAUSE).await;
    }
}

/// How it is when it is done, when time is up, or when the person has seen
/// enough.
async fn last(
    asker: &mut Asker<'_>,
    work: &Work,
    patience: Span,
    interrupts: &mut Signal,
) -> Result<Value, Failure> {
    let mut shown = Shown::begin(asker.session);
    let last = watched(asker, work, patience, (interrupts, &mut shown)).await;
    // What is said next stands where the bottom line is.
    shown.close()?;
    last
}

async fn watched(
    asker: &mut Asker<'_>,
    work: &Work,
    patience: Span,
    (interrupts, shown): (&mut Signal, &mut Shown<'_>),
) -> Result<Value, Failure> {
    let call = Call {
        path: work.path(asker)?,
        ..Call::default()
    };
    let mut known = None;
    loop {
        let seen = tokio::select! {
            seen = look(asker, work, &call) => seen,
            _ = interrupts.recv() => break,
        };
        let late = shown.elapsed() >= Duration::from(patience);
        match seen {
            Ok(value) => {
                let moves = work.standing(&value) == Standing::Moving;
                shown.far(&work.id, &value, moves)?;
                known = Some(value);
                if !moves || late {
                    break;
                }
            }
            // A server that starts anew, say: it goes on without it.
            Err(error) if !late && watch::may_pass(&error) => shown.away(&error.to_string())?,
            Err(error) => return Err(lost(work, &error).into()),
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            _ = interrupts.recv() => break,
        }
    }
    known.ok_or_else(|| unseen(work).into())
}

/// How it is now; what was to go and is not found has gone.
async fn look(asker: &mut Asker<'_>, work: &Work, call: &Call) -> Result<Value, CallError> {
    match asker.try_call(work.read, call).await {
        Ok(answer) => Ok(answer.value),
        Err(CallError::Refused(problem)) if work.ends_gone() && problem.code == "not_found" => {
            Ok(json!({"id": work.id, "status": "deleted"}))
        }
        Err(error) => Err(error),
    }
}

/// Why nobody can say any more how it is.
fn lost(work: &Work, error: &CallError) -> Report {
    let report = refusal::failed(error, work.read.spec().cli);
    match work.receipt {
        Some(_) => with_receipt(work, report.fix(wait_on(work))),
        None => report,
    }
}

/// Nobody has looked before the person had seen enough.
fn unseen(work: &Work) -> Report {
    let why = "nobody has seen how it is, and it goes on without anybody who waits";
    with_receipt(work, unfinished(work, why))
}

/// A report with what began it, which is the way back to it.
fn with_receipt(work: &Work, report: Report) -> Report {
    match &work.receipt {
        Some(receipt) => report.with("receipt", receipt.clone()),
        None => report,
    }
}

fn end(asker: &Asker<'_>, work: &Work, value: &Value, ways: &[Value]) -> Outcome {
    let session = asker.session;
    let state = text(value, "status");
    if session.json() {
        let mut document = view::document(&kind(work.read), value);
        if let Some(fields) = document.as_object_mut() {
            if work.read == Operation::GetDeploy {
                fields.insert("routes".to_owned(), ways.into());
            }
            if let Some(receipt) = &work.receipt {
                fields.insert("receipt".to_owned(), receipt.clone());
            }
        }
        session.printer.json(&document)?;
    } else if session.printer.verbosity() == Verbosity::Quiet {
        session.printer.data(&work.id)?;
    } else {
        session.printer.data(&line(&work.id, value))?;
        for way in ways {
            session.printer.data(&way_in(way))?;
        }
    }
    let id = &work.id;
    match work.standing(value) {
        Standing::Done => Ok(ExitCode::Success),
        Standing::Failed => Err(ended_badly(id, value).into()),
        Standing::Moving => {
            let why = format!("it is {state}, and goes on without anybody who waits");
            Err(unfinished(work, why).into())
        }
    }
}

/// It goes on, and nobody waits for it any more.
fn unfinished(work: &Work, why: impl Into<String>) -> Report {
    let what = format!("`{}` is not done yet", work.id);
    let report = Report::new(ExitCode::Transient, what).code("wait_expired");
    report.why(why).fix(wait_on(work))
}

/// How one waits on.
fn wait_on(work: &Work) -> String {
    let id = &work.id;
    match work.is_operation() {
        true => format!("wait on with `fluffy wait {id}`, or longer with --timeout"),
        false => "wait longer with --timeout, or look with `fluffy status`".to_owned(),
    }
}

/// Where a process can be reached, in words.
fn way_in(route: &Value) -> String {
    let (process, port) = (
        text(route, "backend_process"),
        number(route, "backend_port"),
    );
    let mut line = format!("{process}:{port} is at http://{}", text(route, "address"));
    match (text(route, "status"), text(route, "reason")) {
        ("active", _) => {}
        (status, "") => {
            let _ = write!(line, " ({status})");
        }
        (status, reason) => {
            let _ = write!(line, " ({status}: {reason})");
        }
    }
    line
}

/// What a call began and what failed before the call was answered.
pub(crate) fn failed(value: &Value) -> Option<Report> {
    let failed = value.get("error").is_some_and(Value::is_object);
    let failed = failed && text(value, "status") == "failed";
    failed.then(|| ended_badly(&view::name(value), value))
}

fn ended_badly(id: &str, value: &Value) -> Report {
    let state = text(value, "status");
    let reason = ["failed_reason", "message", "reason"].map(|name| text(value, name));
    let error = value.pointer("/error/message").and_then(Value::as_str);
    // What is wrong with the ledger itself is no ordinary failure.
    let exit = match value.pointer("/error/code").and_then(Value::as_str) {
        Some("internal") => ExitCode::Internal,
        _ => ExitCode::Failure,
    };
    let mut report = Report::new(exit, format!("`{id}` ended as {state}"));
    for why in reason
        .into_iter()
        .chain(error)
        .filter(|why| !why.is_empty())
    {
        report = report.why(why.to_owned());
    }
    match state {
        "paused" => report
            .fix(format!("go on with `fluffy deploys resume {id}`"))
            .fix(format!("or go back with `fluffy deploys cancel {id}`")),
        _ => report.fix("`fluffy status` shows how it is now, `fluffy events list` what happened"),
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

/// Each part with how much of it is done: groups of a deploy, or the whole.
fn parts(value: &Value) -> Vec<(String, u64, u64)> {
    let groups = value.get("groups").and_then(Value::as_array);
    if let Some(groups) = groups {
        let part = |group: &Value| {
            let name = text(group, "process").to_owned();
            (name, there(group), number(group, "desired"))
        };
        return groups.iter().map(part).collect();
    }
    let progress = value.get("progress").filter(|it| it.is_object());
    let whole = progress.map(|it| (String::new(), number(it, "done"), number(it, "total")));
    whole.into_iter().collect()
}

/// How many of a group serve: of a deploy those that are new.
fn there(group: &Value) -> u64 {
    match group.get("available") {
        Some(_) => number(group, "available"),
        None => number(group, "ready"),
    }
}

fn conditions(group: &Value) -> impl Iterator<Item = &Value> {
    let held = group.get("conditions").and_then(Value::as_array);
    held.into_iter().flatten()
}

/// How far it is, in words.
fn line(id: &str, value: &Value) -> String {
    let mut line = format!("{id} {}", text(value, "status"));
    let groups = value.get("groups").and_then(Value::as_array);
    for group in groups.into_iter().flatten() {
        let (name, wanted) = (text(group, "process"), number(group, "desired"));
        let (word, available) = match group.get("available") {
            Some(_) => ("available", there(group)),
            None => ("ready", there(group)),
        };
        let _ = write!(line, "; {name}: {available} of {wanted} {word}");
        match number(group, "old") {
            0 => {}
            old => {
                let _ = write!(line, ", {old} old");
            }
        }
        for condition in conditions(group) {
            let _ = write!(line, ", {}", text(condition, "condition"));
        }
    }
    if groups.is_none() {
        for (_, done, total) in parts(value) {
            let _ = write!(line, ": {done} of {total}");
        }
    }
    for blocker in blockers(value) {
        let _ = write!(line, "; {blocker}");
    }
    let reason = match text(value, "message") {
        "" => text(value, "reason"),
        message => message,
    };
    match reason {
        "" => line,
        reason => format!("{line} ({reason})"),
    }
}

fn blockers(value: &Value) -> impl Iterator<Item = String> {
    let all = value.get("blockers").and_then(Value::as_array);
    all.into_iter().flatten().map(|blocker| {
        let (instance, reason) = (text(blocker, "instance_id"), text(blocker, "reason"));
        format!("blocked by {instance}: {reason}")
    })
}

/// Why it does not go on as it could, in words: what is short or in the way.
fn reasons(value: &Value) -> Vec<String> {
    let mut reasons: Vec<String> = blockers(value).collect();
    // A message says what its groups' conditions are, and better.
    match (text(value, "message"), text(value, "reason")) {
        ("", "") => {
            let groups = value.get("groups").and_then(Value::as_array);
            for group in groups.into_iter().flatten() {
                reasons.extend(conditions(group).map(|it| {
                    let (name, word) = (text(group, "process"), text(it, "condition"));
                    match text(it, "detail") {
                        "" => format!("{name}: {word}"),
                        detail => format!("{name}: {word} ({detail})"),
                    }
                }));
            }
        }
        ("", reason) => reasons.push(reason.to_owned()),
        (message, _) => reasons.push(message.to_owned()),
    }
    reasons
}

/// How far it is, as bars; what is wrong with a part stands at its bar.
fn drawn(value: &Value, elapsed: Duration) -> Text {
    let mut drawn = Text::new();
    drawn.add(Tone::Strong, text(value, "status"));
    let groups = value.get("groups").and_then(Value::as_array);
    let mut groups = groups.into_iter().flatten();
    for (name, done, total) in parts(value) {
        let filled = (done * BAR).checked_div(total).unwrap_or(BAR).min(BAR);
        let count = |cells: u64| usize::try_from(cells).unwrap_or_default();
        drawn.plain(&format!("  {name} "));
        drawn.add(Tone::Good, &"█".repeat(count(filled)));
        drawn.add(Tone::Dim, &"░".repeat(count(BAR - filled)));
        drawn.plain(&format!(" {done}/{total}"));
        for condition in groups.next().into_iter().flat_map(conditions) {
            drawn.add(Tone::Caution, &format!(" {}", text(condition, "condition")));
        }
    }
    drawn.add(Tone::Dim, &format!("  {}s", elapsed.as_secs()));
    let blocked = blockers(value).count();
    if blocked > 0 {
        drawn.add(Tone::Caution, &format!("  {blocked} blocked"));
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use fluffy_report::Styling;

    fn rolling() -> Value {
        json!({
            "id": "dep_1", "status": "rolling", "message": null,
            "groups": [
                {"process": "web", "desired": 3, "available": 1, "old": 2, "conditions": []},
                {"process": "job", "desired": 0, "available": 0, "old": 0,
                 "conditions": [{"condition": "no_capacity_memory"}]},
            ],
        })
    }

    #[test]
    fn a_rollout_is_drawn_and_told() {
        let drawn = drawn(&rolling(), Duration::from_secs(7)).render(Styling::Plain);
        assert_eq!(
            drawn,
            "rolling  web ████░░░░░░░░ 1/3  job ████████████ 0/0 no_capacity_memory  7s"
        );
        assert_eq!(
            line("dep_1", &rolling()),
            "dep_1 rolling; web: 1 of 3 available, 2 old; job: 0 of 0 available, no_capacity_memory"
        );
        assert_eq!(reasons(&rolling()), ["job: no_capacity_memory"]);
    }

    #[test]
    fn why_nothing_moves_is_said_where_it_is_drawn() {
        let mut deploy = rolling();
        deploy["message"] = json!("job: no room for more, so one is taken out before one comes in");
        assert_eq!(reasons(&deploy), [deploy["message"].as_str().unwrap()]);
        let drain = json!({
            "id": "drn_1", "status": "running", "progress": {"done": 1, "total": 3},
            "blockers": [{"instance_id": "inst_1", "reason": "volume_home"}],
        });
        assert_eq!(reasons(&drain), ["blocked by inst_1: volume_home"]);
        let drawn = drawn(&drain, Duration::from_secs(1)).render(Styling::Plain);
        assert!(drawn.ends_with(" 1/3  1s  1 blocked"), "{drawn}");
        assert_eq!(
            line(
                "rt_1",
                &json!({"status": "blocked", "reason": "port_denied"})
            ),
            "rt_1 blocked (port_denied)"
        );
    }
}
