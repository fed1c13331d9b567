//! Every tool once: that it is known to policy, fits its schema, and says no well.

use std::path::Path;
use std::time::Duration;

use fluffy_contract::tool::{Access, Area, Effect, Need, Place, Repeat, Touch};
use fluffy_policy::action::{self, ResourceKind};
use fluffy_policy::capability::{Capability, Pattern};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::built_in;

fn registry() -> Registry {
    Registry::standard(ProjectPaths::new(Path::new("/home/me/project")))
}

/// A tool, arguments that fit it, and the actions and resources it then needs.
type Example = (
    &'static str,
    Value,
    Vec<(&'static str, Option<&'static str>)>,
);

/// One good call of each tool, and what it needs.
fn examples() -> Vec<Example> {
    let patch = "*** Begin Patch\n*** Add File: new.rs\n+x\n*** Delete File: old.rs\n\
                 *** Update File: a.rs\n@@\n-1\n+2\n*** Update File: b.rs\n*** Move to: c.rs\n\
                 @@\n-1\n+2\n*** End Patch";
    vec![
        (
            "fs.read",
            json!({"path": "src/lib.rs", "start_line": 3}),
            vec![("fs.read", Some("/src/lib.rs"))],
        ),
        ("fs.list", json!({}), vec![("fs.list", Some("/"))]),
        (
            "fs.exists",
            json!({"path": "/etc/passwd"}),
            vec![("fs.exists", Some("@host/etc/passwd"))],
        ),
        (
            "search.grep",
            json!({"pattern": "fn", "path": "src", "globs": ["*.rs"], "show": "files"}),
            vec![("search.grep", Some("/src"))],
        ),
        (
            "search.glob",
            json!({"pattern": "*.rs"}),
            vec![("search.glob", Some("/"))],
        ),
        (
            "fs.write",
            json!({"path": "a", "content": ""}),
            vec![("fs.write", Some("/a"))],
        ),
        (
            "fs.edit",
            json!({"path": "a", "old": "x", "new": "y"}),
            vec![("fs.edit", Some("/a"))],
        ),
        (
            "fs.edit",
            json!({"patch": patch}),
            vec![
                ("fs.write", Some("/new.rs")),
                ("fs.remove", Some("/old.rs")),
                ("fs.edit", Some("/a.rs")),
                ("fs.read", Some("/b.rs")),
                ("fs.remove", Some("/b.rs")),
                ("fs.write", Some("/c.rs")),
            ],
        ),
        (
            "fs.remove",
            json!({"path": "a"}),
            vec![("fs.remove", Some("/a"))],
        ),
        (
            "shell.exec",
            json!({"command": "ls", "seconds": 5}),
            vec![("shell.exec", None)],
        ),
        (
            "sandbox.exec",
            json!({"command": "ls"}),
            vec![("sandbox.exec", Some("code-executor"))],
        ),
        (
            "test.run",
            json!({"tests": ["a::b"]}),
            vec![("test.run", None)],
        ),
        ("git.status", json!({}), vec![("git.status", None)]),
        ("git.diff", json!({"path": "src"}), vec![("git.diff", None)]),
        ("git.log", json!({"count": 3}), vec![("git.log", None)]),
        (
            "git.commit",
            json!({"message": "done"}),
            vec![("git.commit", None)],
        ),
        (
            "plan.complete",
            json!({"summary": "s", "kind": "refactor"}),
            vec![("plan.complete", None)],
        ),
        (
            "workflow.transition",
            json!({"to": "validating"}),
            vec![("workflow.transition", Some("validating"))],
        ),
        (
            "workflow.request_exemption",
            json!({"category": "documentation", "paths": ["README.md"], "reason": "r"}),
            vec![("workflow.request_exemption", Some("documentation"))],
        ),
        (
            "workflow.test_is_wrong",
            json!({"tests": ["t"], "reason": "r"}),
            vec![("workflow.transition", Some("test_writing"))],
        ),
        (
            "workflow.set_mode",
            json!({"mode": "explore"}),
            vec![("session.mode", Some("explore"))],
        ),
    ]
}

