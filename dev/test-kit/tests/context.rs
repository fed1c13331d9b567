//! A test context shows a program a clean home, and makes snapshots stable.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use fluffy_test_kit::TestContext;

#[test]
fn a_program_sees_nothing_of_the_one_who_runs_the_tests() {
    let mut context = TestContext::new("/usr/bin/env").unwrap();
    context.set("FLUFFY_EXTRA", "yes");
    let finished = context.run(&[]).unwrap();
    let mut names: Vec<&str> = finished
        .stdout
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name)
        .collect();
    names.sort_unstable();
    let wanted = [
        "COLUMNS",
        "FLUFFY_EXTRA",
        "HOME",
        "LANG",
        "NO_COLOR",
        "PATH",
        "TMPDIR",
        "TZ",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_RUNTIME_DIR",
        "XDG_STATE_HOME",
    ];
    assert_eq!(names, wanted);
    let home = format!("HOME={}\n", context.home().display());
    assert!(finished.stdout.contains(&home), "{}", finished.stdout);
}

#[test]
fn a_transcript_is_the_same_in_every_run() {
    let context = TestContext::new("/bin/sh").unwrap();
    context.write("sub/note.txt", "waffle\n").unwrap();
    let script = r#"
        cat sub/note.txt
        echo "in $PWD of $HOME"
        echo "ledger led_01ARZ3NDEKTSV4RRFFQ69G5FAV at 2026-11-15T08:05:08.123456Z"
        echo "hash sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
        echo "took 12.5ms for 3 events" >&2
        exit 7
    "#;
    let finished = context.run(&["-c", script]).unwrap();
    let mut settings = insta::Settings::clone_current();
    for (from, to) in context.filters() {
        settings.add_filter(&from, to);
    }
    settings.bind(|| {
        insta::assert_snapshot!(finished.transcript(), @"
        exit: 7
        --- stdout
        waffle
        in [PROJECT] of [HOME]
        ledger led_[ULID] at [TIME]
        hash sha256:[HASH]
        --- stderr
        took [DURATION] for 3 events
        ");
    });
}
