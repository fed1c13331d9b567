//! A commit that does not go smoothly: git refuses it, or whoever made it dies
//! before that is recorded. Going on ends as if nothing had happened.

use fluffy_base::id::SessionId;
use fluffy_kernel::session::Fact;
use fluffy_kernel::store::SessionStore;
use fluffy_ledger::{Ledger, LedgerOptions};
use fluffy_model_server::Format;

use super::languages::PYTHON;
use super::stage::Stage;
use super::{is_committed, script};

#[test]
fn a_commit_that_fails_ends_the_session_and_is_made_when_it_goes_on() {
    let stage = Stage::new(Format::Chat, PYTHON.files);
    // As a git that was killed leaves it.
    let lock = stage.file(".git/index.lock");
    std::fs::write(&lock, "").unwrap();
    let played = stage.play(script(&PYTHON, PYTHON.solved));
    assert_ne!(played.code, 0, "{}", played.transcript);
    assert_eq!(played.ended()["result"], "failed");
    assert!(
        played.transcript.contains("merged, but not committed")
            && played.transcript.contains("index.lock"),
        "{}",
        played.transcript
    );
    assert_eq!(stage.commits(), (Vec::new(), String::new()));

    std::fs::remove_file(&lock).unwrap();
    let session = played.events[0]["session"].as_str().unwrap();
    let played = stage.play_on(&["session", "resume", "--json", session], Vec::new());
    assert_eq!(played.code, 0, "{}", played.transcript);
    is_committed(&stage, &PYTHON, &played);
    stage.ends();
}

#[test]
fn a_session_that_died_right_after_its_commit_ends_as_verified() {
    let stage = Stage::new(Format::Chat, PYTHON.files);
    let played = stage.play(script(&PYTHON, PYTHON.solved));
    assert_eq!(played.code, 0, "{}", played.transcript);
    stage.rests();
    let asked = stage.received().len();
    // The same once more, as far as it was recorded then.
    let id = SessionId::generate();
    let ledger = Ledger::open(&stage.site.ledger(), LedgerOptions::default()).unwrap();
    let store = SessionStore::new(ledger.clone());
    let whole = played.events[0]["session"].as_str().unwrap().parse();
    let facts = store.facts(whole.unwrap()).unwrap();
    let last = facts
        .iter()
        .rposition(|fact| matches!(fact, Fact::Workflow(_)));
    let (before, after) = facts.split_at(last.unwrap() + 1);
    assert!(
        matches!(after, [Fact::Finished(_), Fact::Ended(_)]),
        "{after:?}"
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for fact in before {
        runtime.block_on(store.append(id, fact)).unwrap();
    }
    ledger.close().unwrap();

    let words = ["session", "resume", "--json", &id.to_string()];
    let played = stage.play_on(&words, Vec::new());
    assert_eq!(played.code, 0, "{}", played.transcript);
    assert_eq!(played.ended()["result"], "verified");
    let head = stage.git(&["rev-parse", "HEAD"]);
    assert_eq!(played.ended()["evidence"]["commit"], head.as_str());
    let calls = played.calls();
    assert!(calls[0].summary.contains(&head), "{calls:?}");
    assert_eq!(stage.commits().1.matches("Fluffy-Session").count(), 1);
    assert_eq!(stage.received().len(), asked, "the model was asked again");
    stage.ends();
}
