//! `fluffy acp`: by hand, and driven by the protocol's published client.
//!
//! The client comes from PyPI into an environment of its own, so that test
//! needs `python3` with `venv` and a registry that can be reached.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fluffy_kernel::api;
use fluffy_kernel::event::SessionResult;
use serde_json::{Value, json};

use crate::agent::{ending, socket, stage, tell};
use crate::fake::{Act, Fake};
use crate::sample::{self, SESSION};
use crate::site::Site;

/// A session with a question, and a second prompt that is cancelled.
fn acts() -> Vec<Act> {
    let mut events = sample::session();
    // The question of the sample is answered for real here.
    let asked = events
        .iter()
        .position(|event| *event == sample::wanted())
        .unwrap();
    let after = events.split_off(asked + 1);
    let mut acts = tell(events);
    acts.push(Act::Await(api::ANSWER));
    acts.extend(tell(after));
    acts.push(Act::Await(api::SAY));
    acts.push(Act::Tell(sample::text("this takes long")));
    acts.push(Act::Await(api::STOP));
    acts.push(Act::Tell(ending(SessionResult::Cancelled, 1)));
    acts
}

#[tokio::test(flavor = "multi_thread")]
async fn the_published_client_is_satisfied() {
    let (site, fake) = stage(acts());
    let output = tokio::task::block_in_place(|| {
        let python = environment(&site.context.home());
        let inner = site.context.command();
        let mut command = Command::new(python);
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/editor.py"))
            .arg(inner.get_program())
            .arg(site.context.project().canonicalize().unwrap())
            .args(["acp", "--model", "openai/gpt-5"])
            .env_clear()
            .envs(
                inner
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .stdin(Stdio::null());
        command.output().unwrap()
    });
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    assert_eq!(
        said,
        "first: end_turn\nsecond: cancelled\nplan\nagent_thought_chunk\nagent_message_chunk\n\
         tool_call\ntool_call_update\nasked: merge 2 files into the project?\n"
    );
    assert_eq!(fake.call(api::ANSWER)["answer"], "approve");
    assert_eq!(fake.call(api::COMMAND)["order"]["mode"], "explore");
    assert_eq!(fake.call(api::SAY)["text"], "and more");
    assert_eq!(fake.call(api::START)["person"], "present");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_messages_are_answered_by_their_codes() {
    let site = Site::initialised();
    let _fake = Fake::serve(&socket(&site), SESSION, tell([sample::started()]));
    let project = site.context.project().canonicalize().unwrap();
    let exchange = [
        ("not json", json!(-32_700)),
        ("[]", json!(-32_600)),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"fs/nonsense"}"#,
            json!(-32_601),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"relative"}}"#,
            json!(-32_602),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"x","prompt":[{"type":"text","text":"hi"}]}}"#,
            json!(-32_602),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"x","prompt":[]}}"#,
            json!(-32_602),
        ),
    ];
    tokio::task::block_in_place(|| {
        let mut command = site.context.command();
        command.args(["acp", "--model", "a/b"]);
        let mut program = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = program.stdin.take().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let mut ask = |line: &str| -> Value {
            writeln!(input, "{line}").unwrap();
            serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
        };
        for (line, code) in exchange {
            let answer = ask(line);
            assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
        }
        let open = json!({
            "jsonrpc": "2.0", "id": "a", "method": "session/new",
            "params": {"cwd": project, "mcpServers": []},
        });
        let opened = ask(&open.to_string());
        assert_eq!(opened["id"], "a", "{opened}");
        let session = opened["result"]["sessionId"].clone();
        let prompt = |id: u64| {
            let text = json!([{"type": "text", "text": "work"}]);
            json!({
                "jsonrpc": "2.0", "id": id, "method": "session/prompt",
                "params": {"sessionId": session, "prompt": text},
            })
        };
        writeln!(input, "{}", prompt(7)).unwrap();
        // The first is never answered; a second one beside it is refused.
        writeln!(input, "{}", prompt(8)).unwrap();
        let refused: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(
            (&refused["id"], &refused["error"]["code"]),
            (&json!(8), &json!(-32_600))
        );
        drop(input);
        assert!(program.wait().unwrap().success());
    });
}

/// An environment with the client; the path of its interpreter.
fn environment(folder: &Path) -> PathBuf {
    let venv = folder.join("venv");
    run(
        Command::new("python3").args(["-m", "venv"]).arg(&venv),
        "this test needs python3 with its venv module (on Debian: apt install python3-venv)",
    );
    let python = venv.join("bin/python");
    run(
        Command::new(&python)
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .arg("agent-client-protocol"),
        "this test installs the published client and needs pip and a PyPI that can be reached",
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
