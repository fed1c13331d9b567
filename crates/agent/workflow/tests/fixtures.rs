//! Real output of real runners, and what is read from it.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use fluffy_workflow::results::{Exit, Format, Outcome, Report, Run, Trouble, parse};

fn read(format: Format, root: &str, code: i32, name: &str) -> Report {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/");
    let text = |name: &str| std::fs::read_to_string(format!("{folder}{name}"));
    let stdout = text(name).unwrap();
    // Where a program's two streams were kept apart, so are they here.
    let stderr = text(&name.replace(".txt", ".stderr.txt")).unwrap_or_default();
    let run = Run {
        command: "the tests",
        root,
        stdout: &stdout,
        stderr: &stderr,
        exit: Exit::Code(code),
    };
    let report = parse(format, &run);
    let sniffed = parse(Format::Auto, &run);
    assert_eq!(sniffed.format, report.format, "`{name}` is not recognised");
    assert_eq!(sniffed, report);
    report
}

/// `outcome key @file`, one line each.
fn lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for result in &report.results {
        let outcome = match result.outcome {
            Outcome::Passed => "passed",
            Outcome::Skipped => "skipped",
            Outcome::Failed => "failed",
            Outcome::DidNotCompile => "did-not-compile",
            Outcome::Broken => "broken",
        };
        let file = result.file.as_deref();
        let file = file.map_or(String::new(), |file| format!(" @{file}"));
        lines.push(format!("{outcome} {}{file}", result.key()));
    }
    lines.sort();
    lines
}

/// What is to blame for a file that could not be loaded.
fn blame(report: &Report) -> Vec<String> {
    let errors = report.results.iter().flat_map(|result| &result.errors);
    let shown = errors.map(|error| {
        let file = error.file.as_deref().unwrap_or("?");
        let line = error.line.map_or(String::new(), |line| format!(":{line}"));
        format!("{file}{line} {:?}", error.remedy)
    });
    shown.collect()
}

fn message(report: &Report, key: &str) -> String {
    let found = report.results.iter().find(|result| result.key() == key);
    found.unwrap().message.clone().unwrap_or_default()
}

#[test]
fn libtest() {
    let report = read(Format::Libtest, "/tmp/wf/rs", 101, "libtest-mixed.txt");
    assert_eq!(report.trouble, []);
    assert_eq!(
        lines(&report),
        [
            "failed demo(src/lib.rs) config::tests::empty_is_zero",
            "failed network(tests/network.rs) reaches_a_server @/tests/network.rs",
            "passed demo(src/lib.rs) config::tests::panics",
            "passed demo(src/lib.rs) config::tests::reads_a_number",
            "passed doc demo src/lib.rs - double",
            "passed network(tests/network.rs) doubles @/tests/network.rs",
            "skipped demo(src/lib.rs) config::tests::slow",
        ]
    );
    let said = message(&report, "demo(src/lib.rs) config::tests::empty_is_zero");
    assert!(said.contains("assertion `left == right` failed"), "{said}");
}

#[test]
fn libtest_json_says_the_same_as_libtest() {
    let json = read(Format::LibtestJson, "/tmp/wf/rs", 101, "libtest-json.txt");
    let human = read(Format::Libtest, "/tmp/wf/rs", 101, "libtest-mixed.txt");
    assert_eq!(lines(&json), lines(&human));
    assert_eq!(json.trouble, []);
}

#[test]
fn libtest_without_tests() {
    let report = read(Format::Libtest, "/tmp/wf/rs", 0, "libtest-zero.txt");
    assert_eq!(report.trouble, [Trouble::NoTests]);
}

