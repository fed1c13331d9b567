//! Two sessions of one project, and room for one thing at a time.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use fluffy_model_server::{Conversation, Format, Reply};
use serde_json::{Value, json};

use super::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(120);

/// Its test ends only when the gate is open.
const FILES: &[(&str, &str)] = &[
    (
        "package.json",
        "{\n  \"name\": \"sample\",\n  \"version\": \"0.1.0\",\n  \"type\": \"module\",\n  \
         \"scripts\": { \"test\": \"node --test\" }\n}\n",
    ),
    (".gitignore", "node_modules/\ngate\n"),
    ("gate", "shut"),
    ("src/one.js", "export const value = 0;\n"),
    ("src/two.js", "export const value = 0;\n"),
    (
        "test/gate.test.js",
        "import { readFileSync } from \"node:fs\";\nimport test from \"node:test\";\n\n\
         test(\"the gate opens\", async () => {\n  \
         while (readFileSync(\"gate\", \"utf8\") !== \"open\") {\n    \
         await new Promise((done) => setTimeout(done, 20));\n  }\n});\n",
    ),
];

/// A model that does what its session's task says, step by step.
fn say(conversation: &Conversation) -> Reply {
    let task = conversation.said.first().map(|said| said.text.as_str());
    let name = match task.is_some_and(|task| task.contains("number one")) {
        true => "one",
        false => "two",
    };
    let write = |path: String, content: String| {
        Reply::call("fs.write", json!({"path": path, "content": content}))
    };
    match conversation.turns() {
        0 => Reply::call("plan.complete", json!({"summary": "another value"})),
        1 => write(
            format!("test/{name}.test.js"),
            format!(
                "import assert from \"node:assert\";\nimport test from \"node:test\";\n\
                 import {{ value }} from \"../src/{name}.js\";\n\n\
                 test(\"{name} is seven\", () => assert.equal(value, 7));\n"
            ),
        ),
        2 => Reply::call("test.run", json!({})),
        3 => write(
            format!("src/{name}.js"),
            "export const value = 7;\n".to_owned(),
        ),
        _ => Reply::text("Done."),
    }
}

/// A program that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A session whose events are told under its number.
fn session(stage: &Stage, task: &str, told: (usize, mpsc::Sender<(usize, Value)>)) -> Running {
    let mut command = stage.site.context.command();
    command
        .args(["run", "--json", "--model", stage.model(), task])
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || {
        let (number, tell) = told;
        for line in output.lines().map_while(Result::ok) {
            let event = serde_json::from_str(&line).unwrap();
            if tell.send((number, event)).is_err() {
                return;
            }
        }
    });
    Running(child)
}

#[test]
fn two_sessions_with_room_for_one_freeze_each_other_and_both_end_verified() {
    let mut stage = Stage::new(Format::Anthropic, FILES);
    stage.site.context.set("FLUFFY_TASKS_TOTAL", "1");
    stage.site.context.set("FLUFFY_TASKS_AGE", "1s");
    stage.answers_by(say);
    let (tell, told) = mpsc::channel();
    let mut children = Vec::new();
    for (number, task) in ["make number one seven", "make number two seven"]
        .into_iter()
        .enumerate()
    {
        children.push(session(&stage, task, (number, tell.clone())));
    }
    drop(tell);
    let mut course: [Vec<String>; 2] = Default::default();
    let mut ended = 0;
    while ended < 2 {
        let (number, event) = told.recv_timeout(PATIENCE).unwrap();
        let kind = event["type"].as_str().unwrap().to_owned();
        if kind == "task.paused" {
            // Whoever was tested stands still; now it could go on.
            std::fs::write(stage.file("gate"), "open").unwrap();
        }
        if kind == "session.ended" {
            assert_eq!(event["result"], "verified", "{event}");
            ended += 1;
        }
        course[number].push(kind);
    }
    for mut child in children {
        assert_eq!(child.0.wait().unwrap().code(), Some(0));
    }
    let frozen = |course: &Vec<String>| {
        let place = |kind: &str| course.iter().position(|one| one == kind);
        let (warned, paused) = (place("task.warned"), place("task.paused"));
        let resumed = place("task.resumed");
        paused.is_some() && warned < paused && paused < resumed
    };
    assert!(course.iter().any(frozen), "{course:?}");
    let (files, messages) = stage.commits();
    let all = [
        "src/one.js",
        "src/two.js",
        "test/one.test.js",
        "test/two.test.js",
    ];
    assert_eq!(files, all);
    assert_eq!(messages.matches("Fluffy-Evidence: verified").count(), 2);
    stage.ledger();
    stage.ends();
}
