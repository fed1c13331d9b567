//! Master keys that custodians bring: a server without any on its disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, Client, Target};
use fluffy_ledger::LedgerOptions;
use fluffy_server::doors::{Doors, Open, OpenDoorsError};
use fluffy_server::loops::lease::Timing;
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::server::{Options, Server};
use fluffy_server::unseal::{BringError, Progress, ServeDeskError, bring};
use fluffy_test_kit::FreshDatabase;
use fluffy_vault::{Custody, Keyring, LoadKeyError, Share};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::house::PATIENCE;

const ENV: [&str; 3] = ["local", "shop", "dev"];

async fn start(folder: &Path) -> Server {
    let options = Options {
        storage: Storage::Directory(folder.to_owned()),
        ledger: LedgerOptions::default(),
        founder: Founder::Local,
        timing: Timing::default(),
    };
    Server::start(options).await.unwrap()
}

fn desk(folder: &Path) -> PathBuf {
    folder.join("custody/unseal.sock")
}

fn doors(folder: &Path) -> Doors {
    Doors {
        keys: folder.join("keys"),
        unseal: Some(desk(folder)),
        certificate: Some(folder.join("certificate")),
        socket: Some(folder.join("api.sock")),
        nodes: Some("127.0.0.1:0".parse().unwrap()),
        names: vec!["localhost".to_owned()],
        ..Doors::default()
    }
}

/// Opens a server for the first time, which takes its shares.
async fn first(folder: &Path, shares: &[Share]) -> (Server, Open) {
    opened(start(folder).await, folder, shares).await
}

async fn until_there(folder: &Path) {
    let limit = Instant::now() + PATIENCE;
    while !desk(folder).exists() {
        assert!(Instant::now() < limit);
        sleep(Duration::from_millis(20)).await;
    }
}

async fn opened(mut server: Server, folder: &Path, shares: &[Share]) -> (Server, Open) {
    let bringing = async {
        until_there(folder).await;
        // Nothing is open yet: there is no authority without the keys.
        sleep(Duration::from_millis(500)).await;
        assert!(!folder.join("api.sock").exists());
        for share in shares {
            bring(&desk(folder), share).await.unwrap();
        }
    };
    let opening = async { server.open(doors(folder)).await.unwrap() };
    let (open, ()) = tokio::join!(opening, bringing);
    (server, open)
}

async fn owner(folder: &Path) -> Client {
    let target = Target::Socket(folder.join("api.sock"));
    Client::connect(target).await.unwrap()
}

/// Sets a secret, which takes the active key.
async fn set(client: &Client, name: &str) -> Result<Value, CallError> {
    let change = json!({"set": {name: "value"}, "unset": []});
    client.send(Operation::UpdateSecrets, &ENV, &change).await
}

