//! What is for people: test tables, trials, explanations, recordings.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod support;

use fluffy_base::Digest;
use fluffy_policy::explain::Consideration;
use fluffy_policy::extension::{NoExtensions, Opinion};
use fluffy_policy::record::DecisionRecord;
use fluffy_policy::table::TestTable;
use fluffy_policy::trial::{self, Class, Side};
use fluffy_policy::{Engine, Field, Request, Sources, Verdict};
use support::*;

const TABLE: &str = r#"
rules:
  - name: write-source
    match: { action: fs.write, path_glob: ["src/**", "tests/**"] }
    do: allow
    constraints: { require_sandbox: true, max_file_size: 100KiB }
  - name: newcomers
    match: { action: fs.write, caller_tag: [new_employee] }
    do: require_review
    except:
      - { path_glob: ["tests/**"] }
      - { caller_tag: [trusted_write] }
cases:
  - name: newcomers are reviewed outside tests
    as: { name: agent, tags: [new_employee], grants: ["*"], deny: [], workspace: ["*"], user: ["*"] }
    action: fs.write
    resource: /src/lib.rs
    context: { mode: strict, state: code_writing, template: code-executor, size: 10KiB, lines: 12 }
    expect: require_review
    because: [newcomers, "project:write-source"]
  - name: and not inside tests
    as: { name: agent, tags: [new_employee], grants: ["*"], workspace: ["*"], user: ["*"] }
    action: fs.write
    resource: /tests/a.rs
    context: { template: code-executor, size: 10KiB }
    expect: allow
  - name: not without a sandbox
    as: { name: agent, grants: ["*"], workspace: ["*"], user: ["*"] }
    action: fs.write
    resource: /src/a.rs
    context: { size: 1 }
    expect: deny
  - name: not above the ceiling
    as: { name: agent, grants: ["fs.read.*"], workspace: ["*"], user: ["*"] }
    action: fs.write
    resource: /src/a.rs
    context: { template: code-executor, size: 1 }
    expect: deny
    because: [grant]
"#;

#[test]
fn a_table_that_holds() {
    let table = TestTable::parse(TABLE).unwrap();
    assert_eq!(table.policy_path(), None);
    let engine = table.engine("").unwrap();
    let results = table.run(&engine, now(), &NoExtensions);
    assert_eq!(results.len(), 4);
    for result in results {
        assert!(result.holds(), "{result:?}");
    }
}

#[test]
fn a_table_that_does_not_hold_says_which_case_and_how() {
    let text = TABLE
        .replace("expect: allow", "expect: deny")
        .replace("[grant]", "[grant, other]");
    let table = TestTable::parse(&text).unwrap();
    let engine = table.engine("").unwrap();
    let failed: Vec<_> = table
        .run(&engine, now(), &NoExtensions)
        .into_iter()
        .filter(|result| !result.holds())
        .collect();
    assert_eq!(failed.len(), 2);
    assert_eq!((failed[0].line, failed[0].actual), (21, Verdict::Allow));
    assert_eq!(failed[1].silent, ["other"]);
    assert_eq!(failed[1].spoke, ["engine:grant"]);
}

#[test]
fn a_table_may_name_a_file_and_extensions() {
    let text = "policy: p.yaml\nextensions: [a.ts]\ncases:\n  - { name: n, as: { name: a, grants: [\"*\"], workspace: [\"*\"], user: [\"*\"] }, action: git.log, expect: deny, because: [guard] }\n";
    let table = TestTable::parse(text).unwrap();
    assert_eq!(
        (table.policy_path(), table.extension_paths()),
        (Some("p.yaml"), &["a.ts".to_owned()][..])
    );
    assert!(table.engine("version: 9").is_err());
    let engine = table
        .engine("version: 1\ncapabilities: [ { name: x, match: {}, do: allow } ]")
        .unwrap();
    let guard = Scripted::new(&[("guard", Opinion::Deny)]);
    assert!(table.run(&engine, now(), &guard)[0].holds());
    assert!(!table.run(&engine, now(), &NoExtensions)[0].holds());
}

