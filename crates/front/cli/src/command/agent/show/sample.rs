//! A session as the kernel tells it, for tests of everything that shows one.

use std::collections::BTreeMap;

use fluffy_base::id::{ApprovalId, LayerId, SessionId};
use fluffy_contract::isolation::Level;
use fluffy_contract::model::Usage;
use fluffy_kernel::event::{
    AgentEvent, Evidence, Outcome, PersonAnswer, SessionEnded, SessionResult, SessionStarted,
    Spent, VERSION,
};
use fluffy_policy::word::{Mode, State, Tier};

/// The session of all samples.
pub(crate) const SESSION: SessionId = SessionId::from_bits(7);

/// The question of all samples.
pub(crate) const APPROVAL: ApprovalId = ApprovalId::from_bits(9);

/// From the task to the verified commit, with refusals and a question.
pub(crate) fn session() -> Vec<AgentEvent> {
    let mut events = beginning();
    events.extend(work());
    events.extend(review());
    events.push(AgentEvent::SessionEnded(ended(SessionResult::Verified, 0)));
    events
}

/// How it begins.
pub(crate) fn started() -> AgentEvent {
    AgentEvent::SessionStarted(SessionStarted {
        version: VERSION,
        session: SESSION,
        task: "add error handling to parse_config".to_owned(),
        mode: Mode::Strict,
        model: "openai/gpt-5".to_owned(),
        tier: Tier::Process,
        isolation: Level::SharedKernel,
        layer: LayerId::from_bits(8),
    })
}

/// How it ends.
pub(crate) fn ended(result: SessionResult, exit: u8) -> SessionEnded {
    let merged = [
        ("src/config.rs".to_owned(), (12, 3)),
        ("tests/config.rs".to_owned(), (9, 0)),
    ];
    SessionEnded {
        result,
        exit,
        why: "the kernel saw 2 tests fail and then pass, unchanged".to_owned(),
        evidence: Evidence {
            fail_to_pass: vec![
                "config::rejects_an_empty_file".to_owned(),
                "config::names_the_line".to_owned(),
            ],
            pass_to_pass: 41,
            merged: BTreeMap::from(merged),
            commit: Some("3f786850e387550fdab836ed7e6dc881de23001b".to_owned()),
            not_run: Vec::new(),
            coverage: None,
            debt: None,
            reviewed: 1,
            refused: 2,
            head: Some((
                1_207,
                "sha256:9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab"
                    .to_owned(),
            )),
        },
    }
}

fn beginning() -> Vec<AgentEvent> {
    vec![
        started(),
        AgentEvent::WorkflowChanged {
            from: State::Idle,
            to: State::Planning,
            why: "the person sent a task".to_owned(),
        },
        AgentEvent::TurnStarted { turn: 1 },
        AgentEvent::ReasoningDelta {
            text: "The parser panics on an empty file; what do callers expect?".to_owned(),
        },
        text("I will look at the parser first, then write a test that fails for an em"),
        text(
            "pty file and one that checks the line number in the message.\n\n- read `src/config.rs`\n- write",
        ),
        text(" the tests"),
        call_started("c1", "fs.read", "src/config.rs"),
        finished("c1", "fs.read", (Outcome::Done, 3), "120 lines"),
        call_started("c2", "fs.write", "src/config.rs"),
        finished(
            "c2",
            "fs.write",
            (Outcome::Refused, 0),
            "planning may write nothing; `plan.complete` opens test_writing, where test files can be written",
        ),
        AgentEvent::Usage(spent(12_345, 678)),
    ]
}

fn work() -> Vec<AgentEvent> {
    vec![
        AgentEvent::WorkflowChanged {
            from: State::Planning,
            to: State::TestWriting,
            why: "plan.complete".to_owned(),
        },
        AgentEvent::TestsRan {
            passed: 41,
            failed: vec![
                "config::rejects_an_empty_file".to_owned(),
                "config::names_the_line".to_owned(),
            ],
            skipped: 1,
            took_ms: 2_340,
        },
        AgentEvent::TaskWarned {
            name: "test.run".to_owned(),
            in_ms: 1_000,
        },
        AgentEvent::TaskSpared {
            name: "test.run".to_owned(),
        },
        AgentEvent::TaskPaused {
            name: "test.run".to_owned(),
        },
        AgentEvent::TaskResumed {
            name: "test.run".to_owned(),
        },
        AgentEvent::TurnRestarted {
            reason: "the connection to the model broke".to_owned(),
        },
        AgentEvent::ReplayDiverged {
            place: "turn 3: `fs.read` answered differently".to_owned(),
            diff: "@@ -1,2 +1,2 @@\n fs.read done\n-then\n+now\n".to_owned(),
        },
        AgentEvent::Note {
            text: "these existing tests touch what is about to change: config::reads_defaults"
                .to_owned(),
        },
        call_started(
            "c3",
            "shell.exec",
            "cargo build --workspace --all-targets --locked --message-format short --color never",
        ),
        finished(
            "c3",
            "shell.exec",
            (Outcome::Failed, 65_200),
            "exit code 101",
        ),
        AgentEvent::TestsRan {
            passed: 43,
            failed: Vec::new(),
            skipped: 1,
            took_ms: 980,
        },
    ]
}

fn review() -> Vec<AgentEvent> {
    vec![
        wanted(),
        AgentEvent::ApprovalAnswered {
            approval: APPROVAL,
            answer: PersonAnswer::Approve,
        },
        AgentEvent::Usage(spent(98_765, 4_321)),
    ]
}

/// The question.
pub(crate) fn wanted() -> AgentEvent {
    AgentEvent::ApprovalWanted {
        approval: APPROVAL,
        question: "merge 2 files into the project?".to_owned(),
        reasons: vec!["sensitive-files: this file decides how everything is built".to_owned()],
        shown: Some(
            "--- a/src/config.rs\n+++ b/src/config.rs\n@@ -1,2 +1,2 @@\n fn parse() {\n-    todo\n+    done\n"
                .to_owned(),
        ),
    }
}

/// A piece of what the model says.
pub(crate) fn text(text: &str) -> AgentEvent {
    AgentEvent::TextDelta {
        text: text.to_owned(),
    }
}

fn call_started(call: &str, tool: &str, subject: &str) -> AgentEvent {
    AgentEvent::ToolStarted {
        call: call.to_owned(),
        tool: tool.to_owned(),
        subject: subject.to_owned(),
    }
}

fn finished(
    call: &str,
    tool: &str,
    (outcome, took_ms): (Outcome, u64),
    summary: &str,
) -> AgentEvent {
    AgentEvent::ToolFinished {
        call: call.to_owned(),
        tool: tool.to_owned(),
        outcome,
        took_ms,
        summary: summary.to_owned(),
    }
}

fn spent(input_tokens: u64, output_tokens: u64) -> Spent {
    Spent {
        tokens: Usage {
            input_tokens,
            output_tokens,
            ..Usage::default()
        },
        cost_micros: Some(input_tokens * 3),
    }
}
