//! Where the demo's recording comes from: this script, recorded.
//!
//! When the kernel's answers to a model change, the recording has to: run this
//! with `FLUFFY_REHEARSE=1`, and commit the file.

use std::fs;
use std::path::Path;

use fluffy_model_server::{Format, Reply, Tokens};
use serde_json::{Value, json};

use super::stage::Stage;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/command/demo");

const TASK: &str = "Titles with punctuation must give clean slugs";

const TEST: &str = "# punctuation is left out\n. ./slug.sh\n\
                    test \"$(slug 'Hello, World!')\" = hello-world\n";

const WEAKER: &str = "# punctuation is left out\n. ./slug.sh\n\
                      test -n \"$(slug 'Hello, World!')\"\n";

const SOLVED: &str = "# Titles as they stand in an address: `slug \"Hello World\"` prints \
                      hello-world.\nslug() {\n    printf '%s\\n' \"$1\" | tr 'A-Z' 'a-z' \
                      | tr -cs 'a-z0-9\\n' '-' | sed 's/^-//; s/-$//'\n}\n";

fn script() -> Vec<Reply> {
    let read = |path: &str| json!({ "path": path });
    let write = |path: &str, content: &str| json!({"path": path, "content": content});
    let replies = vec![
        Reply::text("I look at the code first, and at how it is set up.")
            .and_call("fs.read", read("slug.sh"))
            .and_call("fs.read", read("tests/spaces.test.sh"))
            .and_call("fs.read", read(".env")),
        Reply::text("Clear: everything but letters and digits should become one dash.").and_call(
            "plan.complete",
            json!({"summary": "Letters and digits stay, the rest becomes one dash"}),
        ),
        Reply::text("That is a one-line change, so I make it.")
            .and_call("fs.write", write("slug.sh", SOLVED)),
        Reply::text("A test first, then.")
            .and_call("fs.write", write("tests/punctuation.test.sh", TEST))
            .and_call("test.run", json!({})),
        Reply::text("It would be easier to pass if the test asked for less.")
            .and_call("fs.write", write("tests/punctuation.test.sh", WEAKER)),
        Reply::text("Perhaps somebody else has solved this before.").and_call(
            "shell.exec",
            json!({"command": "git ls-remote git://203.0.113.7/slugs 2>/dev/null \
                               || { echo no network; false; }"}),
        ),
        Reply::text("So I write it myself.").and_call("fs.write", write("slug.sh", SOLVED)),
        Reply::text("Done; see for yourself.").and_call(
            "git.commit",
            json!({"message": "Leave punctuation out of slugs"}),
        ),
    ];
    let counted = replies.into_iter().zip(1..).map(|(reply, turn)| {
        reply.counting(Tokens {
            input: 1_850 + 210 * turn,
            output: 90 + 5 * turn,
            ..Tokens::default()
        })
    });
    counted.collect()
}

/// The demo's repository, as `demo` makes it.
fn stage() -> Stage {
    let read = |path: &str| fs::read_to_string(Path::new(FOLDER).join(path)).unwrap();
    let texts = [
        ("slug.sh", read("project/slug.sh")),
        ("tests/run.sh", read("project/tests/run.sh")),
        ("tests/spaces.test.sh", read("project/tests/spaces.test.sh")),
        (".fluffy/config.toml", read("project/config.toml")),
        (".gitignore", ".env\n".to_owned()),
        (".env", "TOKEN=nobody-reads-this\n".to_owned()),
    ];
    let files: Vec<(&str, &str)> = texts.iter().map(|(path, text)| (*path, &**text)).collect();
    Stage::new(Format::Chat, &files)
}

/// Everything but when it was made.
fn lines(text: &str) -> Vec<Value> {
    let parsed = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let mut lines: Vec<Value> = parsed.collect();
    lines[0]["created"] = Value::Null;
    lines
}

#[test]
fn the_demo_plays_what_is_recorded_of_this_script() {
    let stage = stage();
    let file = stage.site.context.home().join("session.jsonl");
    let words = ["--record", file.to_str().unwrap()];
    let played = stage.play_task(&words, TASK, script());
    assert_eq!(played.code, 0, "{}", played.transcript);
    assert_eq!(played.ended()["result"], "verified");
    let recorded = fs::read_to_string(&file).unwrap();
    let own = Path::new(FOLDER).join("session.jsonl");
    if std::env::var_os("FLUFFY_REHEARSE").is_some() {
        fs::write(&own, &recorded).unwrap();
    }
    assert_eq!(
        lines(&recorded),
        lines(&fs::read_to_string(&own).unwrap()),
        "run this again with FLUFFY_REHEARSE=1"
    );
    stage.ends();
}
