//! The HTTP interface never takes back what a published version of it said.
//!
//! `http_contract.txt` keeps one line for everything that a caller may rely
//! on. What is added gets its line; a line that is lost or made stricter needs
//! another first number in `VERSION`, and a new file.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use fluffy_api::openapi::{VERSION, document};
use serde_json::{Map, Value, json};

/// Set to add what is new to the kept list.
const REGENERATE: &str = "FLUFFY_REGENERATE";

/// Facts by what they are about. `>` is said by callers, `<` by servers.
type Contract = BTreeMap<String, Value>;

#[test]
fn nothing_that_callers_rely_on_is_taken_back() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http_contract.txt");
    let kept = fs::read_to_string(&place).unwrap_or_default();
    let (major, kept) = kept.split_once('\n').unwrap_or_default();
    let now = contract(&document());
    let current = VERSION.split_once('.').unwrap().0;
    if major == current {
        let broken = broken(&parse(kept), &now);
        assert!(
            broken.is_empty(),
            "this breaks callers of version {major}; keep it, or raise the first number of \
             `VERSION`: {broken:#?}"
        );
    }
    let mut text = format!("{current}\n");
    for (about, mut fact) in now {
        // Whether maps keep an order depends on who else is built with us.
        fact.sort_all_objects();
        text.push_str(&format!("{about}\t{fact}\n"));
    }
    if std::env::var_os(REGENERATE).is_some() {
        fs::write(&place, &text).unwrap();
    }
    assert!(
        fs::read_to_string(&place).is_ok_and(|kept| kept == text),
        "`{}` does not have all that is said now; {REGENERATE}=1 adds it",
        place.display()
    );
}

/// Each way to break a caller is seen, and what breaks nobody is let through.
#[test]
fn every_way_to_break_a_caller_is_seen() {
    type Change = fn(&mut Value);
    let create = "/components/schemas/CreateApp";
    let app = "/components/schemas/App";
    assert!(document().pointer(create).is_some() && document().pointer(app).is_some());
    let breaking: &[(&str, Change)] = &[
        ("deleteApp", |it| {
            take(it, "/paths/~1v1~1orgs~1{org}~1apps~1{app}", "delete");
        }),
        ("createApp", |it| {
            let answers = "/paths/~1v1~1orgs~1{org}~1apps/post/responses";
            let made = take(it, answers, "201");
            it.pointer_mut(answers).unwrap()["200"] = made;
        }),
        ("listApps query project", |it| {
            let place = "/paths/~1v1~1orgs~1{org}~1apps/get/parameters";
            it.pointer_mut(place)
                .unwrap()
                .as_array_mut()
                .unwrap()
                .remove(0);
        }),
        ("listApps query limit", |it| {
            let place = "/paths/~1v1~1orgs~1{org}~1apps/get/parameters/3/schema";
            it.pointer_mut(place).unwrap()["maximum"] = json!(100);
        }),
        ("> CreateApp.name", |it| {
            take(it, "/components/schemas/CreateApp/properties", "name");
        }),
        ("> CreateApp.colour", |it| {
            let schema = it.pointer_mut("/components/schemas/CreateApp").unwrap();
            schema["properties"]["colour"] = json!({ "type": "string" });
            schema["required"]
                .as_array_mut()
                .unwrap()
                .push(json!("colour"));
        }),
        ("> CreateApp.description", |it| {
            let schema = it.pointer_mut("/components/schemas/CreateApp").unwrap();
            schema["required"]
                .as_array_mut()
                .unwrap()
                .push(json!("description"));
        }),
        ("< App.version", |it| {
            let schema = it.pointer_mut("/components/schemas/App").unwrap();
            schema["required"]
                .as_array_mut()
                .unwrap()
                .retain(|name| name != "version");
        }),
        ("< App.version", |it| {
            let schema = it.pointer_mut("/components/schemas/App").unwrap();
            schema["properties"]["version"] = json!({ "type": "string" });
        }),
    ];
    let before = contract(&document());
    for (about, change) in breaking {
        let mut changed = document();
        change(&mut changed);
        let broken = broken(&before, &contract(&changed));
        assert!(
            broken
                .iter()
                .any(|line| line.starts_with(&format!("{about}:"))),
            "{about}: {broken:?}"
        );
    }
    let harmless: &[Change] = &[
        |it| {
            let schema = it.pointer_mut("/components/schemas/CreateApp").unwrap();
            schema["properties"]["colour"] = json!({ "type": "string" });
        },
        |it| {
            let schema = it.pointer_mut("/components/schemas/App").unwrap();
            schema["properties"]["colour"] = json!({ "type": "string" });
            schema["required"]
                .as_array_mut()
                .unwrap()
                .push(json!("colour"));
        },
        |it| {
            let place = "/paths/~1v1~1orgs~1{org}~1apps/get/parameters/3/schema";
            it.pointer_mut(place).unwrap()["maximum"] = json!(500);
        },
        |it| it["info"]["description"] = json!("other words"),
    ];
    for (nth, change) in harmless.iter().enumerate() {
        let mut changed = document();
        change(&mut changed);
        assert_ne!(changed, document(), "change {nth}");
        let broken = broken(&before, &contract(&changed));
        assert!(broken.is_empty(), "change {nth}: {broken:?}");
    }
}

