//! A session as a recording: its facts, turn by turn.
//!
//! The ledger has everything a recording needs, so one can be made whenever
//! somebody wants it, after a crash too. Pure; whoever writes the file takes
//! the secrets out. Next: `fluffy_models::record`.

use std::collections::BTreeMap;

use fluffy_contract::model::Part;
use fluffy_contract::tool::ToolOutcome;
use fluffy_models::record::{
    RecordedTurn, Recording, RecordingEnd, RecordingHead, SeenResult, VERSION,
};

use crate::event::{Outcome, SessionEnded, SessionResult};
use crate::session::{Answered, CallFinished, Fact};

/// The word for a session that has not ended.
const OPEN: &str = "open";

/// The recording of these facts, up to the end of the first task; nothing if
/// they are no session.
#[must_use]
pub fn recording(facts: &[Fact]) -> Option<Recording> {
    let Some(Fact::Started(started)) = facts.first() else {
        return None;
    };
    let mut turns = Vec::new();
    let mut calls: Vec<&str> = Vec::new();
    let mut results: BTreeMap<&str, SeenResult> = BTreeMap::new();
    let mut ended = None;
    for fact in facts {
        match fact {
            Fact::Answered(answered) => {
                ended = None;
                let seen = calls.iter().filter_map(|call| results.remove(call));
                turns.push(turn(seen.collect(), answered));
                calls = called(answered);
                results.clear();
            }
            Fact::Finished(finished) => {
                results.insert(&finished.call, seen_result(finished));
            }
            Fact::Ended(end) => ended = Some(end),
            // Another task, which no replay could give.
            Fact::Said { .. } if ended.is_some() => break,
            Fact::Started(_)
            | Fact::Said { .. }
            | Fact::Workflow(_)
            | Fact::Landing(_)
            | Fact::Shortened(_)
            | Fact::Pinned { .. }
            | Fact::Layer { .. }
            | Fact::Model { .. }
            | Fact::Kept(_)
            | Fact::Undone { .. } => {}
        }
    }
    Some(Recording {
        head: RecordingHead {
            fluffy_recording: VERSION,
            created: started.moment,
            model: started.model.clone(),
            task: started.task.clone(),
            mode: started.mode.as_str().to_owned(),
        },
        turns,
        end: ended.map_or_else(
            || RecordingEnd {
                ended: OPEN.to_owned(),
                seen: Vec::new(),
            },
            end,
        ),
    })
}

/// How a session ended, as the last line of its recording.
#[must_use]
pub fn end(ended: &SessionEnded) -> RecordingEnd {
    let evidence = &ended.evidence;
    let mut seen: Vec<String> = Vec::new();
    let named = |name: &String| format!("red to green: {name}");
    seen.extend(evidence.fail_to_pass.iter().map(named));
    seen.push(format!("still green: {}", evidence.pass_to_pass));
    let merged = |(path, (added, removed)): (&String, &(u64, u64))| {
        format!("merged: {path} +{added} -{removed}")
    };
    seen.extend(evidence.merged.iter().map(merged));
    let committed = match evidence.commit {
        Some(_) => "yes",
        None => "no",
    };
    seen.push(format!("committed: {committed}"));
    seen.push(format!("refused: {}", evidence.refused));
    RecordingEnd {
        ended: word(&ended.result),
        seen,
    }
}

/// Whether a session that was stopped from outside, and of which a replay can
/// only play what there is.
#[must_use]
pub fn was_stopped(end: &RecordingEnd) -> bool {
    let outside = [
        SessionResult::Waiting,
        SessionResult::Budget,
        SessionResult::Denied,
        SessionResult::Cancelled,
        SessionResult::Failed,
        SessionResult::Diverged,
    ];
    end.ended == OPEN || outside.iter().any(|result| word(result) == end.ended)
}

