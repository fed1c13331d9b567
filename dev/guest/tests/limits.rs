//! Limits on a kernel with control groups of version 2, in a guest.
//!
//! One boot tries all places, because a boot costs more than all cases. What
//! the guest did not say counts as a failure, with all that it said.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::path::Path;
use std::time::Duration;

use fluffy_test_kit::{Guest, GuestImage, GuestKernel, record_skip};
use serde_json::{Value, json};

/// A boot and all cases take half a minute on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

#[test]
fn limits_hold_with_version_two_of_control_groups() {
    if !cfg!(target_arch = "x86_64") {
        record_skip("limits_hold_with_version_two", "guests are of another kind");
        return;
    }
    let said = boot();
    let said = Said(&said);
    for (place, parent) in [
        ("root", "/sys/fs/cgroup"),
        ("delegated", "/sys/fs/cgroup/user"),
    ] {
        said.limits_are_the_kernels(place, parent);
    }
    said.limits_are_watched("crowded", Some("/sys/fs/cgroup/crowd"));
    said.limits_are_watched("nothing", None);
    said.instances_are_limited();
}

fn boot() -> String {
    // Cargo's folder for tests is in its target folder.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let kernel = GuestKernel::fetched(target)
        .expect("the kernel for guests is fetched by `cargo xtask test --only setup`");
    let mut image = GuestImage::new();
    image.link("/bin", "usr/bin").unwrap();
    image.link("/lib", "usr/lib").unwrap();
    image.link("/lib64", "usr/lib64").unwrap();
    for folder in ["/dev", "/etc", "/proc", "/same", "/sys", "/tmp"] {
        image.directory(folder).unwrap();
    }
    image
        .script("/init", include_str!("../src/init.sh"))
        .unwrap();
    image
        .script("/inside", include_str!("../src/inside.sh"))
        .unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_fluffy-foreign-kernel"));
    image
        .program("/usr/bin/fluffy-foreign-kernel", program)
        .unwrap();
    let busybox = busybox();
    image.program("/usr/bin/busybox", &busybox).unwrap();
    for applet in [
        "awk", "chown", "chroot", "ip", "mkdir", "mount", "reboot", "sh", "sleep", "true",
    ] {
        image
            .link(&format!("/usr/bin/{applet}"), "busybox")
            .unwrap();
    }
    let guest = Guest {
        kernel: &kernel,
        image: &image,
        options: "cgroup_no_v1=all",
        memory: 1_024,
    };
    guest.run(PATIENCE).unwrap()
}

fn busybox() -> std::path::PathBuf {
    let search = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&search)
        .map(|folder| folder.join("busybox"))
        .find(|file| file.is_file())
        .expect("busybox is installed by `cargo xtask test --only setup`")
}

/// What a guest said.
struct Said<'a>(&'a str);

