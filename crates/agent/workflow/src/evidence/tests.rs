//! What is red and green, and above all what is not.

use std::collections::BTreeSet;

use super::*;
use crate::coverage::{ChangedLines, Coverage, CoverageFormat, Covered};
use crate::project::parts::{Class, Mixture, Part};
use crate::results::{CompileError, Exit, Format, Remedy, TestResult, Trouble};

const TEST: Class = Class::Whole(Part::Test);

/// `key`s with their outcomes, as a run.
fn run(results: &[(&str, Outcome)]) -> Report {
    let mut report = Report::new(Format::Pytest, Exit::Code(0));
    for (name, outcome) in results {
        report.push(TestResult {
            file: name.split_once("::").map(|(file, _)| format!("/{file}")),
            ..TestResult::new(name, *outcome)
        });
    }
    report
}

fn said(mut report: Report, message: &str) -> Report {
    for result in &mut report.results {
        result.message = Some(message.to_owned());
    }
    report
}

fn did_not_compile(file: &str, line: u32, remedy: Remedy) -> Report {
    let mut report = Report::new(Format::Libtest, Exit::Code(101));
    report.push(TestResult {
        file: Some(file.to_owned()),
        errors: vec![CompileError {
            file: Some(file.to_owned()),
            line: Some(line),
            message: "cannot find".to_owned(),
            remedy,
        }],
        ..TestResult::new(file, Outcome::DidNotCompile)
    });
    report
}

fn baseline() -> Baseline {
    Baseline::of(&run(&[
        ("tests/test_a.py::test_old", Outcome::Passed),
        ("tests/test_a.py::test_bad", Outcome::Failed),
        ("tests/test_b.py::test_other", Outcome::Passed),
    ]))
}

const OLD: &str = "def test_old():\n    pass\ndef test_bad():\n    pass\n";
const NEW: &str =
    "def test_old():\n    pass\ndef test_bad():\n    pass\ndef test_new():\n    f()\n";

fn changed() -> ChangedFile<'static> {
    ChangedFile {
        path: "/tests/test_a.py",
        class: TEST,
        before: Some(OLD),
        after: Some(NEW),
    }
}

/// The baseline's tests, with one more.
fn with(name: &str, outcome: Outcome) -> Report {
    run(&[
        ("tests/test_a.py::test_old", Outcome::Passed),
        ("tests/test_a.py::test_bad", Outcome::Failed),
        ("tests/test_b.py::test_other", Outcome::Passed),
        (name, outcome),
    ])
}

fn judge(run: &Report) -> Result<Red, NotRed> {
    red(&baseline(), run, &[changed()], Freeze::default())
}

const NAME: &str = "tests/test_a.py::test_new";

#[test]
fn a_new_test_that_fails_in_its_body_is_red() {
    let red = judge(&with(NAME, Outcome::Failed)).unwrap();
    assert_eq!(red.tests().len(), 1);
    assert_eq!(red.tests()[0].name, NAME);
    assert_eq!(red.tests()[0].failure, Failure::InItsBody);
    assert_eq!(red.executed(), 4);
}

#[test]
fn a_changed_test_that_fails_is_red() {
    let report = run(&[
        ("tests/test_a.py::test_old", Outcome::Failed),
        ("tests/test_a.py::test_bad", Outcome::Failed),
        ("tests/test_b.py::test_other", Outcome::Passed),
    ]);
    let red = judge(&report).unwrap();
    let names: Vec<&str> = red.tests().iter().map(|test| test.name.as_str()).collect();
    assert_eq!(
        names,
        ["tests/test_a.py::test_old"],
        "what failed before is not red"
    );
}

#[test]
fn a_test_that_failed_before_is_never_red() {
    let error = judge(&run(&[
        ("tests/test_a.py::test_old", Outcome::Passed),
        ("tests/test_a.py::test_bad", Outcome::Failed),
        ("tests/test_b.py::test_other", Outcome::Passed),
    ]));
    assert!(
        matches!(error, Err(NotRed::AlreadyPass { .. })),
        "{error:?}"
    );
}