#[test]
fn broken_tables_are_refused_with_their_place() {
    for (text, place, what) in [
        (
            "cases: []\n",
            (1, 1),
            "the table needs either `policy` or `rules`",
        ),
        (
            "policy: a\nrules: []\ncases: []\n",
            (1, 9),
            "the table needs either `policy` or `rules`",
        ),
        (
            "policy: a\ncases: []\n",
            (2, 8),
            "a table has between 1 and 10000 cases",
        ),
        ("policy: a\n", (1, 1), "the test table has no `cases`"),
        (
            "policy: a\ncases: [ { name: x } ]\n",
            (2, 10),
            "the case has no `action`",
        ),
        (
            "policy: a\ncases: [ { name: x, action: fs.read, expect: maybe, as: { name: a } } ]\n",
            (2, 46),
            "`maybe` is not a decision",
        ),
        (
            "policy: a\ncases: [ { name: x, action: fs.read, expect: deny, as: { name: a, deny: [\"a..b\"] } } ]\n",
            (2, 56),
            "`deny_capabilities` has the unusable pattern `a..b`",
        ),
        (
            "policy: a\ncases: [ { name: x, action: fs.read, expect: deny, as: { name: a, nme: a } } ]\n",
            (2, 67),
            "unknown field `nme` in `as`",
        ),
        (
            "rules: [ { name: r, match: { action: zap }, do: deny } ]\ncases: [ { name: x, action: fs.read, expect: deny, as: { name: a } } ]\n",
            (1, 38),
            "`zap` is not a known action",
        ),
    ] {
        let refused = TestTable::parse(text).expect_err(text);
        let first = &refused.first;
        assert_eq!(
            ((first.place.line, first.place.column), first.what.as_str()),
            (place, what),
            "{text}"
        );
        assert!(!first.help.is_empty());
    }
}

fn recorded(engine: &Engine, request: &Request) -> DecisionRecord {
    DecisionRecord::of(&decide(engine, request), request)
}

#[test]
fn a_recorded_decision_reads_back_and_is_canonical() {
    let engine = engine("  - { name: look, match: {}, do: require_review, reason: why }\n");
    let record = recorded(&engine, &write_to("/src/é"));
    let value = serde_json::to_value(&record).unwrap();
    let text = fluffy_base::canonical::to_string(&value).unwrap();
    let back: DecisionRecord = serde_json::from_str(&text).unwrap();
    assert_eq!(back, record);
    assert_eq!(value["verdict"], "require_review");
    assert_eq!(value["spoke"][0]["rule"], "look");
    assert_eq!(value["policy"], engine.digest().to_string());
    assert_eq!(decide(&engine, &back.request).verdict(), record.verdict);
}

#[test]
fn a_trial_shows_only_differences_by_class() {
    let old = engine(concat!(
        "  - { name: a, match: { action: fs.write, path_glob: [a, b, same] }, do: allow }\n",
        "  - { name: look, match: { action: fs.write, path_glob: [look] }, do: require_review }\n",
    ));
    let new = engine(concat!(
        "  - { name: a, match: { action: fs.write, path_glob: [b, c, same] }, do: allow }\n",
        "  - { name: look, match: { action: fs.write, path_glob: [b] }, do: require_review, reason: b is new }\n",
    ));
    let records: Vec<DecisionRecord> = ["/a", "/b", "/c", "/look", "/same", "/none"]
        .iter()
        .map(|path| recorded(&old, &write_to(path)))
        .collect();
    let side = |engine| Side {
        engine,
        extensions: &NoExtensions,
    };
    let report = trial::compare(side(&old), side(&new), &records);
    let found: Vec<_> = report
        .changes
        .iter()
        .map(|change| (change.resource.as_deref().unwrap(), change.class))
        .collect();
    assert_eq!(
        found,
        [
            ("/a", Class::Breaking),
            ("/b", Class::NewlyReviewed),
            ("/c", Class::NewlyAllowed),
            ("/look", Class::NewlyDenied),
        ]
    );
    assert_eq!(
        (report.changed, report.breaking, report.unchanged),
        (4, 1, 2)
    );
    assert_eq!(report.changes[1].because, ["b is new"]);
    assert!(!report.needs_confirmation());
    let same = trial::compare(side(&old), side(&old), &records);
    assert_eq!((same.changes.len(), same.unchanged), (0, 6));
    let many: Vec<_> = std::iter::repeat_n(records[0].clone(), 6).collect();
    assert!(trial::compare(side(&old), side(&new), &many).needs_confirmation());
}

