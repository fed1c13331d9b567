//! A manifest that is wrong is answered with every mistake at its place.

use fluffy_api::Operation;
use fluffy_api::client::CallError;
use serde_json::{Value, json};

use crate::house::House;

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_manifest_is_answered_with_line_and_column() {
    let house = House::start().await;
    let owner = house.owner().await;
    let app = json!({"name": "shop"});
    let made = owner.send::<Value>(Operation::CreateApp, &["local"], &app);
    made.await.unwrap();
    let path = ["local", "shop"];
    let body = |replicas: &str, memory: &str| {
        let text = format!(
            "schema_version = \"v1\"\n[processes.web]\nreplicas = {replicas}\n\
             resources = {{ memory = \"{memory}\" }}\n"
        );
        json!({"image": "registry.example/shop:1", "manifest": text})
    };
    let wrong = body("\"3\"", "128Mi");
    let answer = owner.send::<Value>(Operation::CreateRelease, &path, &wrong);
    let problem = match answer.await {
        Err(CallError::Refused(problem)) => problem,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (422, "manifest_invalid")
    );
    let told: Vec<_> = problem
        .errors
        .iter()
        .map(|it| (it.code.as_str(), it.field.as_str(), it.line, it.column))
        .collect();
    assert_eq!(
        told,
        [
            ("E_TYPE", "processes.web.replicas", Some(3), Some(12)),
            (
                "E_UNIT",
                "processes.web.resources.memory",
                Some(4),
                Some(24)
            ),
        ]
    );
    // The control: without the mistakes it is a release.
    let right = body("3", "128MiB");
    let release = owner.send::<Value>(Operation::CreateRelease, &path, &right);
    assert!(release.await.unwrap()["id"].is_string());
}