#[test]
fn nextest() {
    let expected = [
        "failed demo config::tests::empty_is_zero",
        "failed demo::network reaches_a_server @/tests/network.rs",
        "passed demo config::tests::panics",
        "passed demo config::tests::reads_a_number",
        "passed demo::network doubles",
    ];
    let human = read(Format::Nextest, "/tmp/wf/rs", 100, "nextest-mixed.txt");
    assert_eq!(lines(&human), expected);
    assert_eq!(human.trouble, []);
    let said = message(&human, "demo::network reaches_a_server");
    assert!(said.contains("ConnectionRefused"), "{said}");
    let junit = read(Format::Junit, "/tmp/wf/rs", 100, "nextest-junit.xml");
    assert_eq!(
        lines(&junit),
        expected.map(|line| line.split(" @").next().unwrap())
    );
    let json = read(
        Format::LibtestJson,
        "/tmp/wf/rs",
        100,
        "nextest-libtest-json.txt",
    );
    assert_eq!(json.results.len(), 6);
    assert_eq!(json.trouble, []);
    assert!(lines(&json).contains(&"passed demo::network doubles".to_owned()));
}

#[test]
fn rust_that_does_not_compile() {
    for name in ["cargo-missing-function.txt", "nextest-missing-function.txt"] {
        let report = read(Format::Libtest, "/tmp/wf/rs", 101, name);
        assert_eq!(
            lines(&report),
            ["did-not-compile /tests/missing.rs @/tests/missing.rs"]
        );
        assert_eq!(blame(&report), ["/tests/missing.rs:2 Source"]);
        assert_eq!(report.trouble, []);
    }
    let syntax = read(Format::Libtest, "/tmp/wf/rs", 101, "cargo-syntax-error.txt");
    assert_eq!(blame(&syntax), ["/tests/missing.rs:2 Itself"]);
    let source = read(
        Format::Libtest,
        "/tmp/wf/rs",
        101,
        "cargo-broken-source.txt",
    );
    assert_eq!(blame(&source), ["/src/lib.rs:6 Source"]);
}

#[test]
fn pytest() {
    let expected = [
        "broken tests/test_config.py::test_needs_database @/tests/test_config.py",
        "failed tests/test_config.py::TestNetwork::test_server @/tests/test_config.py",
        "failed tests/test_config.py::test_empty_is_zero @/tests/test_config.py",
        "failed tests/test_config.py::test_numbers[2-3] @/tests/test_config.py",
        "passed tests/test_config.py::test_double @/tests/test_config.py",
        "passed tests/test_config.py::test_numbers[1-1] @/tests/test_config.py",
        "skipped tests/test_config.py::test_known @/tests/test_config.py",
        "skipped tests/test_config.py::test_slow @/tests/test_config.py",
    ];
    let verbose = read(Format::Pytest, "/tmp/wf/pyp", 1, "pytest-mixed.txt");
    assert_eq!(lines(&verbose), expected);
    assert_eq!(verbose.trouble, []);
    let said = message(&verbose, "tests/test_config.py::TestNetwork::test_server");
    assert_eq!(
        said,
        "ConnectionRefusedError: [Errno 111] Connection refused"
    );
    let said = message(&verbose, "tests/test_config.py::test_needs_database");
    assert_eq!(said, "RuntimeError: no database");
}

#[test]
fn quiet_pytest_says_the_same() {
    let verbose = read(Format::Pytest, "/tmp/wf/pyp", 1, "pytest-mixed.txt");
    let quiet = read(Format::Pytest, "/tmp/wf/pyp", 1, "pytest-quiet.txt");
    let named = |report: &Report| {
        let lines = lines(report).into_iter();
        let lines = lines.filter(|line| !line.starts_with("skipped"));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(named(&quiet), named(&verbose));
    assert_eq!(quiet.trouble, []);
}

#[test]
fn coverage() {
    use fluffy_workflow::coverage::CoverageFormat::{Cobertura, Istanbul, Lcov};
    let read = |format, root: &str, name: &str| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/");
        let text = std::fs::read_to_string(format!("{folder}{name}")).unwrap();
        fluffy_workflow::coverage::parse(format, root, &text).unwrap()
    };
    let lcov = read(Lcov, "/tmp/wf/pyp", "coverage-py.lcov");
    let cobertura = read(Cobertura, "/tmp/wf/pyp", "coverage-py-cobertura.xml");
    assert_eq!(lcov, cobertura, "two reports of one run");
    assert_eq!(lcov.total().found, 6);
    assert_eq!(lcov.reaches("/app/__init__.py", 7), Some(true));
    assert_eq!(lcov.reaches("/app/__init__.py", 3), None, "a blank line");
    let lcov = read(Lcov, "/tmp/wf/js", "coverage-c8.lcov");
    assert_eq!(
        lcov,
        read(Cobertura, "/tmp/wf/js", "coverage-c8-cobertura.xml")
    );
    let summary = read(Istanbul, "/tmp/wf/js", "coverage-c8-summary.json");
    assert_eq!(
        (summary.points(), summary.total()),
        (lcov.points(), lcov.total())
    );
    assert!(!summary.has_lines());
}

