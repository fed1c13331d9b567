//! The JSON Schema of a manifest, for editors.
//!
//! Says what a field can be; what holds between fields only the reader knows,
//! so a text that fits here can still be refused. Everything that the reader
//! takes fits here; a test compares the two.

use serde_json::{Value, json};

/// The schema of `fluffy.toml`.
#[must_use]
pub fn schema() -> Value {
    let processes = json!({
        "type": "object",
        "propertyNames": {"pattern": NAME},
        "minProperties": 1,
        "maxProperties": 16,
        "additionalProperties": process(),
    });
    let fields = closed(json!({
        "schema_version": {"const": "v1"},
        "app": closed(json!({
            "name": {"type": "string", "minLength": 1, "maxLength": 64},
            "description": {"type": "string", "maxLength": 256},
        })),
        "image": closed(json!({
            "ref": {"type": "string", "minLength": 1, "maxLength": 512},
            "pull_policy": {
                "enum": ["if_not_present", "always"],
                "description": "A release names its image by digest, and what a node has under a \
                                digest is that image: both words give the same bytes. What a tag \
                                means is looked up for every release, whatever stands here.",
            },
        })),
        "env": closed(common()),
        "deploy": closed(json!({
            "strategy": {"const": "rolling"},
            "max_surge": number(0, 10),
            "max_unavailable": number(0, 10),
            "timeout_seconds": number(60, 3600),
            "min_ready_seconds": number(0, 300),
            "on_failure": {"enum": ["rollback", "pause"]},
        })),
        "processes": processes,
        "volumes": {"type": "array", "maxItems": 16, "items": volume()},
        "overrides": {
            "type": "object",
            "propertyNames": {"pattern": NAME},
            "additionalProperties": changes(),
        },
    }));
    let mut schema = require(fields, &["schema_version", "processes"]);
    if let Some(object) = schema.as_object_mut() {
        let dialect = "https://json-schema.org/draft/2020-12/schema";
        object.insert("$schema".into(), dialect.into());
        object.insert("title".into(), "fluffy.toml".into());
    }
    schema
}

const NAME: &str = "^[a-z][a-z0-9-]{0,31}$";

/// An object with these fields and no others.
fn closed(properties: Value) -> Value {
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

fn number(low: u32, high: u32) -> Value {
    json!({"type": "integer", "minimum": low, "maximum": high})
}

fn command() -> Value {
    json!({"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "string"}})
}

fn path() -> Value {
    json!({"type": "string", "pattern": "^/"})
}

fn size() -> Value {
    json!({"type": "string", "pattern": "^[0-9]+([KMG]i?B)?$"})
}

fn vars() -> Value {
    json!({
        "type": "object",
        "propertyNames": {"pattern": "^[A-Z_][A-Z0-9_]*$"},
        "maxProperties": 256,
        "additionalProperties": {"type": "string"},
    })
}

/// The fields that `env` and every process have.
fn common() -> Value {
    json!({
        "vars": vars(),
        "workdir": path(),
        "user": {"type": "string", "minLength": 1, "maxLength": 64},
        "prestart": command(),
        "prestart_timeout_seconds": number(1, 600),
    })
}

fn resources() -> Value {
    closed(json!({
        "memory": size(),
        "cpu": {"type": "number", "minimum": 0.05, "maximum": 64},
        "disk": size(),
    }))
}

fn scaling() -> Value {
    closed(json!({"min": number(0, 100), "max": number(0, 100)}))
}

fn process() -> Value {
    let needed = require(resources(), &["memory"]);
    let mut fields = json!({
        "command": command(),
        "resources": needed,
        "replicas": number(0, 100),
        "scaling": scaling(),
        "restart": closed(json!({
            "policy": {"enum": ["always", "on-failure", "never"]},
            "max_retries": number(0, 100),
            "backoff_seconds": number(1, 60),
        })),
        "stop": closed(json!({
            "signal": {"enum": ["TERM", "INT", "QUIT", "HUP"]},
            "grace_seconds": number(0, 300),
        })),
        "ports": {"type": "array", "maxItems": 16, "items": port()},
        "health": health(),
        "mounts": {"type": "array", "maxItems": 8, "items": mount()},
        "secrets": closed(json!({"required": {"type": "boolean"}})),
    });
    if let (Some(fields), Value::Object(common)) = (fields.as_object_mut(), common()) {
        fields.extend(common);
    }
    require(closed(fields), &["resources"])
}

fn port() -> Value {
    let fields = json!({
        "name": {"type": "string", "pattern": NAME},
        "internal": number(1, 65_535),
        "protocol": {"const": "tcp"},
    });
    require(closed(fields), &["internal"])
}

fn health() -> Value {
    let fields = json!({
        "type": {"enum": ["tcp", "http"]},
        "port": number(1, 65_535),
        "path": path(),
        "interval_seconds": number(1, 300),
        "timeout_seconds": number(1, 300),
        "grace_period_seconds": number(0, 600),
        "success_threshold": number(1, 10),
        "failure_threshold": number(1, 10),
        "start_timeout_seconds": number(10, 900),
    });
    require(closed(fields), &["port"])
}

fn mount() -> Value {
    let fields = json!({
        "volume": {"type": "string", "pattern": NAME},
        "path": path(),
        "read_only": {"type": "boolean"},
    });
    require(closed(fields), &["volume", "path"])
}

fn volume() -> Value {
    let fields = json!({
        "name": {"type": "string", "pattern": NAME},
        "size": size(),
        "filesystem": {"const": "ext4"},
        "backup_enabled": {"type": "boolean"},
    });
    require(closed(fields), &["name", "size"])
}

fn changes() -> Value {
    let process = closed(json!({
        "replicas": number(0, 100),
        "scaling": scaling(),
        "resources": resources(),
        "vars": vars(),
    }));
    closed(json!({
        "vars": vars(),
        "processes": {
            "type": "object",
            "propertyNames": {"pattern": NAME},
            "additionalProperties": process,
        },
    }))
}

fn require(mut object: Value, required: &[&str]) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.insert("required".into(), json!(required));
    }
    object
}
