//! Master keys come, everything is sealed anew, and old ones go for good.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, Client, Target};
use fluffy_base::{Clock as _, ManualClock, SystemClock};
use fluffy_ledger::LedgerOptions;
use fluffy_server::aside::Kind;
use fluffy_server::doors::{Doors, Open};
use fluffy_server::loops::lease::Timing;
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::server::{Options, Server};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::house::{PATIENCE, metrics};

const ENV: [&str; 3] = ["local", "shop", "dev"];
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Where sealed versions are, as the server calls it.
const SECRETS: Kind = Kind::new("secret");

/// A server of files, at a time that the test sets.
async fn start(folder: &Path, clock: &Arc<ManualClock>) -> (Server, Open, Client) {
    let ledger = LedgerOptions {
        clock: Arc::clone(clock) as _,
        ..LedgerOptions::default()
    };
    let options = Options {
        storage: Storage::Directory(folder.to_owned()),
        ledger,
        founder: Founder::Local,
        timing: Timing::default(),
    };
    let mut server = Server::start(options).await.unwrap();
    let doors = Doors {
        keys: folder.join("keys"),
        certificate: Some(folder.join("certificate")),
        socket: Some(folder.join("api.sock")),
        nodes: Some("127.0.0.1:0".parse().unwrap()),
        names: vec!["localhost".to_owned()],
        ..Doors::default()
    };
    let open = server.open(doors).await.unwrap();
    let target = Target::Socket(folder.join("api.sock"));
    let client = Client::connect(target).await.unwrap();
    (server, open, client)
}

async fn work(client: &Client, operation: Operation) -> Value {
    client.call(Ask::new(operation, &[])).await.unwrap().value
}

async fn retire(client: &Client, key: &str) -> Result<Value, (String, String)> {
    let path = [key];
    let ask = Ask::new(Operation::RetireKey, &path).query("single", "true");
    match client.call(ask).await {
        Ok(answer) => Ok(answer.value),
        Err(CallError::Refused(problem)) => Err((problem.code, problem.detail)),
        Err(error) => panic!("{error:?}"),
    }
}

/// Sets a secret, which takes opening those that are there.
async fn set(client: &Client, name: &str) {
    let change = json!({"set": {name: "value"}, "unset": []});
    let _: Value = client
        .send(Operation::UpdateSecrets, &ENV, &change)
        .await
        .unwrap();
}