async fn env(client: &Client) {
    for (operation, path, name) in [
        (Operation::CreateApp, &ENV[..1], "shop"),
        (Operation::CreateEnv, &ENV[..2], "dev"),
    ] {
        let body = json!({"name": name});
        let _: Value = client.send(operation, path, &body).await.unwrap();
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, CallError>) -> String {
    match result {
        Err(CallError::Refused(problem)) => problem.code,
        other => panic!("{other:?}"),
    }
}

fn why(result: Result<Progress, BringError>) -> String {
    let error = match result {
        Err(BringError::Call(error)) => error,
        other => panic!("{other:?}"),
    };
    std::error::Error::source(&error).unwrap().to_string()
}

/// What is on record of a kind.
fn events(server: &Server, kind: &str) -> Vec<Value> {
    let events = server.platform().ledger().read(1, 10_000).unwrap();
    let found = events.iter().filter(|event| event.event_type == kind);
    found.map(|event| event.payload.value().unwrap()).collect()
}

async fn is_available(client: &Client, key: &str) -> bool {
    let keys: Value = client.get(Operation::GetKeys, &[]).await.unwrap();
    let mut keys = keys["keys"].as_array().unwrap().iter();
    keys.any(|it| it["id"] == key && it["available"] == true)
}

async fn until_set(client: &Client, name: &str) {
    let limit = Instant::now() + PATIENCE;
    while set(client, name).await.is_err() {
        assert!(Instant::now() < limit);
        sleep(Duration::from_millis(100)).await;
    }
}

/// The bits of a key as its file has them, for who looks for them elsewhere.
fn bits(custody: &Custody) -> (String, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    Keyring::restore(&keys, custody).unwrap();
    let hex = fs::read_to_string(keys.join(format!("{}.key", custody.key_id()))).unwrap();
    let pairs: Vec<u8> = hex.into_bytes();
    let raw = pairs
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
    let raw = raw.collect();
    (String::from_utf8(pairs).unwrap(), raw)
}

/// Whether some bytes are anywhere in a folder.
fn is_anywhere(folder: &Path, wanted: &[u8]) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return is_anywhere(&path, wanted);
        }
        // A socket can't be read.
        let bytes = fs::read(&path).unwrap_or_default();
        bytes.windows(wanted.len()).any(|window| window == wanted)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_waits_for_its_custodians_and_keeps_nothing_on_its_disk() {
    let folder = tempfile::tempdir().unwrap();
    let custody = Custody::generate().unwrap();
    let shares = custody.split(3, 2).unwrap();
    let (server, open) = first(folder.path(), &shares[..2]).await;
    assert!(open.sealed.is_none());
    let client = owner(folder.path()).await;
    env(&client).await;
    set(&client, "FIRST").await.unwrap();
    let key = custody.key_id().to_string();
    assert!(is_available(&client, &key).await);
    let recorded = events(&server, "master_key.unsealed");
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    assert_eq!(recorded[0]["shares"], json!([1, 2]));
    let me = format!("uid {}", rustix::process::getuid().as_raw());
    assert_eq!(recorded[0]["by"], json!([me, me]));
    // Nobody but the custodians makes a key.
    let rotated = client.call(Ask::new(Operation::RotateKeys, &[])).await;
    assert_eq!(code(rotated), "secrets_key_unavailable");
    drop(client);
    server.stop().await;

    let (hex, raw) = bits(&custody);
    for wanted in [hex.as_bytes(), &raw] {
        assert!(!is_anywhere(folder.path(), wanted));
    }
    for share in &shares {
        let line = share.expose();
        let data = line.split(' ').nth(5).unwrap();
        assert!(!is_anywhere(folder.path(), data.as_bytes()));
    }
    // The control: what is there is found.
    fs::write(folder.path().join("forgotten"), &raw).unwrap();
    assert!(is_anywhere(folder.path(), &raw));
    assert!(is_anywhere(folder.path(), b"master_key.unsealed"));

    // The next start serves all but secrets, by the certificate of before.
    let mut server = start(folder.path()).await;
    let open = server.open(doors(folder.path())).await.unwrap();
    assert!(matches!(open.sealed, Some(LoadKeyError::Awaited)));
    let client = owner(folder.path()).await;
    assert_eq!(
        code(set(&client, "SECOND").await),
        "secrets_key_unavailable"
    );
    assert!(!is_available(&client, &key).await);
    let one = bring(&desk(folder.path()), &shares[2]).await.unwrap();
    assert_eq!((one.here, one.needed, one.unsealed), (vec![3], 2, false));
    // The same one again is still one.
    let one = bring(&desk(folder.path()), &shares[2]).await.unwrap();
    assert_eq!((one.here, one.unsealed), (vec![3], false));
    assert_eq!(
        code(set(&client, "SECOND").await),
        "secrets_key_unavailable"
    );
    let two = bring(&desk(folder.path()), &shares[0]).await.unwrap();
    assert_eq!((two.here, two.unsealed), (vec![1, 3], true));
    assert!(!two.already && two.newest.is_none() && two.needs.is_empty());
    // Who comes after that hears that it is done, and nothing is gathered.
    for _ in 0..2 {
        let late = bring(&desk(folder.path()), &shares[1]).await.unwrap();
        assert_eq!(
            (late.here, late.unsealed, late.already),
            (vec![], true, true)
        );
    }
    until_set(&client, "SECOND").await;
    let opened = client.call(Ask::new(Operation::VerifyKeys, &[])).await;
    let opened = opened.unwrap().value;
    assert_eq!(opened["result"]["keys"][&key], 3, "{opened}");
    drop(client);
    server.stop().await;
}

