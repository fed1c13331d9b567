//! The corpus against bare `bwrap`: proof that the attacks are live.
//!
//! What is expected of it stands in `bubblewrap.txt`, one line per attack.
//! An attack that bare `bwrap` stops is shown to work by its control instead.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::collections::BTreeMap;
use std::path::Path;

use fluffy_attack::{CommandSubject, all, run_all};

#[test]
fn bare_bubblewrap_stops_what_it_is_known_to_stop() {
    let worker = env!("CARGO_BIN_EXE_fluffy-attack-worker").to_owned();
    let subject = CommandSubject::bubblewrap(&[worker]).unwrap();
    let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let attacks: Vec<_> = all().collect();
    let report = run_all(&attacks, &[&subject], base, |attack, subject, verdict| {
        let (name, because) = (subject.name(), verdict.because());
        eprintln!("{name} {:22} {:14} {because}", attack.name, verdict.name());
    });
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bubblewrap.txt");
    let expected = std::fs::read_to_string(expected).unwrap();
    let expected: BTreeMap<&str, &str> = expected
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once(' ').unwrap())
        .collect();
    let root = rustix::process::geteuid().is_root();
    let mut wrong = Vec::new();
    for row in &report.rows {
        let verdict = &row.cells.first().unwrap().verdict;
        let known = expected
            .get(row.attack)
            .map_or("missing", |known| known.trim());
        let right = match known {
            "by-root" => !root || verdict.name() == "escaped",
            "varies" => true,
            known => verdict.name() == known,
        };
        // A trial that fails proves nothing, whatever was expected.
        if !right || verdict.name() == "broken" {
            wrong.push(format!("{}: {known}, but {verdict:?}", row.attack));
        }
    }
    let version = report
        .subjects
        .first()
        .map_or("", |subject| subject.version.as_str());
    assert!(wrong.is_empty(), "{version}:\n{}", wrong.join("\n"));
}
