//! JSON Schemas of tools' arguments.
//!
//! A keyword that nobody knows is refused, since it would look like a check and
//! be none; so is a reference that leads out of the schema. Settings have a
//! smaller form, in `settings`.

use fluffy_policy::reader::{Reader, nearest};
use fluffy_policy::yaml::{Key, Node, Value as Yaml};
use serde_json::{Map, Number, Value};

/// Reads a schema.
pub(super) fn read(reader: &mut Reader, node: &Node<'_>) -> Option<Value> {
    Walk { reader }.schema(node);
    let schema = to_json(node);
    let object = matches!(schema.get("type"), None | Some(Value::String(_)))
        && schema.get("type").is_none_or(|kind| kind == "object");
    if schema.is_object() && !object {
        reader.findings.error(
            node.place,
            "the schema is not about an object",
            "arguments have names",
            "write `type: object` and `properties:`",
        );
    }
    schema.is_object().then_some(schema)
}

/// Keywords whose value is one schema.
const ONE: &[&str] = &[
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is a list of schemas.
const LISTS: &[&str] = &["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords whose value is schemas by name.
const NAMED: &[&str] = &[
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
    "properties",
];
/// Keywords whose value is no schema.
const OTHERS: &[&str] = &[
    "$comment",
    "$ref",
    "$schema",
    "const",
    "default",
    "dependentRequired",
    "deprecated",
    "description",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "readOnly",
    "required",
    "secret",
    "title",
    "type",
    "uniqueItems",
    "writeOnly",
];
const TYPES: &[&str] = &[
    "array", "boolean", "integer", "null", "number", "object", "string",
];

struct Walk<'r> {
    reader: &'r mut Reader,
}

impl Walk<'_> {
    /// One schema; the depth of the text bounds how deep this goes.
    fn schema(&mut self, node: &Node<'_>) {
        if let Yaml::Text { text, plain: true } = &node.value
            && matches!(&**text, "true" | "false")
        {
            return;
        }
        let Some(fields) = self.reader.entries(node, "a schema") else {
            return;
        };
        for (key, node) in fields.iter() {
            match &*key.text {
                name if ONE.contains(&name) => self.schema(node),
                name if LISTS.contains(&name) => {
                    let items = self.reader.list(node, &format!("`{name}`"));
                    for item in items.unwrap_or_default() {
                        self.schema(item);
                    }
                }
                name if NAMED.contains(&name) => {
                    let entries = self.reader.entries(node, &format!("`{name}`"));
                    for (_, node) in entries.iter().flat_map(|entries| entries.iter()) {
                        self.schema(node);
                    }
                }
                "secret" => self.secret(node),
                "type" => self.kind(node),
                "$ref" => self.reference(node),
                name if OTHERS.contains(&name) || name.starts_with("x-") => {}
                _ => self.unknown(key),
            }
        }
    }

    fn secret(&mut self, node: &Node<'_>) {
        let why = "a model sees the arguments of a tool";
        let help = "mark a property of `config_schema`";
        self.reader
            .findings
            .error(node.place, "this cannot be a secret", why, help);
    }

    fn kind(&mut self, node: &Node<'_>) {
        let texts = self.reader.texts(node, "`type`").unwrap_or_default();
        for placed in texts.iter().filter(|placed| !TYPES.contains(&placed.text)) {
            let shown: String = placed.text.chars().take(64).collect();
            self.reader.findings.error(
                placed.place,
                format!("`{shown}` is not a type of JSON"),
                "nothing would ever be of it",
                format!("use one of {}", TYPES.join(", ")),
            );
        }
    }

    fn reference(&mut self, node: &Node<'_>) {
        let Some(placed) = self.reader.text(node, "`$ref`") else {
            return;
        };
        if !placed.text.starts_with("#/") && placed.text != "#" {
            self.reader.findings.error(
                placed.place,
                "this reference leads out of the schema",
                "a manifest says everything itself",
                "refer to `#/$defs/name`",
            );
        }
    }

    fn unknown(&mut self, key: &Key<'_>) {
        let shown: String = key.text.chars().take(64).collect();
        let known = [ONE, LISTS, NAMED, OTHERS].concat();
        self.reader.findings.error(
            key.place,
            format!("`{shown}` is not a keyword of JSON Schema"),
            "a keyword that nobody knows would look like a check and be none",
            match nearest(&shown, &known) {
                Some(word) => format!("did you mean `{word}`?"),
                None => "begin keywords of your own with `x-`".to_owned(),
            },
        );
    }
}

/// The node as JSON; plain words and numbers have their usual types.
pub(super) fn to_json(node: &Node<'_>) -> Value {
    match &node.value {
        Yaml::Null => Value::Null,
        Yaml::Text { text, plain: true } => scalar(text),
        Yaml::Text { text, plain: false } => Value::String(text.to_string()),
        Yaml::List(items) => items.iter().map(to_json).collect(),
        Yaml::Map(entries) => {
            let entries = entries
                .iter()
                .map(|(key, node)| (key.text.to_string(), to_json(node)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
    }
}

fn scalar(text: &str) -> Value {
    // JSON's own numbers and no others: `0o17`, `1_000` and `.5` are texts.
    let number = || serde_json::from_str::<Number>(text).ok();
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        text => number().map_or_else(|| Value::String(text.to_owned()), Value::Number),
    }
}
