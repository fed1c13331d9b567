//! Hunks against texts: a table of slips, and `diff` as the judge.

use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::edit::{FileChangeKind, parse};

#[track_caller]
fn hunks(patch: &str) -> Vec<Hunk> {
    let changes = parse(patch).unwrap();
    let [change] = changes.as_slice() else {
        panic!("{changes:?}");
    };
    match &change.kind {
        FileChangeKind::Update { hunks, .. } => hunks.clone(),
        other => panic!("{other:?}"),
    }
}

fn begin(body: &str) -> Vec<Hunk> {
    hunks(&format!(
        "*** Begin Patch\n*** Update File: f\n{body}\n*** End Patch\n"
    ))
}

fn unified(body: &str) -> Vec<Hunk> {
    hunks(&format!("--- a/f\n+++ b/f\n{body}\n"))
}

const TEXT: &str = "fn a() {\n    one();\n}\n\nfn b() {\n    one();\n}\n";

#[test]
fn a_hunk_lands_where_its_lines_are() {
    let applied = apply(TEXT, &begin("@@\n fn b() {\n-    one();\n+    two();")).unwrap();
    assert_eq!(
        applied.text,
        "fn a() {\n    one();\n}\n\nfn b() {\n    two();\n}\n"
    );
    assert_eq!(
        applied.landed,
        [Landed {
            line: 5,
            tolerance: Tolerance::Exact
        }]
    );
}

#[test]
fn an_anchor_a_number_or_the_end_says_which() {
    let second = "fn a() {\n    one();\n}\n\nfn b() {\n    two();\n}\n";
    for hunks in [
        begin("@@ fn b() {\n-    one();\n+    two();"),
        begin("@@ fn b() {\n fn b() {\n-    one();\n+    two();"),
        begin("@@\n-    one();\n+    two();\n }\n*** End of File"),
        unified("@@ -6 +6 @@\n-    one();\n+    two();"),
        unified("@@ -7,1 +7,1 @@ fn b() {\n-    one();\n+    two();"),
        unified("@@ fn b() { @@\n-    one();\n+    two();"),
    ] {
        assert_eq!(apply(TEXT, &hunks).unwrap().text, second, "{hunks:?}");
    }
    let error = apply(TEXT, &begin("@@\n-    one();\n+    two();")).unwrap_err();
    assert_eq!(
        error,
        ApplyHunksError::Ambiguous {
            hunk: 1,
            lines: vec![2, 6]
        }
    );
    // The middle between two places says nothing.
    let tied = unified("@@ -4,1 +4,1 @@\n-    one();\n+    two();");
    assert!(matches!(
        apply(TEXT, &tied),
        Err(ApplyHunksError::Ambiguous { .. })
    ));
}

#[test]
fn hunks_follow_each_other() {
    let both = begin("@@\n fn a() {\n-    one();\n+    1;\n@@\n-    one();\n+    2;");
    assert_eq!(
        apply(TEXT, &both).unwrap().text,
        "fn a() {\n    1;\n}\n\nfn b() {\n    2;\n}\n"
    );
    let reversed =
        begin("@@\n fn b() {\n-    one();\n+    2;\n@@\n fn a() {\n-    one();\n+    1;");
    assert_eq!(
        apply(TEXT, &reversed),
        Err(ApplyHunksError::OutOfOrder { hunk: 2, line: 1 })
    );
}

#[test]
fn slips_are_forgiven_step_by_step_and_said() {
    for (text, hunk, expected, tolerance) in [
        (
            "x  \ny\n",
            "@@\n x\n-y\n+z",
            "x  \nz\n",
            Tolerance::TrailingSpace,
        ),
        (
            "    x\n    y\n",
            "@@\n x\n-y\n+    z",
            "    x\n    z\n",
            Tolerance::Indentation,
        ),
        (
            "// “a” – b\nold\n",
            "@@\n // \"a\" - b\n-old\n+new",
            "// “a” – b\nnew\n",
            Tolerance::Typography,
        ),
    ] {
        let applied = apply(text, &begin(hunk)).unwrap();
        assert_eq!(applied.text, expected);
        assert_eq!(applied.landed[0].tolerance, tolerance);
    }
    // What stays is taken from the file, never from the patch.
    let applied = apply("\ta \nb\n", &begin("@@\n   a\n-b\n+c")).unwrap();
    assert_eq!(applied.text, "\ta \nc\n");
}

