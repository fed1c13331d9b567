//! What a command takes, read from the schema of the operation's request.
//!
//! The types of the interface are the only place that says what a request can
//! hold; a flag exists because a field does. Only the forms of JSON Schema
//! that those types have are known here; others become text.

use fluffy_api::{Operation, Spec};
use schemars::SchemaGenerator;
use serde_json::{Map, Value};

/// One field of a request, as it is typed.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    /// Its name in the request.
    pub(crate) name: String,
    /// The object in the request that it belongs to, if it is not the body.
    pub(crate) within: Option<String>,
    pub(crate) kind: FieldKind,
    pub(crate) required: bool,
    /// Whether an empty text takes it away.
    pub(crate) nullable: bool,
    pub(crate) help: String,
}

/// What a field can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FieldKind {
    Text,
    Number,
    /// Bytes, written with a unit.
    Size,
    /// Seconds, written with a unit.
    Duration,
    Flag,
    Words(Vec<String>),
    Texts,
    /// Names with numbers; `default` is null.
    Numbers,
    /// Names with texts.
    Pairs,
    /// The text of a file that is named.
    File,
}

impl Field {
    /// The flag, without its dashes.
    pub(crate) fn flag(&self) -> String {
        let plain = match self.name.as_str() {
            // `--project` is a folder, for every command.
            "project" => "in-project",
            "process_types" => "process",
            // `--timeout` is how long the command waits.
            "timeout_seconds" => "rollout-timeout",
            "to_release" => "to",
            name if matches!(self.kind, FieldKind::Texts | FieldKind::Pairs) => {
                name.strip_suffix('s').unwrap_or(name)
            }
            name => ["_id", "_seconds", "_bytes"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .unwrap_or(name),
        };
        plain.replace('_', "-")
    }
}

/// The fields of what an operation takes.
pub(crate) fn fields(spec: &Spec) -> Vec<Field> {
    let Some(request) = spec.request else {
        return Vec::new();
    };
    let mut generator = SchemaGenerator::default();
    let schema = request(&mut generator).to_value();
    let definitions = generator.take_definitions(false);
    let mut found = Vec::new();
    object(&schema, None, &definitions, &mut found);
    // What is needed comes first, in the order of its type.
    let needed = resolve(&schema, &definitions).get("required");
    let needed = needed
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let place = |field: &Field| needed.iter().position(|name| *name == field.name);
    // Whether JSON keeps the order of its names depends on who else is built.
    found.sort_by_cached_key(|field| {
        let place = place(field).unwrap_or(usize::MAX);
        (place, field.within.clone(), field.name.clone())
    });
    found
}

/// What an operation answers with, such as `AppList`.
pub(crate) fn kind(operation: Operation) -> String {
    let schema = (operation.spec().response)(&mut SchemaGenerator::default()).to_value();
    let name = schema
        .get("$ref")
        .and_then(Value::as_str)
        .unwrap_or_default();
    name.rsplit('/').next().unwrap_or_default().to_owned()
}

fn object(
    schema: &Value,
    within: Option<&str>,
    definitions: &Map<String, Value>,
    found: &mut Vec<Field>,
) {
    let schema = resolve(schema, definitions);
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return;
    };
    let required = schema.get("required").and_then(Value::as_array);
    for (name, property) in properties {
        let resolved = resolve(property, definitions);
        if resolved.get("properties").is_some() && within.is_none() {
            object(resolved, Some(name), definitions, found);
            continue;
        }
        let described = property
            .get("description")
            .or_else(|| resolved.get("description"));
        let help = described.and_then(Value::as_str).unwrap_or_default();
        let kind = kind_of(name, resolved);
        found.push(Field {
            name: name.clone(),
            within: within.map(str::to_owned),
            help: as_typed(&kind, first_sentence(help)),
            kind,
            required: required.is_some_and(|names| names.iter().any(|each| each == name)),
            nullable: is_nullable(property),
        });
    }
}

/// What a reference leads to; the form that is not null, where there are two.
fn resolve<'a>(schema: &'a Value, definitions: &'a Map<String, Value>) -> &'a Value {
    if let Some(Value::String(target)) = schema.get("$ref") {
        let name = target.rsplit('/').next().unwrap_or_default();
        return definitions.get(name).unwrap_or(schema);
    }
    let forms = schema.get("anyOf").and_then(Value::as_array);
    let real = forms.and_then(|forms| forms.iter().find(|form| !is_null(form)));
    real.map_or(schema, |form| resolve(form, definitions))
}

fn kind_of(name: &str, schema: &Value) -> FieldKind {
    if ["manifest", "rules"].contains(&name) {
        return FieldKind::File;
    }
    let words = words(schema);
    if !words.is_empty() {
        return FieldKind::Words(words);
    }
    let is = |kind: &str| match schema.get("type") {
        Some(Value::String(text)) => text == kind,
        Some(Value::Array(kinds)) => kinds.iter().any(|each| each == kind),
        _ => false,
    };
    match name {
        _ if is("boolean") => FieldKind::Flag,
        _ if is("array") => FieldKind::Texts,
        _ if is("object") && of_texts(schema) => FieldKind::Pairs,
        _ if is("object") => FieldKind::Numbers,
        name if is("integer") && name.ends_with("_bytes") => FieldKind::Size,
        name if is("integer") && name.ends_with("_seconds") => FieldKind::Duration,
        _ if is("integer") => FieldKind::Number,
        _ => FieldKind::Text,
    }
}

/// Whether what an object has is text, under any name.
fn of_texts(schema: &Value) -> bool {
    let kind = schema.pointer("/additionalProperties/type");
    kind.is_some_and(|kind| kind == "string")
}

fn words(schema: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(Value::Array(words)) = schema.get("enum") {
        return words.iter().filter_map(text).collect();
    }
    let forms = schema.get("oneOf").and_then(Value::as_array);
    let words = forms.into_iter().flatten();
    words
        .filter_map(|form| form.get("const").and_then(text))
        .collect()
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "null")
}

fn is_nullable(schema: &Value) -> bool {
    let kinds = schema.get("type").and_then(Value::as_array);
    let forms = schema.get("anyOf").and_then(Value::as_array);
    kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "null"))
        || forms.is_some_and(|forms| forms.iter().any(is_null))
}

/// In NAME=N a word stands for null, which the help of the API speaks of.
fn as_typed(kind: &FieldKind, help: String) -> String {
    match kind {
        FieldKind::Numbers => help
            .replace("null for what", "`default` for what")
            .replace("null for no", "none for no"),
        _ => help,
    }
}

/// Help is a line without a full stop.
pub(crate) fn first_sentence(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    paragraph
        .replace('\n', " ")
        .trim_end_matches('.')
        .to_owned()
}
