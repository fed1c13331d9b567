//! A session whose model is a plugin, made with HashiCorp's own Go library.

use fluffy_model_server::Format;
use fluffy_policy::starter::STARTER;
use fluffy_test_kit::GoPlugins;
use serde_json::{Value, json};

use super::languages::JAVASCRIPT;
use super::plugged::fluffy;
use super::stage::{Played, Stage};

const MANIFEST: &str = "name: scripted
version: 1.0.0
type: provider
engine: \">=0.1\"
api: 1
capabilities: [ \"fs.write.@data/*\" ]
execution:
  tier: process
  command: [ ./provider ]
  protocol: go-plugin
  sandbox: { filesystem: { write_allow: [ \"@data/*\" ] } }
";

const DENIED: &str = "capabilities:
  - { name: no-models, match: { action: model.generate, template: [plugin] }, do: deny, reason: not this one }
";

fn call(tool: &str, arguments: &Value) -> Value {
    json!({"Calls": [{"Tool": tool, "Arguments": arguments}]})
}

/// Solves the task, with a mishap on the way.
fn script() -> Value {
    let write =
        |path: &str, content: &str| call("fs.write", &json!({"path": path, "content": content}));
    let mut dies = write(JAVASCRIPT.test, JAVASCRIPT.test_text);
    dies["Text"] = json!("half of it");
    dies["Then"] = json!("die once");
    let mut thinks = call("plan.complete", &json!({"summary": "Leave them out"}));
    thinks["Reasoning"] = json!("The plan is clear.");
    thinks["Input"] = json!(900);
    thinks["Output"] = json!(60);
    json!([
        call("fs.read", &json!({"path": JAVASCRIPT.source})),
        // Tools that it was not offered are not there for it.
        call("host.exec", &json!({"command": "id"})),
        thinks,
        dies,
        call("test.run", &json!({})),
        write(JAVASCRIPT.source, JAVASCRIPT.solved),
        call("workflow.transition", &json!({"to": "validating"})),
    ])
}

fn stage(script: &Value) -> Stage {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    let folder = stage.site.context.home().join("scripted");
    std::fs::create_dir(&folder).unwrap();
    let target = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = GoPlugins::build(target).unwrap().provider();
    std::fs::copy(program, folder.join("provider")).unwrap();
    std::fs::write(folder.join("plugin.yaml"), MANIFEST).unwrap();
    std::fs::write(folder.join("script.json"), script.to_string()).unwrap();
    let install = ["plugin", "install", folder.to_str().unwrap(), "--yes"];
    let (code, said) = fluffy(&stage, &install);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("plugin:scripted/script"), "{said}");
    stage
}

fn run(stage: &Stage, model: &str) -> Played {
    let task = "Lines without = must not break parse_config";
    stage.play_on(&["run", "--json", "--model", model, task], Vec::new())
}

#[test]
fn a_provider_plugin_serves_a_session_to_a_verified_commit() {
    let stage = stage(&script());
    let played = run(&stage, "plugin:scripted/script");
    assert_eq!(played.code, 0, "{}", played.transcript);
    super::is_committed(&stage, &JAVASCRIPT, &played);
    assert_eq!(stage.received().len(), 0, "no other model was asked");
    let calls = played.calls();
    let foreign = calls.iter().find(|call| call.tool == "host.exec").unwrap();
    assert_eq!(foreign.outcome, "refused", "{foreign:?}");
    let of = |kind: &str| {
        let is = |event: &&Value| event["type"] == kind;
        played.events.iter().filter(is).count()
    };
    assert!(of("turn.restarted") >= 1, "{}", played.transcript);
    assert!(of("reasoning.delta") >= 1, "{}", played.transcript);

    // Every question was decided about, in this model's name.
    let ledger = stage.ledger();
    let decided = |event: &&Value| {
        let text = event["payload"].to_string();
        event["event_type"] == "policy.decision" && text.contains("plugin:scripted/script")
    };
    assert!(ledger.iter().filter(decided).count() >= 8);
    let crashed = |event: &&Value| {
        let states = &event["payload"];
        event["event_type"] == "plugin.transition" && states.to_string().contains("error")
    };
    assert_eq!(ledger.iter().filter(crashed).count(), 1);
    stage.ends();
}

#[test]
fn a_provider_that_misbehaves_ends_the_session_and_nothing_else() {
    for (turn, words) in [
        (json!({"Text": "half", "Then": "die"}), "the plugin ended"),
        (
            json!({"Text": "x", "Then": "flood"}),
            "larger than any may be",
        ),
    ] {
        let stage = stage(&json!([turn]));
        let played = run(&stage, "plugin:scripted/script");
        played.is_not_done();
        assert!(
            played.transcript.contains(words),
            "{words}: {}",
            played.transcript
        );
        stage.is_unchanged();
        stage.ends();
    }
}

#[test]
fn policy_decides_whether_a_plugin_is_asked() {
    let stage = stage(&script());
    stage
        .site
        .apply(&STARTER.replacen("capabilities:\n", DENIED, 1));
    let played = run(&stage, "plugin:scripted/script");
    played.is_not_done();
    assert!(
        played.transcript.contains("not this one"),
        "{}",
        played.transcript
    );
    stage.site.apply(STARTER);
    for (model, words) in [
        ("plugin:nobody/script", "no plugin `nobody` is installed"),
        ("plugin:scripted/other", "there is only the model"),
        ("plugin:/x", "no plugin ``"),
    ] {
        let finished = stage.site.run(&["run", "--model", model, "task"]);
        assert_ne!(finished.code, Some(0));
        let said = finished.transcript();
        assert!(said.contains(words), "{words}: {said}");
    }
    stage.ends();
}