async fn current(client: &Client) -> String {
    let keys: Value = client.get(Operation::GetKeys, &[]).await.unwrap();
    keys["current_key_id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_key_goes_when_nothing_needs_it_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(SystemClock.now()));
    let (server, first, client) = start(folder.path(), &clock).await;
    for (operation, path, name) in [
        (Operation::CreateApp, &ENV[..1], "shop"),
        (Operation::CreateEnv, &ENV[..2], "dev"),
    ] {
        let body = json!({"name": name});
        let _: Value = client.send(operation, path, &body).await.unwrap();
    }
    set(&client, "FIRST").await;
    let old = current(&client).await;
    let verified = work(&client, Operation::VerifyKeys).await;
    // The version and the authority.
    assert_eq!(verified["result"]["keys"][&old], 2, "{verified}");
    let (code, _) = retire(&client, &old).await.unwrap_err();
    assert_eq!(code, "invalid_transition", "it is the current one");

    let is_left = async |count: u64| {
        let line = format!("\nfluffy_key_rewrap_remaining {count}\n");
        metrics(folder.path()).await.contains(&line)
    };
    assert!(is_left(0).await);
    clock.advance(DAY);
    work(&client, Operation::RotateKeys).await;
    assert!(is_left(1).await);
    let (code, why) = retire(&client, &old).await.unwrap_err();
    assert_eq!(code, "invalid_transition");
    assert!(why.contains("30 days"), "{why}");
    clock.advance(DAY * 31);
    // The control: without sealing anew it stays, whatever time has passed.
    let (code, why) = retire(&client, &old).await.unwrap_err();
    assert_eq!(code, "key_in_use");
    assert!(why.contains("1 versions of secrets"), "{why}");

    let aside = server.platform().aside();
    let rows = aside.list(SECRETS, "", 10).await.unwrap();
    let row = rows.first().unwrap();
    let rewrapped = work(&client, Operation::RewrapKeys).await;
    assert_eq!(rewrapped["result"]["rewrapped"], 1, "{rewrapped}");
    assert!(is_left(0).await);
    // A server that was late sealed with the old one: what is on record says
    // otherwise, and what is in the store counts.
    let late = row.value.clone();
    aside.put(SECRETS, &row.key, late, None).await.unwrap();
    let (code, why) = retire(&client, &old).await.unwrap_err();
    assert_eq!(code, "key_in_use");
    assert!(why.contains("1 versions of secrets"), "{why}");
    let rewrapped = work(&client, Operation::RewrapKeys).await;
    assert_eq!(rewrapped["result"]["rewrapped"], 1, "{rewrapped}");
    let verified = work(&client, Operation::VerifyKeys).await;
    assert!(verified["result"]["keys"][&old].is_null(), "{verified}");
    assert_eq!(verified["result"]["opened"], 2, "{verified}");

    let keys = retire(&client, &old).await.unwrap();
    let shown = keys["keys"].as_array().unwrap().iter();
    let retired = shown.filter(|key| key["id"] == old.as_str());
    let retired: Vec<&Value> = retired.collect();
    assert_eq!(retired[0]["status"], "retired", "{keys}");
    let events = server.platform().ledger().read(1, 10_000).unwrap();
    let on_record = events.iter().any(|event| {
        event.event_type == "master_key.retired" && event.aggregate.id == old.as_str()
    });
    assert!(on_record, "that it was retired is an event");
    let file = |ending: &str| folder.path().join(format!("keys/{old}.{ending}"));
    let limit = Instant::now() + PATIENCE;
    while !file("retired").exists() {
        assert!(Instant::now() < limit, "its file is still in use");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(!file("key").exists());
    set(&client, "SECOND").await;
    server.stop().await;

    // Without it everything opens after a new start.
    std::fs::remove_file(file("retired")).unwrap();
    let (server, open, client) = start(folder.path(), &clock).await;
    assert!(open.sealed.is_none(), "{:?}", open.sealed);
    assert_eq!((open.root, open.pin), (first.root, first.pin));
    set(&client, "THIRD").await;
    let secrets: Value = client.get(Operation::GetSecrets, &ENV).await.unwrap();
    assert_eq!(secrets["keys"], json!(["FIRST", "SECOND", "THIRD"]));
    let verified = work(&client, Operation::VerifyKeys).await;
    assert_eq!(verified["status"], "succeeded", "{verified}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_open_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(SystemClock.now()));
    let (server, _, client) = start(folder.path(), &clock).await;
    for (operation, path, name) in [
        (Operation::CreateApp, &ENV[..1], "shop"),
        (Operation::CreateEnv, &ENV[..2], "dev"),
    ] {
        let body = json!({"name": name});
        let _: Value = client.send(operation, path, &body).await.unwrap();
    }
    for name in ["FIRST", "SECOND", "THIRD"] {
        set(&client, name).await;
    }
    let aside = server.platform().aside();
    let rows = aside.list(SECRETS, "", 10).await.unwrap();
    let [altered, gone, _] = rows.as_slice() else {
        panic!("{}", rows.len());
    };
    let verified = work(&client, Operation::VerifyKeys).await;
    assert_eq!(verified["result"]["opened"], 4, "{verified}");

    let mut bytes = altered.value.clone();
    // Within the sealed object.
    bytes[20] ^= 1;
    aside.put(SECRETS, &altered.key, bytes, None).await.unwrap();
    assert!(aside.delete(SECRETS, &gone.key).await.unwrap());
    let verified = work(&client, Operation::VerifyKeys).await;
    assert_eq!(verified["error"]["code"], "internal", "{verified}");
    let words = verified["error"]["message"].as_str().unwrap();
    for named in [&altered.key, &gone.key] {
        assert!(words.contains(named.as_str()), "{words}");
    }
    assert!(words.contains("2 of 4"), "{words}");

    // A key that is not at hand is another matter than something altered.
    for row in [altered, gone] {
        let bytes = row.value.clone();
        aside.put(SECRETS, &row.key, bytes, None).await.unwrap();
    }
    let old = current(&client).await;
    clock.advance(DAY);
    work(&client, Operation::RotateKeys).await;
    server.stop().await;
    let path = folder.path().join(format!("keys/{old}.key"));
    let away = folder.path().join("elsewhere");
    std::fs::rename(&path, &away).unwrap();
    let (server, open, client) = start(folder.path(), &clock).await;
    // The authority is sealed with it as well.
    assert!(open.sealed.is_some());
    let verified = work(&client, Operation::VerifyKeys).await;
    assert_eq!(
        verified["error"]["code"], "secrets_key_unavailable",
        "{verified}"
    );
    let words = verified["error"]["message"].as_str().unwrap();
    assert!(words.contains(&old) && words.contains("4 of 4"), "{words}");
    std::fs::rename(&away, &path).unwrap();
    server.stop().await;
}
