//! A session that a person steers: at the keyboard, and by commands after it.
//!
//! The model says what it is given when it is given it, so that the person can
//! do something in the middle of a turn, between two, and at rest.

use fluffy_kernel::session::Fact;
use fluffy_kernel::store::SessionStore;
use fluffy_ledger::Ledger;
use fluffy_model_server::{Format, Reply};
use serde_json::{Value, json};

use super::languages::JAVASCRIPT;
use super::stage::Stage;
use crate::agent::Terminal;

fn write(path: &str, content: &str) -> Reply {
    Reply::call("fs.write", json!({"path": path, "content": content}))
}

fn shell(command: &str) -> Reply {
    Reply::call("shell.exec", json!({"command": command}))
}

fn plan() -> Reply {
    Reply::call(
        "plan.complete",
        json!({"summary": "Lines without = are left out"}),
    )
}

/// Orders it in the middle of a turn that only reads.
fn undo_after(person: &mut Terminal, says: &dyn Fn(Reply)) {
    person.types("/undo");
    person.sees("as soon as the step has ended");
    says(Reply::call("fs.read", json!({"path": JAVASCRIPT.source})));
}

/// Everything that can be typed, against the real kernel.
#[test]
fn all_that_can_be_typed_works() {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    let give = stage.directed();
    let says = |reply: Reply| give.send(reply).unwrap();
    let words = format!("--model {}", stage.model());
    let mut person = Terminal::start(&stage.site, "dumb", &words);
    person.sees("> ");
    person.types("/help");
    person.sees("/compact");
    person.types("/explore");
    person.sees("will begin in mode explore");
    person.types("/strict");
    person.sees("will begin in mode strict");
    person.types("/undo");
    person.sees("there is no session yet");
    person.types("Lines without = must not break parse_config");

    // In the middle of a turn, what looks is answered at once.
    stage.asked(1);
    person.types("/plan");
    person.sees("there is no plan yet");
    says(plan());
    stage.asked(2);
    says(write(JAVASCRIPT.test, JAVASCRIPT.test_text));
    stage.asked(3);
    person.types("/status");
    person.sees("state      test_writing");
    person.types("/budget");
    person.sees("turns            3 of");
    person.types("/diff");
    person.sees("+test(\"a line without a value is left out\"");
    person.types("/plan");
    person.sees("\nLines without = are left out");
    // What changes something waits for its end, and what is said too.
    person.types("/pin keep it short");
    person.sees("as soon as the step has ended");
    says(Reply::call("test.run", json!({})));
    person.sees("pinned");
    stage.asked(4);
    person.types("one function only");
    person.sees("at its next turn");
    says(write(JAVASCRIPT.source, JAVASCRIPT.unsolved));
    let told = stage.asked(5).to_string();
    assert!(told.contains("keep it short"), "{told}");
    assert!(told.contains("one function only"), "{told}");

    // Taken back: what a tool wrote, and then what a command wrote.
    undo_after(&mut person, &says);
    person.sees("taken back: `src/config.js`; the state is code_writing");
    let told = stage.asked(6).to_string();
    assert!(told.contains("took back the last turn"), "{told}");
    says(shell("echo // by a command >> src/config.js"));
    stage.asked(7);
    person.types("/diff");
    person.sees("+// by a command");
    undo_after(&mut person, &says);
    person.sees("taken back: `src/config.js`; the state is code_writing");
    // One more takes the test back, and with it what it proved.
    stage.asked(8);
    undo_after(&mut person, &says);
    person.sees("taken back: `test/lines.test.js`; the state is test_writing");
    stage.asked(9);
    undo_after(&mut person, &says);
    person.sees("refused: no turn has changed anything");

    stage.asked(10);
    says(write(JAVASCRIPT.test, JAVASCRIPT.test_text));
    stage.asked(11);
    says(Reply::call("test.run", json!({})));
    stage.asked(12);
    says(write(JAVASCRIPT.source, JAVASCRIPT.solved));
    stage.asked(13);
    says(Reply::call(
        "workflow.transition",
        json!({"to": "validating"}),
    ));
    person.sees("Done, verified");
    person.sees("> ");

    // At rest.
    person.types("/status");
    person.sees("state      idle");
    person.types("/diff");
    person.sees("nothing changed");
    person.types("/undo");
    person.sees("refused: nothing is open");
    person.types("/compact");
    person.sees("a summary stands for");
    person.types("/model openai/other-model");
    person.sees("openai/other-model is asked from now on");
    person.types("/model nonsense");
    person.sees("nonsense");
    person.types("/debug");
    person.sees("the mode is debug now");
    person.types("/reject");
    person.sees("there is nothing to answer");

    // A second task in the same session.
    person.types("add a Makefile");
    let told = stage.asked(14);
    assert_eq!(told["model"], "other-model");
    let told = told.to_string();
    assert!(told.contains("add a Makefile"), "{told}");
    assert!(told.contains("Summary of the conversation"), "{told}");
    says(plan());
    stage.asked(15);
    says(write("Makefile", "one:\n"));
    person.sees("approve? [y/n]");
    // While it is asked, what looks is answered, and what changes waits.
    person.types("/status");
    person.sees("mode       debug");
    person.types("/pin and tidy");
    person.sees("as soon as the step has ended");
    person.types("/reject");
    person.sees("pinned");
    let told = stage.asked(16).to_string();
    assert!(told.contains("and tidy"), "{told}");
    says(write("Makefile", "two:\n"));
    person.sees("approve? [y/n]");
    person.types("/approve");
    stage.asked(17);
    says(Reply::text("Done."));
    person.sees("Merge this into the project?");
    person.types("y");
    person.sees("Done, UNVERIFIED");
    person.sees("> ");
    person.types("/quit");
    let (code, screen) = person.end();
    assert_eq!(code, Some(9), "{screen}");
    assert!(!screen.contains('\x1b'), "{screen}");

    let (files, messages) = stage.commits();
    let both = ["Makefile", JAVASCRIPT.source, JAVASCRIPT.test];
    assert_eq!(files, both);
    assert!(messages.contains("add a Makefile"), "{messages}");
    assert_eq!(
        std::fs::read_to_string(stage.file("Makefile")).unwrap(),
        "two:\n"
    );
    let ledger = stage.ledger();
    let of = |kind: &str| {
        let of = ledger.iter().filter(|event| event["event_type"] == kind);
        of.count()
    };
    assert_eq!(of("session.undone"), 3);
    assert_eq!(of("session.pinned"), 2);
    assert_eq!(of("session.model"), 1);
    assert_eq!(of("session.layer"), 1);
    drop(give);
    stage.ends();
}

