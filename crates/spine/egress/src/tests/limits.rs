//! Every limit: what is told to the client, what is recorded, what still works.

use std::sync::Arc;
use std::time::Duration;

use fluffy_base::Timestamp;
use tokio::io::AsyncWriteExt;
use tokio::time::advance;

use crate::Reason;
use crate::record::{Exchange, Verdict};

use super::support::{OK, PUBLIC, Server, Stage, read_all, read_until};

const GET: &[u8] = b"GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n";

#[tokio::test]
async fn connections_at_once() {
    let server = Server::start("hi", "").await;
    let stage = Stage::allowing(&["tcp://allowed.test:22"]).with_server(PUBLIC, &server);
    let proxy = stage.with_limits(|limits| limits.connections = 2).start();
    let mut first = proxy.tunnel("allowed.test:22").await;
    let _second = proxy.tunnel("allowed.test:22").await;
    for _ in 0..5 {
        let answer = proxy.talk(b"").await;
        assert!(
            answer.starts_with("HTTP/1.1 503 too many connections\r\n"),
            "{answer}"
        );
    }
    first.shutdown().await.unwrap();
    drop(first);
    // Once one has ended there is room again.
    proxy.kept.wait_for_host("allowed.test").await;
    let mut third = proxy.tunnel("allowed.test:22").await;
    read_until(&mut third, b"hi").await;
    let kept = Arc::clone(&proxy.kept);
    proxy.proxy.stop().await;
    let records = kept.wait_for(2).await;
    let turned_away = records.iter().filter(|record| record.host.is_none());
    let times = turned_away.map(|record| {
        assert_eq!(record.reason, Some(Reason::Connections));
        record.times
    });
    assert_eq!(times.sum::<u64>(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_refusals_is_summed_up() {
    let stage = Stage::allowing(&[]);
    let kept = Arc::clone(&stage.kept);
    let shared = stage.shared();
    let refused = Exchange {
        reason: Some(Reason::Connections),
        ..shared.exchange(Timestamp::from_micros(0))
    };
    let times = async || {
        let records = kept.wait_for(0).await;
        records
            .iter()
            .map(|record| record.times)
            .collect::<Vec<_>>()
    };
    (0..100).for_each(|_| shared.record(&refused));
    assert_eq!(times().await, [1]);
    advance(Duration::from_secs(1)).await;
    (0..100).for_each(|_| shared.record(&refused));
    assert_eq!(times().await, [1, 100]);
    // Any other reason is recorded each time.
    let denied = Exchange {
        reason: Some(Reason::Literal),
        ..refused
    };
    (0..3).for_each(|_| shared.record(&denied));
    assert_eq!(times().await, [1, 100, 1, 1, 1]);
}

#[tokio::test]
async fn requests_in_all() {
    let server = Server::http(OK).await;
    let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
    let proxy = stage.with_limits(|limits| limits.requests = 2).start();
    assert!(proxy.talk(GET).await.ends_with("hello"));
    assert!(proxy.talk(GET).await.ends_with("hello"));
    let answer = proxy.talk(GET).await;
    assert!(
        answer.starts_with("HTTP/1.1 429 allowance used up\r\n"),
        "{answer}"
    );
    let records = proxy.kept.wait_for(3).await;
    assert_eq!(
        records[2].reason.as_ref().unwrap().code(),
        "too_many_requests"
    );
}

#[tokio::test]
async fn bytes_out_in_all() {
    let server = Server::http(OK).await;
    let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
    let proxy = stage.with_limits(|limits| limits.bytes_up = 1_000).start();
    let mut request =
        b"POST http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 5000\r\n\r\n"
            .to_vec();
    request.extend([b'x'; 5000]);
    let answer = proxy.talk(&request).await;
    assert!(answer.contains("429 allowance used up"), "{answer}");
    let record = proxy.record().await;
    assert_eq!(record.reason.unwrap().code(), "too_many_bytes_up");
    assert!(record.bytes_up <= 1_000 && record.verdict == Verdict::Allowed);
    assert!(server.heard().len() <= 1_000);
}

#[tokio::test]
async fn bytes_in_in_all() {
    let server = Server::http(OK).await;
    let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
    let proxy = stage.with_limits(|limits| limits.bytes_down = 100).start();
    let first = proxy.talk(GET).await;
    assert!(first.ends_with("hello"), "{first}");
    let second = proxy.talk(GET).await;
    assert!(!second.ends_with("hello"), "{second}");
    let records = proxy.kept.wait_for(2).await;
    assert_eq!(
        records[1].reason.as_ref().unwrap().code(),
        "too_many_bytes_down"
    );
    let down: u64 = records.iter().map(|record| record.bytes_down).sum();
    assert!(down <= 100, "{down}");
}

#[tokio::test]
async fn a_server_that_never_answers() {
    let server = Server::start("", "").await;
    let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
    let idle = Duration::from_millis(100);
    let proxy = stage.with_limits(|limits| limits.idle_time = idle).start();
    let answer = proxy.talk(GET).await;
    assert!(
        answer.starts_with("HTTP/1.1 504 answer timed out\r\n"),
        "{answer}"
    );
    assert_eq!(proxy.reason().await, "idle");
}

#[tokio::test]
async fn a_tunnel_in_which_nothing_moves() {
    let server = Server::start("hi", "").await;
    let stage = Stage::allowing(&["tcp://allowed.test:22"]).with_server(PUBLIC, &server);
    let idle = Duration::from_millis(100);
    let proxy = stage.with_limits(|limits| limits.idle_time = idle).start();
    let mut tunnel = proxy.tunnel("allowed.test:22").await;
    assert_eq!(read_all(&mut tunnel).await, "hi");
    assert_eq!(proxy.reason().await, "idle");
}

#[tokio::test]
async fn a_tunnel_that_goes_on_for_ever() {
    let server = Server::start("", "").await;
    let stage = Stage::allowing(&["tcp://allowed.test:22"]).with_server(PUBLIC, &server);
    let total = Duration::from_millis(300);
    let proxy = stage
        .with_limits(|limits| limits.total_time = total)
        .start();
    let mut tunnel = proxy.tunnel("allowed.test:22").await;
    // Busy all the time: only the total can end it.
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    while tunnel.write_all(b"x").await.is_ok() {
        tick.tick().await;
    }
    let record = proxy.record().await;
    assert_eq!(record.reason.unwrap().code(), "too_long");
    assert!(record.bytes_up > 1);
}

#[tokio::test]
async fn a_head_beyond_every_measure() {
    let proxy = Stage::allowing(&["allowed.test:80"]).start();
    let mut request = b"GET http://allowed.test/".to_vec();
    request.extend([b'x'; 20_000]);
    let answer = proxy.talk(&request).await;
    assert!(
        answer.starts_with("HTTP/1.1 431 head too large\r\n"),
        "{answer}"
    );
    assert_eq!(proxy.reason().await, "head_too_large");
}

#[tokio::test]
async fn a_tunnel_that_never_begins() {
    let server = Server::start("", "").await;
    let stage = Stage::allowing(&["allowed.test:443"]).with_server(PUBLIC, &server);
    let hello = Duration::from_millis(100);
    let proxy = stage
        .with_limits(|limits| limits.hello_time = hello)
        .start();
    let mut tunnel = proxy.tunnel("allowed.test:443").await;
    tunnel.write_all(&[22, 3, 1]).await.unwrap();
    read_all(&mut tunnel).await;
    assert_eq!(proxy.reason().await, "hello_timeout");
    assert_eq!(server.heard(), "");
}
