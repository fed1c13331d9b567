//! Plays a recording's model side; everything else is real.
//!
//! Before each answer the tools' new results are compared with those that were
//! recorded. A difference is reported with a diff and ends the session: the
//! recorded answer would be about something that did not happen. Never needs a
//! network or a key. Next: `same`.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fluffy_contract::BoxFuture;
use fluffy_contract::model::{
    FaultKind, ModelEvent, ModelFault, ModelProvider, ModelStream, Retry, StartTurnError, Turn,
};
use fluffy_contract::tool::ToolOutcome;
use fluffy_policy::Permit;
use fluffy_secret::Redactor;
use imara_diff::{Algorithm, BasicLineDiffPrinter, Diff, InternedInput, UnifiedDiffConfig};

use crate::record::{Recording, SeenResult, seen_results};
use crate::same::{essence, is_same};

/// Plays recordings.
pub struct Replay {
    recording: Recording,
    next: Mutex<usize>,
    redactor: Redactor,
    project: String,
}

/// How the tools' answers differ from the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// In which turn, from 1.
    pub turn: usize,
    /// The tool, or nothing if the number of results differs.
    pub tool: Option<String>,
    /// A unified diff from the recording to what happened.
    pub diff: String,
}

impl Replay {
    /// Plays this recording in a project, from its beginning. What the tools
    /// say goes through `redactor` first, as it did when it was recorded.
    #[must_use]
    pub fn new(recording: Recording, redactor: Redactor, project: &str) -> Self {
        Self {
            recording: recording.in_project(project),
            next: Mutex::default(),
            redactor,
            project: project.to_owned(),
        }
    }

    /// The same after so many turns: the session goes on from there.
    #[must_use]
    pub fn after(self, turns: usize) -> Self {
        *lock(&self.next) = turns;
        self
    }

    /// The recorded answer to the next turn.
    #[must_use]
    pub fn play(&self, turn: &Turn) -> ReplayStream {
        let number = {
            let mut next = lock(&self.next);
            *next += 1;
            *next
        };
        let Some(recorded) = self.recording.turns.get(number - 1) else {
            let message = format!("the recording ends after {} turns", number - 1);
            return ReplayStream::failing(FaultKind::Ended, message);
        };
        if let Some(found) = self.compare(number, &recorded.results, &seen_results(turn)) {
            return ReplayStream::failing(FaultKind::Diverged, found.to_string());
        }
        let events = recorded.events.iter().cloned().flat_map(in_pieces);
        ReplayStream(events.collect::<Vec<_>>().into_iter())
    }

    /// The first difference between what the tools said then and say now.
    fn compare(&self, turn: usize, then: &[SeenResult], now: &[SeenResult]) -> Option<Divergence> {
        if then.len() != now.len() {
            let names = |results: &[SeenResult]| {
                let names = results.iter().map(|result| format!("{}\n", result.tool));
                names.collect::<String>()
            };
            let diff = unified(&names(then), &names(now));
            return Some(Divergence {
                turn,
                tool: None,
                diff,
            });
        }
        then.iter().zip(now).find_map(|(then, now)| {
            let (before, after) = (self.essence(then), self.essence(now));
            (!is_same(&now.tool, &before, &after)).then(|| Divergence {
                turn,
                tool: Some(now.tool.clone()),
                diff: unified(&before, &after),
            })
        })
    }

    fn essence(&self, result: &SeenResult) -> String {
        let SeenResult {
            tool,
            outcome,
            content,
            ..
        } = result;
        let content = self.redactor.redact(content).text;
        let content = essence(&content, &self.project);
        let outcome = match outcome {
            ToolOutcome::Done => "done",
            ToolOutcome::Failed => "failed",
        };
        format!("{tool} {outcome}\n{content}\n")
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tool {
            Some(tool) => write!(
                f,
                "turn {}: `{tool}` answered differently\n{}",
                self.turn, self.diff
            ),
            None => write!(f, "turn {}: other tools answered\n{}", self.turn, self.diff),
        }
    }
}

impl ModelProvider for Replay {
    fn name(&self) -> &'static str {
        "replay"
    }

    fn start(
        &self,
        _permit: Permit,
        turn: Turn,
    ) -> BoxFuture<'_, Result<Box<dyn ModelStream>, StartTurnError>> {
        Box::pin(async move { Ok(Box::new(self.play(&turn)) as Box<dyn ModelStream>) })
    }
}

/// A recorded answer.
#[derive(Debug)]
pub struct ReplayStream(std::vec::IntoIter<ModelEvent>);

impl ReplayStream {
    fn failing(kind: FaultKind, message: String) -> Self {
        let fault = ModelFault {
            kind,
            message,
            retryable: Retry::Never,
        };
        Self(vec![ModelEvent::Error(fault)].into_iter())
    }
}

impl ModelStream for ReplayStream {
    fn next(&mut self) -> BoxFuture<'_, Option<ModelEvent>> {
        let event = self.0.next();
        Box::pin(std::future::ready(event))
    }
}

/// Text in words, as a model says it.
fn in_pieces(event: ModelEvent) -> Vec<ModelEvent> {
    let words = |text: &str| {
        text.split_inclusive(' ')
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    match event {
        ModelEvent::TextDelta { text } => words(&text)
            .into_iter()
            .map(|text| ModelEvent::TextDelta { text })
            .collect(),
        ModelEvent::ReasoningDelta { text } => words(&text)
            .into_iter()
            .map(|text| ModelEvent::ReasoningDelta { text })
            .collect(),
        other => vec![other],
    }
}

/// A unified diff from what was recorded to what happened.
#[must_use]
pub fn unified(then: &str, now: &str) -> String {
    let input = InternedInput::new(then, now);
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    let printer = BasicLineDiffPrinter(&input.interner);
    diff.unified_diff(&printer, UnifiedDiffConfig::default(), &input)
        .to_string()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
