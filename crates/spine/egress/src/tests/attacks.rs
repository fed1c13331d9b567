//! Attempts to get further than allowed, each beside its control.
//!
//! An attack runs twice against the same proxy: with all guards it must fail
//! and be recorded; with the one guard missing it must succeed, which shows
//! that it is an attack at all. Tricks with names are in `names`.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::guard::Guard;
use crate::hello::tests::{hello_for, hello_with_hidden_name, hello_without_name};
use crate::record::Verdict;
use crate::tunnel::ALERT;

use super::support::{EVIL, LOOPBACK, OK, PATIENCE, PUBLIC, Server, Stage, read_all, read_until};

const GET: &[u8] = b"GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n";

/// A request inside another: our end is at the length, the server's at the
/// empty chunk, and what lies between is the server's next request.
#[tokio::test]
async fn a_request_smuggled_in_a_body_with_two_lengths() {
    let inner = "0\r\n\r\nGET /admin HTTP/1.1\r\nHost: allowed.test\r\n\r\n";
    let attack = format!(
        "POST http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: {}\r\n\
         Transfer-Encoding: chunked\r\n\r\n{inner}",
        inner.len()
    );
    for guard in [None, Some(Guard::Framing)] {
        let server = Server::http(OK).await;
        let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
        let proxy = stage.maybe_without(guard).start();
        let answer = proxy.talk(attack.as_bytes()).await;
        match guard {
            None => {
                assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
                assert_eq!(proxy.reason().await, "unclear_length");
                assert_eq!(server.heard(), "");
            }
            Some(_) => {
                server.hears("GET /admin").await;
                assert!(server.heard().contains("Transfer-Encoding: chunked\r\n"));
            }
        }
    }
}

/// A second request behind the first, which nobody decided.
#[tokio::test]
async fn a_second_request_on_a_connection_is_never_read() {
    let server = Server::http(OK).await;
    let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
    let proxy = stage.start();
    let second = b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let answer = proxy.talk(&[GET, second].concat()).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert!(answer.contains("Connection: close\r\n"));
    assert!(!server.heard().contains("evil"));
    // Control: on a connection of its own it is a request, and is refused.
    assert!(proxy.talk(second).await.starts_with("HTTP/1.1 403 "));
}

#[tokio::test]
async fn a_host_header_for_another_site_on_the_same_server() {
    let attack = b"GET http://allowed.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    for guard in [None, Some(Guard::HostAgrees)] {
        let server = Server::http(OK).await;
        let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
        let proxy = stage.maybe_without(guard).start();
        let answer = proxy.talk(attack).await;
        match guard {
            None => {
                assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
                assert_eq!(proxy.reason().await, "host_mismatch");
                assert_eq!(server.heard(), "");
            }
            Some(_) => assert!(server.heard().contains("Host: evil.test\r\n")),
        }
    }
}

/// The server name is all that a shared front end goes by.
#[tokio::test]
async fn tls_for_another_name_than_the_one_allowed() {
    for (hello, code) in [
        (hello_for("evil.test"), "other_server_name"),
        (hello_for("allowed.test.evil.test"), "other_server_name"),
        (hello_without_name(), "no_server_name"),
        (hello_with_hidden_name("allowed.test"), "hidden_server_name"),
        (b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(), "not_tls"),
        (
            b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n".to_vec(),
            "not_tls",
        ),
        (vec![22, 3, 1, 0, 0], "bad_hello"),
    ] {
        for guard in [None, Some(Guard::ServerName)] {
            let server = Server::start("", "").await;
            let stage = Stage::allowing(&["allowed.test:443"]).with_server(PUBLIC, &server);
            let proxy = stage.maybe_without(guard).start();
            let mut tunnel = proxy.tunnel("allowed.test:443").await;
            tunnel.write_all(&hello).await.unwrap();
            tunnel.shutdown().await.unwrap();
            let answer = read_all(&mut tunnel).await;
            let record = proxy.record().await;
            let reason = record
                .reason
                .as_ref()
                .map_or("none", |reason| reason.code());
            match guard {
                None => {
                    assert_eq!(reason, code);
                    assert_eq!(record.verdict, Verdict::Refused);
                    assert_eq!(answer, String::from_utf8_lossy(ALERT));
                    assert_eq!(server.heard(), "");
                }
                Some(_) => {
                    let sent = String::from_utf8_lossy(&hello).into_owned();
                    server.hears(&sent).await;
                    assert_eq!(record.verdict, Verdict::Allowed);
                }
            }
        }
    }
}

