//! Holds the table of operations against itself and against the codes.

use std::collections::BTreeSet;

use super::*;
use crate::problem::Code;

fn specs() -> impl Iterator<Item = &'static Spec> {
    Operation::ALL.iter().map(|operation| operation.spec())
}

#[test]
fn every_operation_is_found_by_its_method_and_path() {
    for operation in Operation::ALL {
        let spec = operation.spec();
        let values: Vec<String> = spec.path_params().map(|name| format!("a-{name}")).collect();
        let given: Vec<&str> = values.iter().map(String::as_str).collect();
        let path = operation.path_with(&given).unwrap();
        assert_eq!(
            Operation::find(spec.method, &path),
            Some((*operation, values)),
            "{path}"
        );
        assert!(Operation::methods(&path).contains(&spec.method));
    }
}

#[test]
fn no_two_operations_share_an_id_or_a_path() {
    let ids: BTreeSet<_> = specs().map(|spec| spec.id).collect();
    let paths: BTreeSet<_> = specs().map(|spec| (spec.method, spec.path)).collect();
    assert_eq!(ids.len(), Operation::ALL.len());
    assert_eq!(paths.len(), Operation::ALL.len());
    for operation in Operation::ALL {
        let name = format!("{operation:?}");
        let id = operation.spec().id;
        assert_eq!(name.to_lowercase(), id.to_lowercase());
        assert_eq!(Operation::by_id(id), Some(*operation));
    }
}

#[test]
fn every_code_is_in_the_catalogue_and_named_once() {
    for spec in specs() {
        for code in spec.errors {
            assert!(Code::find(code).is_some(), "{}: {code}", spec.id);
        }
        assert!(spec.errors.is_sorted(), "{}: sort its errors", spec.id);
    }
}

#[test]
fn what_an_entry_says_fits_together() {
    for spec in specs() {
        let id = spec.id;
        assert!(spec.summary.ends_with('.'), "{id}");
        assert!(!spec.cli.is_empty(), "{id}");
        assert!(spec.path.starts_with("/v1/"), "{id}");
        let own = ["revokeOwnToken", "whoami", "listOrgs"].contains(&id);
        assert_eq!(
            spec.capability.is_none(),
            own || spec.auth != Auth::Caller,
            "{id}: needs a capability"
        );
        if spec.precondition == Precondition::Required {
            assert!(matches!(spec.method, Method::Put | Method::Patch), "{id}");
        }
        if !spec.is_write() {
            assert_eq!(spec.idempotency, Need::Allowed, "{id}");
        }
        let names: BTreeSet<_> = spec.params().map(|param| param.name).collect();
        assert_eq!(
            names.len(),
            spec.params().count(),
            "{id}: a parameter twice"
        );
    }
}

#[test]
fn what_the_specification_requires_a_key_or_a_version_for_has_it() {
    let keys: Vec<_> = specs()
        .filter(|spec| spec.idempotency == Need::Required)
        .map(|spec| spec.id)
        .collect();
    assert_eq!(
        keys,
        [
            "createDeploy",
            "createRollback",
            "createVolume",
            "createSnapshot",
            "restoreSnapshot"
        ]
    );
    let versions: Vec<_> = specs()
        .filter(|spec| spec.precondition == Precondition::Required)
        .map(|spec| spec.id)
        .collect();
    assert_eq!(
        versions,
        ["setQuotas", "setPolicy", "setScale", "updateRoute"]
    );
}

#[test]
fn what_is_no_operation_is_not_found() {
    for path in [
        "/v1",
        "/v1/orgs/",
        "/v1/orgs/a/",
        "/v1/orgs//apps",
        "/v1/orgs/a/apps/b/c",
        "",
    ] {
        assert_eq!(Operation::find(Method::Get, path), None, "{path}");
    }
    assert_eq!(Operation::find(Method::Put, "/v1/orgs"), None);
    assert_eq!(Operation::methods("/v1/orgs"), [Method::Get, Method::Post]);
    assert_eq!(Operation::GetApp.path_with(&["one"]), None);
    assert_eq!(Operation::GetOrg.path_with(&["one", "two"]), None);
}
