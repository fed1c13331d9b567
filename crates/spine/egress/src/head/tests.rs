//! Heads that are read, heads that are not, and what goes on of them.

use proptest::prelude::*;

use super::*;

fn read(head: &str) -> Result<Asked, HeadError> {
    Asked::parse(head.as_bytes())
}

fn forwarded(head: &str) -> Forward {
    match read(head) {
        Ok(Asked::Forward(forward)) => forward,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tunnel_is_asked_for_with_or_without_host() {
    for head in [
        "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com:443\r\n\r\n",
        "CONNECT A.com.:443 HTTP/1.1\r\nHost: a.com\r\nProxy-Connection: Keep-Alive\r\n\r\n",
        "CONNECT a.com:443 HTTP/1.0\r\n\r\n",
        "CONNECT a.com:443 HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    ] {
        let asked = read(head).unwrap();
        assert_eq!(asked.target().to_string(), "a.com:443", "{head}");
        assert!(matches!(asked, Asked::Connect(_)));
    }
}

#[test]
fn plain_http_goes_on_as_it_was_understood() {
    let forward = forwarded(
        "GET http://A.com/x?y=1 HTTP/1.1\r\nHost: a.com\r\nProxy-Authorization: Basic c2VjcmV0\r\n\
         Connection: keep-alive, X-Drop\r\nX-Drop: 1\r\nTE: trailers\r\nUpgrade: h2c\r\n\
         Accept: */*\r\n\r\n",
    );
    assert_eq!(forward.target.to_string(), "a.com:80");
    assert_eq!(
        String::from_utf8(forward.head).unwrap(),
        "GET /x?y=1 HTTP/1.1\r\nHost: a.com\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    let forward = forwarded("POST HTTP://a.com:8080?q HTTP/1.0\r\nContent-Length: 3\r\n\r\n");
    assert_eq!(forward.body, Framing::Length(3));
    assert_eq!(
        String::from_utf8(forward.head).unwrap(),
        "POST /?q HTTP/1.0\r\nHost: a.com:8080\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
    );
    let forward = forwarded("HEAD http://a.com HTTP/1.1\r\nHost: a.com:80\r\n\r\n");
    assert_eq!(forward.answer, Answer::HeadOnly);
    assert!(forward.head.starts_with(b"HEAD / HTTP/1.1\r\n"));
}

#[test]
fn connection_cannot_remove_what_we_write() {
    let forward = forwarded(
        "POST http://a.com/ HTTP/1.1\r\nHost: a.com\r\nContent-Length: 3\r\n\
         Connection: content-length, host\r\n\r\n",
    );
    let head = String::from_utf8(forward.head).unwrap();
    assert!(head.contains("Host: a.com\r\n") && head.contains("Content-Length: 3\r\n"));
}

#[test]
fn a_body_with_two_lengths_is_refused() {
    let with = |headers: &str| {
        read(&format!(
            "POST http://a.com/ HTTP/1.1\r\nHost: a.com\r\n{headers}\r\n"
        ))
    };
    for headers in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 4\r\n",
        "Content-Length: 3, 3\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: -3\r\n",
        "Content-Length: 0x3\r\n",
        "Content-Length:\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: identity\r\n",
    ] {
        assert_eq!(with(headers), Err(HeadError::Length), "{headers}");
    }
    let old = "POST http://a.com/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(read(old), Err(HeadError::Length));
    let tunnel = "CONNECT a.com:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\n";
    assert_eq!(read(tunnel), Err(HeadError::Length));
}

#[test]
fn a_host_that_says_otherwise_is_refused() {
    for head in [
        "GET http://a.com/ HTTP/1.1\r\nHost: b.com\r\n\r\n",
        "GET http://a.com/ HTTP/1.1\r\nHost: a.com:81\r\n\r\n",
        "GET http://a.com/ HTTP/1.1\r\nHost: a.com\r\nHost: a.com\r\n\r\n",
        "GET http://a.com/ HTTP/1.1\r\n\r\n",
        "GET http://a.com/ HTTP/1.1\r\nHost:\r\n\r\n",
        "CONNECT a.com:443 HTTP/1.1\r\nHost: b.com:443\r\n\r\n",
        "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com:80\r\n\r\n",
        "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com\r\nHost: b.com\r\n\r\n",
    ] {
        assert_eq!(read(head), Err(HeadError::Host), "{head}");
    }
}

#[test]
fn what_is_not_plainly_http_is_refused() {
    use HeadError::*;
    for (head, expected) in [
        ("GET / HTTP/1.1\r\nHost: a.com\r\n\r\n", NotForProxy),
        (
            "GET /http://a.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
            NotForProxy,
        ),
        ("OPTIONS * HTTP/1.1\r\nHost: a.com\r\n\r\n", NotForProxy),
        ("GET https://a.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n", Scheme),
        ("GET ftp://a.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n", Scheme),
        ("GET http://a.com/ HTTP/1.1\nHost: a.com\n\r\n\r\n", Control),
        (
            "GET http://a.com/ HTTP/1.1\r\nHost: a.com\r\nX: a\rb\r\n\r\n",
            Control,
        ),
        (
            "GET http://a.com/ HTTP/1.1\r\nHost: a.com\r\nX: a\0b\r\n\r\n",
            Control,
        ),
        (
            "GET http://a.com/ HTTP/1.1\r\nHost: a.com\r\nX: \u{7f}\r\n\r\n",
            Control,
        ),
        (
            "\r\nGET http://a.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
            Malformed,
        ),
        (
            "GET http://a.com/ HTTP/1.1\r\nHost : a.com\r\n\r\n",
            Malformed,
        ),
        (
            "GET http://a.com/ HTTP/1.1\r\nHost: a.com\r\n X: folded\r\n\r\n",
            Malformed,
        ),
        (
            "GET  http://a.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
            Malformed,
        ),
        (
            "GET http://a.com/ HTTP/2.0\r\nHost: a.com\r\n\r\n",
            Malformed,
        ),
        (
            "GET http://a.com/#x HTTP/1.1\r\nHost: a.com\r\n\r\n",
            Malformed,
        ),
        (
            "GET http://a.com\\@b.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
            Malformed,
        ),
        ("GET http://a.com/\r\nHost: a.com\r\n\r\n", Malformed),
        (
            "CONNECT a.com HTTP/1.1\r\n\r\n",
            Target(TargetError::Malformed),
        ),
        (
            "CONNECT http://a.com:443 HTTP/1.1\r\n\r\n",
            Target(TargetError::UnclearAddress),
        ),
        (
            "GET http://u:p@a.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
            Target(TargetError::UserInfo),
        ),
        (
            "GET http:/// HTTP/1.1\r\nHost: a.com\r\n\r\n",
            Target(TargetError::Malformed),
        ),
    ] {
        assert_eq!(read(head), Err(expected), "{head:?}");
    }
}

#[test]
fn a_head_has_its_limits() {
    let lines = "X: y\r\n".repeat(MAX_HEADERS);
    let many = format!("GET http://a.com/ HTTP/1.1\r\nHost: a.com\r\n{lines}\r\n");
    assert_eq!(read(&many), Err(HeadError::TooMany));
    let long = "y".repeat(MAX_HEAD);
    let long = format!("GET http://a.com/{long} HTTP/1.1\r\nHost: a.com\r\n\r\n");
    assert_eq!(read(&long), Err(HeadError::TooLarge));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Asked::parse(&bytes);
    }

    /// Whatever is understood is understood the same way by the next reader.
    #[test]
    fn what_goes_on_means_what_was_understood(
        name in "[a-z]{1,8}(\\.[a-z]{1,8}){0,2}",
        port in 1u16..,
        path in "(/[!-~&&[^#\\\\]]{0,20})?",
        headers in prop::collection::vec(("[A-Za-z-]{1,12}", "[ -~]{0,20}"), 0..6),
        length in prop::option::of(0u64..1000),
    ) {
        let mut text = format!("POST http://{name}:{port}{path} HTTP/1.1\r\nHost: {name}:{port}\r\n");
        for (header, value) in &headers {
            text.push_str(&format!("{header}: {value}\r\n"));
        }
        if let Some(length) = length {
            text.push_str(&format!("Content-Length: {length}\r\n"));
        }
        text.push_str("\r\n");
        let Ok(Asked::Forward(forward)) = read(&text) else {
            return Ok(());
        };
        let head = String::from_utf8(forward.head.clone()).unwrap();
        prop_assert_eq!(end_of_head(head.as_bytes()), Some(head.len()));
        prop_assert_eq!(head.to_lowercase().matches("\r\nhost: ").count(), 1);
        prop_assert!(head.to_lowercase().matches("\r\ncontent-length: ").count() <= 1);
        let again = head.replacen("POST ", &format!("POST http://{}", forward.target), 1);
        let Ok(Asked::Forward(again)) = read(&again) else {
            return Err(TestCaseError::fail(again));
        };
        prop_assert_eq!(again.target, forward.target);
        prop_assert_eq!(again.body, forward.body);
    }

    /// Small damage to good heads is where two readers come to differ.
    #[test]
    fn damaged_heads_are_refused_or_clear(
        seed in prop::sample::select(vec![
            "GET http://a.com/x HTTP/1.1\r\nHost: a.com\r\nAccept: */*\r\n\r\n",
            "POST http://a.com/ HTTP/1.1\r\nHost: a.com\r\nContent-Length: 3\r\n\r\n",
            "POST http://a.com/ HTTP/1.1\r\nHost: a.com\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET http://a.com HTTP/1.0\r\nConnection: close, x-a\r\nX-A: 1\r\nClose: 1\r\n\r\n",
        ]),
        damage in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::sample::select(b"\r\n\t :;,\0\x0b@#%/?[]AC1\xff".to_vec())),
            0..4,
        ),
        repeat in prop::option::of(0usize..5),
    ) {
        let mut bytes = seed.as_bytes().to_vec();
        if let Some(line) = repeat.and_then(|line| seed.split_inclusive("\r\n").nth(line)) {
            bytes.splice(bytes.len() - 2..bytes.len() - 2, line.bytes());
        }
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            match byte % 2 {
                0 => bytes[at] = byte,
                _ => bytes.insert(at, byte),
            }
        }
        let Ok(Asked::Forward(forward)) = Asked::parse(&bytes) else {
            return Ok(());
        };
        let head = String::from_utf8_lossy(&forward.head).to_lowercase();
        prop_assert_eq!(end_of_head(&forward.head), Some(forward.head.len()));
        prop_assert_eq!(head.matches("\r\nhost:").count(), 1);
        let lengths = head.matches("\r\ncontent-length:").count();
        let encodings = head.matches("\r\ntransfer-encoding:").count();
        prop_assert!(lengths + encodings <= 1);
        let host = format!("\r\nhost: {}", forward.target.host());
        prop_assert!(head.contains(&host));
    }
}
