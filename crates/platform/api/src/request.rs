//! Checks what a caller sent against what the document says.
//!
//! The same schemas that are published refuse a request, all problems at once
//! and each with its field. Only the words of JSON Schema that our own types
//! use are known here; a test fails on any other. Decides nothing else.
//! Next: `openapi`, which publishes the schemas.

use std::collections::BTreeMap;

use fluffy_base::Timestamp;
use regex::Regex;
use serde_json::{Map, Value};

use crate::openapi::{PATH_VALUE, Schemas};
use crate::operation::{Operation, ParamKind, Spec};
use crate::problem::{FieldProblem, Problem};

/// The most problems that are told at once.
const MOST: usize = 20;

/// Checks requests; made once.
#[derive(Debug)]
pub struct Requests {
    bodies: BTreeMap<Operation, Value>,
    definitions: Map<String, Value>,
    patterns: BTreeMap<String, Regex>,
}

impl Requests {
    /// A checker of every operation's requests.
    #[must_use]
    pub fn new() -> Self {
        let mut schemas = Schemas::new();
        let bodies: BTreeMap<_, _> = Operation::ALL
            .iter()
            .filter_map(|operation| {
                let schema = (operation.spec().request?)(&mut schemas.requests);
                Some((*operation, schema.to_value()))
            })
            .collect();
        let definitions = schemas.requests.take_definitions(true);
        let mut patterns = BTreeMap::new();
        for definition in definitions.values() {
            find_patterns(definition, &mut patterns);
        }
        add_pattern(PATH_VALUE, &mut patterns);
        Self {
            bodies,
            definitions,
            patterns,
        }
    }

    /// Checks a body against what its operation takes.
    ///
    /// # Errors
    /// `unknown_field` if that is all that is wrong, else `invalid_argument`.
    pub fn check_body(&self, operation: Operation, body: &Value) -> Result<(), Box<Problem>> {
        let Some(schema) = self.bodies.get(&operation) else {
            return Ok(());
        };
        let mut problems = Vec::new();
        self.check(schema, body, "", &mut problems);
        refuse(problems, "body")
    }

    /// Checks what the path names.
    ///
    /// # Errors
    /// `invalid_argument`: what neither an id nor a name can be.
    pub fn check_path(&self, spec: &Spec, values: &[String]) -> Result<(), Box<Problem>> {
        let fits = |value: &String| {
            let pattern = self.patterns.get(PATH_VALUE);
            pattern.is_some_and(|pattern| pattern.is_match(value))
        };
        let problems = spec
            .path_params()
            .zip(values)
            .filter(|(_, value)| !fits(value))
            .map(|(name, _)| problem(name, "is neither an id nor a name"))
            .collect();
        refuse(problems, "path")
    }

    fn check(&self, schema: &Value, value: &Value, field: &str, problems: &mut Vec<FieldProblem>) {
        if problems.len() >= MOST {
            return;
        }
        let Some(schema) = schema.as_object() else {
            return;
        };
        if let Some(target) = self.target(schema) {
            self.check(target, value, field, problems);
        }
        for forms in ["anyOf", "oneOf"] {
            if let Some(Value::Array(forms)) = schema.get(forms) {
                self.check_forms(forms, value, field, problems);
            }
        }
        if let Some(word) = schema.get("const")
            && word != value
        {
            problems.push(problem(field, &format!("must be {word}")));
            return;
        }
        if let Some(kinds) = schema.get("type")
            && !is_of(kinds, value)
        {
            problems.push(problem(field, &format!("must be {}", kind_text(kinds))));
            return;
        }
        if let Some(Value::Array(words)) = schema.get("enum")
            && !words.contains(value)
        {
            problems.push(not_one_of(field, words.iter()));
        }
        match value {
            Value::Object(fields) => self.check_object(schema, fields, field, problems),
            Value::Array(items) => {
                self.check_size(schema, "Items", items.len(), field, problems);
                if let Some(of) = schema.get("items") {
                    for (index, item) in items.iter().enumerate() {
                        self.check(of, item, &format!("{field}[{index}]"), problems);
                    }
                }
            }
            Value::String(text) => self.check_text(schema, text, field, problems),
            Value::Number(number) => check_number(schema, number, field, problems),
            Value::Bool(_) | Value::Null => {}
        }
    }

    fn target(&self, schema: &Map<String, Value>) -> Option<&Value> {
        let reference = schema.get("$ref")?.as_str()?;
        self.definitions.get(reference.rsplit('/').next()?)
    }

    /// One of the forms must fit; if none does, the first says why.
    fn check_forms(
        &self,
        forms: &[Value],
        value: &Value,
        field: &str,
        problems: &mut Vec<FieldProblem>,
    ) {
        let mut first = None;
        for form in forms {
            let mut found = Vec::new();
            self.check(form, value, field, &mut found);
            if found.is_empty() {
                return;
            }
            first.get_or_insert(found);
        }
        let mut words = forms.iter().filter_map(|form| form.get("const")).peekable();
        match words.peek() {
            Some(_) => problems.push(not_one_of(field, words)),
            None => problems.extend(first.into_iter().flatten()),
        }
    }