/// The word that is written for a result.
fn word(result: &SessionResult) -> String {
    // The word of the stream is the word of the recording.
    let value = serde_json::to_value(result).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn turn(results: Vec<SeenResult>, answered: &Answered) -> RecordedTurn {
    RecordedTurn::of(results, &answered.parts, answered.usage, answered.stop)
}

fn called(answered: &Answered) -> Vec<&str> {
    let calls = answered.parts.iter().filter_map(|part| match part {
        Part::ToolCall(call) => Some(call.id.as_str()),
        Part::Text { .. } | Part::Reasoning { .. } | Part::ToolResult { .. } => None,
    });
    calls.collect()
}

fn seen_result(finished: &CallFinished) -> SeenResult {
    SeenResult {
        call: finished.call.clone(),
        tool: finished.tool.clone(),
        content: finished.content.clone(),
        outcome: match finished.outcome {
            Outcome::Done => ToolOutcome::Done,
            Outcome::Failed | Outcome::Refused => ToolOutcome::Failed,
        },
    }
}

#[cfg(test)]
mod tests {
    use fluffy_base::id::LayerId;
    use fluffy_base::{Digest, Timestamp};
    use fluffy_contract::model::{StopReason, ToolCall, Usage};
    use fluffy_policy::word::Mode;
    use serde_json::json;

    use super::*;
    use crate::commit::Author;
    use crate::event::Evidence;
    use crate::session::Started;

    fn started() -> Fact {
        Fact::Started(Started {
            task: "the task".to_owned(),
            mode: Mode::Strict,
            model: "p/m".to_owned(),
            layer: LayerId::generate(),
            moment: Timestamp::from_micros(1),
            author: Author {
                name: "Ann".to_owned(),
                email: "ann@example.com".to_owned(),
            },
            tier: fluffy_policy::word::Tier::Process,
            budget: BTreeMap::new(),
            forked_from: None,
            forked_at: None,
            record: None,
        })
    }

    fn answered(calls: &[&str]) -> Fact {
        let call = |id: &&str| {
            Part::ToolCall(ToolCall {
                id: (*id).to_owned(),
                name: "fs.read".to_owned(),
                arguments: json!({}),
                opaque: None,
            })
        };
        Fact::Answered(Answered {
            parts: calls.iter().map(call).collect(),
            model: "p/m".to_owned(),
            usage: Usage::default(),
            cost_micros: None,
            stop: StopReason::ToolCalls,
        })
    }

    fn finished(call: &str) -> Fact {
        Fact::Finished(CallFinished {
            call: call.to_owned(),
            tool: "fs.read".to_owned(),
            outcome: Outcome::Refused,
            content: format!("of {call}"),
            original: Digest::of(b""),
            took_ms: 1,
        })
    }

    fn ended(result: SessionResult) -> Fact {
        Fact::Ended(SessionEnded {
            result,
            exit: 0,
            why: String::new(),
            evidence: Evidence::default(),
        })
    }

    fn said() -> Fact {
        Fact::Said {
            text: "go on".to_owned(),
        }
    }

    #[test]
    fn results_stand_in_the_order_of_their_calls() {
        let facts = [
            started(),
            answered(&["a", "b"]),
            finished("b"),
            finished("a"),
            said(),
            answered(&[]),
        ];
        let recording = recording(&facts).unwrap();
        let seen = &recording.turns[1].results;
        let calls: Vec<&str> = seen.iter().map(|result| result.call.as_str()).collect();
        assert_eq!(calls, ["a", "b"]);
        assert_eq!(seen[0].outcome, ToolOutcome::Failed);
        assert_eq!(recording.end.ended, OPEN);
        assert!(was_stopped(&recording.end));
    }

    #[test]
    fn a_session_that_was_resumed_is_whole_and_another_task_is_left_out() {
        let facts = [
            started(),
            answered(&[]),
            ended(SessionResult::Failed),
            answered(&[]),
            ended(SessionResult::Verified),
            said(),
            answered(&[]),
            ended(SessionResult::Unverified),
        ];
        let whole = recording(&facts).unwrap();
        assert_eq!(
            (whole.turns.len(), whole.end.ended.as_str()),
            (2, "verified")
        );
        assert!(!was_stopped(&whole.end));
        assert_eq!(recording(&facts[1..]), None);
    }
}
