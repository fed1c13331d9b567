//! Secrets: what two change at once, and where their values must not be.

use std::path::Path;
use std::time::{Duration, Instant};

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError};
use fluffy_server::aside::Kind;
use serde_json::{Value, json};

use crate::house::{House, PATIENCE};
use crate::strangers::login;

const PLACE: [&str; 3] = ["local", "shop", "dev"];

async fn house() -> House {
    let house = House::start().await;
    let owner = house.owner().await;
    let shop = json!({"name": "shop"});
    let _: Value = owner
        .send(Operation::CreateApp, &["local"], &shop)
        .await
        .unwrap();
    let dev = json!({"name": "dev"});
    let _: Value = owner
        .send(Operation::CreateEnv, &["local", "shop"], &dev)
        .await
        .unwrap();
    house
}

/// Each of several changes is made to what the one before left, from the very
/// first version on.
#[tokio::test(flavor = "multi_thread")]
async fn changes_at_once_are_all_kept() {
    let house = house().await;
    for round in 0..5 {
        let mut at_once = tokio::task::JoinSet::new();
        for number in 0..3 {
            let owner = house.owner().await;
            at_once.spawn(async move {
                let change = json!({"set": {format!("KEY_{round}_{number}"): "x"}, "unset": []});
                let made: Value = owner
                    .send(Operation::UpdateSecrets, &PLACE, &change)
                    .await
                    .unwrap();
                made
            });
        }
        at_once.join_all().await;
    }
    let owner = house.owner().await;
    let shown: Value = owner.get(Operation::GetSecrets, &PLACE).await.unwrap();
    assert_eq!(shown["keys"].as_array().unwrap().len(), 15, "{shown}");
}

/// What is no file of secrets is refused by name, and nothing is set.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_of_secrets_is_refused() {
    let house = house().await;
    let owner = house.owner().await;
    let refused = owner
        .send::<Value>(Operation::ReplaceSecrets, &PLACE, &json!({"file": "KEY"}))
        .await;
    let problem = match refused {
        Err(CallError::Refused(problem)) => problem,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (400, "secrets_invalid")
    );
    assert!(problem.detail.contains("line 1"), "{problem:?}");
    let shown = owner.get::<Value>(Operation::GetSecrets, &PLACE).await;
    assert!(matches!(shown, Err(CallError::Refused(it)) if it.status == 404));
}

/// Whether they are taken, refused, wait for a person or fail, values are
/// nowhere but in sealed form.
#[tokio::test(flavor = "multi_thread")]
async fn values_are_nowhere() {
    const CANARY: &str = "canary-5f1b7c";
    let house = house().await;
    let owner = house.owner().await;
    let values = json!({"values": {"PASSWORD": CANARY}});
    let change = json!({"set": {"OTHER": CANARY}, "unset": []});
    let keyed = |operation, body: &Value| {
        let ask = Ask::new(operation, &PLACE).body(body);
        ask.key(format!("key-of-{operation:?}"))
    };
    owner
        .call(keyed(Operation::ReplaceSecrets, &values))
        .await
        .unwrap();
    owner
        .call(keyed(Operation::UpdateSecrets, &change))
        .await
        .unwrap();

    let viewer = house.bearer(&login(&house, &owner, "viewer").await).await;
    let refused = viewer.call(keyed(Operation::UpdateSecrets, &change)).await;
    assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");

    let wrong = json!({"values": {"not a key": CANARY}});
    let refused = owner
        .call(Ask::new(Operation::ReplaceSecrets, &PLACE).body(&wrong))
        .await;
    let Err(CallError::Refused(problem)) = refused else {
        panic!("{refused:?}");
    };
    assert!(!format!("{problem:?}").contains(CANARY), "{problem:?}");

    let rules = "version: 1\ncapabilities:\n  - { name: ask, match: { action: secret.write }, do: require_review, reason: two people }\n";
    let policy: Value = owner.get(Operation::GetPolicy, &["local"]).await.unwrap();
    let set = json!({"rules": rules, "expected_version": policy["version"]});
    let _: Value = owner
        .send(Operation::SetPolicy, &["local"], &set)
        .await
        .unwrap();
    let developer = house
        .bearer(&login(&house, &owner, "developer").await)
        .await;
    let parked: Value = developer
        .send(Operation::ReplaceSecrets, &PLACE, &values)
        .await
        .unwrap();
    assert!(parked["approval_id"].is_string(), "{parked}");

    let ledger = house.crew.platform.ledger().clone();
    let head = ledger.head().unwrap().seq;
    let digest = fluffy_base::Digest::of(CANARY.as_bytes()).to_string();
    for event in ledger.read(1, 10_000).unwrap() {
        let text = event.payload.as_str();
        assert!(!text.contains(CANARY) && !text.contains(&digest), "{text}");
    }
    assert!(head > 20);
    house.crew.platform.close().await;
    let found = holding(house.folder.path(), CANARY.as_bytes());
    assert_eq!(found, Vec::<std::path::PathBuf>::new());
    // Control: what is in these files is found.
    assert!(!holding(house.folder.path(), b"secret_bundle.version_set").is_empty());
}

