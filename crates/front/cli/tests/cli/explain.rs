//! `fluffy policy explain`: the answer, and every rule that had a say.

use serde_json::Value;

use crate::site::{Site, contents};

const POLICY: &str = r#"version: 1
capabilities:
  - { name: write-source, match: { action: fs.write, path_glob: ["src/**"] }, do: allow }
  - name: newcomers
    match: { action: fs.write, caller_tag: [new_employee] }
    do: require_review
    reason: Newcomers are looked after
  - { name: no-robots, match: { caller: [robot] }, do: deny, reason: No robots }
  - name: packages
    match: { action: net.connect, host: ["packages.example.com:443"], caller_tag: [third_party] }
    do: allow
"#;

fn site() -> Site {
    let site = Site::empty();
    site.context.write("draft.yaml", POLICY).unwrap();
    site
}

/// Explains under the draft; the verdict and the rules that spoke.
fn spoken(site: &Site, arguments: &[&str]) -> (String, Vec<String>) {
    let words = ["policy", "explain", "--policy", "draft.yaml"];
    let value = site.json(
        0,
        &words.iter().chain(arguments).copied().collect::<Vec<_>>(),
    );
    let spoke = value["decision"]["spoke"].as_array().unwrap();
    let rules = spoke
        .iter()
        .map(|voice| voice["rule"].as_str().unwrap().to_owned());
    (verdict(&value), rules.collect())
}

fn verdict(value: &Value) -> String {
    value["decision"]["verdict"].as_str().unwrap().to_owned()
}

