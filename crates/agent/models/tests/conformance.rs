//! One suite of cases, run unchanged on all four formats over real HTTP.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::time::Duration;

use fluffy_contract::model::{FaultKind, ModelEvent, ModelStream as _, Part, StopReason, Usage};
use fluffy_model_server::{Delivery, Fault, Format, ModelServer, Options, Piece, Reply, Stop};
use fluffy_models::answer::End;
use fluffy_models::client::Timeouts;
use serde_json::json;
use support::*;

/// The events of a turn against a server with this script.
async fn ask(format: Format, replies: Vec<Reply>) -> (Vec<ModelEvent>, ModelServer) {
    ask_patiently(format, replies, quick()).await
}

async fn ask_patiently(
    format: Format,
    replies: Vec<Reply>,
    timeouts: Timeouts,
) -> (Vec<ModelEvent>, ModelServer) {
    let server = ModelServer::scripted(replies).unwrap();
    let chain = chain(vec![link(&server, format)], timeouts);
    let events = collect(chain.start(turn())).await;
    assert_eq!(server.refused(), Vec::<String>::new(), "{format:?}");
    (events, server)
}

/// What [`TOKENS`] must arrive as.
const USAGE: Usage = Usage {
    input_tokens: TOKENS.input,
    cached_tokens: TOKENS.cached,
    cache_write_tokens: TOKENS.cache_write,
    output_tokens: TOKENS.output,
    reasoning_tokens: TOKENS.reasoning,
};