fn take(value: &mut Value, pointer: &str, name: &str) -> Value {
    let fields = value.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
    fields.remove(name).unwrap()
}

fn parse(kept: &str) -> Contract {
    kept.lines()
        .map(|line| line.split_once('\t').unwrap())
        .map(|(about, fact)| (about.to_owned(), serde_json::from_str(fact).unwrap()))
        .collect()
}

/// All that callers may rely on.
fn contract(document: &Value) -> Contract {
    let mut facts = Contract::new();
    let (mut said, mut answered) = (BTreeSet::new(), BTreeSet::new());
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if method == "parameters" {
                continue;
            }
            let id = operation["operationId"].as_str().unwrap();
            let answers = operation["responses"].as_object().unwrap();
            let good = answers
                .keys()
                .find(|status| status.as_str() < "300")
                .unwrap();
            facts.insert(id.to_owned(), json!(format!("{method} {path} {good}")));
            references(&answers[good], &mut answered);
            for parameter in operation["parameters"].as_array().unwrap() {
                let parameter = match parameter["$ref"].as_str() {
                    Some(reference) => at(document, reference),
                    None => parameter,
                };
                let [place, name] = ["in", "name"].map(|key| parameter[key].as_str().unwrap());
                let required = parameter["required"] == true;
                let fact = json!({ "required": required, "is": bare(&parameter["schema"]) });
                facts.insert(format!("{id} {place} {name}"), fact);
            }
            if let Some(body) = operation.get("requestBody") {
                let is = bare(&body["content"]["application/json"]["schema"]);
                let fact = json!({ "required": body["required"], "is": is });
                facts.insert(format!("{id} body"), fact);
                references(body, &mut said);
            }
        }
    }
    references(&document["components"]["responses"], &mut answered);
    for (sign, names) in [(">", said), ("<", answered)] {
        for name in reachable(document, names) {
            describe(document, &name, sign, &mut facts);
        }
    }
    facts
}

/// A line for each field of an object, one for anything else.
fn describe(document: &Value, name: &str, sign: &str, facts: &mut Contract) {
    let schema = at(document, name);
    let short = name.rsplit('/').next().unwrap();
    let mut whole = bare(schema);
    if let Some(fields) = whole.as_object_mut() {
        fields.remove("properties");
        fields.remove("required");
    }
    facts.insert(format!("{sign} {short}"), json!({ "is": whole }));
    for (field, is) in schema["properties"].as_object().into_iter().flatten() {
        let required = schema["required"]
            .as_array()
            .is_some_and(|all| all.contains(&json!(field)));
        let fact = json!({ "required": required, "is": bare(is) });
        facts.insert(format!("{sign} {short}.{field}"), fact);
    }
}

