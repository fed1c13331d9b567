//! Canonical JSON (RFC 8785) for values whose numbers are integers.
//!
//! Everything we hash is JSON with integers below 2^53 and no fractions, so
//! the one hard part of the RFC, printing doubles as ECMAScript does, never
//! arises: a fraction is refused instead of being printed in our own way.

use serde_json::Value;

/// The largest integer every JSON reader keeps exactly.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// How deep a value may nest before it is refused.
pub const MAX_DEPTH: usize = 64;

/// Why a value has no canonical form here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    /// A number that is not a whole number between −2^53 and 2^53.
    #[error("`{0}` is not a whole number below 2^53; write it as text")]
    Number(String),
    /// Nested too deeply.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    Depth,
}

/// The canonical text of a value.
///
/// # Errors
/// A fraction, an integer beyond 2^53, or nesting deeper than [`MAX_DEPTH`].
pub fn to_string(value: &Value) -> Result<String, CanonicalError> {
    let mut out = String::with_capacity(256);
    write_value(&mut out, value, 0)?;
    Ok(out)
}

/// Appends the canonical text of a value.
///
/// # Errors
/// As [`to_string`]; `out` then holds a part of the text.
pub fn write(out: &mut String, value: &Value) -> Result<(), CanonicalError> {
    write_value(out, value, 0)
}

fn write_value(out: &mut String, value: &Value, depth: usize) -> Result<(), CanonicalError> {
    if depth > MAX_DEPTH {
        return Err(CanonicalError::Depth);
    }
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(out, number)?,
        Value::String(text) => write_text(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, item, depth + 1)?;
            }
            out.push(']');
        }
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            out.push('{');
            for (index, (name, item)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_text(out, name);
                out.push(':');
                write_value(out, item, depth + 1)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn write_number(out: &mut String, number: &serde_json::Number) -> Result<(), CanonicalError> {
    let safe = match (number.as_u64(), number.as_i64()) {
        (Some(n), _) => n <= MAX_SAFE_INTEGER,
        (None, Some(n)) => n.unsigned_abs() <= MAX_SAFE_INTEGER,
        (None, None) => false,
    };
    if !safe {
        return Err(CanonicalError::Number(number.to_string()));
    }
    out.push_str(&number.to_string());
    Ok(())
}

/// Appends a JSON string exactly as RFC 8785 spells it.
pub fn write_text(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    // Runs without a special character are copied whole: most text has none.
    while let Some(at) = rest
        .bytes()
        .position(|b| b < 0x20 || b == b'"' || b == b'\\')
    {
        let (plain, tail) = rest.split_at(at);
        out.push_str(plain);
        let mut tail = tail.chars();
        match tail.next() {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some('\u{8}') => out.push_str("\\b"),
            Some('\t') => out.push_str("\\t"),
            Some('\n') => out.push_str("\\n"),
            Some('\u{c}') => out.push_str("\\f"),
            Some('\r') => out.push_str("\\r"),
            Some(control) => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            None => {}
        }
        rest = tail.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_sorted_by_utf16_units() {
        // The RFC's own example: U+FB33 sorts after U+1F600 in UTF-16 order.
        let value = json!({"\u{fb33}": 1, "\u{1f600}": 2, "1": 3, "\r": 4, "\u{20ac}": 5, "\u{80}": 6, "\u{f6}": 7});
        let text = to_string(&value).unwrap();
        let order: Vec<char> = text.chars().filter(char::is_ascii_digit).collect();
        assert_eq!(text.matches(':').count(), 7);
        assert_eq!(
            order.iter().collect::<String>(),
            "4136".to_owned() + "7" + "5" + "2" + "1"
        );
    }

    #[test]
    fn text_is_escaped_as_the_rfc_says() {
        let text = to_string(&json!("\u{20ac}$\u{f}\u{a}A'\u{42}\u{22}\u{5c}\\\"/")).unwrap();
        assert_eq!(text, "\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"");
    }

    #[test]
    fn what_readers_would_change_is_refused() {
        assert!(matches!(
            to_string(&json!(1.5)),
            Err(CanonicalError::Number(_))
        ));
        assert!(matches!(
            to_string(&json!(MAX_SAFE_INTEGER + 1)),
            Err(CanonicalError::Number(_))
        ));
        assert_eq!(
            to_string(&json!(-9_007_199_254_740_991_i64)).unwrap(),
            "-9007199254740991"
        );
        let deep = (0..70).fold(json!(0), |inner, _| json!([inner]));
        assert_eq!(to_string(&deep), Err(CanonicalError::Depth));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-9_007_199_254_740_991_i64..9_007_199_254_740_991).prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn canonical_text_means_the_same_and_is_a_fixed_point(value in any_value()) {
            let text = to_string(&value).unwrap();
            let back: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&back, &value);
            prop_assert_eq!(to_string(&back).unwrap(), text);
        }
    }
}
