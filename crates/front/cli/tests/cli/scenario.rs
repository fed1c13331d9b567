//! The scenario that must always work, in three languages and four formats.
//!
//! `steered` is a person at the keyboard, and what one can do afterwards.
//! `stage` is the real program between a script and a repository; `languages`
//! holds the repositories; `hostile` is a model that tries to cheat; `family`
//! are the processes of a session; `crowded` is two sessions where there is
//! room for one; `keyring` is where keys come from.

mod carried;
mod configured;
mod contained;
mod covered;
mod crowded;
mod debugging;
mod family;
mod hostile;
mod integration;
mod keyring;
mod killed;
mod languages;
mod long;
mod plugged;
mod processes;
mod rehearsed;
mod replayed;
mod served;
mod stage;
mod steered;
mod stuck;
mod taught;
mod told;
mod typed;

use fluffy_model_server::{Delivery, Fault, Format, Piece, Reply, Tokens};
use serde_json::json;

use languages::{JAVASCRIPT, PYTHON, RUST, Repository};
use stage::{Played, Stage};

/// What a model says that tries the two forbidden writes on its way.
fn script(repository: &Repository, code: &str) -> Vec<Reply> {
    let write = |path: &str, content: &str| {
        Reply::call("fs.write", json!({"path": path, "content": content}))
    };
    vec![
        Reply::text("I look at it first.")
            .and_call("fs.read", json!({"path": repository.source}))
            .and_call("search.grep", json!({"pattern": "parse_?[cC]onfig"}))
            .counting(Tokens {
                input: 900,
                output: 60,
                ..Tokens::default()
            }),
        Reply::default()
            .with(Piece::Reasoning("The plan is clear.".to_owned()))
            .and_call(
                "plan.complete",
                json!({"summary": "Lines without = are left out"}),
            ),
        write(repository.test, repository.test_text),
        write(repository.source, code),
        Reply::call("test.run", json!({})),
        write(repository.test, ""),
        write(repository.source, code),
        Reply::call("workflow.transition", json!({"to": "validating"})),
        Reply::text("Done."),
    ]
}

/// The course until the code is judged.
const UNTIL_JUDGED: [&str; 14] = [
    "started",
    "→ planning",
    "fs.read done",
    "search.grep done",
    "tests green",
    "→ test_writing",
    "plan.complete done",
    "fs.write done",
    "fs.write refused",
    "tests red",
    "→ code_writing",
    "test.run done",
    "fs.write refused",
    "fs.write done",
];

/// Asserts all that the scenario promises.
fn is_done(stage: &Stage, repository: &Repository, played: &Played) {
    assert_eq!(played.code, 0, "{}", played.transcript);
    let after = [
        "→ validating",
        "tests green",
        "→ reviewing",
        "→ committing",
        "→ idle",
        "workflow.transition done",
        "ended verified",
    ];
    assert_eq!(played.course(), [&UNTIL_JUDGED[..], &after].concat());
    let calls = played.calls();
    let refused: Vec<_> = calls
        .iter()
        .filter(|call| call.outcome == "refused")
        .collect();
    assert!(refused[0].summary.contains("test_writing"), "{refused:?}");
    assert!(refused[1].summary.contains("code_writing"), "{refused:?}");
    assert_eq!(played.ended()["evidence"]["refused"], 2);
    is_committed(stage, repository, played);
    let ledger = stage.ledger();
    let of = |kind: &str| {
        ledger
            .iter()
            .filter(|event| event["event_type"] == kind)
            .count()
    };
    assert_eq!(of("merge.approved"), 1);
    assert_eq!(of("merge.applied"), 1);
}

/// Asserts what is in the repository and what is said of it.
fn is_committed(stage: &Stage, repository: &Repository, played: &Played) {
    let evidence = &played.ended()["evidence"];
    let proven: Vec<&str> = evidence["fail_to_pass"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|name| name.as_str())
        .collect();
    assert_eq!(proven.len(), 1, "{evidence}");
    assert!(proven[0].contains(repository.named), "{evidence}");
    assert_eq!(evidence["pass_to_pass"], 1);
    let merged: Vec<&String> = evidence["merged"].as_object().unwrap().keys().collect();
    let mut both = vec![repository.source, repository.test];
    both.sort_unstable();
    assert_eq!(merged, both);

    let (files, messages) = stage.commits();
    assert_eq!(files, both);
    assert_eq!(stage.git(&["status", "--porcelain"]), "");
    assert_eq!(
        stage.git(&["rev-parse", "HEAD"]),
        evidence["commit"].as_str().unwrap()
    );
    let session = played.events[0]["session"].as_str().unwrap();
    assert!(
        messages.contains(&format!("Fluffy-Session: {session}\n")),
        "{messages}"
    );
    assert!(messages.contains("Fluffy-Evidence: verified"), "{messages}");
    let read = |path: &str| std::fs::read_to_string(stage.file(path)).unwrap();
    assert_eq!(read(repository.source), repository.solved);
    assert_eq!(read(repository.test), repository.test_text);
}

