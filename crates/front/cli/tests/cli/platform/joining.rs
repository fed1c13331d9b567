//! How a machine becomes a node, by commands alone.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::real::Running;
use crate::site::Site;

/// A server that takes nodes, and none yet.
fn server(site: &Site) -> Running {
    server_at(site, "127.0.0.1:0")
}

/// The same, where nodes find it at an address.
fn server_at(site: &Site, nodes: &str) -> Running {
    let mut command = site.context.command();
    command.args(["up", "--listen", "none", "--no-node", "--json"]);
    command.args(["--listen-nodes", nodes]);
    Running::start(command, "\n").0
}

/// An address at which nothing listens.
fn free_address() -> String {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().to_string()
}

/// A token of this form, and what is said with it.
fn token(site: &Site, form: &[&str]) -> Value {
    let words: Vec<&str> = [&["nodes", "enroll-token", "create"][..], form].concat();
    site.json(0, &words)["data"].clone()
}

/// Enrols with nothing but what was said with a token.
fn enrol(site: &Site, token: &Value, folder: &Path, more: &[&str]) -> Output {
    enrol_by(site.context.command(), token, folder, more)
}

/// The same, by a command that is made already.
fn enrol_by<T: AsRef<OsStr>>(
    mut command: Command,
    token: &Value,
    folder: &Path,
    more: &[T],
) -> Output {
    let text = |field: &str| token[field].as_str().unwrap();
    let file = folder.with_extension("token");
    fs::write(&file, text("secret")).unwrap();
    command
        .args(["node", "enroll", "--json", "--data"])
        .arg(folder);
    command.args(["--server", text("server"), "--ca-pin", text("ca_pin")]);
    command.arg("--token-file").arg(file).args(more);
    command.output().unwrap()
}

/// The id of the node that came of it.
fn node(done: &Output) -> String {
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let enrolled: Value = serde_json::from_slice(&done.stdout).unwrap();
    enrolled["node_id"].as_str().unwrap().to_owned()
}

