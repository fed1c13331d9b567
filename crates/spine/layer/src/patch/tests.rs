//! Patches read, applied and refused.

use proptest::prelude::*;

use super::*;
use crate::difference::quote;
use crate::text::{Effort, unified};

fn patch_of(name: &str, before: &str, after: &str) -> String {
    let (old, new) = (quote(b"a/", name.as_bytes()), quote(b"b/", name.as_bytes()));
    format!(
        "--- {old}\n+++ {new}\n{}",
        unified(before, after, &mut Effort::new()).text
    )
}

fn only(text: &str) -> FilePatch {
    let patch = Patch::parse(text).unwrap();
    assert_eq!(patch.files().len(), 1);
    patch.files()[0].clone()
}

#[test]
fn a_patch_of_git_is_read_whole() {
    let text = "From: someone\n\ndiff --git a/a.txt b/a.txt\nindex 1..2 100644\n--- a/a.txt\n\
                +++ b/a.txt\n@@ -1,2 +1,2 @@ fn x\n-one\n+eins\n two\n\
                diff --git a/new b/new\nnew file mode 100755\nindex 0..1\n--- /dev/null\n+++ b/new\n\
                @@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n\
                diff --git a/old b/old\ndeleted file mode 100644\n--- a/old\n+++ /dev/null\n\
                @@ -1 +0,0 @@\n-gone\n\
                diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n\
                diff --git a/empty b/empty\nnew file mode 100644\nindex 0..0\n";
    let patch = Patch::parse(text).unwrap();
    let shown: Vec<_> = patch
        .files()
        .iter()
        .map(|file| (file.path.to_string(), file.effect, file.executable))
        .collect();
    assert_eq!(
        shown,
        [
            ("a.txt".to_owned(), PatchEffect::Edit, None),
            ("new".to_owned(), PatchEffect::Create, Some(true)),
            ("old".to_owned(), PatchEffect::Delete, None),
            ("run.sh".to_owned(), PatchEffect::Edit, Some(true)),
            ("empty".to_owned(), PatchEffect::Create, Some(false)),
        ]
    );
    assert_eq!(patch.files()[0].apply("one\ntwo\n").unwrap(), "eins\ntwo\n");
    assert_eq!(patch.files()[1].apply("").unwrap(), "x");
    assert_eq!(patch.files()[2].apply("gone\n").unwrap(), "");
}

#[test]
fn a_hunk_that_does_not_match_is_named() {
    let file = only("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+A\n@@ -3 +3 @@\n-c\n+C\n");
    assert_eq!(file.apply("a\nb\nc\n").unwrap(), "A\nb\nC\n");
    let error = file.apply("a\nb\nx\nc\n").unwrap_err();
    assert_eq!((error.hunk, error.line, error.elsewhere), (2, 3, Some(4)));
    assert_eq!(
        error.to_string(),
        "hunk 2 of `f` does not match at line 3; it would match at line 4"
    );
    assert_eq!(file.apply("").unwrap_err().hunk, 1);
    assert_eq!(file.apply("a\nb\nc").unwrap_err().hunk, 2);
}

#[test]
fn what_is_not_exact_is_refused() {
    for text in [
        "",
        "just words\n",
        "--- a/f\n",
        "--- a/f\n+++ b/f\n",
        "--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n",
        "--- a/../f\n+++ b/../f\n@@ -1 +1 @@\n-a\n+b\n",
        "--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n",
        "--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n",
        "--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n-a\n+b\n",
        "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n-b\n+b\n",
        "--- a/f\n+++ b/f\n@@ -x +1 @@\n",
        "--- a/f\n+++ b/f\n@@ -+1 +1 @@\n-a\n+b\n",
        "--- a/f\n+++ b/f\n@@ -99999999999999999999 +1 @@\n-a\n+b\n",
        "@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/f b/f\nGIT binary patch\n",
        "diff --git a/f b/g\nrename from f\nrename to g\n",
        "diff --git a/f b/f\nnew file mode 120000\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n",
        "--- \"a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
        "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
    ] {
        assert!(Patch::parse(text).is_err(), "{text}");
    }
}

#[test]
fn odd_names_are_read_as_git_writes_them() {
    let file = only(
        "--- \"a/gr\\303\\274n \\\"x\\\"\\n\"\n+++ \"b/gr\\303\\274n \\\"x\\\"\\n\"\n@@ -1 +1 @@\n-a\n+b\n",
    );
    assert_eq!(file.path.as_bytes(), "grün \"x\"\n".as_bytes());
    let file = only("--- f\t2026-01-01\n+++ f\t2026-01-02\n@@ -1 +1 @@\n-a\n+b\n");
    assert_eq!(file.path.as_bytes(), b"f");
}

fn text() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("a"),
        Just("b"),
        Just("-- c"),
        Just("++ d"),
        Just(""),
        Just("\\")
    ];
    (proptest::collection::vec(line, 0..12), any::<bool>()).prop_map(|(lines, ended)| {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        match text.strip_suffix('\n') {
            Some(cut) if !ended && !cut.is_empty() && !cut.ends_with('\n') => cut.to_owned(),
            _ => text,
        }
    })
}

proptest! {
    #[test]
    fn what_a_diff_says_is_what_its_patch_does(before in text(), after in text()) {
        prop_assume!(before != after);
        let file = only(&patch_of("dir/a name", &before, &after));
        prop_assert_eq!(file.apply(&before).unwrap(), after);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(--- a/f\n|\\+\\+\\+ b/f\n|@@ -1(,[0-3])? \\+1(,[0-3])? @@\n|[ +-]x\n|diff --git a/f b/f\n|new mode 100755\n|\\\\ No\n|\\PC{0,5}\n?){0,14}") {
        if let Ok(patch) = Patch::parse(&text) {
            for file in patch.files() {
                let _ = file.apply("x\nx\nx\n");
            }
        }
    }
}
