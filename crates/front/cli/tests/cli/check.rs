//! `fluffy policy check`: what a person reads about a wrong or pointless file.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::site::Site;

/// A text, where its first error is, what is wrong, and the fix.
type Row = (&'static str, u32, u32, &'static str, &'static str);

const MALFORMED: &[Row] = &[
    (
        "capabilities: []\n",
        1,
        1,
        "the policy has no `version`",
        "start the file with `version: 1`",
    ),
    (
        "version: 2\n",
        1,
        10,
        "this version of policies is not known",
        "write `version: 1`",
    ),
    (
        "version: 1\ncapabilites: []\n",
        2,
        1,
        "unknown field `capabilites`",
        "did you mean `capabilities`?",
    ),
    ("- a\n", 1, 1, "the policy is a list", "write a mapping"),
    (
        "version: 1\ncapabilities: yes\n",
        2,
        15,
        "`capabilities` is a single value",
        "write a list",
    ),
    (
        "version: 1\ncapabilities:\n  - name: a\n    match: {}\n",
        3,
        5,
        "the rule has no `do`",
        "write `do: allow`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: {}, do: permit }\n",
        3,
        31,
        "`permit` is not an effect",
        "write `do: allow`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { acton: fs.read }, do: deny }\n",
        3,
        25,
        "unknown field `acton`",
        "did you mean `action`?",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { action: fs.wirte }, do: deny }\n",
        3,
        33,
        "`fs.wirte` is not a known action",
        "did you mean `fs.write`?",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { path_glob: [\"!a\"] }, do: deny }\n",
        3,
        36,
        "every glob starts with `!`",
        "add what to include",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { size: \"> 1kb\" }, do: deny }\n",
        3,
        31,
        "`kb` is not a unit of size",
        "write for example `100KiB`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: {}, do: deny }\n  - { name: a, match: {}, do: deny }\n",
        4,
        13,
        "`a` is taken",
        "name",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { mode: stirct }, do: deny }\n",
        3,
        31,
        "`stirct` is not a mode",
        "did you mean `strict`?",
    ),
    (
        "version: 1\ncapabilities: [\n",
        2,
        15,
        "unclosed bracket",
        "check the indentation",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: \"\u{1b}[31mred\", match: {}, do: permit }\n",
        3,
        14,
        "unexpected character",
        "check the indentation and quotes",
    ),
];

#[test]
fn a_malformed_file_is_refused_with_line_column_reason_and_fix() {
    let site = Site::empty();
    for (text, line, column, what, fix) in MALFORMED {
        site.context.write("bad.yaml", text).unwrap();
        let finished = site.ends(2, &["policy", "check", "bad.yaml"]);
        let shown = unwrapped(&finished.stderr);
        assert!(
            shown.contains(&format!("--> bad.yaml:{line}:{column}\n")),
            "{shown}"
        );
        assert!(shown.contains(what), "{what}\n{shown}");
        assert!(shown.contains("\n  why: "), "{shown}");
        assert!(
            shown.contains("\n  fix: ") && shown.contains(fix),
            "{fix}\n{shown}"
        );
        assert!(!finished.stderr.contains('\u{1b}'), "{shown:?}");
        assert_eq!(finished.stdout, "");
        let error = site.json_error(2, &["policy", "check", "bad.yaml"]);
        assert_eq!(error["code"], "invalid_file");
        assert_eq!(error["at"][0]["line"], *line);
        assert_eq!(error["at"][0]["column"], *column);
        assert!(error["fix"][0].as_str().unwrap().contains(fix), "{error}");
    }
}

/// The text with its wrapped lines joined again.
fn unwrapped(text: &str) -> String {
    text.replace("\n       ", " ")
}

#[test]
fn several_errors_are_shown_at_once() {
    let site = Site::empty();
    let mut text = "version: 1\ncapabilities:\n".to_owned();
    for number in 0..12 {
        writeln!(text, "  - {{ name: r{number}, match: {{}}, do: permit }}").unwrap();
    }
    site.context.write("bad.yaml", &text).unwrap();
    let finished = site.ends(2, &["policy", "check", "bad.yaml"]);
    assert!(
        finished.stderr.contains("`bad.yaml` has 12 errors"),
        "{}",
        finished.stderr
    );
    assert!(
        finished.stderr.contains("bad.yaml:12:"),
        "{}",
        finished.stderr
    );
    assert!(
        finished.stderr.contains("and 2 more"),
        "{}",
        finished.stderr
    );
}

#[test]
fn pointless_rules_are_warnings() {
    let site = Site::empty();
    let text = r#"version: 1
capabilities:
  - { name: nothing, match: { action: fs.write, path_glob: [] }, do: deny }
  - { name: never, match: { action: fs.edit }, do: deny, except: [{ action: fs.edit }] }
  - { name: no-reading, match: { action: fs.read }, do: deny }
  - { name: shadowed, match: { action: fs.read, path_glob: ["src/**"] }, do: allow }
"#;
    site.context.write("odd.yaml", text).unwrap();
    let finished = site.ends(0, &["policy", "check", "odd.yaml"]);
    assert_eq!(finished.stdout, "odd.yaml is valid, 3 warnings\n");
    insta::assert_snapshot!(finished.stderr, @"
    warning: odd.yaml:3:60: `path_glob` is empty and matches nothing
      why: values of one list are alternatives, and there are none
      fix: add a value, or remove the field to match everything
    warning: odd.yaml:4:13: `never` never fires: an `except` equals its `match`
      why: an exception that always holds turns the rule into a pass
      fix: narrow the `except`, or remove the rule
    warning: odd.yaml:6:13: `shadowed` is shadowed by the deny `no-reading`
      why: any deny is final, so this rule can never make a difference
      fix: narrow the deny with an `except`, or remove this rule
    ");
    let value = site.json(0, &["policy", "check", "odd.yaml"]);
    assert_eq!(value["warnings"].as_array().unwrap().len(), 3);
    assert_eq!(value["valid"], true);
}

#[test]
fn what_is_no_policy_file_is_refused() {
    let site = Site::empty();
    site.ends(4, &["policy", "check", "missing.yaml"]);
    site.ends(4, &["policy", "check"]);
    std::fs::write(site.project_file("latin1.yaml"), [b'#', 0xe4, b'\n']).unwrap();
    site.ends(2, &["policy", "check", "latin1.yaml"]);
    std::os::unix::fs::symlink("/etc/hostname", site.project_file("link.yaml")).unwrap();
    site.ends(2, &["policy", "check", "link.yaml"]);
    site.ends(2, &["policy", "check", "."]);
    let large = std::fs::File::create(site.project_file("large.yaml")).unwrap();
    large.set_len(5 << 20).unwrap();
    let finished = site.ends(2, &["policy", "check", "large.yaml"]);
    assert!(
        finished.stderr.contains("is larger than"),
        "{}",
        finished.stderr
    );
}

#[test]
fn an_empty_policy_is_valid() {
    let site = Site::empty();
    site.context.write("empty.yaml", "version: 1\n").unwrap();
    site.ends(0, &["policy", "check", "empty.yaml"]);
}

#[test]
fn the_projects_policy_is_in_force_or_pending() {
    let site = Site::initialised();
    let check = |expected: &str| {
        let value = site.json(0, &["policy", "check"]);
        assert_eq!(value["standing"], expected);
        site.succeeds(&["policy", "check"])
    };
    assert!(check("in_force").contains("It is the policy in force.\n"));
    let policy =
        "version: 1\ncapabilities:\n  - { name: a, match: { action: fs.read }, do: allow }\n";
    site.context.write(".fluffy/policy.yaml", policy).unwrap();
    assert!(check("pending").contains("It is pending"));
    site.succeeds(&["policy", "apply", "--yes"]);
    check("in_force");
    // An extension alone makes it pending again.
    let pass = "export function evaluate() { return \"pass\"; }\n";
    site.context
        .write(".fluffy/policy.d/guard.ts", pass)
        .unwrap();
    check("pending");
}

#[test]
fn ten_thousand_rules_are_checked_without_quadratic_growth() {
    let site = Site::empty();
    let mut text = "version: 1\ncapabilities:\n".to_owned();
    for number in 0..10_000 {
        let effect = ["allow", "deny", "require_review"][number % 3];
        writeln!(
            text,
            "  - {{ name: r{number}, match: {{ action: fs.write, path_glob: [\"src/d{number}/**\"] }}, do: {effect} }}"
        )
        .unwrap();
    }
    site.context.write("large.yaml", &text).unwrap();
    let start = Instant::now();
    let stdout = site.succeeds(&["policy", "check", "large.yaml"]);
    let taken = start.elapsed();
    eprintln!("10,000 rules checked in {taken:?}");
    assert_eq!(stdout, "large.yaml is valid, no warnings\n");
    // Only quadratic growth is that slow, even unoptimised on a busy machine.
    assert!(taken < Duration::from_secs(10), "{taken:?}");
}
