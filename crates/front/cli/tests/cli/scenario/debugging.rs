//! Debug mode: commands in one sandbox that stays, each with a person's yes.

use fluffy_model_server::{Format, Reply};
use fluffy_policy::starter::STARTER;
use fluffy_test_kit::wait_for;
use serde_json::json;

use super::family::lines;
use super::languages::JAVASCRIPT;
use super::stage::{PATIENCE, Stage};
use crate::agent::{Terminal, socket};

fn shell(command: &str) -> Reply {
    Reply::call("shell.exec", json!({"command": command}))
}

fn exec(command: &str) -> Reply {
    Reply::call("sandbox.exec", json!({"command": command}))
}

/// Starts something that stays, known on the host by this word.
fn stays(mark: &str) -> Reply {
    shell(&format!(
        "setsid sh -c 'while :; do sleep 1; done' {mark} </dev/null >/dev/null 2>&1 & \
         echo $! > /tmp/stays; echo started"
    ))
}

/// Whether a process has this word as its last argument.
fn runs(mark: &str) -> bool {
    let wanted = format!("\0{mark}\0");
    lines().any(|line| line.ends_with(&wanted))
}

fn is_gone(mark: &str) {
    let gone = || (!runs(mark)).then_some(());
    wait_for("what was left in the sandbox is gone", PATIENCE, gone).unwrap();
}

/// A policy that wants nobody's word.
fn without_reviews(stage: &Stage) {
    let rules = "capabilities:
  - { name: any-mode, match: { action: session.mode }, do: allow }
  - { name: any-command, match: { action: sandbox.exec }, do: allow }
";
    let policy = STARTER.replacen("capabilities:\n", rules, 1);
    let reviews = [
        "    match: { action: sandbox.exec }\n    do: require_review",
        "    match: { action: session.mode }\n    do: require_review",
    ];
    let policy = reviews.iter().fold(policy, |policy, review| {
        assert!(policy.contains(review));
        policy.replace(review, &review.replace("require_review", "allow"))
    });
    stage.site.apply(&policy);
}

#[test]
fn what_was_started_stays_from_command_to_command_and_ends_with_the_mode() {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    let give = stage.directed();
    let says = |reply: Reply| give.send(reply).unwrap();
    let words = format!("--model {} --mode debug 'why does it hang'", stage.model());
    let mut person = Terminal::start(&stage.site, "dumb", &words);
    let yes = |person: &mut Terminal| {
        person.sees("May the agent run");
        person.sees("approve? [y/n]");
        person.types("y");
    };
    person.sees("approve? [y/n]");
    person.types("y");
    let mark = format!("stays-{}", std::process::id());
    stage.asked(1);
    says(stays(&mark));
    yes(&mut person);
    let told = stage.asked(2).to_string();
    assert!(told.contains("started"), "{told}");
    assert!(runs(&mark));

    // A person's no: it is not run.
    says(exec("touch refused.txt"));
    person.sees("May the agent run");
    person.types("n");
    let told = stage.asked(3).to_string();
    assert!(told.contains("REFUSED: sandbox.exec"), "{told}");

    // What other tools write is seen there, and they end nothing.
    says(Reply::call(
        "plan.complete",
        json!({"summary": "Look into it"}),
    ));
    stage.asked(4);
    says(Reply::call(
        "fs.write",
        json!({"path": "notes.txt", "content": "seen"}),
    ));
    stage.asked(5);
    says(exec(
        "cat notes.txt; test ! -e refused.txt && kill -0 $(cat /tmp/stays) && echo all-there",
    ));
    yes(&mut person);
    let told = stage.asked(6).to_string();
    assert!(told.contains("seenall-there"), "{told}");

    // Tests run elsewhere, beside it.
    says(Reply::call("test.run", json!({})));
    stage.asked(7);
    assert!(runs(&mark));

    person.types("/strict");
    person.sees("as soon as the step has ended");
    says(Reply::call("fs.read", json!({"path": "notes.txt"})));
    stage.asked(8);
    is_gone(&mark);
    // And from there on it is as in strict mode.
    says(exec("true"));
    let told = stage.asked(9).to_string();
    assert!(told.contains("it wants that the mode is debug"), "{told}");
    for _ in 0..3 {
        says(Reply::text("I leave it at that."));
    }
    let (code, screen) = person.end();
    assert_eq!(code, Some(1), "{screen}");
    let ledger = stage.ledger();
    let approved = ledger
        .iter()
        .filter(|event| event["event_type"] == "token.issued")
        .filter(|event| event.to_string().contains("sandbox.exec"));
    assert_eq!(approved.count(), 2);
    stage.is_unchanged();
    drop(give);
    stage.ends();
}

