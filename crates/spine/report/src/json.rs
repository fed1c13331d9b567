//! JSON whose names are in order, whatever the build.
//!
//! A dependency somewhere can switch serde_json to keep names as they were
//! inserted; what we print must not depend on who else is in the build.

use serde_json::{Map, Value};

/// The same value with the names of every object sorted.
#[must_use]
pub fn sorted(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            let fields = fields.into_iter().map(|(name, item)| (name, sorted(item)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_in_order_at_every_depth() {
        let value = json!({"b": [{"d": 1, "c": 2}], "a": {"z": 0, "y": 0}});
        let text = sorted(value).to_string();
        assert_eq!(text, r#"{"a":{"y":0,"z":0},"b":[{"c":2,"d":1}]}"#);
    }
}
