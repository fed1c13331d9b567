//! The reference for people: one short table per resource.
//!
//! Next: `super`, for the document that programs read.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::tag;
use crate::operation::{Need, Operation, Precondition, Spec};
use crate::problem::CODES;

/// The reference, as Markdown.
#[must_use]
pub fn reference() -> String {
    let mut by_tag: BTreeMap<&str, Vec<&Spec>> = BTreeMap::new();
    for operation in Operation::ALL {
        let spec = operation.spec();
        by_tag.entry(tag(spec)).or_default().push(spec);
    }
    let mut text = String::from(INTRODUCTION);
    for (tag, specs) in by_tag {
        let _ = write!(text, "\n## {tag}\n\n{HEAD}");
        for spec in specs {
            let _ = writeln!(
                text,
                "| `{}`: {} | `{} {}` | {} | {} | {} |",
                spec.id,
                spec.summary,
                spec.method.as_str(),
                spec.path,
                spec.capability.map_or_else(|| "none".to_owned(), quoted),
                command(spec.cli),
                remarks(spec),
            );
        }
    }
    text.push_str(CODES_HEAD);
    for code in CODES {
        let again = if code.retryable { "yes" } else { "no" };
        let _ = writeln!(
            text,
            "| {} | `{}` | {} | {again} |",
            code.status, code.code, code.title
        );
    }
    text
}

fn quoted(text: &str) -> String {
    format!("`{text}`")
}

fn command(cli: &str) -> String {
    match cli.strip_prefix("no: ") {
        Some(reason) => format!("none: {reason}"),
        None => format!("`fluffy {cli}`"),
    }
}

fn remarks(spec: &Spec) -> String {
    let mut remarks: Vec<String> = spec.errors.iter().copied().map(quoted).collect();
    if spec.idempotency == Need::Required {
        remarks.insert(0, "needs `Idempotency-Key`".into());
    }
    if spec.precondition == Precondition::Required {
        remarks.insert(0, "needs `If-Match` or `expected_version`".into());
    }
    remarks.join(", ")
}

const HEAD: &str = "\
| operation | call | capability | command | refusals of its own |
| --- | --- | --- | --- | --- |
";

const INTRODUCTION: &str = "\
# API reference

Every operation of the HTTP API, by resource. \
The whole of it, with every object, is `openapi.json` beside this file; a server answers it at `/v1/openapi.json`.
Paths take an id or a name wherever `{…}` stands.

- A write may carry `Idempotency-Key` (8 to 128 characters): the same key and body get the same answer again, for 24 hours.
- A change may carry `If-Match: \"<version>\"`, or `expected_version` in its body.
- A write answers with `Fluffy-Seq`. A read that sends it as `Fluffy-Min-Seq` sees the write, on every replica.
- A list takes `limit` (1 to 200) and `cursor`; with `Accept: text/event-stream` it streams changes.
- A refusal is `application/problem+json` with a `code` of the last table.
";

const CODES_HEAD: &str = "
## Codes

| status | code | meaning | may succeed later |
| --- | --- | --- | --- |
";
