//! Decoders at every chunk boundary, and the quirks of imitators.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod support;

use fluffy_contract::model::{ModelEvent, StopReason};
use fluffy_model_server::{Format, Piece, Quirk, Reply};
use fluffy_models::Decoder;
use fluffy_models::answer::End;
use proptest::prelude::*;
use serde_json::json;
use support::*;

fn decode(format: Format, pieces: &[&[u8]]) -> Vec<ModelEvent> {
    let mut decoder = Decoder::new(wire(format), &turn());
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(decoder.feed(piece));
    }
    events.extend(decoder.finish());
    assert!(decoder.has_ended());
    events
}

/// A small answer with everything in it.
fn small() -> Reply {
    Reply::default()
        .with(Piece::Reasoning("hm é".into()))
        .with(Piece::Text("Grü🦀".into()))
        .and_call("fs.read", json!({"path": "/ä"}))
        .and_call("fs.write", json!({}))
        .counting(TOKENS)
}

#[test]
fn every_chunk_boundary_gives_the_same_events() {
    for format in Format::ALL {
        let events = format.events(MODEL, &small());
        // Signs of life between all events, and every line end of two bytes.
        let alive: String = (events.iter())
            .map(|event| format!("{}{event}", format.keep_alive()))
            .collect();
        let stream = alive.replace("\r\n", "\n").replace('\n', "\r\n");
        let bytes = stream.as_bytes();
        let whole = decode(format, &[bytes]);
        assert_eq!(
            decode(format, &[events.concat().as_bytes()]),
            whole,
            "{format:?}"
        );
        let seen = answer(&whole);
        assert_eq!(
            seen.end(),
            Some(&End::Done(StopReason::ToolCalls)),
            "{format:?}"
        );
        assert_eq!(seen.into_message().parts.len(), 4, "{format:?} {whole:?}");
        for at in 0..=bytes.len() {
            let cut = decode(format, &[&bytes[..at], &bytes[at..]]);
            assert_eq!(cut, whole, "{format:?} cut at {at}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(decode(format, &single), whole, "{format:?} in single bytes");
    }
}

#[test]
fn a_stream_that_ends_early_is_never_taken_for_complete() {
    for format in Format::ALL {
        let events = format.events(MODEL, &small());
        for kept in 0..events.len() {
            let bytes = events[..kept].concat();
            let found = answer(&decode(format, &[bytes.as_bytes()]));
            let is_complete = matches!(found.end(), Some(End::Done(_)));
            // What is left out at the end is only a formality.
            let formality = match format {
                Format::Chat => kept + 2 >= events.len(),
                Format::Anthropic => kept + 1 >= events.len(),
                Format::Responses | Format::Gemini => false,
            };
            assert_eq!(
                is_complete,
                formality,
                "{format:?} {kept} of {}",
                events.len()
            );
        }
    }
}

#[test]
fn imitators_of_the_chat_format_are_understood() {
    let quirks = [
        vec![],
        vec![Quirk::NoIds],
        vec![Quirk::NoDone],
        vec![Quirk::NoIndex],
        vec![Quirk::WholeArguments],
        vec![Quirk::ObjectArguments],
        vec![Quirk::StopAfterCalls],
        vec![Quirk::ReasoningField],
        vec![Quirk::IndexAlwaysZero],
        vec![Quirk::IndexAlwaysZero, Quirk::WholeArguments],
        vec![Quirk::IndexAlwaysZero, Quirk::WholeArguments, Quirk::NoIds],
        vec![Quirk::NoIndex, Quirk::NoIds, Quirk::ObjectArguments],
        vec![
            Quirk::NoIds,
            Quirk::NoDone,
            Quirk::NoIndex,
            Quirk::StopAfterCalls,
        ],
    ];
    for quirks in quirks {
        let reply = Reply {
            tokens: None,
            quirks: quirks.clone(),
            ..rich()
        };
        let stream = Format::Chat.events(MODEL, &reply).concat();
        let found = answer(&decode(Format::Chat, &[stream.as_bytes()]));
        assert_eq!(
            found.end(),
            Some(&End::Done(StopReason::ToolCalls)),
            "{quirks:?}"
        );
        assert_eq!(found.usage(), None);
        assert_eq!(plain(&found.into_message()), rich_plain(), "{quirks:?}");
    }
}

#[test]
fn a_server_that_does_not_stream_is_understood() {
    let whole = json!({
        "choices": [{"index": 0, "finish_reason": "stop", "message": {
            "role": "assistant", "content": "all at once",
            "tool_calls": [{"function": {"name": "fs__read", "arguments": "{}"}}],
        }}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    });
    let found = answer(&decode(
        Format::Chat,
        &[format!("data: {whole}\n\n").as_bytes()],
    ));
    assert_eq!(found.end(), Some(&End::Done(StopReason::ToolCalls)));
    assert_eq!(found.usage().unwrap().input_tokens, 3);
    assert_eq!(
        plain(&found.into_message()),
        ["text all at once", "call fs.read {}"]
    );
}

#[test]
fn nonsense_of_every_kind_ends_in_a_fault_and_never_in_a_panic() {
    let nonsense = [
        "",
        "\n\n",
        "data: \n\n",
        "data: {}\n\n",
        "data: []\n\n",
        "data: null\n\n",
        "data: 1\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":-1,\"delta\":7}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":99999999999}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[7,{\"function\":\"x\"}]}}]}\n\n",
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"functionCall\":{}}]}}]}\n\n",
        "data: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"function_call\"}}\n\n",
        "data: {\"type\":\"response.failed\"}\n\n",
        "data: {\"error\":[]}\n\n",
        "<html>",
    ];
    for format in Format::ALL {
        for text in nonsense {
            let events = decode(format, &[text.as_bytes()]);
            assert!(
                matches!(events.last(), Some(ModelEvent::Error(_))),
                "{format:?} {text:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_end_with_exactly_one_last_event(
        pieces in proptest::collection::vec(any::<Vec<u8>>(), 0..8),
        seed in any::<prop::sample::Index>(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        for format in Format::ALL {
            // Noise alone, and a good stream with a few bytes changed.
            let mut damaged = format.events(MODEL, &small()).concat().into_bytes();
            for (at, byte) in &flips {
                let at = at.index(damaged.len());
                damaged[at] = *byte;
            }
            let (left, right) = damaged.split_at(seed.index(damaged.len()));
            let noise: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            for pieces in [noise, vec![left, right]] {
                let events = decode(format, &pieces);
                let is_last = |event: &&ModelEvent| {
                    matches!(event, ModelEvent::Done { .. } | ModelEvent::Error(_))
                };
                prop_assert_eq!(events.iter().filter(is_last).count(), 1);
                prop_assert!(events.last().is_some_and(|event| is_last(&event)));
            }
        }
    }
}
