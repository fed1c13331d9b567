//! `fluffy replay FILE`: the model's side from a recording, the rest for real.
//!
//! Works on the recorded task in this project as `fluffy "task"` would: kernel,
//! policy, sandboxes, tests, merge and commit are real. Needs no network and no
//! key. Says at the end whether it went as it did then.

use std::path::Path;

use clap::ValueEnum as _;
use fluffy_kernel::event::{SessionEnded, SessionResult, VERSION};
use fluffy_kernel::recording::{end, was_stopped};
use fluffy_models::record::Recording;
use fluffy_models::replay::unified;
use fluffy_report::{ExitCode, Report, Text, Tone};
use serde_json::json;

use super::agent::show::diff;
use super::agent::{follow, keyboard};
use super::{Outcome, recordings};
use crate::args::{ModeArg, ReplayArgs, WorkArgs};
use crate::failure::{self, Failure};
use crate::session::Session;

/// How a replay compares with what was recorded.
#[derive(Debug, PartialEq, Eq)]
enum Compared {
    /// It went as it did then.
    Same,
    /// All that was recorded went as it did then; somebody stopped it there.
    SameSoFar,
    /// It did not; a diff, unless that was shown already.
    Different(Option<String>),
}

/// Plays a recording here.
pub(crate) fn run(session: &Session, args: &ReplayArgs) -> Outcome {
    let file =
        std::path::absolute(&args.file).map_err(|error| failure::unreadable(&args.file, &error))?;
    let recording =
        recordings::read(&file).map_err(|error| recordings::wrong(&args.file, &error))?;
    let work = WorkArgs {
        mode: Some(mode(&recording, &file)?),
        model: vec![format!("replay/{}", file.display())],
        yes_auto: args.yes_auto,
        ..WorkArgs::default()
    };
    let followed = follow(
        session,
        &work,
        Some(&recording.head.task),
        keyboard(session),
    )?;
    let Some(ended) = followed.ended else {
        return Ok(followed.code);
    };
    let compared = compare(&recording, &ended);
    tell(session, &recording, &ended, &compared)?;
    Ok(match compared {
        Compared::Same | Compared::SameSoFar => followed.code,
        Compared::Different(_) => ExitCode::Conflict,
    })
}

fn mode(recording: &Recording, file: &Path) -> Result<ModeArg, Failure> {
    ModeArg::from_str(&recording.head.mode, false).map_err(|_| {
        let why = format!("there is no mode `{}`", recording.head.mode);
        Report::new(ExitCode::Usage, format!("cannot play `{}`", file.display()))
            .code("no_recording")
            .why(why)
            .fix("a newer fluffy may have written it; use that one")
            .into()
    })
}

fn compare(recording: &Recording, ended: &SessionEnded) -> Compared {
    if ended.result == SessionResult::Diverged {
        return Compared::Different(None);
    }
    let now = end(ended);
    if now == recording.end {
        return Compared::Same;
    }
    if was_stopped(&recording.end) && ended.result == SessionResult::Unfinished {
        return Compared::SameSoFar;
    }
    let lines = |end: &fluffy_models::record::RecordingEnd| {
        format!("ended {}\n{}\n", end.ended, end.seen.join("\n"))
    };
    Compared::Different(Some(unified(&lines(&recording.end), &lines(&now))))
}

fn tell(
    session: &Session,
    recording: &Recording,
    ended: &SessionEnded,
    compared: &Compared,
) -> Result<(), Failure> {
    let (then, now) = (&recording.end.ended, end(ended).ended);
    if session.json() {
        let (same, difference) = match compared {
            Compared::Same | Compared::SameSoFar => (true, None),
            Compared::Different(difference) => (false, difference.as_deref()),
        };
        let value = json!({
            "v": VERSION, "type": "replay.ended", "same": same, "turns": recording.turns.len(),
            "then": then, "now": now, "diff": difference,
        });
        return Ok(session.printer.json(&value)?);
    }
    let mut text = Text::new();
    match compared {
        Compared::Same => text.add(Tone::Good, "The same").plain(&format!(
            " as recorded: {} turns, every answer of every tool\n",
            recording.turns.len()
        )),
        Compared::SameSoFar => text.add(Tone::Good, "The same").plain(&format!(
            " as far as it was recorded: it ended as {then} then\n"
        )),
        Compared::Different(_) => text.add(Tone::Bad, "NOT the same").plain(&format!(
            " as recorded: it ended as {then} then, as {now} now\n"
        )),
    };
    if let Compared::Different(Some(difference)) = compared {
        text.append(diff(difference));
    }
    Ok(session.printer.text(&text)?)
}