#[test]
fn pytest_junit() {
    let report = read(Format::Junit, "/tmp/wf/pyp", 1, "pytest-junit.xml");
    assert_eq!(report.trouble, []);
    assert_eq!(
        lines(&report),
        [
            "broken tests.test_config test_needs_database",
            "failed tests.test_config test_empty_is_zero",
            "failed tests.test_config test_numbers[2-3]",
            "failed tests.test_config.TestNetwork test_server",
            "passed tests.test_config test_double",
            "passed tests.test_config test_numbers[1-1]",
            "skipped tests.test_config test_known",
            "skipped tests.test_config test_slow",
        ]
    );
}

#[test]
fn python_that_does_not_load() {
    let read = |format, name| read(format, "/tmp/wf/pyp", 2, name);
    let own = ["did-not-compile /tests/test_missing.py @/tests/test_missing.py"];
    for (format, name, expected) in [
        (
            Format::Pytest,
            "pytest-missing-name.txt",
            "/tests/test_missing.py:1 Source",
        ),
        (
            Format::Junit,
            "pytest-missing-junit.xml",
            "/tests/test_missing.py:1 Source",
        ),
        (
            Format::Pytest,
            "pytest-missing-module.txt",
            "/tests/test_missing.py:1 Source",
        ),
        (
            Format::Pytest,
            "pytest-syntax-error.txt",
            "/tests/test_missing.py Itself",
        ),
        (
            Format::Pytest,
            "pytest-import-elsewhere.txt",
            "/app/inner.py:1 Source",
        ),
    ] {
        let report = read(format, name);
        assert_eq!(lines(&report), own, "{name}");
        assert_eq!(blame(&report), [expected], "{name}");
        assert_eq!(report.trouble, [], "{name}");
    }
}

#[test]
fn pytest_without_tests() {
    let report = read(Format::Pytest, "/tmp/wf/pyp", 5, "pytest-zero.txt");
    assert_eq!(report.trouble, [Trouble::NoTests]);
}

#[test]
fn node() {
    let expected = [
        "failed empty is zero @/test/config.test.js",
        "failed numbers > two is # three @/test/config.test.js",
        "failed reaches a server @/test/config.test.js",
        "passed numbers > one",
        "passed reads a number",
        "skipped later",
        "skipped slow",
    ];
    let tap = read(Format::Tap, "/tmp/wf/nt", 1, "node-tap.txt");
    assert_eq!(lines(&tap), expected);
    assert_eq!(tap.trouble, []);
    let said = message(&tap, "reaches a server");
    assert!(said.contains("connect ECONNREFUSED"), "{said}");
    let spec = read(Format::NodeSpec, "/tmp/wf/nt", 1, "node-spec.txt");
    assert_eq!(lines(&spec), expected);
    assert_eq!(spec.trouble, []);
    let junit = read(Format::Junit, "/tmp/wf/nt", 1, "node-junit.xml");
    assert_eq!(junit.results.len(), expected.len());
    assert_eq!(junit.trouble, []);
}

