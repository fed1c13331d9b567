//! What an editor sees of a session: our events as updates of its protocol.
//!
//! Pure. The workflow is the plan: an editor shows the steps that test-first
//! prescribes and which one is being worked on.

use fluffy_kernel::event::{AgentEvent, Outcome, SessionResult};
use fluffy_policy::word::{Mode, State};
use fluffy_report::Styling;
use serde_json::{Value, json};

use super::super::show::words::duration;
use super::super::show::{Detail, Show};
use super::wire::{INTERNAL, Problem};

/// The steps of each way to work, as people say them.
const STRICT: [(State, &str); 6] = [
    (State::Planning, "Plan"),
    (State::TestWriting, "Write a test that fails"),
    (State::CodeWriting, "Write the code"),
    (State::Validating, "Run the tests"),
    (State::Reviewing, "Review and merge"),
    (State::Committing, "Commit"),
];
const FREE: [(State, &str); 5] = [
    (State::Planning, "Plan"),
    (State::Exploring, "Write code and tests"),
    (State::Validating, "Run the tests"),
    (State::Reviewing, "Review and merge"),
    (State::Committing, "Commit"),
];

/// Turns the events of one session into updates.
#[derive(Debug)]
pub(super) struct Translator {
    mode: Mode,
    /// For the summary at the end, which is the same on every surface.
    show: Show,
}

impl Translator {
    /// For a session in this mode.
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            show: Show::new(None, Detail::Result),
        }
    }

    /// Another mode from here on.
    pub(super) fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// The updates that an event is.
    pub(super) fn event(&mut self, event: &AgentEvent) -> Vec<Value> {
        let summary = self.show.event(event);
        match event {
            AgentEvent::SessionStarted(started) => {
                self.mode = started.mode;
                Vec::new()
            }
            AgentEvent::TextDelta { text } => vec![said("agent_message_chunk", text)],
            AgentEvent::ReasoningDelta { text } => vec![said("agent_thought_chunk", text)],
            AgentEvent::TurnRestarted { reason } => vec![note(&format!(
                "The answer above is void and asked for again: {reason}"
            ))],
            AgentEvent::ToolStarted {
                call,
                tool,
                subject,
            } => vec![json!({
                "sessionUpdate": "tool_call",
                "toolCallId": call,
                "title": format!("{tool} {subject}").trim_end(),
                "kind": kind(tool),
                "status": "in_progress",
            })],
            AgentEvent::ToolFinished {
                call,
                outcome,
                took_ms,
                summary,
                ..
            } => vec![finished(call, *outcome, *took_ms, summary)],
            AgentEvent::WorkflowChanged { to, .. } => vec![self.plan(*to)],
            AgentEvent::TestsRan {
                passed,
                failed,
                skipped,
                ..
            } => {
                let mut text = format!(
                    "Tests: {passed} passed, {} failed, {skipped} skipped.",
                    failed.len()
                );
                for name in failed {
                    text.push_str(&format!("\n- failed: {name}"));
                }
                vec![note(&text)]
            }
            AgentEvent::ReplayDiverged { place, diff } => vec![note(&format!("{place}\n{diff}"))],
            AgentEvent::Note { text } => vec![note(text)],
            AgentEvent::TaskPaused { name } => vec![note(&format!(
                "`{name}` stands still: something more urgent needs its place"
            ))],
            AgentEvent::TaskResumed { name } => vec![note(&format!("`{name}` goes on"))],
            AgentEvent::SessionEnded(_) => {
                let text = summary.render(Styling::Plain);
                vec![note(&format!("```\n{}\n```", text.trim()))]
            }
            AgentEvent::TurnStarted { .. }
            | AgentEvent::ApprovalWanted { .. }
            | AgentEvent::ApprovalAnswered { .. }
            | AgentEvent::TaskWarned { .. }
            | AgentEvent::TaskSpared { .. }
            | AgentEvent::Usage(_) => Vec::new(),
        }
    }

    fn plan(&self, now: State) -> Value {
        let steps = match self.mode {
            Mode::Strict => STRICT.as_slice(),
            Mode::Explore | Mode::Debug => FREE.as_slice(),
        };
        let at = steps.iter().position(|(state, _)| *state == now);
        let entry = |(index, (_, words)): (usize, &(State, &str))| {
            let status = match at {
                Some(at) if index < at => "completed",
                Some(at) if index == at => "in_progress",
                Some(_) | None => "pending",
            };
            json!({"content": words, "priority": "medium", "status": status})
        };
        let entries: Vec<Value> = steps.iter().enumerate().map(entry).collect();
        json!({"sessionUpdate": "plan", "entries": entries})
    }
}

/// Why a turn ended, in the protocol's words.
pub(super) fn stop_reason(result: &SessionResult, why: &str) -> Result<Value, Problem> {
    let reason = match result {
        SessionResult::Verified
        | SessionResult::Unverified
        | SessionResult::Exempt
        | SessionResult::Unfinished
        | SessionResult::Diverged
        | SessionResult::Waiting => "end_turn",
        SessionResult::Budget => "max_turn_requests",
        SessionResult::Denied => "refusal",
        SessionResult::Cancelled => "cancelled",
        SessionResult::Failed => return Err(Problem::new(INTERNAL, why)),
    };
    Ok(json!({"stopReason": reason}))
}