    fn check_object(
        &self,
        schema: &Map<String, Value>,
        fields: &Map<String, Value>,
        field: &str,
        problems: &mut Vec<FieldProblem>,
    ) {
        let known = schema.get("properties").and_then(Value::as_object);
        if let Some(Value::Array(required)) = schema.get("required") {
            let missing = required.iter().filter_map(Value::as_str);
            for name in missing.filter(|name| !fields.contains_key(*name)) {
                problems.push(problem(&below(field, name), "is missing"));
            }
        }
        self.check_size(schema, "Properties", fields.len(), field, problems);
        for (name, value) in fields {
            let name_field = below(field, name);
            if let Some(of) = known.and_then(|known| known.get(name)) {
                self.check(of, value, &name_field, problems);
                continue;
            }
            match schema.get("additionalProperties") {
                Some(Value::Bool(false)) => problems.push(unknown(&name_field, known, name)),
                Some(of) => self.check(of, value, &name_field, problems),
                None => {}
            }
            if let Some(of) = schema.get("propertyNames") {
                self.check(of, &Value::String(name.clone()), &name_field, problems);
            }
        }
    }

    fn check_size(
        &self,
        schema: &Map<String, Value>,
        what: &str,
        size: usize,
        field: &str,
        problems: &mut Vec<FieldProblem>,
    ) {
        let bound = |side: &str| schema.get(&format!("{side}{what}"))?.as_u64();
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        if let Some(least) = bound("min").filter(|least| size < *least) {
            problems.push(problem(field, &format!("must have at least {least}")));
        }
        if let Some(most) = bound("max").filter(|most| size > *most) {
            problems.push(problem(field, &format!("must have at most {most}")));
        }
    }

    fn check_text(
        &self,
        schema: &Map<String, Value>,
        text: &str,
        field: &str,
        problems: &mut Vec<FieldProblem>,
    ) {
        self.check_size(schema, "Length", text.chars().count(), field, problems);
        if let Some(Value::String(pattern)) = schema.get("pattern") {
            let compiled = self.patterns.get(pattern);
            if !compiled.is_some_and(|pattern| pattern.is_match(text)) {
                problems.push(problem(field, &format!("must have the form `{pattern}`")));
            }
        }
        let is_time = schema.get("format").and_then(Value::as_str) == Some("date-time");
        if is_time && text.parse::<Timestamp>().is_err() {
            problems.push(problem(
                field,
                "must be a UTC time such as 2026-11-15T08:00:00Z",
            ));
        }
    }
}

impl Default for Requests {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads what stands behind the question mark.
///
/// # Errors
/// `unknown_parameter` for what the operation does not take, and
/// `invalid_argument` for a wrong value or one that is there twice.
pub fn query(
    spec: &Spec,
    pairs: impl IntoIterator<Item = (String, String)>,
) -> Result<BTreeMap<String, String>, Box<Problem>> {
    let mut values = BTreeMap::new();
    let mut problems = Vec::new();
    for (name, value) in pairs {
        let Some(param) = spec.params().find(|param| param.name == name) else {
            let known: Vec<_> = spec.params().map(|param| param.name).collect();
            let name: String = name.chars().take(64).collect();
            return Err(Box::new(Problem::new(
                "unknown_parameter",
                format!("`{}` takes no parameter `{name}`", spec.id),
                match known.is_empty() {
                    true => "leave it out".to_owned(),
                    false => format!("it takes {}", known.join(", ")),
                },
            )));
        };
        if let Some(wrong) = wrong_value(param.kind, &value) {
            problems.push(problem(param.name, &wrong));
        }
        if values.insert(name, value).is_some() {
            problems.push(problem(param.name, "is there twice"));
        }
    }
    refuse(problems, "query").map(|()| values)
}

fn wrong_value(kind: ParamKind, value: &str) -> Option<String> {
    match kind {
        ParamKind::Text => {
            (value.is_empty() || value.chars().count() > 256 || value.chars().any(char::is_control))
                .then(|| "must be a plain text of 1 to 256 characters".into())
        }
        ParamKind::Place => {
            let fits = (1..=4_096).contains(&value.len());
            (!fits || !value.bytes().all(|byte| byte.is_ascii_graphic()))
                .then(|| "must be what an answer named, of 1 to 4096 characters".into())
        }
        ParamKind::Word(words) => {
            (!words.contains(&value)).then(|| format!("must be one of {}", words.join(", ")))
        }
        ParamKind::Number(least, most) => {
            let digits = value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse::<u64>().ok().filter(|_| digits);
            (!number.is_some_and(|number| (least..=most).contains(&number)))
                .then(|| format!("must be a whole number from {least} to {most}"))
        }
        ParamKind::Flag => {
            (!["true", "false"].contains(&value)).then(|| "must be true or false".into())
        }
        ParamKind::Time => value
            .parse::<Timestamp>()
            .is_err()
            .then(|| "must be a UTC time such as 2026-11-15T08:00:00Z".into()),
    }
}

fn refuse(mut problems: Vec<FieldProblem>, part: &str) -> Result<(), Box<Problem>> {
    problems.sort_by(|one, other| one.field.cmp(&other.field));
    let Some(first) = problems.first() else {
        return Ok(());
    };
    let all_unknown = problems
        .iter()
        .all(|problem| problem.code == "unknown_field");
    let code = match all_unknown {
        true => "unknown_field",
        false => "invalid_argument",
    };
    let field = match first.field.as_str() {
        "" => format!("the {part}"),
        field => format!("`{field}`"),
    };
    let mut refusal = Problem::new(
        code,
        format!("{field} {}", first.message),
        "see `errors` for each field, and /v1/openapi.json for what fits",
    );
    refusal.errors = problems;
    Err(Box::new(refusal))
}

fn problem(field: &str, message: &str) -> FieldProblem {
    FieldProblem {
        code: "invalid_argument".into(),
        field: field.chars().take(200).collect(),
        message: message.into(),
        line: None,
        column: None,
    }
}

fn not_one_of<'a>(field: &str, words: impl Iterator<Item = &'a Value>) -> FieldProblem {
    let known: Vec<_> = words.filter_map(Value::as_str).collect();
    problem(field, &format!("must be one of {}", known.join(", ")))
}

