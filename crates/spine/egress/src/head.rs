//! The head of a request as a sandbox sends it, read strictly and once.
//!
//! Two programs that read one head differently are how a request hides inside
//! another, so whatever is unclear is refused, and what goes on to the server
//! is written anew from what was understood. Pure; `connection.rs` drives it.

use httparse::{EMPTY_HEADER, Header, Status};

use crate::guard::{Guard, Guards};
use crate::target::{Target, TargetError};

/// The most bytes a head may have.
pub const MAX_HEAD: usize = 16 * 1024;
/// The most header lines a head may have.
pub const MAX_HEADERS: usize = 100;

/// What a request asks of the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// A tunnel of bytes.
    Connect(Target),
    /// One exchange of plain HTTP.
    Forward(Forward),
}

/// One request of plain HTTP, ready to be sent on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// Whom it is for.
    pub target: Target,
    /// Its head as the server will see it.
    pub head: Vec<u8>,
    /// How much body follows.
    pub body: Framing,
    /// What the answer to it can look like.
    pub answer: Answer,
}

/// What ends a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    Empty,
    /// So many bytes.
    Length(u64),
    /// Pieces with their lengths, then an empty one.
    Chunked,
    /// The end of the connection; only answers can have it.
    UntilClose,
}

/// Whether the answer to a request can have a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It can.
    Full,
    /// It was asked for with `HEAD`, so there is none whatever it says.
    HeadOnly,
}

/// Why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// It is too long.
    #[error("the request's head is longer than {MAX_HEAD} bytes")]
    TooLarge,
    /// It has too many lines.
    #[error("the request has more than {MAX_HEADERS} headers")]
    TooMany,
    /// It is not HTTP as it is written today.
    #[error("the request is not well-formed HTTP/1.1")]
    Malformed,
    /// It has a control character or a line that ends in another way.
    #[error("the request's head has a control character or a bare line end")]
    Control,
    /// It names a path, as for a server.
    #[error("the request is for a server, not for a proxy")]
    NotForProxy,
    /// It wants TLS without `CONNECT`.
    #[error("the request wants the proxy to speak TLS")]
    Scheme,
    /// Its target is unclear.
    #[error("the request's target is unclear")]
    Target(#[from] TargetError),
    /// `Host` is missing, repeated, or names another than the target.
    #[error("the request's `Host` does not agree with its target")]
    Host,
    /// The length of its body is said twice, unclearly, or in two ways.
    #[error("the request's body has no single clear length")]
    Length,
}

impl Asked {
    /// Reads a whole head, its last empty line included.
    ///
    /// # Errors
    /// Anything that could be read in more than one way.
    pub fn parse(head: &[u8]) -> Result<Self, HeadError> {
        Self::parse_guarded(head, Guards::default())
    }

    pub(crate) fn parse_guarded(head: &[u8], guards: Guards) -> Result<Self, HeadError> {
        if head.len() > MAX_HEAD {
            return Err(HeadError::TooLarge);
        }
        if guards.stand(Guard::Names) {
            check_bytes(head)?;
        }
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(head) {
            Ok(Status::Complete(length)) if length == head.len() => {}
            Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooMany),
            _ => return Err(HeadError::Malformed),
        }
        let (Some(method), Some(path), Some(minor)) =
            (request.method, request.path, request.version)
        else {
            return Err(HeadError::Malformed);
        };
        let line = Line { method, minor };
        match method {
            "CONNECT" => connect(path, request.headers, guards).map(Self::Connect),
            _ => forward(&line, path, request.headers, guards).map(Self::Forward),
        }
    }

    /// Whom it wants to reach.
    #[must_use]
    pub const fn target(&self) -> &Target {
        match self {
            Self::Connect(target) => target,
            Self::Forward(forward) => &forward.target,
        }
    }
}

/// Where the head in these bytes ends, behind its empty line.
#[must_use]
pub fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let at = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some(at + 4)
}