/// Every way to come with something else; a server that was told none of this
/// is the control above.
#[tokio::test(flavor = "multi_thread")]
async fn shares_that_are_not_its_key_unseal_nothing_and_are_on_record() {
    let folder = tempfile::tempdir().unwrap();
    let custody = Custody::generate().unwrap();
    let shares = custody.split(3, 2).unwrap();
    let (server, _) = first(folder.path(), &shares[..2]).await;
    let client = owner(folder.path()).await;
    env(&client).await;
    drop(client);
    server.stop().await;

    let mut server = start(folder.path()).await;
    server.open(doors(folder.path())).await.unwrap();
    let client = owner(folder.path()).await;
    let desk = desk(folder.path());
    // A key of nobody here.
    let foreign = Custody::generate().unwrap().split(2, 2).unwrap();
    bring(&desk, &foreign[0]).await.unwrap();
    let refused = why(bring(&desk, &foreign[1]).await);
    assert!(refused.contains(&custody.key_id().to_string()), "{refused}");
    // A forged share, under the name of the right set.
    let other = custody.split(3, 2).unwrap();
    let forged = shares[0].expose().replace(
        shares[0].expose().split(' ').nth(5).unwrap(),
        other[0].expose().split(' ').nth(5).unwrap(),
    );
    let (line, _) = forged.rsplit_once(' ').unwrap();
    let check = fluffy_base::Digest::of(line.as_bytes()).to_string();
    let check = check.trim_start_matches("sha256:");
    let forged: Share = format!("{line} {}", &check[..8]).parse().unwrap();
    bring(&desk, &forged).await.unwrap();
    let refused = why(bring(&desk, &shares[1]).await);
    assert!(refused.contains("do not make master key"), "{refused}");
    // One that says fewer are needed than the others of its set.
    let lied = shares[1].expose().replace("share=2/3", "share=2/4");
    let (line, _) = lied.rsplit_once(' ').unwrap();
    let check = fluffy_base::Digest::of(line.as_bytes()).to_string();
    let check = check.trim_start_matches("sha256:");
    let lied: Share = format!("{line} {}", &check[..8]).parse().unwrap();
    bring(&desk, &shares[0]).await.unwrap();
    let refused = why(bring(&desk, &lied).await);
    assert!(refused.contains("says other things"), "{refused}");
    assert_eq!(code(set(&client, "ANY").await), "secrets_key_unavailable");
    let failed = events(&server, "master_key.unseal_failed");
    assert_eq!(failed.len(), 2, "{failed:?}");
    let shown = serde_json::to_string(&failed).unwrap();
    for share in shares.iter().chain(&foreign) {
        let line = share.expose();
        assert!(!shown.contains(line.split(' ').nth(5).unwrap()));
    }
    assert_eq!(
        events(&server, "master_key.unsealed").len(),
        1,
        "the first start's"
    );

    // More sets than are gathered at once are sent away, and lose nothing.
    for _ in 0..3 {
        let one = Custody::generate().unwrap().split(2, 2).unwrap();
        bring(&desk, &one[0]).await.unwrap();
    }
    let one = Custody::generate().unwrap().split(2, 2).unwrap();
    let refused = why(bring(&desk, &one[0]).await);
    assert!(refused.contains("4 other sets"), "{refused}");
    let done = bring(&desk, &shares[2]).await.unwrap();
    assert_eq!((done.here, done.unsealed), (vec![1, 3], true));
    until_set(&client, "ANY").await;
    drop(client);
    server.stop().await;
}

/// Custodians make the next key while the server runs; everything follows.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_key_is_brought_and_seals_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let custody = Custody::generate().unwrap();
    let (server, _) = first(folder.path(), &custody.split(2, 2).unwrap()).await;
    let client = owner(folder.path()).await;
    env(&client).await;
    set(&client, "FIRST").await.unwrap();

    // Another platform's is refused although this server is not sealed.
    let desk = desk(folder.path());
    let foreign = Custody::generate().unwrap().split(2, 2).unwrap();
    bring(&desk, &foreign[0]).await.unwrap();
    let refused = why(bring(&desk, &foreign[1]).await);
    assert!(refused.contains("another platform"), "{refused}");

    let next = custody.next().unwrap();
    for share in next.split(2, 2).unwrap() {
        bring(&desk, &share).await.unwrap();
    }
    let key = next.key_id().to_string();
    let limit = Instant::now() + PATIENCE;
    loop {
        let keys: Value = client.get(Operation::GetKeys, &[]).await.unwrap();
        if keys["current_key_id"] == key.as_str() {
            break;
        }
        assert!(Instant::now() < limit, "{keys}");
        sleep(Duration::from_millis(100)).await;
    }
    let done = client.call(Ask::new(Operation::RewrapKeys, &[])).await;
    assert_eq!(done.unwrap().value["result"]["rewrapped"], 1);
    let opened = client.call(Ask::new(Operation::VerifyKeys, &[])).await;
    let opened = opened.unwrap().value;
    assert_eq!(opened["result"]["keys"][&key], 2, "{opened}");
    drop(client);
    server.stop().await;

    // From now on the next key alone is enough.
    let mut server = start(folder.path()).await;
    server.open(doors(folder.path())).await.unwrap();
    let client = owner(folder.path()).await;
    for share in next.split(2, 2).unwrap() {
        bring(&desk, &share).await.unwrap();
    }
    until_set(&client, "SECOND").await;
    drop(client);
    server.stop().await;
}

