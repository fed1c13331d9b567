//! JSON schemas that every provider takes.
//!
//! Written from the argument types, then reduced to what all of them read the
//! same way: no references, no `null` beside a type, enums as plain lists.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// The schema of one tool's arguments.
#[must_use]
pub(crate) fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    simplify(&mut schema);
    if let Value::Object(root) = &mut schema {
        // What the tool is says its summary.
        root.remove("description");
        root.entry("properties")
            .or_insert_with(|| Value::Object(Map::new()));
    }
    schema
}

/// The arguments in one line, for a message: `{path: string, depth?: integer}`.
#[must_use]
pub(crate) fn signature(schema: &Value) -> String {
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return "{}".to_owned();
    };
    // By name, whichever order this build of the JSON library keeps.
    let mut properties: Vec<(&String, &Value)> = properties.iter().collect();
    properties.sort_by_key(|(name, _)| *name);
    let fields = properties.into_iter().map(|(name, field)| {
        let mark = if required.contains(&name.as_str()) {
            ""
        } else {
            "?"
        };
        format!("{name}{mark}: {}", kind(field))
    });
    format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
}

fn kind(field: &Value) -> String {
    if let Some(words) = field.get("enum").and_then(Value::as_array) {
        let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
        return words.join("|");
    }
    match field.get("type").and_then(Value::as_str) {
        Some("array") => format!("[{}]", kind(field.get("items").unwrap_or(&Value::Null))),
        Some(kind) => kind.to_owned(),
        None => "any".to_owned(),
    }
}

fn simplify(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for key in ["title", "format", "default"] {
                // Only where it describes: a property may be called the same.
                if object.get(key).is_some_and(|value| !value.is_object()) {
                    object.remove(key);
                }
            }
            without_null(object);
            plain_enum(object);
            object.values_mut().for_each(simplify);
        }
        Value::Array(list) => list.iter_mut().for_each(simplify),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `type: [integer, null]` and `anyOf: [X, null]` become the one that is left.
fn without_null(object: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".to_owned(), only);
        }
    }
    let Some(Value::Array(choices)) = object.get_mut("anyOf") else {
        return;
    };
    choices.retain(|choice| choice.get("type").is_none_or(|name| name != "null"));
    if let [Value::Object(only)] = choices.as_slice() {
        let only = only.clone();
        object.remove("anyOf");
        for (key, value) in only {
            object.entry(key).or_insert(value);
        }
    }
}

/// `oneOf` of single words, each with its own text, becomes one list of words.
fn plain_enum(object: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = object.get("oneOf") else {
        return;
    };
    let word = |choice: &Value| {
        let word = choice.get("const").cloned();
        let meaning = choice.get("description").and_then(Value::as_str);
        word.map(|word| (word, meaning.unwrap_or_default().to_owned()))
    };
    let Some(words) = choices.iter().map(word).collect::<Option<Vec<_>>>() else {
        return;
    };
    let meanings = words.iter().map(|(word, meaning)| {
        let word = word.as_str().unwrap_or_default();
        format!("`{word}`: {}", meaning.trim_end_matches('.').to_lowercase())
    });
    let meanings = meanings.collect::<Vec<_>>().join("; ");
    let before = object.get("description").and_then(Value::as_str);
    let text = format!("{} {meanings}", before.unwrap_or_default());
    object.insert(
        "description".to_owned(),
        Value::String(text.trim().to_owned()),
    );
    object.insert("type".to_owned(), Value::String("string".to_owned()));
    let words = words.into_iter().map(|(word, _)| word).collect();
    object.insert("enum".to_owned(), Value::Array(words));
    object.remove("oneOf");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{CompletePlan, ReadFile, RequestExemption, SearchText};

    #[test]
    fn schemas_use_only_what_all_providers_read() {
        let all = [
            of::<ReadFile>(),
            of::<SearchText>(),
            of::<CompletePlan>(),
            of::<RequestExemption>(),
        ];
        for schema in all {
            let text = schema.to_string();
            for word in [
                "$ref", "$defs", "$schema", "anyOf", "oneOf", "null", "format", "title",
            ] {
                assert!(!text.contains(&format!("\"{word}\"")), "{word} in {text}");
            }
            assert_eq!(schema["type"], "object");
            assert_eq!(schema["additionalProperties"], false);
        }
        assert_eq!(
            of::<CompletePlan>()["properties"]["kind"]["enum"],
            serde_json::json!(["change", "refactor"])
        );
    }

    #[test]
    fn a_signature_fits_in_a_message() {
        assert_eq!(
            signature(&of::<ReadFile>()),
            "{line_count?: integer, path: string, start_line?: integer}"
        );
        assert_eq!(signature(&of::<crate::arguments::Nothing>()), "{}");
        assert!(signature(&of::<RequestExemption>()).contains("category: config_change|"));
    }
}
