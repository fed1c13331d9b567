//! Talking to the egress proxy, politely and not.
//!
//! Finds the proxy as every program does, by its environment. Must never
//! send anything to a real host: all names end in `.test` or are ourselves.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::outcome::Outcome;
use crate::stage::{PERMITTED_HOST, Stage};

/// How long the proxy may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long to listen where a canary may be at the other end, which never
/// answers.
const SILENCE: Duration = Duration::from_millis(1500);

/// The permitted host and port.
pub(crate) fn permitted(stage: &Stage) -> String {
    format!("{PERMITTED_HOST}:{}", stage.permitted)
}

/// Asks for a tunnel and greets the permitted host in it as TLS does.
pub(crate) fn connect_and_greet(stage: &Stage, server_name: &str, text: &str) -> Outcome {
    let name = server_name.split(':').next().unwrap_or_default();
    tunnel_and_say(&permitted(stage), &client_hello(Some(name), text))
}

/// Asks for a tunnel and says something in it.
pub(crate) fn tunnel_and_say(authority: &str, bytes: &[u8]) -> Outcome {
    let mut proxy = match open() {
        Ok(proxy) => proxy,
        Err(outcome) => return outcome,
    };
    let head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    let answer = match say(&mut proxy, head.as_bytes()) {
        Ok(answer) => answer,
        Err(outcome) => return outcome,
    };
    if !opened(&answer) {
        return Outcome::blocked(format!("CONNECT {authority}: {answer}"));
    }
    if let Err(error) = proxy.set_read_timeout(Some(SILENCE)) {
        return Outcome::stopped("set a timeout", error);
    }
    match say(&mut proxy, bytes) {
        Ok(answer) => Outcome::succeeded(format!("CONNECT {authority}, then {answer:?}")),
        Err(outcome) => outcome,
    }
}

/// Sends a head as it is; worked if the proxy opens a tunnel for it.
pub(crate) fn raw(head: &[u8]) -> Outcome {
    let mut proxy = match open() {
        Ok(proxy) => proxy,
        Err(outcome) => return outcome,
    };
    if let Err(error) = proxy.set_read_timeout(Some(SILENCE)) {
        return Outcome::stopped("set a timeout", error);
    }
    match say(&mut proxy, head) {
        Ok(answer) if opened(&answer) => Outcome::succeeded(answer),
        Ok(answer) => Outcome::blocked(answer),
        Err(outcome) => outcome,
    }
}

/// The first message of TLS, with `text` as its random bytes.
pub(crate) fn client_hello(server_name: Option<&str>, text: &str) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend(text.bytes().chain(std::iter::repeat(0)).take(32));
    // No session, one cipher suite, no compression.
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    let mut extensions = vec![0, 43, 0, 3, 2, 3, 4];
    if let Some(name) = server_name {
        let entry = [&[0][..], &sized(name.as_bytes())].concat();
        extensions.extend([0, 0]);
        extensions.extend(sized(&sized(&entry)));
    }
    body.extend(sized(&extensions));
    let handshake = [&[1, 0][..], &sized(&body)].concat();
    [&[22, 3, 1][..], &sized(&handshake)].concat()
}

/// Bytes with their length in two bytes before them.
fn sized(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes()[..], bytes].concat()
}

fn open() -> Result<TcpStream, Outcome> {
    let names = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];
    let Some(proxy) = names.iter().find_map(|name| std::env::var(name).ok()) else {
        return Err(Outcome::unavailable("no proxy in the environment"));
    };
    let address: SocketAddr = proxy
        .trim_start_matches("http://")
        .trim_end_matches('/')
        .parse()
        .map_err(|_| Outcome::unavailable(format!("the proxy is no address: {proxy}")))?;
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)
        .map_err(|error| Outcome::stopped("reach the proxy", error))?;
    stream
        .set_read_timeout(Some(TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(TIMEOUT)))
        .map_err(|error| Outcome::stopped("set a timeout", error))?;
    Ok(stream)
}

/// Sends bytes and returns the first line of the answer; silence is empty.
fn say(proxy: &mut TcpStream, bytes: &[u8]) -> Result<String, Outcome> {
    proxy
        .write_all(bytes)
        .map_err(|error| Outcome::stopped("write to the proxy", error))?;
    let mut buffer = [0_u8; 4096];
    let length = proxy.read(&mut buffer).unwrap_or_default();
    let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn opened(answer: &str) -> bool {
    answer.split(' ').nth(1) == Some("200")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hello_has_the_lengths_it_claims() {
        let hello = client_hello(Some("a.test"), "marker");
        let (record, body) = hello.split_at(5);
        assert_eq!(record[..3], [22, 3, 1]);
        assert_eq!(
            usize::from(u16::from_be_bytes([record[3], record[4]])),
            body.len()
        );
        assert_eq!(body[..2], [1, 0]);
        assert_eq!(
            usize::from(u16::from_be_bytes([body[2], body[3]])),
            body.len() - 4
        );
        assert!(body.windows(6).any(|window| window == b"a.test"));
        assert!(client_hello(None, "x").len() < hello.len());
    }
}
