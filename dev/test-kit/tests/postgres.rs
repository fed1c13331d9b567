//! The private server is real, survives faults, and leaves nothing behind.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fluffy_test_kit::{FreshDatabase, PrivatePostgres, wait_for};

const CHILD_ENV: &str = "FLUFFY_TEST_KIT_CHILD";

fn socket_folder(url: &str) -> &Path {
    Path::new(url.split_once("?host=").unwrap().1)
}

#[test]
fn what_is_committed_survives_restart_and_kill() {
    let mut postgres = PrivatePostgres::start().unwrap();
    let database = FreshDatabase::create_in(&postgres).unwrap();
    assert_eq!(postgres.sql("postgres", "show fsync").unwrap(), "on");
    assert_eq!(
        postgres.sql("postgres", "show listen_addresses").unwrap(),
        ""
    );
    database.sql("create table t (n int)").unwrap();
    database.sql("insert into t values (1)").unwrap();
    postgres.kill().unwrap();
    assert!(database.sql("select 1").is_err(), "a killed server answers");
    postgres.resume().unwrap();
    database.sql("insert into t values (2)").unwrap();
    postgres.restart().unwrap();
    database.sql("insert into t values (4)").unwrap();
    postgres.stop_immediately().unwrap();
    assert!(
        database.sql("select 1").is_err(),
        "a stopped server answers"
    );
    postgres.resume().unwrap();
    assert_eq!(database.sql("select sum(n) from t").unwrap(), "7");
    let refused = database.sql("select nonsense").unwrap_err();
    assert!(refused.to_string().contains("nonsense"), "{refused}");

    let name = database.name().to_owned();
    drop(database);
    let left = format!("select count(*) from pg_database where datname = '{name}'");
    assert_eq!(postgres.sql("postgres", &left).unwrap(), "0");
    let url = postgres.url();
    drop(postgres);
    assert!(!socket_folder(&url).exists(), "{url}");
}

/// What the child of the next test does: own a server until it is killed.
fn own_a_server() {
    let postgres = PrivatePostgres::start().unwrap();
    let told = writeln!(std::io::stdout(), "\nURL {}", postgres.url());
    told.unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn a_killed_owner_leaves_no_server_behind() {
    if std::env::var_os(CHILD_ENV).is_some() {
        return own_a_server();
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_killed_owner_leaves_no_server_behind",
            "--nocapture",
        ])
        .env(CHILD_ENV, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let url = lines
        .map(Result::unwrap)
        .find_map(|line| line.strip_prefix("URL ").map(str::to_owned))
        .expect("the child says where its server is");
    let folder = socket_folder(&url).to_owned();
    assert!(folder.join("data/postmaster.pid").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the folder is gone", Duration::from_secs(60), || {
        (!folder.exists()).then_some(())
    })
    .unwrap();
}