#[test]
fn node_files_that_do_not_load() {
    for (name, expected) in [
        ("node-missing-export.txt", "/test/signed.test.js:3 Source"),
        ("node-missing-module.txt", "/test/signed.test.js Source"),
        ("node-syntax-error.txt", "/test/signed.test.js:1 Itself"),
    ] {
        let report = read(Format::Tap, "/tmp/wf/nt", 1, name);
        assert_eq!(blame(&report), [expected], "{name}");
        assert_eq!(report.trouble, [], "{name}");
    }
}

#[test]
fn jest_and_vitest() {
    let jest = read(Format::JestJson, "/tmp/wf/js", 1, "jest-json.txt");
    assert_eq!(
        lines(&jest),
        [
            "did-not-compile /jest/signed.test.js @/jest/signed.test.js",
            "failed /jest/config.test.js empty is zero @/jest/config.test.js",
            "failed /jest/config.test.js numbers > two @/jest/config.test.js",
            "passed /jest/config.test.js reads a number @/jest/config.test.js",
            "skipped /jest/config.test.js later @/jest/config.test.js",
            "skipped /jest/config.test.js slow @/jest/config.test.js",
        ]
    );
    assert_eq!(jest.trouble, []);
    let vitest = read(Format::JestJson, "/tmp/wf/js", 1, "vitest-json.txt");
    assert_eq!(vitest.results.len(), 5);
    assert_eq!(vitest.trouble, []);
    for (report, file) in [
        (jest, "/jest/signed.test.js"),
        (vitest, "/vit/signed.test.mjs"),
    ] {
        let blame = blame(&report);
        assert!(
            blame[0].starts_with(file) && blame[0].ends_with("Source"),
            "{blame:?}"
        );
    }
    let tap = read(Format::Tap, "/tmp/wf/js", 1, "vitest-tap.txt");
    assert_eq!(
        lines(&tap),
        [
            "did-not-compile /vit/signed.test.mjs @/vit/signed.test.mjs",
            "failed vit/config.test.mjs > empty is zero @/vit/config.test.mjs",
            "failed vit/config.test.mjs > numbers > two @/vit/config.test.mjs",
            "passed vit/config.test.mjs > reads a number @/vit/config.test.mjs",
            "skipped vit/config.test.mjs > slow @/vit/config.test.mjs",
        ]
    );
}

#[test]
fn mocha() {
    let json = read(Format::MochaJson, "/tmp/wf/js", 1, "mocha-json.txt");
    assert_eq!(
        lines(&json),
        [
            "failed /moc/config.js numbers two @/moc/config.js",
            "passed /moc/config.js reads a number @/moc/config.js",
            "skipped /moc/config.js numbers slow @/moc/config.js",
        ]
    );
    assert_eq!(json.trouble, []);
    let tap = read(Format::Tap, "/tmp/wf/js", 1, "mocha-tap.txt");
    assert_eq!(
        lines(&tap),
        [
            "failed numbers two",
            "passed reads a number",
            "skipped numbers slow"
        ]
    );
    assert_eq!(tap.trouble, []);
}

#[test]
fn go() {
    let report = read(Format::GoJson, "/tmp/wf/gop", 1, "go-json.txt");
    assert_eq!(
        lines(&report),
        [
            "failed demo/config TestEmptyIsZero",
            "failed demo/config TestServer",
            "failed demo/config TestTable",
            "failed demo/config TestTable/two",
            "passed demo/config TestNumber",
            "passed demo/config TestTable/one",
            "skipped demo/config TestSlow",
        ]
    );
    assert_eq!(report.trouble, []);
    let missing = read(Format::GoJson, "/tmp/wf/gop", 2, "go-missing-function.txt");
    assert_eq!(blame(&missing), ["/config/signed_test.go:6 Source"]);
    assert_eq!(missing.trouble, []);
    let syntax = read(Format::GoJson, "/tmp/wf/gop", 1, "go-syntax-error.txt");
    assert_eq!(blame(&syntax), ["/config/signed_test.go:3 Itself"]);
}
