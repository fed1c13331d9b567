//! A write that is repeated when its answer was lost: never another answer
//! than the first one was.

use fluffy_api::Operation;
use fluffy_api::client::{Answer, Ask, CallError, Client};
use fluffy_server::aside::Kind;
use serde_json::{Value, json};

use crate::house::House;
use crate::strangers::login;

const ORG: [&str; 1] = ["local"];
const KEY: &str = "the-same-key-twice";

async fn create(client: &Client, name: &str) -> Result<Answer, CallError> {
    let body = json!({ "name": name });
    let ask = Ask::new(Operation::CreateApp, &ORG).body(&body).key(KEY);
    client.call(ask).await
}

/// Loses every answer that was kept for repeats.
async fn lose_answers(house: &House) {
    let aside = house.crew.platform.aside();
    let answers = Kind::new("answer");
    let kept = aside.list(answers, "", 100).await.unwrap();
    assert!(!kept.is_empty());
    for entry in kept {
        assert!(aside.delete(answers, &entry.key).await.unwrap());
    }
}

fn code(result: Result<Answer, CallError>) -> (u16, String) {
    match result {
        Err(CallError::Refused(problem)) => (problem.status, problem.code),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_whose_answer_was_lost_stays_a_refusal() {
    let house = House::start().await;
    let owner = house.owner().await;
    house.crew.app("shop").await;
    let taken = (409, "name_taken".to_owned());
    assert_eq!(code(create(&owner, "shop").await), taken);
    assert_eq!(code(create(&owner, "shop").await), taken, "as stored");
    lose_answers(&house).await;
    assert_eq!(code(create(&owner, "shop").await), taken);
    // The key is still of that request.
    let reuse = (409, "idempotency_key_reuse".to_owned());
    assert_eq!(code(create(&owner, "other").await), reuse);
    let apps: Value = owner.get(Operation::ListApps, &ORG).await.unwrap();
    assert_eq!(apps["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_person_still_waits_when_its_answer_was_lost() {
    let house = House::start().await;
    let owner = house.owner().await;
    let admin = house.bearer(&login(&house, &owner, "admin").await).await;
    let rules = "version: 1\ncapabilities:\n  - { name: look, match: { action: app.create }, \
                 do: require_review }\n";
    let policy: Value = owner.get(Operation::GetPolicy, &ORG).await.unwrap();
    let set = json!({ "rules": rules, "expected_version": policy["version"] });
    let _: Value = owner.send(Operation::SetPolicy, &ORG, &set).await.unwrap();
    let first = create(&admin, "shop").await.unwrap();
    assert_eq!(first.status, 202);
    lose_answers(&house).await;
    let again = create(&admin, "shop").await.unwrap();
    assert_eq!((again.status, &again.value), (202, &first.value));
    let waiting: Value = owner.get(Operation::ListApprovals, &ORG).await.unwrap();
    assert_eq!(waiting["items"].as_array().unwrap().len(), 1);
}

/// A signal is on record before it is sent: one that may never have been is no
/// success when it is asked for again, as a client does by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_was_not_sent_is_no_success_when_it_is_repeated() {
    let house = House::start().await;
    let owner = house.owner().await;
    let instance = house.instance().await;
    let path = ["local", "shop", "dev", instance.as_str()];
    let body = json!({ "signal": "USR1" });
    for _ in 0..2 {
        let ask = Ask::new(Operation::SignalInstance, &path).body(&body);
        let answer = code(owner.call(ask.key(KEY)).await);
        assert_eq!(answer, (409, "conflict".to_owned()));
    }
    let ledger = house.crew.platform.ledger();
    let events = ledger.read(1, 10_000).unwrap();
    let asked = events.iter().map(|event| &*event.event_type);
    let asked = asked.filter(|it| *it == "instance.signal_requested");
    assert_eq!(asked.count(), 1);
}

/// A success is told again from what is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_success_whose_answer_was_lost_is_told_again() {
    let house = House::start().await;
    let owner = house.owner().await;
    let first = create(&owner, "shop").await.unwrap();
    lose_answers(&house).await;
    let again = create(&owner, "shop").await.unwrap();
    assert_eq!((again.status, &again.value), (201, &first.value));
}

/// A refusal for now is decided again under the same key.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_otherwise_next_time_does_not_take_the_key() {
    let house = House::start().await;
    let owner = house.owner().await;
    let admin = house.bearer(&login(&house, &owner, "admin").await).await;
    // An administrator has no such thing to give, until an owner gave it.
    let robot: Value = owner
        .send(
            Operation::CreatePrincipal,
            &ORG,
            &json!({ "name": "robot", "grants": [] }),
        )
        .await
        .unwrap();
    let exec = "instance.exec.local/*";
    let body = json!({ "principal_id": robot["id"], "pattern": exec });
    let give = async || {
        let ask = Ask::new(Operation::CreateGrant, &ORG).body(&body).key(KEY);
        admin.call(ask).await
    };
    let refused = code(give().await);
    assert_eq!(refused, (403, "grant_exceeds_own".to_owned()));
    let whoami: Value = admin.get(Operation::Whoami, &[]).await.unwrap();
    let own = json!({ "principal_id": whoami["principal_id"], "pattern": exec });
    let _: Value = owner
        .send(Operation::CreateGrant, &ORG, &own)
        .await
        .unwrap();
    assert_eq!(give().await.unwrap().status, 201);
}
