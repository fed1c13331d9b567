//! TLS to PostgreSQL: what each `sslmode` encrypts, takes and refuses.
//!
//! Against a real server with a certificate of a root made here. Who stands in
//! between is played too, and every refusal has a control that goes through.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod postgres_kit;

use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fluffy_ledger::{AddressError, Ledger, LedgerOptions, OpenLedgerError, PostgresAddress};
use fluffy_test_kit::{FreshDatabase, Network, PrivatePostgres, wait_for};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const NAME: &str = "db.test";
const LIMIT: Duration = Duration::from_secs(60);

/// A root, and the certificate that it signed for a name.
struct Pki {
    root: String,
    certificate: String,
    key: String,
}

fn pki(name: &str) -> Pki {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    Pki {
        root,
        certificate,
        key: key.serialize_pem(),
    }
}

/// A server with TLS, a database of it, and files with roots.
struct World {
    // Dropped in this order: a database needs its server.
    database: FreshDatabase,
    server: PrivatePostgres,
    pki: Pki,
    files: TempDir,
}

impl World {
    fn start(tls: bool, access: &str) -> Self {
        let pki = pki(NAME);
        let tls = tls.then_some((pki.certificate.as_str(), pki.key.as_str()));
        let server = PrivatePostgres::start_with(&Network { tls, access }).unwrap();
        let files = TempDir::new().unwrap();
        std::fs::write(files.path().join("root.pem"), &pki.root).unwrap();
        let other = self::pki(NAME).root;
        std::fs::write(files.path().join("other.pem"), other).unwrap();
        Self {
            database: FreshDatabase::create_in(&server).unwrap(),
            server,
            pki,
            files,
        }
    }

    /// An address of the database, where the server is called `name`.
    fn url(&self, name: &str, settings: &str) -> String {
        self.url_at(self.server.listens().unwrap(), "fluffy", name, settings)
    }

    fn url_at(&self, at: SocketAddr, user: &str, name: &str, settings: &str) -> String {
        let folder = self.files.path().display().to_string();
        let settings = settings.replace("FILES", &folder);
        let (database, port) = (self.database.name(), at.port());
        format!(
            "postgresql://{user}@{name}:{port}/{database}?hostaddr={}&{settings}",
            at.ip()
        )
    }

    /// Whether sessions of the ledger are encrypted, by what they are for.
    fn sessions(&self) -> Vec<String> {
        let sql = format!(
            "select distinct application_name || ' ' || ssl from pg_stat_activity \
             join pg_stat_ssl using (pid) where datname = '{}' and application_name like \
             'fluffy-%' order by 1",
            self.database.name()
        );
        let found = self.server.sql("postgres", &sql).unwrap();
        found.lines().map(str::to_owned).collect()
    }
}

fn open(url: &str) -> Result<Ledger, OpenLedgerError> {
    let address: PostgresAddress = url.parse().unwrap();
    Ledger::open_postgres(&address, LedgerOptions::default())
}

/// Everything an error says.
fn words(url: &str) -> String {
    let error = open(url).unwrap_err();
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        words.push_str(&format!(": {error}"));
        source = error.source();
    }
    words
}

/// Appends and reads, until every kind of session is there.
fn work(world: &World, ledger: &Ledger, encrypted: bool) {
    for number in 0..3 {
        let batch = postgres_kit::draft((1, number));
        ledger.append_blocking(batch).unwrap();
    }
    assert!(!ledger.read(1, 10).unwrap().is_empty());
    let expected = ["reader", "signal", "writer"]
        .map(|what| format!("fluffy-ledger-{what} {encrypted}"))
        .to_vec();
    let mut found = Vec::new();
    let all = wait_for("every kind of session is there", LIMIT, || {
        found = world.sessions();
        (found == expected).then_some(())
    });
    all.unwrap_or_else(|_| panic!("{found:?}"));
}

#[test]
fn every_session_of_the_ledger_is_encrypted_as_its_address_says() {
    let world = World::start(true, "");
    for (settings, encrypted) in [
        ("sslmode=require", true),
        ("sslmode=prefer", true),
        ("sslmode=verify-ca&sslrootcert=FILES/root.pem", true),
        ("sslmode=verify-full&sslrootcert=FILES/root.pem", true),
        // A database on this machine: as libpq, if the server can.
        ("connect_timeout=9", true),
        ("sslmode=disable", false),
    ] {
        let ledger = open(&world.url(NAME, settings)).expect(settings);
        work(&world, &ledger, encrypted);
        drop(ledger);
        let gone = wait_for("its sessions have ended", LIMIT, || {
            world.sessions().is_empty().then_some(())
        });
        gone.unwrap();
    }
}

