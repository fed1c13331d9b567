//! Restarting, disabling, and what one extension's fault costs the others.

use std::time::Duration;

use fluffy_base::{Clock as _, Timestamp};
use fluffy_policy::extension::{Extensions as _, Opinion};
use fluffy_script::{Health, ScriptHost};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    NOW, PATIENT, SPECIFIED, Stage, evaluate, exists, impostor, request, sources, wait_for,
};

/// Fails for `/bad`, denies everything else.
const FRAGILE: &str = "export const actions = ['fs.write'];
    export function evaluate(request) {
      if (request.resource === '/bad') throw new Error('boom');
      return 'deny';
    }";

fn fragile() -> Stage {
    Stage::new(&[("fragile", FRAGILE)], PATIENT)
}

fn crash(stage: &Stage) {
    let answers = stage.ask("fs.write", "/bad");
    let failed: Vec<_> = answers
        .iter()
        .filter(|answer| answer.opinion == Opinion::Failed)
        .collect();
    assert_eq!(failed.len(), 1, "{answers:?}");
    assert!(failed[0].reason.contains("boom"), "{answers:?}");
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn a_first_crash_costs_one_request_and_one_worker() {
    let stage = fragile();
    let before = stage.pid("fragile");
    crash(&stage);
    let Health::Running { worker, restarts } = stage.health("fragile") else {
        panic!("it is disabled");
    };
    assert_eq!(restarts, 1);
    assert_ne!(worker, before);
    assert!(!exists(before));
    assert_eq!(stage.ask("fs.write", "/good")[0].opinion, Opinion::Deny);
}

#[test]
fn a_second_crash_within_thirty_seconds_disables_for_its_actions_only() {
    let stage = fragile();
    crash(&stage);
    stage.clock.advance(Duration::from_millis(29_999));
    let second = stage.ask("fs.write", "/bad");
    assert!(
        second[0]
            .reason
            .contains("disabled until the policy is reloaded"),
        "{second:?}"
    );
    // Long after, too: only a person brings it back.
    stage.clock.advance(Duration::from_secs(100_000));
    for resource in ["/good", "/bad"] {
        let answers = stage.ask("fs.write", resource);
        assert_eq!(answers[0].opinion, Opinion::Failed);
        assert!(
            answers[0].reason.contains("it is disabled since"),
            "{answers:?}"
        );
        assert!(answers[0].reason.contains("boom"), "{answers:?}");
    }
    assert_eq!(stage.ask("fs.read", "/good"), []);
    let Health::Disabled { since, because } = stage.health("fragile") else {
        panic!("it still runs");
    };
    assert_eq!(
        since,
        Timestamp::from_micros(NOW).after(Duration::from_millis(29_999))
    );
    assert!(because.contains("boom"), "{because}");
}

#[test]
fn a_crash_after_thirty_seconds_is_a_first_one_again() {
    let stage = fragile();
    for restarts in 1..=3 {
        crash(&stage);
        assert!(
            matches!(stage.health("fragile"), Health::Running { restarts: found, .. } if found == restarts)
        );
        stage.clock.advance(Duration::from_secs(30));
    }
    assert_eq!(stage.ask("fs.write", "/good")[0].opinion, Opinion::Deny);
}

#[test]
fn a_clock_that_goes_backwards_opens_no_window() {
    let stage = fragile();
    crash(&stage);
    stage.clock.set(Timestamp::from_micros(0));
    crash(&stage);
    assert!(matches!(stage.health("fragile"), Health::Disabled { .. }));
}

#[test]
fn a_reload_enables_again() {
    let stage = fragile();
    crash(&stage);
    crash(&stage);
    assert!(matches!(stage.health("fragile"), Health::Disabled { .. }));
    stage.host.reload(sources(&[("fragile", FRAGILE)])).unwrap();
    assert_eq!(stage.ask("fs.write", "/good")[0].opinion, Opinion::Deny);
    // With a clean record: one crash alone does not disable it.
    crash(&stage);
    assert!(matches!(
        stage.health("fragile"),
        Health::Running { restarts: 1, .. }
    ));
}

#[test]
fn every_kind_of_fault_counts() {
    let bodies = [
        "throw 1",
        "return 'maybe'",
        "for (;;) {}",
        "const kept = []; for (;;) kept.push(new Array(1000).fill(1))",
    ];
    for body in bodies {
        let stage = Stage::new(&[("guard", &evaluate(body))], SPECIFIED);
        assert_eq!(stage.answer().opinion, Opinion::Failed);
        assert!(
            matches!(stage.health("guard"), Health::Running { restarts: 1, .. }),
            "{body}"
        );
        assert_eq!(stage.answer().opinion, Opinion::Failed);
        assert!(
            matches!(stage.health("guard"), Health::Disabled { .. }),
            "{body}"
        );
    }
}

#[test]
fn a_worker_killed_in_the_middle_of_a_call_is_a_crash() {
    let source = evaluate("if (request.resource === '/bad') for (;;) {} return 'deny'");
    let stage = Stage::new(&[("guard", &source)], PATIENT);
    let pid = stage.pid("guard");
    let idle = processor_ticks(pid);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| stage.ask("fs.write", "/bad"));
        wait_for("the worker is busy", || processor_ticks(pid) > idle + 3);
        kill(pid);
        let answers = asking.join().unwrap();
        assert_eq!(answers[0].opinion, Opinion::Failed);
        assert!(answers[0].reason.contains("died"), "{answers:?}");
    });
    assert_eq!(stage.answer().opinion, Opinion::Deny);
    assert!(matches!(
        stage.health("guard"),
        Health::Running { restarts: 1, .. }
    ));
}