/// The words of a run that leaves a test and a command's file behind.
fn unfinished() -> Vec<Reply> {
    vec![
        plan(),
        write(JAVASCRIPT.test, JAVASCRIPT.test_text),
        shell("echo '// one more' >> test/lines.test.js"),
        Reply::text("I am tired."),
    ]
}

fn diff(stage: &Stage, session: &str) -> String {
    stage.site.succeeds(&["session", "diff", session])
}

#[test]
fn undone_after_the_session_and_after_its_kernel() {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    let played = stage.play(unfinished());
    assert_eq!(played.code, 1, "{}", played.transcript);
    let session = played.events[0]["session"].as_str().unwrap();
    assert!(diff(&stage, session).contains("+// one more"));
    let undone = stage.site.json(0, &["session", "undo"]);
    assert_eq!(undone["session"], session);
    stage.rests();
    let left = diff(&stage, session);
    assert!(!left.contains("one more"), "{left}");
    assert!(left.contains("+test("), "{left}");
    stage.site.succeeds(&["session", "undo", session]);
    assert_eq!(diff(&stage, session), "");
    stage.site.ends(5, &["session", "undo", session]);
    stage.site.ends(4, &["session", "undo", "ses_9"]);
    stage.is_unchanged();

    // What was taken back proves nothing: the test has to fail again first.
    let resumed = stage.play_on(
        &["session", "resume", "--json", session],
        vec![
            write(JAVASCRIPT.source, JAVASCRIPT.solved),
            Reply::text("Done."),
        ],
    );
    let refused = resumed.calls();
    assert_eq!(refused[0].outcome, "refused", "{refused:?}");
    let kinds: Vec<Value> = stage.ledger();
    let undone = kinds
        .iter()
        .filter(|event| event["event_type"] == "session.undone");
    assert_eq!(undone.count(), 2);
    stage.ends();
}

/// A person says more while the last step is under way: it is the next task,
/// and the program stays for it.
#[test]
fn what_is_said_during_the_last_step_is_the_next_task() {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    let give = stage.directed();
    // Once the task is solved, its test takes long enough to say something.
    let test = JAVASCRIPT.test_text.replace(
        ", () => {",
        ", async () => {\n  if (parseConfig(\"x\").length === 0) \
         await new Promise((done) => setTimeout(done, 6000));",
    );
    assert!(test.contains("setTimeout"));
    for reply in [
        plan(),
        write(JAVASCRIPT.test, &test),
        Reply::call("test.run", json!({})),
        write(JAVASCRIPT.source, JAVASCRIPT.solved),
        Reply::call("workflow.transition", json!({"to": "validating"})),
    ] {
        give.send(reply).unwrap();
    }
    let words = format!("--model {} 'solve it'", stage.model());
    let mut person = Terminal::start(&stage.site, "dumb", &words);
    person.sees("code_writing → validating");
    person.types("and now a README");
    person.sees("at its next turn");
    person.sees("Done, verified");
    let told = stage.asked(6).to_string();
    assert!(told.contains("and now a README"), "{told}");
    for _ in 0..3 {
        give.send(Reply::text("I would rather not.")).unwrap();
    }
    let (code, screen) = person.end();
    assert_eq!(code, Some(1), "{screen}");
    assert!(screen.contains("Not finished"), "{screen}");
    stage.ends();
}

