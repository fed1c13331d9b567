//! Plays a recording's model side; everything else is real.
//!
//! Before each answer the tools' new results are compared with those that were
//! recorded. A difference is reported with a diff and, unless told otherwise,
//! ends the session: the recorded answer would be about something that did not
//! happen. Never needs a network or a key.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fluffy_contract::BoxFuture;
use fluffy_contract::model::{
    FaultKind, ModelEvent, ModelFault, ModelProvider, ModelStream, Retry, StartTurnError, Turn,
};
use fluffy_policy::Permit;
use fluffy_secret::Redactor;
use imara_diff::{Algorithm, BasicLineDiffPrinter, Diff, InternedInput, UnifiedDiffConfig};

use crate::record::{Recording, SeenResult, seen_results};

/// Plays recordings.
pub struct Replay {
    recording: Recording,
    next: Mutex<usize>,
    divergences: Mutex<Vec<Divergence>>,
    on_divergence: OnDivergence,
    redactor: Redactor,
    normalize: Normalize,
}

/// Makes texts equal that differ in what does not matter.
pub type Normalize = Box<dyn Fn(&str) -> String + Send + Sync>;

/// What to do when the tools answered differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDivergence {
    /// Report it and end the turn with an error.
    Stop,
    /// Report it and go on with the recorded answer.
    GoOn,
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
    /// Plays this recording from its beginning. What the tools say goes through
    /// `redactor` first, as it did when it was recorded.
    #[must_use]
    pub fn new(recording: Recording, redactor: Redactor, on_divergence: OnDivergence) -> Self {
        Self {
            recording,
            next: Mutex::default(),
            divergences: Mutex::default(),
            on_divergence,
            redactor,
            normalize: Box::new(str::to_owned),
        }
    }

    /// Compares texts only after both went through `normalize`.
    #[must_use]
    pub fn with_normalize(self, normalize: Normalize) -> Self {
        Self { normalize, ..self }
    }

    /// How the tools have differed so far.
    #[must_use]
    pub fn divergences(&self) -> Vec<Divergence> {
        lock(&self.divergences).clone()
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
            let what = format!("the recording ended after {} turns", number - 1);
            return ReplayStream::failing(what);
        };
        let found = self.compare(number, &recorded.results, &seen_results(turn));
        let events = match (found.first(), self.on_divergence) {
            (Some(first), OnDivergence::Stop) => {
                let stream = ReplayStream::failing(first.to_string());
                lock(&self.divergences).extend(found);
                return stream;
            }
            (Some(_), OnDivergence::GoOn) | (None, _) => recorded.events.clone(),
        };
        lock(&self.divergences).extend(found);
        ReplayStream(
            events
                .into_iter()
                .flat_map(in_pieces)
                .collect::<Vec<_>>()
                .into_iter(),
        )
    }

    fn compare(&self, turn: usize, then: &[SeenResult], now: &[SeenResult]) -> Vec<Divergence> {
        if then.len() != now.len() {
            let names = |results: &[SeenResult]| {
                results
                    .iter()
                    .map(|result| format!("{}\n", result.tool))
                    .collect::<String>()
            };
            let diff = diff(&names(then), &names(now));
            return vec![Divergence {
                turn,
                tool: None,
                diff,
            }];
        }
        let pairs = then.iter().zip(now);
        let differing = pairs.filter_map(|(then, now)| {
            let text = |result: &SeenResult| {
                let content = self.redactor.redact(&result.content).text;
                let content = (self.normalize)(&content);
                format!(
                    "{} {:?}
{content}",
                    result.tool, result.outcome
                )
            };
            let (then_text, now_text) = (text(then), text(now));
            (then_text != now_text).then(|| Divergence {
                turn,
                tool: Some(now.tool.clone()),
                diff: diff(&then_text, &now_text),
            })
        });
        differing.collect()
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
    fn failing(message: String) -> Self {
        let fault = ModelFault {
            kind: FaultKind::Diverged,
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

fn diff(then: &str, now: &str) -> String {
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
