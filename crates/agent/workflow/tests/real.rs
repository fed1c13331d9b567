//! Real test runners, from the listing of a project to green.
//!
//! Each project goes the strict way once: baseline, a test that fails, source
//! that makes it pass. What the runner prints is all that is known about it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use fluffy_policy::word::State;
use fluffy_workflow::debt::Budget;
use fluffy_workflow::evidence::{Baseline, ChangedFile, Failure, NotRed, Surroundings, green, red};
use fluffy_workflow::gate::{Write, check};
use fluffy_workflow::machine::changes::source_digest;
use fluffy_workflow::machine::{
    Approval, Changes, Guard, Input, PlanKind, Standing, StepError, Workflow,
};
use fluffy_workflow::project::detect::{Layout, Listing, Overrides, detect, is_wanted};
use fluffy_workflow::results::{Exit, Report, Run, parse};

type Files = BTreeMap<String, String>;

fn files(list: &[(&str, &str)]) -> Files {
    let pairs = list
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
    pairs.collect()
}

/// A project in a folder of its own.
struct Project {
    folder: tempfile::TempDir,
    before: Files,
    now: Files,
    layout: Layout,
}

impl Project {
    fn new(list: &[(&str, &str)]) -> Self {
        let before = files(list);
        let paths: Vec<String> = before.keys().cloned().collect();
        let mut contents = before.clone();
        contents.retain(|path, _| is_wanted(path));
        let listing = Listing {
            paths: &paths,
            contents: &contents,
        };
        let layout = detect(&listing, &Overrides::default()).unwrap();
        let project = Self {
            folder: tempfile::tempdir().unwrap(),
            now: before.clone(),
            before,
            layout,
        };
        for (path, text) in &project.now {
            project.write(path, text);
        }
        project
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.folder.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    fn change(&mut self, path: &str, text: &str) {
        self.write(path, text);
        self.now.insert(path.to_owned(), text.to_owned());
    }

    fn run(&self) -> Report {
        let reports = self.layout.commands.iter().map(|command| {
            let words = with_real_python(&command.command);
            let output = Command::new(&words[0])
                .args(&words[1..])
                .current_dir(
                    self.folder
                        .path()
                        .join(command.directory.trim_start_matches('/')),
                )
                .env("CARGO_TARGET_DIR", self.folder.path().join("target"))
                .env("CARGO_NET_OFFLINE", "true")
                .env("GOFLAGS", "-mod=mod")
                .env("GOCACHE", self.folder.path().join("go-cache"))
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .env_remove("RUSTFLAGS")
                .envs(&command.environment)
                .output()
                .unwrap_or_else(|error| panic!("`{}` is needed: {error}", words[0]));
            let root = std::fs::canonicalize(self.folder.path()).unwrap();
            let run = Run {
                command: &words.join(" "),
                root: root.to_str().unwrap(),
                stdout: &String::from_utf8_lossy(&output.stdout),
                stderr: &String::from_utf8_lossy(&output.stderr),
                exit: output.status.code().map_or(Exit::Signal(9), Exit::Code),
            };
            parse(command.format, &run)
        });
        Report::join(reports.collect())
    }

    fn changed(&self) -> Vec<ChangedFile<'_>> {
        let paths: BTreeSet<&String> = self.before.keys().chain(self.now.keys()).collect();
        let text = |files: &'_ Files, path: &String| files.get(path).cloned();
        let differ = paths
            .into_iter()
            .filter(|path| text(&self.before, path) != text(&self.now, path));
        let changed = differ.map(|path| ChangedFile {
            path,
            class: self.layout.class(path),
            before: self.before.get(path).map(String::as_str),
            after: self.now.get(path).map(String::as_str),
        });
        changed.collect()
    }

    fn changes(&self) -> Changes {
        Changes::of(&self.changed())
    }

