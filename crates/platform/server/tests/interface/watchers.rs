//! Who watches the record of decisions is on it once.

use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, Client, Watch};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::house::{House, PATIENCE};

const ORG: [&str; 1] = ["local"];

/// Reads until an app of this name was made.
async fn hears_of(stream: &mut Watch, app: &str) {
    let hears = async {
        loop {
            let change = stream.next().await.unwrap().unwrap();
            let text = change.value.to_string();
            if text.contains("app.created") && text.contains(app) {
                return;
            }
        }
    };
    timeout(PATIENCE, hears).await.unwrap();
}

async fn create(owner: &Client, name: &str) {
    let body = json!({ "name": name });
    let _: Value = owner.send(Operation::CreateApp, &ORG, &body).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_the_audit_is_recorded_once() {
    let house = House::start().await;
    let owner = house.owner().await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let ask = Ask::new(Operation::ListAudit, &ORG);
        streams.push(owner.watch(ask, None).await.unwrap());
    }
    for name in ["one", "two", "three"] {
        create(&owner, name).await;
        for stream in &mut streams {
            hears_of(stream, name).await;
        }
    }
    let events = house.crew.platform.ledger().read(1, 10_000).unwrap();
    let looks = events.iter().filter(|it| {
        it.event_type == "authz.decided" && it.payload.as_str().contains("audit.read")
    });
    assert_eq!(looks.count(), 2);
}

/// And ends when its reader may no longer look, though nobody is asked to
/// record it.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_of_the_audit_who_may_no_longer_look_sees_no_more() {
    let house = House::start().await;
    let owner = house.owner().await;
    let body = json!({ "name": "robot", "grants": ["audit.read.local"] });
    let robot: Value = owner
        .send(Operation::CreatePrincipal, &ORG, &body)
        .await
        .unwrap();
    let token = json!({ "principal_id": robot["id"] });
    let token: Value = owner
        .send(Operation::CreateToken, &ORG, &token)
        .await
        .unwrap();
    let bearer = house.bearer(token["secret"].as_str().unwrap()).await;
    let ask = Ask::new(Operation::ListAudit, &ORG);
    let mut stream = bearer.watch(ask, None).await.unwrap();
    create(&owner, "before").await;
    hears_of(&mut stream, "before").await;
    let path = ["local", token["id"].as_str().unwrap()];
    owner
        .call(Ask::new(Operation::RevokeToken, &path))
        .await
        .unwrap();
    create(&owner, "after").await;
    let rest = async {
        let mut seen = String::new();
        while let Ok(Some(change)) = stream.next().await {
            seen.push_str(&change.value.to_string());
        }
        seen
    };
    let seen = timeout(Duration::from_secs(60), rest).await.unwrap();
    assert!(!seen.contains("after"), "{seen}");
}
