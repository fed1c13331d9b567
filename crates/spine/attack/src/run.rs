//! Plays attacks on subjects and collects what came of them.
//!
//! Each attack gets fresh ground and fresh sandboxes. Must never count a
//! trial that did not happen: see `witness` for what would make a whole run
//! worthless.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::alarm::Alarm;
use crate::attack::{Aftermath, Attack, Family, Network};
use crate::ground::{Ground, LayGroundError};
use crate::report::{Cell, Report, Row, SubjectLine};
use crate::stage::{PERMITTED_HOST, Visit};
use crate::subject::{Allow, Ran, RunTrialError, Subject, Trial};
use crate::verdict::{Said, Verdict, judge, judge_second};
use crate::witness;

/// How long a trial may take beyond twice its limit of time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Plays one attack on one subject; canaries are laid below `base`.
pub fn run(attack: &Attack, subject: &dyn Subject, base: &Path) -> Verdict {
    if !attack.tiers.contains(&subject.tier()) {
        return Verdict::NotApplicable {
            why: format!("tier `{}` makes no such claim", subject.tier().as_str()),
        };
    }
    if let Some(why) = subject.lacks(attack) {
        return Verdict::NotApplicable { why };
    }
    play(attack, subject, base).unwrap_or_else(|error| Verdict::Broken {
        why: explain(&error),
    })
}

/// Plays all `attacks` on all `subjects`; `progress` is told of each verdict.
pub fn run_all(
    attacks: &[&'static Attack],
    subjects: &[&dyn Subject],
    base: &Path,
    mut progress: impl FnMut(&Attack, &dyn Subject, &Verdict),
) -> Report {
    let doubts: Vec<witness::Doubts> = subjects
        .iter()
        .map(|subject| witness::doubts(attacks, *subject, base))
        .collect();
    let rows = attacks.iter().map(|attack| {
        let cells = subjects.iter().zip(&doubts).map(|(subject, doubts)| {
            let verdict = run(attack, *subject, base);
            let verdict = doubts.weigh(attack, verdict);
            progress(attack, *subject, &verdict);
            Cell {
                subject: subject.name().to_owned(),
                verdict,
            }
        });
        Row::of(attack, cells.collect())
    });
    let rows = rows.collect();
    Report {
        subjects: subjects
            .iter()
            .map(|subject| SubjectLine::of(*subject))
            .collect(),
        rows,
    }
}

/// What one visit brought.
pub(crate) struct Visited {
    pub(crate) ran: Ran,
    pub(crate) said: Said,
}

/// Sends the worker into the subject once.
pub(crate) fn visit(
    attack: &Attack,
    subject: &dyn Subject,
    ground: &Ground,
    visit: Visit,
) -> Result<Visited, PlayError> {
    let stage = ground.stage(visit);
    let spelled = serde_json::to_string(&stage).map_err(PlayError::Stage)?;
    let trial = Trial {
        arguments: [attack.name.to_owned(), spelled],
        project: ground.project(),
        environment: ground.environment(),
        descriptors: ground.descriptors(),
        streams: attack.streams,
        network: attack.network,
        allow: [
            Allow {
                host: PERMITTED_HOST,
                port: stage.permitted,
                address: Some("127.0.0.1"),
            },
            // Permitted by name only: what it resolves to is not.
            Allow {
                host: "localhost",
                port: stage.tcp,
                address: None,
            },
        ],
        aftermath: attack.aftermath,
        patience: stage.limits.time() * 2 + PATIENCE,
    };
    let ran = subject.run(&trial).map_err(PlayError::Run)?;
    let said = Said::read(attack.name, &ran.output);
    Ok(Visited { ran, said })
}

fn play(attack: &Attack, subject: &dyn Subject, base: &Path) -> Result<Verdict, PlayError> {
    let mut ground = Ground::lay(base, attack, subject.limits()).map_err(PlayError::Lay)?;
    let Visited { ran, said } = first_visit(attack, subject, &ground)?;
    let mut alarms = ground.alarms(said.outcome.as_ref(), &ran.output, &ran.typed);
    if attack.family == Family::CleanUp {
        let left = subject.leftovers().into_iter();
        alarms.extend(left.map(|what| Alarm::LeftBehind { what }));
    }
    let verdict = judge(attack, &ran, &said, &alarms);
    if attack.revisit.is_none() || !matches!(verdict, Verdict::Stopped { .. }) {
        return Ok(verdict);
    }
    let Visited { ran, said } = visit(attack, subject, &ground, Visit::Second)?;
    Ok(judge_second(&ran, &said).unwrap_or(verdict))
}

/// The attempt itself, with a sandbox beside it if it wants one.
fn first_visit(
    attack: &Attack,
    subject: &dyn Subject,
    ground: &Ground,
) -> Result<Visited, PlayError> {
    if attack.sibling.is_none() {
        return visit(attack, subject, ground, Visit::First);
    }
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| visit(attack, subject, ground, Visit::Sibling));
        let first = visit(attack, subject, ground, Visit::First);
        match beside.join() {
            Ok(Ok(beside)) if beside.said.marked => first,
            Ok(Ok(beside)) => Err(PlayError::Sibling(beside.ran.describe())),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(PlayError::Sibling("it panicked".to_owned())),
        }
    })
}

/// Why an attack could not be played.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlayError {
    /// Its ground could not be laid.
    #[error("the ground could not be laid")]
    Lay(#[source] LayGroundError),
    /// Its stage could not be spelled.
    #[error("the stage could not be written")]
    Stage(#[source] serde_json::Error),
    /// There was no sandbox beside it.
    #[error("the sandbox beside it did not run: {0}")]
    Sibling(String),
    /// The subject could not be run.
    #[error("the trial could not be run")]
    Run(#[source] RunTrialError),
}

/// An error with all that caused it, on one line.
pub(crate) fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// What a witness or an attack needs of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Need {
    /// That merges arrive.
    Merge,
    /// That permitted hosts are reached.
    Egress,
}

impl Need {
    /// What this attack needs.
    pub(crate) fn of(attack: &Attack) -> Option<Self> {
        match (attack.aftermath, attack.network) {
            (_, Network::Restricted) => Some(Self::Egress),
            (Aftermath::Merge, Network::None) => Some(Self::Merge),
            (Aftermath::Discard, Network::None) => None,
        }
    }
}
