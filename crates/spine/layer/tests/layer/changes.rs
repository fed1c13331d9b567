//! What a layer is seen to change, as the real kernel writes it down.

use fluffy_layer::{ChangeKind, LayerKind, NodeKind};

use crate::support::{Stage, kinds};

const PROJECT: &str = "mkdir -p src/deep docs empty; echo one >src/a; echo two >src/b; \
                       echo three >src/deep/c; echo doc >docs/d; ln -s a src/link; chmod 755 src/b";

fn changes(kind: LayerKind, script: &str) -> Vec<(String, ChangeKind)> {
    let stage = Stage::new(PROJECT);
    let held = stage.create(kind);
    stage.in_layer(&held, script);
    let changes = held.changes().unwrap();
    assert!(changes.problems.is_empty(), "{:?}", changes.problems);
    let list = changes.list.into_iter();
    list.map(|change| (change.path.to_string(), change.kind))
        .collect()
}

#[track_caller]
fn shows(script: &str, expected: &[(&str, ChangeKind)]) {
    let expected: Vec<(String, ChangeKind)> = expected
        .iter()
        .map(|(path, kind)| ((*path).to_owned(), *kind))
        .collect();
    for kind in kinds() {
        assert_eq!(changes(kind, script), expected, "{kind:?}: {script}");
    }
}

#[test]
fn nothing_written_is_no_change() {
    shows("cat src/a >/dev/null", &[]);
    shows("touch src/a; echo two >src/b; echo x >new; rm new", &[]);
}

#[test]
fn every_kind_of_change_is_seen() {
    use ChangeKind::{Added, Deleted, Mode, Modified, Relinked, Retyped};

    shows("echo more >>src/a", &[("src/a", Modified)]);
    shows("echo n >src/new", &[("src/new", Added)]);
    shows("rm src/a", &[("src/a", Deleted)]);
    shows("chmod 755 src/a", &[("src/a", Mode)]);
    shows("ln -sf b src/link", &[("src/link", Relinked)]);
    shows("rm src/a; mkdir src/a", &[("src/a", Retyped)]);
    shows(
        "mv src/a src/moved",
        &[("src/a", Deleted), ("src/moved", Added)],
    );
    shows("mkdir -p x/y", &[("x", Added), ("x/y", Added)]);
    shows("chmod 700 docs", &[("docs", Mode)]);
    shows("rmdir empty", &[("empty", Deleted)]);
}

#[test]
fn a_removed_directory_hides_all_that_was_in_it() {
    use ChangeKind::{Added, Deleted, Modified, Retyped};

    shows(
        "rm -r src/deep",
        &[("src/deep", Deleted), ("src/deep/c", Deleted)],
    );
    // The kernel marks the new directory as opaque.
    shows(
        "rm -r src; mkdir src; echo uno >src/a",
        &[
            ("src/a", Modified),
            ("src/b", Deleted),
            ("src/deep", Deleted),
            ("src/deep/c", Deleted),
            ("src/link", Deleted),
        ],
    );
    // And what is made below it is opaque too, without a mark of its own.
    shows(
        "rm -r src; mkdir -p src/deep; echo e >src/deep/e",
        &[
            ("src/a", Deleted),
            ("src/b", Deleted),
            ("src/deep/c", Deleted),
            ("src/deep/e", Added),
            ("src/link", Deleted),
        ],
    );
    shows(
        "rm -r docs; echo file >docs",
        &[("docs", Retyped), ("docs/d", Deleted)],
    );
}

#[test]
fn what_a_person_changes_meanwhile_is_not_the_layers_doing() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let held = stage.create(kind);
        stage.in_layer(&held, "echo layer >>src/a; echo n >src/n");
        stage.in_project("echo person >src/a; echo person >src/b; rm docs/d; echo p >src/p");
        let changes = held.changes().unwrap().list;
        let shown: Vec<String> = changes
            .iter()
            .map(|change| change.path.to_string())
            .collect();
        assert_eq!(shown, ["src/a", "src/n"], "{kind:?}");
        let diff = held.difference().unwrap().to_string();
        assert!(diff.contains(" one\n+layer\n"), "{diff}");
        assert!(!diff.contains("person"), "{diff}");
    }
}

#[test]
fn odd_names_are_carried_and_shown_escaped() {
    for kind in kinds() {
        let stage = Stage::new("true");
        let held = stage.create(kind);
        stage.in_layer(
            &held,
            "echo x >\"$(printf 'a\\nb\\033[2J')\"; echo x >\"$(printf '\\377')\"; echo x >'sp ace'",
        );
        let list = held.changes().unwrap().list;
        let shown: Vec<String> = list.iter().map(|change| change.path.to_string()).collect();
        assert_eq!(shown, ["a\\x0ab\\x1b[2J", "sp ace", "\\xff"], "{kind:?}");
        let diff = held.difference().unwrap().to_string();
        assert!(diff.contains("+++ \"b/a\\nb\\033[2J\"\n"), "{diff}");
        assert!(!diff.contains('\u{1b}'));
    }
}

#[test]
fn special_files_are_seen_and_never_opened() {
    for kind in kinds() {
        let stage = Stage::new("true");
        let held = stage.create(kind);
        stage.in_layer(
            &held,
            "mkfifo pipe; ln -s /etc/passwd out; truncate -s 10G sparse",
        );
        let list = held.changes().unwrap().list;
        let shown: Vec<_> = list
            .iter()
            .map(|change| (change.path.to_string(), change.after.unwrap().kind))
            .collect();
        assert_eq!(
            shown,
            [
                ("out".to_owned(), NodeKind::Symlink),
                ("pipe".to_owned(), NodeKind::Fifo),
                ("sparse".to_owned(), NodeKind::File),
            ],
            "{kind:?}"
        );
        let diff = held.difference().unwrap();
        assert_eq!(diff.summary.files, 3);
        assert!(
            diff.summary.weight > 100_000_000,
            "a sparse file is not free"
        );
    }
}

#[test]
fn ten_thousand_files_are_compared() {
    for kind in kinds() {
        let stage = Stage::new(
            "i=0; while [ $i -lt 100 ]; do mkdir d$i; i=$((i+1)); done; \
             seq 1 10000 | while read n; do echo \"line $n\" >d$((n%100))/f$n; done",
        );
        let held = stage.create(kind);
        stage.in_layer(&held, "for f in d*/*; do echo more >>$f; done");
        let started = std::time::Instant::now();
        let diff = held.difference().unwrap();
        let took = started.elapsed();
        assert_eq!((diff.summary.files, diff.summary.added), (10_000, 10_000));
        assert_eq!(diff.summary.removed, 0);
        assert!(took < std::time::Duration::from_secs(60), "{took:?}");
    }
}