#[test]
fn failures_in_files_that_did_not_change_are_not_red() {
    let report = run(&[
        ("tests/test_a.py::test_bad", Outcome::Failed),
        ("tests/test_a.py::test_old", Outcome::Passed),
        ("tests/test_b.py::test_other", Outcome::Failed),
    ]);
    let error = judge(&report).unwrap_err();
    assert!(matches!(error, NotRed::AlreadyPass { .. }), "{error}");
    let only_elsewhere = red(
        &baseline(),
        &run(&[
            ("tests/test_a.py::test_bad", Outcome::Failed),
            ("tests/test_a.py::test_old", Outcome::Passed),
            ("tests/test_b.py::test_other", Outcome::Failed),
        ]),
        &[ChangedFile {
            path: "/tests/test_c.py",
            before: None,
            after: Some("x = 1"),
            class: TEST,
        }],
        Freeze::default(),
    );
    assert!(
        matches!(only_elsewhere, Err(NotRed::Elsewhere { .. })),
        "{only_elsewhere:?}"
    );
}

#[test]
fn what_is_not_red() {
    let trouble = |trouble: Trouble| {
        let mut report = with(NAME, Outcome::Failed);
        report.trouble.push(trouble);
        judge(&report).unwrap_err()
    };
    assert_eq!(trouble(Trouble::NoTests), NotRed::NoTests);
    let broken = Trouble::Runner {
        detail: "no".to_owned(),
    };
    assert!(matches!(trouble(broken), NotRed::Runner { .. }));
    let counts = Trouble::Counts { said: 1, seen: 2 };
    assert!(matches!(trouble(counts), NotRed::Doubtful { .. }));
    let pass = judge(&with(NAME, Outcome::Passed)).unwrap_err();
    assert!(matches!(pass, NotRed::AlreadyPass { .. }));
    let skip = judge(&with(NAME, Outcome::Skipped)).unwrap_err();
    assert!(!matches!(skip, NotRed::NoTests), "{skip}");
    let setup = judge(&with(NAME, Outcome::Broken)).unwrap_err();
    assert!(matches!(setup, NotRed::OutsideBody { .. }));
    let none = red(
        &baseline(),
        &with(NAME, Outcome::Failed),
        &[],
        Freeze::default(),
    );
    assert_eq!(none, Err(NotRed::NothingNew));
}

#[test]
fn a_refused_socket_is_reported_as_such() {
    let message = "ConnectionRefusedError: [Errno 111] Connection refused";
    let error = judge(&said(with(NAME, Outcome::Failed), message)).unwrap_err();
    assert_eq!(
        error,
        NotRed::RefusedSocket {
            tests: vec![NAME.to_owned()]
        }
    );
}

#[test]
fn tests_that_vanish_or_are_skipped_are_not_red() {
    for outcome in [None, Some(Outcome::Skipped)] {
        let mut results = vec![
            ("tests/test_a.py::test_old", Outcome::Passed),
            (NAME, Outcome::Failed),
        ];
        results.extend(outcome.map(|outcome| ("tests/test_b.py::test_other", outcome)));
        let error = judge(&run(&results)).unwrap_err();
        assert!(matches!(error, NotRed::Lost { .. }), "{error}");
    }
}

#[test]
fn a_test_that_needs_what_does_not_exist_is_red_and_goes_green_by_its_name() {
    let file = "/tests/new.rs";
    let changed = [ChangedFile {
        path: file,
        class: TEST,
        before: None,
        after: Some("#[test]\nfn wants() { f() }\n"),
    }];
    let judge = |report: &Report| red(&Baseline::default(), report, &changed, Freeze::default());
    let red = judge(&did_not_compile(file, 2, Remedy::Source)).unwrap();
    assert_eq!(red.tests()[0].name, "wants");
    assert_eq!(red.tests()[0].failure, Failure::DoesNotCompile);
    let malformed = judge(&did_not_compile(file, 2, Remedy::Itself)).unwrap_err();
    assert!(matches!(malformed, NotRed::Malformed { .. }));
    let elsewhere = judge(&did_not_compile("/src/lib.rs", 2, Remedy::Source)).unwrap_err();
    assert!(matches!(elsewhere, NotRed::Elsewhere { .. }));

    let around = (Baseline::default(), Freeze::default(), BTreeSet::new());
    let around = Surroundings {
        baseline: &around.0,
        freeze: &around.1,
        removed: &around.2,
    };
    let result = |name: &str, outcome| TestResult {
        suite: Some("new(tests/new.rs)".to_owned()),
        file: Some(file.to_owned()),
        ..TestResult::new(name, outcome)
    };
    let mut passes = Report::new(Format::Libtest, Exit::Code(0));
    passes.push(result("wants", Outcome::Passed));
    let proof = green(&red, &passes, &around).unwrap();
    assert_eq!(proof.fail_to_pass(), ["new(tests/new.rs) wants"]);
    let mut other = Report::new(Format::Libtest, Exit::Code(0));
    other.push(result("another", Outcome::Passed));
    assert_eq!(
        green(&red, &other, &around).unwrap_err().still_red,
        ["wants"]
    );
}

