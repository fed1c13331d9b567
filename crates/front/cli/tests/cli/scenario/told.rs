//! What the model is told about existing tests before it breaks them.

use fluffy_model_server::{Format, Reply};
use fluffy_policy::starter::STARTER;
use serde_json::json;

use super::languages::{JAVASCRIPT, PYTHON, RUST, Repository};
use super::stage::Stage;

fn write(path: &str, content: &str) -> Reply {
    Reply::call("fs.write", json!({"path": path, "content": content}))
}

/// Until the code is written a second time.
fn script(repository: &Repository) -> Vec<Reply> {
    vec![
        Reply::call(
            "plan.complete",
            json!({"summary": "Leave lines out", "paths": [repository.source]}),
        ),
        write(repository.test, repository.test_text),
        Reply::call("test.run", json!({})),
        write(repository.source, repository.unsolved),
        write(repository.source, repository.solved),
        Reply::call("workflow.transition", json!({"to": "validating"})),
    ]
}

#[test]
fn the_model_is_told_which_tests_touch_what_it_changes() {
    for (repository, old) in [
        (&RUST, "- tests/pairs.rs ("),
        (&PYTHON, "- tests/test_pairs.py (imports sample.py)"),
        (&JAVASCRIPT, "- test/pairs.test.js (imports src/config.js)"),
    ] {
        let stage = Stage::new(Format::Chat, repository.files);
        let played = stage.play(script(repository));
        assert_eq!(played.code, 0, "{}", played.transcript);
        let head = "Existing tests that touch what changes";
        let told = |at: usize| -> (bool, bool, bool) {
            let text = &played.told[at];
            let new = format!("- {} (", repository.test);
            (text.contains(head), text.contains(old), text.contains(&new))
        };
        // By the plan, before anything is written, and at the first change,
        // with the test that is new by then; not again at the second.
        assert_eq!(told(0), (true, true, false), "{}", played.told[0]);
        assert_eq!(told(1), (false, false, false), "{}", played.told[1]);
        assert_eq!(told(3), (true, true, true), "{}", played.told[3]);
        assert_eq!(told(4), (false, false, false), "{}", played.told[4]);
        // People see what was done, in a line.
        let calls = played.calls();
        assert!(calls[3].summary.starts_with("changed"), "{calls:?}");
        stage.ends();
    }
}

#[test]
fn a_test_that_policy_keeps_unread_is_not_told_of() {
    let secret = "import { parseConfig } from \"../src/config.js\";\n";
    let files = [JAVASCRIPT.files, &[("test/private.test.js", secret)]].concat();
    let plan = || vec![script(&JAVASCRIPT).remove(0)];
    let told = |policy: &str| {
        let stage = Stage::new(Format::Chat, &files);
        stage.site.apply(policy);
        let played = stage.play(plan());
        let told = played.told[0].clone();
        stage.ends();
        told
    };
    let unread = "- name: keep-secrets-unread";
    let rule = "- name: private\n    match: { action: fs.read, path_glob: [\"private*\"] }\n    \
                do: deny\n    reason: It is private\n\n  ";
    let closed = STARTER.replacen(unread, &format!("{rule}{unread}"), 1);
    assert_ne!(closed, STARTER);
    let open = told(STARTER);
    assert!(open.contains("private.test.js"), "{open}");
    let told = told(&closed);
    assert!(told.contains("- test/pairs.test.js"), "{told}");
    assert!(!told.contains("private"), "{told}");
}
