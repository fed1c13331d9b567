//! Real groups with real processes, where this machine lets tests make them.

use super::*;
use crate::template::Lifetime;
use fluffy_base::ByteSize;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

fn limits() -> Limits {
    Limits {
        memory: ByteSize(64 << 20),
        cpu_milli: Some(500),
        pids: 8,
        user_pids: 9,
        time: Lifetime::Owner,
        disk: ByteSize(1 << 20),
        file_size: ByteSize(1 << 20),
    }
}

/// A group, or nothing where this machine does not let tests make any.
fn group() -> Option<Group> {
    Cgroups::find("test").create(SandboxId::generate(), &limits())
}

fn start(group: &Group, script: &str) -> Child {
    // It waits for a line, so that it is in the group before it does anything.
    let child = Command::new("sh")
        .args(["-c", &format!("read go; {script}")])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    group.add(Pid::from_child(&child)).unwrap();
    child
}

fn go(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn names_say_who_made_a_group() {
    let sandbox = SandboxId::generate();
    let maker = Maker::own();
    let name = format!("{PREFIX}some.label-x.{}-{sandbox}", maker.name());
    let (launcher, read) = read_name(&name).unwrap();
    assert_eq!(launcher, "some.label-x");
    assert_eq!(read, maker);
    assert!(read.may_live());
    let gone = Maker {
        started: "1".into(),
        ..maker
    };
    assert!(!gone.may_live());
    let elsewhere = Maker {
        namespace: "7".into(),
        ..gone
    };
    assert!(elsewhere.may_live());
    for other in ["fluffy-x", "fluffy-a.1.2.3-notanid", "docker", ""] {
        assert!(read_name(other).is_none(), "{other}");
    }
}

#[test]
fn a_group_counts_stops_and_ends_its_processes() {
    let Some(group) = group() else { return };
    let mut child = start(
        &group,
        "x=$(head -c 3000000 /dev/zero | tr '\\0' x); while :; do :; done",
    );
    go(&mut child);
    wait_for("what it uses is counted", || {
        let stats = group.stats(Stats::default()).unwrap();
        stats.cpu_micros > 10_000 && stats.memory > 2_000_000 && stats.pids >= 1
    });
    if group.freeze().is_ok() {
        let state = || process_fields(i32::try_from(child.id()).unwrap()).unwrap()[0].clone();
        wait_for("it stops", || state() != "R");
        group.thaw().unwrap();
        wait_for("it goes on", || state() == "R");
    }
    group.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(libc::SIGKILL)
    );
    let directories: Vec<PathBuf> = group.parts.iter().map(|p| p.directory.clone()).collect();
    group.remove();
    assert!(directories.iter().all(|directory| !directory.exists()));
}

/// A group of version 2, without limits, also where version 1 has them all.
fn group_of_version_two() -> Option<Group> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let place = Place {
        version: Version::Two,
        directory: line.split(' ').nth(4)?.into(),
        controllers: vec![Controller::Usage, Controller::Freezer],
    };
    let name = format!("fluffy-test-{}", SandboxId::generate());
    let part = Part::create(&place, &name, &limits()).ok()?;
    Some(Group {
        parts: vec![part],
        missing: vec![],
    })
}

#[test]
fn version_two_stops_and_ends_its_processes() {
    let Some(group) = group_of_version_two() else {
        return;
    };
    assert!(group.descriptor().is_some());
    let mut child = start(&group, "while :; do :; done");
    go(&mut child);
    wait_for("what it uses is counted", || {
        group.stats(Stats::default()).unwrap().cpu_micros > 10_000
    });
    group.freeze().unwrap();
    wait_for("it stops", || {
        group.parts[0].field("cgroup.events", "frozen").unwrap() == 1
    });
    group.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(libc::SIGKILL)
    );
    let directory = group.parts[0].directory.clone();
    group.remove();
    assert!(!directory.exists());
}

#[test]
fn too_much_memory_is_ended_and_counted() {
    let Some(group) = group() else { return };
    if !group.limits_memory() {
        group.remove();
        return;
    }
    assert_eq!(group.hits(), Hits::default());
    let mut child = start(&group, "exec head -c 200000000 /dev/zero | tail -n 1");
    go(&mut child);
    wait_for("the kernel ends it", || group.hits().memory > 0);
    group.kill().unwrap();
    child.wait().unwrap();
    group.remove();
}

#[test]
fn too_many_processes_are_refused_and_counted() {
    let Some(group) = group() else { return };
    if group.part(Controller::Pids).is_none() {
        group.remove();
        return;
    }
    let many = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 60 & done; wait";
    let mut child = start(&group, many);
    go(&mut child);
    wait_for("a process is refused", || group.hits().pids > 0);
    assert!(group.stats(Stats::default()).unwrap().pids <= 9);
    group.kill().unwrap();
    child.wait().unwrap();
    wait_for("all are collected", || {
        group.parts[0].processes().unwrap().is_empty()
    });
    group.remove();
}

#[test]
fn a_group_is_joined_by_its_process_itself() {
    let Some(group) = group() else { return };
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    #[expect(unsafe_code, reason = "only a process of its own can join")]
    // SAFETY: the child makes system calls only, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(group.join().is_err());
        let mut byte = [0_u8];
        drop(writer);
        let _ = rustix::io::read(&reader, &mut byte);
        #[expect(unsafe_code, reason = "leaves without running the parent's exits")]
        // SAFETY: takes no memory and does not return.
        unsafe {
            libc::_exit(code)
        }
    }
    let old: Vec<&Part> = group
        .parts
        .iter()
        .filter(|part| part.version == Version::One)
        .collect();
    let pid = Pid::from_raw(child).unwrap();
    for part in &old {
        wait_for("it is inside", || part.processes().unwrap().contains(&pid));
    }
    drop(writer);
    let status = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    assert_eq!(status.unwrap().unwrap().1.exit_status(), Some(0));
    group.remove();
}

#[test]
fn a_sweep_takes_only_what_is_orphaned() {
    let cgroups = Cgroups::find("swept");
    let Some(place) = cgroups.found.places.first() else {
        return;
    };
    let gone = Maker {
        started: "1".into(),
        ..Maker::own()
    };
    let orphan = place.directory.join(format!(
        "{PREFIX}swept.{}-{}",
        gone.name(),
        SandboxId::generate()
    ));
    fs::create_dir(&orphan).unwrap();
    let kept = cgroups.create(SandboxId::generate(), &limits()).unwrap();
    let alive = Cgroups::sweep(&|_| true);
    assert!(alive.is_empty() && orphan.exists());
    let removed = Cgroups::sweep(&|launcher| launcher != "swept");
    assert!(removed.iter().any(|line| line.contains("swept")));
    assert!(!orphan.exists());
    // Its launcher, this process, runs: it stays whatever is said of its name.
    assert!(kept.parts[0].directory.exists());
    kept.remove();
}

#[test]
fn no_file_is_made_where_there_is_no_limit() {
    let root = tempfile::tempdir().unwrap();
    let place = Place {
        version: Version::Two,
        directory: root.path().to_owned(),
        controllers: vec![Controller::Memory],
    };
    assert!(Part::create(&place, "name", &limits()).is_err());
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}
