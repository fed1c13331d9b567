//! What a refusal of a provider means.
//!
//! Every vendor writes errors differently, and some only as prose; this is the
//! one place that knows. A text from outside is cut before it goes on. Never
//! decides about trying again beyond "could it help": that is `retry`.

use fluffy_contract::model::{FaultKind, ModelFault, Retry};
use serde_json::Value;

use super::json;

/// The longest message that is kept.
const MAX_MESSAGE: usize = 2000;

/// Names of errors, as `error.type`, `error.code` or `error.status` have them.
const NAMES: &[(&str, FaultKind)] = &[
    ("authentication_error", FaultKind::Authentication),
    ("invalid_api_key", FaultKind::Authentication),
    ("permission_error", FaultKind::Authentication),
    ("unauthenticated", FaultKind::Authentication),
    ("permission_denied", FaultKind::Authentication),
    ("billing_error", FaultKind::Billing),
    ("insufficient_quota", FaultKind::Billing),
    ("context_length_exceeded", FaultKind::ContextTooLong),
    ("exceed_context_size_error", FaultKind::ContextTooLong),
    ("request_too_large", FaultKind::ContextTooLong),
    ("invalid_request_error", FaultKind::InvalidRequest),
    ("invalid_argument", FaultKind::InvalidRequest),
    ("invalid_prompt", FaultKind::InvalidRequest),
    ("failed_precondition", FaultKind::InvalidRequest),
    ("not_found_error", FaultKind::NotFound),
    ("model_not_found", FaultKind::NotFound),
    ("not_found", FaultKind::NotFound),
    ("rate_limit_error", FaultKind::RateLimited),
    ("rate_limit_exceeded", FaultKind::RateLimited),
    ("resource_exhausted", FaultKind::RateLimited),
    ("overloaded_error", FaultKind::Overloaded),
    ("server_is_overloaded", FaultKind::Overloaded),
    ("slow_down", FaultKind::Overloaded),
    ("api_error", FaultKind::Overloaded),
    ("server_error", FaultKind::Overloaded),
    ("internal", FaultKind::Overloaded),
    ("unavailable", FaultKind::Overloaded),
    ("timeout_error", FaultKind::TimedOut),
    ("deadline_exceeded", FaultKind::TimedOut),
];

/// Words by which servers without names say that the context is too long.
const TOO_LONG: &[&str] = &[
    "context length",
    "context window",
    "context size",
    "prompt is too long",
    "maximum number of tokens",
    "input token count",
];

/// The fault behind an HTTP status and its body.
pub(crate) fn from_status(status: u16, body: &[u8]) -> ModelFault {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let named = parsed.as_ref().and_then(error_object).map(from_error);
    let by_status = match status {
        401 | 403 => FaultKind::Authentication,
        402 => FaultKind::Billing,
        404 | 405 => FaultKind::NotFound,
        408 | 504 => FaultKind::TimedOut,
        413 => FaultKind::ContextTooLong,
        429 => FaultKind::RateLimited,
        409 | 500.. => FaultKind::Overloaded,
        _ => FaultKind::InvalidRequest,
    };
    let (kind, message) = match named {
        Some(fault) => (fault.kind.unwrap_or(by_status), fault.message),
        None => (by_status, plain(body)),
    };
    let message = match message.is_empty() {
        true => format!("status {status}"),
        false => message,
    };
    ModelFault {
        kind,
        retryable: retry_of(kind, Some(status)),
        message,
    }
}

/// The fault in an event of the stream, if it holds one: `{"error": …}`.
pub(crate) fn in_event(value: &Value) -> Option<ModelFault> {
    error_object(value).map(from_object)
}

/// The fault in an error object itself: `{"message": …, "code": …}`.
pub(crate) fn from_object(error: &Value) -> ModelFault {
    let named = from_error(error);
    let kind = named.kind.unwrap_or(FaultKind::Overloaded);
    ModelFault {
        kind,
        retryable: retry_of(kind, None),
        message: match named.message.is_empty() {
            true => "the provider reported an error without a reason".to_owned(),
            false => named.message,
        },
    }
}

struct Named {
    kind: Option<FaultKind>,
    message: String,
}

fn error_object(value: &Value) -> Option<&Value> {
    // Google answers with a list of one when a stream was asked for.
    let value = value.get(0).unwrap_or(value);
    value.get("error").filter(|error| !error.is_null())
}

