//! `fluffy policy diff` and `apply`: tried on history, then answered by a person.

use fluffy_policy::starter::STARTER;

use crate::site::{Site, contents};

const DENY_ALL_WRITES: &str = r#"version: 1
capabilities:
  - { name: read, match: { action: fs.read, path_glob: ["**"] }, do: allow }
  - { name: frozen, match: { action: fs.write }, do: deny, reason: The code is frozen }
"#;

/// Seven recorded allows of writes, which a freeze would break.
fn busy() -> Site {
    let site = Site::prepared();
    for number in 0..5 {
        let finished = site.decide("fs.write", &format!("/src/part-{number}.rs"));
        assert_eq!(finished.code, Some(0), "{}", finished.transcript());
    }
    site.context.write("frozen.yaml", DENY_ALL_WRITES).unwrap();
    site
}

#[test]
fn a_trial_shows_only_what_changes() {
    let site = Site::prepared();
    site.context.write("old.yaml", STARTER).unwrap();
    site.context.write("frozen.yaml", DENY_ALL_WRITES).unwrap();
    let before = site.events();
    let shown = site.succeeds(&["policy", "diff", "old.yaml", "frozen.yaml"]);
    insta::assert_snapshot!(shown, @"
    CHANGE         WHO    ACTION    RESOURCE      BECAUSE
    newly allowed  agent  fs.read   /.env         read
    newly denied   agent  fs.write  /Cargo.toml   The code is frozen
    BREAKING       agent  fs.write  /src/lib.rs   The code is frozen
    BREAKING       agent  fs.write  /src/main.rs  The code is frozen
    6 recorded decisions tried: 4 change, 2 of them BREAKING (allow becomes deny), 0 could not be replayed
    ");
    let value = site.json(0, &["policy", "diff", "old.yaml", "frozen.yaml"]);
    assert_eq!(value["breaking"], 2);
    assert_eq!(value["changes"][0]["class"], "newly_allowed");
    let shown = site.succeeds(&["policy", "diff", "old.yaml", "old.yaml"]);
    assert!(
        shown.starts_with("6 recorded decisions tried: 0 change"),
        "{shown}"
    );
    let shown = site.succeeds(&["policy", "diff", "old.yaml", "frozen.yaml", "--last", "1"]);
    assert!(
        shown.starts_with("1 recorded decisions tried: 0 change"),
        "{shown}"
    );
    assert_eq!(site.events(), before, "a trial records nothing");
    site.ends(4, &["policy", "diff", "old.yaml", "missing.yaml"]);
    site.context.write("bad.yaml", "version: 2\n").unwrap();
    let finished = site.ends(2, &["policy", "diff", "bad.yaml", "old.yaml"]);
    assert!(
        finished.stderr.contains("--> bad.yaml:1:10"),
        "{}",
        finished.stderr
    );
}

#[test]
fn without_a_terminal_a_person_has_to_say_yes_beforehand() {
    let site = Site::prepared();
    site.context.write("frozen.yaml", DENY_ALL_WRITES).unwrap();
    let pins = site.state().join("pins");
    let finished = site.ends(8, &["policy", "apply", "frozen.yaml"]);
    assert!(
        finished.stderr.contains("pass --yes"),
        "{}",
        finished.stderr
    );
    assert!(finished.stdout.contains("BREAKING"), "{}", finished.stdout);
    assert_eq!(contents(&pins), [], "nothing is pinned");
    assert_eq!(site.decide("fs.write", "/src/lib.rs").code, Some(0));
    let error = site.json_error(8, &["policy", "apply", "frozen.yaml"]);
    assert_eq!(error["code"], "awaiting_approval");

    let stdout = site.succeeds(&["policy", "apply", "frozen.yaml", "--yes"]);
    assert!(
        stdout.contains("Applied. The policy in force is "),
        "{stdout}"
    );
    assert_eq!(site.decide("fs.write", "/src/lib.rs").code, Some(3));
    let log = site.succeeds(&["audit", "log", "--type", "policy.update"]);
    assert!(log.contains("approved"), "{log}");
    site.ends(0, &["audit", "verify"]);
}

#[test]
fn more_than_five_breaking_changes_need_the_phrase() {
    let site = busy();
    let pins = site.state().join("pins");
    for answer in [
        ["--yes"].as_slice(),
        &["--confirm", "break 6"],
        &["--confirm", "yes"],
        &["--yes", "--confirm", ""],
    ] {
        let words = [["policy", "apply", "frozen.yaml"].as_slice(), answer].concat();
        let finished = site.ends(8, &words);
        assert!(
            finished.stderr.contains("--confirm \"break 7\""),
            "{}",
            finished.stderr
        );
        assert_eq!(contents(&pins), [], "{answer:?} pinned something");
        assert_eq!(site.decide("fs.read", "/src/lib.rs").code, Some(0));
    }
    site.succeeds(&["policy", "apply", "frozen.yaml", "--confirm", "break 7"]);
    assert_eq!(site.decide("fs.write", "/src/lib.rs").code, Some(3));
}

#[test]
fn a_second_application_says_that_it_is_in_force() {
    let site = Site::prepared();
    site.context
        .write(".fluffy/policy.yaml", DENY_ALL_WRITES)
        .unwrap();
    let applied = site.json(0, &["policy", "apply", "--yes"]);
    let before = site.events();
    let finished = site.ends(0, &["policy", "apply"]);
    assert_eq!(finished.stderr, "This policy is in force already.\n");
    let again = site.json(0, &["policy", "apply"]);
    assert_eq!(again["in_force"], applied["applied"]);
    assert_eq!(site.events(), before);
}

#[test]
fn an_invalid_policy_is_not_applied() {
    let site = Site::initialised();
    site.context
        .write(".fluffy/policy.yaml", "version: 1\nrules: []\n")
        .unwrap();
    let finished = site.ends(2, &["policy", "apply", "--yes"]);
    assert!(
        finished.stderr.contains("unknown field `rules`"),
        "{}",
        finished.stderr
    );
    assert_eq!(contents(&site.state().join("pins")), []);
    // What is enforced has not changed, and still works.
    assert_eq!(site.decide("fs.read", "/src/lib.rs").code, Some(0));
}

#[test]
fn outside_a_project_there_is_nothing_to_apply() {
    let site = Site::empty();
    site.ends(4, &["policy", "apply", "--yes"]);
    site.context.write("frozen.yaml", DENY_ALL_WRITES).unwrap();
    let finished = site.ends(4, &["policy", "apply", "frozen.yaml", "--yes"]);
    assert!(
        finished.stderr.contains("fluffy init"),
        "{}",
        finished.stderr
    );
}

#[test]
fn the_users_own_policy_adds_to_every_project() {
    let site = Site::initialised();
    let config = site.context.home().join(".config/fluffy");
    std::fs::create_dir_all(&config).unwrap();
    assert_eq!(site.decide("fs.read", "/notes/a.md").code, Some(0));
    let policy = "version: 1\ncapabilities:\n  - { name: private, match: { action: fs.read, path_glob: [\"notes/**\"] }, do: deny }\n";
    std::fs::write(config.join("policy.yaml"), policy).unwrap();
    assert_eq!(site.decide("fs.read", "/notes/a.md").code, Some(3));
    // One that cannot be read closes everything, instead of being left out.
    std::fs::write(config.join("policy.yaml"), "version: 2\n").unwrap();
    let finished = site.decide("fs.read", "/src/lib.rs");
    assert_eq!(finished.code, Some(2), "{}", finished.transcript());
}