    fn admits(&self, workflow: &Workflow, path: &str, after: &str) -> Result<(), Guard> {
        let write = Write {
            path,
            project: self.before.get(path).map(String::as_str),
            current: self.now.get(path).map(String::as_str),
            after: Some(after),
        };
        let answer = check(workflow, &self.layout, &write);
        answer.map(|_| ()).map_err(|refused| refused.guard)
    }
}

/// The interpreter that has pytest, if the first on the path has none.
fn with_real_python(command: &[String]) -> Vec<String> {
    let mut words = command.to_vec();
    let has_pytest = |program: &str| {
        let output = Command::new(program)
            .args(["-m", "pytest", "--version"])
            .output();
        output.is_ok_and(|output| output.status.success())
    };
    if words[0] == "python3" && !has_pytest("python3") && Path::new("/usr/bin/python3").exists() {
        words[0] = "/usr/bin/python3".to_owned();
    }
    words
}

/// One change: a path and its text.
type Change = (&'static str, &'static str);

struct Scenario {
    files: &'static [Change],
    test: Change,
    source: Change,
    weaker: &'static str,
    failure: Failure,
}

/// From the task to the commit, with the refusals on the way.
fn play(scenario: &Scenario) {
    let mut project = Project::new(scenario.files);
    let mut workflow = Workflow::default();
    let (test, source) = (scenario.test, scenario.source);
    workflow.step(Input::SendTask).unwrap();
    let first = project.run();
    assert_eq!(first.trouble, [], "{first:?}");
    let baseline = Baseline::of(&first);
    let kind = PlanKind::Change;
    let plan = Input::CompletePlan {
        kind,
        baseline: baseline.clone(),
        budget: Budget::Open,
    };
    workflow.step(plan).unwrap();

    assert_eq!(
        project.admits(&workflow, source.0, source.1),
        Err(Guard::RedTest)
    );
    let judged = red(
        &baseline,
        &first,
        &project.changed(),
        project.changes().freeze,
    );
    assert_eq!(judged, Err(NotRed::NothingNew));
    let early = workflow.step(Input::StartCoding {
        judged,
        changes: project.changes(),
    });
    assert_eq!(early.unwrap_err().guard(), Guard::RedTest);

    assert_eq!(project.admits(&workflow, test.0, test.1), Ok(()));
    project.change(test.0, test.1);
    let second = project.run();
    let judged = red(
        &baseline,
        &second,
        &project.changed(),
        project.changes().freeze,
    );
    let seen = judged.unwrap_or_else(|why| panic!("{why}: {second:#?}"));
    let failures: Vec<Failure> = seen.tests().iter().map(|test| test.failure).collect();
    assert_eq!(failures, [scenario.failure], "{seen:?}");
    workflow
        .step(Input::StartCoding {
            judged: Ok(seen.clone()),
            changes: project.changes(),
        })
        .unwrap();
    assert_eq!(workflow.state(), State::CodeWriting);

    assert_eq!(
        project.admits(&workflow, test.0, scenario.weaker),
        Err(Guard::Frozen)
    );
    assert_eq!(project.admits(&workflow, source.0, source.1), Ok(()));
    project.change(source.0, source.1);
    submit(&mut workflow, &project).unwrap();
    let third = project.run();
    let (freeze, removed) = (project.changes().freeze, BTreeSet::new());
    let around = Surroundings {
        baseline: &baseline,
        freeze: &freeze,
        removed: &removed,
    };
    let proof = green(&seen, &third, &around).unwrap_or_else(|why| panic!("{why}: {third:#?}"));
    assert_eq!(proof.fail_to_pass().len(), 1, "{proof:?}");
    assert!(proof.pass_to_pass() >= 1);
    workflow
        .step(Input::ReportTests { judged: Ok(proof) })
        .unwrap();
    assert!(
        workflow.sensitive().is_empty(),
        "a new test needs no person"
    );
    let approval = Approval::Automatic {
        rule: "merge".to_owned(),
    };
    workflow.step(Input::ApproveMerge { approval }).unwrap();
    assert_eq!(workflow.standing(), Some(Standing::Verified));

    // A shell command weakens the test behind the gate's back.
    project.change(test.0, scenario.weaker);
    let freeze = project.changes().freeze;
    let around = Surroundings {
        freeze: &freeze,
        ..around
    };
    let not = green(&seen, &project.run(), &around).unwrap_err();
    assert_eq!(not.thawed, [test.0]);
}

