//! Integration tests: only by a rule, in a template of their own, never a red
//! that the sandbox caused.

use fluffy_model_server::{Format, Reply};
use fluffy_policy::starter::STARTER;
use serde_json::json;

use super::languages::JAVASCRIPT;
use super::script;
use super::stage::{Played, Stage};

/// Runs only where there is a proxy, and opens a socket of its own.
const SERVER: &str = r#"import assert from "node:assert";
import net from "node:net";
import test from "node:test";

test("a local socket answers", async () => {
  assert.ok(process.env.HTTP_PROXY, "not in the template integration-test");
  const server = net.createServer((socket) => socket.end("hello"));
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const said = await new Promise((done, failed) => {
    const client = net.connect(server.address().port, "127.0.0.1");
    client.on("data", (bytes) => done(bytes.toString()));
    client.on("error", failed);
  });
  server.close();
  assert.equal(said, "hello");
});
"#;

const CONFIG: &str = r#"[tests]
command = ["sh", "-c", "exec node --test test/*.test.js"]

[tests.integration]
server = ["sh", "-c", "exec node --test integration/*.test.js"]
"#;

const RULE: &str = "capabilities:
  - name: integration-tests
    match: { action: test.run, template: [integration-test] }
    do: allow
    constraints: { require_sandbox: true }
";

fn stage() -> Stage {
    let files = [
        JAVASCRIPT.files,
        &[
            (".fluffy/config.toml", CONFIG),
            ("integration/server.test.js", SERVER),
        ],
    ];
    Stage::new(Format::Chat, &files.concat())
}

fn with_rule() -> Stage {
    let stage = stage();
    let policy = STARTER.replacen("capabilities:\n", RULE, 1);
    assert!(policy.contains(RULE));
    stage.site.apply(&policy);
    stage
}

/// Events of the ledger about tests in this template, by their verdict.
fn decided(stage: &Stage, verdict: &str) -> usize {
    let ledger = stage.ledger();
    let is_it = |event: &&serde_json::Value| {
        let payload = &event["payload"];
        let record = payload["record"].to_string();
        event["event_type"] == "policy.decision"
            && payload["decision"] == verdict
            && record.contains("\"action\":\"test.run\"")
            && record.contains("\"integration-test\"")
    };
    ledger.iter().filter(is_it).count()
}

fn is_verified(played: &Played, still_green: u64) {
    assert_eq!(played.code, 0, "{}", played.transcript);
    let evidence = &played.ended()["evidence"];
    assert_eq!(evidence["fail_to_pass"].as_array().unwrap().len(), 1);
    assert_eq!(evidence["pass_to_pass"], still_green, "{evidence}");
}

#[test]
fn without_a_rule_they_do_not_run_and_are_never_red() {
    let stage = stage();
    let mut replies = script(&JAVASCRIPT, JAVASCRIPT.solved);
    // Before there is a new test: what did not run is no failing test.
    replies.insert(2, Reply::call("test.run", json!({})));
    let played = stage.play(replies);
    is_verified(&played, 1);
    let told = &played.told[2];
    for words in [
        "1 passed, 0 failed",
        "integration tests `server` did not run and prove nothing",
        "Still test_writing: ",
    ] {
        assert!(told.contains(words), "{words}\n{told}");
    }
    assert_eq!(played.ended()["evidence"]["not_run"], json!(["server"]));
    let notes = played.events.iter();
    let notes = notes.filter(|event| event["type"] == "note");
    let notes = notes.filter(|event| event.to_string().contains("did not run"));
    assert_eq!(notes.count(), 1, "said once: {}", played.transcript);
    assert!(decided(&stage, "deny") > 0);
    assert_eq!(decided(&stage, "allow"), 0);
    stage.ends();
}

#[test]
fn with_a_rule_they_run_beside_the_others() {
    let stage = with_rule();
    let played = stage.play(script(&JAVASCRIPT, JAVASCRIPT.solved));
    is_verified(&played, 2);
    assert!(played.ended()["evidence"]["not_run"].is_null());
    assert!(decided(&stage, "allow") > 0);
    assert_eq!(decided(&stage, "deny"), 0);
    stage.ends();
}

#[test]
fn a_refused_socket_is_never_red_and_a_failed_assertion_is() {
    let stage = with_rule();
    let new = |body: &str| {
        let text = format!(
            "import assert from \"node:assert\";\nimport net from \"node:net\";\n\
             import test from \"node:test\";\n\ntest(\"another one\", async () => {{\n{body}\n}});\n"
        );
        let path = "integration/another.test.js";
        Reply::call("fs.write", json!({"path": path, "content": text}))
    };
    let connects = "  await new Promise((done, failed) => \
                    net.connect(9, \"127.0.0.1\", done).on(\"error\", failed));";
    let run = || Reply::call("test.run", json!({}));
    let played = stage.play(vec![
        Reply::call("plan.complete", json!({"summary": "One more"})),
        new(connects),
        run(),
        // Control: the same test, failing by itself.
        new("  assert.equal(1, 2);"),
        run(),
        Reply::text("Enough."),
    ]);
    let (refused, red) = (&played.told[2], &played.told[4]);
    assert!(refused.contains("ECONNREFUSED"), "{refused}");
    assert!(refused.contains("Still test_writing"), "{refused}");
    assert!(refused.contains("socket"), "{refused}");
    assert!(red.contains("State code_writing now"), "{red}");
    assert_eq!(stage.commits().0, Vec::<String>::new());
    stage.ends();
}
