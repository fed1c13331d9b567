//! The debt budget by coverage, and refactorings that coverage verifies.
//!
//! A project of a hundred one-line functions, eighty of them tested, and a
//! small tool of its own that writes a real lcov report of what tests call.

use fluffy_model_server::{Format, Reply};
use fluffy_policy::starter::STARTER;
use serde_json::{Value, json};

use super::stage::{Played, Stage};

const TOOL: &str = r#"set -e
node --test > /dev/null
mkdir -p out
called=$(grep -oh 'n\.f[0-9]*()' test/*.js | sort -u)
{
  echo "TN:"
  echo "SF:src/numbers.js"
  line=0
  while IFS= read -r text; do
    line=$((line + 1))
    name=${text#export const }
    name=${name%% *}
    case "
$called
" in
      *"
n.$name()
"*) echo "DA:$line,3" ;;
      *) echo "DA:$line,0" ;;
    esac
  done < src/numbers.js
  echo end_of_record
  if test -e src/unused.js; then
    printf 'SF:src/unused.js\nDA:1,0\nend_of_record\n'
  fi
} > out/lcov.info
"#;

const CONFIGURED: &str =
    "[tests]\ncoverage = { command = [\"sh\", \"cov.sh\"], report = \"out/lcov.info\" }\n";

const SOURCE: &str = "src/numbers.js";

/// Functions up to a number.
fn source(most: u32) -> String {
    let line = |number: u32| format!("export const f{number} = () => {number};\n");
    (1..=most).map(line).collect()
}

/// A test of one name that holds these lines.
fn test(name: &str, lines: impl Iterator<Item = String>) -> String {
    let lines: String = lines.collect();
    format!(
        "import assert from \"node:assert\";\nimport test from \"node:test\";\n\
         import * as n from \"../src/numbers.js\";\n\ntest(\"{name}\", () => {{\n{lines}}});\n"
    )
}

fn asserted(number: u32) -> String {
    format!("  assert.equal(n.f{number}(), {number});\n")
}

fn called(number: u32) -> String {
    format!("  n.f{number}();\n")
}

fn project(more: &[(&str, &str)]) -> Stage {
    let (numbers, tests) = (source(100), test("eighty", (1..=80).map(asserted)));
    let files = [
        (
            "package.json",
            "{\"type\": \"module\", \"scripts\": {\"test\": \"node --test\"}}\n",
        ),
        (".gitignore", "out/\n"),
        ("cov.sh", TOOL),
        (SOURCE, numbers.as_str()),
        ("test/numbers.test.js", tests.as_str()),
    ];
    let stage = Stage::new(Format::Chat, &[&files[..], more].concat());
    let review = "match: { action: session.mode }\n    do: require_review\n";
    let allow = "match: { action: session.mode }\n    do: allow\n";
    let policy = STARTER.replacen(review, allow, 1);
    assert_ne!(policy, STARTER);
    stage.site.apply(&policy);
    stage
}

fn plan(kind: &str) -> Reply {
    Reply::call("plan.complete", json!({"summary": "Numbers", "kind": kind}))
}

fn write(path: &str, content: &str) -> Reply {
    Reply::call("fs.write", json!({"path": path, "content": content}))
}

fn validate() -> Reply {
    Reply::call("workflow.transition", json!({"to": "validating"}))
}

/// An explore session that writes these files.
fn explore(stage: &Stage, files: &[(&str, &str)]) -> Played {
    let mut replies = vec![plan("change")];
    replies.extend(files.iter().map(|(path, content)| write(path, content)));
    replies.push(validate());
    stage.play_task(&["--mode", "explore"], "Explore numbers", replies)
}

/// A strict session with these tests and this source.
fn strict(stage: &Stage, tests: &[(&str, &str)], source: &str) -> Played {
    let mut replies = vec![plan("change")];
    replies.extend(tests.iter().map(|(path, content)| write(path, content)));
    replies.push(Reply::call("test.run", json!({})));
    replies.extend([write(SOURCE, source), validate()]);
    stage.play_task(&[], "Test numbers", replies)
}

fn notes(played: &Played) -> Vec<&str> {
    let notes = played.events.iter().filter(|event| event["type"] == "note");
    notes.filter_map(|event| event["text"].as_str()).collect()
}

fn has_note(played: &Played, words: &str) -> bool {
    notes(played).iter().any(|note| note.contains(words))
}

/// Its exit code, coverage and debt.
fn stands(played: &Played) -> (i32, Value, Value) {
    let evidence = &played.ended()["evidence"];
    let (coverage, debt) = (evidence["coverage"].clone(), evidence["debt"].clone());
    (played.code, coverage, debt)
}

fn measured(before: u32, after: u32) -> Value {
    json!({"before": before, "after": after})
}

#[test]
fn a_drop_warns_then_locks_and_only_proven_tests_unlock() {
    let stage = project(&[(".fluffy/config.toml", CONFIGURED)]);
    let first = explore(&stage, &[(SOURCE, &source(104))]);
    let warned = json!({"type": "warned", "drop": 308});
    let expected = (9, measured(8000, 7692), warned);
    assert_eq!(stands(&first), expected, "{}", first.transcript);
    assert!(has_note(&first, "3.08 points"), "{:?}", notes(&first));

    let second = explore(&stage, &[(SOURCE, &source(108))]);
    let locked = json!({"type": "locked_by_coverage", "drop": 593});
    let expected = (9, measured(7692, 7407), locked.clone());
    assert_eq!(stands(&second), expected, "{}", second.transcript);

    // Locked: the mode is strict, so source cannot be written first.
    let third = explore(&stage, &[(SOURCE, &source(112))]);
    assert_eq!(third.code, 1, "{}", third.transcript);
    assert!(has_note(&third, "5.93 points"), "{:?}", notes(&third));
    let course = third.course();
    assert!(
        course.contains(&"fs.write refused".to_owned()),
        "{course:?}"
    );
    assert!(!course.contains(&"→ exploring".to_owned()), "{course:?}");

    // Tests without an assertion buy nothing, beside a real one too.
    let real = test("one more", std::iter::once(asserted(109)));
    let empty = test("calls only", (101..=108).map(called));
    let files = [
        ("test/more.test.js", &*real),
        ("test/calls.test.js", &*empty),
    ];
    let fourth = strict(&stage, &files, &source(109));
    let expected = (0, measured(7407, 7407), locked);
    assert_eq!(stands(&fourth), expected, "{}", fourth.transcript);
    assert!(
        has_note(&fourth, "wins nothing back"),
        "{:?}",
        notes(&fourth)
    );

    // One that the kernel saw fail wins everything back that it reaches.
    let lines = (81..=100).chain([110]).map(asserted);
    let fifth = strict(
        &stage,
        &[("test/rest.test.js", &test("the rest", lines))],
        &source(110),
    );
    let expected = (0, measured(8165, 10000), Value::Null);
    assert_eq!(stands(&fifth), expected, "{}", fifth.transcript);
    let sixth = explore(&stage, &[]);
    assert!(
        sixth.course().contains(&"→ exploring".to_owned()),
        "{}",
        sixth.transcript
    );
    stage.ends();
}

#[test]
fn what_measures_is_not_changed_without_a_person() {
    let stage = project(&[(".fluffy/config.toml", CONFIGURED)]);
    let forged = "mkdir -p out\nprintf 'SF:src/numbers.js\\nDA:1,1\\n' > out/lcov.info\n";
    let played = explore(&stage, &[(SOURCE, &source(120)), ("cov.sh", forged)]);
    assert_eq!(played.code, 8, "{}", played.transcript);
    stage.is_unchanged_but(".fluffy/");
    // The same source without it is merged, and known for what it is.
    let honest = explore(&stage, &[(SOURCE, &source(120))]);
    assert_eq!(
        stands(&honest).1,
        measured(8000, 6666),
        "{}",
        honest.transcript
    );
    stage.ends();
}

#[test]
fn an_old_report_is_not_taken_for_a_new_one() {
    let all = "SF:src/numbers.js\nDA:1,1\nend_of_record\n";
    let configured = "[tests.coverage]\ncommand = [\"true\"]\nreport = \"lcov.info\"\n";
    let stage = project(&[(".fluffy/config.toml", configured), ("lcov.info", all)]);
    let played = explore(&stage, &[(SOURCE, &source(104))]);
    assert_eq!(
        stands(&played),
        (9, Value::Null, Value::Null),
        "{}",
        played.transcript
    );
    assert!(
        has_note(&played, "coverage is not known"),
        "{:?}",
        notes(&played)
    );
    stage.ends();
}

#[test]
fn a_refactoring_is_verified_where_its_lines_are_covered() {
    let refactored = |number: u32| {
        let (old, new) = (
            format!("=> {number};"),
            format!("=> {{ return {number}; }};"),
        );
        source(100).replacen(&old, &new, 1)
    };
    let refactor = |stage: &Stage, number: u32| {
        let text = refactored(number);
        let replies = vec![plan("refactor"), write(SOURCE, &text), validate()];
        let played = stage.play_task(&[], "Refactor numbers", replies);
        (played.code, played.ended()["result"].clone())
    };
    let stage = project(&[(".fluffy/config.toml", CONFIGURED)]);
    assert_eq!(refactor(&stage, 7), (0, json!("verified")));
    assert_eq!(refactor(&stage, 90), (9, json!("unverified")));
    stage.ends();
    // Without coverage nobody can know.
    let stage = project(&[]);
    assert_eq!(refactor(&stage, 7), (9, json!("unverified")));
    stage.ends();
}

#[test]
fn the_model_is_told_what_no_test_reached_last() {
    let unused = ("src/unused.js", "export const unused = 1;\n");
    let stage = project(&[(".fluffy/config.toml", CONFIGURED), unused]);
    let plan = |path: &str| {
        let arguments = json!({"summary": "Numbers", "paths": [path]});
        let played = stage.play(vec![Reply::call("plan.complete", arguments)]);
        played.told[0].clone()
    };
    let words = "No test reached src/unused.js when coverage was last measured.";
    assert!(!plan(unused.0).contains(words), "nobody has measured yet");
    let first = explore(&stage, &[(SOURCE, &source(101))]);
    assert_eq!(first.code, 9, "{}", first.transcript);
    let told = plan(unused.0);
    assert!(told.contains(words), "{told}");
    let told = plan(SOURCE);
    assert!(told.contains("test/numbers.test.js"), "{told}");
    assert!(!told.contains("No test reached"), "{told}");
    stage.ends();
}