#[test]
fn every_tool_has_an_example_that_fits_and_says_what_it_needs() {
    let registry = registry();
    let examples = examples();
    for (name, arguments, needs) in &examples {
        let checked = registry.check(name, arguments).unwrap();
        let expected: Vec<Need> = needs
            .iter()
            .map(|(action, resource)| Need {
                action: (*action).to_owned(),
                resource: resource.map(str::to_owned),
            })
            .collect();
        assert_eq!(checked.plan.needs, expected, "{name}");
        assert!(!checked.plan.touches.is_empty());
        // Providers spell names without dots.
        assert_eq!(
            registry
                .check(&name.replace('.', "_"), arguments)
                .unwrap()
                .tool,
            *name
        );
    }
    for tool in registry.descriptions() {
        assert!(
            examples.iter().any(|(name, ..)| *name == tool.name),
            "{}",
            tool.name
        );
    }
}

#[test]
fn every_need_is_known_to_policy() {
    for (name, arguments, _) in examples() {
        for need in registry().check(name, &arguments).unwrap().plan.needs {
            let action = action::find(&need.action).unwrap();
            assert_eq!(
                need.resource.is_none(),
                action.resource == ResourceKind::None,
                "{name}"
            );
        }
    }
}

#[test]
fn examples_fit_the_published_schemas_and_others_do_not() {
    let registry = registry();
    for (name, arguments, _) in examples() {
        let tool = registry
            .descriptions()
            .find(|tool| tool.name == name)
            .unwrap();
        let schema = jsonschema::validator_for(&tool.parameters).unwrap();
        assert!(schema.is_valid(&arguments), "{name}");
        let mut more = arguments.clone();
        more["nonsense"] = json!(1);
        assert!(!schema.is_valid(&more), "{name}");
        assert!(registry.check(name, &more).is_err(), "{name}");
    }
}

#[test]
fn reads_are_repeated_once_and_nothing_else_ever() {
    for (name, arguments, needs) in examples() {
        let handling = registry().check(name, &arguments).unwrap().handling;
        let is_read = needs.iter().all(|(action, _)| {
            matches!(
                *action,
                "fs.read"
                    | "fs.list"
                    | "fs.exists"
                    | "search.grep"
                    | "search.glob"
                    | "git.status"
                    | "git.diff"
                    | "git.log"
            )
        });
        let expected = match is_read {
            true => Repeat::Once {
                after: Duration::from_millis(100),
            },
            false => Repeat::Never,
        };
        assert_eq!(handling.repeat, expected, "{name}");
    }
}

#[test]
fn what_writes_is_never_native() {
    for (name, arguments, _) in examples() {
        let checked = registry().check(name, &arguments).unwrap();
        let writes = checked
            .plan
            .touches
            .iter()
            .any(|touch| touch.access == Access::Write);
        assert!(!writes || checked.handling.place != Place::Native, "{name}");
        if name == "shell.exec" {
            let everything = Touch {
                access: Access::Write,
                area: Area::Everything,
            };
            assert_eq!(checked.plan.touches, [everything]);
        }
    }
}

