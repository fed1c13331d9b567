//! `fluffy plugin test`: each fault is found by its own check, and no other is.

use std::os::unix::fs::PermissionsExt as _;

use fluffy_test_kit::GoPlugins;
use serde_json::Value;

use super::target;
use crate::site::Site;

const FAULTY: &str = include_str!("faulty.py");

/// What the suite says about a plugin, which ends with this code.
pub(super) fn findings(site: &Site, code: i32, folder: &str) -> Value {
    let said = site.json(code, &["plugin", "test", folder]);
    assert_eq!(said["v"], 1);
    assert_eq!(said["ok"], code == 0, "{said}");
    assert_eq!(said["checks"].as_array().unwrap().len(), 14);
    said
}

/// The checks with this outcome.
pub(super) fn names(findings: &Value, outcome: &str) -> Vec<String> {
    let checks = findings["checks"].as_array().unwrap().iter();
    let checks = checks.filter(|check| check["outcome"] == outcome);
    checks
        .map(|check| check["check"].as_str().unwrap().to_owned())
        .collect()
}

/// What does not hold, for a plugin that should be whole.
pub(super) fn broken(site: &Site, folder: &str) -> Vec<String> {
    let findings = findings(site, 0, folder);
    assert_eq!(names(&findings, "skipped"), [""; 0], "{findings}");
    names(&findings, "broken")
}

/// A plugin with one fault in its code, or in its manifest.
fn faulty(site: &Site, fault: &str) {
    let declared = match fault {
        "declares-too-much" => "forget",
        _ => "count",
    };
    let field = match fault {
        "bad-manifest" => "colour: blue\n",
        "for-another-version" => "dependencies: {}\n",
        _ => "",
    };
    let engine = match fault {
        "for-another-version" => ">=99",
        _ => ">=0.1",
    };
    let manifest = format!(
        "name: faulty\nversion: 1.0.0\ntype: tool\nengine: \"{engine}\"\napi: 1\n{field}\
         execution:\n  tier: process\n  command: [ /usr/bin/python3, server.py, \"{fault}\" ]\n  \
         protocol: mcp\n  limits: {{ call_timeout: 5s }}\n\
         lifecycle: {{ graceful_shutdown_timeout: 5s }}\n\
         tools:\n  - {{ name: count, summary: Counts., effect: reads }}\n  \
         - {{ name: {declared}2, summary: Counts., effect: acts }}\n"
    );
    // Only what is declared too much is declared twice.
    let manifest = match fault {
        "declares-too-much" => manifest,
        _ => manifest.replace("  - { name: count2, summary: Counts., effect: acts }\n", ""),
    };
    site.context.write("faulty/plugin.yaml", &manifest).unwrap();
    site.context.write("faulty/server.py", FAULTY).unwrap();
}

#[test]
fn each_fault_is_found_by_its_own_check() {
    let site = Site::initialised();
    faulty(&site, "none");
    assert_eq!(broken(&site, "faulty"), [""; 0], "the control");
    for (fault, check) in [
        ("bad-manifest", "manifest"),
        ("for-another-version", "manifest"),
        ("ends-at-once", "starts"),
        ("no-list", "speaks"),
        ("declares-too-much", "declared"),
        ("says-nothing", "described"),
        ("no-schema", "described"),
        ("unwell", "health"),
        ("lying-schema", "calls"),
        ("nonsense", "calls"),
        ("takes-anything", "wrong-arguments"),
        ("dies-of-wrong-arguments", "wrong-arguments"),
        ("takes-any-tool", "unknown-tool"),
        ("dies-of-an-unknown-tool", "unknown-tool"),
        ("dies-of-a-cancelled-call", "cancelled"),
        ("answers-one-of-two", "at-once"),
        ("ignores-its-end", "ends"),
        ("changes-its-words", "again"),
    ] {
        faulty(&site, fault);
        let found = findings(&site, 1, "faulty");
        assert_eq!(names(&found, "broken"), [check], "{fault}: {found}");
        let told = found["checks"].as_array().unwrap().iter();
        for one in told.filter(|one| one["outcome"] == "broken") {
            assert!(one["what"].as_str().unwrap().len() > 8, "{one}");
            assert!(one["fix"].as_str().unwrap().len() > 8, "{one}");
        }
    }
}

#[test]
fn people_get_a_line_for_each_check_and_what_to_do() {
    let site = Site::initialised();
    faulty(&site, "takes-anything");
    let said = site.ends(1, &["plugin", "test", "faulty"]).stdout;
    assert!(said.contains("✓  starts"), "{said}");
    assert!(said.contains("✗  wrong-arguments"), "{said}");
    assert!(said.contains("fix: check the arguments"), "{said}");
    assert!(said.contains("13 of 14 hold, 1 do not"), "{said}");
    // A folder without a plugin is no plugin that failed.
    site.context.write("empty/a.txt", "").unwrap();
    site.json_error(4, &["plugin", "test", "empty"]);
    // Nothing is installed, and nothing is left.
    assert!(site.succeeds(&["plugin", "list"]).is_empty());
    let left = std::fs::read_dir(site.state().join("bench")).unwrap();
    assert_eq!(left.count(), 0);
}

#[test]
fn a_program_of_go_plugin_keeps_it_too() {
    let site = Site::initialised();
    let program = GoPlugins::build(target()).unwrap().tool();
    let manifest = "name: tool\nversion: 1.0.0\ntype: tool\nengine: \">=0.1\"\napi: 1\n\
                    execution: { tier: process, command: [ ./tool ], protocol: go-plugin }\n\
                    tools: [ { name: echo, summary: Says it again., effect: reads } ]\n";
    site.context.write("tool/plugin.yaml", manifest).unwrap();
    let place = site.project_file("tool/tool");
    std::fs::copy(program, &place).unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(broken(&site, "tool"), [""; 0]);
}
