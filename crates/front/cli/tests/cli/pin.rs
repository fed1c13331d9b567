//! Attacks on the policy itself: what a repository brings, what was pinned.
//!
//! Each has its control: the same text does what the attacker wants once a
//! person has applied it.

use std::fs;

use crate::site::{Site, contents};

const EVERYTHING: &str = r#"version: 1
capabilities:
  - { name: everything, match: {}, do: allow }
"#;

const STRICT: &str = r#"version: 1
capabilities:
  - { name: read, match: { action: fs.read, path_glob: ["src/**"] }, do: allow }
"#;

/// A project whose strict policy was applied.
fn strict() -> Site {
    let site = Site::initialised();
    site.apply(STRICT);
    assert_eq!(site.decide("fs.read", "/src/lib.rs").code, Some(0));
    assert_eq!(site.decide("fs.read", "/.env").code, Some(3));
    site
}

#[test]
fn a_looser_policy_in_a_cloned_repository_changes_nothing() {
    let site = Site::empty();
    site.context
        .write(".fluffy/policy.yaml", EVERYTHING)
        .unwrap();
    for (action, resource) in [
        ("fs.read", "/.env"),
        ("net.connect", "paste.example.com:443"),
    ] {
        assert_eq!(site.decide(action, resource).code, Some(3), "{action}");
    }
    let finished = site.ends(0, &["policy", "explain", "fs.read", "/.env"]);
    assert!(
        finished.stdout.starts_with("denied: "),
        "{}",
        finished.stdout
    );
    assert!(
        finished.stderr.contains("is pending"),
        "{}",
        finished.stderr
    );
    // The control: applied by a person, the same file allows it.
    site.succeeds(&["policy", "apply", "--yes"]);
    assert_eq!(site.decide("fs.read", "/.env").code, Some(0));
    let finished = site.ends(0, &["policy", "explain", "fs.read", "/.env"]);
    assert_eq!(finished.stderr, "");
}

#[test]
fn a_pulled_change_of_an_applied_policy_changes_nothing() {
    let site = strict();
    site.context
        .write(".fluffy/policy.yaml", EVERYTHING)
        .unwrap();
    let script = "export function evaluate() { return \"allow\"; }\n";
    site.context
        .write(".fluffy/policy.d/loose.ts", script)
        .unwrap();
    assert_eq!(site.decide("fs.read", "/.env").code, Some(3));
    fs::remove_file(site.project_file(".fluffy/policy.yaml")).unwrap();
    assert_eq!(
        site.decide("fs.read", "/README.md").code,
        Some(3),
        "the starter would allow it"
    );
    assert_eq!(site.decide("fs.read", "/src/lib.rs").code, Some(0));
}

#[test]
fn a_policy_applied_in_one_project_holds_in_no_other() {
    let site = Site::empty();
    for name in ["mine", "clone"] {
        site.context
            .write(&format!("{name}/.fluffy/policy.yaml"), EVERYTHING)
            .unwrap();
    }
    let decide = |project: &str| {
        let words = ["--project", project, "policy", "decide", "fs.read", "/.env"];
        site.run(&words).code
    };
    site.succeeds(&["--project", "mine", "policy", "apply", "--yes"]);
    assert_eq!(decide("mine"), Some(0));
    assert_eq!(decide("clone"), Some(3));
}

#[test]
fn a_changed_pin_allows_nothing() {
    let site = strict();
    let current = fs::read_to_string(site.pins().join("current")).unwrap();
    let digest = current.split_whitespace().nth(1).unwrap();
    let copy = site.pins().join(digest);
    fs::write(copy.join("policy.yaml"), EVERYTHING).unwrap();
    assert_closed(&site);
    // The control: put back, it is believed again.
    fs::write(copy.join("policy.yaml"), STRICT).unwrap();
    assert_eq!(site.decide("fs.read", "/src/lib.rs").code, Some(0));
    // An extension that nobody reviewed is a change as well.
    let script = "export function evaluate() { return \"allow\"; }\n";
    fs::create_dir_all(copy.join("policy.d")).unwrap();
    fs::write(copy.join("policy.d/loose.ts"), script).unwrap();
    assert_closed(&site);
    fs::remove_file(copy.join("policy.d/loose.ts")).unwrap();
    fs::write(site.pins().join("current"), "fluffy-pin-1 nothing\n").unwrap();
    assert_closed(&site);
    fs::write(site.pins().join("current"), &current).unwrap();
    fs::remove_dir_all(&copy).unwrap();
    assert_closed(&site);
}

/// Everything that would be decided by the pin ends with 7.
fn assert_closed(site: &Site) {
    let before = site.events();
    let finished = site.decide("fs.read", "/src/lib.rs");
    assert_eq!(finished.code, Some(7), "{}", finished.transcript());
    assert_eq!(finished.stdout, "");
    let error = site.json_error(7, &["policy", "explain", "fs.read", "/src/lib.rs"]);
    assert_eq!(error["code"], "damaged_policy");
    let fix = error["fix"].to_string();
    assert!(fix.contains("fluffy policy apply"), "{fix}");
    assert_eq!(site.events(), before);
}

#[test]
fn the_named_fix_repairs_a_changed_pin() {
    let site = strict();
    let current = fs::read_to_string(site.pins().join("current")).unwrap();
    let digest = current.split_whitespace().nth(1).unwrap();
    let pinned = site.pins().join(digest).join("policy.yaml");
    fs::write(&pinned, EVERYTHING).unwrap();
    let before = contents(&site.state().join("pins"));
    // Looking and hesitating change nothing, and leave it closed.
    site.ends(7, &["policy", "check"]);
    site.ends(8, &["policy", "apply"]);
    assert_eq!(contents(&site.state().join("pins")), before);
    assert_closed(&site);
    // What the message says, word by word.
    let error = site.json_error(7, &["policy", "explain", "fs.read", "/src/lib.rs"]);
    let fix = error["fix"][1].as_str().unwrap();
    assert_eq!(fix.split('`').nth(1), Some("fluffy policy apply"), "{fix}");
    site.succeeds(&["policy", "apply", "--yes"]);
    assert_eq!(fs::read_to_string(&pinned).unwrap(), STRICT);
    assert_eq!(site.decide("fs.read", "/src/lib.rs").code, Some(0));
    assert_eq!(site.decide("fs.read", "/.env").code, Some(3));
    let log = site.succeeds(&["audit", "log", "--type", "policy.update"]);
    assert_eq!(log.matches("approved").count(), 2, "{log}");
}
