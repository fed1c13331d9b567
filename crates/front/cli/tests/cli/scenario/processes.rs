//! The agent's own processes: who starts whom, and what each gave up.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use fluffy_model_server::Format;
use fluffy_test_kit::wait_for;
use rustix::process::{Pid, Signal, kill_process};

use super::family::{Role, the};
use super::languages::JAVASCRIPT;
use super::script;
use super::stage::{PATIENCE, Stage};

/// A line of `/proc/PID/status`.
fn status(pid: Pid, name: &str) -> String {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim().to_owned()
}

fn environment(pid: Pid) -> String {
    let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_kernel_is_watched_walled_in_and_knows_no_key() {
    let mut stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    stage
        .site
        .context
        .set("OPENAI_API_KEY", "sk-planted-0123456789abcdef");
    let words = stage.prepare(script(&JAVASCRIPT, JAVASCRIPT.solved));
    let mut run = stage
        .site
        .context
        .command()
        .args(&words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(run.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    let bootstrap = the(Role::Bootstrap, &stage).unwrap();
    let kernel = the(Role::Kernel, &stage).unwrap();
    let egress = the(Role::Egress, &stage).unwrap();
    assert!(the(Role::Launcher, &stage).is_some());
    // Filtered, for ever.
    for pid in [kernel, egress] {
        assert_eq!(status(pid, "Seccomp:"), "2");
        assert_eq!(status(pid, "NoNewPrivs:"), "1");
    }
    // Control: a process of ours that was not walled in.
    assert_eq!(status(bootstrap, "Seccomp:"), "0");
    assert!(!environment(kernel).contains("sk-planted"));
    assert_eq!(environment(egress), "");
    let program = environment(Pid::from_child(&run));
    assert!(program.contains("sk-planted"), "the control has the key");
    // Whichever is lost, the same bootstrap brings them all back.
    kill_process(egress, Signal::KILL).unwrap();
    wait_for("another kernel", PATIENCE, || {
        the(Role::Kernel, &stage).filter(|again| *again != kernel)
    })
    .unwrap();
    assert_eq!(the(Role::Bootstrap, &stage), Some(bootstrap));
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(0), "{first}{rest}");
    stage.ends();
}