fn unknown(field: &str, known: Option<&Map<String, Value>>, name: &str) -> FieldProblem {
    let near = known
        .into_iter()
        .flat_map(Map::keys)
        .find(|known| known.starts_with(name) || name.starts_with(known.as_str()));
    let message = match near {
        Some(near) => format!("does not exist; perhaps `{near}`"),
        None => "does not exist".into(),
    };
    FieldProblem {
        code: "unknown_field".into(),
        ..problem(field, &message)
    }
}

fn below(field: &str, name: &str) -> String {
    match field {
        "" => name.to_owned(),
        _ => format!("{field}.{name}"),
    }
}

fn is_of(kinds: &Value, value: &Value) -> bool {
    let is = |kind: &Value| match kind.as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("null") => value.is_null(),
        _ => false,
    };
    match kinds {
        Value::Array(kinds) => kinds.iter().any(is),
        kind => is(kind),
    }
}

fn kind_text(kinds: &Value) -> String {
    let kinds = match kinds {
        Value::Array(kinds) => kinds.as_slice(),
        kind => std::slice::from_ref(kind),
    };
    let words: Vec<_> = kinds.iter().filter_map(Value::as_str).collect();
    format!("of type {}", words.join(" or "))
}

fn check_number(
    schema: &Map<String, Value>,
    number: &serde_json::Number,
    field: &str,
    problems: &mut Vec<FieldProblem>,
) {
    let width = match schema.get("format").and_then(Value::as_str) {
        Some("uint16") => Some(u64::from(u16::MAX)),
        Some("uint32") => Some(u64::from(u32::MAX)),
        // Above this a number is another one in other programs.
        Some("uint64") => Some((1 << 53) - 1),
        _ => None,
    };
    let most = schema.get("maximum").and_then(Value::as_u64).or(width);
    let least = schema.get("minimum").and_then(Value::as_u64);
    let is_low = least.is_some_and(|least| number.as_u64().is_none_or(|number| number < least));
    let is_high = most.is_some_and(|most| number.as_u64().is_some_and(|number| number > most));
    match (least, most) {
        (Some(least), Some(most)) if is_low || is_high => {
            problems.push(problem(field, &format!("must be from {least} to {most}")));
        }
        (Some(least), _) if is_low => {
            problems.push(problem(field, &format!("must be at least {least}")));
        }
        (_, Some(most)) if is_high => {
            problems.push(problem(field, &format!("must be at most {most}")));
        }
        _ => {}
    }
}

fn find_patterns(schema: &Value, patterns: &mut BTreeMap<String, Regex>) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(pattern)) = fields.get("pattern") {
                add_pattern(pattern, patterns);
            }
            fields
                .values()
                .for_each(|field| find_patterns(field, patterns));
        }
        Value::Array(items) => items.iter().for_each(|item| find_patterns(item, patterns)),
        _ => {}
    }
}

/// A pattern that cannot be compiled matches nothing; a test looks for one.
fn add_pattern(pattern: &str, patterns: &mut BTreeMap<String, Regex>) {
    if let Ok(compiled) = Regex::new(pattern) {
        patterns.insert(pattern.to_owned(), compiled);
    }
}

#[cfg(test)]
mod tests;
