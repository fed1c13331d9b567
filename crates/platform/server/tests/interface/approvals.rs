//! What waits for a person: what it is told, and when that is good for anything.

use fluffy_api::Operation;
use fluffy_api::client::{CallError, Client};
use serde_json::{Value, json};

use crate::house::House;
use crate::strangers::login;

async fn look_first(owner: &Client, action: &str) {
    let rules = format!(
        "version: 1\ncapabilities:\n  - {{ name: look, match: {{ action: {action} }}, do: require_review }}\n"
    );
    let policy: Value = owner.get(Operation::GetPolicy, &["local"]).await.unwrap();
    let set = json!({"rules": rules, "expected_version": policy["version"]});
    let _: Value = owner
        .send(Operation::SetPolicy, &["local"], &set)
        .await
        .unwrap();
}

fn code<T: std::fmt::Debug>(result: Result<T, CallError>) -> String {
    match result {
        Err(CallError::Refused(problem)) => problem.code,
        other => panic!("{other:?}"),
    }
}

/// A credential is told when it is asked for, opens nothing until a person
/// said yes, and works from then on.
#[tokio::test(flavor = "multi_thread")]
async fn a_credential_that_waits_is_told_and_opens_nothing_before() {
    let house = House::start().await;
    let owner = house.owner().await;
    let body = json!({"name": "robot", "grants": ["app.read.local"]});
    let robot: Value = owner
        .send(Operation::CreatePrincipal, &["local"], &body)
        .await
        .unwrap();
    let admin = house.bearer(&login(&house, &owner, "admin").await).await;
    look_first(&owner, "token.manage").await;
    let body = json!({"principal_id": robot["id"], "ttl_seconds": 3600});
    let parked: Value = admin
        .send(Operation::CreateToken, &["local"], &body)
        .await
        .unwrap();
    let approval = parked["approval_id"].as_str().unwrap();
    let token = parked["secret"].as_str().unwrap();
    let bearer = house.bearer(token).await;
    let apps =
        async || -> Result<Value, CallError> { bearer.get(Operation::ListApps, &["local"]).await };
    assert_eq!(code(apps().await), "unauthenticated");
    let yes = json!({"outcome": "approved"});
    let _: Value = owner
        .send(Operation::DecideApproval, &["local", approval], &yes)
        .await
        .unwrap();
    assert_eq!(apps().await.unwrap()["items"], json!([]));
}

/// A command in an instance does not wait, and no signal to one: whoever asks is
/// told what to ask for instead, and nothing of it is kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_an_instance_does_not_wait_for_a_person() {
    let house = House::start().await;
    let owner = house.owner().await;
    let instance = house.instance().await;
    let path = ["local", "shop", "dev", instance.as_str()];
    for (action, operation, body) in [
        (
            "instance.exec",
            Operation::CreateExec,
            json!({"command": ["env"]}),
        ),
        (
            "instance.restart",
            Operation::SignalInstance,
            json!({"signal": "USR1"}),
        ),
    ] {
        look_first(&owner, action).await;
        let asked: Result<Value, _> = owner.send(operation, &path, &body).await;
        assert_eq!(code(asked), "policy_denied", "{action}");
    }
    let ledger = house.crew.platform.ledger();
    let events = ledger.read(1, 10_000).unwrap();
    let kept = ["approval.requested", "instance.signal_requested"];
    assert!(
        events
            .iter()
            .all(|event| !kept.contains(&event.event_type.as_str()))
    );
}
