//! `fluffy policy test`: a table that holds, one that does not, one that is wrong.

use crate::site::Site;

const TABLE: &str = r#"policy: policy.yaml
cases:
  - name: source may be written
    as: { name: agent, grants: ["*"], workspace: ["*"], user: ["*"] }
    action: fs.write
    resource: /src/lib.rs
    expect: allow
    because: [write-source]
  - name: the rest may not
    as: { name: agent, grants: ["*"], workspace: ["*"], user: ["*"] }
    action: fs.write
    resource: /Makefile
    expect: deny
"#;

const POLICY: &str = r#"version: 1
capabilities:
  - { name: write-source, match: { action: fs.write, path_glob: ["src/**"] }, do: allow }
"#;

const GUARD: &str = r#"
export const actions = ["fs.write"];
export function evaluate(request: { resource?: string }) {
  return (request.resource ?? "").endsWith(".generated.rs")
    ? { verdict: "deny", reason: "Generated" }
    : "pass";
}
"#;

fn site() -> Site {
    let site = Site::empty();
    site.context.write("team/policy.yaml", POLICY).unwrap();
    site.context.write("team/table.yaml", TABLE).unwrap();
    site
}

#[test]
fn a_table_that_holds_is_a_success() {
    let site = site();
    let stdout = site.succeeds(&["policy", "test", "team/table.yaml"]);
    assert!(stdout.ends_with("2 hold, 0 do not\n"), "{stdout}");
    let value = site.json(0, &["policy", "test", "team/table.yaml"]);
    assert_eq!((&value["passed"], &value["failed"]), (&2.into(), &0.into()));
}

#[test]
fn a_decision_that_differs_is_shown_with_its_reason() {
    let site = site();
    let looser = POLICY.replace("\"src/**\"", "\"**\"");
    site.context.write("team/policy.yaml", &looser).unwrap();
    let finished = site.ends(1, &["policy", "test", "team/table.yaml"]);
    insta::assert_snapshot!(finished.stdout, @"
            CASE                   DECISION  RULES THAT SPOKE
    ok      source may be written  allow     project:write-source
    FAILED  the rest may not       allow     project:write-source
    line 9: the rest may not: expected deny, got allow
    1 hold, 1 do not
    ");
    let value = site.json(1, &["policy", "test", "team/table.yaml"]);
    assert_eq!(value["failed"], 1);
    assert_eq!(value["cases"][1]["actual"], "allow");
}

#[test]
fn a_right_decision_for_the_wrong_reason_does_not_hold() {
    let site = site();
    let renamed = POLICY.replace("write-source", "something-else");
    site.context.write("team/policy.yaml", &renamed).unwrap();
    let finished = site.ends(1, &["policy", "test", "team/table.yaml"]);
    let shown = "line 3: source may be written: write-source did not speak";
    assert!(finished.stdout.contains(shown), "{}", finished.stdout);
}

#[test]
fn what_cannot_be_run_is_refused_at_its_place() {
    let site = site();
    for (table, line, what) in [
        ("policy: policy.yaml\ncases: []\n", 2, "between 1 and"),
        ("policy: policy.yaml\ncase: []\n", 2, "unknown field `case`"),
        ("cases: [\n", 1, "unclosed bracket"),
        (
            &TABLE.replace("expect: deny", "expect: denied"),
            13,
            "`denied` is not a decision",
        ),
        (
            &TABLE.replace("the rest may not", "source may be written"),
            9,
            "is taken",
        ),
    ] {
        site.context.write("team/table.yaml", table).unwrap();
        let finished = site.ends(2, &["policy", "test", "team/table.yaml"]);
        let place = format!("--> team/table.yaml:{line}:");
        assert!(
            finished.stderr.contains(&place),
            "{what}\n{}",
            finished.stderr
        );
        assert!(
            finished.stderr.contains(what),
            "{what}\n{}",
            finished.stderr
        );
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn a_broken_policy_or_extension_is_refused() {
    let site = site();
    site.context
        .write("team/policy.yaml", "version: 2\n")
        .unwrap();
    let finished = site.ends(2, &["policy", "test", "team/table.yaml"]);
    assert!(
        finished.stderr.contains("--> team/policy.yaml:1:10"),
        "{}",
        finished.stderr
    );
    std::fs::remove_file(site.project_file("team/policy.yaml")).unwrap();
    site.ends(4, &["policy", "test", "team/table.yaml"]);
    site.ends(4, &["policy", "test", "missing.yaml"]);
    site.context.write("team/policy.yaml", POLICY).unwrap();
    let table = TABLE.replacen("cases:", "extensions: [guard.ts]\ncases:", 1);
    site.context.write("team/table.yaml", &table).unwrap();
    let finished = site.ends(2, &["policy", "test", "team/table.yaml"]);
    assert!(
        finished.stderr.contains("there is no extension"),
        "{}",
        finished.stderr
    );
    site.context
        .write("team/guard.ts", "export function evaluate( {")
        .unwrap();
    let finished = site.ends(2, &["policy", "test", "team/table.yaml"]);
    assert!(
        finished.stderr.contains("extension `guard` is refused"),
        "{}",
        finished.stderr
    );
}

#[test]
fn an_extension_takes_part() {
    let site = site();
    site.context.write("team/guard.ts", GUARD).unwrap();
    let case = r#"  - name: generated files are not written by hand
    as: { name: agent, grants: ["*"], workspace: ["*"], user: ["*"] }
    action: fs.write
    resource: /src/api.generated.rs
    expect: deny
    because: [guard]
"#;
    let with = TABLE.replacen("cases:", "extensions: [guard.ts]\ncases:", 1) + case;
    site.context.write("team/table.yaml", &with).unwrap();
    let stdout = site.succeeds(&["policy", "test", "team/table.yaml"]);
    assert!(stdout.ends_with("3 hold, 0 do not\n"), "{stdout}");
    // The control: without the extension the same case does not hold.
    let without = TABLE.to_owned() + case;
    site.context.write("team/table.yaml", &without).unwrap();
    site.ends(1, &["policy", "test", "team/table.yaml"]);
}

#[test]
fn rules_can_be_inline() {
    let site = site();
    let inline = TABLE.replacen(
        "policy: policy.yaml",
        "rules:\n  - { name: write-source, match: { action: fs.write, path_glob: [\"src/**\"] }, do: allow }",
        1,
    );
    site.context.write("alone.yaml", &inline).unwrap();
    site.ends(0, &["policy", "test", "alone.yaml"]);
}

#[test]
fn schemas_are_json() {
    let site = Site::empty();
    for of in ["policy", "test"] {
        let text = site.succeeds(&["policy", "schema", of]);
        let plain: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(plain, site.json(0, &["policy", "schema", of]));
        assert!(plain["$schema"].is_string(), "{of}");
    }
}
