//! What is refused at load, and with which words.

use fluffy_policy::extension::Opinion;
use fluffy_script::{Health, LoadExtensionsError, MAX_EXTENSIONS, MAX_SOURCE, Position, Problem};

use crate::support::{PATIENT, Stage, evaluate, impostor, sources, worker};

fn refusal(source: &str) -> Problem {
    match Stage::with(worker(), &[("guard", source)], PATIENT) {
        Err(LoadExtensionsError::Refused { extension, problem }) => {
            assert_eq!(extension, "guard");
            problem
        }
        Err(error) => panic!("{source}: {error:?}"),
        Ok(_) => panic!("{source} was loaded"),
    }
}

#[test]
fn what_cannot_be_an_extension_is_refused_with_a_place_and_words() {
    let at = |line, column| Some(Position { line, column });
    let cases = [
        ("export function evaluate( {", at(1, 28), ""),
        ("\nenum Colour { Red }", at(2, 1), "`enum`"),
        (
            "\n  namespace N { export const a = 1 }",
            at(2, 3),
            "`namespace`",
        ),
        (
            "class A { constructor(public a: string) {} }",
            at(1, 23),
            "parameter property",
        ),
        ("import fs from 'fs'; fs;", at(1, 1), "an import of values"),
        (
            "const evaluate = 1;",
            None,
            "no exported function `evaluate`",
        ),
        (
            "export const evaluate = 'allow';",
            None,
            "no exported function `evaluate`",
        ),
        (
            "await new Promise(() => {}); export function evaluate() {}",
            None,
            "waits for a promise",
        ),
        (
            "throw new Error('at load'); export function evaluate() {}",
            None,
            "cannot be run",
        ),
        (
            "Date.now(); export function evaluate() {}",
            None,
            "cannot be run",
        ),
    ];
    for (source, at, what) in cases {
        let problem = refusal(source);
        assert_eq!(problem.at, at, "{source}: {problem}");
        assert!(problem.what.contains(what), "{source}: {problem}");
        assert!(
            !problem.why.is_empty() && !problem.fix.is_empty(),
            "{source}: {problem}"
        );
    }
}

#[test]
fn declared_actions_must_be_a_list_of_names() {
    for declared in [
        "'fs.write'",
        "{}",
        "null",
        "7",
        "[]",
        "[7]",
        "['fs.write', '']",
        "['*']",
        "['fs.wirte']",
        "new Array(257).fill('a')",
    ] {
        let source = format!(
            "export const actions = {declared}; {}",
            evaluate("return 'deny'")
        );
        let problem = refusal(&source);
        assert!(problem.what.contains("`actions`"), "{source}: {problem}");
    }
}

#[test]
fn only_the_declared_actions_are_asked_about() {
    let stage = Stage::new(
        &[
            (
                "named",
                "export const actions = ['fs.write']; export const evaluate = () => 'deny';",
            ),
            (
                "below",
                "export const actions = ['net.*']; export const evaluate = () => 'deny';",
            ),
            ("all", "export const evaluate = () => 'deny';"),
        ],
        PATIENT,
    );
    let asked = |action: &str| {
        let answers = stage.ask(action, "/x");
        let mut names: Vec<String> = answers.into_iter().map(|answer| answer.extension).collect();
        names.sort();
        names.join(",")
    };
    assert_eq!(asked("fs.write"), "all,named");
    assert_eq!(asked("net.connect"), "all,below");
    assert_eq!(asked("fs.read"), "all");
}

