//! Every way in which a policy file can be wrong: where, what, how to fix it.
//!
//! One table; each row is the text and the first error's line, column, message
//! and help, so that changing a message is a visible change.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use fluffy_policy::diagnostic::Severity;
use fluffy_policy::document::PolicyFile;
use fluffy_policy::rule::Origin;
use proptest::prelude::*;

type Row = (&'static str, u32, u32, &'static str, &'static str);

const ROWS: &[Row] = &[
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
        "version: \"1\"\n",
        1,
        10,
        "this version of policies is not known",
        "write `version: 1`",
    ),
    (
        "version: 1\nrules: []\n",
        2,
        1,
        "unknown field `rules` in the policy",
        "use one of version, capabilities, network_allow, templates, tdd_exemptions, sanitize",
    ),
    (
        "version: 1\ncapabilites: []\n",
        2,
        1,
        "unknown field `capabilites` in the policy",
        "did you mean `capabilities`?",
    ),
    (
        "- a\n",
        1,
        1,
        "the policy is a list",
        "write a mapping such as `{ field: value }`",
    ),
    (
        "version: 1\ncapabilities: yes\n",
        2,
        15,
        "`capabilities` is a single value",
        "write a list such as `[a, b]`",
    ),
    (
        "version: 1\ncapabilities:\n  - name: a\n    match: {}\n",
        3,
        5,
        "the rule has no `do`",
        "write `do: allow`, `do: deny` or `do: require_review`",
    ),
    (
        "version: 1\ncapabilities:\n  - name: a\n    do: deny\n",
        3,
        5,
        "the rule has no `match`",
        "write `match: {}` if every request is meant",
    ),
    (
        "version: 1\ncapabilities:\n  - match: {}\n    do: deny\n",
        3,
        5,
        "the rule has no `name`",
        "give the rule a name of its own",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: {}, do: permit }\n",
        3,
        31,
        "`permit` is not an effect",
        "write `do: allow`, `do: deny` or `do: require_review`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { acton: fs.read }, do: deny }\n",
        3,
        25,
        "unknown field `acton` in `match`",
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
        "version: 1\ncapabilities:\n  - { name: a, match: { action: nothing.like }, do: deny }\n",
        3,
        33,
        "`nothing.like` is not a known action",
        "see the list in the policy guide; a plugin's are `plugin.<name>.*`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { mode: stirct }, do: deny }\n",
        3,
        31,
        "`stirct` is not a mode",
        "did you mean `strict`?",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { state: [idle, x] }, do: deny }\n",
        3,
        39,
        "`x` is not a workflow state",
        "use one of idle, planning, test_writing, code_writing, exploring, retroactive_testing, validating, reviewing, committing",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { tier: vm }, do: deny }\n",
        3,
        31,
        "`vm` is not a tier",
        "use one of wasm, process, container, microvm",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { path_glob: [\"a\", \"[b\"] }, do: deny }\n",
        3,
        42,
        "`[b` has a broken `[…]`",
        "close the `[`, or write `\\[` for the character",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { path_glob: [\"!a\"] }, do: deny }\n",
        3,
        36,
        "every glob starts with `!`, so nothing can match",
        "add what to include, such as `**`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { path_glob: \"@home/x\" }, do: deny }\n",
        3,
        36,
        "`@home/x` starts with a root that does not exist",
        "use `@data/` or `@host/`, or `\\@` for the character",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { path_glob: \"../x\" }, do: deny }\n",
        3,
        36,
        "`../x` has a `.`, `..` or `//`, which no path has",
        "write the path as it is after normalising",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { host: \"a b\" }, do: deny }\n",
        3,
        31,
        "`a b` is not a host",
        "write `example.com:443` or `*.example.com:443`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { size: 100 }, do: deny }\n",
        3,
        31,
        "`100` is not a comparison",
        "write for example `\"> 100\"`, in quotes",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { size: \"> 1kb\" }, do: deny }\n",
        3,
        31,
        "`kb` is not a unit of size; use one of KiB, MiB, GiB (binary), KB, MB, GB (decimal), or none for bytes",
        "write for example `100KiB`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: { lines: \"> 1KiB\" }, do: deny }\n",
        3,
        32,
        "`1KiB` is not a whole number",
        "write digits alone, such as `500`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: {}, do: allow, constraints: { max_file_size: 1 MiB } }\n",
        3,
        68,
        "` MiB` is not a unit of size; use one of KiB, MiB, GiB (binary), KB, MB, GB (decimal), or none for bytes",
        "write for example `100KiB`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: {}, do: allow, constraints: { require_sandbox: yes } }\n",
        3,
        70,
        "`require_sandbox` is neither true nor false",
        "write `true` or `false`, without quotes",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: {}, do: deny, constraints: { max_lines: 1 } }\n",
        3,
        50,
        "constraints on a rule that does not allow",
        "move what it says into `match`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: {}, do: deny }\n  - { name: a, match: {}, do: deny }\n",
        4,
        13,
        "the name `a` is taken",
        "give each rule its own name",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: \"a:b\", match: {}, do: deny }\n",
        3,
        13,
        "this is not a name for a rule",
        "use up to 128 letters, digits, spaces, `_`, `.` and `-`",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: {}, do: deny, except: [ {} ] }\n",
        3,
        47,
        "an `except` without conditions",
        "say what is excepted, or remove the rule",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: {}, do: deny, except: [ { caller: x, except: [] } ] }\n",
        3,
        60,
        "an `except` inside an `except`",
        "write a second rule",
    ),
    (
        "version: 1\ncapabilities:\n  - { name: a, match: {}, do: deny, reason: }\n",
        3,
        43,
        "`reason` is nothing",
        "write a single value",
    ),
    (
        "version: 1\nnetwork_allow: { g: [\"a.com\"] }\n",
        2,
        22,
        "`a.com` has no port",
        "write `example.com:443` or `*.example.com:443`",
    ),
    (
        "version: 1\ntdd_exemptions: { docs: [\"*.md\"] }\n",
        2,
        19,
        "`docs` is not a category of exemptions",
        "use one of config_change, type_refactor, documentation, asset_update",
    ),
    (
        "version: 1\nsanitize: { pattern: [] }\n",
        2,
        13,
        "unknown field `pattern` in `sanitize`",
        "did you mean `patterns`?",
    ),
    // YAML that a reviewer could misread, or that is none.
    (
        "version: 1\nversion: 1\n",
        2,
        1,
        "`version` is given twice",
        "keep one of them",
    ),
    (
        "version: 1\ncapabilities: &a []\n",
        2,
        18,
        "an anchor or alias",
        "write the value out, or quote it if it is meant as text",
    ),
    (
        "version: 1\nsanitize: { <<: { patterns: [] } }\n",
        2,
        13,
        "a merge key `<<`",
        "write the fields out",
    ),
    (
        "version: !!int 1\n",
        1,
        16,
        "the tag `!!int`",
        "remove it, or quote the value if it is meant as text",
    ),
    (
        "version: 1\n---\nversion: 1\n",
        2,
        1,
        "a second document",
        "remove the `---` and what follows it",
    ),
    (
        "version: 1\n? [a]\n: b\n",
        2,
        3,
        "a key that is not text",
        "write `name: value`",
    ),
];

#[test]
fn every_mistake_has_its_place_and_its_remedy() {
    for (text, line, column, what, help) in ROWS {
        let refused = PolicyFile::parse(text, Origin::Project).expect_err(text);
        let first = &refused.first;
        assert_eq!(first.severity, Severity::Error);
        assert_eq!(
            (
                first.place.line,
                first.place.column,
                first.what.as_str(),
                first.help.as_str()
            ),
            (*line, *column, *what, *help),
            "{text}"
        );
        assert!(!first.why.is_empty(), "{text}");
        assert!(
            first.place.offset + first.place.length <= text.len(),
            "{text}"
        );
    }
}

#[test]
fn syntax_errors_point_at_the_line() {
    for (text, line) in [
        ("version: 1\ncapabilities: [\n", 2),
        ("version: 1\n\tcapabilities: []\n", 1),
        ("version: \"1\n", 2),
        ("%YAML 1.2\n---\nversion: 1\n", 1),
        ("version: 1\nsanitize: *nowhere\n", 2),
        ("a: b: c\n", 1),
        (
            "version: 1\ncapabilities:\n  - { name: a, match: { size: > 1MiB }, do: deny }\n",
            3,
        ),
    ] {
        let refused = PolicyFile::parse(text, Origin::Project).expect_err(text);
        assert_eq!(refused.first.place.line, line, "{text}: {}", refused.first);
        assert!(!refused.first.help.is_empty());
    }
}

#[test]
fn several_mistakes_are_reported_together_in_order() {
    let text = "version: 3\ncapabilities:\n  - { name: a, match: { mode: x }, do: deny }\n  - { name: b, match: {}, do: no }\n";
    let refused = PolicyFile::parse(text, Origin::Project).unwrap_err();
    let lines: Vec<u32> = refused.errors().map(|each| each.place.line).collect();
    assert_eq!(lines, [1, 3, 4]);
    assert_eq!(
        refused.to_string(),
        "`project` is refused at 1:10: this version of policies is not known"
    );
}

#[test]
fn an_organisation_can_only_narrow() {
    let allow = "version: 1\ncapabilities:\n  - { name: a, match: {}, do: allow }\n";
    let refused = PolicyFile::parse(allow, Origin::Organisation).unwrap_err();
    assert_eq!(
        refused.first.to_string(),
        "3:31: an organisation's file cannot allow"
    );
    let hosts = "version: 1\nnetwork_allow: { g: [\"a.com:1\"] }\n";
    assert!(PolicyFile::parse(hosts, Origin::Organisation).is_err());
    assert!(PolicyFile::parse(hosts, Origin::User).is_ok());
    let deny = allow.replace("do: allow", "do: deny");
    assert!(PolicyFile::parse(&deny, Origin::Organisation).is_ok());
}

#[test]
fn bombs_are_refused_before_they_go_off() {
    let huge = format!("version: 1\n# {}\n", "x".repeat(9 << 20));
    let refused = PolicyFile::parse(&huge, Origin::Project).unwrap_err();
    assert!(
        refused.first.what.starts_with("the text has "),
        "{}",
        refused.first
    );
    let scalar = format!(
        "version: 1\nsanitize: {{ patterns: [\"{}\"] }}\n",
        "x".repeat(70_000)
    );
    let refused = PolicyFile::parse(&scalar, Origin::Project).unwrap_err();
    assert_eq!(refused.first.what, "a value of 70000 bytes");
    let deep = format!(
        "version: 1\nsanitize: {}{}\n",
        "[".repeat(5_000),
        "]".repeat(5_000)
    );
    assert!(PolicyFile::parse(&deep, Origin::Project).is_err());
    let block: String = (0..200)
        .map(|depth| format!("{}- \n", " ".repeat(depth)))
        .collect();
    assert!(
        PolicyFile::parse(&format!("version: 1\nsanitize:\n{block}"), Origin::Project).is_err()
    );
    let laughs = "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n";
    assert!(PolicyFile::parse(laughs, Origin::Project).is_err());
    let list = format!(
        "version: 1\ncapabilities:\n  - {{ name: a, match: {{ caller: [{}] }}, do: deny }}\n",
        "x,".repeat(5_000)
    );
    assert!(PolicyFile::parse(&list, Origin::Project).is_err());
}

#[test]
fn pointless_rules_are_warned_about() {
    let rules = "version: 1\ncapabilities:\n\
        \x20 - { name: no-secrets, match: { path_glob: [\"secrets/**\"] }, do: deny }\n\
        \x20 - { name: shadowed, match: { action: fs.read, path_glob: [\"secrets/public/**\"] }, do: allow }\n\
        \x20 - { name: wider, match: { action: fs.read, path_glob: [\"secrets/public/**\", \"a/**\"] }, do: allow }\n\
        \x20 - { name: idle, match: {}, do: pass }\n\
        \x20 - { name: nowhere, match: { host: [] }, do: deny }\n";
    let file = PolicyFile::parse(rules, Origin::Project).unwrap();
    let found: Vec<String> = file.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "4:13: `shadowed` is shadowed by the deny `no-secrets`",
            "6:13: `idle` passes, which has no effect",
            "7:37: `host` is empty and matches nothing",
        ]
    );
    assert!(
        file.warnings()
            .iter()
            .all(|each| each.severity == Severity::Warning)
    );
}

#[test]
fn a_deny_with_an_exception_shadows_nothing() {
    let rules = "version: 1\ncapabilities:\n\
        \x20 - { name: deny, match: { action: fs.read }, do: deny, except: [ { caller: x } ] }\n\
        \x20 - { name: allow, match: { action: fs.read }, do: allow }\n";
    assert_eq!(
        PolicyFile::parse(rules, Origin::Project)
            .unwrap()
            .warnings(),
        []
    );
}

proptest! {
    #[test]
    fn no_text_panics(text in "(version: 1\n)?[ -~\n]{0,200}") {
        let _ = PolicyFile::parse(&text, Origin::Project);
    }

    #[test]
    fn no_mutation_of_a_real_policy_panics(at in 0usize..6_000, with in "[ -~\n\t]{0,4}", drop in 0usize..20) {
        let text = fluffy_policy::starter::STARTER;
        let at = text.floor_char_boundary(at.min(text.len()));
        let end = text.floor_char_boundary((at + drop).min(text.len()));
        let broken = format!("{}{with}{}", &text[..at], &text[end.max(at)..]);
        let _ = PolicyFile::parse(&broken, Origin::Project);
    }
}
