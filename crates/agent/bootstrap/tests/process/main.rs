//! The bootstrap as a real process, with shell scripts as kernel and launcher.
//!
//! A kernel that is well is `tee PINGS <&1`: its standard output is the socket
//! on which it is pinged, and everything it reads there goes back and to a
//! file, while the socket to its launcher stays open as descriptor 3. A
//! launcher that is well is `cat`: it ends when its kernel does.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use fluffy_test_kit::wait_for;
use tempfile::TempDir;

/// Longer than anything here takes; a slow machine only waits longer.
const PATIENCE: Duration = Duration::from_secs(60);

const LAUNCHER: &str = "echo $$ >> launchers; exec cat";
const KERNEL: &str = "echo $$ >> kernels; exec 3<&0; exec tee -a pings <&1";

/// A folder in which the scripts leave their traces.
struct Site(TempDir);

struct Running<'a> {
    site: &'a Site,
    child: Child,
}

struct Finished {
    code: Option<i32>,
    lines: Vec<serde_json::Value>,
}

impl Site {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn pids(&self, name: &str) -> Vec<u32> {
        let text = self.text(name);
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn start(&self, within: u64, launcher: &str, kernel: &str) -> Running<'_> {
        self.start_with(&[within, 100], launcher, kernel)
    }

    fn start_with(&self, millis: &[u64; 2], launcher: &str, kernel: &str) -> Running<'_> {
        let child = Command::new(env!("CARGO_BIN_EXE_fluffy-bootstrap-stand-in"))
            .arg(self.path("config.toml"))
            .args(millis.map(|millis| millis.to_string()))
            .args([launcher, kernel])
            .current_dir(self.0.path())
            .env("LEAKED", "yes")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.path("errors")).unwrap())
            .spawn()
            .unwrap();
        Running { site: self, child }
    }

    /// Runs a kernel to its end; answers to pings may take long.
    fn run(&self, launcher: &str, kernel: &str) -> Finished {
        self.start(30_000, launcher, kernel).finish()
    }

    fn wait<T>(&self, what: &str, condition: impl FnMut() -> Option<T>) -> T {
        wait_for(what, PATIENCE, condition).unwrap_or_else(|error| {
            panic!("{error}; errors: {}", self.text("errors"));
        })
    }

    /// Waits until the running kernel has answered so many pings.
    fn answered(&self, pings: usize) {
        self.wait("pings are answered", || {
            (fs::read(self.path("pings")).unwrap_or_default().len() >= pings).then_some(())
        });
    }

    /// Every process that was started here is gone. Whatever a process does,
    /// it is in this folder; one that only waits to be reaped is nowhere.
    fn nothing_is_left(&self) {
        let here = self.0.path().canonicalize().unwrap();
        let is_here = |entry: fs::DirEntry| {
            fs::read_link(entry.path().join("cwd")).is_ok_and(|folder| folder == here)
        };
        self.wait("every process is gone", || {
            let mut processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
            (!processes.any(is_here)).then_some(())
        });
    }
}