/// The attack: somebody has the file `fingerprints` of an old backup and a
/// shell as the server's user, and brings a key of their own making. The
/// control is the successor that custodians make.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_the_key_of_fingerprints_alone_brings_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let custody = Custody::generate().unwrap();
    let (server, _) = first(folder.path(), &custody.split(2, 2).unwrap()).await;
    let client = owner(folder.path()).await;
    env(&client).await;
    let desk = desk(folder.path());

    let backup = tempfile::tempdir().unwrap();
    Keyring::restore(&backup.path().join("then"), &custody).unwrap();
    let own = backup.path().join("own");
    fs::create_dir(&own).unwrap();
    let stolen = backup.path().join("then/fingerprints");
    fs::copy(stolen, own.join("fingerprints")).unwrap();
    let forged = Keyring::open(&own).unwrap().custody().unwrap();
    for forged in [forged.next().unwrap(), forged] {
        let shares = forged.split(2, 2).unwrap();
        bring(&desk, &shares[0]).await.unwrap();
        let refused = why(bring(&desk, &shares[1]).await);
        assert!(refused.contains("nothing shows"), "{refused}");
        let key = forged.key_id().to_string();
        assert!(!is_available(&client, &key).await);
    }
    assert_eq!(events(&server, "master_key.unseal_failed").len(), 2);
    assert_eq!(events(&server, "master_key.introduced").len(), 1);

    let next = custody.next().unwrap();
    for share in next.split(2, 2).unwrap() {
        bring(&desk, &share).await.unwrap();
    }
    // It is on record and seals from that very answer on.
    assert_eq!(events(&server, "master_key.introduced").len(), 2);
    set(&client, "FIRST").await.unwrap();
    let keys: Value = client.get(Operation::GetKeys, &[]).await.unwrap();
    assert_eq!(keys["current_key_id"], next.key_id().to_string());
    drop(client);
    server.stop().await;
}

/// A server whose platform has a second key, which seals nothing yet or a
/// secret, on a machine that has no certificate of before.
async fn moved(with_secret: bool) -> (tempfile::TempDir, Custody, Custody) {
    let folder = tempfile::tempdir().unwrap();
    let custody = Custody::generate().unwrap();
    let (server, _) = first(folder.path(), &custody.split(2, 2).unwrap()).await;
    let client = owner(folder.path()).await;
    env(&client).await;
    set(&client, "FIRST").await.unwrap();
    let next = custody.next().unwrap();
    for share in next.split(2, 2).unwrap() {
        bring(&desk(folder.path()), &share).await.unwrap();
    }
    if with_secret {
        set(&client, "SECOND").await.unwrap();
    }
    drop(client);
    server.stop().await;
    fs::remove_file(folder.path().join("certificate")).unwrap();
    fs::remove_file(folder.path().join("api.sock")).unwrap_or_default();
    (folder, custody, next)
}