#[test]
fn an_endless_top_level_is_refused_by_the_load_limit() {
    let limits = fluffy_script::Limits {
        load: std::time::Duration::from_millis(500),
        ..PATIENT
    };
    let source = "for (;;) {} export function evaluate() {}";
    match Stage::with(worker(), &[("guard", source)], limits) {
        // Engine and host have the same limit, so either may notice first.
        Err(LoadExtensionsError::Refused { problem, .. }) => {
            assert!(problem.what.contains("too long"), "{problem}");
        }
        Err(LoadExtensionsError::Worker { fault, .. }) => {
            assert!(fault.contains("within 500 ms"), "{fault}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[test]
fn a_top_level_that_needs_too_much_memory_is_refused() {
    let hungry = |mebibytes: u32| {
        format!(
            "const kept = [];
             for (let i = 0; i < {mebibytes}; i++) kept.push(String(i).padEnd(1024 * 1024, 'x'));
             export function evaluate() {{ return 'allow' }}"
        )
    };
    let problem = refusal(&hungry(48));
    assert!(problem.what.contains("too much memory"), "{problem}");
    let stage = Stage::new(&[("guard", &hungry(16))], PATIENT);
    // Each engine has the memory to itself: together they would not fit.
    for _ in 0..12 {
        assert_eq!(stage.answer().opinion, Opinion::Allow);
    }
    assert!(matches!(
        stage.health("guard"),
        Health::Running { restarts: 0, .. }
    ));
}

#[test]
fn a_source_that_breaks_the_parser_costs_only_its_worker() {
    // As deep as the length allows: the parser's stack ends before the text does.
    let source = format!("export const evaluate = {}", "(".repeat(MAX_SOURCE - 100));
    match Stage::with(worker(), &[("guard", &source)], PATIENT) {
        Err(LoadExtensionsError::Worker { .. } | LoadExtensionsError::Refused { .. }) => {}
        other => panic!("{:?}", other.map(|_| ())),
    }
    let longer = " ".repeat(MAX_SOURCE + 1);
    assert!(refusal(&longer).what.contains("bytes"));
}

#[test]
fn names_are_checked_before_anything_is_started() {
    let nowhere = || impostor("exit 1");
    let load = |names: &[&str]| {
        let extensions: Vec<_> = names.iter().map(|name| (*name, "")).collect();
        match Stage::with(nowhere(), &extensions, PATIENT) {
            Ok(_) => panic!("{names:?} were loaded"),
            Err(error) => error,
        }
    };
    for name in ["", "a b", "a/b", "a\0b", "ä", &"a".repeat(65)] {
        assert!(
            matches!(load(&[name]), LoadExtensionsError::Name { .. }),
            "{name}"
        );
    }
    assert!(
        matches!(load(&["a", "b", "a"]), LoadExtensionsError::Duplicate { extension } if extension == "a")
    );
    let many: Vec<String> = (0..=MAX_EXTENSIONS)
        .map(|number| number.to_string())
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(matches!(
        load(&many),
        LoadExtensionsError::TooMany { count: 33 }
    ));
}

#[test]
fn a_program_that_is_no_worker_is_a_load_error() {
    let short = fluffy_script::Limits {
        load: std::time::Duration::from_millis(500),
        ..PATIENT
    };
    let cases = [
        ("exit 0", "died"),
        (
            "printf '\\377\\377\\377\\377'; exec cat >/dev/null",
            "garbage",
        ),
        (
            "printf '\\000\\000\\000\\002{}'; exec cat >/dev/null",
            "garbage",
        ),
        (
            "printf '\\000\\000\\000\\007\"ready\"'; exec cat >/dev/null",
            "garbage",
        ),
        ("printf '\\000\\000\\000\\020{\"ready\":'", "died"),
        ("exec cat >/dev/null", "within 500 ms"),
        ("while :; do :; done", "within 500 ms"),
    ];
    let source = evaluate("return 'allow'");
    for (shell, fault) in cases {
        match Stage::with(impostor(shell), &[("guard", &source)], short) {
            Err(LoadExtensionsError::Worker { fault: found, .. }) => {
                let late = found.contains("within 500 ms");
                assert!(found.contains(fault) || late, "{shell}: {found}");
            }
            other => panic!("{shell}: {:?}", other.map(|_| ())),
        }
    }
    let missing = fluffy_script::WorkerCommand {
        program: "/nonexistent/worker".into(),
        args: Vec::new(),
    };
    assert!(matches!(
        Stage::with(missing, &[("guard", &source)], short),
        Err(LoadExtensionsError::Start { .. })
    ));
}

#[test]
fn a_failed_reload_leaves_the_old_extensions_in_place() {
    let stage = Stage::new(&[("guard", &evaluate("return 'deny'"))], PATIENT);
    let before = stage.pid("guard");
    let broken = sources(&[
        ("guard", &evaluate("return 'allow'")),
        ("broken", "enum E {}"),
    ]);
    assert!(stage.host.reload(broken).is_err());
    assert_eq!(stage.answer().opinion, Opinion::Deny);
    assert_eq!(
        stage.health("guard"),
        Health::Running {
            worker: before,
            restarts: 0
        }
    );
}
