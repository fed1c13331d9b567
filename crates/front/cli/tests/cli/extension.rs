//! Extensions of a policy, with the real worker, from proposal to decision.

use std::fs;

use crate::site::Site;

const POLICY: &str = r#"version: 1
capabilities:
  - { name: work, match: { action: [fs.read, fs.write], path_glob: ["**"] }, do: allow }
"#;

const GUARD: &str = r#"
export const actions = ["fs.write"];
export function evaluate(request: { resource?: string }): string | object {
  const path: string = request.resource ?? "";
  if (path.includes("crash")) throw new Error("out of order");
  if (path.includes("loop")) for (;;) {}
  if (path.includes("nonsense")) return "perhaps";
  if (path.endsWith(".generated.rs")) return { verdict: "deny", reason: "Generated" };
  if (path.endsWith(".lock")) return { verdict: "require_review", reason: "Locked" };
  return "pass";
}
"#;

fn guarded() -> Site {
    let site = Site::initialised();
    site.context
        .write(".fluffy/policy.d/guard.ts", GUARD)
        .unwrap();
    site.apply(POLICY);
    site
}

#[test]
fn a_reviewed_extension_denies_and_asks() {
    let site = guarded();
    assert_eq!(site.decide("fs.write", "/src/lib.rs").code, Some(0));
    let finished = site.decide("fs.write", "/src/api.generated.rs");
    assert_eq!(finished.code, Some(3), "{}", finished.transcript());
    assert!(
        finished.stdout.contains("  Generated\n"),
        "{}",
        finished.stdout
    );
    assert_eq!(site.decide("fs.write", "/Cargo.lock").code, Some(8));
    assert_eq!(
        site.decide("fs.read", "/src/api.generated.rs").code,
        Some(0)
    );
    let shown = site.succeeds(&["policy", "explain", "fs.write", "/src/api.generated.rs"]);
    assert!(
        shown.contains("extensions") && shown.contains("guard"),
        "{shown}"
    );
    // It was pinned with the rules: the project's file no longer matters.
    fs::remove_file(site.project_file(".fluffy/policy.d/guard.ts")).unwrap();
    assert_eq!(
        site.decide("fs.write", "/src/api.generated.rs").code,
        Some(3)
    );
}

#[test]
fn an_extension_that_breaks_denies() {
    let site = guarded();
    for resource in ["/src/crash.rs", "/src/loop.rs", "/src/nonsense.rs"] {
        let finished = site.decide("fs.write", resource);
        assert_eq!(finished.code, Some(3), "{}", finished.transcript());
        assert!(
            finished.stdout.contains("the extension failed"),
            "{}",
            finished.transcript()
        );
        // What it does not guard goes on, and the next request is fresh.
        assert_eq!(site.decide("fs.read", resource).code, Some(0));
        assert_eq!(site.decide("fs.write", "/src/lib.rs").code, Some(0));
    }
}

#[test]
fn an_extension_that_cannot_be_loaded_is_not_applied() {
    let site = Site::initialised();
    site.context.write(".fluffy/policy.yaml", POLICY).unwrap();
    for (script, what) in [
        ("export function evaluate( {", "is refused at line 1"),
        ("export const actions = [\"fs.read\"];\n", "evaluate"),
        (
            "for (;;) {}\nexport function evaluate() { return \"pass\"; }\n",
            "guard",
        ),
        (
            "throw new Error(\"no\");\nexport function evaluate() { return \"pass\"; }\n",
            "guard",
        ),
    ] {
        site.context
            .write(".fluffy/policy.d/guard.ts", script)
            .unwrap();
        let finished = site.ends(2, &["policy", "apply", "--yes"]);
        assert!(
            finished.stderr.contains(what),
            "{what}\n{}",
            finished.stderr
        );
        assert!(finished.stderr.contains("  fix: "), "{}", finished.stderr);
        site.ends(2, &["policy", "check"]);
    }
    assert_eq!(crate::site::contents(&site.state().join("pins")), []);
}

#[test]
fn the_worker_is_not_a_command_for_people() {
    let site = Site::empty();
    assert!(!site.succeeds(&["--help"]).contains("worker"));
    site.ends(2, &["worker", "other"]);
    // Without a frame to read it ends, and prints nothing that is not one.
    let finished = site.run(&["worker", "policy-script"]);
    assert_eq!(finished.stdout, "", "{}", finished.transcript());
}
