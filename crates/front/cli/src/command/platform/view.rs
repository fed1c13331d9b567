//! What the platform's objects look like: columns, all fields, JSON, ids.
//!
//! One table says which columns a kind has; how a value is written follows
//! from its name. `SHARED KERNEL` is shown wherever isolation is.

use std::borrow::Cow;

use fluffy_base::{ByteSize, Clock as _, SystemClock, Timestamp};
use fluffy_report::{Cell, Column, Table, Tone, Verbosity};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::session::Session;

/// The version of documents with `--json`.
pub(crate) const API_VERSION: &str = "v1";

/// What is shown where instances share a kernel with others.
pub(crate) const SHARED: &str = "SHARED KERNEL";

/// The columns of each kind, as title and field.
const COLUMNS: &[(&str, &[(&str, &str)])] = &[
    (
        "App",
        &[
            ("NAME", "name"),
            ("TITLE", "display_name"),
            ("ID", "id"),
            ("AGE", "created_at"),
        ],
    ),
    (
        "Approval",
        &[
            ("ID", "id"),
            ("STATUS", "status"),
            ("OPERATION", "operation"),
            ("ON", "path"),
            ("BY", "requested_by"),
            ("EXPIRES", "expires_at"),
        ],
    ),
    (
        "Attachment",
        &[
            ("ID", "id"),
            ("VOLUME", "volume_id"),
            ("PROCESS", "process"),
            ("PATH", "mount_path"),
        ],
    ),
    (
        "AuditEntry",
        &[
            ("SEQ", "event.seq"),
            ("AT", "event.occurred_at"),
            ("TYPE", "event.event_type"),
            ("ACTOR", "event.actor.id"),
            ("OUTCOME", "decision.outcome"),
            ("VERIFIED", "verification"),
        ],
    ),
    (
        "Deploy",
        &[
            ("ID", "id"),
            ("KIND", "kind"),
            ("STATUS", "status"),
            ("RELEASE", "release_id"),
            ("ISOLATION", "isolation"),
            ("AGE", "created_at"),
        ],
    ),
    (
        "EnrollmentToken",
        &[
            ("ID", "id"),
            ("STATUS", "status"),
            ("NODE", "node_id"),
            ("MACHINE", "request.endpoint"),
            ("KEY", "request.key_fingerprint"),
            ("EXPIRES", "expires_at"),
        ],
    ),
    (
        "Env",
        &[
            ("NAME", "name"),
            ("TITLE", "display_name"),
            ("STATUS", "status"),
            ("PROTECTED", "protected"),
            ("ISOLATION", "isolation"),
            ("ID", "id"),
            ("AGE", "created_at"),
        ],
    ),
    (
        "EventEnvelope",
        &[
            ("SEQ", "seq"),
            ("AT", "occurred_at"),
            ("TYPE", "event_type"),
            ("ABOUT", "aggregate_id"),
            ("ACTOR", "actor.id"),
        ],
    ),
    (
        "Grant",
        &[
            ("ID", "id"),
            ("PRINCIPAL", "principal_id"),
            ("PATTERN", "pattern"),
            ("EXPIRES", "expires_at"),
        ],
    ),
    (
        "GroupStatus",
        &[
            ("PROCESS", "process"),
            ("WANTED", "desired"),
            ("LIVE", "live"),
            ("READY", "ready"),
            ("CURRENT", "current"),
            ("CONDITIONS", "conditions"),
        ],
    ),
    (
        "ImageLimit",
        &[
            ("IMAGE LIMIT", "name"),
            ("VALUE", "limit"),
            ("DEFAULT", "usual"),
            ("AT MOST", "ceiling"),
        ],
    ),
    (
        "Instance",
        &[
            ("ID", "id"),
            ("PROCESS", "process"),
            ("WANTED", "desired.state"),
            ("STATUS", "observed.status"),
            ("REASON", "observed.reason_code"),
            ("NODE", "assignment.node_id"),
            ("ISOLATION", "isolation"),
            ("AGE", "created_at"),
        ],
    ),
    (
        "LogLine",
        &[("AT", "at"), ("PROCESS", "process"), ("LINE", "line")],
    ),
    (
        "MasterKey",
        &[
            ("ID", "id"),
            ("STATUS", "status"),
            ("HERE", "available"),
            ("VERSIONS", "versions"),
            ("AGE", "introduced_at"),
            ("RETIRES FROM", "retires_from"),
            ("ASKED BY", "retire_asked_by"),
        ],
    ),
    (
        "Member",
        &[
            ("ID", "id"),
            ("EMAIL", "email"),
            ("ROLE", "role"),
            ("ON", "path"),
            ("STATUS", "status"),
            ("PRINCIPAL", "principal_id"),
        ],
    ),
    (
        "Node",
        &[
            ("ID", "id"),
            ("STATUS", "status"),
            ("ARCH", "arch"),
            ("ISOLATION", "isolation"),
            ("INSTANCES", "used.instances"),
            ("MEMORY", "used.memory_bytes"),
            ("OF", "capacity.allocatable_memory_bytes"),
            ("HEARD", "last_heartbeat_at"),
        ],
    ),
    (
        "Org",
        &[
            ("SLUG", "slug"),
            ("TITLE", "display_name"),
            ("ID", "id"),
            ("AGE", "created_at"),
        ],
    ),
    (
        "Pool",
        &[
            ("POOL", "name"),
            ("USED", "used"),
            ("SIZE", "size"),
            ("COOLING", "cooling"),
        ],
    ),
    (
        "Principal",
        &[
            ("NAME", "name"),
            ("ID", "id"),
            ("GRANTS", "grants"),
            ("AGE", "created_at"),
        ],
    ),
    (
        "ProcessScale",
        &[
            ("PROCESS", "name"),
            ("WANTED", "desired"),
            ("SAID BY", "source"),
            ("MIN", "min"),
            ("MAX", "max"),
        ],
    ),
    (
        "Project",
        &[
            ("NAME", "name"),
            ("TITLE", "display_name"),
            ("ID", "id"),
            ("AGE", "created_at"),
        ],
    ),
    (
        "Projection",
        &[
            ("VIEW", "name"),
            ("APPLIED", "applied_seq"),
            ("LAG MS", "lag_milliseconds"),
            ("DIGEST", "digest"),
        ],
    ),
    (
        "Quota",
        &[("DIMENSION", "name"), ("USED", "used"), ("LIMIT", "limit")],
    ),
    (
        "Release",
        &[
            ("ID", "id"),
            ("STATUS", "status"),
            ("IMAGE", "image_ref"),
            ("BY", "created_by"),
            ("AGE", "created_at"),
        ],
    ),
    (
        "Restore",
        &[
            ("ID", "id"),
            ("STATUS", "status"),
            ("SNAPSHOT", "snapshot_id"),
            ("NEW VOLUME", "new_volume_id"),
            ("AGE", "created_at"),
        ],
    ),
    (
        "Route",
        &[
            ("ID", "id"),
            ("STATUS", "status"),
            ("HOST", "hostname"),
            ("PORT", "listen_port"),
            ("ADDRESS", "address"),
            ("PROCESS", "backend_process"),
            ("REASON", "reason"),
        ],
    ),
    (
        "SecretVersion",
        &[
            ("ID", "id"),
            ("STATUS", "status"),
            ("RUN BY", "run_by"),
            ("KEYS", "key_count"),
            ("SIZE", "size_bytes"),
            ("SEALED BY", "master_key_id"),
            ("AGE", "created_at"),
        ],
    ),
    (
        "Snapshot",
        &[
            ("ID", "id"),
            ("STATUS", "status"),
            ("SIZE", "size_bytes"),
            ("NOTE", "note"),
            ("AGE", "created_at"),
        ],
    ),
    (
        "Token",
        &[
            ("ID", "id"),
            ("KIND", "kind"),
            ("STATUS", "status"),
            ("PRINCIPAL", "principal_id"),
            ("EXPIRES", "expires_at"),
        ],
    ),
    (
        "Volume",
        &[
            ("NAME", "name"),
            ("STATUS", "status"),
            ("SIZE", "size_bytes"),
            ("NODE", "home_node_id"),
            ("BACKUP", "last_backup_at"),
            ("ID", "id"),
        ],
    ),
];

