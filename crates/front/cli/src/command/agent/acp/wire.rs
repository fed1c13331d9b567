//! JSON-RPC 2.0, one message a line, as the Agent Client Protocol speaks it.
//!
//! Pure: text in, messages out, and back. What methods mean is in `desk`.

use serde_json::{Value, json};

/// The version of the Agent Client Protocol that we speak.
pub(super) const PROTOCOL: u64 = 1;

/// The codes of JSON-RPC that we answer with.
pub(super) const PARSE_ERROR: i64 = -32_700;
pub(super) const INVALID_REQUEST: i64 = -32_600;
pub(super) const UNKNOWN_METHOD: i64 = -32_601;
pub(super) const INVALID_PARAMS: i64 = -32_602;
pub(super) const INTERNAL: i64 = -32_603;

/// A message from the editor.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Incoming {
    /// It wants an answer.
    Request {
        /// What the answer has to name.
        id: Value,
        /// Which method.
        method: String,
        /// With what.
        params: Value,
    },
    /// It wants none.
    Notice {
        /// Which method.
        method: String,
        /// With what.
        params: Value,
    },
    /// It answers something that we asked.
    Answer {
        /// What we asked.
        id: u64,
        /// The result; none if it failed.
        result: Option<Value>,
    },
}

/// What is answered to a request that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// The code of JSON-RPC.
    pub(super) code: i64,
    /// For people.
    pub(super) message: String,
}

impl Problem {
    /// A problem with its code.
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }
}

/// Reads one line.
pub(super) fn parse(line: &str) -> Result<Incoming, Problem> {
    let no_json = |_| Problem::new(PARSE_ERROR, "the line is not JSON");
    let Value::Object(mut fields) = serde_json::from_str(line).map_err(no_json)? else {
        return Err(Problem::new(INVALID_REQUEST, "a message is an object"));
    };
    let id = fields.remove("id").filter(|id| !id.is_null());
    let params = fields.remove("params").unwrap_or_default();
    match (fields.remove("method"), id) {
        (Some(Value::String(method)), Some(id)) if id.is_string() || id.is_number() => {
            Ok(Incoming::Request { id, method, params })
        }
        (Some(Value::String(method)), None) => Ok(Incoming::Notice { method, params }),
        (None, Some(id)) => Ok(Incoming::Answer {
            id: id
                .as_u64()
                .ok_or_else(|| Problem::new(INVALID_REQUEST, "this answers nothing of ours"))?,
            result: fields.remove("result"),
        }),
        _ => Err(Problem::new(
            INVALID_REQUEST,
            "a message has a method, or answers with an id",
        )),
    }
}

/// The answer to a request.
pub(super) fn answer(id: &Value, outcome: Result<Value, Problem>) -> Value {
    match outcome {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(Problem { code, message }) => json!({
            "jsonrpc": "2.0",
            "id": id,
            "error": {"code": code, "message": message},
        }),
    }
}

/// A request of ours.
pub(super) fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// News about a session.
pub(super) fn update(session: &str, update: Value) -> Value {
    json!({
        "jsonrpc": "2.0",
        "method": "session/update",
        "params": {"sessionId": session, "update": update},
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_three_kinds_of_messages_are_told_apart() {
        let request = parse(r#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}}"#);
        assert_eq!(
            request.unwrap(),
            Incoming::Request {
                id: json!("a"),
                method: "m".to_owned(),
                params: json!({"x": 1}),
            }
        );
        let notice = parse(r#"{"jsonrpc":"2.0","method":"m"}"#).unwrap();
        assert!(matches!(notice, Incoming::Notice { .. }));
        let answer = parse(r#"{"jsonrpc":"2.0","id":3,"result":{}}"#).unwrap();
        assert_eq!(
            answer,
            Incoming::Answer {
                id: 3,
                result: Some(json!({})),
            }
        );
        let failed = parse(r#"{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":"x"}}"#);
        assert_eq!(
            failed.unwrap(),
            Incoming::Answer {
                id: 3,
                result: None
            }
        );
    }

    #[test]
    fn other_lines_are_refused_by_their_code() {
        for (line, code) in [
            ("", PARSE_ERROR),
            ("{", PARSE_ERROR),
            ("[]", INVALID_REQUEST),
            ("{}", INVALID_REQUEST),
            (r#"{"id":{},"method":"m"}"#, INVALID_REQUEST),
            (r#"{"id":"x","result":1}"#, INVALID_REQUEST),
            (r#"{"method":7}"#, INVALID_REQUEST),
        ] {
            assert_eq!(parse(line).unwrap_err().code, code, "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_panics(line in ".*") {
            let _ = parse(&line);
        }
    }
}