/// What is said of why nothing came of it.
fn refusal(done: &Output) -> String {
    assert!(!done.status.success());
    let [out, err] = [&done.stdout, &done.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{err}")
}

fn folder(site: &Site, name: &str) -> PathBuf {
    site.context.home().join(name)
}

#[test]
fn a_machine_joins_as_the_help_says_and_comes_back_by_a_token_that_names_it() {
    let site = Site::empty();
    let _server = server(&site);
    let here = folder(&site, "node");
    let first = node(&enrol(&site, &token(&site, &[]), &here, &[]));
    // The same machine as another node: not by any token.
    let again = enrol(&site, &token(&site, &[]), &here, &["--again"]);
    let why = refusal(&again);
    assert!(why.contains("--replaces"), "{why}");
    // Also if it says nothing of who it was.
    fs::remove_dir_all(&here).unwrap();
    let why = refusal(&enrol(&site, &token(&site, &[]), &here, &[]));
    assert!(why.contains("--replaces"), "{why}");
    let named = token(&site, &["--replaces", &first]);
    let second = node(&enrol(&site, &named, &here, &[]));
    assert_ne!(first, second);
    let list = site.json(0, &["nodes", "list"]);
    let state = |id: &str| {
        let nodes = list["items"].as_array().unwrap();
        let found = nodes.iter().find(|it| it["id"] == id).unwrap();
        found["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(state(&first), "revoked");
    assert_eq!(state(&second), "enrolled");
}

#[test]
fn a_machine_behind_nat_needs_a_token_that_allows_it() {
    let site = Site::empty();
    let _server = server(&site);
    let here = folder(&site, "node");
    let done = enrol(&site, &token(&site, &[]), &here, &["--behind-nat"]);
    let why = refusal(&done);
    assert!(why.contains("--allow-nat"), "{why}");
    let allowed = token(&site, &["--allow-nat"]);
    node(&enrol(&site, &allowed, &here, &["--behind-nat"]));
    let short = ["nodes", "enroll-token", "create", "--ttl", "1m"];
    assert!(
        !site
            .context
            .command()
            .args(short)
            .output()
            .unwrap()
            .status
            .success()
    );
}

/// What a token is for that takes an approval.
const CAREFUL: [&str; 3] = ["--require-approval", "--label", "zone=eu-1"];

/// A machine that enrols while the test goes on.
fn enrolling(site: &Site, token: &Value, folder: &Path) -> JoinHandle<Output> {
    let (command, token) = (site.context.command(), token.clone());
    let folder = folder.to_owned();
    thread::spawn(move || enrol_by::<&str>(command, &token, &folder, &[]))
}

/// What the list says of a token, once it stands so.
fn stands(site: &Site, token: &Value, status: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let list = site.json(0, &["nodes", "enroll-token", "list"]);
        let tokens = list["items"].as_array().unwrap();
        let found = tokens.iter().find(|it| it["id"] == token["id"]).unwrap();
        if found["status"] == status {
            return found.clone();
        }
        assert!(Instant::now() < deadline, "{status}: {found}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_machine_that_has_to_be_approved_waits_also_through_a_restart() {
    let site = Site::empty();
    let nodes = free_address();
    let running = server_at(&site, &nodes);
    let careful = token(&site, &CAREFUL);
    let id = careful["id"].as_str().unwrap();
    let machine = enrolling(&site, &careful, &folder(&site, "node"));
    let waiting = stands(&site, &careful, "waiting");
    let key = waiting["request"]["key_fingerprint"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(site.json(0, &["nodes", "list"])["items"], json!([]));
    // The control: a token that takes no approval is not held up by it.
    let plain = token(&site, &["--label", "zone=us-2", "--label", "rack=7"]);
    let first = node(&enrol(&site, &plain, &folder(&site, "plain"), &[]));

    running.kill();
    let _running = server_at(&site, &nodes);
    let again = stands(&site, &careful, "waiting");
    assert_eq!(again["request"]["key_fingerprint"], key.as_str());
    assert!(!machine.is_finished(), "it waits");
    site.succeeds(&["nodes", "enroll-token", "approve", id]);
    // Once is enough.
    site.ends(5, &["nodes", "enroll-token", "approve", id]);
    let done = machine.join().unwrap();
    let second = node(&done);
    let said = String::from_utf8_lossy(&done.stderr);
    // Operators compare what it shows with what they see.
    assert!(said.contains(&format!("sha256:{key}")), "{said}");
    assert!(
        said.contains(&format!("enroll-token approve {id}")),
        "{said}"
    );
    assert_eq!(
        said.matches("sha256:").count(),
        1,
        "it is said once: {said}"
    );
    let list = site.json(0, &["nodes", "list"]);
    let labels = |id: &str| {
        let nodes = list["items"].as_array().unwrap();
        nodes.iter().find(|it| it["id"] == id).unwrap()["labels"].clone()
    };
    assert_eq!(labels(&first), json!({"rack": "7", "zone": "us-2"}));
    assert_eq!(labels(&second), json!({"zone": "eu-1"}));
    assert_eq!(
        stands(&site, &careful, "consumed")["node_id"],
        second.as_str()
    );
}

#[test]
fn a_machine_that_nobody_approves_does_not_join() {
    let site = Site::empty();
    let _server = server(&site);
    // Refused by an operator, which uses the token up.
    let careful = token(&site, &CAREFUL);
    let id = careful["id"].as_str().unwrap();
    let here = folder(&site, "node");
    let machine = enrolling(&site, &careful, &here);
    stands(&site, &careful, "waiting");
    site.succeeds(&["nodes", "enroll-token", "refuse", id]);
    let done = machine.join().unwrap();
    let why = refusal(&done);
    assert!(why.contains("an operator refused this machine"), "{why}");
    stands(&site, &careful, "consumed");
    let events = site.json(0, &["nodes", "list"]);
    assert_eq!(events["items"], json!([]));
    assert!(!here.join("pki").exists(), "nothing is kept of it");
    // Nobody looked in time.
    let careful = token(&site, &CAREFUL);
    let done = enrol(&site, &careful, &here, &["--approval-wait", "3s"]);
    let why = refusal(&done);
    assert_eq!(done.status.code(), Some(6), "{why}");
    assert!(why.contains("--approval-wait"), "{why}");
    // Another machine with the same token is nobody's business.
    let why = refusal(&enrol(&site, &careful, &here, &[]));
    assert!(why.contains("cannot be used"), "{why}");
    let wrong = site.ends(2, &["nodes", "enroll-token", "create", "--label", "Zone"]);
    assert!(wrong.stderr.contains("zone=eu-1"), "{}", wrong.stderr);
}
