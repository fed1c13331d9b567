//! `fluffy logs export`: every line of a window, as JSON, one entry a line.
//!
//! A server shows an hour at once, and so many lines in one answer: the window
//! is cut into hours, and each is gone through by the server's cursor. After
//! each answer the output says where it is, so that who was interrupted goes on
//! exactly there. Next: `sink` for the file.

mod sink;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ArgMatches;
use fluffy_api::Operation;
use fluffy_api::client::{Answer, CallError};
use fluffy_base::{Clock as _, Span, SystemClock, Timestamp};
use fluffy_report::{ExitCode, Report};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::ask::{Asker, Call};
use super::{refusal, view, watch};
use crate::command::Outcome;
use crate::failure::Failure;
use sink::{Sink, Written};

/// The words of the command.
const WORDS: &str = "logs export";

/// How much of logs a server shows at once to who does not run the platform.
const WINDOW: Duration = Duration::from_secs(3600);

/// How many lines are asked for at once.
const PAGE: &str = "10000";

/// The pause before what broke is tried again, and how often in a row.
const PAUSE: Duration = Duration::from_secs(1);
const PATIENCE: u32 = 8;

/// The longest that a server can make us wait.
const LONGEST: Duration = Duration::from_secs(120);

/// How often it is said how far it is.
pub(super) const SAY: Duration = Duration::from_secs(5);

/// What is exported: an env, and what of it. An export that goes on has to be
/// of the same.
type Subject = Value;

/// Where an export is: at the beginning of an hour, and behind what the server
/// told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    since: Timestamp,
    cursor: String,
}

impl Place {
    fn at(since: Timestamp) -> Self {
        Self {
            since,
            cursor: "start".to_owned(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (since, cursor) = text.split_once('/')?;
        Some(Self {
            since: since.parse().ok()?,
            cursor: Some(cursor).filter(|it| !it.is_empty())?.to_owned(),
        })
    }

    fn text(&self) -> String {
        format!("{}/{}", self.since, self.cursor)
    }

    /// The end of its hour, which is a part of it; servers count milliseconds.
    fn end(&self, until: Timestamp) -> Timestamp {
        let last = WINDOW.saturating_sub(Duration::from_millis(1));
        self.since.after(last).min(until)
    }
}

/// Writes every line of a window, and where it is after each answer.
pub(super) async fn run(asker: &mut Asker<'_>, matches: &ArgMatches) -> Outcome {
    let text = |name: &str| matches.get_one::<String>(name);
    let now = SystemClock.now();
    let until = match text("until") {
        Some(text) => time("until", text, now)?,
        None => now,
    };
    let since = match text("since") {
        Some(text) => time("since", text, now)?,
        None => Timestamp::from_micros(until.as_micros().saturating_sub(micros(WINDOW))),
    };
    let mut place = Place::at(since);
    if let Some(text) = text("cursor") {
        place = Place::parse(text).ok_or_else(|| {
            Report::new(
                ExitCode::Usage,
                format!("`{text}` is no cursor of an export"),
            )
            .fix("take it from the last entry of kind `LogCursor`")
        })?;
    }
    let path = Operation::GetLogs.spec().path_params();
    let path = path.map(|name| Ok(asker.target.part(name)?.name.clone()));
    let path = path.collect::<Result<Vec<_>, Failure>>()?;
    let filters: Vec<_> = ["process", "instance", "stream"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), text(name)?.clone())))
        .collect();
    let subject: Subject = json!({"env": path.join("/"), "only": filters});
    let resumes = super::call::has(matches, "resume");
    let mut sink = match text("output") {
        Some(file) => Sink::file(&PathBuf::from(file), resumes, &subject)?,
        None => Sink::standard_output(),
    };
    let mut walk = Walk {
        path,
        filters,
        subject,
        until,
    };
    if let Some(written) = sink.before() {
        if written.complete {
            let note = "it is whole already; nothing is added";
            asker.session.printer.note(note);
            return Ok(ExitCode::Success);
        }
        (place, walk.until) = (written.place.clone(), written.until);
    }
    if place.since > walk.until {
        let what = "the window ends before it begins";
        let report = Report::new(ExitCode::Usage, what);
        return Err(report.fix("give a `--since` before `--until`").into());
    }
    if sink.before().is_none() {
        // Who is interrupted from here on can go on.
        walk.mark(asker, &place, false, &mut sink)?;
    }
    walk.go(asker, place, &mut sink).await
}

/// A time, or how long ago.
fn time(name: &str, text: &str, now: Timestamp) -> Result<Timestamp, Failure> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let ago = text.parse::<Span>().map_err(|_| {
        Report::new(ExitCode::Usage, format!("`--{name} {text}` is no time"))
            .fix("write a UTC time such as 2026-11-15T08:00:00Z, or how long ago, such as 6h")
    })?;
    let ago = micros(Duration::from_millis(ago.millis));
    Ok(Timestamp::from_micros(now.as_micros().saturating_sub(ago)))
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Asks once more, and again, while that may help.
pub(super) async fn patiently(
    asker: &mut Asker<'_>,
    operation: Operation,
    call: &Call,
) -> Result<Answer, CallError> {
    let mut broken = 0;
    loop {
        let error = match asker.try_call(operation, call).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        broken += 1;
        if broken > PATIENCE || !watch::may_pass(&error) {
            return Err(error);
        }
        let asked = match &error {
            CallError::Refused(problem) => problem.retry_after.map(Duration::from_secs),
            _ => None,
        };
        sleep(asked.unwrap_or(PAUSE).min(LONGEST)).await;
    }
}

