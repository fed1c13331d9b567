//! What a server is told at its start: addresses to give away, and its keys.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, Client, Target};
use fluffy_ledger::LedgerOptions;
use fluffy_server::aside::Kind;
use fluffy_server::doors::{Doors, Open, OpenDoorsError};
use fluffy_server::loops::lease::Timing;
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::server::{Options, Server};
use fluffy_test_kit::FreshDatabase;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::house::{PATIENCE, metrics};

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

fn doors(folder: &Path) -> Doors {
    Doors {
        keys: folder.join("keys"),
        certificate: Some(folder.join("certificate")),
        socket: Some(folder.join("api.sock")),
        api: Some("127.0.0.1:0".parse().unwrap()),
        nodes: Some("127.0.0.1:0".parse().unwrap()),
        names: vec!["localhost".to_owned()],
        ..Doors::default()
    }
}

async fn owner(folder: &Path) -> Client {
    let target = Target::Socket(folder.join("api.sock"));
    Client::connect(target).await.unwrap()
}

async fn env(owner: &Client) {
    for (operation, path, name) in [
        (Operation::CreateApp, &ENV[..1], "shop"),
        (Operation::CreateEnv, &ENV[..2], "dev"),
    ] {
        let body = json!({"name": name});
        let _: Value = owner.send(operation, path, &body).await.unwrap();
    }
}

/// One figure, as it is written.
async fn figure(folder: &Path, name: &str) -> String {
    let text = metrics(folder).await;
    let mut found = text.lines().filter_map(|line| line.strip_prefix(name));
    let value = found.next().unwrap_or_else(|| panic!("{name}: {text}"));
    value.trim().to_owned()
}