/// The kernel dies after it recorded the undo and before it went back.
#[tokio::test(flavor = "multi_thread")]
async fn an_undo_that_a_crash_interrupted_is_ended() {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    let session = tokio::task::block_in_place(|| {
        let played = stage.play(unfinished());
        stage.rests();
        played.events[0]["session"].as_str().unwrap().to_owned()
    });
    let ledger = Ledger::open(&stage.site.ledger(), Default::default()).unwrap();
    let store = SessionStore::new(ledger.clone());
    let id = session.parse().unwrap();
    let kept = store.load(id).unwrap().kept;
    let snapshot = kept.last().unwrap().snapshot;
    let undone = Fact::Undone { snapshot };
    store.append(id, &undone).await.unwrap();
    drop(store);
    ledger.close().unwrap();
    tokio::task::block_in_place(|| {
        assert!(diff(&stage, &session).contains("one more"));
        let words = ["session", "resume", "--json", &session];
        stage.play_on(&words, vec![Reply::text("Done.")]);
        stage.rests();
        let left = diff(&stage, &session);
        assert!(
            left.contains("+test(") && !left.contains("one more"),
            "{left}"
        );
        stage.ends();
    });
}

#[test]
fn a_fork_has_the_history_and_the_files_and_leaves_the_other_alone() {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    let played = stage.play(unfinished());
    let origin = played.events[0]["session"].as_str().unwrap();
    let before = diff(&stage, origin);
    let asked = stage.received().len();
    let model = stage.model();
    let words = ["session", "fork", origin, "Solve it now", "--json"];
    let forked = stage.play_on(
        &[&words[..], &["--model", model]].concat(),
        vec![
            Reply::call("test.run", json!({})),
            write(JAVASCRIPT.source, JAVASCRIPT.solved),
            Reply::call("workflow.transition", json!({"to": "validating"})),
        ],
    );
    assert_eq!(forked.code, 0, "{}", forked.transcript);
    let fork = forked.events[0]["session"].as_str().unwrap();
    assert_ne!(fork, origin);
    let told = stage.received()[asked].body.to_string();
    for text in ["must not break parse_config", "I am tired.", "Solve it now"] {
        assert!(told.contains(text), "{text}\n{told}");
    }
    let merged = forked.ended()["evidence"]["merged"].as_object().unwrap();
    assert_eq!(merged.len(), 2, "{merged:?}");
    let test = std::fs::read_to_string(stage.file(JAVASCRIPT.test)).unwrap();
    assert!(test.contains("// one more"), "{test}");
    let shown = stage.site.succeeds(&["session", "show", fork]);
    assert!(shown.contains(&format!("forked from {origin}")), "{shown}");
    // The other has what it had, and says what it said.
    assert_eq!(diff(&stage, origin), before);
    let shown = stage.site.succeeds(&["session", "show", origin]);
    assert!(!shown.contains("Solve it now"), "{shown}");
    // There is nothing left to do in the fork without a task.
    let words = ["session", "fork", fork, "--model", model];
    stage.site.ends(2, &words);
    stage.ends();
}

#[test]
fn a_budget_can_be_lowered_and_nothing_else() {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    let played = stage.play_with(&["--budget", "turns=2"], unfinished());
    assert_eq!(played.code, 10, "{}", played.transcript);
    assert!(
        played.transcript.contains("turns is used up: 3 of 2"),
        "{}",
        played.transcript
    );
    for (budget, said) in [
        ("patience=3", "subagent_depth"),
        ("turns=1000000", "can only be lower"),
        ("turns=many", "is no budget"),
        ("turns", "is no budget"),
        ("wall_time=900h", "can only be lower"),
    ] {
        let played = stage.play_with(&["--budget", budget], unfinished());
        assert_eq!(played.code, 2, "{budget}: {}", played.transcript);
        assert!(
            played.transcript.contains(said),
            "{budget}: {}",
            played.transcript
        );
    }
    stage.is_unchanged();
    stage.ends();
}

#[test]
fn what_the_policy_calls_a_secret_never_reaches_the_model() {
    let files = [
        JAVASCRIPT.files,
        &[("notes.txt", "call ACME-1234-5678 now\n")],
    ]
    .concat();
    let stage = Stage::new(Format::Chat, &files);
    let own = "patterns: ['ACME-[0-9]{4}-[0-9]{4}']";
    let policy = fluffy_policy::starter::STARTER.replace("patterns: []", own);
    assert!(policy.contains(own));
    stage.site.apply(&policy);
    let played = stage.play(vec![
        Reply::call("fs.read", json!({"path": "notes.txt"})),
        Reply::text("Done."),
    ]);
    assert_eq!(played.code, 1, "{}", played.transcript);
    let told = &played.told[0];
    assert!(told.contains("call "), "{told}");
    assert!(!told.contains("ACME-1234"), "{told}");
    stage.ends();
}