/// The first line without its target.
struct Line<'a> {
    method: &'a str,
    minor: u8,
}

/// Line ends are CR LF; nothing else below a space but tabs.
fn check_bytes(head: &[u8]) -> Result<(), HeadError> {
    let mut before = 0;
    for &byte in head {
        let fits = match byte {
            b'\n' => before == b'\r',
            b'\t' | b'\r' | 0x20..=0x7e | 0x80.. => before != b'\r',
            _ => false,
        };
        if !fits {
            return Err(HeadError::Control);
        }
        before = byte;
    }
    // The parser would skip empty lines before the first.
    match head.first() {
        Some(first) if first.is_ascii_alphabetic() => Ok(()),
        _ => Err(HeadError::Malformed),
    }
}

fn target(text: &[u8], default: Option<u16>, guards: Guards) -> Result<Target, TargetError> {
    #[cfg(test)]
    if !guards.stand(Guard::Names) {
        return Target::parse_carelessly(text, default);
    }
    // Outside tests there is nothing to ask: the guard always stands.
    let _ = guards;
    Target::parse(text, default)
}

fn connect(path: &str, headers: &[Header<'_>], guards: Guards) -> Result<Target, HeadError> {
    let target = target(path.as_bytes(), None, guards)?;
    let mut hosts = named(headers, "host");
    // Old clients send none, some leave out the port: the first line counts,
    // and what is there must not say otherwise.
    if let Some(host) = hosts.next() {
        let agrees = Target::parse(host.value, Some(target.port())).is_ok_and(|it| it == target);
        if (!agrees || hosts.next().is_some()) && guards.stand(Guard::HostAgrees) {
            return Err(HeadError::Host);
        }
    }
    // A body here would be read as the tunnel's first bytes, or not.
    match framing(headers, guards)? {
        Framing::Empty => Ok(target),
        _ => Err(HeadError::Length),
    }
}

fn forward(
    line: &Line<'_>,
    url: &str,
    headers: &[Header<'_>],
    guards: Guards,
) -> Result<Forward, HeadError> {
    let (target, path) = split_url(url, guards)?;
    check_host(line, &target, headers, guards)?;
    let body = framing(headers, guards)?;
    if line.minor == 0 && body == Framing::Chunked {
        return Err(HeadError::Length);
    }
    let mut head = format!("{} {path} HTTP/1.{}\r\n", line.method, line.minor).into_bytes();
    write_host(&mut head, &target, headers, guards);
    write_end_to_end(&mut head, headers);
    write_framing(&mut head, body, headers, guards);
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    let answer = match line.method {
        "HEAD" => Answer::HeadOnly,
        _ => Answer::Full,
    };
    Ok(Forward {
        target,
        head,
        body,
        answer,
    })
}

fn write_host(head: &mut Vec<u8>, target: &Target, headers: &[Header<'_>], guards: Guards) {
    let said = named(headers, "host").next();
    let host = match (said, target.port()) {
        // As a careless proxy does: whatever the client said goes on.
        (Some(said), _) if !guards.stand(Guard::HostAgrees) => said.value.to_vec(),
        (_, 80) => target.host().as_bytes().to_vec(),
        _ => target.to_string().into_bytes(),
    };
    head.extend_from_slice(b"Host: ");
    head.extend_from_slice(&host);
    head.extend_from_slice(b"\r\n");
}

/// The host and the path of `http://host:port/path?query`.
fn split_url(url: &str, guards: Guards) -> Result<(Target, String), HeadError> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(HeadError::NotForProxy);
    };
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(match scheme.starts_with('/') {
            true => HeadError::NotForProxy,
            false => HeadError::Scheme,
        });
    }
    if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['#', '\\']) {
        return Err(HeadError::Malformed);
    }
    let (authority, path) = match rest.find(['/', '?']) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let target = target(authority.as_bytes(), Some(80), guards)?;
    let path = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/{path}"),
    };
    Ok((target, path))
}

