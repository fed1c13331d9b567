//! A schema of somebody else's: made small enough to be checked and sent.
//!
//! Only what is understood here is kept; every provider reads that the same
//! way. What is left out only makes fewer calls fail here: the tool itself is
//! still free to refuse them. References within the schema are put in their
//! place, up to a depth; nothing is ever fetched.

use serde_json::{Map, Value};

use super::line;

/// The most bytes of a schema as it comes.
const MAX_BYTES: usize = 64 * 1024;

/// The most parts of a schema as it is kept.
const MAX_PARTS: usize = 1_000;

/// How deep it may be; below, anything fits.
const MAX_DEPTH: usize = 8;

/// The longest text in it, in characters.
const MAX_TEXT: usize = 300;

/// The most problems that are told at once.
const MAX_PROBLEMS: usize = 3;

/// Words that bound a number or a length.
const BOUNDS: [&str; 6] = [
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
];

const TYPES: [&str; 7] = [
    "array", "boolean", "integer", "null", "number", "object", "string",
];

/// Why a schema is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// It is too large.
    #[error("it has more than {MAX_BYTES} bytes or {MAX_PARTS} parts")]
    TooLarge,
    /// Arguments are always an object.
    #[error("it must be of an object")]
    NoObject,
    /// A word in it has another form than it can have.
    #[error("`{word}` in it is not what JSON Schema says")]
    Malformed {
        /// Which.
        word: &'static str,
    },
    /// It points somewhere else.
    #[error("it refers to what is not in it")]
    Elsewhere,
}

/// The part of a schema that is understood.
pub(super) fn take(schema: &Value) -> Result<Value, SchemaError> {
    if schema.to_string().len() > MAX_BYTES {
        return Err(SchemaError::TooLarge);
    }
    let mut taking = Taking {
        whole: schema,
        parts: 0,
    };
    let mut taken = taking.one(schema, 0)?;
    if taken.get("type").is_some_and(|kind| kind != "object") {
        return Err(SchemaError::NoObject);
    }
    if let Some(object) = taken.as_object_mut() {
        object.insert("type".to_owned(), Value::from("object"));
        object
            .entry("properties")
            .or_insert_with(|| Value::Object(Map::new()));
    }
    Ok(taken)
}

struct Taking<'a> {
    whole: &'a Value,
    parts: usize,
}

impl Taking<'_> {
    fn one(&mut self, schema: &Value, depth: usize) -> Result<Value, SchemaError> {
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return Err(SchemaError::TooLarge);
        }
        let object = match schema {
            // Everything fits, or nothing does; the tool may say which.
            Value::Bool(_) => return Ok(Value::Object(Map::new())),
            Value::Object(object) => object,
            _ => return Err(SchemaError::Malformed { word: "schema" }),
        };
        if depth > MAX_DEPTH {
            return Ok(Value::Object(Map::new()));
        }
        if let Some(reference) = object.get("$ref") {
            let target = self.find(reference)?.clone();
            return self.one(&target, depth + 1);
        }
        let mut taken = Map::new();
        if let Some(Value::String(text)) = object.get("description") {
            let text = line(text, MAX_TEXT);
            taken.insert("description".to_owned(), Value::from(text));
        }
        if let Some(kinds) = object.get("type") {
            taken.insert("type".to_owned(), kind(kinds)?);
        }
        self.words(object, &mut taken)?;
        self.below(object, &mut taken, depth)?;
        self.choices(object, &mut taken, depth)?;
        Ok(Value::Object(taken))
    }

    /// What stands beside a type.
    fn words(
        &mut self,
        object: &Map<String, Value>,
        taken: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        let constant = object.get("const").map(|one| vec![one.clone()]);
        let words = match object.get("enum") {
            Some(Value::Array(words)) => Some(words.clone()),
            Some(_) => return Err(SchemaError::Malformed { word: "enum" }),
            None => constant,
        };
        if let Some(words) = words {
            self.parts = self.parts.saturating_add(words.len());
            let is_plain = |one: &Value| !one.is_array() && !one.is_object();
            if words.is_empty() || !words.iter().all(is_plain) {
                return Err(SchemaError::Malformed { word: "enum" });
            }
            taken.insert("enum".to_owned(), Value::Array(words));
        }
        for word in BOUNDS {
            match object.get(word) {
                None => {}
                Some(bound) if bound.is_number() => {
                    taken.insert(word.to_owned(), bound.clone());
                }
                Some(_) => return Err(SchemaError::Malformed { word }),
            }
        }
        Ok(())
    }

    fn below(
        &mut self,
        object: &Map<String, Value>,
        taken: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), SchemaError> {
        match object.get("properties") {
            None => {}
            Some(Value::Object(fields)) => {
                let mut kept = Map::new();
                for (name, field) in fields {
                    if !is_field(name) {
                        return Err(SchemaError::Malformed { word: "properties" });
                    }
                    kept.insert(name.clone(), self.one(field, depth + 1)?);
                }
                taken.insert("properties".to_owned(), Value::Object(kept));
            }
            Some(_) => return Err(SchemaError::Malformed { word: "properties" }),
        }
        match object.get("required") {
            None => {}
            Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
                taken.insert("required".to_owned(), Value::Array(names.clone()));
            }
            Some(_) => return Err(SchemaError::Malformed { word: "required" }),
        }
        if object.get("additionalProperties") == Some(&Value::Bool(false)) {
            taken.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        if let Some(items @ (Value::Object(_) | Value::Bool(_))) = object.get("items") {
            let items = self.one(items, depth + 1)?;
            taken.insert("items".to_owned(), items);
        }
        Ok(())
    }

    /// Of several forms the one that is not null stands for all; where there
    /// is more than one, anything fits.
    fn choices(
        &mut self,
        object: &Map<String, Value>,
        taken: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), SchemaError> {
        for word in ["anyOf", "oneOf", "allOf"] {
            let choices = match object.get(word) {
                None => continue,
                Some(Value::Array(choices)) => choices,
                Some(_) => return Err(SchemaError::Malformed { word: "anyOf" }),
            };
            let is_null = |choice: &&Value| choice.get("type").is_some_and(|kind| kind == "null");
            let mut real = choices.iter().filter(|choice| !is_null(choice));
            if let (Some(only), None) = (real.next(), real.next())
                && let Value::Object(only) = self.one(only, depth + 1)?
            {
                for (key, value) in only {
                    taken.entry(key).or_insert(value);
                }
            }
        }
        Ok(())
    }

    fn find(&self, reference: &Value) -> Result<&Value, SchemaError> {
        let pointer = reference.as_str().and_then(|text| text.strip_prefix('#'));
        let found = pointer.and_then(|pointer| self.whole.pointer(pointer));
        found.ok_or(SchemaError::Elsewhere)
    }
}

