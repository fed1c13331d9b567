//! What works: plain HTTP, tunnels, sockets of both kinds, records.
//!
//! Real programs are in `tests/clients`; here every byte is under control.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::decide::Kind;
use crate::hello::tests::hello_for;
use crate::record::Verdict;

use super::support::{OK, PATIENCE, PUBLIC, Server, Stage, read_all, read_until};

#[tokio::test]
async fn a_request_of_plain_http_is_carried_and_recorded() {
    let server = Server::http(OK).await;
    let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
    let proxy = stage.start();
    let request = b"GET http://allowed.test/secret?token=1 HTTP/1.1\r\nHost: allowed.test\r\n\r\n";
    let answer = proxy.talk(request).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello"),
        "{answer}"
    );
    let sent = "GET /secret?token=1 HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n";
    assert_eq!(server.heard(), sent);

    let record = proxy.record().await;
    assert_eq!(record.verdict, Verdict::Allowed);
    assert_eq!(record.kind, Some(Kind::Http));
    assert_eq!(record.host.as_deref(), Some("allowed.test"));
    assert_eq!((record.port, record.address), (Some(80), Some(PUBLIC)));
    assert_eq!(record.rule.as_deref(), Some("allow allowed.test:80"));
    assert_eq!(record.bytes_up, sent.len() as u64);
    assert!(record.bytes_down >= 5 && record.reason.is_none());
    let payload = record.payload().to_string();
    assert!(
        !payload.contains("secret") && !payload.contains("token"),
        "{payload}"
    );
}

#[tokio::test]
async fn bodies_arrive_whole_and_end_where_they_end() {
    let server = Server::http(OK).await;
    let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
    let proxy = stage.start();
    let head = "POST http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n";
    let counted = format!("{head}Content-Length: 8\r\n\r\nab\r\n\r\ncdGET /smuggled");
    assert!(proxy.talk(counted.as_bytes()).await.contains("200 OK"));
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n2;x\r\nef\r\n0\r\nT: 1\r\n\r\n");
    assert!(proxy.talk(chunked.as_bytes()).await.contains("200 OK"));
    server.hears("2\r\nef\r\n0\r\n\r\n").await;
    let heard = server.heard();
    assert!(
        heard.contains("Content-Length: 8\r\nConnection: close\r\n\r\nab\r\n\r\ncd"),
        "{heard}"
    );
    assert!(
        !heard.contains("smuggled") && !heard.contains("T: 1"),
        "{heard}"
    );
}

#[tokio::test]
async fn a_client_that_waits_to_be_asked_for_its_body_is_asked() {
    let server = Server::http("HTTP/1.1 100 Continue\r\n\r\n").await;
    let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
    let proxy = stage.start();
    let mut stream = proxy.connect().await;
    let head = "POST http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\
                Expect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let go_on = read_until(&mut stream, b"\r\n\r\n").await;
    assert_eq!(go_on, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"body").await.unwrap();
    server.hears("\r\n\r\nbody").await;
}

#[tokio::test]
async fn a_tunnel_carries_tls_for_the_allowed_name_both_ways() {
    let server = Server::start("", "pong").await;
    let stage = Stage::allowing(&["allowed.test:443"]).with_server(PUBLIC, &server);
    let proxy = stage.start();
    let hello = hello_for("allowed.test");
    let mut tunnel = proxy.tunnel("allowed.test:443").await;
    // In pieces, as networks do.
    for part in hello.chunks(7) {
        tunnel.write_all(part).await.unwrap();
        tunnel.flush().await.unwrap();
    }
    tunnel.write_all(b"ping\r\n\r\n").await.unwrap();
    let mut answer = [0; 4];
    tunnel.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"pong");
    tunnel.shutdown().await.unwrap();
    assert_eq!(read_all(&mut tunnel).await, "");
    let record = proxy.record().await;
    assert_eq!(
        (record.verdict, record.kind),
        (Verdict::Allowed, Some(Kind::Connect))
    );
    assert_eq!(
        (record.bytes_up, record.bytes_down),
        (hello.len() as u64 + 8, 4)
    );
    assert_eq!(record.reason, None);
    assert_eq!(proxy.proxy.bytes(), (record.bytes_up, record.bytes_down));
}