impl Said<'_> {
    fn found(&self, place: &str, case: &str) -> Value {
        let mut facts = self.0.lines().filter_map(|line| {
            let fact: Value = serde_json::from_str(line.trim()).ok()?;
            (fact["place"] == place && fact["case"] == case).then(|| fact["found"].clone())
        });
        let found = facts.next();
        found.unwrap_or_else(|| panic!("{place} says nothing of {case}:\n{}", self.0))
    }

    fn is(&self, place: &str, case: &str, expected: &Value) {
        let found = self.found(place, case);
        assert_eq!(&found, expected, "{place}, {case}:\n{}", self.0);
    }

    /// Of a bomb: how it ended, what it said, and how many groups were left.
    fn ended(&self, place: &str, case: &str, expected: &Value) {
        let found = self.found(place, case);
        let found = json!([found["exit"], found["said"], found["groups"]]);
        assert_eq!(&found, expected, "{place}, {case}:\n{}", self.0);
    }

    fn limits_are_the_kernels(&self, place: &str, parent: &str) {
        let limits = self.found(place, "limits");
        assert_eq!(limits["place"], parent, "{place}:\n{}", self.0);
        let files = json!(["25165824", "0", "21", "50000 100000"]);
        assert_eq!(limits["files"], files, "{place}:\n{}", self.0);
        assert_eq!(limits["peak"], true, "{place}:\n{}", self.0);
        self.is(place, "processor", &json!(true));
        self.is(place, "processor control", &json!(false));
        let peak = self.found(place, "memory")["peak"].as_u64();
        assert!(peak <= Some(24 << 20), "{place}: {peak:?}");
        self.pauses_and_sweeps(place);
        self.bombs_end(place);
    }

    /// Where the kernel limits nothing the launcher looks itself.
    fn limits_are_watched(&self, place: &str, parent: Option<&str>) {
        let limits = self.found(place, "limits");
        assert_eq!(limits["place"], json!(parent), "{place}:\n{}", self.0);
        match parent {
            // It still stops, counts and ends all processes at once.
            Some(_) => {
                assert_eq!(limits["files"], json!([null, null, null, null]));
                self.pauses_and_sweeps(place);
            }
            None => self.is(
                place,
                "pause",
                &json!({ "stands": null, "refused": true, "goes": null, "output": true }),
            ),
        }
        self.bombs_end(place);
    }

    /// By the groups that shims make, each with its control.
    fn instances_are_limited(&self) {
        let place = "instances";
        let limits = |name: &str, memory: u64, pids: u64, weight: &str| {
            let files = json!([memory.to_string(), "0", "1", pids.to_string(), weight]);
            let found = json!({ "files": files, "read": [memory, pids] });
            self.is(place, &format!("{name} limits"), &found);
        };
        limits("tight", 24 << 20, 20, "50");
        limits("wide", 400 << 20, 200, "200");
        for name in ["tight", "wide"] {
            let busy = json!({ "first": true, "ended": true, "left": 0 });
            self.is(place, &format!("{name} busy"), &busy);
            self.is(place, &format!("{name} left"), &json!(false));
        }
        let bomb = |case: &str| {
            let found = self.found(place, case);
            json!([found["fine"], found["said"], found["killed"]])
        };
        assert_eq!(bomb("tight memory"), json!([false, "", true]), "{}", self.0);
        let whole = json!([true, "33554432", false]);
        assert_eq!(bomb("wide memory"), whole, "{}", self.0);
        let peak = self.found(place, "tight memory")["peak"].as_u64();
        assert!(peak > Some(0) && peak <= Some(24 << 20), "{peak:?}");
        assert_eq!(bomb("tight processes")[0], false, "{}", self.0);
        let many = |name: &str| {
            let found = self.found(place, &format!("{name} processes"));
            found["processes"].as_u64().unwrap()
        };
        assert!(many("tight") <= 20, "{}", self.0);
        assert_eq!(bomb("wide processes"), json!([true, "40", false]));
        assert_eq!(many("wide"), 40, "{}", self.0);
    }

    fn pauses_and_sweeps(&self, place: &str) {
        let paused = json!({ "stands": true, "refused": true, "goes": true, "output": true });
        self.is(place, "pause", &paused);
        let swept = json!({ "removed": 1, "ended": 9, "there": false, "neighbour": true });
        self.is(place, "orphan", &swept);
        let killed = json!({ "before": 1, "after": 0 });
        self.is(place, "killed launcher", &killed);
    }

    fn bombs_end(&self, place: &str) {
        let limit = |limit: &str| json!({ "type": "limit", "limit": limit });
        let fine = json!({ "type": "code", "code": 0 });
        self.ended(place, "memory", &json!([limit("memory"), "", 0]));
        self.ended(place, "processes", &json!([limit("pids"), "", 0]));
        self.ended(place, "memory control", &json!([fine, "33554432", 0]));
        self.ended(place, "processes control", &json!([fine, "40", 0]));
        self.is(place, "left", &json!([]));
        let limits = self.found(place, "limits");
        // Its init and the shell.
        assert_eq!(limits["pids"], 2, "{place}:\n{}", self.0);
    }
}