#[test]
fn inline_tests_are_red_only_inside_their_module() {
    let before = "fn a() {}\n";
    let after = "fn a() {}\n#[cfg(test)]\nmod tests {\n#[test]\nfn wants() { b() }\n}\n";
    let changed = [ChangedFile {
        path: "/src/config.rs",
        class: Class::Mixed(Mixture::Rust),
        before: Some(before),
        after: Some(after),
    }];
    let judge = |line| {
        let report = did_not_compile("/src/config.rs", line, Remedy::Source);
        red(&Baseline::default(), &report, &changed, Freeze::default())
    };
    assert!(judge(5).is_ok());
    assert!(
        matches!(judge(1), Err(NotRed::Elsewhere { .. })),
        "the error is in source"
    );

    let result = |name: &str| {
        let mut report = Report::new(Format::Libtest, Exit::Code(101));
        report.push(TestResult {
            suite: Some("demo(src/lib.rs)".to_owned()),
            ..TestResult::new(name, Outcome::Failed)
        });
        red(&Baseline::default(), &report, &changed, Freeze::default())
    };
    assert!(result("config::tests::wants").is_ok());
    assert!(matches!(
        result("other::tests::wants"),
        Err(NotRed::Elsewhere { .. })
    ));
}

/// A name that another file's test has must not stand in for the new one.
#[test]
fn a_test_of_the_baseline_does_not_make_a_new_one_green() {
    let file = "/tests/new.rs";
    let changed = [ChangedFile {
        path: file,
        class: TEST,
        before: None,
        after: Some("#[test]\nfn wants() { f() }\n"),
    }];
    let old = |outcome| TestResult {
        suite: Some("demo(src/lib.rs)".to_owned()),
        ..TestResult::new("a::wants", outcome)
    };
    let mut first = Report::new(Format::Libtest, Exit::Code(0));
    first.push(old(Outcome::Passed));
    let baseline = Baseline::of(&first);
    let red = red(
        &baseline,
        &did_not_compile(file, 2, Remedy::Source),
        &changed,
        Freeze::default(),
    );
    let (freeze, removed) = (Freeze::default(), BTreeSet::new());
    let around = Surroundings {
        baseline: &baseline,
        freeze: &freeze,
        removed: &removed,
    };
    assert_eq!(
        green(&red.unwrap(), &first, &around).unwrap_err().still_red,
        ["wants"]
    );
}

#[test]
fn green_needs_every_red_test_and_loses_nothing() {
    let red = judge(&with(NAME, Outcome::Failed)).unwrap();
    let (baseline, freeze, removed) = (baseline(), Freeze::default(), BTreeSet::new());
    let around = Surroundings {
        baseline: &baseline,
        freeze: &freeze,
        removed: &removed,
    };
    let proof = green(&red, &with(NAME, Outcome::Passed), &around).unwrap();
    assert_eq!(proof.fail_to_pass(), [NAME]);
    assert_eq!((proof.pass_to_pass(), proof.executed()), (2, 4));
    assert!(proof.proof().is_verified());

    let not = |report: &Report| *green(&red, report, &around).unwrap_err();
    assert_eq!(not(&with(NAME, Outcome::Failed)).still_red, [NAME]);
    assert_eq!(not(&with(NAME, Outcome::Skipped)).still_red, [NAME]);
    let old = "tests/test_a.py::test_old";
    let changed = |outcome: Option<Outcome>| {
        let mut report = with(NAME, Outcome::Passed);
        match outcome {
            Some(outcome) => report.results[0].outcome = outcome,
            None => drop(report.results.remove(0)),
        }
        not(&report)
    };
    assert_eq!(changed(Some(Outcome::Failed)).failing, [old]);
    assert_eq!(changed(Some(Outcome::Skipped)).skipped, [old]);
    let gone = changed(None);
    assert_eq!(
        (gone.missing, gone.fewer),
        (vec![old.to_owned()], Some((4, 3)))
    );
    let mut doubtful = with(NAME, Outcome::Passed);
    doubtful.trouble.push(Trouble::Counts { said: 1, seen: 2 });
    assert_eq!(not(&doubtful).trouble.len(), 1);
}