#[test]
fn the_answer_names_every_rule_that_spoke() {
    let site = Site::initialised();
    let shown = site.succeeds(&["policy", "explain", "fs.read", "/.env"]);
    insta::assert_snapshot!(shown, @"
    denied: fs.read on /.env by agent
    ├─ rules
    │  ├─ deny shipped:keep-secrets-unread: Secrets are never read into a
    │  │  conversation
    │  └─ allow shipped:read-project
    └─ assumed: a sandbox, template code-executor, tier process, mode strict,
       size 0, lines 0
    ");
    let shown = site.succeeds(&["policy", "explain", "fs.write", "/.fluffy/policy.yaml"]);
    assert!(shown.contains("deny builtin:policy-files: "), "{shown}");
    let value = site.json(0, &["policy", "explain", "fs.read", "/.env"]);
    assert_eq!(verdict(&value), "deny");
    let rules: Vec<&str> = value["decision"]["spoke"]
        .as_array()
        .unwrap()
        .iter()
        .map(|voice| voice["rule"].as_str().unwrap())
        .collect();
    assert_eq!(rules, ["keep-secrets-unread", "read-project"]);
}

#[test]
fn who_asks_and_with_which_tags_decides() {
    let site = site();
    let write = ["fs.write", "/src/lib.rs"];
    let with = |more: &[&'static str]| spoken(&site, &[write.as_slice(), more].concat());
    assert_eq!(with(&[]), ("allow".into(), vec!["write-source".into()]));
    let (verdict, rules) = with(&["--tag", "new_employee"]);
    assert_eq!(verdict, "require_review");
    assert!(rules.contains(&"newcomers".into()) && rules.contains(&"write-source".into()));
    let (verdict, rules) = with(&["--as", "robot", "--tag", "new_employee"]);
    assert_eq!((verdict.as_str(), rules.len()), ("deny", 3), "{rules:?}");
    let connect = ["net.connect", "packages.example.com:443", "--as", "builder"];
    assert_eq!(spoken(&site, &connect).0, "deny");
    let tagged = [
        connect.as_slice(),
        &["--tag", "other", "--tag", "third_party"],
    ]
    .concat();
    assert_eq!(
        spoken(&site, &tagged),
        ("allow".into(), vec!["packages".into()])
    );
}

#[test]
fn a_grant_is_a_ceiling() {
    let site = site();
    let write = ["fs.write", "/src/lib.rs", "--grant"];
    let with = |pattern: &'static str| spoken(&site, &[write.as_slice(), &[pattern]].concat()).0;
    assert_eq!(with("fs.write./src/*"), "allow");
    assert_eq!(with("fs.read.*"), "deny");
    let words = ["policy", "explain", "fs.write", "/a", "--grant", "a..b"];
    site.json_error(2, &words);
}

#[test]
fn the_policy_in_force_is_asked_unless_a_file_is_named() {
    let site = site();
    let plain = site.json(0, &["policy", "explain", "fs.write", "/tests/a.rs"]);
    assert_eq!(verdict(&plain), "allow", "the starter policy holds");
    assert_eq!(spoken(&site, &["fs.write", "/tests/a.rs"]).0, "deny");
    let missing = [
        "policy",
        "explain",
        "fs.read",
        "/a",
        "--policy",
        "missing.yaml",
    ];
    assert_eq!(site.json_error(4, &missing)["code"], "not_found");
}

#[test]
fn an_unknown_action_is_denied() {
    let site = Site::empty();
    let shown = site.succeeds(&["policy", "explain", "nothing.like", "/a"]);
    assert!(
        shown.starts_with("denied: nothing.like on /a by agent\n"),
        "{shown}"
    );
    assert!(shown.contains("the action is not known"), "{shown}");
}

#[test]
fn hostile_resources_are_denied_or_harmless() {
    let site = Site::empty();
    let long = format!("/{}", "a/".repeat(3_000));
    let composed = "/caf\u{e9}/\u{65e5}\u{672c}.rs";
    for (resource, expected) in [
        ("/../../etc/passwd", "deny"),
        ("/src/../.env", "deny"),
        ("//.env", "deny"),
        ("/./src//../.env", "deny"),
        ("/src/./.env", "deny"),
        ("src\\..\\lib.rs", "deny"),
        ("@host/etc/shadow", "deny"),
        ("@elsewhere/x", "deny"),
        ("", "deny"),
        (long.as_str(), "deny"),
        ("/a\u{1b}[31mb", "deny"),
        ("/a\nb", "deny"),
        ("/.env", "deny"),
        (composed, "allow"),
        ("/src/lib.rs", "allow"),
    ] {
        let value = site.json(0, &["policy", "explain", "fs.read", resource]);
        assert_eq!(verdict(&value), expected, "{resource:?}");
        let shown = site.succeeds(&["policy", "explain", "fs.read", resource]);
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
    }
    let shown = site.succeeds(&["policy", "explain", "fs.read", "/a\u{1b}[31mb"]);
    assert!(shown.contains(r"/a\x1b[31mb"), "{shown}");
    // Nothing in a name may look like a line of our own answer.
    let shown = site.succeeds(&["policy", "explain", "fs.read", "/a\nallowed: x"]);
    assert!(!shown.contains("\nallowed"), "{shown}");
    let shown = site.succeeds(&[
        "policy",
        "explain",
        "fs.read",
        "/a",
        "--as",
        "a\u{202e}b\u{1b}]0;x",
    ]);
    assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
}

#[test]
fn bare_assumes_nothing() {
    let site = Site::empty();
    let shown = site.succeeds(&["policy", "explain", "fs.write", "/src/lib.rs"]);
    assert!(
        shown.starts_with("allowed: ") && shown.contains("assumed: a sandbox"),
        "{shown}"
    );
    let shown = site.succeeds(&["policy", "explain", "fs.write", "/src/lib.rs", "--bare"]);
    insta::assert_snapshot!(shown, @"
    needs review: fs.write on /src/lib.rs by agent
    └─ rules
       ├─ review shipped:large-writes: More than a person would write by hand
       └─ – shipped:write-project: `require_sandbox` is not met
    ");
}

#[test]
fn wrong_words_are_usage_errors_that_list_the_right_ones() {
    let site = Site::empty();
    for (flag, word) in [
        ("--mode", "strict"),
        ("--state", "idle"),
        ("--tier", "microvm"),
    ] {
        let words = ["policy", "explain", "fs.read", "/a", flag, "nonsense"];
        let finished = site.ends(2, &words);
        assert!(finished.stderr.contains(word), "{}", finished.stderr);
    }
}

#[test]
fn explaining_records_nothing() {
    let site = Site::prepared();
    let before = contents(&site.state());
    site.succeeds(&["policy", "explain", "fs.write", "/Cargo.toml"]);
    assert_eq!(contents(&site.state()), before);
    let untouched = Site::empty();
    untouched.succeeds(&["policy", "explain", "fs.read", "/a"]);
    assert!(!untouched.state().exists());
}

#[test]
fn verbose_also_names_the_rules_that_kept_silent() {
    let site = Site::empty();
    let words = ["policy", "explain", "fs.read", "/src/lib.rs"];
    assert!(!site.succeeds(&words).contains("keep-secrets-unread"));
    let shown = site.succeeds(&[words.as_slice(), &["--verbose"]].concat());
    assert!(
        shown.contains("keep-secrets-unread: `path_glob` does not match"),
        "{shown}"
    );
}