impl Running<'_> {
    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(kill(name, &pid).success());
    }

    fn finish(mut self) -> Finished {
        let status = self
            .site
            .wait("the bootstrap ends", || self.child.try_wait().unwrap());
        let errors = self.site.text("errors");
        let json = errors
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        Finished {
            code: status.code(),
            lines: json.collect(),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    fn restarts(&self) -> Vec<u64> {
        let warnings = self.lines.iter().map(|line| &line["warning"]);
        let restarts = warnings.filter(|warning| warning["code"] == "kernel_restarting");
        restarts
            .filter_map(|warning| warning["pause_ms"].as_u64())
            .collect()
    }

    fn error(&self) -> serde_json::Value {
        self.lines
            .last()
            .map(|line| line["error"].clone())
            .unwrap_or_default()
    }
}

fn kill(signal: &str, pid: &str) -> ExitStatus {
    Command::new("kill")
        .args(["-s", signal, pid])
        .status()
        .unwrap()
}

#[test]
fn a_kernel_that_is_done_ends_everything() {
    let site = Site::new();
    let finished = site.run(LAUNCHER, "echo $$ >> kernels; exit 0");
    assert_eq!((finished.code, finished.lines.len()), (Some(0), 0));
    site.nothing_is_left();
}

#[test]
fn a_kernel_that_refuses_is_not_asked_again() {
    let site = Site::new();
    let finished = site.run(LAUNCHER, "echo $$ >> kernels; exit 2");
    assert_eq!((finished.code, finished.lines.len()), (Some(2), 0));
    assert_eq!(site.pids("kernels").len(), 1);
}

#[test]
fn a_kernel_that_always_crashes_is_given_up_after_three_restarts() {
    let site = Site::new();
    let finished = site.run(LAUNCHER, "echo $$ >> kernels; kill -9 $$");
    assert_eq!(finished.code, Some(7));
    assert_eq!(finished.restarts(), [100, 200, 400]);
    assert_eq!(site.pids("kernels").len(), 4);
    assert_eq!(site.pids("launchers").len(), 4);
    let error = finished.error();
    assert_eq!(error["code"], "kernel_unstable");
    assert_eq!(error["retryable"], false);
    assert!(
        error["last"].as_str().unwrap().contains("signal: 9"),
        "{error}"
    );
    site.nothing_is_left();
}

#[test]
fn a_kernel_that_crashed_once_goes_on() {
    let site = Site::new();
    let kernel = "echo $$ >> kernels; test -e again && exit 0; touch again; exit 101";
    let finished = site.run(LAUNCHER, kernel);
    assert_eq!((finished.code, finished.restarts()), (Some(0), vec![100]));
}

#[test]
fn a_kernel_that_answers_is_left_alone_and_a_killed_one_replaced() {
    let site = Site::new();
    let running = site.start(30_000, LAUNCHER, KERNEL);
    site.answered(20);
    let kernels = site.pids("kernels");
    assert_eq!(kernels.len(), 1);
    assert!(kill("KILL", &kernels[0].to_string()).success());
    site.wait("a second kernel", || {
        (site.pids("kernels").len() == 2).then_some(())
    });
    let before = fs::read(site.path("pings")).unwrap().len();
    site.answered(before + 5);
    running.signal("TERM");
    let finished = running.finish();
    assert_eq!((finished.code, finished.restarts()), (Some(0), vec![100]));
    site.nothing_is_left();
}

#[test]
fn a_kernel_that_is_silent_is_killed_and_given_up() {
    let site = Site::new();
    let kernel = "echo $$ >> kernels; exec sleep 1000";
    let finished = site.start(200, LAUNCHER, kernel).finish();
    assert_eq!((finished.code, finished.restarts().len()), (Some(7), 3));
    let last = finished.error()["last"].to_string();
    assert!(last.contains("did not answer"), "{last}");
    site.nothing_is_left();
}

#[test]
fn a_kernel_that_falls_silent_later_is_noticed_too() {
    let site = Site::new();
    // Well the second time; the first time it answers one ping only.
    let kernel = "echo $$ >> kernels; exec 3<&0; test -e again && exec tee -a pings <&1
        touch again; head -c 1 <&1; exec sleep 1000";
    let running = site.start(500, LAUNCHER, kernel);
    site.wait("a second kernel", || {
        (site.pids("kernels").len() >= 2).then_some(())
    });
    site.answered(3);
    running.signal("TERM");
    assert_eq!(running.finish().code, Some(0));
    site.nothing_is_left();
}

#[test]
fn a_launcher_that_dies_takes_its_kernel_along() {
    let site = Site::new();
    let launcher = "echo $$ >> launchers; test -e again && exec cat; touch again; exit 3";
    let running = site.start(30_000, launcher, KERNEL);
    site.wait("a second kernel", || {
        (site.pids("kernels").len() == 2).then_some(())
    });
    site.answered(3);
    running.signal("TERM");
    let finished = running.finish();
    assert_eq!((finished.code, finished.restarts()), (Some(0), vec![100]));
    let why = finished.lines[0]["warning"]["message"].to_string();
    assert!(why.contains("launcher: exit status: 3"), "{why}");
    site.nothing_is_left();
}

#[test]
fn a_signal_reaches_the_kernel_which_ends_in_its_own_way() {
    for (signal, trapped) in [("TERM", "TERM"), ("INT", "INT"), ("HUP", "HUP")] {
        let site = Site::new();
        let kernel = format!(
            "trap 'echo {trapped} >> traps; exit 0' {trapped}; echo $$ >> kernels
            tee -a pings <&1 & wait"
        );
        let running = site.start(30_000, LAUNCHER, &kernel);
        site.wait("a kernel", || site.pids("kernels").pop());
        running.signal(signal);
        assert_eq!(running.finish().code, Some(0), "{signal}");
        assert_eq!(site.text("traps").trim(), trapped);
        site.nothing_is_left();
    }
}

#[test]
fn a_kernel_that_ignores_a_signal_is_killed_in_the_end() {
    let site = Site::new();
    let kernel = "trap '' TERM; echo $$ >> kernels; exec 3<&0; exec tee -a pings <&1";
    let running = site.start(30_000, LAUNCHER, kernel);
    site.answered(1);
    running.signal("TERM");
    assert_eq!(running.finish().code, Some(1));
    site.nothing_is_left();
}

#[test]
fn a_signal_during_the_pause_ends_it() {
    let site = Site::new();
    let kernel = "echo $$ >> kernels; exit 101";
    let running = site.start_with(&[30_000, 600_000], LAUNCHER, kernel);
    site.wait("the pause", || {
        site.text("errors")
            .contains("kernel_restarting")
            .then_some(())
    });
    running.signal("TERM");
    let finished = running.finish();
    assert_eq!(
        (finished.code, finished.restarts()),
        (Some(0), vec![600_000])
    );
    assert_eq!(site.pids("kernels").len(), 1);
}

#[test]
fn killing_the_bootstrap_leaves_nothing() {
    // At moments from before the launcher runs until long after.
    for pings in [0, 0, 0, 0, 1, 2, 10] {
        let site = Site::new();
        // The launcher does not end with its kernel: only the system ends it.
        let launcher = "echo $$ >> launchers; exec sleep 1000";
        let mut running = site.start(30_000, launcher, KERNEL);
        site.answered(pings);
        running.child.kill().unwrap();
        running.child.wait().unwrap();
        site.nothing_is_left();
    }
}

#[test]
fn a_program_that_is_not_there_is_an_error_and_not_a_crash() {
    for (launcher, kernel) in [("", KERNEL), (LAUNCHER, "")] {
        let site = Site::new();
        let finished = site.run(launcher, kernel);
        assert_eq!((finished.code, finished.lines.len()), (Some(7), 1));
        let error = finished.error();
        assert_eq!(error["code"], "cannot_start");
        let what = if launcher.is_empty() {
            "launcher"
        } else {
            "kernel"
        };
        let message = format!("the bootstrap could not start the {what}");
        assert_eq!(error["message"], message);
        site.nothing_is_left();
    }
}

#[test]
fn children_get_no_variable_and_no_descriptor_they_were_not_given() {
    let site = Site::new();
    let look =
        |name: &str| format!("echo $$ >> {name}s; env > {name}.env; ls /proc/$$/fd > {name}.fd");
    let launcher = format!("{}; exec cat", look("launcher"));
    let kernel = format!("{}; exit 0", look("kernel"));
    assert_eq!(site.run(&launcher, &kernel).code, Some(0));
    for name in ["launcher", "kernel"] {
        let environment = site.text(&format!("{name}.env"));
        assert!(!environment.contains("LEAKED"), "{environment}");
        assert_eq!(environment.contains("GIVEN=yes"), name == "kernel");
        let descriptors = site.text(&format!("{name}.fd"));
        let inherited: Vec<_> = descriptors.lines().filter(|line| line.len() == 1).collect();
        assert_eq!(inherited, ["0", "1", "2"], "{name}");
    }
}

#[test]
fn a_key_press_in_the_terminal_reaches_the_bootstrap_alone() {
    let site = Site::new();
    // The fifth field is the process group: each leads its own.
    let look = "echo $$ >> pids; cut -d ' ' -f 5 /proc/$$/stat >> groups";
    let launcher = format!("{look}; exec cat");
    let kernel = format!("until test -s groups; do :; done; {look}; exit 0");
    assert_eq!(site.run(&launcher, &kernel).code, Some(0));
    assert_eq!(site.pids("pids").len(), 2);
    assert_eq!(site.pids("groups"), site.pids("pids"));
}

#[test]
fn the_launcher_and_the_kernel_speak_to_each_other() {
    let site = Site::new();
    let launcher = "echo $$ >> launchers; echo hello >&0; exec cat > heard";
    let kernel = "head -n 1 > said; echo thanks >&0; exit 0";
    assert_eq!(site.run(launcher, kernel).code, Some(0));
    assert_eq!(site.text("said"), "hello\n");
    assert_eq!(site.text("heard"), "thanks\n");
}

#[test]
fn the_configuration_chooses_the_engine_and_the_kernel_is_told() {
    let rows = [
        ("[sandbox]\nengine = \"bwrap\"\n", "bwrap"),
        ("[sandbox]\nengine = \"unheard-of\"\n", "native"),
        ("", "native"),
    ];
    for (configuration, expected) in rows {
        let site = Site::new();
        fs::write(site.path("config.toml"), configuration).unwrap();
        let launcher = "echo $$ >> launchers; echo $1 > engine; exec cat";
        // The launcher has written it before it reads to the end.
        let kernel = "echo $* > arguments; exit 0";
        assert_eq!(site.run(launcher, kernel).code, Some(0));
        assert_eq!(site.text("engine").trim(), expected);
        assert_eq!(
            site.text("arguments").trim(),
            format!("--engine {expected}")
        );
    }
}
