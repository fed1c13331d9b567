//! Which file may be written in which state.
//!
//! A refusal is a value: what was refused, by which guard, what may be written
//! now, and what would allow it. It knows nothing about how a write is made;
//! the kernel asks before `fs.write` and again about everything that a shell
//! command left behind.

use std::collections::BTreeSet;
use std::fmt;

use fluffy_policy::word::{Mode, State};
use serde::{Deserialize, Serialize};

use crate::evidence::ChangedFile;
use crate::machine::{Changes, Flow, Guard, Workflow};
use crate::project::detect::Layout;
use crate::project::parts::{Class, Part, compare};

/// One file that is to be written or removed.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Its path in the workspace.
    pub path: &'a str,
    /// Its text in the project, if it is there.
    pub project: Option<&'a str>,
    /// Its text as the session sees it now.
    pub current: Option<&'a str>,
    /// Its text afterwards; `None` removes it.
    pub after: Option<&'a str>,
}

/// A write that the workflow lets through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// What it touches.
    pub parts: BTreeSet<Part>,
    /// Whether a person has to see it before it is merged.
    pub review: Review,
}

/// Whether a write is an ordinary one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Review {
    /// Nobody has to look at it for the workflow's sake.
    Ordinary,
    /// It edits a test that existed before the session, or how tests run.
    Person,
}

/// A write that the workflow does not let through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("`{path}` may not be written while {state}; it needs that {}", guard.meaning())]
pub struct WriteRefused {
    /// What was to be written.
    pub path: String,
    /// Which part of it is the reason.
    pub part: Part,
    /// The mode.
    pub mode: Mode,
    /// The state.
    pub state: State,
    /// What does not hold.
    pub guard: Guard,
    /// What may be written now.
    pub writable: Writable,
    /// What would allow it, nearest first.
    pub ways: Vec<Way>,
}

/// What may be written in a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writable {
    /// Which parts of files.
    pub parts: BTreeSet<Part>,
    /// Where tests are, if tests are among them.
    pub test_globs: Vec<String>,
    /// The only files, if an exemption names them.
    pub only: Vec<String>,
}

/// A step that would allow a refused write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The user sends a task.
    SendTask,
    /// `plan.complete`.
    CompletePlan,
    /// `test.run` with a new or changed test that fails.
    ShowRed,
    /// A person agrees that the test itself is wrong.
    ReopenTests,
    /// The tests are run to their end.
    AwaitTests,
    /// The merge is rejected.
    RejectMerge,
    /// The commit is done.
    AwaitCommit,
    /// The tests that were asked for are handed in and reviewed.
    Submit,
    /// `workflow.request_exemption` for this file and every other one.
    RequestExemption,
    /// The user switches to explore and the policy allows it.
    SwitchToExplore,
}

impl Way {
    /// What to do, as a sentence for a model or a person.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::SendTask => "the user sends a task",
            Self::CompletePlan => "call `plan.complete`",
            Self::ShowRed => "run `test.run` with a new or changed test that fails",
            Self::ReopenTests => "ask a person to let the tests be written again",
            Self::AwaitTests => "wait until the kernel has run the tests",
            Self::RejectMerge => "the reviewer rejects the merge",
            Self::AwaitCommit => "wait until the commit is done",
            Self::Submit => "hand in the tests first",
            Self::RequestExemption => {
                "call `workflow.request_exemption` for all files of the change"
            }
            Self::SwitchToExplore => "the user switches to explore",
        }
    }
}

/// Decides whether a file may be written now.
///
/// # Errors
/// What was refused, why, what may be written, and what would allow it.
pub fn check(
    workflow: &Workflow,
    layout: &Layout,
    write: &Write<'_>,
) -> Result<Admitted, Box<WriteRefused>> {
    let class = layout.class(write.path);
    let mut parts = compare(class, write.current, write.after);
    // A text that changes in none of its parts is still a write to the file.
    if parts.is_empty() {
        parts.insert(match class {
            Class::Whole(part) => part,
            Class::Mixed(_) => Part::Source,
        });
    }
    let writable = writable(workflow.state());
    if let Some(part) = parts.iter().find(|part| !writable.contains(part)) {
        return Err(refused(workflow, layout, write.path, *part));
    }
    let exempt = workflow
        .exemption()
        .filter(|_| workflow.flow() == Some(Flow::Exempt));
    if exempt.is_some_and(|exemption| !exemption.covers(write.path)) {
        let part = parts.first().copied().unwrap_or(Part::Source);
        return Err(refused(workflow, layout, write.path, part));
    }
    let changes = Changes::of(&[ChangedFile {
        path: write.path,
        class,
        before: write.project,
        after: write.after,
    }]);
    Ok(Admitted {
        parts,
        review: match changes.sensitive.is_empty() {
            true => Review::Ordinary,
            false => Review::Person,
        },
    })
}

