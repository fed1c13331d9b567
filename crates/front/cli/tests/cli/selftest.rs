//! `fluffy sandbox selftest`: the corpus as a user runs it.
//!
//! A few families here, to see that attacks are played and judged; all of them
//! are tests of the attack crate, with their controls.

use serde_json::Value;

use crate::site::Site;

#[test]
fn attacks_are_played_and_none_escapes() {
    let site = Site::empty();
    let finished = site.ends(
        0,
        &[
            "sandbox", "selftest", "--tier", "process", "--only", "paths", "--json",
        ],
    );
    let value: Value = serde_json::from_str(&finished.stdout).unwrap();
    let tally = &value["tallies"]["process"];
    assert_eq!(tally["escaped"], 0, "{value:#}");
    assert_eq!(tally["broken"], 0, "{value:#}");
    assert!(tally["stopped"].as_u64().unwrap() >= 10, "{value:#}");
    // Nothing of it is in the person's own ledger or layers.
    site.ends(4, &["audit", "log"]);
    // And what it made for itself is in nobody's way.
    site.ends(0, &["sandbox", "run", "--", "true"]);
}

/// Bubblewrap limits no number of files; two launchers start at a time.
#[test]
fn another_engine_stops_the_same() {
    let site = Site::empty();
    let words = [
        "sandbox", "selftest", "--tier", "process", "--engine", "bwrap",
    ];
    let only = ["--only", "many-files", "--only", "sibling"];
    let finished = site.ends(0, &[&words[..], &only].concat());
    let sum = "2 stopped, 0 escaped, 0 broken, 0 not applicable";
    assert!(finished.stdout.contains(sum), "{}", finished.stdout);
}

#[test]
fn an_attack_that_works_is_told_of() {
    let site = Site::empty();
    // Landlock does not hold changes of modes back, and nothing else is left.
    let words = [
        "sandbox", "selftest", "--tier", "process", "--engine", "reduced",
    ];
    let finished = site.ends(1, &[&words[..], &["--only", "write-beside"]].concat());
    let told = "process/reduced: write-beside ESCAPED: it changed ";
    assert!(finished.stdout.contains(told), "{}", finished.stdout);
    let version = env!("CARGO_PKG_VERSION");
    let sum =
        format!("process/reduced ({version}): 0 stopped, 1 escaped, 0 broken, 0 not applicable");
    assert!(finished.stdout.contains(&sum), "{}", finished.stdout);
}

#[test]
fn a_name_that_is_none_is_not_found() {
    let site = Site::empty();
    site.ends(4, &["sandbox", "selftest", "--only", "nothing"]);
    site.ends(2, &["sandbox", "selftest", "--tier", "wasm"]);
}