/// Kinds that hold a list or a map: where it is, and of what.
const WITHIN: &[(&str, &str, &str)] = &[
    ("ImageLimits", "limits", "ImageLimit"),
    ("Ipam", "pools", "Pool"),
    ("Keys", "keys", "MasterKey"),
    ("Logs", "items", "LogLine"),
    ("Projections", "items", "Projection"),
    ("Quotas", "quotas", "Quota"),
    ("Scale", "processes", "ProcessScale"),
];

/// Shows what was asked for: ids, JSON, a table or all fields.
pub(crate) fn show(session: &Session, kind: &str, value: &Value) -> Result<(), Failure> {
    if session.json() {
        return Ok(session.printer.json(&document(kind, value))?);
    }
    let Some((item, rows)) = rows(kind, value) else {
        return describe(session, value);
    };
    if session.printer.verbosity() == Verbosity::Quiet {
        for row in &rows {
            session.printer.data(&name(row))?;
        }
        return Ok(());
    }
    if rows.is_empty() {
        session.printer.note("There are none.");
        return Ok(());
    }
    session.printer.table(&table(&item, rows.iter()))?;
    if let Some(cursor) = value.get("next_cursor").and_then(Value::as_str) {
        session
            .printer
            .note(&format!("There are more: --cursor {cursor}"));
    }
    Ok(())
}

