//! Attacks, each with a control: where the guard is lifted, the attack works.

use std::time::{Duration, Instant};

use fluffy_policy::extension::Opinion;
use fluffy_script::Limits;

use crate::support::{PATIENT, SPECIFIED, Stage, answer_of, assert_fails, evaluate};

/// Fails at the specified deadline, and still runs at one ten times as long.
#[track_caller]
fn assert_endless(body: &str) {
    let source = evaluate(body);
    assert_fails(&source, SPECIFIED, "within 100 ms");
    let control = Limits {
        evaluation: Duration::from_secs(1),
        ..PATIENT
    };
    let stage = Stage::new(&[("guard", &source)], control);
    let began = Instant::now();
    let answer = stage.answer();
    assert!(
        began.elapsed() >= Duration::from_secs(1),
        "it ended by itself: {answer:?}"
    );
    assert!(answer.reason.contains("within 1000 ms"), "{answer:?}");
}

#[test]
fn an_infinite_loop_is_stopped() {
    assert_endless("for (;;) {}");
}

#[test]
fn a_loop_that_catches_everything_is_stopped() {
    assert_endless("for (;;) { try { for (;;) {} } catch {} finally { continue } }");
}

#[test]
fn a_catastrophic_pattern_is_stopped() {
    assert_endless("return /^(a+)+$/.test('a'.repeat(60) + '!') ? 'deny' : 'allow'");
    // The pattern itself is harmless: only this text makes it explode.
    let harmless = evaluate("return /^(a+)+$/.test('a'.repeat(60)) ? 'deny' : 'allow'");
    assert_eq!(answer_of(&harmless, PATIENT).opinion, Opinion::Deny);
}

#[test]
fn native_code_that_never_looks_up_is_stopped() {
    // A search through more places than there is time for, in one native call.
    assert_endless("return Array.prototype.indexOf.call({ length: 2 ** 53 - 1 }, 1)");
}

#[test]
fn a_worker_that_nobody_watches_ends_itself() {
    // Neither the host nor the engine stops this one within its minute.
    assert_fails(&evaluate("for (;;) {}"), PATIENT, "died");
}

#[test]
fn a_getter_in_the_answer_is_within_the_deadline() {
    assert_endless("return { get verdict() { for (;;) {} } }");
}

#[test]
fn memory_is_limited() {
    let hungry = evaluate(
        "const kept = [];
         for (let i = 0; i < 48; i++) kept.push(String(i).padEnd(1024 * 1024, 'x'));
         return kept.length === 48 ? 'allow' : 'deny';",
    );
    assert_fails(&hungry, PATIENT, "out of memory");
    let lifted = Limits {
        memory: 100 * 1024 * 1024,
        ..PATIENT
    };
    assert_eq!(answer_of(&hungry, lifted).opinion, Opinion::Allow);
}

#[test]
fn the_process_is_limited_even_where_the_engine_is_not() {
    let bomb =
        evaluate("const kept = []; for (;;) kept.push(new Array(100_000).fill(kept.length));");
    let unlimited = Limits {
        memory: u64::MAX / 2,
        ..PATIENT
    };
    let answer = answer_of(&bomb, unlimited);
    assert_eq!(answer.opinion, Opinion::Failed);
    let exhausted = ["out of memory", "died"]
        .iter()
        .any(|word| answer.reason.contains(word));
    assert!(exhausted, "{answer:?}");
}

#[test]
fn an_allocation_bomb_is_stopped_by_one_limit_or_the_other() {
    let bomb = evaluate("let text = 'x'; for (;;) text += text + [text];");
    let answer = answer_of(&bomb, SPECIFIED);
    assert_eq!(answer.opinion, Opinion::Failed, "{answer:?}");
}

#[test]
fn recursion_is_limited() {
    let deep =
        evaluate("const dive = (n) => n === 0 ? 0 : 1 + dive(n - 1); dive(6_000); return 'allow'");
    assert_fails(&deep, PATIENT, "stack");
    let lifted = Limits {
        stack: 6 * 1024 * 1024,
        ..PATIENT
    };
    assert_eq!(answer_of(&deep, lifted).opinion, Opinion::Allow);
    assert_fails(
        &evaluate("const dive = () => dive(); return dive()"),
        PATIENT,
        "stack",
    );
}

