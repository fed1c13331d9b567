//! Tools as an author writes and tests them: under `cargo test`, with a double.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::collections::BTreeMap;

use fluffy_plugin_sdk::host::egress::{Request, Response};
use fluffy_plugin_sdk::host::log::Level;
use fluffy_plugin_sdk::host::{Error, config, double, egress, fs, kv, log};
use fluffy_plugin_sdk::serde_json::{Value, from_slice, json};
use fluffy_plugin_sdk::{Answer, Arguments, Choice, Outcome, Plugin, Tool, tool, tools};

#[derive(Debug, Arguments)]
#[allow(dead_code, reason = "only read from JSON")]
struct Everything {
    /// What it is about,
    /// in two lines.
    text: String,
    count: u8,
    r#type: Option<Size>,
    nested: Vec<Inner>,
    named: BTreeMap<String, bool>,
    ratio: Option<f64>,
    any: Option<Value>,
}

#[derive(Debug, Arguments)]
#[allow(dead_code, reason = "only read from JSON")]
struct Inner {
    at: i64,
}

#[derive(Debug, PartialEq, Choice)]
enum Size {
    Small,
    VeryLarge,
}

/// Shows what it was
/// called with.
///
/// Not part of the summary.
#[tool]
fn show(arguments: Everything) -> Answer {
    Ok(format!("{arguments:?}"))
}

#[derive(Arguments)]
struct Remember {
    key: String,
    value: String,
}

/// Remembers a value.
#[tool]
fn remember(arguments: Remember) -> Answer {
    let before = kv::get(&arguments.key)?;
    kv::set(&arguments.key, arguments.value.as_bytes())?;
    if before.is_some() {
        return Err("there was one already".into());
    }
    Ok("kept".to_owned())
}

/// Says nothing.
#[tool]
fn nothing() -> Answer {
    Ok(String::new())
}

struct Sample;

impl Plugin for Sample {
    const TOOLS: &'static [Tool] = tools![show, remember, nothing];
}

fluffy_plugin_sdk::export!(Sample);

#[test]
fn a_tool_is_told_as_it_was_written() {
    let told = Sample::describe();
    let names: Vec<&str> = told.iter().map(|tool| tool.name).collect();
    assert_eq!(names, ["show", "remember", "nothing"]);
    assert_eq!(told[0].summary, "Shows what it was called with.");
    let expected = json!({
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What it is about, in two lines."},
            "count": {"type": "integer", "minimum": 0, "maximum": 255},
            "type": {"type": "string", "enum": ["small", "very_large"]},
            "nested": {"type": "array", "items": {
                "type": "object",
                "properties": {
                    "at": {"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX},
                },
                "required": ["at"],
                "additionalProperties": false,
            }},
            "named": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "ratio": {"type": "number"},
            "any": {},
        },
        "required": ["text", "count", "nested", "named"],
        "additionalProperties": false,
    });
    assert_eq!(told[0].parameters, expected);
    let none = json!({
        "type": "object", "properties": {}, "required": [], "additionalProperties": false,
    });
    assert_eq!(told[2].parameters, none);
}

#[test]
fn what_does_not_fit_the_schema_is_refused_in_words() {
    let good = json!({
        "text": "a", "count": 3, "type": "very_large", "nested": [{"at": -1}],
        "named": {"b": true}, "ratio": null,
    });
    let output = Sample::call("show", &good.to_string()).unwrap();
    assert_eq!(output.outcome, Outcome::Done);
    assert_eq!(
        output.content,
        "Everything { text: \"a\", count: 3, type: Some(VeryLarge), nested: [Inner { at: -1 }], \
         named: {\"b\": true}, ratio: None, any: None }"
    );
    for (field, value, said) in [
        ("text", json!(7), "`text`: a string was expected, not 7"),
        (
            "count",
            json!(256),
            "`count`: an integer from 0 to 255 was expected, not 256",
        ),
        (
            "count",
            json!(-1),
            "`count`: an integer from 0 to 255 was expected, not -1",
        ),
        (
            "type",
            json!("huge"),
            "`type`: one of small, very_large was expected, not \"huge\"",
        ),
        ("nested", json!([{}]), "`nested`: `at` is missing"),
        (
            "nested",
            json!({}),
            "`nested`: an array was expected, not {}",
        ),
        (
            "named",
            json!({"b": 1}),
            "`named`: true or false was expected, not 1",
        ),
        (
            "ratio",
            json!("1"),
            "`ratio`: a number was expected, not \"1\"",
        ),
        ("other", json!(1), "there is no argument `other`"),
    ] {
        let mut wrong = good.clone();
        wrong[field] = value;
        assert_eq!(Sample::call("show", &wrong.to_string()).unwrap_err(), said);
    }
    let missing = Sample::call("remember", r#"{"key":"a"}"#);
    assert_eq!(missing.unwrap_err(), "`value` is missing");
    assert!(
        Sample::call("remember", "[]")
            .unwrap_err()
            .contains("no JSON object")
    );
    assert_eq!(
        Sample::call("other", "{}").unwrap_err(),
        "there is no tool `other`"
    );
}

#[test]
fn a_tool_runs_under_cargo_test_with_a_double_of_its_host() {
    let call = || Sample::call("remember", r#"{"key":"a","value":"b"}"#).unwrap();
    assert_eq!(
        (call().content.as_str(), call().outcome),
        ("kept", Outcome::Failed)
    );
    assert_eq!(kv::get("a").unwrap().unwrap(), b"b");
    double::deny("kv.set.*");
    let refused = call();
    assert_eq!(refused.outcome, Outcome::Failed);
    assert_eq!(refused.content, "`kv.set.a` is not permitted");
}

#[test]
fn the_double_has_every_service() {
    kv::set("b/1", b"x").unwrap();
    kv::set("b/2", b"y").unwrap();
    assert_eq!(kv::list("b/", "b/1").unwrap(), ["b/2"]);
    kv::delete("b/2").unwrap();
    assert_eq!(kv::get("b/2").unwrap(), None);

    double::put_file("/docs/a/b.md", b"text");
    assert_eq!(fs::read("/docs/a/b.md").unwrap(), b"text");
    assert_eq!(fs::list("/docs").unwrap(), ["a/"]);
    assert!(matches!(fs::read("/c"), Err(Error::NotFound(_))));
    assert!(matches!(fs::write("/c", b""), Err(Error::Invalid(_))));
    fs::write("@data/c", b"mine").unwrap();
    assert_eq!(fs::read("@data/c").unwrap(), b"mine");

    assert_eq!(config::get().unwrap(), json!({}));
    double::configure(json!({"colour": "blue"}));
    assert_eq!(config::get().unwrap()["colour"], "blue");

    log::write(Level::Warn, "careful").unwrap();
    assert_eq!(double::lines(), [(Level::Warn, "careful".to_owned())]);

    let url = "https://a.example/b";
    assert!(matches!(
        egress::fetch(&Request::get(url)),
        Err(Error::Failed(_))
    ));
    let response = Response {
        status: 200,
        headers: Vec::new(),
        body: b"{}".to_vec(),
    };
    double::answer(url, response);
    let body = egress::fetch(&Request::get(url)).unwrap().body;
    assert_eq!(from_slice::<Value>(&body).unwrap(), json!({}));
    double::deny("net.connect.a.example:443");
    assert!(matches!(
        egress::fetch(&Request::get(url)),
        Err(Error::Denied(_))
    ));
}
