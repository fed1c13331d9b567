//! `fluffy demo`: plays to the end without any set-up and leaves nothing.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fluffy_test_kit::{EngineKind, TestEngine, record_skip, wait_for};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::site::Site;

const RECORDING: &str = include_str!("../../src/command/demo/session.jsonl");

/// What everybody must see, however strongly it is isolated.
const SEEN: [&str; 14] = [
    "\n1. ",
    "\n2. ",
    "\n3. ",
    "\n4. ",
    "\n5. ",
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

/// What is seen where nothing can be deployed.
const LEFT_OUT: &str = "Left out: instances need namespaces";

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
    assert_served(&finished.stdout);
    assert_nothing_left(&site);
}

/// What was merged answers, and its deploy leads to the merge; or it is said
/// why not.
fn assert_served(stdout: &str) {
    let act = stdout.split("\n5. ").nth(1).unwrap();
    if let Some((_, why)) = act.split_once("Left out: ") {
        assert!(!rustix::process::geteuid().is_root(), "{act}");
        record_skip("the demo's deploy", why.lines().next().unwrap());
        return;
    }
    let answered = act.split("$ curl http://").nth(1).unwrap();
    let answer = answered.lines().nth(1).unwrap();
    assert_eq!(answer.trim(), "hello-world", "{act}");
    assert!(act.contains("the deploy, rests on event"), "{act}");
}

/// Whoever looks away in the middle of the last act has nothing to clean up.
#[test]
fn ctrl_c_ends_and_removes_everything() {
    if !rustix::process::geteuid().is_root() {
        record_skip("Ctrl-C in the demo's deploy", "instances need root");
        return;
    }
    let site = site();
    let mut command = site.context.command();
    command.arg("demo").process_group(0);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let up = lines.find(|line| line.as_ref().unwrap().contains("fluffy launch"));
    assert!(up.is_some(), "{:?}", child.wait_with_output());
    kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
    lines.for_each(drop);
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert_nothing_left(&site);
    let home = site.context.home();
    let mark = home.parent().unwrap().to_str().unwrap();
    wait_for("nothing of it runs", Duration::from_secs(60), || {
        running(mark).is_empty().then_some(())
    })
    .unwrap();
}

/// The processes that were given this folder.
fn running(folder: &str) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().map(Result::unwrap);
    let all = all.filter_map(|entry| {
        // Processes come and go.
        let variables = fs::read(entry.path().join("environ")).ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let named = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(folder);
        (named(&variables) || named(&line)).then(|| String::from_utf8_lossy(&line).into_owned())
    });
    all.collect()
}

#[test]
fn reduced_isolation_is_said_and_ends_the_same() {
    let mut site = site();
    site.context.set("FLUFFY_SANDBOX_ENGINE", "reduced");
    let finished = site.ends(0, &["demo"]);
    for shown in SEEN
        .iter()
        .chain(&["Reduced isolation", "process (reduced)", LEFT_OUT])
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
    if last["served"]["skipped"].is_null() {
        assert_eq!(last["served"]["answer"], "hello-world");
        assert_eq!(last["served"]["isolation"], "shared-kernel");
        assert!(last["served"]["merge_seq"].as_u64().is_some(), "{last}");
    }
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
        .chain(&["Reduced isolation", "process (reduced)", LEFT_OUT])
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
