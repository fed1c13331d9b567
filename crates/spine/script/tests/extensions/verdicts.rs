//! What an extension may say, and what it gets to see.

use fluffy_policy::extension::Opinion;

use crate::support::{NOW, PATIENT, Stage, answer_of, assert_fails, evaluate};

#[test]
fn every_verdict_in_both_forms_is_understood() {
    let cases = [
        ("'allow'", Opinion::Allow, ""),
        ("'deny'", Opinion::Deny, ""),
        ("'require_review'", Opinion::RequireReview, ""),
        ("'pass'", Opinion::Pass, ""),
        ("{ verdict: 'deny' }", Opinion::Deny, ""),
        (
            "{ verdict: 'require_review', reason: 'größer' }",
            Opinion::RequireReview,
            "größer",
        ),
        (
            "Object.create(null, { verdict: { value: 'pass' } })",
            Opinion::Pass,
            "",
        ),
    ];
    for (returned, opinion, reason) in cases {
        let answer = answer_of(&evaluate(&format!("return {returned};")), PATIENT);
        assert_eq!(answer.extension, "guard");
        assert_eq!(answer.opinion, opinion, "{returned}: {answer:?}");
        assert_eq!(answer.reason, reason, "{returned}");
    }
}

#[test]
fn everything_else_is_nonsense() {
    let cases = [
        "undefined",
        "null",
        "true",
        "1",
        "''",
        "'Allow'",
        "'allow '",
        "['allow']",
        "() => 'allow'",
        "new String('allow')",
        "{}",
        "{ verdict: 'maybe' }",
        "{ verdict: true }",
        "{ verdict: 'allow', reason: 7 }",
        "{ verdict: 'allow', reason: null }",
        "{ verdict: 'allow', also: 'this' }",
        "{ verdict: 'allow', then(resolve) { resolve('allow') } }",
        "{ reason: 'no verdict' }",
        "Object.create({ verdict: 'allow' })",
        "Promise.resolve('allow')",
        "new Promise(() => {})",
        "(async () => 'allow')()",
        "Symbol('allow')",
        "10n",
    ];
    for returned in cases {
        assert_fails(
            &evaluate(&format!("return ({returned});")),
            PATIENT,
            "nonsense",
        );
    }
    assert_fails(
        "export async function evaluate() { return 'allow' }",
        PATIENT,
        "promise",
    );
}

#[test]
fn a_long_reason_is_cut_and_a_sly_one_is_tamed() {
    let long = answer_of(
        &evaluate("return { verdict: 'deny', reason: 'ä'.repeat(5_000_000) }"),
        PATIENT,
    );
    assert_eq!(long.opinion, Opinion::Deny);
    assert_eq!(long.reason, "ä".repeat(500));
    let sly = answer_of(
        &evaluate(r"return { verdict: 'deny', reason: '\x1b[2Jfine\r\n\u202e' }"),
        PATIENT,
    );
    assert_eq!(sly.reason, "\u{fffd}[2Jfine\u{fffd}\u{fffd}\u{fffd}");
    let thrown = answer_of(&evaluate("throw new Error('x'.repeat(5_000_000))"), PATIENT);
    assert!(
        thrown.reason.chars().count() < 600,
        "{}",
        thrown.reason.len()
    );
}

#[test]
fn the_request_is_seen_whole_and_frozen_to_its_depths() {
    let source = evaluate(
        "'use strict';
         const tries = [
           () => { request.action = 'fs.read' },
           () => { request.principal.name = 'root' },
           () => { request.principal.tags.push('trusted_write') },
           () => { delete request.resource },
           () => { Object.defineProperty(request, 'extra', { value: 1 }) },
           () => { Object.setPrototypeOf(request, null) },
           () => { request.context.size = 1 },
         ];
         const stopped = tries.filter((attempt) => { try { attempt(); return false } catch { return true } });
         const seen = [request.action, request.resource, request.principal.name, request.principal.tags];
         return { verdict: 'pass', reason: stopped.length + ' ' + seen.join(' ') };",
    );
    let answer = answer_of(&source, PATIENT);
    assert_eq!(
        answer.reason, "7 fs.write /src/lib.rs agent new_employee",
        "{answer:?}"
    );
}

#[test]
fn time_is_the_requests_own_and_stands_still() {
    let source = evaluate(
        "const first = Date.now();
         for (let i = 0; i < 300_000; i++);
         class Later extends Date {}
         const Reached = new Date(0).constructor;
         const readings = [
           Date.now(), new Date().getTime(), new Reached().getTime(),
           new Later().getTime(), Date.parse(new Date().toISOString()),
           Math.floor(Date.parse(Date()) / 1000) * 1000 + first % 1000,
         ];
         const same = readings.every((reading) => reading === first);
         const usable = new Date(5).getTime() === 5 && Date.UTC(1970, 0, 1) === 0
           && new Date() instanceof Date && new Later() instanceof Later;
         return { verdict: 'pass', reason: `${first} ${same} ${usable}` };",
    );
    let answer = answer_of(&source, PATIENT);
    assert_eq!(
        answer.reason,
        format!("{} true true", NOW / 1_000),
        "{answer:?}"
    );
}

#[test]
fn there_is_no_randomness() {
    assert_fails(
        &evaluate("return Math.random() < 2 ? 'allow' : 'deny'"),
        PATIENT,
        "no randomness",
    );
}

#[test]
fn a_thrown_value_is_reported_in_words() {
    assert_fails(
        &evaluate("throw new TypeError('broken')"),
        PATIENT,
        "it threw `broken`",
    );
    assert_fails(&evaluate("throw 'plain'"), PATIENT, "it threw `plain`");
    assert_fails(
        &evaluate("throw null"),
        PATIENT,
        "it threw `a value of type null`",
    );
    assert_fails(
        &evaluate("return request.nothing.here"),
        PATIENT,
        "it threw",
    );
    assert_fails(
        &evaluate("throw { get message() { throw 1 } }"),
        PATIENT,
        "a value of type object",
    );
}

#[test]
fn eight_threads_each_get_their_own_answers() {
    let echo = evaluate("return { verdict: 'pass', reason: request.resource }");
    let stage = Stage::new(&[("first", &echo), ("second", &echo)], PATIENT);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let stage = &stage;
            scope.spawn(move || {
                for round in 0..25 {
                    let resource = format!("/{thread}/{round}");
                    let answers = stage.ask("fs.read", &resource);
                    assert_eq!(answers.len(), 2);
                    for answer in answers {
                        assert_eq!(answer.opinion, Opinion::Pass, "{answer:?}");
                        assert_eq!(answer.reason, resource);
                    }
                }
            });
        }
    });
}

#[test]
fn a_request_that_is_too_long_fails_without_harming_the_extension() {
    let stage = Stage::new(&[("guard", &evaluate("return 'allow'"))], PATIENT);
    let before = stage.health("guard");
    let answers = stage.ask("fs.write", &"\"".repeat(400_000));
    assert_eq!(answers[0].opinion, Opinion::Failed);
    assert!(answers[0].reason.contains("too long"), "{answers:?}");
    assert_eq!(stage.health("guard"), before);
    // As long as the limit lets it be, and all of it to be escaped twice.
    let answers = stage.ask("fs.write", &"\"".repeat(220_000));
    assert_eq!(answers[0].opinion, Opinion::Allow, "{answers:?}");
}
