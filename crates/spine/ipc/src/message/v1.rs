//! Version 1 of the wire: request, response and event.
//!
//! Unknown fields are ignored, so that new optional ones break nobody. Must
//! never change the meaning or the spelling of a field that exists; that is
//! version 2. Next: `crate::handshake` for the first message.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::frame::{self, EncodeFrameError, Frame};
use crate::handshake::ApiRange;

/// The longest name of a method or an event, in bytes.
pub const MAX_METHOD: usize = 128;

/// The event with which a client withdraws the request of the same id.
pub const CANCEL: &str = "cancel";

/// One message.
#[derive(Debug, Clone)]
pub enum Message {
    /// A call that wants an answer.
    Request(Request),
    /// The answer to a call, or the reason why the connection ends.
    Response(Response),
    /// News that wants no answer.
    Event(Event),
}

/// A number that a client gives to its request, once per connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

/// A call that wants an answer.
#[derive(Debug, Clone)]
pub struct Request {
    /// Unique among the requests in flight on this connection.
    pub id: RequestId,
    /// The name of the method.
    pub method: String,
    /// Its parameters; JSON `null` if there are none.
    pub params: Box<RawValue>,
}

/// The answer to a call.
#[derive(Debug, Clone)]
pub struct Response {
    /// Which request; none if the failure is about the whole connection.
    pub id: Option<RequestId>,
    /// The result, or what went wrong.
    pub outcome: Result<Box<RawValue>, Failure>,
}

/// News that wants no answer.
#[derive(Debug, Clone)]
pub struct Event {
    /// The request it belongs to, if it belongs to one.
    pub id: Option<RequestId>,
    /// The name of the event.
    pub method: String,
    /// What happened; JSON `null` if there is nothing to add.
    pub params: Box<RawValue>,
}

/// A failure as it travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The stable code, for programs.
    pub code: ErrorCode,
    /// What happened, why and how to fix it, for people.
    pub message: String,
    /// Whether the same call may succeed later without a change.
    pub retryable: bool,
    /// The versions the server speaks, with [`ErrorCode::VersionUnsupported`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supported: Option<ApiRange>,
}

/// The stable codes of failures. Codes are added, never renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// The bytes are not a frame, or the frame is not a message.
    Malformed,
    /// The first message is not a handshake that can be accepted.
    HandshakeRefused,
    /// The server does not speak the client's `api_version`.
    VersionUnsupported,
    /// The server has as many connections as it may have.
    TooManyConnections,
    /// The operating system could not say who the peer is.
    NoIdentity,
    /// No method has this name.
    UnknownMethod,
    /// The parameters do not fit the method.
    InvalidParams,
    /// Policy does not allow it.
    Denied,
    /// What the call names does not exist.
    NotFound,
    /// The state does not allow it now.
    Conflict,
    /// The result is larger than a frame may be.
    TooLarge,
    /// The method took longer than its own limit.
    Timeout,
    /// A part that is needed is not there at the moment.
    Unavailable,
    /// The server is about to end.
    ShuttingDown,
    /// A defect of the server.
    Internal,
    /// A code that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Why a frame is not a message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// A field is missing or has the wrong type.
    #[error("the frame is not a message of version 1")]
    Shape(#[source] serde_json::Error),
    /// The kind needs a field that is not there, or has one too many.
    #[error("a {kind} needs {needs}")]
    Fields {
        /// The kind of message.
        kind: &'static str,
        /// What it must have.
        needs: &'static str,
    },
    /// The method's name is empty or longer than [`MAX_METHOD`].
    #[error("a method name of {length} bytes where 1 to {MAX_METHOD} are allowed")]
    Method {
        /// How long it is.
        length: usize,
    },
}

impl Message {
    /// Reads a frame as a message.
    ///
    /// # Errors
    /// The frame is not a message of this version.
    pub fn parse(frame: &Frame) -> Result<Self, MessageError> {
        let wire: Wire = serde_json::from_str(frame.as_str()).map_err(MessageError::Shape)?;
        match wire.kind {
            Kind::Request => wire.into_request().map(Self::Request),
            Kind::Response => wire.into_response().map(Self::Response),
            Kind::Event => wire.into_event().map(Self::Event),
        }
    }
}