/// The authority is sealed by the key of before: a new machine waits until that
/// is there, too, in whichever order custodians come.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_machine_waits_for_every_key_that_it_takes() {
    for with_secret in [false, true] {
        let (folder, custody, next) = moved(with_secret).await;
        let (first, second) = (custody.key_id(), next.key_id());
        let mut server = start(folder.path()).await;
        let desk = desk(folder.path());
        let bringing = async {
            until_there(folder.path()).await;
            let shares = next.split(3, 2).unwrap();
            let one = bring(&desk, &shares[0]).await.unwrap();
            assert_eq!((one.unsealed, one.needs), (false, vec![first]));
            let two = bring(&desk, &shares[1]).await.unwrap();
            assert_eq!(two.here, [1, 2]);
            // What it opens proves it; otherwise only the one before does.
            assert_eq!((two.unsealed, two.needs), (with_secret, vec![first]));
            sleep(Duration::from_secs(1)).await;
            assert!(!folder.path().join("api.sock").exists());
            let shares = custody.split(2, 2).unwrap();
            bring(&desk, &shares[0]).await.unwrap();
            let last = bring(&desk, &shares[1]).await.unwrap();
            assert!(last.unsealed && last.needs.is_empty(), "{last:?}");
            assert_eq!(last.newest, None);
        };
        let opening = async { server.open(doors(folder.path())).await.unwrap() };
        let (open, ()) = tokio::join!(opening, bringing);
        assert!(open.sealed.is_none());
        let client = owner(folder.path()).await;
        set(&client, "THIRD").await.unwrap();
        for key in [first, second] {
            assert!(is_available(&client, &key.to_string()).await);
        }
        assert_eq!(events(&server, "master_key.unseal_failed").len(), 0);
        drop(client);
        server.stop().await;
    }
}

/// The custodians of before may be others: their key opens what it sealed, and
/// seals nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_not_the_newest_opens_and_does_not_seal() {
    let (folder, custody, next) = moved(false).await;
    let desk = desk(folder.path());
    let (server, _) = first(folder.path(), &custody.split(2, 2).unwrap()).await;
    let client = owner(folder.path()).await;
    let late = bring(&desk, &custody.split(2, 2).unwrap()[0])
        .await
        .unwrap();
    assert!(late.already);
    assert_eq!(late.newest, Some(next.key_id()));
    assert_eq!(code(set(&client, "ANY").await), "secrets_key_unavailable");
    let opened = client.call(Ask::new(Operation::VerifyKeys, &[])).await;
    let opened = opened.unwrap().value;
    let key = custody.key_id().to_string();
    assert_eq!(opened["result"]["keys"][&key], 2, "{opened}");
    for share in next.split(2, 2).unwrap() {
        let brought = bring(&desk, &share).await.unwrap();
        assert_eq!(brought.newest, None);
    }
    set(&client, "ANY").await.unwrap();
    let done = client.call(Ask::new(Operation::RewrapKeys, &[])).await;
    assert!(done.is_ok(), "{done:?}");
    drop(client);
    server.stop().await;

    // When nothing is sealed with it, its name alone makes nobody believe it.
    let mut server = start(folder.path()).await;
    server.open(doors(folder.path())).await.unwrap();
    let shares = custody.split(2, 2).unwrap();
    let one = bring(&desk, &shares[0]).await.unwrap();
    assert_eq!((one.newest, one.unsealed), (Some(next.key_id()), false));
    let refused = why(bring(&desk, &shares[1]).await);
    assert!(refused.contains("opens nothing"), "{refused}");
    for share in next.split(2, 2).unwrap() {
        bring(&desk, &share).await.unwrap();
    }
    let client = owner(folder.path()).await;
    until_set(&client, "OTHER").await;
    drop(client);
    server.stop().await;
}

/// Whoever brings the last share may be gone before the answer: what is on
/// record was taken, and what was taken is on record.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_record_as_brought_was_taken_whoever_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let custody = Custody::generate().unwrap();
    let (server, _) = first(folder.path(), &custody.split(2, 2).unwrap()).await;
    let client = owner(folder.path()).await;
    let desk = desk(folder.path());
    let mut left = 0;
    for round in 0..24 {
        let shares = custody.next().unwrap().split(2, 2).unwrap();
        bring(&desk, &shares[0]).await.unwrap();
        let patience = Duration::from_micros(500) * round;
        let brought = tokio::time::timeout(patience, bring(&desk, &shares[1])).await;
        left += u32::from(brought.is_err());
        // Whether it had come or not, now it has.
        assert!(bring(&desk, &shares[1]).await.unwrap().unsealed);
    }
    assert!(left > 0, "everybody waited");
    let keys: Value = client.get(Operation::GetKeys, &[]).await.unwrap();
    let keys = keys["keys"].as_array().unwrap().iter();
    let mut available: Vec<Value> = keys
        .filter(|it| it["available"] == true)
        .map(|it| it["id"].clone())
        .collect();
    let recorded = events(&server, "master_key.unsealed");
    let mut recorded: Vec<Value> = (recorded.iter())
        .map(|it| it["master_key_id"].clone())
        .collect();
    available.sort_by_key(Value::to_string);
    recorded.sort_by_key(Value::to_string);
    assert_eq!(available, recorded, "each once");
    drop(client);
    server.stop().await;
}

