//! Ways of a command to what policy keeps unread, and that they are ways.
//!
//! `along` plays them where policy denies reading `.env`; here the same calls
//! are played where it does not, and there each gets the secret.

use std::fs;

use fluffy_model_server::{Format, Reply};
use fluffy_policy::starter::STARTER;

use super::super::languages::JAVASCRIPT;
use super::super::stage::Stage;
use super::{Done, Failed, Holds, Step, plan, play, run_tests, shell, write};

const TOKEN: &str = "token-in-dotenv-91c2";

/// The commands; what each is to say where it fails.
const WAYS: [(&str, &str, &str); 9] = [
    ("the secret, by shell", "cat .env", "Permission denied"),
    (
        "the secret, by a program",
        "python3 -c 'print(open(\".env\").read())'",
        "Permission denied",
    ),
    (
        "the secret copied",
        "cp .env /tmp/x && cat /tmp/x",
        "Permission denied",
    ),
    (
        "the secret in an archive",
        "tar cf - .env | tr -d '\\0' | grep TOKEN=",
        "Permission denied",
    ),
    (
        "the secret by a link",
        "ln -s .env /tmp/soft; cd /tmp; ln -s \"$OLDPWD/.env\" s; cat s",
        "Permission denied",
    ),
    (
        "the secret by a process",
        "cat /proc/self/cwd/.env",
        "Permission denied",
    ),
    (
        "the secret made readable",
        "cd /tmp && cp -a \"$OLDPWD/.env\" . && chmod 600 .env && cat .env",
        "Permission denied",
    ),
    (
        "the secret by the root of a process",
        "cat /proc/self/root\"$PWD\"/.env",
        "Permission denied",
    ),
    (
        "the secret found",
        "grep -r TOKEN= --exclude-dir=.git .",
        "Permission denied",
    ),
];

/// Each way as a call that has to end like this.
pub(super) fn by_shell(ends: fn(&'static str) -> Holds) -> Vec<Step> {
    let steps = WAYS.iter();
    let mut steps: Vec<Step> = steps
        .map(|(name, command, says)| shell(name, command, ends(says)))
        .collect();
    // These change the layer, or try to: only where they fail.
    if matches!(ends(""), Failed(_)) {
        steps.extend([
            shell(
                "the secret by a second name",
                "ln .env hard; cat hard",
                Failed(""),
            ),
            shell("the secret moved away", "mv .env moved", Failed("busy")),
            shell("the secret replaced", "rm -f .env", Failed("busy")),
            shell("the secret unlocked", "chmod 600 .env", Failed("Read-only")),
        ]);
    }
    steps
}

/// A test that passes, and prints what it could read.
pub(super) fn thieving_test() -> Step {
    let text = "import { readFileSync } from \"node:fs\";\nimport test from \"node:test\";\n\
                test(\"reads\", () => {\n  let said;\n  \
                try { said = readFileSync(\".env\", \"utf8\"); } catch (error) { said = error.code; }\n  \
                console.log(`it says ${said}`);\n});\n";
    write(
        "a test that reads the secret",
        JAVASCRIPT.test,
        text,
        Done(""),
    )
}

#[test]
fn where_policy_lets_it_be_read_every_way_gets_it() {
    let files = [
        JAVASCRIPT.files,
        &[(".env", "TOKEN=token-in-dotenv-91c2\n")],
    ]
    .concat();
    let stage = Stage::new(Format::Chat, &files);
    let (before, rule) = STARTER.split_once("  - name: keep-secrets-unread").unwrap();
    let (_, after) = rule.split_once("into a conversation\n").unwrap();
    stage.site.apply(&[before, after].concat());
    let mut steps = by_shell(|_| Done(TOKEN));
    steps.extend([plan(), thieving_test(), run_tests(Done(TOKEN))]);
    let played = play(&stage, &steps);
    assert_ne!(played.code, 0, "nothing was solved");
    assert!(
        fs::read_to_string(stage.file(".env"))
            .unwrap()
            .contains(TOKEN)
    );
    stage.ends();
}

#[test]
fn what_cannot_be_hidden_ends_the_session_before_it_begins() {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    for number in 0..=1_000 {
        fs::write(stage.file(&format!("{number}.pem")), TOKEN).unwrap();
    }
    let played = stage.play(vec![Reply::call(
        "shell.exec",
        serde_json::json!({"command": "ls"}),
    )]);
    assert_ne!(played.code, 0);
    let said = &played.transcript;
    assert!(said.contains("1001 paths"), "{said}");
    assert!(said.contains("move them into a directory"), "{said}");
    assert!(played.calls().is_empty(), "{said}");
    stage.ends();
}