fn code<T: std::fmt::Debug>(result: Result<T, CallError>) -> String {
    match result {
        Err(CallError::Refused(problem)) => problem.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn public_addresses_are_those_that_the_server_was_told() {
    let folder = tempfile::tempdir().unwrap();
    let pool = |ranges: &[&str]| Doors {
        ipv4_pool: Some(ranges.iter().map(|it| (*it).to_owned()).collect()),
        ..doors(folder.path())
    };
    let enable = async |owner: &Client| -> Result<Value, CallError> {
        let answer = owner.call(Ask::new(Operation::EnableIpv4, &ENV)).await;
        answer.map(|answer| answer.value)
    };

    let mut server = start(folder.path()).await;
    server.open(doors(folder.path())).await.unwrap();
    let client = owner(folder.path()).await;
    env(&client).await;
    let failures = "fluffy_ipam_allocation_failures_total{category=\"ipv4\"}";
    assert_eq!(figure(folder.path(), failures).await, "0");
    assert_eq!(code(enable(&client).await), "ipv4_pool_exhausted");
    assert_eq!(figure(folder.path(), failures).await, "1");
    drop(client);
    server.stop().await;

    let mut server = start(folder.path()).await;
    let wrong = server.open(pool(&["203.0.113.0/99"])).await.unwrap_err();
    assert!(
        matches!(wrong, OpenDoorsError::Ipv4Pool { .. }),
        "{wrong:?}"
    );
    server.open(pool(&["203.0.113.8"])).await.unwrap();
    let client = owner(folder.path()).await;
    let used = "fluffy_ipam_used_ratio{category=\"ipv4\"}";
    assert_eq!(figure(folder.path(), used).await, "0.000000");
    let given = enable(&client).await.unwrap();
    assert_eq!(given["address"], "203.0.113.8", "{given}");
    assert_eq!(figure(folder.path(), used).await, "1.000000");
    let rest = "fluffy_ipam_quarantined{category=\"ipv4\"}";
    assert_eq!(figure(folder.path(), rest).await, "0");
    let lag = "fluffy_projection_lag_seconds{name=\"platform\",quantile=\"0.99\"}";
    assert!(figure(folder.path(), lag).await.contains('.'));
    drop(client);
    server.stop().await;

    // Said again, or not at all, it changes nothing.
    for doors in [pool(&["203.0.113.8"]), doors(folder.path())] {
        let mut server = start(folder.path()).await;
        server.open(doors).await.unwrap();
        let public = server
            .platform()
            .sequencer()
            .read(|state| state.runtime.ipam.public.len());
        let events = server.platform().ledger().read(1, 10_000).unwrap();
        let set = |kind: &str| events.iter().filter(|it| it.event_type == kind).count();
        assert_eq!((public, set("cluster.ipv4_pool_set")), (1, 1));
        server.stop().await;
    }
}

/// Without its keys a server serves everything but secrets, by the certificate
/// that it had; with them, all again, and without a new start.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_keys_a_server_starts_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = json!({"values": {"KEY": "value"}});
    let replace = async |owner: &Client| -> Result<Value, CallError> {
        owner.send(Operation::ReplaceSecrets, &ENV, &secrets).await
    };
    let mut server = start(folder.path()).await;
    let first = server.open(doors(folder.path())).await.unwrap();
    assert!(first.sealed.is_none());
    let client = owner(folder.path()).await;
    env(&client).await;
    replace(&client).await.unwrap();
    drop(client);
    server.stop().await;

    let (keys, away) = (folder.path().join("keys"), folder.path().join("away"));
    std::fs::rename(&keys, &away).unwrap();
    let mut server = start(folder.path()).await;
    let open = server.open(doors(folder.path())).await.unwrap();
    assert!(open.sealed.is_some());
    assert_eq!((&open.root, open.pin), (&first.root, first.pin));
    // No other key is made in the place of the one that is missing.
    assert!(!keys.exists() || std::fs::read_dir(&keys).unwrap().next().is_none());
    let client = owner(folder.path()).await;
    let missed = "fluffy_key_unavailable_total";
    let before: u64 = figure(folder.path(), missed).await.parse().unwrap();
    assert_eq!(code(replace(&client).await), "secrets_key_unavailable");
    let after: u64 = figure(folder.path(), missed).await.parse().unwrap();
    assert!(after > before, "{before}, then {after}");
    let token = api_token(&client).await;
    let remote = by_tls(&open, &token).await;
    let shown: Value = remote.get(Operation::GetSecrets, &ENV).await.unwrap();
    assert_eq!(shown["keys"], json!(["KEY"]), "{shown}");
    assert_eq!(available(&client).await, [false]);
    let member = json!({"email": "a@example.org", "role": "viewer"});
    let added: Result<Value, _> = client.send(Operation::AddMember, &["local"], &member).await;
    assert_eq!(code(added), "secrets_key_unavailable");
    let scaled = json!({"name": "another"});
    let made: Value = client
        .send(Operation::CreateApp, &["local"], &scaled)
        .await
        .unwrap();
    assert_eq!(made["name"], "another");

    std::fs::create_dir_all(&keys).unwrap();
    for entry in std::fs::read_dir(&away).unwrap() {
        let entry = entry.unwrap();
        std::fs::rename(entry.path(), keys.join(entry.file_name())).unwrap();
    }
    let limit = Instant::now() + PATIENCE;
    while available(&client).await != [true] {
        assert!(Instant::now() < limit);
        sleep(Duration::from_millis(100)).await;
    }
    replace(&client).await.unwrap();
    drop((client, remote));
    server.stop().await;
}

/// What a request is kept as takes the keys, and a server that has none keeps
/// something else of it; it is the same request all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_one_also_where_the_keys_were_away_in_between() {
    let folder = tempfile::tempdir().unwrap();
    let create = async |owner: &Client, name: &str, key: &str| -> Result<Value, CallError> {
        let body = json!({ "name": name });
        let ask = Ask::new(Operation::CreateApp, &["local"]);
        let answer = owner.call(ask.body(&body).key(key)).await?;
        assert_eq!(answer.status, 201);
        Ok(answer.value)
    };
    // Once by the answer that is kept, once by the ledger alone.
    let lose_answers = async |server: &Server| {
        let (aside, kind) = (server.platform().aside(), Kind::new("answer"));
        for entry in aside.list(kind, "", 100).await.unwrap() {
            aside.delete(kind, &entry.key).await.unwrap();
        }
    };
    let (open, sealed) = ("made-with-its-keys", "made-without-them");
    let mut server = start(folder.path()).await;
    server.open(doors(folder.path())).await.unwrap();
    let client = owner(folder.path()).await;
    let first = create(&client, "first", open).await.unwrap();
    drop(client);
    server.stop().await;

    let (keys, away) = (folder.path().join("keys"), folder.path().join("away"));
    std::fs::rename(&keys, &away).unwrap();
    let mut server = start(folder.path()).await;
    server.open(doors(folder.path())).await.unwrap();
    let client = owner(folder.path()).await;
    let second = create(&client, "second", sealed).await.unwrap();
    for _ in 0..2 {
        let again = create(&client, "second", sealed).await.unwrap();
        assert_eq!(again["id"], second["id"]);
        // Whoever was told to use a new key would do it twice.
        for (name, key) in [("first", open), ("other", open), ("other", sealed)] {
            let untold = code(create(&client, name, key).await);
            assert_eq!(untold, "secrets_key_unavailable", "{name} {key}");
        }
        lose_answers(&server).await;
    }

    std::fs::create_dir_all(&keys).unwrap();
    for entry in std::fs::read_dir(&away).unwrap() {
        let entry = entry.unwrap();
        std::fs::rename(entry.path(), keys.join(entry.file_name())).unwrap();
    }
    let limit = Instant::now() + PATIENCE;
    while available(&client).await != [true] {
        assert!(Instant::now() < limit);
        sleep(Duration::from_millis(100)).await;
    }
    for _ in 0..2 {
        for (name, key, made) in [("first", open, &first), ("second", sealed, &second)] {
            let again = create(&client, name, key).await.unwrap();
            assert_eq!(again["id"], made["id"], "{name}");
            let other = code(create(&client, "other", key).await);
            assert_eq!(other, "idempotency_key_reuse", "{name}");
        }
        lose_answers(&server).await;
    }
    let apps: Value = client.get(Operation::ListApps, &["local"]).await.unwrap();
    assert_eq!(apps["items"].as_array().unwrap().len(), 2);
    drop(client);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_keys_are_not_taken_for_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(folder.path()).await;
    server.open(doors(folder.path())).await.unwrap();
    server.stop().await;
    let other = tempfile::tempdir().unwrap();
    let mut stranger = start(other.path()).await;
    stranger.open(doors(other.path())).await.unwrap();
    stranger.stop().await;

    let mut server = start(folder.path()).await;
    let wrong = Doors {
        keys: other.path().join("keys"),
        ..doors(folder.path())
    };
    let open = server.open(wrong).await.unwrap();
    assert!(open.sealed.is_some());
    let client = owner(folder.path()).await;
    assert_eq!(available(&client).await, [false]);
    drop(client);
    server.stop().await;

    // Without keys and without a certificate of before it can prove nothing.
    std::fs::remove_file(folder.path().join("certificate")).unwrap();
    std::fs::remove_dir_all(folder.path().join("keys")).unwrap();
    let mut server = start(folder.path()).await;
    let refused = server.open(doors(folder.path())).await.unwrap_err();
    let is_told = matches!(refused, OpenDoorsError::Certificate { .. });
    assert!(is_told, "{refused:?}");
    server.stop().await;
}

