//! The corpus without any guard, inside a throwaway: there it works.
//!
//! What cannot work even then stands in `control.txt` with its reason: the
//! throwaway is a user namespace, so what needs the real root stays shut.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

#[test]
fn without_guards_the_attacks_work() {
    let base = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let base = base.path().to_str().unwrap();
    // An outer sandbox: whatever an attack does ends with it.
    let words = "--unshare-user --unshare-pid --unshare-ipc --unshare-net --unshare-uts \
         --unshare-cgroup-try --die-with-parent --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --tmpfs /run \
         --tmpfs /opt --tmpfs /home --dir /run/fluffy-throwaway --setenv HOME /home";
    let output = Command::new("bwrap")
        .args(words.split_whitespace())
        .args(["--bind", base, base, "--"])
        .arg(env!("CARGO_BIN_EXE_fluffy-attack-control"))
        .arg(base)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/control.txt");
    let expected = std::fs::read_to_string(expected).unwrap();
    let excused: BTreeMap<&str, &str> = expected
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .collect();
    let mut wrong = Vec::new();
    for row in report["rows"].as_array().unwrap() {
        let name = row["attack"].as_str().unwrap();
        let cell = &row["cells"][0];
        let works = cell["verdict"] == "escaped";
        if works == excused.contains_key(name) {
            wrong.push(format!("{name}: {cell}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
