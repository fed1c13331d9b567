//! Whole decisions with real workers: the normative cases that need a script.
//!
//! The policy crate tests all 26 with a double; these are the two in which the
//! double stands for a process.

use std::sync::Arc;

use fluffy_base::Timestamp;
use fluffy_policy::builtin::Builtins;
use fluffy_policy::decision::{Decision, Verdict};
use fluffy_policy::document::PolicyFile;
use fluffy_policy::engine::Engine;
use fluffy_policy::extension::NoExtensions;
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::rule::Origin;
use fluffy_script::Health;

use crate::support::{NOW, PATIENT, Stage, evaluate, request};

const ALLOW: &str = "
version: 1
capabilities:
  - name: write-anything
    match: { action: fs.write, path_glob: ['**'] }
    do: allow
";

/// An engine whose only rule is a built-in that allows writing.
fn engine() -> Engine {
    let file = PolicyFile::parse(ALLOW, Origin::Project).unwrap();
    Engine::build_with_builtins(Vec::new(), 1, Builtins::from_file(&file))
}

fn decide(stage: &Stage, resource: &str) -> Decision {
    let request = granted(resource);
    engine().evaluate(&request, Timestamp::from_micros(NOW), &stage.host)
}

fn granted(resource: &str) -> fluffy_policy::Request {
    let all = || vec!["*".to_owned()];
    let lists = GrantLists {
        capabilities: all(),
        deny_capabilities: Vec::new(),
        workspace: all(),
        user: all(),
    };
    let mut request = request("fs.write", resource);
    request.principal.grant = Some(Arc::new(Grant::build(&lists).unwrap()));
    request
}

#[test]
fn case_05_built_in_allows_and_an_extension_denies() {
    let alone = engine().evaluate(
        &granted("/src/lib.rs"),
        Timestamp::from_micros(NOW),
        &NoExtensions,
    );
    assert_eq!(alone.verdict(), Verdict::Allow, "{alone:?}");
    let denying = evaluate("return { verdict: 'deny', reason: 'not on a Sunday' }");
    let decision = decide(&Stage::new(&[("guard", &denying)], PATIENT), "/src/lib.rs");
    assert_eq!(decision.verdict(), Verdict::Deny);
    let reasons: Vec<&str> = decision.reasons().collect();
    assert!(
        reasons
            .iter()
            .any(|reason| reason.contains("not on a Sunday")),
        "{reasons:?}"
    );
}

#[test]
fn case_20_an_extension_crashes() {
    let fragile = evaluate(
        "if (request.resource === '/bad') throw new Error('boom');
         return 'pass'",
    );
    let stage = Stage::new(&[("guard", &fragile)], PATIENT);
    assert_eq!(decide(&stage, "/good").verdict(), Verdict::Allow);
    // The crash denies, and costs one restart.
    assert_eq!(decide(&stage, "/bad").verdict(), Verdict::Deny);
    assert!(matches!(
        stage.health("guard"),
        Health::Running { restarts: 1, .. }
    ));
    assert_eq!(decide(&stage, "/good").verdict(), Verdict::Allow);
    // A second one disables: now everything it guards is denied.
    assert_eq!(decide(&stage, "/bad").verdict(), Verdict::Deny);
    let disabled = decide(&stage, "/good");
    assert_eq!(disabled.verdict(), Verdict::Deny);
    let reasons: Vec<&str> = disabled.reasons().collect();
    assert!(
        reasons.iter().any(|reason| reason.contains("disabled")),
        "{reasons:?}"
    );
}
