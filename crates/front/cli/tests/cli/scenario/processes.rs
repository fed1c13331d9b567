//! The agent's own processes: who starts whom, and what each gave up.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use fluffy_model_server::Format;
use fluffy_test_kit::wait_for;
use rustix::process::{Pid, Signal, kill_process};

use super::languages::JAVASCRIPT;
use super::script;
use super::stage::{PATIENCE, Stage};
use crate::agent::socket;

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

fn child(parent_pid: Pid, word: &str) -> Option<Pid> {
    let wanted = format!("worker\0{word}");
    let parent_pid = parent_pid.as_raw_nonzero().get();
    let mut found = processes()
        .filter(|(pid, line)| line.contains(&wanted) && parent(*pid) == Some(parent_pid));
    found.next().map(|(pid, _)| pid)
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
    let path = socket(&stage.site).to_string_lossy().into_owned();
    let with_socket = |word: &str| {
        let word = format!("worker\0{word}");
        let mut all = processes();
        let found = all.find(|(_, line)| line.contains(&word) && line.contains(&path));
        found.map(|(pid, _)| pid)
    };
    let bootstrap = with_socket("bootstrap").unwrap();
    let kernel = child(bootstrap, "kernel").unwrap();
    let egress = child(kernel, "egress").unwrap();
    assert!(child(bootstrap, "launcher").is_some());
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
        child(bootstrap, "kernel").filter(|again| *again != kernel)
    })
    .unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(0), "{first}{rest}");
    stage.ends();
}

pub(super) fn processes() -> impl Iterator<Item = (Pid, String)> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok();
        let pid = pid.and_then(Pid::from_raw)?;
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        Some((pid, line))
    })
}

pub(super) fn parent(pid: Pid) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    fields.split(' ').nth(1)?.parse().ok()
}
