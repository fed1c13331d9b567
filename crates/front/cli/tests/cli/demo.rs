//! `fluffy demo`: plays to the end without any set-up and leaves nothing.

use std::fs;

use crate::site::Site;

#[test]
fn all_six_acts_are_played_and_nothing_is_left() {
    let site = Site::empty();
    let finished = site.ends(0, &["demo"]);
    assert_eq!(finished.stderr, "");
    let stdout = &finished.stdout;
    for act in 1..=6 {
        assert!(
            stdout.contains(&format!("\n{act}. ")),
            "act {act}\n{stdout}"
        );
    }
    for shown in [
        "denied        fs.read      /.env",
        "needs review  fs.write     /Cargo.toml",
        "with the token: allowed",
        "with the same token again: needs review",
        "BREAKING",
        "Generated files are not written by hand",
        "  untouched: sound",
        "  one word changed: BROKEN at event 4",
        "  the end cut off: BROKEN at event",
    ] {
        assert!(stdout.contains(shown), "{shown}\n{stdout}");
    }
    assert_nothing_left(&site);
}

#[test]
fn as_json_it_is_one_value() {
    let site = Site::empty();
    let value = site.json(0, &["demo"]);
    assert_eq!(
        (&value["demo"], &value["acts"]),
        (&"done".into(), &6.into())
    );
    assert_nothing_left(&site);
}

#[test]
fn a_temporary_folder_that_cannot_be_used_is_said() {
    let mut site = Site::empty();
    site.context.set("TMPDIR", "/nonexistent");
    let error = site.json_error(1, &["demo"]);
    assert!(
        error["fix"][0].as_str().unwrap().contains("TMPDIR"),
        "{error}"
    );
}

fn assert_nothing_left(site: &Site) {
    let root = site.context.project();
    for folder in [
        root.parent().unwrap().join("tmp"),
        site.context.home(),
        root,
    ] {
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(Result::unwrap).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
