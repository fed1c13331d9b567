//! Limits: each has its own reason, and the host does not notice.

use std::time::{Duration, Instant};

use fluffy_base::{ByteSize, Span};
use fluffy_contract::isolation::{Child, Command, Exit, Limit, SandboxSpec};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_test_kit::wait_for;

use crate::kit::{Kit, count, create, run, shell, text};

on_every_engine! {
    time_is_over_for_the_whole_tree
    a_large_file_ends_with_its_own_reason
    a_layer_that_grows_too_large_is_stopped
    what_a_command_left_behind_is_watched_too
    ten_million_lines_end_at_the_limit_of_output
    output_of_exactly_the_limit_is_fine
    silence_is_counted_where_the_template_says_so
}

fn small(settings: &mut Settings) {
    for template in &mut settings.templates {
        template.memory = ByteSize(64 << 20);
        template.pids = 20;
        template.file_size = ByteSize(1 << 20);
        template.scratch = ByteSize(8 << 20);
        template.disk = ByteSize(32 << 20);
    }
}

async fn time_is_over_for_the_whole_tree(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let command = Command {
        time: Some(Span { millis: 300 }),
        ..Command::new(["sh", "-c", "trap '' TERM; (setsid sleep 60 &) ; sleep 60"])
    };
    let begun = Instant::now();
    let finished = sandbox
        .run(run(), command)
        .await
        .unwrap()
        .finish()
        .await
        .unwrap();
    assert_eq!(finished.exit, Exit::Limit { limit: Limit::Time });
    assert!(begun.elapsed() < Duration::from_secs(10));
    let left = shell(&sandbox, "ls -d /proc/[0-9]* | wc -l").await;
    // init, the shell, ls and wc.
    assert!(
        text(&left.stdout).trim().parse::<u32>().unwrap() <= 4,
        "{}",
        text(&left.stdout)
    );
}

#[tokio::test]
async fn a_memory_bomb_ends_with_its_own_reason() {
    let kit = Kit::with(Engine::Native, small).await;
    let finished = kit
        .shell("x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}")
        .await;
    assert_eq!(
        finished.exit,
        Exit::Limit {
            limit: Limit::Memory
        },
        "{}",
        text(&finished.stderr)
    );
}

#[tokio::test]
async fn a_fork_bomb_ends_with_its_own_reason() {
    let kit = Kit::with(Engine::Native, small).await;
    let finished = kit
        .shell("i=0; while [ $i -lt 200 ]; do sleep 30 & i=$((i+1)); done; exit 0")
        .await;
    assert_eq!(
        finished.exit,
        Exit::Limit { limit: Limit::Pids },
        "{}",
        text(&finished.stderr)
    );
}

async fn a_large_file_ends_with_its_own_reason(engine: Engine) {
    let kit = Kit::with(engine, small).await;
    let finished = kit
        .shell("exec dd if=/dev/zero of=big bs=1 seek=10G count=1 2>/dev/null")
        .await;
    assert_eq!(finished.exit, Exit::Limit { limit: Limit::Disk });
}

async fn a_layer_that_grows_too_large_is_stopped(engine: Engine) {
    let kit = Kit::with(engine, small).await;
    let script = "i=0; while :; do head -c 900000 /dev/zero > f$i; i=$((i+1)); done";
    let finished = kit.shell(script).await;
    assert_eq!(finished.exit, Exit::Limit { limit: Limit::Disk });
}

async fn what_a_command_left_behind_is_watched_too(engine: Engine) {
    let kit = Kit::with(engine, small).await;
    let sandbox = kit.sandbox().await;
    let writer = "i=0; while :; do head -c 900000 /dev/zero > f$i; i=$((i+1)); done";
    let left = ["sh", "-c", writer, "5678.5"].join("\0");
    let command = Command::new(["sh", "-c", "setsid sh -c \"$0\" 5678.5 & exit 0", writer]);
    let child = sandbox.run(run(), command).await.unwrap();
    let finished = child.finish().await.unwrap();
    assert_eq!(finished.exit, Exit::Code { code: 0 });
    wait_for("the writer is ended", Duration::from_secs(60), || {
        (count(&left) == 0).then_some(())
    })
    .unwrap();
    // It was the limit, and not that it never ran.
    let files = match engine {
        Engine::Native => "state/layers/one/upper",
        Engine::Bwrap | Engine::Reduced | Engine::Container => "state/layers/one/tree",
    };
    let files = std::fs::read_dir(kit.path(files)).unwrap();
    let written: u64 = files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!(written > 30_000_000, "{written}");
}

async fn ten_million_lines_end_at_the_limit_of_output(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let command = Command {
        output: Some(ByteSize(100_000)),
        ..Command::new(["sh", "-c", "yes | head -n 10000000"])
    };
    let finished = sandbox
        .run(run(), command)
        .await
        .unwrap()
        .finish()
        .await
        .unwrap();
    assert_eq!(
        finished.exit,
        Exit::Limit {
            limit: Limit::Output
        }
    );
    assert_eq!(finished.stdout.len(), 100_000);
}

async fn output_of_exactly_the_limit_is_fine(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let sandbox = kit.sandbox().await;
    let command = Command {
        output: Some(ByteSize(1_000)),
        ..Command::new(["head", "-c", "1000", "/dev/zero"])
    };
    let finished = sandbox
        .run(run(), command)
        .await
        .unwrap()
        .finish()
        .await
        .unwrap();
    assert_eq!(finished.exit, Exit::Code { code: 0 });
    assert_eq!(finished.stdout.len(), 1_000);
}

async fn silence_is_counted_where_the_template_says_so(engine: Engine) {
    let kit = Kit::with(engine, |settings| {
        for template in &mut settings.templates {
            template.time = fluffy_sandbox::template::Lifetime::Silent(Span { millis: 300 });
        }
    })
    .await;
    let sandbox = kit
        .launcher
        .create(
            create(),
            SandboxSpec {
                layer: None,
                ..kit.spec()
            },
        )
        .await
        .unwrap();
    let script = "for i in 1 2 3 4; do sleep 0.1; echo $i; done; sleep 60";
    let mut child = sandbox
        .run(run(), Command::new(["sh", "-c", script]))
        .await
        .unwrap();
    let mut seen = 0;
    while child.output().await.unwrap().is_some() {
        seen += 1;
    }
    assert_eq!(seen, 4);
    assert_eq!(
        child.wait().await.unwrap(),
        Exit::Limit { limit: Limit::Time }
    );
}
