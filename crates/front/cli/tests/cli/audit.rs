//! `fluffy audit log`, `tail`, `export` and `verify` on what a user has.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use fluffy_test_kit::wait_for;
use serde_json::Value;

use crate::site::{Site, contents};

/// Far beyond what it takes; only a hang waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The positions of the events a command prints as JSON Lines.
fn positions(text: &str) -> Vec<u64> {
    let read = |line| {
        serde_json::from_str::<Value>(line).unwrap()["seq"]
            .as_u64()
            .unwrap()
    };
    text.lines().map(read).collect()
}

#[test]
fn the_log_shows_the_newest_last() {
    let site = Site::prepared();
    let mut settings = insta::Settings::clone_current();
    for (from, to) in site.context.filters() {
        settings.add_filter(&from, to);
    }
    let log = site.succeeds(&["audit", "log", "--from", "2"]);
    settings.bind(|| {
        insta::assert_snapshot!(log, @"
        SEQ  TIME                 WHO    EVENT            WHAT
          2  [TIME]  agent  policy.decision  allow fs.read /src/lib.rs
          3  [TIME]  agent  policy.decision  deny fs.read /.env
          4  [TIME]  agent  policy.decision  require_review fs.write /Cargo.toml
          5  [TIME]  agent  policy.decision  allow fs.write /src/lib.rs
          6  [TIME]  agent  policy.decision  allow fs.write /src/main.rs
          7  [TIME]  agent  policy.decision  deny net.connect paste.example.com:443
        ");
    });
    let log = |arguments: &[&str]| {
        let words = [["audit", "log", "--json"].as_slice(), arguments].concat();
        positions(&site.succeeds(&words))
    };
    assert_eq!(log(&[]), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(log(&["--last", "2"]), [6, 7]);
    assert_eq!(log(&["--last", "0"]), [0u64; 0]);
    assert_eq!(log(&["--from", "6"]), [6, 7]);
    assert_eq!(log(&["--from", "6", "--last", "1"]), [6, 7]);
    assert_eq!(log(&["--from", "100"]), [0u64; 0]);
    assert_eq!(log(&["--type", "project.initialized"]), [1]);
    assert_eq!(log(&["--type", "policy.*", "--last", "3"]), [5, 6, 7]);
    assert_eq!(log(&["--type", "policy.decision", "--from", "7"]), [7]);
    assert_eq!(log(&["--type", "policy"]), [0u64; 0]);
    let finished = site.ends(0, &["audit", "log", "--type", "nothing"]);
    assert_eq!(
        (finished.stdout.as_str(), finished.stderr.as_str()),
        ("", "No such event in the ledger.\n")
    );
}

#[test]
fn commands_that_read_make_no_ledger() {
    let site = Site::empty();
    for words in [
        ["audit", "log"].as_slice(),
        &["audit", "verify"],
        &["audit", "tail"],
        &["audit", "export"],
    ] {
        let error = site.json_error(4, words);
        assert!(
            error["fix"][0].as_str().unwrap().contains("fluffy init"),
            "{error}"
        );
    }
    assert!(!site.state().exists());
}

#[test]
fn hostile_text_in_the_ledger_stays_text() {
    let site = Site::initialised();
    let words = [
        "policy",
        "decide",
        "fs.read",
        "/a\u{1b}[2Jb\u{202e}",
        "--as",
        "x\u{1b}]0;y\u{7}",
    ];
    let finished = site.run(&words);
    assert_ne!(finished.code, Some(0), "{}", finished.transcript());
    for words in [
        ["audit", "log"].as_slice(),
        &["audit", "tail", "--from", "1", "--count", "1"],
    ] {
        let shown = site.succeeds(words);
        assert!(
            !shown.contains(['\u{1b}', '\u{202e}', '\u{7}']),
            "{shown:?}"
        );
    }
}

#[test]
fn tail_starts_and_stops_where_it_is_told() {
    let site = Site::prepared();
    let words = ["audit", "tail", "--from", "3", "--count", "2", "--json"];
    assert_eq!(positions(&site.succeeds(&words)), [3, 4]);
    let shown = site.succeeds(&["audit", "tail", "--from", "3", "--count", "1"]);
    assert!(
        shown.starts_with("3 ") && shown.ends_with("deny fs.read /.env\n"),
        "{shown}"
    );
    assert_eq!(site.succeeds(&["audit", "tail", "--count", "0"]), "");
}

/// A child that is ended with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tail_follows_what_other_processes_append() {
    let site = Site::prepared();
    let mut command = site.context.command();
    command.args(["audit", "tail", "--from", "7", "--count", "3", "--json"]);
    let mut tail = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let (sender, lines) = mpsc::channel();
    let output = BufReader::new(tail.0.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        for line in output.lines() {
            sender.send(line.unwrap()).unwrap();
        }
    });
    let next = || {
        let line = lines.recv_timeout(PATIENCE).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    assert_eq!(next()["seq"], 7);
    // It waits now; what comes next is written by another process.
    for (seq, resource) in [(8, "/first.rs"), (9, "/second.rs")] {
        assert_eq!(site.decide("fs.read", resource).code, Some(0));
        let event = next();
        assert_eq!(event["seq"], seq);
        assert_eq!(event["payload"]["record"]["request"]["resource"], resource);
    }
    let ended = wait_for("tail has seen enough", PATIENCE, || {
        tail.0.try_wait().unwrap()
    });
    assert_eq!(ended.unwrap().code(), Some(0));
    reader.join().unwrap();
}

#[test]
fn an_export_verifies_on_another_machine() {
    let site = Site::prepared();
    let key = site.key();
    let elsewhere = Site::empty();
    for name in ["export.jsonl", "export.jsonl.zst"] {
        let target = elsewhere.project_file(name);
        let value = site.json(0, &["audit", "export", "-o", target.to_str().unwrap()]);
        assert_eq!(value["events"], 7);
        let words = ["audit", "verify", "--ledger", name, "--key", &key];
        let seen = elsewhere.json(0, &words);
        assert_eq!((&seen["sound"], &seen["events"]), (&true.into(), &7.into()));
        assert_eq!(
            (&seen["key_pinned"], &seen["checkpoints_checked"]),
            (&true.into(), &1.into())
        );
        assert_eq!(seen["hash"], value["hash"]);
    }
    let plain = fs::read(elsewhere.project_file("export.jsonl")).unwrap();
    let compressed = fs::read(elsewhere.project_file("export.jsonl.zst")).unwrap();
    assert!(compressed.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) && compressed.len() < plain.len());
    assert_eq!(site.succeeds(&["audit", "export"]).into_bytes(), plain);
    assert!(!elsewhere.state().exists());
}

