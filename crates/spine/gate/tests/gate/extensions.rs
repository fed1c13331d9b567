//! Extensions behind the gate, in real worker processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use fluffy_gate::{Bundle, Gate, Granted, LoadPolicyError, ProposeError};
use fluffy_policy::Request;
use fluffy_script::{Health, LoadExtensionsError};
use fluffy_test_kit::wait_for;

use crate::support::{PATIENCE, Stage, events, rules, three_ways, write};

/// Objects to locks, falls over bombs.
const GUARD: &str = r#"
export const actions = ["fs.write"];
export function evaluate(request) {
  if (request.resource.endsWith(".lock")) return { verdict: "deny", reason: "generated" };
  if (request.resource.endsWith(".bomb")) throw new Error("boom");
  return "pass";
}
"#;

fn guarded(source: &str) -> Bundle {
    let policy = rules(&[
        ["source", "fs.write", "src/**", "allow"],
        ["reading", "fs.read", "src/**", "allow"],
    ]);
    Bundle {
        policy,
        extensions: BTreeMap::from([("guard".to_owned(), source.to_owned())]),
    }
}

fn stage(source: &str) -> Stage {
    let stage = Stage::new();
    stage.apply(guarded(source));
    stage
}

fn read(path: &str) -> Request {
    Request {
        action: "fs.read".to_owned(),
        ..write(path)
    }
}

/// The permit for what is allowed, however busy the machine: an answer that
/// came late is a fault, and half a minute later the next may be in time.
fn allowed(stage: &Stage, gate: &Gate, request: &Request) -> Granted {
    wait_for("it is allowed", PATIENCE, || {
        let granted = gate.authorize(request).ok();
        if granted.is_none() {
            stage.clock.advance(Duration::from_secs(31));
        }
        granted
    })
    .unwrap()
}

fn health(gate: &Gate) -> Health {
    gate.policy().extensions().remove(0).health
}

fn worker_of(gate: &Gate) -> u32 {
    match health(gate) {
        Health::Running { worker, .. } => worker,
        disabled @ Health::Disabled { .. } => panic!("{disabled:?}"),
    }
}

/// Whether a process with this id exists, zombies included.
fn exists(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

#[test]
fn an_extension_denies_what_the_rules_allow() {
    let stage = stage(GUARD);
    allowed(&stage, &stage.gate, &write("/src/a.rs"));
    stage.clock.advance(Duration::from_secs(31));
    let (refusal, _) = stage.refusal(&write("/src/a.lock"));
    assert!(!refusal.is_reviewable());
    let spoke: Vec<&str> = refusal
        .decision()
        .spoke()
        .iter()
        .map(|voice| voice.label.name.as_str())
        .collect();
    assert!(spoke.contains(&"guard"), "{spoke:?}");
}

#[test]
fn a_crash_denies_and_restarts_and_a_second_one_disables_until_a_person_reloads() {
    let stage = stage(GUARD);
    allowed(&stage, &stage.gate, &write("/src/a.rs"));
    stage.clock.advance(Duration::from_secs(31));
    let before = worker_of(&stage.gate);

    stage.refusal(&write("/src/a.bomb"));
    let after = worker_of(&stage.gate);
    assert_ne!(before, after, "not restarted");
    assert!(!exists(before), "the old worker is still there");

    stage.refusal(&write("/src/b.bomb"));
    assert!(matches!(health(&stage.gate), Health::Disabled { .. }));
    assert!(!exists(after), "a disabled extension has a worker");
    let (refusal, _) = stage.refusal(&write("/src/a.rs"));
    let reasons: Vec<&str> = refusal.decision().reasons().collect();
    assert!(
        reasons.iter().any(|reason| reason.contains("disabled")),
        "{reasons:?}"
    );
    // Time heals nothing, and what it does not guard goes on.
    stage.clock.advance(Duration::from_secs(3600));
    stage.refusal(&write("/src/a.rs"));
    assert!(stage.gate.authorize(&read("/src/a.rs")).is_ok());

    let epoch = stage.gate.policy().engine.epoch();
    assert!(stage.gate.reload().unwrap(), "a person's reload revives it");
    assert_eq!(stage.gate.policy().engine.epoch(), epoch + 1);
    allowed(&stage, &stage.gate, &write("/src/a.rs"));
    // With nothing disabled there is nothing to do.
    assert!(!stage.gate.reload().unwrap());
}

#[test]
fn a_watch_does_not_revive_a_disabled_extension() {
    let stage = stage(GUARD);
    for path in ["/src/a.bomb", "/src/b.bomb"] {
        stage.refusal(&write(path));
    }
    assert!(matches!(health(&stage.gate), Health::Disabled { .. }));
    let look = Duration::from_millis(5);
    let (sender, notices) = std::sync::mpsc::channel();
    let notice =
        move |result: Result<(), LoadPolicyError>| assert!(sender.send(result.is_ok()).is_ok());
    let _watch = fluffy_gate::Watch::start(&stage.gate, look, notice).unwrap();
    assert!(
        notices.recv_timeout(look * 60).is_err(),
        "something was reloaded"
    );
    assert!(matches!(health(&stage.gate), Health::Disabled { .. }));
}

#[test]
fn a_proposal_with_a_broken_extension_is_refused_with_its_place() {
    let stage = Stage::with_rules(&three_ways());
    let before = events(&stage.ledger).len();
    let error = stage
        .gate
        .propose(guarded("export const actions = [];\nfunction ( {\n"), 0);
    let Err(ProposeError::Invalid(LoadPolicyError::Extensions(LoadExtensionsError::Refused {
        extension,
        problem,
    }))) = error
    else {
        panic!("{error:?}");
    };
    assert_eq!(extension, "guard");
    assert_eq!(problem.at.unwrap().line, 2);
    assert_eq!(events(&stage.ledger).len(), before);
    assert_eq!(
        stage.pins().current().unwrap(),
        Some(Bundle::of_rules(three_ways()))
    );
}

#[test]
fn no_worker_outlives_its_policy() {
    let stage = stage(GUARD);
    let first = worker_of(&stage.gate);
    assert!(exists(first));

    // A proposal has workers of its own, only while it is made.
    let proposal = stage
        .gate
        .propose(guarded(&format!("// new\n{GUARD}")), 0)
        .unwrap();
    assert_eq!(workers(&stage), 1);
    drop(proposal);

    fs::write(
        stage.user(),
        rules(&[["notes", "fs.write", "notes/**", "allow"]]),
    )
    .unwrap();
    assert!(stage.gate.reload().unwrap());
    let second = worker_of(&stage.gate);
    assert!(!exists(first) && exists(second), "after a reload");

    assert_eq!(workers(&stage), 1);
    drop(stage);
    assert!(!exists(second), "after the gate is gone");
}

/// How many workers run for this stage: each carries the home in its arguments.
fn workers(stage: &Stage) -> usize {
    let home = stage.home.path().to_str().unwrap().as_bytes();
    let of_this_stage = |process: fs::DirEntry| {
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        arguments
            .split(|byte| *byte == 0)
            .skip(1)
            .any(|argument| argument == home)
    };
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.map(of_this_stage).filter(|mine| *mine).count()
}
