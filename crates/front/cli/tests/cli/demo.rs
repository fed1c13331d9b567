//! `fluffy demo`: plays to the end without any set-up and leaves nothing.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use fluffy_test_kit::{EngineKind, TestEngine, record_skip};
use serde_json::Value;

use crate::site::Site;

const RECORDING: &str = include_str!("../../src/command/demo/session.jsonl");

/// What everybody must see, however strongly it is isolated.
const SEEN: [&str; 13] = [
    "\n1. ",
    "\n2. ",
    "\n3. ",
    "\n4. ",
    "hello,-world!",
    "refused  fs.read .env",
    "refused  fs.write slug.sh",
    "refused  fs.write tests/punctuation.test.sh",
    "no network",
    "Done, verified",
    "Fluffy-Evidence: verified",
    "  sound: ",
    "  BROKEN at event ",
];

fn site() -> Site {
    let mut site = Site::empty();
    site.context.set("PATH", "/usr/local/bin:/usr/bin:/bin");
    // Nothing of the person's may have a say in it.
    site.context
        .set("FLUFFY_MODEL", "openai/none")
        .set("OPENAI_API_KEY", "some-key-that-nobody-uses");
    site
}

#[test]
fn all_acts_are_played_and_nothing_is_left() {
    let site = site();
    let finished = site.ends(0, &["demo"]);
    assert_eq!(finished.stderr, "");
    for shown in SEEN {
        assert!(
            finished.stdout.contains(shown),
            "{shown}\n{}",
            finished.stdout
        );
    }
    assert!(finished.stdout.contains("The same as recorded"));
    assert!(!finished.stdout.contains("Reduced isolation"));
    assert!(!finished.stdout.contains("nobody-reads-this"));
    assert_nothing_left(&site);
}

#[test]
fn reduced_isolation_is_said_and_ends_the_same() {
    let mut site = site();
    site.context.set("FLUFFY_SANDBOX_ENGINE", "reduced");
    let finished = site.ends(0, &["demo"]);
    for shown in SEEN
        .iter()
        .chain(&["Reduced isolation", "process (reduced)"])
    {
        assert!(
            finished.stdout.contains(shown),
            "{shown}\n{}",
            finished.stdout
        );
    }
    assert_nothing_left(&site);
}

#[test]
fn as_json_it_is_the_session_and_how_it_ended() {
    let site = site();
    let finished = site.ends(0, &["demo", "--json"]);
    let lines = finished.stdout.lines().map(serde_json::from_str);
    let lines: Vec<Value> = lines.map(Result::unwrap).collect();
    let of = |kind: &str| lines.iter().find(|line| line["type"] == kind).unwrap();
    assert_eq!(of("session.ended")["result"], "verified");
    assert_eq!(of("replay.ended")["same"], true);
    let last = lines.last().unwrap();
    assert_eq!(last["type"], "demo.ended");
    assert_eq!(last["verified"], true);
    assert_eq!(last["commit"], of("session.ended")["evidence"]["commit"]);
    assert_nothing_left(&site);
}

/// Nothing in the demo says "verified" by itself.
#[test]
fn a_corrupted_patch_ends_unverified() {
    let corrupted = RECORDING.replace("sed 's/^-//; s/-$//'", "cat");
    assert_ne!(corrupted, RECORDING);
    let site = site();
    let file = site.context.project().join("corrupted.jsonl");
    fs::write(&file, corrupted).unwrap();
    let finished = site.ends(9, &["demo", "--recording", "corrupted.jsonl"]);
    assert!(!finished.stdout.contains("Done, verified"));
    assert!(!finished.stdout.contains("Fluffy-Evidence"));
    assert!(finished.stderr.contains("did not end verified"));
    fs::remove_file(file).unwrap();
    assert_nothing_left(&site);
}

#[test]
fn a_temporary_folder_that_cannot_be_used_is_said() {
    let mut site = site();
    site.context.set("TMPDIR", "/nonexistent");
    let error = site.json_error(1, &["demo"]);
    assert!(
        error["fix"][0].as_str().unwrap().contains("TMPDIR"),
        "{error}"
    );
}

#[test]
fn in_an_unprivileged_container_it_asks_for_less_by_itself() {
    let socket = match EngineKind::Docker.for_tests().unwrap() {
        TestEngine::At(socket) => socket,
        TestEngine::Impossible(reason) => {
            record_skip("the demo in a Docker container", &reason);
            return;
        }
    };
    let docker = |words: &[&str]| {
        let mut command = Command::new("docker");
        command
            .arg(format!("--host=unix://{}", socket.display()))
            .args(words);
        command
    };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let program = folder.path().join("fluffy");
    bare(&root);
    fs::copy(env!("CARGO_BIN_EXE_fluffy"), &program).unwrap();
    let mut tar = Command::new("tar")
        .args(["-C", root.to_str().unwrap(), "-c", "."])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let image = docker(&["import", "-"])
        .stdin(tar.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(
        tar.wait().unwrap().success() && image.status.success(),
        "{image:?}"
    );
    let image = String::from_utf8(image.stdout).unwrap().trim().to_owned();
    let mounted = format!("{}:/fluffy:ro", program.display());
    let ran = docker(&["run", "--rm", "--network=none", "--user=1000:1000"])
        .args(["-v", "/usr:/usr:ro", "-v", &mounted, "-e", "PATH=/usr/bin"])
        .args([&image, "/fluffy", "demo"])
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(
        ran.status.code(),
        Some(0),
        "{stdout}\n{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    for shown in SEEN
        .iter()
        .chain(&["Reduced isolation", "process (reduced)"])
    {
        assert!(stdout.contains(shown), "{shown}\n{stdout}");
    }
    let removed = docker(&["rmi", "--force", &image]).output().unwrap();
    assert!(removed.status.success(), "{removed:?}");
}

/// A root with nothing but places: the machine's own programs are mounted.
fn bare(root: &Path) {
    for place in ["usr", "tmp", "etc", "dev", "proc"] {
        fs::create_dir_all(root.join(place)).unwrap();
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    for name in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{name}"), root.join(name)).unwrap();
    }
}

fn assert_nothing_left(site: &Site) {
    let root = site.context.project();
    for folder in [
        root.parent().unwrap().join("tmp"),
        site.context.home(),
        root,
    ] {
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(Result::unwrap).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
