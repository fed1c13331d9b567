//! Waits for what takes a while, and draws how far it is.
//!
//! A line at the bottom of a terminal, plain lines of talk without one; why it
//! does not go on is said in both. What is waited for goes on when nobody waits
//! any more. Next: `progress/work.rs` for when something is done.

mod work;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use fluffy_api::Operation;
use fluffy_api::client::CallError;
use fluffy_base::Span;
use fluffy_report::{ExitCode, Report, Text, Tone, Verbosity};
use serde_json::{Value, json};
use tokio::time::sleep;

pub(crate) use self::work::{Standing, Work};
use super::ask::{Asker, Call};
use super::{refusal, view};
use crate::args::platform::kind;
use crate::command::Outcome;
use crate::failure::Failure;

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
    let last = last(asker, work, patience).await?;
    let is_bad = ["failed", "paused"].contains(&text(&last, "status"));
    if work.read == Operation::GetDeploy
        && is_bad
        && !asker.session.json()
        && let Some(began) = began
    {
        // Who may not read them, or gets no answer, is told why it failed.
        let words = last_words(asker, began.seq).await;
        return match words {
            Some(words) => badly(asker, work, &last, &words),
            None => end(asker, work, &last, &[]),
        };
    }
    let ways = match work.read {
        Operation::GetDeploy if text(&last, "status") == "succeeded" => ways(asker).await?,
        _ => Vec::new(),
    };
    end(asker, work, &last, &ways)
}

/// What an instance printed that failed.
struct LastWords {
    instance: String,
    lines: Vec<String>,
}

/// The last lines of the instance that failed last since an event, if anybody
/// may and can tell them.
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
    let is_failed = |it: &&Value| it.pointer("/payload/status") == Some(&Value::from("failed"));
    let instance = text(events.iter().rev().find(is_failed)?, "aggregate_id").to_owned();
    let logs = Call {
        path: path.clone(),
        query: query(&[("instance", instance.clone()), ("tail", LINES.to_string())]),
        ..Call::default()
    };
    let logs = asker.call(Operation::GetLogs, logs).await.ok()?.value;
    let lines = logs.get("items")?.as_array()?.iter();
    let lines: Vec<String> = lines.map(|it| text(it, "line").to_owned()).collect();
    (!lines.is_empty()).then_some(LastWords { instance, lines })
}

/// Ends as it ended, with what was printed by what failed.
fn badly(asker: &Asker<'_>, work: &Work, value: &Value, words: &LastWords) -> Outcome {
    let LastWords { instance, lines } = words;
    let printer = &asker.session.printer;
    match printer.verbosity() {
        Verbosity::Quiet => printer.data(&work.id)?,
        _ => printer.data(&line(&work.id, value))?,
    }
    printer.note(&format!("the last that {instance} printed:"));
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

/// How it is when it is done, or when time is up.
async fn last(asker: &mut Asker<'_>, work: &Work, patience: Span) -> Result<Value, Failure> {
    let printer = &asker.session.printer;
    let silent = asker.session.json() || printer.verbosity() == Verbosity::Quiet;
    let mut footer = match silent {
        true => None,
        false => printer.footer(),
    };
    let began = Instant::now();
    let mut told = String::new();
    let last = loop {
        let value = look(asker, work).await?;
        let moves = work.standing(&value) == Standing::Moving;
        match &mut footer {
            Some(footer) => {
                // Why it does not go on stays on the screen, once.
                let why = reasons(&value).join("; ");
                let mut above = Text::new();
                if why != told && !why.is_empty() && moves {
                    above.add(Tone::Caution, &format!("{why}\n"));
                }
                told = why;
                footer.write(&above, &drawn(&value, began.elapsed()))?;
            }
            None => {
                let line = line(&work.id, &value);
                // How it ended is told as its result.
                if line != told && moves && !silent {
                    printer.note(&line);
                    told = line;
                }
            }
        }
        let late = began.elapsed() >= Duration::from(patience);
        if !moves || late {
            break value;
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            _ = tokio::signal::ctrl_c() => break value,
        }
    };
    if let Some(mut footer) = footer {
        footer.close()?;
    }
    Ok(last)
}

/// How it is now; what was to go and is not found has gone.
async fn look(asker: &mut Asker<'_>, work: &Work) -> Result<Value, Failure> {
    let call = Call {
        path: work.path(asker)?,
        ..Call::default()
    };
    match asker.try_call(work.read, &call).await {
        Ok(answer) => Ok(answer.value),
        Err(CallError::Refused(problem)) if work.ends_gone() && problem.code == "not_found" => {
            Ok(json!({"id": work.id, "status": "deleted"}))
        }
        Err(error) => Err(refusal::failed(&error, work.read.spec().cli).into()),
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
            let report = Report::new(ExitCode::Transient, format!("`{id}` is not done yet"))
                .code("wait_expired")
                .why(format!(
                    "it is {state}, and goes on without anybody who waits"
                ));
            Err(match work.is_operation() {
                true => report.fix(format!(
                    "wait on with `fluffy wait {id}`, or longer with --timeout"
                )),
                false => report.fix("wait longer with --timeout, or look with `fluffy status`"),
            }
            .into())
        }
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
    failed.then(|| ended_badly(view::name(value), value))
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