#[test]
fn endings_stay_as_they_are() {
    for (text, hunk, expected) in [
        ("a\r\nb\r\n", "@@\n a\n-b\n+c\n+d", "a\r\nc\r\nd\r\n"),
        ("a\nb", "@@\n a\n-b\n+c", "a\nc"),
        ("a\nb", "@@\n b\n+c", "a\nb\nc"),
        ("a\r\nb", "@@\n b\n+c", "a\r\nb\r\nc"),
        ("a\nb\n", "@@\n a\n-b", "a\n"),
        ("a\n", "@@\n-a", ""),
        ("", "@@\n+a", "a\n"),
        ("a\n", "@@\n+b\n*** End of File", "a\nb\n"),
        ("a\nb\n", "@@ a\n+x", "a\nx\nb\n"),
        ("a\nb\n", "@@\n-a\n+x\n b\n\n", "x\nb\n"),
    ] {
        assert_eq!(
            apply(text, &begin(hunk)).unwrap().text,
            expected,
            "{text:?} {hunk:?}"
        );
    }
}

#[test]
fn what_does_not_fit_says_what_comes_nearest() {
    let error = apply(TEXT, &begin("@@\n fn b() {\n-    three();\n+    two();")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "hunk 1: its lines are not in the file; nearest is line 5 (1 of 2 lines alike): `fn b() {`"
    );
    let error = apply(TEXT, &begin("@@ fn c() {\n-    one();\n+    two();")).unwrap_err();
    assert!(matches!(error, ApplyHunksError::NoAnchor { hunk: 1, .. }));
    let error = apply(TEXT, &unified("@@ -99,0 +100,1 @@\n+x")).unwrap_err();
    assert!(matches!(error, ApplyHunksError::NotFound { .. }));
}

#[test]
fn what_would_take_forever_is_refused() {
    let text = "x\n".repeat(100_000);
    let many = vec![begin("@@\n-x\n+y").remove(0); 1_000];
    assert!(matches!(
        apply(&text, &many),
        Err(ApplyHunksError::TooMuch {
            hunks: 1_000,
            lines: 100_000
        })
    ));
}

/// What `diff -u` says about two texts; nothing if they are equal.
fn diff(before: &str, after: &str, context: usize) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("old"), before).unwrap();
    std::fs::write(folder.path().join("new"), after).unwrap();
    let output = Command::new("diff")
        .args(["--text", "--label", "a/f", "--label", "b/f", "-U"])
        .arg(context.to_string())
        .args(["old", "new"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    match output.status.code() {
        Some(0) => None,
        Some(1) => Some(String::from_utf8(output.stdout).unwrap()),
        _ => panic!("{output:?}"),
    }
}

/// Texts of few different lines, so that much of them is alike.
fn text() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        4 => "[ab-]{0,2}\n",
        1 => "(-- x|[+][+] y|@@|[*]{3} z| )\n",
        1 => "[ab]?\r\n",
    ];
    (
        proptest::collection::vec(line, 0..12),
        prop_oneof![3 => Just(""), 1 => Just("end"), 1 => Just("a\r")],
    )
        .prop_map(|(lines, end)| lines.concat() + end)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_diff_applied_to_the_old_text_gives_the_new(
        before in text(), after in text(), context in 1usize..4,
    ) {
        let Some(patch) = diff(&before, &after, context) else {
            return Ok(());
        };
        prop_assert_eq!(apply(&before, &hunks(&patch)).unwrap().text, after, "{}", patch);
    }

    #[test]
    fn without_numbers_it_gives_the_new_or_is_refused(
        before in proptest::collection::vec("[abc]{1,2}\n", 1..12),
        after in proptest::collection::vec("[abc]{1,2}\n", 1..12),
    ) {
        let (before, after) = (before.concat(), after.concat());
        let Some(patch) = diff(&before, &after, 2) else {
            return Ok(());
        };
        let mut hunks = hunks(&patch);
        for hunk in &mut hunks {
            hunk.line = None;
        }
        match apply(&before, &hunks) {
            Ok(applied) => prop_assert_eq!(applied.text, after),
            Err(ApplyHunksError::Ambiguous { .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn any_text_is_read_as_a_patch_or_refused(
        text in "((--- a|[+]{3} b|@@ -1 [+]1 @@|[*]{3} (Begin Patch|End Patch|Update File: f|End of File)|[ +-]x|)\n){0,12}",
        file in text(),
    ) {
        for change in parse(&text).unwrap_or_default() {
            if let FileChangeKind::Update { hunks, .. } = change.kind {
                let _ = apply(&file, &hunks);
            }
        }
    }
}