#[test]
fn green_needs_frozen_tests_to_be_as_they_were() {
    let parts = |text: &str| Parts::of(TEST, Some(text));
    let freeze = Freeze::of([("/tests/test_a.py", parts(NEW))]);
    let red = red(
        &baseline(),
        &with(NAME, Outcome::Failed),
        &[changed()],
        freeze.clone(),
    )
    .unwrap();
    let (baseline, removed) = (baseline(), BTreeSet::new());
    let judge = |freeze: &Freeze| {
        let around = Surroundings {
            baseline: &baseline,
            freeze,
            removed: &removed,
        };
        green(&red, &with(NAME, Outcome::Passed), &around)
    };
    assert!(judge(&freeze).is_ok());
    let weaker = Freeze::of([("/tests/test_a.py", parts(OLD))]);
    assert_eq!(judge(&weaker).unwrap_err().thawed, ["/tests/test_a.py"]);
    let more = Freeze::of([
        ("/tests/test_a.py", parts(NEW)),
        ("/package.json", parts("{}")),
    ]);
    assert_eq!(judge(&more).unwrap_err().thawed, ["/package.json"]);
    assert_eq!(
        judge(&Freeze::default()).unwrap_err().thawed,
        ["/tests/test_a.py"]
    );
}

#[test]
fn what_a_person_let_go_is_not_missed() {
    let red = judge(&with(NAME, Outcome::Failed)).unwrap();
    let (baseline, freeze) = (baseline(), Freeze::default());
    let removed = BTreeSet::from(["tests/test_b.py::test_other".to_owned()]);
    let around = Surroundings {
        baseline: &baseline,
        freeze: &freeze,
        removed: &removed,
    };
    let mut report = with(NAME, Outcome::Passed);
    report.results.remove(2);
    let not = green(&red, &report, &around).unwrap_err();
    assert_eq!(not.fewer, Some((4, 3)), "one less than when it was red");
    report.push(TestResult::new(
        "tests/test_a.py::test_more",
        Outcome::Passed,
    ));
    assert!(green(&red, &report, &around).is_ok());
}

#[test]
fn evidence_for_another_red_has_another_basis() {
    let one = judge(&with(NAME, Outcome::Failed)).unwrap();
    let other = judge(&said(with(NAME, Outcome::Failed), "why")).unwrap();
    assert_ne!(one.digest(), other.digest());
    let text = serde_json::to_string(&one).unwrap();
    assert_eq!(serde_json::from_str::<Red>(&text).unwrap(), one);
}

#[test]
fn refactoring_is_verified_only_with_cover() {
    let baseline = Baseline::of(&run(&[("t", Outcome::Passed)]));
    let (freeze, removed) = (Freeze::default(), BTreeSet::new());
    let around = Surroundings {
        baseline: &baseline,
        freeze: &freeze,
        removed: &removed,
    };
    let report = run(&[("t", Outcome::Passed)]);
    let text = "SF:a.py\nDA:1,1\nDA:2,0\nend_of_record\n";
    let coverage: Coverage = crate::coverage::parse(CoverageFormat::Lcov, "/w", text).unwrap();
    let covered = |line: u32| {
        let lines = BTreeMap::from([("/a.py".to_owned(), BTreeSet::from([line]))]);
        let changed = ChangedLines {
            before: lines.clone(),
            after: lines,
        };
        Covered::of(&changed, &coverage, &coverage)
    };
    let proof =
        |covered: Option<&Covered>| refactor(&report, &around, covered).unwrap().proof().clone();
    assert_eq!(proof(Some(&covered(1))), Proof::GreenToGreen);
    assert!(
        matches!(proof(Some(&covered(2))), Proof::Uncovered { places } if places[0] == "/a.py:2")
    );
    assert_eq!(proof(None), Proof::NoCoverage);
    let more = run(&[("t", Outcome::Passed), ("u", Outcome::Passed)]);
    let more = refactor(&more, &around, Some(&covered(1))).unwrap();
    assert!(
        !more.proof().is_verified(),
        "the list of passing tests changed"
    );
    let broken = run(&[("t", Outcome::Failed)]);
    assert!(refactor(&broken, &around, None).is_err());
    let touched = Freeze::of([("/tests/x", Parts::of(TEST, Some("x")))]);
    let around = Surroundings {
        freeze: &touched,
        ..around
    };
    assert_eq!(
        refactor(&report, &around, None).unwrap_err().thawed,
        ["/tests/x"]
    );
}

