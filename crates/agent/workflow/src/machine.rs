//! The workflow's states and how one leads to another.
//!
//! [`Workflow::step`] checks an input against the guards and gives events;
//! [`Workflow::apply`] folds events into the state, and nothing else changes
//! it. So what the ledger recorded gives the same workflow back, after a crash
//! too. What may be written in a state is in [`crate::gate`].

pub mod changes;
mod guard;
mod input;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use fluffy_base::Digest;
use fluffy_policy::word::{Mode, State};

pub use changes::Changes;
pub use guard::{Guard, StepError};
pub use input::{Approval, Event, Flow, Input, PlanKind, RedAfter, Standing, SwitchAnswer};

use crate::debt::Budget;
use crate::evidence::{Baseline, Freeze, Green, NotGreen, NotRed, Proof, Red, named};
use crate::exemption::{Exemption, Stripped};

/// The most bytes of names in one piece of the baseline.
const MAX_PIECE: usize = 96 * 1024;

/// The longest reason or name that an event holds, in bytes.
const MAX_TEXT: usize = 2_000;

/// The workflow of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workflow {
    mode: Mode,
    state: State,
    task: Task,
}

/// What is known about the task under way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Task {
    baseline: Baseline,
    exemption: Option<Exemption>,
    flow: Option<Flow>,
    red: Option<Red>,
    source: Option<Digest>,
    sensitive: Vec<String>,
    green: Option<Green>,
    approval: Option<Approval>,
}

/// An event does not follow from the events before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{event}` cannot follow while {state}")]
pub struct ReplayError {
    /// The event.
    pub event: &'static str,
    /// The state before it.
    pub state: State,
}

impl Default for Workflow {
    fn default() -> Self {
        Self {
            mode: Mode::Strict,
            state: State::Idle,
            task: Task::default(),
        }
    }
}