#[test]
fn nothing_is_remembered_between_calls() {
    // The reason proves that the pollution works within the call.
    let polluting = "
        let calls = 0;
        export function evaluate(request) {
          calls += 1;
          const clean = ({}).verdict === undefined && globalThis.seen === undefined
            && calls === 1 && [].map.name === 'map' && Date.now.seen === undefined;
          Object.prototype.verdict = 'allow';
          Array.prototype.map = () => 'allow';
          Date.now.seen = true;
          globalThis.seen = true;
          Object.freeze = () => {}; Object.keys = () => [];
          return { verdict: clean ? 'pass' : 'allow', reason: String(({}).verdict) };
        }";
    let stage = Stage::new(&[("guard", polluting)], PATIENT);
    for _ in 0..3 {
        let answer = stage.answer();
        assert_eq!(answer.opinion, Opinion::Pass, "{answer:?}");
        assert_eq!(answer.reason, "allow");
    }
}

#[test]
fn a_polluted_prototype_is_no_verdict() {
    assert_fails(
        &evaluate("Object.prototype.verdict = 'allow'; return {}"),
        PATIENT,
        "without a verdict",
    );
}

#[test]
fn tools_of_the_worker_cannot_be_bent_at_load() {
    // Everything that the worker's own script could lean on, replaced before the request comes.
    let bending = "
        Object.freeze = (value) => value;
        Object.keys = () => [];
        String.prototype.slice = () => 'allow';
        String.prototype.toWellFormed = () => 'allow';
        Function.prototype.call = () => 'allow';
        Reflect.construct = () => ({});
        JSON.parse = () => ({ action: 'bent' });
        Array.prototype[Symbol.iterator] = function* () { yield 'bent' };
        export function evaluate(request) {
          const frozen = Object.isFrozen(request) && Object.isFrozen(request.principal);
          return { verdict: 'deny', reason: `${request.action} ${frozen} ${new Date().getTime()}` };
        }";
    let answer = answer_of(bending, PATIENT);
    assert_eq!(answer.opinion, Opinion::Deny, "{answer:?}");
    assert_eq!(
        answer.reason,
        format!("fs.write true {}", crate::support::NOW / 1_000)
    );
}

#[test]
fn no_code_is_made_from_text() {
    let attempts = [
        "Function('return 1')",
        "new Function('return 1')",
        "(() => {}).constructor('return 1')",
        "(async () => {}).constructor('return 1')",
        "(function* () {}).constructor('return 1')",
        "(async function* () {}).constructor('return 1')",
        "Object.getPrototypeOf(Function.prototype.bind).constructor('return 1')",
        "Reflect.construct(Function, ['return 1'])",
        "class extends (() => {}).constructor {}.constructor('return 1')",
    ];
    for attempt in attempts {
        assert_fails(
            &evaluate(&format!("({attempt}); return 'allow'")),
            PATIENT,
            "code from text",
        );
    }
    for missing in ["eval('1')", "(0, eval)('1')", "globalThis.eval('1')"] {
        assert_fails(
            &evaluate(&format!("{missing}; return 'allow'")),
            PATIENT,
            "it threw",
        );
    }
    // Functions themselves are unharmed.
    let ordinary = evaluate(
        "return (() => {}) instanceof Function && [1].map((n) => n)[0] === 1 ? 'allow' : 'deny'",
    );
    assert_eq!(answer_of(&ordinary, PATIENT).opinion, Opinion::Allow);
}

#[test]
fn nothing_can_be_printed_into_the_conversation() {
    for print in [
        "console.log",
        "print",
        "globalThis.console.error",
        "std.out.puts",
    ] {
        let source = evaluate(&format!(
            "for (let i = 0; i < 1_000_000; i++) {print}('line ' + i); return 'allow'"
        ));
        assert_fails(&source, PATIENT, "it threw");
    }
}

#[test]
fn work_left_behind_is_never_done() {
    let source = "
        let settled = 'nothing';
        export function evaluate() {
          Promise.resolve().then(() => { settled = 'something'; for (;;) {} });
          return { verdict: 'pass', reason: settled };
        }";
    let stage = Stage::new(&[("guard", source)], PATIENT);
    for _ in 0..2 {
        let answer = stage.answer();
        assert_eq!(
            (answer.opinion, answer.reason.as_str()),
            (Opinion::Pass, "nothing")
        );
    }
}
