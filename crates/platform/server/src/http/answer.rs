//! Answers: statuses, headers, and refusals as problem+json.
//!
//! The only place that writes headers. Next: `super::service`.

use std::time::Duration;

use fluffy_api::Problem;
use fluffy_api::problem::FieldProblem;
use fluffy_control::Refusal;
use hyper::body::Bytes;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use hyper::{Response, StatusCode};
use serde_json::Value;

use super::body::AnswerBody;
use super::rate::Left;
use crate::fold::Position;

/// An answer before its shared headers.
#[derive(Debug)]
pub(super) struct Reply {
    status: u16,
    content_type: &'static str,
    body: AnswerBody,
    headers: HeaderMap,
}

/// What every answer says of its call.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) request_id: String,
    pub(super) left: Left,
    pub(super) position: Position,
}

impl Reply {
    /// A JSON value; its `version` becomes the ETag.
    pub(super) fn json(status: u16, value: &Value) -> Self {
        let mut reply = Self::text(status, "application/json", value.to_string());
        if let Some(version) = value.get("version").and_then(Value::as_u64) {
            reply.set(ETAG, format!("\"{version}\""));
        }
        reply
    }

    pub(super) fn text(status: u16, content_type: &'static str, text: impl Into<Bytes>) -> Self {
        Self {
            status,
            content_type,
            body: AnswerBody::Whole(Some(text.into())),
            headers: HeaderMap::new(),
        }
    }

    pub(super) fn stream(body: AnswerBody) -> Self {
        Self {
            status: 200,
            content_type: "text/event-stream",
            body,
            headers: HeaderMap::new(),
        }
    }

    /// That the connection now speaks something else.
    pub(super) fn switch(headers: HeaderMap) -> Self {
        Self {
            status: 101,
            content_type: "",
            body: AnswerBody::Whole(None),
            headers,
        }
    }

    /// The same with one more header.
    pub(super) fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.set(HeaderName::from_static(name), value);
        self
    }

    fn set(&mut self, name: HeaderName, value: impl ToString) {
        // Only numbers and words of our own come here.
        if let Ok(value) = HeaderValue::try_from(value.to_string()) {
            self.headers.insert(name, value);
        }
    }

    /// The whole answer.
    pub(super) fn send(mut self, told: &Told) -> Response<AnswerBody> {
        if !self.content_type.is_empty() {
            let type_value = HeaderValue::from_static(self.content_type);
            self.headers.insert(CONTENT_TYPE, type_value);
        }
        let no_store = HeaderValue::from_static("no-store");
        self.headers.insert(CACHE_CONTROL, no_store);
        let mut reply = self
            .with("fluffy-request-id", &told.request_id)
            .with("fluffy-epoch", told.position.epoch)
            .with("x-content-type-options", "nosniff")
            .with("x-ratelimit-limit", told.left.limit)
            .with("x-ratelimit-remaining", told.left.remaining)
            .with("x-ratelimit-reset", told.left.reset);
        let status = StatusCode::from_u16(reply.status);
        let mut response = Response::new(reply.body);
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        std::mem::swap(response.headers_mut(), &mut reply.headers);
        response
    }

    /// A refusal of a call.
    pub(super) fn refusal(mut problem: Problem, request_id: &str) -> Self {
        request_id.clone_into(&mut problem.request_id);
        if problem.status == 503 && problem.retry_after.is_none() {
            problem.retry_after = Some(1);
        }
        let text = serde_json::to_string(&problem).unwrap_or_default();
        let mut reply = Self::text(problem.status, "application/problem+json", text);
        if let Some(seconds) = problem.retry_after {
            reply.set(RETRY_AFTER, seconds);
        }
        if problem.status == 401 {
            reply.set(hyper::header::WWW_AUTHENTICATE, "Bearer");
        }
        if let Some(allowed) = problem.details.get("allow").and_then(Value::as_str) {
            reply.set(ALLOW, allowed);
        }
        reply
    }
}

/// A refusal of the control plane, for the outside.
pub(super) fn problem(refusal: Refusal) -> Box<Problem> {
    let mut problem = Problem::new(refusal.code, refusal.why, refusal.fix);
    problem.details = *refusal.details;
    if let Some(after) = problem.details.remove("retry_after") {
        problem.retry_after = after.as_u64();
    }
    problem.errors = refusal
        .fields
        .into_iter()
        .map(|field| FieldProblem {
            code: field.code,
            field: field.field,
            message: field.message,
            line: field.place.and_then(|(line, _)| line.try_into().ok()),
            column: field.place.and_then(|(_, column)| column.try_into().ok()),
        })
        .collect();
    Box::new(problem)
}

/// That a write was refused before under the same key, whose answer is gone.
pub(super) fn repeated(code: &str) -> Box<Problem> {
    let why = "the first call with this key was refused like this";
    let fix = "mend the request, and send it with a new key";
    Box::new(Problem::new(code, why, fix))
}

/// That nobody knows any more what came of a write under the same key.
pub(super) fn unknown() -> Box<Problem> {
    let why = "the first call with this key changed nothing that is still known";
    Box::new(Problem::new("conflict", why, "send it with a new key"))
}

/// That a write is on record under the same key, and nobody knows whether what
/// it wanted was done.
pub(super) fn unsettled() -> Box<Problem> {
    let why = "the call is on record, but whether it was carried out is not known";
    let fix = "look, and if it may happen twice, ask for it again with a new key";
    Box::new(Problem::new("conflict", why, fix))
}

/// That a bucket is empty.
pub(super) fn rate_limited(left: &Left) -> Box<Problem> {
    let mut problem = Problem::new(
        "rate_limited",
        format!("all {} calls of this window are used up", left.limit),
        format!("wait {} seconds", left.after),
    );
    problem.error = Some("rate_limited".into());
    problem.retry_after = Some(left.after);
    Box::new(problem)
}

/// That there is no place for another stream.
pub(super) fn crowded(left: &Left) -> Box<Problem> {
    let mut problem = Problem::new(
        "rate_limited",
        format!(
            "all {} streams that this organisation or token may have at once are open",
            left.limit
        ),
        "end one of them first",
    );
    problem.error = Some("rate_limited".into());
    problem.retry_after = Some(left.after);
    Box::new(problem)
}

/// That the server cannot answer now.
pub(super) fn unavailable(why: &str, after: Duration) -> Box<Problem> {
    let mut problem = Problem::new("unavailable", why, "send the call again in a moment");
    problem.retry_after = Some(after.as_secs().max(1));
    Box::new(problem)
}