impl Workflow {
    /// Folds recorded events into a workflow.
    ///
    /// # Errors
    /// The events are not those of a workflow.
    pub fn replay<'a>(events: impl IntoIterator<Item = &'a Event>) -> Result<Self, ReplayError> {
        let mut workflow = Self::default();
        for event in events {
            workflow.apply(event)?;
        }
        Ok(workflow)
    }

    /// Does what an input asks for, or names the guard that failed.
    ///
    /// The events are applied already; the caller records them.
    ///
    /// # Errors
    /// The input is out of place, or a guard does not hold.
    pub fn step(&mut self, input: Input) -> Result<Vec<Event>, StepError> {
        let name = input.name();
        let events = self.decide(input)?;
        let mut next = self.clone();
        for event in &events {
            // An event that does not follow is refused as the input would be.
            next.apply(event).map_err(|error| StepError::OutOfPlace {
                input: name,
                state: error.state,
            })?;
        }
        *self = next;
        Ok(events)
    }

    /// The mode of the session.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Where the workflow stands.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Which way the task under way goes, once its plan is complete.
    #[must_use]
    pub const fn flow(&self) -> Option<Flow> {
        self.task.flow
    }

    /// How every test stood before the task.
    #[must_use]
    pub const fn baseline(&self) -> &Baseline {
        &self.task.baseline
    }

    /// The tests that have to go from red to green.
    #[must_use]
    pub const fn red(&self) -> Option<&Red> {
        self.task.red.as_ref()
    }

    /// The evidence with which the change is in review.
    #[must_use]
    pub const fn green(&self) -> Option<&Green> {
        self.task.green.as_ref()
    }

    /// The exemption that the task has.
    #[must_use]
    pub const fn exemption(&self) -> Option<&Exemption> {
        self.task.exemption.as_ref()
    }

    /// Changes that only a person may let pass.
    #[must_use]
    pub fn sensitive(&self) -> &[String] {
        &self.task.sensitive
    }

    /// Who approved the merge.
    #[must_use]
    pub const fn approval(&self) -> Option<&Approval> {
        self.task.approval.as_ref()
    }

    /// What may be said of the change that is in review or being committed.
    #[must_use]
    pub fn standing(&self) -> Option<Standing> {
        let green = self.task.green.as_ref()?;
        let exemption = self.task.exemption.as_ref();
        Some(match (self.task.flow?, exemption) {
            (Flow::Exempt, Some(exemption)) => Standing::Exempt {
                category: exemption.category(),
            },
            (Flow::TestFirst | Flow::Refactor, _) if green.proof().is_verified() => {
                Standing::Verified
            }
            (Flow::TestFirst | Flow::Refactor | Flow::Explore | Flow::Exempt, _) => {
                Standing::Unverified
            }
        })
    }

    /// Every input in every state: what happens, or which guard failed.
    fn decide(&self, input: Input) -> Result<Vec<Event>, StepError> {
        use State::{
            CodeWriting, Committing, Exploring, Idle, Planning, RetroactiveTesting, Reviewing,
            TestWriting, Validating,
        };
        let name = input.name();
        let out_of_place = || {
            Err(StepError::OutOfPlace {
                input: name,
                state: self.state,
            })
        };
        match (self.state, input) {
            (Idle, Input::SendTask) => Ok(vec![Event::TaskStarted]),
            (
                Planning | TestWriting | CodeWriting | Exploring | RetroactiveTesting | Validating
                | Reviewing | Committing,
                Input::SendTask,
            ) => out_of_place(),

            (
                Idle | Planning | TestWriting | CodeWriting | Exploring | RetroactiveTesting
                | Validating | Reviewing,
                Input::SwitchMode { to, answer, budget },
            ) => Ok(switch(to, answer, budget)),
            // What is being committed was approved under its mode.
            (Committing, Input::SwitchMode { .. }) => out_of_place(),

            // Whatever was changed so far has to be covered when it is handed in.
            (Planning | TestWriting, Input::GrantExemption { exemption }) => {
                Ok(vec![Event::ExemptionGranted { exemption }])
            }
            (
                Idle | CodeWriting | Exploring | RetroactiveTesting | Validating | Reviewing
                | Committing,
                Input::GrantExemption { .. },
            ) => out_of_place(),

            (
                Planning,
                Input::CompletePlan {
                    kind,
                    baseline,
                    budget,
                },
            ) => self.complete_plan(kind, &baseline, budget),
            (
                Idle | TestWriting | CodeWriting | Exploring | RetroactiveTesting | Validating
                | Reviewing | Committing,
                Input::CompletePlan { .. },
            ) => out_of_place(),

            (TestWriting, Input::StartCoding { judged, changes }) => start_coding(judged, &changes),
            (
                Idle | Planning | CodeWriting | Exploring | RetroactiveTesting | Validating
                | Reviewing | Committing,
                Input::StartCoding { .. },
            ) => out_of_place(),

            (
                CodeWriting | Exploring | RetroactiveTesting,
                Input::Submit {
                    changes,
                    source,
                    stripped,
                },
            ) => self.submit(&changes, source, &stripped),
            (
                Idle | Planning | TestWriting | Validating | Reviewing | Committing,
                Input::Submit { .. },
            ) => out_of_place(),

            (Validating, Input::ReportTests { judged }) => self.report_tests(judged),
            (
                Idle | Planning | TestWriting | CodeWriting | Exploring | RetroactiveTesting
                | Reviewing | Committing,
                Input::ReportTests { .. },
            ) => out_of_place(),

            (Reviewing, Input::ApproveMerge { approval }) => self.approve(approval),
            (
                Idle | Planning | TestWriting | CodeWriting | Exploring | RetroactiveTesting
                | Validating | Committing,
                Input::ApproveMerge { .. },
            ) => out_of_place(),

            (Reviewing, Input::RejectMerge { reason }) => self.reject(&reason),
            (
                Idle | Planning | TestWriting | CodeWriting | Exploring | RetroactiveTesting
                | Validating | Committing,
                Input::RejectMerge { .. },
            ) => out_of_place(),

            (CodeWriting, Input::ReopenTests { approval }) => self.reopen(approval),
            (
                Idle | Planning | TestWriting | Exploring | RetroactiveTesting | Validating
                | Reviewing | Committing,
                Input::ReopenTests { .. },
            ) => out_of_place(),

            (Reviewing, Input::RequestTests) => self.request_tests(),
            (
                Idle | Planning | TestWriting | CodeWriting | Exploring | RetroactiveTesting
                | Validating | Committing,
                Input::RequestTests,
            ) => out_of_place(),

            (Committing, Input::FinishCommit { commit }) => Ok(vec![Event::Committed {
                commit: crate::results::cut(&commit, MAX_TEXT),
                standing: self.standing().unwrap_or(Standing::Unverified),
            }]),
            (
                Idle | Planning | TestWriting | CodeWriting | Exploring | RetroactiveTesting
                | Validating | Reviewing,
                Input::FinishCommit { .. },
            ) => out_of_place(),

            (
                Planning | TestWriting | CodeWriting | Exploring | RetroactiveTesting | Validating
                | Reviewing,
                Input::Revise { changes },
            ) => Ok(vec![self.revise(&changes)]),
            // What is being committed cannot be taken back any more.
            (Idle | Committing, Input::Revise { .. }) => out_of_place(),

            (Idle, Input::Cancel) => Ok(Vec::new()),
            (
                Planning | TestWriting | CodeWriting | Exploring | RetroactiveTesting | Validating
                | Reviewing | Committing,
                Input::Cancel,
            ) => Ok(vec![Event::Cancelled]),
        }
    }

    fn complete_plan(
        &self,
        kind: PlanKind,
        baseline: &Baseline,
        budget: Budget,
    ) -> Result<Vec<Event>, StepError> {
        let flow = match (&self.task.exemption, self.mode, kind) {
            (Some(_), Mode::Strict | Mode::Explore | Mode::Debug, _) => Flow::Exempt,
            (None, Mode::Explore | Mode::Debug, _) if budget.is_locked() => {
                return Err(StepError::BudgetSpent { budget });
            }
            (None, Mode::Explore | Mode::Debug, _) => Flow::Explore,
            (None, Mode::Strict, PlanKind::Change) => Flow::TestFirst,
            (None, Mode::Strict, PlanKind::Refactor) => match baseline.passing().next() {
                Some(_) => Flow::Refactor,
                None => return Err(StepError::NoPassingTests),
            },
        };
        let mut events = pieces(baseline);
        events.push(Event::PlanCompleted { flow });
        Ok(events)
    }

    fn submit(
        &self,
        changes: &Changes,
        source: Digest,
        stripped: &BTreeMap<String, Stripped>,
    ) -> Result<Vec<Event>, StepError> {
        let own = Freeze::default();
        match self.task.flow {
            Some(Flow::TestFirst | Flow::Refactor) => {
                if changes.source.is_empty() {
                    return Err(StepError::NothingChanged);
                }
                let frozen = self.task.red.as_ref().map_or(&own, Red::freeze);
                let thawed = frozen.differences(&changes.freeze);
                if !thawed.is_empty() {
                    let paths = named(thawed);
                    return Err(StepError::FrozenChanged { paths });
                }
            }
            Some(Flow::Explore | Flow::Exempt) | None => {
                if changes.is_empty() {
                    return Err(StepError::NothingChanged);
                }
            }
        }
        if self.state == State::RetroactiveTesting {
            if self.task.source != Some(source) {
                let paths = named(changes.source.iter().cloned());
                return Err(StepError::SourceChanged { paths });
            }
            if changes.tests.is_empty() {
                return Err(StepError::NothingChanged);
            }
        }
        if let (Some(Flow::Exempt), Some(exemption)) = (self.task.flow, &self.task.exemption) {
            let kept = exemption.check(changes.paths(), stripped);
            kept.map_err(StepError::NotExempt)?;
        }
        Ok(vec![Event::ChangesSubmitted {
            files: changes.paths().len(),
            sensitive: named(changes.sensitive.iter().cloned()),
            source,
        }])
    }

    fn report_tests(&self, judged: Result<Green, Box<NotGreen>>) -> Result<Vec<Event>, StepError> {
        let green = match judged {
            Ok(green) => green,
            Err(reasons) => return Ok(vec![Event::ValidationFailed { reasons }]),
        };
        match self.is_own(&green) {
            true => Ok(vec![Event::ValidationPassed { green }]),
            false => Err(StepError::ForeignEvidence),
        }
    }

    /// Whether evidence follows from this task's baseline and red tests.
    fn is_own(&self, green: &Green) -> bool {
        let baseline = self.task.baseline.digest();
        match (self.task.flow, &self.task.red, green.proof()) {
            (Some(Flow::TestFirst), Some(red), Proof::FailToPass) => {
                let basis = Digest::of_parts(&[baseline.as_bytes(), red.digest().as_bytes()]);
                green.basis() == basis && !green.fail_to_pass().is_empty()
            }
            (
                Some(Flow::Refactor),
                None,
                Proof::GreenToGreen | Proof::Uncovered { .. } | Proof::NoCoverage,
            )
            | (Some(Flow::Explore | Flow::Exempt), None, Proof::Explored) => {
                green.basis() == baseline
            }
            (Some(_) | None, Some(_) | None, _) => false,
        }
    }

    fn approve(&self, approval: Approval) -> Result<Vec<Event>, StepError> {
        match self.task.sensitive.is_empty() || approval.is_person() {
            true => Ok(vec![Event::MergeApproved { approval }]),
            false => Err(StepError::NeedsPerson {
                paths: self.task.sensitive.clone(),
            }),
        }
    }

    fn reject(&self, reason: &str) -> Result<Vec<Event>, StepError> {
        match self.task.flow {
            Some(Flow::TestFirst | Flow::Refactor) => Ok(vec![Event::MergeRejected {
                reason: crate::results::cut(reason, MAX_TEXT),
            }]),
            Some(Flow::Explore | Flow::Exempt) | None => {
                Err(StepError::NotTestFirst { mode: self.mode })
            }
        }
    }

    fn reopen(&self, approval: Approval) -> Result<Vec<Event>, StepError> {
        match (self.task.flow, approval.is_person()) {
            (Some(Flow::TestFirst), true) => Ok(vec![Event::TestsReopened { approval }]),
            (Some(Flow::TestFirst), false) => Err(StepError::NeedsPerson { paths: Vec::new() }),
            (Some(Flow::Refactor | Flow::Explore | Flow::Exempt) | None, _) => {
                Err(StepError::NotTestFirst { mode: self.mode })
            }
        }
    }

    /// Red tests stay red only if they and their runner are what was seen.
    fn revise(&self, changes: &Changes) -> Event {
        let is_same = |red: &Red| red.freeze().differences(&changes.freeze).is_empty();
        let red = match self.task.red.as_ref().is_some_and(is_same) {
            true => RedAfter::Kept,
            false => RedAfter::Void,
        };
        Event::Revised { red }
    }

    fn request_tests(&self) -> Result<Vec<Event>, StepError> {
        match self.task.flow {
            Some(Flow::Explore) => Ok(vec![Event::TestsRequested]),
            Some(Flow::TestFirst | Flow::Refactor | Flow::Exempt) | None => {
                Err(StepError::NotExploring { mode: self.mode })
            }
        }
    }

    /// Folds one event into the state.
    ///
    /// # Errors
    /// It does not follow from the events before it; nothing is changed.
    pub fn apply(&mut self, event: &Event) -> Result<(), ReplayError> {
        let next = self.next(event).ok_or(ReplayError {
            event: event.name(),
            state: self.state,
        })?;
        self.learn(event);
        if next == State::Idle || (next == State::Planning && self.state != State::Planning) {
            self.task = Task::default();
        }
        self.state = next;
        Ok(())
    }

    /// The state after an event, if it can follow.
    fn next(&self, event: &Event) -> Option<State> {
        use State::{
            CodeWriting, Committing, Exploring, Idle, Planning, RetroactiveTesting, Reviewing,
            TestWriting, Validating,
        };
        let from = |states: &[State], to: State| states.contains(&self.state).then_some(to);
        match event {
            Event::TaskStarted => from(&[Idle], Planning),
            Event::ModeSwitched { mode } => self.after_switch(*mode),
            Event::SwitchRefused { .. } => self.after_switch(Mode::Strict),
            Event::ExemptionGranted { .. } => {
                from(&[Planning], Planning).or(from(&[TestWriting], Exploring))
            }
            Event::BaselineSeen { .. } => from(&[Planning], Planning),
            Event::PlanCompleted { flow } => match flow {
                Flow::TestFirst => from(&[Planning], TestWriting),
                Flow::Refactor => from(&[Planning], CodeWriting),
                Flow::Explore | Flow::Exempt => from(&[Planning], Exploring),
            },
            Event::RedSeen { .. } => from(&[TestWriting], CodeWriting),
            Event::ChangesSubmitted { .. } => {
                from(&[CodeWriting, Exploring, RetroactiveTesting], Validating)
            }
            Event::ValidationPassed { .. } => from(&[Validating], Reviewing),
            Event::ValidationFailed { .. } => match self.task.flow? {
                Flow::TestFirst | Flow::Refactor => from(&[Validating], CodeWriting),
                Flow::Explore | Flow::Exempt => from(&[Validating], Exploring),
            },
            Event::MergeApproved { .. } => from(&[Reviewing], Committing),
            Event::MergeRejected { .. } => from(&[Reviewing], CodeWriting),
            Event::TestsReopened { .. } => from(&[CodeWriting], TestWriting),
            Event::TestsRequested => from(&[Reviewing], RetroactiveTesting),
            Event::Committed { .. } => from(&[Committing], Idle),
            Event::Revised { red } => match (self.task.flow, red) {
                (None, _) => from(&[Planning], Planning),
                (Some(flow), red) => from(
                    &[
                        TestWriting,
                        CodeWriting,
                        Exploring,
                        RetroactiveTesting,
                        Validating,
                        Reviewing,
                    ],
                    match (flow, red, &self.task.red) {
                        (Flow::TestFirst, RedAfter::Kept, Some(_)) | (Flow::Refactor, ..) => {
                            CodeWriting
                        }
                        (Flow::TestFirst, RedAfter::Kept | RedAfter::Void, _) => TestWriting,
                        (Flow::Explore | Flow::Exempt, ..) => Exploring,
                    },
                ),
            },
            Event::Cancelled => (self.state != Idle).then_some(Idle),
        }
    }

    /// A switch that changes how a task goes sends it back to planning.
    fn after_switch(&self, to: Mode) -> Option<State> {
        let is_same = match (self.mode, to) {
            (Mode::Strict, Mode::Strict)
            | (Mode::Explore | Mode::Debug, Mode::Explore | Mode::Debug) => true,
            (Mode::Strict, Mode::Explore | Mode::Debug)
            | (Mode::Explore | Mode::Debug, Mode::Strict) => false,
        };
        match self.state {
            State::Committing => None,
            State::Idle => Some(State::Idle),
            State::Planning
            | State::TestWriting
            | State::CodeWriting
            | State::Exploring
            | State::RetroactiveTesting
            | State::Validating
            | State::Reviewing => Some(match is_same {
                true => self.state,
                false => State::Planning,
            }),
        }
    }

    fn learn(&mut self, event: &Event) {
        let task = &mut self.task;
        match event {
            Event::TaskStarted | Event::TestsRequested | Event::Cancelled => {}
            Event::MergeRejected { .. } | Event::ValidationFailed { .. } => task.green = None,
            Event::Committed { .. } => {}
            Event::ModeSwitched { mode } => self.mode = *mode,
            Event::SwitchRefused { .. } => self.mode = Mode::Strict,
            Event::ExemptionGranted { exemption } => {
                task.exemption = Some(exemption.clone());
                // With its plan complete already, the task goes another way now.
                task.flow = task.flow.map(|_| Flow::Exempt);
            }
            Event::BaselineSeen { outcomes } => {
                for (key, outcome) in outcomes {
                    task.baseline.add(key.clone(), *outcome);
                }
            }
            Event::PlanCompleted { flow } => task.flow = Some(*flow),
            Event::RedSeen { red } => task.red = Some(red.clone()),
            Event::TestsReopened { .. } => task.red = None,
            Event::Revised { red } => {
                if *red == RedAfter::Void {
                    task.red = None;
                }
                task.green = None;
                task.source = None;
                task.sensitive.clear();
            }
            Event::ChangesSubmitted {
                sensitive, source, ..
            } => {
                task.sensitive.clone_from(sensitive);
                task.source = Some(*source);
                task.green = None;
            }
            Event::ValidationPassed { green } => task.green = Some(green.clone()),
            Event::MergeApproved { approval } => task.approval = Some(approval.clone()),
        }
    }
}