#[test]
fn messages_let_the_model_correct_itself() {
    let registry = registry();
    let message =
        |name: &str, arguments: Value| registry.check(name, &arguments).unwrap_err().to_string();
    assert_eq!(
        message("fs.read", json!({"file": "x"})),
        "`fs.read` takes {line_count?: integer, path: string, start_line?: integer}: unknown field \
         `file`, expected one of `path`, `start_line`, `line_count`"
    );
    assert!(message("fs.read", json!({})).ends_with("missing field `path`"));
    assert!(message("fs.read", json!({"path": 5})).contains("invalid type: integer `5`"));
    assert!(message("fs.read", json!("src")).contains("invalid type: string"));
    assert_eq!(
        message("read_file", json!({})),
        "there is no tool `read_file`; did you mean `fs.read`?"
    );
    assert_eq!(message("fly", json!({})), "there is no tool `fly`");
    assert!(message("fs.edit", json!({"path": "a", "old": "x"})).ends_with("or `patch` alone"));
    assert!(
        message("fs.edit", json!({"path": "a", "patch": "x"})).contains("names its files itself")
    );
    assert!(message("fs.edit", json!({"patch": "x"})).contains("*** Begin Patch"));
    assert!(message("git.commit", json!({"message": " "})).contains("empty"));
    assert!(message("workflow.transition", json!({"to": "done"})).contains("`validating`"));
}

#[test]
fn the_list_of_tools_is_short() {
    let list = registry().summaries();
    // No tokenizer needs more than one token for two characters of plain English.
    assert!(list.len() / 2 < 3_000, "{}", list.len());
    assert!(list.lines().all(|line| line.len() <= 160), "{list}");
    assert_eq!(list.lines().count(), registry().descriptions().count());
}

#[test]
fn too_much_is_refused_before_it_is_read() {
    let content = "x".repeat(MAX_ARGUMENT_BYTES);
    let error = registry()
        .check("fs.write", &json!({"path": "a", "content": content}))
        .unwrap_err();
    assert!(matches!(error, CheckCallError::TooLarge { .. }));
    let tests: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    assert!(
        registry()
            .check("test.run", &json!({"tests": tests}))
            .is_err()
    );
}

/// Values that look like arguments, and some that do not.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "(\\PC|/|\\.\\.|\n){0,12}".prop_map(Value::from),
    ];
    let keys = "(path|content|patch|old|new|pattern|globs|tests|to|mode|x)";
    leaf.prop_recursive(3, 16, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(keys, inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_a_model_sends_is_read_or_refused(arguments in json(), index in any::<prop::sample::Index>()) {
        let registry = registry();
        let names: Vec<String> = registry.descriptions().map(|tool| tool.name.clone()).collect();
        let name = &names[index.index(names.len())];
        if let Ok(checked) = registry.check(name, &arguments) {
            prop_assert!(!checked.plan.needs.is_empty());
        }
    }
}

/// What a manifest declares is what there is: no tool without a line, none more
/// than its family's capabilities, none that acts and says that it reads.
#[test]
fn every_tool_does_what_its_manifest_declares_and_no_more() {
    let registry = registry();
    let declared = built_in::declared();
    let known: Vec<&str> = registry.descriptions().map(|tool| &*tool.name).collect();
    for tool in registry.descriptions() {
        let declared = &declared[&tool.name];
        assert_eq!(tool.summary, declared.summary);
        assert!(!tool.summary.is_empty(), "{}", tool.name);
    }
    for name in declared.keys() {
        assert!(
            known.contains(&name.as_str()),
            "{name} is declared and not there"
        );
    }
    for (name, arguments, _) in examples() {
        let checked = registry.check(name, &arguments).unwrap();
        let declared = &declared[name];
        for Need { action, resource } in &checked.plan.needs {
            let text = match resource {
                Some(resource) => format!("{action}.{resource}"),
                None => action.clone(),
            };
            let capability = Capability::parse(text).unwrap();
            let is_declared = |pattern: &Pattern| pattern.matches(&capability);
            assert!(
                declared.capabilities.iter().any(is_declared),
                "{name} needs {capability:?}"
            );
        }
        let writes = |touch: &Touch| touch.access == Access::Write;
        let acts = checked.plan.touches.iter().any(writes);
        assert_eq!(acts, declared.effect == Effect::Acts, "{name}");
        // What acts is never made twice.
        assert!(!acts || checked.handling.repeat == Repeat::Never, "{name}");
    }
}
