//! Holds the document against the table and against JSON Schema.

use serde_json::Value;

use super::*;

fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let mut all = Vec::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            if method != "parameters" {
                all.push((path.as_str(), method.as_str(), operation));
            }
        }
    }
    all
}

/// Every `$ref` of a value.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), field) {
                    ("$ref", Value::String(reference)) => found.push(reference),
                    _ => references(field, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn every_operation_and_every_reference_is_there() {
    let document = document();
    assert_eq!(operations(&document).len(), Operation::ALL.len());
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > Operation::ALL.len());
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn every_path_parameter_is_described() {
    let document = document();
    for (path, item) in document["paths"].as_object().unwrap() {
        let described: Vec<_> = item["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .map(|parameter| parameter["name"].as_str().unwrap().to_owned())
            .collect();
        let named: Vec<_> = path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
            .collect();
        assert_eq!(described, named, "{path}");
    }
}

#[test]
fn a_type_looks_the_same_wherever_it_is_used() {
    let mut schemas = Schemas::new();
    for operation in Operation::ALL {
        let spec = operation.spec();
        if let Some(request) = spec.request {
            request(&mut schemas.requests);
        }
        (spec.response)(&mut schemas.answers);
    }
    let answers = schemas.answers.take_definitions(true);
    for (name, request) in schemas.requests.take_definitions(true) {
        if let Some(answer) = answers.get(&name) {
            assert_eq!(&request, answer, "{name} is not the same in requests");
        }
    }
}

#[test]
fn requests_are_closed_and_answers_are_open() {
    let document = document();
    for (path, method, operation) in operations(&document) {
        let Some(body) = operation.get("requestBody") else {
            continue;
        };
        let reference = body["content"]["application/json"]["schema"]["$ref"]
            .as_str()
            .unwrap();
        let schema = document
            .pointer(reference.strip_prefix('#').unwrap())
            .unwrap();
        assert_eq!(schema["additionalProperties"], false, "{method} {path}");
    }
    let app = &document["components"]["schemas"]["App"];
    assert!(app.get("additionalProperties").is_none());
    assert!(
        app["required"]
            .as_array()
            .unwrap()
            .contains(&"version".into())
    );
}

#[test]
fn what_a_create_makes_can_be_read_and_deleted() {
    let document = document();
    let links = &document["paths"]["/v1/orgs/{org}/apps"]["post"]["responses"]["201"]["links"];
    assert_eq!(links["getApp"]["parameters"]["app"], "$response.body#/id");
    assert_eq!(links["deleteApp"]["parameters"]["org"], "$request.path.org");
    assert!(links.get("createEnv").is_some());
    assert!(links.get("getEnv").is_none());
}

#[test]
fn every_refusal_of_an_operation_is_documented() {
    let document = document();
    let deploy = &document["paths"]["/v1/orgs/{org}/apps/{app}/envs/{env}/deploys"]["post"];
    let statuses: Vec<_> = deploy["responses"].as_object().unwrap().keys().collect();
    assert_eq!(
        statuses,
        [
            "201", "202", "400", "401", "403", "404", "409", "413", "414", "415", "422", "429",
            "431", "500", "503"
        ]
    );
    let conflict = deploy["responses"]["409"]["description"].as_str().unwrap();
    assert!(conflict.contains("`release_blocked`"), "{conflict}");
}

/// The table of §6.3 of the platform's specification, as it names paths.
#[test]
fn the_table_covers_the_specification() {
    let wanted = include_str!("endpoints.txt");
    let mut wanted: Vec<&str> = wanted
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let have: Vec<String> = Operation::ALL
        .iter()
        .map(|operation| operation.spec())
        .map(|spec| format!("{} {}", spec.method.as_str(), spec.path))
        .collect();
    wanted.retain(|line| !have.iter().any(|have| have == line));
    assert!(wanted.is_empty(), "{wanted:#?}");
}

#[test]
fn the_reference_names_everything() {
    let text = reference();
    for operation in Operation::ALL {
        assert!(text.contains(&format!("`{}`: ", operation.spec().id)));
    }
    for code in CODES_OF_THE_REFERENCE {
        assert!(text.contains(code));
    }
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        assert_eq!(line.matches(" | ").count(), 4, "{line}");
    }
}

const CODES_OF_THE_REFERENCE: [&str; 2] = ["`quota_exceeded`", "| 503 | `projection_lag` |"];
