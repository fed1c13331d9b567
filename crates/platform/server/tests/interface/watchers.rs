//! Who watches the record of decisions, or the platform itself, is on it once.

use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, Client, Watch};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::house::{House, PATIENCE};
use crate::strangers::login;

const ORG: [&str; 1] = ["local"];

/// Reads until an app of this name was made.
async fn hears_of(stream: &mut Watch, app: &str) {
    hears(stream, &["app.created", app]).await;
}

/// Reads until something has all of this; what it read before that.
async fn hears(stream: &mut Watch, all: &[&str]) -> String {
    let hears = async {
        let mut before = String::new();
        loop {
            let change = stream.next().await.unwrap().unwrap();
            let text = change.value.to_string();
            if all.iter().all(|part| text.contains(part)) {
                return before;
            }
            before.push_str(&text);
        }
    };
    timeout(PATIENCE, hears).await.unwrap()
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

/// What is of no org is for the operators: listed, followed, and gone on with
/// where one was; each look is on record once.
#[tokio::test(flavor = "multi_thread")]
async fn operators_follow_the_events_of_the_platform() {
    let house = House::start().await;
    let owner = house.owner().await;
    let admin = house.bearer(&login(&house, &owner, "admin").await).await;
    create(&owner, "ours").await;
    house.crew.join(1).await;
    let list = || Ask::new(Operation::ListPlatformEvents, &[]);
    let page = owner.call(list().query("limit", "200")).await;
    let page = page.unwrap().value;
    let items = page["items"].as_array().unwrap();
    let kinds: Vec<_> = items.iter().map(|it| &it["event_type"]).collect();
    assert!(kinds.iter().any(|it| **it == "node.enrolled"), "{kinds:?}");
    assert!(items.iter().all(|it| it["org_id"].is_null()), "{page}");
    // The control: that event is there, and an org's.
    let of_org: Value = owner.get(Operation::ListEvents, &ORG).await.unwrap();
    let of_org = of_org.to_string();
    assert!(of_org.contains("app.created"), "{of_org}");
    assert!(!of_org.contains("node.enrolled"), "{of_org}");
    let ask = list().query("types", "node.*").query("limit", "1");
    let one = owner.call(ask).await.unwrap().value;
    assert_eq!(one["items"].as_array().unwrap().len(), 1);
    let enrolled = one["items"][0]["seq"].as_u64().unwrap();

    let token = || async {
        let token: Value = owner
            .send(Operation::CreateEnrollmentToken, &[], &json!({}))
            .await
            .unwrap();
        token["id"].as_str().unwrap().to_owned()
    };
    let mut stream = owner.watch(list(), None).await.unwrap();
    for name in ["one", "two"] {
        let made = token().await;
        create(&owner, name).await;
        hears(&mut stream, &["enrollment_token.created", &made]).await;
    }
    let made = token().await;
    let mut again = owner.watch(list(), Some(enrolled)).await.unwrap();
    let before = hears(&mut again, &["enrollment_token.created", &made]).await;
    assert!(before.contains("enrollment_token.created"), "from there on");
    assert!(!before.contains("app.created"), "{before}");

    let refused = admin.call(list()).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("ledger.admin"), "{refused}");
    let events = house.crew.platform.ledger().read(1, 10_000).unwrap();
    let looks = events.iter().filter(|it| {
        let text = it.payload.as_str();
        it.event_type == "authz.decided" && text.contains("\"ledger.admin\"")
    });
    let allowed = looks.filter(|it| it.payload.as_str().contains("\"allow\""));
    let allowed: Vec<_> = allowed.map(|it| (it.seq, &it.payload)).collect();
    assert_eq!(allowed.len(), 4, "two pages and two streams: {allowed:#?}");
}
