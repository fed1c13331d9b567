//! The first message: who speaks, and which version of the calls.
//!
//! A server answers the versions of its range and refuses all others with that
//! range, so that the client can say which side is old. Must never let a
//! connection continue on a version that both sides did not name.

use serde::{Deserialize, Serialize};

use crate::message::{ErrorCode, Failure, Message, Request, RequestId};

/// The method of the first request.
pub const METHOD: &str = "handshake";

/// The id of the first request; later ones count up from it.
pub const REQUEST: RequestId = RequestId(0);

const MAX_TEXT: usize = 128;

/// What a client says first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The client's name, such as `cli`.
    pub name: String,
    /// The client's own version, for people.
    pub version: String,
    /// The version of the calls that the client speaks.
    pub api_version: u32,
}

/// What a server answers when it accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The server's name, such as `kernel`.
    pub name: String,
    /// The server's own version, for people.
    pub version: String,
    /// The version this connection speaks: the one the client named.
    pub api_version: u32,
    /// All versions that the server speaks.
    pub supported: ApiRange,
    /// How many calls may be at work at once; a client holds further ones back.
    pub in_flight: u32,
}

/// The versions of the calls that a server speaks, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiRange {
    /// The oldest.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
}

impl ApiRange {
    /// `newest` and the version before it; versions count from 1.
    #[must_use]
    pub const fn current_and_previous(newest: u32) -> Self {
        let oldest = if newest > 1 { newest - 1 } else { newest };
        Self { oldest, newest }
    }

    /// Whether this version is spoken.
    #[must_use]
    pub const fn contains(self, api_version: u32) -> bool {
        self.oldest <= api_version && api_version <= self.newest
    }
}

impl Hello {
    /// A client's name, its version and the version of the calls it speaks.
    #[must_use]
    pub fn new(name: impl Into<String>, version: impl Into<String>, api_version: u32) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            api_version,
        }
    }
}

/// The hello of a first message, if it is one that can be accepted.
///
/// # Errors
/// What to answer before the connection is closed.
pub(crate) fn accept(first: Message, supported: ApiRange) -> Result<Hello, Failure> {
    let Message::Request(Request { id, method, params }) = first else {
        return Err(refusal("the first message must be a request"));
    };
    if id != REQUEST || method != METHOD {
        return Err(refusal("the first request must be `handshake` with id 0"));
    }
    let hello: Hello = serde_json::from_str(params.get())
        .map_err(|_| refusal("a handshake needs `name`, `version` and an integer `api_version`"))?;
    if !is_plain(&hello.name) || !is_plain(&hello.version) {
        return Err(refusal(
            "`name` and `version` must be 1 to 128 bytes without control characters",
        ));
    }
    if !supported.contains(hello.api_version) {
        return Err(unsupported(hello.api_version, supported));
    }
    Ok(hello)
}

fn is_plain(text: &str) -> bool {
    (1..=MAX_TEXT).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn refusal(why: &str) -> Failure {
    Failure::new(ErrorCode::HandshakeRefused, why)
}

fn unsupported(api_version: u32, supported: ApiRange) -> Failure {
    let ApiRange { oldest, newest } = supported;
    let message = format!(
        "api version {api_version} is not spoken here, only {oldest} to {newest}; \
         update the older side"
    );
    Failure {
        supported: Some(supported),
        ..Failure::new(ErrorCode::VersionUnsupported, message)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;

    use super::*;

    fn first(method: &str, params: &serde_json::Value) -> Message {
        Message::Request(Request {
            id: REQUEST,
            method: method.into(),
            params: to_raw_value(params).unwrap(),
        })
    }

    fn hello(api_version: u32) -> Message {
        let hello = Hello::new("cli", "1.0", api_version);
        first(METHOD, &serde_json::to_value(hello).unwrap())
    }

    #[test]
    fn the_current_and_the_previous_version_are_accepted() {
        let range = ApiRange::current_and_previous(3);
        for (version, accepted) in [(1, false), (2, true), (3, true), (4, false), (0, false)] {
            let outcome = accept(hello(version), range);
            assert_eq!(outcome.is_ok(), accepted, "{version}");
            if let Err(failure) = outcome {
                assert_eq!(failure.code, ErrorCode::VersionUnsupported);
                assert_eq!(failure.supported, Some(range));
            }
        }
        assert!(!ApiRange::current_and_previous(1).contains(0));
    }

    #[test]
    fn anything_else_first_is_refused() {
        let range = ApiRange::current_and_previous(1);
        let good = serde_json::json!({"name": "cli", "version": "1", "api_version": 1});
        assert!(accept(first(METHOD, &good), range).is_ok());
        let mut cases = vec![
            first("ping", &good),
            first(METHOD, &serde_json::Value::Null),
        ];
        for (field, bad) in [
            ("name", serde_json::json!("")),
            ("name", serde_json::json!("a\nb")),
            ("version", serde_json::json!("v".repeat(129))),
            ("api_version", serde_json::json!("1")),
            ("api_version", serde_json::json!(1.0)),
            ("api_version", serde_json::json!(4_294_967_296_u64)),
        ] {
            let mut params = good.clone();
            params[field] = bad;
            cases.push(first(METHOD, &params));
        }
        for case in cases {
            let shown = format!("{case:?}");
            let failure = accept(case, range).expect_err(&shown);
            assert_eq!(failure.code, ErrorCode::HandshakeRefused, "{shown}");
        }
    }
}