/// One export.
struct Walk {
    path: Vec<String>,
    filters: Vec<(String, String)>,
    subject: Subject,
    until: Timestamp,
}

impl Walk {
    async fn go(&self, asker: &mut Asker<'_>, mut place: Place, sink: &mut Sink) -> Outcome {
        let mut said = Instant::now();
        loop {
            let page = match self.page(asker, &place).await {
                Ok(page) => page,
                Err(error) => return Err(self.stopped(&error, &place, sink).into()),
            };
            let lines = page.get("items").and_then(Value::as_array);
            let lines = lines.map_or(&[][..], Vec::as_slice);
            for line in lines {
                self.write(asker, line, sink)?;
            }
            match page.get("next_cursor").and_then(Value::as_str) {
                Some(next) if !lines.is_empty() => next.clone_into(&mut place.cursor),
                // A server of before tells its newest lines, and no more.
                None => return Err(too_old().into()),
                Some(_) => {
                    let end = place.end(self.until);
                    if end >= self.until {
                        self.mark(asker, &place, true, sink)?;
                        sink.finish()?;
                        let counted = sink.counted();
                        asker.session.printer.note(&format!("exported {counted}"));
                        return Ok(ExitCode::Success);
                    }
                    place = Place::at(place.since.after(WINDOW));
                }
            }
            self.mark(asker, &place, false, sink)?;
            if said.elapsed() >= SAY {
                said = Instant::now();
                let (counted, at) = (sink.counted(), place.since);
                let note = format!("{counted} so far, in the hour after {at}");
                asker.session.printer.note(&note);
            }
        }
    }

    /// What the server tells behind a place.
    async fn page(&self, asker: &mut Asker<'_>, place: &Place) -> Result<Value, CallError> {
        let mut query = self.filters.clone();
        query.extend([
            ("since".to_owned(), place.since.to_string()),
            ("until".to_owned(), place.end(self.until).to_string()),
            ("tail".to_owned(), PAGE.to_owned()),
            ("cursor".to_owned(), place.cursor.clone()),
        ]);
        let call = Call {
            path: self.path.clone(),
            query,
            ..Call::default()
        };
        let answer = patiently(asker, Operation::GetLogs, &call).await?;
        Ok(answer.value)
    }

    /// Writes a line that is new, after what was lost before it.
    fn write(&self, asker: &Asker<'_>, line: &Value, sink: &mut Sink) -> Result<(), Failure> {
        if !sink.is_new(line) {
            return Ok(());
        }
        if let Some(dropped) = line.get("dropped").and_then(Value::as_u64) {
            let part = |name: &str| line.get(name).cloned().unwrap_or_default();
            let gap = json!({
                "at": part("at"), "instance_id": part("instance_id"), "process": part("process"),
                "stream": part("stream"), "dropped": dropped,
            });
            sink.write(
                asker,
                Written::Gap(dropped),
                &view::document("LogGap", &gap),
            )?;
        }
        sink.write(asker, Written::Line, &view::document("LogLine", line))
    }

    /// Writes where the export is; all before it is whole then.
    fn mark(
        &self,
        asker: &Asker<'_>,
        place: &Place,
        complete: bool,
        sink: &mut Sink,
    ) -> Result<(), Failure> {
        let mark = json!({
            "cursor": place.text(), "until": self.until, "complete": complete,
            "lines": sink.lines(), "of": self.subject,
        });
        sink.write(asker, Written::Mark, &view::document("LogCursor", &mark))
    }

    /// Why it cannot go on, and how it goes on later.
    fn stopped(&self, error: &CallError, place: &Place, sink: &Sink) -> Report {
        let report = refusal::failed(error, WORDS);
        match sink.path() {
            Some(_) => report.fix("go on with the same command and `--resume`"),
            None => report.fix(format!(
                "go on with `--until {} --cursor {}`",
                self.until,
                place.text()
            )),
        }
    }
}

fn too_old() -> Report {
    let what = "this server cannot go through all lines";
    Report::new(ExitCode::Failure, what)
        .why("it is of an earlier version")
        .fix("read them with `fluffy logs --since … --until …`, or update the server")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_back_and_hours_do_not_overlap() {
        let begin: Timestamp = "2026-11-15T08:00:00.000250Z".parse().unwrap();
        let place = Place {
            since: begin,
            cursor: "00000000000000aa.7,00000000000000bb.9".to_owned(),
        };
        assert_eq!(Place::parse(&place.text()), Some(place.clone()));
        for wrong in ["", "/", "2026-11-15T08:00:00Z/", "now/start", "start"] {
            assert_eq!(Place::parse(wrong), None, "{wrong}");
        }
        let ms = |at: Timestamp| at.as_micros() / 1_000;
        let next = Place::at(begin.after(WINDOW));
        assert_eq!(ms(place.end(Timestamp::MAX)) + 1, ms(next.since));
        let soon = begin.after(Duration::from_secs(7));
        assert_eq!(place.end(soon), soon);
    }

    #[test]
    fn a_time_is_one_or_how_long_ago() {
        let now: Timestamp = "2026-11-15T08:00:00Z".parse().unwrap();
        let at = |text: &str| time("since", text, now).ok().map(|at| at.to_string());
        assert_eq!(at("6h"), at("2026-11-15T02:00:00Z"));
        assert_eq!(at("yesterday"), None);
    }
}
