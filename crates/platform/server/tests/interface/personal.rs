//! Personal data: shown to who may see it, in no event, and erased.

use std::path::PathBuf;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, Client};
use serde_json::{Value, json};

use crate::house::House;
use crate::secrets::holding;

const CANARY: &str = "Canary.7d1f@example.org";

async fn email(owner: &Client, member: &Value) -> Value {
    let list: Value = owner.get(Operation::ListMembers, &["local"]).await.unwrap();
    let items = list["items"].as_array().unwrap();
    let found = items.iter().find(|it| it["id"] == member["id"]);
    found.map_or(Value::Null, |it| it["email"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_shown_and_erased_and_never_in_an_event() {
    let house = House::start().await;
    let owner = house.owner().await;
    let body = json!({"email": CANARY, "role": "viewer"});
    let ask = || Ask::new(Operation::AddMember, &["local"]).body(&body);
    let keyed = || ask().key("the-same-key-twice".to_owned());
    let member = owner.call(keyed()).await.unwrap().value;
    assert_eq!(member["email"], CANARY, "{member}");
    assert_eq!(email(&owner, &member).await, CANARY);
    // A repeat is answered from what is stored, which does not hold it.
    owner.call(keyed()).await.unwrap();
    // The same person again, also if the address differs in case alone: who has
    // not come in gets another invite, and with another role it is a change.
    for again in [CANARY.to_owned(), CANARY.to_lowercase()] {
        let body = json!({"email": again, "role": "admin"});
        let refused: Result<Value, _> = owner.send(Operation::AddMember, &["local"], &body).await;
        assert!(refused.is_err(), "{refused:?}");
        let body = json!({"email": again, "role": "viewer"});
        let invited: Result<Value, _> = owner.send(Operation::AddMember, &["local"], &body).await;
        let invited = invited.unwrap();
        assert_eq!(invited["id"], member["id"], "{invited}");
        assert_ne!(invited["invite_code"], member["invite_code"]);
    }
    let path = ["local", member["id"].as_str().unwrap()];
    let role = json!({"role": "developer"});
    let changed: Value = owner
        .send(Operation::UpdateMember, &path, &role)
        .await
        .unwrap();
    assert!(changed["email"].is_string(), "{changed}");
    // The owner of the platform has no address.
    let list: Value = owner.get(Operation::ListMembers, &["local"]).await.unwrap();
    let none = |it: &&Value| it["email"].is_null();
    assert_eq!(
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(none)
            .count(),
        1
    );

    owner
        .call(Ask::new(Operation::RemoveMember, &path))
        .await
        .unwrap();
    assert_eq!(email(&owner, &member).await, Value::Null);
    let kind = fluffy_server::aside::Kind::new("member-email");
    let aside = house.crew.platform.aside();
    assert!(aside.list(kind, "", 100).await.unwrap().is_empty());
    // Who comes back is a member like any other.
    let body = json!({"email": "back@example.org", "role": "viewer"});
    let back: Value = owner
        .send(Operation::AddMember, &["local"], &body)
        .await
        .unwrap();
    assert_eq!(email(&owner, &back).await, "back@example.org");

    for event in house.crew.platform.ledger().read(1, 10_000).unwrap() {
        let text = event.payload.as_str().to_lowercase();
        assert!(!text.contains("canary.7d1f"), "{text}");
    }
    drop(owner);
    let House { server, folder, .. } = house;
    server.stop().await;
    for canary in [CANARY.to_owned(), CANARY.to_lowercase()] {
        let found = holding(&folder.path().join("ledger"), canary.as_bytes());
        assert_eq!(found, Vec::<PathBuf>::new());
    }
    // Control: the one that was not erased is there, beside the ledger.
    assert!(!holding(folder.path(), b"back@example.org").is_empty());
    assert!(holding(&folder.path().join("ledger"), b"back@example.org").is_empty());
}

/// Where a call came from is kept apart, and the event refers to it.
#[tokio::test(flavor = "multi_thread")]
async fn failed_logins_refer_to_where_they_came_from() {
    let house = House::start().await;
    let stranger = house.bearer(&format!("flf_at_{}", "x".repeat(43))).await;
    let refused: Result<Value, _> = stranger.get(Operation::Whoami, &[]).await;
    assert!(refused.is_err());
    let events = house.crew.platform.ledger().read(1, 10_000).unwrap();
    let failed = events.iter().find(|it| it.event_type == "auth.failed");
    let failed = failed.unwrap().payload.as_str();
    assert!(!failed.contains("127.0.0.1"), "{failed}");
    let failed: Value = serde_json::from_str(failed).unwrap();
    let reference = failed["pii_ref"].as_str().unwrap();
    let aside = house.crew.platform.aside().clone();
    let personal = fluffy_server::personal::Personal::new(aside);
    let source = personal.source(reference).await.unwrap();
    assert_eq!(source.as_deref(), Some("127.0.0.1"));
    house.server.stop().await;
}