#[test]
fn a_left_out_field_that_a_rule_needs_cannot_be_replayed() {
    let old = engine("  - { name: a, match: { action: fs.write }, do: allow }\n");
    let new = engine("  - { name: a, match: { action: fs.write, tenant: acme }, do: allow }\n");
    let side = |engine| Side {
        engine,
        extensions: &NoExtensions,
    };
    let mut record = recorded(&old, &write_to("/a"));
    record.request.context.redacted = [(Field::Tenant, Digest::of(b"key and tenant"))].into();
    let same = trial::compare(side(&old), side(&old), [&record]);
    assert_eq!(same.unchanged, 1, "no rule of the old policy looks at it");
    let report = trial::compare(side(&old), side(&new), [&record]);
    assert_eq!((report.not_replayed, report.changed), (1, 0));
    assert_eq!(report.changes[0].class, Class::CannotReplay);
    assert_eq!(
        report.changes[0].because,
        ["`project:a` looks at `tenant`, which was left out"]
    );
    let guard = Scripted::new(&[("guard", Opinion::Pass)]);
    let guarded = Side {
        engine: &old,
        extensions: &guard,
    };
    assert_eq!(trial::compare(guarded, guarded, [&record]).not_replayed, 1);
    record.request.resource = None;
    record.request.context.redacted = [(Field::Path, Digest::of(b"key and path"))].into();
    assert_eq!(
        trial::compare(side(&old), side(&old), [&record]).not_replayed,
        1
    );
    let unknown = DecisionRecord {
        v: 2,
        ..recorded(&old, &write_to("/a"))
    };
    assert_eq!(
        trial::compare(side(&old), side(&old), [&unknown]).not_replayed,
        1
    );
}

#[test]
fn an_explanation_shows_every_rule_about_the_action() {
    let engine = engine(concat!(
        "  - { name: yes, match: { action: fs.write }, do: allow }\n",
        "  - { name: elsewhere, match: { action: fs.write, path_glob: [x] }, do: deny }\n",
        "  - { name: excepted, match: {}, do: deny, except: [ { caller: other }, { caller: agent } ] }\n",
        "  - { name: unmet, match: {}, do: allow, constraints: { max_lines: 3 } }\n",
        "  - { name: unrelated, match: { action: fs.read }, do: deny }\n",
    ));
    let explanation = engine.explain(&write_to("/a"), now(), &NoExtensions);
    assert_eq!(explanation.decision.verdict, Verdict::Allow);
    let found: Vec<_> = explanation
        .rules
        .iter()
        .filter(|each| each.line > 0)
        .map(|each| {
            (
                each.rule.as_str(),
                each.outcome,
                each.because.as_str(),
                each.line,
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            ("yes", Consideration::Allowed, "it matches", 3),
            (
                "elsewhere",
                Consideration::NotMatched,
                "`path_glob` does not match",
                4
            ),
            (
                "excepted",
                Consideration::Excepted,
                "`except` number 2 matches",
                5
            ),
            ("unmet", Consideration::Unmet, "`max_lines` is not met", 6),
        ]
    );
    assert!(serde_json::to_value(&explanation).is_ok());
    let unknown = engine.explain(&request("fs.zap", None), now(), &NoExtensions);
    assert_eq!(
        (unknown.decision.verdict, unknown.rules.len()),
        (Verdict::Deny, 0)
    );
}

#[test]
fn without_a_project_policy_the_starter_holds() {
    let engine = Engine::load(&Sources::default(), 1).unwrap();
    let mut write = write_to("/src/lib.rs");
    write.context.size = Some(100);
    assert_eq!(decide(&engine, &write).verdict(), Verdict::Allow);
    write.principal.sandbox = None;
    assert_eq!(
        decide(&engine, &write).verdict(),
        Verdict::Deny,
        "never outside a sandbox"
    );
    for (action, resource, expected) in [
        ("fs.read", Some("/src/lib.rs"), Verdict::Allow),
        ("fs.read", Some("/.env"), Verdict::Deny),
        ("fs.read", Some("/.env.example"), Verdict::Allow),
        ("fs.read", Some("/keys/server.pem"), Verdict::Deny),
        ("fs.read", Some("@host/etc/passwd"), Verdict::Deny),
        ("fs.write", Some("/.git/hooks/pre-commit"), Verdict::Deny),
        ("fs.write", Some("/.fluffy/policy.yaml"), Verdict::Deny),
        (
            "fs.write",
            Some("/.github/workflows/ci.yml"),
            Verdict::RequireReview,
        ),
        ("net.connect", Some("example.com:443"), Verdict::Deny),
        (
            "sandbox.exec",
            Some("code-executor"),
            Verdict::RequireReview,
        ),
        ("policy.update", Some("project"), Verdict::RequireReview),
        ("plugins.install", Some("jira"), Verdict::RequireReview),
        ("plugin.jira.create", None, Verdict::Allow),
        ("plugins.disable", Some("jira"), Verdict::Allow),
        ("git.status", None, Verdict::Allow),
        ("git.commit", None, Verdict::Deny),
        ("instance.exec", Some("acme/shop/prod"), Verdict::Deny),
    ] {
        let decision = decide(&engine, &request(action, resource));
        assert_eq!(
            decision.verdict(),
            expected,
            "{action} {resource:?} {:?}",
            spoke(&decision)
        );
    }
}
