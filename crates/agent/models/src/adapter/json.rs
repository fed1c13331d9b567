//! Reading JSON that may be anything, and setting fields.
//!
//! Providers and their imitators leave fields out, send `null`, or numbers as
//! text. These look at one field and give a plain answer; nothing fails here.
//! Never a place for what a field means: that is in the wire formats beside.

use serde_json::Value;

/// The text in a field, if there is one.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// The text in a field, if there is one that is not empty.
pub(crate) fn some_text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    text(value, key).filter(|text| !text.is_empty())
}

/// The count in a field; zero for anything that is none.
pub(crate) fn count(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}

/// The count in a field, if there is one.
pub(crate) fn some_count(value: &Value, key: &str) -> Option<u64> {
    value.get(key).and_then(Value::as_u64)
}

/// The list in a field; empty for anything that is none.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// The object in a field, if there is one.
pub(crate) fn object<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|found| found.is_object())
}

/// Sets a field of an object.
pub(crate) fn set(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(key.to_owned(), value.into());
    }
}
