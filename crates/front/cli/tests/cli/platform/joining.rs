//! How a machine becomes a node, by commands alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::real::Running;
use crate::site::Site;

/// A server that takes nodes, and none yet.
fn server(site: &Site) -> Running {
    let mut command = site.context.command();
    command.args(["up", "--listen", "none", "--no-node", "--json"]);
    command.args(["--listen-nodes", "127.0.0.1:0"]);
    Running::start(command, "\n").0
}

/// A token of this form, and what is said with it.
fn token(site: &Site, form: &[&str]) -> Value {
    let words: Vec<&str> = [&["nodes", "enroll-token", "create"][..], form].concat();
    site.json(0, &words)["data"].clone()
}

/// Enrols with nothing but what was said with a token.
fn enrol(site: &Site, token: &Value, folder: &Path, more: &[&str]) -> Output {
    let text = |field: &str| token[field].as_str().unwrap();
    let file = folder.with_extension("token");
    fs::write(&file, text("secret")).unwrap();
    let mut command: Command = site.context.command();
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
