//! Keys from a real keyring: stored by its own program, used for the model, and
//! nowhere else.

use std::process::{Command, Stdio};

use fluffy_model_server::{Format, Reply};

use super::stage::Stage;

const KEY: &str = "sk-from-the-keyring-0123456789abcdef";

/// Unlocked by a password, as at a login, with one entry.
const STORED: &str = r#"
printf 'password' | gnome-keyring-daemon --unlock --components=secrets > /dev/null 2>&1 || exit 90
printf '%s' "$PLANTED" | secret-tool store --label "fluffy work" service fluffy name work || exit 91
unset PLANTED
"#;

const LOCKED: &str = r#"
dbus-send --session --print-reply --dest=org.freedesktop.secrets /org/freedesktop/secrets \
    org.freedesktop.Secret.Service.Lock array:objpath:/org/freedesktop/secrets/collection/login \
    > /dev/null || exit 92
"#;

/// A project whose provider has its key in the keyring under this name.
fn stage(name: &str) -> Stage {
    let stage = Stage::new(Format::Responses, &[("README.md", "hello\n")]);
    let file = stage.site.context.home().join(".config/fluffy/config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        file,
        format!("{text}api_key = {{ keyring = \"{name}\" }}\n"),
    )
    .unwrap();
    stage.then(Reply::text("I have nothing to do."));
    stage
}

/// Runs a task in a session bus of its own, after these commands.
fn run(stage: &Stage, before: &str) -> (Option<i32>, String) {
    let ours = stage.site.context.command();
    let script = format!("{before}\nexec \"$@\"");
    let mut command = Command::new("dbus-run-session");
    command
        .args(["--", "sh", "-c", &script, "sh"])
        .arg(ours.get_program())
        .args(["run", "--json", "--model", stage.model(), "look around"])
        .current_dir(stage.site.context.project())
        .env_clear()
        .envs(
            ours.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("PLANTED", KEY)
        .stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn a_key_from_the_keyring_reaches_the_model_and_nothing_else() {
    let stage = stage("work");
    let (code, text) = run(&stage, STORED);
    // The model did nothing, which is all it was asked.
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("session.ended"), "{text}");
    let received = stage.received();
    assert!(!received.is_empty());
    for request in received {
        let key = request
            .headers
            .iter()
            .find(|(name, _)| name == "authorization");
        assert_eq!(key.unwrap().1, format!("Bearer {KEY}"));
        assert!(!request.body.to_string().contains(KEY));
    }
    assert!(!text.contains(KEY));
    for event in stage.ledger() {
        assert!(!event.to_string().contains(KEY), "{event}");
    }
    stage.ends();
}

#[test]
fn what_is_missing_or_locked_is_said_with_what_to_do() {
    let locked = format!("{STORED}{LOCKED}");
    for (name, before, problem, fix) in [
        (
            "home",
            STORED,
            "the keyring has no entry `home` of the service `fluffy`",
            "secret-tool store --label",
        ),
        (
            "work",
            &locked,
            "the keyring is locked",
            "unlock the keyring",
        ),
        (
            "work",
            "unset DBUS_SESSION_BUS_ADDRESS",
            "the keyring cannot be reached: ",
            "gnome-keyring-daemon",
        ),
    ] {
        let stage = stage(name);
        let (code, text) = run(&stage, before);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(problem), "{text}");
        assert!(text.contains(fix), "{text}");
        assert!(!text.contains(KEY), "{text}");
        assert!(stage.received().is_empty());
        stage.rests();
    }
}