fn at<'a>(document: &'a Value, reference: &str) -> &'a Value {
    document
        .pointer(reference.strip_prefix('#').unwrap())
        .unwrap()
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str().filter(|_| name == "$ref") {
                    Some(schema) if schema.contains("/schemas/") => {
                        found.insert(schema.to_owned());
                    }
                    _ => references(field, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

fn reachable(document: &Value, mut names: BTreeSet<String>) -> BTreeSet<String> {
    loop {
        let mut more = names.clone();
        for name in &names {
            references(at(document, name), &mut more);
        }
        if more == names {
            return names;
        }
        names = more;
    }
}

/// A schema without what is only said to people.
fn bare(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let words = ["description", "title", "default", "examples"];
            // A field may be called `description`: then its value is a schema.
            let kept = fields.iter().filter(|(name, value)| {
                !words.contains(&name.as_str()) || (value.is_object() && *name != "default")
            });
            let kept: Map<_, _> = kept.map(|(name, it)| (name.clone(), bare(it))).collect();
            kept.into()
        }
        Value::Array(items) => items.iter().map(bare).collect(),
        other => other.clone(),
    }
}

fn broken(before: &Contract, now: &Contract) -> Vec<String> {
    let mut broken = Vec::new();
    let mut say = |about: &str, what: &str| broken.push(format!("{about}: {what}"));
    for (about, old) in before {
        let answer = about.starts_with('<');
        let Some(new) = now.get(about) else {
            say(about, "is gone");
            continue;
        };
        if old.is_string() && old != new {
            say(about, &format!("was {old} and is {new}"));
        }
        match (old["required"] == true, new["required"] == true) {
            (true, false) if answer => say(about, "is no longer always there"),
            (false, true) if !answer => say(about, "may no longer be left out"),
            _ => {}
        }
        if !(old.is_string() || wider(&old["is"], &new["is"], answer)) {
            say(about, &format!("was {} and is {}", old["is"], new["is"]));
        }
    }
    for (about, new) in now {
        // What belongs to something that is new itself concerns nobody yet.
        let owner = match about.strip_prefix("> ") {
            Some(rest) => rest.split_once('.').map(|(owner, _)| format!("> {owner}")),
            None if about.starts_with('<') => None,
            None => about.split_once(' ').map(|(owner, _)| owner.to_owned()),
        };
        let known = owner.is_some_and(|owner| before.contains_key(&owner));
        if known && new["required"] == true && !before.contains_key(about) {
            say(about, "is new and has to be there");
        }
    }
    broken
}

/// Whether all that was taken is taken still. Of answers only the list of words
/// may grow: callers pass over those that they do not know.
fn wider(old: &Value, new: &Value, answer: bool) -> bool {
    if old == new {
        return true;
    }
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else {
        return false;
    };
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    names.into_iter().all(|name| {
        let (was, is) = (old.get(name), new.get(name));
        if was == is {
            return true;
        }
        let numbers = || Some((was?.as_f64()?, is.map(Value::as_f64)));
        match name.as_str() {
            "enum" | "oneOf" | "anyOf" => match (was, is) {
                (Some(Value::Array(was)), Some(Value::Array(is))) => {
                    was.iter().all(|word| is.contains(word))
                }
                _ => false,
            },
            _ if answer => false,
            "maximum" | "maxLength" | "maxItems" | "maxProperties" => {
                matches!(numbers(), Some((was, is)) if is.is_none_or(|is| is >= Some(was)))
            }
            "minimum" | "minLength" | "minItems" => {
                matches!(numbers(), Some((was, is)) if is.is_none_or(|is| is <= Some(was)))
            }
            "pattern" | "format" => is.is_none(),
            "items" | "additionalProperties" | "propertyNames" => match (was, is) {
                (Some(was), Some(is)) => wider(was, is, answer),
                _ => false,
            },
            _ => false,
        }
    })
}
