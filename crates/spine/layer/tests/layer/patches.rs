//! Patches submitted by tools, and the diff as a patch.

use std::process::Command;

use fluffy_layer::{HeldLayer, Patch, SubmitPatchError};
use fluffy_policy::Permit;

use crate::support::{Stage, kinds, merge, permit};

const PROJECT: &str = "mkdir -p src/deep; printf 'a\\nb\\nc\\n' >src/x; echo gone >src/deep/y; \
                       chmod 755 src/x";

const PATCH: &str = "--- a/src/x\n+++ b/src/x\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n\
                     --- a/src/deep/y\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n\
                     --- /dev/null\n+++ b/new/dir/z\n@@ -0,0 +1 @@\n+fresh\n";

fn permits(patch: &Patch) -> Vec<Permit> {
    let needs = patch.needs();
    needs
        .iter()
        .map(|need| permit(need.action, Some(&need.resource)))
        .collect()
}

fn submit(held: &HeldLayer, text: &str) -> Result<(), SubmitPatchError> {
    let patch = Patch::parse(text).unwrap();
    held.submit_patch(permits(&patch), &patch)
}

#[test]
fn a_patch_lands_in_the_layer_and_not_in_the_project() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let before = stage.files();
        let held = stage.create(kind);
        submit(&held, PATCH).unwrap();
        assert_eq!(stage.files(), before);
        // A sandbox sees it, and a second patch sees the first.
        stage.in_layer(
            &held,
            "grep -q B src/x; test -x src/x; test ! -e src/deep/y; grep -q fresh new/dir/z; rm -r new",
        );
        submit(&held, "--- a/src/x\n+++ b/src/x\n@@ -2 +2 @@\n-B\n+BB\n").unwrap();
        submit(&held, "--- /dev/null\n+++ b/new/again\n@@ -0,0 +1 @@\n+x\n").unwrap();
        submit(
            &held,
            "--- /dev/null\n+++ b/src/deep/y\n@@ -0,0 +1 @@\n+back\n",
        )
        .unwrap();
        stage.in_layer(&held, "test ! -e new/dir; rm -r src/deep");
        submit(
            &held,
            "--- /dev/null\n+++ b/src/deep/other\n@@ -0,0 +1 @@\n+o\n",
        )
        .unwrap();
        stage.in_layer(&held, "test ! -e src/deep/y; test -f src/deep/other");
        merge(held);
        let files = stage.files();
        assert_eq!(files["src/x"], "755 a\\nBB\\nc\\n", "{kind:?}");
        assert!(!files.contains_key("src/deep/y"));
        assert_eq!(files["src/deep/other"], "644 o\\n");
    }
}

#[test]
fn a_patch_that_does_not_fit_changes_nothing() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let held = stage.create(kind);
        let wrong = PATCH.replace("-gone", "-went");
        let error = submit(&held, &wrong).unwrap_err();
        assert_eq!(
            error.to_string(),
            "hunk 1 of `src/deep/y` does not match at line 1"
        );
        let exists = "--- /dev/null\n+++ b/src/x\n@@ -0,0 +1 @@\n+x\n";
        assert!(matches!(
            submit(&held, exists),
            Err(SubmitPatchError::Exists { .. })
        ));
        let missing = "--- a/no\n+++ b/no\n@@ -1 +1 @@\n-a\n+b\n";
        assert!(matches!(
            submit(&held, missing),
            Err(SubmitPatchError::NoText { .. })
        ));
        let partly = "--- a/src/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n";
        assert!(matches!(
            submit(&held, partly),
            Err(SubmitPatchError::NotAllDeleted { .. })
        ));
        let below_file = "--- /dev/null\n+++ b/src/x/y\n@@ -0,0 +1 @@\n+x\n";
        assert!(submit(&held, below_file).is_err());
        stage.in_layer(&held, "ln -s /etc out");
        let through_link = "--- /dev/null\n+++ b/out/y\n@@ -0,0 +1 @@\n+x\n";
        assert!(submit(&held, through_link).is_err());
        assert!(!std::path::Path::new("/etc/y").exists());
        let list = held.changes().unwrap().list;
        assert_eq!(list.len(), 1, "{kind:?}: only the link: {list:?}");
    }
}

#[test]
fn every_file_needs_its_own_permit() {
    let stage = Stage::new(PROJECT);
    let held = stage.create(fluffy_layer::LayerKind::Copy);
    let patch = Patch::parse(PATCH).unwrap();
    let needs: Vec<String> = patch
        .needs()
        .iter()
        .map(|need| format!("{} {}", need.action, need.resource))
        .collect();
    assert_eq!(
        needs,
        [
            "fs.edit /src/x",
            "fs.remove /src/deep/y",
            "fs.write /new/dir/z"
        ]
    );
    let mut few = permits(&patch);
    few.pop();
    assert!(matches!(
        held.submit_patch(few, &patch),
        Err(SubmitPatchError::NotPermitted { .. })
    ));
    let mut many = permits(&patch);
    many.push(permit("fs.write", Some("/elsewhere")));
    assert!(matches!(
        held.submit_patch(many, &patch),
        Err(SubmitPatchError::Permit(_))
    ));
    assert!(held.changes().unwrap().list.is_empty());
}

#[test]
fn the_diff_of_a_layer_is_what_git_applies() {
    let script = "printf 'a\\nB\\nc' >src/x; rm src/deep/y; mkdir d; echo n >'d/sp ace'; \
                  echo t >'d/q\"uote'; ln -s x src/l; chmod 644 src/x; printf '' >d/empty";
    for kind in kinds() {
        let (stage, other) = (Stage::new(PROJECT), Stage::new(PROJECT));
        let held = stage.create(kind);
        stage.in_layer(&held, script);
        let diff = held.difference().unwrap();
        assert_eq!(diff.summary.to_string(), "6 files changed, +4 −3 lines");
        let file = other.home().join("diff");
        std::fs::write(&file, diff.to_string()).unwrap();
        let status = Command::new("git")
            .arg("apply")
            .arg(&file)
            .current_dir(other.project())
            .env("GIT_CEILING_DIRECTORIES", other.home())
            .status();
        assert!(status.unwrap().success(), "{diff}");
        merge(held);
        let files_only = |stage: &Stage| {
            let mut files = stage.files();
            files.retain(|_, shown| !shown.starts_with("directory"));
            files
        };
        assert_eq!(files_only(&stage), files_only(&other), "{kind:?}");
    }
}