/// Which of the master keys this server has.
async fn available(owner: &Client) -> Vec<bool> {
    let keys: Value = owner.get(Operation::GetKeys, &[]).await.unwrap();
    let keys = keys["keys"].as_array().unwrap();
    keys.iter().map(|key| key["available"] == true).collect()
}

async fn api_token(owner: &Client) -> String {
    let body = json!({"name": "robot", "grants": ["secret.list.local/*"]});
    let robot: Value = owner
        .send(Operation::CreatePrincipal, &["local"], &body)
        .await
        .unwrap();
    let body = json!({"principal_id": robot["id"], "ttl_seconds": 3600});
    let token: Value = owner
        .send(Operation::CreateToken, &["local"], &body)
        .await
        .unwrap();
    token["secret"].as_str().unwrap().to_owned()
}

/// A client that believes nothing but the root of the server.
async fn by_tls(open: &Open, token: &str) -> Client {
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &open.root);
    let ca = format!("-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----\n");
    let port = open.api.unwrap().port();
    let target = Target::Https {
        url: format!("https://localhost:{port}"),
        ca: Some(ca),
    };
    let client = Client::connect(target).await.unwrap();
    client.with_token(token.to_owned().into())
}

/// The certificate that a new connection is shown.
async fn shown(open: &Open) -> Vec<u8> {
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(open.root.clone())).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(open.api.unwrap()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await.unwrap();
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    chain[0].to_vec()
}

/// A certificate that lasts months does not end a server that runs for years.
#[tokio::test(flavor = "multi_thread")]
async fn a_servers_certificate_is_renewed_while_it_serves() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(folder.path()).await;
    let open = server
        .open(Doors {
            renewal: Some(Duration::from_millis(200)),
            ..doors(folder.path())
        })
        .await
        .unwrap();
    let client = owner(folder.path()).await;
    let remote = by_tls(&open, &api_token(&client).await).await;
    let first = shown(&open).await;
    let limit = Instant::now() + PATIENCE;
    while shown(&open).await == first {
        assert!(Instant::now() < limit, "it is still the first one");
        sleep(Duration::from_millis(50)).await;
    }
    // Whoever was connected before still is.
    env(&client).await;
    let secrets = json!({"values": {"KEY": "value"}});
    let _: Value = client
        .send(Operation::ReplaceSecrets, &ENV, &secrets)
        .await
        .unwrap();
    let secrets: Value = remote.get(Operation::GetSecrets, &ENV).await.unwrap();
    assert_eq!(secrets["keys"], json!(["KEY"]), "{secrets}");
    server.stop().await;
}