fn submit(workflow: &mut Workflow, project: &Project) -> Result<(), StepError> {
    let input = Input::Submit {
        changes: project.changes(),
        source: source_digest(&project.changed()),
        stripped: BTreeMap::new(),
    };
    workflow.step(input).map(|_| ())
}

const CARGO: Change = (
    "/Cargo.toml",
    "[package]\nname = \"demo\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
);

#[test]
fn rust_with_inline_tests() {
    play(&Scenario {
        files: &[
            CARGO,
            (
                "/src/lib.rs",
                "/// Doubles.\n///\n/// ```\n/// assert_eq!(demo::double(1), 2);\n/// ```\npub fn double(n: i32) -> i32 { n * 2 }\n\n#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn doubles() {\n        assert_eq!(double(2), 4);\n    }\n}\n",
            ),
        ],
        test: (
            "/src/lib.rs",
            "/// Doubles.\n///\n/// ```\n/// assert_eq!(demo::double(1), 2);\n/// ```\npub fn double(n: i32) -> i32 { n * 2 }\n\n#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn doubles() {\n        assert_eq!(double(2), 4);\n    }\n\n    #[test]\n    fn saturates() {\n        assert_eq!(double(i32::MAX), i32::MAX);\n    }\n}\n",
        ),
        source: (
            "/src/lib.rs",
            "//! Numbers.\n\n/// Doubles.\n///\n/// ```\n/// assert_eq!(demo::double(1), 2);\n/// ```\npub fn double(n: i32) -> i32 { n.saturating_mul(2) }\n\n#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn doubles() {\n        assert_eq!(double(2), 4);\n    }\n\n    #[test]\n    fn saturates() {\n        assert_eq!(double(i32::MAX), i32::MAX);\n    }\n}\n",
        ),
        weaker: "//! Numbers.\n\n/// Doubles.\n///\n/// ```\n/// assert_eq!(demo::double(1), 2);\n/// ```\npub fn double(n: i32) -> i32 { n.saturating_mul(2) }\n\n#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn doubles() {\n        assert_eq!(double(2), 4);\n    }\n\n    #[test]\n    fn saturates() {\n    }\n}\n",
        failure: Failure::InItsBody,
    });
}

#[test]
fn rust_with_a_function_that_does_not_exist_yet() {
    play(&Scenario {
        files: &[
            CARGO,
            ("/src/lib.rs", "pub fn double(n: i32) -> i32 { n * 2 }\n"),
            (
                "/tests/double.rs",
                "#[test]\nfn doubles() { assert_eq!(demo::double(2), 4); }\n",
            ),
        ],
        test: (
            "/tests/halve.rs",
            "#[test]\nfn halves() { assert_eq!(demo::halve(4), 2); }\n",
        ),
        source: (
            "/src/lib.rs",
            "pub fn double(n: i32) -> i32 { n * 2 }\npub fn halve(n: i32) -> i32 { n / 2 }\n",
        ),
        weaker: "#[test]\nfn halves() {}\n",
        failure: Failure::DoesNotCompile,
    });
}

#[test]
fn python() {
    play(&Scenario {
        files: &[
            (
                "/pyproject.toml",
                "[project]\nname = \"demo\"\n[tool.pytest.ini_options]\npythonpath = [\".\"]\n",
            ),
            ("/demo.py", "def double(n):\n    return n * 2\n"),
            (
                "/tests/test_demo.py",
                "from demo import double\n\n\ndef test_double():\n    assert double(2) == 4\n",
            ),
        ],
        test: (
            "/tests/test_demo.py",
            "from demo import double\n\n\ndef test_double():\n    assert double(2) == 4\n\n\ndef test_text():\n    assert double(\"2\") == 4\n",
        ),
        source: ("/demo.py", "def double(n):\n    return int(n) * 2\n"),
        weaker: "from demo import double\n\n\ndef test_double():\n    assert double(2) == 4\n\n\ndef test_text():\n    pass\n",
        failure: Failure::InItsBody,
    });
}