/// The files that hold some bytes.
pub(crate) fn holding(folder: &Path, bytes: &[u8]) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(holding(&path, bytes));
        } else if let Ok(content) = std::fs::read(&path)
            && content.windows(bytes.len()).any(|window| window == bytes)
        {
            found.push(path);
        }
    }
    found
}

/// What is sealed beside the ledger, whoever refers to it.
async fn sealed(house: &House) -> usize {
    let aside = house.crew.platform.aside();
    let entries = aside.list(Kind::new("secret"), "", 200).await.unwrap();
    entries.len()
}

/// Waits until so many sealed versions are left.
async fn until_sealed(house: &House, count: usize) {
    let limit = Instant::now() + PATIENCE;
    while sealed(house).await != count {
        let now = sealed(house).await;
        assert!(Instant::now() < limit, "{now} are left, not {count}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A version that is destroyed, or deleted with its bundle or its env, loses
/// what was sealed; one that was only just made for a refused write does not,
/// because it may be of a command that waits.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_destroyed_loses_its_ciphertext() {
    let house = house().await;
    let owner = house.owner().await;
    let limit = Instant::now() + PATIENCE;
    let leads = || {
        let states = house.crew.platform.sequencer();
        states.read(|state| state.leases.contains_key("retention"))
    };
    while !leads() {
        assert!(Instant::now() < limit, "nobody leads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let set = async |number: usize| {
        let values = json!({"values": {"NUMBER": number.to_string()}});
        let _: Value = owner
            .send(Operation::ReplaceSecrets, &PLACE, &values)
            .await
            .unwrap();
    };
    for number in 0..10 {
        set(number).await;
    }
    assert_eq!(sealed(&house).await, 10);
    for number in 10..13 {
        set(number).await;
    }
    until_sealed(&house, 10).await;
    // The current values again: nothing refers to what was sealed for it.
    set(12).await;
    assert_eq!(sealed(&house).await, 11);
    let gone = Ask::new(Operation::DeleteSecrets, &PLACE);
    owner.call(gone).await.unwrap();
    until_sealed(&house, 1).await;
    set(20).await;
    assert_eq!(sealed(&house).await, 2);
    let gone = Ask::new(Operation::DeleteEnv, &PLACE);
    owner.call(gone).await.unwrap();
    until_sealed(&house, 1).await;
}

/// The files with master keys.
fn key_files(house: &House) -> usize {
    let files = std::fs::read_dir(house.folder.path().join("keys")).unwrap();
    let names = files.map(|file| file.unwrap().path());
    names
        .filter(|path| path.extension().is_some_and(|it| it == "key"))
        .count()
}

/// A rotation that is asked for again is the same one, also where it is
/// another request under its key, and nothing unrecorded seals.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_that_is_repeated_rotates_once() {
    let house = house().await;
    let owner = house.owner().await;
    assert_eq!(key_files(&house), 1);
    let rotate = || Ask::new(Operation::RotateKeys, &[]).key("the-first-rotation".to_owned());
    for _ in 0..3 {
        owner.call(rotate()).await.unwrap();
    }
    let keys: Value = owner.get(Operation::GetKeys, &[]).await.unwrap();
    // The house does not introduce its first key, as a door does.
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1, "{keys}");
    assert_eq!(key_files(&house), 2);
    let active = std::fs::read_to_string(house.folder.path().join("keys/active")).unwrap();
    assert_eq!(keys["current_key_id"], active.as_str());
    let values = json!({"values": {"KEY": "value"}});
    let _: Value = owner
        .send(Operation::ReplaceSecrets, &PLACE, &values)
        .await
        .unwrap();
    let keys: Value = owner.get(Operation::GetKeys, &[]).await.unwrap();
    assert_eq!(keys["keys"][0]["versions"], 1, "{keys}");
    // Whoever may not rotate makes no key either.
    let viewer = house.bearer(&login(&house, &owner, "viewer").await).await;
    let refused = viewer.call(Ask::new(Operation::RotateKeys, &[])).await;
    assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
    assert_eq!(key_files(&house), 2);
}