/// Processor time a process has used, in clock ticks.
fn processor_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = fields.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_worker_killed_while_idle_fails_the_next_request_and_no_other() {
    let stage = Stage::new(&[("guard", &evaluate("return 'allow'"))], PATIENT);
    kill(stage.pid("guard"));
    let answer = stage.answer();
    assert_eq!(answer.opinion, Opinion::Failed, "{answer:?}");
    assert_eq!(stage.answer().opinion, Opinion::Allow);
}

#[test]
fn a_stopped_worker_is_late_even_for_a_request_it_never_reads() {
    let limits = fluffy_script::Limits {
        evaluation: Duration::from_millis(300),
        ..PATIENT
    };
    let stage = Stage::new(&[("guard", &evaluate("return 'allow'"))], limits);
    let pid = Pid::from_raw(i32::try_from(stage.pid("guard")).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // Longer than any socket buffer, so that sending alone would block for ever.
    let answers = stage.ask("fs.write", &"x".repeat(400_000));
    assert_eq!(answers[0].opinion, Opinion::Failed);
    assert!(answers[0].reason.contains("within 300 ms"), "{answers:?}");
}

#[test]
fn a_hostile_extension_costs_its_neighbour_nothing() {
    let hostile = evaluate("for (;;) {}");
    let good = evaluate("return { verdict: 'allow', reason: request.resource }");
    let limits = fluffy_script::Limits {
        evaluation: Duration::from_secs(3),
        ..PATIENT
    };
    let stage = Stage::new(&[("good", &good), ("hostile", &hostile)], limits);
    let before = stage.health("good");
    for _ in 0..4 {
        let answers = stage.ask("fs.write", "/x");
        assert_eq!(answers.len(), 2);
        for answer in answers {
            match answer.extension.as_str() {
                "good" => assert_eq!(
                    (answer.opinion, answer.reason.as_str()),
                    (Opinion::Allow, "/x")
                ),
                _ => assert_eq!(answer.opinion, Opinion::Failed),
            }
        }
    }
    assert_eq!(stage.health("good"), before);
    assert!(matches!(stage.health("hostile"), Health::Disabled { .. }));
}

#[test]
fn a_restart_outlives_the_thread_that_caused_it() {
    let stage = fragile();
    std::thread::scope(|scope| {
        scope.spawn(|| crash(&stage)).join().unwrap();
    });
    let pid = stage.pid("fragile");
    for _ in 0..5 {
        assert_eq!(stage.ask("fs.write", "/good")[0].opinion, Opinion::Deny);
    }
    assert_eq!(stage.pid("fragile"), pid);
}

#[test]
fn no_process_is_left_behind() {
    let good = evaluate("return 'allow'");
    let stage = Stage::new(&[("a", &good), ("b", &good), ("c", FRAGILE)], PATIENT);
    let mut pids = vec![stage.pid("a"), stage.pid("b"), stage.pid("c")];
    crash(&stage);
    pids.push(stage.pid("c"));
    stage.host.reload(sources(&[("a", &good)])).unwrap();
    pids.push(stage.pid("a"));
    assert!(exists(stage.pid("a")));
    drop(stage);
    for pid in pids {
        assert!(!exists(pid), "{pid} is still there");
    }
}

#[test]
fn a_worker_that_lies_later_is_a_fault() {
    // Says that it is loaded, reads the question, then answers with each of these.
    let loaded = r#"printf '\000\000\000\033{"loaded":{"actions":null}}'; head -c 8 >/dev/null"#;
    let cases = [
        (r"printf '\377\377\377\377'", "garbage"),
        (r#"printf '\000\000\000\007"ready"'"#, "garbage"),
        (
            r#"printf '\000\000\000\053{"spoke":{"verdict":"permit","reason":"fine"}}'"#,
            "garbage",
        ),
        ("exit 0", "died"),
    ];
    for (lie, fault) in cases {
        let command = impostor(&format!("{loaded}; {lie}; exec cat >/dev/null"));
        let stage = Stage::with(command, &[("guard", "")], PATIENT).unwrap();
        let answer = stage.answer();
        assert_eq!(answer.opinion, Opinion::Failed, "{lie}");
        assert!(answer.reason.contains(fault), "{lie}: {answer:?}");
    }
}

#[test]
fn the_host_can_be_shared_and_its_clock_is_only_for_the_window() {
    fn shared<T: Send + Sync>(_: &T) {}
    let stage = fragile();
    shared::<ScriptHost>(&stage.host);
    let later = Timestamp::from_micros(NOW).after(Duration::from_secs(5));
    assert_ne!(stage.clock.now(), later);
    let answers = stage.host.ask(&request("fs.write", "/good"), later);
    assert_eq!(answers[0].opinion, Opinion::Deny);
}
