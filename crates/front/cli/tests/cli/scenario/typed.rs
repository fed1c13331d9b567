//! Exempt as a change of types: only where nothing that runs is different.

use fluffy_model_server::{Format, Reply};
use fluffy_policy::starter::STARTER;
use serde_json::json;

use super::languages::{JAVASCRIPT, PYTHON};
use super::stage::{Played, Stage};

const TYPESCRIPT: &str = "import { parseConfig } from \"./config.js\";\n\n\
                          export function first(text) {\n  return parseConfig(text)[0];\n}\n";

fn stage(files: &[(&str, &str)]) -> Stage {
    let stage = Stage::new(Format::Chat, files);
    let review = "match: { action: workflow.request_exemption }\n    do: require_review\n";
    let allow = "match: { action: workflow.request_exemption }\n    do: allow\n";
    let policy = STARTER.replacen(review, allow, 1);
    assert_ne!(policy, STARTER);
    stage.site.apply(&policy);
    stage
}

fn refactor(stage: &Stage, path: &str, text: &str) -> Played {
    let exemption = json!({
        "category": "type_refactor", "paths": [path], "reason": "only annotations change",
    });
    let replies = vec![
        Reply::call("workflow.request_exemption", exemption),
        Reply::call("plan.complete", json!({"summary": "Annotate"})),
        Reply::call("fs.write", json!({"path": path, "content": text})),
        Reply::call("workflow.transition", json!({"to": "validating"})),
    ];
    stage.play_task(&[], "Annotate it", replies)
}

/// The honest change is committed, each of the others is refused.
fn check(files: &[(&str, &str)], path: &str, honest: &str, others: &[(&str, &str)]) {
    let stage = stage(files);
    for (text, why) in others {
        let played = refactor(&stage, path, text);
        assert_eq!(played.code, 1, "{text}\n{}", played.transcript);
        assert!(played.told[3].contains(why), "{}", played.told[3]);
        stage.is_unchanged_but(".fluffy/");
    }
    let played = refactor(&stage, path, honest);
    assert_eq!(played.code, 0, "{}", played.transcript);
    assert_eq!(played.ended()["result"], "exempt");
    let (files, messages) = stage.commits();
    assert_eq!(files, [path]);
    assert!(
        messages.contains("Fluffy-Evidence: exempt:type_refactor"),
        "{messages}"
    );
    stage.ends();
}

const DIFFERS: &str = "differs in more than its types";
const UNSURE: &str = "was not compared without its types";

#[test]
fn annotations_of_python_are_exempt_and_nothing_else() {
    let (_, before) = PYTHON
        .files
        .iter()
        .find(|(path, _)| *path == "sample.py")
        .unwrap();
    let honest = before.replace("parse_config(text):", "parse_config(text: str) -> dict:");
    assert_ne!(honest, **before);
    // It does what the task wants, and no test saw it.
    let solved = PYTHON.solved.replace("(text)", "(text: str)");
    let evaluated = before.replace("(text)", "(text: print('now'))");
    let reader = format!("import inspect\n{honest}");
    check(
        PYTHON.files,
        "sample.py",
        &honest,
        &[(&solved, DIFFERS), (&evaluated, DIFFERS), (&reader, UNSURE)],
    );
}

#[test]
fn types_of_typescript_are_exempt_and_nothing_else() {
    let path = "src/first.ts";
    let files = [JAVASCRIPT.files, &[(path, TYPESCRIPT)]].concat();
    let honest = TYPESCRIPT.replace("(text) {", "(text: string): [string, string] | undefined {");
    let other = honest.replace("[0]", "[1]");
    let sly = honest.replace("import {", "import \"./spy.js\";\nimport {");
    let enumerated = format!("{honest}enum Colour {{ Red }}\n");
    check(
        &files,
        path,
        &honest,
        &[(&other, DIFFERS), (&sly, DIFFERS), (&enumerated, UNSURE)],
    );
}
