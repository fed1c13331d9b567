//! A commit that git refuses: the session says so, and going on makes it.

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