/// A switch goes through the policy and the budget; refused means strict.
fn switch(to: Mode, answer: SwitchAnswer, budget: Budget) -> Vec<Event> {
    let open = match to {
        Mode::Strict => true,
        Mode::Explore | Mode::Debug => answer == SwitchAnswer::Allowed && !budget.is_locked(),
    };
    vec![match open {
        true => Event::ModeSwitched { mode: to },
        false => Event::SwitchRefused { asked: to },
    }]
}

fn start_coding(judged: Result<Red, NotRed>, changes: &Changes) -> Result<Vec<Event>, StepError> {
    if !changes.source.is_empty() {
        let paths = named(changes.source.iter().cloned());
        return Err(StepError::SourceChanged { paths });
    }
    let red = judged.map_err(StepError::NotRed)?;
    // What was red is what is frozen, or the evidence is for other tests.
    match *red.freeze() == changes.freeze && !red.tests().is_empty() {
        true => Ok(vec![Event::RedSeen { red }]),
        false => Err(StepError::ForeignEvidence),
    }
}

/// The baseline in pieces that each fit into an event.
fn pieces(baseline: &Baseline) -> Vec<Event> {
    let mut events = Vec::new();
    let mut outcomes = BTreeMap::new();
    let mut bytes = 0usize;
    for (key, outcome) in baseline.outcomes() {
        bytes += key.len() + 24;
        outcomes.insert(key.to_owned(), outcome);
        if bytes > MAX_PIECE {
            let outcomes = std::mem::take(&mut outcomes);
            events.push(Event::BaselineSeen { outcomes });
            bytes = 0;
        }
    }
    if !outcomes.is_empty() {
        events.push(Event::BaselineSeen { outcomes });
    }
    events
}
