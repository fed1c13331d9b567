//! A session is recorded against a real server and played again without one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use fluffy_model_server::{Fault, Format, Reply};
use serde_json::{Value, json};

use super::languages::JAVASCRIPT;
use super::stage::{Played, Stage};
use super::{is_done, script};

/// A key that is set, and one that the model makes up.
const KEY: &str = "some-key-of-ann-1234567890";
const SHAPED: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";

/// What only the person's policy calls a secret.
const OWN: &str = "acme-123456";
const POLICY: &str = "version: 1\nsanitize:\n  patterns: [\"acme-[0-9]{6}\"]\n";

fn stage(files: &[(&str, &str)]) -> Stage {
    let mut stage = Stage::new(Format::Anthropic, files);
    stage.site.context.set("ANTHROPIC_API_KEY", KEY);
    let folder = stage.site.context.home().join(".config/fluffy");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("policy.yaml"), POLICY).unwrap();
    stage
}

/// Records the scenario, with secrets in what the model says and asks for.
fn record(stage: &Stage) -> String {
    let file = stage.site.context.home().join("session.jsonl");
    let mut replies = script(&JAVASCRIPT, JAVASCRIPT.solved);
    let project = stage.site.context.project();
    replies[0] = Reply::text(&format!("Your keys are {KEY} and {OWN}, mine is {SHAPED}."))
        .and_call("fs.read", json!({"path": JAVASCRIPT.source}))
        .and_call("search.grep", json!({"pattern": "parse_?[cC]onfig"}));
    let hidden = json!({"command": format!("echo {SHAPED} in {}", project.display())});
    replies.insert(5, Reply::call("shell.exec", hidden));
    let played = stage.play_with(&["--record", file.to_str().unwrap()], replies);
    assert_eq!(played.code, 0, "{}", played.transcript);
    assert!(
        played.transcript.contains("recorded 9 turns"),
        "{}",
        played.transcript
    );
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::read_to_string(&file).unwrap()
}

fn last(played: &Played) -> &Value {
    let last = played.events.last().unwrap();
    assert_eq!(last["type"], "replay.ended", "{}", played.transcript);
    last
}

#[test]
fn a_recording_is_played_elsewhere_without_a_model() {
    let first = stage(JAVASCRIPT.files);
    let text = record(&first);
    let project = first.site.context.project();
    for hidden in [KEY, SHAPED, OWN, project.to_str().unwrap()] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
    first.ends();

    let second = Stage::new(Format::Anthropic, JAVASCRIPT.files);
    let played = second.replay(&text);
    assert_eq!(played.code, 0, "{}", played.transcript);
    assert_eq!(last(&played)["same"], true, "{}", played.transcript);
    assert_eq!(second.received().len(), 0);
    assert_eq!(
        fs::read_to_string(second.file(JAVASCRIPT.source)).unwrap(),
        JAVASCRIPT.solved
    );
    assert_eq!(second.git(&["status", "--porcelain"]), "");
    second.site.succeeds(&["audit", "verify"]);
    // The work is done: what the tools say now is not what they said then.
    let again = second.replay(&text);
    assert_eq!(again.code, 5, "{}", again.transcript);
    assert_eq!(last(&again)["same"], false);
    second.ends();
}

#[test]
fn another_repository_diverges_with_a_diff() {
    let first = stage(JAVASCRIPT.files);
    let text = record(&first);
    first.ends();
    let other: Vec<(&str, String)> = JAVASCRIPT
        .files
        .iter()
        .map(|(path, text)| match *path == JAVASCRIPT.source {
            true => (*path, format!("// Somebody was here.\n{text}")),
            false => (*path, (*text).to_owned()),
        })
        .collect();
    let other: Vec<(&str, &str)> = other.iter().map(|(path, text)| (*path, &**text)).collect();
    let second = Stage::new(Format::Anthropic, &other);
    let played = second.replay(&text);
    assert_eq!(played.code, 5, "{}", played.transcript);
    let diverged = |event: &&Value| event["type"] == "replay.diverged";
    let event = played.events.iter().find(diverged).unwrap();
    let place = event["place"].as_str().unwrap();
    assert!(place.contains("turn 2: `fs.read`"), "{event}");
    let diff = event["diff"].as_str().unwrap();
    assert!(diff.contains("// Somebody was here."), "{diff}");
    assert!(diff.lines().any(|line| line.starts_with('+')), "{diff}");
    assert_eq!(played.ended()["result"], "diverged");
    assert_eq!(last(&played)["same"], false);
    second.is_unchanged();
    let file = second.site.context.home().join("session.jsonl");
    let shown = second.site.run(&["replay", file.to_str().unwrap()]);
    let shown = shown.transcript();
    for words in ["NOT the same", "Somebody was here", "Diverged"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    second.ends();
}

#[test]
fn a_session_that_failed_is_recorded_whole_once_it_went_on() {
    let stage = stage(JAVASCRIPT.files);
    let file = stage.site.context.home().join("session.jsonl");
    let mut replies = script(&JAVASCRIPT, JAVASCRIPT.solved);
    let rest = replies.split_off(3);
    replies.push(Reply::failing(Fault::Status {
        status: 401,
        headers: vec![],
    }));
    let played = stage.play_with(&["--record", file.to_str().unwrap()], replies);
    assert_eq!(played.code, 1, "{}", played.transcript);
    let ended = |file: &Path| {
        let text = fs::read_to_string(file).unwrap();
        let last = text.lines().last().unwrap().to_owned();
        let value: Value = serde_json::from_str(&last).unwrap();
        (
            text.lines().count(),
            value["ended"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(ended(&file), (5, "failed".to_owned()));
    let session = played.events[0]["session"].as_str().unwrap();
    stage.say(rest);
    stage.site.succeeds(&["session", "resume", session]);
    assert_eq!(ended(&file), (10, "verified".to_owned()));
    let text = fs::read_to_string(&file).unwrap();
    stage.ends();

    let second = Stage::new(Format::Anthropic, JAVASCRIPT.files);
    let played = second.replay(&text);
    let mut own = Played::clone(&played);
    assert_eq!(own.events.pop().unwrap()["same"], true);
    is_done(&second, &JAVASCRIPT, &own);
    second.ends();
}

#[test]
fn what_cannot_be_recorded_or_played_is_said_before_anything_happens() {
    let stage = stage(JAVASCRIPT.files);
    let played = stage.play_with(
        &["--record", "/nowhere/at/all.jsonl"],
        script(&JAVASCRIPT, JAVASCRIPT.solved),
    );
    assert_eq!(played.code, 1, "{}", played.transcript);
    assert_eq!(stage.received().len(), 0);
    let error = stage.site.json_error(4, &["replay", "missing.jsonl"]);
    assert_eq!(error["code"], "no_recording", "{error}");
    stage
        .site
        .context
        .write("cut.jsonl", "{\"fluffy_recording\":1}\n")
        .unwrap();
    let error = stage.site.json_error(2, &["replay", "cut.jsonl"]);
    assert!(error["why"].to_string().contains("line 1"), "{error}");
    stage.site.ends(2, &["acp", "--record", "x"]);
    fs::remove_file(stage.file("cut.jsonl")).unwrap();
    stage.is_unchanged();
}