/// After a rewrap nothing of the platform needs the old master key.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewrap_leaves_nothing_to_the_key_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(folder.path()).await;
    let first = server.open(doors(folder.path())).await.unwrap();
    let client = owner(folder.path()).await;
    env(&client).await;
    let secrets = json!({"values": {"KEY": "value"}});
    let _: Value = client
        .send(Operation::ReplaceSecrets, &ENV, &secrets)
        .await
        .unwrap();
    let keys = async || -> Value { client.get(Operation::GetKeys, &[]).await.unwrap() };
    let old = keys().await["current_key_id"].as_str().unwrap().to_owned();
    for operation in [Operation::RotateKeys, Operation::RewrapKeys] {
        client.call(Ask::new(operation, &[])).await.unwrap();
    }
    let now = keys().await;
    assert_ne!(now["current_key_id"], old.as_str());
    let left = now["keys"].as_array().unwrap().iter();
    let left = left.filter(|key| key["id"] == old.as_str());
    assert!(left.into_iter().all(|key| key["versions"] == 0), "{now}");
    server.stop().await;

    std::fs::remove_file(folder.path().join(format!("keys/{old}.key"))).unwrap();
    let mut server = start(folder.path()).await;
    let open = server.open(doors(folder.path())).await.unwrap();
    assert!(open.sealed.is_none(), "{:?}", open.sealed);
    assert_eq!((open.root, open.pin), (first.root, first.pin));
    server.stop().await;
}

/// A server of a database, with a folder of its own for keys.
async fn beside(database: &FreshDatabase, folder: &Path) -> Server {
    let options = Options {
        storage: Storage::database(database.url().parse().unwrap()),
        ledger: LedgerOptions::default(),
        founder: Founder::Local,
        timing: Timing::default(),
    };
    let mut server = Server::start(options).await.unwrap();
    let open = server.open(doors(folder)).await.unwrap();
    assert!(open.sealed.is_none(), "{:?}", open.sealed);
    server
}

/// A key that one server makes is used by the others once they have its file;
/// until then they open what they can and rewrap nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_key_reaches_every_server() {
    let database = FreshDatabase::create().unwrap();
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = beside(&database, a.path()).await;
    let (from, to) = (a.path().join("keys"), b.path().join("keys"));
    let copy = |name: &str| {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    };
    std::fs::create_dir(&to).unwrap();
    for file in std::fs::read_dir(&from).unwrap() {
        copy(file.unwrap().file_name().to_str().unwrap());
    }
    let other = beside(&database, b.path()).await;
    let (at_a, at_b) = (owner(a.path()).await, owner(b.path()).await);
    env(&at_a).await;
    let set = async |client: &Client, value: &str| {
        let values = json!({"set": {value: value}, "unset": []});
        let answer: Result<Value, CallError> =
            client.send(Operation::UpdateSecrets, &ENV, &values).await;
        answer
    };
    set(&at_a, "FIRST").await.unwrap();
    let rotated = at_a
        .call(Ask::new(Operation::RotateKeys, &[]))
        .await
        .unwrap();
    let new = rotated.value["current_key_id"].as_str().unwrap().to_owned();
    set(&at_a, "SECOND").await.unwrap();

    // B has no such file: it can't go on from what A sealed, nor rewrap.
    let limit = Instant::now() + PATIENCE;
    let head = one.platform().ledger().head().unwrap().seq;
    while other.platform().sequencer().applied().seq < head {
        assert!(Instant::now() < limit, "B does not follow");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(code(set(&at_b, "THIRD").await), "secrets_key_unavailable");
    let rewrap = async || {
        at_b.call(Ask::new(Operation::RewrapKeys, &[]))
            .await
            .unwrap()
            .value
    };
    let refused = rewrap().await;
    assert_eq!(
        refused["error"]["code"], "secrets_key_unavailable",
        "{refused}"
    );
    let words = refused["error"]["message"].as_str().unwrap();
    assert!(
        words.contains(&format!("copy the file `{new}.key`")),
        "{words}"
    );

    // With the file it can, without a new start, and seals with it too.
    copy(&format!("{new}.key"));
    set(&at_b, "THIRD").await.unwrap();
    let rewrapped = rewrap().await;
    assert_eq!(rewrapped["status"], "succeeded", "{rewrapped}");
    assert_eq!(rewrapped["result"]["master_key_id"], new.as_str());
    set(&at_b, "FOURTH").await.unwrap();
    let keys: Value = at_b.get(Operation::GetKeys, &[]).await.unwrap();
    for key in keys["keys"].as_array().unwrap() {
        let versions = if key["id"] == new.as_str() { 4 } else { 0 };
        assert_eq!(key["versions"], versions, "{keys}");
    }
    let limit = Instant::now() + PATIENCE;
    while std::fs::read_to_string(to.join("active")).unwrap() != new {
        assert!(Instant::now() < limit, "B still seals with the old key");
        sleep(Duration::from_millis(10)).await;
    }
    one.stop().await;
    other.stop().await;
}