#[test]
fn nothing_is_left_when_the_session_ends_or_its_work_is_merged() {
    for ends_with_merge in [false, true] {
        let mut stage = Stage::new(Format::Chat, JAVASCRIPT.files);
        // With the kernel everything ends; here it must before.
        stage.site.context.set("FLUFFY_KERNEL_LINGER", "15");
        let give = stage.directed();
        let says = |reply: Reply| give.send(reply).unwrap();
        let words = format!("--model {} --mode debug 'why does it hang'", stage.model());
        let mut person = Terminal::start(&stage.site, "dumb", &words);
        person.sees("approve? [y/n]");
        person.types("y");
        stage.asked(1);
        says(Reply::call(
            "plan.complete",
            json!({"summary": "Look into it"}),
        ));
        // Hostile: it goes on writing to the layer, whatever becomes of it.
        let mark = format!("writes-{}-{ends_with_merge}", std::process::id());
        says(shell(&format!(
            "setsid sh -c 'while :; do echo more >> src/extra.js; sleep 0.05; done' {mark} \
             </dev/null >/dev/null 2>&1 & while ! test -s src/extra.js; do sleep 0.05; done"
        )));
        person.sees("May the agent run");
        person.types("y");
        stage.asked(3);
        assert!(runs(&mark));
        if ends_with_merge {
            says(Reply::call(
                "workflow.transition",
                json!({"to": "validating"}),
            ));
            person.sees("tests");
            is_gone(&mark);
        } else {
            give.send(Reply::call("fs.read", json!({"path": "package.json"})))
                .unwrap();
            stage.asked(4);
            person.types("\x03");
        }
        drop(give);
        let (code, screen) = person.end();
        assert_ne!(code, Some(0), "{screen}");
        is_gone(&mark);
        assert!(
            socket(&stage.site).exists(),
            "it ended with the kernel only"
        );
        stage.ends();
    }
}

#[test]
fn no_rule_takes_the_persons_place() {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    without_reviews(&stage);
    for command in [shell("touch made.txt"), exec("touch made.txt")] {
        let played = stage.play_with(&["--mode", "debug"], vec![command]);
        assert_eq!(played.code, 8, "{}", played.transcript);
        assert_eq!(played.calls()[0].outcome, "refused");
        assert_eq!(played.events[0]["mode"], "debug");
        let session = played.events[0]["session"].as_str().unwrap();
        let diff = stage.site.succeeds(&["session", "diff", session]);
        assert_eq!(diff, "");
    }
    // Control: in explore mode the same rules let the same command run.
    let plan = Reply::call("plan.complete", json!({"summary": "Look into it"}));
    let replies = vec![plan, shell("touch made.txt"), exec("touch made.txt")];
    let played = stage.play_with(&["--mode", "explore"], replies);
    let outcomes: Vec<String> = played
        .calls()
        .iter()
        .map(|one| one.outcome.clone())
        .collect();
    assert_eq!(
        outcomes,
        ["done", "done", "refused"],
        "{}",
        played.transcript
    );
    stage.ends();
}
