//! Manifests as people write them: what is taken, and what each mistake says.
//!
//! Every refusal is in `golden/refusals.txt`, word for word; write it anew with
//! `UPDATE_GOLDEN=1`. The published schema must not contradict the reader.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use fluffy_base::{ByteSize, Span};
use fluffy_contract::isolation::Tier;
use fluffy_plugin_core::Manifest;
use fluffy_plugin_core::manifest::schema::manifest_schema;
use fluffy_plugin_core::manifest::settings::Sight;
use fluffy_plugin_core::manifest::{Kind, Misfit, Protocol, Settings, Start};
use semver::Version;
use serde_json::{Value, json};

const VALID: &[(&str, &str)] = &[
    // The one that everybody starts from.
    ("example", include_str!("manifests/valid/example.yaml")),
    ("image", include_str!("manifests/valid/image.yaml")),
    ("module", include_str!("manifests/valid/module.yaml")),
    ("server", include_str!("manifests/valid/server.yaml")),
    ("text", include_str!("manifests/valid/text.yaml")),
    ("tracker", include_str!("manifests/valid/tracker.yaml")),
];

/// A small manifest that every case below breaks in one way.
const SMALL: &str = "\
name: small
version: 1.0.0
type: tool
engine: \"^0.1\"
api: 1
capabilities: [ \"net.connect.a.com:443\", \"fs.read./docs/*\", \"fs.write.*\" ]
deny_capabilities: [ \"exec.*\" ]
execution:
  tier: process
  command: [ ./small ]
  protocol: mcp
";

/// Which part of a manifest a case replaces or adds.
enum Change {
    /// This line, or rather the one that begins like it up to the colon.
    Line(&'static str),
    /// A line that is left out.
    Without(&'static str),
    /// Something at the end.
    End(&'static str),
    /// The whole text.
    Whole(String),
}
use Change::{End, Line, Whole, Without};

/// Whether the schema can say it too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Schema {
    Refuses,
    CannotSay,
}
use Schema::{CannotSay, Refuses};

fn cases() -> Vec<(&'static str, Schema, Change)> {
    let mut cases = vec![
        ("empty", Refuses, Whole(String::new())),
        ("not a mapping", Refuses, Whole("[ a ]\n".to_owned())),
        ("not YAML", CannotSay, Whole("name: \"open\n".to_owned())),
        (
            "a second document",
            CannotSay,
            Whole(format!("{SMALL}---\nname: other\n")),
        ),
        (
            "an alias",
            CannotSay,
            End("tags: &a [ x ]\ndependencies: *a\n"),
        ),
        ("a tag", CannotSay, Line("name: !!str small")),
        (
            "a merge key",
            CannotSay,
            End("lifecycle: { <<: { hot_reload: true } }\n"),
        ),
        ("a doubled key", CannotSay, End("name: other\n")),
        (
            "a huge value",
            CannotSay,
            Whole(format!("name: {}\n", "a".repeat(100_000))),
        ),
        (
            "a huge text",
            CannotSay,
            Whole(format!("{SMALL}# {}\n", "a".repeat(300_000))),
        ),
        (
            "too deep",
            CannotSay,
            Whole(format!(
                "{SMALL}config_schema: {}{}\n",
                "{not: ".repeat(40),
                "}".repeat(40)
            )),
        ),
        ("an unknown field", Refuses, End("capabilites: []\n")),
        (
            "an unknown field inside",
            Refuses,
            Line("  tier: process\n  teir: process"),
        ),
        ("hidden text", CannotSay, End("tags: [ \"a\\u202eb\" ]\n")),
        ("no name", Refuses, Without("name")),
        ("a bad name", Refuses, Line("name: Small")),
        ("a short name", Refuses, Line("name: s")),
        ("a name like a path", Refuses, Line("name: ../small")),
        ("no version", Refuses, Without("version")),
        ("half a version", Refuses, Line("version: 1.2")),
        (
            "a version like a path",
            Refuses,
            Line("version: 1.0.0+../../x"),
        ),
        ("a bad type", Refuses, Line("type: tools")),
        ("no engine", Refuses, Without("engine")),
        ("a bad range", CannotSay, Line("engine: newest")),
        ("no api", Refuses, Without("api")),
        ("api is no number", Refuses, Line("api: v1")),
        ("a bad licence", CannotSay, End("license: \"<script>\"\n")),
        (
            "trust in oneself",
            Refuses,
            End("tags: [ core_plugin, trusted_write, third_party ]\n"),
        ),
        (
            "a malformed capability",
            Refuses,
            Line("capabilities: [ \"kv..get\" ]"),
        ),
        (
            "a capability of everything",
            Refuses,
            Line("capabilities: [ \"*\" ]"),
        ),
        (
            "an unknown action",
            CannotSay,
            Line("capabilities: [ fs.raed./docs/* ]"),
        ),
        (
            "an unknown group",
            CannotSay,
            Line("capabilities: [ \"magic.*\" ]"),
        ),
        ("half an action", Refuses, Line("capabilities: [ kv ]")),
        (
            "another plugin's action",
            CannotSay,
            Line("capabilities: [ plugin.other.close ]"),
        ),
        (
            "a capability without its resource",
            CannotSay,
            Line("capabilities: [ fs.read, git.log.x ]"),
        ),
        (
            "a capability without a port",
            CannotSay,
            Line("capabilities: [ net.connect.a.com ]"),
        ),
        (
            "a denied capability",
            CannotSay,
            Line("capabilities: [ exec.run.make ]"),
        ),
        (
            "no execution",
            CannotSay,
            Whole("name: small\nversion: 1.0.0\ntype: tool\nengine: \"*\"\napi: 1\n".to_owned()),
        ),
        ("no tier", Refuses, Without("  tier")),
        ("an unknown tier", Refuses, Line("  tier: proces")),
        ("a process without a command", Refuses, Without("  command")),
        (
            "a process without a protocol",
            Refuses,
            Without("  protocol"),
        ),
        (
            "a process with a module",
            Refuses,
            Line("  protocol: mcp\n  module: x.wasm"),
        ),
        ("a module with a command", Refuses, Line("  tier: wasm")),
        (
            "a container without an image",
            Refuses,
            Line("  tier: container"),
        ),
        (
            "an image like an option",
            Refuses,
            Line("  tier: container\n  image: --privileged"),
        ),
        ("an empty command", Refuses, Line("  command: []")),
        (
            "a command line",
            Refuses,
            Line("  command: ./small --serve"),
        ),
        (
            "a program like an option",
            CannotSay,
            Line("  command: [ --small ]"),
        ),
        (
            "a program outside",
            CannotSay,
            Line("  command: [ ./../small ]"),
        ),
        (
            "an argument with a new line",
            CannotSay,
            Line("  command: [ ./small, \"a\\nb\" ]"),
        ),
        ("a module outside", Refuses, Whole(wasm("module: /x.wasm"))),
        (
            "a module above",
            CannotSay,
            Whole(wasm("module: a/../../x.wasm")),
        ),
        (
            "a secret tool argument",
            CannotSay,
            End(
                "tools: [ { name: a, summary: b, effect: acts, parameters: { properties: { p: { secret: true } } } } ]\n",
            ),
        ),
        (
            "a tool without words",
            Refuses,
            End("tools: [ { name: A, parameters: 3 } ]\n"),
        ),
        (
            "a tool twice",
            CannotSay,
            End(
                "tools: [ { name: a, summary: b, effect: reads }, { name: a, summary: b, effect: reads } ]\n",
            ),
        ),
        (
            "an effect that is none",
            Refuses,
            End("tools: [ { name: a, summary: b, effect: writes } ]\n"),
        ),
        (
            "tools of a channel",
            CannotSay,
            Whole(format!(
                "{}tools: []\n",
                SMALL.replace("type: tool", "type: channel")
            )),
        ),
        (
            "a long summary",
            Refuses,
            Whole(format!(
                "{SMALL}tools: [ {{ name: a, summary: {}, effect: reads }} ]\n",
                "a".repeat(300)
            )),
        ),
        (
            "unknown keywords of arguments",
            CannotSay,
            End(
                "tools: [ { name: a, summary: a, effect: reads, parameters: { type: object, requried: [ a ], properties: { a: { tpye: string, type: text } } } } ]\n",
            ),
        ),
        (
            "a reference outside",
            CannotSay,
            End(
                "tools: [ { name: a, summary: a, effect: reads, parameters: { properties: { a: { $ref: \"https://example.com/a.json\" } } } } ]\n",
            ),
        ),
        (
            "settings with unknown keywords",
            Refuses,
            End(
                "config_schema: { requried: [ a ], properties: { a: { type: string, pattern: \"(a+)+\" }, b: { $ref: \"#/a\", type: string } } }\n",
            ),
        ),
        (
            "settings in each other",
            Refuses,
            End(
                "config_schema: { properties: { a: { type: object }, b: { type: [ string ] } } }\n",
            ),
        ),
        (
            "lists in lists",
            CannotSay,
            End(
                "config_schema: { properties: { a: { type: array, items: { type: array } }, b: { type: array } } }\n",
            ),
        ),
        (
            "a secret with a default",
            CannotSay,
            End(
                "config_schema: { properties: { a: { type: string, secret: true, default: x } } }\n",
            ),
        ),
        (
            "a secret that is no text",
            CannotSay,
            End(
                "config_schema: { properties: { a: { type: array, items: { type: string }, secret: true }, b: { type: integer, secret: true } } }\n",
            ),
        ),
        (
            "a secret in a list",
            Refuses,
            End(
                "config_schema: { properties: { a: { type: array, items: { type: string, secret: true } } } }\n",
            ),
        ),
        (
            "a default that is none",
            CannotSay,
            End(
                "config_schema: { properties: { a: { type: integer, maximum: 5, default: 6 }, b: { type: boolean, default: \"yes\" }, c: { type: string, enum: [ x ], default: y } } }\n",
            ),
        ),
        (
            "checks of another type",
            Refuses,
            End(
                "config_schema: { properties: { a: { type: string, maximum: 5 }, b: { type: integer, enum: [ x ] }, c: { type: number, minimum: low } } }\n",
            ),
        ),
        (
            "a setting that is required and not there",
            CannotSay,
            End("config_schema: { required: [ b ], properties: { \"a b\": { type: string } } }\n"),
        ),
        (
            "settings of any name",
            Refuses,
            End("config_schema: { additionalProperties: true }\n"),
        ),
        (
            "settings that are a list",
            Refuses,
            End("config_schema: { type: array }\n"),
        ),
        (
            "settings that are a word",
            Refuses,
            End("config_schema: none\n"),
        ),
        (
            "variables that are none",
            CannotSay,
            Line(
                "  tier: process\n  env: { key: \"@config.a\", LD_PRELOAD: \"@config.a\", HTTPS_PROXY: \"@config.a\" }",
            ),
        ),
        (
            "a variable with a value of its own",
            Refuses,
            Line("  tier: process\n  env: { KEY: \"abc\" }"),
        ),
        (
            "a variable of no setting",
            CannotSay,
            Line("  tier: process\n  env: { KEY: \"@config.a\" }"),
        ),
        (
            "a variable of a list and without the capability",
            CannotSay,
            Whole(format!(
                "{SMALL}  env: {{ KEY: \"@config.a\", LIST: \"@config.b\" }}\nconfig_schema: {{ properties: {{ a: {{ type: string }}, b: {{ type: array, items: {{ type: string }} }} }} }}\n"
            )),
        ),
        (
            "it depends on itself",
            CannotSay,
            End("dependencies: { small: \"^1\", Other: \"^1\", other: newest }\n"),
        ),
        (
            "lifecycle in other words",
            Refuses,
            End("lifecycle: { hot_reload: yes, graceful_shutdown_timeout: 30 }\n"),
        ),
        (
            "a day of waiting",
            CannotSay,
            End("lifecycle: { graceful_shutdown_timeout: 24h }\n"),
        ),
        (
            "limits in other units",
            Refuses,
            Line("  protocol: mcp\n  limits: { memory: 256mb }"),
        ),
        (
            "limits out of range",
            CannotSay,
            Line("  protocol: mcp\n  limits: { memory: 1 }"),
        ),
        (
            "half a processor too exact",
            CannotSay,
            Line("  protocol: mcp\n  limits: { cpu: 0.50001 }"),
        ),
        (
            "an unknown limit",
            Refuses,
            Line("  protocol: mcp\n  limits: { disk: 5 }"),
        ),
    ];
    cases.extend(sandbox_cases());
    cases
}

fn sandbox_cases() -> Vec<(&'static str, Schema, Change)> {
    let with = |sandbox: &str| Whole(format!("{SMALL}  sandbox: {sandbox}\n"));
    let read = |path: &str| with(&format!("{{ filesystem: {{ read_allow: [ {path:?} ] }} }}"));
    let write = |path: &str| {
        with(&format!(
            "{{ filesystem: {{ write_allow: [ {path:?} ] }} }}"
        ))
    };
    let denied = SMALL.replace("\"exec.*\"", "\"fs.write.@data/*\"");
    let host = |host: &str| with(&format!("{{ network: {{ allow: [ {host:?} ] }} }}"));
    vec![
        ("a path upwards", Refuses, read("/docs/../*")),
        (
            "a path with a control character",
            CannotSay,
            with("{ filesystem: { read_allow: [ \"/docs/\\a\" ] } }"),
        ),
        ("a path like an option", Refuses, read("--bind")),
        ("a relative path", Refuses, read("docs/*")),
        ("a star in the middle", Refuses, read("/docs/*/a")),
        ("another spelling", Refuses, read("/docs//a")),
        ("a whole root", Refuses, read("/")),
        ("the whole host", Refuses, read("@host/*")),
        (
            "the host's processes",
            CannotSay,
            read("@host/proc/1/environ"),
        ),
        ("a path without its capability", CannotSay, read("/src/*")),
        ("more than its capability", CannotSay, read("/*")),
        ("own data in the wrong list", CannotSay, read("@data/*")),
        ("writing to the workspace", CannotSay, write("/docs/*")),
        ("writing to the host", CannotSay, write("@host/opt/x")),
        ("a part of its data", CannotSay, write("@data/cache/*")),
        (
            "its data is denied",
            CannotSay,
            Whole(format!(
                "{denied}  sandbox: {{ filesystem: {{ write_allow: [ \"@data/*\" ] }} }}\n"
            )),
        ),
        ("a host without a port", Refuses, host("a.com")),
        ("a host that is none", CannotSay, host("a..com:443")),
        ("an address in disguise", CannotSay, host("127.1:80")),
        (
            "a host without its capability",
            CannotSay,
            host("b.com:443"),
        ),
        (
            "another port than its capability",
            CannotSay,
            host("a.com:80"),
        ),
        (
            "a wildcard wider than its capability",
            CannotSay,
            host("*.a.com:443"),
        ),
        (
            "a host that is denied",
            CannotSay,
            Whole(format!(
                "{}  sandbox: {{ network: {{ allow: [ \"a.com:443\" ] }} }}\n",
                SMALL
                    .replace("[ \"net.connect.a.com:443\",", "[ \"net.*\",")
                    .replace("\"exec.*\"", "\"net.connect.a.com:443\"")
            )),
        ),
    ]
}

fn wasm(module: &str) -> String {
    let start = SMALL.find("  tier").unwrap();
    format!("{}  tier: wasm\n  {module}\n", &SMALL[..start])
}

fn text_of(change: &Change) -> String {
    match change {
        Whole(text) => text.clone(),
        End(line) => format!("{SMALL}{line}"),
        Line(line) | Without(line) => {
            let key = format!("{}:", line.split(':').next().unwrap());
            let lines = SMALL
                .lines()
                .filter_map(|each| match each.starts_with(&key) {
                    true if matches!(change, Without(_)) => None,
                    true => Some(*line),
                    false => Some(each),
                });
            lines.fold(String::new(), |text, line| text + line + "\n")
        }
    }
}

/// The same text as JSON, read by what reads JSON Schemas in manifests.
fn as_json(text: &str) -> Option<Value> {
    let probe = format!(
        "name: probe\nversion: 1.0.0\ntype: tool\nengine: \"*\"\napi: 1\nexecution: {{ tier: wasm, module: x }}\ntools:\n- name: x\n  summary: x\n  effect: reads\n  parameters:\n    x-probe:\n{}",
        text.lines()
            .fold(String::new(), |all, line| all + "      " + line + "\n")
    );
    let manifest = Manifest::parse(&probe).ok()?;
    let tool = manifest.tools.first()?;
    tool.parameters.get("x-probe").cloned()
}

#[test]
fn examples_are_taken_and_the_schema_agrees() {
    let schema = jsonschema::validator_for(&manifest_schema()).unwrap();
    for (name, text) in VALID {
        let manifest = Manifest::parse(text).unwrap_or_else(|refused| panic!("{name}: {refused}"));
        let warnings: Vec<&str> = manifest.warnings.iter().map(|each| &*each.what).collect();
        let expected: &[&str] = match *name {
            "example" => &["only a module burns fuel"],
            _ => &[],
        };
        assert_eq!(warnings, expected, "{name}");
        let json = as_json(text).unwrap();
        let errors: Vec<String> = schema
            .iter_errors(&json)
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
    assert!(Manifest::parse(SMALL).is_ok());
}

#[test]
fn every_field_arrives_where_it_belongs() {
    let manifest = Manifest::parse(VALID[5].1).unwrap();
    assert_eq!(
        (manifest.name.as_str(), manifest.kind, manifest.api),
        ("issue-tracker", Kind::Tool, 1)
    );
    assert_eq!(manifest.license.as_deref(), Some("MIT"));
    assert_eq!(manifest.tags, ["third_party"]);
    assert_eq!(manifest.capabilities.len(), 6);
    let execution = manifest.execution.unwrap();
    assert_eq!(execution.tier, Tier::Process);
    let command = vec!["./issue-tracker".to_owned(), "--serve".to_owned()];
    let protocol = Protocol::GoPlugin;
    assert_eq!(execution.start, Start::Program { command, protocol });
    let limits = execution.limits;
    assert_eq!(
        (limits.memory, limits.cpu_milli),
        (ByteSize(256 << 20), 500)
    );
    assert_eq!(
        (limits.pids, limits.fuel, limits.call_timeout),
        (20, None, Span { millis: 30_000 })
    );
    let texts = |rules: &[fluffy_plugin_core::manifest::PathRule]| {
        rules.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(texts(&execution.sandbox.read_allow), ["/docs/*"]);
    assert_eq!(texts(&execution.sandbox.read_deny), ["/docs/private/*"]);
    assert_eq!(texts(&execution.sandbox.write_allow), ["@data/*"]);
    assert_eq!(
        execution.sandbox.hosts[0].to_string(),
        "tracker.example.com:443"
    );
    let settings = &manifest.settings.all;
    let secret: Vec<&String> = (settings.iter())
        .filter_map(|(name, one)| (one.sight == Sight::Secret).then_some(name))
        .collect();
    assert_eq!(secret, ["token"]);
    assert_eq!(
        execution.environment,
        BTreeMap::from([("TRACKER_TOKEN".to_owned(), "token".to_owned())])
    );
    assert_eq!(settings["retries"].default, Some(json!(2)));
    assert_eq!(manifest.dependencies["session-store"].to_string(), "^1.0");
    assert_eq!(manifest.tools[0].name, "issues.close");
    assert_eq!(manifest.tools[0].timeout, Some(Span { millis: 10_000 }));
    assert_eq!(manifest.tools[1].parameters["additionalProperties"], false);

    let module = Manifest::parse(VALID[2].1).unwrap().execution.unwrap();
    assert_eq!(module.limits.fuel, Some(1_000_000_000));
    assert_eq!(module.limits.memory, ByteSize(16 << 20));
    let text = Manifest::parse(VALID[4].1).unwrap();
    assert_eq!((text.execution, text.settings), (None, Settings::default()));
    assert!(text.lifecycle.hot_reload);
}

#[test]
fn every_mistake_is_refused_with_its_place_and_its_words() {
    let mut found = String::new();
    for (name, _, change) in cases() {
        let text = text_of(&change);
        let Err(refused) = Manifest::parse(&text) else {
            panic!("`{name}` is taken:\n{text}");
        };
        writeln!(found, "== {name}").unwrap();
        for error in refused.errors() {
            writeln!(
                found,
                "{error}\n  why: {}\n  fix: {}",
                error.why, error.help
            )
            .unwrap();
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/refusals.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, &found).unwrap();
    }
    let golden = fs::read_to_string(path).unwrap();
    for (ours, expected) in found.lines().zip(golden.lines()) {
        assert_eq!(ours, expected);
    }
    assert_eq!(found, golden);
}

#[test]
fn the_schema_refuses_what_it_can_say() {
    let schema = jsonschema::validator_for(&manifest_schema()).unwrap();
    let mut wrong = Vec::new();
    for (name, can, change) in cases() {
        let refused = match as_json(&text_of(&change)) {
            Some(json) => !schema.is_valid(&json),
            // What is no JSON at all never reaches a schema.
            None => can == Refuses && name == "empty",
        };
        if refused != (can == Refuses) {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_published_schema_is_the_one_in_the_repository() {
    let ours = format!("{:#}\n", manifest_schema());
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/manifest.schema.json"
    );
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, &ours).unwrap();
    }
    // By value: the order of keys depends on who else is built.
    let kept: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert!(
        manifest_schema() == kept,
        "write it anew with UPDATE_GOLDEN=1"
    );
}

#[test]
fn all_mistakes_are_found_at_once() {
    let text = "name: Bad\nversion: 1\ntype: tols\nengine: y\napi: 0\nexecution: { tier: process, command: [ -x ], protocol: grpc, limits: { pids: 0 } }\n";
    let refused = Manifest::parse(text).unwrap_err();
    let lines: Vec<u32> = refused.errors().map(|error| error.place.line).collect();
    assert_eq!(lines, [1, 2, 3, 4, 5, 6, 6, 6]);
}

#[test]
fn only_a_host_that_it_was_made_for_runs_it() {
    let manifest = Manifest::parse(SMALL).unwrap();
    assert_eq!(manifest.fits(&Version::new(0, 1, 7)), Ok(()));
    let other = manifest.fits(&Version::new(0, 2, 0));
    assert!(matches!(other, Err(Misfit::Engine { .. })));
    let future = Manifest::parse(&SMALL.replace("api: 1", "api: 2")).unwrap();
    assert_eq!(
        future.fits(&Version::new(0, 1, 7)),
        Err(Misfit::Api { wanted: 2 })
    );
}

#[test]
fn what_is_pointless_is_a_warning() {
    let text = format!(
        "{SMALL}  sandbox: {{ filesystem: {{ read_allow: [ \"/docs/*\" ], read_deny: [ \"/src/*\" ] }} }}\n"
    );
    let manifest = Manifest::parse(&text).unwrap();
    assert_eq!(manifest.warnings.len(), 1);
    assert!(manifest.warnings[0].what.contains("/src/*"));
}

#[test]
fn values_of_settings_are_read_and_checked_without_being_shown() {
    let manifest = Manifest::parse(VALID[5].1).unwrap();
    let settings = &manifest.settings;
    for (name, text, expected) in [
        (
            "url",
            "https://other.example",
            Ok(json!("https://other.example")),
        ),
        ("retries", "5", Ok(json!(5))),
        ("retries", "6", Err("it is not between 0 and 5")),
        ("retries", "2.5", Err("it is not a whole number")),
        ("retries", "five", Err("it is not a whole number")),
        ("token", "12345678", Ok(json!("12345678"))),
        (
            "token",
            "1234567",
            Err("it has not between 8 and 16384 characters"),
        ),
        (
            "token",
            "1234567\u{0}",
            Err("it has a character that cannot be stored"),
        ),
        ("mode", "fast", Ok(json!("fast"))),
        ("mode", "FAST", Err("it is none of `fast`, `careful`")),
        ("labels", "a, b", Ok(json!(["a", "b"]))),
        ("labels", "[\"a,b\"]", Ok(json!(["a,b"]))),
        ("labels", "", Ok(json!([]))),
        ("labels", "a,b,c,d", Err("it has not between 0 and 3 items")),
        ("labels", "[1]", Err("it is not a text")),
        ("labels", "[", Err("it is not a list of JSON")),
        ("strict", "true", Ok(json!(true))),
        ("strict", "yes", Err("it is not true or false")),
        ("ratio", "0.25", Ok(json!(0.25))),
        ("ratio", "1e999", Err("it is not a number")),
    ] {
        let read = settings.all[name].read(text).map_err(|why| why.to_string());
        assert_eq!(read, expected.map_err(str::to_owned), "{name} {text}");
    }
    let set = json!({"retries": 4, "gone": 1});
    let set = set.as_object().unwrap();
    assert_eq!(settings.missing(set), [("token", Sight::Secret)]);
    let resolved = serde_json::Value::Object(settings.resolved(set));
    let expected = json!({"retries": 4, "url": "https://tracker.example.com"});
    assert_eq!(resolved, expected);
}