/// Replies with every one changed.
fn each(replies: Vec<Reply>, change: impl Fn(Reply) -> Reply) -> Vec<Reply> {
    replies.into_iter().map(change).collect()
}

#[test]
fn a_rust_repository_over_the_messages_format() {
    let stage = Stage::new(Format::Anthropic, RUST.files);
    let played = stage.play(script(&RUST, RUST.solved));
    is_done(&stage, &RUST, &played);
    stage.ends();
}

#[test]
fn a_python_repository_over_chat_with_a_bad_network() {
    let stage = Stage::new(Format::Chat, PYTHON.files);
    let mut replies = script(&PYTHON, PYTHON.solved);
    let busy = Fault::Status {
        status: 429,
        headers: vec![("retry-after".to_owned(), "1".to_owned())],
    };
    replies.insert(1, Reply::failing(busy));
    let mut dies = replies[3].clone();
    dies.fault = Some(Fault::DieAfter { events: 2 });
    replies.insert(3, dies);
    replies.insert(5, Reply::failing(Fault::DieAtOnce));
    replies.insert(7, Reply::failing(Fault::ErrorAfter { events: 2 }));
    let asked = replies.len() - 1;
    let played = stage.play(replies);
    is_done(&stage, &PYTHON, &played);
    assert_eq!(stage.received().len(), asked);
    stage.ends();
}

#[test]
fn a_javascript_repository_over_responses_a_byte_at_a_time() {
    let stage = Stage::new(Format::Responses, JAVASCRIPT.files);
    let replies = each(script(&JAVASCRIPT, JAVASCRIPT.solved), |reply| Reply {
        keep_alives: true,
        ..reply.delivered(Delivery::Bytes)
    });
    let played = stage.play(replies);
    is_done(&stage, &JAVASCRIPT, &played);
    stage.ends();
}

#[test]
fn a_javascript_repository_over_gemini() {
    let stage = Stage::new(Format::Gemini, JAVASCRIPT.files);
    let played = stage.play(script(&JAVASCRIPT, JAVASCRIPT.solved));
    is_done(&stage, &JAVASCRIPT, &played);
    stage.ends();
}

#[test]
fn code_that_does_not_solve_it_is_never_verified() {
    for repository in [&PYTHON, &JAVASCRIPT] {
        let stage = Stage::new(Format::Anthropic, repository.files);
        stage.then(Reply::text(
            "Everything passes, the task is verified and done.",
        ));
        let played = stage.play(script(repository, repository.unsolved));
        let course = played.course();
        let judged = ["→ validating", "tests red", "→ code_writing"];
        assert_eq!(course[..14], UNTIL_JUDGED);
        assert_eq!(course[14..17], judged);
        assert_eq!(played.code, 1, "{}", played.transcript);
        played.is_not_done();
        stage.is_unchanged();
        stage.site.succeeds(&["audit", "verify"]);
        stage.ends();
    }
}

#[test]
fn what_cannot_be_had_is_refused_and_never_left_out() {
    let mut stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    stage
        .site
        .context
        .set("DOCKER_HOST", "unix:///nowhere/engine.sock");
    for (tier, why) in [
        ("container", "/nowhere/engine.sock"),
        ("microvm", "not possible"),
    ] {
        let replies = script(&JAVASCRIPT, JAVASCRIPT.solved);
        let played = stage.play_with(&["--tier", tier], replies);
        assert_eq!(played.code, 2, "{}", played.transcript);
        let said = format!("tier `{tier}`");
        assert!(played.transcript.contains(&said), "{}", played.transcript);
        assert!(played.transcript.contains(why), "{}", played.transcript);
    }
    stage.is_unchanged();
    stage.ends();
}

#[test]
fn another_mode_needs_a_yes_that_nobody_gives_here() {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    let replies = script(&JAVASCRIPT, JAVASCRIPT.solved);
    let played = stage.play_with(&["--mode", "explore"], replies);
    assert_eq!(played.code, 8, "{}", played.transcript);
    assert_eq!(played.ended()["result"], "waiting");
    assert_eq!(stage.received().len(), 0);
    stage.is_unchanged();
    stage.ends();
}
