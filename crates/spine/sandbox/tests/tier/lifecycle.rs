//! Life and death: pause, stop, kill, drop, a dead launcher, a dead client.

use std::time::{Duration, Instant};

use fluffy_contract::isolation::{Child, Command, Exit, Sandbox, SandboxError};
use fluffy_sandbox::plan::Engine;

use crate::kit::{Kit, run, shell, text};

on_every_engine! {
    a_paused_sandbox_stands_still_and_goes_on
    stopping_asks_first
    stopping_does_not_wait_for_ever
    nothing_is_left_when_a_sandbox_is_cleaned_up
    everything_ends_with_its_client
}

async fn a_paused_sandbox_stands_still_and_goes_on(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let script = "while :; do echo x; sleep 0.02; done";
    let mut child = sandbox
        .run(run(), Command::new(["sh", "-c", script]))
        .await
        .unwrap();
    child.output().await.unwrap();
    sandbox.pause().await.unwrap();
    // What was written before the pause may still be there; then silence.
    let silent = async {
        while tokio::time::timeout(Duration::from_millis(300), child.output())
            .await
            .is_ok()
        {}
    };
    tokio::time::timeout(Duration::from_secs(10), silent)
        .await
        .expect("it must stand still");
    assert!(sandbox.run(run(), Command::new(["true"])).await.is_err());
    sandbox.resume().await.unwrap();
    assert!(child.output().await.unwrap().is_some());
    assert!(sandbox.stats().await.unwrap().pids >= 2);
}

async fn stopping_asks_first(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let script = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done";
    let mut child = sandbox
        .run(run(), Command::new(["sh", "-c", script]))
        .await
        .unwrap();
    child.output().await.unwrap();
    sandbox.stop(Duration::from_secs(10)).await.unwrap();
    let finished = child.finish().await.unwrap();
    assert_eq!(text(&finished.stdout), "bye\n");
    assert_eq!(finished.exit, Exit::Code { code: 3 });
    let after = sandbox.run(run(), Command::new(["true"])).await;
    assert!(matches!(after, Err(SandboxError::Ended { .. })));
}

async fn stopping_does_not_wait_for_ever(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let script = "trap '' TERM; echo up; while :; do sleep 1; done";
    let mut child = sandbox
        .run(run(), Command::new(["sh", "-c", script]))
        .await
        .unwrap();
    child.output().await.unwrap();
    let begun = Instant::now();
    sandbox.stop(Duration::from_millis(200)).await.unwrap();
    assert_eq!(
        child.wait().await.unwrap(),
        Exit::Signal {
            signal: libc::SIGKILL
        }
    );
    assert!(begun.elapsed() < Duration::from_secs(10));
}

async fn nothing_is_left_when_a_sandbox_is_cleaned_up(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    shell(
        &sandbox,
        "setsid sleep 1234.5 & setsid sh -c 'trap \"\" TERM HUP; sleep 1234.5' &",
    )
    .await;
    assert!(count("sleep\u{0}1234.5") >= 1);
    sandbox.clean().await.unwrap();
    wait_for("no process is left", || count("sleep\u{0}1234.5") == 0);
    let records = std::fs::read_dir(kit.path("state/launchers"))
        .unwrap()
        .flatten();
    let left: usize = records
        .map(|dir| std::fs::read_dir(dir.path()).unwrap().count())
        .sum();
    assert_eq!(left, 1, "only the root's place");
}

async fn everything_ends_with_its_client(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let _child = sandbox
        .run(run(), Command::new(["sleep", "2345.5"]))
        .await
        .unwrap();
    wait_for("it runs", || count("sleep\u{0}2345.5") == 1);
    let Kit { launcher, root, .. } = kit;
    drop((sandbox, _child, launcher));
    wait_for("it is gone", || count("sleep\u{0}2345.5") == 0);
    wait_for("no record is left", || {
        std::fs::read_dir(root.path().join("state/launchers"))
            .unwrap()
            .count()
            == 0
    });
}

#[tokio::test]
async fn everything_ends_with_its_launcher_and_the_next_one_sweeps() {
    let kit = Kit::new().await;
    let sandbox = kit.sandbox().await;
    let mut child = sandbox
        .run(run(), Command::new(["sleep", "3456.5"]))
        .await
        .unwrap();
    wait_for("it runs", || count("sleep\u{0}3456.5") == 1);
    let launchers = std::fs::read_dir(kit.path("state/launchers"))
        .unwrap()
        .count();
    assert_eq!(launchers, 1);
    kill_launcher(kit.path("state").to_str().unwrap());
    wait_for("it is gone", || count("sleep\u{0}3456.5") == 0);
    assert!(child.wait().await.is_err());
    let again = Kit::with(fluffy_sandbox::plan::Engine::Native, |settings| {
        settings.state = kit.path("state");
        settings.layers = kit.path("state/layers");
    })
    .await;
    let launchers = std::fs::read_dir(kit.path("state/launchers"))
        .unwrap()
        .count();
    assert_eq!(launchers, 1, "the dead one was swept at the start");
    drop(again);
}

/// The launcher whose ownership directory is open below this state directory.
fn kill_launcher(state: &str) {
    let mut found = None;
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(descriptors) = std::fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        let holds = descriptors.flatten().any(|descriptor| {
            std::fs::read_link(descriptor.path()).is_ok_and(|target| target.starts_with(state))
        });
        let command = std::fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
        if holds && command.contains("launcher") {
            found = process.file_name().to_str().unwrap().parse().ok();
        }
    }
    let pid = rustix::process::Pid::from_raw(found.expect("the launcher runs")).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// How many processes of the host have this command line.
fn count(command: &str) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|process| {
            std::fs::read_to_string(process.path().join("cmdline"))
                .is_ok_and(|line| line.trim_end_matches('\u{0}') == command)
        })
        .count()
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