#[test]
fn a_changed_export_is_named() {
    let site = Site::prepared();
    let key = site.key();
    let honest = site.succeeds(&["audit", "export"]);
    let lines: Vec<&str> = honest.lines().collect();
    let without = |gone: usize| {
        let kept = lines.iter().enumerate().filter(|(index, _)| *index != gone);
        kept.map(|(_, line)| format!("{line}\n"))
            .collect::<String>()
    };
    for (what, text, seq) in [
        (
            "another decision",
            honest.replacen("\"deny\"", "\"allow\"", 1),
            3,
        ),
        ("a line less", without(4), 4),
        ("no end", lines[..6].join("\n") + "\n", 6),
    ] {
        site.context.write("export.jsonl", &text).unwrap();
        let words = ["audit", "verify", "--ledger", "export.jsonl", "--key", &key];
        let finished = site.ends(7, &words);
        let named = format!("the first bad event is {seq}\n");
        assert!(
            finished.stderr.contains(&named),
            "{what}\n{}",
            finished.stderr
        );
    }
    let other = Site::initialised().key();
    site.context.write("export.jsonl", &honest).unwrap();
    site.ends(
        7,
        &[
            "audit",
            "verify",
            "--ledger",
            "export.jsonl",
            "--key",
            &other,
        ],
    );
    site.ends(
        0,
        &["audit", "verify", "--ledger", "export.jsonl", "--key", &key],
    );
}

#[test]
fn a_database_file_or_folder_of_somebody_else_verifies() {
    let site = Site::prepared();
    let auditor = Site::empty();
    let copied = auditor.project_file("evidence");
    fs::create_dir(&copied).unwrap();
    crate::site::copy_folder(&site.ledger(), &copied);
    let before = contents(&copied);
    for path in ["evidence", "evidence/ledger.db"] {
        assert_eq!(
            auditor.json(0, &["audit", "verify", "--ledger", path])["events"],
            7
        );
    }
    assert_eq!(contents(&copied), before);
    site.ends(4, &["audit", "verify", "--ledger", "missing"]);
    site.context.write("notes.txt", "no ledger\n").unwrap();
    site.ends(2, &["audit", "verify", "--ledger", "notes.txt"]);
    site.ends(4, &["audit", "verify", "--against", "missing.txt"]);
    site.ends(2, &["audit", "verify", "--against", "notes.txt"]);
    site.ends(2, &["audit", "verify", "--key", "nonsense"]);
}

#[test]
fn a_sound_ledger_is_described() {
    let site = Site::prepared();
    let key = site.key();
    let shown = site.succeeds(&["audit", "verify", "--key", &key]);
    assert!(shown.starts_with("The ledger is sound: led_"), "{shown}");
    assert!(
        shown.contains("  events       7 checked, from the very first\n"),
        "{shown}"
    );
    assert!(shown.contains("signed by the pinned key\n"), "{shown}");
    let shown = site.succeeds(&["audit", "verify", "--quick"]);
    assert!(
        shown.contains("0 checked, after the checkpoint of 7 events"),
        "{shown}"
    );
    site.ends(2, &["audit", "verify", "--quick", "--full"]);
}
