//! What the kernel holds a running platform and its instances to, read from
//! outside; the control is this test's own process, which has none of it.

use std::fs;

use super::lived::{LONG, Lived};
use super::real::Running;
use crate::site::Site;
use fluffy_test_kit::wait_for;

const MANIFEST: &str = r#"schema_version = "v1"
[app]
name = "hello"
[image]
ref = "oci:image"
[deploy]
min_ready_seconds = 0
[processes.web]
command = ["/bin/sleep", "100000"]
resources = { memory = "64MiB" }
"#;

/// A line of `/proc/PID/status`.
fn status(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name}: {text}"))
        .trim()
        .to_owned()
}

fn capabilities(pid: u32, name: &str) -> u64 {
    u64::from_str_radix(&status(pid, name), 16).unwrap()
}

fn oom_score(pid: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    text.trim().to_owned()
}

/// Their numbers, as `capabilities(7)` lists them.
fn set(numbers: &[u32]) -> u64 {
    numbers.iter().map(|number| 1 << number).sum()
}

#[test]
fn the_platform_keeps_no_privilege_that_it_does_not_need() {
    let mut lived = Lived::start(MANIFEST);
    // CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE
    // NET_ADMIN IPC_LOCK SYS_CHROOT SYS_ADMIN SYS_RESOURCE MKNOD
    let most = set(&[0, 1, 3, 4, 5, 6, 7, 10, 12, 14, 18, 21, 24, 27]);
    let own = std::process::id();
    let before = capabilities(own, "CapPrm");
    assert!(
        before & !most != 0,
        "whoever runs this has more: {before:x}"
    );
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let has = capabilities(lived.pid(), name);
        assert_eq!(has & !most, 0, "{name}: {has:x}");
    }
    assert_eq!(capabilities(lived.pid(), "CapEff"), before & most);
    // Every thread, not the first alone.
    for task in fs::read_dir(format!("/proc/{}/task", lived.pid())).unwrap() {
        let text = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let line = text
            .lines()
            .find_map(|it| it.strip_prefix("CapPrm:"))
            .unwrap();
        let has = u64::from_str_radix(line.trim(), 16).unwrap();
        assert_eq!(has & !most, 0, "{text}");
    }
    assert_eq!(status(own, "NoNewPrivs"), "0");
    assert_eq!(status(lived.pid(), "NoNewPrivs"), "1");
    // Nobody goes later than others without SYS_RESOURCE.
    let may = before & set(&[24]) != 0;
    assert_eq!(
        oom_score(lived.pid()),
        if may {
            "-900".to_owned()
        } else {
            oom_score(own)
        }
    );
    assert_ne!(status(lived.pid(), "VmLck"), "0 kB");
    let limits = fs::read_to_string(format!("/proc/{}/limits", lived.pid())).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core"))
        .unwrap();
    assert!(
        core.split_whitespace().filter(|word| *word == "0").count() == 2,
        "{core}"
    );

    lived.site.succeeds(&["deploy"]);
    let [instance] = lived.ready(1).try_into().unwrap();
    let init = lived.init_of(&instance);
    let workload = wait_for("the workload is there", LONG, || {
        let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).ok()?;
        children.split_whitespace().next()?.parse::<u32>().ok()
    })
    .unwrap();
    // CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE, in
    // a user namespace of its own.
    let kept = set(&[0, 1, 3, 4, 5, 6, 7, 10]);
    for pid in [init, workload] {
        // Init may also take from others what they shall not have: SETPCAP.
        let kept = if pid == init { kept | set(&[8]) } else { kept };
        for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let has = capabilities(pid, name);
            assert_eq!(has & !kept, 0, "{name} of {pid}: {has:x}");
        }
        assert_eq!(status(pid, "NoNewPrivs"), "1");
        assert_eq!(oom_score(pid), "500");
        let uid: Vec<u32> = status(pid, "Uid")
            .split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect();
        assert!(uid.iter().all(|id| *id >= 0x4000_0000), "{uid:?}");
        for space in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/{space}")).unwrap();
            assert_ne!(of(pid), of(own), "{space}");
        }
    }
    assert_eq!(status(own, "Seccomp"), "0");
    assert_eq!(status(workload, "Seccomp"), "2");
    // Whoever waits for it needs nothing at all any more.
    let shim: u32 = status(init, "PPid").parse().unwrap();
    assert_eq!(capabilities(shim, "CapPrm"), 0);
    assert_eq!(status(shim, "NoNewPrivs"), "1");
    // The command that looks at all of it, and more.
    let node = lived.folder().join("node");
    let words = ["node", "audit", &instance, "--data", node.to_str().unwrap()];
    let audited = lived.site.json(0, &words);
    assert_eq!(audited["holds"], true, "{audited:#}");
    let checks = audited["checks"].as_array().unwrap();
    assert!(checks.len() >= 14, "{audited:#}");
    lived.site.ends(4, &["node", "audit", "inst_none"]);
    // Nobody reads images while the agent may write them.
    let verify = ["node", "cache", "verify", "--data", node.to_str().unwrap()];
    lived.site.ends(5, &verify);
    lived.end();
    let sound = lived.site.json(0, &verify);
    assert_eq!(sound["sound"], true, "{sound}");
    let blobs = fs::read_dir(node.join("images/blobs")).unwrap();
    let blob = blobs
        .flatten()
        .find(|it| it.file_type().unwrap().is_file())
        .unwrap();
    fs::write(blob.path(), "other").unwrap();
    let damaged = lived.site.json(1, &verify);
    assert_eq!(damaged["damaged"].as_array().unwrap().len(), 1, "{damaged}");
}

#[test]
fn a_server_shows_its_memory_to_nobody() {
    let site = Site::empty();
    let mut command = site.context.command();
    command.args(["server", "--listen", "127.0.0.1:0", "--json"]);
    command.args(["--listen-nodes", "127.0.0.1:0"]);
    command
        .arg("--data")
        .arg(site.context.home().join("server"));
    let (running, _) = Running::start(command, "\n");
    let limits = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = text.lines().find(|line| line.starts_with("Max core"));
        line.unwrap().split_whitespace().nth(4).unwrap().to_owned()
    };
    let own = std::process::id();
    assert_eq!(limits(running.pid()), "0");
    // SYS_ADMIN, NET_ADMIN, SYS_PTRACE and all others that it has no use for.
    let most = set(&[0, 1, 3, 5, 6, 7, 10, 14]);
    assert_ne!(
        capabilities(own, "CapPrm") & !most,
        0,
        "the control has more"
    );
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let has = capabilities(running.pid(), name);
        assert_eq!(has & !most, 0, "{name}: {has:x}");
    }
    assert_eq!(status(own, "NoNewPrivs"), "0");
    assert_eq!(status(running.pid(), "NoNewPrivs"), "1");
    assert_eq!(status(own, "VmLck"), "0 kB");
    assert_ne!(status(running.pid(), "VmLck"), "0 kB");
    running.end();
}
