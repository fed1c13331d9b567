//! A disk that fills up in the middle of a merge, for real.
//!
//! The test starts itself again inside a small disk of its own.

use std::path::Path;
use std::process::Command;

use fluffy_layer::{ApplyError, LayerKind, LayerState};

use crate::support::{Stage, can_overlay, clear_plan, merge_permit};

const CHILD_ENV: &str = "FLUFFY_LAYER_SMALL_DISK";
const NAME: &str = "disk::a_full_disk_is_told_and_the_merge_resumed";

#[test]
fn a_full_disk_is_told_and_the_merge_resumed() {
    if let Some(disk) = std::env::var_os(CHILD_ENV) {
        return on_a_small_disk(Path::new(&disk));
    }
    if !can_overlay() {
        let reason = "this machine lets nobody mount a disk in a user namespace";
        fluffy_test_kit::record_skip(NAME, reason);
        return;
    }
    let disk = tempfile::TempDir::new().unwrap();
    let script = "mount -t tmpfs -o size=6m tmpfs \"$1\" && exec \"$2\" --exact \"$3\" --nocapture";
    let output = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-euc",
            script,
            "sh",
        ])
        .arg(disk.path())
        .arg(std::env::current_exe().unwrap())
        .arg(NAME)
        .env(CHILD_ENV, disk.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn on_a_small_disk(disk: &Path) {
    let home = tempfile::TempDir::new_in(disk).unwrap();
    let stage = Stage::within(home, "for n in 1 2 3 4; do echo old >f$n; done");
    let mut held = stage.create(LayerKind::Copy);
    stage.in_layer(
        &held,
        "for n in 1 2 3 4; do head -c 600000 /dev/zero | tr '\\0' $n >f$n; done; echo small >new",
    );
    let before = stage.files();
    let plan = clear_plan(&held);
    // Leaves room for one or two of the four.
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![1; 2_600_000]).unwrap();
    let error = held.apply(merge_permit(), &plan).unwrap_err();
    let ApplyError::File(file) = &error else {
        panic!("{error:?}");
    };
    assert!(file.is_full_disk(), "{error:?}");
    assert_eq!(held.layer().state(), LayerState::Merging);
    for (path, content) in stage.files() {
        let is_new = content.len() > 500_000 || content.ends_with("small\\n");
        assert!(before.get(&path) == Some(&content) || is_new, "{path}");
        assert!(!path.contains(".fluffy-"), "{path} is left on a full disk");
    }
    assert!(held.plan_merge().is_err(), "the merge must be ended first");
    assert!(held.resume(merge_permit()).is_err(), "still full");
    std::fs::remove_file(&ballast).unwrap();
    let report = held.resume(merge_permit()).unwrap();
    assert!(report.retired && report.troubles.is_empty(), "{report:#?}");
    let files = stage.files();
    for n in 1..=4 {
        let expected = format!("644 {}", n.to_string().repeat(600_000));
        assert_eq!(files[&format!("f{n}")], expected);
    }
    assert_eq!(files["new"], "644 small\\n");
}
