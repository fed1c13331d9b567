//! Peers that break the rules, each beside one that must not notice.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::os::unix::net::UnixStream as BlockingStream;
use std::time::Duration;

use fluffy_ipc::frame::{LIMIT, LIMIT_BEFORE_HANDSHAKE, encode};
use fluffy_ipc::message::v1::encode_result;
use fluffy_ipc::server::{Incident, ServerLimits};
use fluffy_ipc::{Client, ConnectError, ErrorCode, RequestId, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{RawPeer, Serving, hello, ping_server, wait_until};
use tokio::io::AsyncWriteExt;

fn framed(body: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

fn limited(limits: ServerLimits) -> Server {
    ping_server().limits(limits)
}

#[tokio::test]
async fn a_malformed_frame_closes_its_own_connection_only() {
    let server = ping_server();
    let counters = server.counters();
    let serving = Serving::start(server);
    let bystander = serving.client().await;
    let request = |rest: &str| framed(format!(r#"{{"kind":"request",{rest}}}"#).as_bytes());
    let nested = format!(r#"{{"id":1,"params":{}"#, "[".repeat(100_000));
    let cases = [
        ("length 0", vec![0, 0, 0, 0]),
        ("length 2^32-1", vec![0xff; 4]),
        (
            "above 16 MiB",
            u32::try_from(LIMIT + 1).unwrap().to_be_bytes().to_vec(),
        ),
        ("not UTF-8", framed(b"\"\xff\"")),
        ("not JSON", framed(b"{")),
        ("nesting 10^5", framed(nested.as_bytes())),
        (
            "duplicate names",
            request(r#""id":1,"id":2,"method":"ping""#),
        ),
        ("1e400", request(r#""id":1,"method":"ping","params":1e400"#)),
        ("no message", framed(b"[]")),
        ("a response", encode_result(RequestId(1), &1).unwrap()),
    ];
    for (index, (name, bytes)) in cases.into_iter().enumerate() {
        let mut peer = serving.raw().await;
        peer.stream.write_all(&bytes).await.unwrap();
        let farewell = peer.response().await.expect(name);
        assert_eq!(farewell.id, None, "{name}");
        assert_eq!(
            farewell.outcome.unwrap_err().code,
            ErrorCode::Malformed,
            "{name}"
        );
        assert!(peer.message().await.is_none(), "{name}");
        assert_eq!(counters.of(Incident::Malformed), index as u64 + 1, "{name}");
        assert_eq!(
            bystander.call::<_, u64>("ping", &1).await.unwrap(),
            1,
            "{name}"
        );
    }
    serving.stop().await;
}

#[tokio::test]
async fn a_body_that_stops_short_is_no_call() {
    let server = ping_server();
    let counters = server.counters();
    let serving = Serving::start(server);
    let mut peer = serving.raw().await;
    peer.stream.write_all(&[0, 0, 0, 9, b'{']).await.unwrap();
    peer.stream.shutdown().await.unwrap();
    let farewell = peer.response().await.unwrap();
    assert_eq!(farewell.outcome.unwrap_err().code, ErrorCode::Malformed);
    assert_eq!(counters.of(Incident::Malformed), 1);
    serving.stop().await;
}

#[tokio::test]
async fn an_id_in_use_is_a_violation() {
    let server = ping_server().method("endless", |_, (): ()| {
        std::future::pending::<Result<(), _>>()
    });
    let serving = Serving::start(server);
    let mut peer = serving.raw().await;
    peer.request(1, "endless", &()).await;
    peer.request(1, "ping", &1).await;
    let farewell = peer.response().await.unwrap();
    assert_eq!(farewell.outcome.unwrap_err().code, ErrorCode::Malformed);
    assert!(peer.message().await.is_none());
    serving.stop().await;
}

#[tokio::test]
async fn before_the_handshake_only_small_frames_are_read() {
    let serving = Serving::start(ping_server());
    let large = "x".repeat(LIMIT_BEFORE_HANDSHAKE);
    let mut stranger = RawPeer::silent(&serving.path()).await;
    // The server may close before all of it is written.
    let _ = stranger
        .stream
        .write_all(&encode(&large, LIMIT).unwrap())
        .await;
    let refusal = stranger.response().await.unwrap().outcome.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Malformed);
    assert!(refusal.message.contains("16384"), "{refusal}");
    assert!(stranger.message().await.is_none());

    let mut known = serving.raw().await;
    known.request(1, "ping", &large).await;
    let answer = known.response().await.unwrap().outcome.unwrap_err();
    assert_eq!(answer.code, ErrorCode::InvalidParams, "the control is read");
    serving.stop().await;
}

#[tokio::test]
async fn a_call_before_the_handshake_is_refused() {
    let serving = Serving::start(ping_server());
    let mut peer = RawPeer::silent(&serving.path()).await;
    peer.request(0, "ping", &1).await;
    let refusal = peer.response().await.unwrap().outcome.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::HandshakeRefused);
    assert!(peer.message().await.is_none());
    serving.stop().await;
}

#[tokio::test]
async fn silence_instead_of_a_handshake_ends_the_connection() {
    let server = limited(ServerLimits {
        handshake: Duration::from_millis(20),
        ..ServerLimits::default()
    });
    let counters = server.counters();
    let serving = Serving::start(server);
    let mut peer = RawPeer::silent(&serving.path()).await;
    assert!(peer.message().await.is_none());
    assert_eq!(counters.of(Incident::HandshakeRefused), 1);
    serving.stop().await;
}

#[tokio::test]
async fn a_frame_that_never_ends_ends_the_connection() {
    let server = limited(ServerLimits {
        frame: Duration::from_millis(50),
        ..ServerLimits::default()
    });
    let counters = server.counters();
    let serving = Serving::start(server);
    let bystander = serving.client().await;
    let mut peer = serving.raw().await;
    peer.stream.write_all(&[0, 0, 1]).await.unwrap();
    let farewell = peer.response().await.unwrap();
    assert_eq!(farewell.outcome.unwrap_err().code, ErrorCode::Malformed);
    assert!(peer.message().await.is_none());
    assert_eq!(counters.of(Incident::SlowWriter), 1);
    // The bystander was silent for as long, but between frames.
    assert_eq!(bystander.call::<_, u64>("ping", &1).await.unwrap(), 1);
    serving.stop().await;
}

#[tokio::test]
async fn a_slow_reader_is_disconnected_and_delays_nobody() {
    let server = limited(ServerLimits {
        slow_reader: Duration::from_millis(200),
        ..ServerLimits::default()
    })
    .method("large", |_, (): ()| async { Ok("x".repeat(4 << 20)) });
    let counters = server.counters();
    let serving = Serving::start(server);
    let mut slow = serving.raw().await;
    for id in 1..=8 {
        slow.request(id, "large", &()).await;
    }
    let quick = serving.client().await;
    let mut calls = 0;
    let start = std::time::Instant::now();
    while counters.of(Incident::SlowReader) == 0 {
        assert!(start.elapsed() < support::DEADLINE, "never disconnected");
        assert_eq!(quick.call::<_, u64>("ping", &calls).await.unwrap(), calls);
        calls += 1;
    }
    assert!(calls > 10, "only {calls} calls beside the slow reader");
    // What the socket held is still there, then comes the end.
    let mut received = 0;
    while slow.message().await.is_some() {
        received += 1;
    }
    assert!(received < 8, "{received}");
    assert_eq!(quick.call::<_, u64>("ping", &1).await.unwrap(), 1);
    serving.stop().await;
}

/// As many as the case asks for, or as the descriptors of this process allow.
fn connections_to_try() -> usize {
    const WANTED: u64 = 10_000;
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limits.maximum,
        ..limits
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let allowed = limits.maximum.unwrap_or(u64::MAX);
    let count = WANTED.min(allowed.saturating_sub(500));
    if count < WANTED {
        eprintln!("scaled to {count} connections: this process may have {allowed} descriptors");
    }
    usize::try_from(count).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_cost_the_others_nothing() {
    const LIMIT_OF_SERVER: usize = 64;
    let server = limited(ServerLimits {
        connections: LIMIT_OF_SERVER,
        handshake: Duration::from_secs(600),
        ..ServerLimits::default()
    });
    let counters = server.counters();
    let serving = Serving::start(server);
    let early = serving.client().await;
    let count = connections_to_try();
    let path = serving.path();
    let flood = tokio::task::spawn_blocking(move || {
        (0..count)
            .map(|_| BlockingStream::connect(&path).unwrap())
            .collect::<Vec<_>>()
    });
    let held = flood.await.unwrap();
    let refused = u64::try_from(count - (LIMIT_OF_SERVER - 1)).unwrap();
    wait_until("all others are refused", || {
        counters.of(Incident::TooManyConnections) == refused
    })
    .await;
    assert_eq!(early.call::<_, u64>("ping", &1).await.unwrap(), 1);
    let late = Client::connect(serving.path(), hello()).await.unwrap_err();
    assert!(late.is_retryable(), "{late:?}");
    let ConnectError::Refused { failure, .. } = late else {
        panic!("{late:?}");
    };
    assert_eq!(failure.code, ErrorCode::TooManyConnections);

    drop(held);
    let start = std::time::Instant::now();
    while Client::connect(serving.path(), hello()).await.is_err() {
        assert!(start.elapsed() < support::DEADLINE, "never free again");
        tokio::task::yield_now().await;
    }
    serving.stop().await;
}
