//! The OpenAPI 3.1 document and the reference, made of the table.
//!
//! Nothing is written by hand twice: an operation, a type or a code that is not
//! in the table is not in the document. JSON Schema 2020-12 is the dialect of
//! both sides. Next: `operation/table.rs`.

mod links;
mod reference;

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::operation::{
    Auth, Kind, Need, Operation, Param, ParamKind, Precondition, READ_PARAMS, Spec,
};
use crate::problem::{Code, Problem};
use crate::types::{Parked, Receipt};

pub use reference::reference;

/// The version of the interface: a breaking change raises the first number.
pub const VERSION: &str = "1.0.0";

/// The document.
#[must_use]
pub fn document() -> Value {
    let mut schemas = Schemas::new();
    let mut paths: Map<String, Value> = Map::new();
    for operation in Operation::ALL {
        let spec = operation.spec();
        let item = paths
            .entry(spec.path)
            .or_insert_with(|| json!({ "parameters": path_parameters(spec) }));
        if let Value::Object(item) = item {
            item.insert(
                spec.method.as_str().to_lowercase(),
                describe(*operation, &mut schemas),
            );
        }
    }
    let problem = schemas.answers.subschema_for::<Problem>();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "fluffy",
            "version": VERSION,
            "description": DESCRIPTION,
            "license": { "name": "MIT", "identifier": "MIT" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }],
        "tags": tags(),
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `POST /v1/auth/token` or `POST /v1/orgs/{org}/tokens`. Calls on the local socket need none.",
                },
            },
            "parameters": header_parameters(),
            "headers": answer_headers(),
            "responses": { "Problem": {
                "description": "A refusal.",
                "headers": shared_headers(&["Fluffy-Request-Id", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]),
                "content": { "application/problem+json": { "schema": problem } },
            }},
            "schemas": schemas.definitions(),
        },
    })
}

/// The resource that an operation is about, as its path names it.
#[must_use]
pub fn tag(spec: &Spec) -> &'static str {
    let mut parts = spec.path.split('/').skip(2);
    let mut tag = parts.next().unwrap_or_default();
    // Orgs, apps and envs contain others; everything below those is one tag.
    while ["orgs", "apps", "envs"].contains(&tag) && parts.next().is_some() {
        match parts.next() {
            Some(below) => tag = below,
            None => break,
        }
    }
    tag.trim_end_matches(".json")
}

/// The codes that an operation can refuse with, by status.
#[must_use]
pub fn refusals(spec: &Spec) -> BTreeMap<u16, Vec<&'static str>> {
    let mut codes = vec![
        "internal",
        "invalid_argument",
        "rate_limited",
        "unavailable",
        "unknown_parameter",
        "uri_too_long",
        "header_too_large",
    ];
    match spec.auth {
        Auth::None => {}
        Auth::Caller => codes.extend([
            "forbidden",
            "org_access_denied",
            "policy_denied",
            "token_expired",
            "token_revoked",
            "unauthenticated",
        ]),
        Auth::ExecToken => codes.push("exec_token_invalid"),
    }
    if spec.path_params().next().is_some() {
        codes.push("not_found");
    }
    if spec.request.is_some() {
        codes.extend(["too_large", "unknown_field", "unsupported_media_type"]);
    }
    match spec.kind {
        Kind::Read => codes.push("projection_lag"),
        Kind::List => codes.extend(["cursor_invalid", "projection_lag"]),
        Kind::Write => codes.push("conflict"),
    }
    if spec.takes_key() {
        codes.extend([
            "idempotency_in_progress",
            "idempotency_key_invalid",
            "idempotency_key_reuse",
        ]);
    }
    if spec.idempotency == Need::Required {
        codes.push("idempotency_key_required");
    }
    match spec.precondition {
        Precondition::Required => codes.extend([
            "precondition_failed",
            "precondition_required",
            "version_conflict",
        ]),
        Precondition::Allowed => codes.extend(["precondition_failed", "version_conflict"]),
        Precondition::None => {}
    }
    codes.extend(spec.errors);
    codes.sort_unstable();
    codes.dedup();
    let mut by_status: BTreeMap<u16, Vec<&'static str>> = BTreeMap::new();
    for code in codes.into_iter().filter_map(Code::find) {
        by_status.entry(code.status).or_default().push(code.code);
    }
    by_status
}

/// Schemas of what comes in and of what goes out.
///
/// They differ: what may be left out of a request is always in an answer.
#[derive(Debug)]
pub(crate) struct Schemas {
    pub(crate) requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    pub(crate) fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Self {
            requests: settings().for_deserialize().into_generator(),
            answers: settings().for_serialize().into_generator(),
        }
    }

    fn definitions(mut self) -> Map<String, Value> {
        let mut all = self.requests.take_definitions(true);
        all.extend(self.answers.take_definitions(true));
        all.values_mut().for_each(drop_null_defaults);
        all
    }
}

