//! Why a request was refused or cut short, for people and for the record.
//!
//! Each reason has a short code that the ledger keeps and, where an answer can
//! still be given, a status and a text: what happened, why, and what to do. It
//! never repeats what the sandbox sent but the host in its one spelling.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::address::Reserved;
use crate::head::HeadError;
use crate::hello::HelloError;
use crate::target::TargetError;

/// Why a request did not go ahead or did not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The request cannot be understood in exactly one way.
    BadRequest(HeadError),
    /// The head did not arrive in time.
    HeadTime,
    /// The decision was no.
    Denied {
        /// In the words of the rules, if they have any.
        why: String,
    },
    /// No decision could be made, so nothing is allowed.
    Undecided,
    /// The host is an address and no rule names exactly it.
    Literal,
    /// The name has no address.
    NoAddress,
    /// The name could not be looked up in time.
    LookupTime,
    /// The name stands for an address that is not public.
    Reserved {
        /// Which.
        address: IpAddr,
        /// What it is for.
        kind: Reserved,
    },
    /// No address of the host takes the connection.
    Unreachable,
    /// No address of the host took the connection in time.
    ConnectTime,
    /// The tunnel's first bytes cannot be checked.
    Hello(HelloError),
    /// The tunnel's first bytes did not come in time.
    HelloTime,
    /// TLS without a server name.
    NoServerName,
    /// TLS for another server than the one allowed.
    OtherServerName,
    /// Too many connections at once.
    Connections,
    /// Too many requests in all.
    Requests,
    /// The sandbox has sent as much as it may.
    BytesUp,
    /// The sandbox has received as much as it may.
    BytesDown,
    /// Nothing moved for too long.
    Idle,
    /// The exchange took too long in all.
    TotalTime,
    /// A body is not what its head promised.
    BadBody,
    /// The server's answer is not HTTP.
    BadAnswer,
    /// A side ended the connection in the middle.
    Broken,
    /// The proxy was stopped.
    Stopped,
    /// The last request could not be recorded.
    Unrecorded,
}

