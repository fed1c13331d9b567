//! Bodies: what is read of a request, and what an answer consists of.
//!
//! A request's body is bounded before it is read and is JSON or nothing. An
//! answer is one piece, or a bounded channel of pieces. Next: `super::answer`.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use fluffy_api::{Operation, Problem};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::HeaderMap;
use hyper::body::{Body, Buf, Bytes, Frame, SizeHint};
use hyper::header::CONTENT_TYPE;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// The largest body.
pub(super) const MAX_BODY: usize = 1 << 20;

/// What is read of a body that nobody wants, and for how long.
const MOST_UNWANTED: usize = 8 * MAX_BODY;
const UNWANTED: Duration = Duration::from_secs(5);

/// The largest manifest.
const MAX_MANIFEST: usize = 64 << 10;

/// The body of an answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// One piece, until it is taken.
    Whole(Option<Bytes>),
    /// Pieces as they come.
    Pieces(mpsc::Receiver<Bytes>),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pieces(pieces) => pieces
                .poll_recv(context)
                .map(|piece| piece.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                let size = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(size).unwrap_or(u64::MAX))
            }
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

/// Reads what nobody wants of a body, as far as that is little work.
pub(super) async fn discard<B: Body>(mut body: Pin<&mut B>) {
    let rest = async {
        let mut read = 0;
        while read < MOST_UNWANTED
            && let Some(Ok(frame)) = body.frame().await
        {
            read += frame.data_ref().map_or(0, Buf::remaining);
        }
    };
    let _ = timeout(UNWANTED, rest).await;
}

/// Reads the body of a request: an object, or nothing where none is taken.
pub(super) async fn read<B>(
    operation: Operation,
    headers: &HeaderMap,
    body: Pin<&mut B>,
) -> Result<Option<Value>, Box<Problem>>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let takes = operation.spec().request.is_some();
    let announced = body.size_hint().lower();
    if announced > MAX_BODY as u64 {
        return Err(too_large("the body", MAX_BODY));
    }
    let bytes = match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Err(too_large("the body", MAX_BODY));
        }
        Err(_) => return Err(invalid("the body did not arrive whole", "send it again")),
    };
    match (takes, bytes.is_empty()) {
        (false, true) => return Ok(None),
        (false, false) => return Err(invalid("the call takes no body", "leave it out")),
        (true, true) => return Ok(Some(Value::Object(Map::new()))),
        (true, false) => {}
    }
    if !is_json(headers) {
        return Err(Box::new(Problem::new(
            "unsupported_media_type",
            "the body is not said to be JSON",
            "send it with `Content-Type: application/json`",
        )));
    }
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        invalid(
            &format!("the body is no JSON at {place}"),
            "send a JSON object",
        )
    })?;
    let manifest = value.get("manifest").and_then(Value::as_str);
    if operation == Operation::CreateRelease
        && manifest.is_some_and(|text| text.len() > MAX_MANIFEST)
    {
        return Err(too_large("the manifest", MAX_MANIFEST));
    }
    Ok(Some(value))
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
    else {
        return false;
    };
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

fn too_large(what: &str, most: usize) -> Box<Problem> {
    Box::new(Problem::new(
        "too_large",
        format!("{what} has more than {} KiB", most >> 10),
        "send less",
    ))
}

fn invalid(why: &str, fix: &str) -> Box<Problem> {
    Box::new(Problem::new("invalid_argument", why, fix))
}