#[test]
fn only_the_right_name_and_root_are_taken() {
    let world = World::start(true, "");
    let right = "sslmode=verify-full&sslrootcert=FILES/root.pem";
    open(&world.url(NAME, right)).unwrap();
    let wrong_name = words(&world.url("other.test", right));
    assert!(wrong_name.contains("not valid for name"), "{wrong_name}");
    // The control: the same certificate, where names are not asked for.
    open(&world.url("other.test", "sslmode=verify-ca&sslrootcert=FILES/root.pem")).unwrap();
    for settings in [
        "sslmode=verify-full&sslrootcert=FILES/other.pem",
        "sslmode=verify-ca&sslrootcert=FILES/other.pem",
        // Where there are roots they are used, as libpq has it.
        "sslmode=require&sslrootcert=FILES/other.pem",
        // The machine's own do not know it either.
        "sslmode=verify-full&sslrootcert=system",
    ] {
        let Ok(_) = world.url(NAME, settings).parse::<PostgresAddress>() else {
            // A machine without roots says so even earlier.
            continue;
        };
        let refused = words(&world.url(NAME, settings));
        assert!(
            refused.contains("was not taken for the right one"),
            "{settings}: {refused}"
        );
        assert!(refused.contains("invalid peer certificate"), "{refused}");
    }
    // The control: the same server, where nobody's word is asked for.
    open(&world.url(NAME, "sslmode=require")).unwrap();
}

#[test]
fn a_server_without_tls_is_refused_where_tls_was_asked_for() {
    let world = World::start(false, "");
    for settings in [
        "sslmode=require",
        "sslmode=verify-ca&sslrootcert=FILES/root.pem",
        "sslmode=verify-full&sslrootcert=FILES/root.pem",
    ] {
        let refused = words(&world.url(NAME, settings));
        assert!(
            refused.contains("does not support TLS"),
            "{settings}: {refused}"
        );
    }
    for settings in ["sslmode=disable", "sslmode=prefer"] {
        let ledger = open(&world.url(NAME, settings)).unwrap();
        work(&world, &ledger, false);
    }
}

#[test]
fn prefer_goes_on_in_the_clear_where_the_server_wants_that() {
    let world = World::start(true, "hostssl all all 127.0.0.1/32 reject");
    let ledger = open(&world.url(NAME, "sslmode=prefer")).unwrap();
    work(&world, &ledger, false);
    let refused = words(&world.url(NAME, "sslmode=require"));
    assert!(refused.contains("pg_hba.conf"), "{refused}");
}

#[test]
fn roots_that_are_not_there_are_said_so_before_anything_is_sent() {
    let url = "postgresql://u:hunter2@db.test/d?sslmode=verify-full&sslrootcert=/nowhere/root.pem";
    let error = url.parse::<PostgresAddress>().unwrap_err();
    assert!(matches!(error, AddressError::Roots(_)), "{error}");
    let why = error.source().unwrap().to_string();
    assert!(
        why.contains("/nowhere/root.pem") && !why.contains("hunter2"),
        "{why}"
    );
}

/// Takes TLS of clients by a certificate of its own, and carries what they say
/// to the server in another TLS.
async fn relay(listener: TcpListener, to: SocketAddr, server: &Pki) {
    let mine = pki(NAME);
    let provider = Arc::new(ring::default_provider());
    let certificate = CertificateDer::from_pem_slice(mine.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(mine.key.as_bytes()).unwrap();
    let taking = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(server.root.as_bytes()).unwrap();
    roots.add(root).unwrap();
    let giving = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (taking, giving) = (Arc::new(taking), Arc::new(giving));
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let taking = TlsAcceptor::from(Arc::clone(&taking));
        let giving = TlsConnector::from(Arc::clone(&giving));
        tokio::spawn(async move {
            let mut wish = [0; 8];
            client.read_exact(&mut wish).await?;
            client.write_all(b"S").await?;
            let mut client = taking.accept(client).await?;
            let mut server = TcpStream::connect(to).await?;
            server.write_all(&wish).await?;
            server.read_exact(&mut [0]).await?;
            let name = ServerName::try_from(NAME).unwrap();
            let mut server = giving.connect(name, server).await?;
            copy_bidirectional(&mut client, &mut server).await
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_relays_a_password_gains_nothing_by_it() {
    let world = World::start(true, "hostssl all guest 127.0.0.1/32 scram-sha-256");
    let guest = "create role guest superuser login password 'hunter2'";
    world.server.sql("postgres", guest).unwrap();
    let real = world.server.listens().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relayed = listener.local_addr().unwrap();
    let url = |at: SocketAddr, settings: &str| world.url_at(at, "guest:hunter2", NAME, settings);
    let open = |url: String| async move {
        let task = tokio::task::spawn_blocking(move || match self::open(&url) {
            Ok(_) => None,
            Err(_) => Some(words(&url)),
        });
        task.await.unwrap()
    };
    let trial = async {
        // The password is tied to the connection that it is meant for.
        let bound = "sslmode=require&channel_binding=require";
        assert_eq!(open(url(real, bound)).await, None);
        let refused = open(url(relayed, bound)).await.unwrap();
        assert!(refused.contains("channel binding"), "{refused}");
        let refused = open(url(relayed, "sslmode=require")).await.unwrap();
        assert!(refused.contains("channel binding"), "{refused}");
        // The control: without the tie, the relay is let in.
        let loose = "sslmode=require&channel_binding=disable";
        assert_eq!(open(url(relayed, loose)).await, None);
    };
    tokio::select! {
        () = relay(listener, real, &world.pki) => panic!("the relay ended"),
        () = trial => {}
    }
}
