//! Tests of recordings and of playing them.

use fluffy_contract::model::{Message, ModelStream as _, StopReason, ToolCall, Usage};
use fluffy_secret::SecretString;
use serde_json::json;

use super::*;
use crate::replay::{OnDivergence, Replay};

const SECRET: &str = "hunter2-hunter2";
const SHAPED: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";

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

fn call(id: &str) -> Message {
    let call = ToolCall {
        id: id.into(),
        name: "fs.read".into(),
        arguments: json!({}),
        opaque: None,
    };
    Message {
        role: Role::Assistant,
        parts: vec![Part::ToolCall(call)],
    }
}

fn result(id: &str, content: &str) -> Message {
    let part = Part::ToolResult {
        call: id.into(),
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
    let mut bytes = Vec::new();
    let now = Timestamp::from_micros(0);
    let mut recorder = Recorder::begin(&mut bytes, redactor(), "p/m", now).unwrap();
    let text = |text: &str| ModelEvent::TextDelta { text: text.into() };
    let events = [
        text("never"),
        ModelEvent::Restarted {
            model: "p/m".into(),
            because: "broke".into(),
        },
        // Secrets cut in two, and one inside of arguments.
        text("the password is hunter2"),
        text("-hunter2, the token ghp_0123456789abc"),
        text("defghijABCDEFGHIJ012345"),
        ModelEvent::ToolCallStart {
            id: "c1".into(),
            name: "fs.read".into(),
        },
        ModelEvent::ToolCallDelta {
            id: "c1".into(),
            arguments: "{\"p\":\"hunter2".into(),
        },
        ModelEvent::ToolCallDelta {
            id: "c1".into(),
            arguments: "-hunter2\"}".into(),
        },
        ModelEvent::ToolCallEnd {
            id: "c1".into(),
            opaque: None,
        },
        ModelEvent::Usage(Usage {
            input_tokens: 3,
            ..Usage::default()
        }),
        ModelEvent::Done {
            reason: StopReason::ToolCalls,
        },
    ];
    recorder.turn(&turn(vec![]), &events).unwrap();
    let second = turn(vec![call("c1"), result("c1", content)]);
    let events = [
        text("two words"),
        ModelEvent::Done {
            reason: StopReason::EndTurn,
        },
    ];
    recorder.turn(&second, &events).unwrap();
    bytes
}

async fn play(replay: &Replay, content: &str) -> Vec<ModelEvent> {
    let mut events = Vec::new();
    for turn in [turn(vec![]), turn(vec![call("c1"), result("c1", content)])] {
        let mut stream = replay.play(&turn);
        while let Some(event) = stream.next().await {
            events.push(event);
        }
    }
    events
}

#[test]
fn no_secret_reaches_the_file_however_it_was_cut() {
    let bytes = record(&format!("found {SECRET} and {SHAPED}"));
    let text = String::from_utf8(bytes).unwrap();
    assert!(
        !text.contains("hunter2") && !text.contains("ghp_"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 3);
    let recording = Recording::parse(text.as_bytes()).unwrap();
    assert_eq!(recording.head.model, "p/m");
    assert_eq!(recording.turns[1].results[0].tool, "fs.read");
    assert!(
        !text.contains("never"),
        "what was taken back is not recorded"
    );
}

#[tokio::test]
async fn the_same_session_is_played_back() {
    let content = format!("same\n{SECRET}\nlines\n");
    let recording = Recording::parse(&record(&content)).unwrap();
    let replay = Replay::new(recording, redactor(), OnDivergence::Stop);
    let events = play(&replay, &content).await;
    assert_eq!(replay.divergences(), []);
    let mut answer = Answer::default();
    events.iter().for_each(|event| answer.apply(event));
    assert!(answer.text().ends_with("two words"), "{}", answer.text());
    assert!(matches!(
        events.last(),
        Some(ModelEvent::Done {
            reason: StopReason::EndTurn
        })
    ));
    let third = replay.play(&turn(vec![])).next().await;
    assert!(
        matches!(third, Some(ModelEvent::Error(fault)) if fault.message.contains("ended after 2"))
    );
}

#[tokio::test]
async fn a_divergence_is_told_with_a_diff() {
    let recording = Recording::parse(&record("same\nthen\nlines\n")).unwrap();
    let replay = Replay::new(recording.clone(), redactor(), OnDivergence::Stop);
    let events = play(&replay, "same\nnow\nlines\n").await;
    let Some(ModelEvent::Error(fault)) = events.last() else {
        panic!("{events:?}");
    };
    assert_eq!(fault.kind, fluffy_contract::model::FaultKind::Diverged);
    assert!(fault.message.contains("-then\n+now\n"), "{}", fault.message);
    let replay = Replay::new(recording.clone(), redactor(), OnDivergence::GoOn);
    let events = play(&replay, "same\nnow\nlines\n").await;
    assert!(matches!(events.last(), Some(ModelEvent::Done { .. })));
    assert_eq!(replay.divergences()[0].turn, 2);
    let normalize = Box::new(|text: &str| text.replace("then", "now"));
    let replay = Replay::new(recording, redactor(), OnDivergence::Stop).with_normalize(normalize);
    play(&replay, "same\nnow\nlines\n").await;
    assert_eq!(replay.divergences(), []);
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
    let mut damaged = record("x");
    damaged.extend_from_slice(b"{\"asked\":7}\n");
    let error = Recording::parse(&damaged).unwrap_err();
    assert!(matches!(error, ReadRecordingError::Line { line: 4, .. }));
}
