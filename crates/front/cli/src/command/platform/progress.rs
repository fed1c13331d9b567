//! Waits for what takes a while, and draws how far it is.
//!
//! A line at the bottom of a terminal, plain lines of talk without one. What
//! is waited for goes on when nobody waits any more.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use fluffy_api::{Operation, Spec};
use fluffy_base::Span;
use fluffy_report::{ExitCode, Report, Text, Tone};
use serde_json::Value;
use tokio::time::sleep;

use super::ask::{Asker, Call};
use super::view;
use crate::args::platform::kind;
use crate::command::Outcome;
use crate::failure::Failure;

/// How long is waited unless somebody says otherwise.
pub(crate) const PATIENCE: Span = Span { millis: 600_000 };

/// How often is looked.
const PAUSE: Duration = Duration::from_millis(400);

/// How wide a bar is.
const BAR: u64 = 12;

/// What is waited for.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    id: String,
    read: Operation,
}

impl Work {
    /// What a write began.
    pub(crate) fn of(spec: &Spec, value: &Value) -> Self {
        let id = view::name(value).to_owned();
        let read = match &id {
            id if id.starts_with("dep_") => Operation::GetDeploy,
            _ if spec.path.starts_with("/v1/orgs/") => Operation::GetOperation,
            _ => Operation::GetPlatformOperation,
        };
        Self { id, read }
    }

    /// What an id names.
    pub(crate) fn named(id: &str) -> Self {
        let platform = id.starts_with("drn_") || id.starts_with("req_");
        Self {
            id: id.to_owned(),
            read: match platform {
                true => Operation::GetPlatformOperation,
                false => Operation::GetOperation,
            },
        }
    }

    fn path(&self, asker: &Asker<'_>) -> Result<Vec<String>, Failure> {
        let params: Vec<&str> = self.read.spec().path_params().collect();
        let (_, parts) = params.split_last().unwrap_or((&"", &[]));
        let named = parts
            .iter()
            .map(|part| Ok(asker.target.part(part)?.name.clone()));
        let mut path = named.collect::<Result<Vec<_>, Failure>>()?;
        path.push(self.id.clone());
        Ok(path)
    }
}

/// Waits until it is done; ends as it ended, or with 6 when time is up.
pub(crate) async fn follow(asker: &mut Asker<'_>, work: &Work, patience: Span) -> Outcome {
    let printer = &asker.session.printer;
    let mut footer = match asker.session.json() {
        true => None,
        false => printer.footer(),
    };
    let began = Instant::now();
    let mut told = String::new();
    let last = loop {
        let call = Call {
            path: work.path(asker)?,
            ..Call::default()
        };
        let value = asker.call(work.read, call).await?.value;
        match &mut footer {
            Some(footer) => footer.write(&Text::new(), &drawn(&value, began.elapsed()))?,
            None => {
                let line = line(&value);
                if line != told && !asker.session.json() {
                    printer.note(&line);
                    told = line;
                }
            }
        }
        let late = began.elapsed() >= Duration::from(patience);
        if is_final(&value) || late {
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
    end(asker, work, &last)
}

fn end(asker: &Asker<'_>, work: &Work, value: &Value) -> Outcome {
    let session = asker.session;
    let state = text(value, "status");
    if session.json() {
        let document = view::document(&kind(work.read), value);
        session.printer.json(&document)?;
    } else {
        session.printer.data(&line(value))?;
    }
    let id = &work.id;
    if !is_final(value) {
        let report = Report::new(ExitCode::Transient, format!("`{id}` is not done yet"))
            .code("wait_expired")
            .why(format!(
                "it is {state}, and goes on without anybody who waits"
            ))
            .fix(format!(
                "wait on with `fluffy wait {id}`, or longer with --timeout"
            ));
        return Err(report.into());
    }
    if state == "succeeded" {
        return Ok(ExitCode::Success);
    }
    Err(ended_badly(id, value).into())
}

/// What a call began and what failed before the call was answered.
pub(crate) fn failed(value: &Value) -> Option<Report> {
    let failed = value.get("error").is_some_and(Value::is_object);
    let failed = failed && text(value, "status") == "failed";
    failed.then(|| ended_badly(view::name(value), value))
}

fn ended_badly(id: &str, value: &Value) -> Report {
    let state = text(value, "status");
    let reason = ["failed_reason", "message"].map(|name| text(value, name));
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

fn is_final(value: &Value) -> bool {
    // A deploy that paused moves only when somebody says so.
    let states = ["succeeded", "failed", "canceled", "superseded", "paused"];
    states.contains(&text(value, "status"))
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
            (name, number(group, "available"), number(group, "desired"))
        };
        return groups.iter().map(part).collect();
    }
    let progress = value.get("progress").filter(|it| it.is_object());
    let whole = progress.map(|it| (String::new(), number(it, "done"), number(it, "total")));
    whole.into_iter().collect()
}

/// How far it is, in words.
fn line(value: &Value) -> String {
    let mut line = format!("{} {}", text(value, "id"), text(value, "status"));
    let groups = value.get("groups").and_then(Value::as_array);
    for group in groups.into_iter().flatten() {
        let (name, wanted) = (text(group, "process"), number(group, "desired"));
        let available = number(group, "available");
        let _ = write!(line, "; {name}: {available} of {wanted} available");
        match number(group, "old") {
            0 => {}
            old => {
                let _ = write!(line, ", {old} old");
            }
        }
        let conditions = group.get("conditions").and_then(Value::as_array);
        for condition in conditions.into_iter().flatten() {
            let _ = write!(line, ", {}", text(condition, "condition"));
        }
    }
    if groups.is_none() {
        for (_, done, total) in parts(value) {
            let _ = write!(line, ": {done} of {total}");
        }
    }
    let blockers = value.get("blockers").and_then(Value::as_array);
    for blocker in blockers.into_iter().flatten() {
        let (instance, reason) = (text(blocker, "instance_id"), text(blocker, "reason"));
        let _ = write!(line, "; blocked by {instance}: {reason}");
    }
    match text(value, "message") {
        "" => line,
        message => format!("{line} ({message})"),
    }
}

/// How far it is, as bars.
fn drawn(value: &Value, elapsed: Duration) -> Text {
    let mut drawn = Text::new();
    drawn.add(Tone::Strong, text(value, "status"));
    for (name, done, total) in parts(value) {
        let filled = (done * BAR).checked_div(total).unwrap_or(BAR).min(BAR);
        let count = |cells: u64| usize::try_from(cells).unwrap_or_default();
        drawn.plain(&format!("  {name} "));
        drawn.add(Tone::Good, &"█".repeat(count(filled)));
        drawn.add(Tone::Dim, &"░".repeat(count(BAR - filled)));
        drawn.plain(&format!(" {done}/{total}"));
    }
    drawn.add(Tone::Dim, &format!("  {}s", elapsed.as_secs()));
    drawn
}

#[cfg(test)]
mod tests {
    use fluffy_report::Styling;
    use serde_json::json;

    use super::*;

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
            "rolling  web ████░░░░░░░░ 1/3  job ████████████ 0/0  7s"
        );
        assert_eq!(
            line(&rolling()),
            "dep_1 rolling; web: 1 of 3 available, 2 old; job: 0 of 0 available, no_capacity_memory"
        );
    }

    #[test]
    fn what_only_a_person_moves_is_not_waited_for() {
        assert!(!is_final(&rolling()));
        for state in ["succeeded", "failed", "canceled", "superseded", "paused"] {
            assert!(is_final(&json!({"status": state})), "{state}");
        }
    }
}