/// The document of `--json`: lists keep their items, the rest is `data`.
pub(crate) fn document(kind: &str, value: &Value) -> Value {
    let head = json!({"api_version": API_VERSION, "kind": kind});
    let (Value::Object(mut head), true) = (head, value.is_object()) else {
        return value.clone();
    };
    match value.get("items") {
        Some(_) if kind.ends_with("List") => {
            let fields = value.as_object().cloned().unwrap_or_default();
            head.extend(fields);
        }
        _ => {
            head.insert("data".to_owned(), value.clone());
        }
    }
    Value::Object(head)
}

/// A table of things of one kind.
pub(crate) fn table<'a>(kind: &str, rows: impl Iterator<Item = &'a Value>) -> Table {
    let columns = COLUMNS.iter().find(|(name, _)| *name == kind);
    let columns = columns.map_or(&[("ID", "id")][..], |(_, columns)| columns);
    let mut table = Table::new(columns.iter().map(|(title, field)| {
        let column = Column::new(*title);
        if *field == "id" {
            column.whole()
        } else {
            column
        }
    }));
    for row in rows {
        let cells = columns.iter().map(|(_, field)| {
            let value = field
                .split('.')
                .try_fold(row, |value, part| value.get(part));
            let text = plain(field, value.unwrap_or(&Value::Null));
            let tone = tone(&text);
            Cell::new(text).tone(tone)
        });
        table.row(cells);
    }
    table
}

/// All fields of one thing, what names it first.
pub(crate) fn describe(session: &Session, value: &Value) -> Result<(), Failure> {
    if session.printer.verbosity() == Verbosity::Quiet {
        return Ok(session.printer.data(&name(value))?);
    }
    let mut rows = Vec::new();
    flatten("", value, &mut rows);
    let first = ["id", "name", "slug", "status", "isolation"];
    let place = |name: &str| {
        first
            .iter()
            .position(|it| *it == name)
            .unwrap_or(first.len())
    };
    rows.sort_by_key(|(name, _)| place(name));
    let mut table = Table::new([Column::new("FIELD").whole(), Column::new("VALUE").whole()]);
    for (name, text) in rows {
        let tone = tone(&text);
        table.row([Cell::new(name).tone(Tone::Dim), Cell::new(text).tone(tone)]);
    }
    Ok(session.printer.table(&table)?)
}

/// What names a thing in a script: its id, or what it has instead. A line of a
/// log is itself; an event, and what is said of one, has its place.
pub(crate) fn name(value: &Value) -> Cow<'_, str> {
    let text = |field: &str| value.get(field).and_then(Value::as_str);
    let place = || {
        let seq = value.pointer("/event/seq").or_else(|| value.get("seq"));
        Some(Cow::from(seq?.as_u64()?.to_string()))
    };
    let named = ["id", "principal_id", "name", "line"]
        .into_iter()
        .find_map(text);
    let within = || ["env_id", "org_id"].into_iter().find_map(text);
    let named = named.map(Cow::from).or_else(place);
    named
        .or_else(|| within().map(Cow::from))
        .unwrap_or_default()
}

/// The rows of a list or of what holds one, and their kind.
fn rows(kind: &str, value: &Value) -> Option<(String, Vec<Value>)> {
    let within = WITHIN.iter().find(|(outer, _, _)| *outer == kind);
    let (field, item) = match within {
        Some((_, field, item)) => (*field, (*item).to_owned()),
        None => ("items", kind.strip_suffix("List")?.to_owned()),
    };
    let rows = match value.get(field)? {
        Value::Array(items) => items.clone(),
        Value::Object(items) => items.iter().map(|(name, it)| named(name, it)).collect(),
        _ => return None,
    };
    match item.as_str() {
        "Quota" => return Some((item, rows.iter().map(quota).collect())),
        "ImageLimit" => return Some((item, rows.iter().map(image_limit).collect())),
        _ => {}
    }
    Some((item, rows))
}

