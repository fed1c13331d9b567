//! Commands: what they see, how they end, what they may not do.

use fluffy_contract::isolation::{Child, Command, Exit, Output, TerminalSize};
use fluffy_sandbox::plan::Engine;

use crate::kit::{Kit, create, run, shell, text};

on_every_engine! {
    a_command_runs_and_its_exit_is_exact
    a_missing_program_says_so
    arguments_reach_the_program_as_they_are
    input_is_passed_and_ends
    a_terminal_is_a_terminal
    a_slow_reader_slows_the_command_down
    a_permit_for_something_else_is_not_enough
}

async fn a_command_runs_and_its_exit_is_exact(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let finished = shell(&sandbox, "echo out; echo err >&2; exit 7").await;
    assert_eq!(finished.exit, Exit::Code { code: 7 });
    assert_eq!(text(&finished.stdout), "out\n");
    assert_eq!(text(&finished.stderr), "err\n");
    let finished = shell(&sandbox, "kill -SEGV $$").await;
    assert_eq!(
        finished.exit,
        Exit::Signal {
            signal: libc::SIGSEGV
        }
    );
    sandbox.clean().await.unwrap();
    sandbox.clean().await.unwrap();
}

async fn a_missing_program_says_so(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    for (program, errno) in [
        ("no-such-program", libc::ENOENT),
        ("/etc/passwd", libc::EACCES),
    ] {
        let child = sandbox.run(run(), Command::new([program])).await.unwrap();
        let finished = child.finish().await.unwrap();
        assert_eq!(finished.exit, Exit::NotStarted { errno }, "{program}");
    }
}

async fn arguments_reach_the_program_as_they_are(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let odd = ["printf", "[%s]", "a b", "$HOME", "'; rm -rf /'", "", "ü\n"];
    let child = sandbox.run(run(), Command::new(odd)).await.unwrap();
    let finished = child.finish().await.unwrap();
    assert_eq!(text(&finished.stdout), "[a b][$HOME]['; rm -rf /'][][ü\n]");
}

#[tokio::test]
async fn it_is_nobody_in_a_world_of_its_own() {
    let kit = Kit::new().await;
    let finished = kit
        .shell("id -u; hostname; ls -d /proc/[0-9]* | wc -l; grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; ls /sys 2>&1 | wc -l; env | sort | cut -d= -f1 | tr '\\n' ' '")
        .await;
    let out = text(&finished.stdout);
    assert!(
        out.starts_with("1000\nsandbox\n"),
        "{out}{}",
        text(&finished.stderr)
    );
    assert!(out.contains("CapEff:\t0000000000000000"), "{out}");
    assert!(out.contains("CapBnd:\t0000000000000000"), "{out}");
    assert!(out.contains("NoNewPrivs:\t1"), "{out}");
    assert!(out.contains("Seccomp:\t2"), "{out}");
    assert!(
        out.ends_with("HOME LANG LOGNAME PATH PWD SHELL TMPDIR USER "),
        "{out}"
    );
}

async fn input_is_passed_and_ends(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let mut child = sandbox
        .run(run(), Command::new(["wc", "-c"]))
        .await
        .unwrap();
    let big = vec![b'x'; 300_000];
    child.write(&big).await.unwrap();
    let finished = child.finish().await.unwrap();
    assert_eq!(text(&finished.stdout).trim(), "300000");
}

async fn a_terminal_is_a_terminal(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let command = Command {
        terminal: Some(TerminalSize {
            columns: 91,
            rows: 17,
        }),
        ..Command::new(["sh", "-c", "tty; stty size; read line; echo got $line"])
    };
    let mut child = sandbox.run(run(), command).await.unwrap();
    child.write(b"typed\n").await.unwrap();
    let mut seen = Vec::new();
    while let Some(output) = child.output().await.unwrap() {
        let Output::Stdout(bytes) = output else {
            panic!("a terminal has one stream");
        };
        seen.extend(bytes);
    }
    let seen = text(&seen);
    assert!(
        seen.contains("/dev/pts/") && seen.contains("17 91"),
        "{seen}"
    );
    assert!(seen.contains("got typed"), "{seen}");
    assert_eq!(child.wait().await.unwrap(), Exit::Code { code: 0 });
}

async fn a_slow_reader_slows_the_command_down(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let script = "yes | head -c 10000000; echo done > $TMPDIR/done";
    let mut child = sandbox
        .run(run(), Command::new(["sh", "-c", script]))
        .await
        .unwrap();
    child.output().await.unwrap();
    let waits = shell(&sandbox, "test -e $TMPDIR/done").await;
    assert_eq!(
        waits.exit,
        Exit::Code { code: 1 },
        "it must wait for its reader"
    );
    let mut total = 0;
    while let Some(Output::Stdout(bytes)) = child.output().await.unwrap() {
        total += bytes.len();
    }
    assert!(total > 9_000_000, "{total}");
    let done = shell(&sandbox, "test -e $TMPDIR/done").await;
    assert_eq!(done.exit, Exit::Code { code: 0 });
}

async fn a_permit_for_something_else_is_not_enough(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    assert!(kit.launcher.create(run(), kit.spec()).await.is_err());
    let sandbox = kit.sandbox().await;
    assert!(sandbox.run(create(), Command::new(["true"])).await.is_err());
}