fn from_error(error: &Value) -> Named {
    let message = cut(error
        .as_str()
        .or_else(|| json::text(error, "message"))
        .unwrap_or_default());
    // The most telling name first: a code is narrower than a type.
    let names = ["code", "status", "type"]
        .into_iter()
        .filter_map(|key| json::text(error, key));
    let mut kind = names.filter_map(by_name).next();
    let lower = message.to_lowercase();
    if matches!(kind, None | Some(FaultKind::InvalidRequest))
        && TOO_LONG.iter().any(|words| lower.contains(words))
    {
        kind = Some(FaultKind::ContextTooLong);
    }
    if kind.is_none() {
        let code = json::some_count(error, "code").and_then(|code| u16::try_from(code).ok());
        kind = code.map(|code| from_status(code, b"").kind);
    }
    Named { kind, message }
}

fn by_name(name: &str) -> Option<FaultKind> {
    let matches = |(known, _): &&(&str, FaultKind)| name.eq_ignore_ascii_case(known);
    NAMES.iter().find(matches).map(|(_, kind)| *kind)
}

fn retry_of(kind: FaultKind, status: Option<u16>) -> Retry {
    let by_kind = match kind {
        FaultKind::Network
        | FaultKind::Malformed
        | FaultKind::Overloaded
        | FaultKind::RateLimited
        | FaultKind::TimedOut => Retry::Later,
        FaultKind::Authentication
        | FaultKind::Billing
        | FaultKind::ContextTooLong
        | FaultKind::Diverged
        | FaultKind::Ended
        | FaultKind::InvalidRequest
        | FaultKind::NotFound => Retry::Never,
    };
    match status {
        // A named reason that trying again cannot mend beats the status.
        Some(429) if kind == FaultKind::Billing => Retry::Never,
        Some(408 | 409 | 429 | 500..) => Retry::Later,
        Some(_) | None => by_kind,
    }
}

/// What a server said that did not answer with JSON.
fn plain(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body.get(..MAX_MESSAGE).unwrap_or(body)).into_owned();
    match text.trim_start().starts_with('<') {
        // A page of a proxy; nobody wants to read its markup.
        true => String::new(),
        false => cut(text.trim()),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(status: u16, body: &str) -> (FaultKind, Retry) {
        let fault = from_status(status, body.as_bytes());
        assert!(!fault.message.is_empty());
        (fault.kind, fault.retryable)
    }

    #[test]
    fn each_vendors_errors_are_understood() {
        use FaultKind::*;
        let table = [
            (
                401,
                r#"{"error":{"message":"Incorrect API key","code":"invalid_api_key"}}"#,
                Authentication,
                Retry::Never,
            ),
            (
                429,
                r#"{"error":{"message":"Rate limit","type":"tokens","code":"rate_limit_exceeded"}}"#,
                RateLimited,
                Retry::Later,
            ),
            (
                429,
                r#"{"error":{"message":"no money","type":"insufficient_quota","code":"insufficient_quota"}}"#,
                Billing,
                Retry::Never,
            ),
            (
                400,
                r#"{"error":{"message":"too long","code":"context_length_exceeded","type":"invalid_request_error"}}"#,
                ContextTooLong,
                Retry::Never,
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 5"}}"#,
                ContextTooLong,
                Retry::Never,
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: bad"}}"#,
                InvalidRequest,
                Retry::Never,
            ),
            (
                529,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                Overloaded,
                Retry::Later,
            ),
            (
                429,
                r#"[{"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED"}}]"#,
                RateLimited,
                Retry::Later,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"The input token count exceeds","status":"INVALID_ARGUMENT"}}"#,
                ContextTooLong,
                Retry::Never,
            ),
            (
                404,
                r#"{"error":"model 'x' not found"}"#,
                NotFound,
                Retry::Never,
            ),
            (500, "<html>oops</html>", Overloaded, Retry::Later),
            (408, "", TimedOut, Retry::Later),
            (409, "", Overloaded, Retry::Later),
            (418, "short and stout", InvalidRequest, Retry::Never),
            (
                503,
                r#"{"error":{"code":503,"message":"overloaded","status":"UNAVAILABLE"}}"#,
                Overloaded,
                Retry::Later,
            ),
        ];
        for (status, body, kind, retry) in table {
            assert_eq!(judge(status, body), (kind, retry), "{status} {body}");
        }
    }

    #[test]
    fn messages_are_cut_and_markup_is_left_out() {
        let long = "ü".repeat(10_000);
        assert_eq!(
            from_status(400, long.as_bytes()).message.chars().count(),
            MAX_MESSAGE / 2
        );
        assert_eq!(from_status(502, b"<!doctype html>").message, "status 502");
        let fault = in_event(&serde_json::json!({"error": {"message": long}})).unwrap();
        assert_eq!(fault.message.chars().count(), MAX_MESSAGE + 1);
        assert!(in_event(&serde_json::json!({"error": null})).is_none());
    }
}