/// Mail and shell servers speak first; nothing of that may come through.
#[tokio::test]
async fn a_server_that_speaks_first_is_not_heard() {
    let banner = "220 mail.test ESMTP\r\n";
    let server = Server::start(banner, "").await;
    let stage = Stage::allowing(&["allowed.test:25"]).with_server(PUBLIC, &server);
    let hello = Duration::from_millis(300);
    let proxy = stage
        .with_limits(|limits| limits.hello_time = hello)
        .start();
    let mut tunnel = proxy.tunnel("allowed.test:25").await;
    assert!(!read_all(&mut tunnel).await.contains("220"));
    assert_eq!(proxy.reason().await, "hello_timeout");
    // Control: where plain bytes were allowed, the banner is there.
    let stage = Stage::allowing(&["tcp://allowed.test:25"]).with_server(PUBLIC, &server);
    let proxy = stage.start();
    let mut tunnel = proxy.tunnel("allowed.test:25").await;
    assert_eq!(read_until(&mut tunnel, b"\n").await, banner);
}

/// A name anybody can register, for an address that only this machine has.
#[tokio::test]
async fn a_name_that_stands_for_this_machine_its_network_or_its_cloud() {
    for address in [
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "10.1.2.3",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "fd00:ec2::254",
        "fe80::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
    ] {
        let address = address.parse().unwrap();
        for guard in [None, Some(Guard::Addresses)] {
            let server = Server::http(OK).await;
            let stage = Stage::allowing(&["allowed.test:80"]).with_server(address, &server);
            let stage = Stage {
                names: std::sync::Arc::default(),
                ..stage.maybe_without(guard)
            };
            // Hidden among public ones.
            stage.names.answer("allowed.test", &[address, PUBLIC]);
            let proxy = stage.start();
            let answer = proxy.talk(GET).await;
            let record = proxy.record().await;
            assert_eq!(record.address, Some(address));
            match guard {
                None => {
                    assert!(answer.starts_with("HTTP/1.1 403 not a public"), "{answer}");
                    assert_eq!(record.reason.unwrap().code(), "reserved_address");
                    assert_eq!(server.heard(), "");
                }
                Some(_) => assert!(answer.ends_with("hello"), "{address}: {answer}"),
            }
        }
    }
}

/// The first answer is for the check, the second for the connection.
#[tokio::test]
async fn a_name_that_is_rebound_between_check_and_connection() {
    for guard in [None, Some(Guard::OneLookup)] {
        let (public, secret) = (Server::http(OK).await, Server::http(OK).await);
        let stage = Stage::allowing(&["rebind.test:80"])
            .with_server(PUBLIC, &public)
            .with_server(LOOPBACK, &secret);
        stage.names.answer("rebind.test", &[PUBLIC]);
        stage.names.answer("rebind.test", &[LOOPBACK]);
        let proxy = stage.maybe_without(guard).start();
        let request = b"GET http://rebind.test/ HTTP/1.1\r\nHost: rebind.test\r\n\r\n";
        proxy.talk(request).await;
        let record = proxy.record().await;
        match guard {
            None => {
                assert_eq!(record.address, Some(PUBLIC));
                assert_eq!(proxy.names.asked().len(), 1);
                assert_eq!(secret.heard(), "");
                // The next request finds the second answer and is refused.
                assert!(proxy.talk(request).await.starts_with("HTTP/1.1 403 "));
            }
            Some(_) => assert!(secret.heard().contains("Host: rebind.test")),
        }
    }
}