impl Reason {
    /// The word that the record keeps.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::BadRequest(HeadError::TooLarge | HeadError::TooMany) => "head_too_large",
            Self::BadRequest(HeadError::Target(TargetError::UnclearAddress)) => "unclear_address",
            Self::BadRequest(HeadError::Target(_)) => "bad_host",
            Self::BadRequest(HeadError::Host) => "host_mismatch",
            Self::BadRequest(HeadError::Length) => "unclear_length",
            Self::BadRequest(_) => "bad_request",
            Self::HeadTime => "head_timeout",
            Self::Denied { .. } => "denied",
            Self::Undecided => "undecided",
            Self::Literal => "address_not_named",
            Self::NoAddress => "no_address",
            Self::LookupTime => "lookup_timeout",
            Self::Reserved { .. } => "reserved_address",
            Self::Unreachable => "unreachable",
            Self::ConnectTime => "connect_timeout",
            Self::Hello(HelloError::NotTls) => "not_tls",
            Self::Hello(HelloError::Encrypted) => "hidden_server_name",
            Self::Hello(_) => "bad_hello",
            Self::HelloTime => "hello_timeout",
            Self::NoServerName => "no_server_name",
            Self::OtherServerName => "other_server_name",
            Self::Connections => "too_many_connections",
            Self::Requests => "too_many_requests",
            Self::BytesUp => "too_many_bytes_up",
            Self::BytesDown => "too_many_bytes_down",
            Self::Idle => "idle",
            Self::TotalTime => "too_long",
            Self::BadBody => "bad_body",
            Self::BadAnswer => "bad_answer",
            Self::Broken => "broken",
            Self::Stopped => "stopped",
            Self::Unrecorded => "unrecorded",
        }
    }

    /// The status of an answer, and its phrase: all that some clients show.
    const fn status(&self) -> (u16, &'static str) {
        match self {
            Self::BadRequest(HeadError::TooLarge | HeadError::TooMany) => (431, "head too large"),
            Self::BadRequest(_) => (400, "unclear request"),
            Self::BadBody => (400, "unclear body"),
            Self::HeadTime => (408, "request too slow"),
            Self::Denied { .. } => (403, "not allowed by policy"),
            Self::Literal => (403, "addresses are not allowed unless named"),
            Self::Reserved { .. } => (403, "not a public address"),
            Self::Hello(_) | Self::NoServerName | Self::OtherServerName => {
                (403, "server name not verifiable")
            }
            Self::NoAddress => (502, "no such host"),
            Self::Unreachable | Self::Broken => (502, "cannot connect"),
            Self::BadAnswer => (502, "answer is not HTTP"),
            Self::LookupTime | Self::ConnectTime | Self::HelloTime => (504, "connecting timed out"),
            Self::Idle | Self::TotalTime => (504, "answer timed out"),
            Self::Requests | Self::BytesUp | Self::BytesDown => (429, "allowance used up"),
            Self::Connections => (503, "too many connections"),
            Self::Undecided | Self::Unrecorded => (503, "cannot decide or record"),
            Self::Stopped => (503, "the sandbox is ending"),
        }
    }

    /// What happened, why, and what to do.
    fn explain(&self, target: Option<&str>) -> String {
        let host = target.map_or_else(|| "the host".to_owned(), |target| format!("`{target}`"));
        let (why, fix) = match self {
            Self::Denied { why } if why.is_empty() => (
                format!("no rule allows this sandbox to reach {host}"),
                "add it to `network_allow` in policy.yaml, or run with `--allow HOST:PORT`",
            ),
            Self::Denied { why } => (
                format!("policy does not allow {host}: {why}"),
                "`fluffy policy explain net.connect HOST:PORT` shows which rule speaks",
            ),
            Self::Literal => (
                format!("{host} is an address, and no rule names exactly this one"),
                "use the host's name, or allow the address itself as `ADDRESS:PORT`",
            ),
            Self::Reserved { address, kind } => (
                format!("{host} stands for {address}, which is {kind}"),
                "if that is meant, allow it with its address: `HOST:PORT=ADDRESS`",
            ),
            Self::BadRequest(HeadError::NotForProxy) => (
                "the request is for a server, but this is a proxy".to_owned(),
                "let the client use it as its HTTP proxy (`HTTPS_PROXY` is set)",
            ),
            Self::BadRequest(HeadError::Scheme) => (
                "this proxy never opens TLS itself".to_owned(),
                "let the client use `CONNECT`, as it does for `HTTPS_PROXY`",
            ),
            Self::BadRequest(error) => (describe(error), "send one clear request"),
            other => other.explain_rest(&host),
        };
        format!("fluffy egress: {why}\nfix: {fix}\ncode: {}\n", self.code())
    }

    fn explain_rest(&self, host: &str) -> (String, &'static str) {
        let (why, fix) = match self {
            Self::HeadTime => ("the request's head took too long", "send it at once"),
            Self::NoAddress => ("the name has no address", "check its spelling"),
            Self::LookupTime => ("looking the name up took too long", "try again"),
            Self::Unreachable => ("no address of it takes the connection", "try again later"),
            Self::ConnectTime => ("connecting took too long", "try again later"),
            Self::Requests => (
                "this sandbox has made as many requests as it may",
                "start another sandbox, or raise its limits",
            ),
            Self::BytesUp | Self::BytesDown => (
                "this sandbox has moved as many bytes as it may",
                "start another sandbox, or raise its limits",
            ),
            Self::Connections => (
                "this sandbox has as many connections as it may",
                "close some first, or raise its limits",
            ),
            Self::Undecided => ("no decision could be made", "see `fluffy doctor`"),
            Self::Unrecorded => (
                "requests cannot be recorded, so none are made",
                "see `fluffy doctor`: the ledger's disk may be full",
            ),
            Self::BadBody => (
                "the request's body is not what its head promised",
                "send as many bytes as announced",
            ),
            Self::BadAnswer => ("the server's answer is not HTTP", "use `CONNECT` for it"),
            _ => ("the exchange was ended", "try again"),
        };
        (format!("{host}: {why}"), fix)
    }

    /// The whole answer, after which the connection ends.
    pub(crate) fn response(&self, target: Option<&str>) -> Vec<u8> {
        let (status, phrase) = self.status();
        let body = self.explain(target);
        let mut text = format!("HTTP/1.1 {status} {phrase}\r\n");
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
             Connection: close\r\nProxy-Status: fluffy; error={}\r\n\r\n",
            body.len(),
            self.code(),
        );
        text.push_str(&body);
        text.into_bytes()
    }
}

/// An error and what caused it, in one line.
fn describe(error: &HeadError) -> String {
    match error {
        HeadError::Target(source) => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(reason: &Reason) -> String {
        String::from_utf8(reason.response(Some("a.com:443"))).unwrap()
    }

    #[test]
    fn an_answer_says_what_why_and_how_to_go_on() {
        let denied = text(&Reason::Denied { why: String::new() });
        assert!(denied.starts_with("HTTP/1.1 403 not allowed by policy\r\n"));
        assert!(denied.contains("no rule allows this sandbox to reach `a.com:443`"));
        assert!(denied.contains("--allow HOST:PORT"));
        let private = text(&Reason::Reserved {
            address: IpAddr::from([10, 0, 0, 1]),
            kind: Reserved::Private,
        });
        assert!(private.contains("`a.com:443` stands for 10.0.0.1, which is a private network"));
        assert!(private.contains("HOST:PORT=ADDRESS"));
    }

    #[test]
    fn an_answer_is_as_long_as_it_says() {
        for reason in [Reason::HeadTime, Reason::Connections, Reason::BytesUp] {
            let text = text(&reason);
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
            assert!(body.contains("fix: ") && body.contains(reason.code()));
        }
    }
}
