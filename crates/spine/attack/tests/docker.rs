//! A few of the corpus against `docker run`: proof that they are played there.
//!
//! What Docker is known to let through and to hold back; the whole table is in
//! `docs/isolation.md`. Nothing of it may be left in the engine.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::path::Path;
use std::process::Command;

use fluffy_attack::{DockerRun, find, run_all};
use fluffy_test_kit::{EngineKind, TestEngine, record_skip};

/// By the container's own root, by its capabilities, by the project in it, and
/// by the terminal it is given.
const KNOWN: &[(&str, &str)] = &[
    ("dot-dot", "stopped"),
    ("write-system", "stopped"),
    ("capabilities", "escaped"),
    ("home-secrets", "stopped"),
    ("terminal-injection", "stopped"),
    ("project-socket", "escaped"),
    ("git-hook", "escaped"),
    ("proxy-plain", "not-applicable"),
];

#[test]
fn docker_run_stops_what_it_is_known_to_stop() {
    let socket = match EngineKind::Docker.for_tests().unwrap() {
        TestEngine::At(socket) => socket,
        TestEngine::Impossible(reason) => return record_skip("attacks on docker run", &reason),
    };
    let address = format!("unix://{}", socket.display());
    let worker = env!("CARGO_BIN_EXE_fluffy-attack-worker").to_owned();
    let subject = DockerRun::start(&[worker], Some(&address)).unwrap();
    let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let attacks: Vec<_> = KNOWN.iter().map(|(name, _)| find(name).unwrap()).collect();
    let report = run_all(&attacks, &[&subject], base, |_, _, _| {});
    let found: Vec<(&str, &str)> = report
        .rows
        .iter()
        .map(|row| (row.attack, row.cells.first().unwrap().verdict.name()))
        .collect();
    assert_eq!(found, KNOWN, "{report:#?}");
    let version = &report.subjects.first().unwrap().version;
    assert!(version.starts_with("docker "), "{version}");
    drop(subject);
    let mark = std::process::id();
    for list in [
        vec![
            "ps".to_owned(),
            format!("--filter=label=fluffy.selftest={mark}"),
        ],
        vec![
            "images".to_owned(),
            format!("localhost/fluffy-selftest:{mark}"),
        ],
    ] {
        let listed = Command::new("docker")
            .args(["--host", &address])
            .args(&list)
            .args(["--all", "--quiet"])
            .output()
            .unwrap();
        assert!(listed.status.success(), "{listed:?}");
        assert!(listed.stdout.is_empty(), "{list:?}: {listed:?}");
    }
}