fn check_host(
    line: &Line<'_>,
    target: &Target,
    headers: &[Header<'_>],
    guards: Guards,
) -> Result<(), HeadError> {
    let mut hosts = named(headers, "host");
    let fits = match (hosts.next(), hosts.next()) {
        (Some(host), None) => {
            Target::parse(host.value, Some(80)).is_ok_and(|named| named == *target)
        }
        (None, None) => line.minor == 0,
        _ => false,
    };
    match fits || !guards.stand(Guard::HostAgrees) {
        true => Ok(()),
        false => Err(HeadError::Host),
    }
}

/// What ends the body of a request; two answers are none.
fn framing(headers: &[Header<'_>], guards: Guards) -> Result<Framing, HeadError> {
    let mut lengths = named(headers, "content-length");
    let mut encodings = named(headers, "transfer-encoding");
    let length = lengths.next();
    if !guards.stand(Guard::Framing) && length.is_some() {
        return parse_length(length);
    }
    match (length, lengths.next(), encodings.next(), encodings.next()) {
        (None, None, None, None) => Ok(Framing::Empty),
        (length @ Some(_), None, None, None) => parse_length(length),
        (None, None, Some(encoding), None) if encoding.value.eq_ignore_ascii_case(b"chunked") => {
            Ok(Framing::Chunked)
        }
        _ => Err(HeadError::Length),
    }
}

fn parse_length(header: Option<&Header<'_>>) -> Result<Framing, HeadError> {
    let text = header.map(|header| header.value).unwrap_or_default();
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| digits);
    match number.and_then(|text| text.parse::<u64>().ok()) {
        Some(0) => Ok(Framing::Empty),
        Some(length) => Ok(Framing::Length(length)),
        None => Err(HeadError::Length),
    }
}

/// What is between the client and us, or is written anew.
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Writes the headers that are meant for the other end.
pub(crate) fn write_end_to_end(head: &mut Vec<u8>, headers: &[Header<'_>]) {
    let dropped = |name: &str| {
        HOP_BY_HOP
            .iter()
            .any(|each| name.eq_ignore_ascii_case(each))
            || named(headers, "connection")
                .flat_map(|header| header.value.split(|byte| *byte == b','))
                .map(<[u8]>::trim_ascii)
                // The one word in it that is not the name of a header.
                .filter(|each| !each.eq_ignore_ascii_case(b"close"))
                .any(|each| each.eq_ignore_ascii_case(name.as_bytes()))
    };
    for header in headers.iter().filter(|header| !dropped(header.name)) {
        head.extend_from_slice(header.name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(header.value);
        head.extend_from_slice(b"\r\n");
    }
}

fn write_framing(head: &mut Vec<u8>, body: Framing, headers: &[Header<'_>], guards: Guards) {
    if !guards.stand(Guard::Framing) {
        // As a careless proxy does: both lengths go on as they came.
        for header in headers.iter().filter(|header| is_framing(header.name)) {
            head.extend_from_slice(header.name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(header.value);
            head.extend_from_slice(b"\r\n");
        }
        return;
    }
    match body {
        // Said when it was said: an empty POST without it is refused by some.
        Framing::Empty if named(headers, "content-length").next().is_some() => {
            head.extend_from_slice(b"Content-Length: 0\r\n");
        }
        Framing::Empty | Framing::UntilClose => {}
        Framing::Length(length) => {
            head.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
        }
        Framing::Chunked => head.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
}

fn is_framing(name: &str) -> bool {
    name.eq_ignore_ascii_case("content-length") || name.eq_ignore_ascii_case("transfer-encoding")
}

/// The headers with this name, whatever its letters' case.
pub(crate) fn named<'a, 'b>(
    headers: &'a [Header<'b>],
    name: &'a str,
) -> impl Iterator<Item = &'a Header<'b>> {
    headers
        .iter()
        .filter(move |header| header.name.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests;
