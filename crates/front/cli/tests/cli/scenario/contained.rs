//! Sessions whose tools run in containers, on real engines.
//!
//! The same scenario, the same promises: what is hidden stays hidden, nothing
//! of a call is left for the next, and no container is left in the end.

use std::process::Command;

use fluffy_base::Digest;
use fluffy_model_server::{Format, Reply};
use fluffy_test_kit::{EngineKind, TestEngine, record_skip, wait_for};
use serde_json::json;

use super::family::lines;
use super::languages::JAVASCRIPT;
use super::plugged::{fluffy, read, write_plugin};
use super::stage::{PATIENCE, Stage};
use super::{is_done, script};

const CONTAINER: [&str; 2] = ["--tier", "container"];

/// A stage with this engine, if it can be had.
fn stage(kind: EngineKind, files: &[(&str, &str)]) -> Option<Stage> {
    let socket = match kind.for_tests().unwrap() {
        TestEngine::At(socket) => socket,
        TestEngine::Impossible(reason) => {
            record_skip(&format!("sessions on {}", kind.name()), &reason);
            return None;
        }
    };
    let mut stage = Stage::new(Format::Chat, files);
    let engine = format!("unix://{}", socket.display());
    stage.site.context.set("DOCKER_HOST", &engine);
    Some(stage)
}

/// The containers of a stage that are still there, running or not.
fn containers(stage: &Stage, kind: EngineKind) -> Vec<String> {
    let TestEngine::At(socket) = kind.for_tests().unwrap() else {
        return Vec::new();
    };
    let state = stage.site.state().join("sandboxes");
    let state = state.canonicalize().unwrap();
    let digest = Digest::of(state.as_os_str().as_encoded_bytes()).to_string();
    let mark: String = digest.chars().take(32).collect();
    let output = Command::new("docker")
        .env("DOCKER_HOST", format!("unix://{}", socket.display()))
        .args(["ps", "--all", "--quiet", "--filter"])
        .arg(format!("label=fluffy.state={mark}"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn shell(command: &str) -> Reply {
    Reply::call("shell.exec", json!({"command": command}))
}

#[test]
fn the_scenario_works_in_containers() {
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        let Some(stage) = stage(kind, JAVASCRIPT.files) else {
            continue;
        };
        let replies = script(&JAVASCRIPT, JAVASCRIPT.solved);
        let played = stage.play_with(&CONTAINER, replies);
        is_done(&stage, &JAVASCRIPT, &played);
        assert_eq!(played.events[0]["tier"], "container");
        stage.rests();
        assert_eq!(containers(&stage, kind), Vec::<String>::new());
        stage.ends();
    }
}

#[test]
fn a_call_leaves_nothing_for_the_next_and_secrets_stay_hidden() {
    const TOKEN: &str = "token-in-dotenv-77f0";
    let kind = EngineKind::Docker;
    let secret = format!("TOKEN={TOKEN}\n");
    let files = [JAVASCRIPT.files, &[(".env", secret.as_str())]].concat();
    let Some(stage) = stage(kind, &files) else {
        return;
    };
    let mark = format!("left-{}", std::process::id());
    let played = stage.play_with(
        &CONTAINER,
        vec![
            shell(&format!(
                "setsid sh -c 'while :; do sleep 1; done' {mark} </dev/null >/dev/null 2>&1 & \
                 echo $! > /tmp/left"
            )),
            // One container serves them all, and nothing else runs in it.
            shell("test -s /tmp/left && echo known; kill -0 $(cat /tmp/left) && echo alive"),
            shell("cat .env; cat /proc/self/root$PWD/.env; cp .env /tmp/x; cat /tmp/x"),
            shell("touch .git/hooks/post-commit && echo planted"),
            Reply::text("Enough."),
        ],
    );
    let told = &played.told;
    assert!(told[1].contains("known"), "{}", told[1]);
    assert!(!told[1].contains("alive"), "{}", told[1]);
    let wanted = format!("\0{mark}\0");
    let gone = || (!lines().any(|line| line.ends_with(&wanted))).then_some(());
    wait_for("what was left is gone", PATIENCE, gone).unwrap();
    assert!(told[2].contains("Permission denied"), "{}", told[2]);
    assert!(!told.concat().contains(TOKEN), "{told:?}");
    assert!(!told[3].contains("planted\n"), "{}", told[3]);
    stage.is_unchanged();
    stage.rests();
    assert_eq!(containers(&stage, kind), Vec::<String>::new());
    stage.ends();
}

#[test]
fn a_session_goes_on_where_it_began_and_nowhere_else() {
    let kind = EngineKind::Docker;
    let Some(stage) = stage(kind, JAVASCRIPT.files) else {
        return;
    };
    let plan = Reply::call("plan.complete", json!({"summary": "Left out"}));
    let test = json!({"path": JAVASCRIPT.test, "content": JAVASCRIPT.test_text});
    let replies = vec![plan, Reply::call("fs.write", test)];
    let played = stage.play_with(&CONTAINER, replies);
    assert_eq!(played.code, 1, "{}", played.transcript);
    let session = played.events[0]["session"].as_str().unwrap();
    stage.rests();
    let source = json!({"path": JAVASCRIPT.source, "content": JAVASCRIPT.solved});
    let resumed = stage.play_on(
        &["session", "resume", "--json", session],
        vec![
            Reply::call("test.run", json!({})),
            Reply::call("fs.write", source),
            Reply::call("workflow.transition", json!({"to": "validating"})),
        ],
    );
    assert_eq!(resumed.code, 0, "{}", resumed.transcript);
    assert_eq!(resumed.events[0]["tier"], "container");
    // A fork is where its origin is.
    let model = stage.model();
    let words = ["session", "fork", session, "One more", "--model", model];
    let refused = stage
        .site
        .ends(2, &[&words[..], &["--tier", "process"]].concat());
    assert!(
        refused.stderr.contains("the tier of its origin"),
        "{}",
        refused.stderr
    );
    stage.rests();
    assert_eq!(containers(&stage, kind), Vec::<String>::new());
    stage.ends();
}

/// A plugin of a third party runs in a container as soon as there is an engine;
/// a session calls it there like any other.
#[test]
fn a_session_calls_a_plugin_in_its_container() {
    let kind = EngineKind::Docker;
    let notes = [
        ("docs/a.md", "the note"),
        ("docs/.env", "KEY=1"),
        ("private.md", "mine"),
    ];
    let Some(stage) = stage(kind, &[JAVASCRIPT.files, &notes].concat()) else {
        return;
    };
    let folder = write_plugin(&stage, "Reads a note.");
    let (code, said) = fluffy(&stage, &["plugin", "install", &folder, "--yes"]);
    assert_eq!(code, 0, "{said}");
    let played = stage.play(vec![
        read(&stage, "docs/a.md"),
        read(&stage, "docs/.env"),
        read(&stage, "private.md"),
        Reply::text("done"),
    ]);
    let told = &played.told;
    assert!(told.len() >= 3, "{}", played.transcript);
    assert!(told[0].contains("the note"), "{told:?}");
    assert!(
        !told[1].contains("KEY=1") && !told[2].contains("mine"),
        "{told:?}"
    );
    let (_, log) = fluffy(&stage, &["plugin", "logs", "notes"]);
    assert_eq!(log.matches("it runs in tier container").count(), 2, "{log}");
    stage.rests();
    wait_for("no container is left", PATIENCE, || {
        containers(&stage, kind).is_empty().then_some(())
    })
    .unwrap();
}
