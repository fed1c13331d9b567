//! Tests of recordings and of playing them.

use fluffy_contract::model::{FaultKind, Message, ModelStream as _, ToolCall};
use fluffy_secret::SecretString;
use serde_json::json;

use super::*;
use crate::Answer;
use crate::replay::Replay;

const SECRET: &str = "hunter2-hunter2";
const SHAPED: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
const HERE: &str = "/home/ann/project";
const THERE: &str = "/srv/other";

fn redactor() -> Redactor {
    let mut redactor = Redactor::new(&[]).unwrap();
    redactor
        .register(SecretString::from(SECRET.to_owned()))
        .unwrap();
    redactor
}

fn turn(messages: Vec<Message>) -> Turn {
    Turn {
        model: "m".into(),
        messages,
        tools: vec![],
        max_output_tokens: 10,
        effort: None,
        conversation: None,
    }
}

fn call() -> ToolCall {
    ToolCall {
        id: "c1".into(),
        name: "fs.read".into(),
        arguments: json!({"path": format!("{HERE}/{SECRET}")}),
        opaque: None,
    }
}

fn result(content: &str) -> Message {
    let part = Part::ToolResult {
        call: "c1".into(),
        content: content.into(),
        outcome: ToolOutcome::Done,
    };
    Message {
        role: Role::Tool,
        parts: vec![part],
    }
}

/// A recording of two turns; the second saw `content`.
fn record(content: &str) -> Vec<u8> {
    let text = |text: &str| Part::Text {
        text: text.into(),
        opaque: None,
    };
    let first = [
        text(&format!("the password is {SECRET}, the token {SHAPED}")),
        Part::ToolCall(call()),
    ];
    let seen = SeenResult {
        call: "c1".into(),
        tool: "fs.read".into(),
        content: content.into(),
        outcome: ToolOutcome::Done,
    };
    let usage = Usage {
        input_tokens: 3,
        ..Usage::default()
    };
    let recording = Recording {
        head: RecordingHead {
            fluffy_recording: VERSION,
            created: Timestamp::from_micros(0),
            model: "p/m".into(),
            task: format!("not {SECRET}"),
            mode: "strict".into(),
        },
        turns: vec![
            RecordedTurn::of(vec![], &first, usage, StopReason::ToolCalls),
            RecordedTurn::of(vec![seen], &[text("two words")], usage, StopReason::EndTurn),
        ],
        end: RecordingEnd {
            ended: "verified".into(),
            seen: vec!["refused 0".into()],
        },
    };
    recording.to_file(&redactor(), HERE)
}

async fn play(replay: &Replay, content: &str) -> Vec<ModelEvent> {
    let mut events = Vec::new();
    let called = Message {
        role: Role::Assistant,
        parts: vec![Part::ToolCall(call())],
    };
    for turn in [turn(vec![]), turn(vec![called, result(content)])] {
        let mut stream = replay.play(&turn);
        while let Some(event) = stream.next().await {
            events.push(event);
        }
    }
    events
}

fn replay(recorded: &str) -> Replay {
    let recording = Recording::parse(&record(recorded)).unwrap();
    Replay::new(recording, redactor(), THERE)
}

#[test]
fn neither_a_secret_nor_a_place_reaches_the_file() {
    let bytes = record(&format!("found {SECRET} and {SHAPED} in {HERE}/x"));
    let text = String::from_utf8(bytes).unwrap();
    for hidden in ["hunter2", "ghp_", "ann"] {
        assert!(!text.contains(hidden), "{text}");
    }
    assert_eq!(text.lines().count(), 4);
    let recording = Recording::parse(text.as_bytes()).unwrap();
    assert_eq!(recording.head.model, "p/m");
    assert_eq!(recording.turns[1].results[0].tool, "fs.read");
    assert_eq!(recording.end.ended, "verified");
}

#[tokio::test]
async fn the_same_session_is_played_back_in_another_place() {
    let replay = replay(&format!("same {HERE}\n{SECRET}\nin 3 ms\n"));
    let events = play(&replay, &format!("same {THERE}\n{SECRET}\nin 4 ms\n")).await;
    let mut answer = Answer::default();
    events.iter().for_each(|event| answer.apply(event));
    assert!(answer.text().ends_with("two words"), "{}", answer.text());
    let message = answer.into_message();
    let called = message.parts.iter().find_map(|part| match part {
        Part::ToolCall(call) => call.arguments["path"].as_str(),
        _ => None,
    });
    assert!(called.unwrap().starts_with(THERE), "{called:?}");
    let Some(ModelEvent::Error(fault)) = replay.play(&turn(vec![])).next().await else {
        panic!("there is no third turn");
    };
    assert_eq!(fault.kind, FaultKind::Ended);
    assert!(fault.message.contains("after 2 turns"), "{fault:?}");
}

#[tokio::test]
async fn a_divergence_is_told_with_a_diff() {
    let events = play(&replay("same\nthen\nlines\n"), "same\nnow\nlines\n").await;
    let Some(ModelEvent::Error(fault)) = events.last() else {
        panic!("{events:?}");
    };
    assert_eq!(fault.kind, FaultKind::Diverged);
    assert!(fault.message.starts_with("turn 2: `fs.read`"), "{fault:?}");
    assert!(fault.message.contains("-then\n+now\n"), "{}", fault.message);
    let mut stream = replay("x").after(1).play(&turn(vec![]));
    let Some(ModelEvent::Error(fault)) = stream.next().await else {
        panic!("a result is missing");
    };
    assert!(fault.message.contains("-fs.read\n"), "{}", fault.message);
}

#[tokio::test]
async fn a_session_goes_on_where_it_was() {
    let recording = Recording::parse(&record("x")).unwrap();
    let replay = Replay::new(recording, redactor(), THERE).after(2);
    let event = replay.play(&turn(vec![])).next().await;
    assert!(matches!(event, Some(ModelEvent::Error(fault)) if fault.kind == FaultKind::Ended));
}

#[test]
fn what_is_no_recording_is_refused() {
    for text in [
        "",
        "\n",
        "{}",
        "[]",
        "nonsense",
        "{\"fluffy_recording\":\"1\"}",
    ] {
        let error = Recording::parse(text.as_bytes()).unwrap_err();
        assert!(matches!(error, ReadRecordingError::NotARecording), "{text}");
    }
    let newer = b"{\"fluffy_recording\":2,\"created\":\"x\"}";
    let error = Recording::parse(newer).unwrap_err();
    assert!(matches!(error, ReadRecordingError::Version { version: 2 }));
    let whole = String::from_utf8(record("x")).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let damaged = [lines[0], "{\"results\":7}"].join("\n");
    let error = Recording::parse(damaged.as_bytes()).unwrap_err();
    assert!(matches!(error, ReadRecordingError::Line { line: 2, .. }));
    for kept in 1..lines.len() {
        let error = Recording::parse(lines[..kept].join("\n").as_bytes()).unwrap_err();
        assert!(matches!(error, ReadRecordingError::Cut), "{kept}");
    }
}
