//! The worker process itself: what it has given up before it reads anything.

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use crate::support::{PATIENT, Stage, evaluate, wait_for, worker};

fn bare_worker() -> Command {
    let mut command = Command::new(worker().program);
    command
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn proc_file(pid: u32, name: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap()
}

/// The soft and hard limit of a process, as the kernel prints them.
fn limit(limits: &str, name: &str) -> (String, String) {
    let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
    let mut fields = line.trim_start_matches(name).split_whitespace();
    (
        fields.next().unwrap().to_owned(),
        fields.next().unwrap().to_owned(),
    )
}

#[test]
fn a_worker_has_given_up_what_it_does_not_need() {
    let stage = Stage::new(&[("guard", &evaluate("return 'allow'"))], PATIENT);
    let pid = stage.pid("guard");
    let limits = proc_file(pid, "limits");
    let none = ("0".to_owned(), "0".to_owned());
    for name in [
        "Max core file size",
        "Max file size",
        "Max open files",
        "Max processes",
        "Max locked memory",
    ] {
        assert_eq!(limit(&limits, name), none, "{name}");
    }
    let (soft, hard) = limit(&limits, "Max address space");
    assert_eq!(soft, hard);
    let mapped: u64 = proc_file(pid, "statm")
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let bytes: u64 = soft.parse().unwrap();
    // The program's own size and 128 MiB, not gigabytes.
    assert!(
        bytes > 128 << 20 && bytes < (128 << 20) + mapped * 4096 + (64 << 20),
        "{bytes}"
    );
    let cpu: u64 = limit(&limits, "Max cpu time").0.parse().unwrap();
    assert!(cpu <= 10, "{cpu}");
    let status = proc_file(pid, "status");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    assert!(status.contains("Threads:\t1\n"), "{status}");
    // A filter is over it: opening, connecting, starting end the process.
    assert!(status.contains("Seccomp:\t2\n"), "{status}");
}

#[test]
fn a_worker_refuses_to_start_with_an_environment() {
    let mut child = bare_worker().env("TOKEN", "secret").spawn().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(7));
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(said.contains("cannot be confined"), "{said}");
}

#[test]
fn a_worker_ends_when_its_host_hangs_up() {
    let mut child = bare_worker().spawn().unwrap();
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_worker_dies_with_its_parent_even_if_the_connection_stays() {
    let (hand_over, handed_over) = mpsc::channel::<Child>();
    // The kernel's idea of a parent is the thread.
    let parent = std::thread::spawn(move || {
        let child = bare_worker().spawn().unwrap();
        let pid = child.id();
        hand_over.send(child).unwrap();
        wait_for("it is confined", || {
            limit(&proc_file(pid, "limits"), "Max open files").0 == "0"
        });
    });
    let mut child = handed_over.recv().unwrap();
    // Held here, so that a closed connection is not what ends it.
    let connection = child.stdin.take();
    parent.join().unwrap();
    let mut ended = None;
    wait_for("it is dead", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().signal(), Some(9));
    drop(connection);
}

#[test]
fn a_worker_does_not_listen_to_nonsense() {
    let frames: [&[u8]; 4] = [
        b"\xff\xff\xff\xff",
        b"\0\0\0\x02{}",
        b"\0\0\0\x2a{\"ask\":{\"now_micros\":0,\"request\":\"{}\"}}   ",
        b"\0\0\0\x09{\"load\":",
    ];
    for frame in frames {
        let mut child = bare_worker().spawn().unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), frame).unwrap();
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().code(), Some(7), "{frame:?}");
        let mut said = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
        assert_eq!(said, b"", "{frame:?}");
    }
}
