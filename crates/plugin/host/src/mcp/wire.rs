//! JSON-RPC by lines, as data: nothing here waits or writes.
//!
//! What is no message is noise and is told apart from one; what is too long
//! ends the reading, because nobody knows where the next message begins.

use serde_json::{Map, Value, json};

use crate::connection::MAX_MESSAGE;

/// Splits bytes into lines, none longer than the given length.
#[derive(Debug, Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
}

/// A line is longer than a message may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Lines {
    /// Adds bytes, and takes out the lines that are complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, TooLong> {
        let mut lines = Vec::new();
        let mut pieces = bytes.split(|byte| *byte == b'\n');
        let last = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            self.add(piece)?;
            lines.push(std::mem::take(&mut self.rest));
        }
        self.add(last)?;
        Ok(lines)
    }

    fn add(&mut self, piece: &[u8]) -> Result<(), TooLong> {
        if self.rest.len().saturating_add(piece.len()) > MAX_MESSAGE {
            return Err(TooLong);
        }
        self.rest.extend_from_slice(piece);
        Ok(())
    }
}

/// Something that a server said.
#[derive(Debug, PartialEq)]
pub(super) enum Message {
    /// The answer to a request of ours.
    Answer {
        /// Which.
        id: u64,
        /// What it is.
        outcome: Result<Value, Fault>,
    },
    /// A request of its own.
    Request {
        /// Its own name for it, sent back as it is.
        id: Value,
        /// What it wants.
        method: String,
    },
    /// Something that needs no answer.
    Notification {
        /// What it is about.
        method: String,
        /// The rest.
        params: Value,
    },
    /// Not a message.
    Noise,
}

/// An error as JSON-RPC has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    pub(super) code: i64,
    pub(super) text: String,
}

impl Message {
    pub(super) fn read(line: &[u8]) -> Self {
        let Ok(Value::Object(mut fields)) = serde_json::from_slice(line) else {
            return Self::Noise;
        };
        if fields.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return Self::Noise;
        }
        let id = fields.remove("id").filter(|id| !id.is_null());
        let method = match fields.remove("method") {
            Some(Value::String(method)) => Some(method),
            Some(_) => return Self::Noise,
            None => None,
        };
        match (method, id) {
            (Some(method), Some(id)) if id.is_number() || id.is_string() => {
                Self::Request { id, method }
            }
            (Some(method), None) => Self::Notification {
                method,
                params: fields.remove("params").unwrap_or_default(),
            },
            // Our own ids are numbers.
            (None, Some(id)) => match id.as_u64() {
                Some(id) => answer(id, fields),
                None => Self::Noise,
            },
            _ => Self::Noise,
        }
    }
}

fn answer(id: u64, mut fields: Map<String, Value>) -> Message {
    let outcome = match (fields.remove("result"), fields.remove("error")) {
        (Some(result), None) => Ok(result),
        (None, Some(error)) => Err(Fault {
            code: error.get("code").and_then(Value::as_i64).unwrap_or(0),
            text: match error.get("message") {
                Some(Value::String(text)) => text.chars().take(512).collect(),
                _ => String::new(),
            },
        }),
        _ => return Message::Noise,
    };
    Message::Answer { id, outcome }
}

/// A request as a line.
pub(super) fn request(id: u64, method: &str, params: Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

/// A notification as a line.
pub(super) fn notification(method: &str, params: Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

/// The answer to a request of theirs, as a line.
pub(super) fn reply(id: &Value, result: Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

/// The refusal of a request of theirs, as a line.
pub(super) fn refusal(id: &Value, text: &str) -> Vec<u8> {
    let error = json!({"code": NOT_FOUND, "message": text});
    line(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
}

/// There is no such method.
const NOT_FOUND: i64 = -32601;

/// A version that the server does not speak; only new servers know it.
pub(super) const UNSUPPORTED_VERSION: i64 = -32022;

fn line(message: &Value) -> Vec<u8> {
    let mut bytes = message.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_however_they_arrive() {
        let text = b"one\n\ntwo\nthree";
        for size in 1..=text.len() {
            let mut lines = Lines::default();
            let mut got = Vec::new();
            for piece in text.chunks(size) {
                got.extend(lines.feed(piece).unwrap());
            }
            assert_eq!(
                got,
                [b"one".to_vec(), Vec::new(), b"two".to_vec()],
                "{size}"
            );
            assert_eq!(lines.feed(b"\n").unwrap(), [b"three".to_vec()]);
        }
    }

    #[test]
    fn a_line_without_end_is_given_up() {
        let mut lines = Lines::default();
        let piece = vec![b'x'; MAX_MESSAGE / 2];
        assert!(lines.feed(&piece).is_ok() && lines.feed(&piece).is_ok());
        assert_eq!(lines.feed(b"x"), Err(TooLong));
    }

    #[test]
    fn messages_and_noise_are_told_apart() {
        let read = |text: &str| Message::read(text.as_bytes());
        let call = read(r#"{"jsonrpc":"2.0","id":"a","method":"roots/list"}"#);
        assert!(matches!(call, Message::Request { method, .. } if method == "roots/list"));
        let note = read(r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"a":1}}"#);
        assert!(matches!(note, Message::Notification { params, .. } if params["a"] == 1));
        let done = read(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
        assert!(matches!(
            done,
            Message::Answer {
                id: 7,
                outcome: Ok(_)
            }
        ));
        let fault = read(r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32022,"message":"no"}}"#);
        let expected = Fault {
            code: UNSUPPORTED_VERSION,
            text: "no".to_owned(),
        };
        assert_eq!(
            fault,
            Message::Answer {
                id: 7,
                outcome: Err(expected)
            }
        );
        for noise in [
            "",
            "Server started",
            "[]",
            "{}",
            r#"{"jsonrpc":"1.0","id":7,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":-7,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1e400,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{},"error":{}}"#,
            r#"{"jsonrpc":"2.0","id":7}"#,
            r#"{"jsonrpc":"2.0","id":[7],"method":"x"}"#,
            r#"{"jsonrpc":"2.0","method":7}"#,
        ] {
            assert_eq!(read(noise), Message::Noise, "{noise}");
        }
        assert_eq!(
            Message::read(&"[".repeat(100_000).into_bytes()),
            Message::Noise
        );
    }
}
