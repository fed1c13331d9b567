//! Arguments from a JSON schema: some that fit it, and some that do not.
//!
//! Enough of JSON Schema for what tools declare; where a schema says more than
//! is understood here, an example or default in it is taken.

use serde_json::{Map, Value, json};

/// How deep a schema is followed.
const MAX_DEPTH: usize = 16;

/// The most items or characters that are made because a schema wants many.
const MAX_MADE: u64 = 1_000;

/// A value that fits a schema.
pub(super) fn fitting(schema: &Value) -> Value {
    made(schema, 0)
}

/// Arguments that do not fit, each wrong in one way; none where everything
/// fits.
pub(super) fn wrong(schema: &Value) -> Vec<Value> {
    let fitting = fitting(schema);
    let Value::Object(good) = fitting else {
        return Vec::new();
    };
    let mut wrong = Vec::new();
    let required = schema.get("required").and_then(Value::as_array);
    if required.is_some_and(|names| !names.is_empty()) {
        wrong.push(json!({}));
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let typed = properties.into_iter().flatten().find_map(|(name, schema)| {
        let bad = match schema.get("type")?.as_str()? {
            "string" => json!({"not": "a string"}),
            _ => json!("\u{0}not this type"),
        };
        Some((name.clone(), bad))
    });
    if let Some((name, bad)) = typed {
        let mut arguments = good;
        arguments.insert(name, bad);
        wrong.push(Value::Object(arguments));
    }
    wrong
}

fn made(schema: &Value, depth: usize) -> Value {
    if depth > MAX_DEPTH {
        return Value::Null;
    }
    let first = |key: &str| schema.get(key)?.as_array()?.first().cloned();
    let given = |key: &str| schema.get(key).cloned();
    let named = given("const")
        .or_else(|| given("default"))
        .or_else(|| first("examples"))
        .or_else(|| first("enum"));
    if let Some(value) = named {
        return value;
    }
    if let Some(choice) = first("anyOf").or_else(|| first("oneOf")) {
        return made(&choice, depth + 1);
    }
    let kind = match schema.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        Some(Value::Array(kinds)) => {
            let mut kinds = kinds.iter().filter_map(Value::as_str);
            kinds.find(|kind| *kind != "null").unwrap_or("null")
        }
        _ if schema.get("properties").is_some() || depth == 0 => "object",
        _ => "string",
    };
    let least = |key: &str| schema.get(key).and_then(Value::as_u64).unwrap_or(0);
    match kind {
        "object" => Value::Object(object(schema, depth)),
        "array" => {
            let item = made(schema.get("items").unwrap_or(&Value::Null), depth + 1);
            (0..least("minItems").min(MAX_MADE))
                .map(|_| item.clone())
                .collect()
        }
        "integer" | "number" => number(schema),
        "boolean" => json!(true),
        "null" => Value::Null,
        _ => {
            let length = usize::try_from(least("minLength").min(MAX_MADE)).unwrap_or(0);
            let most = schema.get("maxLength").and_then(Value::as_u64);
            let word = format!("{:a<length$}", "example");
            let most = most.and_then(|most| usize::try_from(most).ok());
            let word: String = word.chars().take(most.unwrap_or(usize::MAX)).collect();
            json!(word)
        }
    }
}

/// With what is required, and nothing else.
fn object(schema: &Value, depth: usize) -> Map<String, Value> {
    let required = schema.get("required").and_then(Value::as_array);
    let names = required.into_iter().flatten().filter_map(Value::as_str);
    let properties = schema.get("properties");
    let fields = names.map(|name| {
        let schema = properties.and_then(|properties| properties.get(name));
        let value = made(schema.unwrap_or(&Value::Null), depth + 1);
        (name.to_owned(), value)
    });
    fields.collect()
}

/// The number nearest to 1 that is allowed.
fn number(schema: &Value) -> Value {
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    let step = |key: &str, step: f64| bound(key).map(|at| at + step);
    let least = bound("minimum").or_else(|| step("exclusiveMinimum", 1.0));
    let most = bound("maximum").or_else(|| step("exclusiveMaximum", -1.0));
    let near = 1_f64
        .max(least.unwrap_or(f64::MIN))
        .min(most.unwrap_or(f64::MAX));
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a float becomes the nearest integer there is"
    )]
    let whole = near as i64;
    match schema.get("type").and_then(Value::as_str) {
        Some("integer") => json!(whole),
        _ => json!(near),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_fits() {
        for (schema, expected) in [
            (json!({"type": "object"}), json!({})),
            (json!({}), json!({})),
            (
                json!({"type": "object", "required": ["a", "b"], "properties": {
                    "a": {"type": "string", "minLength": 9},
                    "b": {"type": "integer", "minimum": 5},
                    "c": {"type": "string"},
                }}),
                json!({"a": "exampleaa", "b": 5}),
            ),
            (
                json!({"required": ["a"], "properties": {"a": {"enum": ["x", "y"]}}}),
                json!({"a": "x"}),
            ),
            (
                json!({"type": "object", "required": ["a"], "properties": {
                    "a": {"type": "array", "minItems": 2, "items": {"type": ["null", "boolean"]}},
                }}),
                json!({"a": [true, true]}),
            ),
            (
                json!({"type": "object", "required": ["a", "b", "c", "d"], "properties": {
                    "a": {"anyOf": [{"type": "number", "maximum": 0.5}]},
                    "b": {"const": 7},
                    "c": {"type": "string", "maxLength": 2},
                    "d": {"type": "string", "default": "e"},
                }}),
                json!({"a": 0.5, "b": 7, "c": "ex", "d": "e"}),
            ),
        ] {
            assert_eq!(fitting(&schema), expected, "{schema}");
        }
    }

    #[test]
    fn a_schema_without_end_has_an_end() {
        let mut schema = json!({"type": "string"});
        for _ in 0..100 {
            schema = json!({"required": ["a"], "properties": {"a": schema}});
        }
        assert!(fitting(&schema).is_object());
    }

    #[test]
    fn what_is_wrong_is_wrong_in_one_way_each() {
        let schema = json!({"required": ["a"], "properties": {"a": {"type": "string"}}});
        let wrong_ones = wrong(&schema);
        assert_eq!(wrong_ones, [json!({}), json!({"a": {"not": "a string"}})]);
        let schema = json!({"properties": {"a": {"type": "integer"}}});
        assert_eq!(wrong(&schema), [json!({"a": "\u{0}not this type"})]);
        assert_eq!(wrong(&json!({"type": "object"})), [] as [Value; 0]);
    }
}
