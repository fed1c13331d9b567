//! Versions: who is refused, by whom, and what every version ever wrote.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::path::Path;

use fluffy_ipc::frame::{Decoder, LIMIT};
use fluffy_ipc::message::v1::{encode_event, encode_failure, encode_request, encode_result};
use fluffy_ipc::message::{Message, RequestId};
use fluffy_ipc::{
    ApiRange, Client, ConnectError, ErrorCode, Failure, Hello, RequestContext, Server, Welcome,
    handshake,
};
use support::{RawPeer, Serving, request_of};
use tokio::net::UnixListener;

fn server(newest: u32) -> Server {
    Server::new("kernel", ApiRange::current_and_previous(newest))
        .method("version", |context: RequestContext, (): ()| async move {
            Ok(context.client().api_version)
        })
}

async fn connect(serving: &Serving, api_version: u32) -> Result<Client, ConnectError> {
    Client::connect(serving.path(), Hello::new("cli", "1.0", api_version)).await
}

#[tokio::test]
async fn the_current_and_the_previous_version_are_served() {
    let serving = Serving::start(server(3));
    for version in [2, 3] {
        let client = connect(&serving, version).await.unwrap();
        assert_eq!(client.server().api_version, version);
        assert_eq!(
            client.call::<_, u32>("version", &()).await.unwrap(),
            version
        );
    }
    serving.stop().await;
}

#[tokio::test]
async fn other_versions_are_refused_with_the_range_and_what_to_do() {
    let serving = Serving::start(server(3));
    for (version, fix) in [(1, "update it"), (4, "restart it")] {
        let error = connect(&serving, version).await.unwrap_err();
        assert!(!error.is_retryable());
        let text = error.to_string();
        assert!(text.contains("api versions 2 to 3"), "{text}");
        assert!(text.contains(&format!("speaks {version}")), "{text}");
        assert!(error.hint().contains(fix), "{}", error.hint());
    }
    serving.stop().await;
}

#[tokio::test]
async fn a_client_refuses_a_server_that_answers_with_another_version() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("odd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let odd = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut peer = RawPeer::over(stream);
        let first = request_of(peer.message().await.unwrap());
        assert_eq!(first.method, handshake::METHOD);
        let welcome = Welcome {
            name: "odd".into(),
            version: "9".into(),
            api_version: 9,
            supported: ApiRange::current_and_previous(9),
            in_flight: 1,
        };
        peer.send(&encode_result(first.id, &welcome).unwrap()).await;
    });
    let error = Client::connect(&path, Hello::new("cli", "1.0", 1)).await;
    let supported = ApiRange {
        oldest: 8,
        newest: 9,
    };
    match error.unwrap_err() {
        ConnectError::Version {
            ours: 1,
            supported: found,
            ..
        } => assert_eq!(found, supported),
        other => panic!("{other:?}"),
    }
    odd.await.unwrap();
}

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    let text = std::fs::read_to_string(path.join(name)).unwrap();
    let body = text.trim_end().as_bytes();
    let mut bytes = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

fn parse(bytes: &[u8]) -> Message {
    let frame = Decoder::new(LIMIT).feed(&mut &bytes[..]).unwrap().unwrap();
    Message::parse(&frame).unwrap()
}

/// The bytes of version 1 do not change, and are read for as long as we exist.
#[test]
fn version_1_is_written_and_read_as_on_the_first_day() {
    let hello = Hello::new("cli", "0.1.0", 1);
    let supported = ApiRange {
        oldest: 1,
        newest: 1,
    };
    let welcome = Welcome {
        name: "kernel".into(),
        version: "0.1.0".into(),
        api_version: 1,
        supported,
        in_flight: 64,
    };
    let id = RequestId(7);
    let unsupported = Failure {
        supported: Some(supported),
        ..Failure::new(ErrorCode::VersionUnsupported, "no")
    };
    let cases = [
        (
            "handshake.json",
            encode_request(RequestId(0), "handshake", &hello),
        ),
        ("welcome.json", encode_result(RequestId(0), &welcome)),
        ("request.json", encode_request(id, "ping", &["a"])),
        ("result.json", encode_result(id, &())),
        (
            "failure.json",
            encode_failure(Some(id), &Failure::new(ErrorCode::Unavailable, "later")),
        ),
        ("refusal.json", encode_failure(None, &unsupported)),
        ("event.json", encode_event(Some(id), "progress", &50)),
        ("cancel.json", encode_event(Some(id), "cancel", &())),
    ];
    for (name, written) in cases {
        let expected = golden(name);
        let (written, shown) = (written.unwrap(), String::from_utf8_lossy(&expected));
        assert_eq!(String::from_utf8_lossy(&written), shown, "{name}");
        parse(&expected);
    }
    let Message::Response(refusal) = parse(&golden("refusal.json")) else {
        panic!("not a response");
    };
    assert_eq!(refusal.outcome.unwrap_err(), unsupported);
}

#[test]
fn every_code_of_version_1_keeps_its_spelling() {
    let codes = [
        (ErrorCode::Malformed, "malformed"),
        (ErrorCode::HandshakeRefused, "handshake_refused"),
        (ErrorCode::VersionUnsupported, "version_unsupported"),
        (ErrorCode::TooManyConnections, "too_many_connections"),
        (ErrorCode::NoIdentity, "no_identity"),
        (ErrorCode::UnknownMethod, "unknown_method"),
        (ErrorCode::InvalidParams, "invalid_params"),
        (ErrorCode::Denied, "denied"),
        (ErrorCode::NotFound, "not_found"),
        (ErrorCode::Conflict, "conflict"),
        (ErrorCode::TooLarge, "too_large"),
        (ErrorCode::Timeout, "timeout"),
        (ErrorCode::Unavailable, "unavailable"),
        (ErrorCode::ShuttingDown, "shutting_down"),
        (ErrorCode::Internal, "internal"),
    ];
    for (code, spelling) in codes {
        assert_eq!(serde_json::to_value(code).unwrap(), spelling);
        let back: ErrorCode = serde_json::from_value(spelling.into()).unwrap();
        assert_eq!(back, code);
    }
}
