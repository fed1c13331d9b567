//! Requests that fit and requests that do not, and that nothing is unchecked.

use serde_json::json;

use super::*;

fn refused(operation: Operation, body: Value) -> Problem {
    *Requests::new().check_body(operation, &body).unwrap_err()
}

#[test]
fn a_good_body_fits() {
    let requests = Requests::new();
    for (operation, body) in [
        (
            Operation::CreateApp,
            json!({"name": "shop", "description": null}),
        ),
        (
            Operation::CreateDeploy,
            json!({"release_id": "rel_01ARZ3NDEKTSV4RRFFQ69G5FAV", "options": {"max_surge": 2, "on_failure": "pause"}}),
        ),
        (
            Operation::SetScale,
            json!({"processes": {"web": 3, "db": null}, "expected_version": 4}),
        ),
        (
            Operation::CreateVolume,
            json!({"name": "data", "size_bytes": 1_u64 << 30}),
        ),
        (
            Operation::UpdateOrg,
            json!({"legal_hold_until": "2027-01-01T00:00:00Z"}),
        ),
        (Operation::CreateSnapshot, json!({})),
    ] {
        assert_eq!(requests.check_body(operation, &body), Ok(()), "{body}");
    }
}

#[test]
fn every_problem_is_told_with_its_field() {
    let problem = refused(
        Operation::CreateRoute,
        json!({"listen_port": 0, "protocol_hint": "http", "backend_process": "Web", "backend_port": "80"}),
    );
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (400, "invalid_argument")
    );
    let fields: Vec<_> = problem
        .errors
        .iter()
        .map(|each| each.field.as_str())
        .collect();
    assert_eq!(
        fields,
        [
            "backend_port",
            "backend_process",
            "listen_port",
            "protocol_hint"
        ]
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    for (operation, body) in [
        (Operation::CreateApp, json!({})),
        (Operation::CreateApp, json!([])),
        (Operation::CreateApp, json!({"name": "Shop"})),
        (Operation::CreateApp, json!({"name": "shop\n"})),
        (Operation::CreateOrg, json!({"slug": "a"})),
        (Operation::SetScale, json!({"processes": {}})),
        (Operation::SetScale, json!({"processes": {"Web": 1}})),
        (
            Operation::SetScale,
            json!({"processes": {"web": 4_294_967_296_u64}}),
        ),
        (Operation::SetScale, json!({"processes": {"web": -1}})),
        (Operation::SetQuotas, json!({"limits": {"wishes": 3}})),
        (Operation::CreateDeploy, json!({"release_id": "rel_1"})),
        (
            Operation::CreateDeploy,
            json!({"release_id": "app_01ARZ3NDEKTSV4RRFFQ69G5FAV"}),
        ),
        (
            Operation::CreateVolume,
            json!({"name": "data", "size_bytes": 12}),
        ),
        (
            Operation::UpdateOrg,
            json!({"legal_hold_until": "tomorrow"}),
        ),
        (
            Operation::AddMember,
            json!({"email": "a@b.c", "role": "king"}),
        ),
        (Operation::CreateExec, json!({"command": []})),
        (
            Operation::CreateExec,
            json!({"command": ["ls"], "cols": 70_000}),
        ),
    ] {
        assert_eq!(
            refused(operation, body.clone()).code,
            "invalid_argument",
            "{body}"
        );
    }
}

#[test]
fn an_unknown_field_has_its_own_code_and_a_hint() {
    let problem = refused(Operation::CreateApp, json!({"name": "shop", "desc": "x"}));
    assert_eq!(problem.code, "unknown_field");
    assert_eq!(
        problem.errors[0].message,
        "does not exist; perhaps `description`"
    );
    let nested = refused(Operation::CreateRollback, json!({"options": {"surge": 1}}));
    assert_eq!(nested.errors[0].field, "options.surge");
}

#[test]
fn parameters_are_checked() {
    let spec = Operation::ListInstances.spec();
    let read = |pairs: &[(&str, &str)]| {
        query(
            spec,
            pairs
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into())),
        )
    };
    let good = read(&[
        ("limit", "200"),
        ("status", "ready"),
        ("created_after", "2026-01-01T00:00:00Z"),
    ]);
    assert_eq!(good.unwrap().len(), 3);
    for (name, value) in [
        ("limit", "0"),
        ("limit", "201"),
        ("limit", "+5"),
        ("limit", ""),
        ("status", "happy"),
        ("created_after", "yesterday"),
        ("process", ""),
        ("process", "a\u{0}b"),
        ("min_seq", "-1"),
    ] {
        assert_eq!(
            read(&[(name, value)]).unwrap_err().code,
            "invalid_argument",
            "{name}={value}"
        );
    }
    assert_eq!(
        read(&[("limit", "1"), ("limit", "1")]).unwrap_err().code,
        "invalid_argument"
    );
    assert_eq!(
        read(&[("colour", "red")]).unwrap_err().code,
        "unknown_parameter"
    );
}

#[test]
fn what_a_path_names_is_an_id_or_a_name() {
    let requests = Requests::new();
    let spec = Operation::GetOrg.spec();
    for good in ["acme", "org_01ARZ3NDEKTSV4RRFFQ69G5FAV"] {
        assert_eq!(requests.check_path(spec, &[good.into()]), Ok(()));
    }
    for bad in ["..", "a/b", "a%2fb", "a\u{0}", "-a", ""] {
        assert!(requests.check_path(spec, &[bad.into()]).is_err(), "{bad:?}");
    }
}

/// A word that the checker does not know would be promised and not kept.
#[test]
fn every_word_of_every_request_schema_is_checked() {
    const KNOWN: &[&str] = &[
        "$ref",
        "additionalProperties",
        "anyOf",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "oneOf",
        "pattern",
        "properties",
        "propertyNames",
        "required",
        "title",
        "type",
        "const",
    ];
    fn walk(schema: &Value, requests: &Requests) {
        let Value::Object(fields) = schema else {
            return;
        };
        for (word, part) in fields {
            assert!(KNOWN.contains(&word.as_str()), "{word} in {schema}");
            match word.as_str() {
                "properties" => part
                    .as_object()
                    .unwrap()
                    .values()
                    .for_each(|part| walk(part, requests)),
                "items" | "additionalProperties" | "propertyNames" => walk(part, requests),
                "anyOf" | "oneOf" => part
                    .as_array()
                    .unwrap()
                    .iter()
                    .for_each(|part| walk(part, requests)),
                "pattern" => assert!(
                    requests.patterns.contains_key(part.as_str().unwrap()),
                    "{part}"
                ),
                _ => {}
            }
        }
    }
    let requests = Requests::new();
    assert!(requests.definitions.len() > 30);
    requests
        .definitions
        .values()
        .for_each(|schema| walk(schema, &requests));
}
