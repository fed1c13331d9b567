//! `fluffy layer …`: what sandboxes wrote, looked at, merged, dropped.

use std::time::Duration;

use fluffy_test_kit::wait_for;
use serde_json::Value;

use crate::site::Site;

const PATIENCE: Duration = Duration::from_secs(60);

/// A project with a file, and a layer that changes it and adds another.
fn with_layer() -> (Site, String) {
    let site = Site::empty();
    site.context.write("a.txt", "1\n2\n3\n").unwrap();
    let script = "sed -i s/2/two/ a.txt; echo new > b.txt";
    site.ends(0, &["sandbox", "run", "--", "sh", "-c", script]);
    let id = site.layers(&[])[0]["id"].as_str().unwrap().to_owned();
    (site, id)
}

fn bind(site: &Site, check: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    for (pattern, replacement) in site.context.filters() {
        settings.add_filter(&pattern, replacement);
    }
    settings.bind(check);
}

fn read(site: &Site, path: &str) -> String {
    std::fs::read_to_string(site.context.project().join(path)).unwrap()
}

#[test]
fn a_layer_is_listed_shown_and_merged_by_the_beginning_of_its_id() {
    let (site, id) = with_layer();
    let list = site.succeeds(&["layer", "list"]);
    bind(&site, || {
        insta::assert_snapshot!(list, @r"
        LAYER                           STATE  CHANGES          CREATED
        lay_[ULID]  open   2 files (+2 −1)  [TIME]
        ");
    });
    let short = &id[..16];
    let diff = site.succeeds(&["layer", "diff", short]);
    insta::assert_snapshot!(diff, @r"
    diff --git a/a.txt b/a.txt
    --- a/a.txt
    +++ b/a.txt
    @@ -1,3 +1,3 @@
     1
    -2
    +two
     3
    diff --git a/b.txt b/b.txt
    new file mode 100644
    --- /dev/null
    +++ b/b.txt
    @@ -0,0 +1 @@
    +new
    ");
    assert_eq!(
        site.succeeds(&["layer", "merge", short]),
        "Merged 2 changes. The layer is merged and gone.\n"
    );
    assert_eq!(read(&site, "a.txt"), "1\ntwo\n3\n");
    assert_eq!(read(&site, "b.txt"), "new\n");
    assert_eq!(site.layers(&[]), Vec::<Value>::new());
    let all = site.succeeds(&["layer", "list", "--all"]);
    assert!(all.contains("merged"), "{all}");
    let again = site.ends(4, &["layer", "merge", short]);
    assert!(
        again.stderr.contains("never used again"),
        "{}",
        again.stderr
    );
}

#[test]
fn what_both_changed_is_shown_and_never_overwritten() {
    let (site, id) = with_layer();
    site.context.write("a.txt", "1\nzwei\n3\n").unwrap();
    let finished = site.ends(5, &["layer", "merge", &id, "--yes"]);
    insta::assert_snapshot!(finished.stderr, @r"
    error: the project changed underneath, and the two do not fit
      why: `a.txt`: both changed it
      why: 1
           <<<<<<< project
           zwei
           ||||||| base
           2
           =======
           two
           >>>>>>> layer
           3
      fix: change the project so that it fits, or merge the rest with --without PATH
      fix: nothing was overwritten; the layer is as it was
    ");
    assert_eq!(read(&site, "a.txt"), "1\nzwei\n3\n");
    assert!(!site.context.project().join("b.txt").exists());
    // The rest can be had; the layer keeps what was left out.
    site.succeeds(&["layer", "merge", &id, "--without", "a.txt"]);
    assert_eq!(read(&site, "a.txt"), "1\nzwei\n3\n");
    assert_eq!(read(&site, "b.txt"), "new\n");
    let diff = site.succeeds(&["layer", "diff", &id]);
    assert!(diff.contains("+two"), "{diff}");
}

#[test]
fn what_only_the_project_changed_elsewhere_is_kept() {
    let (site, id) = with_layer();
    site.context.write("a.txt", "1\n2\n3\n4\n").unwrap();
    site.context.write("c.txt", "mine\n").unwrap();
    site.succeeds(&["layer", "merge", &id]);
    assert_eq!(read(&site, "a.txt"), "1\ntwo\n3\n4\n");
    assert_eq!(read(&site, "c.txt"), "mine\n");
}

#[test]
fn a_dropped_layer_is_gone_and_recorded() {
    let (site, id) = with_layer();
    assert_eq!(
        site.succeeds(&["layer", "drop", &id]),
        format!("Dropped {id}.\n")
    );
    site.ends(4, &["layer", "diff", &id]);
    let log = site.succeeds(&["audit", "log", "--type", "layer.*"]);
    assert!(log.contains("layer.dropped"), "{log}");
    assert_eq!(read(&site, "a.txt"), "1\n2\n3\n");
}

#[test]
fn json_holds_what_the_tables_show() {
    let (site, id) = with_layer();
    let listed = &site.layers(&[])[0];
    assert_eq!(listed["state"], "open");
    assert_eq!(listed["summary"]["files"], 2);
    let diff: Value =
        serde_json::from_str(&site.succeeds(&["layer", "diff", &id, "--json"])).unwrap();
    assert_eq!(diff["files"].as_array().unwrap().len(), 2);
    let merged: Value =
        serde_json::from_str(&site.succeeds(&["layer", "merge", &id, "--json"])).unwrap();
    assert_eq!(merged["retired"], true);
    assert_eq!(merged["applied"].as_array().unwrap().len(), 2);
}

#[test]
fn an_id_that_is_none_is_not_found() {
    let (site, id) = with_layer();
    site.ends(4, &["layer", "diff", "zzz"]);
    // A second layer, so that the common beginning names both.
    site.ends(0, &["sandbox", "run", "--", "touch", "c.txt"]);
    let finished = site.ends(2, &["layer", "diff", "lay_"]);
    assert!(finished.stderr.contains("2 layers"), "{}", finished.stderr);
    site.succeeds(&["layer", "diff", &id]);
}

/// Kills a merge once it has begun to change the project.
fn interrupt(site: &Site, id: &str) {
    let mut child = site
        .context
        .command()
        .args(["layer", "merge", id, "--yes"])
        .spawn()
        .unwrap();
    let first = site.context.project().join("many");
    let begun = || first.exists().then_some(());
    wait_for("the merge to begin", PATIENCE, begun).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_interrupted_merge_is_told_of_and_ended() {
    const FILES: usize = 3_000;
    let site = Site::empty();
    let script = format!("mkdir many; cd many; for n in $(seq {FILES}); do echo $n > f$n; done");
    site.ends(0, &["sandbox", "run", "--", "sh", "-c", &script]);
    let layers = site.layers(&[]);
    let id = layers[0]["id"].as_str().unwrap();
    interrupt(&site, id);
    let listed = site.ends(0, &["layer", "list"]);
    assert!(listed.stdout.contains("merging"), "{}", listed.stdout);
    assert!(
        listed.stderr.contains("was interrupted"),
        "{}",
        listed.stderr
    );
    site.ends(5, &["layer", "diff", id]);
    site.succeeds(&["layer", "merge", id, "--yes"]);
    let merged = std::fs::read_dir(site.context.project().join("many")).unwrap();
    assert_eq!(merged.count(), FILES);
    assert_eq!(site.layers(&[]), Vec::<Value>::new());
}
