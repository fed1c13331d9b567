//! Private engines are real, run containers, and leave nothing behind.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fluffy_test_kit::{EngineKind, PrivateEngine, record_skip, wait_for};

const CHILD_ENV: &str = "FLUFFY_TEST_KIT_ENGINE_CHILD";

/// Docker's own command, which Podman's service understands too.
fn docker(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("docker");
    let host = format!("unix://{}", socket.display());
    command.args(["--host", &host]).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// Makes an image out of nothing and leaves a container of it running.
fn leave_a_container(socket: &Path) {
    let folder = tempfile::TempDir::new().unwrap();
    let archive = folder.path().join("root.tar");
    let mut tar = Command::new("tar");
    tar.arg("-cf")
        .arg(&archive)
        .args(["-C", "/", "etc/hostname"]);
    assert!(tar.status().unwrap().success());
    let mut import = docker(socket, &["import", "-", "localhost/nothing"]);
    import.stdin(fs::File::open(&archive).unwrap());
    let imported = import.output().unwrap();
    assert!(imported.status.success(), "{imported:?}");
    let binds = ["/usr", "/lib", "/lib64", "/bin"].map(|path| format!("--volume={path}:{path}:ro"));
    let mut run = docker(socket, &["run", "--detach", "--network=none"]);
    run.args(binds)
        .args(["localhost/nothing:latest", "/usr/bin/sleep", "1000"]);
    let output = run.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let running = docker(socket, &["ps", "--quiet"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&running.stdout).lines().count(), 1);
}

fn assert_nothing_left(folder: &Path) {
    let name = folder.to_str().unwrap();
    assert!(!folder.exists(), "{name}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(name), "{mounts}");
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        assert!(!line.contains(name), "{line}");
    }
}

fn start(kind: EngineKind, test: &str) -> Option<PrivateEngine> {
    match PrivateEngine::start(kind).unwrap() {
        Ok(engine) => Some(engine),
        Err(reason) => {
            record_skip(test, &reason);
            None
        }
    }
}

#[test]
fn every_engine_runs_a_container_and_takes_it_along() {
    for kind in EngineKind::ALL {
        let Some(engine) = start(kind, "every_engine_runs_a_container_and_takes_it_along") else {
            continue;
        };
        let socket = engine.socket();
        leave_a_container(&socket);
        drop(engine);
        assert_nothing_left(socket.parent().unwrap());
    }
}

/// What the child of the next test does: own an engine until it is killed.
fn own_an_engine() {
    let engine = PrivateEngine::start(EngineKind::Docker).unwrap().unwrap();
    let told = writeln!(std::io::stdout(), "\nSOCKET {}", engine.socket().display());
    told.unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn an_engine_goes_with_a_killed_owner() {
    if std::env::var_os(CHILD_ENV).is_some() {
        return own_an_engine();
    }
    // Whether this machine can have one at all.
    let Some(probe) = start(EngineKind::Docker, "an_engine_goes_with_a_killed_owner") else {
        return;
    };
    drop(probe);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "an_engine_goes_with_a_killed_owner",
            "--nocapture",
        ])
        .env(CHILD_ENV, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let socket = lines
        .map(Result::unwrap)
        .find_map(|line| line.strip_prefix("SOCKET ").map(str::to_owned))
        .expect("the child says where its engine is");
    leave_a_container(Path::new(&socket));
    child.kill().unwrap();
    child.wait().unwrap();
    let folder = Path::new(&socket).parent().unwrap();
    wait_for("the folder is gone", Duration::from_secs(90), || {
        (!folder.exists()).then_some(())
    })
    .unwrap();
    wait_for("its script has ended", Duration::from_secs(10), || {
        std::panic::catch_unwind(|| assert_nothing_left(folder)).ok()
    })
    .unwrap();
}