/// An allowed server sends the client elsewhere; that is a new decision.
#[tokio::test]
async fn a_redirect_leads_no_further_than_a_request() {
    let elsewhere =
        "HTTP/1.1 302 Found\r\nLocation: http://inner.test/\r\nContent-Length: 0\r\n\r\n";
    for guard in [None, Some(Guard::Addresses)] {
        let (public, secret) = (Server::http(elsewhere).await, Server::http(OK).await);
        let stage = Stage::allowing(&["allowed.test:80", "inner.test:80"])
            .with_server(PUBLIC, &public)
            .with_server(LOOPBACK, &secret);
        stage.names.answer("inner.test", &[LOOPBACK]);
        let proxy = stage.maybe_without(guard).start();
        let first = proxy.talk(GET).await;
        let location = first.split("Location: ").nth(1).unwrap();
        let location = location.split("\r\n").next().unwrap();
        let next = format!("GET {location} HTTP/1.1\r\nHost: inner.test\r\n\r\n");
        let second = proxy.talk(next.as_bytes()).await;
        let code = match guard {
            None => "403",
            Some(_) => "200",
        };
        assert!(second.starts_with(&format!("HTTP/1.1 {code}")), "{second}");
        assert_eq!(secret.heard().is_empty(), guard.is_none());
    }
}

/// One byte at a time, to hold every place there is.
#[tokio::test]
async fn slow_heads_do_not_keep_others_out() {
    for guard in [None, Some(Guard::HeadTime)] {
        let server = Server::http(OK).await;
        let stage = Stage::allowing(&["allowed.test:80"]).with_server(PUBLIC, &server);
        let stage = stage.maybe_without(guard).with_limits(|limits| {
            limits.connections = 1;
            limits.head_time = Duration::from_millis(200);
        });
        let proxy = stage.start();
        let mut slow = proxy.connect().await;
        let dribble = tokio::spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_millis(20));
            // For long after the guard would have ended it.
            for byte in GET.iter().cycle().filter(|byte| **byte != b'\r').take(60) {
                tick.tick().await;
                if slow.write_all(&[*byte]).await.is_err() {
                    break;
                }
            }
            slow
        });
        if guard.is_none() {
            let records = proxy.kept.wait_for(1).await;
            assert_eq!(records[0].reason.as_ref().unwrap().code(), "head_timeout");
            let served = async { while !proxy.talk(GET).await.ends_with("hello") {} };
            timeout(PATIENCE, served).await.unwrap();
        } else {
            // Control: while it dribbles on, long past its time, nobody else
            // gets in.
            assert!(proxy.talk(GET).await.contains(" 503 "));
            let slow = dribble.await.unwrap();
            assert!(proxy.talk(GET).await.contains(" 503 "));
            assert_eq!(server.heard(), "");
            drop(slow);
        }
    }
}

/// No list, no network: the empty list is not "everything".
#[tokio::test]
async fn an_empty_list_means_no_network() {
    let server = Server::http(OK).await;
    let proxy = Stage::allowing(&[]).with_server(PUBLIC, &server).start();
    let answer = proxy.talk(GET).await;
    assert!(
        answer.starts_with("HTTP/1.1 403 not allowed by policy\r\n"),
        "{answer}"
    );
    assert_eq!(server.heard(), "");
    // Control: one entry, and the same request goes through.
    let proxy = Stage::allowing(&["allowed.test:80"])
        .with_server(PUBLIC, &server)
        .start();
    assert!(proxy.talk(GET).await.ends_with("hello"));
}

/// A tunnel to a shared address is still a tunnel to one name.
#[tokio::test]
async fn two_names_at_one_address_are_two_decisions() {
    let server = Server::start("", "").await;
    let stage = Stage::allowing(&["allowed.test:443"]).with_server(EVIL, &server);
    stage.names.answer("evil.test", &[PUBLIC]);
    let proxy = stage.with_server(PUBLIC, &server).start();
    let answer = proxy.talk(b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let mut tunnel = proxy.tunnel("allowed.test:443").await;
    tunnel.write_all(&hello_for("allowed.test")).await.unwrap();
    server.hears("allowed.test").await;
}