/// An entry of a map, with its name in it.
fn named(name: &str, value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("name".to_owned(), name.into());
    }
    value
}

/// A limit with its unit: what is counted in bytes as a size, processors in
/// cores, as both are typed.
fn quota(quota: &Value) -> Value {
    let dimension = name(quota);
    let amount = |field: &str| match quota.get(field) {
        Some(Value::Number(number)) => {
            let number = number.as_u64().unwrap_or_default();
            match &*dimension {
                "cpu" => format!("{} cores", cores(number)),
                "memory" | "volume_bytes" | "log_bytes_per_day" => human(number),
                _ => number.to_string(),
            }
        }
        _ => "none".to_owned(),
    };
    json!({"name": dimension, "used": amount("used"), "limit": amount("limit")})
}

/// A limit of images with its unit, as it is typed.
fn image_limit(limit: &Value) -> Value {
    let kind = name(limit);
    let amount = |field: &str| {
        let number = limit.get(field).and_then(Value::as_u64).unwrap_or_default();
        match kind.ends_with("_bytes") {
            true => human(number),
            false => number.to_string(),
        }
    };
    let (usual, ceiling) = (amount("usual"), amount("ceiling"));
    json!({"name": kind, "limit": amount("limit"), "usual": usual, "ceiling": ceiling})
}

/// Thousandths of processors, in processors.
fn cores(millis: u64) -> String {
    let (whole, rest) = (millis / 1000, millis % 1000);
    match rest {
        0 => whole.to_string(),
        rest => format!("{whole}.{rest:03}")
            .trim_end_matches('0')
            .to_owned(),
    }
}

