//! Targets for `fluffy-base`: units, ids, canonical JSON.
//!
//! Each checks more than "does not panic": what reads must print and read back.

use fluffy_base::id::{ApprovalId, DecisionId, LedgerId, RequestId, SandboxId, SessionId, TokenId};
use fluffy_base::{ByteSize, Span, canonical};
use serde_json::Value;

use crate::as_text;

/// A size or time that reads keeps its value when printed and read again.
pub(crate) fn units(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else {
        return;
    };
    if let Ok(size) = text.parse::<ByteSize>() {
        assert_eq!(size.to_string().parse(), Ok(size));
    }
    if let Ok(span) = text.parse::<Span>() {
        assert_eq!(span.to_string().parse(), Ok(span));
    }
}

/// An id that reads has exactly one spelling, and is of one kind only.
pub(crate) fn ids(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else {
        return;
    };
    let spellings = [
        text.parse::<ApprovalId>().map(|id| id.to_string()),
        text.parse::<DecisionId>().map(|id| id.to_string()),
        text.parse::<LedgerId>().map(|id| id.to_string()),
        text.parse::<RequestId>().map(|id| id.to_string()),
        text.parse::<SandboxId>().map(|id| id.to_string()),
        text.parse::<SessionId>().map(|id| id.to_string()),
        text.parse::<TokenId>().map(|id| id.to_string()),
    ];
    let mut read = spellings.iter().flatten();
    if let Some(spelling) = read.next() {
        assert_eq!(spelling, text);
        assert_eq!(read.next(), None);
    }
}

/// Canonical text means the same value and is a fixed point.
pub(crate) fn canonical(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else {
        return;
    };
    let Ok(text) = canonical::to_string(&value) else {
        return;
    };
    let back = serde_json::from_str::<Value>(&text).ok();
    assert_eq!(back.as_ref(), Some(&value));
    let again = back.map(|value| canonical::to_string(&value));
    assert_eq!(again, Some(Ok(text)));
}