/// What is asked of the person at the editor.
pub(super) fn permission(
    session: &str,
    approval: &str,
    question: &str,
    (reasons, shown): (&[String], Option<&str>),
) -> Value {
    let mut content = vec![text_content(&reasons.join("\n"))];
    if let Some(shown) = shown {
        content.push(text_content(&format!("```diff\n{shown}\n```")));
    }
    json!({
        "sessionId": session,
        "toolCall": {
            "toolCallId": approval,
            "title": question,
            "kind": "edit",
            "status": "pending",
            "content": content,
        },
        "options": [
            {"optionId": "approve", "name": "Approve", "kind": "allow_once"},
            {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
        ],
    })
}

/// The modes that an editor can choose from.
pub(super) fn modes(current: Mode) -> Value {
    let mode = |id: &str, does: &str| json!({"id": id, "name": id, "description": does});
    json!({
        "currentModeId": current.as_str(),
        "availableModes": [
            mode("strict", "Test first, enforced"),
            mode("explore", "Tests may come later; commits are unverified"),
            mode("debug", "Explore, and reviewed commands in a running sandbox"),
        ],
    })
}

/// A prompt as one text.
pub(super) fn prompt_text(blocks: &Value) -> Option<String> {
    let text = |block: &Value| -> Option<String> {
        let field = |name: &str| block.get(name).and_then(Value::as_str);
        match field("type")? {
            "text" => Some(field("text")?.to_owned()),
            "resource_link" => Some(format!("({})", field("uri")?)),
            "resource" => {
                let resource = block.get("resource")?;
                let uri = resource.get("uri")?.as_str()?;
                let text = resource.get("text")?.as_str()?;
                Some(format!("{uri}:\n{text}"))
            }
            _ => None,
        }
    };
    let parts: Option<Vec<String>> = blocks.as_array()?.iter().map(text).collect();
    let whole = parts?.join("\n");
    (!whole.trim().is_empty()).then_some(whole)
}

fn said(kind: &str, text: &str) -> Value {
    json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}})
}

/// A paragraph of our own between those of the model.
fn note(text: &str) -> Value {
    said("agent_message_chunk", &format!("\n\n{text}\n\n"))
}

fn text_content(text: &str) -> Value {
    json!({"type": "content", "content": {"type": "text", "text": text}})
}

fn finished(call: &str, outcome: Outcome, took: u64, summary: &str) -> Value {
    let (status, word) = match outcome {
        Outcome::Done => ("completed", "done"),
        Outcome::Failed => ("failed", "failed"),
        Outcome::Refused => ("failed", "refused"),
    };
    let text = format!("{word} in {}: {summary}", duration(took));
    json!({
        "sessionUpdate": "tool_call_update",
        "toolCallId": call,
        "status": status,
        "content": [text_content(&text)],
    })
}

/// What kind of thing a tool does, for the editor's icons.
fn kind(tool: &str) -> &'static str {
    match tool {
        "fs.read" | "fs.list" | "fs.exists" | "git.status" | "git.diff" | "git.log" => "read",
        "search.grep" | "search.glob" => "search",
        "fs.write" | "fs.edit" => "edit",
        "fs.remove" => "delete",
        "shell.exec" | "test.run" | "git.commit" => "execute",
        "plan.complete" => "think",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::show::sample;
    use super::*;

    #[test]
    fn a_session_as_an_editor_hears_it() {
        let mut translator = Translator::new(Mode::Strict);
        let lines: Vec<String> = sample::session()
            .iter()
            .flat_map(|event| translator.event(event))
            .map(|update| fluffy_report::sorted(update).to_string())
            .collect();
        insta::assert_snapshot!("acp_updates", lines.join("\n"));
    }

    #[test]
    fn the_plan_follows_the_workflow_of_its_mode() {
        let translator = Translator::new(Mode::Explore);
        let plan = translator.plan(State::Validating);
        let words: Vec<String> = plan["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| format!("{} {}", entry["status"], entry["content"]))
            .collect();
        insta::assert_snapshot!(words.join("\n"), @r#"
        "completed" "Plan"
        "completed" "Write code and tests"
        "in_progress" "Run the tests"
        "pending" "Review and merge"
        "pending" "Commit"
        "#);
        let idle = translator.plan(State::Idle).to_string();
        assert!(!idle.contains("completed"), "{idle}");
    }

    #[test]
    fn only_what_can_be_read_is_a_prompt() {
        let both = json!([
            {"type": "text", "text": "explain"},
            {"type": "resource_link", "uri": "file:///a.rs", "name": "a.rs"},
            {"type": "resource", "resource": {"uri": "file:///b.rs", "text": "fn b() {}"}},
        ]);
        assert_eq!(
            prompt_text(&both).unwrap(),
            "explain\n(file:///a.rs)\nfile:///b.rs:\nfn b() {}"
        );
        for wrong in [
            json!([]),
            json!("text"),
            json!([{"type": "image", "data": ""}]),
            json!([{"type": "text"}]),
            json!([{"type": "text", "text": "  "}]),
        ] {
            assert_eq!(prompt_text(&wrong), None, "{wrong}");
        }
    }
}
