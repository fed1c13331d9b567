//! The vendors' own Python SDKs talk to the server and find nothing wrong.
//!
//! Makes a virtual environment with the current releases from PyPI, so it
//! needs `python3` with `venv` and a registry that can be reached.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

use std::path::Path;
use std::process::Command;

use fluffy_model_server::{
    Conversation, Delivery, Fault, Format, ModelServer, Piece, Reply, Tokens,
};
use serde_json::json;

/// Reads two files, then repeats what it read; fails when asked to.
fn brain(conversation: &Conversation) -> Reply {
    if conversation.last_text() == "fail" {
        return Reply::failing(Fault::Status {
            status: 429,
            headers: vec![("retry-after".into(), "1".into())],
        });
    }
    let tokens = Tokens {
        input: 100,
        cached: 60,
        cache_write: 10,
        output: 20,
        reasoning: 5,
    };
    let reply = match conversation.last_results().first() {
        None => Reply::default()
            .with(Piece::Reasoning("Let me look.".into()))
            .with(Piece::Text("I read both.".into()))
            .and_call("fs.read", json!({"path": "/ü"}))
            .and_call("fs.read", json!({"path": "/b"})),
        Some(result) => Reply::text(&format!("Done: {}", result.content)),
    };
    Reply {
        // Google sends no comments, and its SDK could not read them.
        keep_alives: conversation.format != Format::Gemini,
        ..reply.counting(tokens).delivered(Delivery::Pieces(5))
    }
}

#[test]
fn the_vendors_sdks_are_satisfied() {
    let folder = tempfile::tempdir().unwrap();
    let python = environment(folder.path());
    let server = ModelServer::thinking(brain).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk.py");
    let mut command = Command::new(python);
    command
        .arg(script)
        .args(Format::ALL.map(|format| server.base_url(format)));
    // Nothing of the machine's own settings.
    command
        .env_clear()
        .env("PYTHONUTF8", "1")
        .env("PATH", "/usr/bin:/bin");
    let output = command
        .output()
        .expect("the interpreter of the environment starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{said}\n{complained}\nrefused: {:?}",
        server.refused()
    );
    assert_eq!(
        said,
        "responses agrees\nchat agrees\nmessages agrees\ngemini agrees\n"
    );
}

/// An environment with the SDKs; the path of its interpreter.
fn environment(folder: &Path) -> std::path::PathBuf {
    let venv = folder.join("venv");
    run(
        Command::new("python3").args(["-m", "venv"]).arg(&venv),
        "this test needs python3 with its venv module (on Debian: apt install python3-venv)",
    );
    let python = venv.join("bin/python");
    run(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet"])
            .args([
                "--disable-pip-version-check",
                "openai",
                "anthropic",
                "google-genai",
            ]),
        "this test installs the vendors' SDKs and needs pip and a PyPI that can be reached",
    );
    python
}

fn run(command: &mut Command, need: &str) {
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("{need}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => panic!("{need}: {error}"),
    }
}