/// Every write among several that the workflow does not let through.
#[must_use]
pub fn refusals(workflow: &Workflow, layout: &Layout, writes: &[Write<'_>]) -> Vec<WriteRefused> {
    let refused = writes
        .iter()
        .filter_map(|write| check(workflow, layout, write).err());
    refused.map(|refused| *refused).collect()
}

/// Which parts of files may be written in a state.
#[must_use]
pub fn writable(state: State) -> BTreeSet<Part> {
    match state {
        State::Idle
        | State::Planning
        | State::Validating
        | State::Reviewing
        | State::Committing => BTreeSet::new(),
        // How tests run is written with the tests, and a person sees it.
        State::TestWriting | State::RetroactiveTesting => {
            BTreeSet::from([Part::Test, Part::Configuration])
        }
        State::CodeWriting => BTreeSet::from([Part::Source]),
        State::Exploring => BTreeSet::from([Part::Test, Part::Source, Part::Configuration]),
    }
}

fn refused(workflow: &Workflow, layout: &Layout, path: &str, part: Part) -> Box<WriteRefused> {
    let state = workflow.state();
    let (guard, ways) = reason(workflow, part);
    let parts = writable(state);
    let exempt = workflow
        .exemption()
        .filter(|_| workflow.flow() == Some(Flow::Exempt));
    Box::new(WriteRefused {
        path: path.to_owned(),
        part,
        mode: workflow.mode(),
        state,
        guard,
        writable: Writable {
            test_globs: match parts.contains(&Part::Test) {
                true => layout.test_globs().iter().take(40).cloned().collect(),
                false => Vec::new(),
            },
            only: match exempt {
                Some(exemption) => exemption.paths().take(40).map(ToOwned::to_owned).collect(),
                None => Vec::new(),
            },
            parts,
        },
        ways: ways.to_vec(),
    })
}

/// Which guard stands in the way, and what would open it.
fn reason(workflow: &Workflow, part: Part) -> (Guard, &'static [Way]) {
    match (workflow.state(), workflow.flow()) {
        (State::Idle, _) => (Guard::InPlace, &[Way::SendTask]),
        (State::Planning, _) => (Guard::InPlace, &[Way::CompletePlan]),
        (State::TestWriting, _) => (
            Guard::RedTest,
            &[Way::ShowRed, Way::RequestExemption, Way::SwitchToExplore],
        ),
        (State::CodeWriting, Some(Flow::TestFirst)) if part != Part::Source => {
            (Guard::Frozen, &[Way::ReopenTests])
        }
        // A refactoring has no tests to write again.
        (State::CodeWriting, _) => (Guard::Frozen, &[Way::SwitchToExplore]),
        (State::Exploring, _) => (Guard::Exemption, &[Way::RequestExemption]),
        (State::RetroactiveTesting, _) => (Guard::OnlyTests, &[Way::Submit]),
        (State::Validating, _) => (Guard::InPlace, &[Way::AwaitTests]),
        (State::Reviewing, Some(Flow::TestFirst | Flow::Refactor)) => {
            (Guard::InPlace, &[Way::RejectMerge])
        }
        (State::Reviewing, _) => (Guard::InPlace, &[Way::AwaitCommit]),
        (State::Committing, _) => (Guard::InPlace, &[Way::AwaitCommit]),
    }
}

impl WriteRefused {
    /// The refusal as a model reads it: short, and with what to do instead.
    #[must_use]
    pub fn for_model(&self) -> String {
        let ways: Vec<&str> = self.ways.iter().map(|way| way.sentence()).collect();
        format!(
            "refused: write {path} ({part})\nneeds that: {guard}\nstate: {state} ({mode})\n\
             writable now: {writable}\nto be allowed: {ways}",
            path = self.path,
            part = self.part.as_str(),
            guard = self.guard.meaning(),
            state = self.state,
            mode = self.mode,
            writable = self.writable,
            ways = ways.join(", or "),
        )
    }
}

impl fmt::Display for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.only.is_empty() {
            return write!(f, "only {}", self.only.join(", "));
        }
        let parts: Vec<&str> = self.parts.iter().map(|part| part.as_str()).collect();
        match parts.is_empty() {
            true => f.write_str("nothing"),
            false => f.write_str(&parts.join(", ")),
        }?;
        match self.test_globs.is_empty() {
            true => Ok(()),
            false => write!(f, " (tests are {})", self.test_globs.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests;