#[tokio::test]
async fn a_socket_file_serves_as_well() {
    let server = Server::http(OK).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.sock");
    let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
    let handle = stage.start_on(UnixListener::bind(&path).unwrap().into());
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let request = b"GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("hello"), "{answer}");
    handle.stop().await;
}

#[tokio::test]
async fn an_address_that_does_not_answer_gives_way_to_the_next() {
    let server = Server::http(OK).await;
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = dead.local_addr().unwrap();
    drop(dead);
    let mut stage = Stage::allowing(&["two.test:80"]).with_server(PUBLIC, &server);
    let first = "93.184.215.99".parse().unwrap();
    stage.routes.push((first, nobody));
    stage.names.answer("two.test", &[first, PUBLIC]);
    let proxy = stage.start();
    let answer = proxy
        .talk(b"GET http://two.test/ HTTP/1.1\r\nHost: two.test\r\n\r\n")
        .await;
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!(proxy.record().await.address, Some(PUBLIC));
}

#[tokio::test]
async fn what_cannot_be_reached_is_explained() {
    let stage = Stage::allowing(&["nowhere.test:80"]);
    let proxy = stage.start();
    let answer = proxy
        .talk(b"GET http://nowhere.test/ HTTP/1.1\r\nHost: nowhere.test\r\n\r\n")
        .await;
    assert!(
        answer.starts_with("HTTP/1.1 502 no such host\r\n"),
        "{answer}"
    );
    assert_eq!(proxy.reason().await, "no_address");
}

#[tokio::test]
async fn stopping_ends_tunnels_and_records_them() {
    let server = Server::start("hi", "").await;
    let stage = Stage::allowing(&["tcp://allowed.test:22"]).with_server(PUBLIC, &server);
    let proxy = stage.start();
    let mut tunnel = proxy.tunnel("allowed.test:22").await;
    read_until(&mut tunnel, b"hi").await;
    let kept = Arc::clone(&proxy.kept);
    proxy.proxy.stop().await;
    let records = kept.wait_for(1).await;
    assert_eq!(records[0].reason.as_ref().unwrap().code(), "stopped");
    assert_eq!(
        (records[0].verdict, records[0].bytes_down),
        (Verdict::Allowed, 2)
    );
    assert_eq!(read_all(&mut tunnel).await, "");
}

#[tokio::test]
async fn dropping_the_handle_ends_everything() {
    let server = Server::start("hi", "").await;
    let stage = Stage::allowing(&["tcp://allowed.test:22"]).with_server(PUBLIC, &server);
    let proxy = stage.start();
    let mut tunnel = proxy.tunnel("allowed.test:22").await;
    read_until(&mut tunnel, b"hi").await;
    drop(proxy.proxy);
    assert_eq!(read_all(&mut tunnel).await, "");
    proxy.kept.wait_for(1).await;
    // The listener goes with it.
    let refused = async {
        while TcpStream::connect(proxy.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, refused).await.unwrap();
}

#[tokio::test]
async fn nothing_goes_through_while_nothing_can_be_recorded() {
    let server = Server::http(OK).await;
    let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
    let proxy = stage.start();
    let request = b"GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n";
    proxy.kept.failing.store(true, Ordering::SeqCst);
    // The one that finds out has been carried; the next is not.
    assert!(proxy.talk(request).await.ends_with("hello"));
    let heard = server.heard().len();
    let refused = proxy.talk(request).await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert_eq!(server.heard().len(), heard);
    // Once records are kept again, the refusal is, and then requests go on.
    proxy.kept.failing.store(false, Ordering::SeqCst);
    assert!(proxy.talk(request).await.starts_with("HTTP/1.1 503 "));
    assert!(proxy.talk(request).await.ends_with("hello"));
}

#[tokio::test]
async fn a_connection_without_a_word_leaves_no_record() {
    let proxy = Stage::allowing(&[]).start();
    drop(proxy.connect().await);
    // Accepted after the silent one, so by its end both have been seen.
    proxy.talk(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n").await;
    let kept = Arc::clone(&proxy.kept);
    proxy.proxy.stop().await;
    let records = kept.wait_for(1).await;
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(records[0].host.as_deref(), Some("a.test"));
}
