//! The head of a request: limits, and what its headers say.
//!
//! Reads and refuses; decides nothing. Next: `super::service`.

use std::time::Duration;

use fluffy_api::operation::{Need, Spec};
use fluffy_api::version::{CLIENT_VERSION, Version};
use fluffy_api::{Operation, Problem};
use fluffy_base::Digest;
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderMap};
use hyper::http::request::Parts;

use crate::credential::{self, CredentialKind};
use crate::fold::Position;
use crate::logs::Cursor;

/// The longest path with its query.
const MAX_URI: usize = 8 << 10;

/// The most bytes of all headers.
const MAX_HEADERS: usize = 16 << 10;

/// How long a call waits for its view, if it does not say.
const WAIT: Duration = Duration::from_secs(1);

/// The longest it can ask for.
const LONGEST_WAIT: u64 = 10;

/// Refuses a head that is too large.
pub(super) fn check_size(head: &Parts) -> Result<(), Box<Problem>> {
    let uri = head
        .uri
        .path_and_query()
        .map_or(0, |text| text.as_str().len());
    if uri > MAX_URI {
        return Err(Box::new(Problem::new(
            "uri_too_long",
            "the path and its parameters have more than 8 KiB",
            "send less",
        )));
    }
    let headers: usize = head
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    if headers > MAX_HEADERS {
        return Err(Box::new(Problem::new(
            "header_too_large",
            "the headers have more than 16 KiB",
            "send less",
        )));
    }
    Ok(())
}

/// Refuses a client of ours that this server does not serve; others name no
/// version.
pub(super) fn check_client(headers: &HeaderMap, own: Version) -> Result<(), Box<Problem>> {
    let Some(value) = headers.get(CLIENT_VERSION) else {
        return Ok(());
    };
    let client: Option<Version> = value.to_str().ok().and_then(|text| text.parse().ok());
    if client.is_some_and(|client| own.serves(client)) {
        return Ok(());
    }
    let oldest = own.oldest_client();
    let it = client.map_or("of no version that is known".to_owned(), |it| {
        it.to_string()
    });
    let why = format!(
        "this server is fluffy {own} and serves commands of {oldest} to {own}; this one is {it}"
    );
    let fix = format!("install fluffy {own}, or one that is not older than {oldest}");
    let mut problem = Problem::new("version_unsupported", why, fix);
    for (name, version) in [("needed", oldest), ("server", own)] {
        let version = version.to_string();
        problem.details.insert(name.to_owned(), version.into());
    }
    Err(Box::new(problem))
}

/// What a caller shows as a token.
pub(super) enum Shown {
    /// Nothing.
    Nothing,
    /// Something that no token of ours looks like.
    Nonsense,
    /// The hash of a token.
    Token(Digest),
}

/// The token of a call.
pub(super) fn token(headers: &HeaderMap) -> Shown {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Shown::Nothing;
    };
    let token = value
        .to_str()
        .ok()
        .filter(|_| values.next().is_none())
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .and_then(|(_, token)| credential::recognise(token.trim()));
    match token {
        Some((CredentialKind::Access | CredentialKind::Api, hash)) => Shown::Token(hash),
        _ => Shown::Nonsense,
    }
}

/// What stands behind the question mark, decoded.
pub(super) fn query_pairs(query: &str) -> Result<Vec<(String, String)>, Box<Problem>> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = decode(name).zip(decode(value));
            decoded.ok_or_else(|| invalid("the parameters are not encoded as UTF-8"))
        })
        .collect()
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let value = digit(rest.next())? * 16 + digit(rest.next())?;
                u8::try_from(value).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The key under which a write may be repeated.
pub(super) fn idempotency_key(
    spec: &Spec,
    headers: &HeaderMap,
) -> Result<Option<String>, Box<Problem>> {
    let Some(value) = headers.get("idempotency-key") else {
        return match spec.idempotency {
            Need::Allowed => Ok(None),
            Need::Required => Err(Box::new(Problem::new(
                "idempotency_key_required",
                format!("`{}` must not happen twice by mistake", spec.id),
                "send a fresh text of 8 to 128 characters as `Idempotency-Key`",
            ))),
        };
    };
    let key = value.to_str().ok().filter(|key| {
        (8..=128).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
    });
    match key {
        Some(key) => Ok(Some(key.to_owned())),
        None => Err(Box::new(Problem::new(
            "idempotency_key_invalid",
            "the idempotency key must have 8 to 128 visible characters",
            "send a fresh text such as a UUID",
        ))),
    }
}

/// The version that a change is meant for.
pub(super) fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Box<Problem>> {
    let Some(value) = headers.get("if-match") else {
        return Ok(None);
    };
    let version = value
        .to_str()
        .ok()
        .and_then(|text| text.strip_prefix('"')?.strip_suffix('"'))
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok());
    match version {
        Some(version) => Ok(Some(version)),
        None => Err(invalid(
            "`If-Match` must be a version in quotes, as `ETag` has it",
        )),
    }
}

/// How long a call may wait for its view.
pub(super) fn wait(headers: &HeaderMap) -> Duration {
    let preferences = headers.get_all("prefer").iter();
    let preferences = preferences.filter_map(|value| value.to_str().ok());
    let seconds = preferences
        .flat_map(|value| value.split([',', ';']))
        .find_map(|each| each.trim().strip_prefix("wait=")?.parse::<u64>().ok());
    // What cannot be honoured is not honoured, as the header is defined.
    seconds.map_or(WAIT, |seconds| {
        Duration::from_secs(seconds.min(LONGEST_WAIT))
    })
}

/// The event that a read has to know.
pub(super) fn min_position(
    headers: &HeaderMap,
    query: Option<&String>,
    current: Position,
) -> Result<Option<Position>, Box<Problem>> {
    let header = match headers.get("fluffy-min-seq") {
        Some(value) => {
            let number = value
                .to_str()
                .ok()
                .and_then(|text| text.parse::<u64>().ok());
            Some(number.ok_or_else(|| invalid("`Fluffy-Min-Seq` must be a whole number"))?)
        }
        None => None,
    };
    let query = query.and_then(|text| text.parse().ok());
    // What a session saw before the ledger was restored counts as seen.
    let epoch = headers
        .get("fluffy-epoch")
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok())
        .unwrap_or(current.epoch);
    let seq = header.max(query);
    Ok(seq.map(|seq| Position { epoch, seq }))
}

/// Where a stream goes on.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Box<Problem>> {
    let Some(value) = headers.get("last-event-id") else {
        return Ok(None);
    };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(invalid("`Last-Event-ID` must be a whole number")),
    }
}

/// Where a stream of logs goes on.
pub(super) fn log_cursor(headers: &HeaderMap) -> Result<Option<Cursor>, Box<Problem>> {
    let Some(value) = headers.get("last-event-id") else {
        return Ok(None);
    };
    let cursor = value.to_str().ok().and_then(|text| text.parse().ok());
    match cursor {
        Some(cursor) => Ok(Some(cursor)),
        None => Err(invalid("`Last-Event-ID` must be an id of this stream")),
    }
}

/// Whether a stream is asked for.
pub(super) fn wants_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.contains("text/event-stream"))
}

/// The org that a path names.
pub(super) fn org(operation: Operation, path: &[String]) -> Option<&str> {
    let first = operation.spec().path_params().next()?;
    (first == "org").then(|| path.first().map(String::as_str))?
}

fn invalid(why: &str) -> Box<Problem> {
    Box::new(Problem::new(
        "invalid_argument",
        why,
        "see /v1/openapi.json for what fits",
    ))
}
