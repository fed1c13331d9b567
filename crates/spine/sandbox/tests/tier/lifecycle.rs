//! Life and death: pause, stop, kill, drop, a dead launcher, a dead client.

use std::time::{Duration, Instant};

use fluffy_contract::isolation::{Child, Command, Exit, Sandbox, SandboxError};
use fluffy_sandbox::client::{LauncherCommand, StartLauncherError};
use fluffy_sandbox::plan::Engine;
use fluffy_test_kit::wait_for;

use crate::kit::{Kit, count, run, shell, text};

/// Far beyond what anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

on_every_engine! {
    a_paused_sandbox_stands_still_and_goes_on
    the_time_of_a_paused_command_stands_still_too
    stopping_asks_first
    stopping_does_not_wait_for_ever
    stopping_does_not_wait_for_what_never_ran
    nothing_is_left_when_a_sandbox_is_cleaned_up
    everything_in_it_can_be_ended_and_it_goes_on
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

async fn the_time_of_a_paused_command_stands_still_too(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let command = |millis| Command {
        time: Some(fluffy_base::Span { millis }),
        ..Command::new(["sh", "-c", "echo up; read line; echo $line"])
    };
    let mut child = sandbox.run(run(), command(6_000)).await.unwrap();
    child.output().await.unwrap();
    sandbox.pause().await.unwrap();
    // Longer than it may run.
    tokio::time::sleep(Duration::from_secs(7)).await;
    sandbox.resume().await.unwrap();
    // Whoever wants to end it has the time to.
    tokio::time::sleep(Duration::from_millis(500)).await;
    child.write(b"on\n").await.unwrap();
    let finished = child.finish().await.unwrap();
    assert_eq!(finished.exit, Exit::Code { code: 0 });
    assert_eq!(text(&finished.stdout), "on\n");

    // Resumed, what is left of it counts again.
    let mut child = sandbox.run(run(), command(1_000)).await.unwrap();
    child.output().await.unwrap();
    sandbox.pause().await.unwrap();
    sandbox.resume().await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
    let limit = fluffy_contract::isolation::Limit::Time;
    assert_eq!(ended.unwrap().unwrap(), Exit::Limit { limit });
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

async fn stopping_does_not_wait_for_what_never_ran(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let idle = kit.sandbox().await;
    let patience = Duration::from_secs(600);
    tokio::time::timeout(PATIENCE, idle.stop(patience))
        .await
        .expect("nothing runs in it")
        .unwrap();
    idle.clean().await.unwrap();
    let sandbox = kit.sandbox().await;
    let nowhere = Command {
        directory: Some("/nowhere".into()),
        ..Command::new(["true"])
    };
    assert!(sandbox.run(run(), nowhere).await.is_err());
    let mut child = sandbox
        .run(run(), Command::new(["sh", "-c", "echo up; exec sleep 60"]))
        .await
        .unwrap();
    child.output().await.unwrap();
    tokio::time::timeout(PATIENCE, sandbox.stop(patience))
        .await
        .expect("only one command runs, and it ends when asked")
        .unwrap();
}

/// A command is killed at any moment of its start by another one; what it
/// borrows of init until then must stay whole.
#[tokio::test]
async fn commands_that_are_killed_while_they_start_leave_init_whole() {
    let kit = Kit::new().await;
    let sandbox = kit.sandbox().await;
    let killer = "echo up; while :; do kill -9 -1; done";
    let mut killer = sandbox
        .run(run(), Command::new(["sh", "-c", killer]))
        .await
        .unwrap();
    killer.output().await.unwrap();
    let killed = Exit::Signal {
        signal: libc::SIGKILL,
    };
    let mut hit = 0;
    let mut tries = 0;
    let begun = std::time::Instant::now();
    // A busy machine may give the killer no turn for a while.
    while tries < 100 || (hit == 0 && begun.elapsed() < PATIENCE) {
        tries += 1;
        let child = sandbox.run(run(), Command::new(["true"])).await.unwrap();
        let exit = tokio::time::timeout(PATIENCE, child.finish())
            .await
            .expect("it ends either way")
            .unwrap()
            .exit;
        assert!(exit == killed || exit == Exit::Code { code: 0 }, "{exit:?}");
        hit += usize::from(exit == killed);
    }
    assert!(hit > 0, "nobody was killed");
    killer.signal(libc::SIGKILL).await.unwrap();
    assert_eq!(killer.wait().await.unwrap(), killed);
    assert_eq!(text(&shell(&sandbox, "echo whole").await.stdout), "whole\n");
}

/// Nobody waits for an answer that cannot come.
#[test]
fn a_launcher_that_ends_at_once_is_an_error_and_no_wait() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let started = runtime.block_on(async {
        let root = tempfile::tempdir().unwrap();
        let command = LauncherCommand {
            program: "true".into(),
            arguments: Vec::new(),
        };
        let start = Kit::start(&root, &command, Engine::Native, |_| {});
        tokio::time::timeout(PATIENCE, start).await
    });
    // Whatever still waits must not keep the test from failing.
    runtime.shutdown_background();
    let error = started.expect("it must not wait").unwrap_err();
    assert!(matches!(error, StartLauncherError::Silent(_)), "{error:?}");
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
    wait("no process is left", || count("sleep\u{0}1234.5") == 0);
    let records = std::fs::read_dir(kit.path("state/launchers"))
        .unwrap()
        .flatten();
    let left: usize = records
        .map(|dir| std::fs::read_dir(dir.path()).unwrap().count())
        .sum();
    assert_eq!(left, 1, "only the root's place");
}

async fn everything_in_it_can_be_ended_and_it_goes_on(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let left = "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 3456.5; done' &";
    shell(&sandbox, left).await;
    wait("it runs", || count("sleep\u{0}3456.5") == 1);
    // Control: another command ends nothing.
    assert_eq!(text(&shell(&sandbox, "echo one").await.stdout), "one\n");
    assert_eq!(count("sleep\u{0}3456.5"), 1);
    sandbox.end_all().await.unwrap();
    wait("it is gone", || count("sleep\u{0}3456.5") == 0);
    assert_eq!(text(&shell(&sandbox, "echo two").await.stdout), "two\n");
    sandbox.clean().await.unwrap();
    assert!(sandbox.end_all().await.is_err());
}

async fn everything_ends_with_its_client(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let _child = sandbox
        .run(run(), Command::new(["sleep", "2345.5"]))
        .await
        .unwrap();
    wait("it runs", || count("sleep\u{0}2345.5") == 1);
    let Kit { launcher, root, .. } = kit;
    drop((sandbox, _child, launcher));
    wait("it is gone", || count("sleep\u{0}2345.5") == 0);
    wait("no record is left", || {
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
    wait("it runs", || count("sleep\u{0}3456.5") == 1);
    let launchers = std::fs::read_dir(kit.path("state/launchers"))
        .unwrap()
        .count();
    assert_eq!(launchers, 1);
    kill_launcher(kit.path("state").to_str().unwrap());
    wait("it is gone", || count("sleep\u{0}3456.5") == 0);
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

fn wait(what: &str, condition: impl Fn() -> bool) {
    wait_for(what, PATIENCE, || condition().then_some(())).unwrap();
}