/// A value as people read it; how follows from its name.
fn plain(field: &str, value: &Value) -> String {
    let last = field.rsplit('.').next().unwrap_or(field);
    match value {
        // What a role was bound to and is no more.
        Value::Null if field == "path" => "gone".to_owned(),
        Value::Null => String::new(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) if last == "at" || last == "since" || last.ends_with("_at") => {
            text.parse().map_or_else(|_| text.clone(), age)
        }
        Value::String(text) => text.clone(),
        Value::Number(number) if last.ends_with("_bytes") => {
            let size = number.as_u64().map(human);
            size.unwrap_or_else(|| number.to_string())
        }
        Value::Object(fields) => match fields.get("level").and_then(Value::as_str) {
            Some("shared-kernel") => SHARED.to_owned(),
            Some(level) => level.to_owned(),
            None => value.to_string(),
        },
        Value::Array(items) => {
            let texts = items.iter().map(|item| match item.get("condition") {
                Some(condition) => plain(field, condition),
                None => plain(field, item),
            });
            texts.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// Fields by dotted names; what is null or empty says nothing.
fn flatten(name: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    let below = |key: &str| match name {
        "" => key.to_owned(),
        name => format!("{name}.{key}"),
    };
    match value {
        Value::Object(fields) if !fields.contains_key("level") => {
            for (key, value) in fields {
                flatten(&below(key), value, rows);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (index, item) in items.iter().enumerate() {
                flatten(&below(&index.to_string()), item, rows);
            }
        }
        value => {
            let mut text = plain(name, value);
            if let (true, Value::String(exact)) = (name.ends_with("_at"), value) {
                text = format!("{exact} ({text})");
            }
            if !text.is_empty() {
                rows.push((name.to_owned(), text));
            }
        }
    }
}

/// How long ago, or how long from now.
fn age(at: Timestamp) -> String {
    let now = SystemClock.now();
    let (span, ahead) = if at > now {
        (at.since(now), true)
    } else {
        (now.since(at), false)
    };
    let seconds = span.as_secs();
    let text = match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    };
    if ahead { format!("in {text}") } else { text }
}

/// A size that fits a column: whole units, rounded down.
fn human(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(bits, _)| bytes >= 10 << bits);
    match unit {
        Some((bits, unit)) => format!("{}{unit}", bytes >> bits),
        None => ByteSize(bytes).to_string(),
    }
}

fn tone(text: &str) -> Tone {
    match text {
        SHARED | "failed" | "offline" | "revoked" | "error" | "degraded" | "lost" => Tone::Bad,
        "ready" | "active" | "succeeded" | "available" | "healthy" | "in_use" => Tone::Good,
        "rolling" | "booting" | "preparing" | "draining" | "paused" | "pending" => Tone::Caution,
        _ => Tone::Plain,
    }
}

#[cfg(test)]
mod tests {
    use fluffy_api::Operation;
    use fluffy_report::Styling;
    use schemars::SchemaGenerator;
    use serde_json::Map;

    use super::super::call::is_list;
    use super::*;
    use crate::args::platform::kind;

    #[test]
    fn shared_kernels_are_named_in_tables() {
        let instance = json!({
            "id": "inst_1", "process": "web", "desired": {"state": "running"},
            "observed": {"status": "ready", "reason_code": null},
            "assignment": {"node_id": "node_1"},
            "isolation": {"driver": "container-rootfs", "level": "shared-kernel"},
        });
        let shown = table("Instance", [&instance].into_iter()).render(None, Styling::Plain);
        assert!(shown.contains(SHARED), "{shown}");
        let mut rows = Vec::new();
        flatten("", &instance, &mut rows);
        assert!(
            rows.contains(&("isolation".into(), SHARED.into())),
            "{rows:?}"
        );
    }

    /// A list that is watched is kept by these names, and `-q` prints them.
    #[test]
    fn everything_in_a_list_has_a_name_of_its_own() {
        let event = json!({"seq": 7, "env_id": "env_1", "org_id": "org_1"});
        let at = json!({"decision": null, "event": event, "verification": "verified"});
        let line = json!({"at": "…", "instance_id": "inst_1", "line": "hello", "seq": 3});
        for (kind, value, expected) in [
            ("EventEnvelope", &event, "7"),
            ("AuditEntry", &at, "7"),
            ("LogLine", &line, "hello"),
        ] {
            assert_eq!(name(value), expected, "{kind}");
        }
        // Of each other kind that is listed: an object as its schema has it.
        let mut seen = 0;
        for operation in Operation::ALL.iter().filter(|it| is_list(**it)) {
            let mut definitions = SchemaGenerator::default();
            (operation.spec().response)(&mut definitions);
            let item = kind(*operation).strip_suffix("List").unwrap().to_owned();
            let schema = &definitions.definitions()[&item];
            let fields = schema["properties"].as_object().unwrap();
            let value = |(field, of): (&String, &Value)| {
                let value = match (field.as_str(), &of["type"]) {
                    ("event", _) => json!({"seq": 1}),
                    (_, Value::String(kind)) if kind == "integer" => json!(1),
                    _ => json!(format!("a {field}")),
                };
                (field.clone(), value)
            };
            let value: Value = fields.iter().map(value).collect::<Map<_, _>>().into();
            let expected = match item.as_str() {
                "EventEnvelope" | "AuditEntry" => "1",
                _ => "a id",
            };
            assert_eq!(name(&value), expected, "{item}");
            seen += 1;
        }
        assert!(seen > 20, "{seen}");
    }

    #[test]
    fn a_document_names_its_kind_and_keeps_fields_of_that_name() {
        let deploy = json!({"id": "dep_1", "kind": "rollback"});
        let shown = document("Deploy", &deploy);
        assert_eq!(shown["kind"], "Deploy");
        assert_eq!(shown["data"]["kind"], "rollback");
        let list = document("AppList", &json!({"items": [], "next_cursor": null}));
        assert_eq!(list["items"], json!([]));
    }

    #[test]
    fn limits_have_their_units() {
        let quotas = json!({"quotas": {
            "apps": {"limit": 50, "used": 1}, "cpu": {"limit": 64_000, "used": 250},
            "memory": {"limit": null, "used": 512 << 20},
        }});
        let (item, rows) = rows("Quotas", &quotas).unwrap();
        let shown = table(&item, rows.iter()).render(None, Styling::Plain);
        for part in ["0.25 cores  64 cores", "512MiB", "none", "1           50"] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
    }

    #[test]
    fn limits_of_images_have_their_units() {
        let limits = json!({"limits": {
            "layers": {"limit": 128, "usual": 128, "ceiling": 1024},
            "compressed_bytes": {
                "limit": 20_u64 << 30, "usual": 10_u64 << 30, "ceiling": 1_u64 << 40,
            },
        }});
        let (item, rows) = rows("ImageLimits", &limits).unwrap();
        let shown = table(&item, rows.iter()).render(None, Styling::Plain);
        for part in ["20GiB", "10GiB", "1024GiB", "128"] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
    }

    #[test]
    fn sizes_and_times_are_short() {
        assert_eq!(human(512 << 20), "512MiB");
        assert_eq!(human(3 << 30), "3072MiB");
        assert_eq!(human(128 << 30), "128GiB");
        assert_eq!(human(100), "100");
        assert_eq!(plain("x_at", &json!("not a time")), "not a time");
    }
}