#[test]
fn python_with_a_module_that_does_not_exist_yet() {
    play(&Scenario {
        files: &[
            ("/pytest.ini", "[pytest]\npythonpath = .\n"),
            ("/demo.py", "def double(n):\n    return n * 2\n"),
            (
                "/test_demo.py",
                "from demo import double\n\n\ndef test_double():\n    assert double(2) == 4\n",
            ),
        ],
        test: (
            "/test_half.py",
            "from half import halve\n\n\ndef test_halve():\n    assert halve(4) == 2\n",
        ),
        source: ("/half.py", "def halve(n):\n    return n // 2\n"),
        weaker: "def test_halve():\n    pass\n",
        failure: Failure::DoesNotCompile,
    });
}

#[test]
fn javascript() {
    play(&Scenario {
        files: &[
            (
                "/package.json",
                r#"{"name":"demo","type":"module","scripts":{"test":"node --test"}}"#,
            ),
            ("/src/demo.js", "export const double = (n) => n * 2;\n"),
            (
                "/test/demo.test.js",
                "import test from 'node:test';\nimport assert from 'node:assert';\nimport { double } from '../src/demo.js';\ntest('doubles', () => { assert.equal(double(2), 4); });\n",
            ),
        ],
        test: (
            "/test/half.test.js",
            "import test from 'node:test';\nimport assert from 'node:assert';\nimport { halve } from '../src/demo.js';\ntest('halves', () => { assert.equal(halve(4), 2); });\n",
        ),
        source: (
            "/src/demo.js",
            "export const double = (n) => n * 2;\nexport const halve = (n) => n / 2;\n",
        ),
        weaker: "import test from 'node:test';\ntest('halves', () => {});\n",
        failure: Failure::DoesNotCompile,
    });
}

#[test]
fn go() {
    play(&Scenario {
        files: &[
            ("/go.mod", "module demo\n\ngo 1.19\n"),
            (
                "/demo.go",
                "package demo\n\nfunc Double(n int) int { return n * 2 }\n",
            ),
            (
                "/demo_test.go",
                "package demo\n\nimport \"testing\"\n\nfunc TestDouble(t *testing.T) {\n\tif Double(2) != 4 {\n\t\tt.Fatal(\"no\")\n\t}\n}\n",
            ),
        ],
        test: (
            "/zero_test.go",
            "package demo\n\nimport \"testing\"\n\nfunc TestNegative(t *testing.T) {\n\tif Double(-1) != 0 {\n\t\tt.Fatal(\"no\")\n\t}\n}\n",
        ),
        source: (
            "/demo.go",
            "package demo\n\nfunc Double(n int) int {\n\tif n < 0 {\n\t\treturn 0\n\t}\n\treturn n * 2\n}\n",
        ),
        weaker: "package demo\n\nimport \"testing\"\n\nfunc TestNegative(t *testing.T) {}\n",
        failure: Failure::InItsBody,
    });
}

/// A script that nobody knows: only its exit code speaks.
#[test]
fn make() {
    play(&Scenario {
        files: &[
            (
                "/Makefile",
                "test:\n\t@for t in tests/*.sh; do sh $$t || exit 1; done\n",
            ),
            ("/double.sh", "echo $(($1 * 2))\n"),
            ("/tests/double.sh", "test \"$(sh double.sh 2)\" = 4\n"),
        ],
        test: ("/tests/half.sh", "test \"$(sh half.sh 4)\" = 2\n"),
        source: ("/half.sh", "echo $(($1 / 2))\n"),
        weaker: "true\n",
        failure: Failure::InItsBody,
    });
}