impl Event {
    /// The parameters as a type.
    ///
    /// # Errors
    /// They do not fit the type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.params.get())
    }
}

impl Failure {
    /// A failure with the code's usual answer to "may I try again".
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retryable: code.is_usually_retryable(),
            supported: None,
        }
    }

    pub(crate) fn internal() -> Self {
        // Nothing of the defect itself: it may hold what the peer must not see.
        Self::new(
            ErrorCode::Internal,
            "the call failed inside the server; its log has the reason",
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl ErrorCode {
    const fn is_usually_retryable(self) -> bool {
        matches!(
            self,
            Self::TooManyConnections | Self::Timeout | Self::Unavailable | Self::ShuttingDown
        )
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The bytes of a request.
///
/// # Errors
/// The parameters are too large or have no JSON form.
pub fn encode_request<P: Serialize + ?Sized>(
    id: RequestId,
    method: &str,
    params: &P,
) -> Result<Vec<u8>, EncodeFrameError> {
    frame::encode(
        &Named {
            id: Some(id),
            kind: Kind::Request,
            method,
            params,
        },
        frame::LIMIT,
    )
}

/// The bytes of an event.
///
/// # Errors
/// The parameters are too large or have no JSON form.
pub fn encode_event<P: Serialize + ?Sized>(
    id: Option<RequestId>,
    method: &str,
    params: &P,
) -> Result<Vec<u8>, EncodeFrameError> {
    frame::encode(
        &Named {
            id,
            kind: Kind::Event,
            method,
            params,
        },
        frame::LIMIT,
    )
}

/// The bytes of a response with a result.
///
/// # Errors
/// The result is too large or has no JSON form.
pub fn encode_result<R: Serialize + ?Sized>(
    id: RequestId,
    result: &R,
) -> Result<Vec<u8>, EncodeFrameError> {
    frame::encode(
        &Success {
            id,
            kind: Kind::Response,
            result,
        },
        frame::LIMIT,
    )
}

/// The bytes of a response with a failure.
///
/// # Errors
/// The failure's message is too large.
pub fn encode_failure(
    id: Option<RequestId>,
    failure: &Failure,
) -> Result<Vec<u8>, EncodeFrameError> {
    frame::encode(
        &Failed {
            id,
            kind: Kind::Response,
            error: failure,
        },
        frame::LIMIT,
    )
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Request,
    Response,
    Event,
}

#[derive(Deserialize)]
struct Wire {
    id: Option<RequestId>,
    kind: Kind,
    method: Option<String>,
    #[serde(default, deserialize_with = "present")]
    params: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Box<RawValue>>,
    error: Option<Failure>,
}

/// A field that is there, even if it is `null`.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

impl Wire {
    fn into_request(self) -> Result<Request, MessageError> {
        let needs = "`id` and `method`, and neither `result` nor `error`";
        let kind = "request";
        match self {
            Self {
                id: Some(id),
                method: Some(method),
                params,
                result: None,
                error: None,
                ..
            } => Ok(Request {
                id,
                method: checked(method)?,
                params: params.unwrap_or_else(null),
            }),
            _ => Err(MessageError::Fields { kind, needs }),
        }
    }

    fn into_response(self) -> Result<Response, MessageError> {
        let needs = "either `id` and `result`, or `error`";
        let kind = "response";
        match (self.id, self.result, self.error) {
            (Some(id), Some(result), None) => Ok(Response {
                id: Some(id),
                outcome: Ok(result),
            }),
            (id, None, Some(failure)) => Ok(Response {
                id,
                outcome: Err(failure),
            }),
            _ => Err(MessageError::Fields { kind, needs }),
        }
    }

    fn into_event(self) -> Result<Event, MessageError> {
        let needs = "`method`, and neither `result` nor `error`";
        let kind = "event";
        match self {
            Self {
                id,
                method: Some(method),
                params,
                result: None,
                error: None,
                ..
            } => Ok(Event {
                id,
                method: checked(method)?,
                params: params.unwrap_or_else(null),
            }),
            _ => Err(MessageError::Fields { kind, needs }),
        }
    }
}

fn checked(method: String) -> Result<String, MessageError> {
    match method.len() {
        1..=MAX_METHOD => Ok(method),
        length => Err(MessageError::Method { length }),
    }
}

fn null() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

#[derive(Serialize)]
struct Named<'a, P: ?Sized> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<RequestId>,
    kind: Kind,
    method: &'a str,
    params: &'a P,
}

#[derive(Serialize)]
struct Success<'a, R: ?Sized> {
    id: RequestId,
    kind: Kind,
    result: &'a R,
}

#[derive(Serialize)]
struct Failed<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<RequestId>,
    kind: Kind,
    error: &'a Failure,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Decoder;

    fn parse(text: &str) -> Result<Message, MessageError> {
        let mut bytes = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        Message::parse(&decoded(&bytes))
    }

    fn decoded(mut bytes: &[u8]) -> Frame {
        let mut decoder = Decoder::new(frame::LIMIT);
        decoder.feed(&mut bytes).unwrap().unwrap()
    }

    #[test]
    fn each_kind_reads_back_as_it_was_written() {
        let id = RequestId(u64::MAX);
        let request = encode_request(id, "ping", &[1, 2]).unwrap();
        let Message::Request(request) = Message::parse(&decoded(&request)).unwrap() else {
            panic!("not a request");
        };
        assert_eq!((request.id, request.method.as_str()), (id, "ping"));
        assert_eq!(request.params.get(), "[1,2]");

        let event = encode_event(None, "tick", &()).unwrap();
        let Message::Event(event) = Message::parse(&decoded(&event)).unwrap() else {
            panic!("not an event");
        };
        assert_eq!((event.id, event.params.get()), (None, "null"));

        let failure = Failure::new(ErrorCode::Denied, "no");
        let response = encode_failure(Some(id), &failure).unwrap();
        let Message::Response(response) = Message::parse(&decoded(&response)).unwrap() else {
            panic!("not a response");
        };
        assert_eq!(response.id, Some(id));
        assert_eq!(response.outcome.unwrap_err(), failure);
    }

    #[test]
    fn a_null_result_is_a_result() {
        let bytes = encode_result(RequestId(1), &()).unwrap();
        let Message::Response(response) = Message::parse(&decoded(&bytes)).unwrap() else {
            panic!("not a response");
        };
        assert_eq!(response.outcome.unwrap().get(), "null");
    }

    #[test]
    fn unknown_fields_and_codes_break_nothing() {
        let text = r#"{"id":1,"kind":"response","new":[1],
            "error":{"code":"from_the_future","message":"m","retryable":true,"more":1}}"#;
        let Message::Response(response) = parse(text).unwrap() else {
            panic!("not a response");
        };
        assert_eq!(response.outcome.unwrap_err().code, ErrorCode::Unknown);
    }

    #[test]
    fn wrong_shapes_are_refused() {
        for text in [
            "[]",
            "7",
            "{}",
            r#"{"kind":"request","method":"a"}"#,
            r#"{"kind":"request","id":1}"#,
            r#"{"kind":"request","id":-1,"method":"a"}"#,
            r#"{"kind":"request","id":1.5,"method":"a"}"#,
            r#"{"kind":"request","id":"1","method":"a"}"#,
            r#"{"kind":"request","id":1,"method":"a","result":null}"#,
            r#"{"kind":"request","id":1,"method":""}"#,
            r#"{"kind":"response","id":1}"#,
            r#"{"kind":"response","result":1}"#,
            r#"{"kind":"response","id":1,"result":1,
                "error":{"code":"denied","message":"","retryable":false}}"#,
            r#"{"kind":"event","params":1}"#,
            r#"{"kind":"notice","method":"a"}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let long = "m".repeat(MAX_METHOD + 1);
        let text = format!(r#"{{"kind":"request","id":1,"method":"{long}"}}"#);
        assert!(matches!(
            parse(&text),
            Err(MessageError::Method { length: 129 })
        ));
    }
}
