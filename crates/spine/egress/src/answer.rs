//! One exchange of plain HTTP with the server, after which both sides end.
//!
//! The request goes on as `head.rs` wrote it, its body byte for byte, and the
//! answer comes back with `Connection: close`. One request per connection: what
//! a client sends after it is never read, so it can never be smuggled.

use std::pin::{Pin, pin};

use httparse::{EMPTY_HEADER, Header, Status};
use tokio::io::{AsyncBufRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::body::{broken, copy_body};
use crate::connection::{Client, read_head};
use crate::head::{Answer, Forward, Framing, MAX_HEADERS, named, write_end_to_end};
use crate::limits::{Meter, Way};
use crate::reason::Reason;

/// The most bytes of the head of an answer; servers set many cookies.
const MAX_HEAD: usize = 64 * 1024;
/// The most answers that only say that the real one is to come.
const MAX_INTERIM: usize = 8;

/// Whether the client has seen any of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It has not, so it can be told what went wrong.
    Nothing,
    /// It has.
    Some,
}

/// Sends the request and brings back the answer.
pub(crate) async fn exchange(
    client: &mut Client,
    server: TcpStream,
    request: &Forward,
    meter: &Meter<'_>,
) -> Result<(), (Reason, Seen)> {
    let (from_server, mut to_server) = server.into_split();
    let mut from_server = BufReader::with_capacity(16 * 1024, from_server);
    let mut seen = Seen::Nothing;
    let (reader, writer) = (&mut client.reader, &mut client.writer);
    let outcome = {
        let up = pin!(send(reader, &mut to_server, request, meter));
        let down = (meter, &mut seen);
        let down = pin!(bring_back(&mut from_server, writer, request.answer, down));
        tokio::select! {
            ended = both(up, down) => ended,
            reason = meter.out_of_time() => Err(reason),
        }
    };
    outcome.map_err(|reason| (reason, seen))
}

/// Runs both at once, because a server may answer before it has read
/// everything, and a client may wait for its word before it sends on.
async fn both<U, D>(mut up: Pin<&mut U>, mut down: Pin<&mut D>) -> Result<(), Reason>
where
    U: Future<Output = Result<(), Reason>>,
    D: Future<Output = Result<(), Reason>>,
{
    tokio::select! {
        answered = &mut down => return answered,
        sent = &mut up => match sent {
            // A server that has heard enough may still have answered.
            Ok(()) | Err(Reason::Broken) => {}
            Err(reason) => return Err(reason),
        },
    }
    down.await
}

async fn send<R, W>(
    from: &mut R,
    to: &mut W,
    request: &Forward,
    meter: &Meter<'_>,
) -> Result<(), Reason>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    meter.count(Way::Up, request.head.len())?;
    to.write_all(&request.head).await.map_err(broken)?;
    copy_body(from, to, request.body, meter.tally(Way::Up)).await
}

async fn bring_back<R, W>(
    from: &mut R,
    to: &mut W,
    answer: Answer,
    (meter, seen): (&Meter<'_>, &mut Seen),
) -> Result<(), Reason>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    for _ in 0..=MAX_INTERIM {
        let head = match read_head(from, MAX_HEAD).await {
            Ok(Some(head)) => head,
            Ok(None) | Err(Reason::Broken) => return Err(Reason::Broken),
            Err(_) => return Err(Reason::BadAnswer),
        };
        let (status, head, framing) = rewrite(&head, answer).ok_or(Reason::BadAnswer)?;
        *seen = Seen::Some;
        meter.count(Way::Down, head.len())?;
        to.write_all(&head).await.map_err(broken)?;
        to.flush().await.map_err(broken)?;
        if status >= 200 {
            return copy_body(from, to, framing, meter.tally(Way::Down)).await;
        }
    }
    Err(Reason::BadAnswer)
}

/// The status, the head as the client will see it, and what ends the body.
fn rewrite(head: &[u8], answer: Answer) -> Option<(u16, Vec<u8>, Framing)> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(head) {
        Ok(Status::Complete(length)) if length == head.len() => {}
        _ => return None,
    }
    let (minor, status) = (response.version?, response.code?);
    // Switching was never asked for: `Upgrade` does not go on.
    if status == 101 {
        return None;
    }
    let framing = framing(response.headers)?;
    let phrase = response.reason.unwrap_or_default();
    let mut head = format!("HTTP/1.{minor} {status} {phrase}\r\n").into_bytes();
    write_end_to_end(&mut head, response.headers);
    match framing {
        Framing::Length(length) => {
            head.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
        }
        Framing::Chunked => head.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        Framing::Empty | Framing::UntilClose => {}
    }
    if status >= 200 {
        head.extend_from_slice(b"Connection: close\r\n");
    }
    head.extend_from_slice(b"\r\n");
    let bare = answer == Answer::HeadOnly || status < 200 || matches!(status, 204 | 304);
    let framing = if bare { Framing::Empty } else { framing };
    Some((status, head, framing))
}

/// What the head of an answer promises; none if it is unclear.
fn framing(headers: &[Header<'_>]) -> Option<Framing> {
    let mut lengths = named(headers, "content-length");
    let mut encodings = named(headers, "transfer-encoding");
    match (
        lengths.next(),
        lengths.next(),
        encodings.next(),
        encodings.next(),
    ) {
        (None, None, None, None) => Some(Framing::UntilClose),
        (Some(length), None, None, None) => {
            let text = std::str::from_utf8(length.value).ok()?;
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits).map(Framing::Length)
        }
        (None, None, Some(encoding), None) if encoding.value.eq_ignore_ascii_case(b"chunked") => {
            Some(Framing::Chunked)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(head: &str) -> Option<(u16, String, Framing)> {
        let (status, head, framing) = rewrite(head.as_bytes(), Answer::Full)?;
        Some((status, String::from_utf8(head).unwrap(), framing))
    }

    #[test]
    fn the_answer_ends_the_connection_and_keeps_its_own_headers() {
        let (status, head, framing) = written(
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nKeep-Alive: timeout=5\r\n\
             Connection: keep-alive, x-hop\r\nX-Hop: 1\r\nETag: \"a\"\r\n\r\n",
        )
        .unwrap();
        assert_eq!((status, framing), (200, Framing::Length(3)));
        assert_eq!(
            head,
            "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn an_answer_without_a_body_has_none_whatever_it_says() {
        for head in [
            "HTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\n",
            "HTTP/1.1 304 No\r\nContent-Length: 3\r\n\r\n",
            "HTTP/1.1 100 Go on\r\n\r\n",
        ] {
            assert_eq!(written(head).unwrap().2, Framing::Empty, "{head}");
        }
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
        let (_, shown, framing) = rewrite(head, Answer::HeadOnly).unwrap();
        assert_eq!(framing, Framing::Empty);
        assert!(
            String::from_utf8(shown)
                .unwrap()
                .contains("Content-Length: 3")
        );
    }

    #[test]
    fn an_unclear_answer_is_none() {
        for head in [
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\n",
            "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
        ] {
            assert_eq!(written(head), None, "{head}");
        }
    }
}
