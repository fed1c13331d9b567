//! What is between a server and its database: TLS, and a pooler.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::path::Path;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Client, Target};
use fluffy_ledger::{LedgerOptions, PostgresAddress};
use fluffy_server::aside::{Aside, Kind};
use fluffy_server::doors::Doors;
use fluffy_server::loops::lease::Timing;
use fluffy_server::migrate::migrate;
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::server::{Options, Server};
use fluffy_test_kit::{FreshDatabase, Network, PrivatePooler, PrivatePostgres};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const NOTE: Kind = Kind::new("note");
const LIMIT: Duration = Duration::from_secs(60);

async fn start(storage: Storage) -> Server {
    let options = Options {
        storage,
        ledger: LedgerOptions::default(),
        founder: Founder::Local,
        timing: Timing::default(),
    };
    Server::start(options).await.unwrap()
}

async fn client(server: &mut Server, folder: &Path) -> Client {
    let doors = Doors {
        keys: folder.join("keys"),
        certificate: Some(folder.join("certificate")),
        socket: Some(folder.join("api.sock")),
        ..Doors::default()
    };
    let open = server.open(doors).await.unwrap();
    assert!(open.sealed.is_none(), "{:?}", open.sealed);
    let target = Target::Socket(folder.join("api.sock"));
    Client::connect(target).await.unwrap()
}

async fn create(client: &Client, name: &str) {
    let body = json!({"name": name});
    let made: Value = client
        .send(Operation::CreateApp, &["local"], &body)
        .await
        .unwrap();
    assert_eq!(made["name"], name, "{made}");
}

/// What the sessions of a database are called, and whether they are encrypted.
fn sessions(server: &PrivatePostgres, database: &FreshDatabase) -> Vec<String> {
    let sql = format!(
        "select distinct application_name || ' ' || ssl from pg_stat_activity \
         join pg_stat_ssl using (pid) where datname = '{}' and application_name like \
         'fluffy-%' order by 1",
        database.name()
    );
    let found = server.sql("postgres", &sql).unwrap();
    found.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_of_a_server_is_encrypted() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["db.test".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    let key = key.serialize_pem();
    // Who comes without TLS is not let in at all, but for the test's own socket.
    let network = Network {
        tls: Some((&certificate, &key)),
        access: "hostnossl all all all reject",
    };
    let postgres = PrivatePostgres::start_with(&network).unwrap();
    let database = FreshDatabase::create_in(&postgres).unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("root.pem");
    std::fs::write(&file, &root).unwrap();
    let at = |mode: &str| -> PostgresAddress {
        let (name, port) = (database.name(), postgres.listens().unwrap().port());
        let url = format!("postgresql://fluffy@db.test:{port}/{name}?hostaddr=127.0.0.1&{mode}");
        url.parse().unwrap()
    };
    let checked = at(&format!(
        "sslmode=verify-full&sslrootcert={}",
        file.display()
    ));

    // The control: in the clear there is nothing to be had.
    let plain = Aside::open_postgres(&at("sslmode=disable")).await;
    assert!(plain.is_err(), "{plain:?}");

    let before = folder.path().join("before");
    let server = start(Storage::Directory(before.clone())).await;
    server.stop().await;
    migrate(&before, &checked).await.unwrap();
    let mut server = start(Storage::database(checked)).await;
    let client = client(&mut server, folder.path()).await;
    create(&client, "shop").await;
    let aside = server.platform().aside();
    aside.put(NOTE, "a", b"kept".to_vec(), None).await.unwrap();
    let expected = [
        "aside",
        "leases",
        "ledger-reader",
        "ledger-signal",
        "ledger-writer",
    ];
    let expected: Vec<String> = expected.map(|what| format!("fluffy-{what} true")).into();
    let limit = Instant::now() + LIMIT;
    loop {
        let mut found = sessions(&postgres, &database);
        found.retain(|it| !it.starts_with("fluffy-ledger-view"));
        if found == expected {
            break;
        }
        assert!(found.iter().all(|it| it.ends_with("true")), "{found:?}");
        assert!(Instant::now() < limit, "{found:?}");
        sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_works_behind_a_pooler() {
    let postgres = PrivatePostgres::start().unwrap();
    // Fewer sessions than each server wants, so that all are handed around.
    let pooler = PrivatePooler::start(&postgres, 3).unwrap();
    let database = FreshDatabase::create_in(&postgres).unwrap();
    let address = || -> PostgresAddress {
        let pooled = pooler.database_url(database.name());
        let pooled: PostgresAddress = pooled.parse().unwrap();
        pooled.with_direct(database.url().parse().unwrap())
    };
    let mut servers = Vec::new();
    for _ in 0..2 {
        servers.push(start(Storage::database(address())).await);
    }
    let folder = TempDir::new().unwrap();
    let client = client(&mut servers[0], folder.path()).await;
    let asides: Vec<Aside> = servers
        .iter()
        .map(|server| server.platform().aside().clone())
        .collect();
    let busy = (0..8).map(|writer: usize| {
        let (mine, others) = (asides[writer % 2].clone(), asides[(writer + 1) % 2].clone());
        tokio::spawn(async move {
            for number in 0..40 {
                let key = format!("{writer}-{number}");
                let value = key.clone().into_bytes();
                mine.put(NOTE, &key, value.clone(), None).await.unwrap();
                let found = others.get(NOTE, &key).await.unwrap().unwrap();
                assert_eq!(found.value, value);
            }
        })
    });
    let busy: Vec<_> = busy.collect();
    for number in 0..10 {
        create(&client, &format!("app-{number}")).await;
    }
    for one in busy {
        one.await.unwrap();
    }
    // Both know all of it.
    let head = servers[0].platform().ledger().head().unwrap().seq;
    let limit = Instant::now() + LIMIT;
    for server in &servers {
        while server.platform().sequencer().applied().seq < head {
            assert!(Instant::now() < limit, "a server does not follow");
            sleep(Duration::from_millis(10)).await;
        }
        let apps = server
            .platform()
            .sequencer()
            .read(|state| state.runtime.apps.len());
        assert_eq!(apps, 10);
    }
    // What keeps a session is not behind the pooler, and the rest shares three.
    let count = |names: &str| -> u32 {
        let sql = format!(
            "select count(*) from pg_stat_activity where datname = '{}' \
             and application_name in ({names})",
            database.name()
        );
        postgres.sql("postgres", &sql).unwrap().parse().unwrap()
    };
    assert_eq!(count("'fluffy-ledger-signal'"), 2);
    assert_eq!(count("'fluffy-ledger-writer'"), 2);
    let shared = count("'fluffy-aside', 'fluffy-ledger-reader'");
    assert!((1..=3).contains(&shared), "{shared}");
    for server in servers {
        server.stop().await;
    }
}
