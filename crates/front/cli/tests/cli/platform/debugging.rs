//! Looking into real instances: as whom a command runs, signals to a workload,
//! what is known of an instance, and a terminal whose connection breaks.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use fluffy_test_kit::wait_for;
use serde_json::Value;

use super::lived::{LONG, Lived};

const MANIFEST: &str = r#"schema_version = "v1"
[app]
name = "hello"
[image]
ref = "oci:image"
[deploy]
min_ready_seconds = 0
[processes.web]
command = ["/bin/sh", "-c", "trap 'echo heard USR1' USR1; trap 'echo heard HUP' HUP; echo started; while true; do sleep 0.1; done"]
user = "1000:1000"
replicas = 1
resources = { memory = "64MiB" }
"#;

fn one(manifest: &str) -> (Lived, String) {
    let lived = Lived::start(manifest);
    lived.site.succeeds(&["deploy"]);
    let [instance] = lived.ready(1).try_into().unwrap();
    (lived, instance)
}

/// The events of one type, oldest first.
fn events(lived: &Lived, event_type: &str) -> Vec<Value> {
    let line = ["events", "list", "--types", event_type, "--limit", "200"];
    let events = lived.site.json(0, &line);
    events["items"].as_array().unwrap().clone()
}

#[test]
fn a_command_runs_as_the_workloads_user_and_by_a_grant_of_its_own_as_root() {
    let (mut lived, instance) = one(MANIFEST);
    let site = &lived.site;
    let id = |flags: &[&str]| {
        let line = [
            &["exec", "--no-stdin"],
            flags,
            &[&instance, "--", "/bin/id"],
        ]
        .concat();
        site.ends(0, &line).stdout
    };
    assert!(id(&[]).starts_with("uid=1000 gid=1000"), "{}", id(&[]));
    let root = id(&["--root"]);
    assert!(
        root.starts_with("uid=0") && root.contains("gid=0"),
        "{root}"
    );
    // It is root of the instance, and of nothing else.
    let line = ["exec", "--no-stdin", "--root", &instance, "--", "/bin/cat"];
    let host = lived.folder().join("api.sock").display().to_string();
    site.ends(1, &[&line[..], &[&host]].concat());

    // Whoever may run commands may not do so as root.
    let grant = [
        "--grant",
        "instance.exec.local/*",
        "--grant",
        "instance.read.local/*",
    ];
    let robot = [&["principals", "create", "robot"], &grant[..]].concat();
    let robot = site.json(0, &robot);
    let robot = robot["data"]["id"].as_str().unwrap().to_owned();
    let token = site.json(0, &["tokens", "create", "--principal", &robot]);
    let token = token["data"]["secret"].as_str().unwrap().to_owned();
    let as_robot = |flags: &[&str], script: &str| {
        let mut command = site.context.command();
        command.env("FLUFFY_TOKEN", &token);
        command.args(["exec", "--no-stdin", "--env", "dev"]);
        command.args(flags);
        command.args([&*instance, "--", "/bin/sh", "-c", script]);
        command.output().unwrap()
    };
    let refused = as_robot(&["--root"], "touch /tmp/rooted");
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("forbidden") && said.contains("exec_root"),
        "{said}"
    );
    assert_eq!(
        lived.exec(0, &instance, "ls /tmp"),
        "",
        "it reached the node"
    );
    // The control: all else of it is allowed, and with a grant that is, too.
    assert_eq!(as_robot(&[], "touch /tmp/plain").status.code(), Some(0));
    site.succeeds(&[
        "grants",
        "add",
        &robot,
        "--pattern",
        "instance.exec_root.local/*",
    ]);
    assert_eq!(
        as_robot(&["--root"], "touch /tmp/rooted").status.code(),
        Some(0)
    );
    assert_eq!(lived.exec(0, &instance, "stat -c %u /tmp/rooted"), "0\n");

    // On record is who was root, and who wanted to be.
    let asked = events(&lived, "exec_session.requested");
    let roots = |it: &&Value| it["payload"]["as_root"] == true;
    assert_eq!(asked.iter().filter(roots).count(), 4, "{asked:?}");
    let denied = events(&lived, "exec_session.denied");
    assert_eq!(denied.len(), 1);
    assert_eq!(denied[0]["payload"]["reason"], "forbidden");
    lived.end();
}

