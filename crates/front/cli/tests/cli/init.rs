//! `fluffy init`: what it writes, where, with which modes, and what it refuses.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::site::{Site, contents, files};

#[test]
fn a_project_gets_its_files_a_ledger_and_a_key() {
    let site = Site::empty();
    let finished = site.ends(0, &["init"]);
    let mut settings = insta::Settings::clone_current();
    settings.add_filter("ed25519:[A-Za-z0-9+/]{43}=", "ed25519:[KEY]");
    for (from, to) in site.context.filters() {
        settings.add_filter(&from, to);
    }
    settings.bind(|| {
        insta::assert_snapshot!(finished.transcript(), @"
        exit: 0
        --- stdout
        wrote [PROJECT]/.fluffy/policy.yaml
        wrote [PROJECT]/.fluffy/config.toml
        ledger led_[ULID]
        public key ed25519:[KEY]
        --- stderr
        Keep the public key somewhere else: `fluffy audit verify --key` checks against it.
        Read .fluffy/policy.yaml, change what you like, and put it in force with `fluffy policy apply`.
        ");
    });
    site.ends(0, &["policy", "check"]);
    site.ends(0, &["audit", "verify", "--key", &site.key()]);
    let log = site.succeeds(&["audit", "log"]);
    assert!(log.contains("project.initialized"), "{log}");
}

#[test]
fn nothing_is_written_into_the_project_but_its_folder() {
    let site = Site::empty();
    site.context.write("src/lib.rs", "// mine\n").unwrap();
    site.succeeds(&["init"]);
    let project = site.context.project();
    let mut found: Vec<_> = files(&project)
        .into_iter()
        .map(|path| path.strip_prefix(&project).unwrap().display().to_string())
        .collect();
    found.sort();
    assert_eq!(
        found,
        [".fluffy/config.toml", ".fluffy/policy.yaml", "src/lib.rs"]
    );
}

#[test]
fn a_second_time_changes_nothing() {
    let site = Site::initialised();
    let key = site.key();
    let (project, events) = (contents(&site.context.project()), site.events());
    let stdout = site.succeeds(&["init"]);
    assert!(stdout.starts_with("Nothing to write"), "{stdout}");
    assert!(stdout.contains(&key), "{stdout}");
    assert_eq!(contents(&site.context.project()), project);
    assert_eq!(site.events(), events);
    assert_eq!(site.json(0, &["init"])["written"], serde_json::json!([]));
}

#[test]
fn a_file_that_is_there_is_never_overwritten() {
    let site = Site::empty();
    let mine = "version: 1\n# mine\n";
    site.context.write(".fluffy/policy.yaml", mine).unwrap();
    let value = site.json(0, &["init"]);
    assert_eq!(value["written"].as_array().unwrap().len(), 1);
    assert_eq!(
        fs::read_to_string(site.project_file(".fluffy/policy.yaml")).unwrap(),
        mine
    );
    assert!(site.project_file(".fluffy/config.toml").exists());
    // Nor is anything written through a link that somebody left there.
    let trap = Site::empty();
    let elsewhere = trap.context.home().join("elsewhere");
    fs::create_dir(trap.project_file(".fluffy")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, trap.project_file(".fluffy/policy.yaml")).unwrap();
    trap.run(&["init"]);
    assert!(!elsewhere.exists());
}

#[test]
fn in_a_folder_of_a_project_the_project_is_meant() {
    let site = Site::initialised();
    site.context.write("src/deep/mod.rs", "").unwrap();
    let value = site.json(0, &["--project", "src/deep", "init"]);
    assert_eq!(value["written"], serde_json::json!([]));
    assert!(!site.project_file("src/deep/.fluffy").exists());
}

#[test]
fn state_is_for_this_user_only() {
    let site = Site::initialised();
    site.apply("version: 1\n");
    assert_private(&site.state());
    // Somebody opened it: that is said, not repaired behind their back.
    fs::set_permissions(site.state(), fs::Permissions::from_mode(0o755)).unwrap();
    let finished = site.ends(2, &["init"]);
    assert!(finished.stderr.contains("chmod 700"), "{}", finished.stderr);
}

fn assert_private(folder: &Path) {
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(folder), 0o700, "{}", folder.display());
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            assert_private(&path);
        } else {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    }
}

#[test]
fn a_state_directory_inside_the_project_is_refused() {
    let mut site = Site::empty();
    let inside = site.project_file("state");
    site.context
        .set("FLUFFY_STATE_DIR", inside.to_str().unwrap());
    let finished = site.ends(2, &["init"]);
    assert!(
        finished.stderr.contains("is inside the project"),
        "{}",
        finished.stderr
    );
    assert!(
        finished.stderr.contains("FLUFFY_STATE_DIR"),
        "{}",
        finished.stderr
    );
    assert_eq!(
        contents(&site.context.project()),
        [],
        "and nothing was written"
    );
    // A link that leads there is no way around it.
    let mut linked = Site::empty();
    let link = linked.context.home().join("link");
    fs::create_dir(linked.project_file("state")).unwrap();
    std::os::unix::fs::symlink(linked.project_file("state"), &link).unwrap();
    linked
        .context
        .set("FLUFFY_STATE_DIR", link.to_str().unwrap());
    linked.ends(2, &["init"]);
    assert_eq!(contents(&linked.context.project()), []);
    let mut relative = Site::empty();
    relative.context.set("FLUFFY_STATE_DIR", "state");
    relative.ends(2, &["init"]);
}

#[test]
fn an_explicit_state_directory_is_used() {
    let mut site = Site::empty();
    let elsewhere = site.context.home().join("elsewhere");
    site.context
        .set("FLUFFY_STATE_DIR", elsewhere.to_str().unwrap());
    site.succeeds(&["init"]);
    assert!(elsewhere.join("ledger/ledger.db").exists());
    assert!(!site.state().exists());
}

#[test]
fn a_folder_that_cannot_be_written_is_said() {
    let site = Site::empty();
    fs::write(site.project_file(".fluffy"), "a file where the folder goes").unwrap();
    let finished = site.run(&["init"]);
    assert_eq!(finished.code, Some(2), "{}", finished.transcript());
    assert!(finished.stderr.contains("  fix: "), "{}", finished.stderr);
    assert!(!site.state().exists());
}
