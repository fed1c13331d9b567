//! `fluffy orgs export` and `fluffy audit verify --export`, on a real server.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::double::Reply;
use super::local;
use super::real::up;
use crate::site::Site;

/// What stands in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
    names.sort();
    names
}

#[test]
fn an_org_is_exported_and_whoever_forges_the_file_is_found() {
    let site = Site::empty();
    let running = up(&site);
    site.succeeds(&["orgs", "create", "acme"]);
    for (org, app) in [("acme", "one"), ("local", "two"), ("acme", "three")] {
        site.succeeds(&["apps", "create", app, "--org", org]);
        site.succeeds(&[
            "apps",
            "update",
            app,
            "--org",
            org,
            "--display-name",
            "renamed",
        ]);
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (acme, other) = (at("acme.ndjson"), at("local.ndjson"));
    let made = site.json(0, &["orgs", "export", "acme", "-o", &acme]);
    let (key, org) = (made["data"]["key"].as_str().unwrap(), &made["data"]["org"]);
    let text = site.succeeds(&["orgs", "export", "local", "-o", &other]);
    assert!(text.contains("proven to be among"), "{text}");
    // Nothing is left beside them, and neither is written over.
    assert_eq!(names(folder.path()), ["acme.ndjson", "local.ndjson"]);
    site.ends(5, &["orgs", "export", "acme", "-o", &acme]);
    site.ends(3, &["orgs", "export", "nobody", "-o", &at("nobody")]);
    site.ends(
        2,
        &[
            "orgs",
            "export",
            "acme",
            "-o",
            &at("late"),
            "--after",
            "100000",
        ],
    );
    assert_eq!(names(folder.path()), ["acme.ndjson", "local.ndjson"]);
    running.end();

    // The file is enough, with the key or without.
    let verify = ["audit", "verify", "--export"];
    let seen = site.json(0, &[&verify[..], &[&acme, "--key", key]].concat());
    assert_eq!((&seen["sound"], &seen["org"]), (&json!(true), org));
    assert_eq!(seen["events"], made["data"]["events"]);
    assert_eq!(seen["completeness"], "not_provable");
    let text = site.succeeds(&[&verify[..], &[&acme]].concat());
    assert!(text.contains("nobody vouches for"), "{text}");
    site.ends(2, &[&verify[..], &[&acme, "--ledger", &other]].concat());

    let text = fs::read_to_string(&acme).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let seq = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["event"]["seq"].as_u64().unwrap()
    };
    let forged = at("forged.ndjson");
    let finds = |text: &str, seq: Option<u64>| {
        fs::write(&forged, text).unwrap();
        let found = site.json(7, &[&verify[..], &[&forged, "--key", key]].concat());
        assert_eq!(found["sound"], false);
        if let Some(seq) = seq {
            assert_eq!(found["finding"]["seq"], seq, "{found}");
        }
        let said = site.ends(7, &[&verify[..], &[&forged, "--key", key]].concat());
        let named = format!("the first bad event is {}", found["finding"]["seq"]);
        assert!(said.stderr.contains(&named), "{}", said.stderr);
        found
    };
    // Altered, cut off, and left out.
    let renamed = lines.iter().find(|it| it.contains("renamed")).unwrap();
    finds(&text.replacen("renamed", "rewrite", 1), Some(seq(renamed)));
    let whole = &lines[..lines.len() - 1];
    let last = seq(whole[whole.len() - 1]);
    finds(&(whole.join("\n") + "\n"), Some(last + 1));
    let made = lines.iter().position(|it| it.contains("app.created"));
    let mut left_out = lines.clone();
    left_out.remove(made.unwrap());
    finds(&(left_out.join("\n") + "\n"), None);
    // An event of another org, and a whole file that another key signed.
    let foreign = fs::read_to_string(&other).unwrap();
    let foreign = foreign.lines().find(|it| it.contains("renamed")).unwrap();
    let place = lines[1..].iter().position(|it| seq(it) > seq(foreign));
    let mut spliced = lines.clone();
    spliced.insert(1 + place.unwrap(), foreign);
    let found = finds(&(spliced.join("\n") + "\n"), Some(seq(foreign)));
    // Their trees differ, as the one org was exported after the other.
    let kind = found["finding"]["kind"].as_str().unwrap();
    assert!(["foreign_org", "not_proven"].contains(&kind), "{found}");
    let stranger = Site::empty();
    let running = up(&stranger);
    let theirs = at("theirs.ndjson");
    let exported = stranger.json(0, &["orgs", "export", "local", "-o", &theirs]);
    // Where the operators of each server look its key up.
    let shown = stranger.json(0, &["events", "verify", "--wait"]);
    let their_key = exported["data"]["key"].as_str().unwrap();
    assert!(shown.to_string().contains(their_key), "{shown}");
    running.end();
    let found = finds(&fs::read_to_string(&theirs).unwrap(), Some(1));
    assert_eq!(found["finding"]["kind"], "bad_signature");
    // The control: it is sound to who trusts that key, among others or alone.
    site.json(0, &[&verify[..], &[&theirs]].concat());
    let both = ["--key", key, "--key", their_key];
    for file in [&acme, &theirs] {
        let seen = site.json(0, &[&verify[..], &[file], &both].concat());
        assert_eq!(seen["key_pinned"], true, "{seen}");
    }
    site.ends(
        2,
        &[&["audit", "verify", "--ledger", &other][..], &both].concat(),
    );
    // What is no export of an org is said to be none.
    fs::write(&forged, "{}\n").unwrap();
    site.ends(2, &[&verify[..], &[&forged]].concat());
}

#[test]
fn nothing_is_kept_of_what_a_server_cannot_prove() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("org.ndjson");
    let words = ["orgs", "export", "acme", "-o", file.to_str().unwrap()];
    for (page, exit) in [
        (
            json!({ "ledger_id": "x", "org_id": "y", "size": 3, "items": [] }),
            1,
        ),
        (json!({ "items": [] }), 1),
    ] {
        let (site, _double) = local(move |_| Reply::Json(200, page.clone()));
        let finished = site.ends(exit, &words);
        assert!(finished.stderr.contains("no export"), "{}", finished.stderr);
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }
}