/// A server whose keys are in files becomes one whose custodians have them.
#[tokio::test(flavor = "multi_thread")]
async fn keys_in_files_go_to_custodians_and_files_that_stay_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    let mut server = start(folder.path()).await;
    let with_files = Doors {
        unseal: None,
        ..doors(folder.path())
    };
    server.open(with_files).await.unwrap();
    let client = owner(folder.path()).await;
    env(&client).await;
    set(&client, "FIRST").await.unwrap();
    drop(client);
    server.stop().await;
    let custody = Keyring::open(&keys).unwrap().custody().unwrap();
    let shares = custody.split(3, 2).unwrap();

    let mut server = start(folder.path()).await;
    let error = server.open(doors(folder.path())).await.unwrap_err();
    let in_files = matches!(
        &error,
        OpenDoorsError::Custody(ServeDeskError::Keys(LoadKeyError::InFiles { .. }))
    );
    assert!(in_files, "{error:?}");
    server.stop().await;

    // Nor beside what is left of them, here or where somebody says.
    let active = fs::read_to_string(keys.join("active")).unwrap();
    fs::remove_file(keys.join("active")).unwrap();
    let file = keys.join(format!("{active}.key"));
    fs::rename(&file, file.with_extension("retired")).unwrap();
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&keys, &elsewhere).unwrap();
    let elsewhere_too = Doors {
        keys: elsewhere.clone(),
        keyless: vec![keys.clone()],
        ..doors(folder.path())
    };
    for left in ["retired", "fingerprints"] {
        let mut server = start(folder.path()).await;
        let error = server.open(elsewhere_too.clone()).await.unwrap_err();
        let OpenDoorsError::Custody(ServeDeskError::Keys(error)) = error else {
            panic!("{error:?}");
        };
        assert!(error.to_string().contains(left), "{error}");
        server.stop().await;
        fs::remove_file(elsewhere.join(format!("{active}.retired"))).unwrap_or_default();
    }

    fs::remove_dir_all(&elsewhere).unwrap();
    let mut server = start(folder.path()).await;
    let open = server.open(elsewhere_too).await.unwrap();
    assert!(open.sealed.is_some());
    let client = owner(folder.path()).await;
    for share in &shares[1..] {
        bring(&desk(folder.path()), share).await.unwrap();
    }
    // It opens what the files sealed.
    until_set(&client, "SECOND").await;
    let opened = client.call(Ask::new(Operation::VerifyKeys, &[])).await;
    let opened = opened.unwrap().value;
    assert_eq!(opened["result"]["opened"], 3, "{opened}");
    drop(client);
    server.stop().await;
}

/// Each of two servers over one database has to be unsealed; until it is, it
/// serves all the same.
#[tokio::test(flavor = "multi_thread")]
async fn every_server_of_a_database_is_unsealed_by_itself() {
    let database = FreshDatabase::create().unwrap();
    let replica = async || {
        let options = Options {
            storage: Storage::database(database.url().parse().unwrap()),
            ledger: LedgerOptions::default(),
            founder: Founder::Local,
            timing: Timing::default(),
        };
        Server::start(options).await.unwrap()
    };
    let custody = Custody::generate().unwrap();
    let shares = custody.split(3, 2).unwrap();
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // The first key waits until every server is known to read what is recorded.
    let (first, _) = opened(replica().await, one.path(), &shares[..2]).await;
    let client = owner(one.path()).await;
    env(&client).await;
    set(&client, "FIRST").await.unwrap();
    // A key of its own making is not let in beside the first one's.
    let mut second = replica().await;
    let foreign = Custody::generate().unwrap().split(2, 2).unwrap();
    let bringing = async {
        until_there(other.path()).await;
        bring(&desk(other.path()), &foreign[0]).await.unwrap();
        let refused = why(bring(&desk(other.path()), &foreign[1]).await);
        assert!(
            refused.contains("not of a key of this platform"),
            "{refused}"
        );
        for share in &shares[1..] {
            bring(&desk(other.path()), share).await.unwrap();
        }
    };
    let opening = async { second.open(doors(other.path())).await.unwrap() };
    tokio::join!(opening, bringing);
    let beside = owner(other.path()).await;
    until_set(&beside, "SECOND").await;
    drop((client, beside));
    second.stop().await;
    first.stop().await;
}