#[tokio::test]
async fn an_answer_is_the_same_in_every_format_and_every_delivery() {
    for format in Format::ALL {
        for delivery in [
            Delivery::Events,
            Delivery::Whole,
            Delivery::Bytes,
            Delivery::Pieces(2),
            Delivery::Pieces(7),
            Delivery::Pieces(1000),
            Delivery::Slow { millis: 1 },
        ] {
            for keep_alives in [false, true] {
                let reply = Reply {
                    keep_alives,
                    ..rich().delivered(delivery)
                };
                let (events, _server) = ask(format, vec![reply]).await;
                let answer = answer(&events);
                let name = format!("{format:?} {delivery:?} {keep_alives}");
                assert_eq!(
                    answer.end(),
                    Some(&End::Done(StopReason::ToolCalls)),
                    "{name}"
                );
                assert_eq!(answer.usage(), Some(USAGE), "{name}");
                assert_eq!(plain(&answer.into_message()), rich_plain(), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn text_streams_in_pieces_and_ends_for_the_right_reason() {
    for format in Format::ALL {
        for (stop, wanted) in [
            (Stop::Natural, StopReason::EndTurn),
            (Stop::Length, StopReason::Length),
            (Stop::Refused, StopReason::Refused),
        ] {
            let text = "a text of several words that comes in pieces";
            let reply = Reply {
                stop,
                ..Reply::text(text)
            };
            let (events, _server) = ask(format, vec![reply]).await;
            let is_text = |event: &&ModelEvent| matches!(event, ModelEvent::TextDelta { .. });
            assert!(events.iter().filter(is_text).count() > 3, "{format:?}");
            let answer = answer(&events);
            assert_eq!(answer.text(), text);
            assert_eq!(
                answer.end(),
                Some(&End::Done(wanted)),
                "{format:?} {stop:?}"
            );
        }
    }
}

#[tokio::test]
async fn every_passing_fault_is_overcome_and_what_was_shown_is_taken_back() {
    let status = |status, headers: &[(&str, &str)]| Fault::Status {
        status,
        headers: headers
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect(),
    };
    let faults = [
        (status(429, &[("retry-after-ms", "20")]), false),
        (status(429, &[("retry-after", "0")]), false),
        (status(500, &[]), false),
        (status(503, &[]), false),
        (status(529, &[]), false),
        (status(408, &[]), false),
        (status(409, &[]), false),
        (Fault::DieAtOnce, false),
        (Fault::DieAfter { events: 0 }, false),
        (Fault::ErrorAfter { events: 0 }, false),
        (Fault::DieAfter { events: 7 }, true),
        (Fault::ErrorAfter { events: 7 }, true),
        (Fault::CutAfter { events: 7 }, true),
        (Fault::WrongJsonAfter { events: 7 }, true),
    ];
    for format in Format::ALL {
        for (fault, is_shown) in &faults {
            let failing = Reply::failing(fault.clone());
            let (events, server) = ask(format, vec![failing, rich()]).await;
            let name = format!("{format:?} {fault:?} {events:?}");
            assert_eq!(server.received().len(), 2, "{name}");
            let waits = events.iter().find_map(|event| match event {
                ModelEvent::Waiting { millis, .. } => Some(*millis),
                _ => None,
            });
            match fault {
                Fault::Status { headers, .. }
                    if headers.iter().any(|(n, _)| n == "retry-after-ms") =>
                {
                    assert!(waits.unwrap() >= 19, "{name}");
                }
                _ => assert!(waits.is_some(), "{name}"),
            }
            let restarted = |event: &ModelEvent| matches!(event, ModelEvent::Restarted { .. });
            assert_eq!(events.iter().any(restarted), *is_shown, "{name}");
            let answer = answer(&events);
            assert_eq!(
                answer.end(),
                Some(&End::Done(StopReason::ToolCalls)),
                "{name}"
            );
            assert_eq!(plain(&answer.into_message()), rich_plain(), "{name}");
        }
    }
}

#[tokio::test]
async fn silence_is_noticed_before_and_inside_an_answer() {
    let timeouts = Timeouts {
        first_byte: Duration::from_millis(150),
        idle: Duration::from_millis(150),
        ..quick()
    };
    for format in Format::ALL {
        for fault in [Fault::HangAtOnce, Fault::HangAfter { events: 4 }] {
            let replies = vec![Reply::failing(fault.clone()), Reply::text("at last")];
            let (events, _server) = ask_patiently(format, replies, timeouts).await;
            let answer = answer(&events);
            assert_eq!(answer.text(), "at last", "{format:?} {fault:?}");
        }
    }
}

#[tokio::test]
async fn what_cannot_help_is_not_tried_again() {
    for format in Format::ALL {
        for (status, kind) in [
            (400, FaultKind::InvalidRequest),
            (401, FaultKind::Authentication),
            (404, FaultKind::NotFound),
            (302, FaultKind::InvalidRequest),
        ] {
            let headers = vec![("location".to_owned(), "https://evil.example/".to_owned())];
            let reply = Reply::failing(Fault::Status { status, headers });
            let (events, server) = ask(format, vec![reply]).await;
            let [ModelEvent::Error(fault)] = &events[..] else {
                panic!("{format:?} {status} {events:?}");
            };
            assert_eq!(fault.kind, kind, "{format:?} {status}");
            assert!(!fault.message.is_empty());
            assert_eq!(server.received().len(), 1);
        }
    }
}

#[tokio::test]
async fn a_provider_that_stays_broken_is_given_up() {
    for format in Format::ALL {
        let reply = Reply::failing(Fault::Status {
            status: 500,
            headers: vec![],
        });
        let (events, server) = ask(format, vec![reply; 20]).await;
        let last = events.last().unwrap();
        assert!(matches!(last, ModelEvent::Error(fault) if fault.kind == FaultKind::Overloaded));
        assert_eq!(server.received().len(), 5);
        let reply = Reply::failing(Fault::DieAfter { events: 7 });
        let (events, server) = ask(format, vec![reply; 20]).await;
        let last = events.last().unwrap();
        assert!(matches!(last, ModelEvent::Error(fault) if fault.kind == FaultKind::Network));
        assert_eq!(
            server.received().len(),
            3,
            "shown output is taken back twice at most"
        );
    }
}

#[tokio::test]
async fn another_model_goes_on_whatever_it_speaks() {
    for format in Format::ALL {
        for other in Format::ALL {
            let headers = vec![];
            let broken = ModelServer::start(Options::default(), move |_| {
                let headers = headers.clone();
                Reply::failing(Fault::Status {
                    status: 401,
                    headers,
                })
            });
            let (broken, fine) = (
                broken.unwrap(),
                ModelServer::scripted(vec![rich()]).unwrap(),
            );
            let chain = chain(vec![link(&broken, format), link(&fine, other)], quick());
            let events = collect(chain.start(turn())).await;
            let ModelEvent::Restarted { model, .. } = &events[0] else {
                panic!("{events:?}");
            };
            assert_eq!(
                *model,
                format!("{}/{MODEL}", format!("{other:?}").to_lowercase())
            );
            assert_eq!(plain(&answer(&events).into_message()), rich_plain());
        }
    }
}

#[tokio::test]
async fn a_conversation_with_tools_is_accepted_as_strictly_as_the_vendors_are() {
    for format in Format::ALL {
        for other in Format::ALL {
            let server = ModelServer::thinking(|conversation| match conversation.turns() {
                0 => rich(),
                _ => {
                    let results = conversation.last_results();
                    let contents: Vec<_> = results.iter().map(|r| r.content.as_str()).collect();
                    Reply::text(&format!("I saw {}", contents.join(" and ")))
                }
            })
            .unwrap();
            let mut turn = turn();
            let first = chain(vec![link(&server, format)], quick());
            let message = answer(&collect(first.start(turn.clone())).await).into_message();
            let calls: Vec<String> = (message.parts.iter())
                .filter_map(|part| match part {
                    Part::ToolCall(call) => Some(call.id.clone()),
                    _ => None,
                })
                .collect();
            assert_eq!(calls.len(), 2);
            turn.messages.push(message);
            turn.messages
                .extend(calls.iter().map(|id| result(id, &format!("<{id}>"))));
            turn.messages
                .push(text(fluffy_contract::model::Role::User, "and now?"));
            // The second half of the conversation goes to another provider.
            let second = chain(vec![link(&server, other)], quick());
            let events = collect(second.start(turn)).await;
            assert_eq!(
                server.refused(),
                Vec::<String>::new(),
                "{format:?} {other:?}"
            );
            let wanted = format!("I saw <{}> and <{}>", calls[0], calls[1]);
            assert_eq!(answer(&events).text(), wanted, "{format:?} {other:?}");
        }
    }
}

#[tokio::test]
async fn dropping_a_turn_closes_its_connection() {
    for format in Format::ALL {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = ModelServer::scripted(vec![]).unwrap();
        let mut link = link(&server, format);
        let address = listener.local_addr().unwrap();
        link.settings.base_url = format!("http://{address}").parse().unwrap();
        let chain = chain(vec![link], quick());
        let mut stream = chain.start(turn());
        let (mut connection, _) = listener.accept().await.unwrap();
        let events = wire_of(format);
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        connection.write_all(head.as_bytes()).await.unwrap();
        connection.write_all(events.as_bytes()).await.unwrap();
        assert!(stream.next().await.is_some());
        drop(stream);
        let mut rest = Vec::new();
        // Ends only because the client has closed, orderly or by a reset.
        let closed =
            tokio::time::timeout(Duration::from_secs(20), connection.read_to_end(&mut rest));
        assert!(closed.await.is_ok(), "{format:?} kept its connection");
    }
}

/// The first events of an answer.
fn wire_of(format: Format) -> String {
    let events = format.events(MODEL, &Reply::text("one two three four five six seven"));
    events.into_iter().take(6).collect()
}

#[tokio::test]
async fn keys_travel_in_their_header_and_nowhere_else() {
    for format in Format::ALL {
        let options = Options {
            key: Some("test-key-123".into()),
            ..Options::default()
        };
        let server = ModelServer::start(options, |_| Reply::text("hi")).unwrap();
        let chain = chain(vec![link(&server, format)], quick());
        let events = collect(chain.start(turn())).await;
        assert_eq!(answer(&events).text(), "hi", "{format:?}");
        let request = &server.received()[0];
        assert!(!request.body.to_string().contains("test-key-123"));
        assert!(!request.path.contains("test-key-123"));
        let carriers = request
            .headers
            .iter()
            .filter(|(_, value)| value.contains("test-key-123"));
        assert_eq!(carriers.count(), 1);
        assert!(format!("{chain:?}").contains("Secret(…)"));
    }
}

#[tokio::test]
async fn reasoning_goes_back_signed() {
    let server = ModelServer::thinking(|conversation| match conversation.turns() {
        0 => Reply::default()
            .with(Piece::Reasoning("hm".into()))
            .and_call("fs.read", json!({"path": "/a"})),
        _ => Reply::text("done"),
    })
    .unwrap();
    for (format, wanted) in [
        (Format::Anthropic, "\"signature\":\"signed:0\""),
        (Format::Gemini, "\"thoughtSignature\":\"c2lnbmF0dXJl\""),
        (Format::Responses, "\"encrypted_content\":\"encrypted:0\""),
    ] {
        let mut turn = turn();
        let chain = chain(vec![link(&server, format)], quick());
        let message = answer(&collect(chain.start(turn.clone())).await).into_message();
        let Some(Part::ToolCall(call)) = message.parts.last().cloned() else {
            panic!("no call");
        };
        turn.messages.push(message);
        turn.messages.push(result(&call.id, "x"));
        let events = collect(chain.start(turn)).await;
        assert_eq!(answer(&events).text(), "done");
        let body = server.received().last().unwrap().body.to_string();
        assert!(body.contains(wanted), "{body}");
    }
}