/// That a field may be left out is said by its not being required.
fn drop_null_defaults(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("default").is_some_and(Value::is_null) {
                fields.remove("default");
            }
            fields.values_mut().for_each(drop_null_defaults);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_null_defaults),
        _ => {}
    }
}

fn describe(operation: Operation, schemas: &mut Schemas) -> Value {
    let spec = operation.spec();
    let mut parameters: Vec<Value> = spec
        .params()
        .filter(|param| !READ_PARAMS.contains(param))
        .map(query_parameter)
        .collect();
    let mut headers = Vec::new();
    if spec.is_write() {
        headers.extend(spec.takes_key().then_some(match spec.idempotency {
            Need::Required => "RequiredIdempotencyKey",
            Need::Allowed => "IdempotencyKey",
        }));
        headers.push("Prefer");
    } else {
        headers.extend(["MinSeq", "MinSeqQuery"]);
    }
    if spec.precondition != Precondition::None {
        headers.push("IfMatch");
    }
    if spec.kind == Kind::List {
        headers.push("LastEventId");
    }
    parameters.extend(
        headers
            .into_iter()
            .map(|name| json!({ "$ref": format!("#/components/parameters/{name}") })),
    );
    let mut described = json!({
        "operationId": spec.id,
        "summary": spec.summary,
        "description": capability_text(spec),
        "tags": [tag(spec)],
        "parameters": parameters,
        "responses": responses(operation, schemas),
        "x-fluffy-cli": spec.cli,
    });
    if let Value::Object(fields) = &mut described {
        if let Some(capability) = spec.capability {
            fields.insert("x-fluffy-capability".into(), capability.into());
        }
        if spec.auth != Auth::Caller {
            fields.insert("security".into(), json!([]));
        }
        if let Some(request) = spec.request {
            fields.insert(
                "requestBody".into(),
                body(request(&mut schemas.requests), schemas),
            );
        }
    }
    described
}

fn capability_text(spec: &Spec) -> String {
    match (spec.auth, spec.capability) {
        (Auth::None, _) => "Needs no login.".into(),
        (Auth::ExecToken, _) => {
            "Needs the session's single-use token, as subprotocol `bearer.<token>` next to `fluffy.exec.v1` or as `Authorization`.".into()
        }
        (Auth::Caller, Some(capability)) => format!("Needs `{capability}`."),
        (Auth::Caller, None) => "Needs a login; it is about the caller's own.".into(),
    }
}

/// A body that may be left out if nothing in it has to be there.
fn body(schema: Schema, schemas: &Schemas) -> Value {
    let name = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|reference| reference.rsplit('/').next());
    let required = name
        .and_then(|name| schemas.requests.definitions().get(name))
        .and_then(|definition| definition.get("required"))
        .is_some();
    json!({ "required": required, "content": { "application/json": { "schema": schema } } })
}

fn responses(operation: Operation, schemas: &mut Schemas) -> Value {
    let spec = operation.spec();
    let answer = (spec.response)(&mut schemas.answers);
    let mut responses = Map::new();
    let good = good_answer(spec, &answer);
    responses.insert(spec.success.to_string(), good);
    if spec.is_write() && spec.auth == Auth::Caller {
        let mut forms = vec![
            schemas.answers.subschema_for::<Receipt>(),
            schemas.answers.subschema_for::<Parked>(),
        ];
        if spec.success == 202 {
            forms.insert(0, answer);
        }
        responses.insert("202".into(), json!({
            "description": "The write is durable and its view is late, or a person has to allow it first.",
            "headers": shared_headers(WRITE_HEADERS),
            "content": { "application/json": { "schema": { "anyOf": forms } } },
        }));
    }
    if let Some(Value::Object(good)) = responses.get_mut(&spec.success.to_string()) {
        let links = links::of(operation);
        if !links.is_empty() {
            good.insert("links".into(), links.into());
        }
    }
    for (status, codes) in refusals(spec) {
        let text = codes
            .iter()
            .map(|code| format!("`{code}`"))
            .collect::<Vec<_>>()
            .join(", ");
        responses.insert(
            status.to_string(),
            json!({ "$ref": "#/components/responses/Problem", "description": text }),
        );
    }
    responses.into()
}

/// What is no list and can be followed all the same.
const STREAMED: [&str; 2] = ["getLogs", "getOperation"];

fn good_answer(spec: &Spec, answer: &Schema) -> Value {
    if spec.success == 101 {
        return json!({ "description": "The WebSocket is open." });
    }
    let headers = if spec.is_write() {
        WRITE_HEADERS
    } else {
        READ_HEADERS
    };
    let mut content = json!({ "application/json": { "schema": answer } });
    let streams = spec.kind == Kind::List || STREAMED.contains(&spec.id);
    if let (true, Value::Object(content)) = (streams, &mut content) {
        content.insert(
            "text/event-stream".into(),
            json!({
                "schema": { "type": "string" },
                "x-fluffy-events": ["snapshot", "upsert", "delete", "synced", "watermark"],
            }),
        );
    }
    json!({
        "description": spec.summary,
        "headers": shared_headers(headers),
        "content": content,
    })
}