#[test]
fn a_signal_reaches_the_workload_and_a_diagnosis_tells_what_happened() {
    let (mut lived, instance) = one(MANIFEST);
    let site = &lived.site;
    let printed = |text: &str| {
        wait_for(text, LONG, || {
            let said = site.succeeds(&["logs", "--instance", &instance]);
            said.contains(text).then_some(())
        })
        .unwrap();
    };
    printed("started");
    let before = site.json(0, &["instances", "describe", &instance]);
    site.succeeds(&["instances", "signal", &instance, "USR1"]);
    printed("heard USR1");
    site.succeeds(&["instances", "signal", &instance, "HUP"]);
    printed("heard HUP");
    let after = site.json(0, &["instances", "describe", &instance]);
    let boot = |shown: &Value| shown["data"]["observed"]["boot_id"].clone();
    assert_eq!(boot(&before), boot(&after), "it went on");
    let asked = events(&lived, "instance.signal_requested");
    let signals: Vec<&Value> = asked.iter().map(|it| &it["payload"]["signal"]).collect();
    assert_eq!(signals, ["USR1", "HUP"]);
    // Only what a workload may be sent, and only where there is one.
    site.ends(2, &["instances", "signal", &instance, "KILL"]);
    site.ends(2, &["instances", "signal", &instance, "STOP"]);

    let shown = site.json(0, &["instances", "diagnose", &instance]);
    let shown = &shown["data"];
    assert_eq!(shown["instance"]["id"], *instance);
    let steps = shown["transitions"].as_array().unwrap();
    let step = |name: &str| steps.iter().filter(|it| it["event"] == name).count();
    assert_eq!(step("instance.allocated"), 1, "{steps:?}");
    assert_eq!(step("instance.signal_requested"), 2, "{steps:?}");
    assert!(steps.iter().any(|it| it["status"] == "ready"), "{steps:?}");
    let node = &shown["node"];
    assert_eq!(node["driver"], "container-rootfs", "{shown}");
    assert_eq!(
        (&node["run"], &node["phase"]),
        (&"up".into(), &"running".into())
    );
    assert_eq!(node["boot_id"], boot(&after));
    assert!(node["workload_pid"].as_u64().unwrap() > 1, "{node}");
    let uses = &node["uses"];
    let number = |name: &str| uses[name].as_u64().unwrap();
    assert!(
        (1..=number("memory_limit_bytes")).contains(&number("memory_bytes")),
        "{uses}"
    );
    assert!(
        (1..number("process_limit")).contains(&number("processes")),
        "{uses}"
    );
    // Looking is on record as reading logs is.
    let looked = events(&lived, "logs.accessed");
    let looked = looked
        .iter()
        .filter(|it| it["payload"]["mode"] == "diagnose");
    let looked: Vec<&Value> = looked.collect();
    assert_eq!(looked.len(), 1);
    assert_eq!(looked[0]["payload"]["selectors"]["instance"], *instance);
    // For people, too.
    let text = site.succeeds(&["instances", "diagnose", &instance]);
    assert!(
        text.contains("container-rootfs") && text.contains("ready"),
        "{text}"
    );

    // One that ended says so, and takes no signal.
    site.succeeds(&["scale", "web=0"]);
    let error = wait_for("a signal comes too late", LONG, || {
        let line = ["instances", "signal", &instance, "USR1"];
        let finished = site.run(&line);
        (finished.code != Some(0)).then_some(finished.stderr)
    })
    .unwrap();
    let late = error.contains("instance_not_running") || error.contains("not_found");
    assert!(late, "{error}");
    lived.end();
}

/// A way to a server that breaks when so much came over one connection.
struct Relay {
    path: PathBuf,
    breaks_at: Arc<AtomicUsize>,
}

impl Relay {
    fn start(server: &Path, path: PathBuf) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let breaks_at = Arc::new(AtomicUsize::new(usize::MAX));
        let (server, limit) = (server.to_owned(), Arc::clone(&breaks_at));
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let Ok(far) = UnixStream::connect(&server) else {
                    continue;
                };
                let (mut up, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = std::io::copy(&mut up, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
                let limit = Arc::clone(&limit);
                thread::spawn(move || down(far, near, &limit));
            }
        });
        Self { path, breaks_at }
    }
}

/// Copies until the end, or until it breaks; that happens once.
fn down(mut from: UnixStream, mut to: UnixStream, limit: &AtomicUsize) {
    let mut buffer = vec![0; 16 << 10];
    let mut total = 0;
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        total += length;
        let most = limit.load(Ordering::SeqCst);
        if total > most
            && limit
                .compare_exchange(most, usize::MAX, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        {
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_terminal_whose_connection_breaks_comes_back_without_losing_a_byte() {
    let (mut lived, instance) = one(MANIFEST);
    let relay = Relay::start(
        &lived.folder().join("api.sock"),
        lived.site.context.home().join("relay.sock"),
    );
    let script = "i=0; while [ $i -lt 200000 ]; do echo line $i; i=$((i+1)); done; exit 7";
    let expected: String = (0..200_000).map(|i| format!("line {i}\r\n")).collect();
    let server = format!("unix:{}", relay.path.display());
    let run = |flags: &[&str]| {
        let mut command = lived.site.context.command();
        command.args(["exec", "--no-stdin", "--server", &server]);
        command.args(["--org", "local", "--app", "hello", "--env", "dev"]);
        command.args(flags);
        command.args([&*instance, "--", "/bin/sh", "-c", script]);
        command.stdin(Stdio::null()).output().unwrap()
    };
    // In the middle, and more than is held for anybody before it.
    relay.breaks_at.store(1_500_000, Ordering::SeqCst);
    let output = run(&["--tty"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(
        said.contains("coming back") && said.contains("goes on"),
        "{said}"
    );
    assert!(!said.contains("lost"), "{said}");
    assert!(
        output.stdout == expected.as_bytes(),
        "{}",
        output.stdout.len()
    );
    let resumed = events(&lived, "exec_session.resumed");
    assert_eq!(resumed.len(), 1, "{resumed:?}");
    // The control: one without a terminal is over when its connection is.
    relay.breaks_at.store(500_000, Ordering::SeqCst);
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(255), "{output:?}");
    assert!(output.stdout.len() < expected.len() / 2);
    assert_eq!(events(&lived, "exec_session.resumed").len(), 1);
    lived.end();
}