/// A name that stands in a message.
fn is_field(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.$".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(known)
}

/// One type; several are what is left without null, or anything.
fn kind(kinds: &Value) -> Result<Value, SchemaError> {
    let wrong = || SchemaError::Malformed { word: "type" };
    let known = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
    match kinds {
        Value::String(_) if known(kinds) => Ok(kinds.clone()),
        Value::Array(several) if several.iter().all(known) => {
            let mut real = several.iter().filter(|kind| *kind != "null");
            match (real.next(), real.next()) {
                (Some(only), None) => Ok(only.clone()),
                _ => Ok(Value::Array(several.clone())),
            }
        }
        _ => Err(wrong()),
    }
}

/// Whether arguments fit; else what is wrong, for the model to correct.
pub(super) fn check(schema: &Value, arguments: &Value) -> Result<(), String> {
    let mut problems = Vec::new();
    look(schema, arguments, "the arguments", &mut problems);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems.join("; ")),
    }
}

fn look(schema: &Value, value: &Value, place: &str, problems: &mut Vec<String>) {
    if problems.len() >= MAX_PROBLEMS {
        return;
    }
    if let Some(kinds) = schema.get("type") {
        let fits = match kinds {
            Value::Array(several) => several.iter().any(|kind| is_of(kind, value)),
            one => is_of(one, value),
        };
        if !fits {
            problems.push(format!("{place} must be {}", words(kinds)));
            return;
        }
    }
    if let Some(Value::Array(known)) = schema.get("enum")
        && !known.contains(value)
    {
        let known: Vec<String> = known.iter().take(20).map(Value::to_string).collect();
        problems.push(format!("{place} must be one of {}", known.join(", ")));
    }
    bounds(schema, value, place, problems);
    match value {
        Value::Object(fields) => object(schema, fields, place, problems),
        Value::Array(list) => {
            if let Some(items) = schema.get("items") {
                for (number, one) in list.iter().enumerate() {
                    look(items, one, &format!("{place}[{number}]"), problems);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn object(schema: &Value, fields: &Map<String, Value>, place: &str, problems: &mut Vec<String>) {
    let required = schema.get("required").and_then(Value::as_array);
    let required: Vec<&str> = required
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    for name in &required {
        if !fields.contains_key(*name) {
            problems.push(format!("`{name}` is missing in {place}"));
        }
    }
    let known = schema.get("properties").and_then(Value::as_object);
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    for (name, value) in fields {
        match known.and_then(|known| known.get(name)) {
            // What may be left out may be null as well.
            Some(_) if value.is_null() && !required.contains(&name.as_str()) => {}
            Some(field) => look(field, value, &format!("`{}`", line(name, 64)), problems),
            None if is_closed => {
                problems.push(format!("there is no `{}` in {place}", line(name, 64)));
            }
            None => {}
        }
    }
}

fn bounds(schema: &Value, value: &Value, place: &str, problems: &mut Vec<String>) {
    let (measure, least, most) = match value {
        Value::Number(number) => (number.as_f64(), "minimum", "maximum"),
        Value::String(text) => {
            let length = u32::try_from(text.chars().count()).ok();
            (length.map(f64::from), "minLength", "maxLength")
        }
        Value::Array(list) => {
            let length = u32::try_from(list.len()).ok();
            (length.map(f64::from), "minItems", "maxItems")
        }
        Value::Null | Value::Bool(_) | Value::Object(_) => return,
    };
    let bound = |word: &str| schema.get(word).and_then(Value::as_f64);
    let Some(measure) = measure else {
        return;
    };
    if let Some(least) = bound(least).filter(|least| measure < *least) {
        problems.push(format!("{place} is below the least, {least}"));
    }
    if let Some(most) = bound(most).filter(|most| measure > *most) {
        problems.push(format!("{place} is above the most, {most}"));
    }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str() {
        Some("array") => value.is_array(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|one| one.fract() == 0.0)
        }
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("object") => value.is_object(),
        Some("string") => value.is_string(),
        _ => true,
    }
}

fn words(kinds: &Value) -> String {
    match kinds {
        Value::Array(several) => {
            let words: Vec<&str> = several.iter().filter_map(Value::as_str).collect();
            words.join(" or ")
        }
        one => one.as_str().unwrap_or("something else").to_owned(),
    }
}