// Beside these every answer has the request's id, the epoch and what is left of
// the rate limit; the description says so once.
const WRITE_HEADERS: &[&str] = &["ETag", "Fluffy-Seq", "Idempotency-Replayed"];
const READ_HEADERS: &[&str] = &["ETag", "Fluffy-Applied-Seq"];

fn shared_headers(names: &[&str]) -> Value {
    let headers = names.iter().map(|name| {
        let reference = json!({ "$ref": format!("#/components/headers/{name}") });
        ((*name).to_owned(), reference)
    });
    Value::Object(headers.collect())
}

fn answer_headers() -> Value {
    let number = json!({ "type": "integer", "minimum": 0 });
    let header =
        |meaning: &str, schema: &Value| json!({ "description": meaning, "schema": schema });
    json!({
        "ETag": header("The version of the object, in quotes.", &json!({ "type": "string" })),
        "Fluffy-Applied-Seq": header("The last event that the answer knows.", &number),
        "Fluffy-Epoch": header("The epoch of the ledger; a higher one wins.", &number),
        "Fluffy-Request-Id": header("The id of this call, for the audit.", &json!({ "type": "string", "pattern": "^req_" })),
        "Fluffy-Seq": header("The last event of the write.", &number),
        "Idempotency-Replayed": header("`true` if this is the answer of an earlier call.", &json!({ "const": "true" })),
        "X-RateLimit-Limit": header("How many calls the tightest bucket holds.", &number),
        "X-RateLimit-Remaining": header("How many of them are left.", &number),
        "X-RateLimit-Reset": header("When it is full again, in Unix time.", &number),
    })
}

fn header_parameters() -> Value {
    let key = json!({ "type": "string", "pattern": "^[!-~]{8,128}$" });
    let seq = json!({ "type": "integer", "minimum": 0, "maximum": (1_u64 << 53) - 1 });
    json!({
        "IdempotencyKey": header_parameter("Idempotency-Key", "Makes the call happen once however often it is sent.", &key),
        "RequiredIdempotencyKey": {
            "name": "Idempotency-Key", "in": "header", "required": true, "schema": key,
            "description": "Makes the call happen once however often it is sent.",
        },
        "IfMatch": header_parameter("If-Match", "The version that the change is meant for, in quotes.", &json!({ "type": "string", "pattern": "^\"[0-9]{1,16}\"$" })),
        "Prefer": header_parameter("Prefer", "How many seconds the answer may wait for its view.", &json!({ "type": "string", "pattern": "^wait=([0-9]|10)$" })),
        "MinSeq": header_parameter("Fluffy-Min-Seq", "Waits until this event is in the view.", &seq),
        "MinSeqQuery": {
            "name": "min_seq", "in": "query", "schema": seq,
            "description": "As the header `Fluffy-Min-Seq`.",
        },
        "LastEventId": header_parameter("Last-Event-ID", "Where a stream of events goes on.", &seq),
    })
}

fn header_parameter(name: &str, meaning: &str, schema: &Value) -> Value {
    json!({ "name": name, "in": "header", "description": meaning, "schema": schema })
}

fn query_parameter(param: &Param) -> Value {
    let schema = match param.kind {
        ParamKind::Text => json!({ "type": "string", "minLength": 1, "maxLength": 256 }),
        ParamKind::Place => json!({ "type": "string", "minLength": 1, "maxLength": 4096 }),
        ParamKind::Word(words) => json!({ "enum": words }),
        ParamKind::Number(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        ParamKind::Flag => json!({ "type": "boolean" }),
        ParamKind::Time => json!({ "type": "string", "format": "date-time" }),
    };
    json!({ "name": param.name, "in": "query", "description": param.meaning, "schema": schema })
}

fn path_parameters(spec: &Spec) -> Vec<Value> {
    spec.path_params()
        .map(|name| {
            let words = name.replace('_', " ");
            json!({
                "name": name, "in": "path", "required": true,
                "description": format!("The id or the name of the {words}."),
                "schema": { "type": "string", "pattern": PATH_VALUE },
            })
        })
        .collect()
}

/// What stands for an object in a path: an id or a name.
pub(crate) const PATH_VALUE: &str = "^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$";

fn tags() -> Vec<Value> {
    let mut names: Vec<_> = Operation::ALL
        .iter()
        .map(|operation| tag(operation.spec()))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
        .into_iter()
        .map(|name| json!({ "name": name }))
        .collect()
}

const DESCRIPTION: &str = "\
The control plane of a platform for microVMs. \
Every write is recorded before it is answered; its answer carries `Fluffy-Seq`, \
and a read that sends it as `Fluffy-Min-Seq` sees the write on every replica. \
Lists answer pages, or a stream of changes with `Accept: text/event-stream`. \
Refusals are `application/problem+json` with a stable `code`. \
Every answer carries `Fluffy-Request-Id`, `Fluffy-Epoch`, `X-RateLimit-Limit`, \
`X-RateLimit-Remaining` and `X-RateLimit-Reset`.";

#[cfg(test)]
mod tests;