#[test]
fn exploring_needs_existing_tests_to_pass_or_none_to_exist() {
    let (freeze, removed) = (Freeze::default(), BTreeSet::new());
    let mut nothing = Report::new(Format::Pytest, Exit::Code(5));
    nothing.trouble.push(Trouble::NoTests);
    let none = Baseline::default();
    let around = Surroundings {
        baseline: &none,
        freeze: &freeze,
        removed: &removed,
    };
    let proof = passing(&nothing, &around).unwrap();
    assert!(!proof.proof().is_verified());
    let some = Baseline::of(&run(&[("t", Outcome::Passed)]));
    let around = Surroundings {
        baseline: &some,
        ..around
    };
    assert!(passing(&nothing, &around).is_err());
    assert!(passing(&run(&[("t", Outcome::Passed)]), &around).is_ok());
    assert!(
        passing(
            &run(&[("t", Outcome::Passed), ("u", Outcome::Failed)]),
            &around
        )
        .is_err()
    );
}

#[test]
fn the_exit_code_alone_is_evidence_when_the_command_passed_before() {
    let exit = |outcome| {
        let mut report = Report::new(Format::ExitCode, Exit::Code(1));
        report.push(TestResult::new("make test", outcome));
        report
    };
    let passed = Baseline::of(&exit(Outcome::Passed));
    let judge = |baseline: &Baseline| {
        red(
            baseline,
            &exit(Outcome::Failed),
            &[changed()],
            Freeze::default(),
        )
    };
    assert!(judge(&passed).is_ok());
    assert!(judge(&Baseline::default()).is_err());
    assert!(judge(&Baseline::of(&exit(Outcome::Failed))).is_err());
}

#[test]
fn a_freeze_fits_into_an_event_and_still_sees_every_file() {
    let paths: Vec<String> = (0..5_000)
        .map(|n| format!("/node_modules/package-{n}/index.js"))
        .collect();
    let freeze = |last: &str| {
        let text = |at: usize| if at == 4_999 { last } else { "x" };
        let files = paths.iter().enumerate();
        Freeze::of(files.map(|(at, path)| (path.as_str(), Parts::of(TEST, Some(text(at))))))
    };
    let (one, same, other) = (freeze("x"), freeze("x"), freeze("y"));
    assert!(serde_json::to_string(&one).unwrap().len() < 64 * 1024);
    assert!(one.differences(&same).is_empty());
    assert_eq!(one.differences(&other).len(), 1);
    let text = serde_json::to_string(&one).unwrap();
    assert_eq!(serde_json::from_str::<Freeze>(&text).unwrap(), one);
}

#[test]
fn a_new_test_that_was_never_red_is_idle() {
    let both = |new: Outcome| {
        let mut report = with(NAME, new);
        report.push(TestResult::new(
            "tests/test_c.py::test_empty",
            Outcome::Passed,
        ));
        report
    };
    let red = judge(&both(Outcome::Failed)).unwrap();
    let baseline = baseline();
    let around = Surroundings {
        baseline: &baseline,
        freeze: red.freeze(),
        removed: &BTreeSet::new(),
    };
    let green = green(&red, &both(Outcome::Passed), &around).unwrap();
    assert_eq!(green.fail_to_pass(), [NAME]);
    assert_eq!(green.idle(), ["tests/test_c.py::test_empty"]);
    let alone = super::green(&red, &with(NAME, Outcome::Passed), &around);
    // One test fewer than when it was red is not green at all.
    assert!(alone.is_err());
    let red = judge(&with(NAME, Outcome::Failed)).unwrap();
    let green = super::green(&red, &with(NAME, Outcome::Passed), &around).unwrap();
    assert_eq!(green.idle(), Vec::<String>::new(), "old tests are none");
}
